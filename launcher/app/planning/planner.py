"""Plans and estimates for window and command line: this machine or a described one, the catalogue or one file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.base.errors import (
    BadOption,
    GeometryUnknown,
    GpuAsleep,
    LauncherError,
)
from launcher.base.messages import FaceName, mark, message
from launcher.engine.arguments import LLAMA_SERVER, planned_options, server_arguments
from launcher.engine.builds.build import BUILT_IN, find_llama_server_on_path, store_dir
from launcher.engine.serve_options import DEFAULT_DRAFT, DraftFile, ServeOptions, fallback_context
from launcher.machine.cards import find_card, match_card
from launcher.models.limits import check_rpc
from launcher.models.memory import PlanSettings
from launcher.models.plan import Plan, PlanCriteria, plan_file
from launcher.models.server_settings import ROWS, to_fields
from launcher.models.situation import Situation, describe_machine, describe_unified_machine

if TYPE_CHECKING:
    from launcher.engine.builds.build import Device, EngineBuild
    from launcher.engine.engine_estimate import EngineEstimate
    from launcher.engine.server.own_memory import RunningEngine
    from launcher.machine.machine import Machine
    from launcher.models.catalogue import Catalogue, CompanionFile, ModelEntry
    from launcher.models.choice import FileChoice
    from launcher.models.compute_buffers import Backend
    from launcher.models.gguf import GgufModel
    from launcher.models.locate import ModelSelection
    from launcher.models.memory import MemoryEstimate
    from launcher.models.plan import UnplannedFile
    from launcher.models.read_situation import ServerMemory

FLAGGED_PERCENT = 3.0
"""A formula that differs by more is marked as wrong, and only the engine's figures count."""
_MIB, _GIB = 2**20, 2**30


@dataclass(frozen=True, slots=True)
class MachineDescription:
    """A machine to plan for. With the defaults it is this machine as it is now.

    `gpu_memory_gib` (the size of each GPU), `gpu` (a part of a card's name) and `unified_memory_gib` (memory that the
    GPU shares with the host) describe another machine. `free_mib`, `host_memory_gib`, `host_bandwidth_gb_s` (of its
    host memory) and `backend` replace what would be read here. `headless` means that no display uses the GPU. With
    `wake` sleeping GPUs are woken to be read. `rpc` are llama.cpp's RPC workers as HOST:PORT, whose devices are used
    together with the machine's own.
    """

    gpu_memory_gib: tuple[float, ...] = ()
    free_mib: int | None = None
    gpu: str | None = None
    unified_memory_gib: float | None = None
    headless: bool = False
    host_memory_gib: float | None = None
    host_bandwidth_gb_s: float | None = None
    backend: Backend | None = None
    wake: bool = False
    rpc: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineComparison:
    """An engine's own memory figures and the formula's for the same backend, and their difference in percent.

    `formula` and `difference_percent` are None for a model without a formula.
    """

    engine: EngineEstimate
    formula: MemoryEstimate | None
    difference_percent: float | None

    @property
    def flagged(self) -> bool:
        """True if the difference is so large that only the engine's figures count."""
        return self.difference_percent is not None and abs(self.difference_percent) > FLAGGED_PERCENT


async def read_situation(
    description: MachineDescription, *, also: Sequence[RunningEngine] = (), build: EngineBuild | None = None
) -> Situation:
    """Return the situation of the given machine, with the devices of RPC workers that the engine lists.

    Its memory is read now, and the memory of our own servers counts as free; `also` are engines that the registry may
    not have yet. `build` is the engine to ask for memory that drivers do not report, None for the one in use. Raises
    BadOption for impossible memory sizes, and GpuAsleep if this machine's only GPU sleeps and must not be woken.
    """
    check_rpc(description.rpc)
    situation = await _read_local_situation(description, also, build)
    if (stated := description.host_bandwidth_gb_s) is not None:
        if not 1 <= stated <= 10_000:
            raise BadOption(
                message("--host-bandwidth {stated:g} is out of range.", stated=stated),
                message("It goes from 1 to 10000 GB/s."),
            )
        situation = replace(situation, host_gb_s=stated)
    if not situation.described and situation.backend != "cpu":
        situation = await _add_abilities(situation, build)
    if not description.rpc:
        return situation
    from launcher.models.read_situation import add_rpc_workers

    devices = await _list_devices(build, description.rpc)
    workers = {device.name: device.free_mib for device in devices if device.name.startswith("RPC")}
    return add_rpc_workers(situation, workers, description.rpc)


