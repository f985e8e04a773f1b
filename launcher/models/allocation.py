"""How large the buffers get in which a graph's tensors live: ggml's graph allocator, played through without memory.

The rules are those of ggml-alloc.c (b11434): inputs first, then each tensor in the smallest free hole that holds it,
else at the end; an element-wise operation takes over its operand's place when nobody else needs it; a tensor's
place is free after its last use. Who is born and dies when does not depend on sizes, so it is worked out once.
"""

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

from launcher.models.schedule import Schedule
from launcher.models.tensors import IN_PLACE, Graph, Size

_ENDLESS = 1 << 62
ALIGNMENT = 128
"""Of CUDA's buffers; the processor's is 32. On tensors of kilobytes and more it makes no difference."""


@dataclass(slots=True)
class Lives:
    """What happens in one buffer: number n is born, of the kind of size `sizes[n]`, and ~n dies."""

    events: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    kinds: dict[Size, int] = field(default_factory=dict)

    def born(self, size: Size) -> int:
        """Let a tensor of `size` be born, and return its number."""
        number = len(self.sizes)
        self.events.append(number)
        self.sizes.append(self.kinds.setdefault(size, len(self.kinds)))
        return number


def lives(graph: Graph, schedule: Schedule) -> dict[int, Lives]:
    """Return what happens in the buffer of each place when `graph` is allocated by `schedule`."""
    children = [0] * len(graph.ops)
    views = [0] * len(graph.ops)
    for result, sources in schedule.steps:
        for source in sources:
            children[source] += 1
        if result is not None and graph.bases[result] != result:
            views[graph.bases[result]] += 1
    slots: dict[int, int] = {}
    buffers: dict[int, Lives] = {}

    def allocate(tensor: int) -> None:
        slots[tensor] = buffers.setdefault(graph.places[tensor], Lives()).born(graph.sizes[tensor])

    def heir(tensor: int, sources: Sequence[int]) -> int | None:
        for one in sources if graph.ops[tensor] in IN_PLACE else ():
            last = one in slots and one not in schedule.kept and children[one] == 1 and not views[one]
            if last and graph.sizes[one] == graph.sizes[tensor]:
                return one
        return None

    for tensor in schedule.inputs:
        allocate(tensor)
    for result, sources in schedule.steps:
        if result is not None and graph.bases[result] == result and result not in slots:
            left = heir(result, sources)
            if left is None:
                allocate(result)
            else:
                slots[result] = slots.pop(left)
        for source in sources:
            children[source] -= 1
            base = graph.bases[source]
            if children[source] or views[source]:
                continue
            if base != source:
                views[base] -= 1
            if base in slots and base not in schedule.kept and not views[base] and not children[base]:
                buffers[graph.places[base]].events.append(~slots.pop(base))
    return buffers


class _Chunk:
    """A stretch of memory with its holes, sorted by offset; the last hole reaches to the chunk's end."""

    def __init__(self, limit: int) -> None:
        self.holes = [(0, limit)]
        self.peak = 0

    def take(self, index: int, size: int) -> int:
        """Take `size` bytes from the start of the hole at `index`, and return their offset."""
        offset, room = self.holes[index]
        if room == size:
            del self.holes[index]
        else:
            self.holes[index] = (offset + size, room - size)
        self.peak = max(self.peak, offset + size)
        return offset

    def give(self, offset: int, size: int) -> None:
        """Make a hole, joined with its neighbours."""
        holes, index = self.holes, bisect(self.holes, (offset, 0))
        if index < len(holes) and offset + size == holes[index][0]:
            size += holes.pop(index)[1]
        if index and sum(holes[index - 1]) == offset:
            index -= 1
            offset, before = holes.pop(index)
            size += before
        holes.insert(index, (offset, size))


def buffer_bytes(buffer: Lives, units: Size, chunk_bytes: int | None = None) -> int:
    """Return the bytes that `buffer` takes; it consists of chunks of `chunk_bytes` where a backend has a limit."""
    return arranged(buffer, units, chunk_bytes)[1]


def arranged(buffer: Lives, units: Size, chunk_bytes: int | None = None) -> tuple[list[tuple[int, int]], int]:
    """Return where each tensor of `buffer` lies, as chunk and offset, and the bytes of all chunks."""
    rounded = [-(-kind.bytes(units) // ALIGNMENT) * ALIGNMENT for kind in buffer.kinds]
    sizes = [rounded[kind] for kind in buffer.sizes]
    chunks: list[_Chunk] = []
    places = [(0, 0)] * len(sizes)
    for event in buffer.events:
        if event < 0:
            number, offset = places[~event]
            if sizes[~event]:
                chunks[number].give(offset, sizes[~event])
        elif sizes[event]:
            number, hole = _best_hole(chunks, sizes[event], chunk_bytes or _ENDLESS)
            places[event] = number, chunks[number].take(hole, sizes[event])
    return places, sum(chunk.peak for chunk in chunks)


def _best_hole(chunks: list[_Chunk], size: int, chunk_bytes: int) -> tuple[int, int]:
    """The smallest hole for `size`, of the last chunk that has one; else the end of the chunk that grows least."""
    for number in range(len(chunks) - 1, -1, -1):
        fitting = [(room, -hole) for hole, (_, room) in enumerate(chunks[number].holes[:-1]) if room >= size]
        if fitting:
            return number, -min(fitting)[1]
    best, reuse = None, -_ENDLESS
    for number, chunk in enumerate(chunks):
        if chunk.holes and chunk.holes[-1][1] >= size:
            left = chunk.peak - chunk.holes[-1][0] - size
            if (reuse < 0 and left > reuse) or 0 <= left < reuse:
                best, reuse = number, left
    if best is None:
        best = len(chunks)
        chunks.append(_Chunk(max(size, chunk_bytes)))
    return best, len(chunks[best].holes) - 1
