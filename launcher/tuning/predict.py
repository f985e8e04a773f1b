"""Prediction of tokens per verification step at every draft length, from the acceptance by position at a few.

A verification step with n drafted tokens yields the model's own token and the accepted drafts, which end at the first
rejected one. Whether the draft in position i is accepted does not depend on how many follow it, so measuring one long
draft length also covers all shorter ones:

    tokens per step(n) = 1 + a1 + a1 a2 + ... + a1 a2 ... an,     a_i: accepted, given that all before it were

(the expected accepted length of speculative decoding, Leviathan et al. 2023, with a rate for each position). Tokens per
second are that over the time of a step, which grows with n by one pass of the draft head and one more token to verify:
see Surface.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launcher.monitor.meter import Acceptance
from launcher.tuning.records import Run, Settings, Value
from launcher.tuning.space import Key, Space, SpaceAxis, draft_of, settings_key

_FEWEST = 30
"""Least drafts in a position for a rate of its own; with fewer, the rate of the position before is used."""


@dataclass(frozen=True, slots=True)
class PositionCounts:
    """Counts by position: how often a draft could be accepted because all before it were, and how often it was."""

    chances: tuple[int, ...]
    accepted: tuple[int, ...]


def count_positions(steps: int, acceptance: Acceptance | None) -> PositionCounts:
    """Return the counts of one run with the given number of verification steps.

    A step that drafts nothing (p-min) or less than others counts as one that accepts no more: predicted is the yield of
    steps as the engine makes them.
    """
    accepted = acceptance.accepted_by_position if acceptance else ()
    return PositionCounts((steps, *accepted)[: len(accepted)], accepted)


def add_counts(parts: Iterable[PositionCounts]) -> PositionCounts:
    """Add up the counts of several runs, which may have different draft lengths."""
    chances: list[int] = []
    accepted: list[int] = []
    for part in parts:
        grow = max(0, len(part.chances) - len(chances))
        chances += [0] * grow
        accepted += [0] * grow
        for i, (chance, hit) in enumerate(zip(part.chances, part.accepted, strict=True)):
            chances[i] += chance
            accepted[i] += hit
    return PositionCounts(tuple(chances), tuple(accepted))


def acceptance_rates(counts: PositionCounts, length: int) -> tuple[float, ...]:
    """Return a1 ... an. A position with too few drafts gets the rate of the last one with enough; () without any."""
    found: list[float] = []
    for chance, hit in zip(counts.chances[:length], counts.accepted, strict=False):
        if chance < _FEWEST and found:
            break
        if not chance:
            return ()
        found.append(hit / chance)
    return tuple(found + [found[-1]] * (length - len(found))) if found else ()


def tokens_per_step(chain: Sequence[float], draft: int) -> float:
    """Return the tokens per step at a draft length, from the rates a1, a2, ..."""
    yielded, all_so_far = 1.0, 1.0
    for rate in chain[:draft]:
        all_so_far *= rate
        yielded += all_so_far
    return yielded


# Cost of a step at every setting of a space, from a few measured ones: Bayesian linear regression with drift.
#
# The logarithm of the cost is a sum of effects: of MTP, of the draft length (a line and a bend), of each other setting,
# smaller interactions of these with MTP, with the draft length and with each other, and a separate one for each
# measured setting. Each effect has a normal prior of mean 0 whose spread is typical of such effects on real machines.
# Measurements also have noise within a start, noise between starts, and a drift in time whose values are more alike the
# nearer they are. (Equivalent: a Gaussian process with additive kernels, Rasmussen and Williams 2006, chapter 2.)
#
# It only chooses what to measure next. No claim rests on it.

Array = NDArray[np.float64]

_LEVEL, _MTP, _LINE, _CURVE, _BEND = 1.0, 0.4, 0.05, 0.3, 0.02
"""Standard deviations of effects on the logarithm of the cost.

