"""The graphs that llama.cpp computes with a model: its trunk, its MTP head, and a draft that leans on it.

Read from src/models/*.cpp (b11434). A prompt's graph is the largest, so it alone is built, and
of the trunk only as many blocks as the peak needs.
"""

from launcher.models.blocks import Blocks, Shape
from launcher.models.geometry import Geometry
from launcher.models.tensors import HOST, Graph, Op, Size

_F32, _I32, _I64 = 4, 4, 8


def repeated(geometry: Geometry) -> int:
    """How many blocks it takes until nothing new happens."""
    return max(2 * interval(geometry), 4)


def trunk(geometry: Geometry, shape: Shape, devices: int) -> Graph:
    """Return the graph of a trunk whose layers are spread over `devices`; on the host alone if that is 0."""
    build = Blocks(geometry, shape)
    current = _layers(build, _embedded(build, min(devices, 1)), devices)
    build.matmul(geometry.vocabulary, current)
    return build.graph


def head(geometry: Geometry, shape: Shape, device: int) -> Graph:
    """Return the graph of an MTP head on `device`: token and hidden state joined, a block of attention, the output."""
    build = Blocks(geometry, shape)
    g, hidden = build.graph, build.rows(geometry.hidden)
    g.place = HOST
    token = g.node(Op.GET_ROWS, hidden, build.input("tokens", Size(token=_I32)))
    g.place = device
    token = build.norm(token)
    state = build.norm(build.input("states", hidden))
    current = build.matmul(geometry.hidden, g.node(Op.OTHER, build.rows(2 * geometry.hidden), token, state))
    current = build.block_end(build.attention(build.norm(current)), current, geometry.layers)
    picked = build.picked(build.norm(current))
    build.outputs_only = True
    build.matmul(geometry.vocabulary, picked)
    return g


def assistant(geometry: Geometry, shape: Shape, devices: int) -> Graph:
    """Return the graph of a draft that reads the target's hidden states, and its cache in place of one of its own."""
    build = Blocks(geometry, shape)
    g, states = build.graph, build.rows(shape.target_hidden)
    g.place = HOST
    token = g.node(Op.GET_ROWS, states, build.input("tokens", Size(token=_I32)))
    g.place = devices
    joined = build.rows(2 * shape.target_hidden)
    joined_rows = g.node(Op.OTHER, joined, g.like(Op.SCALE, token), build.input("states", states))
    current = _layers(build, build.matmul(geometry.hidden, joined_rows), devices)
    build.matmul(geometry.vocabulary, current)
    build.matmul(shape.target_hidden, current)
    return g


def _layers(build: Blocks, current: int, devices: int) -> int:
    """All blocks and the last norm, for the rows that are asked for."""
    geometry, style, every = build.geometry, build.style, interval(build.geometry)
    places = _places(geometry, build.shape, devices)
    for layer, place in enumerate(places):
        normed = build.norm(current, place)
        whole = layer % every == every - 1
        mixed = build.attention(normed, windowed=not whole) if whole or geometry.window else build.delta_net(normed)
        if layer == len(places) - 1 and not style.late_pick:
            mixed = build.picked(mixed)
            build.outputs_only = True
        mixed = build.norm(mixed) if style.post_norms else mixed
        current = build.picked(current) if build.outputs_only else current
        current = build.block_end(mixed, current, layer)
    current = build.norm(current, devices)
    current = build.picked(current) if style.late_pick else current
    build.outputs_only = True
    return current


def _places(geometry: Geometry, shape: Shape, devices: int) -> list[int]:
    """The device of each block, of as many as it takes.

    Equal devices get equal shares of all layers, the output counted as one (src/llama-model.cpp); of each share, whole
    intervals are left out.
    """
    every, enough = interval(geometry), repeated(geometry)
    if 0 < shape.cpu_expert_layers < geometry.layers:
        enough += repeated(geometry)
    parts, all_layers = max(devices, 1), geometry.layers + geometry.mtp_layers + 1
    starts = [min(-(-all_layers * part // parts), geometry.layers) for part in range(parts)] + [geometry.layers]
    places = []
    for part in range(parts):
        count = starts[part + 1] - starts[part]
        places += [min(devices, part + 1)] * (count if count < enough else enough + (count - enough) % every)
    return places


def interval(geometry: Geometry) -> int:
    """Every how many layers attention to all cells comes."""
    whole = geometry.attention_layers - geometry.window_layers
    mixed = geometry.inner_size or geometry.window_layers
    return max(geometry.layers // whole, 1) if whole > 0 and mixed else 1


def _embedded(build: Blocks, device: int) -> int:
    """The embeddings of a text; those of a picture, and of both mixed, are in the graph too but not computed."""
    g, hidden = build.graph, build.rows(build.geometry.hidden)
    g.place = HOST
    text = g.node(Op.GET_ROWS, hidden, build.input("tokens", Size(token=_I32)))
    build.input("embeddings", hidden)
    mixed_text = g.node(Op.GET_ROWS, hidden, build.input("mixed tokens", Size(token=_I32)))
    g.place = device
    slots = build.input("mixed slots", Size(token=_I64))
    mixed = g.node(Op.OTHER, hidden, build.input("mixed embeddings", hidden))
    g.view(Op.SET_ROWS, mixed, mixed_text, slots)
    if build.style.scaled_input:
        return g.like(Op.MUL, text, build.input("scales", Size(token=_F32)))
    return text
