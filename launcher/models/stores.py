"""Finds the models of other programs: Ollama, LM Studio, Jan, llama.cpp and the hub's tools.

Their stores are read and never changed; a model there is used in place, by the name that its program shows.

Layouts, as of autumn 2026: Ollama's manifests name blobs by their SHA-256 (manifest/manifest.go, types/model/name.go,
docs/faq.mdx). LM Studio keeps PUBLISHER/REPOSITORY/FILE (lmstudio.ai/docs: import models). Jan keeps a model.yml for
each model in llamacpp/models below its data folder, and until 2025 in models (jan.ai/docs: data folder). llama.cpp kept
a flat folder with manifests until it took over the layout of the hub's tools (ggml-org/llama.cpp#20775).
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

from launcher.base.codec import parse_object
from launcher.base.messages import message
from launcher.base.paths import expand_user
from launcher.fetch.hub_cache import cache_roots, flat_cache_root, list_cached_models
from launcher.models.gguf import part_names

_OLLAMA_SERVICE = (
    "/usr/share/ollama/.ollama/models",
    "/var/lib/ollama/.ollama/models",
    "/var/snap/ollama/common/models",
)
"""Folders of models when Ollama runs as a system service: of its installer, of distributions and of the snap."""
_OLLAMA_UNITS = ("/etc/systemd/system/ollama.service", "/etc/systemd/system/ollama.service.d/override.conf")
_UNIT_MODELS = re.compile(r'OLLAMA_MODELS=([^"\s]+)')
_VARIABLES = (
    *("OLLAMA_MODELS", "JAN_DATA_FOLDER", "LLAMA_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "APPDATA", "LOCALAPPDATA"),
)
"""Environment variables that the programs' folders depend on."""
_OLLAMA_HOST, _OLLAMA_LIBRARY = "registry.ollama.ai", "library"
_HUB_HOSTS = ("hf.co", "huggingface.co")
_OLLAMA_PART = re.compile(r"\w[\w.:-]*", re.ASCII)
_LAYER = "application/vnd.ollama.image."
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_MANIFEST = re.compile(r"manifest=(?P<owner>[^=]+)=(?P<name>[^=]+)=(?P<tag>.+)\.json")
_MOST_BYTES = 2**20
_DEPTH = 6
"""Levels of folders that are searched; a limit, because folders may be links to one above them."""


class Store(Enum):
    """A program with a store of models. HUB: the cache of the hub's tools."""

    OLLAMA = "ollama"
    LM_STUDIO = "lm-studio"
    JAN = "jan"
    LLAMA_CPP = "llama.cpp"
    HUB = "hub"

    @property
    def title(self) -> str:
        """The program's name for users."""
        return _TITLES[self]


_TITLES = {
    Store.OLLAMA: "Ollama",
    Store.LM_STUDIO: "LM Studio",
    Store.JAN: "Jan",
    Store.LLAMA_CPP: "llama.cpp",
    Store.HUB: "Hugging Face",
}


@dataclass(frozen=True, slots=True)
class StoreFolder:
    """The folder of a store. `named`: a setting or the user names it, so users are told if it is missing."""

    store: Store
    path: Path
    named: bool = False


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model file in a store, given by its first part, with its names in the program that the store belongs to.

    `repo` and `file` are its origin on the hub, `sha256` the checksum that the store claims, None where it has none.
    `side_files` are the draft and the projector that the store lists for it.
    """

    store: Store
    name: str
    path: Path
    aliases: tuple[str, ...] = ()
    repo: str | None = None
    file: str | None = None
    sha256: str | None = None
    side_files: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreProblem:
    """A file or folder of a store that cannot be used now. `reason` is a message."""

    store: Store
    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class StoreScan:
    """Contents of the stores. A model with several names is one entry."""

    folders: tuple[StoreFolder, ...] = ()
    models: tuple[StoredModel, ...] = ()
    problems: tuple[StoreProblem, ...] = ()


def find_store_folders(
    added: tuple[Path, ...] = (), environ: Mapping[str, str] | None = None, platform: str = sys.platform
) -> tuple[StoreFolder, ...]:
    """Return the folders of all stores: those that the programs' settings name, the usual ones, and those in `added`.

    A usual folder need not exist.
    """
    environ = os.environ if environ is None else environ
    known = _Surroundings(
        tuple((name, value) for name in _VARIABLES if (value := environ.get(name))),
        platform,
        str(expand_user("~")),
        (_read_text(expand_user("~/.lmstudio-home-pointer")) or "").strip(),
        (*_OLLAMA_SERVICE, *_OLLAMA_UNITS),
    )
    usual = _find_usual_folders(known, tuple(map(_file_stamp, _list_settings(known))))
    old_jan = expand_user("~/jan")  # of 2024, and a name that a user's own folder may have
    if _recognise_layout(old_jan) is Store.JAN:
        usual = (*usual, StoreFolder(Store.JAN, old_jan))
    unique: dict[Path, StoreFolder] = {}
    for each in (*usual, *(folder for place in added if (folder := recognise_store(place)))):
        unique.setdefault(each.path, each)
    return tuple(unique.values())


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """Everything that the folders depend on except the content of settings files.

    `environment` has pairs of name and value.
    """

    environment: tuple[tuple[str, str], ...]
    platform: str
    home: str
    lm_studio_home: str
    constants: tuple[str, ...]


@lru_cache(maxsize=4)
def _list_settings(known: _Surroundings) -> tuple[Path, ...]:
    """Return the programs' settings files that may name a folder."""
    homes, folders = _lm_studio_homes(known), _config_folders(dict(known.environment), known.platform)
    return (
        *(home / "settings.json" for home in homes),
        *(folder / "LM Studio" / "settings.json" for folder in folders),
        *(home / "settings.json" for home in _jan_homes(folders)),
        *(Path(unit) for unit in _OLLAMA_UNITS if known.platform.startswith("linux")),
    )


