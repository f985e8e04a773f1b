"""Which characters of a reply came in one verification step."""

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.engine.client import Timings

_MOST_COUNTED = 255
_FIGURE = "draft_steps"
_KEPT = re.compile(r"(\d{1,9})(?:x(\d{1,3}))?")


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

    def figures(self) -> dict[str, str]:
        """Return them as they are kept with a reply: of each step its characters, and xN where it yielded N tokens."""
        if not any(tokens > 1 for tokens in self._tokens):
            return {}
        ends = (*self._starts[1:], self._length)
        lengths = (end - start for start, end in zip(self._starts, ends, strict=True))
        steps = zip(lengths, self._tokens, strict=True)
        return {_FIGURE: " ".join(f"{length}x{tokens}" if tokens > 1 else f"{length}" for length, tokens in steps)}

    def recall(self, characters: int, figures: Mapping[str, object]) -> None:
        """Take over the steps of so many characters that were kept; as one step where they are not known, or do not
        fit, for a file may hold anything."""
        kept = figures.get(_FIGURE)
        found = [_KEPT.fullmatch(word) for word in kept.split()] if isinstance(kept, str) else []
        steps = [(int(each[1]), int(each[2] or 1)) for each in found if each is not None]
        if sum(length for length, _ in steps) != characters:
            steps = [(characters, 1)]
        for length, tokens in steps:
            self._starts.append(self._length)
            self._tokens.append(min(tokens, _MOST_COUNTED))
            self._length += length

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
