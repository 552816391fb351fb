"""ad.parallel_map: a body over slices of arrays, on several cores; its derivative is parallel too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import AutodiffError
from ..programs.bodies import applied, body_graph, on_leaves, operands_of_body, recorded_once
from ..programs.compile import Operator
from ..record.record import record
from ..record.source_lines import here
from ..record.value import Recorded, value_of
from ..tree import flatten, unflatten
from .map_op import evaluate_map


def parallel_map(body: Callable, *arrays: Any, pure: bool = False) -> Any:
    """body over slices along the arrays' leading axis, the results stacked: np.stack([body(x, y), ...]).

    arrays   arrays with leading axes of one length, or trees of such
    body     body(*slices) -> an array, a number, or a tree of them; the same shapes for every slice. It may
             write to its slices, which are copies

    body is recorded once, and the slices are divided among the threads (ad.set_threads). The derivative is
    again a parallel map, which sums the gradients of what body reads from outside. A body that cannot be
    recorded for all slices (it branches on values, draws random numbers, prints) is run slice by slice, in
    order.

        >>> squares = lambda xs: ad.parallel_map(lambda x: np.sum(x * x), xs)
        >>> squares(np.arange(6.0).reshape(3, 2))
        array([ 1., 13., 41.])
        >>> ad.grad(lambda xs: np.sum(squares(xs)))(np.ones((3, 2)))
        array([[2., 2.],
               [2., 2.],
               [2., 2.]])
    """
    return Operator("parallel_map", "map", _mapped)(body, *arrays, pure=pure)


def _mapped(body: Callable, *arrays):
    leaves, tree = flatten((arrays, {}))
    n = _length(leaves)

    one = on_leaves(body, tree)
    if n == 0:
        return _empty_results(one, leaves)

    def at(i):
        return flatten(one([x[i].copy() for x in leaves]))

    slices = [x[0].value if type(x) is Recorded else x[0] for x in leaves]
    first, rec = recorded_once(body, lambda: at(0), lambda: record(one, (slices,)))
    if rec is None:
        results = [first, *(at(i) for i in range(1, n))]
        return unflatten(results[0][1], [np.stack(parts) for parts in zip(*(r[0] for r in results))])
    graph = body_graph(rec)
    operands = operands_of_body(graph, leaves, rec)
    stacked = applied("map", operands, evaluate_map, body=graph, n=n, slices=len(leaves), sums=0)
    return unflatten(rec.out_tree, stacked)


def _length(leaves: Sequence) -> int:
    """The common length of the leading axes."""
    lengths = {np.shape(getattr(x, "value", x))[:1] for x in leaves}
    if len(lengths) != 1 or () in lengths:
        raise AutodiffError(
            "parallel_map: the arrays should have leading axes of one length; got "
            f"{sorted(n[0] if n else 'none' for n in lengths)}",
            here(),
        )
    ((n,),) = lengths
    return n


def _empty_results(one: Callable, leaves):
    """Results of length 0, with the shapes of those for a slice of zeros."""
    plain = [np.asarray(value_of(x)) for x in leaves]
    rec = record(one, ([np.zeros(x.shape[1:], x.dtype)[()] for x in plain],))
    outputs = rec.graph.outputs[: rec.n_results]
    return unflatten(rec.out_tree, [np.zeros((0, *o.shape), o.dtype) for o in outputs])
