"""What a tune says in the end: a decision, its numbers, and a sentence."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from launcher.tuning.goal import Aim, Goal
from launcher.tuning.records import Settings
from launcher.tuning.report import words
from launcher.tuning.space import Key, draft_of, key
from launcher.tuning.statistics import Interval, mean_interval
from launcher.tuning.tuner_state import Trial

MARGIN = 0.02
"""Less than this much faster is no reason to change anything."""
_WIDEST = math.log(3) / 2
"""Half of the widest interval of logarithms that is told."""
Answer = Literal["on", "off", "undecided"]


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is expected at one draft length: the goal's value, and where it lies with 95 % probability."""

    draft: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Compared:
    """Settings against others, measured in pairs: how many times as good, at the confidence given."""

    candidate: Settings
    against: Settings
    ratio: Interval
    confidence: float

    @property
    def better(self) -> bool:
        """Whether the settings are better, with that confidence."""
        return self.ratio.low > 1

    @property
    def no_better(self) -> bool:
        """Whether they are, with that confidence, worse or better by less than would matter."""
        return self.ratio.high < 1 + MARGIN


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer. `settings` are recommended: the baseline's where nothing better was confirmed.

    `mtp` compares the best that was found with MTP and without, each with the settings that suit it: MTP is
    `speedup` times as good, between `ci_low` and `ci_high` at `confidence`; None where it could not be compared.
    `gain` is what the recommended settings are to the baseline, where they are others. `forecasts` tell the goal's
    value by draft length, the other settings being those of `shown`. `because` is in whole sentences.
    """

    mtp: Answer
    settings: Settings
    speedup: float | None
    ci_low: float | None
    ci_high: float | None
    confidence: float
    sentence: str
    because: str
    gain: Compared | None
    shown: Settings
    forecasts: tuple[Forecast, ...]
    trials: tuple[Trial, ...]
    unit: str

    @property
    def draft(self) -> int:
        """The recommended draft length."""
        return draft_of(self.settings)

    def as_json(self) -> dict[str, Any]:
        """Return it for programs, without the trials."""
        return {
            "mtp": self.mtp,
            "draft": self.draft,
            "settings": dict(self.settings),
            "speedup": self.speedup,
            "ci_low": self.ci_low,
            "ci_high": self.ci_high,
            "confidence": self.confidence,
            "sentence": self.sentence,
            "because": self.because,
            "gain": self.gain.ratio.as_json() if self.gain else None,
            "shown": dict(self.shown),
            "forecasts": [{"draft": f.draft, "value": f.value, "low": f.low, "high": f.high} for f in self.forecasts],
            "unit": self.unit,
        }


@dataclass(frozen=True, slots=True)
class Tried:
    """One line of the table of what was tried: the goal's typical value over all starts, None where none counts."""

    settings: Settings
    value: float | None
    low: float | None
    high: float | None
    starts: int
    runs: int
    error: str | None


def tried(trials: Sequence[Trial], goal: Goal) -> list[Tried]:
    """Return what was tried, in the order of the first trial of each.

    A value is the geometric mean over the runs that count; its interval is Student's t over starts, None for one, and
    where its ends are so far apart (by more than 3 times) that it would say nothing.
    """
    by_settings: dict[Key, list[Trial]] = {}
    for trial in trials:
        by_settings.setdefault(key(trial.settings), []).append(trial)
    rows = []
    for same in by_settings.values():
        scores = [[score for run in t.runs if (score := goal.score(run)) is not None] for t in same if not t.error]
        starts = [statistics.fmean(each) for each in scores if each]
        error = next((t.error for t in reversed(same) if t.error), None) if not starts else None
        value = low = high = None
        if starts:
            found = mean_interval(starts)
            value = goal.value_of(found.estimate)
            if found.half_width <= _WIDEST:
                low, high = sorted((goal.value_of(found.low), goal.value_of(found.high)))
        rows.append(Tried(same[0].settings, value, low, high, len(starts), sum(map(len, scores)), error))
    return rows


