"""Verdict of a tune: a decision, its figures, and its sentences."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from launcher.base.codec import JsonView
from launcher.base.messages import Message, as_message, join_messages, mark, message, plural_message
from launcher.base.units import format_figure
from launcher.models.drafters import Drafter, choice_in, drafter_in
from launcher.models.server_settings import DRAFTING
from launcher.tuning.goal import Goal, describe_change
from launcher.tuning.quality import QualityRow
from launcher.tuning.records import RunSettings
from launcher.tuning.report import settings_line
from launcher.tuning.space import Key, draft_length, settings_key
from launcher.tuning.statistics import Interval, mean_interval
from launcher.tuning.tune_state import Trial

MARGIN = 0.02
"""Least gain that is worth a change of settings."""
_WIDEST = math.log(3) / 2
"""Largest half width of an interval of logarithms that is shown: its ends then differ by a factor of 3."""
CLEAR_CHANCE, GAIN_CHANCE = 0.9, 0.95
"""Probabilities from which a forecast alone is an answer: that MTP is not worth it, and that other settings are faster.

The latter is higher because settings that turn out slower than MTP off are worse than a gain that is missed.
"""
_NORMAL = statistics.NormalDist()
_WORKLOADS = (mark("code"), mark("prose"), mark("reasoning"), mark("extraction"), mark("long"), mark("turns"))
"""Names of the shipped workloads, which the window translates."""
Answer = Literal["on", "off", "undecided"]


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast at one draft length: the goal's value, and its range with 95 % probability.

    `drafter` is what drafts, as settings call it; None for MTP off, and for the model's own.
    """

    draft: int
    value: float
    low: float
    high: float
    drafter: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ratio of `candidate` to `against`, two sets of settings measured in pairs, at the given confidence."""

    candidate: RunSettings
    against: RunSettings
    ratio: Interval
    confidence: float

    @property
    def better(self) -> bool:
        """Whether the candidate is better."""
        return self.ratio.low > 1

    @property
    def no_better(self) -> bool:
        """Whether the candidate is worse, or better by less than MARGIN."""
        return self.ratio.high < 1 + MARGIN


@dataclass(frozen=True, slots=True)
class LikelyGain:
    """Forecast of how much better `candidate` is than `against`, from `trials` trials.

    The logarithm of the ratio has mean `effect` and standard deviation `spread`.
    """

    candidate: RunSettings
    against: RunSettings
    effect: float
    spread: float
    trials: int

    @property
    def comparison(self) -> Comparison:
        """The forecast ratio with its 95 % range."""
        low, high = (math.exp(self.effect + side * 1.96 * self.spread) for side in (-1, 1))
        return Comparison(self.candidate, self.against, Interval(math.exp(self.effect), low, high, self.trials), 0.95)

    @property
    def chance(self) -> float:
        """Probability that the candidate is better."""
        return _NORMAL.cdf(self.effect / self.spread)

    @property
    def no_better_chance(self) -> float:
        """Probability that the candidate is worse, or better by less than MARGIN."""
        return _NORMAL.cdf((math.log1p(MARGIN) - self.effect) / self.spread)


@dataclass(frozen=True, slots=True)
class LikelyAnswer:
    """Answer by the forecast alone, from all measurements so far.

    `settings` are the best of those that are better than the baseline with a probability of at least GAIN_CHANCE, else
    the baseline; `gain` compares them with the baseline, None if they are the baseline. `mtp` compares the best
    settings with MTP and without, None if no trial with MTP could be used; `never_loads` is whether none with MTP can
    be served. `risk` tells how much better the best settings are expected to be than `settings`, as a logarithm.
    """

    JSON_VIEW: ClassVar[JsonView] = JsonView(
        "mtp=answer draft settings likely=chance gain=gain.comparison.ratio risk=risk_share"
    )
    settings: RunSettings
    gain: LikelyGain | None
    mtp: LikelyGain | None
    risk: float
    never_loads: bool = False

    @property
    def draft(self) -> int:
        """The recommended draft length."""
        return draft_length(self.settings)

    @property
    def answer(self) -> Answer:
        """Whether MTP is on, off, or undecided because the forecast is not clear."""
        if draft_length(self.settings):
            return "on"
        if self.mtp is None:
            return "off" if self.never_loads else "undecided"
        return "off" if self.mtp.no_better_chance >= CLEAR_CHANCE else "undecided"

    @property
    def chance(self) -> float | None:
        """Probability that the answer is right. None if it is undecided."""
        match self.answer:
            case "on":
                return self.gain.chance if self.gain else None
            case "off":
                return self.mtp.no_better_chance if self.mtp else 1.0
        return None

    @property
    def risk_share(self) -> float:
        """The risk as a share, not a logarithm."""
        return math.expm1(self.risk)


@dataclass(frozen=True, slots=True)
class PartAnswer:
    """Answer for one of several workloads that were measured on the same starts, and its sentence.

    In JSON, `speedup` is that of the best settings with MTP, as in the verdict.
    """

    JSON_VIEW: ClassVar[JsonView] = JsonView(
        "workload mtp=answer.answer draft=answer.draft settings=answer.settings likely=answer.chance "
        "gain=answer.gain.comparison.ratio risk=answer.risk_share speedup=answer.mtp.comparison.ratio.estimate "
        "ci_low=answer.mtp.comparison.ratio.low ci_high=answer.mtp.comparison.ratio.high sentence"
    )
    workload: str
    answer: LikelyAnswer
    sentence: Message


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict of a tune. `settings` are the recommended ones: the baseline's if nothing better was confirmed.

    `mtp` is the result of comparing the best settings with MTP and without: MTP is `speedup` times as good, between
    `ci_low` and `ci_high` at `confidence`; None if they could not be compared. `gain` compares the recommended settings
    with the baseline, if they differ. `forecasts` are the goal's value by draft length, with the other settings of
    `forecast_settings`; `drafters` those of the best settings of each drafter, if there are several. `likely` is the
    probability of an answer that rests on the forecast because there were too few pairs; None if it rests on pairs.
    `sentence` and `because` consist of whole sentences. JSON leaves the trials out.
    """

    JSON_VIEW: ClassVar[JsonView] = JsonView(
        "mtp draft settings speedup ci_low ci_high confidence likely sentence=sentences overall=sentence because "
        "gain=gain.ratio shown=forecast_settings forecasts unit quality mtp_quality workloads=parts "
        "drafter=drafter.spec_type drafters"
    )
    mtp: Answer
    settings: RunSettings
    speedup: float | None
    ci_low: float | None
    ci_high: float | None
    confidence: float
    sentence: str
    because: str
    gain: Comparison | None
    forecast_settings: RunSettings
    forecasts: tuple[Forecast, ...]
    trials: tuple[Trial, ...]
    unit: str
    quality: QualityRow | None = None
    """Changes of the answers by the recommended settings; None if they cannot change any."""
    likely: float | None = None
    parts: tuple[PartAnswer, ...] = ()
    """The answers for each of several workloads; the verdict is that for all of them together, and so is `sentence`."""
    drafters: tuple[Forecast, ...] = ()
    mtp_quality: QualityRow | None = None
    """Changes of the answers by MTP; None if it is off or was not judged."""

    @property
    def draft(self) -> int:
        """The recommended draft length."""
        return draft_length(self.settings)

    @property
    def drafter(self) -> Drafter:
        """What drafts with the recommended settings."""
        return drafter_in(self.settings)

    @property
    def sentences(self) -> Message:
        """The sentence, and those of the parts."""
        return join_messages(self.sentence, *(each.sentence for each in self.parts))


