"""The library: all model files on this machine.

These are downloaded files, other files in the models folder or in folders that the user added, and files in the stores
of other programs (see `stores`), which are used in place and never changed.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from itertools import chain
from pathlib import Path, PurePosixPath
from stat import S_ISREG
from typing import TYPE_CHECKING

from launcher.base.errors import BadOption, LauncherError, ModelMissing, ModelUnknown
from launcher.base.late import LateModule
from launcher.base.messages import FaceName, command_name, mark, message, plural_message
from launcher.base.paths import expand_user, models_dir
from launcher.fetch.file_names import local_path
from launcher.fetch.hub_cache import claimed_sha256, find_cached_files
from launcher.models.added_places import read_added_places
from launcher.models.catalogue import Catalogue, CompanionFile, ModelEntry, ModelFile
from launcher.models.drafters import MODEL_FILE
from launcher.models.gguf import GgufModel, part_names, read_model
from launcher.models.library_index import (
    FileHash,
    Index,
    Record,
    edit_index,
    find_hash,
    read_index,
    remove_from_index,
    store_hash,
)
from launcher.models.stores import (
    Store,
    StoredModel,
    StoreFolder,
    StoreProblem,
    StoreScan,
    find_store_folders,
    recognise_store,
    scan_stores,
)

if TYPE_CHECKING:
    from launcher.models import file_kinds
    from launcher.models.file_kinds import FileKind
else:  # its table is only needed for files that are new in the library
    file_kinds = LateModule("launcher.models.file_kinds")

_QUANT = re.compile(r"[-.]((?:UD-)?(?:I?Q\d\w*|BF16|F16|F32|MXFP4\w*))(?:-\d{5}-of-\d{5})?\.gguf$", re.IGNORECASE)
_OLLAMA_TENSORS = ("a.", "mm.", "mtp.", "s.", "v.")
"""Prefixes of tensor names that only Ollama writes."""
_OLLAMA_FORMAT = message("It is in a format of Ollama's own, which llama.cpp does not load. Get it from Hugging Face.")
_LISTS_SIDE_FILES = (Store.OLLAMA, Store.JAN, Store.LLAMA_CPP)
"""Stores that list the draft and the projector of a model. In others they are found in the model's folder."""


class State(Enum):
    """The state of a model's files. GOOD: verified and unchanged since; TOUCHED: size or time changed since then.

    INCOMPLETE: the end is missing, as of a file that another program still downloads.
    """

    GOOD = "good"
    DAMAGED = "damaged"
    INCOMPLETE = "incomplete"
    TOUCHED = "touched"
    UNVERIFIED = "unverified"
    MISSING = "missing"


