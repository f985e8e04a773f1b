"""Left pane of the Cockpit: settings that need a restart, settings that apply at once, and all flags under Advanced."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, QTimer, Slot
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import (
    QComboBox,
    QFrame,
    QHBoxLayout,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QPushButton,
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
from launcher.gui.cockpit.stops import PlanStops
from launcher.gui.controller import Controller
from launcher.gui.labels import Label, escape_tooltip, set_tooltip
from launcher.gui.late import engine_flags, engine_settings, pause_estimate
from launcher.gui.translation import join_sentences, mark, ntr, render, tr
from launcher.gui.widgets import Card, ComboBox, Segmented, SliderField
from launcher.gui.widgets.blocks import make_button, make_caption
from launcher.gui.widgets.focus import find_focus
from launcher.gui.widgets.scrolling import make_scroll_area
from launcher.models.drafters import DraftChoice
from launcher.models.server_settings import DRAFTING, ROWS, ServerSetting

if TYPE_CHECKING:
    from launcher.app.planning.preview import Preview
    from launcher.app.serving.pause_estimate import PauseEstimate
    from launcher.engine.builds.build import EngineBuild
    from launcher.engine.builds.flags import Flag
    from launcher.gateway.exchange import HandoverOutlook
    from launcher.models.server_settings import Value

# The Advanced part: every flag of the engine build, and the extra arguments.

_LIST_ROWS = 10
_NOT_SET = ""


class AdvancedFields(QWidget):
    """Searchable list of the engine's flags, a field for the chosen one, and a field for all extra arguments.

    All three show the requested extra arguments.
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
        self.flag_list = QListWidget()
        self.flag_list.setAccessibleName(tr("llama-server flags"))
        self.flag_list.setFont(theme.monospace())
        self.flag_list.setFixedHeight(_LIST_ROWS * self.flag_list.fontMetrics().height())
        self.flag_list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.flag_list.setTextElideMode(Qt.TextElideMode.ElideRight)
        self.flag_list.currentItemChanged.connect(self._choose_flag)
        self._description = make_caption()
        self._description.setTextInteractionFlags(theme.SELECTABLE)
        self.value_choice, self.value_field = ComboBox(), QLineEdit()
        self.value_choice.activated.connect(lambda _at: self._set_flag(self.value_choice.currentData()))
        self.value_field.editingFinished.connect(lambda: self._set_flag(self.value_field.text().strip()))
        self._flag_error = make_caption()
        self._flag_error.setObjectName("")  # an error, in the colour of normal text
        extra_title = Label(tr("Extra arguments"))
        self.extra_field = QLineEdit()
        self.extra_field.setFont(theme.monospace())
        self.extra_field.setAccessibleName(tr("Extra arguments"))
        self.extra_field.setPlaceholderText(tr("for example --no-warmup --top-k 20"))
        set_tooltip(self.extra_field, tr("Passed to llama-server after all other arguments, and overrides them"))
        self.extra_field.textEdited.connect(lambda text: state.request_value("extra", text))
        self._extra_note = make_caption()
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.px(theme.GAP))
        for widget in (
            self.search, self._count, self.flag_list, self._description, self.value_choice, self.value_field,
            self._flag_error, extra_title, self.extra_field, self._extra_note,
        ):  # fmt: skip
            column.addWidget(widget)
        self._show_flag()
        state.previewed.connect(self._show_state)
        state.previewer_changed.connect(self._request_flags)

    def on_shown(self) -> None:
        """Read the engine's flags and show the state. Neither is done while the fields are hidden."""
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
            lambda: engine_flags.read_flags(build),
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
        self.flag_list.blockSignals(True)
        self.flag_list.clear()
        for flag in matching:
            value = flag.value_in(extra)
            item = QListWidgetItem(flag.name if value is None else f"{flag.name} {value}")
            item.setData(Qt.ItemDataRole.UserRole, flag)
            item.setToolTip(escape_tooltip(flag.description))
            if value is not None:
                item.setFont(theme.monospace())
                item.setForeground(theme.colour("accent"))
            self.flag_list.addItem(item)
            if flag.name == chosen_name:
                self.flag_list.setCurrentItem(item)
        self.flag_list.blockSignals(False)
        if (row := self.flag_list.sizeHintForRow(0)) > 0:  # whole rows
            self.flag_list.setFixedHeight(_LIST_ROWS * row + 2 * self.flag_list.frameWidth())
        if self._flags:
            self._count.setText(ntr("1 flag", "{n} flags", len(matching)) if matching else tr("No flag matches."))

    @Slot(QListWidgetItem, QListWidgetItem)
    def _choose_flag(self, item: QListWidgetItem | None, _before: QListWidgetItem | None) -> None:
        self._flag = item.data(Qt.ItemDataRole.UserRole) if item else None
        self._show_flag()

    def _show_flag(self) -> None:
        """Show the chosen flag: description, default, and a field of its type."""
        flag = self._flag
        has_values = flag is not None and flag.kind in ("switch", "choice")
        self.value_choice.setVisible(has_values)
        self.value_field.setVisible(flag is not None and not has_values)
        self._description.setVisible(flag is not None)
        self._flag_error.hide()
        if flag is None:
            return
        value = flag.value_in(self._state.extra)
        default = tr("Default: {value}.", value=flag.default) if flag.default else ""
        texts = [flag.description, default]
        if flag.name in engine_flags.SETTING_OF_FLAG:
            texts.append(tr("A slider above also sets this flag. The value here overrides it."))
        self._description.setText(" ".join(filter(None, texts)))
        editor: QComboBox | QLineEdit = self.value_choice if has_values else self.value_field
        editor.setAccessibleName(flag.name)
        set_tooltip(editor, tr("Value of {flag}. Leave empty for the default", flag=flag.name))
        if has_values:
            self.value_choice.clear()
            self.value_choice.addItem(tr("default"), _NOT_SET)
            for each in _flag_values(flag):
                self.value_choice.addItem(each, each)
            self.value_choice.setCurrentIndex(max(self.value_choice.findData(value or _NOT_SET), 0))
        else:
            self.value_field.setPlaceholderText(flag.placeholder or "")
            self.value_field.setText(value or "")

    def _set_flag(self, value: str) -> None:
        """Set the chosen flag, or remove it if `value` is empty."""
        flag = self._flag
        if flag is None or value == (flag.value_in(self._state.extra) or _NOT_SET):
            return
        try:
            if value and flag.placeholder is not None:
                flag.check_value(value)
        except LauncherError as error:
            self._flag_error.setText(render(error.message))
            self._flag_error.show()
            return
        self._flag_error.hide()
        self._state.request_value("extra", engine_settings.join_extra(flag.set_in(self._state.extra, value or None)))

    @Slot()
    def _show_state(self) -> None:
        """Show the requested arguments, unless the user is typing them."""
        if not self.isVisible():
            return
        state = self._state
        try:
            differs = engine_settings.split_extra(self.extra_field.text()) != state.extra
        except LauncherError:  # the user is typing an argument with a quote that is still open
            differs = "extra" not in state.requested
        if differs:
            self.extra_field.setText(engine_settings.join_extra(state.extra))
        problem = state.problem_text if "extra" in state.requested else ""
        self._extra_note.setText(problem or tr("Passed after all other arguments, and overrides them."))
        self._list_flags()
        if self._flag is not None and not self.value_field.hasFocus():
            self._show_flag()


