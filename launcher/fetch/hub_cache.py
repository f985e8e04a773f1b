"""The caches in which the hub's own tools and llama.cpp keep what they have downloaded. They are only read here.

Layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache. llama.cpp keeps to it too, and
to a flat folder for what it gets by address (common/hf-cache.cpp, common/common.cpp).
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.base.paths import expanded

_SHA256 = re.compile(r"[0-9a-f]{64}")
_REPOSITORY = "models--"
_HUB_ROOTS = (
    ("HF_HUB_CACHE", ""),
    ("HUGGINGFACE_HUB_CACHE", ""),
    ("HF_HOME", "hub"),
    ("XDG_CACHE_HOME", "huggingface/hub"),
)


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file in a cache: where it lies, and the repository, commit and name there that it has by the cache."""

    path: Path
    repo: str
    revision: str
    file: str

    @property
    def claimed_sha256(self) -> str | None:
        """What the tool that wrote it was told its SHA-256 is, which nobody may have checked; None when not kept."""
        return claimed_sha256(self.path)


def cache_roots(environ: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Return the folders in this layout: llama.cpp's, then huggingface_hub's, which does not know LLAMA_CACHE."""
    environ = os.environ if environ is None else environ
    hub = next(
        (Path(environ[name], below) for name, below in _HUB_ROOTS if environ.get(name)),
        Path("~/.cache/huggingface/hub"),
    )
    llama = environ.get("LLAMA_CACHE")
    return tuple(dict.fromkeys(map(expanded, [Path(llama), hub] if llama else [hub])))


def flat_root(environ: Mapping[str, str] | None = None, platform: str = sys.platform) -> Path:
    """Return the folder in which llama.cpp keeps what it gets by address (-mu), and older builds all they get."""
    environ = os.environ if environ is None else environ
    if chosen := environ.get("LLAMA_CACHE"):
        return expanded(chosen)
    if platform == "win32":
        return Path(environ.get("LOCALAPPDATA") or expanded("~/AppData/Local"), "llama.cpp")
    if platform == "darwin":
        return expanded("~/Library/Caches/llama.cpp")
    return expanded(Path(environ.get("XDG_CACHE_HOME") or "~/.cache", "llama.cpp"))


def find_cached(repo: str, files: Sequence[str], revision: str | None = None) -> Iterator[tuple[Path, ...]]:
    """Yield where all of a repository's `files` lie in one folder, those of `revision` first.

    Their names are kept, as the parts of a split model need them. What they hold is not looked at.
    """
    for root in cache_roots():
        snapshots = root / f"{_REPOSITORY}{repo.replace('/', '--')}" / "snapshots"
        commits = sorted(_entries(snapshots), key=lambda path: (path.name != revision, -_modified(path)))
        for commit in commits:
            yield from _all_there([commit.joinpath(*file.split("/")) for file in files])
    for naming in (lambda file: f"{repo}_{file}".replace("/", "_"), lambda file: file.rpartition("/")[2]):
        yield from _all_there([flat_root() / naming(file) for file in files])


def cached_models() -> Iterator[CachedFile]:
    """Yield every GGUF file in the caches, one that several commits share only once."""
    seen: set[Path] = set()
    for root in cache_roots():
        for repository in _entries(root):
            if not repository.name.startswith(_REPOSITORY):
                continue
            repo = repository.name.removeprefix(_REPOSITORY).replace("--", "/", 1)
            for commit in sorted(_entries(repository / "snapshots"), key=_modified, reverse=True):
                for path in sorted(commit.rglob("*.gguf")):
                    if path.is_file() and (real := path.resolve()) not in seen:
                        seen.add(real)
                        yield CachedFile(path, repo, commit.name, path.relative_to(commit).as_posix())


def is_cached(path: Path) -> bool:
    """Return whether a path lies in one of the caches, which belong to other programs."""
    return any(path.is_relative_to(root) for root in (*cache_roots(), flat_root()))


def claimed_sha256(path: Path) -> str | None:
    """Return what the name of the file that a cache's link leads to says of its SHA-256, which may be untrue."""
    try:
        name = path.resolve(strict=True).name
    except OSError:
        return None
    return name if _SHA256.fullmatch(name) else None


def _all_there(paths: list[Path]) -> Iterator[tuple[Path, ...]]:
    if all(path.is_file() for path in paths):
        yield tuple(paths)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