@dataclass(frozen=True, slots=True)
class TriedSettings:
    """One row of the table of trials: the goal's typical value over all starts, None if none is usable."""

    settings: RunSettings
    value: float | None
    low: float | None
    high: float | None
    starts: int
    runs: int
    error: str | None


def tabulate_trials(trials: Sequence[Trial], goal: Goal) -> list[TriedSettings]:
    """Return the table of trials by settings, in the order of their first trial.

    A value is the geometric mean over usable runs. Its interval is Student's t over starts; None for a single start,
    and if its ends differ by more than a factor of 3, because it would be meaningless.
    """
    by_settings: dict[Key, list[Trial]] = {}
    for trial in trials:
        by_settings.setdefault(settings_key(trial.settings), []).append(trial)
    rows = []
    for same in by_settings.values():
        usable = [trial for trial in same if not trial.error]
        scores = [[score for run in trial.runs if (score := goal.run_score(run)) is not None] for trial in usable]
        starts = [statistics.fmean(each) for each in scores if each]
        value = low = high = error = None
        if not starts:
            error = next((trial.error for trial in reversed(same) if trial.error), None)
        else:
            interval = mean_interval(starts)
            value = goal.value_from_score(interval.estimate)
            if interval.half_width <= _WIDEST:
                low, high = sorted((goal.value_from_score(interval.low), goal.value_from_score(interval.high)))
        rows.append(TriedSettings(same[0].settings, value, low, high, len(starts), sum(map(len, scores)), error))
    return rows


