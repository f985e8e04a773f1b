"""Models of llama.cpp's compute graphs, detailed enough to compute the sizes of its buffers.

A graph has the operations in order, their operands, and the sizes of their results. Sizes are symbolic (so many bytes
per token, per sequence, ...), so one graph serves every context and batch size. Source: llama.cpp b11434:
ggml/src/ggml.c, src/llama-graph.cpp and src/models/*.cpp.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, auto
from operator import add, mul
from types import MappingProxyType
from typing import NamedTuple

from launcher.models.geometry import Geometry

_F32, _F16, _I32, _I64 = 4, 2, 4, 8

HOST = 0
"""The place number of host memory; devices are 1, 2, ..."""


class Op(IntEnum):
    """The operations that the backends' rules distinguish; all others are OTHER."""

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
"""Operations that compute nothing: views and inputs."""
IN_PLACE = frozenset(
    {Op.ADD, Op.CLAMP, Op.DIV, Op.MUL, Op.RMS_NORM, Op.ROPE, Op.SCALE, Op.SOFT_MAX, Op.UNARY},
)
"""Operations whose result may reuse the memory of an operand (ggml_op_can_inplace)."""


class Size(NamedTuple):
    """A symbolic size: bytes as a sum of terms per token, per output row, per sequence, ...

    `mask` is bytes per token and context cell, `cache` per cell of all sequences; the `window_` terms are the same for
    the cells of a sliding window. `gate`, `up` and `down` count matrices of one layer's experts.
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
        """Return the sum of both sizes, term by term."""
        return Size(*map(add, self, other))

    def bytes(self, units: "Size") -> int:
        """Return the size in bytes; `units` has the value of each term: number of tokens, output rows, ..."""
        return sum(map(mul, self, units))


_ZERO = Size()


@dataclass(slots=True)
class Graph:
    """A compute graph.

    Tensors are numbers, which index the lists `ops`, `sizes`, `sources`, `bases`, `places` and `readers`. `bases` has,
    for a view, the tensor whose memory it shows, for others the tensor itself. `readers` counts the reads of a tensor.
    `nodes` are computed in that order; `inputs` are filled before; `outside` are weights and caches, whose memory is
    not part of the compute buffer. `outputs` are read after the graph has run, so that nothing takes their place.
    `place` is where new nodes are computed.
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
    outputs: list[int] = field(default_factory=list)
    place: int = HOST

    def add_node(self, op: Op, size: Size, *sources: int) -> int:
        """Add a node: `op` computes a tensor of `size` from `sources`. Returns the tensor."""
        tensor = self._add_tensor(op, size, sources, len(self.ops), self.place)
        self.nodes.append(tensor)
        return tensor

    def add_alike(self, op: Op, *sources: int) -> int:
        """Add a node whose result is as large as the first of `sources`."""
        return self.add_node(op, self.sizes[sources[0]], *sources)

    def add_view(self, op: Op, source: int, *others: int) -> int:
        """Add a node whose result shares the memory of `source`; `others` are read as well."""
        tensor = self._add_tensor(op, self.sizes[source], (source, *others), self.bases[source], self.place)
        self.nodes.append(tensor)
        return tensor

    def add_input(self, size: Size) -> int:
        """Add a tensor of `size` that is filled on the host before the graph runs."""
        tensor = self._add_tensor(Op.NONE, size, (), len(self.ops), HOST)
        self.inputs.append(tensor)
        return tensor

    def add_external(self, size: Size = _ZERO, place: int | None = None) -> int:
        """Add a weight or a cache: its memory is not in the compute buffer. `size` matters if it must be copied."""
        tensor = self._add_tensor(Op.NONE, size, (), len(self.ops), self.place if place is None else place)
        self.outside.add(tensor)
        return tensor

    def add_copy(self, tensor: int, place: int) -> int:
        """Add a copy of `tensor` at `place`. The schedule decides when it is made."""
        return self._add_tensor(Op.NONE, self.sizes[tensor], (), len(self.ops), place)

    def _add_tensor(self, op: Op, size: Size, sources: tuple[int, ...], base: int, place: int) -> int:
        self.ops.append(op)
        self.sizes.append(size)
        self.sources.append(sources)
        self.bases.append(base)
        self.places.append(place)
        readers = self.readers
        tensor = len(readers)
        readers.append(0)
        for source in sources:
            readers[source] += 1
        return tensor


