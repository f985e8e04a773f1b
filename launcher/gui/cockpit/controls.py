"""Left pane of the Cockpit: settings that need a restart, settings that apply at once, and all flags under Advanced."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Slot
from PySide6.QtWidgets import (
    QComboBox,
    QFrame,
    QHBoxLayout,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QPushButton,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from launcher.app import settings
from launcher.app.settings import DRAIN_S
from launcher.app.settings_declared import APPLY, VALUE_CANCEL, VALUE_FINISH
from launcher.base.errors import LauncherError
from launcher.gui import theme
from launcher.gui.cockpit.panes import load_choice, save_choice
from launcher.gui.cockpit.state import SettingsState
from launcher.gui.controller import Controller
from launcher.gui.labels import Label, escape_tooltip, set_tooltip
from launcher.gui.translation import mark, ntr, render, tr
from launcher.gui.widgets import Card, ComboBox, Segmented, SliderField
from launcher.gui.widgets.blocks import make_caption
from launcher.models.server_settings import ROWS, ServerSetting

if TYPE_CHECKING:
    from launcher.app.preview import Preview
    from launcher.engine.builds.build import EngineBuild
    from launcher.engine.builds.flags import Flag

# The Advanced part: every flag of the engine build, and raw arguments.

_LIST_HEIGHT = 184
_FLAG_NOT_SET = ""


class AdvancedFields(QWidget):
    """Searchable list of the engine's flags, a field for the chosen one, and the raw argument line.

    All three show the same state.
    """

    def __init__(self, state: SettingsState, controller: Controller) -> None:
        super().__init__()
        self._state, self._controller = state, controller
        self._flags_build: EngineBuild | None = None
        self._flags: tuple[Flag, ...] = ()
        self._flag: Flag | None = None
        self.search = QLineEdit()
        self.search.setPlaceholderText(tr("Search all flags"))
        self.search.setAccessibleName(tr("Search all flags"))
        self.search.setClearButtonEnabled(True)
        set_tooltip(self.search, tr("Searches the names and descriptions of llama-server's flags"))
        self.search.textChanged.connect(self._list_flags)
        self._count = make_caption()
        self.list = QListWidget()
        self.list.setAccessibleName(tr("llama-server flags"))
        self.list.setFixedHeight(theme.px(_LIST_HEIGHT))
        self.list.setFont(theme.monospace())
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.setTextElideMode(Qt.TextElideMode.ElideRight)
        self.list.currentItemChanged.connect(self._choose_flag)
        self._description = make_caption()
        self._description.setTextInteractionFlags(theme.SELECTABLE)
        self.choice, self.text = ComboBox(), QLineEdit()
        self.choice.activated.connect(lambda _at: self._set_flag(self.choice.currentData()))
        self.text.editingFinished.connect(lambda: self._set_flag(self.text.text().strip()))
        self._flag_error = make_caption()
        self._flag_error.setObjectName("")  # an error, in the colour of normal text
        raw_title = Label(tr("Extra arguments"))
        self.raw = QLineEdit()
        self.raw.setFont(theme.monospace())
        self.raw.setAccessibleName(tr("Extra arguments"))
        self.raw.setPlaceholderText(tr("for example --no-warmup --top-k 20"))
        set_tooltip(self.raw, tr("Passed to llama-server after all other arguments, and overrides them"))
        self.raw.textEdited.connect(lambda text: state.request("extra", text))
        self._raw_line = make_caption()
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.px(theme.GAP))
        for widget in (
            self.search, self._count, self.list, self._description, self.choice, self.text, self._flag_error,
            raw_title, self.raw, self._raw_line,
        ):  # fmt: skip
            column.addWidget(widget)
        self._show_flag()
        state.previewed.connect(self._show_state)
        state.previewer_changed.connect(self._request_flags)

    def on_shown(self) -> None:
        """Read the engine's flags, which is not done before the fields are visible."""
        self._request_flags()
        self._show_state()

    @Slot()
    def _request_flags(self) -> None:
        launch = self._controller.launch
        if launch is None or launch.build is self._flags_build or not self.isVisible():
            return
        build = self._flags_build = launch.build
        if not self._flags:
            self._count.setText(tr("Reading the flags of {engine} ...", engine=build.name))
        self._controller.bridge.run(
            lambda _report: _read_flags(build),
            done=lambda flags: self._show_flags(build, flags),
            failed=self._show_error,
        )

    def _show_flags(self, build: "EngineBuild", flags: "tuple[Flag, ...]") -> None:
        if build is self._flags_build:
            self._flags = flags
            self._list_flags()

    def _show_error(self, error: LauncherError) -> None:
        self._flags_build = None
        self._count.setText(render(error.message))

    @Slot()
    def _list_flags(self) -> None:
        """List the flags that match the search."""
        query, chosen_name = self.search.text(), self._flag.name if self._flag else ""
        matching = [flag for flag in self._flags if flag.matches_search(query)]
        extra = self._state.extra
        self.list.blockSignals(True)
        self.list.clear()
        for flag in matching:
            value = flag.value_in(extra)
            item = QListWidgetItem(flag.name if value is None else f"{flag.name} {value}")
            item.setData(Qt.ItemDataRole.UserRole, flag)
            item.setToolTip(escape_tooltip(flag.description))
            if value is not None:
                item.setFont(theme.monospace())
                item.setForeground(theme.colour("accent"))
            self.list.addItem(item)
            if flag.name == chosen_name:
                self.list.setCurrentItem(item)
        self.list.blockSignals(False)
        if self._flags:
            self._count.setText(ntr("1 flag", "{n} flags", len(matching)) if matching else tr("No flag matches."))

    @Slot(QListWidgetItem, QListWidgetItem)
    def _choose_flag(self, item: QListWidgetItem | None, _before: QListWidgetItem | None) -> None:
        self._flag = item.data(Qt.ItemDataRole.UserRole) if item else None
        self._flag_error.hide()
        self._show_flag()

    def _show_flag(self) -> None:
        """Show the chosen flag: description, default, and a field of its type."""
        flag = self._flag
        has_values = flag is not None and flag.kind in ("switch", "choice")
        self.choice.setVisible(flag is not None and has_values)
        self.text.setVisible(flag is not None and not has_values)
        self._description.setVisible(flag is not None)
        self._flag_error.setVisible(False)
        if flag is None:
            return
        from launcher.engine.builds.flags import SETTING_OF_FLAG

        value = flag.value_in(self._state.extra)
        default = tr("Default: {value}.", value=flag.default) if flag.default else ""
        slider_note = (
            tr("A slider above also sets this flag. The value here overrides it.")
            if flag.name in SETTING_OF_FLAG
            else ""
        )
        self._description.setText(" ".join(filter(None, (flag.description, default, slider_note))))
        editor: QComboBox | QLineEdit = self.choice if has_values else self.text
        editor.setAccessibleName(flag.name)
        set_tooltip(editor, tr("Value of {flag}. Leave empty for the default", flag=flag.name))
        if has_values:
            self.choice.clear()
            self.choice.addItem(tr("default"), _FLAG_NOT_SET)
            for each in _flag_values(flag):
                self.choice.addItem(each, each)
            self.choice.setCurrentIndex(max(self.choice.findData(value or _FLAG_NOT_SET), 0))
        else:
            self.text.setPlaceholderText(flag.placeholder or "")
            self.text.setText(value or "")

    def _set_flag(self, value: str) -> None:
        """Set the chosen flag, or remove it if `value` is empty."""
        flag = self._flag
        if flag is None or value == (flag.value_in(self._state.extra) or _FLAG_NOT_SET):
            return
        from launcher.engine.settings import join_extra

        try:
            if value and flag.placeholder is not None:
                flag.check_value(value)
        except LauncherError as error:
            self._flag_error.setText(render(error.message))
            self._flag_error.show()
            return
        self._flag_error.hide()
        self._state.request("extra", join_extra(flag.set_in(self._state.extra, value or None)))

    @Slot()
    def _show_state(self) -> None:
        """Show the requested arguments, unless the user is typing them."""
        if not self.isVisible():
            return
        from launcher.engine.settings import join_extra, split_extra

        state = self._state
        try:
            typed: tuple[str, ...] | None = split_extra(self.raw.text())
        except LauncherError:
            typed = None
        if typed != state.extra and not (typed is None and "extra" in state.requested):
            self.raw.setText(join_extra(state.extra))
        refused = state.refusal if "extra" in state.requested else ""
        self._raw_line.setText(refused or tr("Passed after all other arguments, and overrides them."))
        self._list_flags()
        if self._flag is not None and not self.text.hasFocus():
            self._show_flag()


