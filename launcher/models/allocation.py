"""How large the buffer gets in which a graph's tensors live: ggml's graph allocator, played through without memory.

The rules are those of ggml-alloc.c (b11434): inputs first, then each tensor in the smallest free hole that holds it,
else at the end; an element-wise operation takes over its operand's place when nobody else needs it; a tensor's
place is free after its last use.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

_ALIGNMENT = 128
"""Of CUDA's buffers; the processor's is 32. On tensors of kilobytes and more it makes no difference."""


@dataclass(slots=True)
class Graph:
    """Tensors in the order in which they are computed; a tensor is its number, a view is the tensor that it views."""

    sizes: list[int] = field(default_factory=list)
    sources: list[tuple[int, ...]] = field(default_factory=list)
    reusable: list[tuple[int, ...]] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)

    def input(self, size: int) -> int:
        """Add a tensor of `size` bytes that is filled before the graph runs."""
        self.inputs.append(len(self.sizes))
        return self._add(size, (), ())

    def new(self, size: int, *sources: int) -> int:
        """Add a tensor of `size` bytes that is computed from `sources` and needs a place of its own."""
        return self._add(size, sources, ())

    def inplace(self, first: int, *others: int) -> int:
        """Add a tensor like `first` that may be computed in its place; `others` are read as well."""
        return self._add(self.sizes[first], (first, *others), (first,))

    def either(self, first: int, second: int) -> int:
        """Add a tensor that may be computed in the place of one of two of its own layout."""
        return self._add(self.sizes[first], (first, second), (first, second))

    def read(self, *sources: int) -> None:
        """Read `sources` without a result here: a write into a cache, say."""
        self._add(0, sources, ())

    def keep(self, tensor: int) -> None:
        """Let `tensor` never be freed: a view of it stays without a reader."""
        self.kept.append(tensor)

    def _add(self, size: int, sources: tuple[int, ...], reusable: tuple[int, ...]) -> int:
        self.sizes.append(-(-size // _ALIGNMENT) * _ALIGNMENT)
        self.sources.append(sources)
        self.reusable.append(reusable)
        return len(self.sizes) - 1


def buffer_bytes(graph: Graph) -> int:
    """Return the bytes that the buffer of `graph` takes."""
    uses = [0] * len(graph.sizes)
    for sources in graph.sources:
        for source in sources:
            uses[source] += 1
    for tensor in graph.kept:
        uses[tensor] += 1
    place: dict[int, int] = {}
    holes: list[tuple[int, int]] = []  # offset and size, sorted, none touching another
    end = peak = 0

    def take(size: int) -> int:
        nonlocal end, peak
        best = min((hole for hole in holes if hole[1] >= size), key=_by_size, default=None)
        if best is None:
            offset = end
            end += size
            peak = max(peak, end)
            return offset
        index = holes.index(best)
        offset, room = best
        if room == size:
            del holes[index]
        else:
            holes[index] = (offset + size, room - size)
        return offset

    def give(offset: int, size: int) -> None:
        nonlocal end
        index = 0
        while index < len(holes) and holes[index][0] < offset:
            index += 1
        if index and sum(holes[index - 1]) == offset:
            index -= 1
            offset, size = holes[index][0], holes[index][1] + size
            del holes[index]
        if index < len(holes) and offset + size == holes[index][0]:
            size += holes[index][1]
            del holes[index]
        if offset + size == end:
            end = offset
        else:
            holes.insert(index, (offset, size))

    for tensor in graph.inputs:
        place[tensor] = take(graph.sizes[tensor])
    for tensor, sources in enumerate(graph.sources):
        size = graph.sizes[tensor]
        if size and tensor not in place:
            heir = next((one for one in graph.reusable[tensor] if uses[one] == 1 and one in place), None)
            place[tensor] = take(size) if heir is None else place.pop(heir)
        for source in sources:
            uses[source] -= 1
            if not uses[source] and source in place:
                give(place.pop(source), graph.sizes[source])
    return peak


def _by_size(hole: Sequence[int]) -> tuple[int, int]:
    return hole[1], -hole[0]
