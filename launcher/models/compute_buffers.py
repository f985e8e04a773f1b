"""Sizes of a server's compute buffers: those of the target and of the MTP head, on the devices and on the host.

It simulates llama.cpp's scheduler and graph allocator, without allocating memory, on the graphs of compute_graph.py:
`schedule_graph` orders the tensors, a backend's `optimise_for_...` reorders nodes or extends lifetimes, `record_events`
records when each tensor is allocated and freed, and `place_tensors` places them in chunks as ggml does.
"""

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

from launcher.models.compute_graph import (
    ASSISTANT,
    EMPTY,
    HOST,
    IN_PLACE,
    STYLES,
    ExpertBytes,
    Graph,
    Op,
    Shape,
    Size,
    assistant_graph,
    blocks_until_repetition,
    draft_graph,
    head_graph,
    trunk_graph,
)
from launcher.models.drafters import is_drafting
from launcher.models.geometry import Geometry

# Scheduler: cuts a graph into splits, each on one device, and copies tensors between them.
#
# Source: ggml/src/ggml-backend.cpp (b11434). The place (device or host) of each node is known. A split ends where the
# place changes, and before a node that needs a weight from another place, so that weights are copied one after another.

_PIPELINE_COPIES = 4
"""Copies of each input that the scheduler keeps with pipeline parallelism (GGML_SCHED_MAX_COPIES)."""

Optimise = Callable[[Graph, list[int]], tuple[list[int], dict[int, list[int]]]]
"""A backend's graph optimisation: takes the nodes of a split, returns their order and, by node, the tensors that must
stay allocated until after it."""


@dataclass(slots=True)
class Schedule:
    """The order of allocations.

    `inputs` are allocated first, and those also in `kept` are never freed. Each of `steps` is a pair: the tensor
    computed, or None, and the tensors that it reads.
    """

    inputs: list[int]
    kept: set[int] = field(default_factory=set)
    steps: list[tuple[int | None, tuple[int, ...]]] = field(default_factory=list)


@dataclass(slots=True)
class _Split:
    place: int
    nodes: list[int] = field(default_factory=list)
    copied: list[int] = field(default_factory=list)


def schedule_graph(graph: Graph, optimise: Optimise | None = None, *, pipelined: bool = False) -> Schedule:
    """Return the order in which the tensors of `graph` are allocated. Copies between places are added to the graph.

    `pipelined` means pipeline parallelism: several devices work on successive batches at the same time.
    """
    copies: dict[tuple[int, int], int] = {}
    splits = _split_graph(graph, copies)
    result = Schedule([], set(graph.outputs))
    if pipelined:
        for tensor in graph.inputs:
            result.inputs += [tensor, *_pipeline_copies(graph, tensor, HOST)]
        for split in splits:
            for tensor in split.copied:
                result.inputs += [copies[tensor, split.place], *_pipeline_copies(graph, tensor, split.place)]
        result.kept.update(result.inputs)
    else:
        result.inputs += graph.inputs
    for split in splits:
        for tensor in split.copied:
            result.steps += [(None, (tensor,)), (copies[tensor, split.place], ())]
        nodes, needed = split.nodes, dict[int, list[int]]()
        if optimise and split.place != HOST:
            nodes, needed = optimise(graph, nodes)
        for node in nodes:
            result.steps.append((node, graph.sources[node]))
            if node in needed:
                result.steps.append((None, tuple(needed[node])))
    return result


def _split_graph(graph: Graph, copies: dict[tuple[int, int], int]) -> list[_Split]:
    """Split the graph by place. Nodes then read copies of the tensors that are in another place."""
    ops, places = graph.ops, graph.places
    first = next(node for node in graph.nodes if ops[node] not in EMPTY)
    split = _Split(places[first])
    splits = [split]
    for node in graph.nodes:
        if ops[node] not in EMPTY:
            place = places[node]
            foreign = [source for source in graph.sources[node] if places[source] != place]
            if place != split.place or (split.copied and any(source in graph.outside for source in foreign)):
                split = _Split(place)
                splits.append(split)
            for tensor in foreign:
                if (tensor, place) not in copies:
                    copies[tensor, place] = graph.add_copy(tensor, place)
                    split.copied.append(tensor)
            if foreign:
                graph.sources[node] = tuple(
                    copies[source, place] if places[source] != place else source for source in graph.sources[node]
                )
        split.nodes.append(node)
    return splits


