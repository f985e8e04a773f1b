"""ggml's allocator, scheduler and backends played through: on small graphs by hand, on any graph by their rules."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.models.catalogue_load import shipped_models
from launcher.models.compute_buffers import (
    ALIGNMENT,
    BufferEvents,
    Optimise,
    buffer_bytes,
    optimise_for_cuda,
    optimise_for_vulkan,
    place_tensors,
    record_events,
    schedule_graph,
)
from launcher.models.compute_graph import EMPTY, HOST, Graph, Op, Shape, Size, head_graph, trunk_graph
from launcher.models.geometry import Geometry

ONE = Size(fixed=1)
UNIT = Size(fixed=ALIGNMENT)
TWO = Size(fixed=2 * ALIGNMENT)
DEVICE = 1
MOE = Geometry(
    "qwen35moe", 40, 1, 2_048, 16, 2, 256, 256, 10, 4, 4_096, 128, 32, 16, 256, 8, 512, 0, 248_320, 262_144, 512
)
DENSE = Geometry("qwen35", 64, 1, 5_120, 24, 4, 256, 256, 16, 4, 6_144, 128, 48, 16, 0, 0, 0, 17_408, 248_320, 262_144)
PLAIN = Geometry("llama", 32, 0, 4_096, 32, 8, 128, 128, 32, 0, 0, 0, 0, 0, 0, 0, 0, 14_336, 128_256, 131_072)


def units(graph: Graph, optimise: Optimise | None = None, *, pipelined: bool = False) -> dict[int, int]:
    """The buffers of `graph`, counted in aligned units."""
    found = record_events(graph, schedule_graph(graph, optimise, pipelined=pipelined))
    return {place: buffer_bytes(buffer, ONE) // ALIGNMENT for place, buffer in found.items()}


def test_memory_is_free_after_the_last_use() -> None:
    graph = Graph()
    tensor = graph.add_input(UNIT)
    for _ in range(5):
        tensor = graph.add_node(Op.MUL_MAT, UNIT, tensor)
    assert units(graph) == {HOST: 2}


def test_an_elementwise_result_reuses_the_memory_of_its_operand() -> None:
    graph = Graph()
    first, second = graph.add_input(UNIT), graph.add_input(TWO)
    graph.add_node(Op.OTHER, UNIT, graph.add_node(Op.ADD, UNIT, first, second))
    assert units(graph) == {HOST: 3}


def test_memory_that_another_node_needs_is_not_reused() -> None:
    graph = Graph()
    first, second = graph.add_input(UNIT), graph.add_input(UNIT)
    graph.add_node(Op.OTHER, UNIT, graph.add_node(Op.ADD, UNIT, first, second), first, second)
    assert units(graph) == {HOST: 4}


def test_memory_of_another_size_or_of_a_view_is_not_reused() -> None:
    graph = Graph()
    small = graph.add_input(UNIT)
    graph.add_node(Op.MUL, TWO, small)
    assert units(graph) == {HOST: 3}
    graph = Graph()
    graph.add_node(Op.MUL, UNIT, graph.add_view(Op.RESHAPE, graph.add_input(UNIT)))
    assert units(graph) == {HOST: 2}


def test_a_view_keeps_its_source_allocated() -> None:
    graph = Graph()
    base = graph.add_node(Op.MUL_MAT, UNIT, graph.add_input(UNIT))
    view = graph.add_view(Op.VIEW, base)
    other = graph.add_node(Op.MUL_MAT, UNIT, base)
    graph.add_node(Op.MUL_MAT, UNIT, other, view)
    assert units(graph) == {HOST: 3}


def test_an_unread_view_keeps_its_source_allocated_to_the_end() -> None:
    graph = Graph()
    base = graph.add_node(Op.MUL_MAT, UNIT, graph.add_input(UNIT))
    tensor = base
    if graph.add_view(Op.VIEW, base):
        for _ in range(3):
            tensor = graph.add_node(Op.MUL_MAT, UNIT, tensor)
    assert units(graph) == {HOST: 3}


def test_weights_and_caches_are_not_counted() -> None:
    graph = Graph()
    cache = graph.add_external(TWO)
    graph.add_view(Op.SET_ROWS, cache, graph.add_node(Op.MUL_MAT, UNIT, graph.add_external(TWO), graph.add_input(UNIT)))
    assert units(graph) == {HOST: 2}


def test_the_smallest_sufficient_hole_is_used() -> None:
    sizes = [Size(fixed=ALIGNMENT * count) for count in (4, 1, 2, 1, 3, 1, 2)]
    # Holes of 4, 2 and 3 between what stays; then 2 goes into the hole of 2.
    buffer = BufferEvents()
    for size in sizes[:6]:
        buffer.allocate(size)
    buffer.events += [~0, ~2, ~4]
    buffer.allocate(sizes[6])
    places, total = place_tensors(buffer, ONE)
    assert places[6] == places[2] == (0, 5 * ALIGNMENT)
    assert total == 12 * ALIGNMENT


def test_a_backend_with_a_size_limit_gets_several_buffers() -> None:
    buffer = BufferEvents()
    for count in (3, 3, 9):
        buffer.allocate(Size(fixed=ALIGNMENT * count))
    places, total = place_tensors(buffer, ONE, 5 * ALIGNMENT)
    assert [chunk for chunk, _ in places] == [0, 1, 2]
    assert total == 15 * ALIGNMENT


def test_inputs_of_another_device_are_copied_once_while_needed() -> None:
    graph = Graph()
    source = graph.add_input(TWO)
    graph.place = DEVICE
    first = graph.add_node(Op.MUL_MAT, UNIT, source)
    graph.add_node(Op.MUL_MAT, UNIT, graph.add_node(Op.MUL_MAT, UNIT, first), source)
    assert units(graph) == {HOST: 2, DEVICE: 4}


def test_copies_of_weights_reuse_memory() -> None:
    graph = Graph()
    tensor = graph.add_input(UNIT)
    graph.place = DEVICE
    for _ in range(3):
        tensor = graph.add_node(Op.MUL_MAT_ID, UNIT, graph.add_external(TWO, HOST), tensor)
    assert units(graph)[DEVICE] == 4  # one weight, what it is multiplied with, and the result
    graph = Graph()
    tensor = graph.add_input(UNIT)
    graph.place = DEVICE
    weights = [graph.add_external(TWO, HOST) for _ in range(3)]
    graph.add_node(Op.MUL_MAT_ID, UNIT, *weights, tensor)
    assert units(graph)[DEVICE] == 8


def test_several_devices_hold_four_copies_of_every_input() -> None:
    graph = Graph()
    source = graph.add_input(UNIT)
    graph.place = 1
    between = graph.add_node(Op.MUL_MAT, UNIT, source)
    graph.place = 2
    graph.add_node(Op.MUL_MAT, UNIT, between)
    assert units(graph, pipelined=True) == {HOST: 4, 1: 5, 2: 5}


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Any graph on the host and a device, of what a builder can put together."""
    graph = Graph()
    tensors = [graph.add_input(Size(fixed=draw(st.integers(1, 2_000)))) for _ in range(draw(st.integers(1, 3)))]
    outside = [graph.add_external(Size(fixed=500), draw(st.sampled_from((HOST, DEVICE)))) for _ in range(2)]
    for _ in range(draw(st.integers(1, 40))):
        sources = draw(st.lists(st.sampled_from(tensors + outside), min_size=1, max_size=3))
        graph.place = draw(st.sampled_from((HOST, DEVICE, DEVICE)))
        if draw(st.integers(0, 3)) == 0 and graph.places[graph.bases[sources[0]]] == graph.place:
            tensors.append(graph.add_view(draw(st.sampled_from((Op.VIEW, Op.SET_ROWS))), *sources))
        elif draw(st.booleans()):
            tensors.append(graph.add_alike(draw(st.sampled_from((Op.ADD, Op.MUL, Op.RMS_NORM, Op.UNARY))), *sources))
        else:
            tensors.append(graph.add_node(Op.MUL_MAT, Size(fixed=draw(st.integers(1, 2_000))), *sources))
    graph.add_node(Op.OTHER, UNIT, tensors[-1])
    return graph


