"""The Logs page: the engine's lines, live or from a file, the diagnosis of an error, and its fix."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QDateTime, QLocale, QMimeData, QObject, QSignalBlocker, Qt, QTimer, QUrl, Signal, Slot
from PySide6.QtGui import QDesktopServices, QGuiApplication, QShortcut
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QFileDialog,
    QFrame,
    QHBoxLayout,
    QLineEdit,
    QPushButton,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from launcher.base.errors import LauncherError
from launcher.engine.server.logs import logs_dir
from launcher.engine.server.state import SERVING, ServerState
from launcher.gui import theme
from launcher.gui.labels import Label, escape_tooltip
from launcher.gui.late import bug_report, fix_actions, start_settings
from launcher.gui.logs.lines import MOST_LINES, LogFilter, ParsedLine, format_timestamp, parse_log_line, thin_out
from launcher.gui.logs.model import LogModel
from launcher.gui.logs.sources import (
    OWN_SERVER,
    FailureCause,
    LogSource,
    OpenedLog,
    SourceKind,
    apply_fix,
    find_sources,
    follow_server,
    make_cause,
    read_earlier_lines,
    read_file,
)
from launcher.gui.logs.view import LogView
from launcher.gui.translation import find_locale, render, tr
from launcher.gui.widgets import Banner, Card, ComboBox, DropTarget, EmptyState, Glyph, PageHead, Segmented
from launcher.gui.widgets.blocks import make_button, make_caption
from launcher.gui.widgets.flow import FlowLayout, make_scrolling_column
from launcher.gui.widgets.segmented import reserve_width

if TYPE_CHECKING:
    from launcher.base.action import Action
    from launcher.engine.serve_options import ServeOptions
    from launcher.gui.controller import Controller
    from launcher.gui.viewmodel import View
    from launcher.runtime import WorkHandle

# Lines of this window's server are shown at once; in a flood they are thinned and shown ten times a second.

_FLOOD_INTERVAL_MS = 100


class LineCollector(QObject):
    """Collects received texts and emits them as lines with their time of arrival."""

    lines_received = Signal(object)
    """list[ParsedLine]."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._texts: list[str] = []
        self._left_out = 0
        self._emit_timer = QTimer(self)
        self._emit_timer.setSingleShot(True)
        self._emit_timer.setInterval(_FLOOD_INTERVAL_MS)
        self._emit_timer.timeout.connect(self._emit_lines)

    @Slot(object)
    def add(self, texts: list[str]) -> None:
        """Add lines."""
        shown, left_out = thin_out(texts)
        self._texts += shown
        self._left_out += left_out
        if self._emit_timer.isActive():
            return
        if left_out:
            self._emit_timer.start()
        else:
            self._emit_lines()

    @Slot()
    def _emit_lines(self) -> None:
        shown, left_out_now = thin_out(self._texts)
        left_out = self._left_out + left_out_now
        self._texts, self._left_out = [], 0
        stamp = format_timestamp(time.time())
        lines = [parse_log_line(text, stamp) for text in shown]
        if left_out:
            text = tr("… {count} more lines in the log file …", count=f"{left_out:,}")
            lines.insert(0, ParsedLine(stamp, "D", text))
        self.lines_received.emit(lines)


# Controls above the lines.

_TYPING_PAUSE_MS = 150
"""Pause in typing after which the filter is applied."""


