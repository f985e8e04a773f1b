"""Event marks on the time axis: requests, first tokens, restarts and health findings."""

import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPen, QPixmap, QPolygonF

from launcher.engine.server.state import Notice, PromptRead, ServerState
from launcher.gui import theme
from launcher.gui.translation import render, tr

if TYPE_CHECKING:
    from launcher.engine.server.client import Delta
    from launcher.gui.controller import Controller
    from launcher.monitor.health_event import Finding

_MOST_MARKS = 4_000
_SAME_TOKEN_S = 1.0
"""Seconds by which the window and the gateway may differ on the time of a reply's first token."""
GLYPH_PX, _SHAPE_PX = 11, 7
"""Size of a glyph's pixmap and of the shape in its middle, in pixels."""


class MarkKind(StrEnum):
    """Kind of a mark; each has its own glyph."""

    REQUEST = "request"
    FIRST_TOKEN = "first token"  # noqa: S105 -- no password
    READY = "ready"
    RESTART = "restart"
    HANDOVER = "handover"
    STOPPED = "stopped"
    THROTTLING = "throttling"
    SPILL = "spill"
    NOTICE = "notice"


@dataclass(frozen=True, slots=True)
class Mark:
    """An event at `time_s` of the monitor's clock, which lasted `length_s` seconds."""

    time_s: float
    kind: MarkKind
    text: str
    length_s: float = 0.0


