"""The window works the queue of downloads, on the core's thread, for as long as it is open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

from launcher.base.errors import LauncherError

if TYPE_CHECKING:
    from launcher.fetch.jobs import Added, Failure, Figures, Job, Place
    from launcher.fetch.queue_events import Totals
    from launcher.gui.controller import Controller
    from launcher.runtime import Handle


@dataclass(frozen=True, slots=True)
class Line:
    """The jobs in their order, how far those are that run, what holds all up, and what is to be said of the list."""

    jobs: tuple[Job, ...] = ()
    figures: Mapping[int, Figures] = field(default_factory=dict)
    held: Failure | None = None
    totals: Totals | None = None


class QueueHost(QObject):
    """Begins when there is something to do, and goes on with what a crash or another program has left."""

    changed = Signal(object)
    """Line"""
    added = Signal(str)
    """The title of what is in the queue now"""
    finished = Signal(object)
    """Job: it is done, and its files are here"""
    noticed = Signal(str)
    failed = Signal(object)
    """LauncherError"""

    def __init__(self, controller: Controller, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._controller = controller
        self._running: Handle[None] | None = None
        self.line = Line()

    def look(self) -> None:
        """Look whether anything waits, also of an earlier run or from the command line; if so, work it."""
        self._controller.bridge.run(lambda _tell: _look(), done=self._take_look, failed=self.failed.emit)

    def begin(self) -> None:
        """Work the queue until the window closes."""
        if self._running is None:
            self._running = self._controller.bridge.run(_work, told=self._take, failed=self._fail, done=self._ended)

    def add(self, what: str) -> None:
        """Put a model at the end of the line: ID:QUANT, REPO:FILE, or an address with the SHA-256 behind a space."""

        async def add(_tell: object) -> Added:
            from launcher.downloads import add_pull

            name, _, sha256 = what.partition(" ")
            return await add_pull(name, sha256=sha256.strip() or None)

        self._controller.bridge.run(add, done=self._take_added, failed=self.failed.emit)

    def become(self, wish: str, *job_ids: int) -> None:
        """Ask jobs to run, pause, cancel, or to be discarded (cancelled, and what arrived removed)."""

        def ask() -> None:
            from launcher.downloads import queue
            from launcher.fetch.jobs import Wish

            queue().become(Wish(wish), *job_ids)

        self._do(ask)

    def move(self, job_id: int, place: Place) -> None:
        """Move a job in the line."""

        def ask() -> None:
            from launcher.downloads import queue

            queue().move(job_id, place)

        self._do(ask)

    def clear(self) -> None:
        """Take out what has ended."""

        def ask() -> None:
            from launcher.downloads import queue

            queue().clear(failed=True)

        self._do(ask)

    def _do(self, ask: Callable[[], None]) -> None:
        async def work(_tell: object) -> Line:
            await asyncio.to_thread(ask)
            return await _look()

        self._controller.bridge.run(work, done=self._take_look, failed=self.failed.emit)

    def _take_added(self, added: Added) -> None:
        self.added.emit(added.job.title)
        self.look()
        self.begin()

    def _take_look(self, line: Line) -> None:
        self.line = Line(line.jobs, {**self.line.figures, **line.figures}, line.held, self.line.totals)
        self.changed.emit(self.line)
        if any(job.state.value in ("waiting", "running") for job in line.jobs):
            self.begin()

    def _take(self, told: str | tuple[Line, Job | None]) -> None:
        """Take in what the runner tells."""
        if isinstance(told, str):
            self.noticed.emit(told)
            return
        self.line, done = told
        self.changed.emit(self.line)
        if done is not None:
            self.finished.emit(done)

    def _ended(self, _none: object) -> None:
        self._running = None

    def _fail(self, error: LauncherError) -> None:
        self._running = None
        self.failed.emit(error)


async def _look() -> Line:
    from launcher.downloads import queue

    look = await asyncio.to_thread(queue().look)
    return Line(look.jobs.jobs, look.figures, look.jobs.hold)


async def _work(tell: Callable[[object], object]) -> None:
    """Run what waits, and tell the whole line after each change."""
    from launcher.downloads import queue
    from launcher.fetch.queue_events import (
        Event,
        Held,
        JobAdded,
        JobChanged,
        JobFailed,
        JobFinished,
        JobProgressed,
        JobRemoved,
        Notice,
        Reordered,
    )
    from launcher.fetch.queue_runner import Runner

    jobs: dict[int, Job] = {}
    figures: dict[int, Figures] = {}
    order: list[int] = []
    held: Failure | None = None
    totals: Totals | None = None

    def listen(event: Event) -> None:
        nonlocal held, totals, order
        done = None
        match event:
            case Notice(text):
                tell(text)
                return
            case JobAdded(job) | JobChanged(job) | JobFailed(job, _):
                jobs[job.id] = job
            case JobFinished(job):
                jobs[job.id] = done = job
            case JobProgressed(job, now, sum_of_all):
                jobs[job.id], figures[job.id], totals = job, now, sum_of_all
            case JobRemoved(job):
                jobs.pop(job.id, None)
            case Reordered(ids):
                order = list(ids)
            case Held(reason):
                held = reason
        places = {job_id: place for place, job_id in enumerate(order)}
        shown = sorted(jobs.values(), key=lambda job: places.get(job.id, len(places)))
        running = {job.id: figures[job.id] for job in shown if job.state.value == "running" and job.id in figures}
        tell((Line(tuple(shown), running, held, totals), done))

    await Runner(queue(), listen).run()
