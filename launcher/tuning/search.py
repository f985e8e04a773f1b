"""Search of a tune: chooses the settings to try next and those to compare, and forecasts every draft length."""

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from launcher.models.drafters import drafter_in
from launcher.models.server_settings import Value
from launcher.tuning.goal import Goal
from launcher.tuning.predict import CostPoint, CostPosterior, CostSurface, StepYields
from launcher.tuning.records import Run, RunSettings
from launcher.tuning.space import DRAFT, DRAFTER, Key, Space, draft_length, settings_key, way_of
from launcher.tuning.tune_state import Fault, Trial
from launcher.tuning.verdict import GAIN_CHANCE, Forecast, LikelyAnswer, LikelyGain

Array = NDArray[np.float64]
_LogCosts = list[tuple[str, float]]
"""The prompts of one trial, each with the logarithm of its cost."""

_DRAWS = 128
"""Random draws of the value of every setting."""
_MODEL_SPREAD = 0.006
"""Standard deviation of a forecast gain due to what the model of effects leaves out."""
_NOISE_SHARE = 0.05
"""Uncertainty of a gain because the noise itself is estimated from few replies, as a share of the noise of a reply."""
_GAIN_DEVIATIONS = statistics.NormalDist().inv_cdf(GAIN_CHANCE)
"""Standard deviations by which a gain must be above 0 to be recommended."""
_MOST_WEIGHED = 150
"""The most settings that are weighed against each other: the effort grows with the square of their number."""
_TRIALS_AHEAD = (1, 2, 4, 8)
"""Numbers of trials of the same settings whose effect on the answer is weighed."""
_QUANTILES = np.array([statistics.NormalDist().inv_cdf((number + 0.5) / 12) for number in range(12)])
"""Possible results of these trials, in standard deviations, all equally likely."""
_USUAL_NOISE, _NOISE_WEIGHT = 0.03, 4
"""Prior spread of runs within a start, as logarithms, and its weight in runs."""
_USUAL_START_NOISE, _START_NOISE_WEIGHT = 0.005, 12
"""Prior spread between starts, as logarithms, and its weight in starts."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """Posterior over the grid. `scores` are logarithms of the benefit, one row for each draw.

    `best` is the index of the settings with the highest mean; `regret` is how much higher the score of the true best
    settings is expected to be.
    """

    scores: Array
    best: int
    regret: float

    @property
    def mean(self) -> Array:
        """Expected score of each setting."""
        return np.asarray(self.scores.mean(axis=0))


class Search:
    """The grid of settings, the trials on it, and the models fitted to them. `excluded` marks settings not to try."""

    def __init__(
        self, space: Space, prompts: Sequence[str], goal: Goal, seed: int, weights: Mapping[str, float] | None = None
    ) -> None:
        """`weights` are the weights of the prompts in the mean over all prompts, by default equal."""
        self.grid: list[RunSettings] = list(space.fitting_settings())
        self.excluded = np.zeros(len(self.grid), dtype=bool)
        self._space, self._goal, self._prompts = space, goal, list(prompts)
        self._weights = [(weights or {}).get(prompt, 1.0) for prompt in prompts]
        self._index: dict[Key, int] = {settings_key(settings): i for i, settings in enumerate(self.grid)}
        self._surface = CostSurface(space, self.grid)
        self._yields = StepYields(space, prompts)
        self._rng = np.random.default_rng(seed)
        self._trials: list[Trial] = []
        self._step_logs: list[_LogCosts] = []
        """For each trial, the logarithms of the cost of one step."""
        self._memory_ranks = np.array([space.memory_ranks(settings) for settings in self.grid])
        self._failures: dict[Key, int] = {}
        self._drafts = np.array([draft_length(settings) for settings in self.grid])
        keys = [self._yields.drafting_key(settings) for settings in self.grid]
        self._drafting_keys = list(dict.fromkeys(keys))
        self._key_indices = np.array([self._drafting_keys.index(key) for key in keys])
        self.noise, self.start_noise = _USUAL_NOISE, _USUAL_START_NOISE

    def add_trial(self, trial: Trial) -> None:
        """Add a trial.

        Settings that do not start are excluded; if memory was the cause, so are all that need at least as much.
        Settings that have started before are excluded after their second failure.
        """
        if trial.error is None:
            self._trials.append(trial)
            self._step_logs.append(_log_costs(trial, self._goal.step_cost))
            self.excluded[self.find_index(trial.settings)] = False  # an earlier failure had another cause
            self._yields.add_runs(trial.runs)
            self._estimate_noise()
            return
        if trial.fault in {Fault.SPOILT, Fault.TIME}:
            return
        key = settings_key(trial.settings)
        self._failures[key] = self._failures.get(key, 0) + 1
        started = any(settings_key(done.settings) == key for done in self._trials)
        if started and (self._failures[key] < 2 or not self.find_index(trial.settings)):
            return  # the baseline is never excluded, because all other settings are compared with it
        if key in self._index:
            self.excluded[self._index[key]] = True
        if trial.fault is Fault.MEMORY and not started:
            self.excluded |= (self._memory_ranks >= self._space.memory_ranks(trial.settings)).all(axis=1)

    def find_index(self, settings: RunSettings) -> int:
        """Return the index of settings in the grid."""
        return self._index[settings_key(settings)]

    def nearest_to_baseline(self, draft: int, drafter: Value = None) -> RunSettings | None:
        """Return the settings with that draft length that differ least from the baseline. None if none are left."""
        baseline = self.grid[0]
        left = [s for i, s in enumerate(self.grid) if way_of(s) == (drafter, draft) and not self.excluded[i]]
        return min(left, key=lambda s: sum(s[name] != baseline[name] for name in s), default=None)

    def assess_settings(self, prompts: Collection[str] | None = None) -> Assessment:
        """Return the posterior for some of the prompts, or for all. At least one trial must have been added."""
        chosen = [i for i, prompt in enumerate(self._prompts) if prompts is None or prompt in prompts]
        logs = self._yields.draw(self._rng, _DRAWS, self._drafting_keys)
        stacked = np.stack([logs[key] for key in self._drafting_keys])  # axes: drafting keys, draws, prompts, lengths
        costs = self._cost_surface().draw(self._rng, _DRAWS)
        if not self._goal.is_time:
            weights = [self._weights[i] for i in chosen]
            mean_logs = np.average(stacked[:, :, chosen], axis=2, weights=weights)[self._key_indices, :, self._drafts].T
            scores = mean_logs - costs
        else:
            scores = self._answer_scores(stacked, costs, chosen)
        scores[:, self.excluded] = -np.inf
        best = int(scores.mean(axis=0).argmax())
        regret = float((scores.max(axis=1) - scores[:, best]).mean())
        return Assessment(scores, best, regret)

    def choose_next(self, assessment: Assessment, noise: float, seconds: Array) -> RunSettings:
        """Return the settings whose measurement is expected to improve the answer most per second.

        `noise` is the standard deviation of a trial's score, `seconds` the duration of a trial at each point of the
        grid. The answer's value is the score of the best point that is likely to beat the baseline. For each point the
        method computes how much one or several trials there are expected to raise that value (knowledge gradient, P.
        Frazier and W. Powell 2010). If no trial is expected to raise it, the best point of a random draw is returned
        (Thompson sampling).
        """
        allowed = self._most_promising(assessment)
        scores, seconds = assessment.scores[:, allowed], seconds[allowed]
        mean, covariance = scores.mean(axis=0), np.atleast_2d(np.cov(scores.T))
        best = int(allowed[int(mean.argmax())])
        if not self._proven_to_fit()[best]:
            return self.grid[best]
        variance = np.diag(covariance)
        gain_variance = variance + variance[0] - 2 * covariance[0]
        floor = _MODEL_SPREAD**2 + (_NOISE_SHARE * self.noise) ** 2
        clear = mean - mean[0] >= _GAIN_DEVIATIONS * np.sqrt(gain_variance + floor)
        clear[0] = True
        worth = np.zeros(len(allowed))
        for trials in _TRIALS_AHEAD:
            # Each row is for settings that are measured, each column for settings whose scores change by that.
            learned = covariance / np.sqrt(variance + noise**2 / trials)[:, None]
            left = np.sqrt(np.maximum(gain_variance - (learned - learned[:, [0]]) ** 2, 0) + floor)
            needed = _GAIN_DEVIATIONS * left
            answers = np.zeros(len(allowed))
            for quantile in _QUANTILES:  # one at a time: all at once do not fit into the processor's cache
                after = mean + quantile * learned
                clear_after = after - after[:, [0]] >= needed
                clear_after[:, 0] = True
                answers += np.where(clear_after, after, -np.inf).max(axis=1)
            value = answers / len(_QUANTILES) - mean[clear].max()
            worth = np.maximum(worth, value / (trials * seconds))
        if worth.max() <= 0:
            return self.grid[int(assessment.scores[self._rng.integers(_DRAWS)].argmax())]
        return self.grid[int(allowed[int(worth.argmax())])]

    def _most_promising(self, assessment: Assessment) -> NDArray[np.intp]:
        """Return the indices of the baseline, which is the first, and of the settings that may be the best."""
        allowed = np.flatnonzero(~self.excluded)
        scores = assessment.scores[:, allowed]
        ranked = allowed[np.argsort(-(scores.mean(axis=0) + scores.std(axis=0)))]
        return np.union1d([0], ranked[:_MOST_WEIGHED])

    def choose_answer(self, assessment: Assessment) -> LikelyAnswer:
        """Return the settings with the highest mean among those that are very likely better than the baseline.

        The baseline is the answer if there are none.
        """
        scores, proven = assessment.scores, self._proven_to_fit() & ~self.excluded
        ranked = sorted(map(int, np.flatnonzero(proven)), key=lambda i: assessment.mean[i], reverse=True)
        gains = (self._forecast_gain(scores, i, 0) for i in ranked if i)
        gain = next((each for each in gains if each.chance >= GAIN_CHANCE), None)
        on = next((i for i in ranked if self._drafts[i]), None)
        off = next((i for i in ranked if not self._drafts[i]), 0)
        best = self.find_index(gain.candidate) if gain else 0
        return LikelyAnswer(
            self.grid[best],
            gain,
            None if on is None else self._forecast_gain(scores, on, off),
            float((scores[:, ranked].max(axis=1) - scores[:, best]).mean()),
            never_loads=not (~self.excluded & (self._drafts > 0)).any(),
        )

    def _forecast_gain(self, scores: Array, one: int, other: int) -> LikelyGain:
        """Compare two settings by the posterior."""
        differences = scores[:, one] - scores[:, other]
        mean, spread = (
            float(differences.mean()),
            math.hypot(float(differences.std()), _MODEL_SPREAD, _NOISE_SHARE * self.noise),
        )
        return LikelyGain(self.grid[one], self.grid[other], mean, spread, len(self._trials))

    def _proven_to_fit(self) -> NDArray[np.bool_]:
        """Return which settings need no more memory than others that have started."""
        started = np.unique([self._space.memory_ranks(trial.settings) for trial in self._trials], axis=0)
        return np.asarray(np.any(np.all(self._memory_ranks[:, None] <= started, axis=2), axis=1))

    def forecast_drafts(self, assessment: Assessment, settings: RunSettings) -> tuple[Forecast, ...]:
        """Return forecasts of the goal's value at each draft length not excluded, with the other settings given."""
        indices = [self.index_with_draft(settings, draft) for draft in (0, *self._space.drafts)]
        return tuple(self._forecast_value(assessment, index) for index in indices if index is not None)

    def forecast_drafters(self, assessment: Assessment) -> tuple[Forecast, ...]:
        """Return the forecast of each drafter's best settings, the best first; () if only one can draft."""
        best: dict[Value, int] = {}
        for i in map(int, np.argsort(-assessment.mean)):
            if self._drafts[i] and not self.excluded[i]:
                best.setdefault(self.grid[i].get(DRAFTER), i)
        return tuple(self._forecast_value(assessment, i) for i in best.values()) if len(best) > 1 else ()

    def _forecast_value(self, assessment: Assessment, index: int) -> Forecast:
        scores = assessment.scores[:, index]
        mean, reach = float(scores.mean()), 1.96 * float(scores.std())
        low, high = sorted(map(self._goal.value_from_score, (mean - reach, mean + reach)))
        drafter, draft = way_of(self.grid[index])
        return Forecast(draft, self._goal.value_from_score(mean), low, high, None if drafter is None else str(drafter))

    def index_with_draft(self, settings: RunSettings, draft: int) -> int | None:
        """Return the index of settings with another draft length. None if that does not fit or start."""
        changed = {**settings, DRAFT: draft}
        if not drafter_in(changed).drafts:
            changed |= {axis.name: self._space.baseline[axis.name] for axis in self._space.axes if axis.drafting}
        index = self._index.get(settings_key(changed))
        return None if index is None or self.excluded[index] else index

    def _answer_scores(self, stacked: Array, costs: Array, prompts: Sequence[int]) -> Array:
        """Return scores for the goal `answer`: the time of prompt processing and generation, averaged over prompts."""
        reading = self._prefill_surface().draw(self._rng, _DRAWS)
        read, written = self._tokens_by_prompt()
        total = np.zeros_like(costs)
        for p in prompts:
            logs = stacked[:, :, p, :][self._key_indices, :, self._drafts].T
            total -= self._weights[p] * np.log(read[p] * np.exp(reading) + written[p] * np.exp(costs - logs))
        return np.asarray(total / sum(self._weights[p] for p in prompts))

    def _tokens_by_prompt(self) -> tuple[list[float], list[float]]:
        """Return the mean numbers of prompt tokens and reply tokens of each prompt."""
        read, written = [], []
        for prompt in self._prompts:
            counts = [self._goal.answer_tokens(run) for run in self._counted_runs() if run.prompt == prompt] or [(1, 1)]
            read.append(statistics.fmean(prompt_tokens for prompt_tokens, _ in counts))
            written.append(statistics.fmean(reply_tokens for _, reply_tokens in counts))
        return read, written

    def _counted_runs(self) -> list[Run]:
        return [run for trial in self._trials for run in trial.runs if self._goal.run_value(run) is not None]

    def _cost_surface(self) -> CostPosterior:
        return self._surface.fit(self._cost_points(self._step_logs))

    def _prefill_surface(self) -> CostPosterior:
        def token_cost(run: Run) -> float | None:
            return 1 / run.prefill_rate if run.prefill_rate else None

        return self._surface.fit(self._cost_points([_log_costs(trial, token_cost) for trial in self._trials]))

    def _cost_points(self, costs: Sequence[_LogCosts]) -> list[CostPoint]:
        offsets = _prompt_offsets(costs)
        points = []
        for trial, pairs in zip(self._trials, costs, strict=True):
            logs = [log - offsets[prompt] for prompt, log in pairs]
            if logs:
                variance = self.noise**2 / len(logs) + self.start_noise**2
                points.append(CostPoint(trial.settings, statistics.fmean(logs), variance, trial.began_s))
        return points

    def _estimate_noise(self) -> None:
        """Estimate the spread of runs within a start, and of starts of the same settings."""
        offsets = _prompt_offsets(self._step_logs)
        squares, freedom = _NOISE_WEIGHT * _USUAL_NOISE**2, float(_NOISE_WEIGHT)
        means: dict[Key, list[tuple[float, int]]] = {}
        for trial, pairs in zip(self._trials, self._step_logs, strict=True):
            logs = [log - offsets[prompt] for prompt, log in pairs]
            if not logs:
                continue
            mean = statistics.fmean(logs)
            squares += sum((log - mean) ** 2 for log in logs)
            freedom += len(logs) - 1
            means.setdefault(settings_key(trial.settings), []).append((mean, len(logs)))
        freedom -= min(len(offsets) - 1, freedom - _NOISE_WEIGHT) if self._trials else 0
        self.noise = math.sqrt(squares / freedom)
        squares, freedom = 0.0, float(_START_NOISE_WEIGHT)
        for same in means.values():
            if len(same) > 1:
                spread = statistics.variance([mean for mean, _ in same])
                within = self.noise**2 * statistics.fmean(1 / n for _, n in same)
                squares += (spread - within) * (len(same) - 1)
                freedom += len(same) - 1
        self.start_noise = math.sqrt((max(squares, 0.0) + _START_NOISE_WEIGHT * _USUAL_START_NOISE**2) / freedom)


def _log_costs(trial: Trial, cost: Callable[[Run], float | None]) -> _LogCosts:
    """Return each prompt whose cost is known, with the logarithm of the cost."""
    costs = ((run.prompt, cost(run)) for run in trial.runs)
    return [(prompt, math.log(value)) for prompt, value in costs if value]


def _prompt_offsets(costs: Sequence[_LogCosts]) -> dict[str, float]:
    """Return the mean difference of each prompt's log cost from its trial's (longer prompts fill more cache)."""
    above: dict[str, list[float]] = {}
    for pairs in costs:
        mean = statistics.fmean(log for _, log in pairs) if pairs else 0.0
        for prompt, log in pairs:
            above.setdefault(prompt, []).append(log - mean)
    return {prompt: statistics.fmean(values) for prompt, values in above.items()}
