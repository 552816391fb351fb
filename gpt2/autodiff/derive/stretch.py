"""The op `stretch`, a call of a graph that a program has many alike calls of (passes/alike.py).

    stretch(*args; body, of) -> (*results)

Unlike a `call` it has no rule of its own: its derivative is that of its body, derived once for all calls.
`of` is None, or for a call that computes gradients the body that it is the derivative of: it computes the
values of that again, until the two are matched (keep/pairs.py).
"""

from __future__ import annotations

from ..graph import Graph
from ..ops import apply
from ..ops.interpret import evaluate_graph
from ..ops.subgraph import inputs_like, items, result_types
from ..ops.table import row
from .chain_rule import applied
from .differentiate import backprop, pushforward


def _types(*args, body: Graph, of: Graph | None):
    return result_types(body)


def _vjp(g, out, *args, wanted, body: Graph, of: Graph | None):
    cts = [applied(d) for d in g]
    has = tuple(d is not None for d in cts)
    back, moving = _backward(body, has, tuple(wanted))
    call = apply("stretch", *args, *(d for d in cts if d is not None), body=back, of=body)
    made = iter(items(call) if moving else ())
    return [next(made) if k in moving else None for k in range(len(args))]


def _backward(body: Graph, has: tuple, wanted: tuple) -> tuple[Graph, tuple[int, ...]]:
    """(the graph from arguments and cotangents to gradients, the arguments that have one), made once."""
    known = body.kept.setdefault("backwards", {})
    if (has, wanted) not in known:
        outs = [o for o, there in zip(body.outputs, has) if there]
        given = inputs_like(outs, "d")
        wrt = [k for k, w in enumerate(wanted) if w]
        found = backprop(list(zip(outs, given)), [body.inputs[k] for k in wrt])
        moving = tuple(k for k, d in zip(wrt, found) if d is not None)
        grads = [d for d in found if d is not None]
        known[has, wanted] = Graph([*body.inputs, *given], grads, f"{body.name}_backward"), moving
    return known[has, wanted]


def _jvp(tangents, out, *args, body: Graph, of: Graph | None):
    given = {i: d for i, d, t in zip(body.inputs, inputs_like(body.inputs, "d"), tangents) if t is not None}
    found = pushforward(body.outputs, given)
    moving = [t for t in found if t is not None]
    inner = Graph([*body.inputs, *given.values()], moving, f"{body.name}_jvp")
    call = apply("stretch", *args, *(t for t in tangents if t is not None), body=inner, of=None)
    made = iter(items(call) if moving else ())
    return tuple(None if t is None else next(made) for t in found)


row(
    "stretch",
    "structural",
    infer=_types,
    evaluate=lambda *values, body, of: tuple(evaluate_graph(body, values)),
    vjp_rule=_vjp,
    jvp_rule=_jvp,
    cost=1000.0,
    anchor=True,
)
