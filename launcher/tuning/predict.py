"""Prediction of tokens per verification step at every draft length, from the acceptance by position at a few.

A verification step with n drafted tokens yields the model's own token and the drafts before the first rejected one.
Whether the draft in position i is accepted does not depend on how many follow it, so measuring one long draft length
also covers all shorter ones:

    tokens per step(n) = 1 + a1 + a1 a2 + ... + a1 a2 ... an

where a_i is the rate at which position i is accepted if all positions before it were (the expected accepted length of
speculative decoding, Leviathan et al. 2023, with a rate for each position). Tokens per second are tokens per step
divided by the time of a step, which grows with n by one pass of the draft head and one more token to verify: see
CostSurface.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launcher.models.drafters import drafter_in
from launcher.models.server_settings import Value
from launcher.monitor.meter import Acceptance
from launcher.tuning.records import Run, RunSettings
from launcher.tuning.space import DRAFTER, Key, Space, SpaceAxis, draft_length, settings_key

_FEWEST = 30
"""The fewest drafts in a position for a rate of its own; with fewer, the rate of the position before is used."""


@dataclass(frozen=True, slots=True)
class PositionCounts:
    """Counts by draft position. `accepted` divided by `chances` is the acceptance rate of a position.

    `chances` counts the steps in which all drafts before the position were accepted, `accepted` those of them in which
    its own draft was accepted, too.
    """

    chances: tuple[int, ...]
    accepted: tuple[int, ...]


def count_positions(steps: int, acceptance: Acceptance | None) -> PositionCounts:
    """Return the counts of one run with the given number of verification steps.

    Steps with shorter drafts (p-min) count as if the missing positions were rejected, because the tokens per step of
    such an engine are to be predicted.
    """
    accepted = acceptance.accepted_by_position if acceptance else ()
    return PositionCounts((steps, *accepted)[: len(accepted)], accepted)


def add_counts(parts: Iterable[PositionCounts]) -> PositionCounts:
    """Add up the counts of several runs, which may have different draft lengths."""
    chances: list[int] = []
    accepted: list[int] = []
    for part in parts:
        missing = max(0, len(part.chances) - len(chances))
        chances += [0] * missing
        accepted += [0] * missing
        for i, (chance, hit) in enumerate(zip(part.chances, part.accepted, strict=True)):
            chances[i] += chance
            accepted[i] += hit
    return PositionCounts(tuple(chances), tuple(accepted))


def acceptance_rates(counts: PositionCounts, length: int) -> tuple[float, ...]:
    """Return the rates a1 ... an for n = `length`, () without counts.

    A position with too few drafts gets the rate of the last one with enough.
    """
    rates: list[float] = []
    for chance, hit in zip(counts.chances[:length], counts.accepted, strict=False):
        if chance < _FEWEST and rates:
            break
        if not chance:
            return ()
        rates.append(hit / chance)
    return tuple(rates + [rates[-1]] * (length - len(rates))) if rates else ()


def tokens_per_step(rates: Sequence[float], draft: int) -> float:
    """Return the tokens per step at a draft length, from the rates a1, a2, ..."""
    tokens, all_accepted = 1.0, 1.0
    for rate in rates[:draft]:
        all_accepted *= rate
        tokens += all_accepted
    return tokens


# Cost of a step at every setting of a space, from a few measured ones: Bayesian linear regression with drift.
#
# The logarithm of the cost is a sum of effects: of MTP, of the draft length (a line and a bend), of what drafts (also
# by the length; verification costs the same whoever drafts), of each other setting, smaller interactions of these with
# MTP, with the draft length and with each other, and a separate one for each measured setting. Each effect has a normal
# prior of mean 0 whose spread is typical of such effects on real machines.
# Measurements also have noise within a start, noise between starts, and a slow drift, whose correlation decays with the
# time between two measurements. (Equivalent: a Gaussian process with additive kernels, Rasmussen and Williams 2006,
# chapter 2.)
#
# It only chooses what to measure next and makes the forecasts; the verdict rests on comparisons in pairs.

Array = NDArray[np.float64]

_LEVEL, _MTP, _LINE, _CURVE, _BEND = 1.0, 0.4, 0.05, 0.3, 0.02
"""Standard deviations of effects on the logarithm of the cost.

In order: overall level, MTP, draft length (linear in the logarithm), draft length (linear in the time itself, so curved
in the logarithm), and draft length in any other way.
"""
_JUMP, _SMALL_BATCH, _PROCESSOR_BATCH = 0.08, 8, 4
"""Standard deviation of the effect of a batch that is larger than a small one, and the tokens of a small batch.