class Place(Enum):
    """The location of a model.

    OURS is the models folder, CACHE a cache of the hub's tools or of llama.cpp, STORE another program's folder.
    """

    OURS = "ours"
    CACHE = "cache"
    STORE = "store"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this machine with its current state.

    `verified_s` is when its files were verified, of several the earliest; in seconds since the epoch. `store` is the
    program that it belongs to, None for ours and the user's own; `stored` is that program's entry, if it was read.
    `missing_bytes` are missing at the end of its files.
    """

    record: Record
    state: State
    place: Place
    verified_s: float | None
    store: Store | None = None
    stored: StoredModel | None = None
    missing_bytes: int = 0

    @property
    def problem(self) -> str:
        """A message about a known problem of the files; "" if none is known."""
        if self.state is State.INCOMPLETE:
            return message(
                "{name} is incomplete: {missing:,} bytes are missing. Download it again, or wait for the download to "
                "finish.",
                name=self.path.name,
                missing=self.missing_bytes,
            )
        return self.record.problem or ""

    @property
    def kind(self) -> "FileKind | None":
        """The kind of a file that is no model; None for a model."""
        record = self.record
        if record.kind == "model":
            return None
        usual = {"mmproj": "mmproj", "draft": "mtp-head", "other": "unreadable"}[record.kind]
        return file_kinds.find_kind(record.file_kind) or file_kinds.find_kind(usual)

    @property
    def path(self) -> Path:
        """The first file, which the engine loads."""
        return self.record.path

    @property
    def label(self) -> str:
        """The name to show: that of the catalogue, else of its own program, else REPO:FILE or the path."""
        if self.stored is not None and not self.record.model and self.record.kind == "model":
            return self.stored.name
        return self.record.label


@dataclass(frozen=True, slots=True)
class Library:
    """All local models. `notice` is a message for the user if the index was damaged.

    `problems` are unusable files and folders in the stores of other programs, `stores` the folders of these stores that
    exist or that a setting names.
    """

    models: tuple[LocalModel, ...]
    notice: str | None
    problems: tuple[StoreProblem, ...] = ()
    stores: tuple[StoreFolder, ...] = ()


@dataclass(frozen=True)
class _Places:
    """The folders with models at one moment: ours, those that the user added, and the stores of other programs."""

    ours: Path = field(default_factory=models_dir)
    added: tuple[Path, ...] = field(default_factory=read_added_places)

    @cached_property
    def stores(self) -> tuple[StoreFolder, ...]:
        return find_store_folders(self.added)

    @cached_property
    def store_texts(self) -> Sequence[tuple[str, Store]]:
        """The stores' folders as texts, the innermost first: paths are compared with them for every model."""
        return sorted(((_folder_text(each.path), each.store) for each in self.stores), key=lambda each: -len(each[0]))

    @cached_property
    def scan(self) -> StoreScan:
        return scan_stores(self.stores)

    def known_stored(self, path: Path) -> StoredModel | None:
        """Return the model in a store at a path if the stores were scanned."""
        return self.stored.get(path) if "scan" in self.__dict__ else None

    @cached_property
    def stored(self) -> Mapping[Path, StoredModel]:
        """The models in the stores, by path."""
        return {model.path: model for model in self.scan.models}

    def find_store(self, record: Record) -> Store | None:
        """Return the store that a model belongs to; None for ours and the user's own.

        If our folder lies inside a store, only the models that we downloaded are ours.
        """
        path, ours = _folder_text(record.path), _folder_text(self.ours)
        if record.received_s is not None and path.startswith(ours):
            return None
        nearest = next(((folder, store) for folder, store in self.store_texts if path.startswith(folder)), None)
        if nearest is None or (path.startswith(ours) and not ours.startswith(nearest[0])):
            return None
        return nearest[1]

    def find_place(self, record: Record) -> Place:
        """Return the kind of place that a model lies in."""
        store = self.find_store(record)
        if store is not None:
            return Place.CACHE if store in (Store.HUB, Store.LLAMA_CPP) else Place.STORE
        return Place.OURS if record.path.is_relative_to(self.ours) else Place.ELSEWHERE

    def is_disconnected(self, path: Path) -> bool:
        """Return whether a path lies in a folder that does not exist now, as when its disk is not connected."""
        homes = (*self.added, *(each.path for each in self.stores if each.named))
        return any(path.is_relative_to(each) and not each.exists() for each in homes)

    def is_covered(self, record: Record) -> bool:
        """Return whether a model still lies where models are searched."""
        if self.find_place(record) is not Place.ELSEWHERE or record.path in self.stored:
            return True
        return any(record.path.is_relative_to(each) for each in self.added)


def _folder_text(path: Path) -> str:
    """Return the text with which all paths below `path` begin."""
    return os.path.normcase(path) + os.sep


def list_library(catalogue: Catalogue) -> Library:
    """List all local models: downloaded ones, and those found by scanning the folders.

    The header of a newly found file is read once and stored in the index. Raises OSError if the index cannot be
    written.
    """
    index, notice = read_index()
    places = _Places()
    known = {path: record for record in index.records for path in record.paths}
    found = list(_scan_folders(catalogue, known, places))
    if found or any(_is_obsolete(each, places) for each in index.records) or notice:
        with edit_index() as index:
            # A pull may have added others meanwhile.
            received = {each.path for each in index.records if each.received_s is not None}
            new = [each for each in found if each.path not in received]
            old = {each.path for each in new}
            kept = [each for each in index.records if each.path not in old and not _is_obsolete(each, places)]
            index.records[:] = [*kept, *new]
    records = sorted(index.records, key=lambda each: (each.model or "~", each.kind != "model", str(each.path)))
    verified = _hashes_by_path(index)
    shown = (each for each in records if each.received_s is not None or each.path.exists())
    models = tuple(_make_local_model(record, verified, places) for record in shown)
    return Library(models, notice, places.scan.problems, tuple(filter(is_worth_showing, places.stores)))


