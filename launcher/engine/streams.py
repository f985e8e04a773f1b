"""The replies of one server that are being read: when each last said something, and their end when the server ends."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from launcher.base.errors import Unreachable
from launcher.engine.client import ChatRequest, Delta, EngineClient


class Streams:
    """Our own open replies. `now_s` gives the time in seconds, `changed` is called when one begins or ends.

    `left` is set while there are none.
    """

    def __init__(self, now_s: Callable[[], float], changed: Callable[[], None]) -> None:
        self._now_s = now_s
        self._changed = changed
        self._heard_s: dict[asyncio.Timeout, float] = {}
        self.left = asyncio.Event()
        self.left.set()

    def __len__(self) -> int:
        return len(self._heard_s)

    @property
    def quiet_since(self) -> float | None:
        """When the one that has been silent for longest last said something, None without one."""
        return min(self._heard_s.values(), default=None)

    @asynccontextmanager
    async def read(self, client: EngineClient, request: ChatRequest) -> AsyncIterator[AsyncIterator[Delta]]:
        """Stream a reply: see EngineClient.chat. `cut` ends the stream with Unreachable."""
        scope = asyncio.timeout(None)
        self._heard_s[scope] = self._now_s()
        self.left.clear()
        self._changed()
        try:
            async with scope, client.chat(request) as deltas:
                yield self._heard(scope, deltas)
        except TimeoutError:
            if not scope.expired():  # it is the reader's own
                raise
            raise Unreachable("The server was stopped while it answered.") from None
        finally:
            del self._heard_s[scope]
            if not self._heard_s:
                self.left.set()
            self._changed()

    def cut(self) -> None:
        """End them all."""
        for scope in self._heard_s:
            with suppress(RuntimeError):  # it is being left already
                scope.reschedule(0)

    async def _heard(self, scope: asyncio.Timeout, deltas: AsyncIterator[Delta]) -> AsyncIterator[Delta]:
        async for delta in deltas:
            if scope in self._heard_s:
                self._heard_s[scope] = self._now_s()
            yield delta
