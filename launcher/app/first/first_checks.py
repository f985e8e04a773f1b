"""Checks before a first start: files and engines that are already here, sizes of downloads, and obstacles."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from launcher.app.planning.planner import MachineDescription, read_situation
from launcher.app.planning.start_settings import KeptPlan
from launcher.app.serving.server_process import own_pids
from launcher.base.errors import DiskFull, LauncherError, NothingFits
from launcher.base.messages import command_name, message, plural_message
from launcher.base.paths import expand_user, find_existing_parent, models_dir
from launcher.engine.builds.assets import TargetComputer, describe_computer
from launcher.engine.builds.build import EngineBuild, find_llama_server_on_path, store_dir
from launcher.engine.builds.installed import InstalledEngine, engine_in_use, is_built_in_chosen, read_store
from launcher.engine.builds.known_bad import build_number, find_known_fault
from launcher.engine.builds.offers import find_offer
from launcher.engine.builds.probe import check_built_in_engine, list_devices, probe_engine
from launcher.engine.builds.releases import ReleaseClient
from launcher.engine.demo import DEMO
from launcher.engine.server import registry
from launcher.engine.settings import Settings
from launcher.fetch.hub import resolve_file
from launcher.fetch.retries import call_with_retries
from launcher.fetch.transfer import TransferSettings
from launcher.machine.disks import read_disks
from launcher.machine.engine_devices import is_gpu
from launcher.machine.machine import read_machine
from launcher.models.catalogue import ModelEntry
from launcher.models.catalogue_load import load_catalogue
from launcher.models.download_target import parse_target
from launcher.models.file_kinds import unusable_error
from launcher.models.hub_files import recognise_remote
from launcher.models.library import State, find_companion
from launcher.models.locate import find_named, select_file
from launcher.models.memory import PlanSettings
from launcher.models.plan import Plan
from launcher.models.preset import Intent
from launcher.models.pull import unfinished_bytes

_UNPACKED_FACTOR = 3
"""The archives of an engine and their unpacked files together take about three times the archives' size."""


@dataclass(frozen=True, slots=True)
class FirstStartRequest:
    """A model to start, named as for `serve`, with the server settings of its plan (None: chosen automatically).

    `title` is the model's name for users if `model` is a path. `kept` are the settings among `plan_settings` that the
    user chose earlier, `replaced` the user's settings that do not fit, and `same_as_tuned` the user's settings that
    equal the tune's. `needed_mib` is the memory in MiB that must be free. Without `plan_settings`, `intent` is the
    preference for the settings, and `use_tuned` whether tuned ones are used.
    """

    model: str
    plan_settings: PlanSettings | None = None
    title: str = ""
    kept: Settings = field(default_factory=dict)
    replaced: Settings = field(default_factory=dict)
    same_as_tuned: Settings = field(default_factory=dict)
    needed_mib: int = 0
    intent: Intent = "balanced"
    use_tuned: bool = True

    @property
    def is_demo(self) -> bool:
        """True if it is the demo, which needs neither a GPU nor the network."""
        return self.model == DEMO

    @property
    def vision(self) -> bool:
        """True if the model's vision projector is loaded."""
        return self.plan_settings is not None and self.plan_settings.mmproj_bytes > 0

    @property
    def on_gpu(self) -> bool:
        """True if an engine with a GPU backend is needed."""
        return self.plan_settings is not None and self.plan_settings.backend != "cpu"


def make_first_start_request(plan: Plan, kept: KeptPlan | None = None) -> FirstStartRequest:
    """Return the request that starts a plan. `kept` has the user's own settings for its file.

    They are included if `plan` is the variant with them, or if that variant does not exist (none of them fits). If it
    exists and `plan` is the other one, the user decided against them.
    """
    if plan.entry.id == DEMO and plan.setting.backend != "cpu":
        return FirstStartRequest(DEMO)  # its engine has no other backend than the processor
    model = f"{plan.entry.id}:{plan.file.quant}" if plan.entry.id != plan.file.file else plan.file.file
    if plan.entry.id == DEMO:
        model = DEMO
    if plan.entry.id == plan.entry.repo:  # a repository on the hub that the catalogue does not have
        model = f"{plan.entry.repo}:{plan.file.file}"
    title = plan.entry.name if plan.entry.id == plan.file.file else ""
    request = FirstStartRequest(model, plan.setting, title, needed_mib=plan.needed_mib)
    if kept is None:
        return request
    request = replace(request, same_as_tuned=kept.same_as_tuned)
    if kept.is_kept_plan(plan) or kept.kept_plan is None:
        request = replace(request, kept=kept.kept, replaced=kept.replaced)
    return request


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """A suitable engine on this computer. `tested` is whether it passed its self-test when it was installed."""

    name: str
    built_in: bool = False
    tested: bool = False


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """Local files of a model. `path` is the first file once all are complete, else None.

    `bytes` is the size of all files, None if unknown; `done_bytes` of them are here. With `verified` there is nothing
    to check, either because that was done, or because no checksum is known (`has_sum` is False).
    """

    name: str
    path: Path | None
    verified: bool
    done_bytes: int
    bytes: int | None
    has_sum: bool = True