def _pipeline_copies(graph: Graph, tensor: int, place: int) -> list[int]:
    return [graph.add_copy(tensor, place) for _ in range(_PIPELINE_COPIES - 1)]


# CUDA: a fused kernel computes several nodes at once, so the tensors that it reads stay allocated until its last node.
#
# Source: ggml_backend_cuda_graph_optimize in ggml/src/ggml-cuda/ggml-cuda.cu (b11434), which HIP (ROCm) shares.
# Left out: the kernel for routed and shared experts of one quantised type, as in files of Q8_0 throughout. Of 200
# random settings of such a file it changes ten: the head's buffer with two slots, by a third of its size.

_CUDA_TOP_EXPERTS = (Op.SOFT_MAX, Op.RESHAPE, Op.ARGSORT, Op.VIEW, Op.GET_ROWS)
_CUDA_NORMED = (Op.RESHAPE, Op.SUM_ROWS, Op.CLAMP, Op.DIV, Op.RESHAPE)


def optimise_for_cuda(graph: Graph, nodes: list[int]) -> tuple[list[int], dict[int, list[int]]]:
    """Return `nodes` unchanged and, by the last node of each fused kernel, the tensors that must stay allocated."""
    needed: dict[int, list[int]] = {}
    ops = [graph.ops[node] for node in nodes]
    for i, op in enumerate(ops):
        if op is Op.MUL and ops[i + 1 : i + 2] == [Op.VIEW]:
            _keep_weighted_sum(graph, nodes, ops, i, needed)
        elif op is Op.SOFT_MAX and tuple(ops[i : i + 5]) == _CUDA_TOP_EXPERTS:
            normed = tuple(ops[i + 5 : i + 10]) == _CUDA_NORMED
            last = i + 5 + 5 * normed  # the node after the run, as in ggml-cuda.cu, not the last node of the run
            sources = [one for node in nodes[i:last] for one in (node, *graph.sources[node])]
            needed.setdefault(nodes[last], []).extend(dict.fromkeys(sources))
    return nodes, needed


def _keep_weighted_sum(graph: Graph, nodes: list[int], ops: list[Op], i: int, needed: dict[int, list[int]]) -> None:
    """Handle the weighted sum of the experts: both operands of the product must stay until the last addition."""
    views = adds = 0
    k = i + 1
    while k < len(ops) and ops[k] is Op.VIEW and graph.sources[nodes[k]] == (nodes[i],):
        views, k = views + 1, k + 1
    while k < len(ops) and ops[k] is Op.ADD and adds < views - 1:
        adds, k = adds + 1, k + 1
    if views > 1 and adds == views - 1:
        needed.setdefault(nodes[k - 1], []).extend(graph.sources[nodes[i]])


# Vulkan: the backend reorders the nodes, which changes the lifetimes of tensors.
#
# Source: ggml_vk_graph_optimize in ggml/src/ggml-vulkan/ggml-vulkan.cpp (b11434). Independent nodes move next to each
# other; runs of nodes that one shader computes stay together. Only the patterns that occur in our graphs are here.

_WINDOW = 20
"""Nodes looked at beyond the first unscheduled one, to find independent nodes."""
_REACH = 15
"""Nodes looked at beyond a scheduled one, to find the rest of its run."""
_CHOOSE_EXPERTS = (Op.SOFT_MAX, Op.RESHAPE, Op.ARGSORT, Op.VIEW, Op.GET_ROWS)
_VULKAN_TOP_EXPERTS = (
    (*_CHOOSE_EXPERTS, Op.RESHAPE, Op.SUM_ROWS, Op.CLAMP, Op.DIV, Op.RESHAPE),
    _CHOOSE_EXPERTS,
    (Op.ARGSORT, Op.VIEW, Op.GET_ROWS, Op.RESHAPE, Op.SOFT_MAX, Op.RESHAPE),
)
_RUNS = (
    *_VULKAN_TOP_EXPERTS,
    (Op.RMS_NORM, Op.MUL, Op.ADD, Op.MUL),
    (Op.RMS_NORM, Op.MUL, Op.ADD),
    (Op.RMS_NORM, Op.MUL, Op.ROPE, Op.VIEW, Op.SET_ROWS),
    (Op.RMS_NORM, Op.VIEW, Op.SET_ROWS),
    (Op.ROPE, Op.VIEW, Op.SET_ROWS),
)
_FIRST_OPS = frozenset(run[0] for run in _RUNS)
_FOLLOWS = {(Op.RMS_NORM, Op.MUL), (Op.UNARY, Op.MUL)}
_FOLLOWS_AT_ONCE = {(Op.MUL_MAT, Op.ADD), (Op.MUL_MAT_ID, Op.MUL), (Op.ADD, Op.ADD), (Op.SSM_CONV, Op.UNARY)}
"""Pairs of operations that one shader computes, so the second may be scheduled although it depends on the first."""


