"""Which characters of a reply came in one verification step."""

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.engine.client import Timings

_MOST_COUNTED = 255


class Steps:
    """The steps of one reply. Events that carry the same counters and the same time are the tokens of one step: the
    accepted drafts and the model's own (see launcher.monitor.meter)."""

    def __init__(self) -> None:
        self._starts = array("L")
        self._tokens = array("B")
        self._length = 0
        self._last: tuple[float, int | None] | None = None

    def add(self, characters: int, timings: "Timings | None") -> None:
        """Take in a token of so many characters; without timings it belongs to the step before."""
        moment = self._last if timings is None else (timings.predicted_ms, timings.draft_n)
        if not self._starts or moment != self._last:
            self._starts.append(self._length)
            self._tokens.append(0)
        if self._tokens[-1] < _MOST_COUNTED:
            self._tokens[-1] += 1
        self._last = moment
        self._length += characters

    def tints(self, begin: int, end: int) -> Iterator[tuple[int, int, int | None]]:
        """Yield stretches between two characters with the tint of each: 0 and 1 in turn for the steps that yielded more
        than one token, None for those that yielded one."""
        at = max(0, bisect_right(self._starts, begin) - 1)
        while begin < end:
            after = self._starts[at + 1] if at + 1 < len(self._starts) else end
            to = min(after, end)
            several = at < len(self._tokens) and self._tokens[at] > 1
            if to > begin:
                yield begin, to, at % 2 if several else None
            begin = max(begin, to)
            at += 1
