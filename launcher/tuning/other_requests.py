"""Detects requests of others during a measurement, by comparing the server's counters with our own replies."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from launcher.base.errors import LauncherError
from launcher.base.messages import message
from launcher.monitor.reply import Reply
from launcher.monitor.traffic import Counters

OTHERS_ASKED = message("The server got another request during the measurement.")

ReadCounters = Callable[[], Awaitable[Counters | None]]
"""Reads a server's counters; None where it has none. May raise what reading them raises."""


@dataclass(slots=True)
class OwnRequest:
    """One request of ours. The caller sets `reply`; `disturbed` is set if others were served meanwhile."""

    reply: Reply | None = None
    disturbed: bool = False


class OtherRequests:
    """Compares the growth of a server's counters with the requests that we made.

    llama-server's token counters move when a request ends, and the number of running requests is always current. So
    before and after a reply the server must work only on our requests, and must have read and written no more tokens
    than our replies had. Where several requests of ours overlap, tokens are compared at the end of the last of them. A
    server without counters is never reported as disturbed.
    """

    def __init__(self, count: ReadCounters) -> None:
        self._count = count
        self._running = 0
        self._before: asyncio.Future[Counters | None] | None = None
        self._read = self._written = 0

    @asynccontextmanager
    async def observe(self) -> AsyncIterator[OwnRequest]:
        """Observe one request that the caller makes within the block.

        Its `disturbed` is set at the end of the block.
        """
        if not self._running:
            self._before = asyncio.ensure_future(self._read_counters())
            self._read = self._written = 0
        self._running += 1
        ours = OwnRequest()
        try:
            before = await asyncio.shield(self._before) if self._before is not None else None
            yield ours
        finally:
            self._running -= 1
            if not self._running and self._before is not None:
                self._before.cancel()  # if this was cancelled while waiting for it
        if ours.reply is not None and before is not None:
            ours.disturbed = await self._is_disturbed(before, ours.reply)

    async def _is_disturbed(self, before: Counters, reply: Reply) -> bool:
        if reply.timings is not None:
            self._read += reply.timings.prompt_n + reply.timings.cache_n
            self._written += reply.timings.predicted_n
        running = self._running
        after = await self._read_counters()
        if after is None:
            return False
        working = before.processing + (before.waiting or 0) > 0 or after.processing > running
        if running or reply.timings is None:
            return working
        read, written = after.prompt_n - before.prompt_n, after.predicted_n - before.predicted_n
        return working or read > self._read or written > self._written

    async def _read_counters(self) -> Counters | None:
        with suppress(LauncherError, ValueError):
            return await self._count()
        return None