def _flag_values(flag: "Flag") -> tuple[str, ...]:
    if flag.kind == "choice":
        return flag.choices
    return ("on", "off") if flag.off else ("on",)


async def _read_flags(build: "EngineBuild") -> "tuple[Flag, ...]":
    from launcher.engine.builds.flags import read_flags

    return await read_flags(build)


# Box with the consequences of pending changes, and buttons to apply or revert them.


class ChangesBox(QFrame):
    """Box with the consequences of the changes and buttons to apply or revert them. Hidden without changes."""

    def __init__(self, controller: Controller, state: SettingsState) -> None:
        super().__init__()
        self.setObjectName("banner")
        self.setProperty("meaning", "attention")
        self._state = state
        self._title = Label()
        self._title.setFont(theme.font(theme.BODY_PX, bold=True, tabular=True))
        self._title.setWordWrap(True)
        self._costs = make_caption()
        self._problem = Label()
        self._problem.setWordWrap(True)
        self.drain = ComboBox()
        self.drain.setAccessibleName(tr("Running replies"))
        self.drain.addItem(tr("finish replies first"), VALUE_FINISH)
        self.drain.addItem(tr("cancel replies"), VALUE_CANCEL)
        self.drain.setToolTip(
            tr("Before a restart, wait up to {seconds:.0f} s for running replies, or cancel them", seconds=DRAIN_S)
        )
        self.drain.setCurrentIndex(self.drain.findData(settings.stored_value(APPLY)))
        self.drain.activated.connect(lambda _at: controller.change_setting(APPLY, self.drain.currentData()))
        controller.setting_changed.connect(self._handle_setting)
        self.apply = QPushButton(tr("Apply"))
        self.apply.setObjectName("primary")
        self.apply.setToolTip(
            tr(
                "Restart the server with these settings (Ctrl+Return). If that fails, the previous settings are "
                "restored"
            )
        )
        self.apply.clicked.connect(self.apply_now)
        self.revert = QPushButton(tr("Revert"))
        self.revert.setToolTip(tr("Discard all changes"))
        self.revert.clicked.connect(lambda _checked=False: state.revert())
        row = QHBoxLayout()
        row.setSpacing(theme.px(theme.GAP))
        row.addWidget(self.apply)
        row.addWidget(self.revert)
        row.addStretch()
        column = QVBoxLayout(self)
        column.setContentsMargins(*(theme.px(theme.GAP_M),) * 4)
        column.setSpacing(theme.px(theme.GAP))
        for widget in (self._title, self._costs, self._problem, self.drain):
            column.addWidget(widget)
        column.addLayout(row)
        state.previewed.connect(self.show_state)
        state.applying_changed.connect(lambda _applying: self.show_state())
        self.show_state()

    @property
    def drain_s(self) -> float:
        """Seconds for which running replies may finish before a restart."""
        return DRAIN_S if self.drain.currentData() == VALUE_FINISH else 0.0

    @Slot(str, object)
    def _handle_setting(self, name: str, value: object) -> None:
        if name == APPLY:
            self.drain.setCurrentIndex(self.drain.findData(value))

    @Slot()
    def apply_now(self) -> None:
        """Apply the changes."""
        self._state.apply(self.drain_s)

    @Slot()
    def show_state(self) -> None:
        """Show the pending changes."""
        state, preview = self._state, self._state.preview
        count = state.changes
        self.setVisible(bool(preview and (count or state.problem)))
        if preview is None:
            return
        self._title.setText(tr("Restarting ...") if state.applying else _change_title(preview))
        costs = [render(change.consequence) for change in preview.changes]
        costs += [render(each) for each in preview.warnings]
        self._costs.setText("\n".join(costs))
        self._costs.setVisible(bool(costs))
        problem = state.refusal or _missing_memory_text(preview)
        self._problem.setText(problem)
        self._problem.setVisible(bool(problem))
        self.apply.setEnabled(bool(count) and state.problem is None and not state.applying)
        self.revert.setEnabled(not state.applying)
        self.drain.setEnabled(not state.applying)


