"""Watchdog of a running server: detects hangs, sleep, changed files and an unwritable log.

Slowness alone is not a fault. An engine is ended only if it owes a reply, has sent nothing for minutes, and has
computed nothing meanwhile, measured by the CPU time of its process; if it was writing all its replies, and its loop has
not even taken a request for /slots for as long, whatever it computes (llama.cpp #27388); or if it has failed the last
requests by a fault that ends an engine, such as a lost GPU: some builds go on without it, and answer each request with
an error.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from launcher.base.errors import EngineBroken, EngineHung, LauncherError, Unreachable
from launcher.base.messages import join_messages, message
from launcher.engine.diagnosis.explain import add_cause, diagnose_reply_error
from launcher.engine.server.in_use import FileChange, FilesInUse
from launcher.engine.server.state import MOST_FAILED_REPLIES, FailedReplies, Notice, OpenReply


class Clock(Protocol):
    """The monotonic and the wall clock, in seconds."""

    def monotonic(self) -> float:
        """Return a time that never goes back. On Linux it stands still while the computer sleeps."""

    def wall(self) -> float:
        """Return the time since the epoch; it jumps if the user sets the clock."""


class SystemClock:
    """The clocks of this computer."""

    def monotonic(self) -> float:
        """See Clock."""
        return time.monotonic()

    def wall(self) -> float:
        """See Clock."""
        return time.time()


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """Time limits in seconds after which the watchdog reports or acts."""

    period_s: float = 5.0
    """Time between two checks."""
    asleep_s: float = 10.0
    """If a check is late by this much, by either clock, the computer slept."""
    silent_s: float = 10.0
    """/health unanswered for this long: the user is notified."""
    dead_s: float = 60.0
    """/health unanswered for this long, and no CPU time used: the engine hangs."""
    stalled_s: float = 300.0
    """An open reply without a new token for this long, and no CPU time used: the engine hangs. So does one that was
    writing all its replies, if it has not answered /slots for this long: a reply that is being written waits for one
    batch at most.

    On a GPU, a batch of 2,048 tokens takes longer only below 7 tokens a second; an engine that computes on the CPU uses
    CPU time.
    """
    endless_s: float = 1_800.0
    """A stream that has begun, or of whose prompt reports are due, without either for this long, whatever CPU time was
    used: the engine hangs."""
    loading_s: float = 600.0
    """Loading without any output for this long: the engine hangs. Loading a cold 40 GB file from a slow disk keeps
    reporting progress."""
    first_reply_s: float = 600.0
    """Time for the 8 tokens of the first request, which may read the whole model from the disk."""


_IDLE_CPU_SHARE = 0.005
"""Share of one CPU core below which an engine counts as idle. One that only answers /metrics uses about 0.1 %."""

_LOOP_ANSWER_S = 4.0
"""Seconds for an answer of the engine's loop: less than a check may be late, but longer than a token takes."""
_CHECK_FAILED = message(
    "The health check of the server failed, so problems may go unnoticed. The server keeps running, and the "
    "check is repeated."
)
_log = logging.getLogger(__name__)


class HealthClient(Protocol):
    """The part of the engine's HTTP client that the guard needs."""

    async def is_healthy(self) -> bool:
        """Return whether the engine answers /health."""

    async def count_working_slots(self) -> int:
        """Ask the engine's loop for /slots. Raises Unreachable if there is no answer, Refused without /slots."""


