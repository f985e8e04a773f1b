"""What other programs of this user may ask of a server that this program runs, over its private line."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from launcher.base.action import Action
from launcher.base.control import Address, ControlServer
from launcher.base.errors import ActionImpossible, BadOption, LauncherError
from launcher.base.paths import runtime_dir
from launcher.engine.action import apply, changes_settings
from launcher.engine.launch import Launch, ServeOptions
from launcher.engine.settings import Value, changes_between, parse_settings, settings_of, with_settings
from launcher.engine.state import SERVING, Status
from launcher.engine.supervisor import Supervisor
from launcher.engine.way import Way
from launcher.preview import Previewer
from launcher.preview_basis import basis_of

_LOG_LINES = 200
_LINES_AT_ONCE = 4
"""In one message: the longest lines, with each character as \\uXXXX\\uXXXX, stay below the 1 MiB that control reads."""
_LOG_PERIOD_S = 0.2


class Controlled(Protocol):
    """The session that is asked."""

    @property
    def supervisor(self) -> Supervisor:
        """Its server."""

    async def start(
        self,
        options: ServeOptions,
        *,
        again: bool = False,
        drain_s: float = 0.0,
        chosen: Mapping[str, Value] | None = None,
    ) -> None:
        """See Session.start."""

    async def stop(self, *, drain_s: float = 0.0) -> None:
        """See Session.stop."""

    def way(self, action: Action) -> Way:
        """See Session.way."""


class RemoteControl:
    """The line of one session. Verbs: status; stop (drain_s); restart (set, drain_s); preview (set); logs."""

    def __init__(self, session: Controlled) -> None:
        self._session = session
        self._server = ControlServer(self._answer)
        self._work: set[asyncio.Future[None]] = set()

    async def listen(self, port: int) -> Address:
        """Begin to listen for the server on `port`. Raises OSError."""
        return await self._server.listen(runtime_dir(), f"control-{port}")

    async def close(self) -> None:
        """Listen no more."""
        await self._server.close()

    async def _answer(self, verb: str, fields: Mapping[str, Any]) -> AsyncIterator[Any]:
        match verb:
            case "status":
                yield status_of(self._session.supervisor)
            case "stop":
                async for each in self._follow(partial(self._session.stop, drain_s=_seconds(fields))):
                    yield each
                yield {"stopped": True}
            case "restart":
                async for each in self._restart(fields):
                    yield each
            case "preview":
                yield await self._preview(fields)
            case "logs":
                async for each in self._logs(fields):
                    yield each
            case _:
                raise BadOption(f"This server's program does not know {verb}.", "Is it an older version?", verb=verb)

    async def _preview(self, fields: Mapping[str, Any]) -> Mapping[str, object]:
        """Say what a restart with other settings would make of the server; nothing is changed."""
        supervisor, chosen = self._session.supervisor, _chosen(fields)
        launch = _launch_of(supervisor)
        basis = await basis_of(launch, engine_pid=supervisor.engine_pid, log=supervisor.log.last())
        told = await asyncio.to_thread(lambda: Previewer(basis).preview(chosen).as_json())
        return told | {"state": supervisor.status.state.value}

    async def _restart(self, fields: Mapping[str, Any]) -> AsyncIterator[Any]:
        supervisor, chosen = self._session.supervisor, _chosen(fields)
        launch = _launch_of(supervisor)
        options = with_settings(supervisor.options or launch.options, chosen)
        drain_s = _seconds(fields)
        starting = partial(self._session.start, options, again=True, drain_s=drain_s, chosen=chosen)
        try:
            async for each in self._follow(starting):
                yield each
        except LauncherError as error:
            offers = [self._offer(action, options, supervisor) for action in error.actions]
            error.facts = {**error.facts, "actions": offers}
            raise
        yield status_of(self._session.supervisor)

    def _offer(self, action: Action, tried: ServeOptions, supervisor: Supervisor) -> dict[str, object]:
        """Return an action on settings that failed, as JSON, with how it is done.

        While the server runs that is `set`, for another restart ({}: it runs so already), else a command or a link.
        """
        running, launch = supervisor.options, supervisor.launch
        rests = supervisor.status.state not in SERVING
        if rests or running is None or launch is None or not changes_settings(action):
            how = self._session.way(action)
            return action.as_json() | {"set": None, "command": how.command, "link": how.link}
        changes = None
        with suppress(ActionImpossible):
            changes = changes_between(running, apply(action, tried, context=launch.context))
        return action.as_json() | {"set": changes, "command": None, "link": None}

    async def _follow(self, work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[Any]:
        """Do the work, also when nobody listens any more, and yield the states on the way."""
        supervisor = self._session.supervisor
        doing = asyncio.ensure_future(work())
        self._work.add(doing)
        doing.add_done_callback(self._done)
        while not doing.done():
            change = asyncio.ensure_future(supervisor.wait_for_change())
            either: set[asyncio.Future[Any]] = {doing, change}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                change.cancel()
            if not doing.done():
                yield {"state": supervisor.status.state.value, "percent": supervisor.status.percent}
        await doing

    def _done(self, doing: "asyncio.Future[None]") -> None:
        self._work.discard(doing)
        if not doing.cancelled():
            doing.exception()  # nobody may be left to ask for it

    async def _logs(self, fields: Mapping[str, Any]) -> AsyncIterator[Any]:
        log = self._session.supervisor.log
        lines = fields.get("lines", _LOG_LINES)
        seen = log.added - max(0, lines if isinstance(lines, int) else _LOG_LINES)
        while True:
            new = log.since(seen)
            seen = log.added
            for begin in range(0, len(new), _LINES_AT_ONCE):
                yield {"lines": [[line.time_s, line.text] for line in new[begin : begin + _LINES_AT_ONCE]]}
            if not fields.get("follow"):
                return
            await asyncio.sleep(_LOG_PERIOD_S)


def status_of(supervisor: Supervisor) -> dict[str, object]:
    """Return what a server does now, as the line tells it."""
    status: Status = supervisor.status
    launch = supervisor.launch
    return {
        "state": status.state.value,
        "percent": status.percent,
        "error": str(status.error) if status.error else None,
        "pid": supervisor.engine_pid,
        "launcher_pid": os.getpid(),
        "engine_pid": supervisor.engine_pid,
        "url": supervisor.endpoint.url,
        "settings": settings_of(launch) if launch else {},
        "log": str(supervisor.log.path),
    }


def _chosen(fields: Mapping[str, Any]) -> dict[str, Value]:
    written = fields.get("set")
    return parse_settings(
        {str(name): str(value) for name, value in written.items()} if isinstance(written, dict) else {}
    )


def _launch_of(supervisor: Supervisor) -> Launch:
    if supervisor.launch is None:
        raise BadOption("The server has never run, so it cannot be restarted.", "Start it.")
    return supervisor.launch


def _seconds(fields: Mapping[str, Any]) -> float:
    seconds = fields.get("drain_s", 0.0)
    return max(0.0, float(seconds)) if isinstance(seconds, int | float) else 0.0
