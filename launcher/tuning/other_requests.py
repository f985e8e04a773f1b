"""Detects requests of other clients during a measurement, by comparing the server's counters with our own replies."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from launcher.base.errors import LauncherError
from launcher.base.messages import message
from launcher.monitor.reply import Reply
from launcher.monitor.traffic import Counters

OTHER_REQUESTS_SEEN = message("The server got another request during the measurement.")

ReadCounters = Callable[[], Awaitable[Counters | None]]
"""Reads a server's counters; None if it has none. May raise LauncherError or ValueError."""


@dataclass(slots=True)
class OwnRequest:
    """One request of ours. The caller sets `reply`; `disturbed` is set if the server worked for others meanwhile."""

    reply: Reply | None = None
    disturbed: bool = False


class OtherRequests:
    """Compares the growth of a server's counters with the requests that we made.

    llama-server's token counters grow when a request ends, and its number of running requests is always current. So a
    reply counts as disturbed if, before or after it, the server works on more requests than ours, or if its counters
    grew by more tokens than our replies had. If several requests of ours overlap, tokens are compared at the end of the
    last one. A server without counters is never reported as disturbed.
    """

    def __init__(self, read: ReadCounters) -> None:
        self._read = read
        self._running = 0
        """Requests of ours that are running."""
        self._before: asyncio.Future[Counters | None] | None = None
        """Counters before the first of the requests that overlap."""
        self._prompt_n = self._predicted_n = 0
        """Tokens of our replies since then."""

    @asynccontextmanager
    async def observe_request(self) -> AsyncIterator[OwnRequest]:
        """Observe one request that the caller makes within the block, and set its `disturbed` at the end."""
        if not self._running:
            self._before = asyncio.ensure_future(self._read_counters())
            self._prompt_n = self._predicted_n = 0
        self._running += 1
        request = OwnRequest()
        try:
            before = await asyncio.shield(self._before) if self._before is not None else None
            yield request
        finally:
            self._running -= 1
            if not self._running and self._before is not None:
                self._before.cancel()  # still running if this task was cancelled while it waited
        if request.reply is not None and before is not None:
            request.disturbed = await self._is_disturbed(before, request.reply)

    async def _is_disturbed(self, before: Counters, reply: Reply) -> bool:
        if reply.timings is not None:
            self._prompt_n += reply.timings.prompt_n + reply.timings.cache_n
            self._predicted_n += reply.timings.predicted_n
        running = self._running
        after = await self._read_counters()
        if after is None:
            return False
        if before.processing + (before.waiting or 0) > 0 or after.processing > running:
            return True
        if running or reply.timings is None:
            return False
        prompt_n, predicted_n = after.prompt_n - before.prompt_n, after.predicted_n - before.predicted_n
        return prompt_n > self._prompt_n or predicted_n > self._predicted_n

    async def _read_counters(self) -> Counters | None:
        with suppress(LauncherError, ValueError):
            return await self._read()
        return None