@dataclass(frozen=True, slots=True)
class StartSurvey:
    """The engine and model files that are already here. `engine` is None if one must be installed."""

    engine: LocalEngine | None
    model: LocalFiles

    @property
    def needs_network(self) -> bool:
        """True if anything must be downloaded."""
        return self.engine is None or self.model.path is None


@dataclass(frozen=True, slots=True)
class ModelToFetch:
    """Size of a model on the hub in bytes, and how much of it is still to be downloaded."""

    bytes: int
    left_bytes: int


@dataclass(frozen=True, slots=True)
class EngineToFetch:
    """Engine build on GitHub for this computer: its name, and the size of its archives in bytes."""

    name: str
    bytes: int
    target: TargetComputer


async def check_other_servers(request: FirstStartRequest) -> None:
    """Raise NothingFits if a plan fits only after other programs of this user have stopped their servers.

    A plan counts the memory of all our servers as free, as if the start replaced them. It replaces only the server of
    this process, or of the server process that it drives; other servers keep their memory.
    """
    servers = registry.list_entries() if request.on_gpu else ()
    own = own_pids()
    ending = {each.first.engine_pid for each in servers if each.launcher.pid in own and each.first.engine_pid}
    if len(ending) == len(servers):
        return
    without_servers = await read_situation(MachineDescription())
    with_servers = without_servers.with_servers_running(ending=ending)
    fits_without_only = with_servers.free_mib < request.needed_mib <= without_servers.free_mib
    if not with_servers.own or not fits_without_only:
        return
    names = ", ".join(dict.fromkeys(each.model for each in with_servers.own))
    raise NothingFits(
        plural_message(
            "{names} is still running and uses {mib:,} MiB of the memory that {model} needs.",
            "{names} are still running and use {mib:,} MiB of the memory that {model} needs.",
            len(with_servers.own),
            names=names,
            mib=without_servers.free_mib - with_servers.free_mib,
            model=request.model,
        ),
        message("Stop it first[: {command}].", command=command_name("stop")),
    )


async def survey_start(request: FirstStartRequest) -> StartSurvey:
    """Find the engine and files that are already here. Raises ModelUnknown, ModelBroken and BadOption."""
    engine, model = await asyncio.gather(_find_local_engine(request), asyncio.to_thread(find_local_files, request))
    return StartSurvey(engine, model)


async def _find_local_engine(request: FirstStartRequest) -> LocalEngine | None:
    """Return the engine that a start would use if it answers, supports MTP, and has a GPU backend if needed; else None.

    An engine that the user pinned, or added and chose, need only answer.
    """
    try:
        if request.is_demo or is_built_in_chosen():
            return _use_built_in_engine()
        chosen = engine_in_use()
        if chosen is not None:
            return await _check_chosen_engine(chosen, request)
        on_path = find_llama_server_on_path()
        if on_path is not None:
            build = await probe_engine(on_path)
            if _supports_mtp(build) and any(map(is_gpu, await list_devices(build))):
                return LocalEngine(f"llama-server {build.version}")
        return None if request.on_gpu else _use_built_in_engine()
    except LauncherError:  # missing or not answering: the first start installs another
        return None


def _use_built_in_engine() -> LocalEngine:
    check_built_in_engine()
    return LocalEngine("", built_in=True)


async def _check_chosen_engine(engine: InstalledEngine, request: FirstStartRequest) -> LocalEngine | None:
    """Return the engine that the user chose, or None if it does not suit."""
    build = await probe_engine(engine.program)
    manifest = engine.manifest
    if manifest is None or read_store().pinned:
        return LocalEngine(engine.name)
    if not _supports_mtp(build) or (request.on_gpu and manifest.backend == "cpu"):
        return None
    return LocalEngine(engine.name, tested=manifest.accepted > 0)


def _supports_mtp(build: EngineBuild) -> bool:
    return build.offers_mtp and find_known_fault(build_number(build.version)) is None


