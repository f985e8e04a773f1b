"""Passive advice: whether another draft length would have been faster, from counters of real use.

How many tokens a step yields at a shorter draft follows from what was accepted by position; at a longer one it needs
the rates of further positions, which are taken from measurements of this machine, and lowered where real use accepts
less than those measurements did. How long a step takes at other lengths was measured, too. Where either is not known,
or the answer is not clear, nothing is said.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.tuning.goal import Goal
from launcher.tuning.predict import Positions, added, positions, rates, tokens_per_step
from launcher.tuning.records import Run, Settings
from launcher.tuning.report_compare import welch
from launcher.tuning.space import DRAFT, draft_of
from launcher.tuning.statistics import Interval
from launcher.tuning.use_counts import UseCounts
from launcher.tuning.verdict import MARGIN

FEWEST_STEPS = 2_000
"""With fewer, what was accepted is known too badly: a rate of 0.6 would be 0.6 ± 0.02."""
_FEWEST_RUNS = 3
_ALIKE = 2.0
"""A step of real use may take so many times as long as a measured one (its context is fuller), or as short."""
_DRAFTING = {"p_min": (None, 0, 0.0), "draft_sampling": (None, "greedy"), "ngram": (None, "none")}
"""Settings that change what is accepted, and their values that change nothing."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Another draft length than the one in use would have been so many times as fast over these tokens."""

    draft: int
    better: int
    ratio: Interval
    tokens: int

    @property
    def sentence(self) -> str:
        """It in words."""
        low, high = (round(100 * (end - 1)) for end in (self.ratio.low, self.ratio.high))
        what = f"Draft {self.better}" if self.better else "No MTP"
        faster = f"{100 * (self.ratio.estimate - 1):.0f} % faster ({low} to {high} %, with 95 % confidence)"
        return (
            f"{what} would have been about {faster} than draft {self.draft} over your last {self.tokens_words} tokens."
        )

    @property
    def tokens_words(self) -> str:
        """The tokens to two digits, which is as well as anybody wants to know them."""
        digits = max(0, len(str(self.tokens)) - 2)
        return f"{round(self.tokens, -digits):,}"


def advise(used: UseCounts, runs: Sequence[Run]) -> Advice | None:
    """Return the draft length that would have been fastest for what was counted, None where none is clearly faster.

    `runs` were measured with the same model, engine and hardware; those count whose other settings are the same.
    """
    now = draft_of(used.settings)
    if not now or used.steps < FEWEST_STEPS or len(used.accepted) < now or used.settings.get("extra"):
        return None
    alike = [run for run in runs if run.counts and _alike(run.settings, used.settings)]
    times = _step_times(alike)
    mine, measured_s = times.get(now, []), used.step_s
    if len(mine) < _FEWEST_RUNS or measured_s is None:
        return None
    if not 1 / _ALIKE < measured_s / (sum(mine) / len(mine)) < _ALIKE:
        return None
    chain = _chain(used, now, alike, max(times))
    found = []
    for draft, values in times.items():
        if draft == now or draft > len(chain) or len(values) < _FEWEST_RUNS:
            continue
        longer = welch(mine, values)
        gain = tokens_per_step(chain, draft) / tokens_per_step(chain, now)
        ratio = Interval(gain / longer.estimate, gain / longer.high, gain / longer.low, longer.n)
        if ratio.low > 1 + MARGIN:
            found.append(Advice(now, draft, ratio, used.tokens))
    return max(found, key=lambda advice: advice.ratio.low, default=None)


def _chain(used: UseCounts, now: int, runs: Sequence[Run], longest: int) -> list[float]:
    """Return the rates of acceptance by position, as far as they are known."""
    chances = (used.steps, *used.accepted)[:now]
    real = list(rates(Positions(chances, used.accepted[:now]), now))
    counted = added(positions(run.steps or 0, run.acceptance) for run in runs if draft_of(run.settings))
    known = len(counted.chances)
    measured = rates(counted, known)
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


def _alike(measured: Settings, used: Settings) -> bool:
    """Whether two settings differ by the draft length alone, as far as both name them."""
    if any(measured.get(name) not in usual for name, usual in _DRAFTING.items()):
        return False
    return all(used[name] == value for name, value in measured.items() if name in used and name not in (DRAFT, "extra"))
