"""The sliders of what needs a restart."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import Slot
from PySide6.QtWidgets import QVBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.cockpit.state import SettingsState
from launcher.gui.widgets import SliderField
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.preview import Preview


class RestartFields(QWidget):
    """One slider for each setting that the engine reads when it starts. They show the state, and tell it wishes."""

    def __init__(self, state: SettingsState) -> None:
        super().__init__()
        self._state = state
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.px(theme.GAP))

        def field(
            name: str, label: str, values: Sequence[object], words: Callable[[object], str], tip: str
        ) -> SliderField:
            made = SliderField(label, values, words=words, tip=tip)
            made.value_changed.connect(partial(state.wish, name))
            column.addWidget(made)
            return made

        self.fields = {
            "ctx": field(
                "ctx",
                tr("Context"),
                (),
                _number,
                tr("Tokens that all slots together can hold: prompt and reply. Flag: --ctx-size"),
            ),
            "draft": field(
                "draft",
                tr("Draft length"),
                (),
                _draft,
                tr("Tokens that the MTP head guesses ahead in each step; 0 is MTP off. Flag: --spec-draft-n-max"),
            ),
            "kv": field(
                "kv",
                tr("KV cache"),
                (),
                str,
                tr("The type in which keys and values are kept. Flags: --cache-type-k, --cache-type-v"),
            ),
            "ubatch": field(
                "ubatch",
                tr("Batch (ubatch)"),
                (),
                _number,
                tr("Tokens of a prompt that are computed at once. Flag: --ubatch-size"),
            ),
            "n_cpu_moe": field(
                "n_cpu_moe",
                tr("Experts on CPU"),
                (),
                _number,
                tr("How many layers keep their experts in host memory. Flag: --n-cpu-moe"),
            ),
            "slots": field(
                "slots",
                tr("Slots"),
                (),
                _number,
                tr("Requests that are answered at once; they share the context. Flag: --parallel"),
            ),
        }
        state.based.connect(self._show_basis)
        state.previewed.connect(self._show_preview)
        state.applying_changed.connect(lambda applying: self.setEnabled(not applying and state.previewer is not None))
        self._show_basis()

    @Slot()
    def _show_basis(self) -> None:
        """Give the sliders the steps that this server has."""
        previewer = self._state.previewer
        self.setEnabled(previewer is not None and not self._state.applying)
        if previewer is None:
            return
        from launcher.preview import LONGEST_DRAFT, SLOTS, UBATCHES

        basis = previewer.basis
        running = basis.setting
        steps: dict[str, Sequence[object]] = {
            "ctx": basis.contexts,
            "draft": range(max(LONGEST_DRAFT, running.draft) + 1) if basis.can_draft else (0,),
            "kv": basis.kv_types,
            "ubatch": sorted({*UBATCHES, running.ubatch}),
            "n_cpu_moe": range(basis.expert_layers + 1),
            "slots": sorted({*SLOTS, running.slots}),
        }
        for name, values in steps.items():
            self.fields[name].set_values(tuple(values))
        self.fields["draft"].setEnabled(basis.can_draft)
        self.fields["n_cpu_moe"].setVisible(basis.expert_layers > 0)
        self._show_preview()

    @Slot()
    def _show_preview(self) -> None:
        """Show what is wished for, and what it was."""
        preview = self._state.preview
        if preview is None:
            return
        basis, setting = preview.basis, preview.setting
        values = {
            "ctx": setting.context,
            "draft": setting.draft,
            "kv": setting.kv,
            "ubatch": setting.ubatch,
            "n_cpu_moe": setting.n_cpu_moe,
            "slots": setting.slots,
        }
        changed = {change.name: change for change in preview.changes}
        for name, value in values.items():
            field = self.fields[name]
            if field.value != value:
                field.set_value(value)
            change = changed.get(name)
            field.show_changed(None if change is None else _written(change.old))
        largest = preview.largest_context
        self.fields["ctx"].show_mark(largest)
        self.fields["ctx"].show_hint(_context_hint(preview))
        draft = tr("0 is MTP off") if basis.can_draft else tr("this model has no MTP head")
        self.fields["draft"].show_hint(draft)
        self.fields["kv"].show_hint(
            " · ".join(basis.kv_types) if len(basis.kv_types) <= 4 else tr("smaller to the right; f16 is usual")
        )
        self.fields["ubatch"].show_hint(tr("tokens of a prompt at once"))
        self.fields["n_cpu_moe"].show_hint(tr("of {count} layers", count=basis.expert_layers))
        each = setting.context // setting.slots
        self.fields["slots"].show_hint(
            tr("{each:,} tokens of context each", each=each) if setting.slots > 1 else tr("one request at a time")
        )


def _context_hint(preview: "Preview") -> str:
    if preview.estimate is None:
        return tr("what fits is not known")
    if preview.largest_context is None:
        return tr("none fits with these settings")
    return tr("largest that fits: {tokens:,}", tokens=preview.largest_context)


def _number(value: object) -> str:
    return f"{value:,}"


def _draft(value: object) -> str:
    return str(value) if value else tr("off")


def _written(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
