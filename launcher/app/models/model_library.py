"""The models that a user can start or get: of the catalogue, of this computer and of the hub, each with its files.

Each file is planned for one machine, and the best one for it comes first. Reading is done in steps, so that a list can
be shown before all is known.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from launcher.base.errors import LauncherError
from launcher.base.messages import join_messages, message
from launcher.base.paths import find_existing_parent, models_dir
from launcher.models.catalogue import Catalogue
from launcher.models.evidence import family_key, read_release_dates
from launcher.models.file_size import expect_size, usual_bits
from launcher.models.geometry import read_geometry
from launcher.models.gguf import read_model
from launcher.models.plan import PlanCriteria, leave_out_doubles, list_unplanned, make_plans
from launcher.models.ranking import lack_of_score

if TYPE_CHECKING:
    from launcher.app.planning.planner import MachineDescription
    from launcher.fetch.hub import FoundRepo
    from launcher.models.catalogue import CompanionFile, ModelEntry, ModelFile
    from launcher.models.leftovers import Leftover
    from launcher.models.library import LocalModel
    from launcher.models.plan import Plan
    from launcher.models.situation import Situation
    from launcher.tuning.history_records import LocalSpeed

_BATCH_S = 0.5
"""Seconds of planning after which the plans so far are passed on."""
_FIRST_PLANNED = 30
"""The most models on this computer that are planned ahead: in other programs' folders there may be hundreds, and each
takes
0.1 s. The others are planned by `plan_files`, once they are selected."""
_SAME_MEMORY = 0.01
"""Share of the free memory by which it may differ for earlier plans to stay valid."""
_USUAL_BITS = 4.7
"""Bits per weight of the file that most users take."""
_UNRANKED = 1_000
"""Place of a file that was not compared with the model's other files."""
_NAME_ENDINGS = (" with MTP head", " with draft file", " (built in)")


@dataclass(frozen=True, slots=True)
class LibraryFile:
    """One file of a model, on this computer (`local`) or not, and the plan for it.

    `entry` and `file` describe a file that can be planned; they are None for a local file whose header was not read
    yet, and for drafts and projectors. `draft` is the catalogue's description of a draft of `entry`. `rank` is its
    place among the model's files for this machine. `lack` is a message that says why there is no plan. `size_bytes` is
    an estimate unless `is_size_known`. `measured` is its speed on this computer: with its tuned settings if these are
    used, else in the newest measurement; None without one.
    """

    entry: ModelEntry | None = None
    file: ModelFile | None = None
    local: LocalModel | None = None
    draft: CompanionFile | None = None
    plan: Plan | None = None
    rank: int = _UNRANKED
    lack: str = ""
    size_bytes: int | None = None
    is_size_known: bool = True
    measured: LocalSpeed | None = None

    @property
    def quant(self) -> str:
        """The quantisation; empty if it is unknown."""
        if self.file is not None:
            return self.file.quant
        return (self.local.record.quant or "") if self.local is not None else ""

    @property
    def key(self) -> str:
        """A text that identifies the file among those of its model."""
        path = self.draft.file if self.draft is not None else ""  # a user's own entry may name one that is nowhere
        return str(self.local.path) if self.local is not None else self.download_id or path

    @property
    def download_id(self) -> str:
        """The name by which it can be downloaded: ID:QUANT or OWNER/NAME:FILE; empty if it cannot be."""
        if self.entry is not None and self.draft is not None:
            repo = self.entry.repo_of(self.draft)
            return f"{repo}:{self.draft.file}" if repo else ""
        if self.entry is None or self.file is None or self.entry.repo is None:
            return ""
        if self.entry.id == self.entry.repo:  # described by the hub, not by the catalogue
            return f"{self.entry.repo}:{self.file.file}"
        return f"{self.entry.id}:{self.file.quant}"

    @property
    def is_model(self) -> bool:
        """Whether it can be started, unlike a draft or a projector."""
        return self.draft is None and (self.local is None or self.local.record.kind == "model")

    @property
    def is_usable(self) -> bool:
        """Whether it is on this computer, and not known to be damaged or incomplete."""
        return self.local is not None and self.local.state.value not in ("damaged", "incomplete", "missing")

    @property
    def is_absent(self) -> bool:
        """Whether it is not on this computer, or not any more."""
        return self.local is None or self.local.state.value == "missing"

    @property
    def is_too_big(self) -> bool:
        """Whether it is known not to fit."""
        return self.plan is not None and self.plan.group == 2