def _flag_values(flag: "Flag") -> tuple[str, ...]:
    if flag.kind == "choice":
        return flag.choices
    return ("on", "off") if flag.off else ("on",)


# The box of pending changes.

_OUTLOOK_MS = 1_000
"""Milliseconds between two readings of what a restart would mean for running requests."""


class ChangesBox(QFrame):
    """Box with the consequences of the changes and buttons to apply or revert them. Hidden without changes."""

    def __init__(self, controller: Controller, state: SettingsState) -> None:
        super().__init__()
        self.setObjectName("banner")
        self.setProperty("meaning", "attention")
        self._state, self._controller = state, controller
        self._outlook: HandoverOutlook | None = None
        self._outlook_timer = QTimer(self)
        self._outlook_timer.setInterval(_OUTLOOK_MS)
        self._outlook_timer.timeout.connect(self._request_outlook)
        self._title = Label()
        self._title.setFont(theme.font(theme.BODY_PX, bold=True, tabular=True))
        self._title.setWordWrap(True)
        self._costs = make_caption()
        self._problem = Label()
        self._problem.setWordWrap(True)
        self._outlook_label = make_caption()
        self.drain_choice = ComboBox()
        self.drain_choice.setAccessibleName(tr("Running replies"))
        self.drain_choice.addItem(tr("finish replies first"), VALUE_FINISH)
        self.drain_choice.addItem(tr("cancel replies"), VALUE_CANCEL)
        self.drain_choice.setToolTip(
            tr("Before a restart, wait for running replies that cannot go on after it, or cut them off")
        )
        self.drain_choice.setCurrentIndex(self.drain_choice.findData(settings.stored_value(APPLY)))
        self.drain_choice.activated.connect(
            lambda _at: controller.change_setting(APPLY, self.drain_choice.currentData())
        )
        self.drain_choice.currentIndexChanged.connect(self._show_outlook)
        controller.setting_changed.connect(self._handle_setting)
        self.apply_button = QPushButton(tr("Apply"))
        self.apply_button.setObjectName("primary")
        self.apply_button.setToolTip(
            tr(
                "Restart the server with these settings (Ctrl+Return). If that fails, the previous settings are "
                "restored"
            )
        )
        self.apply_button.clicked.connect(self.apply_now)
        self.revert_button = QPushButton(tr("Revert"))
        self.revert_button.setToolTip(tr("Discard all changes"))
        self.revert_button.clicked.connect(lambda _checked=False: state.revert_changes())
        row = QHBoxLayout()
        row.setSpacing(theme.px(theme.GAP))
        row.addWidget(self.apply_button)
        row.addWidget(self.revert_button)
        row.addStretch()
        column = QVBoxLayout(self)
        column.setContentsMargins(*(theme.px(theme.GAP_M),) * 4)
        column.setSpacing(theme.px(theme.GAP))
        for widget in (self._title, self._costs, self._problem, self._outlook_label, self.drain_choice):
            column.addWidget(widget)
        column.addLayout(row)
        state.previewed.connect(self.show_state)
        state.applying_changed.connect(lambda _applying: self.show_state())
        self.show_state()

    @property
    def drain_s(self) -> float:
        """Seconds for which running replies may finish before a restart."""
        return DRAIN_S if self.drain_choice.currentData() == VALUE_FINISH else 0.0

    @Slot(str, object)
    def _handle_setting(self, name: str, value: object) -> None:
        if name == APPLY:
            self.drain_choice.setCurrentIndex(self.drain_choice.findData(value))

    @Slot()
    def apply_now(self) -> None:
        """Apply the changes."""
        self._state.apply_changes(self.drain_s)

    @Slot()
    def show_state(self) -> None:
        """Show the pending changes."""
        state, preview = self._state, self._state.preview
        count = state.change_count
        self.setVisible(bool(preview and (count or state.problem)))
        if preview is None:
            return
        if state.applying and self._outlook is not None and self._outlook.ending:
            self._title.setText(tr("Waiting for running replies ..."))
        else:
            self._title.setText(tr("Restarting ...") if state.applying else _change_title(preview))
        costs = list(dict.fromkeys(render(change.consequence) for change in preview.changes))
        costs += [render(each) for each in preview.warnings]
        self._costs.setText("\n".join(costs))
        self._costs.setVisible(bool(costs))
        problem = state.problem_text or _missing_memory_text(preview)
        self._problem.setText(problem)
        self._problem.setVisible(bool(problem))
        self.apply_button.setEnabled(bool(count) and state.problem is None and not state.applying)
        self.revert_button.setEnabled(not state.applying)
        self.drain_choice.setEnabled(not state.applying)
        self._show_outlook()

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 -- Qt's name
        """Show from now on what a restart would mean for the running requests."""
        super().showEvent(event)
        self._request_outlook()
        self._outlook_timer.start()

    def hideEvent(self, event: QHideEvent) -> None:  # noqa: N802 -- Qt's name
        """Stop reading it, because nobody sees it."""
        super().hideEvent(event)
        self._outlook_timer.stop()

    @Slot()
    def _request_outlook(self) -> None:
        self._controller.bridge.run(_foresee_handover, self._controller, done=self._record_outlook)

    def _record_outlook(self, outlook: "HandoverOutlook | None") -> None:
        self._outlook = outlook
        self.show_state()

    @Slot()
    def _show_outlook(self) -> None:
        """Show what clients would notice of a restart, unless one is being made."""
        preview, outlook = self._state.preview, self._outlook
        shows = preview is not None and outlook is not None and not self._state.applying
        self._outlook_label.setVisible(shows)
        self.drain_choice.setVisible(outlook is not None and bool(outlook.uncertain or outlook.ending))
        if preview is not None and outlook is not None:
            self._outlook_label.setText(
                _describe_outlook(outlook, pause_estimate.estimate_pause(preview, outlook), self.drain_s)
            )


