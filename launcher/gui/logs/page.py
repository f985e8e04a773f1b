"""The Logs page: the engine's lines as they come or as they were, what is wrong with them, and what mends it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QMimeData, Qt, QTimer, QUrl, Slot
from PySide6.QtGui import QDesktopServices, QGuiApplication, QShortcut
from PySide6.QtWidgets import QFileDialog, QFrame, QStackedWidget, QVBoxLayout, QWidget

from launcher.base.errors import LauncherError
from launcher.engine.state import SERVING, State
from launcher.gui import theme
from launcher.gui.labels import Label
from launcher.gui.logs.arrivals import Arrivals
from launcher.gui.logs.bar import LogBar
from launcher.gui.logs.cause_card import CauseCard
from launcher.gui.logs.drops import dropped_log, reading
from launcher.gui.logs.lines import MOST_LINES, Line, Wanted
from launcher.gui.logs.model import LogModel
from launcher.gui.logs.sources import (
    OURS,
    Cause,
    Kind,
    Read,
    Source,
    caught_up,
    cause_of,
    find_sources,
    fixed_options,
    follow_server,
    read_file,
)
from launcher.gui.logs.view import LogView
from launcher.gui.widgets import Banner, DropTarget, EmptyState, PageHead
from launcher.gui.widgets.blocks import make_button
from launcher.gui.widgets.flow import scrolled
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.base.action import Action
    from launcher.gui.controller import Controller
    from launcher.gui.viewmodel import View
    from launcher.runtime import Handle

_LEAST_MARK = 8


class LogsPage(QWidget):
    """It takes this window's lines in from the moment it is built, also while nobody looks."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self._seen = False
        self._ours: list[Line] = []
        self._cause: Cause | None = None
        self._dismissed: LauncherError | None = None
        self._reading: Handle[None] | None = None
        self.source = OURS
        self.lines, self._arrivals = LogModel(self), Arrivals(self)
        self.view = LogView(self.lines)
        self.bar = LogBar()
        self.card = CauseCard(self._fix, self.show_mark)
        self.banner = Banner()
        self.count = Label()
        self._lay_out()
        self.drop = DropTarget(self, reading, self._read_dropped)
        self._connect()
        if controller.session is not None:
            session = controller.session
            controller.bridge.run(lambda _tell: caught_up(session), done=self._catch_up)
        self.lines.hold_still(still=True)
        self._show_view(controller.view)
        self._show_count()

    def shown(self) -> None:
        """Go on, now that somebody looks; offer what lies here."""
        self._hold()
        self._controller.bridge.run(
            lambda _tell: find_sources(self._own_url()), done=self._show_sources, failed=self._fail
        )

    def hidden(self) -> None:
        """Take lines in without showing them."""
        self.lines.hold_still(still=True)

    def open_file(self, path: Path) -> None:
        """Show a log file, and what is wrong in it."""
        chosen = next(
            (
                each
                for at in range(self.bar.sources.count())
                if (each := self.bar.sources.itemData(at)).where == str(path)
            ),
            Source(Kind.FILE, str(path)),
        )
        others = tuple(self.bar.sources.itemData(at) for at in range(1, self.bar.sources.count()))
        self.bar.show_sources(others, chosen)
        self.choose(chosen)

    @Slot(object)
    def choose(self, source: Source) -> None:
        """Show another log."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        self.source = source
        self.banner.clear()
        self.lines.show_lines([])
        self._show_cause(None)
        run = self._controller.bridge.run
        if source.kind is Kind.OURS:
            self.lines.show_lines(self._ours)
            self.view.follow(follows=True)
            self._show_view(self._controller.view)
        elif source.kind is Kind.FILE:
            path = Path(source.where)
            self._reading = run(
                lambda _tell: read_file(path), done=lambda read: self._show_file(source, read), failed=self._fail
            )
        else:
            self._reading = run(
                lambda tell: follow_server(source.where, tell),
                told=lambda lines: self._take_theirs(source, lines),
                done=lambda _none: self.banner.tell(tr("This server has ended."), "information"),
                failed=self._fail,
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
    def show_mark(self) -> None:
        """Go to the line that names the cause."""
        if self.lines.row_of_mark() is None:
            self.bar.search.clear()
            self.bar.level.set_value("")
            self.bar.tell()
        row = self.lines.row_of_mark()
        if row is not None:
            self.view.show_row(row)

    @Slot()
    def copy_report(self) -> None:
        """Copy what a bug report should hold."""
        texts = [line.text for line in self.lines.kept]

        async def make(_tell: object) -> str:
            from launcher.bug_report import bug_report

            return await bug_report(texts)

        self._copy.setEnabled(False)
        self._controller.bridge.run(make, done=self._copied, failed=self._fail)

    def _read_dropped(self, data: QMimeData) -> None:
        path = dropped_log(data)
        if path is not None:
            self.open_file(path)

    def _lay_out(self) -> None:
        self._head = PageHead(
            tr("Logs"), tr("What the engine writes. A failed start says here why, and what mends it.")
        )
        self._copy = make_button(tr("Copy for a bug report"), self.copy_report)
        self._copy.setToolTip(tr("Versions, cause and last lines, without keys, tokens and names (logs --report)"))
        opens = make_button(tr("Open a log file …"), self.choose_file)
        opens.setToolTip(tr("Any log of llama-server, plain or JSON lines: it is diagnosed the same way"))
        folder = make_button(tr("Open folder"), self._open_folder)
        folder.setToolTip(tr("Show the folder in which the log files lie"))
        for button in (opens, folder, self._copy):
            self.bar.first.add(button)
        self.empty = EmptyState(
            tr("Nothing has been logged yet"),
            tr(
                "What the engine writes appears here as soon as a model is started. You can also open a log of"
                " llama-server that you have, or drop it here: it is diagnosed the same way."
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
        self.count.setObjectName("secondary")
        self.count.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self.count.setWordWrap(True)
        self._stack.setMinimumHeight(theme.px(160))
        layout = scrolled(self)
        for widget in (self._head, self.banner, self.card, self.bar):
            layout.addWidget(widget)
        layout.addWidget(self._stack, 1)
        layout.addWidget(self.count)

    def _connect(self) -> None:
        self._controller.logged.connect(self._arrivals.take)
        self._arrivals.came.connect(self._take)
        self._controller.view_changed.connect(self._show_view)
        self.bar.source_chosen.connect(self.choose)
        self.bar.wanted_changed.connect(self._want)
        self.bar.follow.clicked.connect(lambda checked: self.view.follow(follows=checked))
        self.bar.pause.toggled.connect(self._hold)
        self.view.following_changed.connect(self.bar.follow.setChecked)
        self.lines.counted.connect(self._show_count)
        self.card.close_button.clicked.connect(self._dismiss)
        for key, slot in (("Ctrl+F", self._search), ("Ctrl+P", self.bar.pause.toggle)):
            QShortcut(key, self, slot, context=Qt.ShortcutContext.WidgetWithChildrenShortcut)

    @Slot(object)
    def _take(self, lines: list[Line]) -> None:
        """Take this window's lines in."""
        if self.source.kind is Kind.OURS:
            self.lines.append(lines)
            self._ours = self.lines.kept
        else:
            self._ours.extend(lines)
            del self._ours[: max(0, len(self._ours) - MOST_LINES)]

    def _take_theirs(self, source: Source, lines: list[Line]) -> None:
        if source.same_as(self.source):
            self.lines.append(lines)

    def _catch_up(self, before: list[Line]) -> None:
        """Put what came before the page was there in front of what came since; they may overlap."""
        since = self._ours
        both = min(len(before), len(since), 2_000)
        texts, ours = [line.text for line in before], [line.text for line in since[:both]]
        same = next((n for n in range(both, 0, -1) if texts[-n:] == ours[:n]), 0)
        self._ours = [*before, *since[same:]]
        if self.source.kind is Kind.OURS:
            self.lines.show_lines(self._ours)
            self._ours = self.lines.kept
            self._show_count()

    @Slot(object)
    def _want(self, wanted: Wanted) -> None:
        self.lines.want(wanted)
        self._show_count()

    @Slot()
    def _hold(self) -> None:
        paused = self.bar.pause.isChecked()
        self.bar.pause.setText(tr("Go on") if paused else tr("Pause"))
        self.lines.hold_still(still=paused)
        self._show_count()

    @Slot(object)
    def _show_view(self, _view: View) -> None:
        """Say why this window's server failed."""
        if self.source.kind is not Kind.OURS:
            return
        inputs = self._controller.inputs
        error = inputs.status.error if inputs.status.state in (State.FAILED, State.RESTARTING) else None
        error = error or (None if inputs.status.state in SERVING else inputs.problem)
        if error is None:
            self._dismissed = None
        self._show_cause(cause_of(error) if error is not None and error is not self._dismissed else None)

    def _dismiss(self) -> None:
        inputs = self._controller.inputs
        self._dismissed = inputs.status.error or inputs.problem
        self._show_cause(None)

    def _show_cause(self, cause: Cause | None) -> None:
        mark = (cause.line.rstrip("…") if cause else "").strip()
        self.lines.mark(frozenset({mark}) if len(mark) >= _LEAST_MARK else frozenset())
        before, self._cause = self._cause, cause
        if cause is None:
            self.card.hide()
            return
        self.card.show_cause(cause, self._offered(cause), names_line=bool(self.lines.marks))
        if cause != before and self.isVisible() and not self.bar.pause.isChecked():
            QTimer.singleShot(0, self, self.show_mark)

    def _offered(self, cause: Cause) -> Action | None:
        """Return the first action that a button can do: on what failed here, or to open an address."""
        from launcher.engine.action import starts_again

        def possible(action: Action) -> bool:
            link = str(action.parameters.get("link", ""))
            return link.startswith("https://") or (not cause.foreign and starts_again(action))

        return next(filter(possible, cause.actions), None)

    def _fix(self, action: Action) -> None:
        cause = self._cause
        link = str(action.parameters.get("link", ""))
        if link.startswith("https://"):
            QDesktopServices.openUrl(QUrl(link))
        elif cause is not None and cause.start is not None and self._controller.session is None:
            start = cause.start
            self._controller.bridge.run(
                lambda _tell: fixed_options(action, start),
                done=lambda options: self._start(start.model, options),
                failed=self._fail,
            )
        else:
            self._to_ours()
            self._controller.fix(action)

    def _start(self, model: str, options: object) -> None:
        self._to_ours()
        self._controller.start(model, options=options)  # type: ignore[arg-type]

    def _to_ours(self) -> None:
        if self.source is not OURS:
            self.bar.show_sources(self.bar.others, OURS)
            self.choose(OURS)

    def _show_file(self, source: Source, read: Read) -> None:
        if not source.same_as(self.source):
            return
        self.view.follow(follows=True)
        self.lines.show_lines(read.lines)
        self._show_cause(read.cause)
        if read.cause is None:
            serious = sum(line.level == "E" for line in read.lines)
            self.banner.tell(
                tr("The log names no cause that is known. {count} of its lines are errors.", count=serious),
                "information",
            )

    @Slot(object)
    def _show_sources(self, found: tuple[Source, ...]) -> None:
        first, self._seen = not self._seen, True
        self.source = next(filter(self.source.same_as, found), self.source)
        self.bar.show_sources(found, self.source)
        files = [each for each in found if each.kind is Kind.FILE]
        idle = self._controller.session is None and not self._ours and self.source is OURS
        if first and idle and files:
            self.open_file(Path(files[0].where))  # the log of the server that ran last

    @Slot()
    def _show_count(self) -> None:
        kept, shown = len(self.lines.kept), len(self.lines.shown)
        self._stack.setCurrentIndex(1 if kept else 0)
        self._copy.setEnabled(bool(kept))
        parts = [tr("{shown} of {kept} lines", shown=f"{shown:,}", kept=f"{kept:,}")]
        if self.lines.waiting and self.bar.pause.isChecked():
            parts.append(tr("paused, {count} more have come", count=f"{self.lines.waiting:,}"))
        self.count.setText(" · ".join(parts) if kept else "")

    def _copied(self, text: str) -> None:
        self._copy.setEnabled(True)
        QGuiApplication.clipboard().setText(text)
        lines = len(text.splitlines())
        said = tr(
            "{count} lines are copied, without keys, tokens, names and addresses. Read them before you send them.",
            count=lines,
        )
        self.banner.tell(said, "good")

    def _fail(self, error: LauncherError) -> None:
        self._show_count()
        self.banner.tell(str(error), "bad")

    def _search(self) -> None:
        self.bar.search.setFocus()
        self.bar.search.selectAll()

    def _open_folder(self) -> None:
        from launcher.engine.logs import logs_dir

        folder = Path(self.source.where).parent if self.source.kind is Kind.FILE else logs_dir()
        if not folder.is_dir():
            self.banner.tell(tr("There is no folder of logs yet: it is made with the first start."), "information")
            return
        QDesktopServices.openUrl(QUrl.fromLocalFile(str(folder)))

    def _go_to_start(self) -> None:
        self._controller.show_page("start")

    def _own_url(self) -> str | None:
        return f"http://{self._controller.inputs.address}" if self._controller.inputs.address else None
