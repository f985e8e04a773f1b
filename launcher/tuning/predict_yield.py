"""Tokens that a step yields, prompt by prompt, with what is not known about them: draws from the likely rates."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from launcher.tuning.predict import Positions, added, positions
from launcher.tuning.records import Run, Settings, Value
from launcher.tuning.space import Space, draft_of

Array = NDArray[np.float64]
DraftingKey = tuple[Value, ...]

_TEXT = 2.0
"""Steps of one reply are alike: they tell as much as half as many that are not."""
_SHARED, _NEXT = 30.0, 8.0
"""Steps' worth of belief that a prompt is like the others, and a position like the one before."""
_UNSEEN = 0.04
"""Standard deviation of the yield's logarithm at drafting settings that were not tried, from that where they were."""


class Yields:
    """Acceptance by position of each prompt, at each combination of the settings that concern drafts."""

    def __init__(self, space: Space, prompts: Sequence[str]) -> None:
        self._names = [axis.name for axis in space.axes if axis.drafting]
        self._home = tuple(space.baseline[name] for name in self._names)
        self._longest = space.drafts[-1]
        self._prompts = list(prompts)
        self._counts: dict[tuple[DraftingKey, str], list[Positions]] = {}
        self._beyond: dict[DraftingKey, tuple[int, int]] = {}

    def drafting(self, settings: Settings) -> DraftingKey:
        """Return the values of the settings that concern drafts."""
        return tuple(settings[name] for name in self._names)

    def add(self, runs: Sequence[Run]) -> None:
        """Take in what runs with drafts tell."""
        for run in runs:
            if run.counts and run.steps and draft_of(run.settings):
                which, counts = self.drafting(run.settings), positions(run.steps, run.acceptance)
                self._counts.setdefault((which, run.prompt), []).append(counts)
                tokens, steps = self._beyond.get(which, (0, 0))
                longer = sum(counts.accepted[draft_of(run.settings) :])  # an n-gram draft has a length of its own
                self._beyond[which] = (tokens + longer, steps + run.steps)

    def draw(self, dice: np.random.Generator, times: int, keys: Sequence[DraftingKey]) -> Mapping[DraftingKey, Array]:
        """Return logarithms of tokens per step by drafting settings: draws, prompts, draft lengths from 0."""
        home = self._chain(dice, times, self._home, None)
        found = {}
        for which in keys:
            chain = home if which == self._home else self._chain(dice, times, which, home.mean(axis=(0, 1)))
            survival = np.cumprod(chain, axis=2)
            ones = np.ones((times, len(self._prompts), 1))
            tokens, steps = self._beyond.get(which, (0, 1))
            yielded = 1 + np.cumsum(survival, axis=2) + tokens / steps
            logs = np.log(np.concatenate([ones, yielded], axis=2))
            if not any(place == which for place, _ in self._counts):
                unseen = dice.normal(0, _UNSEEN, (times, 1, 1)) * (np.arange(self._longest + 1) > 0)
                logs = logs + unseen
            found[which] = logs
        return found

    def _chain(self, dice: np.random.Generator, times: int, which: DraftingKey, before: Array | None) -> Array:
        """Return draws of a1, a2, ... for each prompt: beta distributions that lean on the other prompts."""
        own = [added(self._counts.get((which, prompt), ())) for prompt in self._prompts]
        chances, hits = (_padded([getattr(part, name) for part in own], self._longest) for name in _FIELDS)
        chances, hits = chances / _TEXT, hits / _TEXT
        shared = np.empty(self._longest)
        last = 0.7
        for i in range(self._longest):
            expected = last if before is None else before[i]
            weight = _NEXT if before is None else _SHARED
            last = shared[i] = (hits[:, i].sum() + weight * expected) / (chances[:, i].sum() + weight)
        lean = _SHARED / _TEXT
        a, b = hits + lean * shared, chances - hits + lean * (1 - shared)
        return dice.beta(np.maximum(a, 1e-3), np.maximum(b, 1e-3), (times, *a.shape))


_FIELDS = ("chances", "accepted")


def _padded(rows: Sequence[Sequence[int]], length: int) -> Array:
    table = np.zeros((len(rows), length))
    for i, row in enumerate(rows):
        table[i, : min(len(row), length)] = row[:length]
    return table
