"""Flattens and rebuilds nested containers: tuples, lists, dicts, and classes of parameters (classes.py).

`flatten(x)` returns the leaves in order (arrays, NumPy scalars, Python floats and complex numbers, recorded
values) and a Tree of the rest: containers, and static values, which are all other objects (None, ints, bools,
strings, ...). Two trees are equal if their structures are, and no function could tell their static values
apart: they are the same objects, or plain values of equal type and content, or data classes of such. `__eq__`
is not used, as it may leave out attributes. Named tuples are rebuilt as such, and subclasses of list or dict
with their attributes and default_factory. An instance of a data class is a container if it holds a leaf, else
a static value.
"""

from __future__ import annotations

import copy
import functools
import operator
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import AutodiffError
from ..same import same_items
from .classes import ContainerKind, Opened, is_data_class, opened, same_static


def is_dynamic(x: Any) -> bool:
    return isinstance(x, (np.ndarray, float, complex, np.generic)) or "__autodiff_node__" in type(x).__dict__


@dataclass(slots=True, eq=False, repr=False)
class Tree:
    """The structure of a value: a leaf, a container, or a static value.

    kind       a type, such as tuple, list and dict, or a ContainerKind
    keys       the keys of a dict, the names of attributes, or None
    children   the structures of its items
    size       the number of leaves
    value      the static value
    """

    kind: Any
    keys: tuple | None
    children: tuple[Tree, ...]
    size: int
    value: Any = None

    @classmethod
    def of(cls, *children: Tree) -> Tree:
        return cls(tuple, None, children, sum([c.size for c in children]))

    @classmethod
    def static(cls, value: Any) -> Tree:
        return cls(None, None, (), 0, value)

    @property
    def type(self) -> type | None:
        return self.kind.type if isinstance(self.kind, ContainerKind) else self.kind

    @property
    def is_leaf(self) -> bool:
        return self.kind is None and self.size == 1

    @property
    def is_static(self) -> bool:
        return self.kind is None and self.size == 0

    def __eq__(self, other):
        if not isinstance(other, Tree) or self.size != other.size or self.kind != other.kind:
            return False
        if self.kind is None:
            return self.size == 1 or same_static(self.value, other.value)
        same_keys = self.keys is other.keys or same_items(self.keys or (), other.keys or ())
        return same_keys and self.children == other.children

    def __hash__(self):
        return hash(self._hashable())

    def _hashable(self) -> Any:
        if self.kind is not None:
            return self.kind, self.keys, tuple([c._hashable() for c in self.children])
        if self.size:
            return LEAF_TEXT
        try:
            return type(self.value), None if is_data_class(self.value) else hash(self.value)
        except Exception:  # a list, a memoryview, a __hash__ of the user's: equality decides
            return type(self.value)

    def __repr__(self):
        return f"Tree({unflatten(self, [LEAF_TEXT] * self.size)!r})"

    def paths(self) -> list[tuple]:
        """For each leaf, its path of keys and positions."""
        if self.kind is None:
            return [()] * self.size
        names = self.keys
        if names is None:
            names = getattr(self.kind, "_fields", None) or range(len(self.children))
        return [(name, *path) for name, child in zip(names, self.children) for path in child.paths()]

    def depth(self) -> int:
        """How many containers lie around the innermost leaf."""
        return 0 if self.kind is None else 1 + max([c.depth() for c in self.children], default=0)

    def items_of(self, x: Any) -> list:
        """The items of x, a container of this structure, in the order of the children."""
        if isinstance(self.kind, ContainerKind):
            return self.kind.take(x, self.keys)
        return _items(x, self.keys)

    def leaves_of(self, x: Any) -> list:
        """The leaves of x, which has this structure; flatten might treat some of them as static."""
        if self.kind is None:
            return [x] * self.size
        return [v for item, child in zip(self.items_of(x), self.children) for v in child.leaves_of(item)]

    def statics(self) -> list:
        return [self.value] if self.is_static else [v for child in self.children for v in child.statics()]

    def objects(self) -> list:
        """The static values, and the classes and attributes that a function may read from the containers."""
        if self.kind is None:
            return self.statics()
        roots = self.kind.roots if isinstance(self.kind, ContainerKind) else ()
        if hasattr(self.kind, "_fields"):
            roots = (self.kind,)
        return [*roots, *(v for child in self.children for v in child.objects())]

    def mapped(self, leaf: Callable[[], Tree], static: Callable[[Tree], Tree]) -> Tree:
        """The tree with leaves and static values replaced; the same object if nothing changes."""
        if self.kind is None:
            return leaf() if self.size else static(self)
        children = tuple([c.mapped(leaf, static) for c in self.children])
        if all(map(operator.is_, children, self.children)):
            return self
        return Tree(self.kind, self.keys, children, sum([c.size for c in children]))

    def only(self, leaves: Iterable[bool]) -> Tree:
        """The tree with None for all but these leaves."""
        flags = iter(leaves)
        return self.mapped(lambda: LEAF if next(flags) else NONE, lambda _: NONE)


