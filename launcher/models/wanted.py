"""What is to be pulled, from how a user writes it: a model of the catalogue, a file on the hub, or an address."""

import re
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import unquote, urlsplit

from launcher.base.errors import BadOption, ModelMissing, ModelUnknown
from launcher.base.paths import expanded, models_dir
from launcher.fetch.hub import DEFAULT_ENDPOINT, HubFile, endpoint, is_hub_file, list_files
from launcher.fetch.names import local_name, local_path
from launcher.models.catalogue import SPECULATION, Catalogue, ModelEntry, ModelFile
from launcher.models.library import of_catalogue, quant_of, split_names
from launcher.models.library_index import Kind

_ID = re.compile(r"(?P<id>[A-Za-z0-9][\w.-]*)(?::(?P<quant>[\w.-]+))?", re.ASCII)
_REPO = re.compile(
    r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>\w[\w./-]*))?(?::(?P<quant>[\w-]+))?", re.ASCII
)
_PAGE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/(?:resolve|blob)/(?P<revision>[^/]+)/(?P<path>.+)")
_REPO_PAGE = re.compile(r"/(?P<repo>[^/]+/[^/]+)(?:/tree/(?P<revision>[^/]+))?/?")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Piece:
    """One file to be fetched: from the hub, or from an address. Size and SHA-256 are what the catalogue or user says.

    `name` is where it lies below its folder, with / between the parts.
    """

    name: str
    hub: HubFile | None = None
    url: str | None = None
    bytes: int | None = None
    sha256: str | None = None

    @property
    def words(self) -> str:
        """What a person calls it."""
        return f"{self.hub.repo}:{self.hub.path}" if self.hub else self.name