async def _foresee_handover(controller: Controller) -> "HandoverOutlook | None":
    return await controller.session.foresee_handover() if controller.session is not None else None


def _describe_outlook(outlook: "HandoverOutlook", estimate: "PauseEstimate", drain_s: float) -> str:
    """Return sentences on what clients notice of a restart."""
    if not (outlook.going_on or outlook.uncertain or outlook.ending):
        return tr("No reply is running, so clients will not notice.")
    sentences = []
    if outlook.going_on:
        pause, seconds = tr("a pause"), estimate.seconds
        if seconds is not None:
            pause = tr("a pause under 1 s") if seconds < 1 else tr("a pause of about {seconds:.0f} s", seconds=seconds)
        sentences.append(
            ntr(
                "1 running reply goes on, with {pause}.",
                "{n} running replies go on, with {pause}.",
                outlook.going_on,
                pause=pause,
            )
        )
    if outlook.uncertain and drain_s:
        sentences.append(
            ntr(
                "1 running reply ends first, or goes on later, perhaps with other words.",
                "{n} running replies end first, or go on later, perhaps with other words.",
                outlook.uncertain,
            )
        )
    elif outlook.uncertain:
        sentences.append(
            ntr(
                "1 running reply goes on, perhaps with other words.",
                "{n} running replies go on, perhaps with other words.",
                outlook.uncertain,
            )
        )
    if estimate.reads_prompts and estimate.tokens_read:
        tokens = estimate.tokens_read
        sentences.append(
            tr("Prompts are read again in full: {tokens:,} tokens.", tokens=tokens)
            if estimate.reading_s is None
            else tr(
                "Prompts are read again in full: {tokens:,} tokens in about {seconds:.0f} s.",
                tokens=tokens,
                seconds=estimate.reading_s,
            )
        )
    if outlook.ending and drain_s:
        sentences.append(
            ntr(
                "1 running reply cannot go on: the restart waits for it, and asks after 10 s.",
                "{n} running replies cannot go on: the restart waits for them, and asks after 10 s.",
                outlook.ending,
            )
        )
    elif outlook.ending:
        sentences.append(
            ntr("1 running reply is cut off.", "{n} running replies are cut off.", outlook.ending),
        )
    return join_sentences(*sentences, *map(render, outlook.reason_sentences))