class Guard:
    """Watchdog of one engine process.

    `pid` is its process, `client` requests /health and /slots, `files` are the files that it uses. `notify` receives
    notices for the user. `open_replies` returns the replies that the engine owes. `log_problem` returns the reason why
    the log cannot be written, None if it can. `failed_replies` returns the requests that the engine has failed one
    after another, None if that is unknown.
    """

    def __init__(
        self,
        pid: int,
        client: HealthClient,
        files: FilesInUse,
        *,
        notify: Callable[[Notice], None],
        open_replies: Callable[[], Sequence[OpenReply]],
        log_problem: Callable[[], str | None],
        failed_replies: Callable[[], FailedReplies | None] = lambda: None,
        clock: Clock,
        limits: GuardLimits,
    ) -> None:
        self._pid = pid
        self._client = client
        self._files = files
        self._notify = notify
        self._open_replies = open_replies
        self._log_problem = log_problem
        self._failed_replies = failed_replies
        self._notified_log_problem: str | None = None
        self._clock = clock
        self._limits = limits
        self._notified_changes: set[FileChange] = set()
        self._notified_silence = ""
        self._cpu_s = _read_cpu_time(pid)
        self._checked_s, self._checked_wall_s = clock.monotonic(), clock.wall()
        self._answered_s = self._worked_s = self._awake_s = self._checked_s
        self._stuck_s: float | None = None
        """When the engine's loop was first asked without an answer while it had to write; None if it answers."""

    async def watch(self) -> LauncherError:
        """Check every `period_s` seconds; return the reason once the engine has to be ended.

        A check that fails with an exception is logged and reported to the user once, and watching continues.
        """
        check_fails = False
        while True:
            await asyncio.sleep(self._limits.period_s)
            try:
                error = await self.check_engine()
            except Exception as failed:  # noqa: BLE001 -- a bug in a check must not end the engine
                if not check_fails:
                    _log.exception("A check of the server failed")
                    why = f"{type(failed).__name__}: {failed}".rstrip(": ")
                    self._notify(Notice("unwatched", join_messages(_CHECK_FAILED, f"{why}.")))
                check_fails = True
                continue
            check_fails = False
            if error is not None:
                return error

    async def check_engine(self) -> LauncherError | None:
        """Check once and send new notices; return the reason if the engine has to be ended."""
        slept_s = self._detect_sleep()
        healthy = await self._client.is_healthy()
        now_s = self._clock.monotonic()
        await asyncio.to_thread(self._record_activity, now_s)
        paused = await asyncio.to_thread(_is_paused, self._pid)
        if healthy:
            self._answered_s = now_s
        if paused:
            self._stuck_s = None
        else:
            await self._ask_loop(now_s)
        self._report_silence(now_s, paused=paused)
        if slept_s:
            span = _format_duration(slept_s)
            text = (
                message("The computer slept for {span}, or its clock changed. The server responds.", span=span)
                if healthy
                else message(
                    "The computer slept for {span}, or its clock changed. The server does not respond yet.", span=span
                )
            )
            self._notify(Notice("slept", text))
        for change in await asyncio.to_thread(self._files.find_changes):
            if change not in self._notified_changes:
                self._notified_changes.add(change)
                self._notify(change.notice)
        self._report_log_problem()
        return None if paused else self._find_fault() or self._find_hang(now_s)

    def _detect_sleep(self) -> float:
        """Return by how many seconds this check is late if the computer slept since the last one, otherwise 0."""
        now_s, wall_s = self._clock.monotonic(), self._clock.wall()
        passed_s = max(now_s - self._checked_s, wall_s - self._checked_wall_s)
        self._checked_s, self._checked_wall_s = now_s, wall_s
        late_s = passed_s - self._limits.period_s
        if late_s < self._limits.asleep_s:
            return 0.0
        self._stuck_s = None
        self._answered_s = self._worked_s = self._awake_s = now_s  # time asleep counts against no limit
        return late_s

    def _record_activity(self, now_s: float) -> None:
        """Record whether the engine used CPU time since the last check."""
        cpu_s = _read_cpu_time(self._pid)
        if cpu_s is None or self._cpu_s is None or abs(cpu_s - self._cpu_s) > _IDLE_CPU_SHARE * self._limits.period_s:
            self._worked_s = now_s
        self._cpu_s = cpu_s

    async def _ask_loop(self, now_s: float) -> None:
        """Find out whether the engine's loop still turns while it should be writing; if it did not, ask until it does.

        Threads of their own answer /health, but the loop that writes replies also answers /slots, between two batches.
        While a prompt is read, a batch may take minutes.
        """
        replies = self._open_replies()
        known = [each for each in replies if each.writes is not None]
        quiet_s = now_s - min((each.heard_s for each in replies), default=now_s)
        if self._stuck_s is None and (quiet_s < self._limits.silent_s or not known or not all(r.writes for r in known)):
            return
        try:
            async with asyncio.timeout(_LOOP_ANSWER_S):
                await self._client.count_working_slots()
        except (Unreachable, TimeoutError):
            self._stuck_s = self._stuck_s or now_s
        except LauncherError:  # a build without /slots, or started with --no-slots, tells nothing
            self._stuck_s = None
        else:
            self._stuck_s = None

    def _report_silence(self, now_s: float, *, paused: bool) -> None:
        """Send one notice when the engine stops answering (or is paused), and one when it answers again."""
        silent_s = now_s - self._answered_s
        if not silent_s and self._notified_silence:
            self._notified_silence = ""
            self._notify(Notice("answers_again", message("The engine responds again.")))
        elif paused and self._notified_silence != "paused" and silent_s:
            self._notified_silence = "paused"
            text = message(
                "The engine process {pid} is suspended (by SIGSTOP or a debugger) and does not respond. "
                "`kill -CONT {pid}` resumes it; a restart replaces it.",
                pid=self._pid,
            )
            self._notify(Notice("paused", text))
        elif silent_s >= self._limits.silent_s and not self._notified_silence:
            self._notified_silence = "silent"
            text = message(
                "The engine has not responded for {span}. Wait, or restart it.", span=_format_duration(silent_s)
            )
            self._notify(Notice("silent", text))

    def _report_log_problem(self) -> None:
        problem, notified = self._log_problem(), self._notified_log_problem
        if problem and not notified:
            text = message(
                "Cannot write the log: {problem}. The server keeps running; the last lines are kept in memory.",
                problem=problem,
            )
            self._notify(Notice("log_unwritable", text))
        elif notified and not problem:
            self._notify(Notice("log_writable", message("Logging works again.")))
        self._notified_log_problem = problem

    def _find_fault(self) -> LauncherError | None:
        """Return the error of an engine that failed the last requests by a fault from which only a restart helps."""
        failed = self._failed_replies()
        if failed is None or failed.broken < MOST_FAILED_REPLIES:
            return None
        found = diagnose_reply_error(failed.message)
        if found is None or found.severity != "fatal":  # another failure came last
            return None
        return EngineBroken(add_cause(failed.sentence, found), found.hint, diagnosis=found.code, line=failed.message)

    def _find_hang(self, now_s: float) -> LauncherError | None:
        idle_s, silent_s = now_s - self._worked_s, now_s - self._answered_s
        hint = message("Check its log. If it happens again, use another build.")
        if min(idle_s, silent_s) >= self._limits.dead_s:
            return EngineHung(
                message(
                    "The engine hung: no response and no CPU activity for {span}.",
                    span=_format_duration(silent_s),
                ),
                hint,
            )
        replies = self._open_replies()
        quiet_s = self._count_quiet(replies, now_s)
        stuck_s = 0.0 if self._stuck_s is None else now_s - self._stuck_s
        endless = self._count_quiet([each for each in replies if each.reports], now_s) >= self._limits.endless_s
        if stuck_s >= self._limits.stalled_s:
            return EngineHung(
                message(
                    "The engine hung: in the middle of a reply it stopped, and answers no question on its slots for "
                    "{span}.",
                    span=_format_duration(stuck_s),
                ),
                hint,
            )
        if min(idle_s, quiet_s) >= self._limits.stalled_s or endless:
            return EngineHung(
                message(
                    "The engine hung: its health check passes, but a running reply got no token for {span}.",
                    span=_format_duration(quiet_s),
                ),
                hint,
            )
        return None

    def _count_quiet(self, replies: Sequence[OpenReply], now_s: float) -> float:
        """Return for how many seconds, awake, the engine has sent nothing of one of these replies; 0 without any."""
        return now_s - max(min((each.heard_s for each in replies), default=now_s), self._awake_s)


