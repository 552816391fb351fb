"""autograd.util: sequences with some entries replaced."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any


def subvals(x: Sequence, ivs: Iterable[tuple[int, Any]]) -> tuple:
    """x as a tuple, with the values of (position, value) in place."""
    entries = list(x)
    for i, v in ivs:
        entries[i] = v
    return tuple(entries)


def subval(x: Sequence, i: int, v: Any) -> tuple:
    """x as a tuple, with v at position i."""
    return subvals(x, [(i, v)])


def func(f: Any) -> Any:
    return f


def toposort(end_node: Any, parents: Any = operator.attrgetter("parents")) -> Iterator:
    """The ancestors of end_node in topological order, from end_node backwards."""
    uses: dict = {}
    todo = [end_node]
    while todo:
        node = todo.pop()
        uses[node] = uses.get(node, 0) + 1
        if uses[node] == 1:
            todo.extend(parents(node))
    ready = [end_node]
    while ready:
        node = ready.pop()
        yield node
        for parent in parents(node):
            uses[parent] -= 1
            if not uses[parent]:
                ready.append(parent)
