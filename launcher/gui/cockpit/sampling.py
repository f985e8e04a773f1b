"""The sliders of what applies now: how the next reply is sampled."""

from collections.abc import Callable, Sequence
from functools import partial

from PySide6.QtCore import Slot
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.cockpit.state import SettingsState
from launcher.gui.labels import Label, set_tip
from launcher.gui.widgets import Segmented, SliderField
from launcher.gui.words import tr

_TEMPERATURES = tuple(step / 20 for step in range(41))
_SHARES = tuple(step / 20 for step in range(21))
_LEAST_SHARES = tuple(step / 100 for step in range(31))
_TOP_K = (0, 1, 5, 10, 20, 30, 40, 50, 64, 80, 100, 150, 200)
_TOKENS = (64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, -1)


class SamplingFields(QWidget):
    """One slider for each sampling value. What was not moved is left to the server, and shown as the server has it."""

    def __init__(self, state: SettingsState) -> None:
        super().__init__()
        self._state = state
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(theme.px(theme.GAP))
        self.fields: dict[str, SliderField] = {}
        self._steps: dict[str, Sequence[float]] = {}
        self._add(
            "temperature",
            tr("Temperature"),
            _TEMPERATURES,
            _two,
            tr("How freely tokens are drawn; 0 always takes the likeliest. Request field: temperature (flag --temp)"),
        )
        self._add(
            "top_k",
            tr("Top-k"),
            _TOP_K,
            _top_k,
            tr("Only this many of the likeliest tokens are drawn from; 0 is all. Request field: top_k (flag --top-k)"),
        )
        self._add(
            "top_p",
            tr("Top-p"),
            _SHARES,
            _two,
            tr("Only the likeliest tokens that make up this share are drawn from. Request field: top_p (flag --top-p)"),
        )
        self._add(
            "min_p",
            tr("Min-p"),
            _LEAST_SHARES,
            _two,
            tr(
                "Only tokens at least this likely, compared with the likeliest, are drawn."
                " Request field: min_p (flag --min-p)"
            ),
        )
        self._add(
            "max_tokens",
            tr("Token limit"),
            _TOKENS,
            _tokens,
            tr("The reply ends after this many tokens. Request field: max_tokens (flag --n-predict)"),
        )
        self.thinking = Segmented(tr("Thinking"), [(None, tr("auto")), (True, tr("on")), (False, tr("off"))], None)
        self.thinking.changed.connect(partial(state.sample_with, "thinking"))
        set_tip(
            self.thinking,
            tr(
                "Whether the model thinks before it replies, where its template has a switch for it."
                " Request field: chat_template_kwargs.enable_thinking"
            ),
        )
        self._thinking_line = Label()
        self._thinking_line.setObjectName("secondary")
        self._thinking_line.setFont(theme.font(theme.CAPTION_PX))
        self._thinking_line.setWordWrap(True)
        row = QHBoxLayout()
        row.setSpacing(theme.px(theme.GAP))
        row.addWidget(Label(tr("Thinking")), 1)
        row.addWidget(self.thinking)
        self._column.addLayout(row)
        self._column.addWidget(self._thinking_line)
        state.sampling_told.connect(self.show_state)
        self.show_state()

    def _add(self, name: str, label: str, values: Sequence[float], words: Callable[[object], str], tip: str) -> None:
        self._steps[name] = values
        field = self.fields[name] = SliderField(label, values, words=words, tip=tip)
        field.value_changed.connect(partial(self._state.sample_with, name))
        self._column.addWidget(field)

    @Slot()
    def show_state(self) -> None:
        """Show what the next reply is sampled with."""
        defaults = self._state.defaults
        for name, field in self.fields.items():
            value = self._state.sampled_with(name)
            if value is not None and field.value != value:
                if value not in self._steps[name]:  # what the server has between two steps is one, too
                    steps: list[float] = sorted({*self._steps[name], value}, key=_unlimited_last)
                    field.set_values(steps)
                field.set_value(value)
            field.show_hint(self._hint(name))
        self.thinking.set_value(self._state.sampled_with("thinking"))
        has_switch = defaults is None or defaults.thinks is not False
        self.thinking.setEnabled(has_switch)
        self._thinking_line.setText("" if has_switch else tr("this model's template has no switch for it"))
        self._thinking_line.setVisible(not has_switch)

    def _hint(self, name: str) -> str:
        defaults = self._state.defaults
        usual = defaults.values.get(name) if defaults else None
        if usual is None or self._state.sampled_with(name) == usual:
            return _meaning(name)
        return tr("the server's own: {value}", value=_WORDS[name](usual))


def _meaning(name: str) -> str:
    return {
        "temperature": tr("0 takes the likeliest token"),
        "top_k": tr("how many of the likeliest count"),
        "top_p": tr("the likeliest that make up this share"),
        "min_p": tr("at least so likely, beside the likeliest"),
        "max_tokens": tr("a reply ends there"),
    }[name]


def _unlimited_last(value: float) -> tuple[bool, float]:
    return value < 0, value


def _two(value: object) -> str:
    return f"{value:.2f}"


def _top_k(value: object) -> str:
    return str(value) if value else tr("all")


def _tokens(value: object) -> str:
    return tr("no limit") if value == -1 else f"{value:,}"


_WORDS: dict[str, Callable[[object], str]] = {
    "temperature": _two,
    "top_k": _top_k,
    "top_p": _two,
    "min_p": _two,
    "max_tokens": _tokens,
}