@given(
    graph=graphs(), optimise=st.sampled_from((None, optimise_for_vulkan, optimise_for_cuda)), pipelined=st.booleans()
)
@pytest.mark.thorough
def test_live_tensors_never_overlap(graph: Graph, optimise: Optimise | None, pipelined: bool) -> None:
    order = schedule_graph(graph, optimise, pipelined=pipelined)
    for buffer in record_events(graph, order).values():
        places, total = place_tensors(buffer, ONE)
        kinds = list(buffer.kinds)
        sizes = [kinds[kind].fixed for kind in buffer.sizes]
        living: set[int] = set()
        most = 0
        for event in buffer.events:
            if event < 0:
                living.remove(~event)
                continue
            living.add(event)
            spans = sorted((places[one][1], places[one][1] + sizes[one]) for one in living)
            assert all(end <= start for (_, end), (start, _) in pairwise(spans))
            assert all(start % ALIGNMENT == 0 for start, _ in spans)
            most = max(most, sum(sizes[one] for one in living))
        assert most <= total <= sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)
        assert buffer_bytes(buffer, ONE) == total
        assert all(
            buffer_bytes(buffer, ONE, limit) == place_tensors(buffer, ONE, limit)[1]
            for limit in (512, total, total + 1)
        )


@given(graph=graphs(), pipelined=st.booleans())
def test_inputs_are_allocated_first(graph: Graph, pipelined: bool) -> None:
    order = schedule_graph(graph, pipelined=pipelined)
    for place, buffer in record_events(graph, order).items():
        count = sum(graph.places[tensor] == place for tensor in order.inputs)
        assert buffer.events[:count] == list(range(count))
        if pipelined:
            assert all(~number not in buffer.events for number in range(count))


