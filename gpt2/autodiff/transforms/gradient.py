"""ad.grad and ad.value_and_grad: gradients of a function whose result is one number.

Like all transforms (programs/wiring.py) they nest in each other, to any depth: inside a function that is
being recorded, a wiring's graph becomes part of the enclosing graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

import numpy as np

from ..derive.differentiate import gradient_graph
from ..errors import AutodiffError
from ..graph import Graph
from ..programs.arguments import Wrt, checked_argnums, differentiated
from ..programs.derived import derived_function
from ..programs.wiring import Arguments, Out, Transform, Wiring, result_outs, select
from ..record.record import Recording
from ..record.value import value_of
from ..tree import Tree, unflatten


class Grad(Transform):
    """Gradients, with or without the value, of a function with one number as its result."""

    name, suffix = "grad", "grad"
    reverse = True

    def __init__(self, argnums: int | Sequence[int], value: bool = False, has_aux: bool = False):
        self.argnums = checked_argnums(self.name if not value else "value_and_grad", argnums)
        self.value = value
        self.has_aux = has_aux
        if value:
            self.name = "value_and_grad"

    def key(self) -> tuple:
        return type(self), self.argnums, self.value, self.has_aux

    def check(self, call: Arguments, f: Callable) -> None:
        differentiated(self, call, f)

    def wiring(self, rec: Recording, call: Arguments, f: Callable) -> Wiring:
        wrt = differentiated(self, call, f)
        check_number(self.name, rec, wrt.leaves, self.has_aux)
        joint = gradient_graph(rec.graph, wrt.leaves)
        n = len(rec.graph.outputs)
        outs, tree = [Out(n + i, k) for i, k in enumerate(wrt.kinds)], wrt.tree
        if self.value:
            outs, tree = [*result_outs(rec), *outs], Tree.of(rec.out_tree, tree)
        elif self.has_aux:
            outs, tree = [*outs, *result_outs(rec)[1:]], Tree.of(tree, rec.out_tree.children[1])
        return select(Wiring(joint, *call.sources(rec), tree, outs))


class ElementwiseGrad(Grad):
    """The gradient of the sum of all results."""

    name, suffix = "elementwise_grad", "elementwise_grad"

    def function(self, f: Callable) -> Callable:
        def total(*args, **kwargs):
            return np.sum(f(*args, **kwargs))

        total.__name__ = getattr(f, "__name__", "f")
        return total


def gradient_of(name: str, rec: Recording, call: Arguments, wrt: Wrt) -> Recording:
    """The gradient as if it had been recorded itself."""
    check_number(name, rec, wrt.leaves)
    joint = gradient_graph(rec.graph, wrt.leaves)
    graph = Graph(joint.inputs, joint.outputs[len(rec.graph.outputs) :], joint.name)
    like = unflatten(wrt.tree, [value_of(call.leaves[i]) for i in wrt.leaves])
    return replace(rec, graph=graph, out_tree=wrt.tree, results=like)


def check_number(name: str, rec: Recording, wrt: Sequence[int], has_aux: bool = False) -> None:
    """A gradient is that of one number, and of a real one where an argument is real."""
    tree = rec.out_tree
    if has_aux:
        if tree.kind is not tuple or len(tree.children) != 2:
            raise AutodiffError(
                f"{name}: with has_aux=True {rec.graph.name} has to return a pair (value, aux)"
            )
        tree = tree.children[0]
    if not tree.is_leaf:
        if not tree.is_static:
            got = f"a {tree.kind.__name__}"
        else:
            got = "None" if tree.value is None else f"a plain {type(tree.value).__name__}"
        hint = " (has_aux=True differentiates the first of two results)" if tree.kind is tuple else ""
        raise AutodiffError(f"{name}: {rec.graph.name} returns {got}, expected one number{hint}")
    out = rec.graph.outputs[0]
    if out.shape != ():
        raise AutodiffError(
            f"{name}: {rec.graph.name} returns an array of shape {out.shape}, expected one number. "
            "Sum it, or use ad.vjp or ad.jacobian"
        )
    if out.dtype.kind not in "fc":
        raise AutodiffError(f"{name}: {rec.graph.name} returns {out.dtype}, which has no derivative")
    real = [rec.graph.inputs[i] for i in wrt if rec.graph.inputs[i].dtype.kind == "f"]
    if real and out.dtype.kind == "c":  # its derivative is complex, the gradient of a real argument is not
        raise AutodiffError(
            f"{name}: {rec.graph.name} returns {out.dtype}, and {real[0].name} is real. Return its real or "
            "imaginary part or its absolute value, or use ad.jvp or ad.jacobian"
        )


X = TypeVar("X", bound=Any)  # so that pyright lets a lambda compute with its argument
P = ParamSpec("P")
V = TypeVar("V")


# A checker sees that the gradient with respect to the first argument is of that argument's type, and keeps
# the others. With other argnums, or results besides the value, it knows what the arguments are and no more.
@overload
def grad(
    f: Callable[Concatenate[X, P], Any], *, has_aux: Literal[False] = False, pure: bool = False
) -> Callable[Concatenate[X, P], X]: ...
@overload
def grad(
    f: Callable[P, Any], argnums: int | Sequence[int], has_aux: bool = False, *, pure: bool = False
) -> Callable[P, Any]: ...
@overload
def grad(
    f: Callable[P, Any], argnums: Literal[0] = 0, *, has_aux: Literal[True], pure: bool = False
) -> Callable[P, Any]: ...
def grad(
    f: Callable, argnums: int | Sequence[int] = 0, has_aux: bool = False, *, pure: bool = False
) -> Callable:
    """The gradient of a function whose result is one number.

    argnums   the positional argument to differentiate with respect to, or a tuple of several: then the result
              is a tuple. An argument may be a nested tuple, list or dict of arrays; its gradient has the same
              structure.
    has_aux   f returns (value, aux), and the derived function (gradient, aux)
    pure      see ad.compile

    The derived function takes out=: buffers, in the structure of the result, that the results are written
    into (None for those that are to be new arrays). For a complex argument and a real result u the gradient
    is du/dx - i du/dy, as in JAX; for a holomorphic f it is df/dz.

        >>> ad.grad(lambda x: x**3)(2.0)
        12.0
    """
    return derived_function(f, Grad(argnums, False, has_aux), pure)


@overload
def value_and_grad(
    f: Callable[Concatenate[X, P], V], *, has_aux: Literal[False] = False, pure: bool = False
) -> Callable[Concatenate[X, P], tuple[V, X]]: ...
@overload
def value_and_grad(
    f: Callable[P, Any], argnums: int | Sequence[int], has_aux: bool = False, *, pure: bool = False
) -> Callable[P, Any]: ...
@overload
def value_and_grad(
    f: Callable[P, Any], argnums: Literal[0] = 0, *, has_aux: Literal[True], pure: bool = False
) -> Callable[P, Any]: ...
def value_and_grad(
    f: Callable, argnums: int | Sequence[int] = 0, has_aux: bool = False, *, pure: bool = False
) -> Callable:
    """Like grad, but the derived function returns (value, gradient), or ((value, aux), gradient).

    >>> ad.value_and_grad(lambda x: np.sum(x * x))(np.array([1.0, 2.0]))
    (np.float64(5.0), array([2., 4.]))
    """
    return derived_function(f, Grad(argnums, True, has_aux), pure)


def elementwise_grad(f: Callable, argnums: int | Sequence[int] = 0, *, pure: bool = False) -> Callable:
    """d out[i] / d x[i] for every i of a function that works element by element, as NumPy's ufuncs do.

    It is the gradient of the sum of the results, so for any other function it is that.

        >>> ad.elementwise_grad(np.sin)(np.zeros(3))
        array([1., 1., 1.])
    """
    return derived_function(f, ElementwiseGrad(argnums), pure)