class LogBar(QWidget):
    """Controls above the lines: source, filter, pause. Emits the user's choice."""

    filter_changed = Signal(object)
    """LogFilter."""
    source_chosen = Signal(object)
    """LogSource."""

    def __init__(self) -> None:
        super().__init__()
        self.sources = ComboBox()
        self.sources.setAccessibleName(tr("Log source"))
        self.sources.setToolTip(tr("This window's server, your other servers, and earlier log files"))
        self.sources.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.sources.setMinimumContentsLength(24)
        self.search = QLineEdit()
        self.search.setPlaceholderText(tr("Filter …"))
        self.search.setAccessibleName(tr("Filter by text"))
        self.search.setToolTip(tr("Shows only lines that contain this text (Ctrl+F)"))
        self.search.setClearButtonEnabled(True)
        self.regex = QCheckBox(tr("Regex"))
        self.regex.setToolTip(tr("Use the text as a regular expression, for example n_ctx|n_batch"))
        self.level = Segmented(tr("Level"), [("", tr("All")), ("W", tr("Warnings")), ("E", tr("Errors"))])
        self.level.setToolTip(tr("All lines, warnings and errors, or errors alone"))
        self.polling = QCheckBox(tr("Hide polling"))
        self.polling.setChecked(True)
        self.polling.setToolTip(tr("Hide the lines of health checks"))
        self.follow = QPushButton(tr("Follow"))
        self.follow.setCheckable(True)
        self.follow.setChecked(True)
        self.follow.setToolTip(tr("Scroll to new lines (End)"))
        self.pause = QPushButton(tr("Pause"))
        self.pause.setCheckable(True)
        self.pause.setToolTip(tr("Pause the view. New lines appear when you resume (Ctrl+P)"))
        for button in (self.follow, self.pause):
            button.setObjectName("segment")  # makes the pressed state visible
            button.setProperty("end", "only")
            reserve_width(button)
        self._regex_error = Label()
        self._regex_error.setObjectName("secondary")
        self._regex_error.setWordWrap(True)
        self._regex_error.hide()
        self._filter_timer = QTimer(self)
        self._filter_timer.setSingleShot(True)
        self._filter_timer.setInterval(_TYPING_PAUSE_MS)
        self._filter_timer.timeout.connect(self.emit_filter)
        self.search.textChanged.connect(lambda _text: self._filter_timer.start())
        self.regex.toggled.connect(self.emit_filter)
        self.polling.toggled.connect(self.emit_filter)
        self.level.changed.connect(self.emit_filter)
        self.sources.activated.connect(self._emit_source)
        self.source_row = FlowLayout(gap=theme.px(theme.GAP))
        self.source_row.add(self.sources, wide=True)
        second = FlowLayout(gap=theme.px(theme.GAP))
        second.add(self.search, wide=True)
        for widget in (self.regex, self.level, self.polling, self.follow, self.pause):
            second.add(widget)
        self.search.setMinimumWidth(theme.px(150))
        self.sources.setMinimumWidth(theme.px(220))
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(theme.px(theme.GAP))
        layout.addLayout(self.source_row)
        layout.addLayout(second)
        layout.addWidget(self._regex_error)
        self.show_sources((), OWN_SERVER)

    @property
    def source(self) -> LogSource:
        """The chosen source."""
        chosen = self.sources.currentData()
        return chosen if isinstance(chosen, LogSource) else OWN_SERVER

    @property
    def other_sources(self) -> tuple[LogSource, ...]:
        """The offered sources besides this window's server."""
        return tuple(self.sources.itemData(at) for at in range(1, self.sources.count()))

    def show_sources(self, sources: tuple[LogSource, ...], chosen: LogSource) -> None:
        """Offer this window's server, `sources` and `chosen`, which becomes the current one."""
        with QSignalBlocker(self.sources):
            self.sources.clear()
            offered = [OWN_SERVER, *sources]
            if chosen not in offered:
                offered.append(chosen)
            for source in offered:
                self.sources.addItem(_source_label(source), source)
                self.sources.setItemData(
                    self.sources.count() - 1, escape_tooltip(source.where), Qt.ItemDataRole.ToolTipRole
                )
            self.sources.setCurrentIndex(offered.index(chosen))

    @Slot()
    def emit_filter(self) -> None:
        """Emit the filter if its text is a valid expression."""
        new_filter = LogFilter(
            str(self.level.value or ""), self.search.text(), self.regex.isChecked(), self.polling.isChecked()
        )
        try:
            new_filter.make_predicate()
        except re.error as error:
            self._regex_error.setText(tr("This is not a valid regular expression: {why}.", why=error.msg))
            self._regex_error.show()
            return
        self._regex_error.hide()
        self.filter_changed.emit(new_filter)

    @Slot(int)
    def _emit_source(self, _index: int) -> None:
        self.source_chosen.emit(self.source)


def _source_label(source: LogSource) -> str:
    if source.kind is SourceKind.OURS:
        return tr("This window's server")
    if source.kind is SourceKind.SERVER:
        return tr("Server at {address}", address=source.where.removeprefix("http://"))
    name = source.where.replace("\\", "/").rpartition("/")[2]
    if not source.modified_s:
        return tr("File {name}", name=name)
    changed = QDateTime.fromSecsSinceEpoch(int(source.modified_s))
    written = find_locale().toString(changed, QLocale.FormatType.ShortFormat)
    return tr("File {name}, {when}", name=name, when=written)


# Cause of an error, with one button for its fix.


