"""Rules for solutions of equations: derivatives from the equation, not from the solver's steps.

    LinearSolve   x with A x = b           dx = A^-1 (db - dA x)
    Root          x with f(x, c) = 0       dx = -(df/dx)^-1 (df/dc) dc, a LinearSolve

and backwards their transposes. Both are rules of forward mode of a `call` (custom/call.py) whose graph is the
solver, most often as one `host` op. Their graphs call the solvers again, so that derivatives of any order
come for free. Griewank and Walther 2008, Evaluating Derivatives, chapter 15; Blondel and others 2022,
Efficient and modular implicit differentiation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from ..custom.call import CustomJVP, all_batched, call, check_linear
from ..derive.differentiate import gradients, pushforward
from ..graph import Graph, Node
from ..ops import apply
from ..ops.build import cast, concatenate, reshape, take_slice
from ..ops.linalg import solve
from ..ops.subgraph import inputs_like, is_float, items, or_zeros, splice, zeros_like
from ..pipeline import program_of
from ..transforms.jacobian import jacobian_blocks
from .solvers import Vector, gmres

DENSE = 256  # unknowns: up to so many the Jacobian is a matrix, else a function that multiplies


class LinearSolve(CustomJVP):
    """The rule of a call that solves A x = b.

    product     the graph of (*v, *consts) -> *A v
    solver      the graph of (*b, *consts) -> *x, the call's own
    back        back() -> the same for A transposed
    symmetric   A is its own transpose
    key         what identifies `back`
    """

    def __init__(
        self, product: Graph, solver: Graph, back: Callable[[], Graph], symmetric: bool = False, *key: Any
    ):
        super().__init__(self.along, product, solver, symmetric, *key)
        self.product, self.solver, self.back, self.symmetric = product, solver, back, symmetric
        self.n = len(product.outputs)

    @cached_property
    def transposed(self) -> LinearSolve:
        """The rule for A transposed."""
        if self.symmetric:
            return self
        rule = LinearSolve(transpose_of(self.product, self.n), self.back(), lambda: self.solver)
        rule.transposed = self
        return rule

    def batched(self, b: Any) -> LinearSolve:
        all_of = partial(all_batched, b)
        product, solver = all_of(self.product), all_of(self.solver)
        return LinearSolve(product, solver, lambda: all_of(self.back()), self.symmetric, self, b.n)

    def solved(self, b: Sequence[Node], consts: Sequence[Node]) -> list[Node]:
        return call(self.solver, self, [*b, *consts])

    def along(self, active: tuple[bool, ...]) -> Graph:
        """The graph of dx = A^-1 (db - dA x)."""
        n = self.n
        x, args = inputs_like(self.product.inputs[:n]), inputs_like(self.solver.inputs)
        dots = {a: d for a, d, has in zip(args, inputs_like(args), active) if has}
        moved = pushforward(
            splice(self.product, [*x, *args[n:]]), {c: dots[c] for c in args[n:] if c in dots}
        )
        rhs = [_less(dots.get(b), m, b) for b, m in zip(args[:n], moved)]
        return Graph([*x, *args, *dots.values()], self.solved(rhs, args[n:]), "linear_solve_jvp")

    def pull(
        self, graph: Graph, cts: Sequence[Node | None], args: Sequence[Node], wanted: Sequence[bool]
    ) -> list:
        """db = A^-T dx, and the gradients of the constants are those of -A x along it."""
        n, consts = self.n, args[self.n :]
        w = self.transposed.solved([or_zeros(c, o) for c, o in zip(cts, graph.outputs)], consts)
        fresh, marks = inputs_like(self.product.inputs), inputs_like(w)
        wrt = [c for c, has in zip(fresh[n:], wanted[n:]) if has and is_float(c)]
        seeds = [(o, -d) for o, d in zip(splice(self.product, fresh), marks)]
        back = Graph([*fresh, *marks], gradients(seeds, wrt), "linear_solve_vjp")
        grads = dict(zip(wrt, splice(back, [*call(graph, self, args), *consts, *w])))
        return [*w, *map(grads.get, fresh[n:])]


def _less(b: Node | None, m: Node | None, like: Node) -> Node:
    """b - m, where None is zero."""
    if b is None:
        return zeros_like(like) if m is None else -m
    return b if m is None else b - m


def transpose_of(product: Graph, n: int) -> Graph:
    """(*v, *consts) -> *A v, for A transposed. Raises AutodiffError where the product is not linear in v."""
    fresh = inputs_like(product.inputs)
    v, w = fresh[:n], inputs_like(product.outputs)
    transposed = gradients(list(zip(splice(product, fresh), w)), v)
    check_linear(transposed, v, f"{product.name}: the product with a matrix", "v")
    return Graph([*w, *fresh[n:]], transposed, product.name + "_transposed")


class SolverCall:
    """The function of a `host` op: a solver of flat lists, with the program of a graph as its first argument.

    solver   solver(product, b) -> x, where product(v) runs the graph with the consts of this call
    """

    def __init__(self, name: str, graph: Graph, solver: Callable, extra: Sequence[Graph] = ()):
        self.__name__ = name
        self.graph, self.solver, self.extra = graph, solver, tuple(extra)
        self.n = len(graph.outputs)

    def structure(self) -> tuple:
        return self.__name__, self.graph, self.solver, self.extra

    def __call__(self, *values: np.ndarray) -> tuple[np.ndarray, ...]:
        first, consts = values[: self.n], values[self.n :]
        functions = [_at(g, consts) for g in (self.graph, *self.extra)]
        solution = self.solver(*functions, [np.array(x) for x in first])
        return tuple(np.asarray(x, o.dtype) for x, o in zip(solution, self.graph.outputs, strict=True))

    def as_graph(self) -> Graph:
        """(*first, *consts) -> *found."""
        inputs = inputs_like(self.graph.inputs)
        outputs = self.graph.outputs
        node = apply(
            "host",
            *inputs,
            function=self,
            shapes=tuple(o.shape for o in outputs),
            dtypes=tuple(str(o.dtype) for o in outputs),
        )
        return Graph(inputs, items(node), self.__name__)


def _at(graph: Graph, consts: Sequence) -> Callable:
    """The program of a graph as a function of all but its last inputs."""

    def run(*first):
        return program_of(graph)(*first, *consts)

    return run


def solved_by(product: Graph, solver: Callable) -> LinearSolve:
    """The rule of a call that solves A x = b by a solver for all matrices: solver(product, b) -> x."""

    def graph(product: Graph) -> Graph:
        return SolverCall("linear_solve", product, solver).as_graph()

    n = len(product.outputs)
    return LinearSolve(product, graph(product), lambda: graph(transpose_of(product, n)))


# --- roots ----------------------------------------------------------------------------------------------


class Root(CustomJVP):
    """The rule of a call that finds the x of residual(x, consts) = 0, from an x0 that is its first argument.

    residual       the graph of (*x, *consts) -> *r, like x
    linear_solve   linear_solve(product, b) -> x of flat lists, for systems with J; None: see `inverse`
    """

    def __init__(self, residual: Graph, linear_solve: Callable | None):
        super().__init__(self.along, residual, linear_solve)
        self.residual, self.linear_solve = residual, linear_solve

    @cached_property
    def inverse(self) -> Graph:
        """(*b, *x, *consts) -> *J^-1 b, where J is the Jacobian of the residual by x: with J as a matrix for
        few unknowns, if the user gave no solver, else by that solver or GMRES.
        """
        b, point = inputs_like(self.residual.outputs), inputs_like(self.residual.inputs)
        if self.linear_solve is None and sum(x.size for x in b) <= DENSE:
            solution = dense_solve(self.residual, b, point)
        else:
            product = jacobian_product(self.residual)
            solution = solved_by(product, self.linear_solve or OnVectors(gmres)).solved(b, point)
        return Graph([*b, *point], solution, self.residual.name + "_step")

    def along(self, active: tuple[bool, ...]) -> Graph:
        """The graph of dx = -J^-1 (dr/dconsts) dconsts."""
        n = len(self.residual.outputs)
        x, args = inputs_like(self.residual.outputs), inputs_like(self.residual.inputs)
        dots = {a: d for a, d, has in zip(args, inputs_like(args), active) if has}
        r = splice(self.residual, [*x, *args[n:]])
        moved = pushforward(r, {c: dots[c] for c in args[n:] if c in dots})
        b = [_less(None, m, o) for o, m in zip(r, moved)]
        return Graph([*x, *args, *dots.values()], splice(self.inverse, [*b, *x, *args[n:]]), "root_jvp")


def jacobian_product(residual: Graph) -> Graph:
    """(*v, *x, *consts) -> *J v, where J is the Jacobian of the residual by x."""
    n = len(residual.outputs)
    v, fresh = inputs_like(residual.outputs), inputs_like(residual.inputs)
    r = splice(residual, fresh)
    moved = pushforward(r, dict(zip(fresh[:n], v)))
    return Graph([*v, *fresh], [or_zeros(m, o) for o, m in zip(r, moved)], residual.name + "_jvp")


def dense_solve(residual: Graph, b: Sequence[Node], point: Sequence[Node]) -> list[Node]:
    """J^-1 b, with J as a matrix."""
    matrix = jacobian_matrix(residual, point)
    solution = solve(matrix, _joined([reshape(cast(x, matrix.dtype), (x.size, 1)) for x in b], 0))
    parts, start = [], 0
    for x in b:
        parts.append(cast(reshape(take_slice(solution, 0, start, start + x.size), x.shape), x.dtype))
        start += x.size
    return parts


def jacobian_matrix(residual: Graph, point: Sequence[Node]) -> Node:
    """The Jacobian of the residual by x, with a row for each number in it."""
    n = len(residual.outputs)
    dtype = np.result_type(*(o.dtype for o in residual.outputs))
    blocks = jacobian_blocks(residual, range(n), range(n), "columns")
    rows = [
        _joined([cast(reshape(d, (o.size, x.size)), dtype) for d, x in zip(row, residual.inputs)], 1)
        for row, o in zip(blocks, residual.outputs)
    ]
    return splice(Graph(residual.inputs, [_joined(rows, 0)], residual.name), point)[0]


def _joined(parts: Sequence[Node], axis: int) -> Node:
    return concatenate(parts, axis) if len(parts) > 1 else parts[0]


def flat(parts: Sequence[np.ndarray]) -> Vector:
    """One vector of all entries."""
    return np.concatenate([np.ravel(x) for x in parts])


def split(x: Vector, like: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The entries of a vector in the shapes and dtypes of these arrays."""
    ends = np.cumsum([p.size for p in like])[:-1]
    return [part.reshape(p.shape).astype(p.dtype) for part, p in zip(np.split(x, ends), like)]


@dataclass(frozen=True)
class OnVectors:
    """A solver of flat vectors, solver(*functions, first, *settings), as one of lists of arrays."""

    solver: Callable
    settings: tuple = ()

    def __call__(self, *functions_and_first: Any) -> list[np.ndarray]:
        *functions, first = functions_and_first

        def on_vectors(f: Callable) -> Callable:
            return lambda *vectors: flat(f(*(part for v in vectors for part in split(v, first))))

        return split(self.solver(*map(on_vectors, functions), flat(first), *self.settings), first)
