"""Chains of nodes from the owner of memory to a view of it: slice, reshape, transpose, ...

Of the first argument of a step only the shape counts. `shortened` combines steps, so that after a write a
view of a view of a view costs no more to recompute than one view does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...graph import Node
from ...ops.boxes import as_index, ranges

ViewChain = tuple[Node, ...]


def chain_between(start: Node, end: Node) -> ViewChain | None:
    """The nodes after `start` up to `end`, each the first argument of the next; None: no chain."""
    chain = []
    node = end
    while node is not start:
        if not node.args:
            return None
        chain.append(node)
        node = node.args[0]
    return tuple(reversed(chain))


def follow(node: Node, chain: Sequence[Node]) -> Node:
    """The chain applied to another node."""
    for step in chain:
        node = Node(step.op, (node, *step.args[1:]), step.attrs, step.shape, step.dtype, step.name, step.loc)
    return node


def same_chain(a: Sequence[Node], b: Sequence[Node]) -> bool:
    return len(a) == len(b) and all(
        x.op == y.op and x.attrs == y.attrs and x.args[1:] == y.args[1:] for x, y in zip(a, b)
    )


def shortened(chain: ViewChain, more: Iterable[Node]) -> ViewChain:
    """A shortened chain with more steps at its end, combined where possible: at most a slice, a transpose and
    a reshape, unless a reshape joins or splits axes, or a step is of another kind.
    """
    steps = list(chain)
    todo = list(more)[::-1]
    while todo:
        step = todo.pop()
        combined = _combined(steps[-1], step) if steps else None
        if combined is None:
            steps.append(step)
        else:
            steps.pop()
            todo.extend(reversed(combined))
    return tuple(steps)


def _combined(a: Node, b: Node) -> list[Node] | None:
    """Two steps as one, or as two with the slice first; None if they stay as they are."""
    if a.op == b.op == "reshape":
        return [_step(b, a.args[0])]
    if a.op == b.op == "transpose":
        return [_step(b, a.args[0], perm=tuple([a.attrs["perm"][k] for k in b.attrs["perm"]]))]
    if b.op != "slice":
        return None
    source, index = a.args[0], b.attrs["index"]
    if a.op == "slice":
        taken = ranges(a.attrs["index"], source.shape)
        return [_step(b, source, index=as_index([r[slice(*s)] for r, s in zip(taken, index)]))]
    if a.op == "transpose":
        perm = a.attrs["perm"]
        first = _sliced(source, tuple([index[perm.index(axis)] for axis in range(len(perm))]), b)
        return [first, _step(b, first, op="transpose", perm=perm)]
    # The slice of a reshape is done before it, if that only adds and drops axes of length 1
    taken, axes = ranges(index, a.shape), [k for k, m in enumerate(source.shape) if m != 1]
    if a.op != "reshape" or [m for m in a.shape if m != 1] != [source.shape[k] for k in axes]:
        return None
    if any(m == 1 and len(r) != 1 for r, m in zip(taken, a.shape)):
        return None
    inner = [(0, 1, 1)] * len(source.shape)
    for k, s in zip(axes, [s for s, m in zip(as_index(taken), a.shape) if m != 1]):
        inner[k] = s
    first = _sliced(source, tuple(inner), b)
    return [first, _step(b, first, op="reshape", shape=b.shape)]


def _sliced(source: Node, index: tuple, like: Node) -> Node:
    shape = tuple(map(len, ranges(index, source.shape)))
    return Node("slice", (source,), {"index": index}, shape, like.dtype, None, like.loc)


def _step(like: Node, source: Node, op: str | None = None, **attrs: object) -> Node:
    """A step with the result of `like`, from `source`."""
    op, attrs = op or like.op, attrs or like.attrs
    return Node(op, (source,), attrs, like.shape, like.dtype, like.name, like.loc, like.derived)