# Styles: the differences between the architectures' graphs. Source: llama.cpp's src/models/*.cpp (b11434).


class Style(NamedTuple):
    """The features of an architecture's blocks besides plain attention and feed forward.

    `gated`: queries have a gate of the same size. `biased`: queries, keys and values have a bias. `normed_heads`:
    queries and keys are normalised; `normed_values`: so are values. `scaled_queries`: queries are multiplied by a
    factor. `windowed`: some layers have a sliding window. `post_norms`: norms after attention and feed forward too.
    `scaled_blocks`: a factor at the end of each block. `scaled_input`: a factor for each token's embedding.
    `late_pick`: the output rows are selected after the last block, not inside it. `borrowed`: keys and values are read
    from another model's cache. `experts`: the graph with experts is known too. `positions`: position numbers per token.
    """

    gated: bool = False
    biased: bool = False
    normed_heads: bool = False
    normed_values: bool = False
    scaled_queries: bool = False
    windowed: bool = False
    post_norms: bool = False
    scaled_blocks: bool = False
    scaled_input: bool = False
    late_pick: bool = False
    borrowed: bool = False
    experts: bool = False
    positions: int = 1


ASSISTANT = "gemma4-assistant"
"""The architecture of a draft model that reads its target's hidden states and KV cache."""
_EAGLE = "eagle3"
_QWEN35 = Style(gated=True, normed_heads=True, experts=True, positions=4)
_GEMMA3 = Style(normed_heads=True, scaled_queries=True, windowed=True, post_norms=True, scaled_input=True)
STYLES: Mapping[str, Style] = MappingProxyType(
    {
        "gemma3": _GEMMA3,
        "gemma4": Style(
            normed_heads=True,
            normed_values=True,
            windowed=True,
            post_norms=True,
            scaled_blocks=True,
            scaled_input=True,
            late_pick=True,
        ),
        ASSISTANT: Style(normed_heads=True, windowed=True, post_norms=True, scaled_blocks=True, borrowed=True),
        "dflash": Style(normed_heads=True, positions=4),
        _EAGLE: Style(),
        "llama": Style(experts=True),
        "qwen2": Style(biased=True),
        "qwen3": Style(normed_heads=True),
        "qwen3moe": Style(normed_heads=True, experts=True),
        "qwen35": _QWEN35,
        "qwen35moe": _QWEN35,
    }
)
"""The styles of the architectures whose graphs are known."""
UNKNOWN = Style(gated=True, biased=True, normed_heads=True, normed_values=True, post_norms=True, positions=4)
"""Substitute for an unknown architecture: with every feature that enlarges the graph."""


# Blocks: the nodes of a transformer block, in llama.cpp's order.
#
# Source: src/llama-graph.cpp, src/models/delta-net-base.cpp, qwen35.cpp and qwen35moe.cpp; compared with the graphs
# that llama.cpp b11434 builds. Weights are left out where nothing depends on them.

_ROTATION = 64
"""Width of the rotation applied to values in a quantised KV cache (src/llama-kv-cache.cpp); for keys it is the largest
power of two that divides the head size."""


ExpertBytes = tuple[int, int, int]
"""The bytes of the gate, up and down matrices of one layer's routed experts."""


