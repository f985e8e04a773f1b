"""Data for the Models page: local files, details of a file, the catalogue. Runs on the core's thread."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.base.errors import LauncherError, ModelInUse
from launcher.gui.start.text import count_stopping_servers, unknown_memory_text
from launcher.gui.translation import ntr, render, tr

if TYPE_CHECKING:
    from launcher.app.planner import MachineDescription
    from launcher.models.catalogue import Catalogue, ModelEntry
    from launcher.models.leftovers import Leftover
    from launcher.models.library import LocalModel
    from launcher.models.memory import PlanSettings
    from launcher.models.situation import Situation


@dataclass(frozen=True, slots=True)
class LocalModels:
    """All local model files, and the folders that they are in."""

    files: tuple[LocalModel, ...]
    leftovers: tuple[Leftover, ...]
    used: Mapping[str, float]
    """Last use by path, in seconds since the epoch."""
    folders: Mapping[Path, bool]
    """Folders that the user added, and whether each exists now."""
    own_folder: Path
    """The folder in which downloads are saved."""
    free_bytes: int | None
    """Free space on the disk of `own_folder`."""
    notice: str | None
    """A remark for the user on the library's file."""
    stores: Mapping[Path, tuple[str, str]] = field(default_factory=dict)
    """Folders of other programs' models: the program, and what cannot be used in its store, as text."""


@dataclass(frozen=True, slots=True)
class ModelDetails:
    """Details of a file: (name, value) figures, SHA-256 of each part, and fit.

    If the fit is unknown, `fit` is None and `fit_text` has the reason.
    `read_at` is when the memory was read, in seconds since the epoch, or None if it could not be read.
    """

    figures: tuple[tuple[str, str], ...]
    sha256: tuple[str | None, ...]
    fit: str | None
    fit_text: str
    read_at: float | None = None


@dataclass(frozen=True, slots=True)
class CatalogueOffer:
    """A file of the catalogue, its fit (None: unknown), and as text the memory that it needs or why that is unknown.

    `bytes` is an estimate if the size is not known (`is_size_known`).
    """

    model: str
    name: str
    quant: str
    bytes: int | None
    is_size_known: bool
    downloaded: bool
    fit: str | None
    reason: str

    @property
    def download_id(self) -> str:
        """The identifier for a download, as ID:QUANT."""
        return f"{self.model}:{self.quant}"


@dataclass(frozen=True, slots=True)
class CatalogueOffers:
    """The catalogue's files for this computer, the recommended models first. `recommended` has the best file of each.

    `problem` is the reason, as text, if no fit could be determined. `read_at` is when the memory was read, as in
    ModelDetails.
    """

    offers: tuple[CatalogueOffer, ...] = field(default=())
    recommended: frozenset[str] = frozenset()
    problem: str = ""
    read_at: float | None = None


async def read_local_models() -> LocalModels:
    """Read the local models. Unfinished downloads that are in the queue are not listed as leftovers."""
    return await asyncio.to_thread(_read_local_models)


def _read_local_models() -> LocalModels:
    from launcher.app.downloads import download_queue
    from launcher.base.paths import find_existing_parent, models_dir
    from launcher.engine.server.last_start import load_last_uses
    from launcher.fetch.jobs import QUEUED_STATES
    from launcher.models.added_places import read_added_places
    from launcher.models.catalogue_load import load_catalogue
    from launcher.models.leftovers import find_leftovers
    from launcher.models.library import list_library

    library = list_library(load_catalogue())
    queued = {
        path
        for job in download_queue().read_snapshot().jobs.jobs
        if job.state in QUEUED_STATES
        for paths in job.arguments.get("targets", ())
        for path in paths
    }
    leftovers = tuple(each for each in find_leftovers() if str(each.target) not in queued)
    own_folder = models_dir()
    folders = {path: path.exists() for path in read_added_places()}
    problems: dict[str, str] = {}
    for each in library.problems:
        title = each.store.title
        problems[title] = f"{problems.get(title, '')}\n{render(each.reason)}".strip()
    stores = {
        store.path: (store.store.title, problems.get(store.store.title, ""))
        for store in library.stores
        if store.path not in folders
    }
    return LocalModels(
        library.models,
        leftovers,
        load_last_uses(),
        folders,
        own_folder,
        shutil.disk_usage(find_existing_parent(own_folder)).free,
        library.notice,
        stores,
    )


