"""One walk through two structures side by side: what is expected, and what was given for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .structure import Tree, attributes_of, unflatten


class Leaf:
    """The number of a leaf, where a structure of leaves is wanted."""

    def __init__(self, index: int):
        self.index = index


def numbered(tree: Tree, numbers: Sequence[int] | None = None) -> Any:
    """The structure with a Leaf for each leaf: of these numbers, or 0, 1, 2 and so on."""
    return unflatten(tree, list(map(Leaf, range(tree.size) if numbers is None else numbers)))


def matched(
    expected: Any, given: Any, fail: Callable[[str, str, Any], Any]
) -> Iterator[tuple[Any, Any, str]]:
    """(part of `expected`, what `given` has in its place, the path to it) for all that is not a container.

    None in `given` stands for a whole part: all that is in it is given None. Where containers differ,
    `fail(path, what is expected, what is given)` is to raise the error.
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
            found = _opened(given)
            if found is None or found[0] is not kind or found[1].keys() != parts.keys():
                fail(path, _kind_of(expected), given)
            others = found[1]
        todo += [(part, others[key], path + step.format(key)) for key, part in reversed(parts.items())]


def _opened(x: Any) -> tuple[type, dict, str] | None:
    """A container's kind, its parts by key, and how a path goes on to one; None for anything else."""
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