class Shape(NamedTuple):
    """The parameters that a graph's nodes and their order depend on.

    `snapshots`: recurrent states kept per sequence, 0 without drafts. `rotated`: the KV cache is quantised. `scratch`:
    attention converts keys and values to F16 in extra memory. `devices`: number of GPUs; with `pipelined` they work on
    successive batches at the same time. `cpu_expert_layers`: layers with experts on the host; `expert_bytes` has the
    bytes of each of them if they differ. `offload_tokens`, `offload_outputs`: a batch has enough tokens, or output
    rows, for a device to copy these experts and compute with them. `target_hidden`: width of the hidden states that a
    draft model reads. `extracts`: layers whose inputs stay allocated, for a drafter that reads them.
    """

    snapshots: int = 0
    rotated: bool = False
    scratch: bool = False
    devices: int = 1
    pipelined: bool = False
    cpu_expert_layers: int = 0
    expert_bytes: tuple[ExpertBytes, ...] = ()
    offload_tokens: bool = True
    offload_outputs: bool = False
    target_hidden: int = 0
    extracts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Heads:
    """The KV heads of layers with or without a sliding window. `name` is the prefix of their inputs' names."""

    name: str
    count: int
    key_length: int
    value_length: int


class Blocks:
    """Builds `graph` block by block. Once `outputs_only` is set, results have a row per output row, not per token."""

    def __init__(self, geometry: Geometry, shape: Shape) -> None:
        self.geometry = geometry
        self.style = STYLES.get(geometry.architecture, UNKNOWN)
        self.heads = Heads("", geometry.kv_heads, geometry.key_length, geometry.value_length)
        self.window_heads = Heads(
            "window ", geometry.window_kv_heads, geometry.window_key_length, geometry.window_value_length
        )
        self.shape = shape
        self.graph = Graph()
        self.outputs_only = False
        self._inputs: dict[str, int] = {}

    def row_size(self, width: int) -> Size:
        """Return the size of a row of `width` floats for each token."""
        bytes_each = _F32 * width
        return Size(0, 0, bytes_each) if self.outputs_only else Size(0, bytes_each)

    def find_input(self, name: str, size: Size) -> int:
        """Return the input called `name`, adding it at its first use."""
        if name not in self._inputs:
            self._inputs[name] = self.graph.add_input(size)
        return self._inputs[name]

    def add_norm(self, source: int, place: int | None = None) -> int:
        """Add an RMS norm and the product with its weight. The graph continues at `place`, where that weight is."""
        normed = self.graph.add_alike(Op.RMS_NORM, source)
        self.graph.place = self.graph.place if place is None else place
        return self.graph.add_alike(Op.MUL, normed)

    def add_matmul(self, width: int, *sources: int) -> int:
        """Add a product with a weight matrix, which gives rows of `width`."""
        return self.graph.add_node(Op.MUL_MAT, self.row_size(width), *sources)

    def select_outputs(self, source: int) -> int:
        """Select the output rows of `source`."""
        width = self.graph.sizes[source].token
        return self.graph.add_node(Op.GET_ROWS, Size(output=width), source, self.find_input("rows", Size(output=_I32)))

    def add_attention(self, normed: int, *, windowed: bool = False) -> int:
        """Add attention to all cells, or to those of a sliding window."""
        g, model, style = self.graph, self.geometry, self.style
        heads = self.window_heads if windowed else self.heads
        width = model.heads * heads.key_length
        mixed = self.add_matmul(width * (1 + style.gated), normed)
        mixed = g.add_alike(Op.ADD, mixed) if style.biased else mixed
        query = g.add_view(Op.VIEW if style.gated else Op.RESHAPE, mixed)
        if style.normed_heads:
            query = g.add_alike(Op.MUL, g.add_node(Op.RMS_NORM, self.row_size(width), query))
        query = self.add_rope(query, self.row_size(width))
        query = g.add_alike(Op.SCALE, query) if style.scaled_queries else query
        query = self.add_rotation(query, "key", heads)
        keys, values = g.add_external(), g.add_external()
        if not style.borrowed:
            self.write_cache(normed, keys, values, heads)
        attended = self.add_flash_attention(query, keys, values, heads)
        if style.gated:
            gate = g.add_node(Op.OTHER, self.row_size(width), g.add_view(Op.VIEW, mixed))
            attended = g.add_node(Op.MUL, self.row_size(width), attended, g.add_alike(Op.UNARY, gate))
        return self.add_matmul(model.hidden, attended)

    def write_cache(self, normed: int, keys: int, values: int, heads: Heads) -> None:
        """Write keys and values into their caches."""
        g = self.graph
        if self.style.windowed:
            key = self.add_keys(normed, heads)
            value = self.add_values(normed, heads)
        else:
            value = self.add_values(normed, heads)
            key = self.add_keys(normed, heads)
        g.add_view(
            Op.SET_ROWS, keys, g.add_view(Op.VIEW, key), self.find_input(f"{heads.name}key rows", Size(token=_I64))
        )
        g.add_view(
            Op.SET_ROWS,
            values,
            g.add_view(Op.VIEW, value),
            self.find_input(f"{heads.name}value rows", Size(token=_I64)),
        )

    def add_keys(self, normed: int, heads: Heads) -> int:
        """Add the keys, with their rotary position embedding."""
        key = self.add_projection(normed, heads.count * heads.key_length)
        key = self.add_norm(key) if self.style.normed_heads else key
        return self.add_rotation(self.add_rope(key, self.row_size(heads.count * heads.key_length)), "key", heads)

    def add_values(self, normed: int, heads: Heads) -> int:
        """Add the values."""
        value = self.add_projection(normed, heads.count * heads.value_length)
        value = self.graph.add_alike(Op.RMS_NORM, value) if self.style.normed_values else value
        return self.add_rotation(value, "value", heads)

    def add_projection(self, normed: int, width: int) -> int:
        """Add a projection of `width`, reshaped to heads."""
        projected = self.add_matmul(width, normed)
        return self.graph.add_view(
            Op.RESHAPE, self.graph.add_alike(Op.ADD, projected) if self.style.biased else projected
        )

    def add_rope(self, source: int, size: Size) -> int:
        """Apply the rotary position embedding to `source`."""
        return self.graph.add_node(
            Op.ROPE, size, source, self.find_input("positions", Size(token=self.style.positions * _I32))
        )

    def add_rotation(self, source: int, what: str, heads: Heads) -> int:
        """Rotate keys, values or queries if the KV cache is quantised and the head size is a multiple of 64."""
        g = self.graph
        length = heads.key_length if what == "key" else heads.value_length
        if not self.shape.rotated or length % _ROTATION:
            return source
        width = length & -length if what == "key" else _ROTATION
        rotation = self.find_input(f"{heads.name}{what} rotation", Size(_F32 * width**2))
        return g.add_view(Op.RESHAPE, g.add_node(Op.MUL_MAT, g.sizes[source], rotation, g.add_view(Op.RESHAPE, source)))

    def add_flash_attention(self, query: int, keys: int, values: int, heads: Heads) -> int:
        """Add flash attention of `query` to the cached `keys` and `values`."""
        g, model, name = self.graph, self.geometry, heads.name
        query = g.add_view(Op.PERMUTE, g.add_view(Op.VIEW, query))
        keys = g.add_view(Op.PERMUTE, g.add_view(Op.VIEW, keys))
        values = g.add_view(Op.PERMUTE, g.add_view(Op.VIEW, values))
        mask = self.find_input(f"{name}mask", Size(window_mask=_F16) if name else Size(mask=_F16))
        width = model.heads * heads.value_length
        cached = heads.key_length + (0 if model.latent_attention else heads.value_length)
        scratch = self.shape.scratch * _F16 * heads.count * cached
        copied = Size(window_cache=scratch) if name else Size(cache=scratch)
        attended = g.add_node(Op.FLASH_ATTN, self.row_size(width).plus(copied), query, keys, values, mask)
        attended = g.add_view(Op.RESHAPE, attended)
        if not self.shape.rotated or heads.value_length % _ROTATION:
            return attended
        rotation = self.find_input(f"{name}value rotation", Size(_F32 * _ROTATION**2))
        return g.add_view(
            Op.RESHAPE, g.add_node(Op.MUL_MAT, self.row_size(width), rotation, g.add_view(Op.RESHAPE, attended))
        )

    def add_delta_net(self, normed: int) -> int:
        """Add a gated delta net: convolution over keys, queries and values, then the update of the state."""
        g, model = self.graph, self.geometry
        convolutions, states = g.add_external(), g.add_external()
        kept = Size(sequence=_F32 * model.conv_state)
        conv_state = g.add_view(Op.RESHAPE, self.gather_states(convolutions, kept))
        mixed = self.add_matmul(model.conv_channels, normed)
        mixed = g.add_view(Op.TRANSPOSE, g.add_view(Op.RESHAPE, mixed))
        joined = g.add_node(Op.OTHER, Size(token=_F32 * model.conv_channels, sequence=kept.sequence), conv_state, mixed)
        for _ in range(max(self.shape.snapshots, 1)):
            self.copy_to_cache(joined, convolutions)
        state = self.gather_states(states, Size(sequence=_F32 * model.delta_state))
        convolved = g.add_alike(Op.UNARY, g.add_node(Op.SSM_CONV, self.row_size(model.conv_channels), joined))
        key_width = self.row_size(model.group_count * model.state_size)
        query, key = (
            g.add_alike(Op.SCALE, g.add_node(Op.RMS_NORM, key_width, g.add_view(Op.VIEW, convolved))) for _ in range(2)
        )
        value = g.add_view(Op.VIEW, convolved)
        decay = g.add_alike(Op.ADD, g.add_view(Op.RESHAPE, self.add_matmul(model.time_step_rank, normed)))
        decay = g.add_view(Op.RESHAPE, g.add_alike(Op.MUL, g.add_alike(Op.UNARY, decay)))
        beta = g.add_alike(Op.UNARY, g.add_view(Op.RESHAPE, self.add_matmul(model.time_step_rank, normed)))
        state = g.add_view(Op.RESHAPE, state)
        size = Size(token=_F32 * model.inner_size, sequence=_F32 * model.delta_state * max(self.shape.snapshots, 1))
        delta = g.add_node(Op.OTHER, size, query, key, value, decay, beta, state)
        self.copy_to_cache(delta, states)
        output = g.add_alike(
            Op.MUL, g.add_node(Op.RMS_NORM, self.row_size(model.inner_size), g.add_view(Op.VIEW, delta))
        )
        gate = g.add_alike(Op.UNARY, g.add_view(Op.RESHAPE, self.add_matmul(model.inner_size, normed)))
        output = g.add_view(Op.RESHAPE, g.add_alike(Op.MUL, output, gate))
        return g.add_view(Op.RESHAPE, self.add_matmul(model.hidden, output))

    def gather_states(self, cache: int, size: Size) -> int:
        """Gather the recurrent states of the batch's sequences from `cache`."""
        g = self.graph
        all_states = g.add_view(Op.RESHAPE, cache)
        g.add_view(Op.SCALE, g.add_view(Op.VIEW, all_states))
        gathered = g.add_node(Op.GET_ROWS, size, all_states, self.find_input("state copies", Size(sequence=_I32)))
        state = g.add_view(Op.VIEW, gathered)
        self.copy_to_cache(gathered, cache)
        return state

    def copy_to_cache(self, source: int, cache: int) -> None:
        """Copy a part of `source` into `cache`."""
        g = self.graph
        part = g.add_view(Op.VIEW, source)
        g.add_view(Op.OTHER, g.add_view(Op.VIEW, cache), part)

    def add_feed_forward(self, normed: int, width: int) -> int:
        """Add a gated feed-forward network of `width`."""
        gate = self.add_matmul(width, normed)
        up = self.add_matmul(width, normed)
        return self.add_matmul(self.geometry.hidden, self.graph.add_alike(Op.GLU, gate, up))

    def add_experts(self, normed: int, layer: int) -> int:
        """Add the routed experts, and the gated shared expert if the model has one."""
        g, model = self.graph, self.geometry
        used, hidden = model.experts_used, model.hidden
        chances = g.add_alike(Op.SOFT_MAX, self.add_matmul(model.experts, normed))
        reshaped = g.add_view(Op.RESHAPE, chances)
        best = g.add_view(Op.VIEW, g.add_alike(Op.ARGSORT, chances))
        weights = g.add_view(Op.RESHAPE, g.add_node(Op.GET_ROWS, self.row_size(used), reshaped, best))
        total = g.add_alike(Op.CLAMP, g.add_node(Op.SUM_ROWS, self.row_size(1), weights))
        weights = g.add_view(Op.RESHAPE, g.add_alike(Op.DIV, weights, total))
        rows = g.add_view(Op.RESHAPE, normed)
        gates, ups, downs = self.expert_weights(layer)
        device = g.place
        g.place = self.experts_place(layer)
        inner = self.row_size(used * (model.expert_ffn or model.ffn))
        gate = g.add_node(Op.MUL_MAT_ID, inner, gates, rows, best)
        up = g.add_node(Op.MUL_MAT_ID, inner, ups, rows, best)
        down = g.add_node(Op.MUL_MAT_ID, self.row_size(used * hidden), downs, g.add_alike(Op.GLU, gate, up), best)
        g.place = g.place or device  # the sum is computed where the experts were, or on the block's device
        weighted = g.add_alike(Op.MUL, down, weights)
        parts = [g.add_view(Op.VIEW, weighted) for _ in range(used)]
        result = parts[0]
        for part in parts[1:]:
            result = g.add_node(Op.ADD, self.row_size(hidden), result, part)
        if not model.shared_expert_ffn:
            return result
        g.place = device
        shared = self.add_feed_forward(normed, model.shared_expert_ffn)
        shared = g.add_alike(Op.MUL, shared, g.add_alike(Op.UNARY, self.add_matmul(1, normed)))
        return g.add_alike(Op.ADD, result, shared)

    def expert_weights(self, layer: int) -> tuple[int, int, int]:
        """Return the expert matrices of `layer`, on the host if it is one of the layers with experts there."""
        g, known = self.graph, self.shape.expert_bytes
        if layer >= self.shape.cpu_expert_layers:
            return g.add_external(), g.add_external(), g.add_external()
        symbolic = Size(gate=1), Size(up=1), Size(down=1)
        sizes = [Size(fixed=size) for size in known[layer]] if layer < len(known) else symbolic
        gate, up, down = (g.add_external(size, HOST) for size in sizes)
        return gate, up, down

    def experts_place(self, layer: int) -> int:
        """Return the place that computes the experts of `layer`: the first device, by copying, for large batches."""
        if layer >= self.shape.cpu_expert_layers:
            return self.graph.place
        enough = self.shape.offload_outputs if self.outputs_only else self.shape.offload_tokens
        return min(self.graph.place, 1) if enough else HOST

    def add_block_end(self, mixed: int, residual: int, layer: int) -> int:
        """Add the second half of a block, after attention or delta net: residual, norm, feed forward, residual."""
        g, model = self.graph, self.geometry
        residual = g.add_node(Op.ADD, self.row_size(model.hidden), mixed, residual)
        normed = self.add_norm(residual)
        result = self.add_experts(normed, layer) if model.experts else self.add_feed_forward(normed, model.ffn)
        result = self.add_norm(result) if self.style.post_norms else result
        result = g.add_node(Op.ADD, self.row_size(model.hidden), result, residual)
        return g.add_alike(Op.MUL, result) if self.style.scaled_blocks else result