GPU kernels change after 8 tokens. A processor reads the weights once for four tokens: steps of 3, 4 and 5 tokens took
15.2, 18.0 and 24.3 ms there. A step with n drafts verifies n + 1 tokens.
"""
_DRAFTER, _DRAFTER_LINE, _DRAFTER_CURVE = 0.12, 0.03, 0.1
"""Standard deviations of how the cost of one of several drafters differs: overall, by its length as a line in the
logarithm, and as one in the time itself."""
_STEEP = 0.3
"""Time of one more draft token as a share of a step, for the curve of `_CURVE`."""
_AXIS, _AXIS_MTP, _AXIS_LINE, _AXIS_AXIS, _OWN = 0.08, 0.03, 0.015, 0.01, 0.003
"""Standard deviations of a setting's effect and its interactions.

In order: the effect, its interactions with MTP, with the draft length (over 3 tokens, or over all of a shorter range)
and with another setting, and the separate effect of each measured point.
"""
_TREND = 0.7
"""Standard deviation of a setting's trend, as a share of the expected one."""
_DRIFT, _DRIFT_S = 0.015, 400.0
"""Standard deviation of the drift, and the seconds after which its correlation has fallen to 1/e."""
_SMOOTH_SHARE = 0.6
"""Share of a setting's variance that varies smoothly along its values."""
_LENGTH_SCALE = 0.5
"""Length scale of that smoothness, as a share of the axis."""


@dataclass(frozen=True, slots=True)
class CostPoint:
    """Result of one trial: the logarithm of a step's cost, its variance, and the time of measurement in seconds."""

    settings: RunSettings
    log_cost: float
    variance: float
    at_s: float


class CostSurface:
    """Model of the cost of a step over a grid of settings."""

    def __init__(self, space: Space, grid: Sequence[RunSettings]) -> None:
        self._index: dict[Key, int] = {settings_key(settings): i for i, settings in enumerate(grid)}
        self._features = _design_matrix(space, grid)
        self._expected = sum(
            (axis.trend * _axis_places(axis, space, grid) for axis in space.other_axes), np.zeros(len(grid))
        )

    def fit(self, points: Sequence[CostPoint]) -> "CostPosterior":
        """Return the posterior for every setting of the grid, given the measured points."""
        rows = np.array([self._index[settings_key(point.settings)] for point in points])
        measured = list(dict.fromkeys(map(int, rows)))
        shared = self._features.shape[1]
        features = np.zeros((len(self._features), shared + len(measured)))
        features[:, :shared] = self._features
        features[measured, shared + np.arange(len(measured))] = _OWN
        logs = np.array([point.log_cost for point in points]) - self._expected[rows]
        times = np.array([point.at_s for point in points])
        drift = _DRIFT**2 * np.exp(-np.abs(times[:, None] - times[None, :]) / _DRIFT_S)
        noise = drift + np.diag([point.variance for point in points])
        centre = float(logs.mean())
        at_points = features[rows]
        weighted = np.linalg.solve(noise, at_points)
        precision = np.eye(features.shape[1]) + at_points.T @ weighted
        root = np.linalg.cholesky(precision)
        mean = np.linalg.solve(precision, weighted.T @ (logs - centre))
        return CostPosterior(features, centre + self._expected, mean, root)


@dataclass(frozen=True, slots=True)
class CostPosterior:
    """Posterior of the cost at each setting of the grid, as logarithms without drift.

    The costs are `_centre`, which has a value for each setting, plus `_features` times weights, which are normal with
    `_mean` and a precision whose Cholesky root is `_root`.
    """

    _features: Array
    _centre: Array
    _mean: Array
    _root: Array

    @property
    def mean(self) -> Array:
        """The expected values."""
        return self._centre + self._features @ self._mean

    def draw(self, rng: np.random.Generator, times: int) -> Array:
        """Return random draws of the whole surface, one in each row."""
        normal = rng.standard_normal((len(self._mean), times))
        weights = self._mean[:, None] + np.linalg.solve(self._root.T, normal)
        return np.asarray(self._centre + (self._features @ weights).T)


