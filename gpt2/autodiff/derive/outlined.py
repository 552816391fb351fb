"""The op `outlined`, a call of a graph that repeated parts of a program have become (passes/alike.py).

    outlined(*args; body, of, cuts) -> (*results)

Unlike a `call` it has no rule of its own: its derivative is that of its body, derived once for all calls.
`of` is None, or for a call that computes gradients the body that it is the derivative of: it computes the
values of that again, until the two are matched (keep/pairs.py).

`cuts` has for each argument None, or (axis, start, stop) where the body is given that part of it alone: the
weights of a block are parts of stacked arrays. It is () where there are none.
"""

from __future__ import annotations

from ..graph import Graph, Node
from ..ops.build import assemble, item
from ..ops.interpret import evaluate_graph
from ..ops.subgraph import cut_index, cut_slices, items, outlined, result_types
from ..ops.table import row
from .chain_rule import applied
from .differentiate import backward_of, forward_of


def _evaluate(*values, body: Graph, of: Graph | None, cuts: tuple):
    if cuts:
        values = tuple([v if cut is None else v[cut_slices(cut)] for v, cut in zip(values, cuts)])
    return tuple(evaluate_graph(body, values))


def _vjp(g, out, *args, wanted, body: Graph, of: Graph | None, cuts: tuple):
    cts = [applied(d) for d in g]
    known = body.kept.setdefault("backwards", {})
    key = tuple(d is not None for d in cts), tuple(wanted)
    if key not in known:
        known[key] = backward_of(body, *key)
    back, moving = known[key]
    call = outlined(back, [*args, *(d for d in cts if d is not None)], cuts, body)
    grads: list[Node | None] = [None] * len(args)
    for i, k in enumerate(moving):
        if cuts and (cut := cuts[k]) is not None:
            grads[k] = assemble([item(call, i)], args[k].shape, [cut_index(args[k], cut)], args[k].dtype)
        else:
            grads[k] = item(call, i)
    return grads


def _jvp(tangents, out, *args, body: Graph, of: Graph | None, cuts: tuple):
    inner, moving = forward_of(body, [t is not None for t in tangents])
    moved = [k for k, t in enumerate(tangents) if t is not None]
    cuts = (*cuts, *(cuts[k] for k in moved)) if cuts else ()
    call = outlined(inner, [*args, *(tangents[k] for k in moved)], cuts)
    results = dict(zip(moving, items(call) if moving else ()))
    return tuple(map(results.get, range(len(body.outputs))))


row(
    "outlined",
    "structural",
    infer=lambda *args, body, of, cuts: result_types(body),
    evaluate=_evaluate,
    vjp_rule=_vjp,
    jvp_rule=_jvp,
    cost=1000.0,
    scheduled_alone=True,
)
