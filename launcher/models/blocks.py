"""What a model's blocks compute, node by node in llama.cpp's order, as far as buffers need it.

Read from src/llama-graph.cpp, src/models/delta-net-base.cpp, qwen35.cpp and qwen35moe.cpp, and compared with the graphs
that llama.cpp b11434 builds. Weights are left out where nothing depends on them.
"""

from dataclasses import dataclass

from launcher.models.geometry import Geometry
from launcher.models.styles import STYLES, UNKNOWN
from launcher.models.tensors import HOST, Graph, Op, Size

_F32, _F16, _I32, _I64 = 4, 2, 4, 8
_ROTATION = 64
"""Width of the rotation put before values in a quantised cache (src/llama-kv-cache.cpp); keys take the widest power
of two that divides a head."""


ExpertBytes = tuple[int, int, int]
"""The bytes of the gate, up and down matrices of one layer's routed experts."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a graph's nodes and their order depend on.

    `snapshots` of a recurrent state are kept, 0 without drafts; `rotated` when the KV cache is quantised; `scratch`
    when attention needs keys and values once more in F16; `devices` share the layers, and work on successive batches
    at once when `pipelined`. The experts of `cpu_expert_layers` stay on the host, with `expert_bytes` of each layer if
    they are not alike; a device computes with them when there are tokens, or output rows, enough. `target_hidden` is
    the width of the states that a draft reads.
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


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads that hold keys and values, of layers with a sliding window or without; `name` tells their inputs."""

    name: str
    count: int
    key_length: int
    value_length: int