def optimise_for_vulkan(graph: Graph, nodes: list[int]) -> tuple[list[int], dict[int, list[int]]]:
    """Return `nodes` in the backend's order and, by the last node of each run, the tensors that must stay allocated."""
    return _VulkanOrder(graph, nodes).order_nodes()


class _VulkanOrder:
    def __init__(self, graph: Graph, nodes: list[int]) -> None:
        self.graph, self.nodes = graph, nodes
        self.ops = [graph.ops[node] for node in nodes]
        self.index = {node: i for i, node in enumerate(nodes)}
        self.starts = {i: runs for i in range(len(nodes)) if (runs := self._runs_from(i))}
        self.waits = self._find_dependencies()
        self.used = 0  # a bit mask with one bit per node, as in `waits` and `done`
        self.order: list[int] = []
        self.done = 0
        self.needed: dict[int, list[int]] = {}

    def _find_dependencies(self) -> list[int]:
        """Return, for each node, a bit mask of the earlier nodes that it must not overtake."""
        graph = self.graph
        sharing: dict[int, int] = {}
        writing: dict[int, int] = {}
        reading: dict[int, int] = {}
        waits = []
        for i, node in enumerate(self.nodes):
            bit, base, sources = 1 << i, graph.bases[node], graph.sources[node]
            mask = sharing.get(base, 0)
            for source in sources:
                if source in self.index:
                    mask |= 1 << self.index[source]
            sharing[base] = sharing.get(base, 0) | bit
            if self.ops[i] not in EMPTY:
                bases = {graph.bases[source] for source in sources}
                for one in bases:
                    mask |= writing.get(one, 0)
                    reading[one] = reading.get(one, 0) | bit
                mask |= reading.get(base, 0)
                writing[base] = writing.get(base, 0) | bit
            waits.append(mask & (bit - 1))
        return waits

    def order_nodes(self) -> tuple[list[int], dict[int, list[int]]]:
        first = 0
        while first < len(self.nodes):
            if self.used >> first & 1:
                first += 1
                continue
            run = self._run_at(first)
            if run:
                taken = list(range(first, first + len(run)))
                if run in _VULKAN_TOP_EXPERTS:
                    self._keep_sources(taken)
            else:
                taken = self._ready_nodes(first)
            for i in taken:
                self.order.append(self.nodes[i])
                self.done |= 1 << i
            self.used |= self.done
        return self.order, self.needed

    def _runs_from(self, i: int) -> list[tuple[Op, ...]]:
        if self.ops[i] not in _FIRST_OPS:
            return []
        return [run for run in _RUNS if tuple(self.ops[i : i + len(run)]) == run]

    def _run_at(self, i: int) -> tuple[Op, ...] | None:
        """Return the run that starts at node `i`, or None if one of its nodes is scheduled already."""
        for run in self.starts.get(i, ()):
            if not self.used >> i & ((1 << len(run)) - 1):
                return run
        return None

    def _keep_sources(self, run: list[int]) -> None:
        """Keep the tensors that a run reads from outside allocated until its last node."""
        last = run[-1] + (self.ops[run[-1] + 1 : run[-1] + 2] == [Op.SCALE])
        members = {self.nodes[i] for i in run}
        sources = dict.fromkeys(s for i in run for s in self.graph.sources[self.nodes[i]])
        self.needed[self.nodes[last]] = [source for source in sources if source not in members]

    def _ready_nodes(self, first: int) -> list[int]:
        """Return the node at `first`, the nodes that may be computed with it, and then the views that are ready."""
        taken = [first]
        end = min(first + _WINDOW, len(self.nodes))
        for i in range(first + 1, end):
            if self.used >> i & 1 or self.ops[i] in EMPTY or self._run_at(i):
                continue
            if self._may_follow(taken[-1], i):
                taken.append(i)
                self._complete_run(taken, i)
        if self.ops[taken[-1]] is not Op.ADD:
            members = sum(1 << i for i in taken)
            for i in range(first + 1, end):
                if not self.used >> i & 1 and self.ops[i] in EMPTY and not self.waits[i] & ~self.used & ~members:
                    taken.append(i)
                    members |= 1 << i
        return taken

    def _may_follow(self, before: int, i: int) -> bool:
        """Return whether node `i` is ready, or depends on `before` alone and one shader computes both."""
        waiting = self.waits[i] & ~self.used
        if not waiting:
            return True
        pair = self.ops[before], self.ops[i]
        if waiting != 1 << before or before > i:
            return False
        if pair in _FOLLOWS:
            return all(self.used >> k & 1 or self.ops[k] in EMPTY for k in range(before + 1, i))
        return pair in _FOLLOWS_AT_ONCE and i == before + 1

    def _complete_run(self, taken: list[int], i: int) -> None:
        """Schedule the later nodes that complete the run of node `i`."""
        op, before = self.ops[i], self.ops[i - 1]
        turned = self._find_next(i, Op.ROPE) if (before, op) == (Op.RMS_NORM, Op.MUL) else None
        self._mark_used(taken, turned)
        stored = i if turned is None else turned
        if self.ops[stored] in (Op.ROPE, Op.RMS_NORM):
            self._mark_used(taken, *self._find_cache_write(stored))
        if (before, op) == (Op.MUL_MAT, Op.ADD):
            self._mark_used(taken, self._find_next(i, Op.ADD, first=True))
        if op is Op.UNARY:
            self._mark_used(taken, self._find_next(i, Op.MUL))

    def _mark_used(self, taken: list[int], *nodes: int | None) -> None:
        for i in nodes:
            if i is not None:
                taken.append(i)
                self.used |= 1 << i

    def _find_next(self, i: int, op: Op, *, first: bool = False) -> int | None:
        """Return the next `op` that reads node `i` (as first operand if `first`) and is otherwise ready, or None."""
        node, graph = self.nodes[i], self.graph
        for k in range(i + 1, min(i + _REACH, len(self.nodes))):
            if self.ops[k] is op and not self.used >> k & 1:
                sources = graph.sources[self.nodes[k]]
                if node in (sources[:1] if first else sources) and all(
                    graph.ops[one] is Op.NONE or self.done >> self.index.get(one, 0) & 1
                    for one in sources
                    if one != node
                ):
                    return k
        return None

    def _find_cache_write(self, i: int) -> tuple[int, ...]:
        """Return the view and the cache write that are the only readers of node `i`; () if the write must wait."""
        end = min(i + _REACH, len(self.nodes))
        view = next((k for k in range(i + 1, end) if self._reads(k, Op.VIEW, i)), None)
        if view is None or self.graph.readers[self.nodes[i]] != 1 or self.graph.readers[self.nodes[view]] != 1:
            return ()
        store = next((k for k in range(view + 1, end) if self._reads(k, Op.SET_ROWS, view)), None)
        if store is None:
            return ()
        between = sum(1 << k for k in range(i + 1, store) if self.ops[k] not in EMPTY)
        return () if self.waits[store] & between & ~self.used else (view, store)

    def _reads(self, k: int, op: Op, i: int) -> bool:
        return self.ops[k] is op and not self.used >> k & 1 and self.nodes[i] in self.graph.sources[self.nodes[k]]


