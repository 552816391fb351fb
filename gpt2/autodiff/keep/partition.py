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

from ..graph import Graph, Node, dependent, postorder, reachable, with_args
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

    def at(price: float) -> tuple[_Problem, set[Node]]:
        cut = partial(partition, rate=price)
        problem = _Problem(paired(joint, cut, tidy), n_inputs, n_outputs)
        return problem, problem.solve(price)

    problem, kept = at(rate)
    if ample and problem.kept_bytes(kept) <= ample:  # at a lower rate as much is kept, or more
        other, more = at(min(rate, cost.NS_PER_CACHED_BYTE))
        if other.kept_bytes(more) <= ample:
            problem, kept = other, more
    return problem.split(kept)


class _Problem:
    """The values of a joint program, and what keeping and recomputing each would cost.

    backward   what only the backward can compute
    primal     what the forward computes for its own results
    free       what is there anyway: inputs and constants
    wholes     part of an assembled array -> that array and the part's index, where the backward reads the
               array or it is a result: then the part need not be kept too
    seeds      what the backward reads, directly or through views, and the forward can keep
    values     those and all that they are computed from, views and free values left out, in order
    """

    def __init__(self, joint: Graph, n_inputs: int, n_outputs: int):
        self.joint = joint
        self.n_inputs = n_inputs
        self.n_outputs = n_outputs
        self.results = joint.outputs[:n_outputs]
        self.backward = dependent(joint.nodes, joint.inputs[n_inputs:])
        self.primal = set(reachable(self.results))
        self.free = {*joint.inputs, *(n for n in joint.nodes if n.op == "const")}
        self.handed_out = set(map(root, self.results))
        reads = [a for n in joint.nodes if n in self.backward for a in n.args]
        roots = dict.fromkeys(map(root, (*reads, *joint.outputs[n_outputs:])))
        read = [r for r in roots if r not in self.backward]
        self.wholes: dict[Node, tuple[Node, tuple]] = {}
        for n in joint.nodes:
            if n.op == "assemble" and n in self.primal and (n in self.handed_out or n in roots):
                boxes = [ranges(i, n.shape) for i in n.attrs["indices"]]
                for k, (p, apart) in enumerate(zip(n.args, alone(boxes, n.shape))):
                    if apart and p.shape == tuple(map(len, boxes[k])):
                        self.wholes[p] = (n, n.attrs["indices"][k])
        read = [self.wholes[r][0] if r in self.wholes else r for r in read]
        self.seeds = [r for r in dict.fromkeys(read) if r not in self.free]
        needed = set(self.seeds)
        for n in reversed(joint.nodes):
            if n in needed:
                needed.update(self._arguments(n))
        self.values = [n for n in joint.nodes if n in needed]

    def _arguments(self, n: Node) -> list[Node]:
        """The values of the network that this one is computed from."""
        return [r for r in map(root, n.args) if r not in self.free]

    def solve(self, rate: float) -> set[Node]:
        """The values to keep, if a byte costs `rate` nanoseconds."""
        number = {n: i for i, n in enumerate(self.values)}
        source, sink = 2 * len(self.values), 2 * len(self.values) + 1
        net = Network(sink + 1)
        for n in self.seeds:
            net.edge(source, 2 * number[n], UNLIMITED)
        for n, i in number.items():
            needed, again = 2 * i, 2 * i + 1
            net.edge(needed, again, self._keep(n, rate))
            if self._depends_on_rounding(n):
                net.edge(again, sink, UNLIMITED)
            elif n in self.primal:
                net.edge(again, sink, _time(n))
            for a in self._arguments(n):
                net.edge(again, 2 * number[a], UNLIMITED)
                if a not in self.primal:
                    net.edge(2 * number[a] + 1, again, _time(a))
        side = net.cut(source, sink)
        return {n for n, i in number.items() if 2 * i in side and 2 * i + 1 not in side}

    def _keep(self, n: Node, rate: float) -> int:
        if n in self.handed_out:
            return 0
        if isinstance(n.dtype, tuple):
            return UNLIMITED  # of several results the items are kept
        return min(round(PRECISION * rate * n.nbytes) + 1, UNLIMITED)

    def _depends_on_rounding(self, n: Node) -> bool:
        """Whether n is a comparison that another rounding could reverse, such as that a maximum equals an
        argument, or that no element is greater than the largest.

        A recomputed value may be simplified differently, or read a copy with other strides, which NumPy
        rounds differently, so such a comparison is kept at any rate.
        """
        if n.op not in _COMPARISONS or not any(a.dtype.kind in "fc" for a in n.args):
            return False
        if n.op in ("equal", "not_equal"):
            return True
        a, b = map(root, n.args)
        return not {a, b} <= self.free and (a in reachable([b]) or b in reachable([a]))

    def kept_bytes(self, kept: set[Node]) -> int:
        return sum(n.nbytes for n in kept - self.handed_out)

    def split(self, kept: set[Node]) -> tuple[Graph, Graph, tuple[Node, ...]]:
        """Forward and backward, and what is handed from one to the other."""
        joint, cotangents = self.joint, self.joint.inputs[self.n_inputs :]
        there = kept.union(joint.inputs[: self.n_inputs])
        wholes = {part: whole for part, whole in self.wholes.items() if whole[0] in kept}
        image = dict(zip(cotangents, cotangents))  # the backward's nodes
        handed: dict[Node, Node] = {}  # kept node -> the backward's input

        def read(n: Node) -> tuple[Node, ...]:
            if n in there:
                return ()
            return wholes[n][:1] if n in wholes else n.args

        def copied(n: Node) -> Node:
            if n in there:
                handed[n] = input_node(n.shape, n.dtype, n.name)
                return handed[n]
            if n.op == "const":
                return n
            if n in wholes:
                whole, index = wholes[n]
                return build.slice_(image[whole], index)
            return with_args(n, tuple([image[a] for a in n.args]))

        gradients = joint.outputs[self.n_outputs :]
        # The backward's order; what is recomputed comes just before its first use
        for n in (*filter(self.backward.__contains__, joint.nodes), *gradients):
            for m in postorder(n, image, read):
                image[m] = copied(m)
        saved = sorted(handed, key=lambda n: n.id)
        inputs = (*(handed[n] for n in saved), *cotangents)
        bwd = Graph(inputs, [image[o] for o in gradients], joint.name + "_bwd")
        fwd = Graph(joint.inputs[: self.n_inputs], (*self.results, *saved), joint.name + "_fwd")
        return renumber(fwd, self._forward_order(fwd)), bwd, tuple(saved)

    def _forward_order(self, fwd: Graph) -> list[Node]:
        """The program's order, in which values for the backward alone come as soon as they can be computed.

        The joint program has them after all results, until when their arguments would have to be stored.
        """
        results = [n for n in fwd.nodes if n in self.primal or n.op == "input"]
        position = {n: k for k, n in enumerate(results)}
        last: dict[Node, int] = {}  # the position of the last of the program's values that it needs
        for n in fwd.nodes:
            last[n] = position[n] if n in position else max([last[a] for a in n.args], default=-1)
        due: dict[int, list[Node]] = {}
        for n in fwd.outputs[self.n_outputs :]:
            if n not in position:
                due.setdefault(last[n], []).append(n)
        order: dict[Node, None] = {}
        for wanted in (due.get(-1, []), *([n, *due.get(k, [])] for k, n in enumerate(results))):
            for w in wanted:
                for m in postorder(w, order):
                    order[m] = None
        return [*order]


_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")


def _time(n: Node) -> int:
    return UNLIMITED if calls_back(n) else round(PRECISION * cost.nanoseconds(n))