async def _read_local_situation(
    description: MachineDescription, also: Sequence[RunningEngine], build: EngineBuild | None
) -> Situation:
    """Return the situation of the given machine without RPC workers. Raises what `read_situation` raises.

    The engine is asked for its devices if the drivers do not report a GPU's memory or if it knows better, unless that
    would wake a GPU.
    """
    if description.host_memory_gib is not None and not 0.5 <= description.host_memory_gib <= 65_536:
        raise BadOption(
            message("--host-memory {host_memory_gib:g} is out of range.", host_memory_gib=description.host_memory_gib),
            message("It goes from 0.5 to 65536 GiB."),
        )
    if description.gpu is not None or description.unified_memory_gib is not None:
        return _describe_card(description)
    if description.gpu_memory_gib:
        return describe_machine(
            description.gpu_memory_gib,
            free_mib=description.free_mib,
            headless=description.headless,
            host_gib=description.host_memory_gib,
            backend=description.backend,
        )
    if description.free_mib is not None and description.free_mib < 0:
        raise BadOption(
            message("--free-memory {free_mib} is out of range.", free_mib=description.free_mib),
            message("It cannot be below 0."),
        )
    from launcher.machine.machine import read_machine

    machine = read_machine(wake=description.wake)
    _check_awake(machine, description)
    if description.backend != "cpu" and (devices := await _list_needed_devices(machine, description, build)):
        machine = read_machine(devices, wake=description.wake)
    from launcher.models.read_situation import make_situation

    servers: tuple[ServerMemory, ...] = ()
    if also or _may_servers_run():
        from launcher.engine.server.own_memory import read_own_memory

        servers = await asyncio.to_thread(read_own_memory, machine, also=also, wake=description.wake)
    return make_situation(
        machine,
        free_mib=description.free_mib,
        headless=description.headless,
        host_gib=description.host_memory_gib,
        backend=description.backend,
        servers=servers,
    )


def _may_servers_run() -> bool:
    """Return whether the registry has entries: to import what reads them takes as long as the rest of a plan."""
    from launcher.engine.server.entry_files import list_entry_files

    try:
        return bool(list_entry_files())
    except OSError:
        return True


def _describe_card(description: MachineDescription) -> Situation:
    """Return the situation of a machine with a card known by name, or with unified memory. Raises BadOption."""
    if description.unified_memory_gib is not None and description.host_memory_gib is not None:
        raise BadOption(
            message("--unified-memory and --host-memory cannot be combined."),
            message("Unified memory is the host's memory. Give one of them."),
        )
    card = find_card(description.gpu, sum(description.gpu_memory_gib) or None) if description.gpu else None
    if description.unified_memory_gib is not None or (card and card.unified):
        memory_gib = description.unified_memory_gib or description.host_memory_gib or (card.memory_gb if card else 0)
        card = match_card(card.name, memory_gib) if card else None  # of a Jetson Orin, the module with this memory
        return describe_unified_machine(
            memory_gib, card=card, free_mib=description.free_mib, backend=description.backend
        )
    assert card is not None  # noqa: S101 -- either a card or a memory size is given
    return describe_machine(
        card.memory_gb,
        card=card,
        free_mib=description.free_mib,
        headless=description.headless,
        host_gib=description.host_memory_gib,
        backend=description.backend,
    )


def _check_awake(machine: Machine, description: MachineDescription) -> None:
    asleep = [gpu for gpu in machine.gpus if gpu.asleep and gpu.memory_bytes is None]
    usable = any(gpu.memory_bytes for gpu in machine.gpus)
    if asleep and not usable and not description.wake and description.backend != "cpu":
        raise GpuAsleep(
            message("The {name} is asleep, so its free memory is unknown.", name=asleep[0].name),
            message(
                "[Add {option} to wake it, or describe it with {memory}.][{instead}]",
                option=FaceName("--wake"),
                memory=FaceName("--gpu-memory"),
                instead=FaceName(
                    None, mark("It wakes when a model is started; until then nothing can be said of what fits.")
                ),
            ),
        )


async def _list_needed_devices(
    machine: Machine, description: MachineDescription, build: EngineBuild | None
) -> tuple[Device, ...]:
    """Return the engine's devices if plans must count its figures; empty if not.

    They must where the drivers do not report a GPU's memory, and where the engine can use less or more of an NVIDIA GPU
    than NVML reports: a slice of it, for example. That is asked only once for each driver.
    """
    if _must_ask_engine(machine, description):
        return await _list_devices(build)
    if all(gpu.vendor != "nvidia" for gpu in machine.gpus) or _must_not_wake(machine, description):
        return ()
    from launcher.engine.builds.probe import list_devices_once
    from launcher.machine.engine_devices import merge_engine_gpus
    from launcher.machine.visibility import list_variables

    drivers = [(gpu.id, gpu.driver, None if gpu.unified else gpu.memory_bytes) for gpu in machine.gpus]
    try:
        build = build or await probe_engine_in_use()
        if build is None or build.name == BUILT_IN:
            return ()
        usual = await list_devices_once(build, repr((drivers, list_variables(os.environ))))
    except (LauncherError, OSError):
        return ()
    merged = merge_engine_gpus(machine.gpus, usual)
    if all(gpu.memory_bytes == known.memory_bytes for gpu, known in zip(machine.gpus, merged, strict=False)):
        return ()
    return await _list_devices(build) or usual  # with the memory that is free now


