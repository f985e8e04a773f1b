"""What llama.cpp's CUDA backend keeps alive longer, because it computes several nodes in one kernel.

Read from ggml_backend_cuda_graph_optimize in ggml/src/ggml-cuda/ggml-cuda.cu (b11434), which HIP (ROCm) shares.
Left out: the kernel for routed and shared experts of one quantised type, as in files of Q8_0 throughout. Of 200 random
settings of such a file it changes ten, the head's buffer with two slots, by a third of it.
"""

from launcher.models.tensors import Graph, Op

_TOP_EXPERTS = (Op.SOFT_MAX, Op.RESHAPE, Op.ARGSORT, Op.VIEW, Op.GET_ROWS)
_NORMED = (Op.RESHAPE, Op.SUM_ROWS, Op.CLAMP, Op.DIV, Op.RESHAPE)


def optimise(graph: Graph, nodes: list[int]) -> tuple[list[int], dict[int, list[int]]]:
    """Return `nodes`, and for the last node of a kernel what must still be there after it."""
    needed: dict[int, list[int]] = {}
    ops = [graph.ops[node] for node in nodes]
    for i, op in enumerate(ops):
        if op is Op.MUL and ops[i + 1 : i + 2] == [Op.VIEW]:
            _weighted_sum(graph, nodes, ops, i, needed)
        elif op is Op.SOFT_MAX and tuple(ops[i : i + 5]) == _TOP_EXPERTS:
            normed = tuple(ops[i + 5 : i + 10]) == _NORMED
            last = i + 5 + 5 * normed  # the node after the run: so the source says
            sources = [one for node in nodes[i:last] for one in (node, *graph.sources[node])]
            needed.setdefault(nodes[last], []).extend(dict.fromkeys(sources))
    return nodes, needed


def _weighted_sum(graph: Graph, nodes: list[int], ops: list[Op], i: int, needed: dict[int, list[int]]) -> None:
    """Experts times weights, summed: both operands must be there until the last sum."""
    views = adds = 0
    k = i + 1
    while k < len(ops) and ops[k] is Op.VIEW and graph.sources[nodes[k]] == (nodes[i],):
        views, k = views + 1, k + 1
    while k < len(ops) and ops[k] is Op.ADD and adds < views - 1:
        adds, k = adds + 1, k + 1
    if views > 1 and adds == views - 1:
        needed.setdefault(nodes[k - 1], []).extend(graph.sources[nodes[i]])
