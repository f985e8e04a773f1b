"""Passive advice: compare other draft lengths and drafters with those in use, from counters of real use.

The tokens per step of a shorter draft follow from the counted acceptance by position. A longer draft also needs the
acceptance rates of further positions: they come from measurements of this machine, lowered by the ratio at which real
use falls short of them. So do all rates of another drafter. The time of a step also comes from measurements. There is
no advice if either is unknown or if nothing is clearly faster.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import fmean
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from launcher.base.action import Action, ActionKind
from launcher.base.messages import message
from launcher.models.drafters import MTP, NO_DRAFTS, DraftChoice, Drafter, choice_in, choose_drafts
from launcher.models.server_settings import DRAFTING
from launcher.monitor.health_event import Finding, FindingCode, FindingLevel
from launcher.tuning.goal import Goal
from launcher.tuning.predict import (
    CostPoint,
    CostSurface,
    PositionCounts,
    acceptance_rates,
    add_counts,
    count_positions,
    tokens_per_step,
)
from launcher.tuning.records import Run, RunSettings
from launcher.tuning.space import DRAFT, Space, SpaceAxis
from launcher.tuning.statistics import Interval
from launcher.tuning.use_counts import FEWEST_STEPS, UseCounts

_FEWEST_RUNS = 3
_CLEAR_GAIN = 1.03
"""Expected ratio from which a gain of 95 % confidence is worth a restart."""
_MOST_RATIO = 2.0
"""Largest ratio between the step times of real use and of measurements, in either direction: in real use contexts are
fuller."""
_NEUTRAL = {"p_min": (None, 0, 0.0), "draft_sampling": (None, "greedy"), "ngram": (None, "none")}
"""Settings that change draft acceptance, each with the values that leave it unchanged."""
_CORRELATED_STEPS = 2.0
"""Steps of one reply are similar, so this many of them count as one independent step (as in predict.py)."""
_UNSEEN, _OTHER = 0.1, 0.15
"""Standard deviations of expected drafts, as shares: in positions beyond those in use, and of another drafter.

