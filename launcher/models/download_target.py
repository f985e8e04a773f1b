"""Parses what a user wants to download: a model of the catalogue, a file on the hub, or a URL."""

import re
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import unquote, urlsplit

from launcher.base.errors import BadOption, ModelMissing, ModelUnknown
from launcher.base.messages import FaceName, command_name, join_messages, mark, message
from launcher.base.paths import expand_user, models_dir
from launcher.fetch.file_names import local_name, local_path
from launcher.fetch.hub import DEFAULT_ENDPOINT, HubFile, hub_endpoint, is_hub_file
from launcher.models.catalogue import Catalogue, CompanionFile, ModelEntry, ModelFile
from launcher.models.drafters import MTP, file_kinds_of, find_drafter
from launcher.models.file_kinds import recognise_name, unusable_error
from launcher.models.hub_files import read_repository
from launcher.models.library import find_catalogue_draft, find_catalogue_file, parse_quant, split_names
from launcher.models.library_index import Kind
from launcher.models.limits import no_head_error

_ID = re.compile(r"(?P<id>[A-Za-z0-9][\w.-]*)(?::(?P<quant>[\w.-]+))?", re.ASCII)
_REPO = re.compile(
    r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>\w[\w./-]*))?(?::(?P<quant>[\w-]+))?", re.ASCII
)
_PAGE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/(?:resolve|blob)/(?P<revision>[^/]+)/(?P<path>.+)")
_REPO_PAGE = re.compile(r"/(?P<repo>[^/]+/[^/]+)(?:/tree/(?P<revision>[^/]+))?/?")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_SHOWN = 12
"""The most file names in an error message."""


@dataclass(frozen=True, slots=True)
class DownloadFile:
    """One file to download, from the hub or a URL. Size in bytes and SHA-256 are from the catalogue or the user.

    `name` is its path below its folder, with / as the separator.
    """

    name: str
    hub: HubFile | None = None
    url: str | None = None
    bytes: int | None = None
    sha256: str | None = None

    @property
    def label(self) -> str:
        """The name to show."""
        return f"{self.hub.repo}:{self.hub.path}" if self.hub else self.name


@dataclass(frozen=True, slots=True)
class DownloadItem:
    """A model with all its parts, or one draft or vision projector."""

    kind: Kind
    files: tuple[DownloadFile, ...]


@dataclass(frozen=True, slots=True)
class DownloadTarget:
    """A parsed download target, with its name for users. `entry` and `file` are the catalogue's, None for other models.

    With `pinned_by`, only files of the expected size and checksum are accepted: those of the revision in the catalogue
    ("catalogue"), or with the checksum that the user gave ("user"). Without, the hub's current files are accepted.
    """

    label: str
    items: tuple[DownloadItem, ...]
    folder: Path
    entry: ModelEntry | None = None
    file: ModelFile | None = None
    pinned_by: Literal["catalogue", "user"] | None = None

    @property
    def bytes(self) -> int | None:
        """Size of all files together, None if that of one is unknown."""
        sizes = [file.bytes for item in self.items for file in item.files]
        return None if None in sizes else sum(size or 0 for size in sizes)