def _change_title(preview: "Preview") -> str:
    count = ntr("1 change", "{n} changes", preview.change_count)
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


_DRAFTS, _DRAFTER = DRAFTING
_SIMPLE_SETTINGS = ("ctx", _DRAFTS)
"""Settings with a restart that Simple mode shows. Of those without a restart it shows only thinking."""


class RestartFields(QWidget):
    """One slider for each server setting that needs a restart. It shows the state and passes requests to it."""

    def __init__(self, state: SettingsState) -> None:
        super().__init__()
        self._state = state
        self._advanced = False
        self._offered = set(ROWS)
        """Settings that the last server left a choice in."""
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.px(theme.GAP_M))

        self.fields: dict[str, SliderField] = {}
        self._last_name = _SIMPLE_SETTINGS[0]
        for name, row in ROWS.items():
            if row.label and name != _DRAFTER:
                field = SliderField(
                    tr("Drafts") if name == _DRAFTS else tr(row.label),
                    (),
                    format_value=partial(_format_value, row),
                    tip=join_sentences(tr(row.tip), tr(ROWS[_DRAFTER].tip)) if name == _DRAFTS else tr(row.tip),
                    parse_value=partial(_parse_value, row) if row.kind == "tokens" else None,
                    typed_tip=tr("Type a number, such as 40000 or 40K, which is 40,960"),
                )
                field.value_changed.connect(partial(self._request_value, name))
                column.addWidget(field)
                self.fields[name] = field
        state.previewer_changed.connect(self._show_basis)
        state.previewed.connect(self._show_preview)
        state.applying_changed.connect(lambda applying: self.setEnabled(not applying and state.previewer is not None))
        self._show_basis()

    @property
    def last_moved(self) -> SliderField:
        """The field that was changed last."""
        return self.fields[self._last_name]

    def _request_value(self, name: str, value: "Value | DraftChoice") -> None:
        self._last_name = name
        if not isinstance(value, DraftChoice):
            self._state.request_value(name, value)
        elif self._state.previewer is not None:
            self._state.request_changes(value.as_settings(self._state.previewer.basis.options.spec_type))

    def show_advanced(self, advanced: bool) -> None:
        """Show all settings, or those for everybody."""
        self._advanced = advanced
        self._show_basis()

    @Slot()
    def _show_basis(self) -> None:
        """Give the sliders the steps that this server supports."""
        previewer = self._state.previewer
        self.setEnabled(previewer is not None and not self._state.applying)
        if previewer is not None:
            basis = previewer.basis
            steps: dict[str, Sequence[object]] = {name: basis.slider_values(name) for name in self.fields}
            steps[_DRAFTS] = basis.draft_choices
            # A hint explains a disabled slider of drafts.
            self._offered = {name for name, values in steps.items() if len(values) > 1 or name == _DRAFTS}
        for name, field in self.fields.items():
            field.setVisible(name in self._offered and (self._advanced or name in _SIMPLE_SETTINGS))
            if previewer is None:
                field.show_unknown()
                field.show_hint("")
            else:
                field.set_values(steps[name])
        if previewer is None:
            return
        self.fields[_DRAFTS].setEnabled(len(basis.draft_choices) > 1)
        self._show_preview()

    @Slot()
    def _show_preview(self) -> None:
        """Show the requested values and the running ones."""
        preview = self._state.preview
        if preview is None:
            return
        basis, requested = preview.basis, preview.plan_settings
        changed = {change.name: change for change in preview.changes}
        for name, field in self.fields.items():
            value = ROWS[name].effective_in(requested) if name != _DRAFTS else requested.draft_choice
            if field.value != value:
                field.set_value(value)
            change = changed.get(name)
            field.show_changed(None if change is None else _format_plain_value(change.old))
        if changed.keys() & set(DRAFTING):
            self.fields[_DRAFTS].show_changed(render(basis.plan_settings.draft_choice.short_label))
        self.fields["ctx"].show_mark(preview.largest_context)
        self.fields["ctx"].show_hint(_context_hint(preview))
        tuned = self._state.tuned
        self.fields[_DRAFTS].show_hint(_drafts_hint(preview) if tuned is None else render(tuned.measured_line))
        self.fields["kv"].show_hint(
            " · ".join(basis.kv_types) if len(basis.kv_types) <= 4 else tr("Lower precision saves memory. Default: f16")
        )
        self.fields["ubatch"].show_hint(tr("prompt tokens per batch"))
        self.fields["n_cpu_moe"].show_hint(tr("of {count} layers", count=basis.expert_layers))
        per_slot = requested.context // requested.slots
        self.fields["slots"].show_hint(
            tr("{each:,} tokens of context per slot", each=per_slot)
            if requested.slots > 1
            else tr("1 request at a time")
        )


