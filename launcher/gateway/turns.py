"""Turns in the engine: at most as many requests at once as it has slots, the others wait in order."""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from launcher.gateway.access import Refusal

MOST_WAITING = 256
"""Requests that may wait at once; one more is refused."""


class TurnRecalled(Exception):
    """The request has to wait for its model to be loaded again before it waits for a turn."""


class Turns:
    """Gives out turns, in the order in which they are asked for.

    So the engine itself never queues a request. In a handover, a queued request could take a slot after the slot's
    reply was cut and before the slot is saved. While `limit` is 0, as before the engine is ready and during a handover,
    all requests wait.
    """

    def __init__(self) -> None:
        self._limit = 0
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._refused: str | None = None

    @property
    def limit(self) -> int:
        """The number of requests that may have a turn at once."""
        return self._limit

    def set_limit(self, limit: int) -> None:
        """Change the limit. Turns that were given stay. Requests are taken again after `refuse_all`."""
        self._limit = limit
        self._refused = None
        self._give_turns()

    def refuse_all(self, reason: str) -> None:
        """Refuse all that wait and all that come, until `set_limit`."""
        self._limit, self._refused = 0, reason
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(_refuse(reason))

    def recall_waiting(self) -> None:
        """Raise TurnRecalled for all that wait."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(TurnRecalled())

    def take_free_turn(self) -> bool:
        """Take a turn if one is free; return whether it was."""
        is_free = self._taken < self._limit and not self._waiting
        self._taken += is_free
        return is_free

    async def take_turn(self, *, first: bool = False) -> None:
        """Wait for a turn; with `first` before all others. Raises Refusal if too many wait, and TurnRecalled."""
        if self._refused is not None:
            raise _refuse(self._refused)
        if len(self._waiting) >= MOST_WAITING and not first:
            raise refuse_waiting()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if first:
            self._waiting.appendleft(turn)
        else:
            self._waiting.append(turn)
        self._give_turns()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.end_turn()
            with suppress(ValueError):
                self._waiting.remove(turn)
            raise

    def end_turn(self) -> None:
        """Give a turn back."""
        self._taken -= 1
        self._give_turns()

    @contextmanager
    def lend_turn(self) -> Iterator[None]:
        """Leave a turn to another request. After that there may be one too many, so give it back at once."""
        self.end_turn()
        try:
            yield
        finally:
            self._taken += 1

    def _give_turns(self) -> None:
        while self._waiting and self._taken < self._limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)


def refuse_waiting() -> Refusal:
    """Return the refusal of a request when too many wait."""
    return _refuse("Too many requests wait for this server")


def _refuse(reason: str) -> Refusal:
    return Refusal(503, reason)
