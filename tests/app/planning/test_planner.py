"""The machine that plans are made for, with facts about its GPUs that only the llama-server on PATH reports."""

import json
import os
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.app.planning.engine_answer import compare_with_engine
from launcher.app.planning.model_source import read_source
from launcher.app.planning.planner import MachineDescription, _must_ask_engine, read_situation
from launcher.base.errors import EngineFailed
from launcher.engine.builds.build import EngineBuild
from launcher.engine.builds.probe import probe_engine
from launcher.machine.gpu import Gpu
from launcher.machine.host import read_host
from launcher.machine.machine import Machine
from launcher.models.memory import PlanSettings
from tests import forked
from tests.conftest import FAKES
from tools.sparse_models.models import model
from tools.sparse_models.write import write

GIB = 2**30
RADEON = "Vulkan0: AMD Radeon RX 9999 XT (16304 MiB, 15000 MiB free)"
CARD = Gpu("amd", 0, "AMD Radeon RX 7900 XTX", "0000:03:00.0", 24 * GIB, free_bytes=23 * GIB, unified=False)
BUILT_IN = Gpu("intel", 0, "Intel Iris Xe", "0000:00:02.0", unified=True)


@pytest.fixture
def argument_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_driver: Path) -> Path:
    """A file with the arguments that the llama-server on PATH was run with; there is no NVIDIA driver."""
    folder, log = tmp_path / "bin", tmp_path / "arguments"
    folder.mkdir()
    fake = shlex.join([sys.executable, str(FAKES / "llama_server.py")])
    program = folder / "llama-server"
    program.write_text(f'#!/bin/sh\necho "$1" >> {shlex.quote(str(log))}\nexec {fake} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(no_driver))
    monkeypatch.setenv("FAKE_DEVICES", f"Available devices:\n  {RADEON}")
    return log


def machine_of(*arguments: str, verb: str = "plan") -> Any:  # noqa: ANN401 -- any JSON value
    done = forked.run(verb, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.thorough
def test_a_gpu_that_only_the_engine_lists_is_planned_for(argument_log: Path, demo_model: Path) -> None:
    machine = machine_of()["machine"]
    assert (machine["gpu"], machine["backend"]) == ("AMD Radeon RX 9999 XT", "vulkan")
    assert (machine["free_mib"], machine["gpus"]) == (15_000, 1)
    result = machine_of(str(demo_model), verb="estimate")
    assert (result["backend"], result["free_mib"]) == ("vulkan", 15_000)


@pytest.mark.parametrize("arguments", [("--gpu-memory", "24"), ("--backend", "cpu")])
def test_the_devices_of_the_engine_are_read_only_when_they_matter(
    argument_log: Path, arguments: tuple[str, ...]
) -> None:
    machine_of(*arguments)
    assert not argument_log.exists() or "--list-devices" not in argument_log.read_text()


def test_a_gpu_that_is_not_used_on_purpose_is_not_reported_as_missing(argument_log: Path) -> None:
    result = forked.run("plan", "--backend", "cpu")
    assert result.stdout.startswith("The processor (cpu): ")


def test_plans_are_made_if_the_engine_does_not_answer(argument_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (Path(os.environ["PATH"].split(os.pathsep)[0]) / "llama-server").write_text("#!/bin/sh\nexit 3\n")
    assert machine_of("--host-memory", "64")["machine"]["backend"] == "cpu"


async def test_the_named_engine_is_asked_for_its_devices(
    argument_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RPC workers are always asked for, whatever the drivers here report."""
    worker = "RPC0: 10.0.0.2:50052 (24082 MiB, 20000 MiB free)"
    monkeypatch.setenv("FAKE_DEVICES", f"Available devices:\n  {RADEON}\n  {worker}")
    other = tmp_path / "other"
    shutil.copyfile(shutil.which("llama-server") or "", other)
    other.chmod(0o755)
    build = await probe_engine(other)
    on_path = Path(shutil.which("llama-server") or "")
    on_path.write_text("#!/bin/sh\nexit 3\n")
    machine = MachineDescription(rpc=("10.0.0.2:50052",))
    assert not any("RPC0" in note for note in (await read_situation(machine)).notes)
    assert any("RPC0 with 20,000 MiB free" in note for note in (await read_situation(machine, build=build)).notes)


async def test_an_engine_estimates_a_model_file_without_the_draft_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, settings = tmp_path / "headless.gguf", []
    write(path, "headless", model("qwen35moe-35b-iq3_s-nomtp"))

    async def note_settings(_build: EngineBuild, _parts: object, setting: PlanSettings, **_: bool) -> None:
        settings.append(setting)
        raise EngineFailed("Enough.")

    monkeypatch.setattr("launcher.app.planning.engine_answer.ask_engine", note_settings)
    wanted = PlanSettings(context=4_096, draft=3, draft_sizes=(("mtp-head", GIB),), backend="cpu")
    with pytest.raises(EngineFailed):
        await compare_with_engine(read_source(str(path)), wanted, None)
    assert settings == [replace(wanted, draft=0)]


@pytest.mark.parametrize(
    ("gpus", "wake", "more"),
    [
        ((), False, True),
        ((CARD,), False, False),
        ((CARD, BUILT_IN), False, False),
        ((BUILT_IN,), False, True),
        ((replace(CARD, free_bytes=None),), False, True),
        ((BUILT_IN, replace(CARD, memory_bytes=None, free_bytes=None, asleep=True)), False, False),
        ((BUILT_IN, replace(CARD, memory_bytes=None, free_bytes=None, asleep=True)), True, True),
    ],
    ids=["none", "all known", "beside a built-in one", "built-in", "free unknown", "sleeps", "woken"],
)
def test_a_driver_that_reports_everything_is_enough_and_a_sleeping_gpu_is_not_woken(
    gpus: tuple[Gpu, ...], wake: bool, more: bool
) -> None:
    machine = Machine(read_host(), gpus, None, {}, (), ())
    assert _must_ask_engine(machine, MachineDescription(wake=wake)) is more