# Whole graphs: the trunk, the MTP head, and an assistant (a draft model that reads the target's states).
#
# Source: src/models/*.cpp (b11434). Only the graph of a prompt is built, because it is the largest; and of the trunk
# only as many blocks as it takes to reach the peak memory.


def blocks_until_repetition(geometry: Geometry) -> int:
    """Return the number of blocks after which the pattern of allocations repeats."""
    return max(2 * attention_interval(geometry), 4)


def trunk_graph(geometry: Geometry, shape: Shape, devices: int) -> Graph:
    """Return the graph of a trunk whose layers are split over `devices` GPUs; 0 is the processor alone."""
    build = Blocks(geometry, shape)
    current = _add_blocks(build, _add_embeddings(build, min(devices, 1)), devices)
    build.add_matmul(geometry.vocabulary, current)
    return build.graph


def head_graph(geometry: Geometry, shape: Shape, device: int) -> Graph:
    """Return the graph of an MTP head on `device`: token and hidden state joined, one attention block, the output."""
    build = Blocks(geometry, shape)
    g, hidden = build.graph, build.row_size(geometry.hidden)
    g.place = HOST
    token = g.add_node(Op.GET_ROWS, hidden, build.find_input("tokens", Size(token=_I32)))
    g.place = device
    token = build.add_norm(token)
    state = build.add_norm(build.find_input("states", hidden))
    current = build.add_matmul(geometry.hidden, g.add_node(Op.OTHER, build.row_size(2 * geometry.hidden), token, state))
    current = build.add_block_end(build.add_attention(build.add_norm(current)), current, geometry.layers)
    picked = build.select_outputs(build.add_norm(current))
    build.outputs_only = True
    build.add_matmul(geometry.vocabulary, picked)
    return g


