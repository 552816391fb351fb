"""`matched` walks through two structures in parallel: the expected one, and the one that was passed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .structure import Tree, attributes_of, unflatten


class Leaf:
    """The index of a leaf, in a structure of leaves."""

    def __init__(self, index: int):
        self.index = index


def numbered(tree: Tree, numbers: Sequence[int] | None = None) -> Any:
    """The structure with a Leaf for each leaf, with these indices, or 0, 1, 2 and so on."""
    return unflatten(tree, list(map(Leaf, range(tree.size) if numbers is None else numbers)))


def matched(
    expected: Any, given: Any, fail: Callable[[str, str, Any], Any]
) -> Iterator[tuple[Any, Any, str]]:
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
    parts = attributes_of(x)
    return None if parts is None else (type(x), parts, ".{}")


def _kind_of(x: Any) -> str:
    name = type(x).__name__
    if isinstance(x, dict):
        return f"a {name} with keys {list(x)}"
    return f"a {name} of {len(x)}" if isinstance(x, (tuple, list)) else f"a {name}"
