"""What a first start needs, what of it is here, and what would stand in its way before anything large is fetched."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.base.errors import DiskFull, LauncherError
from launcher.base.paths import expanded, models_dir
from launcher.engine.assets import Target, target_of
from launcher.engine.build import Build, check_built_in, find_on_path, list_devices, probe
from launcher.engine.demo import DEMO
from launcher.engine.installed import InstalledEngine, current, is_built_in_chosen, read_store
from launcher.engine.known_bad import build_number, fault_of
from launcher.engine.offers import offered
from launcher.engine.releases import Releases
from launcher.engine.staging import store_dir
from launcher.fetch.hub import resolve
from launcher.fetch.transfer import TransferSettings
from launcher.machine.disks import read_disks
from launcher.machine.engine_view import is_gpu
from launcher.machine.machine import read_machine
from launcher.models.catalogue import SPECULATION, ModelEntry
from launcher.models.catalogue_load import load_catalogue
from launcher.models.library import State, find_companion
from launcher.models.locate import locate
from launcher.models.memory import Setting
from launcher.models.plan import Plan
from launcher.models.pull import unfinished_bytes
from launcher.models.wanted import wanted

_UNPACKED = 3
"""An engine's archives and what is unpacked from them take about three times the archives' size."""


@dataclass(frozen=True, slots=True)
class Aim:
    """What is to be started: a model as `serve` takes it, and the setting of its plan; None leaves that to us.

    With `kept` the settings that the user chose for the model the last time go before the plan's.
    """

    model: str
    setting: Setting | None = None
    kept: bool = False

    @property
    def is_demo(self) -> bool:
        """Whether it is the demo, which needs neither a GPU nor the network."""
        return self.model == DEMO

    @property
    def vision(self) -> bool:
        """Whether the model's vision projector goes with it."""
        return self.setting is not None and self.setting.mmproj_bytes > 0

    @property
    def on_gpu(self) -> bool:
        """Whether an engine is needed that computes on a GPU."""
        return self.setting is not None and self.setting.backend != "cpu"


def aim_of(plan: Plan, *, kept: bool = False) -> Aim:
    """Return what starts a plan; with `kept` the user's own settings go before the plan's."""
    return Aim(DEMO) if plan.entry.id == DEMO else Aim(f"{plan.entry.id}:{plan.file.quant}", plan.setting, kept)


@dataclass(frozen=True, slots=True)
class EngineHere:
    """An engine on this computer that suits. `tested` is whether its self-test was passed when it was installed."""

    name: str
    built_in: bool = False
    tested: bool = False


@dataclass(frozen=True, slots=True)
class ModelHere:
    """What is here of a model: its first file when it is whole, whether it was verified, how many bytes of it."""

    name: str
    path: Path | None
    verified: bool
    done_bytes: int
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Survey:
    """What of a first start is done already. `engine` is None when one has to be installed."""

    engine: EngineHere | None
    model: ModelHere

    @property
    def needs_network(self) -> bool:
        """Whether something has to be downloaded."""
        return self.engine is None or self.model.path is None


@dataclass(frozen=True, slots=True)
class ModelToFetch:
    """What the hub says of a model: its size, and how much of that is not here yet."""

    bytes: int
    left_bytes: int


@dataclass(frozen=True, slots=True)
class EngineToFetch:
    """What GitHub offers this computer: the build's name, and the size of its archives."""

    name: str
    bytes: int
    target: Target


async def survey(aim: Aim) -> Survey:
    """Look at what is here of an aim, without the network. Raises ModelUnknown, ModelBroken and BadOption."""
    engine, model = await asyncio.gather(_engine_here(aim), asyncio.to_thread(model_here, aim))
    return Survey(engine, model)


async def _engine_here(aim: Aim) -> EngineHere | None:
    """Return the engine that a start would take, if it suits: it answers, drafts by MTP, and for a GPU is no other's.

    What the user has pinned or chosen among the engines of their own suits in any case.
    """
    try:
        if aim.is_demo or is_built_in_chosen():
            return _built_in()
        chosen = current()
        if chosen is not None:
            return await _chosen_suits(chosen, aim)
        on_path = find_on_path()
        if on_path is not None:
            build = await probe(on_path)
            if _drafts(build) and any(map(is_gpu, await list_devices(build))):
                return EngineHere(f"llama-server {build.version}")
        return None if aim.on_gpu else _built_in()
    except LauncherError:  # one that is gone or does not answer: another is installed
        return None


