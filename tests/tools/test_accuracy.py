"""The accuracy tables: published measurements, differences beyond rounding, and their text."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.engine.engine_estimate import EngineEstimate
from launcher.machine.cards import find_card
from launcher.models.catalogue import ModelEntry, ModelFile
from launcher.models.cuda_pool import pool_bytes
from launcher.models.memory import PlanSettings
from launcher.models.weights import Weights, weights_by_rules
from tools.accuracy import report
from tools.accuracy.grid import Case, Outcome
from tools.accuracy.loads import Load, read_loads
from tools.accuracy.published import (
    CLAIMS,
    DENSE,
    LOGS,
    MOE,
    STEPS,
    TOTALS,
    Log,
    Run,
    Step,
    Total,
    list_predictions,
    load_shipped_catalogue,
)
from tools.accuracy.runs import CAUSES, read_totals

ROOT = Path(__file__).parents[2]
MIB = 2**20


def test_most_published_totals_agree_with_the_formula_and_the_others_have_a_cause() -> None:
    found, left_out = read_totals()
    near = [run for run in found if run.is_near]
    assert len(found) >= len(near) >= 60
    assert len(near) / len(found) > 0.9
    assert statistics.median(abs(run.difference) for run in found) < 0.002
    assert len({run.card.name for run in near}) >= 10
    for run in found:
        assert run.is_near or run.cause, run.row
    assert sum(left_out.values()) > 100  # told in words, on several cards, or without the file's size
    far = [run for run in found if not run.is_near]
    for gpu, quant, source in CAUSES:
        assert any((gpu, quant) == (run.row["gpu"], run.row["quant"]) and run.cause for run in far), source


@pytest.mark.parametrize(
    "load", read_loads(), ids=lambda load: "-".join(load.row[key] for key in ("model", "kv", "draft"))
)
def test_every_load_of_a_real_card_agrees_with_the_formula(load: Load) -> None:
    assert load.formula_loaded_mib == pytest.approx(load.loaded_mib, rel=0.01)
    assert load.formula_mib == pytest.approx(load.prompted_mib, rel=0.01)
    assert load.low_mib < load.prompted_mib < load.high_mib
    assert load.formula_mib - load.formula_loaded_mib == pytest.approx(load.prompted_mib - load.loaded_mib, abs=5)


@pytest.mark.parametrize("card", ["L4", "A30"])
def test_the_pool_explains_why_a_mixture_takes_more_than_its_buffers(card: str) -> None:
    def driver_mib(log: Log) -> float:
        geometry = load_shipped_catalogue().find(log.run.model).geometry
        assert geometry is not None
        sides = {False, True}  # target and head
        kinds = {"floats": bool(geometry.experts)}
        pools = [pool_bytes(geometry, 256, "cuda", find_card(card), head=head, **kinds) for head in sides]
        return log.peaks[card] - sum(log.parts.values()) - sum(pool.usual for pool in pools) / MIB

    mixture, dense = LOGS
    assert driver_mib(mixture) == pytest.approx(driver_mib(dense), abs=6)


def test_memory_in_use_before_the_start_is_counted() -> None:
    found, _ = read_totals()
    before = {run.row["gpu"]: run.before_mib for run in found if run.before_mib}
    assert before == {"RTX 4060 Ti": 265, "RTX 3080": 64}


@pytest.mark.parametrize("total", TOTALS, ids=lambda total: f"{total.gpu}-{total.run.quant}-{total.run.setting.draft}")
def test_no_measured_total_differs_much(total: Total) -> None:
    assert total.run.total_mib() == pytest.approx(total.measured_mib, rel=0.02)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.run.model)
def test_parts_of_a_log_agree_with_the_formula(log: Log) -> None:
    estimate = log.run.estimate()
    assert estimate is not None
    parts = {part: size / MIB for part, size in estimate.parts.as_dict().items()}
    for part, measured in log.parts.items():
        assert parts[part] == pytest.approx(measured, rel=0.03 if "compute" in part else 0, abs=0.1), part
    buffers = sum(parts.values()) - parts["overhead"] - parts["pool"]
    assert sum(log.parts.values()) == pytest.approx(buffers, rel=0.001)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step.gpu}-{step.file}-{step.measured_mib}")
def test_memory_grows_as_the_formula_says(step: Step) -> None:
    assert step.formula_mib() == pytest.approx(step.measured_mib, abs=3)


def test_earlier_predictions_agree_with_the_formula() -> None:
    found = list_predictions()
    assert len(found) >= 4
    for entry, preset, result in found:
        assert preset.predicted_mib is not None
        # The predictions added a whole layer's experts to the rest, but the experts take turns with other tensors.
        if preset.n_cpu_moe:
            file = entry.file(preset.quant)
            assert file is not None
            assert -(entry.expert_layer_mib(file) or 0) <= result - preset.predicted_mib <= 5, (entry.id, preset)
        else:  # the preset for four slots assumes one KV cache that they share; here each slot has its own
            near = 0.005 if preset.slots == 1 else 0.04
            near = 0.02 if entry.id == DENSE else near  # its publisher has replaced the files by smaller ones
            assert result == pytest.approx(preset.predicted_mib, rel=near), (entry.id, preset)


def test_a_run_of_an_unknown_file_has_no_total() -> None:
    with pytest.raises(ValueError, match="the size of Q9"):
        Run(DENSE, "Q9", PlanSettings(context=4_096)).total_mib()


def rules(entry: ModelEntry, file: ModelFile) -> Weights:
    assert entry.geometry is not None
    weights = weights_by_rules(entry, file, entry.geometry)
    assert weights is not None
    return weights


def test_an_unknown_embedding_is_taken_from_the_family_else_from_the_name() -> None:
    def embedding_mib(model: str, quant: str, **changes: str | None) -> float:
        entry = load_shipped_catalogue().find(model)
        known = entry.file(quant) or ModelFile(quant=quant, file=quant, size_bytes=15 * 10**9)
        return rules(entry, replace(known, **changes)).embedding / MIB  # type: ignore[arg-type]

    assert embedding_mib(MOE, "MXFP4_MOE") == pytest.approx(515.3, abs=0.1)  # Q8_0, as in most files of the family
    # A type of this file's own: Q3_K or IQ3_S.
    assert embedding_mib(DENSE, "UD-Q4_K_S") == pytest.approx(521.0, abs=0.1)
    assert embedding_mib(DENSE, "UD-Q4_K_XL") == pytest.approx(682.0, abs=0.1)  # a type of four bits
    assert embedding_mib(DENSE, "my own") == pytest.approx(682.0, abs=0.1)
    assert embedding_mib(DENSE, "UD-Q6_K") == pytest.approx(994.6, abs=0.1)
    assert embedding_mib(DENSE, "UD-Q4_K_S", token_embd_type="no such type") == pytest.approx(682.0, abs=0.1)
    assert embedding_mib(DENSE, "UD-Q4_K_M", token_embd_type="q8_0") == pytest.approx(1_288.3, abs=0.1)


ENGINE = EngineEstimate(
    engine="llama-server b1",
    backend="cpu",
    devices=(),
    model_mib=100,
    context_mib=50,
    compute_mib=200,
    draft_context_mib=None,
    draft_compute_mib=None,
    host_mib=0,
    free_mib=None,
    seconds=0.1,
)
FORMULA = {
    "model_mib": 101.9,
    "context_mib": 50.0,
    "compute_mib": 206.0,
    "draft_context_mib": 0.0,
    "draft_compute_mib": 0.0,
}
OUTCOME = Outcome(Case("small", PlanSettings(context=4_096, draft=0, backend="cpu")), FORMULA, ENGINE)


def test_a_figure_that_was_rounded_down_is_equal() -> None:
    assert OUTCOME.is_equal("model_mib")  # two kinds of memory, each rounded down
    assert not replace(OUTCOME, formula=FORMULA | {"model_mib": 102.0}).is_equal("model_mib")
    assert OUTCOME.is_equal("context_mib")
    assert OUTCOME.is_equal("draft_context_mib")
    assert not replace(OUTCOME, formula=FORMULA | {"context_mib": 51.0}).is_equal("context_mib")
    assert not replace(OUTCOME, formula=FORMULA | {"context_mib": 49.99}).is_equal("context_mib")
    two = replace(OUTCOME, engine=replace(ENGINE, devices=("CUDA0", "CUDA1")), formula=FORMULA | {"context_mib": 51.9})
    assert two.is_equal("context_mib")


def test_a_difference_is_counted_beyond_the_rounding() -> None:
    assert OUTCOME.beyond_mib("model_mib") == 0
    assert OUTCOME.beyond_mib("compute_mib") == pytest.approx(5)
    assert OUTCOME.beyond_percent("compute_mib") == pytest.approx(2.5)
    assert replace(OUTCOME, formula=FORMULA | {"compute_mib": 190.0}).beyond_percent("compute_mib") == pytest.approx(-5)


def test_the_table_of_an_engine_counts_agreeing_parts_and_lists_differences() -> None:
    drafted = Case("small", PlanSettings(context=4_096, draft=2, backend="cpu"))
    answered = replace(ENGINE, compute_mib=206, draft_context_mib=0, draft_compute_mib=0)
    text = report.engine_table([OUTCOME, replace(OUTCOME, case=drafted, engine=answered)])
    assert text.splitlines()[2] == ("| small | 2 of 2 | 2 of 2 | 1 of 2, +0.0 to +5.0 MiB, +2.5 % | 1 of 1 | 1 of 1 |")
    assert (
        report.list_differences([OUTCOME])
        == "- small -c 4096 -ctk f16 -ub 512 -np 1 n0: compute buffer 206.0, engine 200"
    )
    assert report.list_differences([]) == "None differs."


@pytest.mark.parametrize(
    "make", [report.logs_table, report.totals_table, report.steps_table, report.presets_table, report.claims_table]
)
def test_a_table_has_as_many_cells_in_every_row(make: object) -> None:
    assert callable(make)
    lines = str(make()).splitlines()
    assert len(lines) > 5
    assert {line.count("|") for line in lines} == {lines[0].count("|")}
    assert "nan" not in "".join(lines)


def test_runs_of_the_articles_are_known() -> None:
    totals = [claim.run.total_mib() for claim in CLAIMS]
    assert min(totals) > 10_000
    assert max(totals) == pytest.approx(25_116, abs=10)  # the largest total is the run that does not fit 24 GB


def test_the_command_says_when_an_engine_cannot_be_asked(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.accuracy", "--only-engine", "--engine", str(tmp_path / "none")]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, env=os.environ | {"TMPDIR": str(tmp_path)}
    )
    assert ended.returncode == 1
    assert "not found" in ended.stderr
    assert ended.stdout == ""
    assert list(tmp_path.glob("mtp-accuracy-*")) == []
