"""GGUF headers on a server, read before anything is downloaded: some MB in place of many GB."""

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from launcher.base.errors import ModelBroken, ModelMissing, Refused
from launcher.base.files import write_atomically
from launcher.base.http_ranges import RangeReader
from launcher.base.paths import cache_dir
from launcher.fetch.hub import HubEntry, HubFile, resolve, token
from launcher.models.gguf_header import GgufHeader, GgufModel, join_parts, part_names
from launcher.models.gguf_parser import MAX_HEADER_BYTES, parse_header
from launcher.models.header_summary import keep_summary, kept_summary

_REMEDY = "The file on the server is no better: choose another one."
_NAMED = 3
"""So many missing parts are looked for and named."""
_KEPT_BYTES = 2**29
"""What all kept headers may take; those used longest ago go first."""


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model on the hub: its header, what the hub says of each of its files, and each file's beginning.

    A raw header reaches from the file's first byte to where the tensors' data begin.
    """

    model: GgufModel
    entries: tuple[HubEntry, ...]
    raw_headers: tuple[bytes, ...]


def read_remote_header(url: str, *, token: str | None = None) -> tuple[GgufHeader, bytes]:
    """Read the header of the GGUF file at `url`, and return it with the bytes that it takes in the file.

    Raises ModelBroken when it is none, Refused or Unreachable when the server does not send it.
    """
    path = PurePosixPath(unquote(urlsplit(url).path))
    with RangeReader(url, token=token, limit_bytes=MAX_HEADER_BYTES) as reader:
        header = parse_header(reader, path, reader.size, remedy=_REMEDY)
        reader.seek(0)
        return header, reader.read(header.data_offset).ljust(header.data_offset, b"\0")


def read_remote_model(file: HubFile) -> RemoteModel:
    """Read the headers of the model that `file` belongs to: itself, or all parts of a split model.

    What was read is kept in the cache folder by its hash, so asking again costs one HEAD for each file.
    Raises what `resolve` and `read_remote_header` raise; ModelMissing names the parts that are not there.
    """
    entry = resolve(file)
    header, raw = _read_entry(file, entry)
    count = header.split_count
    if count == 1:
        return RemoteModel(join_parts([header]), (entry,), (raw,))
    path = PurePosixPath(file.path)
    names = part_names(path.name, count)
    if names is None:
        raise ModelMissing(
            f"{path.name} is one of {count} parts of a model but not named like one: the others cannot be found.",
            "Choose another file.",
            file=str(file),
        )
    parts: list[tuple[HubFile, HubEntry]] = []
    missing: list[str] = []
    for name in names:
        part = replace(file, path=str(path.with_name(name)), revision=entry.revision)
        try:
            parts.append((part, entry if name == path.name else resolve(part)))
        except ModelMissing:
            missing.append(name)
            if len(missing) == _NAMED:
                break
    if missing:
        raise ModelMissing(
            f"{file.repo} has not all {count} parts of {path.name}: {', '.join(missing)}.",
            "Choose another file.",
            file=str(file),
            missing=missing,
        )
    read = [(header, raw) if part.path == file.path else _read_entry(part, its) for part, its in parts]
    model = join_parts([header for header, _ in read])
    return RemoteModel(model, tuple(its for _, its in parts), tuple(raw for _, raw in read))


def _read_entry(file: HubFile, entry: HubEntry) -> tuple[GgufHeader, bytes]:
    """Return a file's header and its bytes, from the cache folder when they are there."""
    kept = _kept_path(entry)
    with suppress(OSError, ModelBroken):
        raw = kept.read_bytes()
        header = parse_header(BytesIO(raw), PurePosixPath(file.path), entry.bytes)
        if header.data_offset == len(raw):
            os.utime(kept)
            _summarise(entry, header)
            return header, raw
    header, raw = read_remote_header(entry.url, token=token())
    if header.file_bytes != entry.bytes:
        raise Refused(f"{file} has {header.file_bytes:,} bytes in place of {entry.bytes:,}.", "Try again.")
    header = replace(header, path=PurePosixPath(file.path))
    with suppress(OSError):  # a full disk is no reason not to answer
        write_atomically(kept, raw)
        _forget_oldest(kept.parent)
    _summarise(entry, header)
    return header, raw


def _summarise(entry: HubEntry, header: GgufHeader) -> None:
    """Keep what plans need of the header of a whole model."""
    if entry.sha256 and header.split_count == 1 and kept_summary(entry.sha256) is None:
        with suppress(OSError):
            keep_summary(entry.sha256, header)


def _kept_path(entry: HubEntry) -> Path:
    content = entry.sha256 or hashlib.sha256(f"{entry.url} {entry.etag} {entry.bytes}".encode()).hexdigest()
    return cache_dir() / "headers" / content


def _forget_oldest(folder: Path) -> None:
    files = sorted(((path.stat(), path) for path in folder.iterdir()), key=lambda kept: -kept[0].st_mtime)
    total = 0
    for stat, path in files:
        total += stat.st_size
        if total > _KEPT_BYTES:
            path.unlink()