def _file_stamp(path: Path) -> tuple[int, int] | None:
    """Return the size and modification time of a file, None if there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


@lru_cache(maxsize=4)
def _find_usual_folders(known: _Surroundings, _stamps: tuple[object, ...]) -> tuple[StoreFolder, ...]:
    """Return the folders that do not depend on the user's list. Cached: plans call it for each file."""
    environ = dict(known.environment)
    llama_cache = expand_user(environ["LLAMA_CACHE"]) if environ.get("LLAMA_CACHE") else None
    return (
        *_ollama_folders(environ, known.platform),
        *_lm_studio_folders(known),
        *_jan_folders(environ, known.platform),
        StoreFolder(Store.LLAMA_CPP, flat_cache_root(environ, known.platform), named=llama_cache is not None),
        *(StoreFolder(Store.HUB, root) for root in cache_roots(environ) if root != llama_cache),
    )


def recognise_store(folder: Path) -> StoreFolder | None:
    """Return the store that `folder` belongs to, recognised by the files there; None if it belongs to none.

    `folder` may be the store's own folder, one level above it, or one level inside it.
    """
    for path in (folder, folder / "models", folder / "hub", folder.parent):
        if path == folder.parent and folder.name not in ("blobs", "manifests", "llamacpp"):
            continue
        store = _recognise_layout(path)
        if store is not None:
            return StoreFolder(store, path, named=True)
    if folder.name == ".lmstudio" and (folder / "models").is_dir():
        return StoreFolder(Store.LM_STUDIO, folder / "models", named=True)
    if folder.name == "models" and folder.parent.name in (".lmstudio", "lm-studio"):
        return StoreFolder(Store.LM_STUDIO, folder, named=True)
    return None


def _recognise_layout(path: Path) -> Store | None:
    if (path / "manifests").is_dir() and (path / "blobs").is_dir():
        return Store.OLLAMA
    if (path / "llamacpp" / "models").is_dir() or ((path / "models").is_dir() and (path / "threads").is_dir()):
        return Store.JAN
    try:
        names = [entry.name for entry in os.scandir(path)]
    except OSError:
        return None
    if any(map(_MANIFEST.fullmatch, names)):
        return Store.LLAMA_CPP
    return Store.HUB if any(name.startswith("models--") for name in names) else None


def scan_stores(folders: tuple[StoreFolder, ...]) -> StoreScan:
    """Read the stores. A file or folder that cannot be read becomes a problem and does not stop the scan."""
    scanners: dict[Store, Callable[[Path, list[StoreProblem]], Iterator[StoredModel]]] = {
        Store.OLLAMA: _scan_ollama,
        Store.LM_STUDIO: _scan_lm_studio,
        Store.JAN: _scan_jan,
        Store.LLAMA_CPP: _scan_llama_cpp,
        Store.HUB: _scan_hub,
    }
    models: dict[Path, StoredModel] = {}
    problems: list[StoreProblem] = []
    scanned: set[str] = set()
    for folder in folders:
        real = os.path.realpath(folder.path)
        if real in scanned or not _can_read(folder, problems):
            continue
        scanned.add(real)
        for model in scanners[folder.store](folder.path, problems):
            parts = part_names(model.path.name)
            if parts is None or parts[0] == model.path.name:
                models.setdefault(model.path, model)
    return StoreScan(folders, tuple(models.values()), tuple(problems))