def is_worth_showing(folder: StoreFolder) -> bool:
    """Return whether a store's folder exists or is named by a setting; the hub's cache is always shown."""
    return folder.store is Store.HUB or folder.named or folder.path.exists()


def list_found() -> StoreScan:
    """Return the models in the stores of other programs, without the files beside them. No header is read."""
    scan = _Places().scan
    return replace(scan, models=tuple(_leave_out_side_files(scan.models)))


def describe_store(folder: Path) -> tuple[str, StoreScan] | None:
    """Return a sentence about another program's folder, and the models in it. None for any other folder."""
    path = expand_user(folder).absolute()
    known = find_store_folders()
    folder_of_store = recognise_store(path) or next((each for each in known if path.is_relative_to(each.path)), None)
    if folder_of_store is None:
        return None
    scan = scan_stores((replace(folder_of_store, named=True),))
    models = tuple(_leave_out_side_files(scan.models))
    words = plural_message(
        "It is {store}'s: its model is used in place and never changed.",
        "It is {store}'s: its {n} models are used in place and never changed.",
        len(models),
        store=folder_of_store.store.title,
    )
    return words, replace(scan, models=models)


def _is_obsolete(record: Record, places: _Places) -> bool:
    """Return whether a record is obsolete: its file was found, not downloaded, and is deleted or no longer covered.

    Records of a disk that is not connected are kept, for they have facts of headers, and the expected SHA-256.
    """
    if places.is_disconnected(record.path):
        return False
    if record.received_s is None and not places.is_covered(record):
        return True
    return not record.path.exists() and (record.received_s is None or places.find_store(record) is not None)


_shared_snapshot: ContextVar[tuple[Index, _Places] | None] = ContextVar("_shared_snapshot", default=None)


@contextmanager
def share_snapshot() -> Iterator[None]:
    """Read the index and the list of folders once for all `find_local_model` in the block, such as one a plan."""
    token = _shared_snapshot.set((read_index()[0], _Places()))
    try:
        yield
    finally:
        _shared_snapshot.reset(token)


def find_local_model(entry: ModelEntry, quant: str | None = None) -> LocalModel | None:
    """Return a local, complete model in that quantisation (default: the last one downloaded), or None.

    Files under its name that are another model by their header are skipped: see `find_misnamed`. Raises ModelUnknown if
    the model has no such quantisation.
    """
    found = _find_candidates(entry, quant)
    return next((local for file, local in found if not describe_mismatch(entry, file, local.record.paths)), None)


def find_misnamed(entry: ModelEntry, quant: str | None = None) -> tuple[LocalModel, str] | None:
    """Return a local file that has a model's name but is another model, with the difference in words, or None.

    Raises the errors of `find_local_model`.
    """
    found = _find_candidates(entry, quant, any_size=True)
    candidates = ((local, describe_mismatch(entry, file, local.record.paths)) for file, local in found)
    return next((each for each in candidates if each[1]), None)


def _find_candidates(
    entry: ModelEntry, quant: str | None, *, any_size: bool = False
) -> Iterator[tuple[ModelFile, LocalModel]]:
    """Yield the local models with the name of `entry`, the last downloaded first.

    Files that are not in the index must have the catalogue's size, unless `any_size`.
    """
    files = entry.files
    if quant is not None:
        file = entry.file(quant)
        if file is None:
            raise ModelUnknown(
                message("{id} has no {quant}.", id=entry.id, quant=quant),
                message(
                    "See its files[ with {command}][ on {page}].",
                    command=command_name(f"models {entry.id}"),
                    page=FaceName(None, mark("Models")),
                ),
                wanted=quant,
            )
        files = (file,)
    index, places = _shared_snapshot.get() or (read_index()[0], _Places())
    verified = _hashes_by_path(index)
    quants = {file.quant: file for file in files}
    kept = [each for each in index.records if each.kind == "model" and each.model == entry.id and each.quant in quants]
    for record in _newest_first(kept):
        if all(path.is_file() for path in record.paths):
            yield quants[record.quant or ""], _make_local_model(record, verified, places)
    for file in files:
        size = None if any_size else file.size_bytes
        paths = _find_paths(entry.repo, _repo_names(file), entry.revision, size, file.sha256, places)
        if paths:
            record = _make_record(paths, entry.repo, file.file, entry, file)
            yield file, _make_local_model(record, verified, places)


