"""The memory formula, compared with the real engine for hundreds of settings on model files without data."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.app.planning.model_source import ModelSource, estimate_by_formula, read_source
from launcher.base.paths import cache_dir
from launcher.engine.builds.probe import probe_engine
from launcher.models import geometry
from launcher.models.memory import PlanSettings
from tools.accuracy.grid import COUNTS, PARTS, Case, Outcome, draw_cases, measure_cases

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


WINDOWED = (
    "exaone4-64-layers-q4_k",
    "exaone4-30-layers-q4_k",  # windows only in models of 64 layers
    "llama4-8b-q4_k",  # attention in chunks, which no key of the header tells
    "cohere2-8b-q4_k",
    "gemma2-8b-q4_k",
    "smallthinker-8b-q4_k",  # another window than its header says, and the first of four layers has none
)
SHORT, LONG = PlanSettings(32_768, draft=0), PlanSettings(65_536, "q8_0", draft=0, ubatch=1_024, slots=2)


def is_within_range(outcome: Outcome, source: ModelSource) -> bool:
    estimate = estimate_by_formula(source, replace(outcome.case.setting, backend="cpu"))
    engine_mib = sum(outcome.engine_mib(part) for part in PARTS) + estimate.parts.overhead / 2**20
    return estimate.low / 2**20 <= engine_mib + 3 and engine_mib <= estimate.high / 2**20


@pytest.mark.parametrize("model", WINDOWED)
async def test_windows_are_read_as_the_engine_reads_them(model: str, tmp_path: Path) -> None:
    cases = [Case(model, setting) for setting in (SHORT, LONG)]
    outcomes = await measure_cases(await probe_engine(None), cases, tmp_path)
    source = read_source(str(tmp_path / f"{model}.gguf"))
    for one in outcomes:
        assert one.is_equal("context_mib"), describe_outcome(one, "context_mib")
        assert is_within_range(one, source)


async def test_the_range_of_an_unknown_architecture_holds_its_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(geometry, "_WINDOWED", {})
    (outcome,) = await measure_cases(await probe_engine(None), [Case("llama4-8b-q4_k", SHORT)], tmp_path)
    assert not outcome.is_equal("context_mib")
    assert is_within_range(outcome, read_source(str(tmp_path / "llama4-8b-q4_k.gguf")))


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
