"""Restarts an engine before host memory is used up, if the user agreed to that; its streams go on in the next one."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from launcher.app import settings
from launcher.app.settings_declared import MEMORY_GUARD, VALUE_RESTART
from launcher.base.action import ActionKind
from launcher.base.errors import LauncherError
from launcher.base.messages import message
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.own_memory import private_mib
from launcher.engine.server.state import SERVING, Notice
from launcher.engine.server.supervisor import Supervisor
from launcher.monitor.health_event import FindingCode, FindingLevel

RESTARTED = "memory_guard"
"""Notice code: the engine was restarted because host memory was nearly used up."""
_LONGEST_DRAIN_S = 10.0
_log = logging.getLogger(__name__)


class GuardedSession(Protocol):
    """The part of a session that the guard uses."""

    @property
    def supervisor(self) -> Supervisor:
        """See ServerSession.supervisor."""

    async def start(self, options: ServeOptions, *, again: bool = False, drain_s: float = 0.0) -> None:
        """See ServerSession.start."""


class MemoryGuard:
    """Restarts a session's engine with the same settings when a finding says that host memory is nearly used up.

    `agreed` is the user's choice for this run; if None, the app setting decides. `notify` gets a Notice of each
    restart.
    """

    def __init__(self, session: GuardedSession, notify: Callable[[Notice], None], *, agreed: bool | None) -> None:
        self._session = session
        self._notify = notify
        self._agreed = agreed
        self._restarting: asyncio.Task[None] | None = None

    def note_findings(self, findings: Sequence[Mapping[str, Any]]) -> None:
        """Restart the engine if one of the open findings (as Finding.as_json) asks for it. Call it when they change."""
        if self._restarting is not None and not self._restarting.done():
            return
        for finding in findings:
            is_urgent = finding["code"] == FindingCode.HOST_MEMORY and finding["level"] == FindingLevel.WARNING
            if is_urgent and (finding["action"] or {}).get("kind") == ActionKind.RESTART:
                self._restarting = asyncio.create_task(self._restart_engine(finding["evidence"]))

    async def _restart_engine(self, evidence: Mapping[str, Any]) -> None:
        agreed = self._agreed
        if agreed is None:
            agreed = await asyncio.to_thread(_agreed_by_setting)
        if not agreed:
            return
        try:
            supervisor = self._session.supervisor
            pid, options = supervisor.engine_pid, supervisor.options
            before_mib = await asyncio.to_thread(private_mib, pid) if pid is not None else None
            if options is None or supervisor.is_changing or supervisor.status.state not in SERVING:
                return
            # Replies that cannot go on get a part of the time that is left.
            drain_s = min(_LONGEST_DRAIN_S, float(evidence["left_s"]) / 4)
            await self._session.start(options, again=True, drain_s=drain_s)
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
        self._notify(Notice(RESTARTED, text))


def _agreed_by_setting() -> bool:
    return settings.stored_value(MEMORY_GUARD) == VALUE_RESTART
