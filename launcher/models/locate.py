"""Resolves a model that the user names (catalogue ID, file on the hub, or path) to its local files."""

from dataclasses import dataclass, replace
from pathlib import Path

from launcher.base.errors import ModelBroken, ModelMissing, ModelUnexpected, ModelUnknown
from launcher.base.messages import FaceName, Message, command_name, mark, message
from launcher.base.paths import expand_user
from launcher.fetch.hub import HubFile, is_hub_file
from launcher.models.catalogue import Catalogue, ModelEntry, ModelFile
from launcher.models.download_target import find_catalogue_model
from launcher.models.file_entry import describe_file
from launcher.models.file_kinds import OtherFile, recognise_file, unusable_error
from launcher.models.gguf import GgufModel, read_model
from launcher.models.library import (
    LocalModel,
    State,
    describe_mismatch,
    find_catalogue_file,
    find_companion,
    find_damaged,
    find_entry,
    find_file,
    find_in_repository,
    find_local_model,
    find_misnamed,
    find_stored,
    is_ollamas_own,
)
from launcher.models.library_index import find_origin
from launcher.models.side_files import (
    as_draft,
    find_drafts_beside,
    find_mismatch,
    find_side_files,
    foreign_draft_error,
    name_models_for,
    recognise_drafter,
)

_MOST_NAMES = 12
"""The most names in an error message."""


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model named by catalogue ID or hub file, with its catalogue entry and its local files.

    `local` is None if it is not on this machine. `command` downloads it; "" if none of ours does. `misnamed` is a local
    file with its name that is another model, and the difference in words.
    """

    entry: ModelEntry | None
    file: ModelFile | None
    local: LocalModel | None
    command: str
    misnamed: tuple[Path, str] | None = None

    @property
    def path(self) -> Path:
        """The first local file.

        Raises ModelMissing if it is not on this machine, ModelUnexpected if another model has its name, and ModelBroken
        if it is known to be damaged.
        """
        if self.local is None:
            what = self.command.removeprefix("mtp-launcher pull ").partition(" --")[0]
            if self.misnamed is not None:
                other, differs = self.misnamed
                raise ModelUnexpected(
                    message("{other} is not {what}: {differs}.", other=other, what=what, differs=differs),
                    message(
                        "[{command} downloads the right one. ]To use this one, open it by its path.",
                        command=FaceName(f"`{self.command}`"),
                    ),
                    path=str(other),
                    wanted=what,
                )
            raise ModelMissing(
                message("{what} is not on this computer yet.", what=what), download_first(self.command), wanted=what
            )
        if self.local.state is State.DAMAGED:
            raise _damage_error(self.local, self.command)
        return self.local.path


def download_first(command: str) -> Message:
    """Return the hint to download a file by a command."""
    page = FaceName(None, mark("Models"))
    return message("Download it first[: {command}][, on {page}].", command=FaceName(f"`{command}`"), page=page)


def refuse_damaged(path: Path) -> None:
    """Raise ModelBroken if a file is known to be damaged."""
    local = find_damaged(path.absolute())
    if local is not None:
        record = local.record
        raise _damage_error(local, f"mtp-launcher pull {record.label}" if record.repo else "")


def _damage_error(local: LocalModel, command: str) -> ModelBroken:
    path = local.path
    if local.store is not None:
        hint = message("Delete it in {store}, and download it again there.", store=local.store.title)
    else:
        hint = message(
            "{remove}, then {get}.",
            remove=command_name(f"models remove {path}", mark("Delete it on Models")),
            get=FaceName(f"`{command}`" if command else "get it again", mark("get it again")),
        )
    return ModelBroken(message("{path} is damaged: its SHA-256 does not match.", path=path), hint, path=str(path))


def find_named(text: str, catalogue: Catalogue) -> NamedModel | None:
    """Resolve ID[:QUANT], OWNER/NAME:FILE or a name in another program's store; return None if `text` is a path.

    Raises ModelUnknown for an ID that resembles a known one, for a quantisation that the model does not have, and for
    a name of several files; ModelBroken for the path of a file that is known to be damaged.
    """
    if expand_user(text).exists():
        refuse_damaged(expand_user(text))
        return None
    try:
        named = _find_listed(text, catalogue)
    except ModelUnknown:
        stored = _find_stored(text)
        if stored is None:
            raise
        return stored
    if named is not None and (named.local or named.entry):
        return named
    return _find_stored(text) or named


def _find_stored(text: str) -> NamedModel | None:
    """Resolve the name of a model in the store of another program, such as Ollama's qwen3.5:9b."""
    found = find_stored(text)
    if not found:
        return None
    if len(found) > 1:
        names = sorted(each.label for each in found)
        raise ModelUnknown(
            message("{text} is the name of {count} files.", text=text, count=len(found)),
            message("Write one of {shown}.", shown=", ".join(names[:_MOST_NAMES])),
            wanted=text,
            near=names,
        )
    return NamedModel(None, None, found[0], "")


