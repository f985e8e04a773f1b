"""Sizes, checksums and commits of the catalogue's files, as the hub lists them.

The hub is asked only on request (`models --refresh`). Its reply is cached, and fills figures that the catalogue lacks.
Figures in the catalogue are never overridden: if the hub's differ, it has another file under the same name.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal, TypeVar

from launcher.base.codec import decode_json, encode_json
from launcher.base.errors import LauncherError, ModelMissing, Refused
from launcher.base.files import write_atomically
from launcher.base.kept_files import KeptFile
from launcher.base.messages import message
from launcher.fetch.hub import RepoListing, list_files
from launcher.models.catalogue import CompanionFile, FilePart, ModelEntry, ModelFile
from launcher.models.catalogue_load import figures_folder
from launcher.models.gguf import part_names

FigureName = Literal["size_bytes", "sha256"]
Record = TypeVar("Record", ModelFile, FilePart, CompanionFile)
_Entry = ModelFile | FilePart | CompanionFile
_Known = Mapping[tuple[str, str], "HubFigure"]

_WORDS: Mapping[FigureName, str] = {"size_bytes": "size", "sha256": "checksum"}
_NAMES = tuple(_WORDS)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PARTS = re.compile(r"-of-0(\d{4})\.gguf$")


@dataclass(frozen=True, slots=True)
class HubFigure:
    """One file on the hub: repository, revision and name, size in bytes, and SHA-256 (None if the hub has none)."""

    repo: str
    revision: str
    file: str
    size_bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class NewFigure:
    """A figure that was unknown before. `label` is the file's quantisation, or "draft" or "vision"."""

    label: str
    file: str
    figure: FigureName
    value: int | str


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure in which hub and catalogue differ: the file was replaced, or is another one."""

    label: str
    file: str
    figure: FigureName
    catalogue: int | str
    hub: int | str


@dataclass(frozen=True, slots=True)
class MissingFile:
    """A file of the catalogue that its repository does not have."""

    label: str
    repo: str
    file: str


@dataclass(frozen=True, slots=True)
class RefreshResult:
    """The result of refreshing one model. `revision` is the commit at which its repository was listed."""

    model: str
    repo: str | None
    revision: str | None = None
    learned: tuple[NewFigure, ...] = ()
    differs: tuple[Difference, ...] = ()
    missing: tuple[MissingFile, ...] = ()
    error: LauncherError | None = None


@dataclass(frozen=True, slots=True)
class _HubReply:
    """A cached reply of the hub. `asked` is the revision that the catalogue pins, None for the newest."""

    repo: str | None
    asked: str | None
    revision: str | None
    files: tuple[HubFigure, ...]

    @property
    def known(self) -> _Known:
        return {(figure.repo, figure.file): figure for figure in self.files}


def is_on_hub(model: ModelEntry) -> bool:
    """Return whether a model, its draft or its vision projector comes from the hub."""
    return any(repo for _, repo, _ in _hub_files(model))


def refresh_figures(model: ModelEntry) -> RefreshResult:
    """Ask the hub about all files of `model`, cache its reply, and return what is new or different.

    `model` must be loaded without hub figures. Raises the errors of `list_files`, and OSError if the reply cannot be
    written.
    """
    places = list(_hub_files(model))
    listings: dict[str, RepoListing] = {}
    for repo in dict.fromkeys(repo for _, repo, _ in places):
        try:
            listings[repo] = list_files(repo, model.revision if repo == model.repo else None)
        except (ModelMissing, Refused):
            if repo == model.repo:
                raise
            # That of a draft alone, which was withdrawn or is not for everybody: its files are missing.
    files: list[HubFigure] = []
    missing: list[MissingFile] = []
    withdrawn = {file.file for file in model.files if file.withdrawn}
    for label, repo, name in places:
        found = listings[repo].files.get(name) if repo in listings else None
        if found is None or not found.bytes:
            if name not in withdrawn:
                missing.append(MissingFile(label, repo, name))
        else:
            files.append(HubFigure(repo, listings[repo].revision, name, found.bytes, found.sha256))
    own = listings.get(model.repo) if model.repo else None
    kept = _HubReply(model.repo, model.revision, own.revision if own else None, tuple(files))
    before, after = fill_from_hub_cache(model), _fill_model(model, kept)
    write_atomically(_reply_path(model, None), encode_json(kept, indent=1))
    return RefreshResult(
        model=model.id,
        repo=model.repo,
        revision=kept.revision,
        learned=tuple(_new_figures(before, after)),
        differs=tuple(_find_differences(model, kept.known)),
        missing=tuple(missing),
    )


def fill_from_hub_cache(model: ModelEntry, folder: Path | None = None) -> ModelEntry:
    """Return `model` with missing figures, and a missing revision, filled from the hub's cached reply.

    `folder` has the cached replies (default: in the cache folder). A reply that is damaged, or for another repository
    or revision, is ignored.
    """
    kept = _load_reply(_reply_path(model, folder))
    if kept is None or (kept.repo, kept.asked) != (model.repo, model.revision):
        return model
    return _fill_model(model, kept)


def _reply_path(model: ModelEntry, folder: Path | None) -> Path:
    return (folder or figures_folder()) / f"{model.id}.json"


def _load_reply(path: Path) -> _HubReply | None:
    """Return a cached reply; None if it is missing or damaged."""
    with suppress(OSError):
        return _FILE.load(path)
    return None


def _parse(text: bytes) -> _HubReply:
    kept = decode_json(_HubReply, text)
    for figure in kept.files:
        if figure.size_bytes <= 0 or (figure.sha256 is not None and not _SHA256.fullmatch(figure.sha256)):
            raise ValueError("a value in it is invalid")
    return kept


_FILE: KeptFile[_HubReply | None] = KeptFile(
    "The cached reply of the hub about a model",
    _parse,
    lambda: None,
    recreatable=True,
    consequence="`models --refresh` asks again",
)


def _list_companions(model: ModelEntry) -> Iterator[tuple[str, CompanionFile]]:
    if model.draft is not None:
        yield "draft", model.draft
    yield from (("draft", companion) for companion in model.drafts)
    yield from (("vision", companion) for companion in model.mmproj)


def _hub_files(model: ModelEntry) -> Iterator[tuple[str, str, str]]:
    """Yield each file on the hub: its quantisation (or "draft" or "vision"), its repository, its name."""
    if model.repo:
        for file in model.files:
            yield from ((file.quant, model.repo, each.file) for each in _list_parts(file) or (file,))
    for label, companion in _list_companions(model):
        if repo := model.repo_of(companion):
            yield label, repo, companion.file


def _list_parts(file: ModelFile) -> tuple[FilePart, ...]:
    """Return the parts of a split model, derived from its name if they are not listed; () for a single file."""
    count = _PARTS.search(file.file)
    if file.parts or count is None:
        return file.parts
    path = PurePosixPath(file.file)
    return tuple(FilePart(file=str(path.with_name(name))) for name in part_names(path.name, int(count[1])) or ())


def _figure_of(file: ModelFile, repo: str, known: _Known) -> HubFigure | None:
    """Return the hub's figure of a model; for a split one the total size, or None if the hub lacks a part."""
    parts = _list_parts(file)
    if not parts:
        return known.get((repo, file.file))
    found = [figure for part in parts if (figure := known.get((repo, part.file)))]
    if len(found) < len(parts):
        return None
    return replace(found[0], file=file.file, size_bytes=sum(part.size_bytes for part in found), sha256=None)