def _change_title(preview: "Preview") -> str:
    count = ntr("1 change", "{n} changes", len(preview.changes))
    if preview.restart_s is None:
        return tr("{changes} · restart time unknown", changes=count)
    if preview.restart_s < 1:
        return tr("{changes} · restart under 1 s", changes=count)
    return tr("{changes} · restart about {seconds:.0f} s", changes=count, seconds=preview.restart_s)


def _missing_memory_text(preview: "Preview") -> str:
    if not preview.missing_mib:
        return ""
    return tr(
        "{missing:,} MiB of GPU memory are missing: the model will probably not load.", missing=preview.missing_mib
    )


# Sliders for settings that need a restart.


class RestartFields(QWidget):
    """One slider for each server setting that needs a restart. It shows the state and passes requests to it."""

    def __init__(self, state: SettingsState) -> None:
        super().__init__()
        self._state = state
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.px(theme.GAP))

        self.fields: dict[str, SliderField] = {}
        for name, row in ROWS.items():
            if row.label:
                field = SliderField(tr(row.label), (), format_value=partial(_format_value, row), tip=tr(row.tip))
                field.value_changed.connect(partial(state.request, name))
                column.addWidget(field)
                self.fields[name] = field
        state.previewer_changed.connect(self._show_basis)
        state.previewed.connect(self._show_preview)
        state.applying_changed.connect(lambda applying: self.setEnabled(not applying and state.previewer is not None))
        self._show_basis()

    @Slot()
    def _show_basis(self) -> None:
        """Give the sliders the steps that this server supports."""
        previewer = self._state.previewer
        self.setEnabled(previewer is not None and not self._state.applying)
        if previewer is None:
            return
        basis = previewer.basis
        for name, field in self.fields.items():
            steps = basis.slider_values(name)
            field.set_values(steps)
            field.setVisible(len(steps) > 1 or name == "draft")
        self.fields["draft"].setEnabled(basis.can_draft)
        self._show_preview()

    @Slot()
    def _show_preview(self) -> None:
        """Show the requested values and the running ones."""
        preview = self._state.preview
        if preview is None:
            return
        basis, setting = preview.basis, preview.plan_settings
        changed = {change.name: change for change in preview.changes}
        for name, field in self.fields.items():
            value = ROWS[name].value_in(setting)
            if field.value != value:
                field.set_value(value)
            change = changed.get(name)
            field.show_changed(None if change is None else _format_plain_value(change.old))
        largest = preview.largest_context
        self.fields["ctx"].show_mark(largest)
        self.fields["ctx"].show_hint(_context_hint(preview))
        draft = tr("0 turns MTP off") if basis.can_draft else tr("this model has no MTP head")
        self.fields["draft"].show_hint(draft)
        self.fields["kv"].show_hint(
            " · ".join(basis.kv_types) if len(basis.kv_types) <= 4 else tr("Lower precision saves memory. Default: f16")
        )
        self.fields["ubatch"].show_hint(tr("prompt tokens per batch"))
        self.fields["n_cpu_moe"].show_hint(tr("of {count} layers", count=basis.expert_layers))
        per_slot = setting.context // setting.slots
        self.fields["slots"].show_hint(
            tr("{each:,} tokens of context per slot", each=per_slot) if setting.slots > 1 else tr("1 request at a time")
        )