def verdict_sentence(
    answer: Answer,
    goal: Goal,
    workload: str,
    mtp: Comparison | None,
    values: tuple[float, float] | None,
    more: Sequence[str] = (),
    used_s: float = 0.0,
    *,
    lost: bool = False,
    disturbed: int = 0,
) -> Message:
    """Return the verdict as sentences, followed by `more`. `values` are the goal's values with MTP and without.

    `lost` is whether nothing could be compared because starts failed or were disturbed, `disturbed` the number of
    disturbed trials.
    """
    if mtp is None:
        if disturbed:
            undecided = plural_message(
                "Nothing is decided: {n} trial was disturbed.",
                "Nothing is decided: {n} trials were disturbed.",
                disturbed,
            )
        elif lost:
            undecided = message("Undecided: too few starts could be compared.")
        else:
            undecided = message("Undecided: the time was too short.")
        return join_messages(
            message("Leave MTP off: the model could not be loaded with it.") if answer == "off" else undecided, *more
        )
    draft = choice_in(mtp.candidate).number
    with_mtp, without = map(format_figure, values) if values else (None, None)
    if answer == "on":
        sentence = message(
            "Draft {draft} is {ratio} than no MTP for {text}[: {with_mtp} against {without} {unit}].",
            draft=draft,
            ratio=_percent_text(mtp.ratio, goal),
            text=name_workload(workload),
            with_mtp=with_mtp,
            without=without,
            unit=goal.unit,
        )
    elif answer == "undecided":
        sentence = message(
            "Undecided after {minutes} minutes: draft {draft} is {range} than no MTP for {text}.",
            minutes=max(1, round(used_s / 60)),
            draft=draft,
            range=_range_text(mtp.ratio, goal),
            text=name_workload(workload),
        )
    elif mtp.ratio.high < 1:
        sentence = message(
            "Leave MTP off for {text}: draft {draft} is {ratio}[: {with_mtp} against {without} {unit}].",
            text=name_workload(workload),
            draft=draft,
            ratio=_percent_text(mtp.ratio, goal),
            with_mtp=with_mtp,
            without=without,
            unit=goal.unit,
        )
    else:
        sentence = message(
            "Leave MTP off for {text}: draft {draft} is not distinguishable from no MTP ({range}).",
            text=name_workload(workload),
            draft=draft,
            range=_range_text(mtp.ratio, goal),
        )
    return join_messages(sentence, *more)


def likely_sentence(answer: LikelyAnswer, goal: Goal, workload: str, *, disturbed: bool = False) -> Message:
    """Return the answer of a forecast as a sentence. `disturbed` is whether trials were disturbed."""
    if answer.mtp is None and answer.answer == "off":
        return message("Leave MTP off: the model could not be loaded with it.")
    if answer.mtp is None and disturbed:
        return message("Nothing is decided yet: the trials with MTP were disturbed.")
    if answer.mtp is None:
        return message("Nothing is decided yet: no trial with MTP could be used.")
    compared = answer.gain if answer.gain and draft_length(answer.settings) else answer.mtp
    draft, text = choice_in(compared.candidate).number, name_workload(workload)
    span = _range_text(compared.comparison.ratio, goal)
    if answer.chance is None:
        return message(
            "Not clear yet: draft {draft} is {range} than no MTP for {text}.", draft=draft, range=span, text=text
        )
    chance = chance_text(answer.chance)
    if answer.answer == "on":
        return message(
            "Likely ({chance}): draft {draft} is {range} than no MTP for {text}.",
            chance=chance,
            draft=draft,
            range=span,
            text=text,
        )
    return message(
        "Likely ({chance}): leave MTP off for {text}. Draft {draft} is {range} than no MTP.",
        chance=chance,
        draft=draft,
        range=span,
        text=text,
    )


