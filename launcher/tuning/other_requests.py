"""Whether a server was asked by others while it was measured: its own counters beside what our replies say."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from launcher.base.errors import LauncherError
from launcher.monitor.reply import Reply
from launcher.monitor.traffic import Counters

ASKED = "The server was asked something else meanwhile."

Count = Callable[[], Awaitable[Counters | None]]
"""Reads a server's counters now; None where it has none. It may raise what reading raises."""


@dataclass(slots=True)
class Asking:
    """One request of ours: whoever asks it sets `reply`. `disturbed` is whether others were served meanwhile."""

    reply: Reply | None = None
    disturbed: bool = False


class OtherRequests:
    """Compares the growth of a server's counters with the requests of ours that it is told of.

    The counters of llama-server move when a request ends, and how many it works on is known at once. So before and
    after a reply it must work on none but ours, and have read and written no more tokens than our replies had. Where
    several of ours run at the same time, tokens are compared at the end of the last of them. Where no counters are
    told, nothing is.
    """

    def __init__(self, count: Count) -> None:
        self._count = count
        self._running = 0
        self._before: asyncio.Future[Counters | None] | None = None
        self._read = self._written = 0

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[Asking]:
        """Let a request be asked within the block; what came of it is known behind it."""
        if not self._running:
            self._before = asyncio.ensure_future(self._now())
            self._read = self._written = 0
        self._running += 1
        ours = Asking()
        try:
            before = await asyncio.shield(self._before) if self._before is not None else None
            yield ours
        finally:
            self._running -= 1
            if not self._running and self._before is not None:
                self._before.cancel()  # where this was cancelled while it was awaited
        if ours.reply is not None and before is not None:
            ours.disturbed = await self._disturbed(before, ours.reply)

    async def _disturbed(self, before: Counters, reply: Reply) -> bool:
        if reply.timings is not None:
            self._read += reply.timings.prompt_n + reply.timings.cache_n
            self._written += reply.timings.predicted_n
        running = self._running
        after = await self._now()
        if after is None:
            return False
        working = before.processing + (before.waiting or 0) > 0 or after.processing > running
        if running or reply.timings is None:
            return working
        read, written = after.prompt_n - before.prompt_n, after.predicted_n - before.predicted_n
        return working or read > self._read or written > self._written

    async def _now(self) -> Counters | None:
        with suppress(LauncherError, ValueError):
            return await self._count()
        return None