def _must_ask_engine(machine: Machine, description: MachineDescription) -> bool:
    """Return whether the drivers do not report all of the memory."""
    if _must_not_wake(machine, description):
        return False
    gpus = [gpu for gpu in machine.gpus if not gpu.unified] or machine.gpus
    return not gpus or any(
        gpu.memory_bytes is None or gpu.free_bytes is None or "memory_bytes" in gpu.absent for gpu in gpus
    )


def _must_not_wake(machine: Machine, description: MachineDescription) -> bool:
    """Return whether the engine must not list its devices, because that wakes all of them."""
    return any(gpu.asleep for gpu in machine.gpus) and not description.wake


async def _add_abilities(situation: Situation, build: EngineBuild | None) -> Situation:
    """Return the situation with what an engine (None: the one in use) can do: an expert cache, and drafters.

    Without an engine at hand it has those of the newest stable one, which would be installed.
    """
    with suppress(OSError):
        build = build or await probe_engine_in_use()
    if build is None:
        return situation
    has_cache = build.flags.issuperset(ROWS["moe_cache_mib"].flags)
    return replace(situation, has_expert_cache=has_cache, spec_types=build.spec_types or situation.spec_types)


async def _list_devices(build: EngineBuild | None, rpc: tuple[str, ...] = ()) -> tuple[Device, ...]:
    """Return the devices of an engine (None: the one in use) and its RPC workers. Empty when it cannot list them."""
    try:
        build = build or await probe_engine_in_use()
        if build is None or (rpc and "--rpc" not in build.flags):
            return ()
        from launcher.engine.builds.probe import list_devices

        return await list_devices(build, rpc)
    except (LauncherError, OSError):
        return ()


def options_for_plan(
    plan: Plan, *, rpc: Sequence[str] = (), extra: Sequence[str] = (), file: Path | None = None
) -> ServeOptions:
    """Return the options that serve a plan: its model and companion files by path if they are here, else by name.

    `rpc` are the RPC workers, `extra` the user's own arguments. `file` is the model's path or name if that is known.
    """
    projector = plan.entry.projector if plan.setting.mmproj_bytes else None
    options = ServeOptions(
        file or downloaded_file(plan) or Path(plan.file.file),
        draft_file=_companion_path(plan, plan.entry.draft_file),
        other_drafts=tuple(
            DraftFile(kind, path)
            for each in plan.entry.drafts
            if (path := _companion_path(plan, each)) is not None and path.is_file()  # the catalogue's may not be here
            for kind in each.kinds
        ),
        spec_type=plan.entry.drafter.spec_type,
        embeddings=plan.entry.embedding,
        reranking=plan.entry.reranker,
        mmproj=_companion_path(plan, projector),
        rpc=tuple(rpc),
        extra=tuple(extra),
    )
    return planned_options(plan.setting, options)


@dataclass(frozen=True, slots=True)
class PlannedEngine:
    """Engine of a plan: the build that `serve` would start here, or None for a generic llama-server.

    `gpu` is whether it computes on a GPU, `no_gpu` whether a GPU build must be kept from using one.
    """

    build: EngineBuild | None
    gpu: bool
    no_gpu: bool = False


async def planned_engine(machine: MachineDescription, situation: Situation) -> PlannedEngine:
    """Return the engine that would serve on the given machine; on this machine, the one that `serve` would start."""
    no_gpu = machine.backend == "cpu"
    if situation.described:
        return PlannedEngine(None, situation.backend != "cpu", no_gpu)
    if not _may_have_llama_server():
        from launcher.engine.builds.probe import probe_engine

        with suppress(LauncherError, OSError):
            return PlannedEngine(await probe_engine(None), gpu=False, no_gpu=no_gpu)
    from launcher.engine.server.launch import choose_build, uses_gpu
    from launcher.machine.machine import read_machine

    try:
        build = await choose_build(ServeOptions(Path(), no_gpu=no_gpu))
    except (LauncherError, OSError):
        return PlannedEngine(None, situation.backend != "cpu", no_gpu)
    gpu = not no_gpu and await uses_gpu(build, await asyncio.to_thread(read_machine))
    return PlannedEngine(build, gpu, no_gpu)


