"""Plan of a tune: the order of trials, their number by stage, and the expected time, all known before it begins."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.models.server_settings import Value
from launcher.tuning.records import Prompt
from launcher.tuning.space import Space

FEWEST_PAIRS = 4
"""The fewest pairs of a comparison: with fewer, Student's t has so few degrees of freedom that only large effects show.
"""
MOST_PAIRS = 24
"""The most pairs between two checks of a comparison, so that a wrong estimate of noise does not take the whole budget.
"""
LONGEST_USUAL = 7
"""Longest draft whose verification is one batch of 8 tokens; engines often use other kernels for larger batches."""
WARM_UP_TOKENS = 24
"""The most tokens of the reply that warms a server up."""
MOST_PASSES = 2
"""The most repetitions of each prompt in one trial."""
MOST_CANDIDATES = 2
"""The most candidates to compare with the baseline: the best with MTP and the best without."""
_MOST_EXPLORED = 4
"""The most exploring trials, as a multiple of the usual number."""
_LEAST_GRACE_S, _GRACE = 60.0, 0.1
"""Seconds, or a share of the budget, by which a running trial may exceed it."""


def grace_s(budget_s: float) -> float:
    """Return how many seconds a running trial may exceed the budget before it is ended."""
    return max(_LEAST_GRACE_S, _GRACE * budget_s)


def probe_lengths(drafts: Sequence[int]) -> tuple[int, ...]:
    """Return the draft lengths to begin with: a long one, the shortest, and one in the middle.

    The long one shows the acceptance at all positions up to it. The step times of the three predict the step times of
    all other lengths, along a line. The long one is the longest whose batch engines verify with their usual kernels:
    with other kernels its step time would not be on that line.
    """
    usual = [draft for draft in drafts if draft <= LONGEST_USUAL] or drafts
    return tuple(dict.fromkeys((usual[-1], usual[0], usual[(len(usual) - 1) // 2])))


def first_ways(space: Space) -> tuple[tuple[Value, int], ...]:
    """Return how the first trials draft: with the lengths to begin with, or of several drafters the first with the long
    one and the others with the middle one. Verification costs the same whoever drafts, so one teaches of the others.
    """
    first, *others = space.drafters
    lengths = probe_lengths(space.drafts)
    if not others:
        return tuple((first, length) for length in lengths)
    tried = ((first, lengths[0]), *((each, lengths[-1]) for each in others))
    return tuple((each, min(length, space.lengths(each)[-1])) for each, length in tried)


def usual_explored(space: Space) -> int:
    """Return the usual number of exploring trials: one for each draft length, two for each other value."""
    return len(space.drafts) + 2 * sum(len(axis.values) - 1 for axis in space.axes)


def most_explored(space: Space) -> int:
    """Return the largest number of exploring trials, even if the budget has time for more."""
    return _MOST_EXPLORED * usual_explored(space)


def balanced_orders(pairs: int, candidates: int) -> list[list[int]]:
    """Return rounds (an even number) in which each candidate (1, 2, ...) is paired with the baseline (0).

    The candidates come after the baseline in the first half and before it in the second, in alternating order, so that
    each is as often next to it as any other.
    """
    upwards = list(range(1, candidates + 1))
    turns = [upwards[:: (-1) ** i] for i in range(pairs)]
    half = pairs // 2
    return [*([0, *turn] for turn in turns[:half]), *([*turn, 0] for turn in turns[half:])]


def count_starts(orders: Sequence[Sequence[int]]) -> int:
    """Return the number of starts in the rounds."""
    return sum(map(len, orders))


def best_passes(start_s: float, run_s: float, noise: float, start_noise: float, prompts: int) -> int:
    """Return how often to send each prompt in one trial, for the most information in a given time.

    The best number of runs in a start is sqrt(cost of a start / cost of a run) * spread of runs / spread of starts
    (W. G. Cochran, Sampling Techniques, section 10.6, two-stage sampling). `noise` and `start_noise` are the spreads.
    """
    best = math.sqrt(start_s / max(run_s, 1e-9)) * noise / max(start_noise, 1e-9)
    return min(max(round(best / prompts), 1), MOST_PASSES)


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """Expected effort of a tune: starts by stage, runs, and seconds, of which `starting_s` are spent on starts.

    `least_s` are the seconds of the first trials: with less there is no result.
    """

    probe: int
    explore: int
    verify: int
    confirm: int
    runs: int
    seconds: float
    starting_s: float
    least_s: float

    @property
    def starts(self) -> int:
        """Total number of server starts."""
        return self.probe + self.explore + self.verify + self.confirm


def plan_trials(
    space: Space, prompts: Sequence[Prompt], budget_s: float, *, rate: float, restart_s: float, reading_s: float = 0.5
) -> TrialPlan:
    """Return the plan of a tune on a server of `rate` tokens/s, whose restart takes `restart_s`.

    `reading_s` is the time of a prompt before its first token. This is the usual effort, within the budget: a tune ends
    earlier if the result is clear earlier, and uses the whole budget if differences are small.
    """
    run_s = sum(prompt.tokens for prompt in prompts) / rate + reading_s * len(prompts)
    trial_s = restart_s + WARM_UP_TOKENS / rate + reading_s + run_s
    affordable = int(budget_s / trial_s)
    first = 1 + len(first_ways(space))
    probe = min(affordable, first)
    verify = min(affordable - probe, count_starts(balanced_orders(FEWEST_PAIRS, MOST_CANDIDATES)))
    explore = min(affordable - probe - verify, usual_explored(space))
    confirm = min(affordable - probe - verify - explore, count_starts(balanced_orders(FEWEST_PAIRS, MOST_CANDIDATES)))
    starts = probe + explore + verify + confirm
    return TrialPlan(
        probe,
        explore,
        verify,
        confirm,
        starts * len(prompts),
        starts * trial_s,
        starts * (trial_s - run_s),
        first * trial_s,
    )
