"""The tuner: probes, explores and compares settings. docs/tuning.md explains the method and its reasons."""

import asyncio
import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from launcher.base.action import ActionKind
from launcher.base.errors import LauncherError, NothingMeasured, Superseded, TuneMismatch
from launcher.base.messages import Message, join_messages, message
from launcher.models.server_settings import Value
from launcher.tuning.goal import Goal
from launcher.tuning.host_watch import BUSY_SHARE, HostWatch
from launcher.tuning.measuring_loop import (
    SecondsWaited,
    after_rounds,
    limit_time,
    send_prompts,
    serve_settings,
    visit_rounds,
)
from launcher.tuning.plan_of_trials import (
    FEWEST_PAIRS,
    MOST_CANDIDATES,
    MOST_PAIRS,
    MOST_PASSES,
    balanced_orders,
    best_passes,
    count_starts,
    first_ways,
    grace_s,
    most_explored,
    usual_explored,
)
from launcher.tuning.records import Bench, Prompt, Run, RunSettings
from launcher.tuning.search import Array, Assessment, Search
from launcher.tuning.space import DRAFTER, Key, Space, draft_length, settings_key, way_of
from launcher.tuning.statistics import Pair, mean_of_known, pairs_needed, speedup_among, swap_pair
from launcher.tuning.tune_state import Fault, Stage, Trial, TuneState, tune_identity
from launcher.tuning.verdict import (
    MARGIN,
    Answer,
    Comparison,
    Forecast,
    LikelyAnswer,
    PartAnswer,
    Verdict,
    explain_comparison,
    indistinguishable_sentence,
    likely_sentence,
    likely_verdict,
    recommendation_sentence,
    verdict_sentence,
)

# Events of a tune.


@dataclass(frozen=True, slots=True)
class TrialPlanned:
    """A trial begins. It is expected to take `expected_s` of the `left_s` seconds left in the budget."""

    number: int
    stage: Stage
    settings: RunSettings
    expected_s: float
    left_s: float


@dataclass(frozen=True, slots=True)
class TrialMeasured:
    """A trial is done. The tune can be continued from `state`."""

    trial: Trial
    state: TuneState

    @property
    def runs(self) -> tuple[Run, ...]:
        """The measured runs."""
        return self.trial.runs


@dataclass(frozen=True, slots=True)
class TrialFailed:
    """A trial gave no result: the settings could not be served, or too many replies failed. The tune goes on."""

    trial: Trial
    error: str
    state: TuneState


@dataclass(frozen=True, slots=True)
class Predicted:
    """Forecast of the goal's value at every draft length, with the other settings as in `settings`.

    `answer` is what would be recommended now; `sentence` says so.
    """

    settings: RunSettings
    forecasts: tuple[Forecast, ...]
    answer: LikelyAnswer
    sentence: str


@dataclass(frozen=True, slots=True)
class VerdictReached:
    """The tune is over."""

    verdict: Verdict
    state: TuneState


@dataclass(frozen=True, slots=True)
class Paused:
    """The tune was cancelled and can be continued from `state`. An unfinished trial is dropped."""

    state: TuneState


@dataclass(frozen=True, slots=True)
class QuietAwaited:
    """Other programs keep the processor busy, as `reason` says: the next trial waits for quiet, at most `most_s`."""

    most_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class QuietEnded:
    """The processor was watched for `waited_s`, also if it was quiet at once; the planned trial begins."""

    waited_s: float


@dataclass(frozen=True, slots=True)
class AnswersCompared:
    """After the verdict: a server with `settings`, as text, starts, whose answers are compared with others."""

    settings: str


@dataclass(frozen=True, slots=True)
class ClientsAwaited:
    """Clients use the server: the tune has waited for them, for `waited_s` in all so far. If `is_over`, it goes on."""

    waited_s: float
    is_over: bool = False


TuneEvent = (
    QuietAwaited
    | QuietEnded
    | ClientsAwaited
    | TrialPlanned
    | TrialMeasured
    | TrialFailed
    | Predicted
    | VerdictReached
    | AnswersCompared
    | Paused
)
OnEvent = Callable[[TuneEvent], None]


# One trial: a start, a discarded warm-up reply, then every prompt, with disturbed ones repeated.

_MOST_SPOILT = 0.3
"""Largest share of disturbed replies in a trial, though one is always allowed."""
_MEMORY_FIXES = {
    ActionKind.SMALLER_CONTEXT,
    ActionKind.OTHER_KV_TYPE,
    ActionKind.SMALLER_UBATCH,
    ActionKind.DRAFT_OFF,
    ActionKind.SHORTER_DRAFT,
    ActionKind.MORE_EXPERTS_ON_CPU,
    ActionKind.FREE_MEMORY,
}
"""Fixes that are suggested for a lack of memory."""