Published drafts of two drafters for the same kind of text differ by 0.05 to 0.15 (presets/evidence/acceptance.csv).
"""
_USUAL_NOISE, _START_NOISE, _MOST_NOISE = 0.05, 0.005, 0.25
"""Standard deviations of the logarithm of a step's time: of a reply where it is not known, of a start, and that of
replies from which they tell nothing."""
_DRAWS = 256
_REACH, _TINY = 1.645, 1e-9
"""Standard deviations by which a gain is at least above its bound, with 95 % confidence."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Other drafts than those in use: by `drafter`, of length `better` instead of `draft` by `used`; 0 is off.

    `ratio` is how many times as fast they would have been over the last `tokens` reply tokens, and at least how many
    with 95 % confidence. Besides what is faster, advice may be to undo a change that was slower, or to look how drafts
    that are off would do.
    """

    draft: int
    better: int
    ratio: Interval
    tokens: int
    drafter: Drafter = MTP
    used: Drafter = MTP
    reason: Literal["faster", "undo", "look"] = "faster"

    @property
    def choice(self) -> DraftChoice:
        """What is advised."""
        return choose_drafts(self.drafter, self.better)

    @property
    def what(self) -> str:
        """What is advised, in few words."""
        if not self.better:
            return message("No MTP") if self.used.uses_head else message("No drafts")
        return message("Draft {draft}", draft=self.choice.number)

    @property
    def sentence(self) -> str:
        """The advice as a sentence for users."""
        return message(
            "{what} would have been about {percent:.0f} % faster, at least {low:.0f} % with 95 % confidence, than "
            "draft {draft} over your last {tokens_text} tokens.",
            what=self.what,
            percent=100 * (self.ratio.estimate - 1),
            low=100 * (self.ratio.low - 1),
            draft=choose_drafts(self.used, self.draft).number,
            tokens_text=self.tokens_text,
        )

    @property
    def change_sentence(self) -> str:
        """What to say when it is followed."""
        if self.reason == "look":
            return message("{what} for a while, to see how many drafts are accepted now.", what=self.what)
        if self.reason == "undo":
            return message("{what} again. {why}", what=self.what, why=self.sentence)
        return message("{what} from now on. {why}", what=self.what, why=self.sentence)

    @property
    def action(self) -> Action:
        """The fix that follows the advice."""
        values = {name: value for name, value in self.choice.as_settings("").items() if value is not None}
        return Action(ActionKind.OTHER_DRAFTS, message("Use {drafts}", drafts=self.choice.label()), values)

    @property
    def finding(self) -> Finding:
        """The advice as a finding."""
        evidence = {"percent": 100 * (self.ratio.estimate - 1), "low_percent": 100 * (self.ratio.low - 1)}
        return Finding(FindingCode.OTHER_DRAFTS, self.sentence, evidence, self.action, FindingLevel.INFORMATION)

    @property
    def tokens_text(self) -> str:
        """The number of tokens, rounded to two significant digits."""
        digits = max(0, len(str(self.tokens)) - 2)
        return f"{round(self.tokens, -digits):,}"


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured with other drafts: the time of a step, and acceptance rates of each drafter by position.

    `times` are the logarithms of seconds per step: random draws of the model of a tune (CostSurface), so that lengths
    between measured ones are known, too, less surely. `runs` counts the replies with each choice.
    """

    times: Mapping[DraftChoice, NDArray[np.float64]]
    rates: Mapping[Drafter, Sequence[float]]
    runs: Mapping[DraftChoice, int]

    @classmethod
    def from_runs(cls, settings: RunSettings, runs: Sequence[Run]) -> Self:
        """Return what was measured by runs that differ from `settings` in the drafts only."""
        comparable = [
            run
            for run in sorted(runs, key=lambda each: each.began_s)
            if run.is_counted
            and _differ_by_draft_only(run.settings, settings)
            and choice_in(run.settings).drafter.takes_length
        ]
        logs: list[tuple[DraftChoice, float, list[float]]] = []
        for choice, group in groupby(comparable, lambda run: choice_in(run.settings)):
            replies = list(group)
            costs = [math.log(cost) for cost in map(Goal().step_cost, replies) if cost]
            if costs:
                logs.append((choice, replies[0].began_s, costs))
        drafters = tuple(dict.fromkeys(drafter for (drafter, length), *_ in logs if length))
        counts = Counter(choice_in(run.settings) for run in comparable)
        longest = {drafter: max(length for other, length in counts if other is drafter) for drafter in drafters}
        rates = {
            drafter: acceptance_rates(
                add_counts(
                    count_positions(run.steps or 0, run.acceptance)
                    for run in comparable
                    if choice_in(run.settings).drafter is drafter
                ),
                longest[drafter],
            )
            for drafter in drafters
        }
        return cls(_draw_times(logs, longest) if drafters else {}, rates, counts)


def _draw_times(
    logs: Sequence[tuple[DraftChoice, float, Sequence[float]]], longest: Mapping[Drafter, int]
) -> Mapping[DraftChoice, NDArray[np.float64]]:
    """Return draws of the logarithm of a step's seconds for each choice, from those of the replies of each start."""
    names = tuple(drafter.spec_type for drafter in longest)
    space = Space(
        {"drafter": names[0]},
        tuple(range(1, max(longest.values()) + 1)),
        (SpaceAxis("drafter", names, drafting=True),),
        on_processor=True,
    )
    choices = [NO_DRAFTS, *(DraftChoice(each, n + 1) for each, most in longest.items() for n in range(most))]

    def settings_of(choice: DraftChoice) -> RunSettings:
        return {DRAFT: choice.length, "drafter": choice.drafter.spec_type if choice.length else names[0]}

    surface = CostSurface(space, [settings_of(each) for each in choices])
    free = sum(len(costs) - 1 for _, _, costs in logs)
    squares = math.fsum((cost - fmean(costs)) ** 2 for _, _, costs in logs for cost in costs)
    noise = squares / free if free else _USUAL_NOISE**2
    if noise > _MOST_NOISE**2:
        return {}
    points = [
        CostPoint(settings_of(choice), fmean(costs), noise / len(costs) + _START_NOISE**2, began_s)
        for choice, began_s, costs in logs
    ]
    drawn = surface.fit(points).draw(np.random.default_rng(1), _DRAWS)
    return {choice: drawn[:, i] for i, choice in enumerate(choices)}


