"""ad.fixed_point and ad.root: solutions of equations, differentiated by the implicit function theorem.

The solver is a plain function that runs as part of the program. Its steps are not differentiated: the
derivative follows from the equation that its result solves (implicit/rules.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..custom.call import evaluate_call
from ..graph import Graph
from ..programs.bodies import applied, body_graph, changes, operands_of_body, recorded_for_all
from ..programs.carries import recorded_step, step_on_leaves, writable
from ..programs.compile import Operator
from ..programs.wiring import result_kind
from ..record.source_lines import error_here, here
from ..record.value import Recorded, value_of
from ..tracebacks import of_user
from ..tree import Tree, flatten, tree_map
from . import solvers
from .rules import Root, SolverCall
from .vectors import Nested, Unknowns


@of_user
def fixed_point(
    f: Callable,
    x0: Any,
    *params: Any,
    tol: float | None = None,
    max_steps: int = 1000,
    solver: Callable | None = None,
    linear_solve: Callable | None = None,
) -> Any:
    """The x with x = f(x, *params).

    f             f(x, *params) -> x, of the same structure, shapes and dtypes
    x0            the starting point: floats, nested as you like. It has no derivative
    params        other arguments, with derivatives. Values from outside that f reads have derivatives as well
    tol           the largest change of x in the last step, relative to x where that is above 1; by default
                  2e-13, and 1e-4 in single precision
    max_steps     the most steps
    solver        solver(f, x0) -> x, a plain function instead of x0, f(x0), f(f(x0)), ... Its f takes only x,
                  as plain arrays. tol and max_steps are not used then
    linear_solve  linear_solve(matvec, b) -> the v with matvec(v) = b, for derivatives; see below

    The derivative solves dx = (df/dx) dx + (df/dparams) dparams, in both modes and to any order: no step of
    the solver is kept. For up to 256 unknowns df/dx is written out as a matrix; for more it is only
    multiplied with, by GMRES or by your linear_solve.

    Raises ConvergenceError with the residual and the number of steps if the iteration does not converge, and
    AutodiffError, with the line, if f changes a shape or a dtype, or branches on values.

        >>> print(round(ad.fixed_point(lambda x, a: np.cos(a * x), 0.5, 1.0), 6))
        0.739085
    """
    return _solved("fixed_point", tol, max_steps)(f, x0, params, solver, linear_solve)


@of_user
def root(
    f: Callable,
    x0: Any,
    *params: Any,
    tol: float | None = None,
    max_steps: int = 50,
    solver: Callable | None = None,
    linear_solve: Callable | None = None,
) -> Any:
    """The x with f(x, *params) = 0.

    f             f(x, *params) -> as many numbers as x has, in the same structure and shapes
    x0            the starting point: floats, nested as you like. It has no derivative
    params        other arguments, with derivatives. Values from outside that f reads have derivatives as well
    tol           the largest entry of f(x) that counts as zero; by default 1e-10, and 1e-4 in single
                  precision. One more step is taken: Newton's method squares the error
    max_steps     the most steps of Newton's method, each halved while it increases the residual
    solver        solver(f, x0) -> x, a plain function, such as one around scipy.optimize.root. Its f takes
                  only x, as plain arrays. tol and max_steps are not used then
    linear_solve  linear_solve(matvec, b) -> the v with matvec(v) = b, for Newton's steps and for derivatives

    The derivative solves (df/dx) dx = -(df/dparams) dparams, in both modes and to any order. For up to 256
    unknowns df/dx is written out as a matrix; for more it is only multiplied with, by GMRES or by your
    linear_solve.

    Raises ConvergenceError with the residual and the number of steps, and AutodiffError as fixed_point does.

        >>> print(round(ad.root(lambda x, a: x**3 - a, 1.0, 2.0), 6))
        1.259921
    """
    return _solved("root", tol, max_steps)(f, x0, params, solver, linear_solve)


def _solved(name: str, tol: float | None, max_steps: int) -> Operator:
    if tol is not None and not (isinstance(tol, (int, float)) and 0 <= tol < math.inf):
        raise error_here(f"{name}: tol is {tol!r}, expected a number that is not negative")
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise error_here(f"{name}: max_steps is {max_steps!r}, expected a positive int")
    return Operator(name, name, _solution, name, tol, max_steps)


def _solution(f, x0, params, solver, linear_solve, name: str, tol: float | None, max_steps: int) -> Any:
    """The solution in the structure of x0, as a recorded value if f depends on one."""
    x, tree = flatten(x0, changes)
    kinds = tuple(map(result_kind, x))
    graph, outside = _recorded(name, f, x, tree, params)
    unknowns = replace(Unknowns.like(x, tree), kinds=kinds)
    of_vectors = unknowns.graph(graph)
    residual, default = of_vectors, 1e-10
    if name == "fixed_point":  # a root of x - f(x), found by iterating f
        residual = Graph(of_vectors.inputs, [of_vectors.inputs[0] - of_vectors.outputs[0]], graph.name)
        default = 2e-13
    rule = Root(residual, None if linear_solve is None else Nested(linear_solve, unknowns))
    if tol is None:
        tol = 1e-4 if any(dtype.itemsize < 8 for dtype in unknowns.dtypes) else default
    settings = float(tol), max_steps, here()
    if solver is not None:
        search = SolverCall(graph.name, Nested(solver, unknowns), [of_vectors])
    elif name == "fixed_point":
        search = SolverCall(graph.name, solvers.iterate, [of_vectors], settings)
    else:
        search = SolverCall(graph.name, solvers.newton, [of_vectors, rule.inverse], settings)
    call = search.as_graph()
    operands = operands_of_body(call, [unknowns.vector(x), *outside])
    (result,) = applied("call", operands, evaluate_call, graph=call, rule=rule)
    return unknowns.nested(result)


def _recorded(name: str, f: Callable, x: list, tree: Tree, params: tuple) -> tuple[Graph, list]:
    """(the graph of f on flat values, the values that it reads besides x). `x` is cast to its dtypes."""
    if any(np.asarray(value_of(v)).dtype.kind == "c" for v in x):
        raise error_here(f"{name}: x0 is complex. Solve for the real and the imaginary part as two floats")
    x[:] = [float(v) if isinstance(value_of(v), int) and type(v) is not Recorded else v for v in x]

    def residual(x):
        return f(tree_map(writable, x, changes), *params)

    residual.__name__ = getattr(f, "__name__", "f")
    words = ("f", "x")
    step = step_on_leaves(name, residual, tree, words)
    rec, trouble = recorded_for_all(lambda: recorded_step(name, step, x, tree, [], words), f)
    if trouble:
        raise error_here(
            f"{name}: f has to be the same function at every x, and {trouble}. Choose with np.where, and "
            "take what changes as an argument"
        )
    if any(o.dtype.kind != "f" for o in rec.graph.outputs[: len(x)]):
        raise error_here(f"{name}: x0 has to be made of floats")
    return body_graph(rec), rec.outside
