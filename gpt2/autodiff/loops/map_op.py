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
from ..derive.differentiate import backward_of, forward_of
from ..graph import Graph, Node
from ..ops import apply
from ..ops.build import transpose
from ..ops.subgraph import beside, items, result_types
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
    forward, moving = forward_of(body, [t is not None for t in tangents])
    if not moving:
        return (None,) * len(body.outputs)
    moved = [k for k, t in enumerate(tangents) if t is not None]
    marks = dict(zip(moved, forward.inputs[len(args) :]))
    inputs = beside(body.inputs, marks, slices)
    operands = beside(args, {k: tangents[k] for k in moved}, slices)
    summed = sum(k >= len(body.outputs) - sums for k in moving)
    tangent_body = Graph([*chain(*inputs)], forward.outputs, forward.name)
    results = map_node(tangent_body, [*chain(*operands)], n, len(inputs[0]), summed)
    by_output = dict(zip(moving, results))
    return tuple(map(by_output.get, range(len(body.outputs))))


def _vjp(g, out, *args, wanted, body: Graph, n: int, slices: int, sums: int):
    g = [None if d is None else applied(d) for d in g]
    backward, moving = backward_of(body, [d is not None for d in g], wanted)
    if not moving:
        return (None,) * len(args)
    cts = iter(backward.inputs[len(args) :])
    marks = [None if d is None else next(cts) for d in g]
    n_stacked = len(body.outputs) - sums

    def sliced_first(values, gradients):
        """Sliced values, then the others, each followed by the gradients of results."""
        parts = values[:slices], gradients[:n_stacked], values[slices:], gradients[n_stacked:]
        return [x for x in chain(*parts) if x is not None]

    back = Graph(sliced_first(body.inputs, marks), backward.outputs, backward.name)
    summed = sum(k >= slices for k in moving)
    sliced = slices + sum(d is not None for d in g[:n_stacked])
    results = map_node(back, sliced_first(args, g), n, sliced, summed)
    by_input = dict(zip(moving, results))
    return tuple(map(by_input.get, range(len(args))))


def _batch(b, *args, body: Graph, n: int, slices: int, sums: int):
    """The slices stay outermost: the examples are the second axis of what is sliced and stacked."""
    inner, flags = b.graph(body, b.flags)
    operands = [swap_first(x) if has and k < slices else x for k, (x, has) in enumerate(zip(args, b.flags))]
    results = map_node(inner, operands, n, slices, sums)
    stacked = len(results) - sums
    moved = [swap_first(x) if has and k < stacked else x for k, (x, has) in enumerate(zip(results, flags))]
    return [b.front(x, has) for x, has in zip(moved, flags)]


def swap_first(x: Node) -> Node:
    return transpose(x, (1, 0, *range(2, x.ndim)))


row(
    "map",
    "structural",
    infer=_infer,
    evaluate=evaluate_map,
    jvp_rule=_jvp,
    vjp_rule=_vjp,
    leads=Leads(_batch),
    influence=lambda flags, of_graph, body, **attrs: of_graph(body, flags),
    cost=1000.0,
)
