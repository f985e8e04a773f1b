"""What the hub tells of the catalogue's files: sizes, checksums and the commit they belong to.

It is asked when the user says so and the answer is kept in the cache folder, where it fills what the catalogue leaves
open. What the catalogue states stays: a hub that says otherwise has another file under the same name.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal, TypeVar, cast

from launcher.base.files import write_atomically
from launcher.base.paths import cache_dir
from launcher.models.catalogue import CompanionFile, FilePart, ModelEntry, ModelFile
from launcher.models.gguf_header import part_names

FigureName = Literal["size_bytes", "sha256"]
Record = TypeVar("Record", ModelFile, FilePart, CompanionFile)
_Entry = ModelFile | FilePart | CompanionFile
_Known = Mapping[tuple[str, str], "Figure"]

_WORDS: Mapping[FigureName, str] = {"size_bytes": "size", "sha256": "checksum"}
_NAMES = tuple(_WORDS)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PARTS = re.compile(r"-of-0(\d{4})\.gguf$")


@dataclass(frozen=True, slots=True)
class Figure:
    """One file on the hub: its repository, revision and name there, its size, its SHA-256 where the hub has one."""

    repo: str
    revision: str
    file: str
    size_bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Learned:
    """A figure that was unknown. `of` is the file's quantisation, "draft" or "vision"."""

    of: str
    file: str
    figure: FigureName
    value: int | str


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure that the hub has otherwise than the catalogue: the file was replaced, or is another one."""

    of: str
    file: str
    figure: FigureName
    catalogue: int | str
    hub: int | str


@dataclass(frozen=True, slots=True)
class Missing:
    """A file that is not where the catalogue looks for it."""

    of: str
    repo: str
    file: str


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What asking the hub about one model has brought. `revision` is what its repository was listed at."""

    model: str
    repo: str | None
    revision: str | None
    learned: tuple[Learned, ...]
    differs: tuple[Difference, ...]
    missing: tuple[Missing, ...]


@dataclass(frozen=True, slots=True)
class _Kept:
    """An answer of the hub, as it is kept. `asked` is the revision that the catalogue pins, None for the newest."""

    repo: str | None
    asked: str | None
    revision: str | None
    files: tuple[Figure, ...]

    @property
    def known(self) -> _Known:
        return {(figure.repo, figure.file): figure for figure in self.files}


def is_on_hub(model: ModelEntry) -> bool:
    """Whether a model, or what is loaded beside it, comes from the hub."""
    return any(repo for _, repo, _ in _places(model))


def refresh(model: ModelEntry) -> Refreshed:
    """Ask the hub about all files of a model, given as the catalogue alone has it; keep the answer, tell what is new.

    Raises what `list_files` raises, and OSError when the answer cannot be kept.
    """
    from launcher.fetch.hub import list_files

    places = list(_places(model))
    listings = {
        repo: list_files(repo, model.revision if repo == model.repo else None)
        for repo in dict.fromkeys(repo for _, repo, _ in places)
    }
    files: list[Figure] = []
    missing: list[Missing] = []
    for of, repo, name in places:
        found = listings[repo].files.get(name)
        if found is None or not found.bytes:
            missing.append(Missing(of, repo, name))
        else:
            files.append(Figure(repo, listings[repo].revision, name, found.bytes, found.sha256))
    own = listings.get(model.repo) if model.repo else None
    kept = _Kept(model.repo, model.revision, own.revision if own else None, tuple(files))
    before, after = with_kept_figures(model), _with_figures(model, kept)
    write_atomically(_path(model, None), json.dumps(asdict(kept), indent=1).encode())
    return Refreshed(
        model=model.id,
        repo=model.repo,
        revision=kept.revision,
        learned=tuple(_learned(before, after)),
        differs=tuple(_differences(model, kept.known)),
        missing=tuple(missing),
    )


def with_kept_figures(model: ModelEntry, folder: Path | None = None) -> ModelEntry:
    """Return a model with what the hub has told of it where the catalogue says nothing, its revision too.

    `folder` is where the answers lie (default: in the cache folder). One that is damaged, or was given for another
    repository or revision, is as good as none.
    """
    kept = _read(_path(model, folder))
    if kept is None or (kept.repo, kept.asked) != (model.repo, model.revision):
        return model
    return _with_figures(model, kept)


def figures_folder() -> Path:
    """Return the folder where the hub's answers are kept, one file for each model."""
    return cache_dir() / "hub-figures"


def _path(model: ModelEntry, folder: Path | None) -> Path:
    return (folder or figures_folder()) / f"{model.id}.json"