def parse_target(
    text: str,
    catalogue: Catalogue,
    *,
    sha256: str | None = None,
    revision: str | None = None,
    vision: bool = False,
    drafter: str | None = None,
) -> DownloadTarget:
    """Parse a download target: ID:QUANT, OWNER/NAME[@REVISION]:FILE or :QUANT, or a URL.

    A QUANT of a repository is looked up on the hub. The file of `drafter` is downloaded, too. Raises BadOption for
    invalid targets, ModelUnknown and ModelMissing for models and files that do not exist, ModelHasNoHead for a model
    without a head or file for the drafter, and the errors of requests to the hub.
    """
    if sha256 is not None and not _SHA256.fullmatch(sha256):
        raise BadOption(
            message("{option} needs 64 hexadecimal digits.", option=FaceName("--sha256", mark("SHA-256"))),
            message("Copy it from the file's download page."),
        )
    sha256 = sha256.lower() if sha256 else None
    if "://" in text:
        page = parse_hub_url(text)
        if page is None:
            for option, value in (("--vision", vision), ("--drafter", drafter), ("--revision", revision)):
                if value:
                    raise BadOption(
                        message("{option} does not work with an address: it names one file.", option=option),
                        message("Omit {option}, and download the other file by its own address.", option=option),
                    )
            return _from_url(text, sha256)
        text = page
    named = find_catalogue_model(text, catalogue)
    if named is not None:
        listed, catalogue_file = named
        drafting = _with_drafter(listed, catalogue_file, drafter)
        return _from_catalogue(text, drafting, catalogue_file, sha256, revision, vision=vision)
    if expand_user(text).exists():
        raise BadOption(
            message("{text} is already on this computer. Nothing to download.", text=text),
            message("Start it[: {command}].", command=command_name(f"serve {text}")),
        )
    file = _parse_hub_file(text, revision)
    if sha256 is None and (found := find_catalogue_draft(catalogue, file.repo, file.path)) is not None:
        expected = None if revision or file.revision != "main" else found[1]
        item = DownloadItem("draft", (DownloadFile(file.path, file, None, *_size_and_hash(expected)),))
        return DownloadTarget(str(file), (item,), models_dir(), found[0])
    entry, catalogue_file = find_catalogue_file(catalogue, file.repo, file.path)
    is_other_revision = revision or file.revision != "main"
    items = [DownloadItem("model", _model_files(file, catalogue_file, None if is_other_revision else catalogue_file))]
    if sha256:
        if len(items[0].files) > 1:
            raise BadOption(
                message("--sha256 is for one file, but this model has several."),
                message("Omit it: Hugging Face provides the checksums."),
            )
        items = [DownloadItem("model", (replace(items[0].files[0], sha256=sha256),))]
    if catalogue_file is None and (kind := recognise_name(file.path)) is not None:
        items = [replace(items[0], kind=kind.role)]
    draft = _with_drafter(entry, catalogue_file, drafter).draft_file if drafter and entry else None
    row = find_drafter(drafter, file_kinds_of(drafter)) if drafter and not entry else MTP
    if not row.uses_head and items[0].kind == "model":  # a head may be inside
        drafts = read_repository(file.repo, file.revision).list_drafts(row, parse_quant(file.path))
        if not drafts:
            raise no_head_error(file.repo, row)
        draft = drafts[0]
    items += [_companion_item("draft", draft, file.repo, file.revision, revision)] if draft is not None else []
    if vision and entry:
        items += _projector_items(entry, revision)
    elif vision:
        raise BadOption(
            message("--vision works only with models of the catalogue."),
            message("Download the projector as a file: OWNER/NAME:FILE."),
        )
    return DownloadTarget(str(file), tuple(items), models_dir(), entry, catalogue_file, "user" if sha256 else None)


def find_catalogue_model(text: str, catalogue: Catalogue) -> tuple[ModelEntry, ModelFile | None] | None:
    """Return the catalogue's model and, with QUANT, its file for ID[:QUANT]; None if `text` has another form.

    Raises ModelUnknown if the catalogue has no such model or file.
    """
    found = _ID.fullmatch(text)
    if found is None or _is_gguf(text):
        return None
    entry = catalogue.find(found["id"])
    if found["quant"] is None:
        return entry, None
    file = entry.file(found["quant"])
    if file is None:
        quants = ", ".join(each.quant for each in entry.files)
        raise ModelUnknown(
            message("{id} has no {found}.", id=entry.id, found=found["quant"]),
            message("It has {quants}.", quants=quants),
            wanted=text,
        )
    return entry, file