def advise_draft_length(used: UseCounts, runs: Sequence[Run]) -> Advice | None:
    """Return what would have been fastest for the counted use. None if nothing is clearly faster.

    `runs` were measured with the same model, engine and hardware. Only those that differ from `used` in nothing but
    the drafter and the draft length are compared.
    """
    return find_faster(used, Measured.from_runs(used.settings, runs))


def find_faster(used: UseCounts, measured: Measured, *, barred: Collection[DraftChoice] = ()) -> Advice | None:
    """Return the same from what was `measured`. `barred` is not advised."""
    current = choice_in(used.settings)
    length = current.length
    if not length or used.steps < FEWEST_STEPS or len(used.accepted) < length or used.settings.get("extra"):
        return None
    real_step_s = used.step_s
    if current not in measured.times or measured.runs[current] < _FEWEST_RUNS or real_step_s is None:
        return None
    if not 1 / _MOST_RATIO < real_step_s / math.exp(measured.times[current].mean()) < _MOST_RATIO:
        return None
    found = []
    for choice, times in measured.times.items():
        if choice == current or choice in barred:
            continue
        saved = measured.times[current] - times
        ratio = compare_choices(used, choice, measured.rates, float(saved.mean()), float(saved.std()))
        if ratio is not None and ratio.low > 1 and ratio.estimate > _CLEAR_GAIN:
            found.append(Advice(length, choice.length, ratio, used.tokens, choice.drafter, current.drafter))
    return max(found, key=lambda advice: advice.ratio.low, default=None)


def compare_choices(
    used: UseCounts, other: DraftChoice, rates: Mapping[Drafter, Sequence[float]], saved: float, saved_sd: float
) -> Interval | None:
    """Return how many times as fast `other` would have been for the counted use; None if that is unknown.

    `saved` is the logarithm by which its steps are quicker, with its standard deviation. `rates` are measured ones.
    Steps with 0, 1, 2, ... accepted drafts were counted, so each one tells how many tokens it would have yielded with a
    shorter draft.
    """
    (drafter, length), (other_drafter, other_length) = choice_in(used.settings), other
    steps = [more - fewer for more, fewer in pairwise((used.steps, *used.accepted[:length], 0))]
    real = acceptance_rates(PositionCounts((used.steps, *used.accepted)[:length], used.accepted[:length]), length)
    is_own = other_drafter is drafter or not other_length
    own, theirs = rates.get(drafter, ()), rates.get(other_drafter, ())
    if len(real) < length or len(own) < length or len(theirs) < other_length:
        return None
    yields, spread = [1.0 + min(accepted, other_length) for accepted in range(length + 1)], 0.0
    if not is_own:
        tokens = tokens_per_step([rate * min(1.0, real[0] / max(own[0], _TINY)) for rate in theirs], other_length)
        yields, spread = [tokens] * len(steps), _OTHER * (tokens - 1) / tokens
    elif other_length > length:
        lowered = [rate * min(1.0, real[-1] / max(own[length - 1], _TINY)) for rate in own[length:other_length]]
        yields[-1] += tokens_per_step(lowered, other_length) - 1
        spread = _UNSEEN * (yields[-1] - 1 - length) * steps[-1] / used.steps
    before = sum(count * (1 + accepted) for accepted, count in enumerate(steps)) / used.steps
    after = sum(count * tokens for count, tokens in zip(steps, yields, strict=True)) / used.steps
    counted = sum(
        count * (tokens / after - (1 + accepted) / before) ** 2
        for accepted, (count, tokens) in enumerate(zip(steps, yields, strict=True))
    )
    log = math.log(after / before) + saved
    spread = spread / after if is_own else spread
    reach = _REACH * math.hypot(spread, math.sqrt(counted * _CORRELATED_STEPS) / used.steps, saved_sd)
    return Interval(math.exp(log), math.exp(log - reach), math.exp(log + reach), used.steps)


def _differ_by_draft_only(measured: RunSettings, used: RunSettings) -> bool:
    """Return whether two sets of settings differ in the drafts only, compared by the names that both have."""
    if any(measured.get(name) not in usual for name, usual in _NEUTRAL.items()):
        return False
    return all(
        used[name] == value for name, value in measured.items() if name in used and name not in (*DRAFTING, "extra")
    )