def describe_mismatch(entry: ModelEntry, file: ModelFile, paths: Sequence[Path]) -> str:
    """Return, in words, the differences of local files from a catalogue file of the same name; "" if there are none.

    Files of the catalogue's size are trusted. Another size may be a newer upload, so the header decides.
    """
    if entry.geometry is None or entry.repo is None or file.size_bytes == _total_size(paths):
        return ""
    from launcher.models.received import describe_differences  # imported late: a plan does not need it

    try:
        return describe_differences(read_model(paths[0]), entry.geometry)
    except LauncherError:
        return ""  # an invalid file is reported when it is started


def find_file(repo: str, file: str) -> LocalModel | None:
    """Return the local model whose (first) file is `file` of `repo`, or None."""
    index, _ = read_index()
    kept = [each for each in index.records if (each.repo, each.file) == (repo, file)]
    verified, places = _hashes_by_path(index), _Places()
    for record in _newest_first(kept):
        if all(path.is_file() for path in record.paths):
            return _make_local_model(record, verified, places)
    paths = _find_paths(repo, split_names(file), None, None, None, places)
    return _make_local_model(_make_record(paths, repo, file, None, None), verified, places) if paths else None


def find_in_repository(repo: str, quant: str | None) -> LocalModel | None:
    """Return the local model of a repository in a quantisation, or its only one; None if it is not here."""
    index, _ = read_index()
    records = [each for each in index.records if each.kind == "model" and each.repo == repo and each.path.is_file()]
    named = [each for each in records if quant and (parse_quant(each.path.name) or "").casefold() == quant.casefold()]
    found = named or ([] if quant or len(records) > 1 else records)
    return _make_local_model(found[0], _hashes_by_path(index), _Places()) if found else None


def find_stored(text: str) -> tuple[LocalModel, ...]:
    """Return the models in the stores of other programs that have the name `text`: see `stored_names`.

    Several files may share a name, such as that of their repository.
    """
    places = _Places()
    wanted = text.casefold()
    models = _leave_out_side_files(places.scan.models)
    exact = [each for each in models if each.name.casefold() == wanted]
    found = exact or [each for each in models if wanted in {name.casefold() for name in stored_names(each)}]
    index, _ = read_index()
    verified, known = _hashes_by_path(index), {each.path: each for each in index.records}
    return tuple(
        _make_local_model(
            known.get(each.path) or _make_record(_part_paths(each.path), each.repo, each.file, None, None),
            verified,
            places,
        )
        for each in found
    )


def find_stored_side_files(path: Path) -> tuple[Path, ...]:
    """Return the draft that the user has named for the model at `path`, and what a store lists as its side files."""
    named = read_index()[0].drafts.get(path)
    listed = (named,) if named else ()
    places = _Places()
    text = _folder_text(path)
    if not any(text.startswith(folder) for folder, store in places.store_texts if store in _LISTS_SIDE_FILES):
        return listed
    stored = places.stored.get(path)
    return (*listed, *(stored.side_files if stored else ()))


def stored_names(stored: StoredModel) -> tuple[str, ...]:
    """Return the names of a model in another program's store.

    These are the names that the program shows, and for a model from the hub REPO, REPO:FILE and REPO:QUANT.
    """
    names = [stored.name, *stored.aliases]
    if stored.repo:
        names.append(stored.repo)
        quant = parse_quant(stored.path.name)
        names += [f"{stored.repo}:{each}" for each in (stored.file, quant) if each]
    return tuple(dict.fromkeys(names))


