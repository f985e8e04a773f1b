"""Plans and estimates as both faces ask for them: this machine or a described one, the catalogue or one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.base.errors import BadOption, GeometryUnknown, GpuAsleep, LauncherError, ModelHasNoHead, ModelMissing
from launcher.base.paths import expanded
from launcher.models.limits import check_rpc
from launcher.models.plan import Plan, Wish, check_wish
from launcher.models.situation import Situation, described, situation_of, with_workers

if TYPE_CHECKING:
    from launcher.engine.ask import EngineEstimate
    from launcher.engine.build import Build, Device
    from launcher.engine.launch import Launch
    from launcher.engine.twin import TwinPart
    from launcher.machine.machine import Machine
    from launcher.models.catalogue import Catalogue, CompanionFile, ModelEntry
    from launcher.models.choice import Choice
    from launcher.models.compute import Backend
    from launcher.models.gguf_header import GgufModel
    from launcher.models.memory import Estimate, Setting

FLAGGED_PERCENT = 3.0
"""From this difference on the formula is not to be trusted beside the engine."""
_DEFAULT_CONTEXT = 32_768
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class MachineWish:
    """Which machine is meant: None and False everywhere is this one as it is now. Sizes in GiB but for `free_mib`.

    `rpc` are llama.cpp's RPC workers as HOST:PORT, whose devices are used beside its own.
    """

    gpu_memory_gib: float | None = None
    free_mib: int | None = None
    headless: bool = False
    host_memory_gib: float | None = None
    backend: Backend | None = None
    wake: bool = False
    rpc: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """An engine's own figures beside the formula's for the same backend, and by how many percent they differ.

    `formula` and `difference_percent` are None for a model that there is no formula for.
    """

    engine: EngineEstimate
    formula: Estimate | None
    difference_percent: float | None

    @property
    def flagged(self) -> bool:
        """Whether they differ by so much that only the engine is to be believed."""
        return self.difference_percent is not None and abs(self.difference_percent) > FLAGGED_PERCENT


async def situation(wish: MachineWish) -> Situation:
    """Return the machine that is meant, with the devices of RPC workers that the installed engine lists.

    Raises what `_own_situation` raises.
    """
    check_rpc(wish.rpc)
    own = await _own_situation(wish)
    return with_workers(own, await _workers_devices(wish.rpc), wish.rpc) if wish.rpc else own


async def _workers_devices(rpc: tuple[str, ...]) -> dict[str, int]:
    """Return the free MiB of the workers' devices by name; none when no engine is installed, or it cannot ask them."""
    from launcher.engine.build import list_devices

    try:
        build = await installed_build()
        devices = await list_devices(build, rpc) if build and "--rpc" in build.flags else ()
    except (LauncherError, OSError):
        return {}
    return {device.name: device.free_mib for device in devices if device.name.startswith("RPC")}


async def _own_situation(wish: MachineWish) -> Situation:
    """Return the machine that is meant, without others.

    The llama-server on PATH is asked for its devices when the drivers leave a GPU's memory open: not when that would
    wake a GPU that may sleep.

    Raises BadOption for memory that cannot be, GpuAsleep when this machine's only GPU sleeps and may not be woken.
    """
    if wish.host_memory_gib is not None and not 0.5 <= wish.host_memory_gib <= 65_536:
        raise BadOption(f"--host-memory {wish.host_memory_gib:g} is out of range.", "It goes from 0.5 to 65536 GiB.")
    if wish.gpu_memory_gib is not None:
        return described(
            wish.gpu_memory_gib,
            free_mib=wish.free_mib,
            headless=wish.headless,
            host_gib=wish.host_memory_gib,
            backend=wish.backend,
        )
    if wish.free_mib is not None and wish.free_mib < 0:
        raise BadOption(f"--free-memory {wish.free_mib} is out of range.", "It cannot be below 0.")
    from launcher.machine.machine import read_machine

    machine = read_machine(wake=wish.wake)
    _check_awake(machine, wish)
    if wish.backend != "cpu" and _engine_knows_more(machine, wish):
        machine = read_machine(await _installed_devices(), wake=wish.wake)
    return situation_of(
        machine,
        free_mib=wish.free_mib,
        headless=wish.headless,
        host_gib=wish.host_memory_gib,
        backend=wish.backend,
    )


def _check_awake(machine: Machine, wish: MachineWish) -> None:
    asleep = [gpu for gpu in machine.gpus if gpu.asleep and gpu.memory_bytes is None]
    usable = any(gpu.memory_bytes for gpu in machine.gpus)
    if asleep and not usable and not wish.wake and wish.backend != "cpu":
        raise GpuAsleep(
            f"The {asleep[0].name} sleeps, so its free memory is not known.",
            "Add --wake to wake it, or describe it with --gpu-memory.",
        )