def sentence(
    answer: Answer,
    goal: Goal,
    text: str,
    mtp: Compared | None,
    values: tuple[float, float] | None,
    more: Sequence[str] = (),
    used_s: float = 0.0,
    *,
    lost: bool = False,
) -> str:
    """Return the verdict in words. `values` are the goal's with MTP and without, `text` is the workload's name.

    `lost` is whether nothing could be compared because starts failed or were spoilt.
    """
    if mtp is None:
        undecided = "Undecided: too few starts could be compared." if lost else "Undecided: the time was too short."
        return " ".join(("Leave MTP off: it could not be served." if answer == "off" else undecided, *more))
    draft, off = f"draft {draft_of(mtp.candidate)}", "no MTP"
    against = ""
    if values:
        against = f": {_figure(values[0])} against {_figure(values[1])} {goal.unit}"
    if answer == "on":
        said = f"{draft.capitalize()} is {_percent(mtp.ratio, goal)} than {off} for {text}{against}."
    elif answer == "undecided":
        said = (
            f"Undecided after {max(1, round(used_s / 60))} minutes: {draft} is {_range(mtp.ratio, goal)} than {off} "
            f"for {text}."
        )
    elif mtp.ratio.high < 1:
        figures = f"{_figure(values[1])} against {_figure(values[0])} {goal.unit}" if values else "it is slower"
        said = f"Leave MTP off for {text}: {figures} with {draft}, which is {_percent(mtp.ratio, goal)}."
    else:
        said = f"Leave MTP off for {text}: {draft} is not distinguishable from {off} ({_range(mtp.ratio, goal)})."
    return " ".join((said, *more))


def not_distinguishable(best: Settings, rivals: Sequence[int]) -> str:
    """Return the sentence about other draft lengths that may well be as good."""
    return f"Draft {draft_of(best)} is not distinguishable from {' or '.join(map(str, rivals))}."


def recommended(gain: Compared, goal: Goal) -> str:
    """Return the sentence about other settings that were confirmed to be better than the baseline's."""
    changed = words({name: value for name, value in gain.candidate.items() if gain.against.get(name) != value})
    return f"With {changed} it is {_percent(gain.ratio, goal)} than the baseline."


def why(on: Sequence[Trial], off: Sequence[Trial], no_room: Settings) -> str:
    """Return the arithmetic behind a comparison, in sentences: tokens that a step yields, and the time that it takes.

    `no_room` are settings of MTP off for which MTP leaves no memory.
    """
    with_mtp, without = _steps(on), _steps(off)
    said = []
    if with_mtp and without:
        yields, longer = with_mtp[0], with_mtp[1] / without[1]
        said.append(
            f"Each step of the engine writes {yields:.2f} tokens, without MTP 1, and takes {longer:.2f} times as long."
        )
    if no_room:
        said.append(f"MTP leaves no memory for {words(no_room)}.")
    return " ".join(said)


def _steps(trials: Sequence[Trial]) -> tuple[float, float] | None:
    """Return tokens a step and seconds a step."""
    runs = [run for trial in trials for run in trial.runs if run.counts and run.steps and run.decode_rate]
    steps = sum(run.steps or 0 for run in runs)
    if not steps:
        return None
    tokens = sum(run.reply_tokens for run in runs)
    return tokens / steps, sum(run.reply_tokens / (run.decode_rate or math.inf) for run in runs) / steps


_BETTER = {Aim.SPEED: "faster", Aim.ANSWER: "quicker to the answer", Aim.ENERGY: "more frugal"}
_WORSE = {Aim.SPEED: "slower", Aim.ANSWER: "slower to the answer", Aim.ENERGY: "less frugal"}


def _figure(value: float) -> str:
    """Return three digits, no more than are told apart, and no fewer than stand before the point."""
    return f"{value:.0f}" if value >= 20 else f"{value:.1f}" if value >= 2 else f"{value:.3f}"


def _percent(ratio: Interval, goal: Goal) -> str:
    """Return "41 % ± 3 faster"."""
    change = 100 * (ratio.estimate - 1)
    word = _BETTER[goal.aim] if change >= 0 else _WORSE[goal.aim]
    reach = 100 * ratio.half_width
    digits = 0 if reach >= 0.95 else 1
    return f"{abs(change):.{digits}f} % ± {reach:.{digits}f} {word}"


def _range(ratio: Interval, goal: Goal) -> str:
    """Return "between 3 % slower and 6 % faster"."""
    return f"between {_side(ratio.low, goal)} and {_side(ratio.high, goal)}"


def _side(ratio: float, goal: Goal) -> str:
    percent = 100 * abs(ratio - 1)
    word = _BETTER[goal.aim] if ratio >= 1 else _WORSE[goal.aim]
    return f"{percent:.{0 if percent >= 9.5 else 1}f} % {word}"
