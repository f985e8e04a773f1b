"""Read-only access to the download caches of huggingface_hub and llama.cpp.

Layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache. llama.cpp uses the same layout, and a flat
folder for downloads by URL (common/hf-cache.cpp, common/common.cpp).
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.base.paths import expand_user

_SHA256 = re.compile(r"[0-9a-f]{64}")
_REPO_PREFIX = "models--"
_HUB_ROOTS = (
    ("HF_HUB_CACHE", ""),
    ("HUGGINGFACE_HUB_CACHE", ""),
    ("HF_HOME", "hub"),
    ("XDG_CACHE_HOME", "huggingface/hub"),
)
"""Environment variables that place huggingface_hub's cache, the first one set counts, and the folder below each."""


def is_hub_offline() -> bool:
    """Return whether HF_HUB_OFFLINE is set: the hub must not be asked, its cache may be read."""
    return os.environ.get("HF_HUB_OFFLINE", "").strip().lower() in ("1", "on", "yes", "true")


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file in a cache: its path, and the repository, commit and file name that the cache records for it."""

    path: Path
    repo: str
    revision: str
    file: str

    @property
    def claimed_sha256(self) -> str | None:
        """The SHA-256 that the cache records, unverified; None if it records none."""
        return claimed_sha256(self.path)


def cache_roots(environ: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Return the caches in this layout: llama.cpp's, then huggingface_hub's, which ignores LLAMA_CACHE."""
    environ = os.environ if environ is None else environ
    hub = next(
        (Path(environ[name], subfolder) for name, subfolder in _HUB_ROOTS if environ.get(name)),
        Path("~/.cache/huggingface/hub"),
    )
    llama = environ.get("LLAMA_CACHE")
    roots = [Path(llama), hub] if llama else [hub]
    return tuple(dict.fromkeys(map(expand_user, roots)))


def flat_cache_root(environ: Mapping[str, str] | None = None, platform: str = sys.platform) -> Path:
    """Return the folder for llama.cpp's downloads by URL (-mu); older builds put all downloads there."""
    environ = os.environ if environ is None else environ
    if chosen := environ.get("LLAMA_CACHE"):
        return expand_user(chosen)
    if platform == "win32":
        return Path(environ.get("LOCALAPPDATA") or expand_user("~/AppData/Local"), "llama.cpp")
    if platform == "darwin":
        return expand_user("~/Library/Caches/llama.cpp")
    return expand_user(Path(environ.get("XDG_CACHE_HOME") or "~/.cache", "llama.cpp"))


def find_cached_files(repo: str, files: Sequence[str], revision: str | None = None) -> Iterator[tuple[Path, ...]]:
    """Yield the paths of a repository's `files` in each cache folder that has all of them, `revision` first.

    The content is not checked.
    """
    for root in cache_roots():
        snapshots = root / f"{_REPO_PREFIX}{repo.replace('/', '--')}" / "snapshots"
        commits = sorted(_list_folder(snapshots), key=lambda path: (path.name != revision, -_modified(path)))
        for commit in commits:
            yield from _if_complete([commit.joinpath(*file.split("/")) for file in files])
    flat = flat_cache_root()
    with_repo = [f"{repo}_{file}".replace("/", "_") for file in files]
    without_repo = [file.rpartition("/")[2] for file in files]
    for names in (with_repo, without_repo):
        yield from _if_complete([flat / name for name in names])


def list_cached_models(roots: Sequence[Path] | None = None) -> Iterator[CachedFile]:
    """Yield each GGUF file in the caches (default: all) once, even if several commits share it."""
    seen: set[Path] = set()
    for root in cache_roots() if roots is None else roots:
        for repository in _list_folder(root):
            if not repository.name.startswith(_REPO_PREFIX):
                continue
            repo = repository.name.removeprefix(_REPO_PREFIX).replace("--", "/", 1)
            for commit in sorted(_list_folder(repository / "snapshots"), key=_modified, reverse=True):
                for path in sorted(commit.rglob("*.gguf")):
                    if path.is_file() and (blob := path.resolve()) not in seen:
                        seen.add(blob)
                        yield CachedFile(path, repo, commit.name, path.relative_to(commit).as_posix())


def is_in_cache(path: Path) -> bool:
    """Return True if a path lies in one of the caches, which belong to other programs."""
    return any(path.is_relative_to(root) for root in (*cache_roots(), flat_cache_root()))


def claimed_sha256(path: Path) -> str | None:
    """Return the SHA-256 in the name of the blob that a cache link points to, unverified; None if the name is not a
    hash.
    """
    try:
        name = path.resolve(strict=True).name
    except OSError:
        return None
    return name if _SHA256.fullmatch(name) else None


def _if_complete(paths: list[Path]) -> Iterator[tuple[Path, ...]]:
    if all(path.is_file() for path in paths):
        yield tuple(paths)


def _list_folder(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