@dataclass(frozen=True, slots=True)
class Item:
    """A model with all its parts, or one file that is loaded beside one."""

    kind: Kind
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be pulled. `entry` and `file` are the catalogue's where it knows the model.

    `insists` is who wants these very files and no other upload: the catalogue, where it chooses the revision, or the
    user, who gave a checksum; None takes what is there.
    """

    words: str
    items: tuple[Item, ...]
    folder: Path
    entry: ModelEntry | None = None
    file: ModelFile | None = None
    insists: Literal["catalogue", "user"] | None = None

    @property
    def bytes(self) -> int | None:
        """The size of all files together, None while that of one is not known."""
        sizes = [piece.bytes for item in self.items for piece in item.pieces]
        return None if None in sizes else sum(size or 0 for size in sizes)


def wanted(
    text: str, catalogue: Catalogue, *, sha256: str | None = None, revision: str | None = None, vision: bool = False
) -> Wanted:
    """Return what `text` means: ID:QUANT, OWNER/NAME[@REVISION]:FILE or :QUANT, or an address.

    For a QUANT of a repository the hub is asked. Raises BadOption for what cannot be meant, ModelUnknown and
    ModelMissing for what is not there, and what the hub's answer leads to.
    """
    if sha256 is not None and not _SHA256.fullmatch(sha256):
        raise BadOption("--sha256 needs 64 hexadecimal digits.", "Copy it from the page that offers the file.")
    sha256 = sha256.lower() if sha256 else None
    if "://" in text:
        page = _hub_page(text)
        if page is None:
            return _from_url(text, sha256)
        text = page
    named = named_model(text, catalogue)
    if named is not None:
        return _from_catalogue(text, *named, sha256, revision, vision=vision)
    if expanded(text).exists():
        raise BadOption(
            f"{text} is on this machine: there is nothing to pull.", f"Serve it: `mtp-launcher serve {text}`."
        )
    file = _on_hub(text, revision)
    entry, its = of_catalogue(catalogue, file.repo, file.path)
    items = [Item("model", _parts(file, its, None if revision or file.revision != "main" else its))]
    if sha256:
        if len(items[0].pieces) > 1:
            raise BadOption("--sha256 is one file's, and this model has several.", "The hub tells those of all.")
        items = [Item("model", (replace(items[0].pieces[0], sha256=sha256),))]
    name = PurePosixPath(file.path).name.lower()
    if name.startswith(("mmproj", "mtp-")):
        items = [replace(items[0], kind="mmproj" if name.startswith("mmproj") else "draft")]
    if vision and entry:
        items += _vision(entry, revision)
    elif vision:
        raise BadOption("--vision needs a model of the catalogue.", "Pull the projector's file by its own name.")
    return Wanted(str(file), tuple(items), models_dir(), entry, its, "user" if sha256 else None)


def named_model(text: str, catalogue: Catalogue) -> tuple[ModelEntry, ModelFile | None] | None:
    """Return the catalogue's model and, where it is named, its file for ID[:QUANT]; None when `text` is no such thing.

    Raises ModelUnknown when it is one and the catalogue has no such model or file.
    """
    found = _ID.fullmatch(text)
    if found is None or _is_file(text):
        return None
    entry = catalogue.find(found["id"])
    if found["quant"] is None:
        return entry, None
    file = entry.file(found["quant"])
    if file is None:
        quants = ", ".join(each.quant for each in entry.files)
        raise ModelUnknown(f"{entry.id} has no {found['quant']}.", f"It has {quants}.", wanted=text)
    return entry, file


def _from_catalogue(
    text: str, entry: ModelEntry, file: ModelFile | None, sha256: str | None, revision: str | None, *, vision: bool
) -> Wanted:
    if file is None:
        raise BadOption(f"{text} does not say which file.", f"Write {text}:QUANT.")
    if entry.repo is None:
        raise BadOption(
            f"{entry.id} is not on the hub: there is nothing to pull.", f"Serve it: `mtp-launcher serve {entry.id}`."
        )
    if sha256 is not None:
        raise BadOption("--sha256 goes with an address.", f"The hub tells that of {text}.")
    chosen = revision or entry.revision or "main"
    hub = HubFile(entry.repo, file.file, chosen)
    items = [Item("model", _parts(hub, file, None if revision else file))]
    if entry.speculation and SPECULATION[entry.speculation].needs_draft_file and entry.draft:
        draft, own = entry.draft, entry.draft.repo in (None, entry.repo)
        its = HubFile(draft.repo or entry.repo, draft.file, chosen if own else "main")
        known = own and not revision
        items.append(Item("draft", (Piece(draft.file, its, None, *_figures(draft if known else None)),)))
    if vision:
        items += _vision(entry, revision)
    return Wanted(
        f"{entry.id}:{file.quant}", tuple(items), models_dir(), entry, file, None if revision else "catalogue"
    )


def _vision(entry: ModelEntry, revision: str | None) -> list[Item]:
    projector = entry.projector
    if projector is None:
        raise BadOption(f"No vision projector of {entry.id} is known.", "Leave --vision out.")
    own = projector.repo in (None, entry.repo)
    its = HubFile(
        projector.repo or entry.repo or "", projector.file, (revision or entry.revision or "main") if own else "main"
    )
    return [Item("mmproj", (Piece(projector.file, its, None, *_figures(None if revision else projector)),))]


def _parts(first: HubFile, file: ModelFile | None, figures: ModelFile | None) -> tuple[Piece, ...]:
    """All files of a model; `figures` is the catalogue's file where its sizes and checksums count."""
    if file and file.parts:
        return tuple(
            Piece(part.file, replace(first, path=part.file), None, *_figures(part if figures else None))
            for part in file.parts
        )
    names = split_names(first.path)
    size, sha256 = _figures(figures) if len(names) == 1 else (None, None)
    return tuple(Piece(name, replace(first, path=name), None, size, sha256) for name in names)


def _figures(entry: object) -> tuple[int | None, str | None]:
    return getattr(entry, "size_bytes", None), getattr(entry, "sha256", None)


