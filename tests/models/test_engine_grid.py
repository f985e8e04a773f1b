"""The memory formula, compared with the real engine for hundreds of settings on model files without data."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from launcher.base.paths import cache_dir
from launcher.engine.builds.probe import probe_engine
from tools.accuracy.grid import COUNTS, PARTS, Outcome, draw_cases, measure_cases

CACHES = ("context_mib", "draft_context_mib")
SAMPLE = 12
"""Every 12th case is tested here; `just accuracy` tests all."""
MOST_PERCENT = 3.0
"""Largest allowed difference of compute buffers, in percent."""


def describe_outcome(outcome: Outcome, part: str) -> str:
    return f"{outcome.case}: {part} {outcome.formula[part]:.2f}, engine {outcome.engine_mib(part)}"


@pytest.mark.cases(2)
@pytest.mark.parametrize("model", COUNTS)
async def test_the_engine_agrees_with_the_formula(model: str, tmp_path: Path) -> None:
    wanted = [case for case in draw_cases(COUNTS, gpu=False) if case.model == model][::SAMPLE]
    outcomes = await measure_cases(await probe_engine(None), wanted, tmp_path)
    assert [outcome.case for outcome in outcomes] == wanted
    assert all(
        (outcome.engine.draft_context_mib is not None) == (outcome.case.setting.draft > 0) for outcome in outcomes
    )
    unequal = [
        describe_outcome(one, part) for one in outcomes for part in (*CACHES, "model_mib") if not one.is_equal(part)
    ]
    assert not unequal
    far = [
        describe_outcome(one, part)
        for one in outcomes
        for part in PARTS
        if abs(one.beyond_percent(part)) > MOST_PERCENT
    ]
    assert not far
    buffers = [(one, part) for one in outcomes for part in PARTS if "compute" in part]
    apart = [describe_outcome(one, part) for one, part in buffers if not one.is_equal(part)]
    assert len(apart) <= len(buffers) // 20, apart
    assert list((cache_dir() / "twins").iterdir()) == []


def test_the_grid_covers_all_values() -> None:
    grid = draw_cases(COUNTS, gpu=False)
    assert len(grid) == len(set(grid)) >= 200
    for model in list(COUNTS)[:2]:
        settings = [case.setting for case in grid if case.model == model]
        assert {setting.draft for setting in settings} == {0, 1, 2, 3, 4}
        assert {setting.slots for setting in settings} == {1, 2, 3, 4}
        assert {setting.kv for setting in settings} == {"f16", "q8_0", "q4_0", "q5_1"}
        assert {64, 2_048} <= {setting.ubatch for setting in settings}
        assert {4_096, 262_144} <= {setting.context for setting in settings}
        assert {setting.n_cpu_moe for setting in settings} == {0}


def test_a_grid_for_a_gpu_puts_experts_on_the_host_too() -> None:
    grid = draw_cases(COUNTS, gpu=True)
    assert grid == draw_cases(COUNTS, gpu=True)
    assert Counter(case.model for case in grid) == COUNTS
    on_host = {case.model: set[int]() for case in grid}
    for case in grid:
        on_host[case.model].add(case.setting.n_cpu_moe)
    assert {0, 1, 40, 41} <= on_host["qwen35moe-35b-q3_k_xl"]
    assert on_host["qwen35-27b-q4_k_s"] == {0}