def likely_verdict(verdict: Verdict, answer: LikelyAnswer, goal: Goal, workload: str) -> Verdict:
    """Return the verdict that a forecast allows where pairs left it undecided.

    Settings that pairs have confirmed to beat the baseline are kept, unless the forecast is clear for others.
    """
    if answer.mtp is None or (answer.chance is None and (verdict.gain or answer.gain is None)):
        return verdict
    gain = verdict.gain if answer.gain is None else answer.gain.comparison
    compared, more = answer.mtp.comparison, []
    if gain is not None and not draft_length(gain.candidate):
        more.append(recommendation_sentence(gain, goal))
    return replace(
        verdict,
        mtp=answer.answer,
        settings=gain.candidate if gain else answer.settings,
        speedup=compared.ratio.estimate,
        ci_low=compared.ratio.low,
        ci_high=compared.ratio.high,
        confidence=compared.confidence,
        sentence=join_messages(likely_sentence(answer, goal, workload), *more),
        because=join_messages(
            message("This is a forecast from {trials} trials; pairs have not confirmed it.", trials=answer.mtp.trials),
            verdict.because,
        ),
        gain=gain,
        likely=answer.chance,
    )


def indistinguishable_sentence(best: RunSettings, rivals: Sequence[RunSettings]) -> Message:
    """Return the sentence about other ways to draft that may be as good."""
    return message(
        "Draft {draft} is not distinguishable from {rivals}.",
        draft=choice_in(best).number,
        rivals=join_messages(*(choice_in(each).number for each in rivals), separator=" or "),
    )


def recommendation_sentence(gain: Comparison, goal: Goal) -> Message:
    """Return the sentence about settings that were confirmed to be better than the baseline's."""
    is_other_way = choice_in(gain.candidate) != choice_in(gain.against)
    changed = settings_line(
        {
            name: value
            for name, value in gain.candidate.items()
            if (is_other_way if name in DRAFTING else gain.against.get(name) != value)
        }
    )
    return message(
        "With {changed} it is {ratio} than the baseline.", changed=changed, ratio=_percent_text(gain.ratio, goal)
    )


def explain_comparison(on: Sequence[Trial], off: Sequence[Trial], no_room: RunSettings) -> Message:
    """Return the cause of a comparison's result in sentences: tokens per step, and the time of a step.

    `no_room` are the settings of the candidate without MTP that do not fit into memory with MTP.
    """
    with_mtp, without = _step_figures(on), _step_figures(off)
    sentences = []
    if with_mtp and without:
        yields, longer = with_mtp[0], with_mtp[1] / without[1]
        sentences.append(
            message(
                "Each step generates {yields:.2f} tokens instead of 1 and takes {longer:.2f} times as long.",
                yields=yields,
                longer=longer,
            )
        )
    if no_room:
        sentences.append(message("MTP leaves no memory for {settings}.", settings=settings_line(no_room)))
    return join_messages(*sentences)


def _step_figures(trials: Sequence[Trial]) -> tuple[float, float] | None:
    """Return tokens per step and seconds per step. None without usable runs."""
    runs = [run for trial in trials for run in trial.runs if run.is_counted and run.steps and run.decode_rate]
    steps = sum(run.steps or 0 for run in runs)
    if not steps:
        return None
    tokens = sum(run.reply_tokens for run in runs)
    return tokens / steps, sum(run.reply_tokens / (run.decode_rate or math.inf) for run in runs) / steps


def name_workload(name: str) -> Message:
    """Return the name of a workload, or of several with commas between, as a message."""
    return join_messages(*map(as_message, name.split(", ")), separator=", ")


def chance_text(chance: float) -> str:
    """Return a probability as "97 %", at most "over 99 %"."""
    return message("over 99 %") if chance > 0.99 else f"{100 * chance:.0f} %"


def _percent_text(ratio: Interval, goal: Goal) -> Message:
    """Return "41 % ± 3 faster"."""
    change = 100 * (ratio.estimate - 1)
    reach = 100 * ratio.half_width
    digits = 0 if reach >= 0.95 else 1
    return describe_change(f"{abs(change):.{digits}f} % ± {reach:.{digits}f}", goal.aim, better=change >= 0)


def _range_text(ratio: Interval, goal: Goal) -> Message:
    """Return "3 to 6 % faster", or "between 3 % slower and 6 % faster"."""
    if ratio.low >= 1 or ratio.high < 1:
        near, far = sorted((ratio.low, ratio.high), key=lambda each: abs(each - 1))
        span = message("{near} to {far} %", near=_share_text(near), far=_share_text(far))
        return describe_change(span, goal.aim, better=far >= 1)
    low, high = (describe_change(f"{_share_text(end)} %", goal.aim, better=end >= 1) for end in (ratio.low, ratio.high))
    return message("between {low} and {high}", low=low, high=high)


def _share_text(ratio: float) -> str:
    percent = 100 * abs(ratio - 1)
    return f"{percent:.{0 if percent >= 9.5 else 1}f}"
