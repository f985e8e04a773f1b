"""The one who works a queue: starts what is due, obeys what is asked, tells what happens."""

import asyncio
import errno
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from launcher.base.errors import DiskFull, LauncherError, WrittenByNewer
from launcher.base.identity import ProcessId
from launcher.base.paths import refusal
from launcher.fetch.jobs import Done, Failure, Figures, Job, Jobs, Outcome, State, Stopped, Wish
from launcher.fetch.queue import Queue, unexpected
from launcher.fetch.queue_events import Event, JobProgressed, Notice, changes, totals
from launcher.fetch.queue_store import Damage, Stamp

_TICK_S = 0.25
_IDLE_TICKS = 4
_SHOWN_S = 1.0
"""How often other processes see how far a job is."""

Listener = Callable[[Event], None]


@dataclass(slots=True)
class _Ours:
    """A job that we run."""

    job: Job
    began_bytes: int
    task: "asyncio.Task[None] | None" = None
    figures: Figures | None = None
    stopping: bool = False
    outcome: Outcome = field(default_factory=Stopped)

    @property
    def ended(self) -> bool:
        return self.task is not None and self.task.done()

    @property
    def moved(self) -> bool:
        return self.figures is not None and self.figures.done_bytes > self.began_bytes

    def report(self, figures: Figures) -> None:
        self.figures = figures

    def stop(self) -> None:
        if not self.stopping and self.task is not None:
            self.stopping = True
            self.task.cancel()


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a look at the store brought."""

    jobs: Jobs
    damage: tuple[Damage, ...]
    stamp: Stamp | None


class Runner:
    """Works a queue for as long as `run` lasts; one in a process. `listen` is called on the loop.

    At most `at_once` jobs run, counted over all processes. `tick_s` is how often it looks around while a job runs.
    """

    def __init__(self, queue: Queue, listen: Listener, *, at_once: int = 1, tick_s: float = _TICK_S) -> None:
        self._queue = queue
        self._listen = listen
        self._at_once = at_once
        self._tick_s = tick_s
        self._us = ProcessId.of(os.getpid()) or ProcessId(os.getpid(), 0.0)
        self._ours: dict[int, _Ours] = {}
        self._theirs: dict[int, Figures] = {}
        self._told: dict[int, Figures] = {}
        self._last: _Turn | None = None
        self._jobs = Jobs()
        self._wake = asyncio.Event()
        self._shown_s = self._told_s = float("-inf")
        self._trouble = ""

    async def run(self, *, until_idle: bool = False) -> None:
        """Work until cancelled, or with `until_idle` until nothing waits or runs, or something holds the line up.

        However it ends, its jobs have stopped and wait for the next who works the queue. Raises WrittenByNewer, and
        with `until_idle` OSError when the list cannot be written and no job runs.
        """
        turning: asyncio.Future[_Turn | OSError | None] | None = None
        try:
            while True:
                self._wake.clear()
                ended = {job_id: each for job_id, each in self._ours.items() if each.ended}
                turning = asyncio.ensure_future(asyncio.to_thread(self._turn, ended, self._figures()))
                turn = await asyncio.shield(turning)
                if isinstance(turn, OSError):
                    if until_idle and not self._ours:
                        raise turn
                    self._complain(turn)
                elif turn is not None:
                    self._apply(turn, ended)
                self._tell_progress()
                if until_idle and self._last is not None and self._idle():
                    return
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), self._tick_s * (1 if self._ours else _IDLE_TICKS))
        finally:
            await self._leave(turning)

    def _figures(self) -> dict[int, Figures]:
        return {job_id: each.figures for job_id, each in self._ours.items() if each.figures is not None}

    def _turn(self, ended: Mapping[int, _Ours], figures: Mapping[int, Figures]) -> _Turn | OSError | None:
        """On a thread: write what ended, take in what others changed, claim what is due. None when all is as it was."""
        queue, now_s = self._queue, self._queue.clock.calendar_s()
        self._share(figures)

        def claimed(jobs: Jobs) -> Jobs:
            return jobs.claimed(self._us, queue.works, at_once=self._at_once, now_s=now_s)

        try:
            stamp = queue.store.stamp()
            if self._last is not None and stamp == self._last.stamp and not ended:
                lively = self._jobs.recovered(lambda owner: owner == self._us or owner.running())
                if claimed(lively) == self._jobs:
                    return None
            jobs, _, damage = queue.store.change(
                lambda jobs: (claimed(queue.settled(self._with_ends(jobs, ended))), None)
            )
            queue.store.forget_figures(job.id for job in jobs.jobs if job.state is State.RUNNING)
        except OSError as error:  # a full disk, say: what ended is kept in mind until it can be written
            return error
        return _Turn(jobs, damage, stamp)

    def _share(self, figures: Mapping[int, Figures]) -> None:
        """Let other processes see how far our jobs are, and see theirs."""
        now_s = self._queue.clock.steady_s()
        if now_s - self._shown_s < _SHOWN_S:
            return
        self._shown_s = now_s
        store = self._queue.store
        for job_id, own in figures.items():
            store.show_figures(job_id, own)
        others = [job.id for job in self._jobs.jobs if job.state is State.RUNNING and job.owner != self._us]
        self._theirs = {job_id: theirs for job_id in others if (theirs := store.figures(job_id)) is not None}

    def _with_ends(self, jobs: Jobs, ended: Mapping[int, _Ours]) -> Jobs:
        now_s = self._queue.clock.calendar_s()
        for job_id, each in ended.items():
            jobs = jobs.ended(job_id, each.outcome, each.figures, moved=each.moved, now_s=now_s)
        return jobs

    def _apply(self, turn: _Turn, ended: Mapping[int, _Ours]) -> None:
        """Do what the written jobs say: start, stop, tell."""
        before, self._last, self._jobs, self._trouble = self._jobs, turn, turn.jobs, ""
        for job_id in ended:
            del self._ours[job_id]
        mine = {job.id: job for job in turn.jobs.jobs if job.state is State.RUNNING and job.owner == self._us}
        for job_id, each in self._ours.items():
            if job_id not in mine or mine[job_id].wish is not Wish.RUN:
                each.stop()
        for job_id in mine.keys() - self._ours.keys():
            self._start(mine[job_id])
        for damage in turn.damage:
            self._listen(Notice(str(damage)))
        for event in changes(before, turn.jobs):
            self._listen(event)

    def _start(self, job: Job) -> None:
        ours = self._ours[job.id] = _Ours(job, job.done_bytes or 0)
        ours.task = asyncio.create_task(self._work(ours), name=f"download {job.id}")
        ours.task.add_done_callback(lambda _: self._wake.set())

    async def _work(self, ours: _Ours) -> None:
        job = ours.job
        try:
            ours.outcome = Done(await self._queue.works[job.kind].run(job.arguments, ours.report))
        except asyncio.CancelledError as error:
            if not ours.stopping:
                ours.outcome = unexpected(error)
        except LauncherError as error:
            ours.outcome = Failure.of(error)
        except OSError as error:
            ours.outcome = _full(error) if error.errno == errno.ENOSPC else Failure.of(refusal(error))
        except Exception as error:  # noqa: BLE001 -- a fault in one job is no reason to end the others
            ours.outcome = unexpected(error)

    def _tell_progress(self) -> None:
        now_s = self._queue.clock.steady_s()
        if now_s - self._told_s < _TICK_S:
            return
        running = {job.id: job for job in self._jobs.jobs if job.state is State.RUNNING}
        figures = {job_id: theirs for job_id, theirs in self._theirs.items() if job_id in running}
        figures |= {job_id: ours for job_id, ours in self._figures().items() if job_id in running}
        told, self._told = self._told, figures
        for job_id, each in figures.items():
            if told.get(job_id) != each:
                self._told_s = now_s
                self._listen(JobProgressed(running[job_id], each, totals(self._jobs, figures)))

    def _complain(self, error: OSError) -> None:
        text = f"The list of downloads could not be written. {refusal(error).title}"
        if text != self._trouble:
            self._trouble = text
            self._listen(Notice(text))

    def _idle(self) -> bool:
        """Whether there is nothing to do and nothing to wait for."""
        if self._ours or any(job.state is State.RUNNING for job in self._jobs.jobs):
            return False
        waiting = any(job.state is State.WAITING and job.kind in self._queue.works for job in self._jobs.jobs)
        return self._jobs.hold is not None or not waiting

    async def _leave(self, turning: "asyncio.Future[_Turn | OSError | None] | None") -> None:
        """Stop our jobs and give them back."""
        for each in self._ours.values():
            each.stop()
        waits = [each.task for each in self._ours.values() if each.task is not None]
        if pending := {*waits, *((turning,) if turning is not None else ())}:
            await asyncio.wait(pending)
        ours, self._ours = self._ours, {}
        with suppress(OSError, WrittenByNewer):  # then whoever comes next finds that we are gone
            jobs, _, _ = self._queue.store.change(
                lambda jobs: (self._queue.settled(self._with_ends(jobs, ours).left_by(self._us)), None)
            )
            before, self._jobs = self._jobs, jobs
            for event in changes(before, jobs):
                self._listen(event)


def _full(error: OSError) -> Failure:
    where = f" of {error.filename}" if error.filename else ""
    return Failure.of(
        DiskFull(f"The disk{where} is full.", "Nothing is lost: free space, then `mtp-launcher downloads resume all`.")
    )
