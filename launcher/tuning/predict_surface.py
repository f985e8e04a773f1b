"""What a step costs at every setting of a space, from the few that were measured: a regression with drift.

The logarithm of the cost is a sum of effects: of MTP, of the draft length (a line and a bend), of each other setting,
smaller ones of how these change with MTP, with the draft length and with each other, and one of its own for each
setting that was measured. Each has a normal prior of mean 0 whose spread is what such effects are on real machines.
What is measured also has noise within a start, between starts, and a drift in time whose values are the more alike the
nearer they are. This is Bayesian linear regression (equally: a Gaussian process with additive kernels, Rasmussen and
Williams 2006, chapter 2).

It only chooses what to measure next. No claim rests on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launcher.tuning.records import Settings
from launcher.tuning.space import Axis, Key, Space, draft_of, key

Array = NDArray[np.float64]

_LEVEL, _MTP, _LINE, _CURVE, _BEND = 1.0, 0.4, 0.05, 0.3, 0.02
"""Standard deviations of effects on the logarithm of the cost: all, MTP, the draft length evenly, along a line in the
time itself (whose logarithm is curved), and any other way.
"""
_STEEP = 0.3
"""A draft token's share of a step's time along that curve."""
_AXIS, _AXIS_MTP, _AXIS_LINE, _AXIS_AXIS, _OWN = 0.08, 0.03, 0.015, 0.01, 0.003
"""The same of a setting, its change with MTP, with a draft token more, with another setting, and of each point."""
_DRIFT, _DRIFT_S = 0.015, 400.0
"""Standard deviation of the drift, and the seconds after which it has changed by as much."""
_ALIKE = 0.6
"""How much of a setting's effect goes evenly along its values."""
_REACH = 0.5
"""Over which share of an axis that holds."""


@dataclass(frozen=True, slots=True)
class Point:
    """What one trial says: the logarithm of the cost, its variance, and when it was measured, in seconds."""

    settings: Settings
    log_cost: float
    variance: float
    at_s: float


class Surface:
    """The cost over a grid of settings."""

    def __init__(self, space: Space, grid: Sequence[Settings]) -> None:
        self._index: dict[Key, int] = {key(settings): i for i, settings in enumerate(grid)}
        self._features = _features(space, grid)

    def learn(self, points: Sequence[Point]) -> "Posterior":
        """Return what the points say of every setting of the grid."""
        visited: dict[int, int] = {}
        where = np.array([self._index[key(point.settings)] for point in points])
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
        return Posterior(features, centre, mean, root)


@dataclass(frozen=True, slots=True)
class Posterior:
    """The cost at each setting of the grid: logarithms, without drift."""

    _features: Array
    _centre: float
    _mean: Array
    _root: Array

    @property
    def mean(self) -> Array:
        """The expected values."""
        return self._centre + self._features @ self._mean

    def draw(self, dice: np.random.Generator, times: int) -> Array:
        """Return whole surfaces that are as likely as the data say, a row each."""
        normal = dice.standard_normal((len(self._mean), times))
        weights = self._mean[:, None] + np.linalg.solve(self._root.T, normal)
        return np.asarray(self._centre + (self._features @ weights).T)


def _features(space: Space, grid: Sequence[Settings]) -> Array:
    """Return the columns whose weights have a standard normal prior."""
    draft = np.array([draft_of(settings) for settings in grid], dtype=float)
    on = draft > 0
    line = np.where(on, draft - space.drafts[0], 0.0)[:, None]
    lengths = {length: i for i, length in enumerate(space.drafts)}
    bend = np.zeros((len(grid), len(lengths)))
    root = _even(len(lengths), alike=_ALIKE)
    for row, length in enumerate(draft):
        if length:
            bend[row] = root[lengths[int(length)]]
    columns: list[Array] = [np.full((len(grid), 1), _LEVEL), np.asarray(_MTP * on[:, None]), _LINE * line]
    columns += [_CURVE * np.log1p(_STEEP * line), _BEND * bend]
    effects = [_axis(axis, space, grid, on) for axis in space.axes]
    steps = max(space.drafts[-1] - space.drafts[0], 1)
    for i, effect in enumerate(effects):
        columns += [_AXIS * effect, _AXIS_LINE * effect * line / min(steps, 3)]
        if not space.axes[i].drafting:
            columns.append(_AXIS_MTP * effect * on[:, None])
        for other in effects[:i]:
            both = effect[:, :, None] * other[:, None, :]
            columns.append(_AXIS_AXIS * both.reshape(len(grid), -1))
    return np.concatenate(columns, axis=1)


def _axis(axis: Axis, space: Space, grid: Sequence[Settings], on: NDArray[np.bool_]) -> Array:
    """Return an axis's effect as columns: 0 at the baseline's value, and without drafts where it concerns them."""
    root = _even(len(axis.values), alike=_ALIKE)
    root = root - root[axis.values.index(space.baseline[axis.name])]
    chosen: list[Any] = [settings[axis.name] for settings in grid]
    effect = root[[axis.values.index(value) for value in chosen]]
    return np.asarray(effect * on[:, None]) if axis.drafting else effect


def _even(levels: int, *, alike: float) -> Array:
    """Return a root of the covariance of effects of which a share is the more alike the nearer their values stand."""
    if levels == 1:
        return np.zeros((1, 1))
    place = np.linspace(0, 1, levels)
    near = np.exp(-((place[:, None] - place[None, :]) ** 2) / (2 * _REACH**2))
    covariance = alike * near + (1 - alike) * np.eye(levels) + 1e-9 * np.eye(levels)
    return np.asarray(np.linalg.cholesky(covariance))
