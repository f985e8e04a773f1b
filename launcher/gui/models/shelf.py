"""What the page asks the core: what lies here, what is known of one, what fits. Runs on the core's thread."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.base.errors import BadOption, LauncherError, ModelInUse
from launcher.gui.sentences import say, say_error
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.models.catalogue import Catalogue, ModelEntry
    from launcher.models.leftovers import Leftover
    from launcher.models.library import LocalModel
    from launcher.models.situation import Situation

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Shelf:
    """All that lies here. `used` says when files were served (seconds since the epoch), `free_bytes` is of our disk."""

    models: tuple[LocalModel, ...]
    leftovers: tuple[Leftover, ...]
    used: Mapping[str, float]
    folders: Mapping[Path, bool]
    """Those that the user added, and whether they are there now."""
    ours: Path
    free_bytes: int | None
    notice: str | None


@dataclass(frozen=True, slots=True)
class Details:
    """What is known of one file: figures as (name, value), its SHA-256, and how it fits, None with a reason."""

    figures: tuple[tuple[str, str], ...]
    sha256: tuple[str | None, ...]
    fit: str | None
    fit_words: str


@dataclass(frozen=True, slots=True)
class Offer:
    """A file of the catalogue: whether it is here, how it fits (None: not known), and why, in words."""

    model: str
    name: str
    quant: str
    bytes: int | None
    here: bool
    fit: str | None
    why: str

    @property
    def what(self) -> str:
        """What a download is asked for."""
        return f"{self.model}:{self.quant}"


@dataclass(frozen=True, slots=True)
class Offers:
    """The catalogue for this computer; `problem` says why nothing can be said of what fits."""

    offers: tuple[Offer, ...] = field(default=())
    problem: str = ""


async def read_shelf() -> Shelf:
    """Look at what lies here. What a download in the queue will go on with is left to the queue's own list."""
    return await asyncio.to_thread(_read_shelf)


def _read_shelf() -> Shelf:
    from launcher.base.paths import models_dir
    from launcher.downloads import queue
    from launcher.engine.last import last_used
    from launcher.fetch.jobs import LINE
    from launcher.models.added_places import added_places
    from launcher.models.catalogue_load import load_catalogue
    from launcher.models.leftovers import leftovers
    from launcher.models.library import library

    found = library(load_catalogue())
    queued = {
        path
        for job in queue().look().jobs.jobs
        if job.state in LINE
        for paths in job.arguments.get("targets", ())
        for path in paths
    }
    left = tuple(each for each in leftovers() if str(each.target) not in queued)
    ours = models_dir()
    there = next(each for each in (ours, *ours.parents) if each.exists())
    folders = {path: path.exists() for path in added_places()}
    return Shelf(found.models, left, last_used(), folders, ours, shutil.disk_usage(there).free, found.notice)


async def read_details(local: LocalModel) -> Details:
    """Read a file's header, and say what of it fits here. What cannot be read is said in place of a figure."""
    from launcher.planner import MachineWish, situation

    figures = await asyncio.to_thread(_figures, local)
    try:
        here = await situation(MachineWish())
        fit, words = await asyncio.to_thread(_fit, local, here)
    except LauncherError as error:
        fit, words = None, say_error(error)
    return Details(figures[0], figures[1], fit, words)


def _figures(local: LocalModel) -> tuple[tuple[tuple[str, str], ...], tuple[str | None, ...]]:
    from launcher.models.geometry import geometry_of
    from launcher.models.gguf import read_model
    from launcher.models.library import hashes

    kept = hashes(local)
    try:
        model = read_model(local.path)
    except (LauncherError, OSError) as error:
        why = say_error(error) if isinstance(error, LauncherError) else str(error)
        return ((tr("Header"), why),), kept
    told = [(tr("Architecture"), model.architecture), (tr("Tensors"), f"{len(model.tensors):,}")]
    if model.trained_context:
        told.append((tr("Trained context"), tr("{count} tokens", count=f"{model.trained_context:,}")))
    try:
        shape = geometry_of(model)
    except LauncherError:
        return tuple(told), kept
    layers = tr("{count}, {attention} with attention", count=shape.layers, attention=shape.attention_layers)
    told += [(tr("Layers"), layers), (tr("MTP layers"), f"{shape.mtp_layers}")]
    told.append((tr("Hidden size"), f"{shape.hidden:,}"))
    told.append((tr("Heads"), tr("{count}, {kv} for keys and values", count=shape.heads, kv=shape.kv_heads)))
    if shape.experts:
        told.append((tr("Experts"), tr("{count}, {used} work at a time", count=shape.experts, used=shape.experts_used)))
    return tuple(told), kept


