"""The model files on this machine: those we have downloaded, others in our folder or in folders that the user has
added, and those in the hub's caches."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath

from launcher.base.errors import LauncherError, ModelMissing, ModelUnknown
from launcher.base.paths import models_dir
from launcher.fetch.digest import sha256_of
from launcher.fetch.hub_cache import cached_models, claimed_sha256, find_cached, is_cached
from launcher.fetch.names import local_path
from launcher.models.added_places import added_places, place_of
from launcher.models.catalogue import Catalogue, CompanionFile, ModelEntry, ModelFile
from launcher.models.gguf import read_model
from launcher.models.gguf_header import part_names
from launcher.models.library_index import Index, Kind, Record, changed_index, forget, hash_kept, keep_hash, read_index

_QUANT = re.compile(r"[-.]((?:UD-)?(?:I?Q\d\w*|BF16|F16|F32|MXFP4\w*))(?:-\d{5}-of-\d{5})?\.gguf$", re.IGNORECASE)
_NO_MODELS = ("imatrix",)


class State(Enum):
    """What is known of the files. GOOD: verified and not touched since; TOUCHED: another size or time since then."""

    GOOD = "good"
    DAMAGED = "damaged"
    TOUCHED = "touched"
    UNVERIFIED = "unverified"
    MISSING = "missing"


class Place(Enum):
    """Whose the files are: in our folder, in the cache of the hub's tools or of llama.cpp, or elsewhere."""

    OURS = "ours"
    CACHE = "cache"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this machine as it is now. `verified_s` (since the epoch) is when the first of its files was."""

    record: Record
    state: State
    place: Place
    verified_s: float | None

    @property
    def path(self) -> Path:
        """Its first file, which an engine is given."""
        return self.record.path


@dataclass(frozen=True, slots=True)
class Library:
    """All of them, and what to tell the user when the index was damaged."""

    models: tuple[LocalModel, ...]
    notice: str | None


def library(catalogue: Catalogue) -> Library:
    """Return what is here: what was downloaded, and what is found in the folders, the latter read once and kept.

    Raises OSError when what was found cannot be kept.
    """
    index, notice = read_index()
    known = {path: record for record in index.records for path in record.paths}
    found = list(_found(catalogue, known))
    if found or any(map(_is_gone, index.records)) or notice:
        with changed_index() as index:
            received = {each.path for each in index.records if each.received_s is not None}  # some only just now
            new = [each for each in found if each.path not in received]
            old = {each.path for each in new}
            kept = [each for each in index.records if each.path not in old and not _is_gone(each)]
            index.records[:] = [*kept, *new]
    records = sorted(index.records, key=lambda each: (each.model or "~", each.kind != "model", str(each.path)))
    return Library(tuple(_local(record, index) for record in records), notice)


def _is_gone(record: Record) -> bool:
    """Whether there is nothing to tell of files any more: others deleted what was theirs, or nobody looks there now."""
    if record.received_s is None and _place(record.path) is Place.ELSEWHERE and place_of(record.path) is None:
        return True
    return not record.path.exists() and (record.received_s is None or is_cached(record.path))


def find(entry: ModelEntry, quant: str | None = None) -> LocalModel | None:
    """Return a model that is here, whole, in that quantisation or, without one, as it was downloaded last; else None.

    Raises ModelUnknown when the model has no such quantisation.
    """
    files = entry.files
    if quant is not None:
        file = entry.file(quant)
        if file is None:
            raise ModelUnknown(
                f"{entry.id} has no {quant}.", f"`mtp-launcher models {entry.id}` lists its files.", wanted=quant
            )
        files = (file,)
    index, _ = read_index()
    quants = {file.quant for file in files}
    kept = [each for each in index.records if each.kind == "model" and each.model == entry.id and each.quant in quants]
    for record in _newest_first(kept):
        if all(path.is_file() for path in record.paths):
            return _local(record, index)
    for file in files:
        paths = _where(entry.repo, _names(file), entry.revision, file.size_bytes)
        if paths:
            return _local(_record(paths, entry.repo, file.file, entry, file), index)
    return None


def find_file(repo: str, file: str) -> LocalModel | None:
    """Return the model on this machine that is, or begins with, a repository's file; None when it is not here."""
    index, _ = read_index()
    kept = [each for each in index.records if (each.repo, each.file) == (repo, file)]
    for record in _newest_first(kept):
        if all(path.is_file() for path in record.paths):
            return _local(record, index)
    paths = _where(repo, split_names(file), None, None)
    return _local(_record(paths, repo, file, None, None), index) if paths else None