def _find_listed(text: str, catalogue: Catalogue) -> NamedModel | None:
    """Resolve ID[:QUANT] or OWNER/NAME:FILE; return None if `text` has another form. Raises ModelUnknown."""
    if is_hub_file(text):
        file = HubFile.parse(text)
        if not file.path.lower().endswith(".gguf"):
            return _find_quant(text, file, catalogue)
        entry, catalogue_file = find_catalogue_file(catalogue, file.repo, file.path)
        local = find_file(file.repo, file.path)
        command = f"mtp-launcher pull {text}"
        differs = ""
        if entry and catalogue_file and local:
            differs = describe_mismatch(entry, catalogue_file, local.record.paths)
        if local is not None and differs:
            return NamedModel(entry, catalogue_file, None, command, (local.path, differs))
        return NamedModel(entry, catalogue_file, local, command)
    try:
        named = find_catalogue_model(text, catalogue)
    except ModelUnknown as error:
        if not error.facts.get("near", True):
            return None
        raise
    if named is None:
        return None
    entry, named_file = named
    quant = named_file.quant if named_file else None
    local = find_local_model(entry, quant)
    if local is None:
        return _missing_model(entry, named_file, quant, text)
    local_file = entry.file(local.record.quant or "") or named_file
    return NamedModel(entry, local_file, local, f"mtp-launcher pull {text}")


def _find_quant(text: str, named: HubFile, catalogue: Catalogue) -> NamedModel:
    """Resolve OWNER/NAME:QUANT."""
    for entry in catalogue.models:
        if entry.repo and entry.repo.casefold() == named.repo.casefold() and entry.file(named.path):
            listed = _find_listed(f"{entry.id}:{named.path}", catalogue)
            if listed is not None:
                return listed
    return NamedModel(None, None, find_in_repository(named.repo, named.path), f"mtp-launcher pull {text}")


def _missing_model(entry: ModelEntry, file: ModelFile | None, quant: str | None, text: str) -> NamedModel:
    """Return a NamedModel without local files, with any other model that has its name."""
    other = find_misnamed(entry, quant)
    return NamedModel(entry, file, None, f"mtp-launcher pull {text}", (other[0].path, other[1]) if other else None)


@dataclass(frozen=True, slots=True)
class ModelSelection:
    """A model to plan or start.

    `catalogue` contains its `entry`. For a file outside the catalogue, `entry` is made from the file's header, and
    `catalogue` contains nothing else. `file` is the named file, else the local one, and `path` its local path. If it is
    not on this machine, `path` is None and `named.path` raises the reason. `names_file` is whether the user named a
    file, and not only a model. `others` are the files of its repository on the hub that are no models.
    """

    catalogue: Catalogue
    entry: ModelEntry
    file: ModelFile | None
    path: Path | None
    named: NamedModel | None = None
    names_file: bool = True
    others: tuple[OtherFile, ...] = ()

    def with_entry(self, entry: ModelEntry) -> "ModelSelection":
        """Return the same with another description of the model, in its catalogue, too."""
        models = tuple(entry if each.id == entry.id else each for each in self.catalogue.models)
        return replace(self, entry=entry, catalogue=replace(self.catalogue, models=models))

    @property
    def stored_name(self) -> str | None:
        """The name in another program's store, if the user named the model by it; else None."""
        stored = self.named.local.stored if self.named and self.named.local else None
        return stored.name if stored else None

    @property
    def local_path(self) -> Path:
        """The first local file. Raises the errors of NamedModel.path."""
        if self.path is not None:
            return self.path
        if self.named is not None:
            return self.named.path
        raise ModelMissing(
            message("{id} is not on this computer.", id=self.entry.id),
            message("{command} lists your models.", command=command_name("models list", mark("Models"))),
        )


def select_model(text: str, catalogue: Catalogue) -> ModelSelection:
    """Resolve ID[:QUANT], a local OWNER/NAME:FILE, or the path of a file to a model.

    Raises the errors of `find_named`, ModelUnknown for an unknown name, ModelBroken for a file that is known to be
    damaged, and ModelMissing or ModelBroken for one that cannot be read.
    """
    named = find_named(text, catalogue)
    if named is not None and named.entry is not None:
        path = named.path if named.local else None
        return _add_drafts_beside(ModelSelection(catalogue, named.entry, named.file, path, named, ":" in text))
    if named is None and not expand_user(text).exists() and not text.lower().endswith(".gguf"):
        catalogue.find(text)  # raises ModelUnknown, with similar ids
    if named is None:
        return select_file(expand_user(text), catalogue)
    stored = named.local.stored if named.local else None
    return replace(select_file(named.path, catalogue, stored.name if stored else None), named=named)


