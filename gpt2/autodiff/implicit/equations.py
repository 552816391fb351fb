"""ad.fixed_point and ad.root: solutions of equations, differentiated by the implicit function theorem.

The solver is a plain function that runs when the program comes to it. No derivative leads through its steps:
the equation that its result solves says what the derivative is (implicit/rules.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..custom.call import evaluate_call
from ..errors import AutodiffError
from ..graph import Graph
from ..ops.subgraph import inputs_like
from ..programs.bodies import applied, body_graph, changes, operands_of_body, recorded_for_all
from ..programs.carries import leaves_of_carry, own, recorded_step
from ..programs.operators import Operator
from ..programs.transform import as_kind, result_kind
from ..record.source_lines import here
from ..record.value import Recorded, value_of
from ..tree import Tree, flatten, unflatten
from . import solvers
from .rules import DENSE, Root, SolverCall, dense_solve, flat, jacobian_product, krylov, negative, split


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
    x0            where to begin: floats, nested as you like. It has no derivative
    params        what f depends on besides, with derivatives. So have values from outside that f reads
    tol           how far a step may still move x, for each unit of its size where that is above 1; by default
                  2e-13, and 1e-4 in single precision
    max_steps     after how many steps to give up
    solver        solver(f, x0) -> x, a plain function of yours in the place of x0, f(x0), f(f(x0)), ...
                  Its f takes x alone, and plain arrays. tol and max_steps are yours then as well
    linear_solve  linear_solve(matvec, b) -> the v with matvec(v) = b, for derivatives; see below

    The derivative solves dx = (df/dx) dx + (df/dparams) dparams, in both modes and to any order: no step of
    the solver is kept. For up to 256 unknowns df/dx is written out as a matrix; for more it is only
    multiplied with, by GMRES or by your linear_solve.

    Raises ConvergenceError with the residual and the number of steps where x does not settle, and
    AutodiffError, with the line, where f changes a shape or a dtype, or branches on values.

        >>> print(round(ad.fixed_point(lambda x, a: np.cos(a * x), 0.5, 1.0), 6))
        0.739085
    """
    how = FixedPoint(_tolerance("fixed_point", tol, max_steps), max_steps)
    return how.of(f, x0, params, solver, linear_solve)


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
    x0            where to begin: floats, nested as you like. It has no derivative
    params        what f depends on besides, with derivatives. So have values from outside that f reads
    tol           the largest entry of f(x) that counts as zero; by default 1e-10, and 1e-4 in single
                  precision. The last step goes beyond it: Newton's method squares what is left
    max_steps     of Newton's method, each halved as often as it leads uphill
    solver        solver(f, x0) -> x, a plain function of yours, as one around scipy.optimize.root. Its f
                  takes x alone, and plain arrays. tol and max_steps are yours then as well
    linear_solve  linear_solve(matvec, b) -> the v with matvec(v) = b, for Newton's steps and for derivatives

    The derivative solves (df/dx) dx = -(df/dparams) dparams, in both modes and to any order. For up to 256
    unknowns df/dx is written out as a matrix; for more it is only multiplied with, by GMRES or by your
    linear_solve.

    Raises ConvergenceError with the residual and the number of steps, and AutodiffError as fixed_point does.

        >>> print(round(ad.root(lambda x, a: x**3 - a, 1.0, 2.0), 6))
        1.259921
    """
    how = RootOf(_tolerance("root", tol, max_steps), max_steps)
    return how.of(f, x0, params, solver, linear_solve)


def _tolerance(name: str, tol: float | None, max_steps: int) -> float | None:
    if tol is not None and not (isinstance(tol, (int, float)) and 0 <= tol < math.inf):
        raise AutodiffError(f"{name}: tol is {tol!r}, expected a number that is not negative", here())
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise AutodiffError(f"{name}: max_steps is {max_steps!r}, expected a positive int", here())
    return tol


class Equation(NamedTuple):
    """What is to be solved: the graph of f on flat values, how exactly, by whom (None: by what is here), and
    the structure and kinds of its unknowns.
    """

    f: Graph
    tol: float
    solver: Any
    linear_solve: Any
    tree: Tree
    kinds: Sequence


class Solution:
    """How an equation is solved."""

    name: str
    default_tol = 1e-10

    def __init__(self, tol: float | None, max_steps: int):
        self.tol, self.max_steps = tol, max_steps

    def of(self, f: Callable, x0: Any, params: tuple, solver: Any, linear_solve: Any) -> Any:
        """The solution, by a program that is kept with f; or as part of the recording that is under way."""

        def solved(f, x0, params, solver, linear_solve, *settings):
            return self.solved(f, x0, params, solver, linear_solve)

        operator = Operator(self.name, self.name, solved, self.tol, self.max_steps)
        return operator(f, x0, params, solver, linear_solve)

    def solved(self, f: Callable, x0: Any, params: tuple, solver: Any, linear_solve: Any) -> Any:
        """The solution as a recorded value, if f depends on one."""
        x, tree = flatten(x0, changes)
        kinds = [result_kind(value_of(v)) for v in x]
        f_graph, outside = _recorded(self.name, f, x, tree, params)
        residual = self.residual(f_graph)
        tol = self.tolerance(residual)
        search = self.search(Equation(f_graph, tol, solver, linear_solve, tree, kinds))
        flat_solve = None if linear_solve is None else InTree(linear_solve, tree, kinds)
        rule = Root(residual, flat_solve, krylov)
        graph = search.as_graph()
        operands = operands_of_body(graph, [*x, *outside])
        found = applied("call", operands, evaluate_call, graph=graph, rule=rule)
        return unflatten(tree, [as_kind(v, kind) for v, kind in zip(found, kinds)])

    def tolerance(self, residual: Graph) -> float:
        if self.tol is not None:
            return float(self.tol)
        single = any(o.dtype.itemsize < 8 for o in residual.outputs)
        return 1e-4 if single else self.default_tol

    def residual(self, f: Graph) -> Graph:
        """The function that is zero at the solution."""
        raise NotImplementedError

    def search(self, q: Equation) -> SolverCall:
        """The function that the program calls for the solution."""
        raise NotImplementedError


class FixedPoint(Solution):
    name = "fixed_point"
    default_tol = 2e-13

    def residual(self, f: Graph) -> Graph:
        """x - f(x), whose Jacobian is the matrix of the derivative."""
        x = f.inputs[: len(f.outputs)]
        return Graph(f.inputs, [a - b for a, b in zip(x, f.outputs)], f.name)

    def search(self, q: Equation) -> SolverCall:
        if q.solver is not None:
            return SolverCall(q.f.name, q.f, InTree(q.solver, q.tree, q.kinds))
        return SolverCall(q.f.name, q.f, Iterated(q.tol, self.max_steps, here()))


class RootOf(Solution):
    name = "root"

    def residual(self, f: Graph) -> Graph:
        return f

    def search(self, q: Equation) -> SolverCall:
        if q.solver is not None:
            return SolverCall(q.f.name, q.f, InTree(q.solver, q.tree, q.kinds))
        product = jacobian_product(q.f)
        dense = q.linear_solve is None and sum(o.size for o in q.f.outputs) <= DENSE
        by = krylov if q.linear_solve is None else InTree(q.linear_solve, q.tree, q.kinds)
        extra = _newton_step(q.f, product) if dense else product
        method = Newton(q.tol, self.max_steps, here(), None if dense else by)
        return SolverCall(q.f.name, q.f, method, [extra])


def _newton_step(f: Graph, product: Graph) -> Graph:
    """(*x, *r, *consts) -> *d with J d = -r."""
    n = len(f.outputs)
    fresh, r = inputs_like(f.inputs), inputs_like(f.outputs)
    d = dense_solve(product, [negative(x) for x in r], fresh, False)
    return Graph([*fresh[:n], *r, *fresh[n:]], d, f.name + "_step")


def _recorded(name: str, f: Callable, x: list, tree: Tree, params: tuple) -> tuple[Graph, list]:
    """(the graph of f on flat values, what it reads besides x). `x` is put into the dtypes of its results."""
    for v in x:
        dtype = np.asarray(value_of(v)).dtype
        if dtype.kind == "c":
            raise AutodiffError(
                f"{name}: x0 is complex. Solve for the real and the imaginary part as two floats", here()
            )
    x[:] = [float(v) if isinstance(value_of(v), int) and type(v) is not Recorded else v for v in x]

    def step(leaves, _):
        return leaves_of_carry(name, f(unflatten(tree, list(map(own, leaves))), *params), tree, WORDS), []

    step.__name__ = getattr(f, "__name__", "f")
    rec, trouble = recorded_for_all(lambda: recorded_step(name, step, x, tree, [], WORDS), f)
    if trouble:
        raise AutodiffError(
            f"{name}: f has to be the same function at every x, and {trouble}. Choose with np.where, and "
            "take what changes as an argument",
            here(),
        )
    kinds = {o.dtype.kind for o in rec.graph.outputs[: len(x)]}
    if kinds - {"f"}:
        raise AutodiffError(f"{name}: x0 has to be made of floats", here())
    return body_graph(rec), rec.operands([None] * len(x))[len(x) :]


WORDS = ("f", "x")


class InTree:
    """A solver of the user's, which sees values in the structure of x, as one of flat lists."""

    def __init__(self, solver: Callable, tree: Tree, kinds: Sequence[str]):
        self.solver, self.tree, self.kinds = solver, tree, tuple(kinds)

    def structure(self) -> tuple:
        return self.solver, self.tree, self.kinds

    def __call__(self, function: Callable, *rest: Any) -> list:
        first = rest[-1]

        def f(x):
            leaves = [np.asarray(v, a.dtype) for v, a in zip(self.leaves(x), first)]
            return self.as_given(function(*leaves))

        return [
            np.asarray(v).reshape(a.shape)
            for v, a in zip(self.leaves(self.solver(f, self.as_given(first))), first)
        ]

    def as_given(self, leaves: Sequence) -> Any:
        return unflatten(self.tree, [as_kind(np.asarray(v), k) for v, k in zip(leaves, self.kinds)])

    def leaves(self, x: Any) -> list:
        found, tree = flatten(x, changes)
        if tree != self.tree:
            name = getattr(self.solver, "__name__", "solver")
            raise AutodiffError(f"{name}: expected values with the structure {self.tree}, got {tree}")
        return found


