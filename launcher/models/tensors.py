"""A computation graph as ggml sees it, without data: operations in order, what each reads, how large its result is.

Sizes stay symbolic, so that one graph serves every context and batch. Read from llama.cpp's ggml/src/ggml.c (b11434).
"""

from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import NamedTuple

HOST = 0
"""The place of what lies in the host's memory; devices are 1, 2, ..."""


class Op(IntEnum):
    """The operations that a backend's rules tell apart; all others are OTHER."""

    NONE = auto()
    ADD = auto()
    ARGSORT = auto()
    CLAMP = auto()
    DIV = auto()
    FLASH_ATTN = auto()
    GET_ROWS = auto()
    GLU = auto()
    MUL = auto()
    MUL_MAT = auto()
    MUL_MAT_ID = auto()
    RMS_NORM = auto()
    ROPE = auto()
    SCALE = auto()
    SET_ROWS = auto()
    SOFT_MAX = auto()
    SSM_CONV = auto()
    SUM_ROWS = auto()
    UNARY = auto()
    OTHER = auto()
    PERMUTE = auto()
    RESHAPE = auto()
    TRANSPOSE = auto()
    VIEW = auto()


EMPTY = frozenset({Op.NONE, Op.PERMUTE, Op.RESHAPE, Op.TRANSPOSE, Op.VIEW})
"""Operations that compute nothing."""
IN_PLACE = frozenset(
    {Op.ADD, Op.CLAMP, Op.DIV, Op.MUL, Op.RMS_NORM, Op.ROPE, Op.SCALE, Op.SOFT_MAX, Op.UNARY},
)
"""Operations whose result may take the place of an operand (ggml_op_can_inplace)."""


class Size(NamedTuple):
    """Bytes as a sum over what a graph is built for: so many per token, per output row, per sequence, ...

    `mask` counts bytes per token and context cell, `cache` per cell of every sequence; the `window_` terms are the same
    for a sliding window's cells. `gate`, `up` and `down` count matrices of one layer's experts.
    """

    fixed: int = 0
    token: int = 0
    output: int = 0
    sequence: int = 0
    mask: int = 0
    cache: int = 0
    window_mask: int = 0
    window_cache: int = 0
    gate: int = 0
    up: int = 0
    down: int = 0

    def plus(self, other: "Size") -> "Size":
        """Return the sum of both."""
        return Size(*(a + b for a, b in zip(self, other, strict=True)))

    def bytes(self, units: "Size") -> int:
        """Return the bytes when there are `units` of each."""
        return sum(a * b for a, b in zip(self, units, strict=True))


_ZERO = Size()


@dataclass(slots=True)
class Graph:
    """Tensors by number. A view has no memory of its own but that of its `base`; for others that is the tensor itself.

    `nodes` are computed in this order; `inputs` are filled before; weights and caches lie elsewhere and are neither.
    `readers` counts how often a tensor is read. New nodes are computed at `place`.
    """

    ops: list[Op] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)
    sources: list[tuple[int, ...]] = field(default_factory=list)
    bases: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    readers: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outside: set[int] = field(default_factory=set)
    place: int = HOST

    def node(self, op: Op, size: Size, *sources: int) -> int:
        """Add a result of `size`, computed by `op` from `sources`."""
        tensor = self._add(op, size, sources, len(self.ops), self.place)
        self.nodes.append(tensor)
        return tensor

    def like(self, op: Op, *sources: int) -> int:
        """Add a result as large as the first of `sources`."""
        return self.node(op, self.sizes[sources[0]], *sources)

    def view(self, op: Op, source: int, *others: int) -> int:
        """Add a node whose result lies in the memory of `source`; `others` are read as well."""
        tensor = self._add(op, self.sizes[source], (source, *others), self.bases[source], self.place)
        self.nodes.append(tensor)
        return tensor

    def input(self, size: Size) -> int:
        """Add a tensor of `size` that is filled on the host before the graph runs."""
        tensor = self._add(Op.NONE, size, (), len(self.ops), HOST)
        self.inputs.append(tensor)
        return tensor

    def elsewhere(self, size: Size = _ZERO, place: int | None = None) -> int:
        """Add a weight or a cache, whose memory is not the graph's; `size` matters when it must be copied."""
        tensor = self._add(Op.NONE, size, (), len(self.ops), self.place if place is None else place)
        self.outside.add(tensor)
        return tensor

    def copy(self, tensor: int, place: int) -> int:
        """Add a copy of `tensor` at `place`; a schedule says when it is made."""
        return self._add(Op.NONE, self.sizes[tensor], (), len(self.ops), place)

    def _add(self, op: Op, size: Size, sources: tuple[int, ...], base: int, place: int) -> int:
        self.ops.append(op)
        self.sizes.append(size)
        self.sources.append(sources)
        self.bases.append(base)
        self.places.append(place)
        self.readers.append(0)
        for source in sources:
            self.readers[source] += 1
        return len(self.ops) - 1
