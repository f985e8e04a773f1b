"""Summaries of GGUF headers for plans: of local files read on demand, of files on the hub from a cache.

Reading a header with a vocabulary of 248,320 tokens takes 30 to 100 ms. For files on the hub the summary is cached as
JSON by the file's SHA-256.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from launcher import __version__
from launcher.base.codec import decode_json, encode_json
from launcher.base.errors import GeometryUnknown, LauncherError
from launcher.base.files import write_atomically
from launcher.base.kept_files import KeptFile, add_checksum, remove_checksum
from launcher.base.paths import cache_dir
from launcher.models.catalogue import CompanionFile, ModelEntry, ModelFile
from launcher.models.geometry import Geometry, read_geometry
from launcher.models.gguf import GgufHeader, GgufModel, isolate_head, read_model
from launcher.models.memory import DraftModel
from launcher.models.weights import Weights, read_weights, weights_by_rules


@dataclass(frozen=True, slots=True)
class HeaderSummary:
    """The size, geometry and weights of a file, and the program version that read it.

    `has_head` is whether it has an MTP head, `embedding` whether it generates no text, `reranker` whether it ranks
    texts.
    """

    size_bytes: int
    has_head: bool
    geometry: Geometry
    weights: Weights
    embedding: bool = False
    reranker: bool = False
    version: str = __version__


def apply_header(entry: ModelEntry, file: ModelFile) -> tuple[ModelEntry, ModelFile, Weights | None]:
    """Return the entry with the file's geometry, the file, and its weights (None if unknown).

    The values come from the file's header if it was read, else from the catalogue and its rules.
    """
    described, file, weights = apply_summary(entry, file)
    if weights is None:
        weights = _weights_by_rules(_KnownPair(entry, file))
    return described, file, weights


def apply_summary(entry: ModelEntry, file: ModelFile) -> tuple[ModelEntry, ModelFile, Weights | None]:
    """Return the same as `apply_header`, but no weights by the catalogue's rules."""
    if entry.repo is None:
        summary = _summarise_local(Path(file.file))
    else:
        first_sha256 = file.parts[0].sha256 if file.parts else file.sha256
        summary = load_summary(first_sha256) if first_sha256 else None
    if summary is None:
        return entry, file, None
    file = replace(file, size_bytes=file.size_bytes or summary.size_bytes, has_head=summary.has_head)
    described = replace(entry, geometry=summary.geometry, embedding=summary.embedding, reranker=summary.reranker)
    return described, file, summary.weights


class _KnownPair:
    """Cache key of an entry and one of its files, compared by identity because comparing all values is slow."""

    __slots__ = ("entry", "file")

    def __init__(self, entry: ModelEntry, file: ModelFile) -> None:
        self.entry = entry
        self.file = file

    def __hash__(self) -> int:
        return hash((id(self.entry), id(self.file)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _KnownPair) and self.entry is other.entry and self.file is other.file


@lru_cache(maxsize=4_096)
def _weights_by_rules(known: _KnownPair) -> Weights | None:
    geometry = known.entry.geometry
    return weights_by_rules(known.entry, known.file, geometry) if geometry else None


def read_draft_model(entry: ModelEntry, draft: CompanionFile | None = None) -> DraftModel | None:
    """Return a separate draft model of an entry, by default its own; None if it has none or its header was not read."""
    draft = entry.draft if draft is None else draft
    if draft is None:
        return None
    if not draft.is_local and entry.repo_of(draft):
        summary = load_summary(draft.sha256) if draft.sha256 else None
    else:
        summary = _summarise_local(Path(draft.file))
    return DraftModel(summary.geometry, summary.weights) if summary else None


def store_summary(sha256: str, header: GgufHeader | GgufModel) -> None:
    """Store the summary of a model's header, unless its geometry is unknown. Raises OSError.

    `sha256` is that of its file, of a split model that of its first part.
    """
    with suppress(GeometryUnknown):
        write_atomically(_summary_path(sha256), add_checksum(encode_json(_summarise(header))))


def load_summary(sha256: str) -> HeaderSummary | None:
    """Return the stored summary for the SHA-256 of a model's first file.

    None if this version has not stored one, or it is damaged.
    """
    with suppress(OSError):
        return _FILE.load(_summary_path(sha256))
    return None


def _parse(text: bytes) -> HeaderSummary | None:
    summary = decode_json(HeaderSummary, remove_checksum(text))
    return summary if summary.version == __version__ else None


_FILE: KeptFile[HeaderSummary | None] = KeptFile(
    "The summary of a model's header", _parse, lambda: None, recreatable=True, consequence="it is read again"
)


def _summarise(header: GgufHeader | GgufModel) -> HeaderSummary:
    geometry = read_geometry(header)
    weights = read_weights(header, geometry)
    return HeaderSummary(
        header.file_bytes, header.has_mtp_head, geometry, weights, header.is_embedding, header.is_reranker
    )


def _summarise_local(path: Path) -> HeaderSummary | None:
    """Summarise a local file; None if it is missing or invalid (the command `estimate` explains why).

    A relative path is skipped: only the demo model has one, and its file exists only after the demo was served.
    """
    try:
        stat = path.stat() if path.is_absolute() else None
    except (OSError, ValueError):
        return None
    return _read_once(path, stat.st_size, stat.st_mtime_ns) if stat else None


@lru_cache(maxsize=16)
def _read_once(path: Path, _size: int, _modified_ns: int) -> HeaderSummary | None:
    try:
        return _summarise(isolate_head(read_model(path)))
    except LauncherError:
        return None


def _summary_path(sha256: str) -> Path:
    return cache_dir() / "header-summaries" / f"{sha256}.json"
