"""Selects a model that the user names by its repository on the hub, on this machine or not.

A repository that the catalogue has is described by its entry there. For any other, files, sizes and checksums are from
the hub's listing, and what a plan needs is from the headers of a few files: a few MB, which are cached.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from launcher.base.errors import LauncherError, ModelMissing
from launcher.base.messages import message
from launcher.base.paths import expand_user
from launcher.fetch.hub import HubFile, RepoListing, is_hub_file, list_files
from launcher.models.catalogue import Catalogue, CompanionFile, FilePart, ModelEntry, ModelFile
from launcher.models.download_target import parse_hub_url
from launcher.models.file_entry import count_parameters, geometry_or_none
from launcher.models.file_size import bits_per_weight
from launcher.models.gguf import GgufModel, is_head_alone
from launcher.models.gguf_remote import read_remote_model
from launcher.models.library import (
    find_catalogue_file,
    find_entry,
    find_file,
    find_in_repository,
    parse_quant,
    split_names,
)
from launcher.models.locate import ModelSelection, select_file, select_model, select_stored
from launcher.models.side_files import is_head_of

_REPO = re.compile(
    r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>\w[\w./-]*))?(?::(?P<quant>[\w.-]+))?", re.ASCII
)
_LINK = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/", re.IGNORECASE)
_USUAL_BITS = 4.7
"""If the user names no file, the header of the file with the nearest bits per weight is read."""
_HEAD, _PROJECTOR = re.compile(r"(?:^|/)(?:mtp-|nextn-)|-assistant", re.IGNORECASE), "mmproj"
_NOT_MODELS = re.compile(r"imatrix|mmproj|(?:^|/)(?:mtp-|nextn-)", re.IGNORECASE)
_SHOWN = 12
"""The most file names in an error message."""


@dataclass(frozen=True, slots=True)
class HubName:
    """A name of a model on the hub: a repository, and a file or a quantisation in it if the user gave one."""

    repo: str
    revision: str | None = None
    file: str | None = None
    quant: str | None = None


def parse_hub_name(text: str) -> HubName | None:
    """Parse OWNER/NAME[@REVISION][:QUANT or :FILE], or the link of a page on the hub; None for anything else, and for
    the path of a file or folder that exists.
    """
    text = text.strip()
    if expand_user(text).exists():
        return None
    if _LINK.match(text) or "://" in text:
        quant = re.fullmatch(r"(.*/[\w.-]+/[\w.-]+):([\w.-]+)", text)  # Ollama and llama.cpp append the quantisation
        link = quant[1] if quant else text
        link = _LINK.sub("https://huggingface.co/", link) if _LINK.match(link) else link
        page = parse_hub_url(link.partition("?")[0].partition("#")[0])
        if page is None:
            return None
        text = f"{page}:{quant[2]}" if quant else page
    if is_hub_file(text) and text.lower().endswith(".gguf"):
        file = HubFile.parse(text)
        return HubName(file.repo, None if file.revision == "main" else file.revision, file.path)
    found = _REPO.fullmatch(text)
    if found is None or found["repo"].lower().endswith(".gguf"):
        return None
    return HubName(found["repo"], found["revision"], None, found["quant"])


def select_hub_model(text: str, catalogue: Catalogue) -> ModelSelection | None:
    """Return the model that `text` names on the hub; None if `text` is not such a name.

    Requests to the hub are made only for a model that is neither in the catalogue nor on this machine. Raises
    ModelMissing for a repository or a file that does not exist, and the errors of requests to the hub.
    """
    name = parse_hub_name(text)
    if name is None:
        return None
    entry, file = _find_in_catalogue(name, catalogue)
    if entry is not None:
        return select_model(f"{entry.id}:{file.quant}" if file else entry.id, catalogue)
    local = find_file(name.repo, name.file) if name.file else find_in_repository(name.repo, name.quant)
    if local is not None:
        return select_file(local.path, catalogue)
    stored = select_stored(text.strip(), catalogue) if name.revision is None else None
    if stored is not None:
        return stored
    entry, file = describe_repository(name)
    return ModelSelection(Catalogue((entry,)), entry, file, None, names_file=file is not None)


def find_named_entry(text: str, catalogue: Catalogue) -> ModelEntry | None:
    """Return the catalogue's entry that an id, a name on the hub or a local path names; None if there is none."""
    name = parse_hub_name(text)
    if name is not None:
        return _find_in_catalogue(replace(name, revision=None), catalogue)[0]
    if expand_user(text).exists():
        found = find_entry(catalogue, expand_user(text))
        return found[0] if found else None
    return next((each for each in catalogue.models if each.id == text.partition(":")[0].casefold()), None)


def _find_in_catalogue(name: HubName, catalogue: Catalogue) -> tuple[ModelEntry | None, ModelFile | None]:
    """Return the catalogue's entry for a repository, and its file if one is named; neither if the file is not there."""
    if name.revision is not None:
        return None, None
    if name.file is not None:
        return find_catalogue_file(catalogue, name.repo, name.file)
    entries = [each for each in catalogue.models if each.repo and each.repo.casefold() == name.repo.casefold()]
    for entry in entries:
        file = entry.file(name.quant) if name.quant else None
        if name.quant is None or file is not None:
            return entry, file
    return None, None


