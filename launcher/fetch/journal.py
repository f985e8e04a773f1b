"""The journal beside an unfinished file: what it should become, and which of its bytes are there.

The first line is JSON. Each further line is one stretch that grew from `begin`: up to `written` the bytes were handed
to the system, up to `synced` they were on the disk. A line is overwritten in place as its stretch grows. It has a fixed
width and a checksum, so one that was torn counts as nothing. The bytes are always written before the line says so:
killing the program therefore loses none, and after a power cut (another boot) what was synced counts.
"""

import json
import os
import sys
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from launcher.base.files import replace
from launcher.fetch.ranges import Span, merged

_FORMAT = 1
_WIDTH = 69
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Identity:
    """What a download should become: its address without query; its size, hash and ETag as far as they are known."""

    url: str
    bytes: int | None = None
    sha256: str | None = None
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes from `begin`: there up to `written`, on the disk for certain up to `synced`."""

    begin: int
    written: int
    synced: int


@dataclass(frozen=True, slots=True)
class Record:
    """What a journal says, of which after another boot only what was synced is believed."""

    identity: Identity
    stretches: list[Stretch]

    @property
    def finished(self) -> list[Span]:
        """The bytes that are there."""
        return merged(Span(each.begin, each.written) for each in self.stretches)


def line(stretch: Stretch) -> bytes:
    """Return a stretch as a line of `_WIDTH` bytes."""
    text = b"%19d %19d %19d" % (stretch.begin, stretch.written, stretch.synced)
    return b"%s %08x\n" % (text, zlib.crc32(text))


def offset(head: bytes, index: int) -> int:
    """Return where in the file the line with that index begins."""
    return len(head) + index * _WIDTH


def head(identity: Identity) -> bytes:
    """Return the first line."""
    return json.dumps({"format": _FORMAT, "boot": boot(), **asdict(identity)}).encode() + b"\n"


def create(path: Path, identity: Identity, stretches: list[Stretch]) -> bytes:
    """Write a journal in place of the one that is there, and return its first line. Raises OSError.

    The draft has one name, so that being killed over it leaves nothing that the next run would not take.
    """
    first, draft = head(identity), _draft(path)
    with draft.open("wb") as file:
        file.write(first + b"".join(map(line, stretches)))
        file.flush()
        os.fsync(file.fileno())
    replace(draft, path)
    return first


def remove(path: Path) -> None:
    """Delete a journal, and what is left of an unfinished one. Raises OSError."""
    path.unlink(missing_ok=True)
    _draft(path).unlink(missing_ok=True)


def _draft(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def read(path: Path) -> Record | None:
    """Return what the journal says, None when there is none or it makes no sense."""
    try:
        first, _, rest = path.read_bytes().partition(b"\n")
        told = json.loads(first)
    except (OSError, ValueError, RecursionError):
        return None
    identity = _identity(told)
    if identity is None:
        return None
    lines = (_stretch(rest[at : at + _WIDTH]) for at in range(0, len(rest), _WIDTH))
    stretches = [each for each in lines if each]
    if told.get("boot") != boot():
        stretches = [Stretch(each.begin, each.synced, each.synced) for each in stretches]
    return Record(identity, stretches)


def _identity(told: Any) -> Identity | None:  # noqa: ANN401 -- what the file holds
    match told:
        case {
            "format": 1,
            "url": str(url),
            "bytes": int() | None as size,
            "sha256": str() | None as sha256,
            "etag": str() | None as etag,
        }:
            return Identity(url, size, sha256, etag)
    return None


def _stretch(text: bytes) -> Stretch | None:
    body, _, check = text.rstrip(b"\n").rpartition(b" ")
    with suppress(ValueError):
        if len(text) == _WIDTH and int(check, 16) == zlib.crc32(body):
            begin, written, synced = map(int, body.split())
            if 0 <= begin <= synced <= written:
                return Stretch(begin, written, synced)
    return None


def boot() -> str:
    """Return what tells this run of the system from the one before it."""
    if sys.platform == "linux":
        with suppress(OSError):
            return _BOOT_ID.read_text("ascii").strip()
    return f"{psutil.boot_time() / 60:.0f}"  # it drifts with the clock; another value costs only what was not synced
