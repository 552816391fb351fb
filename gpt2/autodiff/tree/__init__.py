"""ad.tree: nested containers of arrays as trees, for optimisers and the like.

ad.tree.map(f, *trees)        the tree of f(leaf, ...), as of params and their gradients
ad.tree.leaves(x)             the arrays and numbers in it, in order
ad.tree.flatten(x)            (leaves, structure); ad.tree.unflatten(structure, leaves) is its inverse
ad.tree.ravel(x)              (one vector, its inverse)
ad.tree.register(cls)         instances of cls are trees; ad.tree.static(cls): they are settings

    >>> params = {"w": np.ones(2), "b": 0.0}
    >>> grads = ad.grad(lambda p: np.sum(p["w"] * 3.0) + p["b"])(params)
    >>> ad.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    {'w': array([0.7, 0.7]), 'b': -0.1}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import AutodiffError
from .classes import ContainerKind, register, static  # noqa: F401
from .structure import (  # noqa: F401  the others are the compiler's
    LEAF,
    NONE,
    Leaf,
    Tree,
    flatten,
    is_container,
    is_dynamic,
    matched,
    numbered,
    tree_map,
    unflatten,
)

__all__ = ["flatten", "leaves", "map", "ravel", "register", "static", "unflatten"]


def leaves(x: Any) -> list:
    """The leaves of x in order: arrays, NumPy scalars, Python floats and complex numbers."""
    return flatten(x)[0]


def map(f: Callable, tree: Any, *others: Any) -> Any:
    """The tree with f(leaf) in place of each leaf, or f(leaf, leaf of another, ...) for several trees.

    The others have the first one's structure. What is None in them (the gradient of an integer) reaches f as
    None. Raises AutodiffError where a tree has another structure.

        >>> map(lambda p, g: p - 0.1 * g, {"w": 2.0}, {"w": 10.0})
        {'w': 1.0}
    """
    first, structure = flatten(tree)
    rows = [first, *(_leaves_like(structure, x, k + 1) for k, x in enumerate(others))]
    return unflatten(structure, [f(*row) for row in zip(*rows)])


def _leaves_like(structure: Tree, x: Any, k: int) -> list:
    """The leaves of x, which has this structure; None may stand for a leaf."""
    values, other = flatten(x)
    if other == structure:
        return values

    def fail(path: str, expected: str, got: Any) -> None:
        where = f" at {path}" if path else ""
        raise AutodiffError(f"ad.tree.map: tree {k} has {got!r}{where}, where the first has {expected}")

    found: list = [None] * structure.size
    for part, value, path in matched(numbered(structure), x, fail):
        leaf = isinstance(part, Leaf)
        if value is not None and is_dynamic(value) != leaf:
            fail(path, "a leaf" if leaf else "none", value)
        if leaf:
            found[part.index] = value
    return found


def ravel(x: Any) -> tuple[np.ndarray, Callable]:
    """(all leaves of x as one vector, the function from such a vector to a tree like x).

    For functions of one vector, such as SciPy's optimisers. Both work in functions that are differentiated.

        >>> vector, unravel = ravel({"w": np.ones((2, 2)), "b": 3.0})
        >>> vector
        array([1., 1., 1., 1., 3.])
        >>> unravel(2.0 * vector)["b"]
        np.float64(6.0)
    """
    arrays, structure = flatten(x)
    shapes = [np.shape(leaf) for leaf in arrays]
    sizes = [int(np.prod(shape)) for shape in shapes]
    ends = np.cumsum(sizes).tolist()
    vector = np.concatenate([np.reshape(leaf, (-1,)) for leaf in arrays]) if arrays else np.zeros(0)

    def unravel(v: Any) -> Any:
        if np.shape(v) != (sum(sizes),):
            raise AutodiffError(f"unravel: a vector of shape {np.shape(v)}, expected ({sum(sizes)},)")
        parts = [v[end - n : end] for n, end in zip(sizes, ends)]
        return unflatten(structure, [p.reshape(s) if s else p[0] for p, s in zip(parts, shapes)])

    return vector, unravel
