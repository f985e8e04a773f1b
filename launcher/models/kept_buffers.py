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
from launcher.models import compute_buffers as buffers_module
from launcher.models import compute_graph
from launcher.models import geometry as geometry_module
from launcher.models.compute_buffers import ComputeBuffers, ComputeSetting, compute_buffers
from launcher.models.geometry import Geometry

_MOST_SETTINGS = 6_000
"""The most settings in the file, about 0.6 MB. With more, all old ones are dropped."""
_KEY_BYTES = 12

SizesByKey = dict[str, list[Any]]
"""The fields of ComputeBuffers by a hash of geometry and setting."""


@lru_cache(maxsize=4_096)
def find_compute_buffers(geometry: Geometry, setting: ComputeSetting) -> ComputeBuffers:
    """Return what `compute_buffers` returns, from the file if it was computed before."""
    store = _open_store(os.environ.get(HOME_VARIABLE))
    key = hashlib.blake2b(f"{_geometry_text(geometry)} {setting}".encode(), digest_size=_KEY_BYTES).hexdigest()
    if key not in store.sizes:
        store.add(key, compute_buffers(geometry, setting))
    target, draft, target_host, draft_host, staging, by_device, exact = store.sizes[key]
    return ComputeBuffers(target, draft, target_host, draft_host, staging, tuple(map(tuple, by_device)), exact)


def _file_path() -> Path:
    return cache_dir() / "compute-buffers.json"


@lru_cache(maxsize=256)
def _geometry_text(geometry: Geometry) -> str:
    return repr(geometry)


class _Store:
    """The sizes in one file, and those to add to it when this process ends. `_home` is the key of `_open_store`."""

    def __init__(self, _home: str | None) -> None:
        self.path = _file_path()
        self.sizes = self._load()
        self.new: SizesByKey = {}

    def _load(self) -> SizesByKey:
        with suppress(OSError):
            return _FILE.load(self.path)
        return {}

    def add(self, key: str, buffers: ComputeBuffers) -> None:
        """Add the sizes of a setting."""
        if not self.new:
            atexit.register(self.save)
        self.sizes[key] = self.new[key] = [
            buffers.target,
            buffers.draft,
            buffers.target_host,
            buffers.draft_host,
            buffers.staging,
            buffers.by_device,
            buffers.exact,
        ]

    def save(self) -> None:
        """Add the new sizes to the file, which other processes may have changed meanwhile."""
        if self.path != _file_path():  # the home was changed meanwhile, as tests do
            return
        old = self._load()
        sizes = (old if len(old) + len(self.new) <= _MOST_SETTINGS else {}) | self.new
        body = json.dumps({"made_by": _describe_formula(), "sizes": sizes}, separators=(",", ":")).encode()
        with suppress(OSError):
            write_atomically(self.path, add_checksum(body))


_open_store = cache(_Store)


@cache
def _describe_formula() -> str:
    """Return a hash of the program's version and of the modules that compute the sizes: in development, modules change
    without a new version.
    """
    digest = hashlib.blake2b(__version__.encode(), digest_size=_KEY_BYTES)
    for module in (buffers_module, compute_graph, geometry_module):
        with suppress(OSError):
            digest.update(Path(str(module.__file__)).read_bytes())
    return digest.hexdigest()


def _parse(text: bytes) -> SizesByKey:
    data = json.loads(remove_checksum(text))
    sizes: SizesByKey = data["sizes"] if data["made_by"] == _describe_formula() else {}
    return sizes


_FILE: KeptFile[SizesByKey] = KeptFile(
    "The sizes of compute buffers", _parse, dict, recreatable=True, quiet=True, consequence="they are computed again"
)