@pytest.mark.parametrize("geometry", [MOE, DENSE, PLAIN])
@pytest.mark.parametrize("optimise", [optimise_for_vulkan, optimise_for_cuda])
@pytest.mark.parametrize("shape", [Shape(snapshots=3), Shape(snapshots=1, rotated=True, scratch=True)])
def test_a_reordered_graph_has_the_same_dependencies(geometry: Geometry, optimise: Optimise, shape: Shape) -> None:
    for build in (trunk_graph, head_graph) if geometry.mtp_layers else (trunk_graph,):
        graph = build(geometry, shape, DEVICE)
        nodes = [node for node in graph.nodes if graph.places[node] == DEVICE]
        order, needed = optimise(graph, nodes)
        assert sorted(order) == sorted(nodes)
        when = {node: number for number, node in enumerate(order)}
        for node in order:
            assert all(when[source] < when[node] for source in graph.sources[node] if source in when)
        # What writes into a cache or reads it does so in the order of before.
        for base in {graph.bases[node] for node in nodes} & graph.outside:
            users = [node for node in nodes if graph.ops[node] not in EMPTY and graph.bases[node] == base]
            assert sorted(users, key=when.__getitem__) == users
        assert all(until in when for until in needed)


@pytest.mark.thorough
def test_the_fast_computation_of_a_buffer_size_is_exact() -> None:
    geometries = {entry.geometry for entry in shipped_models() if entry.geometry}
    for geometry, (optimise, chunk) in product(geometries, ((optimise_for_cuda, None), (optimise_for_vulkan, 1 << 30))):
        for shape in (Shape(snapshots=3), Shape(rotated=True, scratch=chunk is None, cpu_expert_layers=3)):
            graph = trunk_graph(geometry, shape, DEVICE)
            for buffer in record_events(graph, schedule_graph(graph, optimise)).values():
                for cells, tokens in ((4_096, 32), (40_960, 512), (131_072, 512), (262_144, 2_048)):
                    window = min(cells, 1_024 + tokens)
                    each = Size(1, tokens, 3, 1, cells * tokens, cells, window * tokens, window, 3_000, 2_000, 1_000)
                    assert buffer_bytes(buffer, each, chunk) == place_tensors(buffer, each, chunk)[1]


@pytest.mark.parametrize("used", [2, 3, 8])
def test_cuda_keeps_what_a_weighted_sum_of_experts_reads_until_its_last_addition(used: int) -> None:
    graph = Graph()
    graph.place = DEVICE
    experts = graph.add_node(Op.MUL_MAT_ID, TWO, graph.add_input(UNIT))
    weights = graph.add_node(Op.MUL_MAT, UNIT, graph.add_input(UNIT))
    weighted = graph.add_alike(Op.MUL, experts, weights)
    parts = [graph.add_view(Op.VIEW, weighted) for _ in range(used)]
    total = parts[0]
    for part in parts[1:]:
        total = graph.add_node(Op.ADD, UNIT, total, part)
    graph.add_node(Op.ADD, UNIT, total, graph.add_input(UNIT))  # of a shared expert, say
    assert optimise_for_cuda(graph, graph.nodes)[1] == {total: [experts, weights]}


def test_vulkan_reorders_and_cuda_does_not() -> None:
    graph = trunk_graph(MOE, Shape(snapshots=3), DEVICE)
    nodes = [node for node in graph.nodes if graph.places[node] == DEVICE]
    assert optimise_for_vulkan(graph, nodes)[0] != nodes
    assert optimise_for_cuda(graph, nodes)[0] == nodes
    assert all(optimise(graph, nodes)[1] for optimise in (optimise_for_vulkan, optimise_for_cuda))