@dataclass(frozen=True)  # no `slots`, because cached properties need a __dict__
class LibraryModel:
    """A model with its files.

    `entry` is the catalogue's or the hub's; None for a model of which only local files are known. `found` is what the
    hub's search reported about it, until its files are read. `used_s` and `changed_s` are when a file of it was last
    used, and when the newest file came or changed, in seconds since 1970. `released` is the model's date as YYYY-MM-DD
    or YYYY-MM, "" if it is unknown.
    """

    key: str
    name: str
    files: tuple[LibraryFile, ...] = ()
    entry: ModelEntry | None = None
    found: FoundRepo | None = None
    used_s: float | None = None
    changed_s: float | None = None
    released: str = ""

    @cached_property
    def best(self) -> LibraryFile | None:
        """The file that suits this machine best, here or not; None if nothing is known of any."""
        planned = [each for each in self.files if each.is_model]
        return min(planned, key=_place_of_file, default=None)

    @cached_property
    def first(self) -> LibraryFile | None:
        """The file to show for the model: the best one that is here and fits, else the best one."""
        here = [each for each in self.files if each.is_model and each.is_usable and not each.is_too_big]
        return min(here, key=_place_of_file, default=None) or self.best or next(iter(self.files), None)

    @property
    def drafts(self) -> tuple[LibraryFile, ...]:
        """The catalogue's files with which it could draft, here or not."""
        return tuple(each for each in self.files if each.draft is not None)

    @property
    def is_pending(self) -> bool:
        """Whether none of its files was planned yet, so that nobody knows which is the best."""
        return not self.is_built_in and not any(each.plan or each.lack for each in self.files)

    @property
    def is_here(self) -> bool:
        """Whether a file of it is on this computer."""
        return any(each.local is not None for each in self.files)

    @property
    def is_built_in(self) -> bool:
        """Whether it is the demo, which is a part of the program."""
        return self.entry is not None and self.entry.id == "demo"

    @property
    def repo(self) -> str:
        """Its repository on the hub; empty if it is unknown."""
        if self.found is not None:
            return self.found.repo
        if self.entry is not None:
            return self.entry.repo or ""
        return next((_origin(each.local) for each in self.files if each.local and _origin(each.local)), "")

    @property
    def is_planned(self) -> bool:
        """Whether each of its files was planned, or has a reason why not."""
        return (
            self.found is None
            and bool(self.files)
            and all(each.plan or each.lack or not each.is_model for each in self.files)
        )

    def with_hub_files(self, other: LibraryModel) -> LibraryModel:
        """Return the model with the files that `other`, the same model on the hub, has beside those that are here."""
        on_hub = {PurePosixPath(each.file.file).name: each for each in other.files if each.file is not None}
        files = []
        for each in self.files:
            same = on_hub.pop(each.local.path.name, None) if each.local is not None else None
            files.append(each if same is None else replace(each, rank=same.rank))
        known = {each.key for each in self.files}
        files += [each for each in on_hub.values() if each.local is None and each.key not in known]
        return replace(self, files=_order_files(files))


