"""Reads GGUF headers of files on the hub without downloading the whole file: some MB instead of many GB."""

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
from launcher.base.messages import message
from launcher.base.paths import cache_dir
from launcher.fetch.hub import HubEntry, HubFile, hub_token, resolve_file
from launcher.models.gguf import (
    MAX_HEADER_BYTES,
    GgufHeader,
    GgufModel,
    isolate_head,
    join_parts,
    parse_header,
    part_names,
)
from launcher.models.header_summary import load_summary, store_summary

_REMEDY = message("The file on the server has the same problem. Choose another one.")
_NAMED = 3
"""Missing parts that are named in an error; the search ends there."""
_KEPT_BYTES = 2**29
"""Limit of the header cache, in bytes; the least recently used headers are deleted first."""


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model on the hub: its header, and for each of its files the hub's entry and the raw header.

    A raw header is the bytes from the start of the file to its tensor data.
    """

    model: GgufModel
    entries: tuple[HubEntry, ...]
    raw_headers: tuple[bytes, ...]


def read_remote_header(url: str, *, token: str | None = None) -> tuple[GgufHeader, bytes]:
    """Read the header of the GGUF file at `url`. Returns it parsed and as raw bytes.

    Raises ModelBroken if the file is not a valid GGUF, Refused or Unreachable if the server does not send it.
    """
    path = PurePosixPath(unquote(urlsplit(url).path))
    with RangeReader(url, token=token, limit_bytes=MAX_HEADER_BYTES) as reader:
        header = parse_header(reader, path, reader.size, remedy=_REMEDY)
        reader.seek(0)
        return header, reader.read(header.data_offset).ljust(header.data_offset, b"\0")


def read_remote_model(file: HubFile) -> RemoteModel:
    """Read the headers of a model on the hub: of `file`, or of all parts of a split model.

    Headers are cached by the file's hash, so a repeated call costs one HEAD request per file. Raises the errors of
    `resolve_file` and `read_remote_header`, and ModelMissing, with their names, if parts are missing.
    """
    entry = resolve_file(file)
    header, raw = _read_entry(file, entry)
    count = header.split_count
    if count == 1:
        model = join_parts([header])
        _store_summary(entry, isolate_head(model))
        return RemoteModel(model, (entry,), (raw,))
    path = PurePosixPath(file.path)
    names = part_names(path.name, count)
    if names is None:
        raise ModelMissing(
            message(
                "{name} is one of {count} parts of a model but was renamed, so the other parts cannot be found.",
                name=path.name,
                count=count,
            ),
            message("Choose another file."),
            file=str(file),
        )
    parts: list[tuple[HubFile, HubEntry]] = []
    missing: list[str] = []
    for name in names:
        part = replace(file, path=str(path.with_name(name)), revision=entry.revision)
        try:
            parts.append((part, entry if name == path.name else resolve_file(part)))
        except ModelMissing:
            missing.append(name)
            if len(missing) == _NAMED:
                break
    if missing:
        raise ModelMissing(
            message(
                "{repo} lacks some of the {count} parts of {name}: {missing}.",
                repo=file.repo,
                count=count,
                name=path.name,
                missing=", ".join(missing),
            ),
            message("Choose another file."),
            file=str(file),
            missing=missing,
        )
    read = [(header, raw) if part.path == file.path else _read_entry(part, part_entry) for part, part_entry in parts]
    model = join_parts([header for header, _ in read])
    _store_summary(parts[0][1], model)
    return RemoteModel(model, tuple(part_entry for _, part_entry in parts), tuple(raw for _, raw in read))


def _read_entry(file: HubFile, entry: HubEntry) -> tuple[GgufHeader, bytes]:
    """Return a file's header, parsed and raw, from the cache folder if it is there."""
    cached = _cache_path(entry)
    with suppress(OSError, ModelBroken):
        raw = cached.read_bytes()
        header = parse_header(BytesIO(raw), PurePosixPath(file.path), entry.bytes)
        if header.data_offset == len(raw):
            os.utime(cached)  # a new time, by which `_delete_oldest` knows the last use
            return header, raw
    header, raw = read_remote_header(entry.url, token=hub_token())
    if header.file_bytes != entry.bytes:
        raise Refused(
            message(
                "{file} has {file_bytes:,} bytes instead of {bytes:,}.",
                file=file,
                file_bytes=header.file_bytes,
                bytes=entry.bytes,
            ),
            message("Try again."),
        )
    header = replace(header, path=PurePosixPath(file.path))
    with suppress(OSError):  # a full disk must not prevent the reply
        write_atomically(cached, raw)
        _delete_oldest(cached.parent)
    return header, raw


def _store_summary(entry: HubEntry, model: GgufModel) -> None:
    """Store the header summary that plans use; that of a split model under the SHA-256 of its first part."""
    if entry.sha256 and load_summary(entry.sha256) is None:
        with suppress(OSError):
            store_summary(entry.sha256, model)


def _cache_path(entry: HubEntry) -> Path:
    content = entry.sha256 or hashlib.sha256(f"{entry.url} {entry.etag} {entry.bytes}".encode()).hexdigest()
    return cache_dir() / "headers" / content


def _delete_oldest(folder: Path) -> None:
    files = sorted(((path.stat(), path) for path in folder.iterdir()), key=lambda file: -file[0].st_mtime)
    total = 0
    for stat, path in files:
        total += stat.st_size
        if total > _KEPT_BYTES:
            path.unlink()