def _pair_figures(model: ModelEntry, known: _Known) -> Iterator[tuple[str, _Entry, HubFigure | None]]:
    """Yield each file, part and companion of a model with the hub's figure for it."""
    repo = model.repo or ""
    for file in model.files:
        yield file.quant, file, _figure_of(file, repo, known)
        yield from ((file.quant, part, known.get((repo, part.file))) for part in _list_parts(file))
    for label, companion in _list_companions(model):
        yield label, companion, known.get((model.repo_of(companion) or "", companion.file))


def _find_differences(model: ModelEntry, known: _Known) -> Iterator[Difference]:
    for label, entry, figure in _pair_figures(model, known):
        if figure:
            yield from (Difference(label, entry.file, *conflict) for conflict in _find_conflicts(entry, figure))


def _new_figures(before: ModelEntry, after: ModelEntry) -> Iterator[NewFigure]:
    for (_, old, _), (label, new, _) in zip(_pair_figures(before, {}), _pair_figures(after, {}), strict=True):
        if not getattr(new, "parts", ()):  # a split model's parts are listed themselves
            for name in _NAMES:
                value = getattr(new, name)
                if value is not None and value != getattr(old, name):
                    yield NewFigure(label, new.file, name, value)


def _fill_model(model: ModelEntry, kept: _HubReply) -> ModelEntry:
    known, repo = kept.known, model.repo or ""

    def fill_companion(companion: CompanionFile) -> CompanionFile:
        return _fill_entry(companion, known.get((model.repo_of(companion) or "", companion.file)))

    return replace(
        model,
        revision=model.revision or kept.revision,
        files=tuple(_fill_file(file, repo, known) for file in model.files),
        draft=fill_companion(model.draft) if model.draft is not None else None,
        drafts=tuple(map(fill_companion, model.drafts)),
        mmproj=tuple(map(fill_companion, model.mmproj)),
    )


def _fill_file(file: ModelFile, repo: str, known: _Known) -> ModelFile:
    """Fill the figures of a file and its parts. If the hub has a different file, fill none, and add a note."""
    figure = _figure_of(file, repo, known)
    if figure is None:
        return file
    parts = [(part, known[repo, part.file]) for part in _list_parts(file)]
    if _may_be_same(file, figure) and all(_may_be_same(part, part_figure) for part, part_figure in parts):
        return replace(
            _fill_entry(file, figure), parts=tuple(_fill_entry(part, part_figure) for part, part_figure in parts)
        )
    checksum = f", SHA-256 {figure.sha256[:12]}" if figure.sha256 else ""
    note = message(
        "The hub has another file of this name at {revision}: {size_bytes:,} bytes{checksum}.",
        revision=figure.revision[:12],
        size_bytes=figure.size_bytes,
        checksum=checksum,
    )
    return replace(file, note=f"{file.note} {note}".lstrip())


def _fill_entry(entry: Record, figure: HubFigure | None) -> Record:
    """Fill the missing figures of an entry, and name the hub in its `source`."""
    new = [name for name in _NAMES if getattr(entry, name) is None and getattr(figure, name, None) is not None]
    if figure is None or not new or not _may_be_same(entry, figure):
        return entry
    entry = replace(entry, **{name: getattr(figure, name) for name in new})
    if isinstance(entry, FilePart):
        return entry
    origin = f"{' and '.join(_WORDS[name] for name in new)} by the hub at {figure.revision[:12]}"
    return replace(entry, source="; ".join(filter(None, (entry.source, origin))))


def _may_be_same(entry: _Entry, figure: HubFigure) -> bool:
    """Return whether no figure that both have differs, so that the hub's file may be the catalogue's."""
    return not any(_find_conflicts(entry, figure))


def _find_conflicts(entry: _Entry, figure: HubFigure) -> Iterator[tuple[FigureName, int | str, int | str]]:
    for name in _NAMES:
        ours, theirs = getattr(entry, name), getattr(figure, name)
        if ours is not None and theirs is not None and ours != theirs:
            yield name, ours, theirs