def find_entry(catalogue: Catalogue, path: Path) -> tuple[ModelEntry, ModelFile] | None:
    """Return the catalogue's model and file for a local file, or None if it is not in the catalogue.

    It is identified by its recorded origin, or by its folder or cache; its header must not contradict that.
    """
    path = path.absolute()
    index, _ = read_index()
    for record in index.records:
        if path in record.paths and record.kind == "model" and record.repo:
            return _matching_entry(catalogue, record.repo, record.file, record.paths)
    for entry in catalogue.models:
        for file in entry.files:
            if entry.repo is None and path in [Path(name) for name in _repo_names(file)]:
                return entry, file
    for there, repo, name, sha256 in _walk_files(_Places()):
        if there == path and sha256 is not None:
            return _find_by_sha256(catalogue, sha256)
        if there == path and name is not None:
            return _matching_entry(catalogue, repo, name, _part_paths(path))
    return None


def _find_by_sha256(catalogue: Catalogue, sha256: str) -> tuple[ModelEntry, ModelFile] | None:
    """Return the catalogue's model and file with a SHA-256, or None. Ollama names its files by it."""
    return next(((entry, file) for entry in catalogue.models for file in entry.files if file.sha256 == sha256), None)


def _matching_entry(
    catalogue: Catalogue, repo: str | None, name: str | None, paths: Sequence[Path]
) -> tuple[ModelEntry, ModelFile] | None:
    entry, file = find_catalogue_file(catalogue, repo, split_names(name)[0] if name else None)
    return (entry, file) if entry and file and not describe_mismatch(entry, file, paths) else None


def find_companion(entry: ModelEntry, companion: CompanionFile) -> Path | None:
    """Return the local path of a model's draft or vision projector, or None."""
    if companion.is_local:
        return path if (path := Path(companion.file)).is_file() else None
    repo = entry.repo_of(companion)
    index, _ = read_index()
    for record in index.records:
        if (record.repo, record.file) == (repo, companion.file) and record.path.is_file():
            return record.path
    revision = entry.revision if repo == entry.repo else None
    paths = _find_paths(repo, (companion.file,), revision, companion.size_bytes, companion.sha256, _Places())
    return paths[0] if paths else None


def find_damaged(path: Path) -> LocalModel | None:
    """Return the model that `path` belongs to if it is known to be damaged, else None."""
    index, _ = read_index()
    records = [record for record in index.records if path in record.paths]
    verified, places = _hashes_by_path(index), _Places()
    locals_ = (_make_local_model(record, verified, places) for record in records)
    return next((local for local in locals_ if local.state is State.DAMAGED), None)


def select_models(models: Iterable[LocalModel], text: str) -> list[LocalModel]:
    """Return the models that `text` selects: ID[:QUANT], OWNER/NAME:FILE, the path of a file, or "all".

    Raises ModelMissing if there is none.
    """
    models = list(models)
    path = Path(text).expanduser().absolute()

    def is_selected(local: LocalModel) -> bool:
        record = local.record
        names = {local.label, record.label, f"{record.repo}:{record.file}", record.model, record.path.name}
        names |= set(stored_names(local.stored) if local.stored else ())
        return path in record.paths or text.casefold() in {name.casefold() for name in names if name}

    chosen = models if text == "all" else [each for each in models if is_selected(each)]
    if not chosen:
        raise ModelMissing(
            message("Model {text} is not on this computer.", text=text)
            if text != "all"
            else message("There are no models on this computer."),
            message("{command} lists your models.", command=command_name("models list", mark("Models"))),
            wanted=text,
        )
    return chosen


class Outcome(Enum):
    """The result of verifying a file. UNKNOWN: no SHA-256 is published; the computed one is expected from now on."""

    GOOD = "good"
    CHANGED = "changed"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    """A verified file: the computed and the expected SHA-256, None where unknown."""

    path: Path
    outcome: Outcome
    sha256: str | None
    expected: str | None


async def verify_model(local: LocalModel, on_bytes: Callable[[int], None] | None = None) -> tuple[VerifiedFile, ...]:
    """Hash all files of a model and compare them with the expected SHA-256.

    `on_bytes` is called with the number of bytes read so far, over all files. Raises OSError if a file cannot be read.
    """
    from launcher.fetch.digest import hash_file  # imported late: a plan does not need it

    results, before = [], 0
    for path, expected in zip(local.record.paths, _expected_hashes(local.record, local.store), strict=True):
        if not path.is_file():
            results.append(VerifiedFile(path, Outcome.MISSING, None, expected))
            continue

        def report(done: int, before: int = before) -> None:
            if on_bytes is not None:
                on_bytes(before + done)

        stat = path.stat()
        sha256 = await hash_file(path, report)
        before += stat.st_size
        store_hash(path, sha256, stat)
        outcome = Outcome.GOOD if sha256 == expected else Outcome.CHANGED
        if expected is None:
            outcome = Outcome.UNKNOWN
        results.append(VerifiedFile(path, outcome, sha256, expected))
    if any(each.outcome is Outcome.UNKNOWN for each in results):
        store_expected_hashes(local.record, tuple(each.expected or each.sha256 for each in results))
    return tuple(results)