class Iterated:
    """x = f(x) again and again, as a solver of flat lists."""

    def __init__(self, tol: float, max_steps: int, loc: tuple | None):
        self.tol, self.max_steps, self.loc = tol, max_steps, loc

    def structure(self) -> tuple:
        return self.tol, self.max_steps, self.loc

    def __call__(self, f: Callable, first: list) -> list:
        def of(x):
            return flat(f(*split(x, first)))

        return split(solvers.iterate(of, flat(first), self.tol, self.max_steps, self.loc), first)


class Newton:
    """Newton's method, as a solver of flat lists.

    by   None: the last function gives steps, (*x, *r) -> *d. Else it multiplies with the Jacobian,
         (*v, *x) -> *J v, and by(product, b) solves for the step
    """

    def __init__(self, tol: float, max_steps: int, loc: tuple | None, by: Callable | None):
        self.tol, self.max_steps, self.loc, self.by = tol, max_steps, loc, by

    def structure(self) -> tuple:
        return self.tol, self.max_steps, self.loc, self.by

    def __call__(self, f: Callable, extra: Callable, first: list) -> list:
        def of(x):
            return flat(f(*split(x, first)))

        def step(x, r):
            there, left = split(x, first), split(r, first)
            if self.by is None:
                return flat(extra(*there, *left))
            return flat(self.by(lambda *v: extra(*v, *there), [-part for part in left]))

        return split(solvers.newton(of, step, flat(first), self.tol, self.max_steps, self.loc), first)
