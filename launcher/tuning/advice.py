"""Passive advice: compare other draft lengths with the one in use, from counters of real use.

The tokens per step of a shorter draft follow from the counted acceptance by position. A longer draft also needs the
acceptance rates of further positions: they come from measurements of this machine, lowered where real use accepts less
than those measurements did. The time of a step at other draft lengths comes from measurements, too. There is no advice
where either is unknown or where no draft length is clearly faster.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.base.messages import message
from launcher.tuning.goal import Goal
from launcher.tuning.predict import PositionCounts, acceptance_rates, add_counts, count_positions, tokens_per_step
from launcher.tuning.records import Run, Settings
from launcher.tuning.report import welch_ratio
from launcher.tuning.space import DRAFT, draft_of
from launcher.tuning.statistics import Interval
from launcher.tuning.use_counts import UseCounts
from launcher.tuning.verdict import MARGIN

FEWEST_STEPS = 2_000
"""Least steps for advice. With fewer, acceptance is too uncertain: a rate of 0.6 would be 0.6 ± 0.02."""
_FEWEST_RUNS = 3
_ALIKE = 2.0
"""A step of real use may take at most this many times as long as a measured one (its context is fuller), or as short.
"""
_DRAFTING = {"p_min": (None, 0, 0.0), "draft_sampling": (None, "greedy"), "ngram": (None, "none")}
"""Settings that change draft acceptance, with the values that have no effect on it."""


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
        low, high = (round(100 * (end - 1)) for end in (self.ratio.low, self.ratio.high))
        what = f"Draft {self.better}" if self.better else "No MTP"
        faster = f"{100 * (self.ratio.estimate - 1):.0f} % faster ({low} to {high} %, with 95 % confidence)"
        return message(
            "{what} would have been about {faster} than draft {draft} over your last {tokens_words} tokens.",
            what=what,
            faster=faster,
            draft=self.draft,
            tokens_words=self.tokens_words,
        )

    @property
    def tokens_words(self) -> str:
        """The number of tokens, rounded to two significant digits."""
        digits = max(0, len(str(self.tokens)) - 2)
        return f"{round(self.tokens, -digits):,}"


def advise_draft_length(used: UseCounts, runs: Sequence[Run]) -> Advice | None:
    """Return the draft length that would have been fastest for the counted use. None where none is clearly faster.

    `runs` were measured with the same model, engine and hardware. Only those whose other settings are the same are
    used.
    """
    now = draft_of(used.settings)
    if not now or used.steps < FEWEST_STEPS or len(used.accepted) < now or used.settings.get("extra"):
        return None
    alike = [run for run in runs if run.counts and _differ_by_draft_only(run.settings, used.settings)]
    times = _step_times(alike)
    mine, measured_s = times.get(now, []), used.step_s
    if len(mine) < _FEWEST_RUNS or measured_s is None:
        return None
    if not 1 / _ALIKE < measured_s / (sum(mine) / len(mine)) < _ALIKE:
        return None
    chain = _acceptance_rates(used, now, alike, max(times))
    found = []
    for draft, values in times.items():
        if draft == now or draft > len(chain) or len(values) < _FEWEST_RUNS:
            continue
        longer = welch_ratio(mine, values)
        gain = tokens_per_step(chain, draft) / tokens_per_step(chain, now)
        ratio = Interval(gain / longer.estimate, gain / longer.high, gain / longer.low, longer.n)
        if ratio.low > 1 + MARGIN:
            found.append(Advice(now, draft, ratio, used.tokens))
    return max(found, key=lambda advice: advice.ratio.low, default=None)


def _acceptance_rates(used: UseCounts, now: int, runs: Sequence[Run], longest: int) -> list[float]:
    """Return the acceptance rates by position, as far as they are known."""
    chances = (used.steps, *used.accepted)[:now]
    real = list(acceptance_rates(PositionCounts(chances, used.accepted[:now]), now))
    counted = add_counts(count_positions(run.steps or 0, run.acceptance) for run in runs if draft_of(run.settings))
    known = len(counted.chances)
    measured = acceptance_rates(counted, known)
    if len(real) < now or known < now:
        return real
    less = min(1.0, real[-1] / measured[now - 1]) if measured[now - 1] else 0.0
    return real + [rate * less for rate in measured[now : min(known, longest)]]


def _step_times(runs: Sequence[Run]) -> dict[int, list[float]]:
    goal = Goal()
    times: dict[int, list[float]] = {}
    for run in runs:
        seconds = goal.step_cost(run)
        if seconds:
            times.setdefault(draft_of(run.settings), []).append(seconds)
    return times


def _differ_by_draft_only(measured: Settings, used: Settings) -> bool:
    """Return whether two sets of settings differ in the draft length only, compared by the names that both have."""
    if any(measured.get(name) not in usual for name, usual in _DRAFTING.items()):
        return False
    return all(used[name] == value for name, value in measured.items() if name in used and name not in (DRAFT, "extra"))