async def read_details(local: LocalModel) -> ModelDetails:
    """Read a file's header and determine its fit. Unreadable values are replaced by the reason."""
    from launcher.app.planner import MachineDescription, read_situation

    figures, hashes = await asyncio.to_thread(_read_figures, local)
    try:
        situation = await read_situation(MachineDescription())
        fit, fit_text = await _determine_fit(local, situation)
    except LauncherError as error:
        return ModelDetails(figures, hashes, None, render(error.message))
    return ModelDetails(figures, hashes, fit, fit_text, situation.read_at)


def _read_figures(local: LocalModel) -> tuple[tuple[tuple[str, str], ...], tuple[str | None, ...]]:
    """Return (name, value) figures from the file's header, and the SHA-256 of each of its parts."""
    from launcher.models.geometry import read_geometry
    from launcher.models.gguf import read_model
    from launcher.models.library import list_hashes

    hashes = list_hashes(local)
    try:
        model = read_model(local.path)
    except (LauncherError, OSError) as error:
        reason = render(error.message) if isinstance(error, LauncherError) else str(error)
        return ((tr("Header"), reason),), hashes
    rows = [(tr("Architecture"), model.architecture), (tr("Tensors"), f"{len(model.tensors):,}")]
    if model.trained_context:
        rows.append((tr("Trained context"), tr("{count} tokens", count=f"{model.trained_context:,}")))
    try:
        geometry = read_geometry(model)
    except LauncherError:
        return tuple(rows), hashes
    layers = tr("{count}, {attention} with attention", count=geometry.layers, attention=geometry.attention_layers)
    rows += [(tr("Layers"), layers), (tr("MTP layers"), f"{geometry.mtp_layers}")]
    rows.append((tr("Hidden size"), f"{geometry.hidden:,}"))
    rows.append((tr("Heads"), tr("{count}, {kv} for keys and values", count=geometry.heads, kv=geometry.kv_heads)))
    if geometry.experts:
        rows.append(
            (tr("Experts"), tr("{count}, {used} active per token", count=geometry.experts, used=geometry.experts_used))
        )
    return tuple(rows), hashes


async def _determine_fit(local: LocalModel, situation: Situation) -> tuple[str | None, str]:
    """Return a file's fit and, as text, its memory needs with the settings that Start would use."""
    from launcher.app.start_settings import plan_for_start
    from launcher.models.catalogue_load import load_catalogue
    from launcher.models.geometry import read_geometry
    from launcher.models.gguf import read_model
    from launcher.models.locate import select_file

    if local.record.kind != "model":
        return None, tr("Loaded together with a model.")
    subject = await asyncio.to_thread(select_file, local.path, load_catalogue())
    plan = await plan_for_start(subject, situation)
    if plan is None:
        read_geometry(await asyncio.to_thread(read_model, local.path))  # raises the reason why the file is unsupported
        return None, tr("Cannot tell whether it fits.")
    return plan.status.value, _memory_text(plan.required_mib, situation, plan.setting)


def _memory_text(needed_mib: int, situation: Situation, setting: PlanSettings) -> str:
    values = {"needed": f"{needed_mib:,}", "free": f"{situation.free_mib:,}", "context": f"{setting.context:,}"}
    mtp = tr("draft {count}", count=setting.draft) if setting.draft else tr("MTP off")
    text = tr("Needs {needed} of {free} MiB free, with a context of {context} tokens, {mtp}.", mtp=mtp, **values)
    if stopping := count_stopping_servers(situation):
        text = ntr(
            "Needs {needed} of {free} MiB free once the running server stops ({now} MiB free now), with a "
            "context of {context} tokens, {mtp}.",
            "Needs {needed} of {free} MiB free once {n} running servers stop ({now} MiB free now), with a "
            "context of {context} tokens, {mtp}.",
            stopping,
            mtp=mtp,
            now=f"{situation.free_now_mib:,}",
            **values,
        )
    return f"{text} {unknown_memory_text(situation)}".rstrip()


