"""Reads GGUF headers of local files, joins the parts of split models, and checks that files are complete."""

import math
import re
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NoReturn, Protocol

from launcher.base.errors import ModelBroken, ModelMissing
from launcher.base.late import LateModule
from launcher.base.messages import command_name, join_messages, mark, message

if TYPE_CHECKING:
    from launcher.models import file_kinds
else:  # its table is only needed for files that are no models
    file_kinds = LateModule("launcher.models.file_kinds")

# Headers: of one file (GgufHeader), or of a whole model with all parts of a split one (GgufModel).

_PART = re.compile(r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
"""The names of split files (llama_split_path in llama.cpp)."""
_BLOCK = re.compile(r"blk\.(\d+)\.")
_MAX_NAME = 120
_POOLING_LAST, _POOLING_RANK = 3, 4
"""LLAMA_POOLING_TYPE_LAST and LLAMA_POOLING_TYPE_RANK of llama.h."""
_MAX_NAMED_PARTS = 1_000


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor. `dimensions` are innermost first; `offset` is in bytes from the start of its file's tensor data.

    `n_bytes` is None if the element type is unknown here; `quant` is then "type NUMBER".
    """

    name: str
    dimensions: tuple[int, ...]
    quant: str
    offset: int
    n_bytes: int | None


class MtpHead(Enum):
    """The state of a model's MTP head. PROMISED: the metadata announces it, but its tensors are missing."""

    PRESENT = "present"
    PROMISED = "promised"
    NONE = "none"


class _HeaderProperties:
    """Properties derived from metadata and tensors, shared by GgufHeader and GgufModel."""

    __slots__ = ()

    path: PurePath
    metadata: Mapping[str, object]
    array_lengths: Mapping[str, int]
    tensors: tuple[Tensor, ...]

    @property
    def architecture(self) -> str:
        """The architecture's name, such as "qwen35moe"; "unknown" if the metadata lacks it."""
        value = self.metadata.get("general.architecture")
        return value if isinstance(value, str) and value else "unknown"

    @property
    def name(self) -> str:
        """The model's name from the metadata, in printable characters, else the file's name."""
        value = self.metadata.get("general.name")
        own = "".join(filter(str.isprintable, value)).strip() if isinstance(value, str) else ""
        part = _PART.fullmatch(self.path.name)
        return own[:_MAX_NAME] or (part["prefix"] if part else self.path.stem)

    @property
    def block_count(self) -> int | None:
        """Number of blocks, including those of the MTP heads."""
        return self.read_count("block_count")

    @property
    def trained_context(self) -> int | None:
        """Context length that the model was trained for, in tokens."""
        return self.read_count("context_length")

    @property
    def vocabulary(self) -> int | None:
        """Tokens in the vocabulary: the length of its list, else the metadata's `vocab_size`."""
        return self.array_lengths.get("tokenizer.ggml.tokens") or self.read_count("vocab_size")

    @property
    def promised_heads(self) -> int:
        """Number of MTP heads according to the metadata; their tensors may be missing."""
        return self.read_count("nextn_predict_layers") or 0

    @property
    def is_embedding(self) -> bool:
        """Whether the model turns texts into vectors or ranks them, and generates no text."""
        is_causal = self.metadata.get(f"{self.architecture}.attention.causal")
        return bool(self.read_count("pooling_type")) or is_causal is False

    @property
    def is_reranker(self) -> bool:
        """Whether the model ranks texts by how well they answer a query."""
        return self.read_count("pooling_type") == _POOLING_RANK

    @property
    def splits_texts(self) -> bool:
        """Whether an embedding model may read a text in several batches (can_split of server-context.cpp).

        That is so if the last token gives the vector. Otherwise a text must fit into one ubatch.
        """
        return self.read_count("pooling_type") == _POOLING_LAST

    @property
    def mtp_head(self) -> MtpHead:
        """PRESENT if the metadata announces a head and its `eh_proj` tensor exists."""
        if not self.promised_heads:
            return MtpHead.NONE
        wanted = f"blk.{(self.block_count or 0) - self.promised_heads}.nextn.eh_proj.weight"
        there = any(tensor.name == wanted for tensor in self.tensors)
        return MtpHead.PRESENT if there else MtpHead.PROMISED

    def read_count(self, key: str) -> int | None:
        """Return the non-negative integer under the architecture's `key`, such as "block_count", or None."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


@dataclass(frozen=True, slots=True)
class GgufHeader(_HeaderProperties):
    """The header of one GGUF file. `data_offset` is where the tensor data begin, `file_bytes` the file's size.

    `metadata` holds numbers, booleans and strings, and numeric arrays of up to 4,096 elements as tuples. Longer arrays,
    arrays of strings, and strings beyond 1 MiB are left out; `array_lengths` has the length of every array. `path` is
    the path of a local file, or just the name of a remote file.
    """

    path: PurePath
    metadata: Mapping[str, object]
    array_lengths: Mapping[str, int]
    tensors: tuple[Tensor, ...]
    data_offset: int
    file_bytes: int

    @property
    def split_count(self) -> int:
        """Number of files that the model consists of."""
        value = self.metadata.get("split.count", 1)
        return value if isinstance(value, int) and value > 0 and value is not True else 1

    @property
    def has_mtp_head(self) -> bool:
        """Whether the model has an MTP head. For one part of a split model the metadata decides: its tensors may be
        in a later part."""
        return self.mtp_head is MtpHead.PRESENT or (self.split_count > 1 and self.promised_heads > 0)

    @property
    def needed_bytes(self) -> int:
        """Least size in bytes of a file that holds all tensors."""
        ends = [tensor.offset + (tensor.n_bytes or 0) for tensor in self.tensors]
        return self.data_offset + max(ends, default=0)


@dataclass(frozen=True, slots=True)
class GgufModel(_HeaderProperties):
    """A whole model: the headers of its parts in order (a single one for most models). Built by `join_parts`.

    The metadata are those of the first part, where a split model has them; a tensor's offset is within its own part.
    """

    parts: tuple[GgufHeader, ...]
    path: PurePath
    metadata: Mapping[str, object]
    array_lengths: Mapping[str, int]
    tensors: tuple[Tensor, ...]

    @property
    def file_bytes(self) -> int:
        """Size of all files in bytes."""
        return sum(part.file_bytes for part in self.parts)

    @property
    def needed_bytes(self) -> int:
        """Least size in bytes of all files together."""
        return sum(part.needed_bytes for part in self.parts)

    @property
    def has_mtp_head(self) -> bool:
        """Whether the tensors of the MTP head exist, in any part."""
        return self.mtp_head is MtpHead.PRESENT


def part_names(name: str, count: int | None = None) -> tuple[str, ...] | None:
    """Return the file names of all parts of the split model that `name` belongs to.

    Returns None unless `name` has the form PREFIX-00001-of-00003.gguf with `count` parts; without `count`, with 1 to
    1,000 parts.
    """
    part = _PART.fullmatch(name)
    if part is None or int(part["count"]) not in (range(1, _MAX_NAMED_PARTS + 1) if count is None else (count,)):
        return None
    numbers = range(1, int(part["count"]) + 1)
    return tuple(f"{part['prefix']}-{number:05}-of-{part['count']}.gguf" for number in numbers)


def join_parts(parts: Sequence[GgufHeader]) -> GgufModel:
    """Join the headers of all parts, given in order, to a model.

    Raises ModelBroken if they do not belong together: wrong part numbers, a duplicate tensor, or a missing tensor.
    llama_model_loader in llama.cpp makes the same checks when it loads a model.
    """
    first = parts[0]
    model = GgufModel(
        tuple(parts), first.path, first.metadata, first.array_lengths, tuple(chain(*(part.tensors for part in parts)))
    )
    if len(parts) == 1:
        return model
    for number, part in enumerate(parts):
        own, of = part.metadata.get("split.no"), part.split_count
        if (own, of) != (number, len(parts)):
            claimed = f"part {own + 1} of {of}" if isinstance(own, int) else "no part of a split model"
            raise _parts_error(first, f"{part.path.name} says that it is {claimed}")
    twice = [name for name, times in Counter(tensor.name for tensor in model.tensors).items() if times > 1]
    if twice:
        raise _parts_error(first, f"tensor {twice[0]!r} is in two of them")
    promised = first.metadata.get("split.tensors.count", len(model.tensors))
    if promised != len(model.tensors):
        claimed = f"{promised:,}" if isinstance(promised, int) else "an unknown number"
        raise _parts_error(first, f"they hold {len(model.tensors):,} tensors in place of {claimed}")
    return model


def _parts_error(first: GgufHeader, why: str) -> ModelBroken:
    return ModelBroken(
        message("The parts of {name} do not belong together: {why}.", name=first.path.name, why=why),
        message("Download all of them again, from one revision of one repository."),
        path=str(first.path),
    )


def isolate_head(model: GgufModel) -> GgufModel:
    """Return the MTP head of a file that holds nothing else as a model: the head's layers only, all with attention.

    As a draft in a separate file, the head takes the memory of such a model. Any other model is returned unchanged.
    """
    if not file_kinds.is_head_alone(model):
        return model
    heads, arch = model.promised_heads, model.architecture
    trunk = (model.block_count or 0) - heads
    metadata = {
        key: value[trunk:] if isinstance(value, tuple) and len(value) == trunk + heads else value
        for key, value in model.metadata.items()
    }
    metadata |= {
        f"{arch}.block_count": heads,
        f"{arch}.nextn_predict_layers": 0,
        f"{arch}.full_attention_interval": 1,
    }

    def rename_tensor(tensor: Tensor) -> Tensor:
        block = _BLOCK.match(tensor.name)
        return replace(tensor, name=f"blk.{int(block[1]) - trunk}.{tensor.name[block.end() :]}") if block else tensor

    return replace(model, metadata=metadata, tensors=tuple(map(rename_tensor, model.tensors)))


# Element types of tensors, and their sizes.


@dataclass(frozen=True, slots=True)
class Quant:
    """An element type (quantisation): a block of `per_block` elements takes `block_bytes` bytes."""

    name: str
    per_block: int
    block_bytes: int

    def n_bytes(self, elements: int) -> int:
        """Return the size in bytes of `elements` elements, a multiple of the block."""
        return elements // self.per_block * self.block_bytes


QUANTS: Mapping[int, Quant] = {
    # By ggml's number of the type. Sources: enum ggml_type in ggml.h, block layouts in ggml-common.h (build 11434).
    0: Quant("F32", 1, 4),
    1: Quant("F16", 1, 2),
    2: Quant("Q4_0", 32, 18),
    3: Quant("Q4_1", 32, 20),
    6: Quant("Q5_0", 32, 22),
    7: Quant("Q5_1", 32, 24),
    8: Quant("Q8_0", 32, 34),
    9: Quant("Q8_1", 32, 36),
    10: Quant("Q2_K", 256, 84),
    11: Quant("Q3_K", 256, 110),
    12: Quant("Q4_K", 256, 144),
    13: Quant("Q5_K", 256, 176),
    14: Quant("Q6_K", 256, 210),
    15: Quant("Q8_K", 256, 292),
    16: Quant("IQ2_XXS", 256, 66),
    17: Quant("IQ2_XS", 256, 74),
    18: Quant("IQ3_XXS", 256, 98),
    19: Quant("IQ1_S", 256, 50),
    20: Quant("IQ4_NL", 32, 18),
    21: Quant("IQ3_S", 256, 110),
    22: Quant("IQ2_S", 256, 82),
    23: Quant("IQ4_XS", 256, 136),
    24: Quant("I8", 1, 1),
    25: Quant("I16", 1, 2),
    26: Quant("I32", 1, 4),
    27: Quant("I64", 1, 8),
    28: Quant("F64", 1, 8),
    29: Quant("IQ1_M", 256, 56),
    30: Quant("BF16", 1, 2),
    34: Quant("TQ1_0", 256, 54),
    35: Quant("TQ2_0", 256, 66),
    39: Quant("MXFP4", 32, 17),
    40: Quant("NVFP4", 64, 36),
    41: Quant("Q1_0", 128, 18),
    42: Quant("Q2_0", 64, 18),
}

QUANTS_BY_NAME: Mapping[str, Quant] = {quant.name: quant for quant in QUANTS.values()}


# The parser. It reads the header in blocks, skips large arrays, and checks every length before it allocates memory.
#
# Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. It refuses whatever llama.cpp refuses (gguf.cpp,
# build 11434). The limits below are ours: they bound time and memory, and are far above the values of real files.

MAX_HEADER_BYTES = 2**28
"""Largest accepted header; a vocabulary of 250,000 tokens with its merges takes about 11 MB."""

_MAGIC = b"GGUF"
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SCALARS = {kind: struct.Struct(f"<{code}") for kind, code in _CODES.items()}
_LAST_VERSION = 3
_NO_VERSION = 2**16  # a multiple of this is a version in the other byte order
_FLOATS = (6, 12)
_STRING, _ARRAY = 8, 9
_U32, _U64 = _SCALARS[4], _SCALARS[10]
_BLOCK_BYTES = 2**18
_DEFAULT_ALIGNMENT = 32
_MAX_SIZE = 2**63 - 1  # ggml counts elements and bytes in int64_t

_MAX_DIMENSIONS = 4  # GGML_MAX_DIMS
_MAX_ENTRIES = 2**16  # keys, or tensors; the largest models have about two thousand
_KEY, _TENSOR = message("a key"), message("a tensor")
"""The two kinds of things with names in a header, as reasons of damage call them."""
_MAX_KEY_BYTES = 2**16 - 1  # by the format; tensor names are far shorter
_MAX_TEXT_BYTES = 2**20  # of one kept text; longer ones are skipped
_MAX_KEPT_BYTES = 2**22  # of all kept keys, names and texts together
_MAX_KEPT_ELEMENTS = 2**12  # of one kept array; longer ones are skipped
_MAX_ALL_ELEMENTS = 2**18  # of all kept arrays together
_MAX_LISTED = 2**21  # strings in all arrays; the largest tokenizers have about 800,000, merges included
_MAX_ALIGNMENT = 2**24
_MAX_BLOCKS = 2**12  # llama.cpp has room for 512
_MAX_PARTS = 2**12


class HeaderSource(Protocol):
    """A readable and seekable source of a header: a file, or a remote file behind range requests."""

    def read(self, count: int, /) -> bytes:
        """Return up to `count` bytes; b"" at the end."""

    def seek(self, position: int, /) -> int:
        """Move to an absolute position."""


def parse_header(source: HeaderSource, path: PurePath, file_bytes: int, *, remedy: str | None = None) -> GgufHeader:
    """Parse the GGUF header at the start of `source`. `path` is its name in errors, `file_bytes` the file's size.

    Raises ModelBroken if the header is truncated or invalid, or if it is not a GGUF at all, with `remedy` as the hint
    if it is given.
    """
    return _Parser(source, path, file_bytes, remedy).parse()


class _Parser:
    """Parses a header in one forward pass, through a cursor in a block of bytes."""

    def __init__(self, source: HeaderSource, path: PurePath, file_bytes: int, remedy: str | None) -> None:
        self._source = source
        self._path = path
        self._name = path.name
        self._size = file_bytes
        self._remedy = remedy
        self._block = b""
        self._base = 0  # offset of the block in the file
        self._at = 0  # the cursor, relative to the block; after a skip it may be beyond its end
        self._text_left = _MAX_KEPT_BYTES
        self._elements_left = _MAX_ALL_ELEMENTS
        self._listed_left = _MAX_LISTED
        self._offset_known = True  # the next tensor's offset is known: the previous one has a known element type

    def parse(self) -> GgufHeader:
        self._check_magic()
        n_tensors, n_keys = self._read_number(_U64), self._read_number(_U64)
        if max(n_tensors, n_keys) > _MAX_ENTRIES:
            self._refuse_damaged(
                message("it claims {tensors:,} tensors and {keys:,} keys", tensors=n_tensors, keys=n_keys)
            )
        metadata: dict[str, object] = {}
        lengths: dict[str, int] = {}
        seen: set[str] = set()
        for _ in range(n_keys):
            key = self._read_name(_KEY, seen)
            value, length = self._read_value(key)
            if value is not None:
                metadata[key] = value
            if length is not None:
                lengths[key] = length
        alignment = _read_alignment(metadata, self._refuse_damaged)
        seen.clear()
        tensors = []
        end = 0
        for _ in range(n_tensors):
            tensor, end = self._read_tensor(seen, alignment, end)
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
        _check_counts(header, self._refuse_damaged)
        return header

    def _check_magic(self) -> None:
        self._block = self._source.read(_BLOCK_BYTES)
        if not self._block.startswith(_MAGIC):
            self._refuse_foreign()
        self._at = len(_MAGIC)
        version = self._read_number(_U32)
        if version == 1:
            self._refuse(
                message("{name} is a GGUF file of version 1, which llama.cpp no longer reads.", name=self._name),
                message("Download a newer file of this model."),
                version=version,
            )
        if _LAST_VERSION < version < _NO_VERSION:
            self._refuse(
                message(
                    "{name} is a GGUF file of version {version}, which is too new.", name=self._name, version=version
                ),
                message("Update the launcher and the engine."),
                version=version,
            )
        if version and version % _NO_VERSION == 0:
            kind = file_kinds.KINDS_BY_NAME["big-endian"]
            self._refuse(message("{name} is {what}.", name=self._name, what=kind.what), kind.cure, file_kind=kind.name)
        if version not in (2, _LAST_VERSION):
            self._refuse_damaged(message("its GGUF version is {version}", version=version))

    def _refuse_foreign(self) -> NoReturn:
        start = self._block[: len(_MAGIC)]
        what = message("it begins with {start}", start=start.hex(" ")) if start else message("it is empty")
        cure = message("Choose another file, or download it again.")
        what, cure = file_kinds.recognise_bytes(self._block) or (what, cure)
        self._refuse(message("{name} is not a GGUF file: {what}.", name=self._name, what=what), self._remedy or cure)

    def _read_value(self, key: str) -> tuple[object | None, int | None]:
        """Return a value (None if it is skipped) and, for an array, its length."""
        kind = self._read_number(_U32)
        if kind in _SCALARS:
            return self._read_scalars(key, kind, 1)[0], None
        if kind == _STRING:
            return self._read_text_value(), None
        if kind != _ARRAY:
            self._refuse_damaged(message("it holds a value of unknown type {kind}", kind=kind))
        element, length = self._read_number(_U32), self._read_number(_U64)
        if element == _STRING:
            self._skip_texts(length)
            return None, length
        if element not in _SCALARS:
            self._refuse_damaged(message("it holds an array of unknown type {kind}", kind=element))
        if length <= _MAX_KEPT_ELEMENTS:
            self._elements_left -= length
            if self._elements_left < 0:
                self._refuse_damaged(
                    message("its small arrays hold more than {most:,} numbers", most=_MAX_ALL_ELEMENTS)
                )
            return self._read_scalars(key, element, length), length
        self._skip(length * _SCALARS[element].size)
        return None, length

    def _read_tensor(self, seen: set[str], alignment: int, expected: int) -> tuple[Tensor, int]:
        """Return a tensor, whose data must begin at `expected`, and the offset where the next one's must begin."""
        name = self._read_name(_TENSOR, seen)
        n_dimensions = self._read_number(_U32)
        if n_dimensions > _MAX_DIMENSIONS:
            self._refuse_damaged(
                message("tensor {tensor} has {count} dimensions", tensor=_shorten_repr(name), count=n_dimensions)
            )
        dimensions = tuple(self._read_number(_U64) for _ in range(n_dimensions))
        kind, offset = self._read_number(_U32), self._read_number(_U64)
        quant = QUANTS.get(kind)
        elements = math.prod(dimensions)
        n_bytes = None if quant is None else quant.n_bytes(elements)
        if max(elements, *dimensions, offset + (n_bytes or 0)) > _MAX_SIZE:
            self._refuse_damaged(message("tensor {tensor} is larger than any file", tensor=_shorten_repr(name)))
        if quant is not None and (dimensions[0] if dimensions else 1) % quant.per_block:
            self._refuse_damaged(
                message(
                    "a row of tensor {tensor} does not fill its blocks of {count} ({quant})",
                    tensor=_shorten_repr(name),
                    count=quant.per_block,
                    quant=quant.name,
                )
            )
        if offset % alignment:
            self._refuse_damaged(
                message(
                    "tensor {tensor} begins at byte {offset:,}, which is not a multiple of {alignment}",
                    tensor=_shorten_repr(name),
                    offset=offset,
                    alignment=alignment,
                )
            )
        if offset < expected or (offset > expected and self._offset_known):
            self._refuse_damaged(
                message(
                    "tensor {tensor} begins at byte {offset:,} of the data in place of {expected:,}",
                    tensor=_shorten_repr(name),
                    offset=offset,
                    expected=expected,
                )
            )
        self._offset_known = n_bytes is not None
        tensor = Tensor(name, dimensions, quant.name if quant else f"type {kind}", offset, n_bytes)
        return tensor, offset + -(-(n_bytes or 0) // alignment) * alignment

    def _read_scalars(self, key: str, kind: int, count: int) -> tuple[object, ...]:
        form = _SCALARS[kind]
        at = self._advance(count * form.size)
        values = struct.unpack_from(f"<{count}{_CODES[kind]}", self._block, at)
        if kind in _FLOATS and any(map(math.isnan, values)):
            self._refuse_damaged(message("{key} is not a number", key=_shorten_repr(key)))
        return values

    def _read_number(self, form: struct.Struct) -> int:
        at = self._advance(form.size)
        return int(form.unpack_from(self._block, at)[0])

    def _read_name(self, what: str, seen: set[str]) -> str:
        length = self._read_number(_U64)
        if length > _MAX_KEY_BYTES:
            self._refuse_damaged(message("the name of {what} has {length:,} bytes", what=what, length=length))
        try:
            name = self._read_text(length).decode()
        except UnicodeDecodeError:
            self._refuse_damaged(message("the name of {what} is not UTF-8", what=what))
        if not name:
            self._refuse_damaged(message("the name of {what} is empty", what=what))
        if name in seen:
            self._refuse_damaged(message("it holds {what} twice: {name}", what=what, name=_shorten_repr(name)))
        seen.add(name)
        return name

    def _read_text_value(self) -> str | None:
        length = self._read_number(_U64)
        if length > _MAX_TEXT_BYTES:
            self._skip(length)
            return None
        return self._read_text(length).decode("utf-8", "replace")

    def _read_text(self, length: int) -> bytes:
        self._text_left -= length
        if self._text_left < 0:
            self._refuse_damaged(message("its names and texts have more than {most:,} bytes", most=_MAX_KEPT_BYTES))
        at = self._advance(length)
        return self._block[at : at + length]

    def _advance(self, count: int) -> int:
        """Advance over the next `count` bytes, and return their index in the block."""
        at = self._at
        if at + count > len(self._block):
            self._load_block(count)
            at = 0
        self._at = at + count
        return at

    def _skip(self, count: int) -> None:
        self._check_within(count)
        self._at += count

    def _skip_texts(self, count: int) -> None:
        self._listed_left -= count
        if self._listed_left < 0:
            self._refuse_damaged(message("it claims lists of more than {most:,} texts", most=_MAX_LISTED))
        length_at = _U64.unpack_from
        block, at, end = self._block, self._at, len(self._block) - _U64.size
        for _ in range(count):
            if at > end:
                self._at = at
                self._load_block(_U64.size)
                block, at, end = self._block, 0, len(self._block) - _U64.size
            at += _U64.size + length_at(block, at)[0]
        self._at = at
        self._check_within(0)

    def _load_block(self, count: int) -> None:
        """Read a new block that begins at the cursor and has at least `count` bytes."""
        self._check_within(count)
        self._base, self._at = self._base + self._at, 0
        self._source.seek(self._base)
        self._block = self._source.read(max(count, _BLOCK_BYTES))
        if len(self._block) < count:
            self._refuse_damaged(message("it ends inside its header"))

    def _check_within(self, count: int) -> None:
        position = self._base + self._at + count
        if position > self._size:
            self._refuse_damaged(message("it ends inside its header"))
        if position > MAX_HEADER_BYTES:
            self._refuse_damaged(message("its header is larger than {most} MiB", most=MAX_HEADER_BYTES // 2**20))

    def _refuse_damaged(self, why: str) -> NoReturn:
        self._refuse(
            message("{name} is damaged or incomplete: {why}.", name=self._name, why=why),
            self._remedy or message("Download it again."),
        )

    def _refuse(self, title: str, hint: str, **facts: object) -> NoReturn:
        raise ModelBroken(title, hint, path=str(self._path), **facts)


def _read_alignment(metadata: dict[str, object], refuse: Callable[[str], NoReturn]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    number = alignment if isinstance(alignment, int) and not isinstance(alignment, bool) else 0
    if not 0 < number <= _MAX_ALIGNMENT or number & (number - 1):
        refuse(message("its alignment is {alignment}", alignment=_shorten_repr(alignment)))
    return number


def _check_counts(header: GgufHeader, refuse: Callable[[str], NoReturn]) -> None:
    """Refuse impossible counts, so that later loops over them are bounded."""
    name = header.metadata.get("general.architecture", "")
    if not isinstance(name, str) or len(name) > 64 or not name.isprintable():
        refuse(message("its architecture is named {name}", name=_shorten_repr(name)))
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
            refuse(message("{key} is {value:,}", key=key, value=value))


def _shorten_repr(value: object) -> str:
    """Return the repr of a value for an error message, shortened to 80 characters."""
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:76]}...{shown[-1]}"


def read_header(path: Path) -> GgufHeader:
    """Read the header of the GGUF file at `path`.

    Raises ModelMissing if it cannot be opened, ModelBroken if it is not a GGUF or its header is truncated or invalid.
    """
    try:
        if path.exists() and not path.is_file():  # opening a pipe would block; reading a device may never end
            title = (
                message("{path} is a folder.", path=path)
                if path.is_dir()
                else message("{path} is not an ordinary file.", path=path)
            )
            raise ModelMissing(title, message("Choose a .gguf file."), path=str(path))
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            return parse_header(file, path, size)
    except FileNotFoundError as error:
        hint = message(
            "Check the path. {command} lists your models[, {pull} downloads one].",
            command=command_name("models list", mark("Models")),
            pull=command_name("pull"),
        )
        raise ModelMissing(message("Model file {path} not found.", path=path), hint, path=str(path)) from error
    except OSError as error:
        reason = error.strerror or error
        raise ModelMissing(
            message("{path} cannot be read: {reason}.", path=path, reason=reason),
            message("Check the file's permissions."),
        ) from error


def read_raw_header(header: GgufHeader) -> bytes:
    """Return the bytes of a local file from its start to its tensor data.

    Raises ModelMissing if it can no longer be read.
    """
    try:
        with Path(header.path).open("rb") as file:
            return file.read(header.data_offset).ljust(header.data_offset, b"\0")
    except OSError as error:
        raise ModelMissing(
            message("{path} cannot be read: {strerror}.", path=header.path, strerror=error.strerror or error),
            message("Check that the file is still there."),
        ) from error


def read_model(path: Path) -> GgufModel:
    """Read the headers of the model at `path`: of that file, or of all parts of a split model.

    `path` may be any part. Raises ModelMissing if a part is missing, ModelBroken if one is damaged or they do not
    belong together. It does not check that the files are complete: use `check_complete(*model.parts)`.
    """
    header = read_header(path)
    count = header.split_count
    if count == 1:
        beside = [name for name in part_names(path.name) or () if path.with_name(name).exists()]
        return join_parts([read_header(path.with_name(name)) for name in beside] if len(beside) > 1 else [header])
    names = part_names(path.name, count)
    if names is None:
        raise ModelMissing(
            message(
                "{name} is one of {count} parts of a model but was renamed, so the other parts cannot be found.",
                name=path.name,
                count=count,
            ),
            message("Restore its original name, which ends in -00001-of-{count:05}.gguf.", count=count),
            path=str(path),
        )
    missing = [name for name in names if name != path.name and not path.with_name(name).exists()]
    if missing:
        more = len(missing) - 3
        shown = join_messages(", ".join(missing[:3]), message("and {count} more", count=more) if more > 0 else None)
        raise ModelMissing(
            message(
                "{name} is one of {count} parts of a model, and some parts are missing from its folder: {shown}.",
                name=path.name,
                count=count,
                shown=shown,
            ),
            message("Download the missing parts into {parent}.", parent=path.absolute().parent),
            path=str(path),
            missing=missing,
        )
    return join_parts([header if name == path.name else read_header(path.with_name(name)) for name in names])


def check_complete(*headers: GgufHeader) -> None:
    """Raise ModelBroken if a file is too short for its tensors."""
    for header in headers:
        missing = header.needed_bytes - header.file_bytes
        if missing > 0:
            raise ModelBroken(
                message(
                    "{name} is incomplete: {missing:,} of {needed_bytes:,} bytes are missing.",
                    name=header.path.name,
                    missing=missing,
                    needed_bytes=header.needed_bytes,
                ),
                message("Download it again, or wait for the download to finish."),
                path=str(header.path),
                missing_bytes=missing,
            )
