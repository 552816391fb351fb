"""ad.parallel_map: a body over slices of arrays, on several cores; its derivative is parallel too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..programs.bodies import applied, body_graph, common_length, operands_of_body, recorded_for_slices
from ..programs.compile import Operator
from ..tracebacks import of_user
from ..tree import flatten, unflatten
from .map_op import evaluate_map


@of_user
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
    n = common_length("parallel_map", leaves)

    rec, out_tree, results = recorded_for_slices("parallel_map", body, leaves, tree, [True] * len(leaves), n)
    if rec is not None:
        graph = body_graph(rec)
        operands = operands_of_body(graph, leaves, rec)
        results = applied("map", operands, evaluate_map, body=graph, n=n, slices=len(leaves), sums=0)
    return unflatten(out_tree, results)