def find_local_files(request: FirstStartRequest) -> LocalFiles:
    """Return the local files of a model.

    Raises ModelUnknown, ModelBroken for a damaged one, ModelUnexpected for a file that is no model, and BadOption.
    """
    if request.is_demo:
        return LocalFiles(DEMO, Path(DEMO), verified=True, done_bytes=0, bytes=None)
    catalogue = load_catalogue()
    named = find_named(request.model, catalogue)
    if named is None:
        path = expand_user(request.model)
        if path.is_file():
            select_file(path, catalogue)  # a file that is no model is refused before an engine is installed for it
        size = path.stat().st_size if path.is_file() else 0
        # Ollama's file names are hashes.
        name = path.name if path.suffix.lower() == ".gguf" else request.title or path.name
        return LocalFiles(name, path, verified=True, done_bytes=size, bytes=size, has_sum=False)
    entry, file = named.entry, named.file
    name = file.quant if file else request.model
    if named.local is not None and (entry is None or _has_companions(entry, request)):
        path, record = named.path, named.local.record
        return LocalFiles(name, path, named.local.state is State.GOOD, record.bytes, record.bytes)
    target = parse_target(request.model, catalogue, vision=request.vision)
    return LocalFiles(name, None, verified=False, done_bytes=unfinished_bytes(target), bytes=target.bytes)


def _has_companions(entry: ModelEntry, request: FirstStartRequest) -> bool:
    needed = [entry.draft_file, entry.projector if request.vision else None]
    return all(find_companion(entry, each) for each in needed if each)


async def query_model_to_fetch(
    request: FirstStartRequest, on_wait: Callable[[str], object] | None = None
) -> ModelToFetch:
    """Ask the hub for the sizes of all files of a model, waiting while it limits requests.

    Raises Refused for a gated repository, ModelMissing, ModelUnexpected for a file that is no model, and what else
    `parse_target` and `resolve_file` raise.
    """
    settings = TransferSettings()
    target = await call_with_retries(
        partial(parse_target, request.model, load_catalogue(), vision=request.vision), settings, on_wait
    )
    hub_files = [piece.hub for item in target.items for piece in item.files if piece.hub]
    if target.entry is None and hub_files:
        kind = await call_with_retries(partial(recognise_remote, hub_files[0]), settings, on_wait)
        if kind is not None:
            raise unusable_error(kind, hub_files[0].path)
    size = sum([(await call_with_retries(partial(resolve_file, hub), settings, on_wait)).bytes for hub in hub_files])
    return ModelToFetch(size, max(size - await asyncio.to_thread(unfinished_bytes, target), 0))


async def query_engine_to_fetch() -> EngineToFetch:
    """Ask GitHub for the build that suits this computer. Wakes sleeping GPUs. Raises what `find_offer` raises."""
    target = describe_computer(await asyncio.to_thread(lambda: read_machine(wake=True)))
    offer = await find_offer(ReleaseClient(), target, None, None)
    label = f", {offer.choice.build.label}" if offer.choice else ""
    return EngineToFetch(f"llama.cpp {offer.release.tag}{label}", offer.bytes or 0, target)


def check_disk_space(model: ModelToFetch | None, engine: EngineToFetch | None) -> None:
    """Raise DiskFull unless the disks have room for everything to download and unpack."""
    needs = []
    if model is not None and model.left_bytes:
        needs.append((models_dir(), model.left_bytes))
    if engine is not None and engine.bytes:
        needs.append((store_dir(), _UNPACKED_FACTOR * engine.bytes))
    reserve = TransferSettings().reserve_bytes
    needs_by_disk: dict[int, list[tuple[Path, int]]] = {}
    for folder, need in needs:
        needs_by_disk.setdefault(find_existing_parent(folder).stat().st_dev, []).append((folder, need))
    for disk_needs in needs_by_disk.values():
        folder, need = disk_needs[0][0], sum(size for _, size in disk_needs)
        free = read_disks([folder])[0].free_bytes
        if free is not None and need + reserve > free:
            raise DiskFull(
                message(
                    "The download needs {need:.1f} GB of free space on the disk of {folder}, including {reserve:.1f} GB"
                    " that must stay free. It has {free:.1f} GB.",
                    need=(need + reserve) / 1e9,
                    folder=folder,
                    reserve=reserve / 1e9,
                    free=free / 1e9,
                ),
                message(
                    "Free disk space, choose a smaller plan, or set MTP_LAUNCHER_MODELS to a folder on "
                    "another disk. Finished parts are kept."
                ),
                needed_bytes=need + reserve,
                free_bytes=free,
                folder=str(folder),
            )
