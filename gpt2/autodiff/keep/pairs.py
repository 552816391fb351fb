"""Matches outlined calls with those that compute their gradients.

Differentiating an outlined call gives another, whose body is the derivative of the first one's and begins by
computing all of it again. Here the two bodies, which share their nodes, are taken as one program and cut in
two as a whole program is (partition.py), once for each kind of pair: the first call then also returns what it
keeps, and the second takes that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..graph import Graph, Node, reachable, with_args
from ..ops.subgraph import Cut as Part
from ..ops.subgraph import cut_of, items, outlined
from ..passes.alike import inline_calls

Cut = Callable[[Graph, int, int], tuple[Graph, Graph, tuple[Node, ...]]]


def paired(graph: Graph, cut: Cut, simplified: Callable[[Graph], Graph]) -> Graph:
    """The graph with each call that computes gradients reading what the call before it has kept.

    cut(joint, n_inputs, n_outputs)   forward, backward, and what is handed over, as `partition` gives them
    """
    if not any(n.op == "outlined" and n.attrs["of"] is not None for n in graph.nodes):
        return graph
    partner = _partners(graph)
    halves: dict[tuple, _Halves] = {}
    image: dict[Node, Node] = {}
    kept: dict[Node, list[Node]] = {}  # first call -> its items, with those that it keeps
    alone = _Alone(simplified)
    for n in graph.nodes:
        args = tuple([image[a] for a in n.args])
        if n.op == "item" and n.args[0] in kept:
            image[n] = kept[n.args[0]][n.attrs["i"]]
            image[n].name, image[n].loc = n.name, n.loc
            continue
        if n not in partner:
            if n.op == "outlined":
                image[n] = alone(n, args)
            else:
                image[n] = n if all(a is b for a, b in zip(args, n.args)) else with_args(n, args)
            continue
        first, second = (n, partner[n]) if n.attrs["of"] is None else (partner[n], n)
        of, back = first.attrs["body"], second.attrs["body"]
        key = id(of), id(back)
        if key not in halves:
            halves[key] = _Halves(of, back, cut, simplified)
        pair = halves[key]
        if n is first:
            image[n] = outlined(pair.forward, args, n.attrs["cuts"])
            kept[n] = items(image[n])
        else:
            saved, cuts = pair.saved(image[first], kept[first])
            image[n] = outlined(pair.backward, [*saved, *args[len(of.inputs) :]], cuts)
        image[n].loc = n.loc
    return Graph(graph.inputs, [image[o] for o in graph.outputs], graph.name)


def _partners(graph: Graph) -> dict[Node, Node]:
    """call -> the one that computes its gradients; and the other way round."""
    forward: dict[tuple, Node] = {}  # (body, ids of its arguments) -> the call
    partner: dict[Node, Node] = {}
    for n in graph.nodes:
        if n.op == "outlined" and n.attrs["of"] is None:
            forward[_key(n.attrs["body"], n.args, n.attrs["cuts"])] = n
    for n in graph.nodes:
        if n.op == "outlined" and (of := n.attrs["of"]) is not None:
            count = len(of.inputs)
            call = forward.get(_key(of, n.args[:count], n.attrs["cuts"][:count]))
            if call is not None and call not in partner:
                partner[call], partner[n] = n, call
    return partner


def _key(body: Graph, args: tuple[Node, ...], cuts: tuple) -> tuple:
    return id(body), tuple([a.id for a in args]), cuts


class _Alone:
    """Calls without a partner, with only the arguments that their graph reads."""

    def __init__(self, simplified: Callable[[Graph], Graph]):
        self.simplified = simplified
        # id of a body -> the graph, and the arguments that it takes
        self.known: dict[int, tuple[Graph, list[int]]] = {}

    def __call__(self, call: Node, args: tuple[Node, ...]) -> Node:
        body = call.attrs["body"]
        if id(body) not in self.known:
            graph = self.simplified(inline_calls(body))
            reached = set(reachable(graph.outputs))
            read = [k for k, i in enumerate(graph.inputs) if i in reached]
            self.known[id(body)] = Graph([graph.inputs[k] for k in read], graph.outputs, graph.name), read
        graph, read = self.known[id(body)]
        alone = outlined(graph, [args[k] for k in read], [cut_of(call, k) for k in read])
        alone.loc = call.loc
        return alone


def origins_of(saved: Sequence[Node], joint: Graph, forward: Graph, n_outputs: int) -> tuple[list, list]:
    """(where each saved node of `joint` is found, the forward's outputs), with inputs and results not twice.

    forward   as `partition` gives it: its outputs are results, then all that it saves
    """
    inputs = {n: ("input", k) for k, n in enumerate(joint.inputs)}
    results = {n: ("output", k) for k, n in enumerate(joint.outputs[:n_outputs])}
    origins, outputs = [], list(forward.outputs[:n_outputs])
    for n, output in zip(saved, forward.outputs[n_outputs:]):
        origin = inputs.get(n) or results.get(n)
        if origin is None:
            origin = "output", len(outputs)
            outputs.append(output)
        origins.append(origin)
    return origins, outputs


class _Halves:
    """A kind of pair: its two bodies, and where the second one's first arguments come from."""

    def __init__(self, of: Graph, back: Graph, cut: Cut, simplified: Callable[[Graph], Graph]):
        joint = Graph(back.inputs, [*of.outputs, *back.outputs], of.name)
        joint = simplified(inline_calls(joint))
        n_inputs, n_outputs = len(of.inputs), len(of.outputs)
        forward, backward, handed = cut(joint, n_inputs, n_outputs)
        self.origins, outputs = origins_of(handed, joint, forward, n_outputs)
        self.forward = simplified(Graph(forward.inputs, outputs, of.name))
        self.backward = simplified(Graph(backward.inputs, backward.outputs, back.name))

    def saved(self, call: Node, results: list[Node]) -> tuple[list[Node], list[Part | None]]:
        """The arguments of the second call that stand before the cotangents, and what of them it is given."""
        nodes = [(call.args if where == "input" else results)[k] for where, k in self.origins]
        return nodes, [cut_of(call, k) if where == "input" else None for where, k in self.origins]
