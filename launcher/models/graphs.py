"""The graphs that llama.cpp computes with a model, as far as their buffers need: which tensors, how large, in which order.

Read from llama.cpp's src/models/qwen35.cpp, qwen35moe.cpp, delta-net-base.cpp and src/llama-graph.cpp, with the order
of the nodes as a scheduler's trace shows it (b11549). A prompt's graph is the largest, so it alone is built.
"""

from dataclasses import dataclass

from launcher.models.allocation import Graph
from launcher.models.geometry import Geometry

_F32, _F16, _I32, _I64 = 4, 2, 4, 8
_ROTATION = 64
"""Width of the rotation that is put before values in a quantised cache (src/llama-kv-cache.cpp)."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a graph is built for: `tokens` in one ubatch for `sequences` slots, each with `context` cells.

    `outputs` rows of logits; `snapshots` of the recurrent state that are kept, 0 without drafts;
    `rotated` when the KV cache is quantised; `unified` when the slots share one cache.
    """

    tokens: int
    sequences: int
    context: int
    outputs: int
    snapshots: int
    rotated: bool
    offloaded: bool = False
    scratch: int = 0


class _Builder:
    def __init__(self, geometry: Geometry, batch: Batch) -> None:
        self.geometry = geometry
        self.batch = batch
        self.graph = Graph()

    def rows(self, width: int, tokens: int | None = None) -> int:
        """Bytes of a row of `width` floats for each token."""
        return _F32 * width * (self.batch.tokens if tokens is None else tokens)

    def inputs(self, *, recurrent: bool = False) -> None:
        g, batch = self.graph, self.batch
        if recurrent:
            self.copies = g.input(_I32 * batch.sequences)
        self.positions = g.input(4 * _I32 * batch.tokens)
        self.key_rotation = g.input(_F32 * self.geometry.key_length**2) if batch.rotated else None
        self.value_rotation = g.input(_F32 * _ROTATION**2) if batch.rotated else None
        self.key_rows = g.input(_I64 * batch.tokens)
        self.value_rows = g.input(_I64 * batch.tokens)
        self.mask = g.input(_F16 * batch.context * batch.tokens)
        self.output_rows = g.input(_I32 * batch.outputs)

    def rotate(self, tensor: int, rotation: int | None, size: int) -> int:
        return tensor if rotation is None else self.graph.new(size, rotation, tensor)

    def attention(self, normed: int) -> int:
        """Gated attention: queries come with a gate of their own size."""
        g, model, batch = self.graph, self.geometry, self.batch
        queries = self.rows(model.heads * model.key_length)
        keys = self.rows(model.kv_heads * model.key_length)
        values = self.rows(model.kv_heads * model.value_length)
        results = self.rows(model.heads * model.value_length)
        gated = g.new(2 * queries, normed)
        query = g.inplace(g.inplace(g.new(queries, gated)), self.positions)
        query = self.rotate(query, self.key_rotation, queries)
        value = self.rotate(g.new(values, normed), self.value_rotation, values)
        key = g.inplace(g.inplace(g.new(keys, g.new(keys, normed))), self.positions)
        key = self.rotate(key, self.key_rotation, keys)
        g.read(key, self.key_rows)
        g.read(value, self.value_rows)
        attended = g.new(results + batch.scratch, query, self.mask)
        attended = self.rotate(attended, self.value_rotation, results)
        gate = g.inplace(g.new(queries, gated))
        return g.new(self.rows(model.hidden), g.inplace(gate, attended))

    def delta_net(self, normed: int) -> int:
        """A gated delta net: convolution over keys, queries and values, then the state's update."""
        g, model, batch = self.graph, self.geometry, self.batch
        kept = _F32 * model.conv_state * batch.sequences
        conv_state = g.new(kept, self.copies)
        g.read(conv_state)
        mixed = g.new(self.rows(model.conv_channels), normed)
        joined = g.new(self.rows(model.conv_channels) + kept, conv_state, mixed)
        for _ in range(max(batch.snapshots, 1)):
            g.read(joined)
        state = g.new(_F32 * model.delta_state * batch.sequences, self.copies)
        g.read(state)
        convolved = g.inplace(g.new(self.rows(model.conv_channels), joined))
        key_width = self.rows(model.group_count * model.state_size)
        query = g.inplace(g.new(key_width, convolved))
        key = g.inplace(g.new(key_width, convolved))
        steps = self.rows(model.time_step_rank)
        decay = g.inplace(g.inplace(g.new(steps, g.new(steps, normed))))
        beta = g.new(steps, g.new(steps, normed))
        states = _F32 * model.delta_state * batch.sequences * max(batch.snapshots, 1)
        delta = g.new(self.rows(model.inner_size) + states, query, key, convolved, decay, beta, state)
        g.read(delta)
        output = g.inplace(g.new(self.rows(model.inner_size), delta))
        gate = g.new(self.rows(model.inner_size), g.new(self.rows(model.inner_size), normed))
        return g.new(self.rows(model.hidden), g.either(output, gate))

    def feed_forward(self, normed: int, width: int, tokens: int | None = None) -> int:
        g = self.graph
        gate = g.new(self.rows(width, tokens), normed)
        up = g.new(self.rows(width, tokens), normed)
        return g.new(self.rows(self.geometry.hidden, tokens), g.new(self.rows(width, tokens), gate, up))

    def experts(self, normed: int, tokens: int | None = None) -> int:
        """Routed experts, and a shared one behind a gate if the model has it."""
        g, model = self.graph, self.geometry
        used, hidden = model.experts_used, model.hidden
        chances = g.inplace(g.new(self.rows(model.experts, tokens), normed))
        best = g.new(self.rows(model.experts, tokens), chances)
        weights = g.new(self.rows(used, tokens), chances, best)
        weights = g.new(g.sizes[weights], weights, g.inplace(g.new(self.rows(1, tokens), weights)))
        gate = g.new(self.rows(used * model.expert_ffn, tokens), normed, best)
        up = g.new(self.rows(used * model.expert_ffn, tokens), normed, best)
        inner = g.new(self.rows(used * model.expert_ffn, tokens), gate, up)
        weighted = g.inplace(g.new(self.rows(used * hidden, tokens), inner, best), weights)
        total = g.new(self.rows(hidden, tokens), weighted, weighted) if used > 1 else weighted
        for _ in range(used - 2):
            total = g.inplace(total, weighted)
        if not model.shared_expert_ffn:
            return total
        shared = self.feed_forward(normed, model.shared_expert_ffn, tokens)
        shared = g.inplace(shared, g.inplace(g.new(self.rows(1, tokens), normed)))
        return g.either(total, shared)

    def block_end(self, mixed: int, residual: int, *, attended: bool, tokens: int | None = None) -> int:
        """From a mixer's output to the block's: residual, norm, feed forward, residual."""
        g, model = self.graph, self.geometry
        residual = g.either(mixed, residual) if attended else g.inplace(residual, mixed)
        normed = g.inplace(g.inplace(residual))
        expert = model.experts > 0
        result = self.experts(normed, tokens) if expert else self.feed_forward(normed, model.ffn, tokens)
        return g.either(result, residual)

    def outputs(self, mixed: int, residual: int) -> None:
        """The end of the last block and the logits, for the rows that are asked for."""
        g, rows = self.graph, self.batch.outputs
        hidden = self.rows(self.geometry.hidden, rows)
        mixed = g.new(hidden, mixed, self.output_rows)
        residual = g.new(hidden, residual, self.output_rows)
        result = self.block_end(mixed, residual, attended=True, tokens=rows)
        g.new(self.rows(self.geometry.vocabulary, rows), g.inplace(g.inplace(result)))