async def read_offers(machine: MachineDescription | None = None) -> CatalogueOffers:
    """Return the catalogue's files, each with its fit for a machine; None is this computer with its current memory."""
    from launcher.app.planner import MachineDescription, read_situation
    from launcher.models.catalogue_load import load_catalogue
    from launcher.models.plan import Status

    catalogue = await asyncio.to_thread(load_catalogue)
    try:
        situation: Situation | None = await read_situation(machine or MachineDescription())
        problem = ""
    except LauncherError as error:
        situation, problem = None, render(error.message)
    best = await asyncio.to_thread(_list_best_files, catalogue, situation)
    rank_by_id = {model: rank for rank, (model, _) in enumerate(best)}
    offers = [
        each
        for entry in catalogue.models
        if entry.repo
        for each in await asyncio.to_thread(_make_offers, catalogue, entry, situation)
    ]
    recommended = frozenset(f"{model}:{quant}" for model, quant in best)
    too_big = {each.download_id for each in offers if each.fit in {None, Status.TOO_BIG.value}}
    # a model of which only a poor quant has room, just so, is not recommended, but comes before what cannot work
    fitting = {each.model for each in offers if each.download_id not in too_big}

    def place(offer: CatalogueOffer) -> tuple[int, bool, bool, bool]:
        name = offer.download_id
        rank = rank_by_id.get(offer.model, len(best))
        return rank, offer.model not in fitting, name not in recommended, name in too_big

    offers.sort(key=place)
    return CatalogueOffers(tuple(offers), recommended, problem, situation.read_at if situation else None)


def _list_best_files(catalogue: Catalogue, situation: Situation | None) -> tuple[tuple[str, str], ...]:
    """Return the id and quantisation of the best plan of each model that fits, the recommended model first."""
    from launcher.models.plan import PlanCriteria, Status, make_plans

    if situation is None:
        return ()
    best: dict[str, str] = {}
    for plan in make_plans(catalogue, situation, PlanCriteria()):
        if plan.status is not Status.TOO_BIG:
            best.setdefault(plan.entry.id, plan.file.quant)
    return tuple(best.items())


def _make_offers(catalogue: Catalogue, entry: ModelEntry, situation: Situation | None) -> list[CatalogueOffer]:
    from launcher.models.file_size import expect_size
    from launcher.models.library import find_local_model, share_snapshot
    from launcher.models.plan import PlanCriteria, list_unplanned, make_plans

    with share_snapshot():
        is_here = [find_local_model(entry, file.quant) is not None for file in entry.files]
    offers = []
    for file, here in zip(entry.files, is_here, strict=True):
        fit, reason = None, tr("Cannot tell whether it fits.")
        if situation is not None:
            criteria = PlanCriteria(entry.id, quant=file.quant)
            plans = make_plans(catalogue, situation, criteria)
            if plans:
                plan = plans[0]
                fit = plan.status.value
                reason = _memory_text(plan.required_mib, situation, plan.setting)
            else:
                unplanned = list_unplanned(catalogue, situation, criteria)
                reason = f"{render(unplanned[0].reason)}. {render(unplanned[0].remedy)}" if unplanned else reason
        name = entry.name.removesuffix(" with MTP head")
        size = expect_size(entry, file)
        offers.append(
            CatalogueOffer(
                entry.id,
                name,
                file.quant,
                size.size_bytes if size else None,
                file.size_bytes is not None,
                here,
                fit,
                reason,
            )
        )
    return offers


async def delete_model(local: LocalModel) -> int:
    """Delete a model's files. Returns the number of bytes freed.

    Raises BadOption for files of other programs, ModelInUse while a server of ours uses the file, and OSError.
    """
    from launcher.engine.server.in_use import find_server_using
    from launcher.models.library import check_removable, remove_model

    check_removable(local)
    server = await asyncio.to_thread(find_server_using, local.record.paths)
    if server is not None:
        raise ModelInUse(tr("The server at {url} uses this file.", url=server.url), tr("Stop it first."))
    return await asyncio.to_thread(remove_model, local)