def _fit(local: LocalModel, here: Situation) -> tuple[str | None, str]:
    from launcher.models.catalogue_load import load_catalogue
    from launcher.models.plan import Wish, make_plans
    from launcher.planner import judge_formula, read_source, setting_for

    record = local.record
    if record.kind != "model":
        return None, tr("It is loaded beside a model.")
    catalogue = load_catalogue()
    if record.model is not None and record.quant is not None:
        plans = make_plans(catalogue, here, Wish(record.model, quant=record.quant))
        if plans:
            plan = plans[0]
            return plan.status.value, _needs(plan.required_mib, plan.free_mib, plan.setting.context, plan.setting.draft)
    source = read_source(str(local.path))
    setting = setting_for(source.model, Wish(), here)
    needed = -(-judge_formula(source, setting).needed // _MIB)
    words = _needs(needed, here.free_mib, setting.context, setting.draft)
    if needed > here.free_mib:
        return "TOO BIG", words
    return ("FITS" if needed + here.margin_mib <= here.free_mib else "TIGHT"), words


def _needs(needed_mib: int, free_mib: int, context: int, draft: int) -> str:
    values = {"needed": f"{needed_mib:,}", "free": f"{free_mib:,}", "context": f"{context:,}"}
    mtp = tr("draft {count}", count=draft) if draft else tr("MTP off")
    return tr(
        "Takes {needed} of {free} MiB that are free now, with a context of {context} tokens, {mtp}.", mtp=mtp, **values
    )


async def read_offers() -> Offers:
    """Return the catalogue's files, each with how it fits this computer as it is now."""
    from launcher.models.catalogue_load import load_catalogue
    from launcher.planner import MachineWish, situation

    catalogue = await asyncio.to_thread(load_catalogue)
    try:
        here: Situation | None = await situation(MachineWish())
        problem = ""
    except LauncherError as error:
        here, problem = None, say_error(error)
    offers = [
        each
        for entry in catalogue.models
        if entry.repo
        for each in await asyncio.to_thread(_offers, catalogue, entry, here)
    ]
    return Offers(tuple(offers), problem)


def _offers(catalogue: Catalogue, entry: ModelEntry, here: Situation | None) -> list[Offer]:
    from launcher.models.library import find
    from launcher.models.plan import Wish, make_plans, unplanned

    told = []
    for file in entry.files:
        fit, why = None, tr("What fits is not known here.")
        if here is not None:
            wish = Wish(entry.id, quant=file.quant)
            plans = make_plans(catalogue, here, wish)
            if plans:
                plan = plans[0]
                fit = plan.status.value
                why = _needs(plan.required_mib, plan.free_mib, plan.setting.context, plan.setting.draft)
            else:
                lacking = unplanned(catalogue, here, wish)
                why = f"{say(lacking[0].reason)}. {say(lacking[0].remedy)}" if lacking else why
        local = find(entry, file.quant)
        name = entry.name.removesuffix(" with MTP head")
        told.append(Offer(entry.id, name, file.quant, file.size_bytes, local is not None, fit, why))
    return told


async def delete(local: LocalModel) -> int:
    """Delete a model's files, and return the bytes that are free now.

    Raises BadOption for what belongs to other programs, ModelInUse while a server of ours has it open, and OSError.
    """
    from launcher.engine.in_use import server_using
    from launcher.models.library import Place, remove

    if local.place is Place.CACHE:
        raise BadOption(
            tr("This file lies in a cache of other programs, which may need it."),
            tr("Delete it with the program that got it, such as `hf cache`."),
        )
    user = await asyncio.to_thread(server_using, local.record.paths)
    if user is not None:
        raise ModelInUse(tr("The server at {url} uses this file.", url=user.url), tr("Stop it first."))
    return await asyncio.to_thread(remove, local)
