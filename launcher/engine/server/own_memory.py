"""Memory used by this user's running servers, read from drivers and the system, or else estimated."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from launcher.base.errors import LauncherError
from launcher.base.identity import ProcessId
from launcher.engine.builds.build import BUILT_IN
from launcher.engine.server import registry
from launcher.engine.server.launch import Launch, api_model_name, read_draft_file
from launcher.engine.server.state import ServerState
from launcher.machine.gpus import read_gpu_states
from launcher.models.drafters import MTP, file_kinds_of
from launcher.models.geometry import read_geometry
from launcher.models.gguf import read_model
from launcher.models.memory import PlanSettings, estimate_memory
from launcher.models.read_situation import ServerMemory
from launcher.models.weights import read_weights

if TYPE_CHECKING:
    from launcher.machine.gpu import GpuActivity
    from launcher.machine.machine import Machine
    from launcher.models.compute_buffers import Backend

_MIB = 2**20
_NOT_LOADED = (ServerState.PREPARING, ServerState.LOADING, ServerState.RESTARTING)
"""States in which an engine has allocated only a part of its memory."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """A running engine, with what is needed to find its memory.

    `model` is the model's name in the API, `engine` the name of the engine build. `loaded` is whether the engine has
    allocated all of its memory. `formula_inputs` are the arguments of the memory estimate, from `make_formula_inputs`.
    """

    engine_pid: int
    model: str
    engine: str
    loaded: bool
    formula_inputs: Mapping[str, Any]

    @classmethod
    def from_launch(cls, launch: Launch, engine_pid: int) -> RunningEngine:
        """Return an engine that was just started and may not be in the registry yet."""
        return cls(
            engine_pid,
            api_model_name(launch.options),
            launch.build.name,
            loaded=False,
            formula_inputs=make_formula_inputs(launch),
        )


def list_running_engines() -> tuple[RunningEngine, ...]:
    """Return the running engines of registered servers; empty if the registry cannot be read."""
    try:
        entries = registry.list_entries()
    except OSError as error:
        _log.warning("Cannot read which servers are running: %s.", error.strerror or error)
        return ()
    return tuple(
        RunningEngine(pid, each.model, each.engine, each.state not in _NOT_LOADED, each.formula_inputs)
        for entry in entries
        for each in entry.models
        if (pid := each.engine_pid)
        and (each.engine_created_s is None or ProcessId(pid, each.engine_created_s).is_running())
    )


def read_own_memory(
    machine: Machine, *, also: Sequence[RunningEngine] = (), wake: bool = False
) -> tuple[ServerMemory, ...]:
    """Return the memory of each running server of this user.

    `also` are engines that may be missing in the registry; the registry's entry takes precedence. GPUs are queried only
    if an engine runs, and a sleeping GPU is woken only with `wake`.
    """
    engines = {engine.engine_pid: engine for engine in (*also, *list_running_engines())}
    if not engines:
        return ()
    activities = {gpu_id: activity for gpu_id, (_, activity) in read_gpu_states(machine.gpus, wake=wake).items()}
    return tuple(
        _read_memory(engine, _gpu_memory_from_drivers(pid, machine, activities)) for pid, engine in engines.items()
    )


def read_replaced_memory(launch: Launch, engine_pid: int, machine: Machine) -> ServerMemory:
    """Return the memory that the end of a loaded engine gives back to the host, for the start that replaces it.

    What it uses on GPUs is asked only of those that share the host's memory.
    """
    engine = replace(RunningEngine.from_launch(launch, engine_pid), loaded=True)
    shared = [gpu for gpu in machine.gpus if gpu.unified]
    activities = {gpu_id: activity for gpu_id, (_, activity) in read_gpu_states(shared).items()}
    return _read_memory(engine, _gpu_memory_from_drivers(engine_pid, machine, activities) if shared else {})


def _read_memory(engine: RunningEngine, by_gpu: Mapping[str, int] | None) -> ServerMemory:
    return ServerMemory(
        engine_pid=engine.engine_pid,
        model=engine.model,
        by_gpu=by_gpu,
        host_mib=private_mib(engine.engine_pid),
        estimate=partial(_estimate_gpu_memory, engine),
    )


def make_formula_inputs(launch: Launch) -> dict[str, Any]:
    """Return the arguments of the memory estimate as JSON data, to be stored in the server's registry entry."""
    options = launch.options
    return {
        "model": str(options.model),
        "draft_file": str(options.used_draft_file) if options.used_draft_file else None,
        "setting": asdict(launch.plan_settings("cpu")),
    }


def _gpu_memory_from_drivers(
    pid: int, machine: Machine, activities: Mapping[str, GpuActivity]
) -> dict[str, int] | None:
    """Return a process's memory on each GPU in MiB, by GPU id; None if the drivers do not report it.

    A process that no driver lists uses no GPU memory, but only if the drivers list all processes: they do not on
    Windows, in WSL, and in a container, where NVML reports the pids of the host.
    """
    used_mib: dict[str, int] = {}
    for gpu_id, activity in activities.items():
        for process in activity.processes or ():
            if process.pid == pid:
                if process.used_bytes is None:
                    return None
                used_mib[gpu_id] = process.used_bytes // _MIB
    host = machine.host
    sees_all_processes = host.kind == "linux" and host.wsl is None and host.container is None
    all_drivers_report = bool(activities) and all(each.processes is not None for each in activities.values())
    return used_mib if used_mib or (sees_all_processes and all_drivers_report) else None


def private_mib(pid: int) -> int | None:
    """Return a process's private host memory in MiB; None if unknown.

    Pages of the mapped model file are not counted, because the system can reuse them.
    """
    with suppress(psutil.Error):
        memory = psutil.Process(pid).memory_info()
        mapped = getattr(memory, "shared", 0)
        return int(getattr(memory, "private", memory.rss - mapped)) // _MIB
    return None


def _estimate_gpu_memory(
    engine: RunningEngine, backend: Backend, overheads_mib: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return a loaded engine's estimated memory on each GPU in MiB; None if it is still loading or cannot be estimated.

    `overheads_mib` is what driver and process take on each. The built-in engine uses no GPU.
    """
    if engine.engine == BUILT_IN:
        return (0,) * len(overheads_mib)
    if not engine.loaded or not engine.formula_inputs:
        return None
    inputs = engine.formula_inputs
    draft_file = inputs.get("draft_file")
    try:
        stored = dict(inputs["setting"])
        sizes = [tuple(each) for each in stored.get("draft_sizes") or stored.pop("other_draft_bytes", ())]
        if own_bytes := stored.pop("draft_model_bytes", 0):  # a server of an earlier version
            sizes += [(kind, own_bytes) for kind in file_kinds_of(stored.get("spec_type", MTP.spec_type))[:1]]
        stored["draft_sizes"] = tuple(sizes)
        if stored.pop("ngrams", False):  # a server of version 0.1.0
            stored["spec_type"] = "ngram-mod"
        header = read_model(Path(inputs["model"]))
        geometry = read_geometry(header)
        setting = replace(
            PlanSettings(**stored),
            backend=backend,
            gpus=len(overheads_mib),
            gpu_free_mib=(),
            overheads_mib=overheads_mib,
            cards=(),
        )
        estimate = estimate_memory(
            geometry,
            read_weights(header, geometry),
            setting,
            read_draft_file(Path(draft_file) if draft_file else None),
        )
    except (LauncherError, OSError, KeyError, TypeError):  # another program version may have stored other inputs
        return None
    return tuple(share // _MIB for share in estimate.by_gpu)
