"""A slot's state in a file, as llama-server writes it: the tokens, the state, and the checkpoints.

Checkpoints are there for models that cannot go back within their state.

Read from llama.cpp's sources (b11549, llama_context::state_seq_save_file and server_context::save_slot_checkpoints) and
compared with files of b11549 and b11669.
"""

import hashlib
import struct
from array import array
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_HEADER = struct.Struct("<4sII")
"""Magic, version, and the number of 32-bit numbers that follow."""
_MAGICS = (b"qsgg", b"ggsq")
_PACKED, _TEXT_ONLY = -1, 1
"""Newer builds pack a slot's tokens: -1, the number of chunks (1 if all is text), the number of tokens, the tokens."""
_APPENDIX = b"SCKP" + struct.pack("<I", 1)
"""Magic and version of the checkpoints, which follow the state. The number of checkpoints comes next."""
_COUNT, _PLACE, _LENGTH = struct.Struct("<I"), struct.Struct("<qii"), struct.Struct("<Q")
"""Each checkpoint: the number of tokens, its first and last position, then three parts, each after its length."""
_PARTS = 3
_DRAFTER_STATE = b"SDFT" + struct.pack("<I", 1)
"""Magic and version of the drafter's own state, which b11669 writes after the checkpoints."""
_CHUNK_BYTES = 16 << 20
_READERS = 4


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A place after `tokens` tokens from which the engine can go on, in the bytes from `begin` to `end` of the file."""

    tokens: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SlotFile:
    """What a slot's file holds. `tokens` is None if it has images, or if its format is another one.

    The state ends at byte `state_end`, the checkpoints at `checkpoints_end`; what follows is the drafter's. `digest` is
    made of the SHA-256 of each chunk of the file.
    """

    tokens: "array[int] | None"
    checkpoints: tuple[Checkpoint, ...]
    state_end: int
    checkpoints_end: int
    size: int
    digest: bytes


def read_slot_file(path: Path) -> SlotFile:
    """Read a slot's file once, with several threads. Raises OSError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        tokens = read_tokens(file)
        digest, found = _scan_file(path, size)
        for begin in found:
            checkpoints = _read_checkpoints(file, begin, size)
            if checkpoints:
                return SlotFile(tokens, checkpoints, begin, checkpoints[-1].end, size, digest)
    return SlotFile(tokens, (), size, size, size, digest)


def digest_file(path: Path) -> bytes:
    """Return the digest of a file, as `read_slot_file` does. Raises OSError."""
    return _scan_file(path, path.stat().st_size)[0]


def read_tokens(file: BinaryIO) -> "array[int] | None":
    """Return the tokens at the beginning of a slot's file; None if its format is another or it has images."""
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    magic, _, count = _HEADER.unpack(header)
    data = file.read(4 * count)
    if magic not in _MAGICS or len(data) < 4 * count:
        return None
    numbers = array("i", data)
    if not numbers or numbers[0] != _PACKED:
        return numbers
    if len(numbers) < 3 or numbers[1] != _TEXT_ONLY or numbers[2] > len(numbers) - 3:
        return None
    return numbers[3 : 3 + numbers[2]]


def keep_checkpoints(path: Path, held: SlotFile, kept: Collection[Checkpoint]) -> SlotFile:
    """Remove all but the `kept` checkpoints from a file, and return what it holds now. Raises OSError."""
    if len(kept) == len(held.checkpoints):
        return held
    with path.open("r+b") as file:
        parts = []
        for checkpoint in kept:
            file.seek(checkpoint.begin)
            parts.append(file.read(checkpoint.end - checkpoint.begin))
        file.seek(held.checkpoints_end)
        rest = file.read()
        file.seek(held.state_end)
        if parts:
            file.write(_APPENDIX + _COUNT.pack(len(parts)) + b"".join(parts))
        file.write(rest)
        file.truncate()
    return read_slot_file(path)


def _scan_file(path: Path, size: int) -> tuple[bytes, list[int]]:
    """Return the digest of a file, and the places at which checkpoints may begin."""
    with ThreadPoolExecutor(_READERS) as readers:
        chunks = list(readers.map(lambda begin: _scan_chunk(path, begin), range(0, size, _CHUNK_BYTES)))
    return hashlib.sha256(b"".join(digest for digest, _ in chunks)).digest(), [
        each for _, found in chunks for each in found
    ]


def _scan_chunk(path: Path, begin: int) -> tuple[bytes, list[int]]:
    with path.open("rb") as file:
        file.seek(begin)
        data = file.read(_CHUNK_BYTES + len(_APPENDIX) - 1)  # the mark may lie across two chunks
    found, place = [], data.find(_APPENDIX)
    while place >= 0:
        found.append(begin + place)
        place = data.find(_APPENDIX, place + 1)
    return hashlib.sha256(memoryview(data)[:_CHUNK_BYTES]).digest(), found


def _read_checkpoints(file: BinaryIO, begin: int, size: int) -> tuple[Checkpoint, ...]:
    """Return the checkpoints that begin at a place; none if what is there does not end as such a file does."""
    file.seek(begin + len(_APPENDIX))
    checkpoints: list[Checkpoint] = []
    try:
        for _ in range(_COUNT.unpack(file.read(_COUNT.size))[0]):
            start = file.tell()
            tokens, _, _ = _PLACE.unpack(file.read(_PLACE.size))
            for _ in range(_PARTS):
                file.seek(_LENGTH.unpack(file.read(_LENGTH.size))[0], 1)
            checkpoints.append(Checkpoint(tokens, start, file.tell()))
            if file.tell() > size:
                return ()
    except (struct.error, OverflowError, ValueError, OSError):
        return ()
    ends = file.tell() == size or file.read(len(_DRAFTER_STATE)) == _DRAFTER_STATE
    return tuple(checkpoints) if ends else ()
