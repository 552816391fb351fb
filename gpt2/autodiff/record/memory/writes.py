"""Turns writing in place into new values.

Each piece of memory has a root: the recorded value that owns it. A view has a root and a chain, the ops that
lead from the root's node to its own (slice, reshape, transpose, ...). Writing through a view makes a new node
for the root, by undoing the chain step by step; the other views recompute theirs when they are next read.

The concrete arrays share memory just as the user's do, so overlapping reads and writes, casts and errors
are NumPy's own. Shared memory (an argument, an array passed to an inner recording) is copied before the first
write, in the same layout, and the views are moved to the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from ...errors import WriteError
from ...graph import Node
from ...ops import build, table
from ..recorder import Recorder, escaped
from ..source_lines import error_here, here
from ..unwatched import unwatched
from .view_chains import follow

byte_bounds = np.lib.array_utils.byte_bounds


class Stored:
    """A value in memory that a recording knows: its node, the concrete value, the recorder, and for views
    their root and chain.
    """

    __slots__ = (
        *"_rec _node _value _root _chain _version _memory _owned _argument _lows _buffer".split(),
        "__weakref__",
    )

    def __init__(self, rec: Recorder, node: Node, value: Any, owned: bool = True):
        self._rec = rec
        self._node = node
        self._value = value
        self._root = None
        self._chain = ()
        self._version = 0
        self._memory = 0
        self._owned = owned
        self._argument = None
        self._lows = ()
        self._buffer = None

    @property
    def node(self) -> Node:
        root = self._root
        if root is not None and self._version != root._version:
            refresh(self)
        return self._node

    @property
    def value(self) -> Any:
        """The concrete value: an array, a NumPy scalar, or a Python number."""
        root = self._root
        if root is not None and self._version != root._version:
            refresh(self)
        return self._value

    @property
    def root(self) -> Self:
        """The recorded value that owns the memory."""
        return self if self._root is None else self._root


def overlapping(arrays: Sequence[np.ndarray | None]) -> tuple[int, int] | None:
    """The indices of two of these arrays that share memory, or twice that of one whose own elements do."""
    present = [(k, a) for k, a in enumerate(arrays) if a is not None and a.size]
    for k, a in present:
        if not a.flags.forc and _overlaps_itself(a):
            return k, k
    if len({id(a) for _, a in present if a.flags.owndata}) == len(present) or len(present) == 1:
        return None
    spans = sorted((*byte_bounds(a), k) for k, a in present)
    for i, (_, end, k) in enumerate(spans, 1):
        for start, _, other in spans[i:]:
            if start >= end:
                break
            if _share(arrays[k], arrays[other]):
                return min(k, other), max(k, other)
    return None


def _share(a, b) -> bool:
    try:
        return np.shares_memory(a, b, max_work=1000)
    except np.exceptions.TooHardError:
        return True


def _overlaps_itself(a: np.ndarray) -> bool:
    """Whether two elements of the array share memory: a stride is smaller than what the inner axes span."""
    reached = a.itemsize
    for stride, n in sorted((abs(s), n) for s, n in zip(a.strides, a.shape) if n > 1):
        if stride < reached:
            return True
        reached += stride * (n - 1)
    return False


def write_back(node: Node, chain: Sequence[Node], new: Node, loc: tuple | None) -> Node:
    """The root's new node when `new` replaces the end of the chain. `node` is the old one."""
    before = [node]
    for step in chain[:-1]:
        before.append(follow(before[-1], (step,)))
    for step, whole in zip(reversed(chain), reversed(before)):
        new = _undo(step, whole, new)
        new.loc = new.loc or loc
    return new


def _undo(step: Node, whole: Node, new: Node) -> Node:
    op, attrs = step.op, step.attrs
    if op == "reshape":
        return build.reshape(new, whole.shape)
    if op == "transpose":
        return build.transpose(new, tuple(np.argsort(attrs["perm"]).tolist()))
    if op == "slice":
        return build.update(whole, new, attrs["index"])
    if op == "gather":
        return table.apply("scatter", whole, new, *step.args[1:], spec=attrs["spec"])
    if op == "real":
        return table.apply("complex", new, build.imag(whole))
    if op == "imag":
        return table.apply("complex", build.real(whole), new)
    raise error_here(f"cannot write through a view made by {op}")


def refresh(x: Stored) -> None:
    """Bring a view up to date with its root."""
    root, old = x._root, x._value
    if x._memory != root._memory:  # the root was copied: the view is the same part of the new memory
        offset = old.__array_interface__["data"][0] - root._lows[x._memory]
        x._value = np.ndarray(old.shape, old.dtype, root._buffer, offset, old.strides)
        x._memory = root._memory
    x._node = follow(root._node, x._chain)
    x._version = root._version


def make_private(root: Stored) -> None:
    """Copy the root's memory, unless it is private."""
    if root._owned:
        return
    old, rec = root._value, root._rec
    if root._argument is not None and root._argument not in rec.written:
        for other in rec.arguments:
            is_other = other is not root and isinstance(other._value, np.ndarray)
            if is_other and np.may_share_memory(other._value, old):
                raise WriteError(
                    f"{rec.name} writes to its argument {root._node.name!r}, which shares memory with its "
                    f"argument {other._node.name!r}. Pass a copy of one of them",
                    here(),
                )
        rec.written.append(root._argument)
    low, high = byte_bounds(old)
    buffer = np.empty(high - low, np.uint8)
    new = np.ndarray(old.shape, old.dtype, buffer, old.__array_interface__["data"][0] - low, old.strides)
    new[...] = old
    root._lows = (*root._lows, low)
    root._buffer, root._value = buffer, new
    root._memory += 1
    root._version += 1  # so that views look
    root._owned = True


def write(x: Stored, new: Node, store: Callable[[np.ndarray], object]) -> None:
    """Make the node `new` the content of x; `store(array)` does the same to the concrete array."""
    array, loc = _private_array(x)
    if not x._rec.skips_write(array, new):
        store(array)
    _replace_node(x, new, loc)


@unwatched
def _private_array(x: Stored) -> tuple[np.ndarray, tuple]:
    """(the private array to write to, the line that writes)."""
    if not x._rec.active:
        raise escaped(x)
    if not isinstance(x._value, np.ndarray):
        raise TypeError(f"'{type(x._value).__name__}' object does not support item assignment")
    if not x._value.flags.writeable:
        raise ValueError("assignment destination is read-only")
    loc = here()
    make_private(x.root)
    return x.value, loc


@unwatched
def _replace_node(x: Stored, new: Node, loc: tuple) -> None:
    root = x.root
    name = root._node.name
    node = write_back(root._node, x._chain, new, loc) if x._root is not None else new
    if node.loc is None:
        node.loc = loc
    if name is not None and node.name is None and node.op not in ("const", "input"):
        node.name = name
    root._node = node
    root._version += 1
    if x is not root:
        x._node = new
        x._version = root._version


def assigned(value: Node, shape: Sequence[int], dtype: np.dtype) -> Node:
    """The value that an assignment stores, in the target's shape and dtype."""
    if value.ndim > len(shape):  # NumPy drops leading axes of length 1
        value = build.reshape(value, value.shape[value.ndim - len(shape) :])
    return build.broadcast(build.cast(value, dtype), shape)