def _read(path: Path) -> _Kept | None:
    """Read an answer as it was written; None when it is not there, or is not what we write."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        data = json.loads(path.read_bytes())
        figures = tuple(Figure(**each) for each in data.pop("files"))
        kept = _Kept(**data, files=figures)
        texts = [kept.repo, kept.asked, kept.revision]
        if all(text is None or isinstance(text, str) for text in texts) and all(map(_is_sound, figures)):
            return kept
    return None


def _is_sound(figure: Figure) -> bool:
    size, sha256 = cast("tuple[object, object]", (figure.size_bytes, figure.sha256))
    names = all(isinstance(name, str) for name in (figure.repo, figure.revision, figure.file))
    checksum = sha256 is None or (isinstance(sha256, str) and _SHA256.fullmatch(sha256) is not None)
    return names and checksum and type(size) is int and size > 0


def _companions(model: ModelEntry) -> Iterator[tuple[str, CompanionFile]]:
    if model.draft:
        yield "draft", model.draft
    yield from (("vision", companion) for companion in model.mmproj)


def _places(model: ModelEntry) -> Iterator[tuple[str, str, str]]:
    """What each file on the hub is of, its repository, its name."""
    if model.repo:
        for file in model.files:
            yield from ((file.quant, model.repo, each.file) for each in _parts(file) or (file,))
    for of, companion in _companions(model):
        if repo := companion.repo or model.repo:
            yield of, repo, companion.file


def _parts(file: ModelFile) -> tuple[FilePart, ...]:
    """The parts of a split model, by its name when they are not listed; none when it is one file."""
    count = _PARTS.search(file.file)
    if file.parts or count is None:
        return file.parts
    path = PurePosixPath(file.file)
    return tuple(FilePart(file=str(path.with_name(name))) for name in part_names(path.name, int(count[1])) or ())


def _figure_of(file: ModelFile, repo: str, known: _Known) -> Figure | None:
    """What the hub has of a model: of a split one the size of all parts together, when it has them all."""
    parts = _parts(file)
    if not parts:
        return known.get((repo, file.file))
    found = [figure for part in parts if (figure := known.get((repo, part.file)))]
    if len(found) < len(parts):
        return None
    return replace(found[0], file=file.file, size_bytes=sum(part.size_bytes for part in found), sha256=None)


def _pairs(model: ModelEntry, known: _Known) -> Iterator[tuple[str, _Entry, Figure | None]]:
    """Each entry of a model that has figures, and the hub's figures for it."""
    repo = model.repo or ""
    for file in model.files:
        yield file.quant, file, _figure_of(file, repo, known)
        yield from ((file.quant, part, known.get((repo, part.file))) for part in _parts(file))
    for of, companion in _companions(model):
        yield of, companion, known.get((companion.repo or repo, companion.file))


def _differences(model: ModelEntry, known: _Known) -> Iterator[Difference]:
    for of, entry, figure in _pairs(model, known):
        if figure:
            yield from (Difference(of, entry.file, *conflict) for conflict in _conflicts(entry, figure))


def _learned(before: ModelEntry, after: ModelEntry) -> Iterator[Learned]:
    for (_, old, _), (of, new, _) in zip(_pairs(before, {}), _pairs(after, {}), strict=True):
        if not getattr(new, "parts", ()):  # the sum of parts that are told by themselves
            for name in _NAMES:
                value = getattr(new, name)
                if value is not None and value != getattr(old, name):
                    yield Learned(of, new.file, name, value)


def _with_figures(model: ModelEntry, kept: _Kept) -> ModelEntry:
    known, repo = kept.known, model.repo or ""

    def beside(companion: CompanionFile) -> CompanionFile:
        return _filled(companion, known.get((companion.repo or repo, companion.file)))

    return replace(
        model,
        revision=model.revision or kept.revision,
        files=tuple(_filled_file(file, repo, known) for file in model.files),
        draft=beside(model.draft) if model.draft else None,
        mmproj=tuple(map(beside, model.mmproj)),
    )


def _filled_file(file: ModelFile, repo: str, known: _Known) -> ModelFile:
    """Fill a model's figures and those of its parts, or none and say so when the hub has another file in its place."""
    figure = _figure_of(file, repo, known)
    if figure is None:
        return file
    parts = [(part, known[repo, part.file]) for part in _parts(file)]
    if _agree(file, figure) and all(_agree(part, its) for part, its in parts):
        return replace(_filled(file, figure), parts=tuple(_filled(part, its) for part, its in parts))
    checksum = f", SHA-256 {figure.sha256[:12]}" if figure.sha256 else ""
    told = f"The hub has another file of this name at {figure.revision[:12]}: {figure.size_bytes:,} bytes{checksum}."
    return replace(file, note=f"{file.note} {told}".lstrip())


def _filled(entry: Record, figure: Figure | None) -> Record:
    """Fill what an entry leaves open, and say where that comes from."""
    new = [name for name in _NAMES if getattr(entry, name) is None and getattr(figure, name, None) is not None]
    if figure is None or not new or not _agree(entry, figure):
        return entry
    entry = replace(entry, **{name: getattr(figure, name) for name in new})
    if isinstance(entry, FilePart):
        return entry
    told = f"{' and '.join(_WORDS[name] for name in new)} by the hub at {figure.revision[:12]}"
    return replace(entry, source="; ".join(filter(None, (entry.source, told))))


def _agree(entry: _Entry, figure: Figure) -> bool:
    """Whether the hub's file may be the catalogue's: nothing that both know differs."""
    return not any(_conflicts(entry, figure))


def _conflicts(entry: _Entry, figure: Figure) -> Iterator[tuple[FigureName, int | str, int | str]]:
    for name in _NAMES:
        ours, theirs = getattr(entry, name), getattr(figure, name)
        if ours is not None and theirs is not None and ours != theirs:
            yield name, ours, theirs