def plan_arguments(
    plan: Plan,
    engine: PlannedEngine,
    extra: Sequence[str] = (),
    *,
    rpc: Sequence[str] = (),
    file: Path | None = None,
) -> list[str]:
    """Return the command line of a plan, for `engine` or for a generic llama-server.

    `rpc` are the RPC workers, `extra` the user's own arguments, which come last. `file` is the model's path or name if
    that is known. Raises EngineUnsuitable when the build lacks a needed flag.
    """
    build = engine.build or LLAMA_SERVER
    options = replace(options_for_plan(plan, rpc=rpc, extra=extra, file=file), no_gpu=engine.no_gpu)
    return [*build.command, *server_arguments(options, build, gpu=engine.gpu)]


def plan_environment(engine: PlannedEngine) -> dict[str, str]:
    """Return the environment variables that are added for a plan's engine, without its API key."""
    if engine.build is None:
        return {}
    from launcher.engine.environment import added_environment

    return {**added_environment(), **engine.build.environment}


def _companion_path(plan: Plan, companion: CompanionFile | None) -> Path | None:
    """Return the path of a draft model or projector, or its file name while it is not downloaded."""
    from launcher.models.library import find_companion

    if companion is None:
        return None
    return find_companion(plan.entry, companion) or Path(companion.file)


def downloaded_file(plan: Plan) -> Path | None:
    """Return the path of a plan's file on this machine, the first part if it has several. None when it is not here."""
    from launcher.models.library import find_local_model

    if plan.entry.repo is None:
        from launcher.engine.demo import DEMO, unpack_demo_model

        if plan.entry.id == DEMO:
            return unpack_demo_model()
    try:
        local = find_local_model(plan.entry, plan.file.quant)
    except OSError:
        return None
    return local.path if local else None


async def probe_engine_in_use() -> EngineBuild | None:
    """Return the probed build of the engine in use, or of llama-server on PATH; None if there is none that works."""
    if not _may_have_llama_server():
        return None
    from launcher.engine.builds.installed import engine_in_use, is_built_in_chosen
    from launcher.engine.builds.probe import probe_engine

    try:
        chosen = engine_in_use()
        if chosen is not None:
            return await probe_engine(chosen.program)
        program = None if is_built_in_chosen() else find_llama_server_on_path()
        return await probe_engine(program) if program else None
    except LauncherError:
        return None


def _may_have_llama_server() -> bool:
    """Return whether there is a store of engines or a llama-server on PATH: if not, callers need fewer imports."""
    return store_dir().is_dir() or find_llama_server_on_path() is not None


@dataclass(frozen=True, slots=True)
class PlannedModels:
    """Plans, the best first, and the files without a plan: of a named model, or of all (`selection` is None).

    `catalogue` has the model's entry, `criteria` its id. `asked` is an engine's answer, or the reason why it gave none;
    None if it was not asked.
    """

    selection: ModelSelection | None
    catalogue: Catalogue
    criteria: PlanCriteria
    plans: tuple[Plan, ...]
    unplanned: tuple[UnplannedFile, ...]
    asked: EngineComparison | LauncherError | None = None


async def choose_file(
    catalogue: Catalogue, entry: ModelEntry, quant: str | None, *, vision: bool = False, drafter: str | None = None
) -> FileChoice:
    """Return the file of a model that suits this machine best, or with `quant` how well that file suits it.

    Sleeping GPUs are not woken. Raises what `models.choice.choose_file` raises.
    """
    from launcher.models import choice

    try:
        situation = await read_situation(MachineDescription())
    except GpuAsleep:
        situation = None
    return choice.choose_file(catalogue, entry, quant, situation, vision=vision, drafter=drafter)


def settings_for_model(model: GgufModel, criteria: PlanCriteria, situation: Situation) -> PlanSettings:
    """Return the settings of the plan for a model that is not in the catalogue.

    For a model without a memory formula, the context is `fallback_context`. Raises BadOption for invalid values,
    ModelHasNoHead for drafts without a head.
    """
    with suppress(GeometryUnknown):
        return plan_file(model, situation, criteria).setting
    default = PlanSettings(
        context=fallback_context(model.trained_context),
        draft=DEFAULT_DRAFT if model.has_mtp_head and not model.is_embedding else 0,
        backend=situation.backend,
        **situation.memory_fields,
    )
    return replace(default, **to_fields(criteria.chosen()))
