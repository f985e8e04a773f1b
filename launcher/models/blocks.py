"""What a model's blocks compute, node by node in llama.cpp's order, as far as buffers need it.

Read from src/llama-graph.cpp, src/models/delta-net-base.cpp, qwen35.cpp and qwen35moe.cpp, and compared with the graphs
that llama.cpp b11434 builds. Weights are left out where nothing depends on them.
"""

from dataclasses import dataclass

from launcher.models.geometry import Geometry
from launcher.models.tensors import HOST, Graph, Op, Size

_F32, _F16, _I32, _I64 = 4, 2, 4, 8
_VALUE_ROTATION = 64
"""Width of the rotation put before values in a quantised cache (src/llama-kv-cache.cpp); keys take the widest power
of two that divides a head."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a graph's nodes and their order depend on.

    `snapshots` of a recurrent state are kept, 0 without drafts; `rotated` when the KV cache is quantised; `scratch`
    when attention needs keys and values once more in F16; `devices` share the layers; the experts of
    `cpu_expert_layers` stay on the host, `expert_bytes` for each matrix of one layer.
    """

    snapshots: int = 0
    rotated: bool = False
    scratch: bool = False
    devices: int = 1
    cpu_expert_layers: int = 0
    expert_bytes: tuple[int, int, int] = (0, 0, 0)
    offload_tokens: bool = True
    offload_outputs: bool = False


class Blocks:
    """Adds blocks to `graph`. After `outputs_only` rows stand for outputs in place of tokens."""

    def __init__(self, geometry: Geometry, shape: Shape) -> None:
        self.geometry = geometry
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

    def norm(self, source: int) -> int:
        """Root mean square norm with a weight."""
        return self.graph.like(Op.MUL, self.graph.like(Op.RMS_NORM, source))

    def matmul(self, width: int, *sources: int) -> int:
        """Multiply by a weight that gives rows of `width`."""
        return self.graph.node(Op.MUL_MAT, self.rows(width), *sources)

    def picked(self, source: int) -> int:
        """Only the rows of `source` that are asked for."""
        width = self.graph.sizes[source].token
        return self.graph.node(Op.GET_ROWS, Size(output=width), source, self.input("rows", Size(output=_I32)))

    def attention(self, normed: int) -> int:
        """Gated attention: the queries come with a gate of their own size."""
        g, model = self.graph, self.geometry
        width = model.heads * model.key_length
        gated = self.matmul(2 * width, normed)
        query = g.node(Op.RMS_NORM, self.rows(width), g.view(Op.VIEW, gated))
        query = self.rotate(self.rope(g.like(Op.MUL, query)), "key")
        value = g.view(Op.RESHAPE, self.matmul(model.kv_heads * model.value_length, normed))
        value = self.rotate(value, "value")
        key = g.view(Op.RESHAPE, self.matmul(model.kv_heads * model.key_length, normed))
        key = self.rotate(self.rope(self.norm(key)), "key")
        attended = self.attend(query, key, value)
        gate = g.node(Op.OTHER, self.rows(width), g.view(Op.VIEW, gated))
        result = g.node(Op.MUL, self.rows(width), attended, g.like(Op.UNARY, gate))
        return self.matmul(model.hidden, result)

    def rope(self, source: int) -> int:
        """Turn `source` by its position; four numbers a token place it in text and picture."""
        return self.graph.like(Op.ROPE, source, self.input("positions", Size(token=4 * _I32)))

    def rotate(self, source: int, what: str) -> int:
        """Rotate keys, values or queries where the cache is quantised."""
        if not self.shape.rotated:
            return source
        g, width = self.graph, _VALUE_ROTATION
        if what == "key":
            width = self.geometry.key_length & -self.geometry.key_length
        rotation = self.input(f"{what} rotation", Size(_F32 * width**2))
        turned = g.node(Op.MUL_MAT, g.sizes[source], rotation, g.view(Op.RESHAPE, source))
        return g.view(Op.RESHAPE, turned)

    def attend(self, query: int, key: int, value: int) -> int:
        """Store `key` and `value` in the cache and attend to all of it."""
        g, model = self.graph, self.geometry
        keys, values = g.elsewhere(), g.elsewhere()
        g.view(Op.SET_ROWS, keys, g.view(Op.VIEW, key), self.input("key rows", Size(token=_I64)))
        g.view(Op.SET_ROWS, values, g.view(Op.VIEW, value), self.input("value rows", Size(token=_I64)))
        query = g.view(Op.PERMUTE, g.view(Op.VIEW, query))
        keys = g.view(Op.PERMUTE, g.view(Op.VIEW, keys))
        values = g.view(Op.PERMUTE, g.view(Op.VIEW, values))
        size = self.rows(model.heads * model.value_length)
        if self.shape.scratch:
            size = size._replace(cache=_F16 * model.kv_heads * (model.key_length + model.value_length))
        attended = g.node(Op.FLASH_ATTN, size, query, keys, values, self.input("mask", Size(mask=_F16)))
        attended = g.view(Op.RESHAPE, attended)
        if not self.shape.rotated:
            return attended
        rotation = self.input("value rotation", Size(_F32 * _VALUE_ROTATION**2))
        size = self.rows(model.heads * model.value_length)
        return g.view(Op.RESHAPE, g.node(Op.MUL_MAT, size, rotation, g.view(Op.RESHAPE, attended)))

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
        convolved = g.like(Op.UNARY, g.node(Op.OTHER, self.rows(model.conv_channels), joined))
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
        gates, ups, downs = (self.expert_weight(layer, size) for size in self.shape.expert_bytes)
        device, g.place = g.place, self.experts_place(layer)
        gate = g.node(Op.MUL_MAT_ID, self.rows(used * model.expert_ffn), gates, rows, best)
        up = g.node(Op.MUL_MAT_ID, self.rows(used * model.expert_ffn), ups, rows, best)
        down = g.node(Op.MUL_MAT_ID, self.rows(used * hidden), downs, g.like(Op.GLU, gate, up), best)
        g.place = device
        weighted = g.like(Op.MUL, down, weights)
        parts = [g.view(Op.VIEW, weighted) for _ in range(used)]
        result = parts[0]
        for part in parts[1:]:
            result = g.node(Op.ADD, self.rows(hidden), result, part)
        if not model.shared_expert_ffn:
            return result
        shared = self.feed_forward(normed, model.shared_expert_ffn)
        shared = g.like(Op.MUL, shared, g.like(Op.UNARY, self.matmul(1, normed)))
        return g.like(Op.ADD, result, shared)

    def expert_weight(self, layer: int, size: int) -> int:
        """One matrix of all experts of `layer`, on the host if the layer is one of those."""
        on_host = layer < self.shape.cpu_expert_layers
        return self.graph.elsewhere(Size(size), HOST if on_host else None)

    def experts_place(self, layer: int) -> int:
        """Where the experts of `layer` are computed: a device copies weights from the host for large batches."""
        on_host = layer < self.shape.cpu_expert_layers
        enough = self.shape.offload_outputs if self.outputs_only else self.shape.offload_tokens
        return HOST if on_host and not enough else self.graph.place

    def block_end(self, mixed: int, residual: int, layer: int) -> int:
        """From a mixer's output to the block's: residual, norm, feed forward, residual."""
        g, model = self.graph, self.geometry
        residual = g.node(Op.ADD, self.rows(model.hidden), mixed, residual)
        normed = self.norm(residual)
        result = self.experts(normed, layer) if model.experts else self.feed_forward(normed, model.ffn)
        return g.node(Op.ADD, self.rows(model.hidden), result, residual)