def _context_hint(preview: "Preview") -> str:
    if preview.estimate is None:
        return tr("largest context unknown")
    if preview.largest_context is None:
        return tr("no context fits with these settings")
    return tr("largest that fits: {tokens:,}", tokens=preview.largest_context)


def _drafts_hint(preview: "Preview") -> str:
    """Return where the drafts come from, or what the model lacks for others than repeats, and what could be got."""
    source = _describe_source(preview)
    missing = [render(each.row.name_short) for each in preview.basis.missing_drafts if each.file]
    return (
        tr("{source} · to get on Models: {missing}", source=source, missing=tr(", ").join(missing))
        if missing
        else source
    )


def _describe_source(preview: "Preview") -> str:
    basis, drafter = preview.basis, preview.plan_settings.drafter
    match drafter.source:
        case "head":
            return tr("by the MTP head in the model's file")
        case "file":
            found = (each.path.name for each in basis.options.all_drafts if each.kind in drafter.files)
            return tr("with {file}", file=next(found, ""))
        case "text":
            return tr("from repeats in the text ({kind})", kind=drafter.spec_type)
    if len(basis.draft_choices) == 1:
        return tr("this model or engine cannot draft")
    has_more = any(each.drafter.source in ("head", "file") for each in basis.draft_choices)
    return tr("nothing is drafted") if has_more else tr("no MTP head and no draft file here")


def _format_value(row: ServerSetting, value: object) -> str:
    if isinstance(value, DraftChoice):
        return render(value.short_label)
    if row.kind == "mib":
        return f"{value:,} MiB" if value else tr("off")
    return _format_plain_value(value)


def _parse_value(row: ServerSetting, text: str) -> "Value":
    """Return the value of a typed text. Raises BadOption if there is none, also where it would leave the value open."""
    value = replace(row, can_be_open=False).parse_value(text)
    row.check_value(value)
    return value