def _engine_knows_more(machine: Machine, wish: MachineWish) -> bool:
    if any(gpu.asleep for gpu in machine.gpus) and not wish.wake:
        return False  # listing devices wakes all of them
    own = [gpu for gpu in machine.gpus if not gpu.unified]
    told = own or machine.gpus
    return not told or any(gpu.memory_bytes is None or gpu.free_bytes is None for gpu in told)


async def _installed_devices() -> tuple[Device, ...]:
    """Return the devices of the llama-server on PATH; none when there is none that answers."""
    from launcher.engine.build import list_devices

    try:
        build = await installed_build()
        return await list_devices(build) if build else ()
    except (LauncherError, OSError):
        return ()


def arguments(plan: Plan, build: Build | None, extra: Sequence[str] = (), *, rpc: Sequence[str] = ()) -> list[str]:
    """Return the command line of a plan: llama-server's, or `build`'s own with only the flags that it has.

    `rpc` are the RPC workers, `extra` the user's own arguments, which come last. Raises EngineUnsuitable when the build
    lacks a needed flag.
    """
    from launcher.engine.arguments import LLAMA_SERVER_FLAGS, memory_arguments
    from launcher.models.catalogue import SPECULATION

    command = list(build.command) if build else ["llama-server"]
    flags = build.flags if build else LLAMA_SERVER_FLAGS
    way = SPECULATION[plan.entry.speculation or "mtp"]
    draft = plan.entry.draft if way.needs_draft_file else None
    projector = plan.entry.projector if plan.setting.mmproj_bytes else None
    settings = memory_arguments(
        plan.setting,
        flags,
        spec_type=way.spec_type,
        draft_file=_beside(plan, draft),
        mmproj_file=_beside(plan, projector),
    )
    if rpc and build:
        build.require("--rpc")
    workers = ("--rpc", ",".join(rpc)) if rpc else ()
    here = downloaded(plan)
    return [*command, "--model", str(here) if here else plan.file.file, *settings, *workers, *extra]


def _beside(plan: Plan, companion: CompanionFile | None) -> str | None:
    """Where a draft or a projector is, or its name while it has to be pulled."""
    from launcher.models.library import find_companion

    return str(find_companion(plan.entry, companion) or companion.file) if companion else None


def downloaded(plan: Plan) -> Path | None:
    """Return where a plan's file is on this machine, its first part if it has several; None when it is not here."""
    from launcher.models.library import find

    try:
        local = find(plan.entry, plan.file.quant)
    except OSError:
        return None
    return local.path if local else None


async def installed_build() -> Build | None:
    """Return the engine in use, or the llama-server on PATH, asked what it can do; None when none answers."""
    from launcher.engine.build import find_on_path, probe
    from launcher.engine.installed import current, is_built_in_chosen

    try:
        chosen = current()
        program = chosen.program if chosen else None if is_built_in_chosen() else find_on_path()
        return await probe(program) if program else None
    except LauncherError:
        return None