class CauseCard(Card):
    """Card with the cause of an error and one button for its fix. Hidden while there is none."""

    def __init__(self, fix: Callable[[Action], object], show_line: Callable[[], object]) -> None:
        super().__init__()
        self.setObjectName("banner")
        self.setProperty("meaning", "bad")
        self._fix = fix
        self._action: Action | None = None
        self._glyph = Glyph("cross", "bad")
        self.title, self.text, self.hint = Label(), Label(), Label()
        self.title.setFont(theme.font(theme.SECTION_PX, bold=True))
        self.hint.setObjectName("secondary")
        for label in (self.title, self.text, self.hint):
            label.setWordWrap(True)
            label.setTextInteractionFlags(theme.SELECTABLE)
        self.fix_button = make_button("", self._apply_fix, primary=True)
        self.line_button = make_button(tr("Show line"), show_line)
        self.line_button.setToolTip(tr("Jump to the marked line that names the cause"))
        self.close_button = make_button(tr("Dismiss"), self.hide)
        self.close_button.setObjectName("quiet")
        self.close_button.setToolTip(tr("Dismiss this"))
        column = QVBoxLayout()
        column.setSpacing(theme.px(theme.GAP_S))
        for label in (self.title, self.text, self.hint):
            column.addWidget(label)
        row = QHBoxLayout()
        row.setSpacing(theme.px(theme.GAP_M))
        row.addWidget(self._glyph, alignment=Qt.AlignmentFlag.AlignTop)
        row.addLayout(column, 1)
        self.body.addLayout(row)
        buttons = FlowLayout(gap=theme.px(theme.GAP))
        for button in (self.fix_button, self.line_button, self.close_button):
            buttons.add(button)
        self.body.addLayout(buttons)
        self.hide()

    def show_cause(self, cause: FailureCause, action: Action | None, *, has_line: bool) -> None:
        """Show a cause. `action` is applied by the button; None hides it. `has_line`: the log contains the line."""
        self._action = action
        title, text, hint = map(render, (cause.title, cause.text, cause.hint))
        self.title.setText(title)
        self.text.setText(text)
        labels = "; ".join(render(each.label) for each in cause.actions)
        self.hint.setText(tr("Try: {actions}.", actions=labels) if cause.foreign and labels else hint)
        self.text.setVisible(bool(cause.text))
        self.hint.setVisible(bool(self.hint.text()) and action is None)  # the button has the same text
        self.fix_button.setVisible(action is not None)
        if action is not None:
            self.fix_button.setText(render(action.label))
            self.fix_button.setToolTip(tr("Applies this fix and restarts the server"))
        self.line_button.setVisible(has_line)
        self.setAccessibleName(" ".join(filter(None, (title, text, hint))))
        self.show()

    def _apply_fix(self) -> None:
        if self._action is not None:
            self._fix(self._action)


# Drag and drop of log files.


def drop_hint(data: QMimeData) -> str:
    """Return the hint shown while data is dragged over the page, or "" if it is refused."""
    return tr("Drop the log file to open and diagnose it") if dropped_log(data) is not None else ""


def dropped_log(data: QMimeData) -> Path | None:
    """Return the single file that is dragged, unless it is a model."""
    urls = data.urls()
    if len(urls) != 1 or not urls[0].isLocalFile():
        return None
    path = Path(urls[0].toLocalFile())
    return path if path.is_file() and path.suffix.lower() != ".gguf" else None


_LEAST_HIGHLIGHT_LENGTH = 8
"""Characters that a cause's line must have to be highlighted; a shorter text would occur in other lines, too."""


@dataclass(frozen=True, slots=True)
class KeptLogs:
    """State that a new Logs page takes over: lines of this window's server, the listed sources, and the chosen one."""

    own_lines: list[ParsedLine]
    sources: tuple[LogSource, ...]
    source: LogSource