def select_stored(text: str, catalogue: Catalogue) -> ModelSelection | None:
    """Resolve the name of a model in another program's store; return None if no store has it.

    Raises ModelUnknown for a name of several files, and the errors of `select_file`.
    """
    named = _find_stored(text)
    if named is None or named.local is None or named.local.stored is None:
        return None
    return replace(select_file(named.path, catalogue, named.local.stored.name), named=named)


def select_file(path: Path, catalogue: Catalogue, name: str | None = None) -> ModelSelection:
    """Return the model of a file: that of the catalogue, else one described by its header, called `name` if given.

    Raises ModelMissing or ModelBroken, and ModelUnexpected for a file that is no model, or that only Ollama loads.
    """
    found = find_entry(catalogue, path)
    if found is not None:
        return _add_drafts_beside(ModelSelection(catalogue, *found, path))
    model = read_model(path)
    refuse_unusable(model, name)
    entry = describe_file(model, name)
    return ModelSelection(Catalogue((entry,)), entry, entry.files[0], path)


def refuse_unusable(model: GgufModel, name: str | None = None) -> None:
    """Raise ModelUnexpected for a file that is no model, or that only Ollama loads. `name` is that of its store."""
    if is_ollamas_own(model):
        raise ModelUnexpected(
            message("{name} is in a format of Ollama's own, which llama.cpp does not load.", name=name or model.name),
            message(
                "Get the same model from Hugging Face[, for example with {command}].", command=command_name("pull")
            ),
            path=str(model.path),
        )
    kind = recognise_file(model)
    if kind is not None:
        raise unusable_error(kind, model.path, name, models=name_models_for(model) if kind.role == "draft" else ())


def add_draft(selection: ModelSelection, path: Path, wanted: str | None = None) -> ModelSelection:
    """Return a model with a file that the user named as its own drafter's.

    Raises ModelMissing or ModelBroken for one that cannot be read, and ModelUnexpected for one that cannot draft for
    the model, as far as their headers tell, or is for another drafter than the `wanted` one.
    """
    side, entry = read_model(path), selection.entry
    trunk = read_model(selection.path) if selection.path is not None else None
    why = find_mismatch(side, trunk, wanted) if trunk is not None else ""
    drafter = recognise_drafter(side)
    if why or drafter is None:
        raise foreign_draft_error(path, entry.name, why)
    others = tuple(each for each in entry.all_drafts if each.speculation != drafter.name)
    entry = replace(entry, speculation=drafter.name, draft=as_draft(drafter, side), drafts=others)
    return selection.with_entry(entry)


def _add_drafts_beside(selection: ModelSelection) -> ModelSelection:
    """Return a model of the catalogue with the drafts that are here, by their paths: listed ones, and others beside it.

    The first of them is its own if the file cannot draft without. By its SHA-256 the header of its file is found.
    """
    listed, file, model = selection.entry, selection.file, selection.path
    if model is None:
        return selection
    record = find_origin(model)
    if file is not None and record is not None and not file.sha256 and len(record.sha256) == 1:
        hashed = replace(file, sha256=record.sha256[0])
        listed = replace(listed, files=tuple(hashed if each is file else each for each in listed.files))
        selection, file = replace(selection.with_entry(listed), file=hashed), hashed
    here = [(each, find_companion(listed, each)) for each in listed.drafts]
    known = (replace(each, repo=None, file=str(path), size_bytes=path.stat().st_size) for each, path in here if path)
    entry = replace(listed, drafts=tuple(known))
    new = (each for each in find_drafts_beside(model) if not set(each.kinds) & {*entry.draft_kinds})
    entry = replace(entry, drafts=(*entry.drafts, *new))
    if entry.drafts and file is not None and not entry.can_draft(file):
        entry = entry.with_drafter(entry.drafts[0].drafter.spec_type)
    return selection if entry == listed else selection.with_entry(entry)


def find_projector(selection: ModelSelection) -> Path:
    """Return the vision projector of a local model: the catalogue's, else one that was made for it and lies beside it.

    Raises ModelMissing if there is none on this machine, and ModelBroken for one that is known to be damaged.
    """
    entry = selection.entry
    preferred = [entry.projector] if entry.projector else []
    listed = (find_companion(entry, each) for each in (*preferred, *entry.mmproj))
    path = next(filter(None, listed), None)
    if path is None:
        projectors = find_side_files(read_model(selection.local_path)).projectors
        path = Path(projectors[0].file) if projectors else None
    if path is not None:
        refuse_damaged(path)
        return path
    if entry.projector is None or entry.repo is None:
        raise ModelMissing(
            message("No vision projector was found for {name}.", name=entry.name),
            message("Put its mmproj file beside the model, or name it with --mmproj."),
        )
    quant = f":{selection.file.quant}" if selection.file else ""
    raise ModelMissing(
        message("The vision projector of {name} is not on this computer yet.", name=entry.name),
        download_first(f"mtp-launcher pull {entry.id}{quant} --vision"),
        wanted=entry.projector.file,
    )