# Allocator: a simulation of ggml's graph allocator, to get the sizes of the buffers.
#
# Source: ggml-alloc.c (b11434). Inputs come first. Each tensor then goes into the smallest free hole that holds it,
# else to the end; an element-wise operation reuses the memory of its operand after that one's last use; memory is freed
# after a tensor's last use. The order of allocations does not depend on sizes, so it is computed once and cached.

_ENDLESS = 1 << 62
ALIGNMENT = 128
"""Alignment of tensors in CUDA's buffers, in bytes; the processor's is 32, which hardly matters for large tensors."""


@dataclass(slots=True)
class BufferEvents:
    """The allocations and frees in one buffer, in order.

    In `events`, n >= 0 allocates tensor n, and ~n frees it. `sizes[n]` is the index of its size in `kinds`.
    """

    events: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    kinds: dict[Size, int] = field(default_factory=dict)

    def allocate(self, size: Size) -> int:
        """Record the allocation of a tensor of `size`, and return the tensor's number in this buffer."""
        number = len(self.sizes)
        self.events.append(number)
        self.sizes.append(self.kinds.setdefault(size, len(self.kinds)))
        return number


def record_events(graph: Graph, schedule: Schedule) -> dict[int, BufferEvents]:
    """Return the allocations and frees in the buffer of each place, for `graph` in the order of `schedule_graph`."""
    ops, sizes, bases, places = graph.ops, graph.sizes, graph.bases, graph.places
    children = [0] * len(ops)
    views = [0] * len(ops)
    for result, sources in schedule.steps:
        for source in sources:
            children[source] += 1
        if result is not None and bases[result] != result:
            views[bases[result]] += 1
    slots: dict[int, int] = {}
    buffers: dict[int, BufferEvents] = {}

    def allocate(tensor: int) -> None:
        slots[tensor] = buffers.setdefault(places[tensor], BufferEvents()).allocate(sizes[tensor])

    def find_reusable(tensor: int, sources: Sequence[int]) -> int | None:
        for source in sources:
            is_last_use = source in slots and children[source] == 1 and not views[source]
            if is_last_use and source not in schedule.kept and sizes[source] == sizes[tensor]:
                return source
        return None

    for tensor in schedule.inputs:
        allocate(tensor)
    for result, sources in schedule.steps:
        if result is not None and bases[result] == result and result not in slots:
            reusable = find_reusable(result, sources) if ops[result] in IN_PLACE else None
            if reusable is None:
                allocate(result)
            else:
                slots[result] = slots.pop(reusable)
        for source in sources:
            children[source] -= 1
            if children[source] or views[source]:
                continue
            base = bases[source]
            if base != source:
                views[base] -= 1
            if base in slots and not views[base] and not children[base] and base not in schedule.kept:
                buffers[places[base]].events.append(~slots.pop(base))
    return buffers