In order: overall level, MTP, draft length (linear in the logarithm), draft length (linear in the time itself, so curved
in the logarithm), and draft length in any other way.
"""
_STEEP = 0.3
"""A draft token's share of a step's time along that curve."""
_AXIS, _AXIS_MTP, _AXIS_LINE, _AXIS_AXIS, _OWN = 0.08, 0.03, 0.015, 0.01, 0.003
"""Standard deviations of a setting's effect and its interactions.

In order: the effect, its change with MTP, with a draft token more and with another setting, and the separate effect of
each measured point.
"""
_DRIFT, _DRIFT_S = 0.015, 400.0
"""Standard deviation of the drift, and the seconds over which it loses its correlation."""
_ALIKE = 0.6
"""Share of a setting's effect that varies smoothly along its values."""
_REACH = 0.5
"""Length scale of that smoothness, as a share of the axis."""


@dataclass(frozen=True, slots=True)
class CostPoint:
    """Result of one trial: the logarithm of the cost, its variance, and the time of the measurement in seconds."""

    settings: Settings
    log_cost: float
    variance: float
    at_s: float


class CostSurface:
    """Cost over a grid of settings."""

    def __init__(self, space: Space, grid: Sequence[Settings]) -> None:
        self._index: dict[Key, int] = {settings_key(settings): i for i, settings in enumerate(grid)}
        self._features = _design_matrix(space, grid)

    def fit(self, points: Sequence[CostPoint]) -> "CostPosterior":
        """Return the posterior for every setting of the grid, given the measured points."""
        visited: dict[int, int] = {}
        where = np.array([self._index[settings_key(point.settings)] for point in points])
        for i in where:
            visited.setdefault(int(i), len(visited))
        plain = self._features.shape[1]
        features = np.zeros((len(self._features), plain + len(visited)))
        features[:, :plain] = self._features
        for i, column in visited.items():
            features[i, plain + column] = _OWN
        logs = np.array([point.log_cost for point in points])
        times = np.array([point.at_s for point in points])
        drift = _DRIFT**2 * np.exp(-np.abs(times[:, None] - times[None, :]) / _DRIFT_S)
        noise = drift + np.diag([point.variance for point in points])
        centre = float(logs.mean())
        here = features[where]
        weighted = np.linalg.solve(noise, here)
        precision = np.eye(features.shape[1]) + here.T @ weighted
        root = np.linalg.cholesky(precision)
        mean = np.linalg.solve(precision, weighted.T @ (logs - centre))
        return CostPosterior(features, centre, mean, root)


@dataclass(frozen=True, slots=True)
class CostPosterior:
    """Cost at each setting of the grid, as logarithms without drift."""

    _features: Array
    _centre: float
    _mean: Array
    _root: Array

    @property
    def mean(self) -> Array:
        """The expected values."""
        return self._centre + self._features @ self._mean

    def draw(self, dice: np.random.Generator, times: int) -> Array:
        """Return random draws of the whole surface, one in each row."""
        normal = dice.standard_normal((len(self._mean), times))
        weights = self._mean[:, None] + np.linalg.solve(self._root.T, normal)
        return np.asarray(self._centre + (self._features @ weights).T)


def _design_matrix(space: Space, grid: Sequence[Settings]) -> Array:
    """Return the design matrix; the weights of its columns have a standard normal prior."""
    draft = np.array([draft_of(settings) for settings in grid], dtype=float)
    on = draft > 0
    line = np.where(on, draft - space.drafts[0], 0.0)[:, None]
    lengths = {length: i for i, length in enumerate(space.drafts)}
    bend = np.zeros((len(grid), len(lengths)))
    root = _covariance_root(len(lengths), alike=_ALIKE)
    for row, length in enumerate(draft):
        if length:
            bend[row] = root[lengths[int(length)]]
    columns: list[Array] = [np.full((len(grid), 1), _LEVEL), np.asarray(_MTP * on[:, None]), _LINE * line]
    columns += [_CURVE * np.log1p(_STEEP * line), _BEND * bend]
    effects = [_axis_effect(axis, space, grid, on) for axis in space.axes]
    steps = max(space.drafts[-1] - space.drafts[0], 1)
    for i, effect in enumerate(effects):
        columns += [_AXIS * effect, _AXIS_LINE * effect * line / min(steps, 3)]
        if not space.axes[i].drafting:
            columns.append(_AXIS_MTP * effect * on[:, None])
        for other in effects[:i]:
            both = effect[:, :, None] * other[:, None, :]
            columns.append(_AXIS_AXIS * both.reshape(len(grid), -1))
    return np.concatenate(columns, axis=1)