def _from_catalogue(
    text: str, entry: ModelEntry, file: ModelFile | None, sha256: str | None, revision: str | None, *, vision: bool
) -> DownloadTarget:
    if file is None:
        raise BadOption(message("{text} does not name a file.", text=text), message("Write {text}:QUANT.", text=text))
    if entry.repo is None:
        raise BadOption(
            message("{id} is not on Hugging Face. Nothing to download.", id=entry.id),
            message("Start it[: {command}].", command=command_name(f"serve {entry.id}")),
        )
    if sha256 is not None:
        raise BadOption(
            message("--sha256 works only with a URL."),
            message("Hugging Face provides the checksum of {text}.", text=text),
        )
    chosen = revision or entry.revision or "main"
    hub = HubFile(entry.repo, file.file, chosen)
    items = [DownloadItem("model", _model_files(hub, file, None if revision else file))]
    if draft := entry.draft_file:
        items.append(_companion_item("draft", draft, entry.repo, chosen, revision))
    if vision:
        items += _projector_items(entry, revision)
    return DownloadTarget(
        f"{entry.id}:{file.quant}", tuple(items), models_dir(), entry, file, None if revision else "catalogue"
    )


def _with_drafter(entry: ModelEntry, file: ModelFile | None, drafter: str | None) -> ModelEntry:
    """Return a model with another drafter. Raises ModelHasNoHead if its `file` has not what that needs."""
    drafting = entry.with_drafter(drafter)
    if drafter and file and not drafting.can_draft(file):
        raise no_head_error(entry.name, drafting.drafter, listed=(entry, file))
    return drafting


def _companion_item(kind: Kind, file: CompanionFile, repo: str, chosen: str, revision: str | None) -> DownloadItem:
    """Return a file beside a model of `repo`; from there it is taken at the `chosen` revision, as the model is."""
    hub = HubFile(file.repo or repo, file.file, chosen if file.repo in (None, repo) else "main")
    return DownloadItem(kind, (DownloadFile(file.file, hub, None, *_size_and_hash(None if revision else file)),))


def _projector_items(entry: ModelEntry, revision: str | None) -> list[DownloadItem]:
    projector = entry.projector
    if projector is None:
        raise BadOption(message("No vision projector of {id} is known.", id=entry.id), message("Omit --vision."))
    chosen = revision or entry.revision or "main"
    return [_companion_item("mmproj", projector, entry.repo or "", chosen, revision)]


def _model_files(first: HubFile, file: ModelFile | None, figures: ModelFile | None) -> tuple[DownloadFile, ...]:
    """Return all files of a model. `figures` is the catalogue's file if its sizes and checksums apply, else None."""
    if file and file.parts:
        return tuple(
            DownloadFile(part.file, replace(first, path=part.file), None, *_size_and_hash(part if figures else None))
            for part in file.parts
        )
    names = split_names(first.path)
    size, sha256 = _size_and_hash(figures) if len(names) == 1 else (None, None)
    return tuple(DownloadFile(name, replace(first, path=name), None, size, sha256) for name in names)


def _size_and_hash(entry: object) -> tuple[int | None, str | None]:
    return getattr(entry, "size_bytes", None), getattr(entry, "sha256", None)


def parse_hub_url(url: str) -> str | None:
    """Convert the URL of a page on the hub to REPO[@REVISION][:FILE]; None for other URLs."""
    parts = urlsplit(url)
    if parts.netloc not in {urlsplit(each).netloc for each in (hub_endpoint(), DEFAULT_ENDPOINT)}:
        return None
    path = parts.path.removeprefix(urlsplit(hub_endpoint()).path)
    found = _PAGE.fullmatch(path) or _REPO_PAGE.fullmatch(path)
    if found is None:
        return None
    revision = unquote(found["revision"] or "main")
    repo = f"{found['repo']}{'' if revision == 'main' else f'@{revision}'}"
    file = found.groupdict().get("path")
    return str(HubFile.parse(f"{repo}:{unquote(file)}")) if file else repo


