"""The library: all model files on this machine.

These are downloaded files, other files in the models folder or in folders that the user added, and files in the caches
of the hub's tools and of llama.cpp.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath

from launcher.base.errors import LauncherError, ModelMissing, ModelUnknown
from launcher.base.messages import message
from launcher.base.paths import models_dir
from launcher.fetch.digest import hash_file
from launcher.fetch.hub_cache import claimed_sha256, find_cached_files, is_in_cache, list_cached_models
from launcher.fetch.names import local_path
from launcher.models.added_places import find_added_place, read_added_places
from launcher.models.catalogue import Catalogue, CompanionFile, ModelEntry, ModelFile
from launcher.models.gguf import part_names, read_model
from launcher.models.library_index import (
    Index,
    Kind,
    Record,
    edit_index,
    find_hash,
    read_index,
    remove_from_index,
    store_hash,
)
from launcher.models.received import describe_differences

_QUANT = re.compile(r"[-.]((?:UD-)?(?:I?Q\d\w*|BF16|F16|F32|MXFP4\w*))(?:-\d{5}-of-\d{5})?\.gguf$", re.IGNORECASE)
_NO_MODELS = ("imatrix",)


class State(Enum):
    """The state of a model's files. GOOD: verified and unchanged since; TOUCHED: size or time changed since then."""

    GOOD = "good"
    DAMAGED = "damaged"
    TOUCHED = "touched"
    UNVERIFIED = "unverified"
    MISSING = "missing"


class Place(Enum):
    """The location of a model: OURS is the models folder, CACHE a cache of the hub's tools or of llama.cpp."""

    OURS = "ours"
    CACHE = "cache"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this machine with its current state.

    `verified_s` is when its files were verified, of several the earliest; in seconds since the epoch.
    """

    record: Record
    state: State
    place: Place
    verified_s: float | None

    @property
    def path(self) -> Path:
        """The first file, which the engine loads."""
        return self.record.path


@dataclass(frozen=True, slots=True)
class Library:
    """All local models. `notice` is a message for the user if the index was damaged."""

    models: tuple[LocalModel, ...]
    notice: str | None


def list_library(catalogue: Catalogue) -> Library:
    """List all local models: downloaded ones, and those found by scanning the folders.

    The header of a newly found file is read once and stored in the index. Raises OSError if the index cannot be
    written.
    """
    index, notice = read_index()
    known = {path: record for record in index.records for path in record.paths}
    found = list(_scan_folders(catalogue, known))
    if found or any(map(_is_obsolete, index.records)) or notice:
        with edit_index() as index:
            received = {each.path for each in index.records if each.received_s is not None}  # also by a pull meanwhile
            new = [each for each in found if each.path not in received]
            old = {each.path for each in new}
            kept = [each for each in index.records if each.path not in old and not _is_obsolete(each)]
            index.records[:] = [*kept, *new]
    records = sorted(index.records, key=lambda each: (each.model or "~", each.kind != "model", str(each.path)))
    return Library(tuple(_make_local_model(record, index) for record in records), notice)


def _is_obsolete(record: Record) -> bool:
    """Return whether a record is obsolete: its file was found, not downloaded, and is deleted or no longer covered."""
    if (
        record.received_s is None
        and _find_place(record.path) is Place.ELSEWHERE
        and find_added_place(record.path) is None
    ):
        return True
    return not record.path.exists() and (record.received_s is None or is_in_cache(record.path))


def find_local_model(entry: ModelEntry, quant: str | None = None) -> LocalModel | None:
    """Return a local, complete model in that quantisation (default: the last one downloaded), or None.

    Files under its name that are another model by their header are skipped: see `find_misnamed`. Raises ModelUnknown if
    the model has no such quantisation.
    """
    found = _candidates(entry, quant)
    return next((local for file, local in found if not describe_mismatch(entry, file, local.record.paths)), None)


def find_misnamed(entry: ModelEntry, quant: str | None = None) -> tuple[LocalModel, str] | None:
    """Return a local file that has a model's name but is another model, with the difference in words, or None.

    Raises the errors of `find_local_model`.
    """
    found = _candidates(entry, quant, any_size=True)
    candidates = ((local, describe_mismatch(entry, file, local.record.paths)) for file, local in found)
    return next((each for each in candidates if each[1]), None)


def _candidates(
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
                    "See its files with `mtp-launcher models {id}`.", window="See its files on Models.", id=entry.id
                ),
                wanted=quant,
            )
        files = (file,)
    index, _ = read_index()
    quants = {file.quant: file for file in files}
    kept = [each for each in index.records if each.kind == "model" and each.model == entry.id and each.quant in quants]
    for record in _newest_first(kept):
        if all(path.is_file() for path in record.paths):
            yield quants[record.quant or ""], _make_local_model(record, index)
    for file in files:
        paths = _find_paths(entry.repo, _repo_names(file), entry.revision, None if any_size else file.size_bytes)
        if paths:
            yield file, _make_local_model(_make_record(paths, entry.repo, file.file, entry, file), index)


def describe_mismatch(entry: ModelEntry, file: ModelFile, paths: Sequence[Path]) -> str:
    """Return, in words, the differences of local files from a catalogue file of the same name; "" if there are none.

    Files of the catalogue's size are trusted. Another size may be a newer upload, so the header decides.
    """
    if entry.geometry is None or entry.repo is None or file.size_bytes == _total_size(paths):
        return ""
    try:
        return describe_differences(read_model(paths[0]), entry.geometry)
    except LauncherError:
        return ""  # an invalid file is reported when it is started


def find_file(repo: str, file: str) -> LocalModel | None:
    """Return the local model whose (first) file is `file` of `repo`, or None."""
    index, _ = read_index()
    kept = [each for each in index.records if (each.repo, each.file) == (repo, file)]
    for record in _newest_first(kept):
        if all(path.is_file() for path in record.paths):
            return _make_local_model(record, index)
    paths = _find_paths(repo, split_names(file), None, None)
    return _make_local_model(_make_record(paths, repo, file, None, None), index) if paths else None


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
    for there, repo, name in _walk_files():
        if there == path and name is not None:
            return _matching_entry(catalogue, repo, name, [path.with_name(each) for each in split_names(path.name)])
    return None


def _matching_entry(
    catalogue: Catalogue, repo: str | None, name: str | None, paths: Sequence[Path]
) -> tuple[ModelEntry, ModelFile] | None:
    entry, file = find_catalogue_file(catalogue, repo, split_names(name)[0] if name else None)
    return (entry, file) if entry and file and not describe_mismatch(entry, file, paths) else None


def find_companion(entry: ModelEntry, companion: CompanionFile) -> Path | None:
    """Return the local path of a model's draft or vision projector, or None."""
    repo = companion.repo or entry.repo
    index, _ = read_index()
    for record in index.records:
        if (record.repo, record.file) == (repo, companion.file) and record.path.is_file():
            return record.path
    paths = _find_paths(repo, (companion.file,), entry.revision if repo == entry.repo else None, companion.size_bytes)
    return paths[0] if paths else None