def _is_paused(pid: int) -> bool:
    """Return whether a process is paused by SIGSTOP or a debugger."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def _read_cpu_time(pid: int) -> float | None:
    """Return the CPU time of a process and its children in seconds; None if it cannot be read.

    Children that have ended are included in their parent's time, except on Windows, where the sum then drops.
    """
    try:
        process = psutil.Process(pid)
        total_s = sum(process.cpu_times()[:4])
        for child in _list_children(process):
            with suppress(psutil.NoSuchProcess):
                total_s += sum(psutil.Process(child).cpu_times()[:4])
    except psutil.Error:
        return None
    return float(total_s)


def _list_children(process: psutil.Process) -> list[int]:
    """Return the pids of all processes below one: on Linux by the kernel's lists, for psutil reads every process.

    Such a list may lack one while another one ends (proc(5)): the sum of their times then changes, as if it computed.
    """
    if not Path(f"/proc/{process.pid}/task/{process.pid}/children").exists():
        return [each.pid for each in process.children(recursive=True)]
    found: list[int] = []
    waiting = [process.pid]
    while waiting:
        with suppress(OSError):  # the process has ended
            for place in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
                with suppress(OSError):
                    children = [int(each) for each in place.read_bytes().split()]
                    found += children
                    waiting += children
    return found


def _format_duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"
