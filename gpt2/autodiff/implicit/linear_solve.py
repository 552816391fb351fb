"""ad.custom_linear_solve: a linear system with the user's solver, differentiated as a linear system."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..custom.call import evaluate_call
from ..errors import AutodiffError
from ..graph import Graph
from ..ops.subgraph import on_all_inputs
from ..programs.bodies import applied, body_graph, changes, operands_of_body, recorded_for_all
from ..programs.carries import leaves_of_carry, step_on_leaves
from ..programs.compile import Operator
from ..record import draws
from ..record.record import evaluate_graph, inline, record
from ..record.source_lines import error_here
from ..record.value import value_of
from ..tracebacks import of_user
from ..tree import flatten, unflatten
from .rules import LinearSolve, SolverCall, transpose_of
from .vectors import Nested, Unknowns


@of_user
def custom_linear_solve(
    matvec: Callable,
    b: Any,
    solve: Callable,
    transpose_solve: Callable | None = None,
    *,
    symmetric: bool = False,
) -> Any:
    """The x with matvec(x) = b, found by solve(matvec, b).

    matvec            matvec(v) -> A v, linear in v, in the structure, shapes and dtypes of b
    b                 floats or complex numbers, nested as you like
    solve             solve(matvec, b) -> x, in the structure of b. It may be anything: NumPy that can be
                      recorded, or a solver that iterates until a residual is small or calls SciPy, which then
                      runs as it is, on plain arrays. It is not differentiated
    transpose_solve   transpose_solve(vecmat, b) -> x with vecmat(x) = b, for reverse mode; vecmat multiplies
                      with A transposed
    symmetric         matvec is its own transpose: solve serves for both

    The derivative is dx = A^-1 (db - dA x), with what matvec reads from outside as dA, in both modes and to
    any order. As in jax.lax.custom_linear_solve.

    Raises AutodiffError, with the line, if matvec is not linear, changes a shape or a dtype or branches on
    values, and in reverse mode if neither transpose_solve nor symmetric is given.

        >>> A = np.array([[2.0, 1.0], [0.0, 4.0]])
        >>> def solve(matvec, b):  # column by column
        ...     return np.linalg.solve(np.stack([matvec(e) for e in np.eye(2)], axis=1), b)
        >>> ad.custom_linear_solve(lambda v: A @ v, np.array([4.0, 4.0]), solve, solve)
        array([1.5, 1. ])
    """
    if symmetric and transpose_solve is not None:
        raise error_here("custom_linear_solve: with symmetric=True, transpose_solve is not used")
    solved = Operator("custom_linear_solve", "solve", _solved, symmetric)
    return solved(matvec, b, solve, transpose_solve)


def _solved(matvec: Callable, b, solve: Callable, transpose_solve: Callable | None, symmetric: bool) -> Any:
    leaves, tree = flatten(b, changes)
    unknowns = Unknowns.like(leaves, tree)
    product, outside = _product(matvec, leaves, unknowns)
    try:
        transposed = transpose_of(product)
        v = product.inputs[0]
        at_zero = evaluate_graph(product, [np.zeros(v.shape, v.dtype), *map(value_of, outside)])
        trouble = "matvec(0) is not 0" if any(map(np.any, at_zero)) else None
    except AutodiffError:
        trouble = "its derivative depends on v"
    if trouble:
        raise error_here(f"custom_linear_solve: matvec has to be linear in v, and {trouble}")
    first, extra = _solver(solve, product, leaves, outside, unknowns)
    graphs = [product, first]
    if transpose_solve is not None:
        back, other = _solver(transpose_solve, transposed, leaves, outside, unknowns)
        graphs.append(back)
        extra += other
    graphs = on_all_inputs(1 + len(outside), *graphs)

    def back_solver() -> Graph:
        if transpose_solve is None:
            raise AutodiffError(
                f"{first.name}: its derivative in reverse mode solves with the transposed matrix. Give "
                "custom_linear_solve a transpose_solve, or say symmetric=True"
            )
        return graphs[2]

    rule = LinearSolve(graphs[0], graphs[1], back_solver, symmetric, graphs[2:])
    operands = operands_of_body(graphs[1], [unknowns.vector(leaves), *outside, *extra])
    (x,) = applied("call", operands, evaluate_call, graph=graphs[1], rule=rule)
    return unknowns.nested(x)


def _product(matvec: Callable, leaves: list, unknowns: Unknowns) -> tuple[Graph, list]:
    """(the graph of matvec on vectors, the values that it reads besides v)."""
    name = "custom_linear_solve"
    step = step_on_leaves(name, matvec, unknowns.tree, ("matvec", "v"))
    given = [np.asarray(value_of(x))[()] for x in leaves]
    rec, trouble = recorded_for_all(lambda: record(step, (given, [])), matvec)
    if trouble:
        raise error_here(f"{name}: matvec has to be linear, and {trouble}")
    for x, o in zip(leaves, rec.graph.outputs):
        given = np.asarray(value_of(x))
        if given.shape != o.shape or given.dtype != o.dtype or o.dtype.kind not in "fc":
            raise error_here(
                f"{name}: matvec turned v of shape {given.shape} and dtype {given.dtype} into one of shape "
                f"{o.shape} and dtype {o.dtype}; both have to be those of b, and floats"
            )
    return unknowns.graph(body_graph(rec)), rec.outside


def _solver(solve: Callable, product: Graph, leaves: list, outside: list, unknowns: Unknowns) -> tuple:
    """(the graph of (b, *consts, *more) -> x, the values of `more`): solve recorded, or called."""
    tree = unknowns.tree

    def flat(b, consts):
        def times(v):
            (product_with_v,) = inline(product, [unknowns.vector(flatten(v, changes)[0]), *consts])
            return unflatten(tree, unknowns.leaves(product_with_v))

        return leaves_of_carry("custom_linear_solve", solve(times, unflatten(tree, b)), tree, ("solve", "b"))

    flat.__name__ = getattr(solve, "__name__", "solve")
    example = [[np.asarray(value_of(x))[()] for x in part] for part in (leaves, outside)]
    try:
        with draws.plain_draws():
            rec, trouble = recorded_for_all(lambda: record(flat, example), solve)
    except Exception:  # it runs as plain Python; an error of its own is raised then
        rec, trouble = None, None
    if rec is not None and rec.lifted and trouble:
        raise error_here(
            f"custom_linear_solve: {flat.__name__} reads a recorded value that is neither b nor comes by "
            "matvec, and cannot be recorded for all b, as it branches on values or changes something. Let it "
            "read that through b or matvec"
        )
    if rec is None or trouble:
        return SolverCall(flat.__name__, Nested(solve, unknowns), [product]).as_graph(), []
    return unknowns.graph(body_graph(rec)), rec.outside
