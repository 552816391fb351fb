"""The order of the ops in a region of row blocks: another one where too many values are in use at once.

Blocks are cut for IN_USE values of the widest row (regions.py); with more, each op waits for a slower cache.
A derivative reads the values of its forward: all partial sums of a polynomial would wait until the last is
there, where its derivative can be computed beside it, coefficient by coefficient. The forward of GELU by erf
needs 5 values at once so, in place of 15.

The new order is made from the end. Of the ops whose readers have their places, next comes one that brings no
more bytes into use than it ends; if there is none, the one with the longest way from the arguments.
"""

from __future__ import annotations

from ..graph import Node
from ..ops.table import root
from .layout import is_result_of_call
from .regions import IN_USE, Region


def shorten(r: Region) -> None:
    """Change the order of a region's ops if they need more than IN_USE values at once, and fewer so."""
    before = in_use(r.members)
    if before <= IN_USE * max(n.nbytes for n in r.members) or any(map(is_result_of_call, r.members)):
        return
    order = from_the_end(r.members)
    if in_use(order) < before:
        r.members = order


def in_use(order: list[Node]) -> int:
    """The most bytes in use at once; those of an array from outside from its first reader to its last."""
    last = {a: n for n in order for a in _read(n)}
    live, most = 0, 0
    seen: set[Node] = set()
    for n in order:
        new = [a for a in _read(n) if a not in seen]
        seen.update(new)
        live += sum(a.nbytes for a in new)
        most = max(most, live)
        live -= sum(a.nbytes for a in _read(n) if last[a] is n)  # n may be written over one of them
        seen.add(n)
        live += n.nbytes if n in last else 0
        most = max(most, live)
    return most


def from_the_end(members: list[Node]) -> list[Node]:
    """An order in which few values are in use at once."""
    depth: dict[Node, int] = {}
    for n in members:
        depth[n] = 1 + max([depth.get(a, 0) for a in _read(n)], default=0)
    waiting = dict.fromkeys(members, 0)  # readers without a place
    for n in members:
        for a in _read(n):
            waiting[a] = waiting.get(a, 0) + 1
    used: set[Node] = set()

    def brings(n: Node) -> int:
        return sum(a.nbytes for a in _read(n) if a not in used) - (n.nbytes if n in used else 0)

    order: list[Node] = []
    ready = [n for n in members if not waiting[n]]
    while ready:
        n = min(ready, key=lambda n: (brings(n) > 0, -depth[n] if brings(n) > 0 else brings(n)))
        ready.remove(n)
        order.append(n)
        for a in _read(n):
            used.add(a)
            waiting[a] -= 1
            if not waiting[a] and a in depth:
                ready.append(a)
    return order[::-1]


def _read(n: Node) -> dict[Node, None]:
    """The arrays that an op reads."""
    return dict.fromkeys(a for a in map(root, n.args) if a.op != "const" and not isinstance(a.dtype, tuple))
