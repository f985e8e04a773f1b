"""The watch over a server that runs: does it answer, does it work, and is what it needs still there?

Nothing that merely takes long is a fault. An engine is only ended when it owes an answer, has said nothing for minutes,
and has computed nothing meanwhile: the processor time that its process takes is the evidence.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import psutil

from launcher.base.errors import EngineHung, LauncherError
from launcher.engine.in_use_files import Change, FilesInUse
from launcher.engine.state import Notice


class Clock(Protocol):
    """The two clocks of a computer, in seconds."""

    def monotonic(self) -> float:
        """Return a time that only goes on; on Linux it stands still while the computer sleeps."""

    def wall(self) -> float:
        """Return the time of day since the epoch; it may be set."""


class SystemClock:
    """This computer's clocks."""

    def monotonic(self) -> float:
        """See Clock."""
        return time.monotonic()

    def wall(self) -> float:
        """See Clock."""
        return time.time()


@dataclass(frozen=True, slots=True)
class Limits:
    """How long, in seconds, what may take before it is a fault."""

    period_s: float = 5.0
    """Between two looks."""
    asleep_s: float = 10.0
    """A look that comes this much too late, by either clock, comes after a sleep."""
    silent_s: float = 10.0
    """/health unanswered for this long is told."""
    dead_s: float = 60.0
    """/health unanswered for this long by an engine that computes nothing: it hangs."""
    stalled_s: float = 300.0
    """No part of a reply for this long from an engine that computes nothing: it hangs. A batch of 2,048 tokens takes
    longer only below 7 tokens a second on a GPU; on the processor the engine is seen to compute."""
    endless_s: float = 1_800.0
    """No part of a reply for this long, whatever it computes."""
    loading_s: float = 600.0
    """A load that reports nothing for this long has hung. A cold 40 GB file on a slow disk reports all the while."""
    first_reply_s: float = 600.0
    """For the 8 tokens of the first request, which may read the whole model from the disk."""


_IDLE = 0.005
"""Of one processor: an engine that takes less computes nothing (one that is asked for /metrics takes some 0.1 %)."""


_UNWATCHED = "The server cannot be looked at, so a fault of it may go unseen. It goes on, and so do the looks at it."
_log = logging.getLogger(__name__)


class Guarded(Protocol):
    """What the guard looks at."""

    async def healthy(self) -> bool:
        """Return whether /health is answered."""