def _axis_effect(axis: SpaceAxis, space: Space, grid: Sequence[Settings], on: NDArray[np.bool_]) -> Array:
    """Return an axis's effect as columns: 0 at the baseline's value, and without drafts for a `drafting` axis."""
    root = _covariance_root(len(axis.values), alike=_ALIKE)
    root = root - root[axis.values.index(space.baseline[axis.name])]
    chosen: list[Any] = [settings[axis.name] for settings in grid]
    effect = root[[axis.values.index(value) for value in chosen]]
    return np.asarray(effect * on[:, None]) if axis.drafting else effect


def _covariance_root(levels: int, *, alike: float) -> Array:
    """Return a root of the covariance of effects along an axis. A share `alike` of them correlates with nearness."""
    if levels == 1:
        return np.zeros((1, 1))
    place = np.linspace(0, 1, levels)
    near = np.exp(-((place[:, None] - place[None, :]) ** 2) / (2 * _REACH**2))
    covariance = alike * near + (1 - alike) * np.eye(levels) + 1e-9 * np.eye(levels)
    return np.asarray(np.linalg.cholesky(covariance))


# Tokens per step for each prompt, with uncertainty: random draws of the acceptance rates.

DraftingKey = tuple[Value, ...]

_TEXT = 2.0
"""Steps of one reply are alike, so they count only as half as many independent ones."""
_SHARED, _NEXT = 30.0, 8.0
"""Prior weight in steps: that a prompt is like the others, and a position like the one before."""
_UNSEEN = 0.04
"""Standard deviation of the yield's logarithm at untried draft settings, relative to the tried ones."""


class StepYields:
    """Acceptance by position for each prompt, at each combination of the settings that affect drafts."""

    def __init__(self, space: Space, prompts: Sequence[str]) -> None:
        self._names = [axis.name for axis in space.axes if axis.drafting]
        self._home = tuple(space.baseline[name] for name in self._names)
        self._longest = space.drafts[-1]
        self._prompts = list(prompts)
        self._counts: dict[tuple[DraftingKey, str], list[PositionCounts]] = {}
        self._beyond: dict[DraftingKey, tuple[int, int]] = {}

    def drafting(self, settings: Settings) -> DraftingKey:
        """Return the values of the settings that affect drafts."""
        return tuple(settings[name] for name in self._names)

    def add(self, runs: Sequence[Run]) -> None:
        """Add the acceptance counts of runs with drafts."""
        for run in runs:
            if run.counts and run.steps and draft_of(run.settings):
                which, counts = self.drafting(run.settings), count_positions(run.steps, run.acceptance)
                self._counts.setdefault((which, run.prompt), []).append(counts)
                tokens, steps = self._beyond.get(which, (0, 0))
                longer = sum(counts.accepted[draft_of(run.settings) :])  # n-gram drafts may be longer
                self._beyond[which] = (tokens + longer, steps + run.steps)

    def draw(self, dice: np.random.Generator, times: int, keys: Sequence[DraftingKey]) -> Mapping[DraftingKey, Array]:
        """Return logarithms of tokens per step by draft settings: arrays of draws, prompts and draft lengths from 0."""
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
        """Return draws of a1, a2, ... for each prompt: beta distributions with a prior from the other prompts."""
        own = [add_counts(self._counts.get((which, prompt), ())) for prompt in self._prompts]
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
