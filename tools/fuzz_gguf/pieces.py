"""A header split into its fields, so that single fields can be changed."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9
_WORTH_TAKING_APART = 16
"""The most values of an array that is split; a longer one stays in one piece."""


class Piece(NamedTuple):
    """The bytes of one field: a "number", a "text", or a "blob" of many values."""

    kind: str
    data: bytes


Entry = list[Piece]


@dataclass
class Pieces:
    """A header: its beginning (magic, version, counts), keys with values, tensor entries, and the padding."""

    beginning: Entry
    keys: list[Entry]
    tensors: list[Entry]
    padding: bytes

    def copy(self) -> Pieces:
        """Return a copy."""
        return Pieces(list(self.beginning), list(map(list, self.keys)), list(map(list, self.tensors)), self.padding)

    def data(self) -> bytes:
        """Return the header's bytes."""
        entries = (self.beginning, *self.keys, *self.tensors)
        return b"".join(piece.data for entry in entries for piece in entry) + self.padding


def number(value: int, size: int) -> Piece:
    """Return the lowest `size` bytes of `value`, little-endian."""
    return Piece("number", (value % 256**size).to_bytes(size, "little"))


def text(data: bytes) -> Entry:
    """Return the field of a text: its length, then its bytes."""
    return [number(len(data), 8), Piece("text", data)]


def take_apart(header: bytes) -> Pieces:
    """Split a valid header into its pieces."""
    return _Reader(header).read_pieces()


class _Reader:
    def __init__(self, header: bytes) -> None:
        self._header = header
        self._at = 0

    def read_pieces(self) -> Pieces:
        beginning = [self._take_piece("text", 4), *(self._take_piece("number", size) for size in (4, 8, 8))]
        n_tensors, n_keys = (struct.unpack("<Q", piece.data)[0] for piece in beginning[2:])
        keys = [[*self._read_text(), *self._read_value()] for _ in range(n_keys)]
        tensors = [
            [*self._read_text(), *self._read_shape(), self._take_piece("number", 4), self._read_number()]
            for _ in range(n_tensors)
        ]
        return Pieces(beginning, keys, tensors, self._header[self._at :])

    def _take_piece(self, kind: str, size: int) -> Piece:
        self._at += size
        return Piece(kind, self._header[self._at - size : self._at])

    def _read_number(self) -> Piece:
        return self._take_piece("number", 8)

    def _read_text(self) -> Entry:
        length = self._read_number()
        return [length, self._take_piece("text", int.from_bytes(length.data, "little"))]

    def _read_shape(self) -> Iterator[Piece]:
        count = self._take_piece("number", 4)
        yield count
        for _ in range(int.from_bytes(count.data, "little")):
            yield self._read_number()

    def _read_value(self) -> Entry:
        kind = self._take_piece("number", 4)
        return [kind, *self._read_values(int.from_bytes(kind.data, "little"), 1)]

    def _read_values(self, kind: int, count: int) -> Entry:
        if kind == ARRAY:
            element, length = self._take_piece("number", 4), self._read_number()
            n = int.from_bytes(length.data, "little")
            return [element, length, *self._read_values(int.from_bytes(element.data, "little"), n)]
        if count > _WORTH_TAKING_APART:
            begin = self._at
            for _ in range(count):
                self._read_element(kind)
            return [Piece("blob", self._header[begin : self._at])]
        return [piece for _ in range(count) for piece in self._read_element(kind)]

    def _read_element(self, kind: int) -> Entry:
        return self._read_text() if kind == STRING else [self._take_piece("number", SCALAR_BYTES[kind])]
