"""The journal of an unfinished download: the file's identity and the byte ranges that were received.

The first line is JSON. Each further line is a stretch, a range that grows from `begin`: the bytes up to `written` were
passed to the system, those up to `synced` were flushed to disk. A line is overwritten in place as its stretch grows. It
has a fixed width and a checksum, so that an incompletely written line is noticed and ignored. Data is always written
before its line: a killed program therefore loses nothing. After a power cut (another boot) only the bytes up to
`synced` count.
"""

import json
import os
import sys
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

from launcher.base.codec import encode_json, from_json, to_json
from launcher.base.files import replace_file

# Byte ranges: the present and the missing parts of a file.


class Span(NamedTuple):
    """The bytes from `begin` up to `end`, exclusive."""

    begin: int
    end: int

    @property
    def length(self) -> int:
        """The number of bytes."""
        return self.end - self.begin


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Return the same bytes in as few spans as possible, sorted."""
    joined: list[Span] = []
    for span in sorted(spans):
        if span.end <= span.begin:
            continue
        if joined and span.begin <= joined[-1].end:
            joined[-1] = Span(joined[-1].begin, max(joined[-1].end, span.end))
        else:
            joined.append(span)
    return joined


def clip_spans(spans: Iterable[Span], size: int) -> list[Span]:
    """Return the parts of the spans within the first `size` bytes, merged."""
    return merge_spans(Span(max(begin, 0), min(end, size)) for begin, end in spans)


def find_gaps(spans: Iterable[Span], size: int) -> list[Span]:
    """Return the missing parts of the first `size` bytes, in order."""
    missing, position = [], 0
    for span in [*clip_spans(spans, size), Span(size, size)]:
        if span.begin > position:
            missing.append(Span(position, span.begin))
        position = span.end
    return missing


def count_bytes(spans: Iterable[Span]) -> int:
    """Return the number of bytes in all spans; each byte counts once."""
    return sum(span.length for span in merge_spans(spans))


_FORMAT = 1
_WIDTH = 69
"""Bytes of a line: three numbers of 19 digits, a checksum of 8, three blanks and the line end."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class DownloadIdentity:
    """The identity of a download: its URL without query, and size, hash and ETag as far as they are known."""

    url: str
    bytes: int | None = None
    sha256: str | None = None
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """A contiguous range from `begin`: written up to `written`, flushed to disk up to `synced`."""

    begin: int
    written: int
    synced: int


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """The content of a journal. After another boot only the bytes that were flushed to disk count."""

    identity: DownloadIdentity
    stretches: list[Stretch]

    @property
    def finished(self) -> list[Span]:
        """The byte ranges that were received."""
        return merge_spans(Span(each.begin, each.written) for each in self.stretches)


def format_line(stretch: Stretch) -> bytes:
    """Return a stretch as a line of `_WIDTH` bytes."""
    text = b"%19d %19d %19d" % (stretch.begin, stretch.written, stretch.synced)
    return b"%s %08x\n" % (text, zlib.crc32(text))


def line_offset(head: bytes, index: int) -> int:
    """Return the offset of a line in the file, by its index."""
    return len(head) + index * _WIDTH


def format_head(identity: DownloadIdentity) -> bytes:
    """Return the first line."""
    return encode_json({"format": _FORMAT, "boot": boot_id(), **to_json(identity)}) + b"\n"


def create_journal(path: Path, identity: DownloadIdentity, stretches: list[Stretch]) -> bytes:
    """Write a journal, replacing an existing one, and return its first line. Raises OSError.

    The temporary file has a fixed name, so that the next download replaces one that a killed process has left.
    """
    first, temporary = format_head(identity), _temporary_path(path)
    with temporary.open("wb") as file:
        file.write(first + b"".join(map(format_line, stretches)))
        file.flush()
        os.fsync(file.fileno())
    replace_file(temporary, path)
    return first


def remove_journal(path: Path) -> None:
    """Delete a journal and its temporary file. Raises OSError."""
    path.unlink(missing_ok=True)
    _temporary_path(path).unlink(missing_ok=True)


def _temporary_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def read_journal(path: Path) -> JournalRecord | None:
    """Return the content of a journal, None if there is none or it is invalid."""
    try:
        first, _, rest = path.read_bytes().partition(b"\n")
        head = json.loads(first)
        identity = from_json(DownloadIdentity, head)
    except (OSError, ValueError, RecursionError):
        return None
    if head.get("format") != _FORMAT:
        return None
    lines = (_parse_stretch(rest[offset : offset + _WIDTH]) for offset in range(0, len(rest), _WIDTH))
    stretches = [each for each in lines if each]
    if head.get("boot") != boot_id():
        stretches = [Stretch(each.begin, each.synced, each.synced) for each in stretches]
    return JournalRecord(identity, stretches)


def _parse_stretch(text: bytes) -> Stretch | None:
    body, _, check = text.rstrip(b"\n").rpartition(b" ")
    with suppress(ValueError):
        if len(text) == _WIDTH and int(check, 16) == zlib.crc32(body):
            begin, written, synced = map(int, body.split())
            if 0 <= begin <= synced <= written:
                return Stretch(begin, written, synced)
    return None


def boot_id() -> str:
    """Return an identifier of the current boot."""
    if sys.platform == "linux":
        with suppress(OSError):
            return _BOOT_ID.read_text("ascii").strip()
    # The boot time drifts with the clock; a wrong value costs only the bytes that were not flushed.
    return f"{psutil.boot_time() / 60:.0f}"