def _design_matrix(space: Space, grid: Sequence[RunSettings]) -> Array:
    """Return the design matrix; the weights of its columns have a standard normal prior."""
    draft = np.array([draft_length(settings) for settings in grid], dtype=float)
    on = np.array([drafter_in(settings).drafts for settings in grid])
    line = np.where(on, draft - space.drafts[0], 0.0)[:, None]
    lengths = {length: i for i, length in enumerate(space.drafts)}
    bend = np.zeros((len(grid), len(lengths)))
    root = _covariance_root(len(lengths))
    for row, length in enumerate(draft):
        if length:
            bend[row] = root[lengths[int(length)]]
    columns: list[Array] = [np.full((len(grid), 1), _LEVEL), np.asarray(_MTP * on[:, None]), _LINE * line]
    columns += [_CURVE * np.log1p(_STEEP * line), _BEND * bend]
    columns.append(np.asarray(_JUMP * (draft >= _SMALL_BATCH)[:, None]))
    if space.on_processor:
        columns.append(np.asarray(_JUMP * (draft >= _PROCESSOR_BATCH)[:, None]))
    for drafter in space.drafters if len(space.drafters) > 1 else ():
        own = on & np.array([settings.get(DRAFTER) == drafter for settings in grid])
        own_line = line * own[:, None]
        columns += [np.asarray(_DRAFTER * own[:, None]), _DRAFTER_LINE * own_line]
        columns.append(_DRAFTER_CURVE * np.log1p(_STEEP * own_line))
    axes = space.other_axes
    columns += [_TREND * axis.trend * _axis_places(axis, space, grid)[:, None] for axis in axes if axis.trend]
    effects = [_axis_effect(axis, space, grid, on) for axis in axes]
    steps = max(space.drafts[-1] - space.drafts[0], 1)
    for i, effect in enumerate(effects):
        columns += [_AXIS * effect, _AXIS_LINE * effect * line / min(steps, 3)]
        if not axes[i].drafting:
            columns.append(_AXIS_MTP * effect * on[:, None])
        for other in effects[:i]:
            both = effect[:, :, None] * other[:, None, :]
            columns.append(_AXIS_AXIS * both.reshape(len(grid), -1))
    return np.concatenate(columns, axis=1)


def _axis_effect(axis: SpaceAxis, space: Space, grid: Sequence[RunSettings], on: NDArray[np.bool_]) -> Array:
    """Return an axis's effect as columns: 0 at the baseline's value, and without drafts for a `drafting` axis."""
    root = _covariance_root(len(axis.values))
    root = root - root[axis.values.index(space.baseline[axis.name])]
    chosen: list[Any] = [settings[axis.name] for settings in grid]
    effect = root[[axis.values.index(value) for value in chosen]]
    return np.asarray(effect * on[:, None]) if axis.drafting else effect


def _axis_places(axis: SpaceAxis, space: Space, grid: Sequence[RunSettings]) -> Array:
    """Return how far each setting is along an axis from the baseline's value, as a share of the axis."""
    places = [axis.values.index(settings[axis.name]) for settings in grid]
    return (np.array(places) - axis.values.index(space.baseline[axis.name])) / max(len(axis.values) - 1, 1)


def _covariance_root(levels: int) -> Array:
    """Return a Cholesky root of the covariance of effects along an axis with `levels` values."""
    if levels == 1:
        return np.zeros((1, 1))
    place = np.linspace(0, 1, levels)
    near = np.exp(-((place[:, None] - place[None, :]) ** 2) / (2 * _LENGTH_SCALE**2))
    covariance = _SMOOTH_SHARE * near + (1 - _SMOOTH_SHARE) * np.eye(levels)
    covariance += 1e-9 * np.eye(levels)  # keeps it positive definite despite rounding
    return np.asarray(np.linalg.cholesky(covariance))


# Tokens per step for each prompt, with uncertainty: random draws of the acceptance rates.

DraftingKey = tuple[Value, ...]
"""What drafts, and the values of the other settings that affect drafts, without the draft length."""

_NO_COUNTS = PositionCounts((), ())
_CORRELATED_STEPS = 2.0
"""Steps of one reply are similar, so this many of them count as one independent step."""
_PROMPT_WEIGHT, _POSITION_WEIGHT = 30.0, 8.0
"""Weights of priors, in steps: that a prompt is like the others, and that a position is like the one before."""
_FIRST_RATE = 0.7
"""Prior of the first position's acceptance."""
_UNTRIED_SPREAD, _UNTRIED_DRAFTER_SPREAD = 0.04, 0.25
"""Standard deviations of the logarithm of tokens per step at untried draft settings, relative to the tried ones, and
with an untried drafter, relative to what is expected of any."""


