"""Rules for solutions of equations: derivatives from the equation, not from the solver's steps.

    LinearSolve   x with A x = b           dx = A^-1 (db - dA x)
    Root          x with f(x, c) = 0       dx = -(df/dx)^-1 (df/dc) dc, a LinearSolve

and backwards their transposes. Both are rules of forward mode of a `call` (custom/call.py) whose graph is the
solver, most often as one `host` op; x and b are one vector each (vectors.py). Their graphs call the solvers
again, so that derivatives of any order come for free. Griewank and Walther 2008, Evaluating Derivatives,
chapter 15; Blondel and others 2022, Efficient and modular implicit differentiation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from ..custom.call import CustomJVP, all_batched, call, host_graph, transposed
from ..derive.differentiate import gradients, pushforward
from ..graph import Graph, Node
from ..ops.build import reshape
from ..ops.linalg import solve
from ..ops.subgraph import inputs_like, is_float, or_zeros, splice
from ..pipeline import program_of
from ..transforms.jacobian import jacobian_blocks
from .solvers import gmres

DENSE = 256  # unknowns: up to so many the Jacobian is a matrix, else a function that multiplies


class LinearSolve(CustomJVP):
    """The rule of a call that solves A x = b.

    product     the graph of (v, *consts) -> A v
    solver      the graph of (b, *consts) -> x, the call's own
    back        back() -> the same for A transposed
    symmetric   A is its own transpose
    key         what identifies `back`
    """

    def __init__(
        self, product: Graph, solver: Graph, back: Callable[[], Graph], symmetric: bool = False, *key: Any
    ):
        super().__init__(self.along, product, solver, symmetric, *key)
        self.product, self.solver, self.back, self.symmetric = product, solver, back, symmetric

    @cached_property
    def transposed(self) -> LinearSolve:
        """The rule for A transposed."""
        if self.symmetric:
            return self
        rule = LinearSolve(transpose_of(self.product), self.back(), lambda: self.solver)
        rule.transposed = self
        return rule

    def batched(self, b: Any) -> LinearSolve:
        all_of = partial(all_batched, b)
        product, solver = all_of(self.product), all_of(self.solver)
        return LinearSolve(product, solver, lambda: all_of(self.back()), self.symmetric, self, b.n)

    def solved(self, b: Node, consts: Sequence[Node]) -> Node:
        return call(self.solver, self, [b, *consts])[0]

    def along(self, active: tuple[bool, ...]) -> Graph:
        """The graph of dx = A^-1 (db - dA x)."""
        x, *consts = inputs_like(self.product.inputs)
        (b,) = inputs_like(self.solver.inputs[:1])
        dots = {a: d for a, d, has in zip((b, *consts), inputs_like([b, *consts]), active) if has}
        moving = {c: dots[c] for c in consts if c in dots}
        rhs = or_zeros(dots.get(b), b)
        (moved,) = pushforward(splice(self.product, [x, *consts]), moving)
        rhs = rhs if moved is None else rhs - moved
        return Graph([x, b, *consts, *dots.values()], [self.solved(rhs, consts)], "linear_solve_jvp")

    def pull(self, graph: Graph, cts: Sequence, args: Sequence[Node], wanted: Sequence[bool]) -> list:
        """db = A^-T dx, and the gradients of the constants are those of -A x along it."""
        _, *consts = args
        w = self.transposed.solved(or_zeros(cts[0], graph.outputs[0]), consts)
        fresh, (mark,) = inputs_like(self.product.inputs), inputs_like([w])
        wrt = [c for c, has in zip(fresh[1:], wanted[1:]) if has and is_float(c)]
        (product,) = splice(self.product, fresh)
        back = Graph([*fresh, mark], gradients([(product, -mark)], wrt), "linear_solve_vjp")
        grads = dict(zip(wrt, splice(back, [*call(graph, self, args), *consts, w])))
        return [w, *map(grads.get, fresh[1:])]


def transpose_of(product: Graph) -> Graph:
    """(v, *consts) -> A v, for A transposed. Raises AutodiffError where the product is not linear in v."""
    v, *consts = inputs_like(product.inputs)
    (w,) = inputs_like(product.outputs)
    trouble = f"{product.name}: the product with a matrix is not linear in v"
    (back,) = transposed(splice(product, [v, *consts]), [v], [w], trouble)
    return Graph([w, *consts], [or_zeros(back, v)], product.name + "_transposed")


class SolverCall:
    """The function of a `host` op: solver(*functions, first, *settings) -> x, where the functions run graphs
    with the consts of this call.
    """

    def __init__(self, name: str, solver: Callable, graphs: Sequence[Graph], settings: tuple = ()):
        self.__name__ = name
        self.solver, self.graphs, self.settings = solver, tuple(graphs), settings

    def structure(self) -> tuple:
        return self.__name__, self.solver, self.graphs, self.settings

    def __call__(self, first: np.ndarray, *consts: np.ndarray) -> tuple[np.ndarray]:
        def function(graph: Graph) -> Callable:
            return lambda *vectors: program_of(graph)(*vectors, *consts)[0]

        x = self.solver(*map(function, self.graphs), np.array(first), *self.settings)
        return (np.asarray(x, first.dtype),)

    def as_graph(self) -> Graph:
        """(first, *consts) -> x."""
        inputs = inputs_like(self.graphs[0].inputs)
        return host_graph(self, inputs, inputs[:1])


class Root(CustomJVP):
    """The rule of a call that finds the x of residual(x, consts) = 0, from an x0 that is its first argument.

    residual       the graph of (x, *consts) -> r, like x
    linear_solve   linear_solve(product, b) -> x, for systems with J; None: see `inverse`
    """

    def __init__(self, residual: Graph, linear_solve: Callable | None):
        super().__init__(self.along, residual, linear_solve)
        self.residual, self.linear_solve = residual, linear_solve

    @cached_property
    def inverse(self) -> Graph:
        """(b, x, *consts) -> J^-1 b, J by x: as a matrix, for few unknowns, or by a solver or GMRES."""
        b, *point = inputs_like([self.residual.outputs[0], *self.residual.inputs])
        if self.linear_solve is None and b.size <= DENSE:
            matrix = Graph(self.residual.inputs, jacobian_blocks(self.residual, [0], [0], "columns")[0])
            solution = reshape(solve(splice(matrix, point)[0], reshape(b, (b.size, 1))), b.shape)
        else:
            x, *consts = inputs_like(self.residual.inputs)
            (v,) = inputs_like(self.residual.outputs)
            (moved,) = pushforward(splice(self.residual, [x, *consts]), {x: v})
            product = Graph([v, x, *consts], [or_zeros(moved, v)], self.residual.name + "_jvp")
            rule = LinearSolve(product, self._solver(product), lambda: self._solver(transpose_of(product)))
            solution = rule.solved(b, point)
        return Graph([b, *point], [solution], self.residual.name + "_step")

    def _solver(self, product: Graph) -> Graph:
        """(b, *consts) -> the x with product(x, *consts) = b."""
        return SolverCall("linear_solve", self.linear_solve or gmres, [product]).as_graph()

    def along(self, active: tuple[bool, ...]) -> Graph:
        """The graph of dx = -J^-1 (dr/dconsts) dconsts."""
        x, *consts = inputs_like(self.residual.inputs)
        (x0,) = inputs_like([x])
        dots = {a: d for a, d, has in zip((x0, *consts), inputs_like([x0, *consts]), active) if has}
        moving = {c: dots[c] for c in consts if c in dots}
        (moved,) = pushforward(splice(self.residual, [x, *consts]), moving)
        dx = splice(self.inverse, [-or_zeros(moved, x), x, *consts])
        return Graph([x, x0, *consts, *dots.values()], dx, "root_jvp")
