"""Overheads that are learned from earlier loads on this machine, which took more memory than estimated."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.base.paths import state_dir
from launcher.models.load_history import read_overhead_mib, record_load
from tests.machine.conftest import compile_driver

LEARN = """
import asyncio, json, sys
from pathlib import Path
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import prepare_launch
from launcher.engine.serve_options import ServeOptions
from launcher.app.planning.load_memory import record_load_memory
model, engine, pid, context, backend, extra = json.loads(sys.argv[1])
options = ServeOptions(model=Path(model), engine=Path(engine), draft=2, context=context, extra=tuple(extra))
launch = asyncio.run(prepare_launch(options, Endpoint(20001, "key")))
log = [
    "0.00.030.001 I load_tensors:        CUDA0 model buffer size =    90.00 MiB",
    "0.00.032.001 I load_tensors: offloaded 5/5 layers to GPU",
    "0.00.033.001 I load_tensors:   CPU_Mapped model buffer size =     1.00 MiB",
    f"0.00.033.002 I load_tensors: {backend:>12} model buffer size =    90.00 MiB",
]
record_load_memory(launch, pid, log if backend else [])
"""


def test_nothing_is_known_before_the_first_load(home: Path) -> None:
    assert read_overhead_mib("GPU-1", "cuda") is None


def test_a_history_that_cannot_be_read_is_none(home: Path) -> None:
    (state_dir() / "measured-memory.json").mkdir(parents=True)
    assert read_overhead_mib("GPU-1", "cuda") is None


def test_the_largest_of_the_last_loads_counts(home: Path) -> None:
    for measured in (10_500, 10_100, 9_900):
        assert record_load("GPU-1", "cuda", buffers_mib=9_670, measured_mib=measured)
    assert read_overhead_mib("GPU-1", "cuda") == 830
    assert read_overhead_mib("GPU-1", "vulkan") is None
    assert read_overhead_mib("GPU-2", "cuda") is None
    for _ in range(8):
        record_load("GPU-1", "cuda", buffers_mib=9_670, measured_mib=9_950)
    assert read_overhead_mib("GPU-1", "cuda") == 280


def test_differences_with_other_causes_are_not_learned(home: Path) -> None:
    assert not record_load("GPU-1", "cuda", buffers_mib=20_000, measured_mib=20_079)
    assert not record_load("GPU-1", "cuda", buffers_mib=20_000, measured_mib=21_831)
    assert read_overhead_mib("GPU-1", "cuda") is None


def test_the_reading_after_a_full_ubatch_replaces_that_of_the_load(home: Path) -> None:
    record_load("GPU-1", "cuda", buffers_mib=9_670, measured_mib=10_100)
    record_load("GPU-1", "cuda", buffers_mib=9_670, measured_mib=10_200)
    record_load("GPU-1", "cuda", buffers_mib=9_900, measured_mib=10_300, replaces_last=True)
    assert json.loads((home / "state" / "measured-memory.json").read_text()) == {"GPU-1 cuda": [100, 70]}


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"GPU-1 cuda": 3}', b"\xff"])
def test_a_damaged_file_is_ignored_and_replaced(home: Path, content: bytes) -> None:
    (home / "state").mkdir(parents=True)
    (home / "state" / "measured-memory.json").write_bytes(content)
    assert read_overhead_mib("GPU-1", "cuda") is None
    record_load("GPU-1", "cuda", buffers_mib=100, measured_mib=440)
    assert read_overhead_mib("GPU-1", "cuda") == 340


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def learn(driver: Path, home: Path, demo_model: Path, fake_engine: Path) -> Callable[..., dict[str, list[int]]]:
    """Load the demo by a llama-server that takes `mib` on the stub's GPU, and return what was learned."""

    def load(
        mib: int, *, pid: int = 1, context: int = 4_096, backend: str = "CUDA0", extra: tuple[str, ...] = ()
    ) -> dict[str, list[int]]:
        taken = {"LD_LIBRARY_PATH": str(driver), "STUB_PROCESSES": "2", "STUB_PROCESS_MIB": str(mib)}
        parameters = json.dumps([str(demo_model), str(fake_engine), pid, context, backend, extra])
        command = [sys.executable, "-W", "error", "-c", LEARN, parameters]
        subprocess.run(command, env=os.environ | taken, check=True, timeout=60)
        file = home / "state" / "measured-memory.json"
        return json.loads(file.read_text()) if file.exists() else {}

    return load


Learn = Callable[..., dict[str, list[int]]]


@pytest.mark.thorough
def test_a_load_that_cannot_be_judged_is_not_learned(learn: Learn) -> None:
    assert learn(4_096) == {}, "far too much for the demo"
    assert learn(400, pid=99) == {}, "the driver does not list this program"
    assert learn(400, backend="") == {}, "the log does not say where the weights are"
    assert learn(400, extra=("--mmproj", "vision.gguf")) == {}, "the projector may have taken memory"
    assert learn(400, context=2**20) == {}, "the engine has left layers on the host"


def test_the_log_says_which_backend_loaded_the_weights(learn: Learn) -> None:
    ((key, _),) = learn(400, backend="Vulkan0").items()
    assert key.endswith(" vulkan")


def test_a_plausible_load_changes_the_overhead_of_later_plans(learn: Learn, driver: Path) -> None:
    ((key, (difference,)),) = learn(400).items()
    assert key.endswith(" cuda")
    assert 0 < difference < 100
    script = (
        "import json\nfrom launcher.machine.machine import read_machine\n"
        "from launcher.models.read_situation import make_situation\n"
        "plain = make_situation(read_machine())\n"
        "print(json.dumps([plain.margin_mib, plain.overheads_mib, plain.notes]))"
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver), "DISPLAY": ":0"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True, timeout=60)
    margin, overheads, notes = json.loads(done.stdout)
    assert (margin, overheads) == (1_024, [330 + difference])
    assert any(f"took up to {330 + difference:,} MiB of the" in note for note in notes)