@dataclass(frozen=True, slots=True)
class LocalState:
    """Folders, and free disk space, of this computer besides its models.

    `folders` are those that the user added, and whether each exists now. `stores` has the folders of other programs,
    each with its program and messages on unusable files. `free_bytes` is the free space on the disk of `own_folder`, in
    which downloads are saved. `notice` is a message if the library's file was damaged.
    """

    own_folder: Path
    free_bytes: int | None
    leftovers: tuple[Leftover, ...] = ()
    folders: Mapping[Path, bool] = field(default_factory=dict)
    stores: Mapping[Path, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    notice: str | None = None
    files: tuple[LocalModel, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelShelf:
    """All models of the catalogue and of this computer, as far as they are read.

    `situation` is the machine that they are planned for; None until it is read, and if it cannot be read: then
    `problem` says why. `is_complete`: all models are planned.
    """

    models: tuple[LibraryModel, ...]
    local: LocalState
    situation: Situation | None = None
    problem: str = ""
    is_complete: bool = False

    def with_model(self, changed: LibraryModel) -> ModelShelf:
        """Return the shelf with a model replaced, by its key."""
        return replace(self, models=tuple(changed if each.key == changed.key else each for each in self.models))


async def read_shelf(machine: MachineDescription, known: ModelShelf | None = None) -> AsyncIterator[ModelShelf]:
    """Yield the models of the catalogue and of this computer, planned for `machine`, again whenever more is known.

    Plans of `known` are kept for files that are the same if the free memory is nearly the same. Raises OSError if the
    library cannot be written.
    """
    from launcher.app.planning.planner import read_situation
    from launcher.models.catalogue_load import load_catalogue

    catalogue = await asyncio.to_thread(load_catalogue)
    shelf = await asyncio.to_thread(_read_files, catalogue)
    if known is not None and known.situation is not None:
        yield replace(_keep_plans(shelf, known), situation=known.situation, is_complete=known.is_complete)
    else:
        yield shelf
    try:
        situation = await read_situation(machine)
    except LauncherError as error:
        models = tuple(_without_plans(each, error.message) for each in shelf.models)
        yield replace(shelf, models=models, problem=error.title, is_complete=True)
        return
    shelf = replace(shelf, situation=situation)
    if known is not None and known.situation is not None and _is_same_memory(known.situation, situation):
        shelf = _keep_plans(shelf, known)
        yield replace(shelf, is_complete=known.is_complete)  # else rows would change their order twice
    else:
        yield shelf
    since_s = time.monotonic()
    here = [each for each in shelf.models if each.is_here]
    here.sort(key=lambda each: -(each.used_s or 0))
    others = [each for each in shelf.models if not each.is_here]
    for model in (*here[:_FIRST_PLANNED], *others):
        if not any(each.plan or each.lack for each in model.files):
            shelf = shelf.with_model(await _plan_model(model, catalogue, situation))
            if time.monotonic() - since_s > _BATCH_S:
                yield shelf
                since_s = time.monotonic()
    yield replace(shelf, is_complete=True)


async def plan_files(model: LibraryModel, situation: Situation) -> LibraryModel:
    """Return a model with a plan for each of its files, or the reason why there is none."""
    from launcher.models.catalogue_load import load_catalogue

    return await _plan_model(model, await asyncio.to_thread(load_catalogue), situation, every=True)


async def plan_beside(file: LibraryFile, situation: Situation) -> LibraryFile:
    """Return a file on this computer with the plan for a start beside our own servers that run now."""
    from launcher.models.catalogue_load import load_catalogue

    return await _plan_local(file, await asyncio.to_thread(load_catalogue), situation.with_servers_running())


async def search_hub(text: str) -> tuple[LibraryModel, ...]:
    """Return the repositories on the hub that match `text`. Their files are not read. Raises the hub's errors."""
    from launcher.fetch.hub import search_repos

    found = await asyncio.to_thread(search_repos, text)
    return tuple(
        LibraryModel(
            each.repo.casefold(),
            each.repo.partition("/")[2].removesuffix("-GGUF"),
            (),
            None,
            each,
            None,
            each.modified_s,
        )
        for each in found
    )


async def read_hub_model(name: str, situation: Situation | None) -> LibraryModel:
    """Return the model that a name or link on the hub means, with its files planned.

    The listing and one header are read from the hub unless the model is in the catalogue or on this computer. Raises
    BadOption for other texts, and the errors of `select_hub_model`.
    """
    from launcher.app.planning.named_plans import select_named
    from launcher.models.catalogue_load import load_catalogue

    catalogue = await asyncio.to_thread(load_catalogue)
    selection = await select_named(name, catalogue)
    shelf = await asyncio.to_thread(_read_files, catalogue)
    entry = selection.entry
    if selection.path is not None:
        paths = (selection.path, selection.path.absolute())
        model = next(
            (each for each in shelf.models for file in each.files if file.local and file.local.path in paths), None
        )
    else:
        model = next((each for each in shelf.models if each.entry is not None and each.entry.id == entry.id), None)
    if model is None:
        model = LibraryModel(entry.id.casefold(), entry.name, _list_files(entry, {}, {}), entry)
    return model if situation is None else await _plan_model(model, selection.catalogue, situation, every=True)


async def look_up(model: LibraryModel, file: LibraryFile) -> None:
    """Read from the hub what a plan lacks: the listed sizes of a model of the catalogue, and a file's header.

    Raises the errors of requests to the hub, and OSError if they cannot be kept.
    """
    from launcher.app.planning.hub_headers import read_file_header

    if model.entry is not None and file.file is not None:
        await asyncio.to_thread(read_file_header, model.entry, file.file)


def _read_files(catalogue: Catalogue) -> ModelShelf:
    """Return all models without plans: those of the catalogue by score, then others on this computer by name."""
    from launcher.app.models.downloads import download_queue
    from launcher.engine.server.last_start import load_last_uses
    from launcher.fetch.jobs import QUEUED_STATES
    from launcher.models.added_places import read_added_places
    from launcher.models.leftovers import find_leftovers
    from launcher.models.library import list_library

    library = list_library(catalogue)
    used = load_last_uses()
    of_entries: dict[str, list[LocalModel]] = {}
    others: dict[str, list[LocalModel]] = {}
    for local in library.models:
        if local.record.model is not None:
            of_entries.setdefault(local.record.model, []).append(local)
        else:
            others.setdefault((_origin(local) or str(local.path)).casefold(), []).append(local)
    models: list[LibraryModel] = []
    released = read_release_dates()
    may_draft = [each for each in library.models if each.record.kind != "mmproj"]
    drafts = {(each.record.repo, each.record.file): each for each in may_draft}
    drafts |= {(None, str(each.path)): each for each in may_draft}  # those that a user's own entry names by their paths
    short_names = Counter(_short_name(each.name) for each in catalogue.models)
    for entry in sorted(catalogue.models, key=lambda each: (each.id == "demo", lack_of_score(each))):
        found = of_entries.pop(entry.id, [])
        if entry.repo is None and entry.id != "demo":
            paths = {Path(each.file) for each in entry.files}
            found += [each for group in others.values() for each in group if each.path in paths]
            others = {key: rest for key, group in others.items() if (rest := [e for e in group if e.path not in paths])}
        models.append(
            LibraryModel(
                entry.id.casefold(),
                _name_entry(entry, is_only=short_names[_short_name(entry.name)] == 1),
                _list_files(entry, _by_quant(found), drafts),
                entry,
                None,
                *_times(found, used),
                released.get(family_key(entry.published_as), ""),
            )
        )
    for model_id, group in of_entries.items():  # these models' entries are gone from the catalogue
        others.setdefault(model_id.casefold(), []).extend(group)
    for key, group in sorted(others.items(), key=lambda each: _name_group(each[1]).casefold()):
        files = tuple(LibraryFile(local=each, size_bytes=each.record.bytes) for each in group)
        models.append(LibraryModel(key, _name_group(group), files, None, None, *_times(group, used)))
    models = _add_measured(models)
    queued = {
        path
        for job in download_queue().read_snapshot().jobs.jobs
        if job.state in QUEUED_STATES
        for paths in job.arguments.get("targets", ())
        for path in paths
    }
    folders = {path: path.exists() for path in read_added_places()}
    own_folder = models_dir()
    state = LocalState(
        own_folder,
        shutil.disk_usage(find_existing_parent(own_folder)).free,
        tuple(each for each in find_leftovers() if str(each.target) not in queued),
        folders,
        {
            store.path: (
                store.store.title,
                tuple(each.reason for each in library.problems if each.store is store.store),
            )
            for store in library.stores
            if store.path not in folders
        },
        library.notice,
        library.models,
    )
    return ModelShelf(tuple(models), state)


def _add_measured(models: Iterable[LibraryModel]) -> list[LibraryModel]:
    """Return models with the speeds that were measured on this computer."""
    speeds = _read_speeds()

    def with_speed(model: LibraryModel, file: LibraryFile) -> LibraryFile:
        if file.local is not None:
            found = speeds.get((file.local.path.name, file.local.record.bytes))
        else:
            found = speeds.get((file.file.file, file.size_bytes)) if model.is_built_in and file.file else None
        return file if found is None else replace(file, measured=found)

    if not speeds:
        return list(models)
    return [replace(each, files=tuple(with_speed(each, file) for file in each.files)) for each in models]


def _read_speeds() -> dict[tuple[str, int | None], LocalSpeed]:
    """Return the speeds in the history; none if there is no history, or if it cannot be read."""
    from launcher.tuning.history import History, history_file

    if not history_file().exists():
        return {}
    try:
        with History() as history:
            return history.read_speeds()
    except LauncherError:  # the Tune page reports the error
        return {}


def _by_quant(found: Iterable[LocalModel]) -> dict[str, list[LocalModel]]:
    groups: dict[str, list[LocalModel]] = {}
    for local in found:
        groups.setdefault((local.record.quant or "").casefold() if local.record.kind == "model" else "", []).append(
            local
        )
    return groups


def _list_files(
    entry: ModelEntry,
    found: dict[str, list[LocalModel]],
    local_drafts: Mapping[tuple[str | None, str | None], LocalModel],
) -> tuple[LibraryFile, ...]:
    """Return the files of an entry, those on this computer with their places; then drafts and projectors.

    `local_drafts` are the files on this computer that may be its drafts, by repository and name: models share them.
    """
    files = []
    has_model = any(found)
    left = dict(found)
    for file in entry.files:
        size = expect_size(entry, file)
        locals_: Sequence[LocalModel | None] = left.pop(file.quant.casefold(), ()) or (None,)
        for local in locals_:
            if local is not None:
                files.append(LibraryFile(entry, file, local, size_bytes=local.record.bytes))
            elif not file.withdrawn:
                known = size.size_bytes if size else None
                files.append(LibraryFile(entry, file, size_bytes=known, is_size_known=file.size_bytes is not None))
    listed = []
    for draft in entry.drafts:
        local = local_drafts.get((entry.repo_of(draft), draft.file))
        if local is None or has_model:
            listed.append(local)
            size_bytes = local.record.bytes if local is not None else draft.expected_bytes
            is_known = local is not None or draft.size_bytes is not None
            files.append(LibraryFile(entry, None, local, draft, size_bytes=size_bytes, is_size_known=is_known))
    others = [each for group in left.values() for each in group if each not in listed]
    return (*files, *(LibraryFile(local=each, size_bytes=each.record.bytes) for each in others))


def _times(found: Iterable[LocalModel], used: Mapping[str, float]) -> tuple[float | None, float | None]:
    """Return when the files were last used, and when the newest of them came or changed."""
    uses, changes = [], []
    for local in found:
        if str(local.path) in used:
            uses.append(used[str(local.path)])
        if local.record.received_s is not None:
            changes.append(local.record.received_s)
        else:
            try:
                changes.append(local.path.stat().st_mtime)
            except OSError:
                continue
    return max(uses, default=None), max(changes, default=None)


def _origin(local: LocalModel) -> str:
    """Return the repository of a local file; empty if it is unknown."""
    return local.record.repo or (local.stored.repo if local.stored else None) or ""


def _name_group(group: Sequence[LocalModel]) -> str:
    """Return the name of a model of which these local files are known."""
    first = group[0]
    if len(group) > 1 and _origin(first):
        return _origin(first).partition("/")[2].removesuffix("-GGUF")
    return name_local(first)


def name_local(local: LocalModel) -> str:
    """Return the name of a local file for users: of its own program, else of the file."""
    if local.stored is None:
        return local.record.model or _without_quant(local.path.stem, local.record.quant)
    name = local.stored.name
    if name.lower().endswith(".gguf"):  # LM Studio names a model after its file
        return _without_quant(name.rpartition("/")[2][: -len(".gguf")], local.record.quant)
    return name


def _without_quant(stem: str, quant: str | None) -> str:
    """Return a file's name without the quantisation at its end, which is shown beside it."""
    shorter = stem.removesuffix(quant or "").rstrip("-._")
    return shorter or stem


def _name_entry(entry: ModelEntry, *, is_only: bool) -> str:
    """Return the name of a model of the catalogue. With `is_only`, no other entry has the same name; a variant with an
    MTP head may."""
    if is_only or entry.names_head:
        return _short_name(entry.name)
    return message("{name} without MTP head", name=entry.name)


def _short_name(name: str) -> str:
    for ending in _NAME_ENDINGS:
        name = name.removesuffix(ending)
    return name


async def _plan_model(
    model: LibraryModel, catalogue: Catalogue, situation: Situation, *, every: bool = False
) -> LibraryModel:
    """Return a model with plans for its best files and those on this computer; with `every` for all of its files."""
    if model.entry is not None:
        model = await asyncio.to_thread(_plan_entry, model, catalogue, situation, every=every)
    files = [
        await _plan_local(each, catalogue, situation) if each.local is not None and each.is_model else each
        for each in model.files
    ]
    return replace(model, files=_order_files(files))


def _without_plans(model: LibraryModel, why: str) -> LibraryModel:
    return replace(model, files=tuple(replace(each, plan=None, lack=why) for each in model.files))


def _plan_entry(model: LibraryModel, catalogue: Catalogue, situation: Situation, *, every: bool) -> LibraryModel:
    entry = model.entry
    assert entry is not None  # noqa: S101 -- for the type checker
    if entry.id == "demo":
        return _without_plans(model, message("It is a part of the program."))
    if all(each.id != entry.id for each in catalogue.models):
        catalogue = Catalogue((entry,))
    try:
        ranked = make_plans(catalogue, situation, PlanCriteria(entry.id))
    except LauncherError as error:
        return _without_plans(model, error.message)
    plans: dict[str, tuple[int, Plan]] = {}
    for place, each_plan in enumerate(ranked):
        if each_plan.entry.id == entry.id:  # not of its files without the MTP head, which are a model of their own
            plans.setdefault(each_plan.file.quant, (place, each_plan))
    files = []
    for each in model.files:
        if each.file is None:
            files.append(each)
            continue
        plan: Plan | None
        rank, plan = plans.get(each.quant, (_UNRANKED, None))
        lack = ""
        if plan is None and (every or not plans):
            criteria = PlanCriteria(entry.id, quant=each.quant)
            plan = next(iter(make_plans(catalogue, situation, criteria)), None)
            if plan is None:
                unplanned = next(iter(list_unplanned(catalogue, situation, criteria)), None)
                lack = message("Cannot tell whether it fits.")
                if unplanned is not None:
                    lack = join_messages(
                        message("Cannot tell whether it fits: {reason}.", reason=unplanned.reason), unplanned.remedy
                    )
        files.append(replace(each, plan=plan, rank=rank, lack=lack))
    return replace(model, files=_order_files(files))


async def _plan_local(file: LibraryFile, catalogue: Catalogue, situation: Situation) -> LibraryFile:
    """Return a file on this computer with the plan by which Start would start it."""
    from launcher.app.planning.start_settings import plan_for_start
    from launcher.app.planning.tuned_match import find_tuned_match
    from launcher.engine.serve_options import ServeOptions
    from launcher.models.locate import select_file
    from launcher.tuning.history_records import LocalSpeed

    local = file.local
    assert local is not None  # noqa: S101 -- for the type checker
    try:
        name = None if local.stored is None or local.record.model else name_local(local)
        selection = await asyncio.to_thread(select_file, local.path, catalogue, name)
        plan = await plan_for_start(selection, situation)
        if plan is None:
            read_geometry(await asyncio.to_thread(read_model, local.path))  # raises the reason if it is unsupported
            return replace(file, plan=None, lack=message("Cannot tell whether it fits."))
    except LauncherError as error:
        return replace(file, plan=None, lack=error.message)
    except OSError as error:
        return replace(file, plan=None, lack=str(error))
    match = None if situation.described else await find_tuned_match(ServeOptions(local.path), wake=False)
    if match is not None and match.used and (rate := match.tuned.evidence.tokens_per_second) is not None:
        file = replace(file, measured=LocalSpeed(rate, match.tuned.measured_line, of_tune=True))
    return replace(file, entry=selection.entry, file=selection.file or selection.entry.files[0], plan=plan, lack="")


def _place_of_file(file: LibraryFile) -> tuple[int, int, bool, float]:
    """Return the place of a file among those of its model: files that fit, in the order of the ranking, then larger
    ones.

    Files without a plan come last; among them, files with the usual bits per weight come first.
    """
    if file.plan is None:
        return 3, file.rank, False, abs(usual_bits(file.quant) - _USUAL_BITS)
    group = file.plan.group
    offloads = file.plan.setting.n_cpu_moe > 0
    return group, file.rank, offloads, -(file.size_bytes or 0)


def _order_files(files: Iterable[LibraryFile]) -> tuple[LibraryFile, ...]:
    return tuple(sorted(files, key=lambda each: (not each.is_model, *_place_of_file(each))))


def place_of_model(model: LibraryModel, *, by_fit: bool = True) -> tuple[int, bool, float, str]:
    """Return a model's place in the list: models that are here come first, then recommended ones; too big ones come
    last.

    Without `by_fit`, too big models keep their place: while models are still being planned, rows should not jump.
    """
    first = model.first
    group = 3 if first is None or (first.plan is None and not model.is_built_in) else 1
    if first is not None and first.plan is not None:
        group = first.plan.group
    order = _order_of_model(model, by_plan=by_fit)
    return group if by_fit else 0, not model.is_here, order, model.name.casefold()


def find_recommended(models: Iterable[LibraryModel]) -> LibraryModel | None:
    """Return the model of the catalogue that plans put first, if one fits."""
    fitting = [
        each
        for each in models
        if each.entry is not None and each.best is not None and each.best.plan is not None and each.best.plan.group == 0
    ]
    proposed = leave_out_doubles([each.entry for each in fitting if each.entry is not None])
    return min([each for each in fitting if each.entry in proposed], key=_order_of_model, default=None)


def _order_of_model(model: LibraryModel, *, by_plan: bool = True) -> float:
    """Return the loss by which plans order models; that by the score alone without a plan, or without `by_plan`."""
    if model.is_built_in:
        return inf
    first = model.first
    if by_plan and first is not None and first.plan is not None:
        return first.plan.order
    return lack_of_score(model.entry) if model.entry is not None else 0.0


def _is_same_memory(before: Situation, now: Situation) -> bool:
    """Return whether plans for one situation hold for the other."""
    near = abs(before.free_mib - now.free_mib) <= _SAME_MEMORY * max(before.free_mib, now.free_mib)

    def without_memory(situation: Situation) -> Situation:
        return replace(
            situation,
            free_mib=0,
            read_at=None,
            host_mib=None,
            carve_out_mib=0,
            gpu_free_mib=(),
            by_device_now_mib=(),
        )

    return near and without_memory(before) == without_memory(now)


def _keep_plans(shelf: ModelShelf, known: ModelShelf) -> ModelShelf:
    """Return a shelf with the plans of an earlier one, for the files that are the same."""
    earlier = {each.key: each for each in known.models}

    def restore_plans(model: LibraryModel) -> LibraryModel:
        before = earlier.get(model.key)
        # Since its last use, the model may have other kept settings.
        if before is None or before.used_s != model.used_s:
            return model
        plans = {each.key: each for each in before.files}
        files = []
        for each in model.files:
            old = plans.get(each.key)
            if old is not None and old.size_bytes == each.size_bytes:
                each = replace(each, entry=each.entry or old.entry, file=each.file or old.file)
                each = replace(each, plan=old.plan, rank=old.rank, lack=old.lack)
                if old.measured is not None and old.measured.of_tune:
                    each = replace(each, measured=old.measured)
            files.append(each)
        return replace(model, files=_order_files(files))

    return replace(shelf, models=tuple(restore_plans(each) for each in shelf.models))