class LogsPage(QWidget):
    """The page. It collects the lines of this window's server from the moment it is built, even while hidden."""

    def __init__(self, controller: Controller, kept: KeptLogs | None = None) -> None:
        super().__init__()
        self._controller = controller
        self._sources_listed = kept is not None
        self._own_lines: list[ParsedLine] = []
        """Lines of this window's server; the same list as that of the model while they are shown."""
        self._cause: FailureCause | None = None
        self._dismissed: LauncherError | None = None
        """Error of this window's server whose card the user closed."""
        self._reading: WorkHandle[None] | None = None
        """Work that reads or follows another log."""
        self.source = OWN_SERVER
        self.lines, self._collector = LogModel(self), LineCollector(self)
        self.view = LogView(self.lines)
        self.bar = LogBar()
        self.card = CauseCard(self._apply_fix, self.show_cause_line)
        self.banner = Banner()
        self.count = make_caption()
        self._lay_out()
        self.drop = DropTarget(self, drop_hint, self._read_dropped)
        self._connect_signals()
        if controller.session is not None:
            session = controller.session
            controller.bridge.run(read_earlier_lines, session, done=self._prepend_lines)
        elif kept is not None:
            self._prepend_lines(kept.own_lines)
        if kept is not None and kept.source.kind is not SourceKind.OURS:
            self.bar.show_sources(kept.sources, kept.source)
            self.choose_source(kept.source)
        self.lines.set_still(still=True)
        self._show_view(controller.view)
        self._show_count()

    def hand_over(self) -> KeptLogs:
        """Leave the lines and the chosen source to the next page."""
        return KeptLogs(self._own_lines, self.bar.other_sources, self.source)

    def on_shown(self) -> None:
        """Resume showing lines and list the available sources."""
        self._update_pause()
        self._controller.bridge.run(find_sources, self._own_url(), done=self._show_sources, failed=self._show_error)

    def on_hidden(self) -> None:
        """Collect lines without showing them."""
        self.lines.set_still(still=True)

    def open_file(self, path: Path) -> None:
        """Show a log file and its diagnosis."""
        others = self.bar.other_sources
        chosen = next((each for each in others if each.where == str(path)), LogSource(SourceKind.FILE, str(path)))
        self.bar.show_sources(others, chosen)
        self.choose_source(chosen)

    @Slot(object)
    def choose_source(self, source: LogSource) -> None:
        """Switch to another log."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        self.source = source
        self.banner.clear()
        self.lines.show_lines([])
        self._show_cause(None)
        run = self._controller.bridge.run
        if source.kind is SourceKind.OURS:
            self.lines.show_lines(self._own_lines)
            self.view.set_following(True)
            self._show_view(self._controller.view)
        elif source.kind is SourceKind.FILE:
            path = Path(source.where)
            self._reading = run(
                read_file,
                path,
                done=lambda opened: self._show_file(source, opened),
                failed=self._show_error,
            )
        else:
            self._reading = run(
                follow_server,
                source.where,
                reported=lambda lines: self._add_other_lines(source, lines),
                done=lambda _none: self.banner.show_message(tr("This server has stopped."), "information"),
                failed=self._show_error,
            )
        self._show_count()

    @Slot()
    def choose_file(self) -> None:
        """Let the user choose a log file."""
        kinds = f"{tr('Logs')} (*.log *.log.* *.txt *.jsonl);;{tr('All files')} (*)"
        name, _ = QFileDialog.getOpenFileName(self, tr("Open a log file"), "", kinds)
        if name:
            self.open_file(Path(name))

    @Slot()
    def show_cause_line(self) -> None:
        """Scroll to the line that names the cause."""
        if self.lines.last_highlighted_row() is None:
            self.bar.search.clear()
            self.bar.level.set_value("")
            self.bar.emit_filter()
        row = self.lines.last_highlighted_row()
        if row is not None:
            self.view.show_row(row)

    @Slot()
    def copy_report(self) -> None:
        """Copy the text for a bug report."""
        texts = [line.text for line in self.lines.all_lines]

        self.report_button.setEnabled(False)
        self._controller.bridge.run(
            lambda: bug_report.write_bug_report(texts), done=self._show_copied, failed=self._show_error
        )

    def _read_dropped(self, data: QMimeData) -> None:
        path = dropped_log(data)
        if path is not None:
            self.open_file(path)

    def _lay_out(self) -> None:
        self._head = PageHead(
            tr("Logs"), tr("Output of llama-server. If it fails to start, the cause and the fix appear here.")
        )
        self.report_button = make_button(tr("Copy for a bug report"), self.copy_report)
        self.report_button.setToolTip(
            tr("Copies versions, cause and last lines, without API keys, tokens and names (logs --report)")
        )
        open_button = make_button(tr("Open a log file …"), self.choose_file)
        open_button.setToolTip(tr("Opens and diagnoses any llama-server log, plain text or JSON lines"))
        folder_button = make_button(tr("Open folder"), self._open_folder)
        folder_button.setToolTip(tr("Open the folder with the log files"))
        for button in (open_button, folder_button, self.report_button):
            self.bar.source_row.add(button)
        self.empty = EmptyState(
            tr("Nothing has been logged yet"),
            tr(
                "The output of llama-server appears here once a model starts. You can also open any "
                "llama-server log, or drop it here, to diagnose it."
            ),
            ((tr("Open a log file …"), self.choose_file), (tr("Go to Start"), self._go_to_start)),
        )
        self._stack = QStackedWidget()
        self._stack.addWidget(self.empty)
        frame = QFrame()
        frame.setObjectName("card")
        inside = QVBoxLayout(frame)
        inside.setContentsMargins(*(theme.px(theme.GAP_S),) * 4)
        inside.addWidget(self.view)
        self._stack.addWidget(frame)
        self._stack.setMinimumHeight(theme.px(160))
        layout = make_scrolling_column(self)
        for widget in (self._head, self.banner, self.card, self.bar):
            layout.addWidget(widget)
        layout.addWidget(self._stack, 1)
        layout.addWidget(self.count)

    def _connect_signals(self) -> None:
        self._controller.logged.connect(self._collector.add)
        self._collector.lines_received.connect(self._add_own_lines)
        self._controller.view_changed.connect(self._show_view)
        self.bar.source_chosen.connect(self.choose_source)
        self.bar.filter_changed.connect(self._set_filter)
        self.bar.follow.clicked.connect(lambda checked: self.view.set_following(checked))
        self.bar.pause.toggled.connect(self._update_pause)
        self.view.following_changed.connect(self.bar.follow.setChecked)
        self.lines.count_changed.connect(self._show_count)
        self.card.close_button.clicked.connect(self._dismiss_cause)
        for key, slot in (("Ctrl+F", self._focus_search), ("Ctrl+P", self.bar.pause.toggle)):
            QShortcut(key, self, slot, context=Qt.ShortcutContext.WidgetWithChildrenShortcut)

    @Slot(object)
    def _add_own_lines(self, lines: list[ParsedLine]) -> None:
        """Add lines of this window's server."""
        if self.source.kind is SourceKind.OURS:
            self.lines.append(lines)
            self._own_lines = self.lines.all_lines
        else:
            self._own_lines.extend(lines)
            del self._own_lines[: max(0, len(self._own_lines) - MOST_LINES)]

    def _add_other_lines(self, source: LogSource, lines: list[ParsedLine]) -> None:
        if source.is_same_log(self.source):
            self.lines.append(lines)

    def _prepend_lines(self, earlier: list[ParsedLine]) -> None:
        """Prepend the lines written before the page was built. They may overlap with those received since."""
        received = self._own_lines
        longest_overlap = min(len(earlier), len(received), 2_000)
        earlier_texts, own_texts = [line.text for line in earlier], [line.text for line in received[:longest_overlap]]
        overlap = next((n for n in range(longest_overlap, 0, -1) if earlier_texts[-n:] == own_texts[:n]), 0)
        self._own_lines = [*earlier, *received[overlap:]]
        if self.source.kind is SourceKind.OURS:
            self.lines.show_lines(self._own_lines)
            self._own_lines = self.lines.all_lines
            self._show_count()

    @Slot(object)
    def _set_filter(self, new_filter: LogFilter) -> None:
        self.lines.set_filter(new_filter)
        self._show_count()

    @Slot()
    def _update_pause(self) -> None:
        paused = self.bar.pause.isChecked()
        self.bar.pause.setText(tr("Resume") if paused else tr("Pause"))
        self.lines.set_still(still=paused)
        self._show_count()

    @Slot(object)
    def _show_view(self, _view: View) -> None:
        """Show why this window's server failed."""
        if self.source.kind is not SourceKind.OURS:
            return
        inputs = self._controller.inputs
        state = inputs.status.state
        error = inputs.status.error if state in (ServerState.FAILED, ServerState.RESTARTING) else None
        if error is None and state not in SERVING:
            error = inputs.problem
        if error is None:
            self._dismissed = None
        self._show_cause(None if error is None or error is self._dismissed else make_cause(error))

    def _dismiss_cause(self) -> None:
        inputs = self._controller.inputs
        self._dismissed = inputs.status.error or inputs.problem
        self._show_cause(None)

    def _show_cause(self, cause: FailureCause | None) -> None:
        line = cause.line.rstrip("…").strip() if cause else ""
        self.lines.highlight_text(line if len(line) >= _LEAST_HIGHLIGHT_LENGTH else "")
        before, self._cause = self._cause, cause
        if cause is None:
            self.card.hide()
            return
        self.card.show_cause(cause, self._first_possible_action(cause), has_line=bool(self.lines.highlighted_text))
        if cause != before and self.isVisible() and not self.bar.pause.isChecked():
            QTimer.singleShot(0, self, self.show_cause_line)

    def _first_possible_action(self, cause: FailureCause) -> Action | None:
        """Return the first action for the button: one that opens a link or restarts the server with a fix."""

        def can_apply(action: Action) -> bool:
            return bool(_https_link(action)) or (not cause.foreign and fix_actions.restarts_server(action))

        return next(filter(can_apply, cause.actions), None)

    def _apply_fix(self, action: Action) -> None:
        cause = self._cause
        if link := _https_link(action):
            QDesktopServices.openUrl(QUrl(link))
        elif cause is not None and cause.start is not None and self._controller.session is None:
            start = cause.start
            self._controller.bridge.run(
                apply_fix,
                action,
                start,
                done=lambda options: self._start_model(start.model, options),
                failed=self._show_error,
            )
        else:
            self._switch_to_own()
            self._controller.apply_fix(action)

    def _start_model(self, model: str, options: ServeOptions) -> None:
        self._switch_to_own()
        self._controller.start(model, start=start_settings.ResolvedStart(model, options))

    def _switch_to_own(self) -> None:
        if self.source is not OWN_SERVER:
            self.bar.show_sources(self.bar.other_sources, OWN_SERVER)
            self.choose_source(OWN_SERVER)

    def _show_file(self, source: LogSource, opened: OpenedLog) -> None:
        if not source.is_same_log(self.source):
            return
        self.view.set_following(True)
        self.lines.show_lines(opened.lines)
        self._show_cause(opened.cause)
        if opened.cause is None:
            error_count = sum(line.level == "E" for line in opened.lines)
            self.banner.show_message(
                tr("No known cause found in the log. It has {count} error lines.", count=error_count),
                "information",
            )

    @Slot(object)
    def _show_sources(self, sources: tuple[LogSource, ...]) -> None:
        is_first_list, self._sources_listed = not self._sources_listed, True
        self.source = next(filter(self.source.is_same_log, sources), self.source)
        self.bar.show_sources(sources, self.source)
        files = [each for each in sources if each.kind is SourceKind.FILE]
        nothing_to_show = self._controller.session is None and not self._own_lines and self.source is OWN_SERVER
        if is_first_list and nothing_to_show and files:
            self.open_file(Path(files[0].where))  # the log of the last server

    @Slot()
    def _show_count(self) -> None:
        total, shown = len(self.lines.all_lines), len(self.lines.shown)
        self._stack.setCurrentIndex(1 if total else 0)
        self.report_button.setEnabled(bool(total))
        parts = [tr("{shown} of {kept} lines", shown=f"{shown:,}", kept=f"{total:,}")]
        if self.lines.waiting_count and self.bar.pause.isChecked():
            parts.append(tr("paused, {count} new lines", count=f"{self.lines.waiting_count:,}"))
        self.count.setText(" · ".join(parts) if total else "")

    def _show_copied(self, text: str) -> None:
        self.report_button.setEnabled(True)
        QGuiApplication.clipboard().setText(text)
        notice = tr(
            "{count} lines copied, without API keys, tokens, names and addresses. Check them before you send them.",
            count=len(text.splitlines()),
        )
        self.banner.show_message(notice, "good")

    def _show_error(self, error: LauncherError) -> None:
        self._show_count()
        self.banner.show_message(str(error), "bad")

    def _focus_search(self) -> None:
        self.bar.search.setFocus()
        self.bar.search.selectAll()

    def _open_folder(self) -> None:
        folder = Path(self.source.where).parent if self.source.kind is SourceKind.FILE else logs_dir()
        if not folder.is_dir():
            self.banner.show_message(tr("There is no log folder yet. The first start creates it."), "information")
            return
        QDesktopServices.openUrl(QUrl.fromLocalFile(str(folder)))

    def _go_to_start(self) -> None:
        self._controller.show_page("start")

    def _own_url(self) -> str | None:
        return f"http://{self._controller.inputs.address}" if self._controller.inputs.address else None


def _https_link(action: Action) -> str:
    """Return the link that an action opens, or "" if it opens none."""
    link = str(action.parameters.get("link", ""))
    return link if link.startswith("https://") else ""
