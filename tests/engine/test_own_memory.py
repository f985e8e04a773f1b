"""Memory of our own running servers: from the registry, the drivers, and the formula."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from launcher.app.planning.model_source import estimate_by_formula, read_source
from launcher.app.planning.planner import MachineDescription, read_situation
from launcher.base.identity import ProcessId
from launcher.engine.builds.build import EngineBuild
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import own_memory, registry
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import prepare_launch
from launcher.engine.server.own_memory import (
    RunningEngine,
    list_running_engines,
    read_own_memory,
    read_replaced_memory,
)
from launcher.engine.server.registry import Registration
from launcher.machine.gpu import Gpu, GpuActivity, GpuProcess
from launcher.machine.host import Host
from launcher.machine.machine import Machine, read_machine
from launcher.models.memory import PlanSettings
from launcher.models.read_situation import make_situation
from tools.sparse_models.models import model
from tools.sparse_models.write import write

GIB, MIB = 2**30, 2**20
CARD = Gpu("nvidia", 0, "Card", "GPU-0", 24 * GIB, used_bytes=16 * GIB, free_bytes=8 * GIB, unified=False)


@pytest.fixture
def engine_pid() -> Iterator[int]:
    """A process in place of an engine: only its memory is read."""
    command = [sys.executable, "-c", "import sys; kept = b'x' * (64 << 20); print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdin
        assert program.stdout
        program.stdout.readline()
        yield program.pid
        program.stdin.close()


@pytest.fixture
def sparse_model(tmp_path: Path) -> Path:
    path = tmp_path / "9b.gguf"
    write(path, "9b", model("qwen35-9b-q4_k_m"))
    return path


@pytest.fixture
def machine() -> Machine:
    """This computer with a card that has no driver here."""
    found = read_machine()
    return Machine(found.host, (CARD,), None, {}, (), ())


def register(engine_pid: int, **more: object) -> Registration:
    _, registration = registry.register_server(None, registry.ServedModel(model="kept", engine="b11434", draft=2))
    identity = ProcessId.from_pid(engine_pid)
    assert identity is not None
    registration.update_first(engine_pid=engine_pid, engine_created_s=identity.created_s, **more)
    assert registration.wait_written(10)
    return registration


DRAFT_SIZES = (("mtp-head", 2**30),)


def inputs(sparse: Path, *, version: str = "") -> dict[str, object]:
    setting = asdict(PlanSettings(context=32_768, kv="q8_0", draft=2, backend="cpu", draft_sizes=DRAFT_SIZES))
    if version == "0.1.0":
        del setting["spec_type"], setting["chosen_drafter"]
        setting["ngrams"], setting["draft_model_bytes"] = False, dict(setting.pop("draft_sizes"))["mtp-head"]
    return {"model": str(sparse), "draft_file": None, "setting": setting}


@pytest.mark.parametrize("version", ["", "0.1.0"])
def test_without_a_driver_the_memory_of_a_server_is_estimated_from_its_settings(
    engine_pid: int, sparse_model: Path, machine: Machine, version: str
) -> None:
    registration = register(engine_pid, state="ready", formula_inputs=inputs(sparse_model, version=version))
    try:
        (found,) = read_own_memory(machine)
        assert (found.engine_pid, found.model, found.by_gpu) == (engine_pid, "kept", None)
        source = read_source(str(sparse_model))
        expected = (
            estimate_by_formula(
                source, PlanSettings(context=32_768, kv="q8_0", draft=2, draft_sizes=DRAFT_SIZES)
            ).parts.total
            // MIB
        )
        assert found.estimate("cuda", (330,)) == (expected,)
        both = found.estimate("cuda", (330, 606))
        assert both is not None
        assert len(both) == 2
        known = make_situation(machine, servers=[found])
        assert (known.free_mib, known.free_now_mib, known.own_mib) == (8 * 1_024 + expected, 8 * 1_024, expected)
    finally:
        registration.remove()


@pytest.mark.parametrize("broken", [{}, {"model": "gone.gguf"}, {"model": "x", "setting": {"from": "a later version"}}])
def test_memory_is_unknown_without_an_estimate(
    engine_pid: int, sparse_model: Path, machine: Machine, broken: dict[str, object]
) -> None:
    registration = register(engine_pid, state="ready", formula_inputs=broken)
    try:
        (found,) = read_own_memory(machine)
        assert found.estimate("cuda", (330,)) is None
        assert make_situation(machine, servers=[found]).own_mib is None
    finally:
        registration.remove()


def test_the_memory_of_a_loading_engine_is_unknown(engine_pid: int, sparse_model: Path, machine: Machine) -> None:
    registration = register(engine_pid, state="loading", formula_inputs=inputs(sparse_model))
    try:
        assert read_own_memory(machine)[0].estimate("cuda", (330,)) is None
        registration.update_first(engine="built-in")
        assert registration.wait_written(10)
        assert read_own_memory(machine)[0].estimate("cuda", (330,)) == (0,)  # the built-in engine uses no GPU memory
    finally:
        registration.remove()


async def test_the_memory_of_an_engine_that_was_just_started_is_unknown(
    engine_pid: int, demo_model: Path, sparse_model: Path, machine: Machine
) -> None:
    launch = await prepare_launch(ServeOptions(model=demo_model, built_in=True), Endpoint("127.0.0.1", 1, "key"))
    built = EngineBuild("b11434", ("llama-server",), "", frozenset())
    server = RunningEngine.from_launch(replace(launch, build=built), engine_pid)
    assert read_own_memory(machine, also=[server])[0].estimate("cuda", (330,)) is None
    registration = register(engine_pid, state="ready", formula_inputs=inputs(sparse_model))
    try:
        assert read_own_memory(machine, also=[server])[0].estimate("cuda", (330,)) is not None
        registration.update_first(state="loading")
        assert registration.wait_written(10)
        assert read_own_memory(machine, also=[server])[0].estimate("cuda", (330,)) is None
    finally:
        registration.remove()


def test_a_server_without_an_engine_uses_no_memory(engine_pid: int, machine: Machine) -> None:
    registration = register(engine_pid)
    try:
        registration.update_first(engine_created_s=1.0)  # the number now belongs to another process
        assert registration.wait_written(10)
        assert list_running_engines() == ()
        assert read_own_memory(machine) == ()
    finally:
        registration.remove()


def test_a_server_of_this_process_is_counted_once_and_before_it_is_registered(
    engine_pid: int, machine: Machine
) -> None:
    server = RunningEngine(engine_pid, "mine", "built-in", loaded=True, formula_inputs={})
    assert [each.model for each in read_own_memory(machine, also=[server])] == ["mine"]
    registration = register(engine_pid, state="ready")
    try:
        assert [each.model for each in read_own_memory(machine, also=[server])] == ["kept"]
    finally:
        registration.remove()


async def test_a_start_gets_back_what_the_replaced_engine_had_of_shared_memory(
    engine_pid: int, demo_model: Path, machine: Machine
) -> None:
    launch = await prepare_launch(ServeOptions(model=demo_model, built_in=True), Endpoint("127.0.0.1", 1, "key"))
    launch = replace(launch, build=EngineBuild("b11434", ("llama-server",), "", frozenset()))
    shared = Gpu("amd", 0, "AMD Radeon 8060S", "0000:c3:00.0", 60 * GIB, free_bytes=GIB, used_bytes=GIB, unified=True)
    host = replace(machine.host, memory_bytes=64 * GIB, available_bytes=20 * GIB)
    both = [
        replace(machine, host=host, gpus=(replace(shared, unified=unified, driver="amdgpu"),))
        for unified in (True, False)
    ]
    there, apart = (read_replaced_memory(launch, engine_pid, each) for each in both)
    assert (there.by_gpu, apart.by_gpu) == (None, {})
    known = make_situation(both[0], environ={}, servers=[there])
    private_mib, own = there.host_mib or 0, known.own_mib or 0
    assert own > 0
    assert known.host_beside_mib(0) == 20 * 1_024 + private_mib + own


def test_private_memory_is_counted_and_mapped_files_are_not(engine_pid: int, machine: Machine) -> None:
    server = RunningEngine(engine_pid, "mine", "built-in", loaded=True, formula_inputs={})
    (found,) = read_own_memory(machine, also=[server])
    assert found.host_mib is not None
    assert 64 <= found.host_mib < 160


@pytest.mark.parametrize(
    ("processes", "changes", "expected"),
    [
        ((GpuProcess(7, "engine", 3 * GIB), GpuProcess(9, "game", GIB)), {}, {"GPU-0": 3_072}),
        ((GpuProcess(9, "game", GIB),), {}, {}),
        ((GpuProcess(9, "game", GIB),), {"wsl": 2}, None),
        ((GpuProcess(9, None, GIB),), {"container": "docker"}, None),
        ((GpuProcess(7, "engine", None),), {}, None),
        (None, {}, None),
    ],
)
def test_the_driver_is_used_if_it_lists_all_processes(
    processes: tuple[GpuProcess, ...] | None,
    changes: dict[str, object],
    expected: dict[str, int] | None,
    machine: Machine,
) -> None:
    plain: dict[str, object] = {"kind": "linux", "wsl": None, "container": None}
    host: Host = replace(machine.host, **(plain | changes))  # type: ignore[arg-type]
    here = replace(machine, host=host)
    assert own_memory._gpu_memory_from_drivers(7, here, {"GPU-0": GpuActivity(processes, (), {})}) == expected


async def test_without_a_server_the_system_figures_are_used() -> None:
    known = await read_situation(MachineDescription(backend="cpu"))
    assert (known.own_mib, known.free_now_mib) == (0, known.free_mib)
    assert known.read_at is not None


async def test_without_a_gpu_the_memory_of_our_server_counts_as_free(engine_pid: int) -> None:
    server = RunningEngine(engine_pid, "mine", "built-in", loaded=True, formula_inputs={})
    known = await read_situation(MachineDescription(backend="cpu"), also=[server])
    assert known.own_mib is not None
    assert known.own_mib >= 64
    assert known.free_mib == known.free_now_mib + known.own_mib
    assert known.own_pids == {engine_pid}
