"""Nested containers of values, taken apart and put together again: tuples, lists, dicts, and the classes that
people keep parameters in (classes.py).

`flatten(x)` gives the dynamic leaves in order (arrays, NumPy scalars, Python floats and complex numbers,
recorded values) and a tree that holds the rest: containers, and everything that is not a leaf (None, ints,
bools, strings, any other object), which stays as it is. Two trees are equal if their structure is, and
their static values are the same to any function that could look at them: the same objects, or plain values of
one type and content, or data classes of such. What an `__eq__` says does not count, as it may leave out what
matters. A named tuple comes back as one, and a subclass of list or dict with all that it holds besides its
items: attributes, a default_factory. An instance of a data class is taken apart where a leaf is in it; one of
settings alone is a static value.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import AutodiffError
from ..same import same, same_items
from .classes import Opened, opened

LEAF = "*"  # stands for one leaf


def is_dynamic(x: Any) -> bool:
    return isinstance(x, (np.ndarray, float, complex, np.generic)) or "__autodiff_node__" in type(x).__dict__


class Tree:
    """The structure of a value. `spec` is LEAF, ("static", value) or (type, keys or None, children), where
    the type may be a Subclassed.
    """

    __slots__ = ("spec", "size")

    def __init__(self, spec: Any, size: int):
        self.spec = spec
        self.size = size  # number of leaves

    def __eq__(self, other):
        return isinstance(other, Tree) and self.size == other.size and _same(self.spec, other.spec)

    def __hash__(self):
        return hash(_hashable(self.spec))

    def __repr__(self):
        return f"Tree({unflatten(self, [LEAF] * self.size)!r})"


class Subclassed:
    """A subclass of list or dict: `kind(items)` is a copy of x with other items. Equal where everything else
    about x is the same.
    """

    def __init__(self, x: list | dict):
        self.type = type(x)
        self.__name__ = self.type.__name__
        # Not x.clear() and x.update(): a class that has its items elsewhere besides would empty that of x too
        self.base: Any = next(base for base in (OrderedDict, dict, list) if isinstance(x, base))
        try:
            self.empty = copy.copy(x)
            self.base.clear(self.empty)
        except Exception as error:
            raise AutodiffError(
                f"an argument or result is a {self.__name__}, which cannot be copied and refilled ({error}). "
                f"Use a plain {'dict' if isinstance(x, dict) else 'list'}"
            ) from error
        self.held = _held(self.empty)
        # a class of the user's may have attributes and methods besides
        self.roots = (*self.held, *(() if self.type is defaultdict else (self.type,)))

    def __call__(self, items: Iterable) -> Any:
        new = copy.copy(self.empty)
        (list.extend if self.base is list else self.base.update)(new, items)
        return new

    def __eq__(self, other):
        return (
            isinstance(other, Subclassed) and self.type is other.type and _same_static(self.held, other.held)
        )

    def __hash__(self):
        return hash(self.type)


_PLAIN = (tuple, list, dict, OrderedDict)


def _kind(x):
    """The type of a container, or the Subclassed where the type and the items are not all."""
    t = type(x)
    if t in _PLAIN or getattr(x, "__dict__", None) is x:  # {...} whose items are its attributes
        return t
    if not isinstance(x, tuple):
        return Subclassed(x)
    if held := _held(x):
        raise AutodiffError(
            f"an argument or result is a {t.__name__}, a tuple with attributes ({held[0]}), which would be "
            "lost. Use a plain tuple, and pass them by themselves"
        )
    return t


def _held(x) -> list:
    """Names and values of what an object holds besides its items."""
    state = object.__getstate__(x)
    parts = state if isinstance(state, tuple) else (state,)
    found = [v for part in parts if part for item in part.items() for v in item]
    return [*found, "default_factory", x.default_factory] if isinstance(x, defaultdict) else found


def flatten(x: Any, is_leaf: Callable[[Any], bool] = is_dynamic) -> tuple[list, Tree]:
    """The leaves of x and its structure."""
    leaves: list = []
    try:
        spec = _flatten(x, leaves, is_leaf)
    except RecursionError:
        raise AutodiffError(
            f"a {type(x).__name__} refers to itself, or is nested more deeply than Python's recursion limit "
            "allows. Only trees can be taken apart; with ad.tree.static(cls) instances of a class are taken "
            "as they are"
        ) from None
    return leaves, Tree(spec, len(leaves))


def unflatten(tree: Tree, leaves: Sequence) -> Any:
    """The inverse of flatten, with other leaves."""
    if len(leaves) != tree.size:
        raise ValueError(f"unflatten: {len(leaves)} leaves, expected {tree.size}")
    return _build(tree.spec, iter(leaves))


def leaf_paths(tree: Tree) -> list[tuple]:
    """For each leaf, the keys and positions that lead to it."""
    paths: list[tuple] = []
    _paths(tree.spec, (), paths)
    return paths


def leaf_count(spec: Any) -> int:
    """The number of leaves in a part of a tree, given as its spec."""
    if spec is LEAF:
        return 1
    return 0 if spec[0] == "static" else sum(map(leaf_count, spec[2]))


def depth(spec: Any) -> int:
    """How many containers lie around the innermost leaf."""
    return 0 if spec is LEAF or spec[0] == "static" else 1 + max(map(depth, spec[2]), default=0)


def tree_map(function: Callable, x: Any, is_leaf: Callable[[Any], bool] = is_dynamic) -> Any:
    """x with function applied to each of its leaves."""
    leaves, tree = flatten(x, is_leaf)
    return unflatten(tree, [function(leaf) for leaf in leaves])


def _flatten(x, leaves: list, is_leaf):
    if is_leaf(x):
        leaves.append(x)
        return LEAF
    if isinstance(x, (tuple, list)):
        return _kind(x), None, tuple(_flatten(v, leaves, is_leaf) for v in x)
    if isinstance(x, dict):
        return _kind(x), tuple(x), tuple(_flatten(v, leaves, is_leaf) for v in x.values())
    part = opened(x)
    return ("static", x) if part is None else _flatten_opened(x, part, leaves, is_leaf)


def _flatten_opened(x, part: Opened, leaves: list, is_leaf):
    """An instance of a class of parameters: static if no leaf is in it."""
    n = len(leaves)
    children = tuple(
        ("static", v) if name in part.static else _flatten(v, leaves, is_leaf)
        for name, v in zip(part.names, part.values)
    )
    if len(leaves) == n:
        return "static", x
    for name, v in part.derived:
        if _flatten(v, found := [], is_leaf) is LEAF or found:
            raise AutodiffError(
                f"a {type(x).__name__} holds numbers in the attribute {name!r}, which is no field of the "
                "class: they may depend on the fields, and a derivative would not know. Make it a field or a "
                "functools.cached_property; or have the class taken as it is: ad.tree.static(cls)"
            )
    others = tuple(("static", v) for _, v in part.derived)
    names = (*part.names, *(name for name, _ in part.derived))
    return part.kind, names if part.named else None, (*children, *others)


def items_of(spec: Any, x: Any) -> list:
    """The parts of x, a container, in the order of the children of its spec."""
    kind, keys, children = spec
    if hasattr(kind, "items_of"):
        return kind.items_of(x, keys)
    return list(x) if keys is None else [x[k] for k in keys]


def is_container(x: Any) -> bool:
    """Whether x is of a kind that is taken apart."""
    return isinstance(x, (tuple, list, dict)) or opened(x) is not None


def attributes_of(x: Any) -> dict | None:
    """The attributes of an instance of a class of parameters, by name; None for anything else."""
    part = opened(x) if not isinstance(x, (tuple, list, dict)) else None
    return None if part is None else dict(zip(part.names, part.values))


def _build(spec, leaves):
    if spec is LEAF:
        return next(leaves)
    if spec[0] == "static":
        return spec[1]
    kind, keys, children = spec
    values = [_build(c, leaves) for c in children]
    if keys is not None:
        items = dict(zip(keys, values))
        return items if kind is dict else kind(items)
    return values if kind is list else kind(*values) if hasattr(kind, "_fields") else kind(values)


def _paths(spec, path: tuple, paths: list) -> None:
    if spec is LEAF:
        paths.append(path)
    elif spec[0] != "static":
        kind, keys, children = spec
        names = keys if keys is not None else getattr(kind, "_fields", None) or range(len(children))
        for name, child in zip(names, children):
            _paths(child, (*path, name), paths)


def _same(a, b) -> bool:
    if a is LEAF or b is LEAF:
        return a is b
    if a[0] != b[0]:
        return False
    if a[0] == "static":
        return _same_static(a[1], b[1])
    keys = a[1] is b[1] or a[1] is not None and b[1] is not None and same_items(a[1], b[1])
    return keys and len(a[2]) == len(b[2]) and all(map(_same, a[2], b[2]))


_DEEPEST = 8  # settings inside of settings; below that only the same object will do


def _same_static(a, b, depth: int = 0) -> bool:
    if same(a, b):
        return True
    if type(a) is not type(b) or depth == _DEEPEST or not (type(a) is list or _is_record(a)):
        return False
    if type(a) is not list:
        if not same_items(tuple(vars(a)), tuple(vars(b))):
            return False
        a, b = list(vars(a).values()), list(vars(b).values())
    return len(a) == len(b) and all(_same_static(x, y, depth + 1) for x, y in zip(a, b))


def _is_record(x) -> bool:
    """A data class whose instances hold nothing but named values."""
    return dataclasses.is_dataclass(x) and not isinstance(x, type) and hasattr(x, "__dict__")


def _hashable(spec):
    if spec is LEAF:
        return LEAF
    if spec[0] == "static":
        try:
            return type(spec[1]), None if _is_record(spec[1]) else hash(spec[1])
        except Exception:  # a list, a memoryview, a __hash__ of the user's: equality decides
            return type(spec[1])
    return spec[0], spec[1], tuple(map(_hashable, spec[2]))