class Guard:
    """Looks after one run of an engine. `pid` is its process, `quiet_since` when the open reply that has been silent
    for longest last said something, None without one (by the monotonic clock), `log_problem` why its log cannot be
    written."""

    def __init__(
        self,
        pid: int,
        client: Guarded,
        files: FilesInUse,
        *,
        tell: Callable[[Notice], None],
        quiet_since: Callable[[], float | None],
        log_problem: Callable[[], str | None],
        clock: Clock,
        limits: Limits,
    ) -> None:
        self._pid = pid
        self._client = client
        self._files = files
        self._tell = tell
        self._quiet_since = quiet_since
        self._log_problem = log_problem
        self._told_problem: str | None = None
        self._clock = clock
        self._limits = limits
        self._told: set[Change] = set()
        self._told_silence = ""
        self._cpu_s = _cpu_s(pid)
        self._look_s, self._look_wall_s = clock.monotonic(), clock.wall()
        self._answered_s = self._worked_s = self._awake_s = self._look_s

    async def watch(self) -> LauncherError:
        """Look again and again; return why the engine has to be ended, should it come to that."""
        blind = False
        while True:
            await asyncio.sleep(self._limits.period_s)
            try:
                error = await self.look()
            except Exception as failed:  # noqa: BLE001 -- the engine is not to blame for it
                if not blind:
                    _log.exception("A look at the server failed")
                    why = f"{type(failed).__name__}: {failed}".rstrip(": ")
                    self._tell(Notice("unwatched", f"{_UNWATCHED} {why}."))
                blind = True
                continue
            blind = False
            if error is not None:
                return error

    async def look(self) -> LauncherError | None:
        """Look once, tell what is new, and return why the engine has to be ended, if it has."""
        slept_s = self._wake_up()
        healthy = await self._client.healthy()
        now_s = self._clock.monotonic()
        paused = await asyncio.to_thread(self._measure, now_s)
        if healthy:
            self._answered_s = now_s
        self._tell_silence(now_s, paused=paused)
        if slept_s:
            what = "answers" if healthy else "does not answer yet"
            self._tell(
                Notice("slept", f"The computer slept for {_span(slept_s)}, or its clock was set; the server {what}.")
            )
        for change in await asyncio.to_thread(self._files.changes):
            if change not in self._told:
                self._told.add(change)
                self._tell(change.notice)
        self._tell_log_problem()
        return None if paused else self._verdict(now_s)

    def _wake_up(self) -> float:
        """Return for how long nothing could be observed, in seconds, 0 when all went its way."""
        now_s, wall_s = self._clock.monotonic(), self._clock.wall()
        passed_s = max(now_s - self._look_s, wall_s - self._look_wall_s)
        self._look_s, self._look_wall_s = now_s, wall_s
        late_s = passed_s - self._limits.period_s
        if late_s < self._limits.asleep_s:
            return 0.0
        self._answered_s = self._worked_s = self._awake_s = now_s  # nobody owes anything for that time
        return late_s

    def _measure(self, now_s: float) -> bool:
        """Take note of whether the engine computes; return whether it is held (SIGSTOP, a debugger)."""
        cpu_s = _cpu_s(self._pid)
        if cpu_s is None or self._cpu_s is None or abs(cpu_s - self._cpu_s) > _IDLE * self._limits.period_s:
            self._worked_s = now_s
        self._cpu_s = cpu_s
        try:
            return psutil.Process(self._pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        except psutil.Error:
            return False

    def _tell_silence(self, now_s: float, *, paused: bool) -> None:
        """Tell once that the engine is silent, and once that it is so no more."""
        silent_s = now_s - self._answered_s
        if not silent_s and self._told_silence:
            self._told_silence = ""
            self._tell(Notice("answers_again", "The engine answers again."))
        elif paused and self._told_silence != "paused" and silent_s:
            self._told_silence = "paused"
            text = (
                f"The engine's process {self._pid} is held (by SIGSTOP or a debugger) and answers nothing. "
                f"`kill -CONT {self._pid}` lets it go on; a restart begins anew."
            )
            self._tell(Notice("paused", text))
        elif silent_s >= self._limits.silent_s and not self._told_silence:
            self._told_silence = "silent"
            text = f"The engine has not answered for {_span(silent_s)}. Wait, or restart it."
            self._tell(Notice("silent", text))

    def _tell_log_problem(self) -> None:
        problem, told = self._log_problem(), self._told_problem
        if problem and not told:
            text = f"The log cannot be written: {problem}. The server goes on; the last lines are kept in memory."
            self._tell(Notice("log_unwritable", text))
        elif told and not problem:
            self._tell(Notice("log_writable", "The log can be written again."))
        self._told_problem = problem

    def _verdict(self, now_s: float) -> LauncherError | None:
        idle_s, silent_s = now_s - self._worked_s, now_s - self._answered_s
        hint = "Its log may say more. If it happens again, use another build."
        if min(idle_s, silent_s) >= self._limits.dead_s:
            return EngineHung(f"The engine hung: for {_span(silent_s)} it answered nothing and computed nothing.", hint)
        since_s = self._quiet_since()
        if since_s is None:
            return None
        quiet_s = now_s - max(since_s, self._awake_s)
        if min(idle_s, quiet_s) >= self._limits.stalled_s or quiet_s >= self._limits.endless_s:
            return EngineHung(
                f"The engine hung: it says that it is well, but for {_span(quiet_s)} no token of a reply came.", hint
            )
        return None


def _cpu_s(pid: int) -> float | None:
    """Return the processor time that a process and its children have taken, in seconds; None when it is not known.

    Of those that have ended, their parents tell, on Windows nobody: it is less by what they took, then.
    """
    try:
        process = psutil.Process(pid)
        total_s = sum(process.cpu_times()[:4])
        for child in process.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                total_s += sum(child.cpu_times()[:4])
    except psutil.Error:
        return None
    return float(total_s)


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"
