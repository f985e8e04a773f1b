"""The tokens per step, compared with results by hand."""

import math
from dataclasses import replace

import pytest

from launcher.monitor.meter import Acceptance
from launcher.tuning.predict import (
    CostPoint,
    CostSurface,
    PositionCounts,
    acceptance_rates,
    add_counts,
    count_positions,
    tokens_per_step,
)
from launcher.tuning.space import DRAFT, Space


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


def test_a_step_of_four_tokens_on_a_processor_may_be_cheaper_than_a_line_says() -> None:
    """Steps of a processor, in ms: the one of four tokens was not measured, and took 18.0."""
    measured = {0: 6.5, 1: 12.4, 4: 24.3, 7: 33.6}
    on_gpu = Space({}, (1, 2, 3, 4, 5, 6, 7))
    predicted = {}
    for space in (on_gpu, replace(on_gpu, on_processor=True)):
        grid = list(space.fitting_settings())
        points = [CostPoint({DRAFT: draft}, math.log(ms), 1e-4, 0.0) for draft, ms in measured.items()]
        predicted[space.on_processor] = math.exp(CostSurface(space, grid).fit(points).mean[grid.index({DRAFT: 3})])
    assert 18.0 < predicted[True] < predicted[False] - 0.3
