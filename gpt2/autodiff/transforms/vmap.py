"""ad.vmap: a function of one example as a function of many, without a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import AutodiffError
from ..programs.bodies import body_graph, operands_of_body, recorded_for_slices
from ..programs.compile import Compile
from ..programs.derived import derived_function
from ..programs.wiring import argument_text
from ..record.record import Recording, inline
from ..record.source_lines import error_here
from ..record.value import Recorded, value_of
from ..tree import Tree, flatten, is_container, unflatten
from .batch import batched


def vmap(f: Callable, in_axes: Any = 0, out_axes: Any = 0, *, pure: bool = False) -> Callable:
    """f for many examples at once: the derived function takes and gives arrays with one more axis.

    in_axes    which axis of each argument counts the examples; None: the argument is the same for all. One
               int or None for all arguments, or a tuple or list with an entry for each, which may itself be
               nested as far as the argument is: {"w": None, "x": 0}
    out_axes   where the axis goes in the results: an int, or nested as the result is. None: the result is the
               same for all examples, and is given once
    pure       see ad.compile

    f is recorded for one example, and every operation is done for all of them. Keyword arguments with arrays
    are mapped over their first axis. A function that cannot stand for all examples (it branches on values,
    draws random numbers, prints) runs once for each, in order, as a loop would. Nests with every other
    transform and with itself.

        >>> ad.vmap(np.dot, in_axes=(0, None))(np.eye(2), np.array([3.0, 4.0]))
        array([3., 4.])
    """
    return derived_function(f, Vmap(in_axes, out_axes), pure)


class Vmap(Compile):
    """The function for all examples, whose recording inlines the batched graph of one."""

    name, suffix = "vmap", "vmap"

    def __init__(self, in_axes: Any, out_axes: Any):
        self.in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
        self.out_axes = out_axes
        for name, axes in (("in_axes", self.in_axes), ("out_axes", out_axes)):
            for axis in flatten(axes, lambda x: not is_container(x))[0]:
                if axis is not None and not _is_axis(axis):
                    raise AutodiffError(f"vmap: {name} has {axis!r}, expected ints and None")

    def key(self) -> tuple:
        return type(self), flatten(self.in_axes)[1], flatten(self.out_axes)[1]

    def function(self, f: Callable) -> Callable:
        def mapped(*args, **kwargs):
            return _mapped(f, args, kwargs, self.in_axes, self.out_axes)

        mapped.__name__ = getattr(f, "__name__", "f")
        return mapped


def _is_axis(x) -> bool:
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def _mapped(f: Callable, args: tuple, kwargs: dict, in_axes: Any, out_axes: Any) -> Any:
    leaves, tree = flatten((args, kwargs))
    axes = _axes_of_arguments(f, tree, in_axes, len(args))
    names = [_argument(f, path) for path in tree.paths()]
    n = _examples(f, leaves, axes, names)
    moved = [x if a is None else _first(x, a) for x, a in zip(leaves, axes)]

    rec, out_tree, stacked = recorded_for_slices("vmap", f, moved, tree, [a is not None for a in axes], n)
    batched_results, has = (stacked, [True] * len(stacked)) if rec is None else _at_once(rec, moved, axes, n)
    wanted = _axes_of(out_tree, out_axes, "out_axes")
    paths = out_tree.paths()
    rows = zip(batched_results, has, wanted, paths, strict=True)
    results = [_with_axis_at(f, x, h, a, n, p) for x, h, a, p in rows]
    return unflatten(out_tree, results)


def _axes_of_arguments(f: Callable, tree: Tree, in_axes: Any, n: int) -> list[int | None]:
    """For each leaf of n positional and any keyword arguments the axis of the examples; None: it has none."""
    per_argument = in_axes if isinstance(in_axes, tuple) else (in_axes,) * n
    if len(per_argument) != n:
        raise error_here(
            f"vmap: in_axes has {len(per_argument)} entries, but {_name(f)} was called with {n} "
            f"positional argument{'s' if n != 1 else ''}"
        )
    return _axes_of(tree, (tuple(per_argument), 0), "in_axes")


def _at_once(rec: Recording, moved: list, axes: list, n: int) -> tuple[list, list[bool]]:
    """The results of all examples from one graph, and which of them differ from example to example."""
    outside = len(rec.graph.inputs) - len(axes)
    flags = [*(a is not None for a in axes), *[False] * outside]
    graph, has = batched(body_graph(rec), flags, n)
    values = zip(operands_of_body(body_graph(rec), moved, rec), graph.inputs, strict=True)
    operands = [x if hasattr(x, "dtype") else np.asarray(x, i.dtype) for x, i in values]
    return inline(graph, operands), has


def _name(f) -> str:
    return getattr(f, "__name__", None) or type(f).__name__


def _argument(f: Callable, path: tuple) -> str:
    group, key, *rest = path
    if group == 0:
        return argument_text(f, key, rest)
    return key + "".join(f"[{p!r}]" for p in rest)


def _first(x, axis: int):
    """x with that axis first."""
    return x if axis == 0 else np.moveaxis(x, axis, 0)


def _examples(f: Callable, leaves, axes, names) -> int:
    """How many examples there are, which all arguments agree on."""
    sizes: dict[int, str] = {}
    for x, axis, name in zip(leaves, axes, names):
        if axis is None:
            continue
        shape = np.shape(value_of(x))
        if not -len(shape) <= axis < len(shape):
            got = f"shape {shape}" if shape else "no axes: it is a number"
            raise error_here(
                f"vmap: in_axes names axis {axis} of {name}, which has {got}. An entry of None in in_axes "
                "says that an argument is the same for all examples"
            )
        sizes.setdefault(shape[axis], f"{name} has {shape[axis]} (axis {axis} of shape {shape})")
    if len(sizes) > 1:
        raise error_here(f"vmap: the arguments differ in the number of examples: {', '.join(sizes.values())}")
    if not sizes:
        raise error_here(
            f"vmap: no argument of {_name(f)} is mapped: in_axes has None for all of them, or they hold no "
            "array"
        )
    return next(iter(sizes))


def _axes_of(tree: Tree, axes: Any, what: str) -> list:
    """An axis or None for each leaf of the tree; `axes` may be nested less deeply."""
    if tree.is_leaf:
        if axes is not None and not _is_axis(axes):
            raise error_here(f"vmap: {what} has {axes!r} where an array is, expected an int or None")
        return [axes if axes is None else int(axes)]
    if tree.is_static:
        return []
    if axes is None or _is_axis(axes):
        return [a for child in tree.children for a in _axes_of(child, axes, what)]
    entries = _children(axes, tree)
    if entries is None:
        raise error_here(f"vmap: {what} has {axes!r}, which is not nested as the value it is for: {tree!r}")
    return [a for child, entry in zip(tree.children, entries) for a in _axes_of(child, entry, what)]


def _children(axes, tree: Tree) -> list | None:
    """The entries of `axes` for the children of a tree, where it is a container like it."""
    keys = tree.keys
    if isinstance(axes, dict):
        return [axes[k] for k in keys] if keys is not None and set(axes) == set(keys) else None
    if isinstance(axes, (tuple, list)):
        return list(axes) if keys is None and len(axes) == len(tree.children) else None
    return [getattr(axes, k, 0) for k in keys] if keys is not None and type(axes) is tree.type else None


def _with_axis_at(f: Callable, x, has: bool, axis: int | None, n: int, path: tuple):
    """A result with the axis of the examples where out_axes says."""
    if axis is None:
        if has:
            where = "".join(f"[{p!r}]" for p in path)
            raise error_here(
                f"vmap: out_axes has None for the result{where} of {_name(f)}, which differs from example to "
                "example"
            )
        return x
    if not has:
        x = np.broadcast_to(x, (n, *np.shape(x)))
        x = x if type(x) is Recorded else x.copy()
    if axis == 0:
        return x
    ndim = np.ndim(value_of(x))
    if not -ndim <= axis < ndim:
        raise error_here(
            f"vmap: out_axes names axis {axis} of a result of {_name(f)} that has {ndim} axes with that of "
            "the examples"
        )
    return np.moveaxis(x, 0, axis)
