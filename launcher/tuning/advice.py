"""Passive advice: compare other draft lengths with the one in use, from counters of real use.

The tokens per step of a shorter draft follow from the counted acceptance by position. A longer draft also needs the
acceptance rates of further positions: they come from measurements of this machine, lowered by the ratio at which real
use falls short of them. The time of a step at other draft lengths comes from measurements, too. There is no advice if
either is unknown or if no draft length is clearly faster.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.base.messages import message
from launcher.tuning.goal import Goal
from launcher.tuning.predict import PositionCounts, acceptance_rates, add_counts, count_positions, tokens_per_step
from launcher.tuning.records import Run, RunSettings
from launcher.tuning.report import welch_ratio
from launcher.tuning.space import DRAFT, draft_length
from launcher.tuning.statistics import Interval
from launcher.tuning.use_counts import UseCounts
from launcher.tuning.verdict import MARGIN

FEWEST_STEPS = 2_000
"""The fewest steps for advice. With fewer, acceptance is too uncertain: a rate of 0.6 would be 0.6 ± 0.02."""
_FEWEST_RUNS = 3
_MOST_RATIO = 2.0
"""Largest ratio between the step times of real use and of measurements, in either direction: in real use contexts are
fuller."""
_NEUTRAL = {"p_min": (None, 0, 0.0), "draft_sampling": (None, "greedy"), "drafter": (None,), "ngram": (None, "none")}
"""Settings that change draft acceptance, each with the values that leave it unchanged."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A faster draft length than the one in use.

    `ratio` is how many times as fast `better` would have been as `draft` over the last `tokens` reply tokens.
    """

    draft: int
    better: int
    ratio: Interval
    tokens: int

    @property
    def sentence(self) -> str:
        """The advice as a sentence for users."""
        low, high = round(100 * (self.ratio.low - 1)), round(100 * (self.ratio.high - 1))
        what = f"Draft {self.better}" if self.better else "No MTP"
        faster = f"{100 * (self.ratio.estimate - 1):.0f} % faster ({low} to {high} %, with 95 % confidence)"
        return message(
            "{what} would have been about {faster} than draft {draft} over your last {tokens_text} tokens.",
            what=what,
            faster=faster,
            draft=self.draft,
            tokens_text=self.tokens_text,
        )

    @property
    def tokens_text(self) -> str:
        """The number of tokens, rounded to two significant digits."""
        digits = max(0, len(str(self.tokens)) - 2)
        return f"{round(self.tokens, -digits):,}"


def advise_draft_length(used: UseCounts, runs: Sequence[Run]) -> Advice | None:
    """Return the draft length that would have been fastest for the counted use. None if none is clearly faster.

    `runs` were measured with the same model, engine and hardware. Only those that differ from `used` in nothing but
    the draft length are compared.
    """
    current = draft_length(used.settings)
    if not current or used.steps < FEWEST_STEPS or len(used.accepted) < current or used.settings.get("extra"):
        return None
    comparable = [run for run in runs if run.is_counted and _differ_by_draft_only(run.settings, used.settings)]
    times = _step_times(comparable)
    current_times, real_step_s = times.get(current, []), used.step_s
    if len(current_times) < _FEWEST_RUNS or real_step_s is None:
        return None
    if not 1 / _MOST_RATIO < real_step_s / (sum(current_times) / len(current_times)) < _MOST_RATIO:
        return None
    rates = _acceptance_rates(used, current, comparable, max(times))
    found = []
    for draft, values in times.items():
        if draft == current or draft > len(rates) or len(values) < _FEWEST_RUNS:
            continue
        step_ratio = welch_ratio(current_times, values)
        gain = tokens_per_step(rates, draft) / tokens_per_step(rates, current)
        ratio = Interval(gain / step_ratio.estimate, gain / step_ratio.high, gain / step_ratio.low, step_ratio.n)
        if ratio.low > 1 + MARGIN:
            found.append(Advice(current, draft, ratio, used.tokens))
    return max(found, key=lambda advice: advice.ratio.low, default=None)


def _acceptance_rates(used: UseCounts, current: int, runs: Sequence[Run], longest: int) -> list[float]:
    """Return the acceptance rates by position: counted ones up to the draft length in use, then estimated ones."""
    chances = (used.steps, *used.accepted)[:current]
    counted = list(acceptance_rates(PositionCounts(chances, used.accepted[:current]), current))
    counts = add_counts(count_positions(run.steps or 0, run.acceptance) for run in runs if draft_length(run.settings))
    known = len(counts.chances)
    measured = acceptance_rates(counts, known)
    if len(counted) < current or known < current:
        return counted
    factor = min(1.0, counted[-1] / measured[current - 1]) if measured[current - 1] else 0.0
    return counted + [rate * factor for rate in measured[current : min(known, longest)]]


def _step_times(runs: Sequence[Run]) -> dict[int, list[float]]:
    """Return the seconds per verification step of each run, by draft length."""
    goal = Goal()
    times: dict[int, list[float]] = {}
    for run in runs:
        seconds = goal.step_cost(run)
        if seconds:
            times.setdefault(draft_length(run.settings), []).append(seconds)
    return times


def _differ_by_draft_only(measured: RunSettings, used: RunSettings) -> bool:
    """Return whether two sets of settings differ in the draft length only, compared by the names that both have."""
    if any(measured.get(name) not in usual for name, usual in _NEUTRAL.items()):
        return False
    return all(used[name] == value for name, value in measured.items() if name in used and name not in (DRAFT, "extra"))
