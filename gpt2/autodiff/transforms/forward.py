"""Forward mode: ad.jvp and ad.hvp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..derive.differentiate import pushforward
from ..errors import AutodiffError
from ..graph import Graph
from ..ops import const, input_node
from ..ops.build import cast
from ..ops.subgraph import or_zeros
from ..programs.arguments import _described, _dtype, float_leaves
from ..programs.derived import derived_of
from ..programs.wiring import Arguments, Transform, Wiring, result_outs, select
from ..record.record import Recording
from ..tracebacks import of_user
from ..tree import Leaf, Tree, matched, numbered
from .gradient import gradient_of
from .vjp import vjp


class Jvp(Transform):
    """Called with (args, tangents)."""

    name, suffix, takes_out = "jvp", "jvp", False

    def split(self, call: Arguments) -> tuple[tuple, dict]:
        return call.args[0], {}

    def wiring(self, rec: Recording, call: Arguments, f: Callable) -> Wiring:
        n = len(call.leaf_range(0))
        graph = rec.graph
        marks, inputs, feed = {}, [], [*range(n)]
        for i, t in tangents_for(self.name, call).items():
            x = graph.inputs[i]
            if isinstance(t, Leaf):
                inputs.append(input_node(x.shape, _dtype(call.leaves[t.index]), f"d{x.name}"))
                feed.append(t.index)
                marks[x] = cast(inputs[-1], x.dtype)
            else:
                marks[x] = const(t, x.dtype)
        tangents = pushforward(graph.outputs, marks)
        tangents = map(or_zeros, tangents, graph.outputs)
        inputs = [*graph.inputs[:n], *inputs, *graph.inputs[n:]]
        joint = Graph(inputs, [*graph.outputs, *tangents], graph.name + "_jvp")
        outs = result_outs(rec)
        m = len(graph.outputs)
        moves = [graph.outputs[o.index].dtype.kind in "fc" for o in outs]
        moved = [replace(o, index=m + o.index) for o, has in zip(outs, moves) if has]
        tree = Tree.of(rec.out_tree, rec.out_tree.only(moves))
        return select(Wiring(joint, feed, rec.outside, tree, outs + moved))


@of_user
def jvp(f: Callable, args: Sequence, tangents: Sequence, *, pure: bool = False) -> tuple[Any, Any]:
    """The value of f and its derivative in a direction: (f(*args), tangent of the result).

    tangents   one for each argument, in its structure; None is zero

    A result of integers or bools has the tangent None.

        >>> ad.jvp(lambda x, y: x * y, (3.0, 4.0), (1.0, 0.0))
        (12.0, 4.0)
    """
    for name, value in (("args", args), ("tangents", tangents)):
        if not isinstance(value, (tuple, list)):
            raise AutodiffError(
                f"jvp: {name} is {type(value).__name__}, expected a tuple with one entry per argument"
            )
    return derived_of(f, Jvp(), pure).entry((tuple(args), tuple(tangents)), {})


def tangents_for(name: str, call: Arguments) -> dict:
    """{argument leaf: its tangent}, from the two arguments of the call, which have the same structure."""

    def fail(path, expected, got):
        raise AutodiffError(f"{name}: tangents{path} is {_described(got)}, expected {expected}")

    def unlike(path, expected, got):
        fail(path, f"{expected}, as the argument", got)

    arguments, tangents = (numbered(call.subtree(k), call.leaf_range(k)) for k in (0, 1))
    by_leaf: dict = {}
    for a, t, path in matched(arguments, tangents, unlike):
        value = call.leaves[t.index] if isinstance(t, Leaf) else t
        if t is None:
            continue
        if not isinstance(a, Leaf):
            if isinstance(t, Leaf):
                fail(path, f"None: the argument is {a!r}", value)
            continue
        x = call.leaves[a.index]
        if _dtype(x).kind not in "fc":
            fail(path, f"None: the argument has dtype {_dtype(x)}", value)
        if isinstance(t, Leaf) and _dtype(value).kind == "c" != _dtype(x).kind:
            fail(path, f"real numbers and not {_dtype(value)}, as the argument is {_dtype(x)}", value)
        if np.shape(value) != np.shape(x) or not isinstance(t, (Leaf, int)):
            fail(path, f"shape {np.shape(x)}, that of the argument", value)
        by_leaf[a.index] = t
    return by_leaf


class Hvp(Jvp):
    """Called with (x, v): the tangent of the gradient."""

    name, suffix = "hvp", "hvp"

    def split(self, call: Arguments) -> tuple[tuple, dict]:
        return call.args[:1], {}

    def check(self, call: Arguments, f: Callable) -> None:
        float_leaves(self.name, call, f, 0)

    def wiring(self, rec: Recording, call: Arguments, f: Callable) -> Wiring:
        gradient = gradient_of(self.name, rec, call, float_leaves(self.name, call, f, 0))
        both = super().wiring(gradient, call, f)
        return select(replace(both, tree=both.tree.children[1], outs=both.outs[gradient.n_results :]))


@of_user
def hvp(f: Callable, x: Any, v: Any, *, pure: bool = False) -> Any:
    """The Hessian of a scalar function f at x times v, both in the structure of x: forward over reverse.

    Costs a small multiple of the gradient; the Hessian is never formed. Pearlmutter 1994.

        >>> ad.hvp(lambda x: np.sum(x**3), np.array([1.0, 2.0]), np.array([1.0, 0.0]))
        array([6., 0.])
    """
    return derived_of(f, Hvp(), pure).entry((x, v), {})


@of_user
def ggnvp(f: Callable, loss: Callable, x: Any, v: Any) -> Any:
    """The generalised Gauss-Newton matrix of loss(f(x)) times v, in the structure of x: J^T H J v.

    f      x -> a result of any structure; J is its Jacobian at x
    loss   f's result -> one number; H is its Hessian. Where the loss is convex the matrix has no negative
           direction. Schraudolph 2002.

        >>> A, x, v = np.array([[1.0, 2.0], [3.0, 4.0]]), np.ones(2), np.array([1.0, 0.0])
        >>> ad.ggnvp(lambda x: A @ x, lambda y: np.sum(y * y) / 2, x, v)
        array([10., 14.])
        >>> A.T @ A @ v
        array([10., 14.])
    """
    out, along = jvp(f, (x,), (v,))
    (product,) = vjp(f, x)[1](hvp(loss, out, along))
    return product
