"""Chooses what the forward program keeps for the backward, and what is computed again, by a minimum cut.

The backward needs values that depend on the program's inputs alone. For each the compiler has three choices:

    kept          the forward stores it; costs the time to write and read its bytes
    recomputed    the backward computes it again; costs that time, and its arguments are needed in turn
    not needed

The cheapest choice for all values at once is a minimum cut. Each value v gets two nodes: `needed` and
`recomputed`, which are on the source's side where the answer is yes.

    source    -> needed v       unlimited     the backward reads v
    needed v  -> recomputed v   keep(v)       cut where v is needed and not recomputed: it is kept
    recomputed v -> sink        compute(v)    cut where v is recomputed
    recomputed v -> needed a    unlimited     for each argument a of v

The program's arguments and constants are free: they are there anyway. So are its results, which the caller
holds. A view (reshape, transpose, slice, broadcast) costs nothing to make again, so not the view is kept, but
its base.

Some values depend on the inputs alone and yet only the backward needs them, such as the derivative of tanh.
They have to be computed once, on either side; in the forward they can replace what they were computed from.
So in the backward they cost nothing, unless the forward computes something kept from them as well:

    recomputed a -> recomputed v   compute(a)    where the forward does not need a, an argument of v

The cost of keeping is bytes times NS_PER_BYTE; of equal choices the one that keeps less is taken. At a
higher rate less is kept, until even matrix products are computed again. Chen et al. 2016, "Training deep nets
with sublinear memory cost", is the aim; the cut is that of PyTorch AOTAutograd ("min-cut
rematerialization"), with recomputation priced and values of the backward moved forward.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..graph import Graph, Node, dependent, reachable, with_args
from ..ops import build, cost, input_node
from ..ops.boxes import alone, ranges
from ..ops.table import root
from ..passes.engine import renumber
from ..passes.match import calls_back
from .maxflow import UNLIMITED, Network
from .pairs import paired

PRECISION = 1000  # the network counts in thousandths of a nanosecond


def partition(
    joint: Graph,
    n_inputs: int,
    n_outputs: int,
    rate: float = cost.NS_PER_BYTE,
    ample: int = 0,
    tidy: Callable[[Graph], Graph] = lambda graph: graph,
) -> tuple[Graph, Graph, tuple[Node, ...]]:
    """Split a graph of results and gradients into a forward and a backward program.

    joint      result of vjp_graph: inputs (the primal ones, cotangents), outputs (the primal ones, gradients)
    n_inputs   how many inputs are primal;  n_outputs   how many outputs are
    rate       nanoseconds for keeping a byte
    ample      bytes that may be kept at the low rate NS_PER_CACHED_BYTE: if the choice at that rate keeps no
               more, it is taken, whatever `rate` says
    tidy       simplifies the bodies of repeated calls (pairs.py), which are cut at the same rate

    Returns (fwd, bwd, saved). saved: the nodes of `joint` that are kept; fwd's outputs are the primal outputs
    and then saved, bwd's inputs are saved and then the cotangents.
    """

    def at(price: float) -> tuple[_Problem, set[int]]:
        cut = partial(partition, rate=price)
        problem = _Problem(paired(joint, cut, tidy), n_inputs, n_outputs)
        return problem, problem.solve(price)

    problem, kept = at(rate)
    if ample and problem.kept_bytes(kept) <= ample:  # at a lower rate as much is kept, or more
        other, more = at(min(rate, cost.NS_PER_CACHED_BYTE))
        if other.kept_bytes(more) <= ample:
            problem, kept = other, more
    return problem.split(kept)


def _depends_on_rounding(n: Node, free: set[int]) -> bool:
    """Whether n is a comparison that another rounding could reverse, such as that a maximum equals an
    argument, or that no element is greater than the largest.

    A recomputed value may be simplified differently, or read a copy with other strides, which NumPy rounds
    differently, so such a comparison is kept at any rate.
    """
    if n.op not in _COMPARISONS or not any(a.dtype.kind in "fc" for a in n.args):
        return False
    if n.op in ("equal", "not_equal"):
        return True
    a, b = map(root, n.args)
    computed = {r.id for r in (a, b)} - free
    return bool(computed) and (a.id in _ancestors([b]) or b.id in _ancestors([a]))


_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")


class _Problem:
    def __init__(self, joint: Graph, n_inputs: int, n_outputs: int):
        self.joint = joint
        self.n_inputs = n_inputs
        self.n_outputs = n_outputs
        self.results = joint.outputs[:n_outputs]
        cotangents = joint.inputs[n_inputs:]
        # ids of nodes that only the backward can compute
        self.backward = {n.id for n in dependent(joint.nodes, cotangents)}
        self.primal = _ancestors(self.results)  # ids of what the forward computes for its own results
        self.free = {n.id for n in joint.inputs} | {n.id for n in joint.nodes if n.op == "const"}
        self.handed_out = {root(o).id for o in self.results}
        self.wholes = self._wholes()
        self.seeds = self._seeds()
        self.values = self._values()
        self.rounding_dependent = {n.id for n in self.values if _depends_on_rounding(n, self.free)}

    def _read(self) -> list[Node]:
        """The values that the backward reads directly or through views."""
        reads = [a for n in self.joint.nodes if n.id in self.backward for a in n.args]
        reads += self.joint.outputs[self.n_outputs :]
        return [r for r in {r.id: r for r in map(root, reads)}.values() if r.id not in self.backward]

    def _wholes(self) -> dict[int, tuple[Node, tuple]]:
        """Id of a part of an assembled array -> that array, and the part's index.

        Only of arrays that the backward reads or that are results: then the part need not be kept too.
        """
        wholes = {}
        read = {r.id for r in self._read()} | self.handed_out
        for n in self.joint.nodes:
            if n.op == "assemble" and n.id in read and n.id in self.primal:
                boxes = [ranges(i, n.shape) for i in n.attrs["indices"]]
                for k, (p, apart) in enumerate(zip(n.args, alone(boxes, n.shape))):
                    if apart and p.shape == tuple(map(len, boxes[k])):
                        wholes[p.id] = (n, n.attrs["indices"][k])
        return wholes

    def _seeds(self) -> list[Node]:
        """The values that the backward reads and that the forward can keep."""
        read = [self.wholes[r.id][0] if r.id in self.wholes else r for r in self._read()]
        return [r for r in {r.id: r for r in read}.values() if r.id not in self.free]

    def _values(self) -> list[Node]:
        """The seeds and all that they are computed from, views and free values left out, in order."""
        needed = {r.id for r in self.seeds}
        values = []
        for n in reversed(self.joint.nodes):
            if n.id in needed:
                values.append(n)
                needed.update(a.id for a in self._arguments(n))
        return values[::-1]

    def _arguments(self, n: Node) -> list[Node]:
        """The values of the network that this one is computed from."""
        roots = [root(a) for a in n.args]
        return [r for r in roots if r.id not in self.free]

    def solve(self, rate: float) -> set[int]:
        """The ids of the values to keep, if a byte costs `rate` nanoseconds."""
        number = {n.id: i for i, n in enumerate(self.values)}
        source, sink = 2 * len(self.values), 2 * len(self.values) + 1
        net = Network(sink + 1)
        for n in self.seeds:
            net.edge(source, 2 * number[n.id], UNLIMITED)
        for i, n in enumerate(self.values):
            needed, again = 2 * i, 2 * i + 1
            net.edge(needed, again, self._keep(n, rate))
            if n.id in self.rounding_dependent:
                net.edge(again, sink, UNLIMITED)
            elif n.id in self.primal:
                net.edge(again, sink, _time(n))
            for a in self._arguments(n):
                k = number[a.id]
                net.edge(again, 2 * k, UNLIMITED)
                if a.id not in self.primal:
                    net.edge(2 * k + 1, again, _time(a))
        side = net.cut(source, sink)
        return {n.id for i, n in enumerate(self.values) if 2 * i in side and 2 * i + 1 not in side}

    def _keep(self, n: Node, rate: float) -> int:
        if n.id in self.handed_out:
            return 0
        if isinstance(n.dtype, tuple):
            return UNLIMITED  # of several results the items are kept
        return min(round(PRECISION * rate * cost.nbytes(n)) + 1, UNLIMITED)

    def kept_bytes(self, kept: set[int]) -> int:
        return sum(cost.nbytes(n) for n in self.values if n.id in kept and n.id not in self.handed_out)

    def split(self, kept: set[int]) -> tuple[Graph, Graph, tuple[Node, ...]]:
        joint = self.joint
        cotangents = joint.inputs[self.n_inputs :]
        wholes = {i: whole for i, whole in self.wholes.items() if whole[0].id in kept}
        saved = _Handover(kept | {n.id for n in joint.inputs[: self.n_inputs]}, wholes)
        for c in cotangents:
            saved.image[c.id] = c
        for n in joint.nodes:  # the backward's order; what is recomputed comes just before its first use
            if n.id in self.backward:
                saved.make(n)
        gradients = [saved.make(o) for o in joint.outputs[self.n_outputs :]]
        by_id = {n.id: n for n in joint.nodes}
        handed = [by_id[i] for i in sorted(saved.inputs)]
        bwd = Graph((*(saved.inputs[n.id] for n in handed), *cotangents), gradients, joint.name + "_bwd")
        fwd = Graph(joint.inputs[: self.n_inputs], (*self.results, *handed), joint.name + "_fwd")
        return renumber(fwd, self._forward_order(fwd)), bwd, tuple(handed)

    def _forward_order(self, fwd: Graph) -> list[Node]:
        """The program's order, in which values for the backward alone come as soon as they can be computed.

        The joint program has them after all results, until when their arguments would have to be stored.
        """
        results = [n for n in fwd.nodes if n.id in self.primal or n.op == "input"]
        position = {n.id: k for k, n in enumerate(results)}
        due: dict[int, list[Node]] = {}  # position of the last of those values that it needs -> value to make
        last: dict[int, int] = {}
        for n in fwd.nodes:
            at = position.get(n.id)
            last[n.id] = max([last[a.id] for a in n.args], default=-1) if at is None else at
        for n in fwd.outputs[self.n_outputs :]:
            if n.id not in position:
                due.setdefault(last[n.id], []).append(n)
        order: list[Node] = []
        done: set[int] = set()
        for k, n in enumerate([None, *results]):
            for wanted in ([] if n is None else [n], due.get(k - 1, [])):
                for w in wanted:
                    _emit(w, done, order)
        return order


def _emit(n: Node, done: set[int], order: list[Node]) -> None:
    """Append `n` after its ancestors, those that are not in the order yet."""
    stack = [n]
    while stack:
        n = stack[-1]
        missing = [a for a in n.args if a.id not in done]
        if n.id in done or not missing:
            stack.pop()
            if n.id not in done:
                done.add(n.id)
                order.append(n)
        else:
            stack.extend(reversed(missing))


class _Handover:
    """Builds the backward: copies nodes of the joint graph, with inputs for the kept values."""

    def __init__(self, kept: set[int], wholes: dict[int, tuple[Node, tuple]]):
        self.kept = kept
        self.wholes = wholes
        self.inputs: dict[int, Node] = {}  # id of the kept node -> the backward's input
        self.image: dict[int, Node] = {}

    def make(self, n: Node) -> Node:
        stack = [n]
        while stack:
            n = stack[-1]
            if n.id in self.image:
                stack.pop()
            elif n.id in self.kept:
                self.image[n.id] = self.inputs[n.id] = input_node(n.shape, n.dtype, n.name)
                stack.pop()
            elif n.op == "const":
                self.image[n.id] = n
                stack.pop()
            elif n.id in self.wholes:
                whole, index = self.wholes[n.id]
                if whole.id in self.image:
                    self.image[n.id] = build.slice_(self.image[whole.id], index)
                else:
                    stack.append(whole)
            else:
                missing = [a for a in n.args if a.id not in self.image]
                if missing:
                    stack.extend(reversed(missing))
                    continue
                args = tuple([self.image[a.id] for a in n.args])
                self.image[n.id] = with_args(n, args)
                stack.pop()
        return self.image[n.id]


def _time(n: Node) -> int:
    return UNLIMITED if calls_back(n) else round(PRECISION * cost.nanoseconds(n))


def _ancestors(nodes) -> set[int]:
    return {n.id for n in reachable(nodes)}
