"""`prove`: on the demo, on a simulated card, beside a running server, and the contents of its report."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from math import floor
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.app.measuring.proof_checks import CHECKS
from launcher.app.planning.model_source import ModelSource, estimate_by_formula
from launcher.engine.engine_estimate import comparable_parts
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.launch import plan_settings_of
from launcher.models.gguf import read_model
from tests import forked
from tests.cli.test_json_keys import read_documented_keys
from tests.cli.test_tune import WORKLOAD
from tests.conftest import FAKES
from tests.machine.conftest import compile_driver

ROOT = Path(__file__).parents[2]
SETTINGS = ("--set", "ctx=4096", "--set", "draft=2", "--no-preset")
SHORTEST = ("--minutes", "0.02")
TABLE = "0.00.100.000 I common_memory_breakdown_print: |"
HEAD = f"{TABLE} memory breakdown [MiB] | total   free    self   model   context   compute    unaccounted |\n"
PERSON = "annaliese"


def results(report: Mapping[str, Any]) -> dict[str, str]:
    return {check["id"]: check["result"] for check in report["checks"]}


def find_check(report: Mapping[str, Any], name: str) -> dict[str, Any]:
    return next(check for check in report["checks"] if check["id"] == name)


def test_each_check_is_beside_its_documented_claim() -> None:
    for check in CHECKS.values():
        lines = (ROOT / check.document).read_text("utf-8").splitlines()
        for row in check.rows.values():
            assert any(row in line and f"`{check.id}`" in line for line in lines), (check.id, row)


def test_the_demo_passes_and_the_report_names_nobody(tmp_path: Path) -> None:
    person = tmp_path / PERSON
    person.mkdir()
    report_file, workload = person / "report.md", person / "boats.toml"
    workload.write_text(WORKLOAD)
    environment = os.environ | {"HOME": str(person), "USER": PERSON, "LOGNAME": PERSON}
    done = forked.run(
        "prove", *SHORTEST, "--workload", workload, "--output", report_file, "--json", env=environment, timeout=240
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert results(report).keys() == CHECKS.keys()
    keys = read_documented_keys("prove")
    assert keys["the object"] == report.keys()
    assert keys["each of `checks`"] - {"confirmed", "refuted", "not_tried"} == report["checks"][0].keys()
    for name in ("plan-served", "engine-ends"):
        assert results(report)[name] == "confirmed", report
    assert "refuted" not in results(report).values()
    noted = re.findall(r"(?m)^ *[\d.]+ min    ([\w-]+): (confirmed|not tried), ", done.stderr)
    assert ("plan-served", "confirmed") in noted
    assert noted[-1] == ("engine-ends", "confirmed")
    assert {name: result.replace(" ", "_") for name, result in noted}.items() <= results(report).items()
    for check in report["checks"]:
        assert (check["result"] == "not_tried") == (check["reason"] is not None), check
    assert report["machine"]["model"]["name"] == "MTP demo"
    rows = report["evidence"]
    assert [row["draft"] for row in rows] == ["2"]
    assert float(rows[0]["tokens_per_second"]) > 0
    assert rows[0]["workload"] == "own prompts"
    assert {(row["trust"], bool(row["note"])) for row in rows} in ({("low", True)}, {("good", False)})
    written = report_file.read_text("utf-8")
    assert "| `plan-served` |" in written
    assert "presets/evidence/runs.csv" in written
    for personal in (PERSON, str(tmp_path), os.uname().nodename):
        assert not re.search(rf"\b{re.escape(personal)}\b", f"{done.stdout}\n{written}")
    again = forked.run("prove", "--output", report_file)
    assert again.returncode == 1
    assert "already exists" in again.stderr


def test_a_running_server_is_not_changed() -> None:
    with forked.start("serve", "demo", "--json", stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        ready = json.loads(server.stdout.readline())
        done = forked.run("prove", *SHORTEST, "--json")
        assert done.returncode == 1
        assert json.loads(done.stdout)["error"]["code"] == "server_runs"
        assert psutil.pid_exists(ready["pid"])
        server.terminate()
        server.wait(120)


def write_program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def card(tmp_path: Path, demo_model: Path) -> dict[str, str]:
    """An environment with a card and nvidia-smi, and an engine that takes the planned memory of that card."""
    options = ServeOptions(demo_model, context=4_096, draft=2)
    settings = plan_settings_of(options, "cuda")
    estimate = estimate_by_formula(ModelSource(read_model(demo_model), ()), settings)
    parts = {name: floor(mib) for name, mib in comparable_parts(estimate).items()}

    def row(*figures: int) -> str:
        result = " + ".join(f"{each:5}" for each in figures)
        return f"{TABLE}   - CUDA0 (Stub 24GB) | 24576 = 18432 + ({sum(figures)} = {result}) + 100 |\n"

    (tmp_path / "says").write_text(
        HEAD
        + row(parts["model_mib"], parts["context_mib"], parts["compute_mib"])
        + HEAD
        + row(parts["model_mib"], parts["draft_context_mib"], parts["draft_compute_mib"])
        + f"load_tensors:        CUDA0 model buffer size = {parts['model_mib']}.00 MiB\n"
    )
    folder = tmp_path / "bin"
    folder.mkdir()
    engine = f'exec "{sys.executable}" "{FAKES / "llama_server.py"}" "$@"'
    write_program(folder / "llama-server", f'case "$*" in *--port*) echo $$ $TAKES > "$STUB_PROGRAMS";; esac\n{engine}')
    figures = "GPU-zero, NVIDIA Stub 24GB, 580.65.06, 24576, $SMI_USED, 61, 312.50"
    write_program(folder / "nvidia-smi", f'echo "{figures}"')
    return {
        "FAKE_FAULTS": "says",
        "FAKE_SAYS": str(tmp_path / "says"),
        "LD_LIBRARY_PATH": str(compile_driver(folder)),
        "PATH": f"{folder}:{os.environ['PATH']}",
        "STUB_PROGRAMS": str(tmp_path / "programs"),
        "SMI_USED": "5662",
        "TAKES": str(round(estimate.parts.total / 2**20)),
    }


def engine_of(card: Mapping[str, str]) -> Path:
    """Return the engine of an environment with a card."""
    return Path(card["PATH"].split(":")[0]) / "llama-server"


def prove_card(
    card: Mapping[str, str], model: Path, minutes: str = "0.02", **changes: str
) -> tuple[int, dict[str, Any]]:
    words = ("prove", model, "--engine", engine_of(card), *SETTINGS, "--minutes", minutes, "--json")
    done = forked.run(*words, env=os.environ | card | changes, timeout=240)
    assert done.stdout, done.stderr
    assert "GPU-zero" not in done.stdout
    return done.returncode, json.loads(done.stdout)


@pytest.mark.thorough
def test_figures_of_a_card_are_compared_with_nvidia_smi_and_the_plan(card: Mapping[str, str], demo_model: Path) -> None:
    code, report = prove_card(card, demo_model)
    confirmed = {name for name, result in results(report).items() if result == "confirmed"}
    nvml = {name for name in CHECKS if name.startswith("nvml-")}
    assert nvml | {"plan-served", "memory-served", "engine-ends"} <= confirmed, report
    assert code == 0
    assert find_check(report, "plan-served")["line"] == "docs/accuracy.md: compute buffers, CUDA"


def test_wrong_claims_are_refuted(card: Mapping[str, str], demo_model: Path) -> None:
    code, report = prove_card(card, demo_model, TAKES="4000", SMI_USED="9000")
    refuted = {name for name, result in results(report).items() if result == "refuted"}
    assert refuted >= {"nvml-used", "memory-served"}
    # A fast computer has time for these settings, too, and the card refutes their claims.
    others = ("-context", "-kv", "-mtp")
    assert all(name.endswith(others) for name in refuted - {"nvml-used", "memory-served"})
    for name in ("nvml-name", "nvml-power", "plan-served"):
        assert results(report)[name] == "confirmed", report
    assert find_check(report, "memory-served")["measured"] == "4,000 MiB"
    assert code == 1


@pytest.mark.thorough  # five checks of the detector, 2 s apart
def test_heat_refutes_a_claim_at_once(card: Mapping[str, str], demo_model: Path) -> None:
    environment, pipe = os.environ | card | {"STUB_REASONS": "0x40"}, subprocess.PIPE
    words = ("prove", demo_model, "--engine", engine_of(card), *SETTINGS, "--minutes", "10")
    with forked.start(*words, env=environment, stdout=pipe, stderr=pipe) as proof:
        assert proof.stderr is not None
        while "too hot" not in proof.stderr.readline():
            assert proof.poll() is None
        proof.send_signal(signal.SIGINT)
        printed, _ = proof.communicate(timeout=120)
    [line] = [line for line in printed.splitlines() if line.startswith("throttling")]
    assert "REFUTED" in line
    assert "too hot" in line


@pytest.mark.thorough
def test_ctrl_c_reports_the_finished_checks() -> None:
    pipe = subprocess.PIPE
    with forked.start("prove", "--minutes", "5", stdout=pipe, stderr=pipe) as proof:
        assert proof.stderr is not None
        while "monitoring" not in proof.stderr.readline():
            assert proof.poll() is None
        proof.send_signal(signal.SIGINT)
        printed, _ = proof.communicate(timeout=120)
        assert proof.wait() == 130
    lines = {line.split()[0]: line for line in printed.splitlines() if line}
    assert "confirmed" in lines["plan-served"]
    assert "The run was interrupted before this check." in lines["plan-kv"]


@pytest.mark.thorough
def test_on_a_processor_a_long_load_shows_nothing() -> None:
    done = forked.run("prove", "--minutes", "1", "--json", timeout=240)
    assert done.returncode == 0, done.stderr
    assert results(json.loads(done.stdout))["load-time"] == "confirmed"
    assert "Loading the model again" in done.stderr
    assert "Keeping the model busy" not in done.stderr