def _from_url(url: str, sha256: str | None) -> DownloadTarget:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadOption(
            message("{url} is not the URL of a file.", url=url),
            message("Use an address that begins with https://."),
        )
    if sha256 is None:
        raise BadOption(
            message("There is no checksum for the file from {hostname}.", hostname=parts.hostname),
            message(
                "Add[ {option} with] the checksum from its page[ {place}].",
                option=FaceName("--sha256"),
                place=FaceName(None, mark("after the URL, with a space between")),
            ),
        )
    name = local_name(PurePosixPath(unquote(parts.path)).name)
    _check_gguf(name)
    return DownloadTarget(
        f"{parts.hostname}/{name}",
        (DownloadItem("model", (DownloadFile(name, url=url, sha256=sha256),)),),
        models_dir() / local_name(parts.hostname),
    )


def _parse_hub_file(text: str, revision: str | None) -> HubFile:
    """Return the file on the hub for OWNER/NAME[@REVISION]:FILE, or for a quantisation in place of FILE."""
    repository = _REPO.fullmatch(text)
    if repository:
        if revision and repository["revision"]:
            raise BadOption(message("The revision is given twice."), message("Omit --revision."))
        return _find_quant(repository["repo"], repository["quant"], revision or repository["revision"])
    if not is_hub_file(text):
        raise BadOption(
            message("{text} cannot be downloaded.", text=text),
            message(
                "Write ID[:QUANT] for a model of the catalogue, OWNER/NAME:FILE.gguf, or a URL with {option}.",
                option=FaceName("--sha256", mark("its SHA-256 after it")),
            ),
        )
    file = HubFile.parse(text)
    if revision and file.revision != "main":
        raise BadOption(message("The revision is given twice."), message("Omit --revision."))
    _check_gguf(file.path)
    return replace(file, revision=revision or file.revision)


def _find_quant(repo: str, quant: str | None, revision: str | None) -> HubFile:
    """Look up the file of a quantisation on the hub. Raises ModelMissing, naming its files, if none fits."""
    repository = read_repository(repo, revision)
    meant, others = repository.find_quant(quant) if quant is not None else ([], [])
    models = sorted(each.file for each in repository.list_models())
    if quant is None and len(models) == 1:
        meant = models
    if others and not meant and not repository.has_models:  # a draft's repository, for example
        if len(others) > 1 or not others[0].kind.beside:
            raise unusable_error(others[0].kind, others[0].file)
        meant = [others[0].file]
    if len(meant) == 1:
        return HubFile.parse(f"{repo}{f'@{revision}' if revision else ''}:{meant[0]}")
    choices = meant or models
    shown: str = ", ".join(choices[:_SHOWN])
    if len(choices) > _SHOWN:
        shown = message("{names} and {count} more", names=shown, count=len(choices) - _SHOWN)
    if not choices:
        raise ModelMissing(
            message("{repo} has no GGUF files.", repo=repo),
            message("Look for a repository whose name ends in -GGUF."),
            repo=repo,
        )
    raise ModelMissing(
        message("{repo} has no file of {quant}.", repo=repo, quant=quant)
        if quant and not meant
        else message("{repo} has several files.", repo=repo),
        join_messages(
            message("Write {repo}:FILE with one of {shown}.", repo=repo, shown=shown), repository.explain_quant(quant)
        ),
        repo=repo,
        files=choices,
    )


def _is_gguf(text: str) -> bool:
    return text.lower().endswith(".gguf")


def _check_gguf(name: str) -> None:
    if not _is_gguf(name):
        raise BadOption(
            message("{name} is not a GGUF file.", name=PurePosixPath(name).name),
            message("llama-server runs .gguf files only."),
        )


def local_target(file: DownloadFile, folder: Path, *, to: Path | None) -> Path:
    """Return the local path for a file: in `to`, or below `folder` by its repository.

    Raises BadOption for a name that cannot be a file name.
    """
    if to is not None:
        return to / local_name(PurePosixPath(file.name).name)
    return local_path(folder, f"{file.hub.repo}/{file.name}" if file.hub else file.name)
