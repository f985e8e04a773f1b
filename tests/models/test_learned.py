"""Margins that follow what loads on this machine took beyond their estimates."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.models.learned import excess_mib, record_load
from tests.machine.conftest import compiled

LEARN = """
import asyncio, json, os, sys
from pathlib import Path
from launcher.engine.endpoint import Endpoint
from launcher.engine.launch import ServeOptions, plan
from launcher.planner import learn_from_load
options = ServeOptions(model=Path(sys.argv[1]), built_in=True, draft=2, context=4096)
launch = asyncio.run(plan(options, Endpoint(20001, "key")))
learn_from_load(launch, int(sys.argv[2]))
"""


def test_nothing_is_known_before_the_first_load(home: Path) -> None:
    assert excess_mib("GPU-1", "cuda") is None


def test_the_largest_of_the_last_loads_counts(home: Path) -> None:
    for measured in (10_500, 10_100, 9_900):
        assert record_load("GPU-1", "cuda", predicted_mib=10_000, measured_mib=measured)
    assert excess_mib("GPU-1", "cuda") == 500
    assert excess_mib("GPU-1", "vulkan") is None
    assert excess_mib("GPU-2", "cuda") is None
    for _ in range(8):
        record_load("GPU-1", "cuda", predicted_mib=10_000, measured_mib=9_950)
    assert excess_mib("GPU-1", "cuda") == -50


def test_what_the_estimate_cannot_be_blamed_for_is_not_learned(home: Path) -> None:
    assert not record_load("GPU-1", "cuda", predicted_mib=20_000, measured_mib=9_000)
    assert excess_mib("GPU-1", "cuda") is None


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"GPU-1 cuda": 3}', b"\xff"])
def test_a_damaged_file_is_taken_as_nothing_and_written_anew(home: Path, content: bytes) -> None:
    (home / "state").mkdir(parents=True)
    (home / "state" / "loads.json").write_bytes(content)
    assert excess_mib("GPU-1", "cuda") is None
    record_load("GPU-1", "cuda", predicted_mib=100, measured_mib=110)
    assert excess_mib("GPU-1", "cuda") == 10


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("driver"))


def learn(driver: Path, home: Path, model: Path, pid: int, **answers: str) -> dict[str, list[int]]:
    environment = {**os.environ, **answers, "LD_LIBRARY_PATH": str(driver), "STUB_PROCESSES": "2"}
    command = [sys.executable, "-W", "error", "-c", LEARN, str(model), str(pid)]
    subprocess.run(command, env=environment, check=True, timeout=60)
    file = home / "state" / "loads.json"
    return json.loads(file.read_text()) if file.exists() else {}


def test_a_running_engine_teaches_what_its_load_took(driver: Path, home: Path, demo_model: Path) -> None:
    """The stub's program 1 has 4 GiB: far too much for the demo, so it is not believed."""
    assert learn(driver, home, demo_model, pid=1) == {}
    assert learn(driver, home, demo_model, pid=99) == {}


def test_a_believable_load_moves_the_margin(
    driver: Path, home: Path, demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = learn(driver, home, demo_model, pid=1, STUB_PROCESS_MIB="400")
    ((key, (difference,)),) = learned.items()
    assert key.endswith(" cuda")
    assert 0 < difference < 100
    script = (
        "import json\nfrom launcher.machine.machine import read_machine\n"
        "from launcher.models.situation import situation_of\n"
        "plain = situation_of(read_machine())\nprint(json.dumps([plain.margin_mib, plain.notes]))"
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver), "DISPLAY": ":0"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True, timeout=60)
    margin, notes = json.loads(done.stdout)
    assert margin == 1_024 + difference
    assert any(f"up to {difference:,} MiB beyond" in note for note in notes)
