"""Matches outlined calls with those that compute their gradients.

Differentiating an outlined call gives another, whose body is the derivative of the first one's and begins by
computing all of it again. Here the two bodies, which share their nodes, are taken as one program and cut in
two as a whole program is (partition.py), once for each kind of pair: the first call then also returns what it
keeps, and the second takes that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from operator import is_

from ..graph import Graph, Node, reachable, with_args
from ..ops.subgraph import cut_of, items, outlined
from ..passes.alike import inline_calls

Cut = Callable[[Graph, int, int], tuple[Graph, Graph, tuple[Node, ...]]]
Simplified = Callable[[Graph], Graph]


def paired(graph: Graph, cut: Cut, simplified: Simplified) -> Graph:
    """The graph with each call that computes gradients reading what the call before it has kept.

    cut(joint, n_inputs, n_outputs)   forward, backward, and what is handed over, as `partition` gives them
    """
    if not any(n.op == "outlined" and n.attrs["of"] is not None for n in graph.nodes):
        return graph
    partner = _partners(graph)
    halved = cache(partial(_halved, cut=cut, simplified=simplified))
    alone = cache(partial(_alone, simplified=simplified))
    image: dict[Node, Node] = {}
    kept: dict[Node, list[Node]] = {}  # first call -> its items, with those that it keeps
    for n in graph.nodes:
        args = [image[a] for a in n.args]
        if n.op == "item" and n.args[0] in kept:
            new = kept[n.args[0]][n.attrs["i"]]
            new.name = n.name
        elif n.op != "outlined":
            image[n] = n if all(map(is_, args, n.args)) else with_args(n, tuple(args))
            continue
        elif n not in partner:
            body, read = alone(n.attrs["body"])
            new = outlined(body, [args[k] for k in read], [cut_of(n, k) for k in read])
        elif n.attrs["of"] is None:
            forward, _, _ = halved(n.attrs["body"], partner[n].attrs["body"])
            new = outlined(forward, args, n.attrs["cuts"])
            kept[n] = items(new)
        else:
            first = partner[n]
            _, backward, origins = halved(first.attrs["body"], n.attrs["body"])
            sources = {"input": image[first].args, "output": kept[first]}
            saved = [sources[where][k] for where, k in origins]
            cuts = [cut_of(image[first], k) if where == "input" else None for where, k in origins]
            new = outlined(backward, [*saved, *args[len(first.args) :]], cuts)
        new.loc = n.loc
        image[n] = new
    return Graph(graph.inputs, [image[o] for o in graph.outputs], graph.name)


def _partners(graph: Graph) -> dict[Node, Node]:
    """call -> the one that computes its gradients; and the other way round."""
    forward: dict[tuple, Node] = {}  # (body, arguments, cuts) -> the call
    partner: dict[Node, Node] = {}
    for n in graph.nodes:
        if n.op == "outlined" and n.attrs["of"] is None:
            forward[n.attrs["body"], n.args, n.attrs["cuts"]] = n
    for n in graph.nodes:
        if n.op == "outlined" and (of := n.attrs["of"]) is not None:
            count = len(of.inputs)
            call = forward.get((of, n.args[:count], n.attrs["cuts"][:count]))
            if call is not None and call not in partner:
                partner[call], partner[n] = n, call
    return partner


def _alone(body: Graph, simplified: Simplified) -> tuple[Graph, list[int]]:
    """The body of calls without a partner with only those of its inputs that it reads, and their numbers."""
    graph = simplified(inline_calls(body))
    reached = set(reachable(graph.outputs))
    read = [k for k, i in enumerate(graph.inputs) if i in reached]
    return Graph([graph.inputs[k] for k in read], graph.outputs, graph.name), read


def _halved(of: Graph, back: Graph, cut: Cut, simplified: Simplified) -> tuple[Graph, Graph, list]:
    """A pair's two bodies, and where the second one's first arguments come from."""
    joint = Graph(back.inputs, [*of.outputs, *back.outputs], of.name)
    joint = simplified(inline_calls(joint))
    n_inputs, n_outputs = len(of.inputs), len(of.outputs)
    forward, backward, handed = cut(joint, n_inputs, n_outputs)
    origins, outputs = origins_of(handed, joint, forward, n_outputs)
    forward = simplified(Graph(forward.inputs, outputs, of.name))
    return forward, simplified(Graph(backward.inputs, backward.outputs, back.name)), origins


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
