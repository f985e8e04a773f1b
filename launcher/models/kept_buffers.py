"""Sizes of compute buffers that were computed before, kept in the cache folder.

Plans for all models of the catalogue need some hundred sizes, and one takes 1 to 10 ms to compute. They follow from
the model's geometry, the server settings and this program alone, so a hash of these three is their key. A file that
is damaged or cannot be written costs only time.
"""

import atexit
import hashlib
import json
import os
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from launcher import __version__
from launcher.base.files import write_atomically
from launcher.base.kept_files import KeptFile, add_checksum, remove_checksum
from launcher.base.paths import HOME_VARIABLE, cache_dir
from launcher.models import compute_buffers as formula
from launcher.models import compute_graph
from launcher.models import geometry as shape
from launcher.models.compute_buffers import ComputeBuffers, ComputeSetting, compute_buffers
from launcher.models.geometry import Geometry

_MOST = 6_000
"""Sizes in the file, about 0.6 MB; with more of them it is begun anew."""
_KEY_BYTES = 12

Kept = dict[str, list[Any]]


@lru_cache(maxsize=4_096)
def find_compute_buffers(geometry: Geometry, setting: ComputeSetting) -> ComputeBuffers:
    """Return what `compute_buffers` returns, from the file if it was computed before."""
    store = _open_store(os.environ.get(HOME_VARIABLE))
    key = hashlib.blake2b(f"{_geometry_text(geometry)} {setting}".encode(), digest_size=_KEY_BYTES).hexdigest()
    if key not in store.kept:
        store.add(key, compute_buffers(geometry, setting))
    target, draft, target_host, draft_host, staging, by_device, exact = store.kept[key]
    return ComputeBuffers(target, draft, target_host, draft_host, staging, tuple(map(tuple, by_device)), exact)


def _file_path() -> Path:
    return cache_dir() / "compute-buffers.json"


@lru_cache(maxsize=256)
def _geometry_text(geometry: Geometry) -> str:
    return repr(geometry)


class _Store:
    """The sizes in one file, and those to add to it when this process ends."""

    def __init__(self, _home: str | None) -> None:
        self.path = _file_path()
        self.kept = self._load()
        self.new: Kept = {}

    def _load(self) -> Kept:
        with suppress(OSError):
            return _FILE.load(self.path)
        return {}

    def add(self, key: str, buffers: ComputeBuffers) -> None:
        """Add the sizes of a setting."""
        if not self.new:
            atexit.register(self.save)
        self.kept[key] = self.new[key] = [
            buffers.target,
            buffers.draft,
            buffers.target_host,
            buffers.draft_host,
            buffers.staging,
            buffers.by_device,
            buffers.exact,
        ]

    def save(self) -> None:
        """Write the new sizes beside those that other processes wrote meanwhile."""
        if self.path != _file_path():  # the home was changed meanwhile, as tests do
            return
        before = self._load()
        sizes = (before if len(before) + len(self.new) <= _MOST else {}) | self.new
        body = json.dumps({"made_by": _describe_formula(), "sizes": sizes}, separators=(",", ":")).encode()
        with suppress(OSError):
            write_atomically(self.path, add_checksum(body))


_open_store = cache(_Store)


@cache
def _describe_formula() -> str:
    """Return the version and a hash of the modules that compute the sizes: in development both versions are equal."""
    found = hashlib.blake2b(__version__.encode(), digest_size=_KEY_BYTES)
    for module in (formula, compute_graph, shape):
        with suppress(OSError):
            found.update(Path(str(module.__file__)).read_bytes())
    return found.hexdigest()


def _parse(text: bytes) -> Kept:
    data = json.loads(remove_checksum(text))
    sizes: Kept = data["sizes"] if data["made_by"] == _describe_formula() else {}
    return sizes


_FILE: KeptFile[Kept] = KeptFile(
    "The sizes of compute buffers", _parse, dict, recreatable=True, quiet=True, consequence="they are computed again"
)