def _hub_page(url: str) -> str | None:
    """Return as what the hub's file or repository is written that an address of its pages leads to; None for others."""
    there = urlsplit(url)
    if there.netloc not in {urlsplit(each).netloc for each in (endpoint(), DEFAULT_ENDPOINT)}:
        return None
    path = there.path.removeprefix(urlsplit(endpoint()).path)
    found = _PAGE.fullmatch(path) or _REPO_PAGE.fullmatch(path)
    if found is None:
        return None
    revision = unquote(found["revision"] or "main")
    repo = f"{found['repo']}{'' if revision == 'main' else f'@{revision}'}"
    file = found.groupdict().get("path")
    return str(HubFile.parse(f"{repo}:{unquote(file)}")) if file else repo


def _from_url(url: str, sha256: str | None) -> Wanted:
    there = urlsplit(url)
    if there.scheme not in ("http", "https") or not there.hostname:
        raise BadOption(f"{url} is no address of a file on the web.", "It begins with https://.")
    if sha256 is None:
        raise BadOption(
            f"Nobody says what {there.hostname} should send.", "Add --sha256 with the checksum that its page names."
        )
    name = local_name(PurePosixPath(unquote(there.path)).name)
    _check_gguf(name)
    words = f"{there.hostname}/{name}"
    return Wanted(
        words, (Item("model", (Piece(name, url=url, sha256=sha256),)),), models_dir() / local_name(there.hostname)
    )


def _on_hub(text: str, revision: str | None) -> HubFile:
    """Return the file that is meant by OWNER/NAME[@REVISION]:FILE, or by a quantisation in place of FILE."""
    repository = _REPO.fullmatch(text)
    if repository:
        if revision and repository["revision"]:
            raise BadOption("The revision is given twice.", "Leave --revision out.")
        return _by_quant(repository["repo"], repository["quant"], revision or repository["revision"])
    if not is_hub_file(text):
        raise BadOption(
            f"{text} is nothing that can be pulled.",
            "Write ID[:QUANT] for a model of the catalogue, OWNER/NAME:FILE.gguf, or an address with --sha256.",
        )
    file = HubFile.parse(text)
    if revision and file.revision != "main":
        raise BadOption("The revision is given twice.", "Leave --revision out.")
    _check_gguf(file.path)
    return replace(file, revision=revision or file.revision)


def _by_quant(repo: str, quant: str | None, revision: str | None) -> HubFile:
    """Ask the hub which file of a repository has that quantisation. Raises ModelMissing that names what is there."""
    listing = list_files(repo, revision)
    models = {
        name: its
        for name, its in sorted(listing.files.items())
        if name.endswith(".gguf") and split_names(name)[0] == name and "mmproj" not in name and "imatrix" not in name
    }
    meant = [name for name in models if quant and (quant_of(name) or "").casefold() == quant.casefold()]
    if quant is None and len(models) == 1:
        meant = list(models)
    if len(meant) == 1:
        return HubFile.parse(f"{repo}{f'@{revision}' if revision else ''}:{meant[0]}")
    choices = meant or list(models)
    shown = ", ".join(choices[:_SHOWN]) + (f" and {len(choices) - _SHOWN} more" if len(choices) > _SHOWN else "")
    if not choices:
        raise ModelMissing(f"{repo} has no GGUF files.", "Look for a repository whose name ends in -GGUF.", repo=repo)
    why = f"has no file of {quant}" if quant and not meant else "has several files"
    raise ModelMissing(f"{repo} {why}.", f"Write {repo}:FILE with one of {shown}.", repo=repo, files=choices)


def _is_file(text: str) -> bool:
    return text.lower().endswith(".gguf")


def _check_gguf(name: str) -> None:
    if not _is_file(name):
        raise BadOption(f"{PurePosixPath(name).name} is no GGUF file.", "llama-server runs .gguf files only.")


def target_of(piece: Piece, folder: Path, *, to: Path | None) -> Path:
    """Return where a file is put: in `to`, or below `folder` by its repository. Raises BadOption for unusable names."""
    if to is not None:
        return to / local_name(PurePosixPath(piece.name).name)
    return local_path(folder, f"{piece.hub.repo}/{piece.name}" if piece.hub else piece.name)