LEAF = Tree(None, None, (), 1)
NONE = Tree.static(None)
LEAF_TEXT = "*"  # a leaf as it is printed


def _refilled(empty: Any, base: Any, items: Iterable) -> Any:
    new = copy.copy(empty)
    (list.extend if base is list else base.update)(new, items)
    return new


def _items(x: Any, keys: Sequence | None) -> list:
    return list(x) if keys is None else [x[k] for k in keys]


_PLAIN = (tuple, list, dict, OrderedDict)


def _kind(x: Any) -> type | ContainerKind:
    """The type of a container; of a subclass of list or dict the ContainerKind of copies with other items."""
    t = type(x)
    if getattr(x, "__dict__", None) is x:  # {...} whose items are its attributes
        return t
    if isinstance(x, tuple):
        if attributes := _attributes(x):
            raise AutodiffError(
                f"an argument or result is a {t.__name__}, a tuple with attributes ({attributes[0]}), which "
                "would be lost. Use a plain tuple, and pass them by themselves"
            )
        return t
    # Not x.clear() and x.update(): a class that stores its items elsewhere as well would clear those of x
    base: Any = next(base for base in (OrderedDict, dict, list) if isinstance(x, base))
    try:
        empty = copy.copy(x)
        base.clear(empty)
    except Exception as error:
        raise AutodiffError(
            f"an argument or result is a {t.__name__}, which cannot be copied and refilled ({error}). "
            f"Use a plain {'dict' if isinstance(x, dict) else 'list'}"
        ) from error
    attributes = _attributes(empty)
    # a class of the user's may have attributes and methods besides
    roots = (*attributes, *(() if t is defaultdict else (t,)))
    return ContainerKind(t, functools.partial(_refilled, empty, base), _items, attributes, roots)


def _attributes(x) -> list:
    state = object.__getstate__(x)
    parts = state if isinstance(state, tuple) else (state,)
    attributes = [v for part in parts if part for item in part.items() for v in item]
    return [*attributes, "default_factory", x.default_factory] if isinstance(x, defaultdict) else attributes


def flatten(x: Any, is_leaf: Callable[[Any], bool] = is_dynamic) -> tuple[list, Tree]:
    """The leaves of x and its structure."""
    leaves: list = []
    try:
        return leaves, _flatten(x, leaves, is_leaf)
    except RecursionError:
        raise AutodiffError(
            f"a {type(x).__name__} refers to itself, or is nested more deeply than Python's recursion limit "
            "allows. Only trees can be taken apart; with ad.tree.static(cls) instances of a class are taken "
            "as they are"
        ) from None


def unflatten(tree: Tree, leaves: Sequence) -> Any:
    if len(leaves) != tree.size:
        raise ValueError(f"unflatten: {len(leaves)} leaves, expected {tree.size}")
    return _build(tree, iter(leaves))


def tree_map(function: Callable, x: Any, is_leaf: Callable[[Any], bool] = is_dynamic) -> Any:
    """x with function applied to each of its leaves."""
    leaves, tree = flatten(x, is_leaf)
    return unflatten(tree, [function(leaf) for leaf in leaves])