class MarkLog:
    """Turns the controller's signals into marks and keeps them. Calls `added` after each."""

    def __init__(
        self, controller: "Controller", added: Callable[[], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._marks: deque[Mark] = deque(maxlen=_MOST_MARKS)
        self._controller = controller
        self._added = added
        self._clock = clock
        self._state = controller.inputs.status.state
        self._replying = controller.view.replying
        self._request_s: float | None = None
        self._first_token: Mark | None = None
        """The mark of this window's last reply, until the number of tokens that were read for it is known."""
        self._open_codes: frozenset[str] = frozenset()
        self._ready: Mark | None = None
        """The mark of a server that has become ready, until its settings are known."""
        controller.view_changed.connect(self.record_view)
        controller.deltas.connect(self.record_deltas)
        controller.health_changed.connect(self.record_health)
        controller.noticed.connect(self.record_notice)
        controller.handed_over.connect(self.record_handover)
        controller.prompt_read.connect(self.record_prompt)
        controller.launched.connect(self.record_launch)

    def notify(self, added: Callable[[], object]) -> None:
        """Call `added` after each mark from now on."""
        self._added = added

    def __len__(self) -> int:
        return len(self._marks)

    def add(self, kind: MarkKind, text: str) -> None:
        """Add a mark at the current time."""
        self.append(Mark(self._clock(), kind, text))

    def append(self, mark: Mark) -> None:
        """Add a mark. It must not be older than the last one."""
        self._marks.append(mark)
        self._added()

    def between(self, from_s: float, to_s: float) -> list[Mark]:
        """Return the marks of a time span, oldest first."""
        found = []
        for mark in reversed(self._marks):
            if mark.time_s < from_s:
                break
            if mark.time_s <= to_s:
                found.append(mark)
        return found[::-1]

    def find_next(self, time_s: float, *, back: bool) -> Mark | None:
        """Return the next mark after a moment, or with `back` the last one before it."""
        if back:
            return next((mark for mark in reversed(self._marks) if mark.time_s < time_s - 1e-6), None)
        return next((mark for mark in self._marks if mark.time_s > time_s + 1e-6), None)

    def record_view(self, _view: object) -> None:
        """Record state changes of the server, and requests of this window."""
        inputs = self._controller.inputs
        state, before = inputs.status.state, self._state
        replying, was_replying = inputs.replying, self._replying
        self._state, self._replying = state, replying
        if replying and not was_replying:
            self._request_s = self._clock()
            self.add(MarkKind.REQUEST, tr("Request sent"))
        elif state is ServerState.BUSY and before is ServerState.READY and not (replying or was_replying):
            self.add(MarkKind.REQUEST, tr("Request of another program"))
        if state is before:
            return
        error = inputs.status.error
        if state is ServerState.RESTARTING:
            self.add(MarkKind.RESTART, tr("Restart: {reason}", reason=render(error.title)) if error else tr("Restart"))
        elif state is ServerState.FAILED:
            self.add(MarkKind.STOPPED, tr("Failed: {reason}", reason=render(error.title)) if error else tr("Failed"))
        elif state is ServerState.STOPPED:
            self.add(MarkKind.STOPPED, tr("Stopped"))
        elif state is ServerState.READY and before not in (ServerState.BUSY, ServerState.DRAINING):
            self._ready = Mark(self._clock(), MarkKind.READY, tr("Ready"))
            self.append(self._ready)

    def record_launch(self, launch: object) -> None:
        """Name the settings of a server that has become ready. They arrive after its state."""
        ready, self._ready = self._ready, None
        settings = self._controller.inputs.settings
        if launch is None or ready is None or not settings or ready not in self._marks:
            return
        named = replace(ready, text=tr("Ready: {settings}", settings=settings))
        self._marks[self._marks.index(ready)] = named
        self._added()

    def record_deltas(self, deltas: "Sequence[Delta]") -> None:
        """Record the first token of a reply."""
        if self._request_s is not None and any(delta.content or delta.reasoning for delta in deltas):
            after_s = self._clock() - self._request_s
            self._request_s = None
            self._first_token = Mark(self._clock(), MarkKind.FIRST_TOKEN, _describe_first_token(after_s))
            self.append(self._first_token)

    def record_prompt(self, prompt: PromptRead) -> None:
        """Record what the engine read for a request that has ended, at the first token of its reply."""
        time_s, after_s = self._clock() - prompt.since_s, prompt.first_token_s
        own, others = self._first_token, list(self._marks)
        if own is not None and own in others and abs(own.time_s - time_s) < _SAME_TOKEN_S:
            others.remove(own)
            time_s, self._first_token = own.time_s, None
        parts = [] if after_s is None else [_describe_first_token(after_s)]
        parts.append(tr("{tokens:,} tokens read", tokens=prompt.read_tokens))
        if prompt.read_again:
            parts.append(tr("{tokens:,} of them again", tokens=prompt.read_again))
        parts.append(tr("{tokens:,} reused", tokens=prompt.reused_tokens))
        self._insert(others, Mark(time_s, MarkKind.FIRST_TOKEN, ", ".join(parts)))

    def record_health(self, findings: "Sequence[Finding]") -> None:
        """Record newly raised findings; one whose figures changed is not new."""
        before, self._open_codes = self._open_codes, frozenset(str(finding.code) for finding in findings)
        for finding in findings:
            if str(finding.code) not in before:
                self.add(_finding_kind(str(finding.code)), render(finding.sentence))

    def record_handover(self, gap_s: float) -> None:
        """Record a pause in streams that has just ended, in place of the restart that caused it."""
        began_s = self._clock() - gap_s
        others = list(self._marks)
        restart = next((each for each in reversed(others) if each.kind is MarkKind.RESTART), None)
        if restart is not None:
            others.remove(restart)
            began_s = min(began_s, restart.time_s)  # on a busy computer the event comes later than the sample
        handover = Mark(began_s, MarkKind.HANDOVER, tr("Handover, {seconds:.1f} s", seconds=gap_s), gap_s)
        self._insert(others, handover)

    def _insert(self, others: list[Mark], mark: Mark) -> None:
        """Add a mark that is reported late to `others`, in the order of time."""
        insort(others, mark, key=lambda each: each.time_s)
        self._marks = deque(others, maxlen=_MOST_MARKS)
        self._added()

    def record_notice(self, notice: Notice) -> None:
        """Record a notice of the supervisor."""
        self.add(MarkKind.NOTICE, render(notice.text))


def _describe_first_token(after_s: float) -> str:
    return tr("First token after {seconds:.2f} s", seconds=after_s)


def _finding_kind(code: str) -> MarkKind:
    if code.startswith("throttled"):
        return MarkKind.THROTTLING
    return MarkKind.SPILL if code == "spill" else MarkKind.NOTICE


def mark_colour(kind: MarkKind, colours: theme.Theme) -> str:
    """Return the colour of a mark's line and glyph."""
    if kind is MarkKind.SPILL:
        return colours.bad
    return colours.attention if kind is MarkKind.THROTTLING else colours.secondary


@lru_cache(maxsize=64)
def glyph_pixmap(kind: MarkKind, ratio: float, colours: theme.Theme) -> QPixmap:
    """Return a mark's glyph as a pixmap of GLYPH_PX, for a screen with device pixel ratio `ratio`."""
    picture = QPixmap(round(GLYPH_PX * ratio), round(GLYPH_PX * ratio))
    picture.setDevicePixelRatio(ratio)
    picture.fill(Qt.GlobalColor.transparent)
    painter = QPainter(picture)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    _paint_glyph(painter, kind, QColor(mark_colour(kind, colours)))
    painter.end()
    return picture


def _paint_glyph(painter: QPainter, kind: MarkKind, colour: QColor) -> None:
    """Paint a mark's glyph. Kinds differ in shape, not only in colour."""
    box = QRectF((GLYPH_PX - _SHAPE_PX) / 2, (GLYPH_PX - _SHAPE_PX) / 2, _SHAPE_PX, _SHAPE_PX)
    centre = box.center()
    painter.setPen(QPen(colour, 1.2))
    painter.setBrush(colour)
    match kind:
        case MarkKind.REQUEST:
            painter.drawPolygon(QPolygonF([box.topLeft(), QPointF(box.right(), centre.y()), box.bottomLeft()]))
        case MarkKind.FIRST_TOKEN:
            painter.drawEllipse(box.adjusted(1, 1, -1, -1))
        case MarkKind.RESTART:
            painter.drawRect(box)
        case MarkKind.HANDOVER:
            painter.fillRect(QRectF(box.left() + 1, box.top(), 2, box.height()), colour)
            painter.fillRect(QRectF(box.right() - 3, box.top(), 2, box.height()), colour)
        case MarkKind.READY:
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRect(box)
        case MarkKind.STOPPED:
            painter.drawLine(box.topLeft(), box.bottomRight())
            painter.drawLine(box.topRight(), box.bottomLeft())
        case MarkKind.THROTTLING:
            painter.drawPolygon(QPolygonF([box.topLeft(), box.topRight(), QPointF(centre.x(), box.bottom())]))
        case MarkKind.SPILL:
            top, bottom = QPointF(centre.x(), box.top() - 1), QPointF(centre.x(), box.bottom() + 1)
            left, right = QPointF(box.left() - 1, centre.y()), QPointF(box.right() + 1, centre.y())
            painter.drawPolygon(QPolygonF([top, right, bottom, left]))
        case MarkKind.NOTICE:
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawEllipse(box)