def find_damaged(path: Path) -> LocalModel | None:
    """Return the model that `path` belongs to if it is known to be damaged, else None."""
    index, _ = read_index()
    locals_ = (_make_local_model(record, index) for record in index.records if path in record.paths)
    return next((local for local in locals_ if local.state is State.DAMAGED), None)


def select_models(models: Iterable[LocalModel], text: str) -> list[LocalModel]:
    """Return the models that `text` selects: ID[:QUANT], OWNER/NAME:FILE, the path of a file, or "all".

    Raises ModelMissing if there is none.
    """
    models = list(models)
    path = Path(text).expanduser().absolute()

    def meant(local: LocalModel) -> bool:
        record = local.record
        names = {record.label, f"{record.repo}:{record.file}", record.model, record.path.name}
        return path in record.paths or text.casefold() in {name.casefold() for name in names if name}

    chosen = models if text == "all" else [each for each in models if meant(each)]
    if not chosen:
        raise ModelMissing(
            message("Model {text} is not on this computer.", text=text)
            if text != "all"
            else message("There are no models on this computer."),
            message("`mtp-launcher models list` lists your models.", window="See your models on Models."),
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
    results, before = [], 0
    for path, expected in zip(local.record.paths, _expected_hashes(local.record), strict=True):
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
        outcome = Outcome.UNKNOWN if expected is None else Outcome.GOOD if sha256 == expected else Outcome.CHANGED
        results.append(VerifiedFile(path, outcome, sha256, expected))
    if any(each.outcome is Outcome.UNKNOWN for each in results):
        store_expected_hashes(local.record, tuple(each.expected or each.sha256 for each in results))
    return tuple(results)


def store_expected_hashes(record: Record, sha256: tuple[str | None, ...]) -> None:
    """Store the expected SHA-256 of a record's files. Raises OSError."""
    with edit_index() as index:
        index.records[:] = [
            each.model_copy(update={"sha256": sha256}) if each.path == record.path else each for each in index.records
        ]


def list_hashes(local: LocalModel) -> tuple[str | None, ...]:
    """Return the computed SHA-256 of each file of a model, None for files not hashed, or changed since."""
    index, _ = read_index()
    kept = (find_hash(index, path) for path in local.record.paths)
    return tuple(each.sha256 if each else None for each in kept)


def remove_model(local: LocalModel) -> int:
    """Delete a model's files and the folders of ours that become empty; return the bytes freed.

    The caller must have asked the user, and checked that no server uses them. Raises OSError.
    """
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


def _make_local_model(record: Record, index: Index) -> LocalModel:
    states, verified = [], []
    for path, expected in zip(record.paths, _expected_hashes(record), strict=True):
        kept = find_hash(index, path)
        if not path.is_file():
            states.append(State.MISSING)
        elif kept is not None:
            states.append(State.GOOD if expected in (None, kept.sha256) else State.DAMAGED)
            verified.append(kept.verified_s)
        else:
            states.append(State.TOUCHED if any(each.path == path for each in index.hashes) else State.UNVERIFIED)
    order = [State.MISSING, State.DAMAGED, State.TOUCHED, State.UNVERIFIED, State.GOOD]
    return LocalModel(record, min(states, key=order.index), _find_place(record.path), min(verified, default=None))


def _expected_hashes(record: Record) -> tuple[str | None, ...]:
    """Return the expected SHA-256 of each file: as recorded, else as the hub cache names its blob, else None."""
    recorded = record.sha256 or (None,) * len(record.paths)
    return tuple(
        sha256 or (claimed_sha256(path) if is_in_cache(path) else None)
        for path, sha256 in zip(record.paths, recorded, strict=True)
    )


def _find_place(path: Path) -> Place:
    if path.is_relative_to(models_dir()):
        return Place.OURS
    return Place.CACHE if is_in_cache(path) else Place.ELSEWHERE


def _find_paths(repo: str | None, names: Sequence[str], revision: str | None, size: int | None) -> tuple[Path, ...]:
    """Return the paths of files that are not in the index; () if they do not exist or do not have `size` bytes."""
    if repo is None:
        candidates = [tuple(Path(name) for name in names)]
    else:
        ours = tuple(local_path(models_dir(), f"{repo}/{name}") for name in names)
        candidates = [ours, *find_cached_files(repo, names, revision)]
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


def _scan_folders(catalogue: Catalogue, known: dict[Path, Record]) -> Iterator[Record]:
    """Yield records of the files in the folders that are new, or changed in size; their headers are read."""
    for path, repo, file in _walk_files():
        names = split_names(path.name)
        record = known.get(path)
        if path.name != names[0] or any(word in path.name for word in _NO_MODELS):
            continue
        if record is not None and (record.received_s is not None or record.bytes == _total_size(record.paths)):
            continue
        paths = tuple(path.with_name(name) for name in names)
        entry, its = find_catalogue_file(catalogue, repo, file)
        new = _make_record(paths, repo, file, entry, its)
        try:
            model = read_model(path)
        except LauncherError as error:
            yield new.model_copy(update={"problem": error.title})
        else:
            if entry is not None and its is not None and describe_mismatch(entry, its, paths):  # another under its name
                new = new.model_copy(update={"model": None, "sha256": ()})
            yield new.model_copy(update={"kind": _kind(path.name, model.architecture), "head": model.mtp_head.value})


def _walk_files() -> Iterator[tuple[Path, str | None, str | None]]:
    """Yield every GGUF file in the models folder, the caches and the user's folders.

    Its repository and its name there follow from the folder names, and are None where they cannot.
    """
    ours = models_dir()
    for path in sorted(ours.rglob("*.gguf")) if ours.is_dir() else ():
        parts = path.relative_to(ours).parts
        if path.is_file():
            yield path, "/".join(parts[:2]) if len(parts) > 2 else None, "/".join(parts[2:]) or None
    for cached in list_cached_models():
        yield cached.path, cached.repo, cached.file
    for place in read_added_places():
        for path in sorted(place.rglob("*.gguf")) if place.is_dir() else (place,) if place.is_file() else ():
            if path.is_file():
                yield path, None, None


def _make_record(
    paths: tuple[Path, ...], repo: str | None, file: str | None, entry: ModelEntry | None, its: ModelFile | None
) -> Record:
    hashes = tuple(part.sha256 for part in its.parts) if its and its.parts else (its.sha256,) if its else ()
    return Record(
        paths=paths,
        sha256=hashes if len(hashes) == len(paths) and any(hashes) else (),
        bytes=_total_size(paths),
        model=entry.id if entry else None,
        quant=its.quant if its else quant_of(paths[0].name),
        repo=repo,
        file=file if repo else None,
    )


def find_catalogue_file(
    catalogue: Catalogue, repo: str | None, file: str | None
) -> tuple[ModelEntry | None, ModelFile | None]:
    """Return the catalogue's model and file for a file of a repository, or (None, None)."""
    for entry in catalogue.models:
        for its in entry.files:
            if repo and (entry.repo, its.file) == (repo, file):
                return entry, its
    return None, None


def quant_of(name: str) -> str | None:
    """Return the quantisation at the end of a file name, or None."""
    found = _QUANT.search(name)
    return found[1] if found else None


def _kind(name: str, architecture: str) -> Kind:
    if architecture == "clip" or "mmproj" in name:
        return "mmproj"
    return "draft" if name.startswith("mtp-") or architecture.endswith("-assistant") else "model"


def _total_size(paths: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())