class _Chunk:
    """One chunk of a buffer: its holes, sorted by offset (the last one reaches to the chunk's end), and its peak."""

    def __init__(self, limit: int) -> None:
        self.holes = [(0, limit)]
        self.peak = 0

    def allocate(self, index: int, size: int) -> int:
        """Allocate `size` bytes at the start of the hole at `index`, and return their offset."""
        offset, room = self.holes[index]
        if room == size:
            del self.holes[index]
        else:
            self.holes[index] = (offset + size, room - size)
        self.peak = max(self.peak, offset + size)
        return offset

    def free(self, offset: int, size: int) -> None:
        """Free `size` bytes at `offset`, merging the new hole with its neighbours."""
        holes, index = self.holes, bisect(self.holes, (offset, 0))
        if index < len(holes) and offset + size == holes[index][0]:
            size += holes.pop(index)[1]
        if index and sum(holes[index - 1]) == offset:
            index -= 1
            offset, before = holes.pop(index)
            size += before
        holes.insert(index, (offset, size))


def buffer_bytes(buffer: BufferEvents, units: Size, chunk_bytes: int | None = None) -> int:
    """Return the size of `buffer` in bytes. `chunk_bytes` is the backend's limit for one chunk, None without one.

    The result is the same as that of `place_tensors`, which is slower and needed only for more than one chunk: nearly
    all buffers fit into one.
    """
    sizes = _tensor_bytes(buffer, units)
    peak = _measure_peak(buffer.events, sizes)
    return peak if chunk_bytes is None or peak < chunk_bytes else place_tensors(buffer, units, chunk_bytes)[1]