async def run_trial(
    bench: Bench,
    prompts: Sequence[Prompt],
    settings: RunSettings,
    *,
    number: int,
    stage: Stage,
    passes: int,
    seed: int,
    is_hopeless: Callable[[Run], bool] = lambda _: False,
) -> Trial:
    """Start with settings and send every prompt `passes` times, with `seed` and the following seeds.

    It ends after a reply for which `is_hopeless` is true, with the replies so far.

    If the start or a request fails, the trial has an error, and its runs are marked so that they do not count in the
    history either. Raises Superseded when another operation took the server.
    """
    began_s = bench.now_s()

    def build_trial(start_s: float, runs: Sequence[Run], error: str | None = None, fault: Fault = Fault.NONE) -> Trial:
        seconds = bench.now_s() - began_s
        if error is not None:
            runs = [replace(run, spoilt=error) if run.is_counted else run for run in runs]
        return Trial(number, stage, dict(settings), began_s, seconds, start_s, tuple(runs), error, fault)

    try:
        start_s = await serve_settings(bench, settings, prompts[0], seed, fresh=True)
    except Superseded:
        raise
    except LauncherError as error:
        lacks_memory = any(action.kind in _MEMORY_FIXES for action in error.actions)
        return build_trial(bench.now_s() - began_s, (), error.title, Fault.MEMORY if lacks_memory else Fault.FAILED)
    runs: list[Run] = []
    most_spoilt = max(1, _MOST_SPOILT * passes * len(prompts))

    def add_run(run: Run) -> bool:
        runs.append(run)
        return bool(_find_fault(runs, most_spoilt)) or is_hopeless(run)

    for number_of_pass, prompt in visit_rounds(prompts, after_rounds(passes), there_and_back=False):
        await send_prompts(bench, [prompt], seed, number_of_pass - 1, gives_up=add_run)
        if _find_fault(runs, most_spoilt) or is_hopeless(runs[-1]):
            break
    match fault := _find_fault(runs, most_spoilt):
        case Fault.FAILED:
            return build_trial(start_s, runs, runs[-1].error, fault)
        case Fault.SPOILT:
            why = join_messages(message("Too many of its runs were disturbed."), runs[-1].spoilt or "")
            return build_trial(start_s, runs, why, fault)
    return build_trial(start_s, runs)


def _find_fault(runs: Sequence[Run], most_spoilt: float) -> Fault:
    """Return why a trial is to be ended: its last run failed, or too many runs were disturbed.

    If many were disturbed, then probably also some of which it was not noticed.
    """
    if runs[-1].error is not None:
        return Fault.FAILED
    return Fault.SPOILT if sum(run.spoilt is not None for run in runs) > most_spoilt else Fault.NONE


# A tune in progress: its budget, its trials, and the rounds of trials that give pairs.

_USUAL_START_S, _USUAL_RUN_S = 10.0, 3.0
"""Seconds of a start and of a run that are assumed before the first trial."""
_HOPELESS = math.log(4)
"""A trial ends when a reply is worse by this than the best settings with the same prompt, as a logarithm.

No noise of a reply explains that, and such a trial may take longer than all others together.
"""
_MOST_EXTRA_ROUNDS = 2
"""The most extra rounds of a comparison, which replace failed or disturbed ones."""
_MOST_WAIT_S, _MOST_WAITING = 30.0, 0.1
"""The most seconds of one wait for a quiet processor, and most of all waits as a share of the budget."""
_TIME_UP = message("It ended because the time was up.")
_LEAST_LIMIT_S, _MOST_EXPECTED = 30.0, 4.0
"""A trial is ended after the longer of these seconds and this multiple of its expected time.

Otherwise one that hangs would take the whole rest of the budget. Replies that are slower by the multiple are hopeless.
"""
Pairs = dict[tuple[int, int], list[Pair]]
"""Pairs of two settings, by the indices of these in a list of settings."""


