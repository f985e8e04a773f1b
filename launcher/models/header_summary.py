"""What plans need of a file's header: of one on this disk at once, of one on the hub when it was read before.

A header with a vocabulary of 248,320 tokens takes 30 to 100 ms to read. Of the hub's files the summary is kept as JSON
by the checksum.
"""

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

from launcher import __version__
from launcher.base.errors import GeometryUnknown, LauncherError
from launcher.base.files import write_atomically
from launcher.base.paths import cache_dir
from launcher.models.catalogue import ModelEntry, ModelFile
from launcher.models.catalogue_load import build
from launcher.models.geometry import Geometry, geometry_of
from launcher.models.gguf import read_model
from launcher.models.gguf_header import GgufHeader, GgufModel
from launcher.models.memory import DraftModel
from launcher.models.weights import Weights, weights_by_rules, weights_of


@dataclass(frozen=True, slots=True)
class HeaderSummary:
    """A file's size, geometry and weights, whether the MTP head is inside, and the program's version that read it."""

    size_bytes: int
    has_head: bool
    geometry: Geometry
    weights: Weights
    version: str = __version__


def known_of(entry: ModelEntry, file: ModelFile) -> tuple[ModelEntry, ModelFile, Weights | None]:
    """Return a model with one file's geometry, that file, and its weights, None while these are unknown.

    Its header has the last word where it was read, else the catalogue and its rules.
    """
    if entry.repo is None:
        summary = _summary_here(Path(file.file))
    else:
        summary = kept_summary(file.sha256) if file.sha256 and not file.parts else None
    if summary is None:
        return entry, file, weights_by_rules(entry, file, entry.geometry) if entry.geometry else None
    file = replace(file, size_bytes=file.size_bytes or summary.size_bytes, has_head=summary.has_head)
    return replace(entry, geometry=summary.geometry), file, summary.weights


def draft_of(entry: ModelEntry) -> DraftModel | None:
    """Return the draft beside a model, as its header states it; None where there is none, or its header is not read."""
    if entry.draft is None:
        return None
    if entry.draft.repo or entry.repo:
        summary = kept_summary(entry.draft.sha256) if entry.draft.sha256 else None
    else:
        summary = _summary_here(Path(entry.draft.file))
    return DraftModel(summary.geometry, summary.weights) if summary else None


def keep_summary(sha256: str, header: GgufHeader) -> None:
    """Keep the summary of a file's header; none of a model whose memory no formula here knows. Raises OSError."""
    with suppress(GeometryUnknown):
        body = json.dumps(asdict(_summary_of(header))).encode()
        write_atomically(_path(sha256), _digest(body) + body)


def kept_summary(sha256: str) -> HeaderSummary | None:
    """Return the summary for a file's checksum; None when its header was not read by this version, or is damaged."""
    with suppress(OSError, TypeError):  # TypeError: a field that is new since
        text = _path(sha256).read_bytes()
        body = text[_DIGEST_BYTES:]
        if text[:_DIGEST_BYTES] == _digest(body):
            data = json.loads(body)
            summary = build(HeaderSummary, data)
            if summary.version == __version__ and json.loads(json.dumps(asdict(summary))) == data:
                return summary
    return None


def _summary_of(header: GgufHeader | GgufModel) -> HeaderSummary:
    geometry = geometry_of(header)
    return HeaderSummary(header.file_bytes, header.has_mtp_head, geometry, weights_of(header, geometry))


def _summary_here(path: Path) -> HeaderSummary | None:
    """Read a file on this disk; None where it is not there, or makes no sense: `estimate` says what is wrong with it.

    A path that is not absolute belongs to no folder: the demo's, which is unpacked only when it is served.
    """
    try:
        stat = path.stat() if path.is_absolute() else None
    except (OSError, ValueError):
        return None
    return _read_once(path, stat.st_size, stat.st_mtime_ns) if stat else None


@lru_cache(maxsize=16)
def _read_once(path: Path, _size: int, _modified_ns: int) -> HeaderSummary | None:
    try:
        return _summary_of(read_model(path))
    except LauncherError:
        return None


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode() + b"\n"


_DIGEST_BYTES = len(_digest(b""))


def _path(sha256: str) -> Path:
    return cache_dir() / "header-summaries" / f"{sha256}.json"
