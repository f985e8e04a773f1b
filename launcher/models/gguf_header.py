"""What is known of a model from its header: one file's, or that of all the parts of a split model."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from pathlib import PurePath

from launcher.base.errors import ModelBroken

_PART = re.compile(r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
"""The names of split files (llama_split_path in llama.cpp)."""
_MAX_NAME = 120
_MAX_NAMED_PARTS = 1_000


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: `dimensions` innermost first, `offset` in bytes from the beginning of its file's data.

    `n_bytes` is None when the element type is not known here; `quant` is then "type NUMBER".
    """

    name: str
    dimensions: tuple[int, ...]
    quant: str
    offset: int
    n_bytes: int | None


class MtpHead(Enum):
    """Whether a model has an MTP head. PROMISED: its metadata says so, but the tensors are not there."""

    PRESENT = "present"
    PROMISED = "promised"
    NONE = "none"


class _Facts:
    """What metadata and tensors tell, of a file as of a model."""

    __slots__ = ()

    path: PurePath
    metadata: Mapping[str, object]
    array_lengths: Mapping[str, int]
    tensors: tuple[Tensor, ...]

    @property
    def architecture(self) -> str:
        """The architecture's name, such as "qwen35moe"; "unknown" when the file does not say."""
        value = self.metadata.get("general.architecture")
        return value if isinstance(value, str) and value else "unknown"

    @property
    def name(self) -> str:
        """The model's own name in printable characters, or the file's."""
        value = self.metadata.get("general.name")
        own = "".join(filter(str.isprintable, value)).strip() if isinstance(value, str) else ""
        part = _PART.fullmatch(self.path.name)
        return own[:_MAX_NAME] or (part["prefix"] if part else self.path.stem)

    @property
    def block_count(self) -> int | None:
        """How many blocks there are, those of the MTP heads included."""
        return self.count("block_count")

    @property
    def trained_context(self) -> int | None:
        """The context length that the model was trained for, in tokens."""
        return self.count("context_length")

    @property
    def vocabulary(self) -> int | None:
        """How many tokens the vocabulary has: those listed, else what the metadata claims."""
        return self.array_lengths.get("tokenizer.ggml.tokens") or self.count("vocab_size")

    @property
    def promised_heads(self) -> int:
        """How many MTP heads the metadata promises."""
        return self.count("nextn_predict_layers") or 0

    @property
    def mtp_head(self) -> MtpHead:
        """Whether the head is really there: promised, and its projection among the tensors."""
        if not self.promised_heads:
            return MtpHead.NONE
        wanted = f"blk.{(self.block_count or 0) - self.promised_heads}.nextn.eh_proj.weight"
        there = any(tensor.name == wanted for tensor in self.tensors)
        return MtpHead.PRESENT if there else MtpHead.PROMISED

    def count(self, key: str) -> int | None:
        """Return the number under the architecture's `key`, such as "block_count"; None when it is no count."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


@dataclass(frozen=True, slots=True)
class GgufHeader(_Facts):
    """One file's metadata and tensors, and where their data begin and must end, in bytes.

    `metadata` holds numbers, switches and texts, and numeric arrays of up to 4,096 elements as tuples. Longer arrays,
    lists of texts, and texts beyond 1 MiB are left out; `array_lengths` has the length of every array.
    `path` is where a local file lies; of a remote file it is only the name.
    """

    path: PurePath
    metadata: Mapping[str, object]
    array_lengths: Mapping[str, int]
    tensors: tuple[Tensor, ...]
    data_offset: int
    file_bytes: int

    @property
    def split_count(self) -> int:
        """Of how many files the model consists."""
        value = self.metadata.get("split.count", 1)
        return value if isinstance(value, int) and value > 0 and value is not True else 1

    @property
    def has_mtp_head(self) -> bool:
        """Whether there is a head. In a split model it lies in a later file, so for one part the promise must do."""
        return self.mtp_head is MtpHead.PRESENT or (self.split_count > 1 and self.promised_heads > 0)

    @property
    def needed_bytes(self) -> int:
        """The least size that the file must have to hold all its tensors."""
        ends = [tensor.offset + (tensor.n_bytes or 0) for tensor in self.tensors]
        return self.data_offset + max(ends, default=0)


@dataclass(frozen=True, slots=True)
class GgufModel(_Facts):
    """A whole model: the headers of its parts in order, one for most. Made by `join_parts`.

    The metadata are the first part's, where a split model keeps them; a tensor's offset counts in its own part.
    """

    parts: tuple[GgufHeader, ...]
    path: PurePath
    metadata: Mapping[str, object]
    array_lengths: Mapping[str, int]
    tensors: tuple[Tensor, ...]

    @property
    def file_bytes(self) -> int:
        """The size of all files in bytes."""
        return sum(part.file_bytes for part in self.parts)

    @property
    def needed_bytes(self) -> int:
        """The least size in bytes that all files together must have."""
        return sum(part.needed_bytes for part in self.parts)

    @property
    def has_mtp_head(self) -> bool:
        """Whether the head's tensors are really there, whichever part they are in."""
        return self.mtp_head is MtpHead.PRESENT


def part_names(name: str, count: int | None = None) -> tuple[str, ...] | None:
    """Return the names of all `count` parts of the model that the file `name` is a part of, by default as many as it
    says, up to 1,000.

    None when `name` is not of the form PREFIX-00001-of-00003.gguf with that count.
    """
    part = _PART.fullmatch(name)
    if part is None or int(part["count"]) not in (range(1, _MAX_NAMED_PARTS + 1) if count is None else (count,)):
        return None
    numbers = range(1, int(part["count"]) + 1)
    return tuple(f"{part['prefix']}-{number:05}-of-{part['count']}.gguf" for number in numbers)


def join_parts(parts: Sequence[GgufHeader]) -> GgufModel:
    """Put the headers of all parts together, in order.

    Raises ModelBroken when they do not belong together: wrong numbers, a tensor twice, or not all tensors.
    The same is checked by llama_model_loader in llama.cpp when it loads them.
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
            said = f"part {own + 1} of {of}" if isinstance(own, int) else "no part of a split model"
            raise _disjoint(first, f"{part.path.name} says that it is {said}")
    twice = [name for name, times in Counter(tensor.name for tensor in model.tensors).items() if times > 1]
    if twice:
        raise _disjoint(first, f"tensor {twice[0]!r} is in two of them")
    promised = first.metadata.get("split.tensors.count", len(model.tensors))
    if promised != len(model.tensors):
        said = f"{promised:,}" if isinstance(promised, int) else "an unknown number"
        raise _disjoint(first, f"they hold {len(model.tensors):,} tensors in place of {said}")
    return model


def _disjoint(first: GgufHeader, why: str) -> ModelBroken:
    return ModelBroken(
        f"The parts of {first.path.name} do not belong together: {why}.",
        "Download all of them again, from one revision of one repository.",
        path=str(first.path),
    )
