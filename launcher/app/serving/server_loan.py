"""Lends a running server to a measurement of another process, which uses it only while no client does.

See borrowed_session.py for the other end.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from launcher.base.codec import to_json
from launcher.base.errors import LauncherError, Superseded
from launcher.base.messages import message
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import SERVING

if TYPE_CHECKING:
    from launcher.app.serving.session import ServerSession

_DRAIN_S = 30.0
"""Seconds that a restart waits for clients' replies that cannot go on after it. There are few, because it begins while
no client asks."""


class ServerLoan:
    """A running server that is lent to a measurement until `end`, or until somebody else changes or stops it.

    The measurement restarts it by `start`; clients' streams go on in the new engine. Its requests have a key of their
    own, and end as soon as a client sends one. `end` restores the previous settings.
    """

    def __init__(self, session: "ServerSession") -> None:
        self._session = session
        self._previous = session.supervisor.options
        self._key = secrets.token_urlsafe(32)
        self._changed = asyncio.Event()
        self._changes_itself = self.is_over = False
        session.set_measurement_key(self._key)

    async def send_messages(self) -> AsyncGenerator[dict[str, Any]]:
        """Yield messages for the measurement until the loan is over.

        The first describes the server, each later one has the number of clients' requests that wait or run.
        """
        log, supervisor = self._session.request_log, self._session.supervisor
        with log.listening(lambda _: self._changed.set()), self._session.pause_traffic_reports():
            yield {
                "url": supervisor.endpoint.url,
                "api_key": self._key,
                "model_name": self._session.model_name,
                "options": to_json(self._previous.with_absolute_paths() if self._previous else None),
                "engine_pid": supervisor.engine_pid,
                "log": str(supervisor.log.path),
            }
            while not self.is_over:
                yield {"clients": log.count_states().total()}
                await self._changed.wait()
                self._changed.clear()

    async def start(self, options: ServeOptions) -> int | None:
        """Restart the server with other settings, and return the engine's process id. Raises what a start raises."""
        if self.is_over:
            raise Superseded(message("The server was stopped or restarted with other settings."))
        self._changes_itself = True
        await self._session.start(StartRequest(options, again=True, drain_s=_DRAIN_S))
        return self._session.supervisor.engine_pid

    def note_change(self) -> None:
        """Record that the server was started or stopped. The loan ends unless the measurement did it."""
        if self._changes_itself:
            self._changes_itself = False
        else:
            self._close()

    async def end(self, *, keep: bool = False) -> None:
        """End the loan, and restore the previous settings unless `keep`. A second call does nothing."""
        if self.is_over:
            return
        self._close()
        if keep or self._previous is None or not self._is_changed():
            return
        with suppress(LauncherError):  # the server's status shows the error
            await self._session.start(StartRequest(self._previous, drain_s=_DRAIN_S))

    def _is_changed(self) -> bool:
        """Return whether the server has other settings than before, or is being given some."""
        try:
            supervisor = self._session.supervisor
        except LauncherError:  # the server has ended
            return False
        return supervisor.is_changing or supervisor.status.state not in SERVING or supervisor.options != self._previous

    def _close(self) -> None:
        self.is_over = True
        self._session.set_measurement_key(None)
        self._changed.set()