def find_companion(entry: ModelEntry, companion: CompanionFile) -> Path | None:
    """Return where a draft or a vision projector of a model is on this machine, or None."""
    repo = companion.repo or entry.repo
    index, _ = read_index()
    for record in index.records:
        if (record.repo, record.file) == (repo, companion.file) and record.path.is_file():
            return record.path
    paths = _where(repo, (companion.file,), entry.revision if repo == entry.repo else None, companion.size_bytes)
    return paths[0] if paths else None


def damaged(path: Path) -> LocalModel | None:
    """Return the model that a file is one of if it is known to be damaged, else None."""
    index, _ = read_index()
    locals_ = (_local(record, index) for record in index.records if path in record.paths)
    return next((local for local in locals_ if local.state is State.DAMAGED), None)


def named(models: Iterable[LocalModel], text: str) -> list[LocalModel]:
    """Return the models that `text` means: ID[:QUANT], OWNER/NAME:FILE, a path of one of its files, or "all".

    Raises ModelMissing when none is meant.
    """
    models = list(models)
    path = Path(text).expanduser().absolute()

    def meant(local: LocalModel) -> bool:
        record = local.record
        names = {record.words, f"{record.repo}:{record.file}", record.model, record.path.name}
        return path in record.paths or text.casefold() in {name.casefold() for name in names if name}

    chosen = models if text == "all" else [each for each in models if meant(each)]
    if not chosen:
        raise ModelMissing(
            f"No model {text} is on this machine." if text != "all" else "No models are on this machine.",
            "`mtp-launcher models list` shows what is here.",
            wanted=text,
        )
    return chosen


class Outcome(Enum):
    """What verifying a file has shown. UNKNOWN: nobody says what its SHA-256 should be; from now on, this one."""

    GOOD = "good"
    CHANGED = "changed"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verified:
    """A file that was read to its end: its SHA-256 and what that should be, None where not known."""

    path: Path
    outcome: Outcome
    sha256: str | None
    expected: str | None


async def verify(local: LocalModel, on_bytes: Callable[[int], None] | None = None) -> tuple[Verified, ...]:
    """Read all files of a model and compare them; `on_bytes` is told how many bytes of all of them are read so far.

    Raises OSError when a file cannot be read.
    """
    results, before = [], 0
    for path, expected in zip(local.record.paths, _expected(local.record), strict=True):
        if not path.is_file():
            results.append(Verified(path, Outcome.MISSING, None, expected))
            continue

        def tell(done: int, before: int = before) -> None:
            if on_bytes is not None:
                on_bytes(before + done)

        stat = path.stat()
        sha256 = await sha256_of(path, tell)
        before += stat.st_size
        keep_hash(path, sha256, stat)
        outcome = Outcome.UNKNOWN if expected is None else Outcome.GOOD if sha256 == expected else Outcome.CHANGED
        results.append(Verified(path, outcome, sha256, expected))
    if any(each.outcome is Outcome.UNKNOWN for each in results):
        expect(local.record, tuple(each.expected or each.sha256 for each in results))
    return tuple(results)


def expect(record: Record, sha256: tuple[str | None, ...]) -> None:
    """Keep what the files of a record should be from now on. Raises OSError."""
    with changed_index() as index:
        index.records[:] = [
            each.model_copy(update={"sha256": sha256}) if each.path == record.path else each for each in index.records
        ]


def hashes(local: LocalModel) -> tuple[str | None, ...]:
    """Return the SHA-256 that was computed of each of a model's files and still holds, None where there is none."""
    index, _ = read_index()
    kept = (hash_kept(index, path) for path in local.record.paths)
    return tuple(each.sha256 if each else None for each in kept)


def remove(local: LocalModel) -> int:
    """Delete a model's files, and folders of ours that are empty then; return the bytes that are free now.

    The caller has asked the user, and looked whether a server uses them. Raises OSError.
    """
    freed = 0
    for path in local.record.paths:
        if path.is_file():
            freed += 0 if path.is_symlink() else path.stat().st_size
            path.unlink()
        if path.is_relative_to(models_dir()):
            _remove_empty(path.parent)
    forget(local.record.paths)
    return freed


def _remove_empty(folder: Path) -> None:
    while folder != models_dir() and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _newest_first(records: Iterable[Record]) -> list[Record]:
    return sorted(records, key=lambda each: -(each.received_s or 0))


def _local(record: Record, index: Index) -> LocalModel:
    states, verified = [], []
    for path, expected in zip(record.paths, _expected(record), strict=True):
        kept = hash_kept(index, path)
        if not path.is_file():
            states.append(State.MISSING)
        elif kept is not None:
            states.append(State.GOOD if expected in (None, kept.sha256) else State.DAMAGED)
            verified.append(kept.verified_s)
        else:
            states.append(State.TOUCHED if any(each.path == path for each in index.hashes) else State.UNVERIFIED)
    order = [State.MISSING, State.DAMAGED, State.TOUCHED, State.UNVERIFIED, State.GOOD]
    return LocalModel(record, min(states, key=order.index), _place(record.path), min(verified, default=None))


