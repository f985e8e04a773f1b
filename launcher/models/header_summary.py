"""What plans need of a file's header that was read once, kept as JSON by the file's checksum.

A header with a vocabulary of 248,320 tokens takes 50 to 100 ms to read, its summary less than one.
"""

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from launcher import __version__
from launcher.base.errors import GeometryUnknown
from launcher.base.files import write_atomically
from launcher.base.paths import cache_dir
from launcher.models.catalogue import ModelEntry, ModelFile
from launcher.models.catalogue_load import build
from launcher.models.geometry import Geometry, geometry_of
from launcher.models.gguf_header import GgufHeader
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
    summary = kept_summary(file.sha256) if file.sha256 and not file.parts else None
    if summary is None:
        return entry, file, weights_by_rules(entry, file, entry.geometry) if entry.geometry else None
    file = replace(file, size_bytes=file.size_bytes or summary.size_bytes, has_head=summary.has_head)
    return replace(entry, geometry=summary.geometry), file, summary.weights


def keep_summary(sha256: str, header: GgufHeader) -> None:
    """Keep the summary of a file's header; none of a model whose memory no formula here knows. Raises OSError."""
    with suppress(GeometryUnknown):
        geometry = geometry_of(header)
        weights = weights_of(header, geometry)
        body = json.dumps(asdict(HeaderSummary(header.file_bytes, header.has_mtp_head, geometry, weights))).encode()
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


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode() + b"\n"


_DIGEST_BYTES = len(_digest(b""))


def _path(sha256: str) -> Path:
    return cache_dir() / "header-summaries" / f"{sha256}.json"