class TunedWorkload(Protocol):
    """A workload: its name and its prompts."""

    @property
    def name(self) -> str:
        """Name of the workload in the verdict."""
        ...

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """Prompts to send."""
        ...

    @property
    def parts(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the prompts of each part, if several workloads were joined."""
        ...


class _WentAnotherWay(Exception):
    """A continued tune would not run the next recorded trial: the free memory or the program's version differ."""


class TrialRunner:
    """Runs all trials of a tune within its budget. Those of the given `state` are replayed, not measured again."""

    def __init__(
        self,
        bench: Bench,
        space: Space,
        workload: TunedWorkload,
        goal: Goal,
        state: TuneState,
        on_event: OnEvent,
        host_watch: HostWatch | None = None,
        waited_s: SecondsWaited = lambda: 0.0,
        began_s: float | None = None,
    ) -> None:
        self.space, self.workload, self.goal, self.on_event = space, workload, goal, on_event
        self.state = replace(state, trials=state.trials[: state.known])
        names = [prompt.name for prompt in workload.prompts]
        self.weights = {prompt: 1 / len(prompts) for prompts in workload.parts.values() for prompt in prompts}
        """Weight of each prompt, so that each of several workloads counts the same. Empty for one workload."""
        self.search = Search(space, names, goal, state.seed, self.weights)
        self._best_scores: dict[str, float] = {}
        """The best mean score of each prompt in any trial."""
        for trial in self.trials:
            self._learn_trial(trial)
        self._bench, self._host_watch = bench, host_watch
        self._waited_s, self._waited_for_clients_s = 0.0, waited_s
        self._recorded = deque(state.trials[state.known :])
        self._passes = 1
        self._ended_s = bench.now_s() if began_s is None else began_s
        """When the last trial ended, by the bench's clock. What comes between two trials counts for the later one."""

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials so far."""
        return self.state.trials

    @property
    def budget_s(self) -> float:
        """Budget in seconds at this point of the tune."""
        done = len(self.trials)
        return [seconds for count, seconds in self.state.budgets if count <= done][-1]

    @property
    def left_s(self) -> float:
        """Seconds left in the budget."""
        return self.budget_s - self.state.used_s

    @property
    def trial_s(self) -> float:
        """Expected seconds of one more trial."""
        return self._start_s + (len(self.workload.prompts) * self._passes + 0.5) * self._run_s

    def trial_seconds(self, scores: Array) -> Array:
        """Return the expected seconds of a trial at each of some expected scores: slow settings take longer."""
        measured = [self.goal.run_score(run) for trial in self.trials for run in trial.runs]
        usual = mean_of_known(measured) or 0.0
        replies_s = len(self.workload.prompts) * self._passes * self._run_s
        return np.asarray(self._start_s + replies_s * np.exp(np.clip(usual - scores, -2, 2)))

    @property
    def trial_noise(self) -> float:
        """Expected standard deviation of a trial's score."""
        runs = len(self.workload.prompts) * self._passes
        return math.hypot(self.search.noise / math.sqrt(runs), self.search.start_noise)

    def can_afford(self, trials: int = 1) -> bool:
        """Return whether the budget has time for `trials` more trials."""
        return self.left_s >= trials * self.trial_s

    def choose_passes(self, trials: int) -> None:
        """Choose how often prompts are sent in one trial, from the cost and the spread of starts and runs.

        There is then time for the given number of further trials, if possible.
        """
        search = self.search
        self._passes = best_passes(
            self._start_s, self._run_s, search.noise, search.start_noise, len(self.workload.prompts)
        )
        while self._passes > 1 and not self.can_afford(trials):
            self._passes -= 1

    async def run_trial(self, settings: RunSettings, stage: Stage, seed: int | None = None) -> Trial:
        """Run one trial and add it to the state. The replies' seeds derive from `seed`, by default the trial's number.

        The trial is ended when it exceeds the budget by `grace_s`, or takes many times as long as the others, by the
        clock of the event loop without the waiting for clients.
        """
        number = len(self.trials)
        self.on_event(TrialPlanned(number, stage, settings, self.trial_s, self.left_s))
        trial = self._replay_trial(settings, stage)
        if trial is None:
            trial = await self._run_new_trial(number, settings, stage, number if seed is None else seed)
        self._ended_s = self._bench.now_s()
        self.state = self.state.with_trial(trial)
        self._learn_trial(trial)
        if trial.error is None:
            self.on_event(TrialMeasured(trial, self.state))
        else:
            self.on_event(TrialFailed(trial, trial.error, self.state))
        return trial

    def _learn_trial(self, trial: Trial) -> None:
        """Let the search learn from a trial."""
        self.search.add_trial(trial)
        for prompt, score in self._prompt_scores(trial).items():
            self._best_scores[prompt] = max(score, self._best_scores.get(prompt, score))

    async def _run_new_trial(self, number: int, settings: RunSettings, stage: Stage, seed: int) -> Trial:
        began_s = self._bench.now_s()
        most_s = max(self.left_s - (began_s - self._ended_s), 0.0) + grace_s(self.budget_s)
        error, fault = _TIME_UP, Fault.TIME
        usual_s = max(_LEAST_LIMIT_S, _MOST_EXPECTED * self.trial_s)
        if usual_s < most_s and any(not trial.error for trial in self.trials):
            most_s, fault = usual_s, Fault.FAILED
            error = message("It was ended after {seconds:.0f} s: it took far longer than expected.", seconds=most_s)
        limit: asyncio.Timeout | None = None
        try:
            async with limit_time(most_s, self._waited_for_clients_s) as limit:
                waited_s = await self._wait_for_quiet()
                trial = await run_trial(
                    self._bench,
                    self.workload.prompts,
                    settings,
                    number=number,
                    stage=stage,
                    passes=self._passes,
                    seed=(self.state.seed * 1_000 + seed) * MOST_PASSES,
                    is_hopeless=self._is_hopeless,
                )
        except TimeoutError:
            if limit is None or not limit.expired():
                raise
            waited_s, trial = 0.0, Trial(number, stage, dict(settings), began_s, most_s, 0.0, (), error, fault)
        others = self._host_watch.take_share() if self._host_watch else None
        seconds = max(trial.seconds + waited_s, self._bench.now_s() - self._ended_s)
        return replace(trial, seconds=seconds, others=others)

    async def _wait_for_quiet(self) -> float:
        """Wait until other programs leave the processor alone, for a limited part of the budget. Return the seconds."""
        if self._host_watch is None:
            return 0.0
        most_s = min(_MOST_WAIT_S, _MOST_WAITING * self.budget_s - self._waited_s)
        waited_s = await self._host_watch.wait_for_quiet(
            most_s, lambda reason: self.on_event(QuietAwaited(most_s, reason))
        )
        if waited_s:
            self.on_event(QuietEnded(waited_s))
        self._waited_s += waited_s
        return waited_s

    def _is_hopeless(self, run: Run) -> bool:
        """Return whether a reply shows that its settings cannot win: some settings are far better with this prompt."""
        score, best = self.goal.run_score(run), self._best_scores.get(run.prompt)
        return score is not None and best is not None and score < best - _HOPELESS

    async def run_rounds(self, stage: Stage, settings: Sequence[RunSettings], orders: Sequence[Sequence[int]]) -> Pairs:
        """Run a round of trials for each order, and return a pair for each two settings of the same round.

        An order is a list of indices of `settings`. Ends early when the budget is used up. A few extra rounds replace
        pairs that were lost to failures.
        """
        pairs: Pairs = {(a, b): [] for b in range(len(settings)) for a in range(b)}
        for order in orders:
            await self._run_round(stage, settings, order, pairs)
        for _ in range(_MOST_EXTRA_ROUNDS):
            if min(map(len, pairs.values())) >= len(orders):
                break
            await self._run_round(stage, settings, range(len(settings)), pairs)
        return pairs

    async def _run_round(
        self, stage: Stage, settings: Sequence[RunSettings], order: Sequence[int], pairs: Pairs
    ) -> None:
        """Run one trial for each index in `order`, and add their pairs to `pairs`. Does nothing if time is short."""
        if not self.can_afford(len(order)):
            return
        seed = len(self.trials)
        done: list[tuple[int, dict[str, float]]] = []
        for index in order:
            if self.left_s <= 0:  # trials took longer than expected
                break
            trial = await self._run_undisturbed(settings[index], stage, seed)
            done.append((index, self._prompt_scores(trial)))
        for later, (second, after) in enumerate(done):
            for first, before in done[:later]:
                ratio = _log_ratio(before, after, self.weights)
                if ratio is not None:
                    a, b = min(first, second), max(first, second)
                    pairs[a, b].append(Pair(1.0, math.exp(ratio if first == a else -ratio), first == a))

    async def _run_undisturbed(self, settings: RunSettings, stage: Stage, seed: int) -> Trial:
        """Run a trial, and repeat it once if it was disturbed."""
        trial = await self.run_trial(settings, stage, seed)
        if trial.fault is Fault.SPOILT and self.can_afford():
            trial = await self.run_trial(settings, stage, seed)
        return trial

    def _prompt_scores(self, trial: Trial) -> dict[str, float]:
        """Return the mean score of each prompt. Empty for a failed trial."""
        if trial.error is not None:
            return {}
        by_prompt: dict[str, list[float]] = {}
        for run in trial.runs:
            score = self.goal.run_score(run)
            if score is not None:
                by_prompt.setdefault(run.prompt, []).append(score)
        return {prompt: statistics.fmean(scores) for prompt, scores in by_prompt.items()}

    def _replay_trial(self, settings: RunSettings, stage: Stage) -> Trial | None:
        """Return the next recorded trial of a continued tune. None if a new one is needed.

        Raises _WentAnotherWay if the recorded trial has other settings.
        """
        if not self._recorded:
            return None
        trial = self._recorded.popleft()
        if settings_key(trial.settings) != settings_key(settings) or trial.stage is not stage:
            raise _WentAnotherWay
        return trial

    @property
    def _start_s(self) -> float:
        seconds = [trial.start_s for trial in self.trials if trial.start_s and not trial.error]
        return statistics.fmean(seconds) if seconds else _USUAL_START_S

    @property
    def _run_s(self) -> float:
        seconds = [run.wall_s for trial in self.trials for run in trial.runs]
        return statistics.fmean(seconds) if seconds else _USUAL_RUN_S


def _log_ratio(before: dict[str, float], after: dict[str, float], weights: Mapping[str, float]) -> float | None:
    """Return the mean score of `after` less that of `before`, over the prompts that both have. None without any."""
    shared = sorted(before.keys() & after.keys())
    if not shared:
        return None
    of_shared = [weights[prompt] for prompt in shared] if weights else None
    return statistics.fmean((after[prompt] - before[prompt] for prompt in shared), of_shared)


# Questions about the best settings, answered from pairs of measurements.

ERROR = 0.05
"""Allowed probability of a wrong claim."""
_FEWEST = 3
"""The fewest pairs for an interval."""


class ComparedPairs:
    """All pairs of settings that were compared, in all rounds so far."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[Key, Key], list[Pair]] = {}

    def add_pairs(self, settings: Sequence[RunSettings], pairs: Pairs) -> None:
        """Add the pairs of some rounds."""
        for (a, b), added in pairs.items():
            one, other = settings_key(settings[a]), settings_key(settings[b])
            if (other, one) in self._pairs:
                self._pairs[other, one] += [swap_pair(pair) for pair in added]
            else:
                self._pairs.setdefault((one, other), []).extend(added)

    def compare_settings(self, candidate: RunSettings, against: RunSettings, confidence: float) -> Comparison | None:
        """Return the comparison of two settings, with the pooled spread of all comparisons. None with too few pairs."""
        one, other = settings_key(against), settings_key(candidate)
        pairs = self._pairs.get((one, other)) or [swap_pair(pair) for pair in self._pairs.get((other, one), ())]
        if len(pairs) < _FEWEST:
            return None
        ratio = speedup_among(pairs, list(self._pairs.values()), confidence)
        return Comparison(candidate, against, ratio, confidence)


@dataclass(eq=False)
class Question:
    """Whether a candidate is better than other settings. `answer` is None while undecided.

    `comparison` is the latest one of the two, None if there were too few pairs.
    """

    candidate: RunSettings
    against: RunSettings
    comparison: Comparison | None = None
    answer: bool | None = None

    def update_answer(self, measured: ComparedPairs, confidence: float) -> None:
        """Update the answer from all pairs so far."""
        self.comparison = measured.compare_settings(self.candidate, self.against, confidence) or self.comparison
        if self.comparison is not None and (self.comparison.no_better or self.comparison.better):
            self.answer = self.comparison.better


@dataclass(frozen=True)
class Questions:
    """Questions of a tune: whether MTP is better (None if it cannot be served), and what beats the baseline."""

    mtp: Question | None
    gains: tuple[Question, ...] = ()

    def open_questions(self) -> list[Question]:
        """Return the undecided questions that still matter.

        Once it is decided whether MTP is better, gains of the other kind of settings no longer matter.
        """
        mtp_on = self.mtp.answer if self.mtp else False
        relevant = [each for each in self.gains if mtp_on is None or bool(draft_length(each.candidate)) is mtp_on]
        if self.mtp:
            relevant.insert(0, self.mtp)
        return [each for each in relevant if each.answer is None]

    def all_questions(self) -> list[Question]:
        """Return all questions, the one about MTP first."""
        return [*([self.mtp] if self.mtp else []), *self.gains]


# First half of a tune: a few draft lengths, then the most promising settings, until the best is known.

_ENOUGH_REGRET = 0.002
"""Exploring ends when the expected regret, as a logarithm, is below this."""
_ENOUGH_PRECISION = 0.021
"""Exploring ends when the standard deviation of every forecast's logarithm is below this."""
_MOST_OF_BUDGET = 0.5
"""Largest share of the budget for exploring before the comparison, if the rest suffices for one."""
_SPARE_STARTS = 2
"""Starts of the comparison that may fail, for which exploring leaves time."""
_EARLY_CHANCE = 0.98
"""From this probability the first answer does not wait for the last of the first four trials."""
_MOST_FAILURES, _PATIENCE_S = 3, 180.0
"""The most failed starts of the baseline, and the most seconds of disturbed ones."""
_LEAST_MORE_TRIALS = 1 + count_starts(balanced_orders(FEWEST_PAIRS, 1))
"""The fewest further trials for a verdict once the baseline is measured: one of a draft length, and pairs of the two.
"""


async def probe_drafts(runner: TrialRunner) -> bool:
    """Measure the baseline, and the first ways to draft: see `first_ways`.

    Returns whether the baseline was measured in time. A draft length that cannot be served is replaced by the next
    shorter one. If the time of the baseline shows that the budget is too small for one more trial, nothing else
    is tried.
    Raises NothingMeasured when the baseline cannot be measured at all.
    """
    if not _is_measured(runner, runner.space.baseline_settings()) and not await _measure_baseline(runner):
        return False
    if runner.can_afford():
        for way in first_ways(runner.space):
            tried = {way_of(trial.settings) for trial in runner.trials}  # the baseline may take several trials
            forecast = await asyncio.to_thread(_make_forecast, runner) if len(tried) > 2 else None
            if forecast and (forecast.answer.chance or 0.0) >= _EARLY_CHANCE:
                runner.on_event(forecast)
            if way not in {way_of(trial.settings) for trial in runner.trials if not trial.error}:
                await _probe_way(runner, way)
        await _report_forecast(runner)
    return True


async def explore_settings(runner: TrialRunner) -> None:
    """Try promising settings until little can be gained.

    After the usual number of them it also ends when half of the time is over, because the rest is then better spent on
    direct comparisons, and after `most_explored`, because with very quick trials the budget would allow far too many.
    """
    usual, reserve = usual_explored(runner.space), count_starts(balanced_orders(FEWEST_PAIRS, MOST_CANDIDATES))
    await _try_settings(runner, usual, until_s=runner.budget_s)
    await _try_settings(
        runner,
        most_explored(runner.space) - usual,
        reserve=reserve + _SPARE_STARTS,
        until_s=_MOST_OF_BUDGET * runner.budget_s,
    )
    await _report_forecast(runner)


async def _try_settings(runner: TrialRunner, most: int, *, until_s: float, reserve: int = 0) -> None:
    """Try at most `most` promising settings, until little can be gained or the time is over.

    Time for `reserve` further trials is left. It is over after `until_s` seconds of the tune.
    """
    while most:
        runner.choose_passes(reserve + 1)
        if not runner.can_afford(reserve + 1) or runner.state.used_s >= until_s:
            break
        wanted = await asyncio.to_thread(_choose_next, runner)
        if wanted is None:
            break
        trial = await runner.run_trial(wanted, Stage.EXPLORE)
        most -= trial.error is None


def _choose_next(runner: TrialRunner) -> RunSettings | None:
    """Return the settings to try next. None when enough is known."""
    assessment = runner.search.assess_settings()
    if assessment.regret >= _ENOUGH_REGRET:
        return runner.search.choose_next(assessment, runner.trial_noise, runner.trial_seconds(assessment.mean))
    return _least_known_draft(runner, assessment)


async def _report_forecast(runner: TrialRunner) -> None:
    """Report the forecast at every draft length, with the other settings of the best ones."""
    runner.on_event(await asyncio.to_thread(_make_forecast, runner))


def _make_forecast(runner: TrialRunner) -> Predicted:
    assessment = runner.search.assess_settings()
    settings = _best_with_mtp(runner, assessment)
    answer = runner.search.choose_answer(assessment)
    sentence = likely_sentence(answer, runner.goal, runner.workload.name, disturbed=_count_disturbed(runner) > 0)
    return Predicted(settings, runner.search.forecast_drafts(assessment, settings), answer, sentence)


def _is_measured(runner: TrialRunner, settings: RunSettings) -> bool:
    """Return whether a trial of these settings has a usable reply."""
    return any(
        runner.goal.run_value(run) is not None for trial in _trials_with(runner.trials, settings) for run in trial.runs
    )


async def _measure_baseline(runner: TrialRunner) -> bool:
    """Run the baseline until it is measured. Returns whether it was in time. See `probe_drafts`."""
    failures, spoilt_s = 0, 0.0
    while failures < _MOST_FAILURES and spoilt_s < _PATIENCE_S and (runner.left_s > 0 or not runner.trials):
        trial = await runner.run_trial(runner.space.baseline_settings(), Stage.PROBE)
        if _is_measured(runner, trial.settings):
            return True
        failures += trial.fault not in {Fault.SPOILT, Fault.TIME}
        spoilt_s += trial.seconds if trial.fault is Fault.SPOILT else 0.0
    if trial.fault is Fault.TIME:
        return False
    why = trial.error or next((run.spoilt for run in trial.runs if run.spoilt), None)
    why = why or message("Its replies do not report {unit}.", unit=runner.goal.unit)
    raise NothingMeasured(
        join_messages(message("The settings with MTP off cannot be measured."), why),
        message("Start the server with them first, then tune."),
    )


async def _probe_way(runner: TrialRunner, way: tuple[Value, int]) -> None:
    """Measure a drafter with a draft length, or with the next shorter one that fits and starts."""
    drafter, length = way
    for draft in (each for each in reversed(runner.space.lengths(drafter)) if each <= length):
        settings = runner.search.nearest_to_baseline(draft, drafter)
        if settings is None:
            continue
        if not runner.can_afford():
            return
        trial = await runner.run_trial(settings, Stage.PROBE)
        if trial.fault in {Fault.NONE, Fault.SPOILT}:
            return


def _best_with_mtp(runner: TrialRunner, assessment: Assessment) -> RunSettings:
    """Return the best settings with MTP, or the best of all if none with MTP are left."""
    search, mean = runner.search, assessment.mean
    on = [i for i, settings in enumerate(search.grid) if draft_length(settings) and not search.excluded[i]]
    return search.grid[max(on, key=lambda i: mean[i], default=assessment.best)]


def _least_known_draft(runner: TrialRunner, assessment: Assessment) -> RunSettings | None:
    """Return the best settings with the draft length of the most uncertain forecast. None if all are precise enough."""
    search = runner.search
    best = _best_with_mtp(runner, assessment)
    indices = [i for draft in (0, *runner.space.drafts) if (i := search.index_with_draft(best, draft)) is not None]
    spreads = np.std(assessment.scores[:, indices], axis=0)
    worst = int(spreads.argmax())
    return search.grid[indices[worst]] if spreads[worst] > _ENOUGH_PRECISION else None


# Verdict of a tune from its questions and their answers.

_ANSWERS: dict[bool | None, Answer] = {True: "on", False: "off", None: "undecided"}
_RIVAL_CHANCE = 0.05
"""Other ways to draft with at least this probability of being better are named as not distinguishable."""


def build_verdict(runner: TrialRunner, questions: Questions) -> Verdict:
    """Return the verdict, with its figures and sentences."""
    goal, baseline, mtp = runner.goal, runner.space.baseline_settings(), questions.mtp
    best, gain = _confirmed_best(runner, questions)
    answer: Answer = "off" if mtp is None else _ANSWERS[mtp.answer]
    compared = mtp.comparison if mtp else None
    # MTP is better than no MTP, but not better than the baseline.
    if mtp is not None and answer == "on" and gain is None:
        answer = "undecided"
        compared = next((each.comparison for each in questions.gains if each.candidate is mtp.candidate), None)
    more, values, because = [], None, _why_not_served(runner)
    lost = [] if mtp is None or compared else _failed_comparisons(runner)
    if mtp is not None:
        on, off = _trials_with(runner.trials, mtp.candidate), _trials_with(runner.trials, mtp.against)
        because = explain_comparison(on, off, {} if answer == "on" else _unfit_settings(runner, mtp))
        if compared is None:
            because = _why_comparison_failed(runner, lost) if lost else _needed_time_sentence(runner)
        values = _compared_values(runner, compared) if compared and on and off else None
        rivals = _indistinguishable_ways(runner, mtp.candidate) if answer == "on" else []
        if rivals:
            more.append(indistinguishable_sentence(mtp.candidate, rivals))
    if gain is not None and (mtp is None or answer != "on" or settings_key(mtp.against) != settings_key(baseline)):
        more.append(recommendation_sentence(gain, goal))
    forecast_settings, assessment = mtp.candidate if mtp else best, runner.search.assess_settings()
    return Verdict(
        mtp=answer,
        settings=best,
        speedup=compared.ratio.estimate if compared else None,
        ci_low=compared.ratio.low if compared else None,
        ci_high=compared.ratio.high if compared else None,
        confidence=compared.confidence if compared else 1 - ERROR,
        sentence=verdict_sentence(
            answer,
            goal,
            runner.workload.name,
            compared,
            values,
            more,
            runner.state.used_s,
            lost=bool(lost),
            disturbed=_count_disturbed(runner),
        ),
        because=because,
        gain=gain,
        forecast_settings=forecast_settings,
        forecasts=runner.search.forecast_drafts(assessment, forecast_settings),
        drafters=runner.search.forecast_drafters(assessment),
        trials=runner.trials,
        unit=goal.unit,
    )


def verdict_without_baseline(runner: TrialRunner) -> Verdict:
    """Return the verdict of a tune whose budget did not even suffice for the baseline."""
    off = runner.space.baseline_settings()
    minutes = max(1, round(runner.state.used_s / 60))
    return Verdict(
        mtp="undecided",
        settings=off,
        speedup=None,
        ci_low=None,
        ci_high=None,
        confidence=1 - ERROR,
        sentence=verdict_sentence("undecided", runner.goal, runner.workload.name, None, None),
        because=message("The first trial, with MTP off, was not finished after {minutes} min.", minutes=minutes),
        gain=None,
        forecast_settings=off,
        forecasts=(),
        trials=runner.trials,
        unit=runner.goal.unit,
    )


def _confirmed_best(runner: TrialRunner, questions: Questions) -> tuple[RunSettings, Comparison | None]:
    """Return the best settings that were confirmed to beat the baseline, with the comparison; else the baseline."""
    baseline, mtp = runner.space.baseline_settings(), questions.mtp
    against_baseline = list(questions.gains)
    if mtp is not None and settings_key(mtp.against) == settings_key(baseline):
        against_baseline.insert(0, mtp)
    confirmed = [each for each in against_baseline if each.answer]
    if mtp is not None and mtp.answer is not None:
        confirmed = [each for each in confirmed if bool(draft_length(each.candidate)) is mtp.answer]
    if not confirmed:
        return baseline, None
    mean = runner.search.assess_settings().mean
    best = max(confirmed, key=lambda each: mean[runner.search.find_index(each.candidate)])
    return best.candidate, best.comparison


def _indistinguishable_ways(runner: TrialRunner, best: RunSettings) -> list[RunSettings]:
    """Return the same settings with other draft lengths, or the best length of another drafter, if they may be as good
    by all measurements.
    """
    search = runner.search
    scores = search.assess_settings().scores
    best_scores = scores[:, search.find_index(best)]
    found = []
    for drafter in runner.space.drafters:
        is_own = drafter == best.get(DRAFTER)
        settings = best if is_own else {**best, DRAFTER: drafter}
        indices = [search.index_with_draft(settings, draft) for draft in runner.space.drafts]
        others = [i for i in indices if i is not None and search.grid[i] != best]
        others = others if is_own else sorted(others, key=lambda i: -scores[:, i].mean())[:1]
        found += [i for i in others if float((scores[:, i] >= best_scores).mean()) >= _RIVAL_CHANCE]
    return [search.grid[i] for i in found]


def _unfit_settings(runner: TrialRunner, mtp: Question) -> RunSettings:
    """Return the memory settings of the candidate without MTP that do not fit or start with MTP's draft length."""
    if runner.search.index_with_draft(mtp.against, draft_length(mtp.candidate)) is not None:
        return {}
    names = {axis.name for axis in runner.space.axes if axis.memory}
    return {name: value for name, value in mtp.against.items() if name in names and mtp.candidate[name] != value}


def _count_disturbed(runner: TrialRunner) -> int:
    """Return the number of trials that were disturbed."""
    return sum(trial.fault is Fault.SPOILT for trial in runner.trials)


def _failed_comparisons(runner: TrialRunner) -> list[Trial]:
    """Return the trials of comparisons that failed although there was time for them."""
    return [trial for trial in _comparison_trials(runner.trials) if trial.error and trial.fault is not Fault.TIME]


def _why_comparison_failed(runner: TrialRunner, lost: Sequence[Trial]) -> str:
    comparison = _comparison_trials(runner.trials)
    return join_messages(
        message("{lost} of {fresh} comparison starts gave no result.", lost=len(lost), fresh=len(comparison)),
        lost[-1].error or "",
    )


def _comparison_trials(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.stage in (Stage.VERIFY, Stage.CONFIRM)]


def _describe_load(runner: TrialRunner) -> Message | None:
    """Return a sentence about the trials during which others used the processor. None if there were none."""
    known = [trial.others for trial in runner.trials if trial.others is not None]
    busy = [share for share in known if share >= BUSY_SHARE]
    if not busy:
        return None
    return message(
        "Other programs used {percent:.0f} % of the processor in {busy} of {known} trials, so the figures are less"
        " certain.",
        percent=100 * statistics.fmean(busy),
        busy=len(busy),
        known=len(known),
    )


def _needed_time_sentence(runner: TrialRunner) -> str:
    """Return a sentence about the least time for a verdict, at the measured speed."""
    minutes = math.ceil((runner.trials[0].seconds + _LEAST_MORE_TRIALS * runner.trial_s) / 60)
    return message(
        "A trial takes {visit_s:.0f} s here, and a comparison needs at least {least_more} trials ({minutes} min).",
        visit_s=runner.trial_s,
        least_more=1 + _LEAST_MORE_TRIALS,
        minutes=minutes,
    )


def _why_not_served(runner: TrialRunner) -> str:
    errors = [trial.error for trial in runner.trials if trial.error and draft_length(trial.settings)]
    return errors[-1] if errors else message("No draft length fits into memory with these settings.")


def _trials_with(trials: Sequence[Trial], settings: RunSettings) -> list[Trial]:
    return [trial for trial in trials if trial.error is None and settings_key(trial.settings) == settings_key(settings)]


def _compared_values(runner: TrialRunner, compared: Comparison) -> tuple[float, float] | None:
    """Return the goal's values with MTP and without, whose ratio is exactly that of the comparison.

    Their geometric mean is that of the measured values. None if one side was not measured.
    """
    scores = [_mean_score(runner, settings) for settings in (compared.candidate, compared.against)]
    known = [score for score in scores if score is not None]
    if len(known) < 2:
        return None
    level, half = statistics.fmean(known), math.log(compared.ratio.estimate) / 2
    return runner.goal.value_from_score(level + half), runner.goal.value_from_score(level - half)


def _mean_score(runner: TrialRunner, settings: RunSettings) -> float | None:
    """Return the mean score over the comparison's starts, or over all starts if there were none."""
    trials = _trials_with(runner.trials, settings)
    runs = [run for trial in _comparison_trials(trials) or trials for run in trial.runs]
    known = [(score, run.prompt) for run in runs if (score := runner.goal.run_score(run)) is not None]
    weights = [runner.weights.get(prompt, 1.0) for _, prompt in known]
    return statistics.fmean([score for score, _ in known], weights) if known else None


# Second half of a tune: the best with MTP, the best without and the baseline, compared with each other.

# The pairs are evaluated at a few interim analyses, called looks, as in a group sequential test.

_FIRST_LOOKS = (0.5, 0.3)
"""Shares of the error probability for the first looks; each later look uses half of the rest."""
_LEAST_GAIN_WITHOUT_MTP, _LEAST_CHANCE_WITHOUT_MTP = 0.01, 0.02
"""Other settings without MTP are compared if they are expected to beat the baseline by at least the first figure, and
to beat the best settings with MTP with at least the second as probability."""


async def decide_verdict(runner: TrialRunner) -> Verdict:
    """Choose candidates, compare them, and return the verdict."""
    baseline = runner.space.baseline_settings()
    on, off = await asyncio.to_thread(choose_candidates, runner)
    mtp = Question(on, off or baseline) if on is not None else None
    gains = [] if off is None else [Question(each, baseline) for each in (off, on) if each is not None]
    questions = Questions(mtp, tuple(gains))
    await _answer_questions(runner, questions)
    verdict = await asyncio.to_thread(build_verdict, runner, questions)
    if verdict.mtp != "undecided":
        return verdict
    explored = sum(trial.stage is Stage.EXPLORE for trial in runner.trials)
    await _try_settings(runner, max(0, most_explored(runner.space) - explored), until_s=runner.budget_s)
    return await asyncio.to_thread(_add_forecast, runner, verdict)


def _add_forecast(runner: TrialRunner, verdict: Verdict) -> Verdict:
    """Return an undecided verdict with the answer of the forecast, if that is clear."""
    answer = runner.search.choose_answer(runner.search.assess_settings())
    verdict = replace(verdict, trials=runner.trials)
    return likely_verdict(verdict, answer, runner.goal, runner.workload.name)


def choose_candidates(runner: TrialRunner) -> tuple[RunSettings | None, RunSettings | None]:
    """Return the best settings with MTP, and the best without.

    The first is None if nothing with MTP is left, the second if it is the baseline or has no chance to be recommended.
    """
    search = runner.search
    assessment, grid = search.assess_settings(), search.grid
    scores, mean = assessment.scores, assessment.mean
    allowed = [i for i in range(len(grid)) if not search.excluded[i]]
    off = max((i for i in allowed if not draft_length(grid[i])), key=lambda i: mean[i])
    on = max((i for i in allowed if draft_length(grid[i])), key=lambda i: mean[i], default=None)
    beats_baseline = mean[off] - mean[0] > _LEAST_GAIN_WITHOUT_MTP
    has_chance = on is None or float((scores[:, off] >= scores[:, on]).mean()) > _LEAST_CHANCE_WITHOUT_MTP
    return None if on is None else grid[on], grid[off] if beats_baseline and has_chance else None


def error_share(number: int) -> float:
    """Return the share of the error probability for a look, counted from 0. All shares sum to at most 1."""
    later = number - len(_FIRST_LOOKS)
    return _FIRST_LOOKS[number] if later < 0 else (1 - sum(_FIRST_LOOKS)) / 2 ** (later + 1)


async def _answer_questions(runner: TrialRunner, questions: Questions) -> None:
    """Answer questions with new pairs, in up to three looks, and one more each time the tune is continued.

    The number of pairs for the first look is fixed before the first is measured, from the expected spread and
    difference; the later looks add as many, then twice as many each. The looks share the error probability, so stopping
    early does not bias the verdict; nor does the choice of candidates, because the pairs are new.
    """
    measured, wanted = ComparedPairs(), 0
    for number in range(len(_FIRST_LOOKS) + len(runner.state.budgets)):
        undecided = questions.open_questions()
        if not undecided:
            return
        confidence = 1 - ERROR * error_share(number) / len(questions.all_questions())
        settings = _compared_settings(undecided)
        runner.choose_passes(FEWEST_PAIRS * len(settings))
        if number == 0:
            wanted = await asyncio.to_thread(_pairs_wanted, runner, undecided, confidence)
        elif number > 1:
            wanted *= 2
        affordable = 2 * int(runner.left_s / runner.trial_s / len(settings) / 2)
        if affordable < (FEWEST_PAIRS if number == 0 else 2):
            return
        orders = balanced_orders(min(wanted, affordable), len(settings) - 1)
        stage = Stage.CONFIRM if number else Stage.VERIFY
        measured.add_pairs(settings, await runner.run_rounds(stage, settings, orders))
        for question in undecided:
            question.update_answer(measured, confidence)


def _pairs_wanted(runner: TrialRunner, questions: Sequence[Question], confidence: float) -> int:
    """Return how many pairs are needed to show the smallest of the expected differences."""
    spread = math.sqrt(2) * runner.trial_noise
    effects = [max(abs(_expected_difference(runner, each.candidate, each.against)), MARGIN) for each in questions]
    return min(pairs_needed(spread, min(effects), confidence=confidence), MOST_PAIRS)


def _compared_settings(questions: Sequence[Question]) -> list[RunSettings]:
    """Return all settings of the questions without duplicates, candidates last."""
    both = [*(each.against for each in questions), *(each.candidate for each in questions)]
    return list({settings_key(settings): settings for settings in both}.values())


def _expected_difference(runner: TrialRunner, one: RunSettings, other: RunSettings) -> float:
    """Return the expected difference of two settings' scores, from all measurements."""
    mean = runner.search.assess_settings().mean
    return float(mean[runner.search.find_index(one)] - mean[runner.search.find_index(other)])


async def tune(
    bench: Bench,
    space: Space,
    workload: TunedWorkload,
    goal: Goal,
    budget_s: float,
    *,
    on_event: OnEvent = lambda _: None,
    resume: TuneState | None = None,
    seed: int = 0,
    host_watch: HostWatch | None = None,
    waited_s: SecondsWaited = lambda: 0.0,
    began_s: float | None = None,
) -> Verdict:
    """Find the best settings of `space` for the workload and the goal, within `budget_s` of the bench's time.

    Cancellation pauses the tune: a Paused event has the state from which a later call can `resume` it. `budget_s` then
    counts from the beginning of the tune, so it must be larger if it was used up. Superseded, raised when another
    operation takes the server, pauses it as well. Settings that cannot be served do not end the tune. Raises
    NothingMeasured when the baseline itself cannot be measured, and TuneMismatch for the state of another tune.
    `waited_s` returns the seconds for which the bench has waited for clients. The time from `began_s` on, by the
    bench's clock, belongs to the budget; by default from now on.
    """
    identity = tune_identity(space, workload.name, workload.prompts, goal)
    if resume is not None and resume.about != identity:
        raise TuneMismatch(
            message("This tune was started with other settings, another workload or another goal."),
            message("Start a new tune."),
        )
    state = resume or TuneState(identity, seed, ())
    state = replace(state, budgets=(*state.budgets, (len(state.trials), budget_s)))
    runner = TrialRunner(bench, space, workload, goal, state, on_event, host_watch, waited_s, began_s)
    try:
        try:
            verdict = await _run_stages(runner)
        except _WentAnotherWay:
            state = replace(state, known=len(state.trials))
            runner = TrialRunner(bench, space, workload, goal, state, on_event, host_watch, waited_s)
            verdict = await _run_stages(runner)
    except (asyncio.CancelledError, Superseded):
        on_event(Paused(runner.state))
        raise
    on_event(VerdictReached(verdict, runner.state))
    return verdict


async def _run_stages(runner: TrialRunner) -> Verdict:
    """Run all stages of a tune."""
    if await probe_drafts(runner):
        await explore_settings(runner)
        verdict = await decide_verdict(runner)
    else:
        verdict = verdict_without_baseline(runner)
    parts = await asyncio.to_thread(_answer_parts, runner)
    return replace(
        verdict,
        because=join_messages(verdict.because, _describe_load(runner)),
        parts=parts,
    )


def _answer_parts(runner: TrialRunner) -> tuple[PartAnswer, ...]:
    """Return the forecast for each of several workloads, from all trials: each start has measured all of them."""
    if not _is_measured(runner, runner.space.baseline_settings()):
        return ()
    answers = []
    for name, prompts in runner.workload.parts.items():
        answer = runner.search.choose_answer(runner.search.assess_settings(prompts))
        disturbed = _count_disturbed(runner) > 0
        answers.append(PartAnswer(name, answer, likely_sentence(answer, runner.goal, name, disturbed=disturbed)))
    return tuple(answers)
