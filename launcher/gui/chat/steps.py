"""Verification steps of a reply: which characters arrived in the same step."""

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.engine.server.client import Timings

_MOST_TOKENS = 255
_FIGURE_NAME = "draft_steps"
_STORED_STEP = re.compile(r"(\d{1,9})(?:x(\d{1,3}))?")


class VerificationSteps:
    """The verification steps of one reply.

    Events with the same counters and time are the tokens of one step: the accepted drafts and the model's own token
    (see launcher.monitor.meter).
    """

    def __init__(self) -> None:
        self._starts = array("L")
        """Offset of each step's first character."""
        self._tokens = array("B")
        """Tokens of each step."""
        self._length = 0
        """Characters of all steps."""
        self._last_counters: tuple[float, int | None] | None = None
        """Time and counter of the last event with timings."""

    def add_token(self, characters: int, timings: "Timings | None") -> None:
        """Add a token with this many characters. Without timings it belongs to the previous step."""
        counters = self._last_counters if timings is None else (timings.predicted_ms, timings.draft_n)
        if not self._starts or counters != self._last_counters:
            self._starts.append(self._length)
            self._tokens.append(0)
        if self._tokens[-1] < _MOST_TOKENS:
            self._tokens[-1] += 1
        self._last_counters = counters
        self._length += characters

    def as_figures(self) -> dict[str, str]:
        """Return the steps as stored with a reply: the characters of each step, with xN if it yielded N tokens."""
        if not any(tokens > 1 for tokens in self._tokens):
            return {}
        ends = (*self._starts[1:], self._length)
        lengths = (end - start for start, end in zip(self._starts, ends, strict=True))
        steps = zip(lengths, self._tokens, strict=True)
        return {_FIGURE_NAME: " ".join(f"{length}x{tokens}" if tokens > 1 else f"{length}" for length, tokens in steps)}

    def restore_steps(self, characters: int, figures: Mapping[str, object]) -> None:
        """Restore the stored steps of a text with this many characters.

        Missing or inconsistent data becomes one step of one token.
        """
        stored = figures.get(_FIGURE_NAME)
        matches = [_STORED_STEP.fullmatch(word) for word in stored.split()] if isinstance(stored, str) else []
        steps = [(int(each[1]), int(each[2] or 1)) for each in matches if each is not None]
        if sum(length for length, _ in steps) != characters:
            steps = [(characters, 1)]
        for length, tokens in steps:
            self._starts.append(self._length)
            self._tokens.append(min(tokens, _MOST_TOKENS))
            self._length += length

    def split_by_tint(self, begin: int, end: int) -> Iterator[tuple[int, int, int | None]]:
        """Yield (begin, end, tint) for the characters between two offsets.

        The tint is the step's number modulo 2, or None if the step yielded a single token.
        """
        step = max(0, bisect_right(self._starts, begin) - 1)
        while begin < end:
            next_start = self._starts[step + 1] if step + 1 < len(self._starts) else end
            step_end = min(next_start, end)
            has_drafts = step < len(self._tokens) and self._tokens[step] > 1
            if step_end > begin:
                yield begin, step_end, step % 2 if has_drafts else None
            begin = max(begin, step_end)
            step += 1