class StepYields:
    """Acceptance by position for each prompt, at each combination of the settings that affect drafts."""

    def __init__(self, space: Space, prompts: Sequence[str]) -> None:
        self._names = [axis.name for axis in space.other_axes if axis.drafting]
        self._baseline = tuple(space.baseline[name] for name in self._names)
        self._longest = space.drafts[-1]
        self._prompts = list(prompts)
        self._counts: dict[tuple[DraftingKey, str], PositionCounts] = {}
        self._longer_drafts: dict[DraftingKey, tuple[int, int]] = {}
        """Tokens accepted beyond the draft length, which n-gram drafts may exceed, and steps."""

    def drafting_key(self, settings: RunSettings) -> DraftingKey:
        """Return what drafts, and the values of the settings that affect drafts, other than the draft length."""
        return settings.get(DRAFTER), *(settings[name] for name in self._names)

    def add_runs(self, runs: Sequence[Run]) -> None:
        """Add the acceptance counts of runs with drafts."""
        for run in runs:
            if run.is_counted and run.steps and draft_length(run.settings):
                key, counts = self.drafting_key(run.settings), count_positions(run.steps, run.acceptance)
                earlier = self._counts.get((key, run.prompt), _NO_COUNTS)
                self._counts[key, run.prompt] = add_counts((earlier, counts))
                tokens, steps = self._longer_drafts.get(key, (0, 0))
                beyond = sum(counts.accepted[draft_length(run.settings) :])
                self._longer_drafts[key] = (tokens + beyond, steps + run.steps)

    def draw(self, rng: np.random.Generator, times: int, keys: Sequence[DraftingKey]) -> Mapping[DraftingKey, Array]:
        """Return logarithms of tokens per step by draft settings: arrays of draws, prompts and draft lengths from 0.

        Those of one drafter resemble each other. Of another one they tell nothing.
        """
        usual = {key[0]: self._draw_rates(rng, times, (key[0], *self._baseline), None) for key in keys}
        drawn = {}
        for key in keys:
            rates = usual[key[0]]
            if key[1:] != self._baseline:
                rates = self._draw_rates(rng, times, key, rates.mean(axis=(0, 1)))
            all_accepted = np.cumprod(rates, axis=2)
            ones = np.ones((times, len(self._prompts), 1))
            tokens, steps = self._longer_drafts.get(key, (0, 1))
            step_tokens = 1 + np.cumsum(all_accepted, axis=2) + tokens / steps
            logs = np.log(np.concatenate([ones, step_tokens], axis=2))
            if not any(tried == key for tried, _ in self._counts):
                is_unknown = len(usual) > 1 and not any(tried[0] == key[0] for tried, _ in self._counts)
                spread = _UNTRIED_DRAFTER_SPREAD if is_unknown else _UNTRIED_SPREAD
                logs = logs + rng.normal(0, spread, (times, 1, 1)) * (np.arange(self._longest + 1) > 0)
            drawn[key] = logs
        return drawn

    def _draw_rates(self, rng: np.random.Generator, times: int, key: DraftingKey, prior: Array | None) -> Array:
        """Return draws of a1, a2, ... for each prompt: beta distributions with a prior from the other prompts.

        `prior` has the rates that are expected of all prompts; None expects each position to be like the one before.
        """
        counts = [self._counts.get((key, prompt), _NO_COUNTS) for prompt in self._prompts]
        chances = _pad_rows([each.chances for each in counts], self._longest) / _CORRELATED_STEPS
        hits = _pad_rows([each.accepted for each in counts], self._longest) / _CORRELATED_STEPS
        shared = np.empty(self._longest)
        last = _FIRST_RATE
        for i in range(self._longest):
            expected = last if prior is None else prior[i]
            weight = _POSITION_WEIGHT if prior is None else _PROMPT_WEIGHT
            last = shared[i] = (hits[:, i].sum() + weight * expected) / (chances[:, i].sum() + weight)
        weight = _PROMPT_WEIGHT / _CORRELATED_STEPS
        a, b = hits + weight * shared, chances - hits + weight * (1 - shared)
        return rng.beta(np.maximum(a, 1e-3), np.maximum(b, 1e-3), (times, *a.shape))


def _pad_rows(rows: Sequence[Sequence[int]], length: int) -> Array:
    """Return rows as a table of `length` columns, padded with zeros or cut off."""
    table = np.zeros((len(rows), length))
    for i, row in enumerate(rows):
        table[i, : min(len(row), length)] = row[:length]
    return table
