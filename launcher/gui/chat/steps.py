"""Verification steps of a reply: which characters are from drafts, and from which position in them."""

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.engine.server.client import Timings

_LAST_POSITION = 255
_FIGURE_NAME = "draft_steps"
_STORED_STEP = re.compile(r"\d{1,9}(?:\+\d{1,9})*")


class VerificationSteps:
    """The tokens of one reply, each with its position in a draft.

    Events with the same counters and time are the tokens of one step: the accepted drafts, and after them the model's
    own token (see launcher.monitor.meter).
    """

    def __init__(self) -> None:
        self._starts = array("L")
        """Offset of each token's first character."""
        self._positions = array("B")
        """Position of each token in its draft, from 1; 0 for the model's own tokens."""
        self._length = 0
        """Characters of all tokens."""
        self._step_tokens = 0
        """Tokens of the last step so far."""
        self._last_counters: tuple[float, int | None] | None = None
        """Time and counter of the last event."""

    def add_token(self, characters: int, timings: "Timings | None") -> None:
        """Add a token with this many characters. Without timings they belong to the previous token."""
        if timings is not None or not self._starts:
            counters = None if timings is None else (timings.predicted_ms, timings.draft_n)
            if self._starts and counters == self._last_counters:
                # The token before this one was not the last of its step, as was assumed.
                self._positions[-1] = min(self._step_tokens, _LAST_POSITION)
            else:
                self._step_tokens = 0
            self._begin_token()
            self._last_counters = counters
        self._length += characters

    @property
    def counts(self) -> tuple[int, int]:
        """The number of tokens that were accepted from drafts, and of all tokens."""
        return len(self._positions) - self._positions.count(0), len(self._positions)

    @property
    def last_position(self) -> int:
        """The last position in a draft of which a token was accepted, 0 for none."""
        return max(self._positions, default=0)

    def as_figures(self) -> dict[str, str]:
        """Return the steps as stored with a reply: the characters of each step's tokens, such as "4+6+3 5 2+4"."""
        if not self.last_position:
            return {}
        ends = (*self._starts[1:], self._length)
        lengths = (end - start for start, end in zip(self._starts, ends, strict=True))
        words = (
            f"{length}{'+' if position else ' '}" for length, position in zip(lengths, self._positions, strict=True)
        )
        return {_FIGURE_NAME: "".join(words).strip()}

    def restore_steps(self, characters: int, figures: Mapping[str, object]) -> None:
        """Restore the stored steps of a text with this many characters.

        Missing or inconsistent data becomes one token of the model itself.
        """
        stored = figures.get(_FIGURE_NAME)
        words = stored.split() if isinstance(stored, str) else []
        steps = [list(map(int, word.split("+"))) for word in words if _STORED_STEP.fullmatch(word)]
        if len(steps) != len(words) or sum(map(sum, steps)) != characters:
            steps = [[characters]]
        for step in steps:
            self._step_tokens = 0
            for number, length in enumerate(step, 1):
                self._begin_token()
                self._positions[-1] = min(number, _LAST_POSITION) if number < len(step) else 0
                self._length += length

    def split_by_position(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield (begin, end, position) for the characters between two offsets.

        The position is that in the draft, from 1, or 0 for what the model itself generated.
        """
        token = max(0, bisect_right(self._starts, begin) - 1)
        while begin < end:
            position = self._positions[token] if token < len(self._positions) else 0
            token += 1
            while position == 0 and token < len(self._positions) and self._positions[token] == 0:
                token += 1
            token_end = min(self._starts[token] if token < len(self._starts) else end, end)
            if token_end > begin:
                yield begin, token_end, position
                begin = token_end

    def _begin_token(self) -> None:
        self._starts.append(self._length)
        self._positions.append(0)
        self._step_tokens += 1