def _format_plain_value(value: object) -> str:
    if value is None:
        return tr("default")
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
            field.show_unknown()
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

    def show_advanced(self, advanced: bool) -> None:
        """Show all values, or only whether the model thinks."""
        for field in self.fields.values():
            field.setVisible(advanced)

    @Slot()
    def show_state(self) -> None:
        """Show the sampling values of the next request."""
        defaults = self._state.defaults
        for row in _SAMPLING_ROWS:
            field, value = self.fields[row.name], self._state.sampling_value(row.name)
            if value is not None and field.value != value:
                field.set_value(value)
            elif value is None:
                field.show_unknown()
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
        self.mode.button(_SIMPLE).setToolTip(tr("Three plans, context, draft length and thinking"))
        self.mode.button(_ADVANCED).setToolTip(
            tr("Also KV cache, slots and sampling, all llama-server flags, and extra arguments")
        )
        self.mode.changed.connect(self._choose_mode)
        self._awaits_focus = False
        """Whether the focus was here when changes were applied, and returns here afterwards."""
        self._state = state
        state.applying_changed.connect(self._hold_focus)  # before the fields that have the focus are disabled
        self.stops = PlanStops(state, controller)
        self.restart, self.sampling = RestartFields(state), SamplingFields(state)
        self.advanced, self.changes = AdvancedFields(state, controller), ChangesBox(controller, state)
        self._advanced_title = _make_title(tr("All flags"))
        inner = QWidget()
        inner.setObjectName("plain")
        column = QVBoxLayout(inner)
        column.setContentsMargins(0, 0, theme.px(theme.GAP_M), 0)
        column.setSpacing(theme.px(theme.GAP_M))
        column.addWidget(self.stops)
        column.addWidget(_make_title(tr("Needs a restart")))
        column.addWidget(self.restart)
        column.addWidget(self._advanced_title)
        column.addWidget(self.advanced)
        column.addWidget(_make_title(tr("Applies now")))
        column.addWidget(self.sampling)
        column.addStretch(1)  # or the texts of the plans, whose height depends on the width, would take a share
        self.measure_button = make_button(tr("Measure what is fastest"), lambda: controller.show_page("tune"))
        set_tooltip(self.measure_button, tr("Opens Tune, which measures the model with these and other settings"))
        column.addWidget(self.measure_button)
        area = make_scroll_area(inner, tr("Settings"))
        self.title_row = QHBoxLayout()
        self.title_row.setContentsMargins(0, 0, theme.px(theme.GAP), 0)
        self.title_row.addWidget(self.mode)
        self.title_row.addStretch()
        self.title_row.addWidget(self.stops.back_button)
        self.body.addLayout(self.title_row)
        self.body.addWidget(area, 1)
        foot = QHBoxLayout()
        foot.setContentsMargins(0, 0, theme.px(theme.GAP_M), 0)
        foot.addWidget(self.changes)
        self.body.addLayout(foot)
        self._show_mode()
        state.applying_changed.connect(self._return_focus)
        state.previewer_changed.connect(self._return_focus)

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 -- Qt's name
        """Make the plans, also where Advanced hides them."""
        super().showEvent(event)
        self.stops.on_shown()

    @Slot()
    def apply_now(self) -> None:
        """Apply the changes, with a value that is still being typed. Nothing is applied if that is no value."""
        fields = self.restart.fields.values()
        for field in fields:
            field.take_typed()
        if not any(field.is_refused for field in fields):
            self.changes.apply_now()

    @Slot(bool)
    def _hold_focus(self, applying: bool) -> None:
        """Keep the focus here while changes are applied: from a disabled or hidden widget Qt would move it anywhere."""
        if applying and find_focus(self) is not None:
            self._awaits_focus = True
            self.setFocus()

    @Slot()
    def _return_focus(self) -> None:
        """Give the focus to the slider that was moved last once it can be moved again."""
        if self._awaits_focus and not self._state.applying and self.restart.isEnabled():
            self._awaits_focus = False
            if self.window().focusWidget() is self:
                self.restart.last_moved.slider.setFocus()

    @Slot(object)
    def _choose_mode(self, mode: object) -> None:
        save_choice("mode", str(mode))
        self._show_mode()

    def _show_mode(self) -> None:
        advanced = self.mode.value == _ADVANCED
        self.stops.setVisible(not advanced)
        self.restart.show_advanced(advanced)
        self.sampling.show_advanced(advanced)
        self._advanced_title.setVisible(advanced)
        self.advanced.setVisible(advanced)
        if advanced:
            self.advanced.on_shown()


def _make_title(text: str) -> Label:
    title = Label(text)
    title.setFont(theme.font(theme.SECTION_PX, bold=True))
    return title
