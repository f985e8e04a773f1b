"""The bytes of a GGUF header, read in blocks: big arrays are skipped, nothing is believed before it was seen.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. What llama.cpp refuses (gguf.cpp, build 11434) is
refused here too. The limits below are ours: they bound time and memory, and lie far above what real files have.
"""

import math
import struct
from collections.abc import Callable
from pathlib import PurePath
from typing import NoReturn, Protocol

from launcher.base.errors import ModelBroken
from launcher.models.gguf_header import GgufHeader, Tensor
from launcher.models.quants import QUANTS

MAX_HEADER_BYTES = 2**28
"""The header may take this much; 250,000 tokens with their merges take some 11 MB."""

_MAGIC = b"GGUF"
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SCALARS = {kind: struct.Struct(f"<{code}") for kind, code in _CODES.items()}
_LAST_VERSION = 3
_NO_VERSION = 2**16  # where the lower half is 0, the byte order is another
_FLOATS = (6, 12)
_STRING, _ARRAY = 8, 9
_U32, _U64 = _SCALARS[4], _SCALARS[10]
_BLOCK_BYTES = 2**18
_DEFAULT_ALIGNMENT = 32
_MAX_SIZE = 2**63 - 1  # ggml counts elements and bytes in int64_t

_MAX_DIMENSIONS = 4  # GGML_MAX_DIMS
_MAX_ENTRIES = 2**16  # keys, or tensors; the largest models have some two thousand
_MAX_KEY_BYTES = 2**16 - 1  # as the format says; tensor names are far shorter
_MAX_TEXT_BYTES = 2**20  # of a value that is kept; a longer one is skipped
_MAX_KEPT_BYTES = 2**22  # all keys, names and texts
_MAX_KEPT_ELEMENTS = 2**12  # of an array; a longer one is skipped
_MAX_ALL_ELEMENTS = 2**18  # of all arrays that are kept
_MAX_LISTED = 2**21  # texts in all lists; the largest tokenizers have some eight hundred thousand, merges included
_MAX_ALIGNMENT = 2**24
_MAX_BLOCKS = 2**12  # llama.cpp has room for 512
_MAX_PARTS = 2**12


class Source(Protocol):
    """Where a header comes from: a file, or something that can be read and sought like one."""

    def read(self, count: int, /) -> bytes:
        """Return up to `count` bytes; none at the end."""

    def seek(self, position: int, /) -> int:
        """Go to a position from the beginning."""


def parse_header(source: Source, path: PurePath, file_bytes: int, *, remedy: str = "Download it again.") -> GgufHeader:
    """Read the header that `source` begins with; `path` names it, and `file_bytes` is the file's size.

    Raises ModelBroken, with `remedy` as its hint, when it is cut short inside the header or makes no sense. The hint is
    another one when it is no GGUF at all.
    """
    return _Parser(source, path, file_bytes, remedy).header()


