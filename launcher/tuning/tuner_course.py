"""A tune under way: its budget, its trials, and rounds of them that give pairs."""

import asyncio
import math
import statistics
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from launcher.tuning.goal import Goal
from launcher.tuning.plan_of_trials import MOST_PASSES, grace_s, passes
from launcher.tuning.records import Bench, Prompt, Settings
from launcher.tuning.search import Search
from launcher.tuning.space import Key, Space, key
from launcher.tuning.statistics import Pair
from launcher.tuning.tuner_events import OnEvent, TrialFailed, TrialMeasured, TrialPlanned
from launcher.tuning.tuner_state import Fault, Stage, Trial, TuneState
from launcher.tuning.tuner_visits import visit

_USUAL_START_S, _USUAL_RUN_S = 10.0, 3.0
_MOST_MADE_UP = 2
"""Rounds that are added to a comparison for those in which something failed or was spoilt."""
_ENDED = "It was ended, as the time was over."
Pairs = dict[tuple[int, int], list[Pair]]
"""By the places of two settings in a round: what was measured of them beside each other."""


class Work(Protocol):
    """A workload: its name, and what is asked."""

    @property
    def name(self) -> str:
        """What it is called in the verdict."""
        ...

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """What is asked of the server."""
        ...


class Course:
    """The one place where trials are made. Those of `state` come first, as if they were measured again."""

    def __init__(
        self, bench: Bench, space: Space, workload: Work, goal: Goal, state: TuneState, on_event: OnEvent
    ) -> None:
        self.space, self.workload, self.goal, self.tell = space, workload, goal, on_event
        self.state = TuneState(state.about, state.seed, state.budgets)
        self.search = Search(space, [prompt.name for prompt in workload.prompts], goal, state.seed)
        self._bench = bench
        self._recorded = deque(state.trials)
        self._passes = 1
        self._last: Key | None = None

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Those so far."""
        return self.state.trials

    @property
    def budget_s(self) -> float:
        """What may be spent in all, at this point of the tune."""
        done = len(self.trials)
        return [seconds for count, seconds in self.state.budgets if count <= done][-1]

    @property
    def left_s(self) -> float:
        """What the budget still has."""
        return self.budget_s - self.state.used_s

    @property
    def visit_s(self) -> float:
        """What one more trial is expected to take."""
        return self._start_s + (len(self.workload.prompts) * self._passes + 0.5) * self._run_s

    @property
    def visit_noise(self) -> float:
        """The standard deviation that is expected of a trial's score."""
        runs = len(self.workload.prompts) * self._passes
        return math.hypot(self.search.noise / math.sqrt(runs), self.search.start_noise)

    def affords(self, trials: int = 1) -> bool:
        """Return whether the budget has time for so many more."""
        return self.left_s >= trials * self.visit_s

    def settle_passes(self, trials: int) -> None:
        """Choose how often prompts are asked on a start, by what starts and runs have cost and how they differ.

        Not so often that there is no time for so many trials more.
        """
        search = self.search
        self._passes = passes(self._start_s, self._run_s, search.noise, search.start_noise, len(self.workload.prompts))
        while self._passes > 1 and not self.affords(trials):
            self._passes -= 1

    async def visit(self, settings: Settings, stage: Stage, seed: int | None = None) -> Trial:
        """Make one trial and take it in. `seed` is that of the replies, the trial's number unless it is given.

        It is ended when the budget, and some grace, are over by the clock of the loop.
        """
        number = len(self.trials)
        self.tell(TrialPlanned(number, stage, settings, self.visit_s, self.left_s))
        trial = self._from_record(settings, stage)
        if trial is None:
            trial = await self._made(number, settings, stage, number if seed is None else seed)
        self.state = self.state.with_trial(trial)
        self.search.add(trial)
        self._last = key(settings)
        if trial.error is None:
            self.tell(TrialMeasured(trial, self.state))
        else:
            self.tell(TrialFailed(trial, trial.error, self.state))
        return trial

    async def _made(self, number: int, settings: Settings, stage: Stage, seed: int) -> Trial:
        began_s, most_s = self._bench.now_s(), max(self.left_s, 0.0) + grace_s(self.budget_s)
        limit = asyncio.timeout(most_s)
        try:
            async with limit:
                return await visit(
                    self._bench,
                    self.workload.prompts,
                    settings,
                    number=number,
                    stage=stage,
                    passes=self._passes,
                    seed=(self.state.seed * 1_000 + seed) * MOST_PASSES,
                )
        except TimeoutError:
            if not limit.expired():
                raise
        return Trial(number, stage, dict(settings), began_s, most_s, 0.0, (), _ENDED, Fault.TIME)

    async def rounds(self, stage: Stage, settings: Sequence[Settings], orders: Sequence[Sequence[int]]) -> Pairs:
        """Visit settings in the orders given, and return the pairs of each two that stand in one round.

        It ends with the budget. For pairs that were lost to a failure a few rounds are added.
        """
        pairs: Pairs = {(a, b): [] for b in range(len(settings)) for a in range(b)}
        for order in orders:
            await self._round(stage, settings, order, pairs)
        wanted = sum(len(order) > 1 for order in orders)
        for _ in range(_MOST_MADE_UP):
            if min(map(len, pairs.values())) >= wanted:
                break
            order = list(range(len(settings)))
            await self._round(stage, settings, order if key(settings[0]) != self._last else order[::-1], pairs)
        return pairs

    async def _round(self, stage: Stage, settings: Sequence[Settings], order: Sequence[int], pairs: Pairs) -> None:
        if not self.affords(len(order)):
            return
        seed = len(self.trials)
        done: list[tuple[int, dict[str, float]]] = []
        for place in order:
            if self.left_s <= 0:  # trials took longer than those before
                break
            done.append((place, self._scores(await self._unspoilt(settings[place], stage, seed))))
        for later, (second, after) in enumerate(done):
            for first, before in done[:later]:
                ratio = _log_ratio(before, after)
                if ratio is not None:
                    a, b = min(first, second), max(first, second)
                    pairs[a, b].append(Pair(1.0, math.exp(ratio if first == a else -ratio), first == a))

    async def _unspoilt(self, settings: Settings, stage: Stage, seed: int) -> Trial:
        """Make a trial, and once more when it was spoilt."""
        trial = await self.visit(settings, stage, seed)
        return await self.visit(settings, stage, seed) if trial.fault is Fault.SPOILT and self.affords() else trial

    def _scores(self, trial: Trial) -> dict[str, float]:
        """Return the mean score of each prompt."""
        found: dict[str, list[float]] = {}
        for run in trial.runs if trial.error is None else ():
            score = self.goal.score(run)
            if score is not None:
                found.setdefault(run.prompt, []).append(score)
        return {prompt: statistics.fmean(scores) for prompt, scores in found.items()}

    def _from_record(self, settings: Settings, stage: Stage) -> Trial | None:
        """Return the next trial of a tune that is continued, None when it is to be made.

        Should what is wanted now be another one (the memory that is believed free has changed, say), the rest of the
        record is of no use.
        """
        if self._recorded:
            trial = self._recorded.popleft()
            if key(trial.settings) == key(settings) and trial.stage is stage:
                return trial
            self._recorded.clear()
        return None

    @property
    def _start_s(self) -> float:
        seconds = [trial.start_s for trial in self.trials if trial.start_s and not trial.error]
        return statistics.fmean(seconds) if seconds else _USUAL_START_S

    @property
    def _run_s(self) -> float:
        seconds = [run.wall_s for trial in self.trials for run in trial.runs]
        return statistics.fmean(seconds) if seconds else _USUAL_RUN_S


def _log_ratio(before: dict[str, float], after: dict[str, float]) -> float | None:
    """Return by how much the later of two trials scores more, over the prompts that both have; None without any."""
    both = before.keys() & after.keys()
    return statistics.fmean(after[prompt] - before[prompt] for prompt in sorted(both)) if both else None