def _built_in() -> EngineHere:
    check_built_in()
    return EngineHere("", built_in=True)


async def _chosen_suits(engine: InstalledEngine, aim: Aim) -> EngineHere | None:
    build = await probe(engine.program)
    manifest = engine.manifest
    if manifest is None or read_store().pinned:
        return EngineHere(engine.name)
    if not _drafts(build) or (aim.on_gpu and manifest.backend == "cpu"):
        return None
    return EngineHere(engine.name, tested=manifest.accepted > 0)


def _drafts(build: Build) -> bool:
    return build.offers_mtp and fault_of(build_number(build.version)) is None


def model_here(aim: Aim) -> ModelHere:
    """Look at what is here of a model. Raises ModelUnknown, ModelBroken for a damaged one, and BadOption."""
    if aim.is_demo:
        return ModelHere(DEMO, Path(DEMO), verified=True, done_bytes=0, bytes=None)
    catalogue = load_catalogue()
    named = locate(aim.model, catalogue)
    if named is None:
        path = expanded(aim.model)
        size = path.stat().st_size if path.is_file() else 0
        return ModelHere(path.name, path, verified=True, done_bytes=size, bytes=size)
    entry, file = named.entry, named.file
    name = file.quant if file else aim.model
    if named.local is not None and (entry is None or _companions_here(entry, aim)):
        path, record = named.path, named.local.record
        return ModelHere(name, path, named.local.state is State.GOOD, record.bytes, record.bytes)
    meant = wanted(aim.model, catalogue, vision=aim.vision)
    return ModelHere(name, None, verified=False, done_bytes=unfinished_bytes(meant), bytes=meant.bytes)


def _companions_here(entry: ModelEntry, aim: Aim) -> bool:
    needs_draft = entry.speculation is not None and SPECULATION[entry.speculation].needs_draft_file
    needed = [entry.draft if needs_draft else None, entry.projector if aim.vision else None]
    return all(find_companion(entry, each) for each in needed if each)


async def ask_hub(aim: Aim) -> ModelToFetch:
    """Ask the hub for all files of a model before any is fetched.

    Raises Refused for a gated repository, ModelMissing, and what else `wanted` and `resolve` raise.
    """
    meant = await asyncio.to_thread(wanted, aim.model, load_catalogue(), vision=aim.vision)
    hubs = [piece.hub for item in meant.items for piece in item.pieces if piece.hub]
    size = sum([entry.bytes for entry in await asyncio.gather(*(asyncio.to_thread(resolve, hub) for hub in hubs))])
    return ModelToFetch(size, max(size - await asyncio.to_thread(unfinished_bytes, meant), 0))


async def ask_github() -> EngineToFetch:
    """Ask GitHub for the build that suits this computer; a GPU that sleeps is woken. Raises what `offered` raises."""
    target = target_of(await asyncio.to_thread(lambda: read_machine(wake=True)))
    offer = await offered(Releases(), target, None, None)
    label = f", {offer.choice.build.label}" if offer.choice else ""
    return EngineToFetch(f"llama.cpp {offer.release.tag}{label}", offer.bytes or 0, target)


def check_room(model: ModelToFetch | None, engine: EngineToFetch | None) -> None:
    """Raise DiskFull unless the disks have room for all that is to be fetched and unpacked."""
    needs = [(models_dir(), model.left_bytes if model else 0), (store_dir(), _UNPACKED * engine.bytes if engine else 0)]
    _check_room([need for need in needs if need[1]])


def _check_room(needs: Sequence[tuple[Path, int]]) -> None:
    """Raise DiskFull unless each disk has room for all that is to go there."""
    reserve = TransferSettings().reserve_bytes
    by_disk: dict[int, list[tuple[Path, int]]] = {}
    for folder, need in needs:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        by_disk.setdefault(there.stat().st_dev, []).append((folder, need))
    for both in by_disk.values():
        folder, need = both[0][0], sum(size for _, size in both)
        free = read_disks([folder])[0].free_bytes
        if free is not None and need + reserve > free:
            raise DiskFull(
                f"{need / 1e9:.1f} GB are still to be downloaded and unpacked, and the disk of {folder} has"
                f" {free / 1e9:.1f} GB free.",
                "Make room, take a smaller plan, or set MTP_LAUNCHER_MODELS to a folder on another disk."
                " What is there already is kept.",
                needed_bytes=need + reserve,
                free_bytes=free,
                folder=str(folder),
            )
