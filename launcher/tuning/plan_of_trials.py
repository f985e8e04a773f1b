"""The order of trials, how many there are of each kind, and how long that takes: known before a tune begins."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.tuning.records import Prompt
from launcher.tuning.space import Space

FEWEST_PAIRS = 4
"""Of a comparison: less leaves Student's t with so few degrees of freedom that only large effects show."""
MOST_PAIRS = 24
"""Of one round of a confirmation, so that a wrong guess of the noise does not take the whole budget."""
WARM_UP_TOKENS = 24
MOST_PASSES = 2
"""How often each prompt is asked on one start at most."""
COMPARED = 2
"""What is compared at most: the best with MTP and the best without, beside the baseline."""
_TO_EXPLORE = 4
_LEAST_GRACE_S, _GRACE = 60.0, 0.1


def grace_s(budget_s: float) -> float:
    """Return how long after the budget's end a trial that is under way may still take: then it is ended."""
    return max(_LEAST_GRACE_S, _GRACE * budget_s)


def probe_lengths(drafts: Sequence[int]) -> tuple[int, ...]:
    """Return the draft lengths to begin with: the longest, which tells acceptance in all positions, the shortest, and
    one in the middle. Their step times make the line on which the others are expected.
    """
    return tuple(dict.fromkeys((drafts[-1], drafts[0], drafts[(len(drafts) - 1) // 2])))


def usual_explored(space: Space) -> int:
    """Return how many trials exploring usually takes: one for each draft length, two for each other value."""
    return len(space.drafts) + 2 * sum(len(axis.values) - 1 for axis in space.axes)


def most_explored(space: Space) -> int:
    """Return how many trials exploring may take, however quick they are."""
    return _TO_EXPLORE * usual_explored(space)


def balanced_orders(pairs: int, candidates: int) -> list[list[int]]:
    """Return so many rounds (an even number) in which each candidate (1, 2, ...) meets the baseline (0).

    It does so after the baseline in the first half and before it in the second, once near to it and once far in turns,
    and the candidates meet each other in both orders as often. Never is the same one visited twice in a row, so that
    every visit is a start of its own; with one candidate that takes a visit of the baseline for itself in the middle.
    """
    up = list(range(1, candidates + 1))
    turns = [up, up[::-1]]
    first = [[0, *turns[i % 2]] for i in range(pairs // 2)]
    if candidates == 1:
        return [*first, [0], *([1, 0] for _ in first)]
    last = first[-1][-1]
    again = turns if turns[0][0] != last else turns[::-1]
    return [*first, *([*again[i % 2], 0] for i in range(pairs // 2))]


def visits(orders: Sequence[Sequence[int]]) -> int:
    """Return how many starts some rounds take."""
    return sum(map(len, orders))


def passes(start_s: float, run_s: float, noise: float, start_noise: float, prompts: int) -> int:
    """Return how often each prompt is asked on one start, so that a given time tells most.

    With a start's cost and spread and a run's cost and spread, the best number of runs to a start is
    sqrt(cost of a start / cost of a run) * spread of runs / spread of starts (W. G. Cochran, Sampling Techniques,
    section 10.6, two-stage sampling).
    """
    best = math.sqrt(start_s / max(run_s, 1e-9)) * noise / max(start_noise, 1e-9)
    return min(max(round(best / prompts), 1), MOST_PASSES)


@dataclass(frozen=True, slots=True)
class PlanOfTrials:
    """What a tune is expected to do: starts by stage, runs, and seconds, of which `starting_s` go into starts."""

    probe: int
    explore: int
    verify: int
    confirm: int
    runs: int
    seconds: float
    starting_s: float

    @property
    def starts(self) -> int:
        """How often the server is started."""
        return self.probe + self.explore + self.verify + self.confirm


def plan(
    space: Space, prompts: Sequence[Prompt], budget_s: float, *, rate: float, restart_s: float, reading_s: float = 0.5
) -> PlanOfTrials:
    """Return the plan of a tune on a server of so many tokens/s, whose restart takes `restart_s`.

    `reading_s` is what a prompt takes before its first token. It is what is usual: a tune ends sooner when it is sure
    sooner, and where differences are small it compares until the budget ends, which no plan goes beyond.
    """
    run_s = sum(prompt.tokens for prompt in prompts) / rate + reading_s * len(prompts)
    visit_s = restart_s + WARM_UP_TOKENS / rate + reading_s + run_s
    affordable = int(budget_s / visit_s)
    probe = min(affordable, 1 + len(probe_lengths(space.drafts)))
    verify = min(affordable - probe, visits(balanced_orders(FEWEST_PAIRS, COMPARED)))
    explore = min(affordable - probe - verify, usual_explored(space))
    confirm = min(affordable - probe - verify - explore, visits(balanced_orders(FEWEST_PAIRS, COMPARED)))
    starts = probe + explore + verify + confirm
    return PlanOfTrials(
        probe, explore, verify, confirm, starts * len(prompts), starts * visit_s, starts * (visit_s - run_s)
    )
