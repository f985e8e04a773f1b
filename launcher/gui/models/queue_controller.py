"""Controls the download queue from the Models page, and runs it on the core's thread while the window is open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

from launcher.base.errors import LauncherError
from launcher.base.progress import Progress
from launcher.gui.late import download_jobs, downloads, queue_runner

if TYPE_CHECKING:
    from launcher.fetch.jobs import AddedJob, Job, JobFailure, QueuePlace
    from launcher.fetch.queue_runner import QueueTotals
    from launcher.gui.controller import Controller
    from launcher.runtime import WorkHandle


@dataclass(frozen=True, slots=True)
class QueueView:
    """The queue: jobs in order, progress of the running ones, the failure that blocks all of them, and totals."""

    jobs: tuple[Job, ...] = ()
    progress_by_id: Mapping[int, Progress] = field(default_factory=dict)
    blocked_by: JobFailure | None = None
    totals: QueueTotals | None = None


class QueueController(QObject):
    """Runs the download queue once a job is waiting, also one left by a crash or added by the command line."""

    changed = Signal(object)
    """QueueView."""
    added = Signal(object)
    """Job: it was added."""
    adding_changed = Signal()
    """A download is being added, or no longer: see `adding`."""
    finished = Signal(object)
    """Job: it is done and its files are stored."""
    noticed = Signal(str)
    """A remark of the runner, for the user."""
    failed = Signal(object)
    """LauncherError."""

    def __init__(self, controller: Controller, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._controller = controller
        self._running: WorkHandle[None] | None = None
        self.snapshot = QueueView()
        self.adding: list[str] = []
        """Downloads that are being added. They are shown at once, although the hub is asked first."""

    def refresh(self) -> None:
        """Read the queue, and run it if a job is waiting."""
        self._controller.bridge.run(_read_queue, done=self._handle_snapshot, failed=self.failed.emit)

    def run_queue(self) -> None:
        """Run the queue until the window closes."""
        if self._running is None:
            self._running = self._controller.bridge.run(
                _run_queue, reported=self._handle_event, failed=self._emit_error, done=self._record_end
            )

    def add_download(self, target: str, drafter: str | None = None) -> None:
        """Append a download: ID:QUANT, REPO:FILE, or a URL, optionally followed by a space and its SHA-256.

        A model comes with its file for `drafter`.
        """

        async def add_to_queue() -> AddedJob:
            name, _, sha256 = target.partition(" ")
            return await downloads.add_pull(name, sha256=sha256.strip() or None, drafter=drafter)

        if target not in self.adding:
            self.adding.append(target)
            self.adding_changed.emit()
            self._controller.bridge.run(
                add_to_queue,
                done=lambda added: self._handle_added(target, added),
                failed=lambda error: self._handle_refused(target, error),
            )

    def request_state(self, state: str, *job_ids: int) -> None:
        """Request a state for jobs: run, pause, cancel, or discard (cancel and delete the received data)."""

        def change() -> None:
            downloads.download_queue().request_state(download_jobs.RequestedState(state), *job_ids)

        self._change_queue(change)

    def move_job(self, job_id: int, place: QueuePlace) -> None:
        """Move a job within the queue."""

        def change() -> None:
            downloads.download_queue().move_job(job_id, place)

        self._change_queue(change)

    def clear_ended(self) -> None:
        """Remove finished, failed and cancelled jobs from the list."""

        def change() -> None:
            downloads.download_queue().clear_ended(failed=True)

        self._change_queue(change)

    def _change_queue(self, change: Callable[[], None]) -> None:
        async def change_and_read() -> QueueView:
            await asyncio.to_thread(change)
            return await _read_queue()

        self._controller.bridge.run(change_and_read, done=self._handle_snapshot, failed=self.failed.emit)

    def _handle_added(self, target: str, added: AddedJob) -> None:
        self.adding.remove(target)
        others = [job for job in self.snapshot.jobs if job.id != added.job.id]
        self.snapshot = replace(self.snapshot, jobs=(*others, added.job))
        self.added.emit(added.job)
        self.changed.emit(self.snapshot)
        self.refresh()
        self.run_queue()

    def _handle_refused(self, target: str, error: LauncherError) -> None:
        self.adding.remove(target)
        self.adding_changed.emit()
        self.failed.emit(error)

    def _handle_snapshot(self, snapshot: QueueView) -> None:
        self.snapshot = QueueView(
            snapshot.jobs,
            {**self.snapshot.progress_by_id, **snapshot.progress_by_id},
            snapshot.blocked_by,
            self.snapshot.totals,
        )
        self.changed.emit(self.snapshot)
        if any(job.state.value in ("waiting", "running") for job in snapshot.jobs):
            self.run_queue()

    def _handle_event(self, event: str | tuple[QueueView, Job | None]) -> None:
        """Handle what `_run_queue` reports: a remark for the user, or the queue and the job that has just finished."""
        if isinstance(event, str):
            self.noticed.emit(event)
            return
        self.snapshot, finished = event
        self.changed.emit(self.snapshot)
        if finished is not None:
            self.finished.emit(finished)

    def _record_end(self, _none: object) -> None:
        self._running = None

    def _emit_error(self, error: LauncherError) -> None:
        self._running = None
        self.failed.emit(error)


async def _read_queue() -> QueueView:
    queue = await asyncio.to_thread(downloads.download_queue().read_snapshot)
    return QueueView(queue.jobs.jobs, queue.progress_by_id, queue.jobs.hold)


async def _run_queue(report: Callable[[object], object]) -> None:
    """Run waiting jobs and report the whole queue after each change."""
    jobs: dict[int, Job] = {}
    progress_by_id: dict[int, Progress] = {}
    order: list[int] = []
    blocked_by: JobFailure | None = None
    totals: QueueTotals | None = None

    def handle_event(event: queue_runner.QueueEvent) -> None:
        nonlocal blocked_by, totals, order
        finished = None
        match event:
            case queue_runner.QueueNotice(text):
                report(text)
                return
            case queue_runner.JobAdded(job) | queue_runner.JobChanged(job) | queue_runner.JobFailed(job, _):
                jobs[job.id] = job
            case queue_runner.JobFinished(job):
                jobs[job.id] = finished = job
            case queue_runner.JobProgressed(job, progress, new_totals):
                jobs[job.id], progress_by_id[job.id], totals = job, progress, new_totals
            case queue_runner.JobRemoved(job):
                jobs.pop(job.id, None)
            case queue_runner.QueueReordered(ids):
                order = list(ids)
            case queue_runner.QueueHeld(reason):
                blocked_by = reason
        positions = {job_id: position for position, job_id in enumerate(order)}
        shown = sorted(jobs.values(), key=lambda job: positions.get(job.id, len(positions)))
        running = [job.id for job in shown if job.state.value == "running"]
        running_progress = {job_id: progress_by_id[job_id] for job_id in running if job_id in progress_by_id}
        report((QueueView(tuple(shown), running_progress, blocked_by, totals), finished))

    await queue_runner.QueueRunner(downloads.download_queue(), handle_event).run()
