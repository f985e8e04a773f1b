"""Comparison of the replies to one prompt: A with the current settings, then B with others."""

from collections.abc import Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QFrame, QGridLayout, QHBoxLayout, QLineEdit, QSizePolicy, QVBoxLayout, QWidget

from launcher.base.errors import BadOption, LauncherError
from launcher.base.units import format_rate
from launcher.gui import theme
from launcher.gui.chat.reply import ReplyView
from launcher.gui.chat.style import make_dense_button
from launcher.gui.controller import Controller
from launcher.gui.labels import Label
from launcher.gui.late import engine_settings
from launcher.gui.translation import join_sentences, mark, render, tr
from launcher.gui.widgets import Segmented
from launcher.gui.widgets.blocks import make_caption
from launcher.models.drafters import DRAFTERS, NONE, choice_in

if TYPE_CHECKING:
    from launcher.engine.server.launch import Launch
    from launcher.models.server_settings import Value
    from launcher.monitor.reply import Reply

_DRAIN_S = 60.0
"""Seconds for which a restart lets running replies finish."""
_FIELD_WIDTH = 70
"""Least width of a field in pixels, wide enough for its placeholder."""
_SIDE_BY_SIDE_WIDTH = 560
"""Least width, in pixels, at which two replies are shown side by side."""
_SAMPLING = (
    ("temperature", mark("Temperature"), mark("Sampling temperature (--temp); applies at once")),
    ("top_p", mark("Top-p"), mark("Probability that the sampled tokens reach together (--top-p); applies at once")),
    ("top_k", mark("Top-k"), mark("Number of most likely tokens to sample from (--top-k); applies at once")),
    (
        "min_p",
        mark("Min-p"),
        mark("Drops tokens below this share of the top token's probability (--min-p); applies at once"),
    ),
    ("max_tokens", mark("Token limit"), mark("Longest reply, in tokens (-n); applies at once")),
)
_SERVER_SETTINGS = (
    (
        "draft",
        mark("Drafts"),
        mark("Such as 4, MTP 3, DFlash 4 or off (--spec-draft-n-max, --spec-type); needs a restart"),
    ),
    ("ctx", mark("Context"), mark("Such as 64K (--ctx-size); needs a restart")),
    ("kv", mark("KV cache"), mark("Such as q8_0 (--cache-type-k, --cache-type-v); needs a restart")),
    ("ubatch", mark("Batch"), mark("Prompt tokens per batch (--ubatch-size); needs a restart")),
)
_SAME_SPEED = 0.02
"""Share by which the rates of two replies differ by chance, even with the same settings."""
_TIMES_FROM = 2.0
"""Ratio of two rates from which it is named, in place of a percentage."""
_INTEGER_VALUES = ("top_k", "max_tokens")