def _can_read(folder: StoreFolder, problems: list[StoreProblem]) -> bool:
    """Return whether a store can be read. If not, add a problem, unless it is a missing folder that nobody named."""
    try:
        with os.scandir(folder.path) as entries:
            next(entries, None)
    except FileNotFoundError:
        if folder.named and folder.store is not Store.LLAMA_CPP:  # llama.cpp makes it at its first download
            problems.append(
                StoreProblem(
                    folder.store,
                    folder.path,
                    message(
                        "{store}'s models should be in {path}, which is not there now. Is the disk connected?",
                        store=folder.store.title,
                        path=folder.path,
                    ),
                )
            )
        return False
    except OSError as error:
        problems.append(_unreadable_problem(folder.store, folder.path, error))
        return False
    return True


def _unreadable_problem(store: Store, path: Path, error: OSError) -> StoreProblem:
    if store is Store.OLLAMA and isinstance(error, PermissionError):
        reason = message(
            "Ollama's models in {path} cannot be read by you: {reason}. Run `sudo usermod -aG ollama $USER`, then log "
            "out and in again.",
            path=path,
            reason=error.strerror or error,
        )
    else:
        reason = message(
            "{store}'s models in {path} cannot be read: {reason}.",
            store=store.title,
            path=path,
            reason=error.strerror or error,
        )
    return StoreProblem(store, path, reason)


# Ollama.


def _ollama_folders(environ: Mapping[str, str], platform: str) -> Iterator[StoreFolder]:
    if chosen := environ.get("OLLAMA_MODELS"):
        yield StoreFolder(Store.OLLAMA, expand_user(chosen), named=True)
    yield StoreFolder(Store.OLLAMA, expand_user("~/.ollama/models"))
    if platform.startswith("linux"):
        for unit in _OLLAMA_UNITS:
            if found := _UNIT_MODELS.search(_read_text(Path(unit)) or ""):
                yield StoreFolder(Store.OLLAMA, Path(found[1]), named=True)
        yield from (StoreFolder(Store.OLLAMA, Path(path)) for path in _OLLAMA_SERVICE)


def _scan_ollama(root: Path, problems: list[StoreProblem]) -> Iterator[StoredModel]:
    """Yield the models with a GGUF layer; models of other formats and adapters are left out."""
    found: dict[Path, list[StoredModel]] = {}
    for path in _walk_files(root / "manifests", Store.OLLAMA, problems):
        parts = path.relative_to(root / "manifests").parts
        if len(parts) == 4 and all(map(_OLLAMA_PART.fullmatch, parts)):
            model = _read_ollama_manifest(root, path, parts, problems)
            if model is not None:
                found.setdefault(model.path, []).append(model)
    for models in found.values():
        first = min(models, key=lambda each: (each.name.endswith(":latest"), len(each.name), each.name))
        names = {each: None for model in (first, *models) for each in (model.name, *model.aliases)}
        side_files = next((each.side_files for each in (first, *models) if each.side_files), ())
        yield StoredModel(
            Store.OLLAMA, first.name, first.path, tuple(names)[1:], first.repo, None, first.sha256, side_files
        )


def _read_ollama_manifest(
    root: Path, path: Path, parts: tuple[str, ...], problems: list[StoreProblem]
) -> StoredModel | None:
    host, namespace, name, tag = parts
    shown = f"{name}:{tag}"
    if host != _OLLAMA_HOST:
        shown = f"{host}/{namespace}/{shown}"
    elif namespace != _OLLAMA_LIBRARY:
        shown = f"{namespace}/{shown}"
    layers = parse_object(_read_text(path)).get("layers")
    if not isinstance(layers, list):
        problems.append(_incomplete_problem(Store.OLLAMA, path, shown, f"ollama pull {shown}"))
        return None
    blobs: dict[str, list[Path]] = {}
    for layer in layers:
        kind, digest = (layer.get("mediaType"), layer.get("digest")) if isinstance(layer, dict) else (None, None)
        sha256 = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
        if sha256 and isinstance(kind, str):
            blobs.setdefault(kind.removeprefix(_LAYER), []).append(root / "blobs" / f"sha256-{sha256[1]}")
    if not blobs.get("model"):
        return None  # a model for another engine, or one of Ollama's cloud
    blob = blobs["model"][0]
    if len(blobs["model"]) > 1 or not blob.is_file():
        problems.append(_incomplete_problem(Store.OLLAMA, path, shown, f"ollama pull {shown}"))
        return None
    aliases = [shown.removesuffix(":latest")] if tag == "latest" else []
    if host in _HUB_HOSTS:
        aliases.append(f"{namespace}/{name}:{tag}")
    return StoredModel(
        Store.OLLAMA,
        shown,
        blob,
        tuple(aliases),
        None,
        None,
        blob.name.removeprefix("sha256-"),
        tuple(each for kind in ("projector", "draft") for each in blobs.get(kind, ()) if each.is_file()),
    )


