"""The op `map`: a body over slices of the leading axis, on several threads.

The op

    map(*arrays, *consts; body, n, slices, sums) -> (*stacked, *summed)

takes `slices` arrays slice by slice, and consts, values from outside that body reads, whole. The last `sums`
results of body are summed over the slices, the others are stacked. With sums the derivative of a map is a
map: the gradient of a const is the sum of those of all slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from ..derive.chain_rule import applied
from ..derive.differentiate import backprop, pushforward
from ..graph import Graph, Node
from ..ops import apply
from ..ops.build import transpose
from ..ops.subgraph import beside, inputs_like, items, result_types
from ..ops.table import Leads, row
from ..pipeline import program_of
from ..run import threads

CHUNKS = 16  # at most so many parts, each with its own sums


def map_node(body: Graph, args: Sequence[Node], n: int, slices: int, sums: int = 0) -> list[Node]:
    return items(apply("map", *args, body=body, n=n, slices=slices, sums=sums))


def _infer(*args, body: Graph, n: int, slices: int, sums: int):
    shapes, dtypes = result_types(body)
    stacked = len(shapes) - sums
    return (*((n, *s) for s in shapes[:stacked]), *shapes[stacked:]), dtypes


def evaluate_map(*values: np.ndarray, body: Graph, n: int, slices: int, sums: int) -> tuple[np.ndarray, ...]:
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

    threads.run_on_threads(job)
    for others in summed[1:]:  # in order, so that the sum does not depend on the number of threads
        for total, part in zip(summed[0], others):
            total += part
    return (*stacked, *summed[0])


def _jvp(tangents, out, *args, body: Graph, n: int, slices: int, sums: int):
    moving = [k for k, t in enumerate(tangents) if t is not None]
    marks = {k: m for k, m in enumerate(inputs_like(body.inputs, "d")) if k in moving}
    tangents_out = pushforward(body.outputs, {body.inputs[k]: m for k, m in marks.items()})
    n_stacked = len(body.outputs) - sums
    stacked, summed = _present(tangents_out[:n_stacked]), _present(tangents_out[n_stacked:])
    if not stacked and not summed:
        return (None,) * len(tangents_out)
    inputs = beside(body.inputs, marks, slices)
    tangent_body = Graph([*chain(*inputs)], [*stacked, *summed], body.name + "_jvp")
    operands = [*chain(*beside(args, {k: tangents[k] for k in moving}, slices))]
    results = iter(map_node(tangent_body, operands, n, len(inputs[0]), len(summed)))
    return tuple(None if t is None else next(results) for t in tangents_out)


def _vjp(g, out, *args, wanted, body: Graph, n: int, slices: int, sums: int):
    g = [None if d is None else applied(d) for d in g]
    n_stacked = len(body.outputs) - sums
    cts = [None if d is None else m for d, m in zip(g, inputs_like(body.outputs, "d"))]
    grads = _gradients(body, cts, wanted)
    if not grads:
        return (None,) * len(body.inputs)

    def beside(values, gradients):
        """Sliced values, then the others, each followed by the gradients of results."""
        return [
            *values[:slices],
            *_present(gradients[:n_stacked]),
            *values[slices:],
            *_present(gradients[n_stacked:]),
        ]

    back = Graph(beside(body.inputs, cts), list(grads.values()), body.name + "_back")
    summed = len(grads.keys() & set(body.inputs[slices:]))
    results = map_node(back, beside(args, g), n, slices + len(_present(cts[:n_stacked])), summed)
    by_input = dict(zip(grads, results))
    return tuple(map(by_input.get, body.inputs))


def _gradients(body: Graph, cts: Sequence[Node | None], wanted: Sequence[bool]) -> dict[Node, Node]:
    """The gradients of the wanted inputs of the body that have one, in the order of the inputs."""
    wrt = [i for i, w in zip(body.inputs, wanted) if w]
    seeds = [(o, c) for o, c in zip(body.outputs, cts) if c is not None]
    return {i: d for i, d in zip(wrt, backprop(seeds, wrt)) if d is not None}


def _present(xs) -> list:
    return [x for x in xs if x is not None]


def _batch(b, *args, body: Graph, n: int, slices: int, sums: int):
    """The slices stay outermost: the examples are the second axis of what is sliced and stacked."""
    inner, flags = b.graph(body, b.flags)
    operands = [swap_first(x) if has and k < slices else x for k, (x, has) in enumerate(zip(args, b.flags))]
    results = map_node(inner, operands, n, slices, sums)
    stacked = len(results) - sums
    moved = [swap_first(x) if has and k < stacked else x for k, (x, has) in enumerate(zip(results, flags))]
    return [b.front(x, has) for x, has in zip(moved, flags)]


def swap_first(x: Node) -> Node:
    """x with its first two axes exchanged."""
    return transpose(x, (1, 0, *range(2, x.ndim)))


row(
    "map",
    "structural",
    infer=_infer,
    evaluate=evaluate_map,
    jvp_rule=_jvp,
    vjp_rule=_vjp,
    leads=Leads(_batch),
    cost=1000.0,
)