def describe_repository(name: HubName) -> tuple[ModelEntry, ModelFile | None]:
    """Return an entry for a repository that the catalogue does not have, and the named file in it.

    Its listing and the header of one file are read. The geometry is None if the header lacks a number that the memory
    estimate needs. Raises ModelMissing for a file that is not there, and the errors of requests to the hub.
    """
    listing = list_files(name.repo, name.revision)
    files = _list_models(listing)
    if not files:
        raise ModelMissing(
            message("{repo} has no GGUF files.", repo=name.repo),
            message("Look for a repository whose name ends in -GGUF."),
            repo=name.repo,
        )
    file = _find_named(name, files)
    typical = file or min(files, key=_distance_from_usual)
    model = read_remote_model(HubFile(name.repo, typical.file, listing.revision)).model
    draft = None if model.has_mtp_head else _find_head(listing, model)
    entry = ModelEntry(
        id=name.repo,
        name=model.name,
        repo=name.repo,
        revision=listing.revision,
        parameters_b=count_parameters(model) / 1e9 or None,
        native_context=model.trained_context or None,
        speculation="draft-file" if draft else "mtp",
        embedding=model.is_embedding,
        reranker=model.is_reranker,
        draft=draft,
        mmproj=tuple(_list_projectors(listing)),
        geometry=geometry_or_none(model),
        geometry_source=f"header of {typical.file}",
        files=tuple(replace(each, has_head=model.has_mtp_head) for each in files),
        files_source=f"the hub at {listing.revision[:12]}",
    )
    return entry, entry.file(file.quant) if file else None


def read_planned_header(entry: ModelEntry, file: ModelFile) -> None:
    """Read and cache the header of one file of a hub entry, so that its next plan is exact. Raises the hub's errors."""
    if entry.repo is not None:
        read_remote_model(HubFile(entry.repo, file.file, entry.revision or "main"))


def _list_models(listing: RepoListing) -> list[ModelFile]:
    """Return the models of a repository, the smallest first.

    If several have the same quantisation, all but the first are named by their files.
    """
    found: list[ModelFile] = []
    quants: set[str] = set()
    for path, listed in listing.files.items():
        names = split_names(path)
        if not path.lower().endswith(".gguf") or _NOT_MODELS.search(path) or names[0] != path:
            continue
        if any(each not in listing.files for each in names):
            continue
        stem = path.rsplit("/", 1)[-1].removesuffix(".gguf")
        quant = parse_quant(path.rsplit("/", 1)[-1]) or stem
        quant = stem if quant in quants else quant
        quants.add(quant)
        parts = [listing.files[each] for each in names]
        file_parts: tuple[FilePart, ...] = ()
        if len(parts) > 1:
            file_parts = tuple(
                FilePart(file=each, size_bytes=part.bytes or None, sha256=part.sha256)
                for each, part in zip(names, parts, strict=True)
            )
        found.append(
            ModelFile(
                quant=quant,
                file=path,
                size_bytes=sum(part.bytes for part in parts) or None,
                sha256=None if file_parts else listed.sha256,
                parts=file_parts,
            )
        )
    return sorted(found, key=lambda each: each.size_bytes or 0)


def _find_named(name: HubName, files: Iterable[ModelFile]) -> ModelFile | None:
    """Return the named file, None if none was named and there are several. Raises ModelMissing, with the names."""
    files = list(files)
    if name.file is None and name.quant is None:
        return files[0] if len(files) == 1 else None
    for file in files:
        wanted = file.file == name.file if name.file else file.quant.casefold() == (name.quant or "").casefold()
        if wanted:
            return file
    quants = [each.quant for each in files]
    shown: str = ", ".join(quants[:_SHOWN])
    if len(quants) > _SHOWN:
        shown = message("{names} and {count} more", names=shown, count=len(quants) - _SHOWN)
    raise ModelMissing(
        message("{repo} has no file {file}.", repo=name.repo, file=name.file)
        if name.file
        else message("{repo} has no file of {quant}.", repo=name.repo, quant=name.quant),
        message("Write {repo}:QUANT with one of {shown}.", repo=name.repo, shown=shown),
        repo=name.repo,
        files=quants,
    )


def _distance_from_usual(file: ModelFile) -> float:
    bits = bits_per_weight(file.quant)
    return abs(bits[1] - _USUAL_BITS) if bits else 100.0


def _list_projectors(listing: RepoListing) -> Iterator[CompanionFile]:
    for path, listed in listing.files.items():
        if _PROJECTOR in path.lower() and path.lower().endswith(".gguf"):
            yield CompanionFile(file=path, size_bytes=listed.bytes or None, sha256=listed.sha256)


def _find_head(listing: RepoListing, trunk: GgufModel) -> CompanionFile | None:
    """Return the smallest separate file with a head that was made for this model, judged by its header."""
    heads = [path for path in listing.files if path.lower().endswith(".gguf") and _HEAD.search(path)]
    for path in sorted(heads, key=lambda each: ("Q8_0" not in each, listing.files[each].bytes))[:2]:
        try:
            side = read_remote_model(HubFile(listing.repo, path, listing.revision)).model
        except LauncherError:
            continue
        if is_head_of(side, trunk) and (is_head_alone(side) or side.architecture.endswith("-assistant")):
            listed = listing.files[path]
            return CompanionFile(file=path, size_bytes=listed.bytes or None, sha256=listed.sha256)
    return None
