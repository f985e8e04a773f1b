"""The header of a GGUF file, read lazily: big arrays are skipped, nothing is trusted.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from launcher.base.errors import ModelBroken, ModelMissing

_MAGIC = b"GGUF"
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4  # GGML_MAX_DIMS
_MAX_STRING_BYTES = 2**24
_MAX_ENTRIES = 2**18  # keys, or tensors; the largest models have some ten thousand
_MAX_STRINGS = 2**22  # in one array; the largest vocabularies have some three hundred thousand
_DEFAULT_ALIGNMENT = 32

_QUANTS: Mapping[int, tuple[str, int, int]] = {
    # ggml type: name, elements per block, bytes per block (ggml.c, type_traits)
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: `dimensions` innermost first, `n_bytes` None when the quant type is not known here."""

    name: str
    dimensions: tuple[int, ...]
    quant: str
    offset: int
    n_bytes: int | None


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata (arrays left out), tensors, and where their data begins and must end, in bytes."""

    path: Path
    metadata: Mapping[str, object]
    tensors: tuple[Tensor, ...]
    data_offset: int
    file_bytes: int

    @property
    def architecture(self) -> str:
        """The architecture's name, such as "qwen35moe"; "unknown" when the file does not say."""
        return str(self.metadata.get("general.architecture", "unknown"))

    @property
    def name(self) -> str:
        """The model's own name, or the file's."""
        return str(self.metadata.get("general.name") or self.path.stem)

    @property
    def trained_context(self) -> int | None:
        """The context length that the model was trained for, in tokens."""
        return self._count("context_length")

    @property
    def promised_heads(self) -> int:
        """How many MTP heads the metadata promises."""
        return self._count("nextn_predict_layers") or 0

    @property
    def split_count(self) -> int:
        """Of how many files the model consists."""
        value = self.metadata.get("split.count", 1)
        return value if isinstance(value, int) and value > 0 else 1

    @property
    def has_mtp_head(self) -> bool:
        """Whether the head is really there: promised, and its projection among the tensors.

        In a split model the head lies in a later file, so there the promise must do.
        """
        blocks, heads = self._count("block_count"), self.promised_heads
        if not blocks or not heads:
            return False
        if self.split_count > 1:
            return True
        wanted = f"blk.{blocks - heads}.nextn.eh_proj.weight"
        return any(tensor.name == wanted for tensor in self.tensors)

    @property
    def needed_bytes(self) -> int:
        """The least size that the file must have to hold all its tensors."""
        ends = [tensor.offset + (tensor.n_bytes or 0) for tensor in self.tensors]
        return self.data_offset + max(ends, default=0)

    def _count(self, key: str) -> int | None:
        value = self.metadata.get(f"{self.architecture}.{key}")
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def read_header(path: Path) -> GgufHeader:
    """Read the header of the GGUF file at `path`.

    Raises ModelMissing when it cannot be opened, ModelBroken when it is not a GGUF, is cut short inside the
    header, or holds lengths that cannot be. Work is bounded by the file's size: no length is believed before
    its bytes were seen.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for, a device read without end
            kind = "a folder" if path.is_dir() else "not an ordinary file"
            raise ModelMissing(f"{path} is {kind}.", "Name a .gguf file.", path=str(path))
        with path.open("rb") as file:
            return _Reader(file, path).header()
    except FileNotFoundError as error:
        raise ModelMissing(f"There is no model file {path}.", "Check the path.", path=str(path)) from error
    except OSError as error:
        reason = error.strerror or error
        raise ModelMissing(f"{path} cannot be read: {reason}.", "Check the file's permissions.") from error


def check_complete(header: GgufHeader) -> None:
    """Raise ModelBroken when the file is shorter than its tensors need."""
    missing = header.needed_bytes - header.file_bytes
    if missing > 0:
        raise ModelBroken(
            f"{header.path.name} is cut short: {missing:,} of {header.needed_bytes:,} bytes are missing.",
            "Download it again, or let the download finish.",
            path=str(header.path),
            missing_bytes=missing,
        )


class _Reader:
    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._size = file.seek(0, 2)
        file.seek(0)

    def header(self) -> GgufHeader:
        magic = self._file.read(4)
        if magic != _MAGIC:
            raise ModelBroken(
                f"{self._path.name} is not a GGUF file: it begins with {magic.hex(' ') or 'nothing, it is empty'}.",
                "Choose another file, or download it again: an error page may have been saved in its place.",
                path=str(self._path),
            )
        version = self._number("<I")
        if version not in (2, 3):
            raise self._broken(f"its GGUF version is {version}")
        n_tensors, n_keys = self._number("<Q"), self._number("<Q")
        if max(n_tensors, n_keys) > _MAX_ENTRIES:
            raise self._broken(f"it claims {n_tensors:,} tensors and {n_keys:,} keys")
        metadata: dict[str, object] = {}
        for _ in range(n_keys):
            key, value = self._string(), self._value(self._number("<I"))
            if value is not None:
                metadata[key] = value
        tensors = tuple(self._tensor() for _ in range(n_tensors))
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise self._broken(f"its alignment is {alignment}")
        offset = -(-self._file.tell() // alignment) * alignment
        return GgufHeader(self._path, metadata, tensors, offset, self._size)

    def _value(self, kind: int) -> object | None:
        """Return a scalar or a string; skip an array and return None."""
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            raise self._broken(f"it holds a value of unknown type {kind}")
        element, count = self._number("<I"), self._number("<Q")
        if element in _SCALARS:
            self._skip(count * struct.calcsize(_SCALARS[element]))
        elif element == _STRING:
            if count > _MAX_STRINGS:
                raise self._broken(f"it claims a list of {count:,} texts")
            for _ in range(count):
                self._skip(self._number("<Q"))
        else:
            raise self._broken(f"it holds an array of unknown type {element}")
        return None

    def _tensor(self) -> Tensor:
        name = self._string()
        n_dimensions = self._number("<I")
        if n_dimensions > _MAX_DIMENSIONS:
            raise self._broken(f"tensor {name!r} has {n_dimensions} dimensions")
        dimensions = tuple(self._number("<Q") for _ in range(n_dimensions))
        kind, offset = self._number("<I"), self._number("<Q")
        quant, per_block, block_bytes = _QUANTS.get(kind, (f"type {kind}", 0, 0))
        elements = 1
        for length in dimensions:
            elements *= length
        n_bytes = elements // per_block * block_bytes if per_block else None
        return Tensor(name, dimensions, quant, offset, n_bytes)

    def _string(self) -> str:
        length = self._number("<Q")
        if length > _MAX_STRING_BYTES:
            raise self._broken(f"it holds a text of {length:,} bytes")
        return self._bytes(length).decode("utf-8", "replace")

    def _number(self, form: str) -> int:
        value = self._scalar(form)
        assert isinstance(value, int)  # noqa: S101 -- the forms used here are integers
        return value

    def _scalar(self, form: str) -> object:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))[0]

    def _bytes(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise self._broken("it ends inside its header")
        return data

    def _skip(self, count: int) -> None:
        if count > self._size - self._file.tell():
            raise self._broken("it ends inside its header")
        self._file.seek(count, 1)

    def _broken(self, why: str) -> ModelBroken:
        return ModelBroken(
            f"{self._path.name} is damaged or incomplete: {why}.", "Download it again.", path=str(self._path)
        )
