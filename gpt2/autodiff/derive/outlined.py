"""The op `outlined`, a call of a graph that repeated parts of a program have become (passes/alike.py).

    outlined(*args; body, of, cuts) -> (*results)

Unlike a `call` it has no rule of its own: its derivative is that of its body, derived once for all calls.
`of` is None, or for a call that computes gradients the body that it is the derivative of: it computes the
values of that again, until the two are matched (keep/pairs.py).

`cuts` has for each argument None, or (axis, start, stop) where the body is given that part of it alone: the
weights of a block are parts of stacked arrays. It is () where there are none.

    collect(*calls; items, indices, shape, dtype) -> array

The gradient of such an array: zeros to which result items[k] of each call is added at indices[k]. It is an
`assemble` of the calls' results, and the programs that are emitted have that in its place. Until then it is
one node, where each result would be one.
"""

from __future__ import annotations

import numpy as np

from ..graph import Graph, Node
from ..ops import evaluate
from ..ops.build import assemble, item
from ..ops.interpret import evaluate_graph
from ..ops.subgraph import (
    collect,
    cut_index,
    cut_slices,
    inputs_like,
    items,
    outlined,
    result_types,
    results_of,
)
from ..ops.table import EVERYWHERE, row
from .chain_rule import applied, force
from .differentiate import backprop, pushforward


def _types(*args, body: Graph, of: Graph | None, cuts: tuple):
    return result_types(body)


def _evaluate(*values, body: Graph, of: Graph | None, cuts: tuple):
    if cuts:
        values = tuple([v if cut is None else v[cut_slices(cut)] for v, cut in zip(values, cuts)])
    return tuple(evaluate_graph(body, values))


def _vjp(g, out, *args, wanted, body: Graph, of: Graph | None, cuts: tuple):
    cts = [applied(d) for d in g]
    has = tuple(d is not None for d in cts)
    back, moving = _backward(body, has, tuple(wanted))
    call = outlined(back, [*args, *(d for d in cts if d is not None)], cuts, body)
    grads: list[Node | None] = [None] * len(args)
    for i, k in enumerate(moving):
        if cuts and (cut := cuts[k]) is not None:
            grads[k] = collect([call], [i], [cut_index(args[k], cut)], args[k])
        else:
            grads[k] = item(call, i)
    return grads


def _backward(body: Graph, has: tuple, wanted: tuple) -> tuple[Graph, tuple[int, ...]]:
    """(the graph from arguments and cotangents to gradients, the arguments that have one), made once."""
    known = body.kept.setdefault("backwards", {})
    if (has, wanted) not in known:
        outs = [o for o, there in zip(body.outputs, has) if there]
        cts = inputs_like(outs, "d")
        wrt = [k for k, w in enumerate(wanted) if w]
        gradients = backprop(list(zip(outs, cts)), [body.inputs[k] for k in wrt])
        moving = tuple(k for k, d in zip(wrt, gradients) if d is not None)
        grads = [d for d in gradients if d is not None]
        known[has, wanted] = Graph([*body.inputs, *cts], grads, f"{body.name}_backward"), moving
    return known[has, wanted]


def _jvp(tangents, out, *args, body: Graph, of: Graph | None, cuts: tuple):
    moving_inputs = {
        i: d for i, d, t in zip(body.inputs, inputs_like(body.inputs, "d"), tangents) if t is not None
    }
    outs = pushforward(body.outputs, moving_inputs)
    moving = [t for t in outs if t is not None]
    inner = Graph([*body.inputs, *moving_inputs.values()], moving, f"{body.name}_jvp")
    moved = [k for k, t in enumerate(tangents) if t is not None]
    call = outlined(
        inner, [*args, *(tangents[k] for k in moved)], (*cuts, *(cuts[k] for k in moved)) if cuts else ()
    )
    results = iter(items(call) if moving else ())
    return tuple(None if t is None else next(results) for t in outs)


def _collect_jvp(tangents, out, *calls, items, indices, shape, dtype):
    moved = [(force(t[i]), index) for t, i, index in zip(tangents, items, indices) if t is not None]
    there = [(t, index) for t, index in moved if t is not None]
    return assemble([t for t, _ in there], shape, [index for _, index in there], dtype)


def _lowered(known: dict, *calls: Node, items: tuple, indices: tuple, shape: tuple, dtype: str) -> Node:
    """The assemble that it abbreviates."""
    return assemble(results_of(calls, items), shape, indices, dtype)


row(
    "collect",
    "structural",
    infer=lambda *calls, items, indices, shape, dtype: (shape, np.dtype(dtype)),
    evaluate=lambda *calls, items, **like: evaluate("assemble", [c[i] for c, i in zip(calls, items)], like),
    jvp_rule=_collect_jvp,
    lowered=_lowered,
    work="moves",
    discontinuous=False,
    exact_on=EVERYWHERE,
)

row(
    "outlined",
    "structural",
    infer=_types,
    evaluate=_evaluate,
    vjp_rule=_vjp,
    jvp_rule=_jvp,
    cost=1000.0,
    scheduled_alone=True,
)