class CompareBar(QFrame):
    """Form for the settings in which B differs from A. An empty field means: as A."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("editing")
        self.fields: dict[str, QLineEdit] = {}
        self.thinking = Segmented(tr("Thinking"), [(None, tr("same as A")), (True, tr("on")), (False, tr("off"))], None)
        self.thinking.setToolTip(
            tr(
                "Lets the model think before it replies, if its chat template supports it; applies at once. "
                "Request field: chat_template_kwargs.enable_thinking"
            )
        )
        self.change_button = make_dense_button(tr("Change"), tr("Show the settings that differ from A"))
        self.change_button.clicked.connect(self.expand)
        self._note = make_caption()
        self._form = QWidget()
        self._grid = QGridLayout(self._form)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(theme.px(theme.GAP))
        self._grid.setVerticalSpacing(theme.px(theme.GAP_S))
        self._cells = [self._make_field(*each) for each in (*_SERVER_SETTINGS, *_SAMPLING)]
        self._columns = 0
        title = Label(tr("Thinking"))
        title.setFont(theme.font(theme.CAPTION_PX))
        self._thinking_row = _make_row(title, self.thinking)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(*(theme.px(theme.GAP_M),) * 4)
        layout.setSpacing(theme.px(theme.GAP))
        layout.addWidget(self._form)
        layout.addWidget(self._thinking_row)
        layout.addWidget(_make_row(self._note, self.change_button))
        for field in self.fields.values():
            field.textChanged.connect(self._show_note)
        self.thinking.changed.connect(self._show_note)
        self.expand()

    def collapse(self) -> None:
        """Collapse the form to one line to make room for the replies."""
        self._show_form(shown=False)

    @Slot()
    def expand(self) -> None:
        """Expand the form."""
        self._show_form(shown=True)

    @Slot(bool)
    def focus_first(self, shown: bool) -> None:
        """Put the focus into the first field if the form is shown."""
        if shown:
            next(iter(self.fields.values())).setFocus()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Put as many fields in a row as fit."""
        super().resizeEvent(event)
        title_widths = [cell.findChildren(Label)[0].sizeHint().width() for cell in self._cells]
        cell_width = max(theme.px(_FIELD_WIDTH), *title_widths)
        room = event.size().width() - 2 * theme.px(theme.GAP_M) + theme.px(theme.GAP)
        columns = min(max(room // (cell_width + theme.px(theme.GAP)), 2), len(_SAMPLING))
        if columns != self._columns:
            for column in range(max(columns, self._columns)):
                self._grid.setColumnStretch(column, int(column < columns))
            self._columns = columns
            for number, cell in enumerate(self._cells):
                self._grid.addWidget(cell, number // columns, number % columns)

    def _make_field(self, name: str, label: str, tip: str) -> QWidget:
        """Return a field with its label above it."""
        field = self.fields[name] = QLineEdit()
        field.setPlaceholderText(tr("same as A"))
        field.setAccessibleName(tr(label))
        field.setToolTip(tr(tip))
        field.setMinimumWidth(theme.px(_FIELD_WIDTH))
        title = Label(tr(label))
        title.setFont(theme.font(theme.CAPTION_PX))
        title.setBuddy(field)
        cell = QWidget()
        column = QVBoxLayout(cell)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.px(2))
        column.addWidget(title)
        column.addWidget(field)
        cell.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        return cell

    def _show_form(self, *, shown: bool) -> None:
        for widget in (self._form, self._thinking_row):
            widget.setVisible(shown)
        self.change_button.setVisible(not shown)
        self._show_note()

    def read_values(self) -> "tuple[dict[str, Any], dict[str, Value]]":
        """Return B's sampling values and server settings.

        Raises BadOption for an invalid value, or if no value is set.
        """
        sampling: dict[str, Any] = {}
        for name, label, _ in _SAMPLING:
            text = self.fields[name].text().strip().replace(",", ".")
            if text:
                try:
                    sampling[name] = int(text) if name in _INTEGER_VALUES else float(text)
                except ValueError:
                    raise BadOption(tr("{text} is not a valid value for {name}.", text=text, name=tr(label))) from None
        if self.thinking.value is not None:
            sampling["thinking"] = self.thinking.value
        texts = {name: self.fields[name].text().strip() for name, *_ in _SERVER_SETTINGS}
        drafts = _parse_drafts(texts["draft"])
        server_settings = engine_settings.parse_settings(
            {name: text for name, text in texts.items() if text and name not in drafts}
        )
        server_settings = {**drafts, **server_settings}
        if not sampling and not server_settings:
            raise BadOption(tr("B has the same settings as A."), tr("Change at least one setting for B."))
        return sampling, server_settings

    @Slot()
    def _show_note(self) -> None:
        if any(self.fields[name].text().strip() for name, *_ in _SERVER_SETTINGS):
            sequence = tr("Runs A, restarts the server with B's settings, runs B, then restores A's settings.")
        elif self.thinking.value is None and not any(each.text().strip() for each in self.fields.values()):
            sequence = tr("Change at least one setting for B.")
        else:
            sequence = tr("Runs A, then B, without a restart.")
        if not self._form.isHidden():
            explanation = tr("Each question is sent twice: A uses the current settings, B the settings above.")
            self._note.setText(join_sentences(explanation, sequence))
            return
        try:
            sampling, server_settings = self.read_values()
        except LauncherError as error:
            self._note.setText(render(error.message))
        else:
            self._note.setText(
                tr("B: {settings}. {course}", settings=format_values(sampling | server_settings), course=sequence)
            )


def _parse_drafts(text: str) -> "dict[str, Value]":
    """Return the settings of a way to draft by its name, such as "DFlash 4"; {} for other texts, such as a number."""
    name, _, length = text.rpartition(" ")
    for row in (NONE, *DRAFTERS.values()):
        names = [each.casefold() for each in (render(row.name_short), row.spec_type)]
        if row.drafts and row.takes_length and name.casefold() in names and length.isdecimal():
            return {"draft": int(length), "drafter": row.spec_type}
        if text.casefold() in names:
            return {"draft": row.usual_length, "drafter": row.spec_type} if row.drafts else {"draft": 0}
    return {}


def _make_row(*widgets: QWidget) -> QWidget:
    """Return widgets in a row. The first takes the spare width."""
    holder = QWidget()
    row = QHBoxLayout(holder)
    row.setContentsMargins(0, 0, 0, 0)
    row.setSpacing(theme.px(theme.GAP))
    for number, widget in enumerate(widgets):
        row.addWidget(widget, int(number == 0), Qt.AlignmentFlag.AlignVCenter)
    return holder


class ReplyPair(QWidget):
    """Two replies to one question, side by side where there is room."""

    chosen = Signal(int)
    """0 or 1: the reply with which the conversation continues."""

    def __init__(self, names: tuple[str, str], *, coloured: bool) -> None:
        super().__init__()
        self.replies = ReplyView(coloured=coloured), ReplyView(coloured=coloured)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.px(theme.GAP))
        self.result = Label()
        """Which reply was written faster."""
        self.result.setFont(theme.font(theme.BODY_PX, bold=True, tabular=True))
        self.result.setWordWrap(True)
        self.result.setTextInteractionFlags(theme.SELECTABLE)
        self.result.hide()
        self._source = make_caption(tr("From one reply each. The page Tune compares settings with several prompts."))
        self._source.hide()
        self._box = QBoxLayout(QBoxLayout.Direction.TopToBottom)
        self._box.setSpacing(theme.px(theme.GAP_L))
        column.addLayout(self._box)
        column.addWidget(self.result)
        column.addWidget(self._source)
        self.note = Label()
        """Status before B replies, or why B cannot."""
        self.note.setObjectName("secondary")
        self.note.setWordWrap(True)
        self.note.hide()
        self.buttons = []
        for number, (letter, name, reply_view) in enumerate(zip("AB", names, self.replies, strict=True)):
            reply_view.show_actions(can_resend=False)
            title = Label(f"{letter} · {name}")
            title.setFont(theme.font(theme.BODY_PX, bold=True))
            title.setWordWrap(True)
            button = make_dense_button(
                tr("Continue with {letter}", letter=letter), tr("Your next questions follow this reply")
            )
            button.setCheckable(True)
            button.hide()
            button.clicked.connect(lambda _=False, number=number: self._choose_reply(number))
            self.buttons.append(button)
            column = QVBoxLayout()
            column.setSpacing(theme.px(theme.GAP_S))
            column.addWidget(title)
            if letter == "B":
                column.addWidget(self.note)
            column.addWidget(reply_view)
            row = QBoxLayout(QBoxLayout.Direction.LeftToRight)
            row.addWidget(button)
            row.addStretch()
            column.addLayout(row)
            column.addStretch()
            self._box.addLayout(column, 1)

    @Slot(str)
    def show_b_status(self, text: str) -> None:
        """Show a status line for B."""
        self.note.setText(text)
        self.note.setVisible(bool(text))

    def show_result(self, a: "Reply | None", b: "Reply | None") -> None:
        """Show which of two ended replies was generated faster, if the server reported the speed of both."""
        if a is None or b is None or a.timings is None or b.timings is None:
            return
        text = compare_rates(a.timings.tokens_per_second, b.timings.tokens_per_second)
        self.result.setText(text)
        for each in (self.result, self._source):
            each.setVisible(bool(text))

    def offer_choice(self) -> None:
        """Let the user choose the reply with which the conversation continues. Until then it is A."""
        for button, reply_view in zip(self.buttons, self.replies, strict=True):
            button.setVisible(bool(reply_view.text))
        self.buttons[0].setChecked(True)

    def _choose_reply(self, number: int) -> None:
        for each, button in enumerate(self.buttons):
            button.setChecked(each == number)
        self.chosen.emit(number)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Put the replies side by side where there is room."""
        super().resizeEvent(event)
        beside = event.size().width() >= theme.px(_SIDE_BY_SIDE_WIDTH)
        direction = QBoxLayout.Direction.LeftToRight if beside else QBoxLayout.Direction.TopToBottom
        if self._box.direction() != direction:
            self._box.setDirection(direction)


def compare_rates(a: float | None, b: float | None) -> str:
    """Return a sentence on the rates of A and B in tokens per second; empty if one is unknown."""
    if not a or not b:
        return ""
    figures = {"a": format_rate(a), "b": format_rate(b)}
    if max(a, b) < min(a, b) * (1 + _SAME_SPEED):
        return tr("Both were about as fast: A {a}, B {b}.", **figures)
    ratio = max(a, b) / min(a, b)
    if ratio >= _TIMES_FROM:
        if b > a:
            return tr("B was {ratio:,.1f} times as fast: {b}, A {a}.", ratio=ratio, **figures)
        return tr("A was {ratio:,.1f} times as fast: {a}, B {b}.", ratio=ratio, **figures)
    percent = 100 * (ratio - 1)
    if b > a:
        return tr("B was {percent:.0f} % faster: {b}, A {a}.", percent=percent, **figures)
    return tr("A was {percent:.0f} % faster: {a}, B {b}.", percent=percent, **figures)


class _Stage(Enum):
    """Stage of a comparison's restarts."""

    INITIAL = auto()
    """The server runs with A's settings: before B, after B, or because B failed."""
    RESTARTING_FOR_B = auto()
    WAITING_FOR_B = auto()
    """The restart has ended, or none is needed; the server is not ready yet."""
    RUNNING_B = auto()
    RESTORING_A = auto()


class ComparisonRestarts(QObject):
    """Restarts the server for a comparison: with B's server settings and back. Without any it does not restart."""

    status_changed = Signal(str)
    """Status as text; empty when it is over."""
    ready = Signal()
    """The server takes requests with B's settings."""
    failed = Signal(object)
    """LauncherError: B's settings cannot run; the server runs as before."""
    ended = Signal()

    def __init__(self, controller: Controller, server_settings: "Mapping[str, Value]", parent: QObject) -> None:
        super().__init__(parent)
        self._controller = controller
        self._b_settings = dict(server_settings)
        self._a_settings = _running_values(controller.launch, server_settings)
        self._stage = _Stage.INITIAL
        self._cancelled = False
        controller.applied.connect(self._handle_applied)
        controller.view_changed.connect(self._check_ready)

    def switch_to_b(self) -> None:
        """Restart with B's settings, if it has any. Ends with `ready` or `failed`."""
        if not self._b_settings:
            self._stage = _Stage.WAITING_FOR_B
            QTimer.singleShot(0, self, self._check_ready)  # the signals of A's end are still being delivered
            return
        if not self._is_running():
            self._fail_as_stopped()
            return
        self._stage = _Stage.RESTARTING_FOR_B
        self.status_changed.emit(tr("Restarting with {settings} …", settings=format_values(self._b_settings)))
        self._controller.apply_settings(self._b_settings, drain_s=_DRAIN_S)

    def restore_a(self) -> None:
        """Restart with the earlier settings, unless the server was stopped meanwhile. Ends with `ended`."""
        if not self._b_settings or self._stage is _Stage.INITIAL or not self._is_running():
            self._stage = _Stage.INITIAL
            self.ended.emit()
            return
        self._stage = _Stage.RESTORING_A
        self.status_changed.emit(tr("Restoring the previous settings …"))
        self._controller.apply_settings(self._a_settings, drain_s=_DRAIN_S)

    def _is_running(self) -> bool:
        """Return whether the server runs and nobody has stopped it."""
        return self._controller.view.can_stop and not self._controller.is_stop_newest

    def cancel(self) -> None:
        """Restore the earlier settings from any state; no request is sent with B's."""
        if self._stage is _Stage.RESTARTING_FOR_B:
            self._cancelled = True
        elif self._stage is not _Stage.RESTORING_A:
            self.restore_a()

    @Slot(object)
    def _handle_applied(self, error: LauncherError | None) -> None:
        if self._stage is _Stage.RESTARTING_FOR_B and self._cancelled:
            self._stage = _Stage.RUNNING_B if error is None else _Stage.INITIAL
            self.restore_a()
        elif self._stage is _Stage.RESTARTING_FOR_B and error is None:
            self._stage = _Stage.WAITING_FOR_B
            self._check_ready()
        elif self._stage is _Stage.RESTARTING_FOR_B:
            self._stage = _Stage.INITIAL
            self.status_changed.emit("")
            self.failed.emit(error)
        elif self._stage is _Stage.RESTORING_A:
            self._stage = _Stage.INITIAL
            self.status_changed.emit("" if error is None else str(error))
            self.ended.emit()

    @Slot()
    def _check_ready(self) -> None:
        """Report that B can run once the server is ready, which may be a moment after its restart has ended."""
        view = self._controller.view
        if self._stage is _Stage.WAITING_FOR_B and view.can_ask:
            self._stage = _Stage.RUNNING_B
            self.status_changed.emit("")
            self.ready.emit()
        elif self._stage is _Stage.WAITING_FOR_B and view.resting:
            self._fail_as_stopped()

    def _fail_as_stopped(self) -> None:
        self._stage = _Stage.INITIAL
        self.status_changed.emit("")
        self.failed.emit(LauncherError(tr("The server was stopped before B started.")))


def format_values(values: Mapping[str, Any]) -> str:
    """Return values as text, such as "MTP off, temperature 0.2"."""
    labels = {name: tr(label).lower() for name, label, _ in (*_SAMPLING, *_SERVER_SETTINGS)}
    labels["thinking"] = tr("Thinking").lower()
    texts = []
    for name, value in values.items():
        if name == "draft" and value is not None:
            texts.append(render(choice_in(values).label()))
        elif name == "drafter":
            continue  # with its length
        elif isinstance(value, bool):
            texts.append(f"{labels[name]} {tr('on') if value else tr('off')}")
        else:
            texts.append(f"{labels[name]} {value}")
    return ", ".join(texts)


def _running_values(launch: "Launch | None", names: "Mapping[str, Value]") -> "dict[str, Value]":
    if launch is None or not names:
        return {}
    running = {**engine_settings.launched_settings(launch), "ctx": launch.options.context}
    return {name: running[name] for name in names}  # type: ignore[misc]