def assistant_graph(geometry: Geometry, shape: Shape, devices: int) -> Graph:
    """Return the graph of a draft model that reads the target's hidden states and KV cache."""
    build = Blocks(geometry, shape)
    g, states = build.graph, build.row_size(shape.target_hidden)
    g.place = HOST
    token = g.add_node(Op.GET_ROWS, states, build.find_input("tokens", Size(token=_I32)))
    g.place = devices
    joined = build.row_size(2 * shape.target_hidden)
    joined_rows = g.add_node(Op.OTHER, joined, g.add_alike(Op.SCALE, token), build.find_input("states", states))
    current = _add_blocks(build, build.add_matmul(geometry.hidden, joined_rows), devices)
    build.add_matmul(geometry.vocabulary, current)
    build.add_matmul(shape.target_hidden, current)
    return g


def draft_graph(geometry: Geometry, shape: Shape, devices: int) -> Graph:
    """Return the graph of EAGLE-3, DFlash or DSpark: logits of all tokens, not only of the output rows, and their copy
    with one row more, from which the engine samples (src/models/eagle3.cpp, dflash.cpp; b11549).

    DSpark corrects the logits of a block only, which is shorter than the batch that decides the buffer's size.
    """
    build = Blocks(geometry, shape)
    g, hidden = build.graph, build.row_size(geometry.hidden)
    g.place = HOST
    current = g.add_node(Op.GET_ROWS, hidden, build.find_input("tokens", Size(token=_I32)))
    g.place = devices
    for layer in range(geometry.layers):
        normed = build.add_norm(current)
        if geometry.architecture == _EAGLE:
            current = build.find_input("states", hidden)
            normed = g.add_node(Op.OTHER, build.row_size(2 * geometry.hidden), normed, build.add_norm(current))
        current = build.add_block_end(build.add_attention(normed), current, layer)
    result = build.add_norm(current)
    g.outputs.append(current if geometry.architecture == _EAGLE else result)
    logits = build.add_matmul(geometry.own_outputs or geometry.vocabulary, result)
    if geometry.own_outputs not in (0, geometry.vocabulary):  # a part of the words, put into the places of all
        words = g.add_input(build.row_size(geometry.vocabulary))
        g.places[words] = devices  # it is no input, but allocated like one
        logits = g.add_view(Op.SET_ROWS, g.add_alike(Op.SCALE, words), g.add_view(Op.RESHAPE, logits))
    g.outputs.append(g.bases[logits])
    row = _F32 * geometry.vocabulary
    g.add_node(Op.OTHER, Size(fixed=row, token=row), logits)
    return g