def store_expected_hashes(record: Record, sha256: tuple[str | None, ...]) -> None:
    """Store the expected SHA-256 of a record's files. Raises OSError."""
    with edit_index() as index:
        index.records[:] = [
            replace(each, sha256=sha256) if each.path == record.path else each for each in index.records
        ]


def list_hashes(local: LocalModel) -> tuple[str | None, ...]:
    """Return the computed SHA-256 of each file of a model, None for files not hashed, or changed since."""
    index, _ = read_index()
    kept = (find_hash(index, path) for path in local.record.paths)
    return tuple(each.sha256 if each else None for each in kept)


def check_removable(local: LocalModel) -> None:
    """Raise BadOption for a model that belongs to another program, which may need it."""
    if local.store is None:
        return
    command = {
        Store.OLLAMA: message("`ollama rm {name}` deletes it there.", name=local.label),
        Store.HUB: message("Delete it with the program that downloaded it, such as `hf cache`."),
    }
    raise BadOption(
        message(
            "{name} belongs to {store} and is not deleted here: {path}.",
            name=local.label,
            store=local.store.title,
            path=local.path,
        ),
        command.get(local.store, message("Delete it in {store}.", store=local.store.title)),
        path=str(local.path),
    )


def remove_model(local: LocalModel) -> int:
    """Delete a model's files and the folders of ours that become empty; return the bytes freed.

    The caller must have asked the user, and checked that no server uses them. Raises OSError, and BadOption for a model
    of another program.
    """
    check_removable(local)
    freed = 0
    for path in local.record.paths:
        if path.is_file():
            freed += 0 if path.is_symlink() else path.stat().st_size
            path.unlink()
        if path.is_relative_to(models_dir()):
            _remove_empty(path.parent)
    remove_from_index(local.record.paths)
    return freed


def _remove_empty(folder: Path) -> None:
    while folder != models_dir() and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _newest_first(records: Iterable[Record]) -> list[Record]:
    return sorted(records, key=lambda each: -(each.received_s or 0))


def _hashes_by_path(index: Index) -> dict[Path, FileHash]:
    return {each.path: each for each in index.hashes}


def _make_local_model(record: Record, hashes: Mapping[Path, FileHash], places: _Places) -> LocalModel:
    store = places.find_store(record)
    states, verified, size = [], [], 0
    for path, expected in zip(record.paths, _expected_hashes(record, store), strict=True):
        kept = hashes.get(path)
        try:
            stat = path.stat()
        except OSError:
            stat = None
        size += stat.st_size if stat is not None else 0
        if stat is None or not S_ISREG(stat.st_mode):
            states.append(State.MISSING)
        elif kept is None:
            states.append(State.UNVERIFIED)
        elif (kept.bytes, kept.modified_ns) != (stat.st_size, stat.st_mtime_ns):
            states.append(State.TOUCHED)
        else:
            states.append(State.GOOD if expected in (None, kept.sha256) else State.DAMAGED)
            verified.append(kept.verified_s)
    missing = (record.missing_bytes or 0) if record.received_s is None else max(0, record.bytes - size)
    if missing:
        states.append(State.INCOMPLETE)
    order = [State.MISSING, State.DAMAGED, State.INCOMPLETE, State.TOUCHED, State.UNVERIFIED, State.GOOD]
    return LocalModel(
        record,
        min(states, key=order.index),
        places.find_place(record),
        min(verified, default=None),
        store,
        places.known_stored(record.path) if store else None,
        missing,
    )