def _expected(record: Record) -> tuple[str | None, ...]:
    """What each file's SHA-256 should be: as it was told when it came, else as the name of a cache's blob has it."""
    told = record.sha256 or (None,) * len(record.paths)
    return tuple(
        sha256 or (claimed_sha256(path) if is_cached(path) else None)
        for path, sha256 in zip(record.paths, told, strict=True)
    )


def _place(path: Path) -> Place:
    if path.is_relative_to(models_dir()):
        return Place.OURS
    return Place.CACHE if is_cached(path) else Place.ELSEWHERE


def _where(repo: str | None, names: Sequence[str], revision: str | None, size: int | None) -> tuple[Path, ...]:
    """Where files are that nobody has told us of; of the size that the catalogue knows, if it does."""
    if repo is None:
        candidates = [tuple(Path(name) for name in names)]
    else:
        ours = tuple(local_path(models_dir(), f"{repo}/{name}") for name in names)
        candidates = [ours, *find_cached(repo, names, revision)]
    for paths in candidates:
        whole = all(path.is_absolute() and path.is_file() for path in paths)
        if whole and size in (None, _size(paths)):
            return paths
    return ()


def _names(file: ModelFile) -> tuple[str, ...]:
    """All parts of a catalogue's file as its repository has them."""
    return tuple(part.file for part in file.parts) or split_names(file.file)


def split_names(file: str) -> tuple[str, ...]:
    """Return all parts of the model that `file` is one of by its name, that alone when it is none."""
    path = PurePosixPath(file)
    names = part_names(path.name)
    return tuple(str(path.with_name(name)) for name in names) if names else (file,)


def _found(catalogue: Catalogue, known: dict[Path, Record]) -> Iterator[Record]:
    """Read what lies in the folders and is not known, or has another size than when it was read."""
    for path, repo, file in _all_files():
        names = split_names(path.name)
        record = known.get(path)
        if path.name != names[0] or any(word in path.name for word in _NO_MODELS):
            continue
        if record is not None and (record.received_s is not None or record.bytes == _size(record.paths)):
            continue
        paths = tuple(path.with_name(name) for name in names)
        entry, its = of_catalogue(catalogue, repo, file)
        new = _record(paths, repo, file, entry, its)
        try:
            model = read_model(path)
        except LauncherError as error:
            yield new.model_copy(update={"problem": error.title})
        else:
            yield new.model_copy(update={"kind": _kind(path.name, model.architecture), "head": model.mtp_head.value})


def _all_files() -> Iterator[tuple[Path, str | None, str | None]]:
    """Every GGUF file in our folder and in the caches, with its repository and name there where the folders tell."""
    ours = models_dir()
    for path in sorted(ours.rglob("*.gguf")) if ours.is_dir() else ():
        parts = path.relative_to(ours).parts
        if path.is_file():
            yield path, "/".join(parts[:2]) if len(parts) > 2 else None, "/".join(parts[2:]) or None
    for cached in cached_models():
        yield cached.path, cached.repo, cached.file
    for place in added_places():
        for path in sorted(place.rglob("*.gguf")) if place.is_dir() else (place,) if place.is_file() else ():
            if path.is_file():
                yield path, None, None


def _record(
    paths: tuple[Path, ...], repo: str | None, file: str | None, entry: ModelEntry | None, its: ModelFile | None
) -> Record:
    told = tuple(part.sha256 for part in its.parts) if its and its.parts else (its.sha256,) if its else ()
    return Record(
        paths=paths,
        sha256=told if len(told) == len(paths) and any(told) else (),
        bytes=_size(paths),
        model=entry.id if entry else None,
        quant=its.quant if its else quant_of(paths[0].name),
        repo=repo,
        file=file if repo else None,
    )


def of_catalogue(
    catalogue: Catalogue, repo: str | None, file: str | None
) -> tuple[ModelEntry | None, ModelFile | None]:
    """Return the catalogue's model and file for a repository's file, or None twice."""
    for entry in catalogue.models:
        for its in entry.files:
            if repo and (entry.repo, its.file) == (repo, file):
                return entry, its
    return None, None


def quant_of(name: str) -> str | None:
    """Return the quantisation that a file's name ends in, or None."""
    found = _QUANT.search(name)
    return found[1] if found else None


def _kind(name: str, architecture: str) -> Kind:
    if architecture == "clip" or "mmproj" in name:
        return "mmproj"
    return "draft" if name.startswith("mtp-") or architecture.endswith("-assistant") else "model"


def _size(paths: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())
