"""Rules for solutions of equations: derivatives from the equation, not from the solver's steps.

    LinearSolve   x with A x = b           dx = A^-1 (db - dA x)
    Root          x with f(x, c) = 0       dx = -(df/dx)^-1 (df/dc) dc, as a step of Newton's method has it

and backwards their transposes. Both are rules of a `call` (call.py) whose graph is the solver, most often as
one `host` op. A rule is written as graphs for one example:

    tangent(active)     (*x, *args, *tangents of the active args) -> *dx
    cotangent(wanted)   (*x, *args, *gradients of x)              -> *gradients of the wanted args

They call the solvers again, so that derivatives of any order come for free. Griewank and Walther 2008,
Evaluating Derivatives, chapter 15; Blondel and others 2022, Efficient and modular implicit differentiation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ..custom.call import all_batched, call, check_linear
from ..derive.differentiate import gradients, pushforward
from ..errors import AutodiffError
from ..graph import Graph, Node, remade
from ..ops import apply
from ..ops.build import cast, concatenate, reshape, take_slice
from ..ops.linalg import solve
from ..ops.subgraph import inputs_like, is_float, items, splice, zeros_like
from ..pipeline import program_of
from ..transforms.jacobian import jacobian_blocks
from .solvers import Vector, gmres

DENSE = 256  # unknowns: up to so many the Jacobian is a matrix, else a function that multiplies


class Implicit:
    """A rule of a `call`; see the head of this file."""

    inlined = True

    def tangent(self, active: tuple[bool, ...]) -> Graph:
        raise NotImplementedError

    def cotangent(self, wanted: tuple[bool, ...]) -> Graph:
        raise NotImplementedError

    def structure(self) -> tuple:
        """The key that distinguishes it from other rules of its class (programs/keys.py)."""
        raise NotImplementedError

    def push(self, graph: Graph, tangents: Sequence[Node | None], args: Sequence[Node]) -> list:
        active = tuple(t is not None and is_float(a) for t, a in zip(tangents, args))
        x = call(graph, self, args)
        moving = [t for t, has in zip(tangents, active) if has]
        return splice(self.tangent(active), [*x, *args, *moving])

    def pull(
        self, graph: Graph, cts: Sequence[Node | None], args: Sequence[Node], wanted: Sequence[bool]
    ) -> list:
        wanted = tuple(w and is_float(a) for w, a in zip(wanted, args))
        x = call(graph, self, args)
        douts = [zeros_like(o) if c is None else c for o, c in zip(graph.outputs, cts)]
        grads = iter(splice(self.cotangent(wanted), [*x, *args, *douts]))
        return [next(grads) if w else None for w in wanted]

    def batched(self, b: Any) -> Implicit:
        return Batched(self, b)


class Batched(Implicit):
    """A rule for many examples at once."""

    def __init__(self, one: Implicit, b: Any):
        self.one, self.b = one, b

    def tangent(self, active: tuple[bool, ...]) -> Graph:
        return all_batched(self.b, self.one.tangent(active))

    def cotangent(self, wanted: tuple[bool, ...]) -> Graph:
        return all_batched(self.b, self.one.cotangent(wanted))

    def structure(self) -> tuple:
        return self.one, self.b.n


# --- linear systems -------------------------------------------------------------------------------------


class LinearSolve(Implicit):
    """The rule of a call that solves A x = b.

    product     the graph of (*v, *consts) -> *A v
    solver      the graph of (*b, *consts) -> *x, the call's own
    backward    the graph of (*b, *consts) -> *x with A transposed; None if no solver for that was given
    symmetric   A is its own transpose
    """

    def __init__(self, product: Graph, solver: Graph, backward: Graph | None, symmetric: bool = False):
        self.product, self.solver, self.backward, self.symmetric = product, solver, backward, symmetric
        self.n = len(product.outputs)

    def structure(self) -> tuple:
        return self.product, self.solver, self.backward, self.symmetric

    @cached_property
    def transposed(self) -> LinearSolve:
        """The rule for A transposed."""
        if self.symmetric:
            return self
        if self.backward is None:
            raise AutodiffError(
                f"{self.solver.name}: its derivative in reverse mode solves with the transposed matrix. Give "
                "custom_linear_solve a transpose_solve, or say symmetric=True"
            )
        rule = LinearSolve(transpose_of(self.product, self.n), self.backward, self.solver)
        rule.__dict__["transposed"] = self
        return rule

    def solved(self, b: Sequence[Node], consts: Sequence[Node]) -> list[Node]:
        return call(self.solver, self, [*b, *consts])

    def tangent(self, active: tuple[bool, ...]) -> Graph:
        n = self.n
        x, args = inputs_like(self.product.inputs[:n]), inputs_like(self.solver.inputs)
        consts = args[n:]
        dots = {a: d for a, d, has in zip(args, inputs_like(args), active) if has}
        moved = pushforward(splice(self.product, [*x, *consts]), {c: dots[c] for c in consts if c in dots})
        rhs = [_less(dots.get(b), m, b) for b, m in zip(args[:n], moved)]
        return Graph([*x, *args, *dots.values()], self.solved(rhs, consts), "linear_solve_jvp")

    def cotangent(self, wanted: tuple[bool, ...]) -> Graph:
        n = self.n
        x, args = inputs_like(self.product.inputs[:n]), inputs_like(self.solver.inputs)
        cts, consts = inputs_like(x), args[n:]
        w = self.transposed.solved(cts, consts)
        wrt = [c for c, has in zip(consts, wanted[n:]) if has]
        seeds = [(o, -d) for o, d in zip(splice(self.product, [*x, *consts]), w)]
        grads = dict(zip(wrt, gradients(seeds, wrt))) if wrt else {}
        results = [d for d, has in zip(w, wanted) if has] + [grads[c] for c in wrt]
        return Graph([*x, *args, *cts], results, "linear_solve_vjp")


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


class SolvedBy(LinearSolve):
    """The rule of a call that solves A x = b by a solver for all matrices.

    by   by(product, b) -> x of flat lists, as of a SolverCall
    """

    def __init__(self, product: Graph, by: Callable):
        super().__init__(product, SolverCall("linear_solve", product, by).as_graph(), None)
        self.by = by

    @cached_property
    def transposed(self) -> LinearSolve:
        rule = SolvedBy(transpose_of(self.product, self.n), self.by)
        rule.__dict__["transposed"] = self
        return rule


# --- roots ----------------------------------------------------------------------------------------------


class Root(Implicit):
    """The rule of a call that finds the x of residual(x, consts) = 0, from an x0 that is its first argument.

    At the solution a step of Newton's method returns x: x - J^-1 residual(x, consts). With x and J constant
    this has the derivatives of x.

    residual       the graph of (*x, *consts) -> *r, like x
    linear_solve   linear_solve(product, b) -> x of flat lists, for systems with J; None: see `inverse`
    """

    def __init__(self, residual: Graph, linear_solve: Callable | None):
        self.residual, self.linear_solve = residual, linear_solve
        self.n = len(residual.outputs)

    def structure(self) -> tuple:
        return self.residual, self.linear_solve

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
            solution = SolvedBy(product, self.linear_solve or krylov).solved(b, point)
        return Graph([*b, *point], solution, self.residual.name + "_step")

    def tangent(self, active: tuple[bool, ...]) -> Graph:
        x, args, consts, step = self._step()
        dots = {a: d for a, d, has in zip(args, inputs_like(args), active) if has}
        same = dict(zip(consts, args[self.n :]))
        moved = pushforward(step, {c: dots[a] for c, a in same.items() if a in dots})
        results = [zeros_like(o) if m is None else m for o, m in zip(x, moved)]
        return Graph([*x, *args, *dots.values()], remade(results, same), "root_jvp")

    def cotangent(self, wanted: tuple[bool, ...]) -> Graph:
        x, args, consts, step = self._step()
        cts = inputs_like(x)
        grads = gradients(list(zip(step, cts)), [c for c, has in zip(consts, wanted[self.n :]) if has])
        starts = [zeros_like(a) for a, has in zip(args[: self.n], wanted) if has]  # x0
        results = remade([*starts, *grads], dict(zip(consts, args[self.n :])))
        return Graph([*x, *args, *cts], results, "root_vjp")

    def _step(self) -> tuple[list[Node], list[Node], list[Node], list[Node]]:
        """(x, args, consts, step): inputs, and a step of Newton's method from x, in which the residual reads
        consts, and J the constants among args.
        """
        args = inputs_like(self.residual.inputs)
        x, consts = inputs_like(args[: self.n]), inputs_like(args[self.n :])
        r = splice(self.residual, [*x, *consts])
        return x, args, consts, splice(self.inverse, [*(-o for o in r), *x, *args[self.n :]])


def jacobian_product(residual: Graph) -> Graph:
    """(*v, *x, *consts) -> *J v, where J is the Jacobian of the residual by x."""
    n = len(residual.outputs)
    v, fresh = inputs_like(residual.outputs), inputs_like(residual.inputs)
    r = splice(residual, fresh)
    moved = pushforward(r, dict(zip(fresh[:n], v)))
    return Graph(
        [*v, *fresh], [zeros_like(o) if m is None else m for o, m in zip(r, moved)], residual.name + "_jvp"
    )


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


def krylov(product: Callable, b: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The x of A x = b by GMRES, the default if a matrix would be too large."""
    return split(gmres(lambda v: flat(product(*split(v, b))), flat(b)), b)
