"""Restarts an engine before host memory is used up, if the user agreed to that; its streams go on afterwards."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.app import settings
from launcher.app.settings_declared import MEMORY_GUARD, VALUE_RESTART
from launcher.base.action import ActionKind
from launcher.base.codec import to_json
from launcher.base.errors import LauncherError
from launcher.base.messages import message
from launcher.engine.server.own_memory import private_mib
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import SERVING, Notice
from launcher.engine.server.supervisor import Supervisor
from launcher.monitor.failing_replies import FailingRepliesDetector
from launcher.monitor.health_event import Finding, FindingCode, FindingLevel, Latch, Moment, ServerSetup
from launcher.monitor.health_watch import lines_since_start
from launcher.monitor.host_memory import EngineCaches, HostMemoryDetector, read_host_memory

if TYPE_CHECKING:
    from launcher.app.serving.model_pool import ModelPool

GUARD_RESTARTED_ENGINE = "memory_guard"
"""Notice code: the engine was restarted because host memory was nearly used up."""
MODEL_FILLS_MEMORY, MODEL_FAILS = "host_memory", "replies_fail"
"""Notice codes: the engine of a model other than the main one has nearly used up host memory, or fails its requests."""
_LONGEST_DRAIN_S = 10.0
_PERIOD_S = 2.0
"""Seconds between two checks of the models other than the main one. The monitor checks the main one as often."""
_CLEAR_CHECKS = 15
_log = logging.getLogger(__name__)


class _WatchedModel:
    """A model whose engine's host memory and failed requests are watched, over its restarts."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._pid: int | None = None
        self._caches = EngineCaches()
        self._lines_read = 0
        self._latch: Latch | None = None
        self._failing = Latch(FailingRepliesDetector(), raise_checks=1, clear_checks=1)

    def check_replies(self, time_s: float) -> Finding | None:
        """Check for failed requests once. Return a finding that was raised, None if there is none."""
        event = self._failing.check_moment(Moment(time_s=time_s, failed_replies=self._supervisor.failed_replies))
        return None if event is None or event.cleared else event.finding

    async def check_memory(self, time_s: float, root: Path) -> Finding | None:
        """Check host memory once. Return a finding that was raised, None if there is none."""
        supervisor, pid = self._supervisor, self._supervisor.engine_pid
        if pid is None or supervisor.is_changing or supervisor.status.state not in SERVING:
            return None
        count = supervisor.log.line_count
        if self._latch is None or pid != self._pid:
            detector = HostMemoryDetector(ServerSetup(engine_pid=pid))
            self._pid, self._latch = pid, Latch(detector, raise_checks=1, clear_checks=_CLEAR_CHECKS)
            self._caches = EngineCaches()
            self._caches.add_lines(lines_since_start(supervisor.log.last_lines()))
        else:
            self._caches.add_lines(line.text for line in supervisor.log.lines_since(self._lines_read))
        self._lines_read = count
        slots = supervisor.launch.options.slots if supervisor.launch else 1
        readings = await asyncio.to_thread(read_host_memory, pid, root) | self._caches.make_readings(slots)
        event = self._latch.check_moment(Moment(time_s=time_s, readings=readings))
        return None if event is None or event.cleared else event.finding


class MemoryGuard:
    """Restarts a server's engines with the same settings when a finding says that host memory is nearly used up.

    The session's monitor finds that of the main model, `watch` that of the others; it also gives notice of those that
    fail their requests. `restart` starts an engine again. `agreed` is the user's choice for this run; if None, the app
    setting decides. `notify` gets a Notice of each restart, and of each finding of `watch`. `clock` returns monotonic
    seconds, `pause` waits from one check to the next.
    """

    def __init__(
        self,
        restart: Callable[[Supervisor, StartRequest], Awaitable[None]],
        notify: Callable[[Notice], None],
        *,
        agreed: bool | None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(_PERIOD_S),
    ) -> None:
        self._restart = restart
        self._notify = notify
        self._agreed = agreed
        self._clock = clock
        self._pause = pause
        self._watched: dict[str, _WatchedModel] = {}
        self._restarts: dict[Supervisor, asyncio.Task[None]] = {}
        """The restarts in progress."""

    async def watch(self, pool: "ModelPool", read_root: Callable[[], Path]) -> None:
        """Check the models beside the main one again and again, until cancelled. `read_root` returns the kernel's
        folder."""
        while True:
            while not pool.supervisors_beside:
                await pool.wait_for_change()
            await self.check_models(pool.supervisors_beside, read_root())
            await self._pause()

    async def check_models(self, supervisors: Mapping[str, Supervisor], root: Path) -> None:
        """Check each model, by its name, once."""
        self._watched = {name: watched for name, watched in self._watched.items() if name in supervisors}
        for name, supervisor in supervisors.items():
            watched = self._watched.setdefault(name, _WatchedModel(supervisor))
            filling = await watched.check_memory(self._clock(), root)
            failing = watched.check_replies(self._clock())
            if filling is not None:
                self.note_findings(supervisor, [to_json(filling)])
            for code, finding in ((MODEL_FILLS_MEMORY, filling), (MODEL_FAILS, failing)):
                if finding is not None:
                    self._notify(Notice(code, message("{model}: {finding}", model=name, finding=finding.sentence)))

    def note_findings(self, supervisor: Supervisor, findings: Sequence[Mapping[str, Any]]) -> None:
        """Restart an engine if one of its open findings (as JSON) asks for it. Call it when they change."""
        for finding in findings:
            is_urgent = finding["code"] == FindingCode.HOST_MEMORY and finding["level"] == FindingLevel.WARNING
            asks = is_urgent and (finding["action"] or {}).get("kind") == ActionKind.RESTART
            if asks and supervisor not in self._restarts:
                task = asyncio.create_task(self._restart_engine(supervisor, finding["evidence"]))
                self._restarts[supervisor] = task
                task.add_done_callback(lambda _: self._restarts.pop(supervisor, None))

    async def _restart_engine(self, supervisor: Supervisor, evidence: Mapping[str, Any]) -> None:
        agreed = self._agreed
        if agreed is None:
            agreed = await asyncio.to_thread(_agreed_by_setting)
        if not agreed:
            return
        try:
            pid, options = supervisor.engine_pid, supervisor.options
            before_mib = await asyncio.to_thread(private_mib, pid) if pid is not None else None
            if options is None or supervisor.is_changing or supervisor.status.state not in SERVING:
                return
            # Replies that cannot go on get a part of the time that is left.
            drain_s = min(_LONGEST_DRAIN_S, float(evidence["left_s"]) / 4)
            await self._restart(supervisor, StartRequest(options, again=True, drain_s=drain_s))
            pid = supervisor.engine_pid
            after_mib = await asyncio.to_thread(private_mib, pid) if pid is not None else None
        except LauncherError as error:
            _log.warning("The engine could not be restarted to free host memory: %s", error)
            return
        if before_mib is None or after_mib is None:
            text = message("Host memory was nearly used up: the engine was restarted.")
        else:
            text = message(
                "Host memory was nearly used up: the engine was restarted, which freed {freed:,} MiB.",
                freed=max(0, before_mib - after_mib),
            )
        self._notify(Notice(GUARD_RESTARTED_ENGINE, text))


def _agreed_by_setting() -> bool:
    return settings.stored_value(MEMORY_GUARD) == VALUE_RESTART