def _expected_hashes(record: Record, store: Store | None) -> tuple[str | None, ...]:
    """Return the expected SHA-256 of each file: as recorded, else as its store names its blob, else None."""
    recorded = record.sha256 or (None,) * len(record.paths)
    return tuple(
        sha256 or (claimed_sha256(path) if store in (Store.HUB, Store.LLAMA_CPP) else _blob_sha256(path, store))
        for path, sha256 in zip(record.paths, recorded, strict=True)
    )


def _blob_sha256(path: Path, store: Store | None) -> str | None:
    return path.name.removeprefix("sha256-") if store is Store.OLLAMA and path.name.startswith("sha256-") else None


def find_store_copies(repo: str, names: Sequence[str], sha256: str | None) -> Iterator[tuple[Path, ...]]:
    """Yield the files of a repository as LM Studio keeps them, by their names, and Ollama, by their SHA-256.

    The content is not checked.
    """
    yield from _find_store_copies(repo, names, sha256, _Places())


def _find_store_copies(
    repo: str, names: Sequence[str], sha256: str | None, places: _Places
) -> Iterator[tuple[Path, ...]]:
    for each in places.stores:
        if each.store is Store.LM_STUDIO:
            paths = tuple(each.path.joinpath(*repo.split("/"), *name.split("/")) for name in names)
        elif each.store is Store.OLLAMA and sha256 and len(names) == 1:
            paths = (each.path / "blobs" / f"sha256-{sha256}",)
        else:
            continue
        if all(path.is_file() for path in paths):
            yield paths


def _find_paths(
    repo: str | None,
    names: Sequence[str],
    revision: str | None,
    size: int | None,
    sha256: str | None,
    places: _Places,
) -> tuple[Path, ...]:
    """Return the paths of files that are not in the index; () if they do not exist or do not have `size` bytes."""
    candidates: Iterable[tuple[Path, ...]]
    if repo is None:
        candidates = [tuple(Path(name) for name in names)]
    else:
        ours = tuple(local_path(places.ours, f"{repo}/{name}") for name in names)
        others = (find_cached_files(repo, names, revision), _find_store_copies(repo, names, sha256, places))
        candidates = chain([ours], *others)
    for paths in candidates:
        whole = all(path.is_absolute() and path.is_file() for path in paths)
        if whole and size in (None, _total_size(paths)):
            return paths
    return ()


def _repo_names(file: ModelFile) -> tuple[str, ...]:
    """Return the names of all parts of a catalogue file in its repository."""
    return tuple(part.file for part in file.parts) or split_names(file.file)


def split_names(file: str) -> tuple[str, ...]:
    """Return the names of all parts of the split model that `file` belongs to by its name, else just `file`."""
    path = PurePosixPath(file)
    names = part_names(path.name)
    return tuple(str(path.with_name(name)) for name in names) if names else (file,)


def _part_paths(path: Path) -> tuple[Path, ...]:
    return tuple(path.with_name(name) for name in split_names(path.name))


def _scan_folders(catalogue: Catalogue, known: Mapping[Path, Record], places: _Places) -> Iterator[Record]:
    """Yield records of the files in the folders that are new, or changed in size; their headers are read.

    Files are also read again if an earlier version recorded them without `missing_bytes` or `file_kind`.
    """
    for path, repo, file, sha256 in _walk_files(places):
        names = split_names(path.name)
        record = known.get(path)
        if path.name != names[0]:
            continue
        if record is not None and (
            record.received_s is not None
            or (None not in (record.missing_bytes, record.file_kind) and record.bytes == _total_size(record.paths))
        ):
            continue
        paths = tuple(path.with_name(name) for name in names)
        by_sha256 = _find_by_sha256(catalogue, sha256) if sha256 else None
        entry, catalogue_file = by_sha256 or find_catalogue_file(catalogue, repo, file)
        new = _make_record(paths, repo, file, entry, catalogue_file)
        try:
            model = read_model(path)
        except LauncherError as error:
            yield classify_record(
                replace(new, problem=error.title, missing_bytes=0), file_kinds.recognise_name(path.name)
            )
        else:
            # The catalogue may have another file of that name.
            if entry and catalogue_file and describe_mismatch(entry, catalogue_file, paths):
                new = replace(new, model=None, sha256=())
            problem = _OLLAMA_FORMAT if is_ollamas_own(model) else None
            new = classify_record(new, file_kinds.recognise_file(model))
            missing = sum(max(0, part.needed_bytes - part.file_bytes) for part in model.parts)
            yield replace(new, head=model.mtp_head.value, problem=problem, missing_bytes=missing)


