"""Selects a model that the user names by its repository on the hub, on this machine or not.

A repository that the catalogue has is described by its entry there. For any other, files, sizes and checksums are from
the hub's listing, and what a plan needs is from the headers of a few files: a few MB, which are cached.
"""

import re
from contextlib import suppress
from dataclasses import dataclass, replace

from launcher.base.errors import LauncherError, ModelBroken, ModelMissing
from launcher.base.messages import join_messages, message
from launcher.base.paths import expand_user
from launcher.fetch.hub import HubFile, is_hub_file
from launcher.models.catalogue import Catalogue, CompanionFile, ModelEntry, ModelFile
from launcher.models.download_target import parse_hub_url
from launcher.models.drafters import DRAFTERS, MODEL_FILE, MTP
from launcher.models.file_entry import count_parameters, geometry_or_none
from launcher.models.file_kinds import FileKind, OtherFile, unusable_error
from launcher.models.file_size import bits_per_weight
from launcher.models.gguf import GgufModel
from launcher.models.hub_files import Repository, read_repository, recognise_remote
from launcher.models.library import (
    find_catalogue_file,
    find_entry,
    find_file,
    find_in_repository,
    split_names,
)
from launcher.models.locate import ModelSelection, select_file, select_model, select_stored
from launcher.models.side_files import drafter_for, says_draft

_REPO = re.compile(
    r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>\w[\w./-]*))?(?::(?P<quant>[\w.-]+))?", re.ASCII
)
_LINK = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/", re.IGNORECASE)
_USUAL_BITS = 4.7
"""If the user names no file, the header of the file with the nearest bits per weight is read."""
_MOST_TRIED = 6
"""The most files whose headers are read until one is a model."""
_MOST_DRAFTS = 2
"""The most files of a drafter whose headers are read until one is the model's."""
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
    return describe_repository(name)


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


def describe_repository(name: HubName) -> ModelSelection:
    """Return the model of a repository that the catalogue does not have, and the named file in it.

    Its listing and the header of one file are read, and of those that may be no models. The geometry is None if the
    header lacks a number that the memory estimate needs. Raises ModelMissing for a file that is not there,
    ModelUnexpected for one that is no model, and the errors of requests to the hub.
    """
    repository = read_repository(name.repo, name.revision)
    listing = repository.listing
    if name.file is not None:
        first = split_names(name.file)[0]  # of a split model any part may be named
        name = replace(name, file=first)
        if first in listing.files and (kind := repository.find_kind(first)) is not None:
            raise unusable_error(kind, first)
    if name.quant is not None:
        found, odd = repository.find_quant(name.quant)
        if odd and not found and not repository.has_models:
            raise unusable_error(odd[0].kind, odd[0].file)
    file, typical, model = _find_typical(repository, name)
    repository.check_sizes(model)
    files = repository.list_models()
    drafts, files = _find_drafts(repository, model, files)
    own = None if model.has_mtp_head else next(iter(drafts), None)
    entry = ModelEntry(
        id=name.repo,
        name=model.name,
        repo=name.repo,
        revision=listing.revision,
        parameters_b=count_parameters(model) / 1e9 or None,
        native_context=model.trained_context or None,
        speculation=MTP.name if own is None else own.speculation,
        embedding=model.is_embedding,
        reranker=model.is_reranker,
        draft=own,
        drafts=tuple(each for each in drafts if each is not own),
        mmproj=tuple(repository.list_companions("mmproj")),
        geometry=geometry_or_none(model),
        geometry_source=f"header of {typical.file}",
        files=tuple(replace(each, has_head=model.has_mtp_head) for each in files),
        files_source=f"the hub at {listing.revision[:12]}",
    )
    beside = {each.file for each in (*entry.mmproj, *drafts)}
    others = tuple(each for each in repository.list_others() if each.file not in beside)
    named = entry.file(file.quant) if file else None
    return ModelSelection(Catalogue((entry,)), entry, named, None, names_file=named is not None, others=others)


def _find_typical(repository: Repository, name: HubName) -> tuple[ModelFile | None, ModelFile, GgufModel]:
    """Return the named file, the file whose header describes the model, and that header.

    Raises ModelUnexpected if the files are no models.
    """
    typical, kind = None, None
    for _ in range(_MOST_TRIED):
        files = repository.list_models()
        if not files and kind is not None:
            break
        if not files:
            raise ModelMissing(
                message("{repo} has no GGUF files.", repo=name.repo),
                message("Look for a repository whose name ends in -GGUF."),
                repo=name.repo,
            )
        file = _find_named(name, files, repository)
        typical = file or min(files, key=lambda each: (_distance_from_usual(each), -(each.size_bytes or 0)))
        try:
            model = repository.read_model(typical.file)
        except ModelBroken:
            if file is not None:
                raise
        kind = repository.find_kind(typical.file)
        if kind is None:
            return file, typical, model
    assert typical is not None and kind is not None  # noqa: S101, PT018 -- for the type checker
    raise unusable_error(kind, typical.file, f"{name.repo}:{typical.file}")


def read_planned_header(entry: ModelEntry, file: ModelFile) -> FileKind | None:
    """Read and cache the header of one file of a hub entry, so that its next plan is exact.

    Return the kind of a file that is no model. Raises the hub's errors.
    """
    if entry.repo is None:
        return None
    return recognise_remote(HubFile(entry.repo, file.file, entry.revision or "main"))


def leave_out_file(selection: ModelSelection, file: ModelFile, kind: FileKind) -> ModelSelection:
    """Return a model on the hub without a file that is no model. Raises ModelUnexpected if it has no other."""
    files = tuple(each for each in selection.entry.files if each.file != file.file)
    if not files:
        raise unusable_error(kind, file.file)
    entry = replace(selection.entry, files=files)
    others = (*selection.others, OtherFile(file.file, file.size_bytes, kind))
    return replace(selection, catalogue=Catalogue((entry,)), entry=entry, others=others)


def _find_named(name: HubName, files: list[ModelFile], repository: Repository) -> ModelFile | None:
    """Return the named file, None if none was named and there are several. Raises ModelMissing, with the names."""
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
        join_messages(
            message("Write {repo}:QUANT with one of {shown}.", repo=name.repo, shown=shown),
            repository.explain_quant(name.quant),
        ),
        repo=name.repo,
        files=quants,
    )


def _distance_from_usual(file: ModelFile) -> float:
    bits = bits_per_weight(file.quant)
    return abs(bits[1] - _USUAL_BITS) if bits else 100.0


def _find_drafts(
    repository: Repository, trunk: GgufModel, files: list[ModelFile]
) -> tuple[list[CompanionFile], list[ModelFile]]:
    """Return the best file of each drafter that was made for a model, judged by its header, and the model's files.

    A small model whose name says that it drafts is no quantisation of the model.
    """
    small = [each for each in files if says_draft(each.file)]
    found: list[CompanionFile] = []
    for drafter in DRAFTERS.values():
        listed = repository.list_drafts(drafter)
        if MODEL_FILE in drafter.files:
            listed += [CompanionFile(file=each.file, size_bytes=each.size_bytes, sha256=each.sha256) for each in small]
        for each in listed[:_MOST_DRAFTS]:
            with suppress(LauncherError):  # the header of another may be readable
                if drafter_for(repository.read_model(each.file), trunk) is drafter:
                    found.append(replace(each, speculation=drafter.name))
                    break
    drafts = {each.file for each in found}
    return found, [each for each in files if each.file not in drafts] or files
