"""The tokens per step, compared with results by hand."""

import pytest

from launcher.monitor.meter import Acceptance
from launcher.tuning.predict import PositionCounts, acceptance_rates, add_counts, count_positions, tokens_per_step


def test_the_yield_of_a_step_is_one_plus_accepted_drafts() -> None:
    assert tokens_per_step((0.9, 0.8, 0.5), 0) == 1
    assert tokens_per_step((0.9, 0.8, 0.5), 1) == pytest.approx(1.9)
    assert tokens_per_step((0.9, 0.8, 0.5), 3) == pytest.approx(1 + 0.9 + 0.72 + 0.36)


def test_acceptance_of_a_long_draft_gives_the_yield_of_shorter_ones() -> None:
    long = count_positions(1_000, Acceptance(4_000, 1_800, (1_000,) * 4, (800, 500, 300, 200)))
    assert acceptance_rates(long, 4) == pytest.approx((0.8, 0.625, 0.6, 2 / 3))
    assert tokens_per_step(acceptance_rates(long, 4), 2) == pytest.approx(1 + 0.8 + 0.5)
    assert tokens_per_step(acceptance_rates(long, 4), 4) == pytest.approx(1 + 1.8)


def test_runs_of_different_lengths_add_up_by_position() -> None:
    short = PositionCounts((100,), (90,))
    long = PositionCounts((100, 80, 60), (80, 60, 30))
    assert add_counts([short, long]) == PositionCounts((200, 80, 60), (170, 60, 30))


def test_a_rarely_drafted_position_has_the_acceptance_of_the_one_before() -> None:
    assert acceptance_rates(PositionCounts((1_000, 700, 4), (700, 420, 0)), 4) == pytest.approx((0.7, 0.6, 0.6, 0.6))
    assert acceptance_rates(PositionCounts((), ()), 2) == ()