def learn_from_load(launch: Launch, engine_pid: int, log: Sequence[str]) -> None:
    """Compare what a running engine has taken of its GPU with the estimate, and keep the difference for later plans.

    Only where the driver tells a process's own memory (NVML on Linux), one GPU has it all, the engine's `log` says by
    which backend, and the user's own arguments cannot have changed what it takes.
    """
    from launcher.engine.ask import backend_of_log
    from launcher.machine.gpus import find_gpus, inspect_gpus
    from launcher.models.geometry import geometry_of
    from launcher.models.learned import record_load
    from launcher.models.memory import estimate
    from launcher.models.weights import weights_of

    options, backend = launch.options, backend_of_log(log)
    if options.extra or options.draft_file or backend == "cpu":
        return
    gpus = find_gpus().gpus
    taken = {
        gpu_id: process.used_bytes
        for gpu_id, (_, activity) in inspect_gpus(gpus).items()
        for process in activity.processes or ()
        if process.pid == engine_pid and process.used_bytes
    }
    users = [gpu for gpu in gpus if gpu.id in taken]
    if len(users) != 1:
        return
    geometry = geometry_of(launch.header)
    predicted = estimate(geometry, weights_of(launch.header, geometry), launch.setting(backend)).parts.total
    measured = taken[users[0].id]
    record_load(users[0].id, backend, predicted_mib=predicted // _MIB, measured_mib=measured // _MIB)


@dataclass(frozen=True, slots=True)
class Source:
    """A model whose header was read: from this disk, or from the hub."""

    model: GgufModel
    parts: tuple[TwinPart, ...]


async def choose_file(
    catalogue: Catalogue, entry: ModelEntry, quant: str | None = None, *, vision: bool = False
) -> Choice:
    """Return the file of a model that suits this machine best, or how the one suits it that the user has named.

    A sleeping GPU is not woken for that. Raises what `models.choice.choose_file` raises.
    """
    from launcher.models import choice

    try:
        here = await situation(MachineWish())
    except GpuAsleep:
        here = None
    return choice.choose_file(catalogue, entry, quant, here, vision=vision)


def read_source(target: str) -> Source:
    """Read the header of a file on this disk, or of ID:QUANT or `OWNER/NAME:FILE`, here if it is, else on the hub.

    Raises ModelMissing, ModelBroken, and what the hub's answer leads to.
    """
    from launcher.engine.twin import TwinPart
    from launcher.fetch.hub import HubFile, is_hub_file
    from launcher.models.gguf import read_model, read_raw_header

    target = _where_it_is(target)
    path = expanded(target)
    if not path.exists() and not is_hub_file(target):
        raise ModelMissing(
            f"There is no model file {target}.",
            "Check the path. A file on the hub is written OWNER/NAME:FILE.gguf, and `plan --model ID` knows the"
            " catalogue's models.",
        )
    if path.exists():
        model = read_model(path)
        raw = [read_raw_header(part) for part in model.parts]
    else:
        from launcher.models.gguf_remote import read_remote_model

        remote = read_remote_model(HubFile.parse(target))
        model, raw = remote.model, list(remote.raw_headers)
    parts = zip(model.parts, raw, strict=True)
    return Source(model, tuple(TwinPart(part.path.name, header, part.file_bytes) for part, header in parts))


def _where_it_is(target: str) -> str:
    """Return the path of a model that is named by its id and is here, else its address on the hub."""
    from launcher.models.catalogue_load import load_catalogue
    from launcher.models.locate import locate
    from launcher.models.plan import source_name

    named = locate(target, load_catalogue())
    if named is None or (named.local is None and named.entry is None):
        return target
    if named.local is not None:
        return str(named.local.path)
    if named.file is not None and named.entry is not None:
        return source_name(named.entry, named.file) if "/" not in target else target
    raise BadOption(f"{target} has several files.", f"Write {target}:QUANT; `mtp-launcher models {target}` lists them.")


def projector_bytes(target: str) -> int:
    """Return the size in bytes of a vision projector on this disk, or of `OWNER/NAME:FILE` on the hub.

    Raises ModelMissing, and what the hub's answer leads to.
    """
    from launcher.fetch.hub import HubFile, is_hub_file, resolve
    from launcher.models.gguf import read_header

    path = expanded(target)
    if path.exists() or not is_hub_file(target):
        return read_header(path).file_bytes
    return resolve(HubFile.parse(target)).bytes


def setting_for(model: GgufModel, wish: Wish, situation: Situation) -> Setting:
    """Return the setting that `wish` means for a model that is not in the catalogue, on the GPUs that are meant.

    Raises BadOption for values that no engine takes, ModelHasNoHead for drafts without a head.
    """
    from launcher.models.gguf_header import MtpHead
    from launcher.models.memory import Setting

    check_wish(wish)
    has_head = model.mtp_head is MtpHead.PRESENT
    if wish.draft and not has_head:
        raise _no_head(model)
    context = min(_DEFAULT_CONTEXT, model.trained_context or _DEFAULT_CONTEXT)
    default = Setting(
        context=context,
        draft=2 if has_head else 0,
        backend=situation.backend,
        gpus=situation.gpus,
        gpu_free_mib=situation.gpu_free_mib,
    )
    return replace(default, **wish.overrides())  # type: ignore[arg-type]


def _no_head(model: GgufModel) -> ModelHasNoHead:
    return ModelHasNoHead(f"{model.path.name} has no MTP head.", "Leave --draft out, or set it to 0.")


def judge_formula(source: Source, setting: Setting) -> Estimate:
    """Return the formula's estimate for a model whose header was read. Raises GeometryUnknown."""
    from launcher.models.geometry import geometry_of
    from launcher.models.memory import estimate
    from launcher.models.weights import weights_of

    geometry = geometry_of(source.model)
    return estimate(geometry, weights_of(source.model, geometry), setting)


async def ask(source: Source, setting: Setting, engine: Path | None) -> Verdict:
    """Ask an engine what `setting` takes: the one named, else a llama-server on PATH, else the built-in one.

    The formula beside it is that for the engine's own backend. Raises ModelHasNoHead for drafts of a file without a
    head, and what `ask_engine` and `probe` raise.
    """
    from launcher.engine.ask import ask_engine, difference_percent
    from launcher.engine.build import probe
    from launcher.models.gguf_header import MtpHead

    if setting.draft and source.model.mtp_head is not MtpHead.PRESENT:
        raise _no_head(source.model)

    build = await probe(engine) if engine else await installed_build() or await probe(None)
    answer = await ask_engine(build, source.parts, setting)
    try:
        formula = judge_formula(source, replace(setting, backend=answer.backend, gpus=max(len(answer.devices), 1)))
    except GeometryUnknown:
        return Verdict(answer, None, None)
    return Verdict(answer, formula, difference_percent(formula, answer))