def _flatten(x: Any, leaves: list, is_leaf: Callable[[Any], bool]) -> Tree:
    if is_leaf(x):
        unwrap = getattr(type(x), "__autodiff_leaf__", None)  # an array that a recorded function made
        leaves.append(x if unwrap is None else unwrap(x))
        return LEAF
    if isinstance(x, (tuple, list)):
        keys, items = None, x
    elif isinstance(x, dict):
        keys, items = tuple(x), x.values()
    else:
        part = opened(x)
        return Tree(None, None, (), 0, x) if part is None else _flatten_opened(x, part, leaves, is_leaf)
    n, t = len(leaves), type(x)
    children = tuple([_flatten(v, leaves, is_leaf) for v in items])
    return Tree(t if t in _PLAIN else _kind(x), keys, children, len(leaves) - n)


def _flatten_opened(x: Any, part: Opened, leaves: list, is_leaf: Callable[[Any], bool]) -> Tree:
    """Flatten an instance of a class of parameters: static without leaves."""
    n = len(leaves)
    fields = zip(part.names, part.values)
    static = part.static
    children = tuple(Tree.static(v) if k in static else _flatten(v, leaves, is_leaf) for k, v in fields)
    if len(leaves) == n:
        return Tree.static(x)
    for name, v in part.derived:
        if _flatten(v, [], is_leaf).size:
            raise AutodiffError(
                f"a {type(x).__name__} holds numbers in the attribute {name!r}, which is no field of the "
                "class: they may depend on the fields, and a derivative would not know. Make it a field or a "
                "functools.cached_property; or have the class taken as it is: ad.tree.static(cls)"
            )
    others = tuple(Tree.static(v) for _, v in part.derived)
    names = (*part.names, *(name for name, _ in part.derived))
    return Tree(part.kind, names if part.named else None, (*children, *others), len(leaves) - n)


def is_container(x: Any) -> bool:
    return isinstance(x, (tuple, list, dict)) or opened(x) is not None


def _build(tree: Tree, leaves: Iterator) -> Any:
    kind, keys = tree.kind, tree.keys
    if kind is None:
        return next(leaves) if tree.size else tree.value
    values = [_build(c, leaves) for c in tree.children]
    if keys is not None:
        items = dict(zip(keys, values))
        return items if kind is dict else kind(items)
    return values if kind is list else kind(*values) if hasattr(kind, "_fields") else kind(values)


# --- two structures in parallel: the expected one, and the one that was passed ---


class Leaf:
    """The index of a leaf, in a structure of leaves."""

    def __init__(self, index: int):
        self.index = index


def numbered(tree: Tree, numbers: Sequence[int] | None = None) -> Any:
    """The structure with a Leaf for each leaf, with these indices, or 0, 1, 2 and so on."""
    return unflatten(tree, list(map(Leaf, range(tree.size) if numbers is None else numbers)))


def matched(expected: Any, given: Any, fail: Callable) -> Iterator[tuple[Any, Any, str]]:
    """(part of `expected`, part of `given` in its place, path) for all parts that are not containers.

    None in `given` stands for None in all of a part. If containers differ, `fail(path, expected, given)` is
    to raise the error.
    """
    todo = [(expected, given, "")]
    while todo:
        expected, given, path = todo.pop()
        opened = _opened(expected)
        if opened is None:
            yield expected, given, path
            continue
        kind, parts, step = opened
        others = dict.fromkeys(parts)
        if given is not None:
            other = _opened(given)
            if other is None or other[0] is not kind or other[1].keys() != parts.keys():
                fail(path, _kind_of(expected), given)
            others = other[1]
        todo += [(part, others[key], path + step.format(key)) for key, part in reversed(parts.items())]


def _opened(x: Any) -> tuple[type, dict, str] | None:
    """(type, parts by key, format of a path's step) of a container; None for anything else."""
    if isinstance(x, dict):
        return dict, x, "[{!r}]"
    if isinstance(x, (tuple, list)):
        return tuple, dict(enumerate(x)), "[{}]"
    part = opened(x)  # an instance of a class of parameters
    return None if part is None else (type(x), dict(zip(part.names, part.values)), ".{}")


def _kind_of(x: Any) -> str:
    name = type(x).__name__
    if isinstance(x, dict):
        return f"a {name} with keys {list(x)}"
    return f"a {name} of {len(x)}" if isinstance(x, (tuple, list)) else f"a {name}"