def _incomplete_problem(store: Store, path: Path, name: str, command: str) -> StoreProblem:
    return StoreProblem(
        store,
        path,
        message(
            "{store}'s {name} is incomplete. `{command}` completes it.", store=store.title, name=name, command=command
        ),
    )


# LM Studio.


def _lm_studio_homes(known: _Surroundings) -> list[Path]:
    return [expand_user(each) for each in (known.lm_studio_home, "~/.lmstudio", "~/.cache/lm-studio") if each]


def _lm_studio_folders(known: _Surroundings) -> Iterator[StoreFolder]:
    homes = _lm_studio_homes(known)
    folders = _config_folders(dict(known.environment), known.platform)
    for path in (
        *(each / "settings.json" for each in homes),
        *(each / "LM Studio" / "settings.json" for each in folders),
    ):
        chosen = parse_object(_read_text(path)).get("downloadsFolder")
        if isinstance(chosen, str) and chosen.strip():
            yield StoreFolder(Store.LM_STUDIO, expand_user(chosen), named=True)
    yield from (StoreFolder(Store.LM_STUDIO, home / "models") for home in homes)


def _scan_lm_studio(root: Path, problems: list[StoreProblem]) -> Iterator[StoredModel]:
    for path in _walk_files(root, Store.LM_STUDIO, problems, ".gguf"):
        parts = path.relative_to(root).parts
        name = "/".join(parts)
        repo, file = ("/".join(parts[:2]), "/".join(parts[2:])) if len(parts) > 2 else (None, None)
        yield StoredModel(Store.LM_STUDIO, name, path, (name[: -len(".gguf")],), repo, file)


# Jan.


def _jan_homes(folders: Iterable[Path]) -> list[Path]:
    return [folder / name for folder in folders for name in ("Jan", "jan.ai.app")]


def _jan_folders(environ: Mapping[str, str], platform: str) -> Iterator[StoreFolder]:
    if chosen := environ.get("JAN_DATA_FOLDER"):
        yield StoreFolder(Store.JAN, expand_user(chosen), named=True)
    homes = _jan_homes(_config_folders(environ, platform))
    for home in homes:
        chosen = parse_object(_read_text(home / "settings.json")).get("data_folder")
        if isinstance(chosen, str) and chosen.strip():
            yield StoreFolder(Store.JAN, expand_user(chosen), named=True)
    yield from (StoreFolder(Store.JAN, home / "data") for home in homes)


def _scan_jan(root: Path, problems: list[StoreProblem]) -> Iterator[StoredModel]:
    """Yield the models that a description names: model.yml now; before, NAME.yml or model.json in `models`."""
    for folder in (root / "llamacpp" / "models", root / "models"):
        for path in _walk_files(folder, Store.JAN, problems, ".yml", "model.json") if folder.is_dir() else ():
            described = parse_object(_read_text(path)) if path.suffix == ".json" else _read_yaml(path)
            files = _jan_files(described)
            if not files:
                continue
            name = path.parent.relative_to(folder).as_posix()
            if path.name not in ("model.yml", "model.json"):
                name = path.stem
            model = next((each for file in files if (each := _jan_path(file, root, path.parent)).is_file()), None)
            if model is None:
                problems.append(
                    StoreProblem(
                        Store.JAN,
                        path,
                        message("Jan's {name} names {file}, which is not there.", name=name, file=files[0]),
                    )
                )
                continue
            aliases = [described.get(key) for key in ("id", "model", "name")]
            projector = described.get("mmproj_path")
            side_files = [_jan_path(projector, root, path.parent)] if isinstance(projector, str) and projector else []
            yield StoredModel(
                Store.JAN,
                name,
                model,
                tuple(dict.fromkeys(each for each in aliases if isinstance(each, str) and each != name)),
                side_files=tuple(each for each in side_files if each.is_file()),
            )


def _jan_files(described: Mapping[str, Any]) -> list[str]:
    sources = described.get("sources")
    named = [
        described.get("model_path"),
        *(described.get("files") or []),
        *(each.get("filename") for each in (sources if isinstance(sources, list) else []) if isinstance(each, dict)),
    ]
    return [each for each in named if isinstance(each, str) and each]