def _tensor_bytes(buffer: BufferEvents, units: Size) -> list[int]:
    """Return the bytes of each tensor in `buffer`, a multiple of the alignment."""
    rounded = [-(-kind.bytes(units) // ALIGNMENT) * ALIGNMENT for kind in buffer.kinds]
    return [rounded[kind] for kind in buffer.sizes]


def _measure_peak(events: list[int], sizes: list[int]) -> int:
    """Return the peak of a single chunk without a limit, as `_Chunk` and `_find_hole` would fill it.

    Written without calls: plans for many models run it some hundred times, for some hundred events each.
    """
    starts: list[int] = []  # of the holes below `end`, from which on all is free
    rooms: list[int] = []
    offsets = [0] * len(sizes)
    end = peak = 0
    for event in events:
        if event >= 0:
            size = sizes[event]
            best, least = -1, _ENDLESS
            for hole, room in enumerate(rooms):
                if size <= room <= least:
                    best, least = hole, room
            if best < 0:
                offsets[event] = end
                end += size
                peak = max(peak, end)
            elif least == size:
                offsets[event] = starts.pop(best)
                del rooms[best]
            else:
                offsets[event] = starts[best]
                starts[best] += size
                rooms[best] = least - size
        elif size := sizes[~event]:
            begin = offsets[~event]
            after, hole = begin + size, bisect(starts, begin)
            if hole and starts[hole - 1] + rooms[hole - 1] == begin:
                hole -= 1
                begin = starts.pop(hole)
                size += rooms.pop(hole)
            if after == end:
                end = begin
            elif hole < len(starts) and starts[hole] == after:
                starts[hole] = begin
                rooms[hole] += size
            else:
                starts.insert(hole, begin)
                rooms.insert(hole, size)
    return peak


def place_tensors(
    buffer: BufferEvents, units: Size, chunk_bytes: int | None = None
) -> tuple[list[tuple[int, int]], int]:
    """Return the place of each tensor in `buffer` (chunk number, offset in bytes) and the bytes of all chunks."""
    sizes = _tensor_bytes(buffer, units)
    chunks: list[_Chunk] = []
    places = [(0, 0)] * len(sizes)
    for event in buffer.events:
        if event < 0:
            number, offset = places[~event]
            if sizes[~event]:
                chunks[number].free(offset, sizes[~event])
        elif sizes[event]:
            number, hole = _find_hole(chunks, sizes[event], chunk_bytes or _ENDLESS)
            places[event] = number, chunks[number].allocate(hole, sizes[event])
    return places, sum(chunk.peak for chunk in chunks)


def _find_hole(chunks: list[_Chunk], size: int, chunk_bytes: int) -> tuple[int, int]:
    """Return chunk and hole for a tensor of `size`.

    That is the smallest sufficient hole of the last chunk that has one, else the end of the chunk that grows least,
    else a new chunk.
    """
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


Backend = Literal["cuda", "vulkan", "rocm", "metal", "cpu"]
_Kind = Literal["trunk", "head", "assistant", "draft"]
_GRAPHS: Mapping[_Kind, Callable[[Geometry, Shape, int], Graph]] = {
    "trunk": trunk_graph,
    "head": head_graph,
    "assistant": assistant_graph,
    "draft": draft_graph,
}
_PADDING = 256
"""Contexts are padded to a multiple of this many cells (src/llama-context.cpp)."""
_OFFLOAD_ROWS = 32
"""The fewest batch rows for which a device copies weights from the host and computes there (GGML_OP_OFFLOAD_MIN_BATCH).
"""
_OPTIMISE = {"cuda": optimise_for_cuda, "rocm": optimise_for_cuda, "vulkan": optimise_for_vulkan}
"""The graph optimisation of each backend. Metal reorders nodes too; its rules are not simulated here."""
_CHUNK_BYTES = {"vulkan": 1 << 30}
"""Largest chunk of a backend's buffer, in bytes (suballocation_block_size)."""
_COMPARED_BACKENDS = frozenset({"cpu", "cuda", "vulkan"})
"""Backends whose computed buffer sizes were compared with those of an engine."""


class ComputeSetting(NamedTuple):
    """The server settings that the sizes of compute buffers depend on.

    `context` is the total over all slots, in tokens; `draft` is the draft length, 0 with MTP off. `quantised`: the
    target's KV cache has a quantised type; `wide`: it holds floats other than F16. The experts of the first
    `cpu_expert_layers` layers are on the host (the head's layers follow those of the trunk), and `expert_bytes` are the
    bytes of these layers' matrices. `devices` is the number of GPUs that the layers are split over. `head` is False if
    the drafts come from another model, and `extracts` are the layers whose inputs that one reads. `outputs` is the
    number of rows of logits per slot, 0 for 1 + `draft`: with n-gram drafts, `draft` is 0 (no snapshots are kept). With
    `unified` all slots share one KV cache.
    """

    backend: Backend
    context: int
    ubatch: int
    slots: int
    draft: int
    quantised: bool
    cpu_expert_layers: int = 0
    expert_bytes: tuple[ExpertBytes, ...] = ()
    devices: int = 1
    head: bool = True
    outputs: int = 0
    wide: bool = False
    unified: bool = False
    extracts: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens of the largest batch: a ubatch, rounded up to an equal number for each slot."""
        return -(-min(self.ubatch, self.context) // self.slots) * self.slots

    @property
    def rows(self) -> int:
        """Rows of logits: one for each slot, and one for each token of its draft."""
        return min(self.tokens, (self.outputs or 1 + self.draft) * self.slots)


class ComputeBuffers(NamedTuple):
    """Bytes of the compute buffers of the target and of the MTP head (or draft model).

    On the cpu backend the `..._host` buffers are 0 and everything is in `target` and `draft`. `staging` is the growth
    on the devices for copies of the host's experts; it is in none of the other totals. `by_device` has each device's
    share of (target, draft), including those copies. `exact` is False if the model's graph is unknown, the backend was
    never compared with an engine, or experts are on the host beside several devices.
    """

    target: int
    draft: int
    target_host: int = 0
    draft_host: int = 0
    staging: int = 0
    by_device: tuple[tuple[int, int], ...] = ()
    exact: bool = True


def padded_context(context: int, slots: int) -> int:
    """Return the KV cells of one stream: its share of `context`, padded. With a unified cache, `slots` is 1."""
    return -(-(context // slots) // _PADDING) * _PADDING


def window_cells(geometry: Geometry, cells: int, ubatch: int, sharing: int = 1) -> int:
    """Return the cells of one stream's sliding window if its context has `cells` (src/llama-kv-cache-iswa.cpp).

    `sharing` is the number of slots that share the stream: a window for each.
    """
    return min(cells, -(-(geometry.window * sharing + ubatch) // _PADDING) * _PADDING) if geometry.window else 0


def is_graph_known(geometry: Geometry) -> bool:
    """Return whether the compute graph of this model's architecture is known."""
    style = STYLES.get(geometry.architecture)
    if style is None or (geometry.experts and not style.experts):
        return False
    if geometry.cacheless_layers or geometry.leading_dense or geometry.latent_attention or geometry.per_layer_input:
        return False
    if geometry.target_layers and geometry.conv_kernel:  # DFlash2
        return False
    return style.windowed == (geometry.window_layers > 0)


@lru_cache(maxsize=4_096)
def compute_buffers(geometry: Geometry, setting: ComputeSetting) -> ComputeBuffers:
    """Return the sizes of the compute buffers, as an engine's dry run reports them.

    Compared with b11549 (processor), b11669 (Vulkan) and the host code of b11434's CUDA backend. ROCm shares CUDA's
    code; ROCm and Metal were not compared.
    """
    plain = _estimate_buffers(geometry, setting._replace(cpu_expert_layers=0))
    if setting.backend == "cpu" or not setting.cpu_expert_layers or not geometry.experts:
        return plain
    if setting.devices > 1:  # with tensor overrides (--n-cpu-moe) llama.cpp disables pipeline parallelism
        plain = _estimate_buffers(geometry, setting._replace(cpu_expert_layers=0), pipelined=False)
    offloading = _estimate_buffers(geometry, setting)
    growth = offloading.target + offloading.draft - plain.target - plain.draft
    if growth < 0:  # the copies replace larger intermediate results, so nothing is added
        return offloading
    return offloading._replace(target=plain.target, draft=plain.draft, staging=growth)


@lru_cache(maxsize=1_024)
def draft_model_buffers(draft: Geometry, target: Geometry, setting: ComputeSetting) -> ComputeBuffers:
    """Return the compute buffers of a draft model in a separate file, as `draft` and `draft_host`.

    `setting` is the target's: the draft model has the same context and an f16 KV cache. Gemma 4's assistant has no KV
    cache and reads the target's.
    """
    reads_target = draft.architecture == ASSISTANT
    setting = setting._replace(draft=0, outputs=0, cpu_expert_layers=0, extracts=())
    if not reads_target:
        setting = setting._replace(quantised=False, wide=False)
    buffers = _estimate_buffers(draft, setting, target_hidden=target.hidden if reads_target else 0)
    by_device = tuple((0, share) for share, _ in buffers.by_device)
    return buffers._replace(
        target=0, target_host=0, draft=buffers.target, draft_host=buffers.target_host, by_device=by_device
    )


def _estimate_buffers(
    geometry: Geometry, setting: ComputeSetting, *, target_hidden: int = 0, pipelined: bool = True
) -> ComputeBuffers:
    layers, on_host, drafts = geometry.layers, setting.cpu_expert_layers, is_drafting(setting.draft)
    trunk_experts, head_experts = setting.expert_bytes[: min(on_host, layers)], setting.expert_bytes[layers:]
    # Layers that are alike, and those beyond the repeating pattern, need no sizes of their own.
    are_listed = len(trunk_experts) < blocks_until_repetition(geometry) and len(set(trunk_experts)) > 1
    trunk_shape = Shape(
        snapshots=1 + setting.draft if drafts and geometry.inner_size else 0,
        rotated=setting.quantised,
        # CUDA's attention needs all but F16 once more in F16 (ggml-cuda/fattn.cu: need_f16_K, need_f16_V).
        scratch=(setting.quantised or setting.wide) and setting.backend in ("cuda", "rocm"),
        devices=setting.devices,
        pipelined=pipelined and setting.devices > 1 and not on_host,
        cpu_expert_layers=layers if on_host >= layers else min(on_host, blocks_until_repetition(geometry)),
        expert_bytes=trunk_experts if are_listed else (),
        offload_tokens=setting.tokens >= _OFFLOAD_ROWS,
        offload_outputs=setting.rows >= _OFFLOAD_ROWS,
        target_hidden=target_hidden,
        extracts=setting.extracts,
    )
    kind: _Kind = "assistant" if target_hidden else "draft" if geometry.target_layers else "trunk"
    target = _bytes_by_place(geometry, kind, trunk_shape, setting, setting.rows, trunk_experts)
    draft: dict[int, int] = {}
    if drafts and setting.head and geometry.mtp_layers:
        head_shape = Shape(
            devices=setting.devices,
            pipelined=trunk_shape.pipelined,
            cpu_expert_layers=on_host if on_host > layers else 0,
            offload_tokens=trunk_shape.offload_tokens,
        )
        draft = _bytes_by_place(geometry, "head", head_shape, setting, setting.slots, head_experts)
    exact = is_graph_known(geometry) and setting.backend in _COMPARED_BACKENDS and not (on_host and setting.devices > 1)
    exact = exact and (kind != "draft" or setting.backend in ("cpu", "vulkan"))  # where these were compared
    if setting.backend == "cpu":
        return ComputeBuffers(target[HOST], draft.get(HOST, 0), exact=exact)
    shares = tuple((target.get(device, 0), draft.get(device, 0)) for device in range(1, setting.devices + 1))
    target_sum, draft_sum = (sum(column) for column in zip(*shares, strict=True))
    return ComputeBuffers(target_sum, draft_sum, target[HOST], draft.get(HOST, 0), by_device=shares, exact=exact)


def _bytes_by_place(
    geometry: Geometry,
    kind: _Kind,
    shape: Shape,
    setting: ComputeSetting,
    rows: int,
    experts: tuple[ExpertBytes, ...],
) -> dict[int, int]:
    """Return the bytes of the buffer in each place, with `rows` of logits and room to copy the largest of `experts`.

    Unknown architectures get 10 % more: tried on known architectures, the substitute graph gives 0.94 to 1.5 times the
    right size.
    """
    streams, slots, tokens = 1 if setting.unified else setting.slots, setting.slots, setting.tokens
    cells = padded_context(setting.context, streams)
    window = window_cells(geometry, cells, setting.ubatch, slots if setting.unified else 1)
    largest = (max(column) for column in zip((0, 0, 0), *experts, strict=True))
    units = Size(1, tokens, rows, slots, cells * tokens, cells * streams, window * tokens, window * streams, *largest)
    sizes = _buffer_sizes(geometry, kind, shape, setting.backend, units)
    return sizes if is_graph_known(geometry) else {place: size * 11 // 10 for place, size in sizes.items()}


@lru_cache(maxsize=4_096)
def _buffer_sizes(geometry: Geometry, kind: _Kind, shape: Shape, backend: Backend, units: Size) -> dict[int, int]:
    chunk = _CHUNK_BYTES.get(backend)
    return {
        place: buffer_bytes(buffer, units, chunk)
        for place, buffer in _buffer_events(geometry, kind, shape, backend).items()
    }


@lru_cache(maxsize=1_024)
def _buffer_events(geometry: Geometry, kind: _Kind, shape: Shape, backend: Backend) -> dict[int, BufferEvents]:
    """Return the allocations in the buffer of each place. Cached, because they do not depend on context or batch."""
    graph = _GRAPHS[kind](geometry, shape, 0 if backend == "cpu" else shape.devices)
    return record_events(
        graph, schedule_graph(graph, _OPTIMISE.get(backend), pipelined=shape.pipelined and backend != "cpu")
    )
