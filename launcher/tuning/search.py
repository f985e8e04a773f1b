"""Which setting to try next, which ones are worth a comparison, and what is expected at every draft length."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from launcher.tuning.goal import Aim, Goal
from launcher.tuning.predict_surface import Point, Posterior, Surface
from launcher.tuning.predict_yield import Yields
from launcher.tuning.records import Run, Settings, Value
from launcher.tuning.space import DRAFT, Key, Space, draft_of, key
from launcher.tuning.tuner_state import Fault, Trial
from launcher.tuning.verdict import Forecast

Array = NDArray[np.float64]
Chosen = dict[str, Value]
_Cost = Callable[[Run], float | None]

_DRAWS = 128
_USUAL_NOISE, _USUAL_WEIGHT = 0.03, 4
"""Spread of the logarithms of runs and starts that is believed before anything is measured, worth so many runs."""
_USUAL_START, _START_WEIGHT = 0.005, 12


@dataclass(frozen=True, slots=True)
class Assessment:
    """What is believed of the grid now. Scores are logarithms of the benefit, a row for each draw."""

    scores: Array
    best: int
    regret: float

    @property
    def mean(self) -> Array:
        """The expected score of each setting."""
        return np.asarray(self.scores.mean(axis=0))


class Search:
    """The grid, what was measured of it, and what that says."""

    def __init__(self, space: Space, prompts: Sequence[str], goal: Goal, seed: int) -> None:
        self.grid: list[Chosen] = list(space.settings())
        self.out = np.zeros(len(self.grid), dtype=bool)
        self._space, self._goal, self._prompts = space, goal, list(prompts)
        self._index: dict[Key, int] = {key(settings): i for i, settings in enumerate(self.grid)}
        self._surface = Surface(space, self.grid)
        self._yields = Yields(space, prompts)
        self._dice = np.random.default_rng(seed)
        self._trials: list[Trial] = []
        self._failures: dict[Key, int] = {}
        self._drafts = np.array([draft_of(settings) for settings in self.grid])
        self._drafting = [self._yields.drafting(settings) for settings in self.grid]
        self._keys = list(dict.fromkeys(self._drafting))
        self._which = np.array([self._keys.index(each) for each in self._drafting])
        self.noise, self.start_noise = _USUAL_NOISE, _USUAL_START

    def add(self, trial: Trial) -> None:
        """Take in a trial. What does not start is tried no more, nor, for want of memory, what needs as much."""
        if trial.error is None:
            self._trials.append(trial)
            self._yields.add(trial.runs)
            self._estimate_noise()
            return
        if trial.fault in {Fault.SPOILT, Fault.TIME}:
            return
        here = key(trial.settings)
        self._failures[here] = self._failures.get(here, 0) + 1
        started = any(key(done.settings) == here for done in self._trials)
        if started and self._failures[here] < 2:
            return
        for i, settings in enumerate(self.grid):
            too_large = (
                trial.fault is Fault.MEMORY and not started and self._space.needs_as_much(settings, trial.settings)
            )
            if too_large or i == self._index.get(here):
                self.out[i] = True

    def index(self, settings: Settings) -> int:
        """Return the place of settings in the grid."""
        return self._index[key(settings)]

    def nearest(self, draft: int) -> Chosen | None:
        """Return the settings of a draft length that differ least from the baseline; None if none are left."""
        home = self.grid[0]
        left = [s for i, s in enumerate(self.grid) if draft_of(s) == draft and not self.out[i]]
        return min(left, key=lambda s: sum(s[name] != home[name] for name in s), default=None)

    def assess(self) -> Assessment:
        """Return what is believed now. There must have been a trial."""
        logs = self._yields.draw(self._dice, _DRAWS, self._keys)
        stacked = np.stack([logs[each] for each in self._keys])  # drafting settings, draws, prompts, lengths
        costs = self._cost_surface().draw(self._dice, _DRAWS)
        if self._goal.aim is not Aim.ANSWER:
            mean_logs = stacked.mean(axis=2)[self._which, :, self._drafts].T
            scores = mean_logs - costs
        else:
            scores = self._answers(stacked, costs)
        scores[:, self.out] = -np.inf
        best = int(scores.mean(axis=0).argmax())
        regret = float((scores.max(axis=1) - scores[:, best]).mean())
        return Assessment(scores, best, regret)

    def next(self, assessment: Assessment, avoid: Settings | None) -> Chosen:
        """Return what to try next: the best of one likely surface, every second time the best but the leader's.

        (Top-two Thompson sampling, D. Russo 2016.) Never what is in use, since a start of its own tells more.
        """
        barred = set() if avoid is None or key(avoid) not in self._index else {self.index(avoid)}
        if self._dice.random() < 0.5:
            barred.add(assessment.best)
        found = 0
        for row in self._dice.permutation(len(assessment.scores)):
            found = int(assessment.scores[row].argmax())
            if found not in barred:
                return self.grid[found]
        scores = assessment.mean.copy()
        scores[list(barred)] = -np.inf
        return self.grid[int(scores.argmax())]

    def forecast(self, assessment: Assessment, settings: Settings) -> tuple[Forecast, ...]:
        """Return the goal's value at every draft length that is left, the other settings being these."""
        found = []
        for draft in (0, *self._space.drafts):
            place = self.beside(settings, draft)
            if place is not None:
                scores = assessment.scores[:, place]
                mean, reach = float(scores.mean()), 1.96 * float(scores.std())
                low, high = sorted(map(self._goal.value_of, (mean - reach, mean + reach)))
                found.append(Forecast(draft, self._goal.value_of(mean), low, high))
        return tuple(found)

    def beside(self, settings: Settings, draft: int) -> int | None:
        """Return the place of settings with another draft length; None where that does not fit or start."""
        idle = (
            {} if draft else {axis.name: self._space.baseline[axis.name] for axis in self._space.axes if axis.drafting}
        )
        place = self._index.get(key({**settings, DRAFT: draft, **idle}))
        return None if place is None or self.out[place] else place

    def _answers(self, stacked: Array, costs: Array) -> Array:
        """Return scores where the answer's time is the aim: reading and writing, prompt by prompt."""
        reading = self._reading_surface().draw(self._dice, _DRAWS)
        read, written = self._mixes()
        total = np.zeros_like(costs)
        for p in range(len(self._prompts)):
            logs = stacked[:, :, p, :][self._which, :, self._drafts].T
            total -= np.log(read[p] * np.exp(reading) + written[p] * np.exp(costs - logs))
        return np.asarray(total / len(self._prompts))

    def _mixes(self) -> tuple[list[float], list[float]]:
        """Return the tokens that are read and written for each prompt, on average."""
        read, written = [], []
        for prompt in self._prompts:
            mixes = [self._goal.mix(run) for run in self._counted() if run.prompt == prompt] or [(1, 1)]
            read.append(statistics.fmean(mix[0] for mix in mixes))
            written.append(statistics.fmean(mix[1] for mix in mixes))
        return read, written

    def _counted(self) -> list[Run]:
        return [run for trial in self._trials for run in trial.runs if self._goal.value(run) is not None]

    def _cost_surface(self) -> Posterior:
        return self._surface.learn(self._points(self._goal.step_cost))

    def _reading_surface(self) -> Posterior:
        return self._surface.learn(self._points(lambda run: 1 / run.prefill_rate if run.prefill_rate else None))

    def _points(self, cost: _Cost) -> list[Point]:
        offsets = _offsets(self._trials, cost)
        points = []
        for trial in self._trials:
            logs = [log - offsets[prompt] for prompt, log in _logs(trial, cost)]
            if logs:
                variance = self.noise**2 / len(logs) + self.start_noise**2
                points.append(Point(trial.settings, statistics.fmean(logs), variance, trial.began_s))
        return points

    def _estimate_noise(self) -> None:
        """Estimate the spread of runs within a start, and of starts of the same settings."""
        cost = self._goal.step_cost
        offsets = _offsets(self._trials, cost)
        squares, freedom = _USUAL_WEIGHT * _USUAL_NOISE**2, float(_USUAL_WEIGHT)
        means: dict[Key, list[tuple[float, int]]] = {}
        for trial in self._trials:
            logs = [log - offsets[prompt] for prompt, log in _logs(trial, cost)]
            if not logs:
                continue
            mean = statistics.fmean(logs)
            squares += sum((log - mean) ** 2 for log in logs)
            freedom += len(logs) - 1
            means.setdefault(key(trial.settings), []).append((mean, len(logs)))
        freedom -= min(len(offsets) - 1, freedom - _USUAL_WEIGHT) if self._trials else 0
        self.noise = math.sqrt(squares / freedom)
        squares, freedom = 0.0, float(_START_WEIGHT)
        for same in means.values():
            if len(same) > 1:
                spread = statistics.variance([mean for mean, _ in same])
                within = self.noise**2 * statistics.fmean(1 / n for _, n in same)
                squares += (spread - within) * (len(same) - 1)
                freedom += len(same) - 1
        self.start_noise = math.sqrt((max(squares, 0.0) + _START_WEIGHT * _USUAL_START**2) / freedom)


def _logs(trial: Trial, cost: _Cost) -> list[tuple[str, float]]:
    """Return prompts and the logarithms of what they cost."""
    found = ((run.prompt, cost(run)) for run in trial.runs)
    return [(prompt, math.log(value)) for prompt, value in found if value]


def _offsets(trials: Sequence[Trial], cost: _Cost) -> dict[str, float]:
    """Return by how much prompts cost more or less than the mean of their trial (a longer prompt fills more cache)."""
    above: dict[str, list[float]] = {}
    for trial in trials:
        logs = _logs(trial, cost)
        mean = statistics.fmean(log for _, log in logs) if logs else 0.0
        for prompt, log in logs:
            above.setdefault(prompt, []).append(log - mean)
    return {prompt: statistics.fmean(values) for prompt, values in above.items()}
