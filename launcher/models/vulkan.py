"""The order in which llama.cpp's Vulkan backend computes a graph, which decides how long its tensors live.

Read from ggml_vk_graph_optimize in ggml/src/ggml-vulkan/ggml-vulkan.cpp (b11434): nodes that do not wait for each other
move together, runs that one shader computes stay together. Of its patterns those are here that our graphs have.
"""

from launcher.models.tensors import EMPTY, Graph, Op

_WINDOW = 20
"""How far ahead of the first waiting node others are taken from."""
_REACH = 15
"""How far ahead of a taken node the rest of its run is looked for."""
_CHOICE = (Op.SOFT_MAX, Op.RESHAPE, Op.ARGSORT, Op.VIEW, Op.GET_ROWS)
_TOP_EXPERTS = (
    (*_CHOICE, Op.RESHAPE, Op.SUM_ROWS, Op.CLAMP, Op.DIV, Op.RESHAPE),
    _CHOICE,
    (Op.ARGSORT, Op.VIEW, Op.GET_ROWS, Op.RESHAPE, Op.SOFT_MAX, Op.RESHAPE),
)
_RUNS = (
    *_TOP_EXPERTS,
    (Op.RMS_NORM, Op.MUL, Op.ADD, Op.MUL),
    (Op.RMS_NORM, Op.MUL, Op.ADD),
    (Op.RMS_NORM, Op.MUL, Op.ROPE, Op.VIEW, Op.SET_ROWS),
    (Op.RMS_NORM, Op.VIEW, Op.SET_ROWS),
    (Op.ROPE, Op.VIEW, Op.SET_ROWS),
)
_FIRST = frozenset(run[0] for run in _RUNS)
_FOLLOWS = {(Op.RMS_NORM, Op.MUL), (Op.UNARY, Op.MUL)}
_FOLLOWS_AT_ONCE = {(Op.MUL_MAT, Op.ADD), (Op.MUL_MAT_ID, Op.MUL), (Op.ADD, Op.ADD), (Op.SSM_CONV, Op.UNARY)}
"""Pairs that one shader computes, so that the second may be taken although it waits for the first."""


def optimise(graph: Graph, nodes: list[int]) -> tuple[list[int], dict[int, list[int]]]:
    """Return `nodes` in the backend's order, and for the last node of a run what must still be there after it."""
    return _Order(graph, nodes).run()


class _Order:
    def __init__(self, graph: Graph, nodes: list[int]) -> None:
        self.graph, self.nodes = graph, nodes
        self.ops = [graph.ops[node] for node in nodes]
        self.index = {node: i for i, node in enumerate(nodes)}
        self.starts = {i: runs for i in range(len(nodes)) if (runs := self._runs_from(i))}
        self.waits = self._waits()
        self.used = 0  # a bit for each node, here and in `waits`
        self.order: list[int] = []
        self.done = 0
        self.needed: dict[int, list[int]] = {}

    def _waits(self) -> list[int]:
        """For each node the earlier ones that it may not overtake."""
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

    def run(self) -> tuple[list[int], dict[int, list[int]]]:
        first = 0
        while first < len(self.nodes):
            if self.used >> first & 1:
                first += 1
                continue
            run = self._run_at(first)
            if run:
                taken = list(range(first, first + len(run)))
                if run in _TOP_EXPERTS:
                    self._need(taken)
            else:
                taken = self._taken(first)
            for i in taken:
                self.order.append(self.nodes[i])
                self.done |= 1 << i
            self.used |= self.done
        return self.order, self.needed

    def _runs_from(self, i: int) -> list[tuple[Op, ...]]:
        if self.ops[i] not in _FIRST:
            return []
        return [run for run in _RUNS if tuple(self.ops[i : i + len(run)]) == run]

    def _run_at(self, i: int) -> tuple[Op, ...] | None:
        """The run that starts with node `i`, if none of its nodes was taken out."""
        for run in self.starts.get(i, ()):
            if not self.used >> i & ((1 << len(run)) - 1):
                return run
        return None

    def _need(self, run: list[int]) -> None:
        """What a run reads from outside must live as long as the run."""
        last = run[-1] + (self.ops[run[-1] + 1 : run[-1] + 2] == [Op.SCALE])
        members = {self.nodes[i] for i in run}
        sources = dict.fromkeys(s for i in run for s in self.graph.sources[self.nodes[i]])
        self.needed[self.nodes[last]] = [source for source in sources if source not in members]

    def _taken(self, first: int) -> list[int]:
        """The node at `first`, those that may be computed with it, and at last the views that wait for none other."""
        taken = [first]
        end = min(first + _WINDOW, len(self.nodes))
        for i in range(first + 1, end):
            if self.used >> i & 1 or self.ops[i] in EMPTY or self._run_at(i):
                continue
            if self._may_follow(taken[-1], i):
                taken.append(i)
                self._complete(taken, i)
        if self.ops[taken[-1]] is not Op.ADD:
            members = sum(1 << i for i in taken)
            for i in range(first + 1, end):
                if not self.used >> i & 1 and self.ops[i] in EMPTY and not self.waits[i] & ~self.used & ~members:
                    taken.append(i)
                    members |= 1 << i
        return taken

    def _may_follow(self, before: int, i: int) -> bool:
        """Whether all that node `i` waits for is done, or it waits for `before` alone and one shader computes both."""
        waiting = self.waits[i] & ~self.used
        if not waiting:
            return True
        pair = self.ops[before], self.ops[i]
        if waiting != 1 << before or before > i:
            return False
        if pair in _FOLLOWS:
            return all(self.used >> k & 1 or self.ops[k] in EMPTY for k in range(before + 1, i))
        return pair in _FOLLOWS_AT_ONCE and i == before + 1

    def _complete(self, taken: list[int], i: int) -> None:
        """Take with node `i` what completes its run further on."""
        op, before = self.ops[i], self.ops[i - 1]
        turned = self._next(i, Op.ROPE) if (before, op) == (Op.RMS_NORM, Op.MUL) else None
        self._take(taken, turned)
        stored = i if turned is None else turned
        if self.ops[stored] in (Op.ROPE, Op.RMS_NORM):
            self._take(taken, *self._store(stored))
        if (before, op) == (Op.MUL_MAT, Op.ADD):
            self._take(taken, self._next(i, Op.ADD, first=True))
        if op is Op.UNARY:
            self._take(taken, self._next(i, Op.MUL))

    def _take(self, taken: list[int], *nodes: int | None) -> None:
        for i in nodes:
            if i is not None:
                taken.append(i)
                self.used |= 1 << i

    def _next(self, i: int, op: Op, *, first: bool = False) -> int | None:
        """The next `op` that reads node `i`, as its first operand if `first`, and for the rest reads what is there."""
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

    def _store(self, i: int) -> tuple[int, ...]:
        """The view and the write into a cache that alone read node `i`, unless the write has to wait."""
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