def _jan_path(file: str, root: Path, description_folder: Path) -> Path:
    """Return the path of a file as Jan writes it: absolute, from the data folder, or from its description."""
    path = expand_user(file)
    if path.is_absolute():
        return path
    return root / path if (root / path).exists() else description_folder / path


def _read_yaml(path: Path) -> dict[str, Any]:
    """Return the texts and lists of texts at the top level of a YAML file, which is all that Jan's need."""
    values: dict[str, Any] = {}
    key = ""
    for line in (_read_text(path) or "").splitlines():
        if line.lstrip().startswith("- ") and isinstance(values.get(key), list):
            values[key].append(_unquote(line.lstrip()[2:]))
        elif line[:1].strip() and line[0] != "#" and ":" in line:
            key, _, value = line.partition(":")
            values[key.strip()] = _unquote(value) or []
    return values


def _unquote(text: str) -> str:
    """Return a scalar without its quotes, or without the comment after it."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return text.partition(" #")[0].rstrip()


# llama.cpp and the hub's tools.


def _scan_llama_cpp(root: Path, problems: list[StoreProblem]) -> Iterator[StoredModel]:
    """Yield the models of the flat folder, by the name that -hf takes if a manifest has it, and of the hub's layout."""
    try:
        entries = sorted(entry.name for entry in os.scandir(root))
    except OSError as error:
        problems.append(_unreadable_problem(Store.LLAMA_CPP, root, error))
        return
    named: dict[str, StoredModel] = {}
    for manifest in filter(None, map(_MANIFEST.fullmatch, entries)):
        repo = f"{manifest['owner']}/{manifest['name']}"
        path, shown = root / manifest.string, f"{repo}:{manifest['tag']}"
        manifest_data = parse_object(_read_text(path))
        file, projector = (_hub_file_name(manifest_data.get(key)) for key in ("ggufFile", "mmprojFile"))
        if file is None:
            problems.append(_incomplete_problem(Store.LLAMA_CPP, path, shown, f"llama-server -hf {shown}"))
            continue
        local, local_projector = (f"{repo}_{each}".replace("/", "_") if each else "" for each in (file, projector))
        known = named.get(local)
        aliases = (*known.aliases, shown) if known else ()
        side_files = (root / local_projector,) if local_projector in entries else ()
        named[local] = StoredModel(
            Store.LLAMA_CPP, known.name if known else shown, root / local, aliases, repo, file, side_files=side_files
        )
    for name in entries:
        if name.endswith(".gguf"):
            yield named.get(name) or StoredModel(Store.LLAMA_CPP, name[: -len(".gguf")], root / name, (name,))
    yield from _scan_hub(root, problems, Store.LLAMA_CPP)


def _hub_file_name(file: object) -> str | None:
    name = file.get("rfilename") if isinstance(file, dict) else None
    return name if isinstance(name, str) and name else None


def _scan_hub(root: Path, _problems: list[StoreProblem], store: Store = Store.HUB) -> Iterator[StoredModel]:
    for each in list_cached_models((root,)):
        yield StoredModel(store, f"{each.repo}:{each.file}", each.path, (), each.repo, each.file)


# Reading.


def _config_folders(environ: Mapping[str, str], platform: str) -> tuple[Path, ...]:
    """Return the folders in which desktop programs keep settings and data."""
    if platform == "win32":
        return (Path(environ.get("APPDATA") or expand_user("~/AppData/Roaming")),)
    if platform == "darwin":
        return (expand_user("~/Library/Application Support"),)
    names = (("XDG_DATA_HOME", "~/.local/share"), ("XDG_CONFIG_HOME", "~/.config"))
    return tuple(expand_user(environ.get(name) or usual) for name, usual in names)


def _walk_files(
    folder: Path, store: Store, problems: list[StoreProblem], *endings: str, depth: int = _DEPTH
) -> Iterator[Path]:
    """Yield the files below a folder whose names have one of `endings`, links followed, in the order of their names."""
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        problems.append(_unreadable_problem(store, folder, error))
        return
    for entry in entries:
        try:
            is_folder = entry.is_dir()
        except OSError:
            continue
        if is_folder and depth:
            yield from _walk_files(folder / entry.name, store, problems, *endings, depth=depth - 1)
        elif not is_folder and (not endings or entry.name.lower().endswith(endings)) and not entry.name.startswith("."):
            yield folder / entry.name


def _read_text(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8-sig", "replace")
    except (OSError, ValueError):
        return None