class _Parser:
    """A cursor that goes forward through the header."""

    def __init__(self, source: Source, path: PurePath, file_bytes: int, remedy: str) -> None:
        self._source = source
        self._path = path
        self._size = file_bytes
        self._remedy = remedy
        self._block = b""
        self._base = 0  # where the block lies in the file
        self._at = 0  # the cursor, counted from there; it may lie behind the block
        self._text_left = _MAX_KEPT_BYTES
        self._elements_left = _MAX_ALL_ELEMENTS
        self._listed_left = _MAX_LISTED
        self._place_known = True  # of the next tensor's data: where the last one's end, if its element type is known

    def header(self) -> GgufHeader:
        self._check_magic()
        n_tensors, n_keys = self._number(_U64), self._number(_U64)
        if max(n_tensors, n_keys) > _MAX_ENTRIES:
            self._break(f"it claims {n_tensors:,} tensors and {n_keys:,} keys")
        metadata: dict[str, object] = {}
        lengths: dict[str, int] = {}
        seen: set[str] = set()
        for _ in range(n_keys):
            key = self._name("a key", seen)
            value, length = self._value(key)
            if value is not None:
                metadata[key] = value
            if length is not None:
                lengths[key] = length
        alignment = _checked_alignment(metadata, self._break)
        seen.clear()
        tensors = []
        end = 0
        for _ in range(n_tensors):
            tensor, end = self._tensor(seen, alignment, end)
            tensors.append(tensor)
        self._check_within(0)
        header = GgufHeader(
            self._path,
            metadata,
            lengths,
            tuple(tensors),
            -(-(self._base + self._at) // alignment) * alignment,
            self._size,
        )
        _check_facts(header, self._break)
        return header

    def _check_magic(self) -> None:
        self._block = self._source.read(_BLOCK_BYTES)
        magic = self._block[: len(_MAGIC)]
        if magic != _MAGIC:
            self._refuse(
                f"is not a GGUF file: it begins with {magic.hex(' ') or 'nothing, it is empty'}.",
                "Choose another file, or download it again: an error page may have been saved in its place.",
            )
        self._at = len(_MAGIC)
        version = self._number(_U32)
        if version == 1:
            self._refuse(
                "is a GGUF file of version 1, which llama.cpp no longer reads.",
                "Get a newer file of this model.",
                version=version,
            )
        if _LAST_VERSION < version < _NO_VERSION:
            self._refuse(
                f"is a GGUF file of version {version}, which is too new.",
                "Update the launcher and the engine.",
                version=version,
            )
        if version and version % _NO_VERSION == 0:
            self._refuse(
                "is in big-endian byte order, made for another kind of processor.",
                "Get the ordinary, little-endian file of this model.",
            )
        if version not in (2, _LAST_VERSION):
            self._break(f"its GGUF version is {version}")

    def _value(self, key: str) -> tuple[object | None, int | None]:
        """Return a value, None for one that is skipped, and the length if it is an array."""
        kind = self._number(_U32)
        if kind in _SCALARS:
            return self._scalars(key, kind, 1)[0], None
        if kind == _STRING:
            return self._text_value(), None
        if kind != _ARRAY:
            self._break(f"it holds a value of unknown type {kind}")
        element, length = self._number(_U32), self._number(_U64)
        if element == _STRING:
            self._skip_texts(length)
            return None, length
        if element not in _SCALARS:
            self._break(f"it holds an array of unknown type {element}")
        if length <= _MAX_KEPT_ELEMENTS:
            self._elements_left -= length
            if self._elements_left < 0:
                self._break(f"its small arrays hold more than {_MAX_ALL_ELEMENTS:,} numbers")
            return self._scalars(key, element, length), length
        self._skip(length * _SCALARS[element].size)
        return None, length

    def _tensor(self, seen: set[str], alignment: int, expected: int) -> tuple[Tensor, int]:
        """Return a tensor, whose data must begin at `expected`, and where those of the next one must begin."""
        name = self._name("a tensor", seen)
        n_dimensions = self._number(_U32)
        if n_dimensions > _MAX_DIMENSIONS:
            self._break(f"tensor {_shown(name)} has {n_dimensions} dimensions")
        dimensions = tuple(self._number(_U64) for _ in range(n_dimensions))
        kind, offset = self._number(_U32), self._number(_U64)
        quant = QUANTS.get(kind)
        elements = math.prod(dimensions)
        n_bytes = None if quant is None else quant.n_bytes(elements)
        if max(elements, *dimensions, offset + (n_bytes or 0)) > _MAX_SIZE:
            self._break(f"tensor {_shown(name)} is larger than any file")
        if quant is not None and (dimensions[0] if dimensions else 1) % quant.per_block:
            self._break(f"a row of tensor {_shown(name)} does not fill its blocks of {quant.per_block} ({quant.name})")
        if offset % alignment:
            self._break(f"tensor {_shown(name)} begins at byte {offset:,}, which is no multiple of {alignment}")
        if offset < expected or (offset > expected and self._place_known):
            self._break(f"tensor {_shown(name)} begins at byte {offset:,} of the data in place of {expected:,}")
        self._place_known = n_bytes is not None
        tensor = Tensor(name, dimensions, quant.name if quant else f"type {kind}", offset, n_bytes)
        return tensor, offset + -(-(n_bytes or 0) // alignment) * alignment

    def _scalars(self, key: str, kind: int, count: int) -> tuple[object, ...]:
        form = _SCALARS[kind]
        at = self._take(count * form.size)
        values = struct.unpack_from(f"<{count}{_CODES[kind]}", self._block, at)
        if kind in _FLOATS and any(map(math.isnan, values)):
            self._break(f"{_shown(key)} is not a number")
        return values

    def _number(self, form: struct.Struct) -> int:
        at = self._take(form.size)
        return int(form.unpack_from(self._block, at)[0])

    def _name(self, what: str, seen: set[str]) -> str:
        length = self._number(_U64)
        if length > _MAX_KEY_BYTES:
            self._break(f"the name of {what} has {length:,} bytes")
        try:
            name = self._text(length).decode()
        except UnicodeDecodeError:
            self._break(f"the name of {what} is not UTF-8")
        if not name:
            self._break(f"the name of {what} is empty")
        if name in seen:
            self._break(f"it holds {what} twice: {_shown(name)}")
        seen.add(name)
        return name

    def _text_value(self) -> str | None:
        length = self._number(_U64)
        if length > _MAX_TEXT_BYTES:
            self._skip(length)
            return None
        return self._text(length).decode("utf-8", "replace")

    def _text(self, length: int) -> bytes:
        self._text_left -= length
        if self._text_left < 0:
            self._break(f"its names and texts have more than {_MAX_KEPT_BYTES:,} bytes")
        at = self._take(length)
        return self._block[at : at + length]

    def _take(self, count: int) -> int:
        """Step over the next `count` bytes, and return where in the block they lie."""
        at = self._at
        if at + count > len(self._block):
            self._load(count)
            at = 0
        self._at = at + count
        return at

    def _skip(self, count: int) -> None:
        self._check_within(count)
        self._at += count

    def _skip_texts(self, count: int) -> None:
        self._listed_left -= count
        if self._listed_left < 0:
            self._break(f"it claims lists of more than {_MAX_LISTED:,} texts")
        length_at = _U64.unpack_from
        block, at, end = self._block, self._at, len(self._block) - _U64.size
        for _ in range(count):
            if at > end:
                self._at = at
                self._load(_U64.size)
                block, at, end = self._block, 0, len(self._block) - _U64.size
            at += _U64.size + length_at(block, at)[0]
        self._at = at
        self._check_within(0)

    def _load(self, count: int) -> None:
        """Read a block that begins at the cursor and holds `count` bytes at least."""
        self._check_within(count)
        self._base, self._at = self._base + self._at, 0
        self._source.seek(self._base)
        self._block = self._source.read(max(count, _BLOCK_BYTES))
        if len(self._block) < count:
            self._break("it ends inside its header")

    def _check_within(self, count: int) -> None:
        position = self._base + self._at + count
        if position > self._size:
            self._break("it ends inside its header")
        if position > MAX_HEADER_BYTES:
            self._break(f"its header is larger than {MAX_HEADER_BYTES // 2**20} MiB")

    def _break(self, why: str) -> NoReturn:
        self._refuse(f"is damaged or incomplete: {why}.", self._remedy)

    def _refuse(self, what: str, hint: str, **facts: object) -> NoReturn:
        raise ModelBroken(f"{self._path.name} {what}", hint, path=str(self._path), **facts)


def _checked_alignment(metadata: dict[str, object], refuse: Callable[[str], NoReturn]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    number = alignment if isinstance(alignment, int) and not isinstance(alignment, bool) else 0
    if not 0 < number <= _MAX_ALIGNMENT or number & (number - 1):
        refuse(f"its alignment is {_shown(alignment)}")
    return number


def _check_facts(header: GgufHeader, refuse: Callable[[str], NoReturn]) -> None:
    """Refuse counts that no model has, so that what is derived from them ends."""
    name = header.metadata.get("general.architecture", "")
    if not isinstance(name, str) or len(name) > 64 or not name.isprintable():
        refuse(f"its architecture is named {_shown(name)}")
    keys = {
        f"{header.architecture}.block_count": _MAX_BLOCKS,
        f"{header.architecture}.nextn_predict_layers": header.block_count or _MAX_BLOCKS,
        "split.count": _MAX_PARTS,
        "split.no": max(header.split_count - 1, 0),
        "split.tensors.count": _MAX_ENTRIES,
    }
    for key, most in keys.items():
        value = header.metadata.get(key)
        if isinstance(value, int) and not 0 <= value <= most:
            refuse(f"{key} is {value:,}")


def _shown(value: object) -> str:
    """Write a value for an error, cut to what a line can hold."""
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:76]}...{shown[-1]}"
