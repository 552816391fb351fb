"""Derivatives of graphs, in both modes, from the one table of rules (ops/table.py).

    vjp_graph(graph, wrt, cts)   reverse: inputs and cotangents -> outputs and gradients
    gradient_graph(graph, wrt)   reverse, for a scalar first output: the seed 1 is folded in
    jvp_graph(graph, wrt)        forward: inputs and tangents -> outputs and their tangents

None is the symbolic zero: what does not depend on `wrt`, or does not lead to a cotangent, has no derivative
and costs nothing. chain_rule.py has the steps of the chain rule.

Gradients flow with the linear transpose, without conjugation (JAX's convention): the gradient of a real
function of z = u + iv is df/du - i df/dv.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import unsupported
from ..graph import Graph, Node, next_id, reachable
from ..ops import OPS, input_node
from ..ops.build import full, zeros
from ..ops.exactness import mark_derived
from ..ops.subgraph import inputs_like
from . import chain_rule
from .chain_rule import applied, fit, force
from .shifts import invariant_shifts


def vjp_graph(graph: Graph, wrt: Sequence[int], cts: Sequence[int]) -> Graph:
    """The graph of the outputs and of the gradients.

    wrt   indices of the inputs whose gradients are wanted
    cts   indices of the outputs that get a cotangent

    inputs    those of `graph`, then one cotangent for each of `cts`, like the output and named "d" + its name
    outputs   those of `graph`, then one gradient for each of `wrt`, like the input and named "d" + its name
    """
    outs = [graph.outputs[i] for i in cts]
    ct_nodes = [input_node(o.shape, o.dtype, "d" + (o.name or "out")) for o in outs]
    grads = gradients(list(zip(outs, ct_nodes)), [graph.inputs[i] for i in wrt])
    return Graph((*graph.inputs, *ct_nodes), (*graph.outputs, *grads), graph.name + "_vjp")


def gradient_graph(graph: Graph, wrt: Sequence[int]) -> Graph:
    """vjp_graph for a first output that is one number, with cotangent 1: no further inputs."""
    out = graph.outputs[0]
    if isinstance(out.dtype, tuple) or out.dtype.kind not in "fc" or out.size != 1:
        raise ValueError(f"a gradient needs one floating-point number as the first result, got {out!r}")
    grads = gradients([(out, full(out.shape, 1.0, out.dtype))], [graph.inputs[i] for i in wrt])
    return Graph(graph.inputs, (*graph.outputs, *grads), graph.name + "_grad")


def jvp_graph(graph: Graph, wrt: Sequence[int]) -> Graph:
    """The graph of the outputs and of their tangents.

    inputs    those of `graph`, then one tangent for each of `wrt`, like the input and named "d" + its name
    outputs   those of `graph`, then one tangent for each output: zeros where it does not depend on `wrt`
    """
    xs = [graph.inputs[i] for i in wrt]
    tangents = [input_node(x.shape, x.dtype, "d" + (x.name or "x")) for x in xs]
    results = pushforward(graph.outputs, dict(zip(xs, tangents)))
    outs = [zeros(o.shape, o.dtype) if t is None else t for o, t in zip(graph.outputs, results)]
    return Graph((*graph.inputs, *tangents), (*graph.outputs, *outs), graph.name + "_jvp")


def backward_of(graph: Graph, has: Sequence[bool], wanted: Sequence[bool]) -> tuple[Graph, list[int]]:
    """(the graph of (*inputs, *cotangents) -> gradients, the inputs that have one).

    has      for each output whether it gets a cotangent
    wanted   for each input whether its gradient is wanted
    """
    outs = [o for o, there in zip(graph.outputs, has) if there]
    cts = inputs_like(outs, "d")
    wrt = [k for k, w in enumerate(wanted) if w]
    grads = backprop(list(zip(outs, cts)), [graph.inputs[k] for k in wrt])
    by_input = {k: d for k, d in zip(wrt, grads) if d is not None}
    return Graph([*graph.inputs, *cts], [*by_input.values()], graph.name + "_backward"), [*by_input]


def forward_of(graph: Graph, has: Sequence[bool]) -> tuple[Graph, list[int]]:
    """(the graph of (*inputs, *tangents) -> tangents, the outputs that have one).

    has   for each input whether it has a tangent
    """
    dots = {i: d for i, d, there in zip(graph.inputs, inputs_like(graph.inputs, "d"), has) if there}
    by_output = {k: t for k, t in enumerate(pushforward(graph.outputs, dots)) if t is not None}
    return Graph([*graph.inputs, *dots.values()], [*by_output.values()], graph.name + "_jvp"), [*by_output]


def gradients(seeds: Sequence[tuple[Node, Node]], wrt: Sequence[Node]) -> list[Node]:
    """One gradient per node of `wrt`, zeros where nothing leads there, given pairs (output, cotangent)."""
    return [zeros(x.shape, x.dtype) if g is None else g for x, g in zip(wrt, backprop(seeds, wrt))]


def active_nodes(outputs: Iterable[Node], wrt: Iterable[Node]) -> list[Node]:
    """The nodes that lead from `wrt` to `outputs` through differentiable values, in topological order."""
    active = set(wrt)
    oldest = min((n.id for n in active), default=0)  # nothing older depends on wrt
    outputs = [o for o in outputs if o.id >= oldest]
    nodes = reachable(outputs, oldest=oldest) if active else []
    still = invariant_shifts(nodes, outputs)
    for n in nodes:
        if n in still or n.op in ("input", "const") or OPS[n.op].kind == "nondiff":
            continue
        dtypes = n.dtype if isinstance(n.dtype, tuple) else (n.dtype,)
        if any(d.kind in "fc" for d in dtypes) and any(a in active for a in n.args):
            active.add(n)
    return [n for n in nodes if n in active]


def backprop(seeds: Sequence[tuple[Node, Node]], wrt: Sequence[Node]) -> list[Node | None]:
    """The gradient of each node of `wrt`, given pairs (output, its cotangent). None is zero.

    Nodes are visited from the youngest to the oldest, so that each gradient is complete before it is passed
    on, and gradients are summed in the same order every time.
    """
    wanted, first_new = set(wrt), next_id()
    active = active_nodes([o for o, _ in seeds], wrt)
    is_active = set(active)
    parts: dict[Node, list] = {}  # the terms so far of each node's gradient
    for out, ct in seeds:
        if out in is_active:
            parts.setdefault(out, []).append(ct)
    done: dict[Node, Node] = {}
    for n in reversed(active):
        if n not in parts:
            continue
        start = next_id()
        if isinstance(n.dtype, tuple):
            g = [chain_rule.total(terms) if terms else None for terms in parts.pop(n)]
        else:
            g = chain_rule.total(parts.pop(n))
            if n in wanted:
                g = done[n] = applied(g)
            whole = g.value if isinstance(g, chain_rule.Masked) and g.mask is None else g
            if isinstance(whole, Node) and whole.name is None and n.name is not None and whole.id > first_new:
                whole.name = "d" + n.name
        grads: Sequence = ()
        if n.op == "item":
            (source,) = n.args
            parts.setdefault(source, [[] for _ in source.dtype])[n.attrs["i"]].append(g)
        elif n.args:
            arguments = chain_rule.arguments(n)
            with chain_rule.errors_at(n):
                grads = pull(n, g, [a in is_active for a in arguments])
            for a, d in zip(arguments, grads):
                if d is not None:
                    parts.setdefault(a, []).append(d)
        locate((g, *grads), n.loc, start)
    results = [done.get(x) for x in wrt]
    mark_derived(results, first_new)
    return results


def locate(made: Iterable, loc: tuple | None, start: int) -> None:
    """Give the new nodes among `made`, and those they read, the source line of the forward statement."""
    stack: list = []
    for x in made:
        stack += (x.value, x.raw, x.guard) if isinstance(x, chain_rule.Masked) else (x,)
    while stack:
        n = stack.pop()
        if isinstance(n, Node) and n.loc is None and n.id > start and n.op != "input":
            n.loc = loc
            stack += [a for a in n.args if a.loc is None]


def pushforward(outputs: Sequence[Node], tangents: dict[Node, Node]) -> list[Node | None]:
    """The tangent of each output, given those of some nodes. None is zero."""
    known: dict[Node, object] = dict(tangents)
    first_new = next_id()
    for n in active_nodes(outputs, tangents):
        if n in tangents:
            continue
        of_args = [known.get(a) for a in chain_rule.arguments(n)]
        if any(t is not None for t in of_args):
            start = next_id()
            with chain_rule.errors_at(n):
                known[n] = t = chain_rule.push(n, of_args)
            if isinstance(t, Node) and t.name is None and n.name is not None and t.id > start:
                t.name = "d" + n.name
            locate(t if isinstance(t, tuple) else (t,), n.loc, start)
    results = [force(known.get(o)) for o in outputs]
    mark_derived(results, first_new)
    return results


# --- reverse --------------------------------------------------------------------------------------------


def pull(node: Node, g: Any, needed: Sequence[bool]) -> list:
    """The gradient for each argument, in its shape and dtype; None where it is zero or not needed.

    g   the node's gradient, or for a tuple node a list of gradients or None
    """
    op = OPS[node.op]
    if op.vjp_rule is not None:
        g = [applied(c) for c in g] if isinstance(g, list) else applied(g)
        grads = op.vjp_rule(g, node, *node.args, wanted=tuple(needed), **node.attrs)
    elif node.op == "where":
        return chain_rule.pull_where(node, g, needed)
    elif op.kind == "elementwise":
        return chain_rule.pull_elementwise(node, g, needed)
    elif isinstance(g, chain_rule.Masked) and op.streams and op.kind == "linear":
        (x,) = node.args
        return [g.through(lambda v: fit(op.transpose(v, node, x, **node.attrs)[0], x), x)]
    elif op.transpose is not None:
        grads = op.transpose(applied(g), node, *node.args, **node.attrs)
    elif op.jvp is not None:
        grads = transposed_jvp(node, g, needed)
    else:
        raise unsupported(f"np.{node.op}", node.loc)
    return [fit(force(d), a) if need else None for d, a, need in zip(grads, node.args, needed)]


def transposed_jvp(node: Node, g: Any, needed: Sequence[bool]) -> list:
    """Reverse mode of a rule written forward: its tangent is linear in the arguments' ones, so transpose."""
    tangents = [input_node(a.shape, a.dtype) if need else None for a, need in zip(node.args, needed)]
    out = OPS[node.op].jvp(tangents, node, *node.args, **node.attrs)
    if isinstance(node.dtype, tuple):
        seeds = [(force(t), applied(c)) for t, c in zip(out, g) if t is not None and c is not None]
    else:
        seeds = [(out, applied(g))]
    grads = iter(backprop(seeds, [t for t in tangents if t is not None]))
    return [next(grads) if need else None for need in needed]
