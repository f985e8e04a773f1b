"""Tokens/s and draft acceptance of replies, from the engine's timings."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.engine.server.client import Timings

_WINDOW_MS = 1_000.0
_WINDOW_S, _LEAST_S = 1.0, 0.2
"""Seconds over which a rate is measured, at most and at least."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Drafted and accepted tokens, in total and by position in the draft (first drafted token first)."""

    drafted: int
    accepted: int
    drafted_by_position: tuple[int, ...]
    accepted_by_position: tuple[int, ...]

    @property
    def rate(self) -> float | None:
        """Draft acceptance: accepted / drafted tokens, from 0 to 1; None without a draft."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def rates_by_position(self) -> tuple[float, ...]:
        """Accepted / drafted tokens by position, from 0 to 1."""
        pairs = zip(self.accepted_by_position, self.drafted_by_position, strict=True)
        return tuple(accepted / drafted for accepted, drafted in pairs)

    @property
    def mean_length(self) -> float | None:
        """Mean tokens per verification step: its accepted drafts and the model's own token. None without a draft."""
        steps = self.drafted_by_position[0] if self.drafted_by_position else 0
        return 1 + self.accepted / steps if steps else None


class TrafficMeter:
    """Measures the rate of all streams that pass through the gateway, from the growing count of their parts."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()
        """The times and counts at which the count has changed; the first entry is the count from which they grow."""

    def reset(self) -> None:
        """Forget what was counted, because another engine goes on."""
        self._counts.clear()

    def add(self, now_s: float, parts: int) -> None:
        """Add the count at a time, which is in seconds of any clock."""
        if self._counts and now_s - self._counts[-1][0] > _WINDOW_S:  # a pause: measure anew
            self._counts.clear()
        if self._counts and parts == self._counts[-1][1]:
            if len(self._counts) == 1:  # the wait before a stream's first part does not count
                self._counts[0] = now_s, parts
            return
        self._counts.append((now_s, parts))
        while len(self._counts) > 2 and self._counts[1][0] < now_s - _WINDOW_S:
            self._counts.popleft()

    def rate_at(self, now_s: float) -> float | None:
        """Return the rate over a second, or since the first stream began if that is shorter. None if nothing comes."""
        if len(self._counts) < 2 or now_s - self._counts[-1][0] > _WINDOW_S:
            return None
        (began_s, before), (ended_s, parts) = self._counts[0], self._counts[-1]
        return (parts - before) / (ended_s - began_s) if ended_s - began_s >= _LEAST_S else None


class ReplyMeter:
    """Measures one streamed reply from the timings in its events.

    Events with the same draft counters and the same time are the tokens of one verification step. The growth of the
    counters between steps gives the drafted and accepted tokens by position.
    """

    def __init__(self) -> None:
        self.last: Timings | None = None
        self._window: deque[tuple[int, float]] = deque()
        self._drafted: list[int] = []
        self._accepted: list[int] = []

    def add(self, timings: Timings) -> None:
        """Add the timings of one event."""
        before = self.last
        self.last = timings
        if before is not None and timings.predicted_ms < before.predicted_ms:  # another engine goes on with the reply
            before = None
            self._window.clear()
        tokens_at = (timings.predicted_n, timings.predicted_ms)
        if before is not None and timings.predicted_ms == before.predicted_ms:
            if self._window:
                self._window[-1] = tokens_at
            return
        if timings.predicted_n:  # the engine's clock starts with the first token
            self._window.append(tokens_at)
        while len(self._window) > 2 and self._window[1][1] < timings.predicted_ms - _WINDOW_MS:
            self._window.popleft()
        drafted, accepted = timings.draft_n or 0, timings.draft_n_accepted or 0
        if before is not None:
            drafted, accepted = drafted - (before.draft_n or 0), accepted - (before.draft_n_accepted or 0)
        _count_positions(self._drafted, drafted)
        _count_positions(self._accepted, accepted)

    @property
    def tokens_per_second(self) -> float | None:
        """Rate over the last second of the engine's clock, or over the whole reply if shorter. None if unknown."""
        if self.last is None:
            return None
        average = self.last.tokens_per_second
        if average is None or len(self._window) < 2:
            return average
        (first_n, first_ms), (last_n, last_ms) = self._window[0], self._window[-1]
        if last_ms <= first_ms:
            return average
        return 1_000.0 * (last_n - first_n) / (last_ms - first_ms)

    @property
    def acceptance(self) -> Acceptance:
        """Draft acceptance of this reply so far."""
        accepted = self._accepted + [0] * (len(self._drafted) - len(self._accepted))
        return Acceptance(
            drafted=(self.last.draft_n if self.last else None) or 0,
            accepted=(self.last.draft_n_accepted if self.last else None) or 0,
            drafted_by_position=tuple(self._drafted),
            accepted_by_position=tuple(accepted[: len(self._drafted)]),
        )


def sum_acceptance(parts: Sequence[Acceptance]) -> Acceptance:
    """Add up the drafts of several replies."""
    return Acceptance(
        drafted=sum(part.drafted for part in parts),
        accepted=sum(part.accepted for part in parts),
        drafted_by_position=_add_rows([part.drafted_by_position for part in parts]),
        accepted_by_position=_add_rows([part.accepted_by_position for part in parts]),
    )


def _count_positions(positions: list[int], tokens: int) -> None:
    """Add 1 to each of the first `tokens` positions."""
    while len(positions) < tokens:
        positions.append(0)
    for position in range(tokens):
        positions[position] += 1


def _add_rows(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the sums by position of rows of different lengths."""
    length = max(map(len, rows), default=0)
    return tuple(sum(row[i] for row in rows if i < len(row)) for i in range(length))
