"""RPC workers: passed through to llama-server, and counted only when it lists them."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.app.planning import planner
from launcher.app.planning.planner import MachineDescription
from launcher.base.errors import BadOption, EngineUnsuitable
from launcher.engine.builds.probe import list_devices, probe_engine
from launcher.engine.serve_options import ServeOptions, check_options
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import prepare_launch
from launcher.models.read_situation import add_rpc_workers
from launcher.models.situation import describe_machine

ENGINE = """\
import sys
if "--version" in sys.argv:
    print("version: 0.7.0 (build 11669, commit x)", file=sys.stderr)
elif "--help" in sys.argv:
    print("--model --host --port --parallel --ctx-size --metrics --rpc --list-devices")
elif "--list-devices" in sys.argv:
    print("Available devices:")
    if "--rpc" in sys.argv:
        for number, worker in enumerate(sys.argv[sys.argv.index("--rpc") + 1].split(",")):
            if worker.startswith("gone"):
                sys.exit(1)
            print(f"  RPC{number}: {worker} (24082 MiB, 20000 MiB free)")
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A llama-server on PATH that lists a device of every worker except those in `gone`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "engine.py").write_text(ENGINE)
    program = folder / "llama-server"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {folder}/engine.py "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return program


async def test_workers_are_in_the_arguments(engine: Path, demo_model: Path) -> None:
    options = ServeOptions(demo_model, engine=engine, draft=0, rpc=("10.0.0.2:50052", "far.example:50053"))
    launch = await prepare_launch(options, Endpoint(20_001, "k" * 32))
    words = list(launch.command.arguments)
    assert words[words.index("--rpc") + 1] == "10.0.0.2:50052,far.example:50053"


async def test_without_workers_the_flag_is_left_out(engine: Path, demo_model: Path) -> None:
    launch = await prepare_launch(ServeOptions(demo_model, engine=engine, draft=0), Endpoint(20_001, "k" * 32))
    assert "--rpc" not in launch.command.arguments


async def test_a_build_without_rpc_is_reported(demo_model: Path) -> None:
    options = ServeOptions(demo_model, built_in=True, rpc=("10.0.0.2:50052",))
    with pytest.raises(EngineUnsuitable, match="--rpc"):
        await prepare_launch(options, Endpoint(20_001, "k" * 32))


@pytest.mark.parametrize(
    "worker", ["", "host", "host:", ":1", "host:0", "host:65536", "a b:1", "-x:1", "[::1]:1", "h:1;"]
)
def test_an_invalid_worker_is_refused(worker: str) -> None:
    with pytest.raises(BadOption, match="not an RPC worker"):
        check_options(ServeOptions(Path("m.gguf"), rpc=(worker,)))


async def test_the_engine_lists_the_devices_of_workers(engine: Path) -> None:
    build = await probe_engine(engine)
    assert await list_devices(build) == ()
    (device,) = await list_devices(build, ("10.0.0.2:50052",))
    assert (device.name, device.description, device.free_mib) == ("RPC0", "10.0.0.2:50052", 20_000)


async def test_listed_devices_are_counted(engine: Path) -> None:
    alone = await planner.read_situation(MachineDescription(gpu_memory_gib=(24,)))
    both = await planner.read_situation(MachineDescription(gpu_memory_gib=(24,), rpc=("10.0.0.2:50052",)))
    assert both.free_mib == alone.free_mib + 20_000
    assert both.gpus == 2
    assert both.gpu_free_mib == (alone.free_mib, 20_000)
    assert both.margin_mib == 2 * alone.margin_mib
    assert "RPC0 with 20,000 MiB free" in both.notes[-1]


@pytest.mark.parametrize("workers", [("gone.example:50052",), ("gone.example:1", "10.0.0.2:50052")])
async def test_unlisted_devices_are_reported_and_not_counted(engine: Path, workers: tuple[str, ...]) -> None:
    alone = await planner.read_situation(MachineDescription(gpu_memory_gib=(24,)))
    result = await planner.read_situation(MachineDescription(gpu_memory_gib=(24,), rpc=workers))
    assert replace(result, notes=()) == replace(alone, notes=())
    assert "not in this plan" in result.notes[-1]


def test_devices_of_workers_are_not_counted_without_a_gpu() -> None:
    alone = describe_machine(24, backend="cpu", host_gib=24)
    assert add_rpc_workers(alone, {"RPC0": 1}, ["a:1"]).free_mib == alone.free_mib