def trunk(geometry: Geometry, batch: Batch) -> Graph:
    """Return the graph of a hybrid trunk: as many blocks as the peak needs, for all its blocks are alike."""
    build = _Builder(geometry, batch)
    g = build.graph
    hidden, slots = build.rows(geometry.hidden), _I64 * batch.tokens
    if batch.offloaded:  # the embeddings were looked up on the host
        mixed_rows, text, mixed_slots, current = (g.input(size) for size in (hidden, hidden, slots, hidden))
        build.inputs(recurrent=True)
    else:
        tokens = g.input(_I32 * batch.tokens)
        g.keep(g.input(hidden))  # embeddings in place of tokens, which a text does not use
        mixed_tokens, mixed_rows, mixed_slots = (g.input(size) for size in (_I32 * batch.tokens, hidden, slots))
        build.inputs(recurrent=True)
        current = g.new(hidden, tokens)
        text = g.new(hidden, mixed_tokens)
    mixed = g.new(hidden, mixed_rows)
    g.read(text, mixed_slots)
    g.keep(mixed)
    interval = geometry.layers // geometry.attention_layers
    blocks = [build.delta_net] * (interval - 1) + [build.attention]
    *first, last = blocks * 2
    for mixer in first:
        mixed = mixer(g.inplace(g.inplace(current)))
        current = build.block_end(mixed, current, attended=mixer == build.attention)
    build.outputs(last(g.inplace(g.inplace(current))), current)
    return g


def head(geometry: Geometry, batch: Batch) -> Graph:
    """Return the graph of an MTP head: token and hidden state joined, one block of attention, the output."""
    build = _Builder(geometry, batch)
    g = build.graph
    hidden = build.rows(geometry.hidden)
    tokens = g.input(hidden if batch.offloaded else _I32 * batch.tokens)
    states = g.input(hidden)
    build.inputs()
    token = g.inplace(g.inplace(tokens if batch.offloaded else g.new(hidden, tokens)))
    state = g.inplace(g.inplace(states))
    current = g.new(hidden, g.new(2 * hidden, token, state))
    mixed = build.attention(g.inplace(g.inplace(current)))
    result = build.block_end(mixed, current, attended=True)
    normed = g.inplace(g.inplace(result))
    picked = g.new(build.rows(geometry.hidden, batch.outputs), normed, build.output_rows)
    g.new(build.rows(geometry.vocabulary, batch.outputs), picked)
    return g