def is_ollamas_own(model: GgufModel) -> bool:
    """Return whether a model is in Ollama's format, with encoders or a head under names that llama.cpp does not know.

    Ollama changes such files while it loads them (llama/compat/README.md); llama.cpp refuses tensors that it has no use
    for.
    """
    is_blob = model.path.name.startswith("sha256-")
    return is_blob and any(tensor.name.startswith(_OLLAMA_TENSORS) for tensor in model.tensors)


def _walk_files(places: _Places) -> Iterator[tuple[Path, str | None, str | None, str | None]]:
    """Yield every GGUF file in the models folder, the stores and the user's folders once, with its origin if known.

    That is the repository and the name in it, by the folders' names or by the store, and the SHA-256 by the store.
    """
    ours = places.ours
    for path in sorted(ours.rglob("*.gguf")) if ours.is_dir() else ():
        parts = path.relative_to(ours).parts
        if path.is_file():
            yield path, "/".join(parts[:2]) if len(parts) > 2 else None, "/".join(parts[2:]) or None, None
    for path, stored in places.stored.items():
        if not path.is_relative_to(ours):
            yield path, stored.repo, stored.file, stored.sha256
    for place in places.added:
        if place.is_dir() and recognise_store(place):
            continue
        for path in sorted(place.rglob("*.gguf")) if place.is_dir() else (place,):
            if path.is_file() and path not in places.stored:
                yield path, None, None, None


def _make_record(
    paths: tuple[Path, ...],
    repo: str | None,
    file: str | None,
    entry: ModelEntry | None,
    catalogue_file: ModelFile | None,
) -> Record:
    hashes: tuple[str | None, ...] = ()
    if catalogue_file:
        hashes = tuple(part.sha256 for part in catalogue_file.parts) or (catalogue_file.sha256,)
    return Record(
        paths=paths,
        sha256=hashes if len(hashes) == len(paths) and any(hashes) else (),
        bytes=_total_size(paths),
        model=entry.id if entry else None,
        quant=catalogue_file.quant if catalogue_file else parse_quant(paths[0].name),
        repo=repo,
        file=file if repo else None,
    )


def find_catalogue_file(
    catalogue: Catalogue, repo: str | None, file: str | None
) -> tuple[ModelEntry | None, ModelFile | None]:
    """Return the catalogue's model and file for a file of a repository, or (None, None)."""
    for entry in catalogue.models:
        for catalogue_file in entry.files:
            if repo and (entry.repo, catalogue_file.file) == (repo, file):
                return entry, catalogue_file
    return None, None


def find_catalogue_draft(
    catalogue: Catalogue, repo: str | None, file: str | None
) -> tuple[ModelEntry, CompanionFile] | None:
    """Return the catalogue's first model that a file of a repository drafts for, and its draft; None for others.

    A small model is none: it can also be used on its own.
    """
    for entry in catalogue.models if repo else ():
        for draft in entry.all_drafts:
            if (entry.repo_of(draft), draft.file) == (repo, file) and MODEL_FILE not in draft.kinds:
                return entry, draft
    return None


def parse_quant(name: str) -> str | None:
    """Return the quantisation at the end of a file name, or None."""
    found = _QUANT.search(name)
    return found[1] if found else None


def _leave_out_side_files(stored: Iterable[StoredModel]) -> list[StoredModel]:
    """Return the models in stores without the files that are no models, by the index or by their names.

    No header is read.
    """
    kinds = {record.path: record.file_kind for record in read_index()[0].records if record.file_kind}

    def is_model(path: Path) -> bool:
        return kinds[path] == "model" if path in kinds else file_kinds.recognise_name(path.name) is None

    return [each for each in stored if is_model(each.path)]


def classify_record(record: Record, kind: "FileKind | None") -> Record:
    """Return a record with the kind of its file, None for a model."""
    return replace(record, kind=kind.role if kind else "model", file_kind=kind.name if kind else "model")


def _total_size(paths: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())