def _add_blocks(build: Blocks, current: int, devices: int) -> int:
    """Add all blocks and the final norm, and select the output rows."""
    geometry, style, interval = build.geometry, build.style, attention_interval(build.geometry)
    places = _block_places(geometry, build.shape, devices)
    for layer, place in enumerate(places):
        if layer in build.shape.extracts:
            build.graph.outputs.append(current)
        normed = build.add_norm(current, place)
        is_full = layer % interval == interval - 1
        mixed = (
            build.add_attention(normed, windowed=not is_full)
            if is_full or geometry.window
            else build.add_delta_net(normed)
        )
        if layer == len(places) - 1 and not style.late_pick:
            mixed = build.select_outputs(mixed)
            build.outputs_only = True
        mixed = build.add_norm(mixed) if style.post_norms else mixed
        current = build.select_outputs(current) if build.outputs_only else current
        current = build.add_block_end(mixed, current, layer)
    current = build.add_norm(current, devices)
    current = build.select_outputs(current) if style.late_pick else current
    build.outputs_only = True
    return current


def _block_places(geometry: Geometry, shape: Shape, devices: int) -> list[int]:
    """Return the device of each block that is built.

    Equal devices get equal shares of the layers, the output counting as one layer (src/llama-model.cpp). Repeating
    blocks of a share are left out, whole intervals at a time.
    """
    interval, enough = attention_interval(geometry), blocks_until_repetition(geometry)
    if 0 < shape.cpu_expert_layers < geometry.layers:
        enough += blocks_until_repetition(geometry)
    parts, all_layers = max(devices, 1), geometry.layers + geometry.mtp_layers + 1
    starts = [min(-(-all_layers * part // parts), geometry.layers) for part in range(parts)] + [geometry.layers]
    places = []
    for part in range(parts):
        count = starts[part + 1] - starts[part]
        is_whole = count < enough or shape.extracts  # which layers are read is not a part of the pattern
        places += [min(devices, part + 1)] * (count if is_whole else enough + (count - enough) % interval)
    return places


def attention_interval(geometry: Geometry) -> int:
    """Return the distance, in layers, between layers with full attention; 1 if all layers are alike."""
    full = geometry.attention_layers - geometry.window_layers
    if full <= 0 or not (geometry.inner_size or geometry.window_layers):
        return 1
    return max((geometry.layers - geometry.cacheless_layers) // full, 1)


def _add_embeddings(build: Blocks, device: int) -> int:
    """Add the embeddings of text tokens.

    llama.cpp's graph also has inputs for images and for a mix of both; they take memory but are not computed.
    """
    g, hidden = build.graph, build.row_size(build.geometry.hidden)
    g.place = HOST
    text = g.add_node(Op.GET_ROWS, hidden, build.find_input("tokens", Size(token=_I32)))
    build.find_input("embeddings", hidden)
    mixed_text = g.add_node(Op.GET_ROWS, hidden, build.find_input("mixed tokens", Size(token=_I32)))
    g.place = device
    slots = build.find_input("mixed slots", Size(token=_I64))
    mixed = g.add_node(Op.OTHER, hidden, build.find_input("mixed embeddings", hidden))
    g.add_view(Op.SET_ROWS, mixed, mixed_text, slots)
    if build.style.scaled_input:
        return g.add_alike(Op.MUL, text, build.find_input("scales", Size(token=_F32)))
    return text