class Blocks:
    """Adds blocks to `graph`. After `outputs_only` rows stand for outputs in place of tokens."""

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

    def rows(self, width: int) -> Size:
        """Return the size of a row of `width` floats for each token."""
        return Size(output=_F32 * width) if self.outputs_only else Size(token=_F32 * width)

    def input(self, name: str, size: Size) -> int:
        """Return the input called `name`, added at its first use."""
        if name not in self._inputs:
            self._inputs[name] = self.graph.input(size)
        return self._inputs[name]

    def norm(self, source: int, place: int | None = None) -> int:
        """Root mean square norm with a weight, which lies at `place` from where the graph goes on."""
        normed = self.graph.like(Op.RMS_NORM, source)
        self.graph.place = self.graph.place if place is None else place
        return self.graph.like(Op.MUL, normed)

    def matmul(self, width: int, *sources: int) -> int:
        """Multiply by a weight that gives rows of `width`."""
        return self.graph.node(Op.MUL_MAT, self.rows(width), *sources)

    def picked(self, source: int) -> int:
        """Only the rows of `source` that are asked for."""
        width = self.graph.sizes[source].token
        return self.graph.node(Op.GET_ROWS, Size(output=width), source, self.input("rows", Size(output=_I32)))

    def attention(self, normed: int, *, windowed: bool = False) -> int:
        """Attention to all cells, or to those of a sliding window."""
        g, model, style = self.graph, self.geometry, self.style
        heads = self.window_heads if windowed else self.heads
        width = model.heads * heads.key_length
        mixed = self.matmul(width * (1 + style.gated), normed)
        mixed = g.like(Op.ADD, mixed) if style.biased else mixed
        query = g.view(Op.VIEW if style.gated else Op.RESHAPE, mixed)
        if style.normed_heads:
            query = g.like(Op.MUL, g.node(Op.RMS_NORM, self.rows(width), query))
        query = self.rope(query, self.rows(width))
        query = g.like(Op.SCALE, query) if style.scaled_queries else query
        query = self.rotate(query, "key", heads)
        keys, values = g.elsewhere(), g.elsewhere()
        if not style.borrowed:
            self.store(normed, keys, values, heads)
        attended = self.attend(query, keys, values, heads)
        if style.gated:
            gate = g.node(Op.OTHER, self.rows(width), g.view(Op.VIEW, mixed))
            attended = g.node(Op.MUL, self.rows(width), attended, g.like(Op.UNARY, gate))
        return self.matmul(model.hidden, attended)

    def store(self, normed: int, keys: int, values: int, heads: Heads) -> None:
        """Write keys and values into their caches."""
        g = self.graph
        if self.style.windowed:
            key = self.key(normed, heads)
            value = self.value(normed, heads)
        else:
            value = self.value(normed, heads)
            key = self.key(normed, heads)
        g.view(Op.SET_ROWS, keys, g.view(Op.VIEW, key), self.input(f"{heads.name}key rows", Size(token=_I64)))
        g.view(Op.SET_ROWS, values, g.view(Op.VIEW, value), self.input(f"{heads.name}value rows", Size(token=_I64)))

    def key(self, normed: int, heads: Heads) -> int:
        """The keys, turned by position."""
        key = self.projected(normed, heads.count * heads.key_length)
        key = self.norm(key) if self.style.normed_heads else key
        return self.rotate(self.rope(key, self.rows(heads.count * heads.key_length)), "key", heads)

    def value(self, normed: int, heads: Heads) -> int:
        """The values."""
        value = self.projected(normed, heads.count * heads.value_length)
        value = self.graph.like(Op.RMS_NORM, value) if self.style.normed_values else value
        return self.rotate(value, "value", heads)

    def projected(self, normed: int, width: int) -> int:
        """A projection by heads."""
        projected = self.matmul(width, normed)
        return self.graph.view(Op.RESHAPE, self.graph.like(Op.ADD, projected) if self.style.biased else projected)

    def rope(self, source: int, size: Size) -> int:
        """Turn `source` by its position."""
        return self.graph.node(Op.ROPE, size, source, self.input("positions", Size(token=self.style.positions * _I32)))

    def rotate(self, source: int, what: str, heads: Heads) -> int:
        """Rotate keys, values or queries where the cache is quantised and the heads allow it."""
        g = self.graph
        length = heads.key_length if what == "key" else heads.value_length
        if not self.shape.rotated or length % _ROTATION:
            return source
        width = length & -length if what == "key" else _ROTATION
        rotation = self.input(f"{heads.name}{what} rotation", Size(_F32 * width**2))
        return g.view(Op.RESHAPE, g.node(Op.MUL_MAT, g.sizes[source], rotation, g.view(Op.RESHAPE, source)))

    def attend(self, query: int, keys: int, values: int, heads: Heads) -> int:
        """Attend to all that the caches hold."""
        g, model, name = self.graph, self.geometry, heads.name
        query = g.view(Op.PERMUTE, g.view(Op.VIEW, query))
        keys = g.view(Op.PERMUTE, g.view(Op.VIEW, keys))
        values = g.view(Op.PERMUTE, g.view(Op.VIEW, values))
        mask = self.input(f"{name}mask", Size(window_mask=_F16) if name else Size(mask=_F16))
        width = model.heads * heads.value_length
        scratch = self.shape.scratch * _F16 * heads.count * (heads.key_length + heads.value_length)
        copied = Size(window_cache=scratch) if name else Size(cache=scratch)
        attended = g.node(Op.FLASH_ATTN, self.rows(width).plus(copied), query, keys, values, mask)
        attended = g.view(Op.RESHAPE, attended)
        if not self.shape.rotated or heads.value_length % _ROTATION:
            return attended
        rotation = self.input(f"{name}value rotation", Size(_F32 * _ROTATION**2))
        return g.view(Op.RESHAPE, g.node(Op.MUL_MAT, self.rows(width), rotation, g.view(Op.RESHAPE, attended)))

    def delta_net(self, normed: int) -> int:
        """A gated delta net: convolution over keys, queries and values, then the state's update."""
        g, model = self.graph, self.geometry
        convolutions, states = g.elsewhere(), g.elsewhere()
        kept = Size(sequence=_F32 * model.conv_state)
        conv_state = g.view(Op.RESHAPE, self.state(convolutions, kept))
        mixed = self.matmul(model.conv_channels, normed)
        mixed = g.view(Op.TRANSPOSE, g.view(Op.RESHAPE, mixed))
        joined = g.node(Op.OTHER, Size(token=_F32 * model.conv_channels, sequence=kept.sequence), conv_state, mixed)
        for _ in range(max(self.shape.snapshots, 1)):
            self.copy(joined, convolutions)
        state = self.state(states, Size(sequence=_F32 * model.delta_state))
        convolved = g.like(Op.UNARY, g.node(Op.SSM_CONV, self.rows(model.conv_channels), joined))
        key_width = self.rows(model.group_count * model.state_size)
        query, key = (g.like(Op.SCALE, g.node(Op.RMS_NORM, key_width, g.view(Op.VIEW, convolved))) for _ in range(2))
        value = g.view(Op.VIEW, convolved)
        decay = g.like(Op.ADD, g.view(Op.RESHAPE, self.matmul(model.time_step_rank, normed)))
        decay = g.view(Op.RESHAPE, g.like(Op.MUL, g.like(Op.UNARY, decay)))
        beta = g.like(Op.UNARY, g.view(Op.RESHAPE, self.matmul(model.time_step_rank, normed)))
        state = g.view(Op.RESHAPE, state)
        size = Size(token=_F32 * model.inner_size, sequence=_F32 * model.delta_state * max(self.shape.snapshots, 1))
        delta = g.node(Op.OTHER, size, query, key, value, decay, beta, state)
        self.copy(delta, states)
        output = g.like(Op.MUL, g.node(Op.RMS_NORM, self.rows(model.inner_size), g.view(Op.VIEW, delta)))
        gate = g.like(Op.UNARY, g.view(Op.RESHAPE, self.matmul(model.inner_size, normed)))
        output = g.view(Op.RESHAPE, g.like(Op.MUL, output, gate))
        return g.view(Op.RESHAPE, self.matmul(model.hidden, output))

    def state(self, cache: int, size: Size) -> int:
        """The recurrent states of the sequences at hand."""
        g = self.graph
        all_states = g.view(Op.RESHAPE, cache)
        g.view(Op.SCALE, g.view(Op.VIEW, all_states))
        gathered = g.node(Op.GET_ROWS, size, all_states, self.input("state copies", Size(sequence=_I32)))
        state = g.view(Op.VIEW, gathered)
        self.copy(gathered, cache)
        return state

    def copy(self, source: int, cache: int) -> None:
        """Write a part of `source` into `cache`."""
        g = self.graph
        part = g.view(Op.VIEW, source)
        g.view(Op.OTHER, g.view(Op.VIEW, cache), part)

    def feed_forward(self, normed: int, width: int) -> int:
        """A gated feed forward of `width`."""
        gate = self.matmul(width, normed)
        up = self.matmul(width, normed)
        return self.matmul(self.geometry.hidden, self.graph.like(Op.GLU, gate, up))

    def experts(self, normed: int, layer: int) -> int:
        """Routed experts, and a shared one behind a gate if the model has it."""
        g, model = self.graph, self.geometry
        used, hidden = model.experts_used, model.hidden
        chances = g.like(Op.SOFT_MAX, self.matmul(model.experts, normed))
        reshaped = g.view(Op.RESHAPE, chances)
        best = g.view(Op.VIEW, g.like(Op.ARGSORT, chances))
        weights = g.view(Op.RESHAPE, g.node(Op.GET_ROWS, self.rows(used), reshaped, best))
        total = g.like(Op.CLAMP, g.node(Op.SUM_ROWS, self.rows(1), weights))
        weights = g.view(Op.RESHAPE, g.like(Op.DIV, weights, total))
        rows = g.view(Op.RESHAPE, normed)
        gates, ups, downs = self.expert_weights(layer)
        device = g.place
        g.place = self.experts_place(layer)
        inner = self.rows(used * (model.expert_ffn or model.ffn))
        gate = g.node(Op.MUL_MAT_ID, inner, gates, rows, best)
        up = g.node(Op.MUL_MAT_ID, inner, ups, rows, best)
        down = g.node(Op.MUL_MAT_ID, self.rows(used * hidden), downs, g.like(Op.GLU, gate, up), best)
        g.place = g.place or device
        weighted = g.like(Op.MUL, down, weights)
        parts = [g.view(Op.VIEW, weighted) for _ in range(used)]
        result = parts[0]
        for part in parts[1:]:
            result = g.node(Op.ADD, self.rows(hidden), result, part)
        if not model.shared_expert_ffn:
            return result
        g.place = device
        shared = self.feed_forward(normed, model.shared_expert_ffn)
        shared = g.like(Op.MUL, shared, g.like(Op.UNARY, self.matmul(1, normed)))
        return g.like(Op.ADD, result, shared)

    def expert_weights(self, layer: int) -> tuple[int, int, int]:
        """The matrices of the experts of `layer`, on the host if the layer is one of those."""
        g, known = self.graph, self.shape.expert_bytes
        if layer >= self.shape.cpu_expert_layers:
            return g.elsewhere(), g.elsewhere(), g.elsewhere()
        alike = Size(gate=1), Size(up=1), Size(down=1)
        sizes = [Size(fixed=size) for size in known[layer]] if layer < len(known) else alike
        gate, up, down = (g.elsewhere(size, HOST) for size in sizes)
        return gate, up, down

    def experts_place(self, layer: int) -> int:
        """Where the experts of `layer` are computed: for large batches the first device copies the host's weights."""
        if layer >= self.shape.cpu_expert_layers:
            return self.graph.place
        enough = self.shape.offload_outputs if self.outputs_only else self.shape.offload_tokens
        return min(self.graph.place, 1) if enough else HOST

    def block_end(self, mixed: int, residual: int, layer: int) -> int:
        """From a mixer's output to the block's: residual, norm, feed forward, residual."""
        g, model = self.graph, self.geometry
        residual = g.node(Op.ADD, self.rows(model.hidden), mixed, residual)
        normed = self.norm(residual)
        result = self.experts(normed, layer) if model.experts else self.feed_forward(normed, model.ffn)
        result = self.norm(result) if self.style.post_norms else result
        result = g.node(Op.ADD, self.rows(model.hidden), result, residual)
        return g.like(Op.MUL, result) if self.style.scaled_blocks else result
