"""ad.tree.map, ad.tree.leaves and ad.tree.ravel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import AutodiffError
from .structure import flatten, unflatten


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
    rows = [first, *(_leaves_like(tree, structure, x, k + 1) for k, x in enumerate(others))]
    return unflatten(structure, [f(*row) for row in zip(*rows)])


def _leaves_like(tree, structure, x, k: int) -> list:
    """The leaves of x, which has the structure of `tree`; None may stand for a leaf."""
    values, other = flatten(x)
    if other == structure:
        return values
    paths = dict(zip(_keys(other), values))
    wanted = _keys(structure)
    if extra := [path for path in paths if path not in set(wanted)]:
        raise AutodiffError(
            f"ad.tree.map: tree {k} has a leaf at {_text(extra[0])}, where the first has none"
        )
    for path in wanted:
        if path not in paths and _at(x, path) is not None:
            raise AutodiffError(
                f"ad.tree.map: tree {k} has {_at(x, path)!r} at {_text(path)}, where the first has a leaf"
            )
    return [paths.get(path) for path in wanted]


def _keys(structure) -> list[tuple]:
    return [tuple(path) for path in structure.paths()]


def _text(path: tuple) -> str:
    return "".join(f"[{p!r}]" for p in path) or "its top"


def _at(x: Any, path: tuple) -> Any:
    """The value at a path of x; None if the path ends early."""
    for p in path:
        if x is None:
            return None
        try:
            x = x[p]
        except (TypeError, KeyError, IndexError):
            x = getattr(x, p, None) if isinstance(p, str) else None
    return x


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
