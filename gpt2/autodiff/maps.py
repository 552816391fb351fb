"""`parallel_map(body, *arrays)`: body over the slices of the leading axis, the slices shared out over the
threads.

The op

    map(*arrays, *consts; body, n, slices, sums) -> (*stacked, *summed)

takes `slices` arrays slice by slice and consts as they are, values from outside that body reads. The last
`sums` results of body are added up over the slices, the others are stacked. Sums are what makes the
derivative of a map a map again: the gradient of a const is the sum of what each slice says.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from . import run, runtime
from .chain import applied
from .derive import derived_of
from .differentiate import backprop, pushforward
from .errors import AutodiffError
from .graph import Graph, Node
from .ops import apply
from .ops.table import row
from .plan import Compile
from .record import Recorded, apply_op, record
from .reuse import watch
from .sites import here
from .subgraph import inputs_like, items, program_of, result_types
from .tree import flatten, is_dynamic, unflatten

CHUNKS = 16  # the slices are cut into at most so many parts: each adds up its own sums, in order


def map_node(body: Graph, args, n: int, slices: int, sums: int = 0) -> list[Node]:
    return items(apply("map", *args, body=body, n=n, slices=slices, sums=sums))


def _infer(*args, body: Graph, n: int, slices: int, sums: int):
    shapes, dtypes = result_types(body)
    stacked = len(shapes) - sums
    return (*((n, *s) for s in shapes[:stacked]), *shapes[stacked:]), dtypes


def _evaluate(*values, body: Graph, n: int, slices: int, sums: int):
    program = program_of(body)
    values = [np.asarray(v, i.dtype) for v, i in zip(values, body.inputs)]
    arrays, consts = values[:slices], values[slices:]
    n_stacked = len(body.outputs) - sums
    stacked = [np.empty((n, *o.shape), o.dtype) for o in body.outputs[:n_stacked]]
    chunks = min(n, CHUNKS) or 1
    summed = [[np.zeros(o.shape, o.dtype) for o in body.outputs[n_stacked:]] for _ in range(chunks)]
    todo = iter(range(chunks))

    def job(thread: int) -> None:
        parts = [np.empty(o.shape, o.dtype) for o in body.outputs[n_stacked:]]
        with program.borrowed() as run:
            for c in todo:
                for i in range(c * n // chunks, (c + 1) * n // chunks):
                    run((*[a[i, ...] for a in arrays], *consts), (*[s[i, ...] for s in stacked], *parts))
                    for total, part in zip(summed[c], parts):
                        total += part

    runtime.share(job)
    for others in summed[1:]:  # in order, so that the sum does not depend on the number of threads
        for total, part in zip(summed[0], others):
            total += part
    return (*stacked, *summed[0])


def _jvp(tangents, out, *args, body: Graph, n: int, slices: int, sums: int):
    moving = [t is not None for t in tangents]
    marks = {i: m for i, m, has in zip(body.inputs, inputs_like(body.inputs, "d"), moving) if has}
    found = pushforward(body.outputs, marks)
    n_stacked = len(body.outputs) - sums

    def both(values, extra):
        """Sliced values, then the others, each followed by its tangents."""
        values = list(values)
        return [
            *values[:slices],
            *(e for e, has in zip(extra[:slices], moving) if has),
            *values[slices:],
            *(e for e, has in zip(extra[slices:], moving[slices:]) if has),
        ]

    inputs = both(body.inputs, [marks.get(i) for i in body.inputs])
    stacked = [t for t in found[:n_stacked] if t is not None]
    summed = [t for t in found[n_stacked:] if t is not None]
    if not stacked and not summed:
        return (None,) * len(found)
    tangent_body = Graph(inputs, [*stacked, *summed], body.name + "_jvp")
    made = iter(map_node(tangent_body, both(args, tangents), n, slices + sum(moving[:slices]), len(summed)))
    return tuple(None if t is None else next(made) for t in found)


def _vjp(g, out, *args, wanted, body: Graph, n: int, slices: int, sums: int):
    g = [None if d is None else applied(d) for d in g]
    n_stacked = len(body.outputs) - sums
    cts = [None if d is None else m for d, m in zip(g, inputs_like(body.outputs, "d"))]
    asked = [i for i, w in zip(body.inputs, wanted) if w]
    grads = backprop([(o, c) for o, c in zip(body.outputs, cts) if c is not None], asked)
    found = {i: d for i, d in zip(asked, grads) if d is not None}
    xs = [i for i in body.inputs[:slices] if i in found]
    ws = [i for i in body.inputs[slices:] if i in found]
    sliced = [c for c in cts[:n_stacked] if c is not None]
    whole = [c for c in cts[n_stacked:] if c is not None]
    back = Graph(
        [*body.inputs[:slices], *sliced, *body.inputs[slices:], *whole],
        [found[i] for i in (*xs, *ws)],
        body.name + "_back",
    )
    given = [d for d in g[:n_stacked] if d is not None]
    made = (
        map_node(
            back,
            [*args[:slices], *given, *args[slices:], *(d for d in g[n_stacked:] if d is not None)],
            n,
            slices + len(sliced),
            len(ws),
        )
        if found
        else []
    )
    by_input = dict(zip((*xs, *ws), made))
    return tuple(by_input.get(i) for i in body.inputs)


row("map", "structural", infer=_infer, evaluate=_evaluate, jvp_rule=_jvp, vjp_rule=_vjp, cost=1000.0)


# --- what the user calls
# ------------------------------------------------------------------------------------------


def parallel_map(body: Callable, *arrays, pure: bool = False):
    """body over the slices of the arrays along their leading axis, the results stacked: np.stack([body(x, y),
    ...]).

    arrays   arrays with leading axes of one length, or trees of such
    body     body(*slices) -> an array, a number, or a tree of them; the same shapes for every slice. It may
             write to its slices, which are its own: the arrays stay as they are

    body is recorded once, and the slices are shared out over the threads (ad.set_threads). The derivative is
    again a parallel map, with the gradients of what body reads from outside added up. A body that cannot
    stand for all slices (it branches on values, draws random numbers, prints) is run slice by slice, in
    order.
    """
    if run.current() is None and not any(type(x) is Recorded for x in flatten(arrays)[0]):
        return derived_of(body, ParallelMap(), pure).entry(arrays, {})
    return _mapped(body, arrays)


class ParallelMap(Compile):
    """A map outside of any recording: compiled, and kept with body."""

    name, suffix, takes_out = "parallel_map", "map", False

    def function(self, f):
        def mapped(*arrays):
            return _mapped(f, arrays)

        return mapped


def _mapped(body: Callable, arrays):
    leaves, tree = flatten(arrays)
    lengths = {np.shape(getattr(x, "value", x))[:1] for x in leaves}
    if len(lengths) != 1 or () in lengths or (0,) in lengths:
        raise AutodiffError(
            "parallel_map: the arrays should have leading axes of one length, at least 1; got "
            f"{sorted(n[0] if n else 'none' for n in lengths)}",
            here(),
        )
    ((n,),) = lengths

    def one(slices):
        out, out_tree = flatten(
            body(*unflatten(tree, slices)), lambda x: is_dynamic(x) or isinstance(x, (int, bool))
        )
        return unflatten(out_tree, [np.asarray(v) if isinstance(v, (int, bool)) else v for v in out])

    one.__name__ = getattr(body, "__name__", "body")
    if not watch(body).trouble:
        rec = record(one, ([x[0].value if type(x) is Recorded else x[0] for x in leaves],))
        if not rec.value_dependent and not rec.unstable:
            operands = [*leaves, *rec.operands([None] * len(leaves))[len(leaves) :]]
            operands = [
                x if type(x) is Recorded else np.asarray(x, i.dtype)[()]
                for x, i in zip(operands, rec.graph.inputs)
            ]
            graph = Graph(rec.graph.inputs, rec.graph.outputs[: rec.n_results], rec.graph.name)
            attrs = dict(body=graph, n=n, slices=len(leaves), sums=0)
            recorded = any(type(x) is Recorded for x in operands)
            return unflatten(
                rec.out_tree,
                apply_op("map", *operands, **attrs) if recorded else _evaluate(*operands, **attrs),
            )
    results = [flatten(one([x[i].copy() for x in leaves])) for i in range(n)]
    return unflatten(results[0][1], [np.stack(parts) for parts in zip(*(r[0] for r in results))])