def _context_hint(preview: "Preview") -> str:
    if preview.estimate is None:
        return tr("largest context unknown")
    if preview.largest_context is None:
        return tr("no context fits with these settings")
    return tr("largest that fits: {tokens:,}", tokens=preview.largest_context)


def _format_value(row: ServerSetting, value: object) -> str:
    if row.name == "draft":
        return str(value) if value else tr("off")
    if row.kind == "mib":
        return f"{value:,} MiB" if value else tr("off")
    return _format_plain_value(value)


def _format_plain_value(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


# Sliders for sampling values, which apply to the next reply.


def _format_two_decimals(value: object) -> str:
    return f"{value:.2f}"


def _format_top_k(value: object) -> str:
    return str(value) if value else tr("all")


def _format_token_limit(value: object) -> str:
    return tr("no limit") if value == -1 else f"{value:,}"


@dataclass(frozen=True, slots=True)
class _SamplingRow:
    """A sampling value with the steps of its slider. `name` is the request field; texts are translated when shown."""

    name: str
    label: str
    tip: str
    hint: str
    steps: Sequence[float]
    format_value: Callable[[object], str]


_SAMPLING_ROWS = (
    _SamplingRow(
        "temperature",
        mark("Temperature"),
        mark("Randomness of replies. 0 always picks the most likely token. Request field: temperature (flag --temp)"),
        mark("0 always picks the most likely token"),
        tuple(step / 20 for step in range(41)),
        _format_two_decimals,
    ),
    _SamplingRow(
        "top_k",
        mark("Top-k"),
        mark("Samples from this many of the most likely tokens. 0 means all. Request field: top_k (flag --top-k)"),
        mark("number of most likely tokens to sample from"),
        (0, 1, 5, 10, 20, 30, 40, 50, 64, 80, 100, 150, 200),
        _format_top_k,
    ),
    _SamplingRow(
        "top_p",
        mark("Top-p"),
        mark(
            "Samples from the most likely tokens that together reach this probability. Request field: top_p "
            "(flag --top-p)"
        ),
        mark("most likely tokens that reach this probability"),
        tuple(step / 20 for step in range(21)),
        _format_two_decimals,
    ),
    _SamplingRow(
        "min_p",
        mark("Min-p"),
        mark("Drops tokens below this share of the top token's probability. Request field: min_p (flag --min-p)"),
        mark("drops tokens below this share of the top token's probability"),
        tuple(step / 100 for step in range(31)),
        _format_two_decimals,
    ),
    _SamplingRow(
        "max_tokens",
        mark("Token limit"),
        mark("Longest reply, in tokens. Request field: max_tokens (flag --n-predict)"),
        mark("longest reply, in tokens"),
        (64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, -1),
        _format_token_limit,
    ),
)


class SamplingFields(QWidget):
    """One slider for each sampling value. A value that the user did not set is the server's default."""

    def __init__(self, state: SettingsState) -> None:
        super().__init__()
        self._state = state
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.px(theme.GAP))
        self.fields: dict[str, SliderField] = {}
        for row in _SAMPLING_ROWS:
            field = SliderField(tr(row.label), row.steps, format_value=row.format_value, tip=tr(row.tip))
            field.value_changed.connect(partial(state.set_sampling_value, row.name))
            column.addWidget(field)
            self.fields[row.name] = field
        self.thinking = Segmented(tr("Thinking"), [(None, tr("auto")), (True, tr("on")), (False, tr("off"))], None)
        self.thinking.changed.connect(partial(state.set_sampling_value, "thinking"))
        set_tooltip(
            self.thinking,
            tr(
                "Lets the model think before it replies, if its chat template supports it. Request field: "
                "chat_template_kwargs.enable_thinking"
            ),
        )
        self._thinking_line = make_caption()
        thinking_row = QHBoxLayout()
        thinking_row.setSpacing(theme.px(theme.GAP))
        thinking_row.addWidget(Label(tr("Thinking")), 1)
        thinking_row.addWidget(self.thinking)
        column.addLayout(thinking_row)
        column.addWidget(self._thinking_line)
        state.sampling_changed.connect(self.show_state)
        self.show_state()

    @Slot()
    def show_state(self) -> None:
        """Show the sampling values of the next request."""
        defaults = self._state.defaults
        for row in _SAMPLING_ROWS:
            field, value = self.fields[row.name], self._state.sampling_value(row.name)
            if value is not None and field.value != value:
                if value not in row.steps:  # the server's value may lie between two steps: make it a step
                    steps: list[float] = sorted({*row.steps, value}, key=_sort_unlimited_last)
                    field.set_values(steps)
                field.set_value(value)
            field.show_hint(self._hint_for(row))
        self.thinking.set_value(self._state.sampling_value("thinking"))
        has_switch = defaults is None or defaults.thinks is not False
        self.thinking.setEnabled(has_switch)
        self._thinking_line.setText("" if has_switch else tr("not supported by this model's chat template"))
        self._thinking_line.setVisible(not has_switch)

    def _hint_for(self, row: _SamplingRow) -> str:
        default = self._state.defaults.values.get(row.name) if self._state.defaults else None
        if default is None or self._state.sampling_value(row.name) == default:
            return tr(row.hint)
        return tr("server default: {value}", value=row.format_value(default))


