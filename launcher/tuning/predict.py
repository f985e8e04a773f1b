"""What a verification step yields at every draft length, from the acceptance by position at a few.

A verification step with n drafted tokens yields the model's own token and those drafts that are accepted, which end
at the first that is not. Whether the draft in position i is accepted does not depend on how many follow it, so one
long draft tells of all shorter ones:

    tokens per step(n) = 1 + a1 + a1 a2 + ... + a1 a2 ... an,     a_i: accepted where all before it were

(the expected accepted length of speculative decoding, Leviathan et al. 2023, with a rate for each position). Tokens a
second are that over the time of a step, which grows with n by one pass of the draft head and one more token to verify:
see predict_surface.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from launcher.monitor.meter import Acceptance

_FEWEST = 30
"""Drafts in a position from which its rate is believed; with fewer the position before speaks for it."""


@dataclass(frozen=True, slots=True)
class Positions:
    """By position: how often a draft there could be accepted, as all before it were, and how often it was."""

    chances: tuple[int, ...]
    accepted: tuple[int, ...]


def positions(steps: int, acceptance: Acceptance | None) -> Positions:
    """Return the counts of one run of so many verification steps.

    A step that drafts nothing (p-min) or less than the others counts as one that accepts nothing more: what is
    predicted is the yield of a step as the engine makes them.
    """
    accepted = acceptance.accepted_by_position if acceptance else ()
    return Positions((steps, *accepted)[: len(accepted)], accepted)


def added(parts: Iterable[Positions]) -> Positions:
    """Add up the counts of several runs, also of different draft lengths."""
    chances: list[int] = []
    accepted: list[int] = []
    for part in parts:
        grow = max(0, len(part.chances) - len(chances))
        chances += [0] * grow
        accepted += [0] * grow
        for i, (chance, hit) in enumerate(zip(part.chances, part.accepted, strict=True)):
            chances[i] += chance
            accepted[i] += hit
    return Positions(tuple(chances), tuple(accepted))


def rates(counts: Positions, length: int) -> tuple[float, ...]:
    """Return a1 ... an. A position that was hardly drafted gets the rate of the last one that was; () without any."""
    found: list[float] = []
    for chance, hit in zip(counts.chances[:length], counts.accepted, strict=False):
        if chance < _FEWEST and found:
            break
        if not chance:
            return ()
        found.append(hit / chance)
    return tuple(found + [found[-1]] * (length - len(found))) if found else ()


def tokens_per_step(chain: Sequence[float], draft: int) -> float:
    """Return the tokens that a step yields with a draft of this length, from the rates a1, a2, ..."""
    yielded, all_so_far = 1.0, 1.0
    for rate in chain[:draft]:
        all_so_far *= rate
        yielded += all_so_far
    return yielded
