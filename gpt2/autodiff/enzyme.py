"""Enzyme's calling convention: gradients are added into buffers that the caller provides.

    dx = np.zeros_like(x)
    ad.autodiff(f, ad.Duplicated(x, dx), ad.Const(n))          dx += the gradient of f(x, n) with respect to x
    (da,) = ad.autodiff(f, ad.Active(a))                       the gradient of a Python number is returned

As in C, an argument that f writes to is a result. For a function that fills preallocated arrays,

    def layernorm(out, mean, rstd, inp, weight, bias): ...     # returns nothing
    ad.autodiff(layernorm, Duplicated(out, dout), Const(mean), Const(rstd),
                Duplicated(inp, dinp), Duplicated(weight, dweight), Duplicated(bias, dbias))

runs f, so that out, mean and rstd hold what f writes, and then its backward:

    the shadow of an argument that f only reads      the gradient is added to it
    the shadow of an argument that f writes to       on entry, the gradient of its final content; on return,
                                                     that of its initial content: zero, if f overwrites all
                                                     of it
    the result of f, if it is a number               has the gradient 1

Consuming an output's shadow is Enzyme's rule, which lets chains of such calls run backwards in the same
buffers. Set gradients that should start from zero to zero before the call. Moses and Churavy 2020,
Instead of Rewriting Foreign Code for Machine Learning, Automatically Synthesize Fast Gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .derive.differentiate import gradients
from .errors import AutodiffError
from .graph import Graph
from .ops import const, input_node
from .programs.derived import derived_of
from .programs.wiring import (
    Arguments,
    Out,
    Transform,
    Update,
    Wiring,
    argument_text,
    result_kind,
    result_outs,
    select,
)
from .record.record import Recording
from .record.value import value_of
from .tracebacks import of_user
from .tree import LEAF, NONE, Tree, flatten


class Const:
    """An argument that is not differentiated: anything.

    >>> ad.autodiff(lambda x, n: x**n, ad.Active(2.0), ad.Const(3), value=True)
    ((12.0, None), 8.0)
    """

    __slots__ = ("x",)
    dx = None

    def __init__(self, x: Any):
        self.x = x


class Active(Const):
    """A floating-point number whose gradient autodiff returns.

    >>> ad.autodiff(lambda x, n: x**n, ad.Active(3.0), ad.Const(2))
    (6.0, None)
    """

    __slots__ = ()


class Duplicated:
    """An array (or a tree of arrays) with a shadow of the same shape and dtype, for its gradient.

    >>> x, dx = np.array([1.0, 2.0]), np.zeros(2)
    >>> ad.autodiff(lambda x: np.sum(x * x), ad.Duplicated(x, dx))
    (None,)
    >>> dx
    array([2., 4.])
    """

    __slots__ = ("x", "dx")

    def __init__(self, x: Any, dx: Any):
        self.x = x
        self.dx = dx


class Enzyme(Transform):
    """The transform of autodiff: called with (arguments, shadows), None for an argument without a shadow.

    A composition of ad.grad and writes to the shadows would refuse shadows that lie in one array, as a
    recording takes the arguments that it writes to as apart; and its first call takes up to twice as long.
    """

    name, suffix, takes_out = "autodiff", "autodiff", False

    def __init__(self, kinds: tuple[type, ...], value: bool = False):
        self.kinds = kinds
        self.value = value
        self._key = type(self), kinds, value

    def key(self) -> tuple:
        return self._key

    def split(self, call: Arguments) -> tuple[tuple, dict]:
        return call.args[0], {}

    def wiring(self, rec: Recording, call: Arguments, f: Callable) -> Wiring:
        check_activities(f, self.kinds, *call.args)
        graph, tree = rec.graph, call.subtree(0)
        kinds = [self.kinds[k] for k, *_ in tree.paths()]  # of the leaves
        wrt = [i for i, kind in enumerate(kinds) if kind is not Const]
        shadows = dict(zip([i for i in wrt if kinds[i] is Duplicated], call.leaf_range(1)))
        contents = dict(zip(rec.written, graph.outputs[rec.n_results :]))
        read = [i for i in contents if i in shadows]  # shadows that the gradient starts from
        inputs = [input_node(contents[i].shape, contents[i].dtype, f"d{graph.inputs[i].name}") for i in read]
        seeds = [*result_seed(rec), *zip([contents[i] for i in read], inputs)]
        grads = gradients(seeds, [graph.inputs[i] for i in wrt])
        index = dict(zip(wrt, range(len(graph.outputs), len(graph.outputs) + len(wrt))))
        outs = [Out(index[i], result_kind(call.leaves[i])) for i in wrt if i not in shadows]
        result = Tree.of(*(LEAF if kind is Active else NONE for kind in self.kinds))
        if self.value:
            result, outs = Tree.of(result, rec.out_tree), outs + result_outs(rec)
        updates = [Update(i, rec.n_results + position) for position, i in enumerate(rec.written)]
        updates += [Update(shadow, index[i], added=i not in contents) for i, shadow in shadows.items()]
        n = tree.size
        inputs = [*graph.inputs[:n], *inputs, *graph.inputs[n:]]
        joint = Graph(inputs, [*graph.outputs, *grads], graph.name + "_autodiff")
        feed = [*range(n), *(shadows[i] for i in read)]
        return select(Wiring(joint, feed, rec.outside, result, outs, updates))


def result_seed(rec: Recording) -> list:
    """The seed 1 for a number that f returns; none for None or an argument that it wrote to."""
    written = rec.graph.outputs[rec.n_results :]
    results = [out for out in rec.graph.outputs[: rec.n_results] if out not in written]
    if results and (results[0].shape != () or rec.n_results != 1):
        raise AutodiffError(
            f"autodiff: {rec.graph.name} returns an array of shape {results[0].shape}; it should return one "
            "number, or nothing and write its results to arguments"
        )
    return [(out, const(1.0, out.dtype)) for out in results if out.dtype.kind in "fc"]


def check_activities(f: Callable, kinds: tuple[type, ...], xs: tuple, shadows: tuple) -> None:
    """Raise AutodiffError where an argument is not what its activity expects, or its shadow not like it."""
    for k, (kind, x, dx) in enumerate(zip(kinds, xs, shadows)):
        value = value_of(x)
        if kind is Active and (np.ndim(value) or np.asarray(value).dtype.kind not in "fc"):
            got = f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else repr(value)
            raise AutodiffError(
                f"autodiff: Active({argument_text(f, k)}) is {got}, expected a floating-point number. Arrays "
                "are ad.Duplicated(x, dx): their gradient is added to dx"
            )
        if kind is Duplicated:
            (leaves, tree), (shadow_leaves, shadow_tree) = flatten(x), flatten(dx)
            paths = tree.paths()
            if paths != shadow_tree.paths() or not paths:
                raise AutodiffError(
                    f"autodiff: the shadow of {argument_text(f, k)} should have its structure, an array for "
                    "each array"
                )
            for leaf, shadow, path in zip(leaves, shadow_leaves, paths):
                check_shadow(value_of(leaf), value_of(shadow), argument_text(f, k, path))


def check_shadow(x: Any, dx: Any, text: str) -> None:
    if not isinstance(x, np.ndarray) or x.dtype.kind not in "fc":
        got = f"has dtype {x.dtype}" if hasattr(x, "dtype") else f"is {x!r}"
        raise AutodiffError(
            f"autodiff: Duplicated {text} {got}, expected a floating-point array. Numbers are "
            "ad.Active(x), integers ad.Const(x)"
        )
    if not isinstance(dx, np.ndarray) or dx.shape != x.shape or dx.dtype != x.dtype:
        got = f"has shape {dx.shape} and dtype {dx.dtype}" if isinstance(dx, np.ndarray) else f"is {dx!r}"
        raise AutodiffError(
            f"autodiff: the shadow of {text} {got}, expected an array of shape {x.shape} and dtype {x.dtype}"
        )
    if not dx.flags.writeable:
        raise AutodiffError(f"autodiff: the shadow of {text} is read-only; the gradient is added to it")


_known: dict = {}  # (types of the activities, value) -> the transform


@of_user
def autodiff(
    f: Callable, *activities: Const | Active | Duplicated, value: bool = False, pure: bool = False
) -> tuple:
    """Differentiate f at the given arguments, in Enzyme's convention; see the head of this file.

    activities   one for each argument of f: Const(x), Active(x) or Duplicated(x, dx)
    value        also return what f returns
    pure         see ad.compile

    Returns a tuple with an entry for each argument: the gradient of an Active one, None for the others. With
    value=True: (that tuple, the value of f).

        >>> x, dx = np.array([1.0, 2.0]), np.zeros(2)
        >>> ad.autodiff(lambda x, a: a * np.sum(x * x), ad.Duplicated(x, dx), ad.Active(3.0))
        (None, 5.0)
        >>> dx
        array([ 6., 12.])
    """
    kinds = tuple(map(type, activities))
    transform = _known.get((kinds, value))
    if transform is None:
        for k, kind in enumerate(kinds):
            if kind not in (Const, Active, Duplicated):
                raise AutodiffError(
                    f"autodiff: {argument_text(f, k)} is a {kind.__name__}, expected ad.Const(x), "
                    "ad.Active(x) or ad.Duplicated(x, dx)"
                )
        transform = _known.setdefault((kinds, value), Enzyme(kinds, value))
    call = tuple([a.x for a in activities]), tuple([a.dx for a in activities])
    return derived_of(f, transform, pure).entry(call, {})