def _sort_unlimited_last(value: float) -> tuple[bool, float]:
    return value < 0, value


_SIMPLE, _ADVANCED = "simple", "advanced"


class ControlsPane(Card):
    """Left pane: the settings in a scroll area, and below it the box of pending changes."""

    def __init__(self, state: SettingsState, controller: Controller) -> None:
        super().__init__()
        self.body.setContentsMargins(theme.px(theme.GAP_L), theme.px(theme.GAP_M), theme.px(4), theme.px(theme.GAP_M))
        self.body.setSpacing(theme.px(theme.GAP))
        self.mode = Segmented(
            tr("Settings shown"), [(_SIMPLE, tr("Simple")), (_ADVANCED, tr("Advanced"))], load_choice("mode", _SIMPLE)
        )
        self.mode.button(_SIMPLE).setToolTip(tr("The most important settings"))
        self.mode.button(_ADVANCED).setToolTip(tr("Also all llama-server flags and extra arguments"))
        self.mode.changed.connect(self._choose_mode)
        self.restart, self.sampling = RestartFields(state), SamplingFields(state)
        self.advanced, self.changes = AdvancedFields(state, controller), ChangesBox(controller, state)
        self._advanced_title = _make_title(tr("All flags"))
        inner = QWidget()
        inner.setObjectName("plain")
        column = QVBoxLayout(inner)
        column.setContentsMargins(0, 0, theme.px(theme.GAP_M), 0)
        column.setSpacing(theme.px(theme.GAP_M))
        column.addWidget(_make_title(tr("Needs a restart")))
        column.addWidget(self.restart)
        column.addWidget(self._advanced_title)
        column.addWidget(self.advanced)
        column.addWidget(_make_title(tr("Applies now")))
        column.addWidget(self.sampling)
        column.addStretch()
        area = QScrollArea()
        area.setWidgetResizable(True)
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        area.setAccessibleName(tr("Settings"))
        area.setWidget(inner)
        self.body.addWidget(self.mode)
        self.body.addWidget(area, 1)
        foot = QHBoxLayout()
        foot.setContentsMargins(0, 0, theme.px(theme.GAP_M), 0)
        foot.addWidget(self.changes)
        self.body.addLayout(foot)
        self._show_mode()

    @Slot(object)
    def _choose_mode(self, mode: object) -> None:
        save_choice("mode", str(mode))
        self._show_mode()

    def _show_mode(self) -> None:
        advanced = self.mode.value == _ADVANCED
        self._advanced_title.setVisible(advanced)
        self.advanced.setVisible(advanced)
        if advanced:
            self.advanced.on_shown()


def _make_title(text: str) -> Label:
    title = Label(text)
    title.setFont(theme.font(theme.SECTION_PX, bold=True))
    return title
