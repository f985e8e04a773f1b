"""How ggml's scheduler cuts a graph into splits, one device after another, and what it copies between them.

Read from llama.cpp's ggml/src/ggml-backend.cpp (b11434). Each node's place is known; a split ends where the place
changes, and before a node that needs a weight of another place, so that the copies of weights follow one another.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from launcher.models.tensors import EMPTY, HOST, Graph

_PIPELINE_COPIES = 4
"""Copies of every input that a scheduler holds when several devices work at once (GGML_SCHED_MAX_COPIES)."""

Optimise = Callable[[Graph, list[int]], tuple[list[int], dict[int, list[int]]]]
"""What a backend makes of a split's nodes: their order, and which tensors must still be there after which of them."""


@dataclass(slots=True)
class Schedule:
    """`inputs` have memory from the start, `kept` among them to the end; a step has a result, if any, and sources."""

    inputs: list[int]
    kept: set[int] = field(default_factory=set)
    steps: list[tuple[int | None, tuple[int, ...]]] = field(default_factory=list)


@dataclass(slots=True)
class _Split:
    place: int
    nodes: list[int] = field(default_factory=list)
    copied: list[int] = field(default_factory=list)


def schedule(graph: Graph, optimise: Optimise | None = None, *, pipelined: bool = False) -> Schedule:
    """Return the order in which tensors of `graph` are allocated; the copies between places become part of the graph.

    `pipelined` when several devices work on successive batches at once.
    """
    copies: dict[tuple[int, int], int] = {}
    splits = _splits(graph, copies)
    result = Schedule([])
    if pipelined:
        for tensor in graph.inputs:
            result.inputs += [tensor, *_more(graph, tensor, HOST)]
        for split in splits:
            for tensor in split.copied:
                result.inputs += [copies[tensor, split.place], *_more(graph, tensor, split.place)]
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


def _splits(graph: Graph, copies: dict[tuple[int, int], int]) -> list[_Split]:
    """Cut the graph, and let each node read the copy of what lies elsewhere."""
    first = next(node for node in graph.nodes if graph.ops[node] not in EMPTY)
    splits = [_Split(graph.places[first])]
    for node in graph.nodes:
        split = splits[-1]
        if graph.ops[node] not in EMPTY:
            place = graph.places[node]
            foreign = [one for one in graph.sources[node] if graph.places[one] != place]
            if place != split.place or (split.copied and any(one in graph.outside for one in foreign)):
                split = _Split(place)
                splits.append(split)
            for tensor in foreign:
                if (tensor, place) not in copies:
                    copies[tensor, place] = graph.copy(tensor, place)
                    split.copied.append(tensor)
            if foreign:
                graph.sources[node] = tuple(
                    copies[one, place] if graph.places[one] != place else one for one in graph.sources[node]
                )
        split.nodes.append(node)
    return splits


def _more(graph: Graph, tensor: int, place: int) -> list[int]:
    return [graph.copy(tensor, place) for _ in range(_PIPELINE_COPIES - 1)]
