"""ad.jacobian, ad.jacrev and others: derivatives as arrays, by rows or by columns, whichever are fewer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from ..derive.differentiate import gradients, pushforward
from ..errors import AutodiffError
from ..graph import Graph, Node, reachable, remade
from ..loops.map_op import map_node
from ..ops import apply, const, input_node
from ..ops.build import broadcast, cast, reshape, transpose
from ..ops.subgraph import or_zeros
from ..programs.arguments import checked_argnums, differentiated
from ..programs.derived import derived_function
from ..programs.wiring import ARRAY, NUMBER, SCALAR, Arguments, Out, Transform, Wiring, result_outs
from ..record.record import Recording
from .gradient import gradient_of
from .unit_vectors import unit_vectors
from .vmap import batched

MOST = 1 << 24  # elements of a value: larger ones are made slice by slice, in a loop


class Jacobian(Transform):
    """By rows (pullbacks) or columns (tangents), whichever are fewer, in one batched program."""

    name, suffix = "jacobian", "jacobian"
    by: str | None = None

    def __init__(self, argnums: int | Sequence[int]):
        self.argnums = checked_argnums(self.name, argnums)

    def key(self) -> tuple:
        return type(self), self.argnums

    def check(self, call: Arguments, f: Callable) -> None:
        differentiated(self, call, f)

    def wiring(self, rec: Recording, call: Arguments, f: Callable) -> Wiring:
        wrt = differentiated(self, call, f)
        graph = Graph(rec.graph.inputs, rec.graph.outputs[: rec.n_results], rec.graph.name)
        outs = result_outs(rec)
        for path, o in zip(rec.out_tree.paths(), outs):
            if graph.outputs[o.index].dtype.kind not in "fc":
                raise AutodiffError(
                    f"{self.name}: {rec.graph.name} returns {graph.outputs[o.index].dtype}"
                    f"{' at ' + str(path) if path else ''}, which has no derivative"
                )
        blocks = jacobian_blocks(graph, wrt.leaves, [o.index for o in outs], self.by)
        kinds = []
        for o, i, kind in [(o, i, kind) for o in outs for i, kind in zip(wrt.leaves, wrt.kinds)]:
            has_axes = graph.outputs[o.index].shape or graph.inputs[i].shape
            kinds.append(ARRAY if has_axes else NUMBER if o.kind == kind == NUMBER else SCALAR)
        tree = rec.out_tree.mapped(lambda: wrt.tree, lambda static: static)
        joint = Graph(graph.inputs, [*chain(*blocks)], graph.name + "_jacobian")
        return Wiring(joint, *call.sources(rec), tree, list(map(Out, range(len(kinds)), kinds)))


class Forward(Jacobian):
    name, by = "jacfwd", "columns"


class Reverse(Jacobian):
    name, by = "jacrev", "rows"


class Hessian(Jacobian):
    name, suffix = "hessian", "hessian"

    def wiring(self, rec: Recording, call: Arguments, f: Callable) -> Wiring:
        return super().wiring(gradient_of(self.name, rec, call, differentiated(self, call, f)), call, f)


def jacobian_blocks(graph: Graph, wrt: Sequence, outs: Sequence[int], by: str | None = None) -> list[list]:
    """The partial derivatives for each output and input, of shape output.shape + input.shape."""
    xs, ys = [graph.inputs[i] for i in wrt], [graph.outputs[i] for i in outs]
    # a row for a real argument would keep only the real part of what a complex result has
    mixed = any(x.dtype.kind == "f" for x in xs) and any(y.dtype.kind == "c" for y in ys)
    fewer = "columns" if mixed or sum(x.size for x in xs) < sum(y.size for y in ys) else "rows"
    if (by or fewer) == "columns":
        columns = [_by_columns(x, ys) for x in xs]
        return [[column[r] for column in columns] for r in range(len(ys))]
    if mixed:
        raise AutodiffError(
            "jacrev: a result is complex and an argument real, so a row would hold the real part alone. Use "
            "ad.jacfwd or ad.jacobian"
        )
    return [_by_rows(y, xs) for y in ys]


def _by_rows(y: Node, xs) -> list[Node]:
    """d y / d x for each x: one pullback for each element of y."""
    if not y.shape:
        return gradients([(y, const(1.0, y.dtype))], xs)
    i, unit = _unit_vector(y)
    rows = _mapped(i, unit, gradients([(y, unit)], xs), y.size)
    return [reshape(d, (*y.shape, *x.shape)) for d, x in zip(rows, xs)]


def _by_columns(x: Node, ys) -> list[Node]:
    """d y / d x for each y: one tangent for each element of x."""
    if not x.shape:
        tangents = pushforward(ys, {x: const(1.0, x.dtype)})
        return list(map(or_zeros, tangents, ys))
    i, unit = _unit_vector(x)
    tangents = list(map(or_zeros, pushforward(ys, {x: unit}), ys))
    columns = [reshape(d, (x.size, y.size)) for y, d in zip(ys, _mapped(i, unit, tangents, x.size))]
    return [reshape(transpose(d, (1, 0)), (*y.shape, *x.shape)) for y, d in zip(ys, columns)]


def _unit_vector(like: Node) -> tuple[Node, Node]:
    """An index, as an input, and the array in the shape of `like` that is 1 there and 0 elsewhere."""
    i = input_node((), np.int64, "i")
    one = apply("equal", const(np.arange(like.size)), i)
    return i, reshape(cast(one, like.dtype), like.shape)


def _mapped(i: Node, unit: Node, results: list[Node], n: int) -> list[Node]:
    """The results for i = 0 .. n - 1, stacked; what does not depend on i is computed once."""
    results, known = unit_vectors(results, unit, n)
    many, differs = batched(Graph([i], results), [True], n, known)
    if all(m.size <= MOST for m in many.nodes if type(m.dtype) is not tuple):
        stacked = remade(many.outputs, {many.inputs[0]: const(np.arange(n))})
        return [r if has else broadcast(r, (n, *r.shape)) for r, has in zip(stacked, differs)]
    inner = {i}  # else by a loop
    outside: dict[Node, Node] = {}  # what the body reads from the graph around it -> the body's input
    for m in reachable(results):
        if any(a in inner for a in m.args):
            inner.add(m)
            read = [a for a in m.args if a not in inner and a.op != "const"]
            outside |= {a: input_node(a.shape, a.dtype, a.name) for a in read if a not in outside}
    varying = [r for r in results if r in inner]
    body = Graph([i, *outside.values()], remade(varying, outside), "row")
    rows = iter(map_node(body, [const(np.arange(n)), *outside], n, 1) if varying else ())
    return [next(rows) if r in inner else broadcast(r, (n, *r.shape)) for r in results]


# --- the transforms -------------------------------------------------------------------------------------


def jacobian(f: Callable, argnums: int | Sequence[int] = 0, *, pure: bool = False) -> Callable:
    """All partial derivatives: the derived function returns an array of shape out.shape + in.shape.

    For nested results and arguments, the result is nested: in the structure of f's result, each leaf replaced
    by the structure of the argument (for a tuple of argnums, a tuple of those).

        >>> ad.jacobian(lambda x: x * x[0])(np.array([2.0, 3.0]))
        array([[4., 0.],
               [3., 2.]])
    """
    return derived_function(f, Jacobian(argnums), pure)


def jacfwd(f: Callable, argnums: int | Sequence[int] = 0, *, pure: bool = False) -> Callable:
    """ad.jacobian in forward mode, column by column: for more results than arguments.

    >>> ad.jacfwd(lambda t: np.array([t, t * t]))(3.0)
    array([1., 6.])
    """
    return derived_function(f, Forward(argnums), pure)


def jacrev(f: Callable, argnums: int | Sequence[int] = 0, *, pure: bool = False) -> Callable:
    """ad.jacobian in reverse mode, row by row: for more arguments than results.

    >>> ad.jacrev(lambda x: np.array([x[0] * x[1], x[0]]))(np.array([2.0, 3.0]))
    array([[3., 2.],
           [1., 0.]])
    """
    return derived_function(f, Reverse(argnums), pure)


def hessian(f: Callable, argnums: int | Sequence[int] = 0, *, pure: bool = False) -> Callable:
    """Second derivatives of a scalar function, forward over reverse: an array of shape x.shape + x.shape.

    Nested arguments give nested results, as with jacobian: entry [a][b] is d2 f / da db.

        >>> ad.hessian(lambda x: x[0] ** 2 * x[1])(np.array([3.0, 5.0]))
        array([[10.,  6.],
               [ 6.,  0.]])
    """
    return derived_function(f, Hessian(argnums), pure)
