"""How ops work where their arguments have more leading axes: the pairs of rules for the column `leads`.

batch   many examples at once (ad.vmap): a value that differs from example to example has one more axis, the
        first, of length `b.n`; one that does not is as it was. A rule makes the op's node for all examples:

            batch(b, *args, **attrs) -> node, or for a tuple node a list of nodes, all with that axis

        b.flags says for each argument whether it has the axis, and b.out is the node of one example. An op
        without a rule is done by a loop over the examples (transforms/vmap.py): slower, and always right.

rows    row by row, in blocks that stay in cache (rowwise.py): rows(n, N, p), where the first p axes of n make
        up its N rows, gives for each argument ROW or WHOLE, or None where n does not work row by row
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..graph import Graph, GraphError, Node
from .boxes import ranges
from .build import broadcast, reshape, swap_last, transpose
from .rowwise import ROW, WHOLE, Flags, row_axes, takes_rows
from .table import Leads, apply, const


@dataclass
class Batch:
    """One op for n examples. graph(body, flags) -> (body for all of them, a flag for each output)."""

    n: int
    flags: Sequence[bool]
    out: Node
    graph: Callable[[Graph, Sequence[bool]], tuple[Graph, list[bool]]]

    def front(self, x: Node, has: bool) -> Node:
        """x with the axis of the examples, whether it had one or not."""
        return x if has else broadcast(reshape(x, (1, *x.shape)), (self.n, *x.shape))

    def aligned(self, x: Node, has: bool, ndim: int) -> Node:
        """x of an op that broadcasts, whose arguments have `ndim` axes for one example."""
        return reshape(x, (self.n, *(1,) * (ndim + 1 - x.ndim), *x.shape[1:])) if has else x


class NoRule(Exception):
    """A rule that does not cover this call: it is done by a loop."""


# ops whose arguments broadcast (elementwise, stacks of matrices), or that have one argument
def broadcasting(b: Batch, *args: Node, **attrs: Any) -> Node:
    """The leading axes of all arguments broadcast behind that of the examples."""
    m = max(x.ndim - has for x, has in zip(args, b.flags))
    return apply(b.out.op, *(b.aligned(x, has, m) for x, has in zip(args, b.flags)), **attrs)


def rows_of_elementwise(n: Node, N: int, p: int) -> Flags:
    """Of arguments that are broadcast each has the rows, or length 1 in place of them."""
    flags = []
    for a in n.args:
        padded = (1,) * (n.ndim - a.ndim) + a.shape
        if padded[:p] == n.shape[:p]:
            flags.append(ROW)
        elif all(s == 1 for s in padded[:p]):
            flags.append(WHOLE)
        else:
            return None
    return tuple(flags)


STACKS = Leads(broadcasting)
ELEMENTWISE = Leads(broadcasting, rows_of_elementwise)


# products
def batch_of_matmul(b: Batch, x: Node, y: Node) -> Node:
    """Beside a plain matrix the examples are rows of one product, as NumPy's batched one is a loop."""
    left, right = b.flags
    if left and not right and y.ndim == 2:
        flat = reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))
        return reshape(apply("matmul", flat, y), (*x.shape[:-1], y.shape[-1]))
    if right and not left and x.ndim == 2 and y.ndim == 3 and y.shape[-1] == 1:  # of vectors
        flat = apply("matmul", reshape(y, y.shape[:2]), swap_last(x))
        return reshape(flat, (*flat.shape, 1))
    return broadcasting(b, x, y)


def batch_of_einsum(b: Batch, *args: Node, subscripts: str, **attrs: Any) -> Node:
    """One more letter."""
    free = [c for c in string.ascii_letters if c not in subscripts]
    if not free:
        raise NoRule
    ins, out = subscripts.split("->")
    terms = [free[0] + s if has else s for s, has in zip(ins.split(","), b.flags)]
    return apply("einsum", *args, subscripts=f"{','.join(terms)}->{free[0]}{out}", **attrs)


MATMUL = Leads(batch_of_matmul, lambda n, N, p: None if p > n.ndim - 2 else rows_of_elementwise(n, N, p))
EINSUM = Leads(batch_of_einsum)


# one axis, or several
def _behind(axis: int) -> int:
    """The axis behind that of the examples. Raises GraphError for one that is counted from the end."""
    if axis < 0:
        raise GraphError(f"axis {axis} in a graph: axes are counted from the front, by axis_of")
    return axis + 1


def along_axes(b: Batch, x: Node, **attrs: Any) -> Node:
    """Ops along `axis`, or over `axes`."""
    if "axis" in attrs:
        return apply(b.out.op, x, **(attrs | {"axis": _behind(attrs["axis"])}))
    return apply(b.out.op, x, **(attrs | {"axes": tuple(map(_behind, attrs["axes"]))}))


def rows_of_axes(n: Node, N: int, p: int) -> Flags:
    """The axes lie within a row, and every argument has the rows."""
    axes = n.attrs["axes"] if "axes" in n.attrs else (n.attrs["axis"],)
    within = all(axis >= p for axis in axes) and all(x.shape[:p] == n.shape[:p] for x in n.args)
    return (ROW,) * len(n.args) if within else None


AXIS = Leads(along_axes)
AXIS_IN_ROWS = Leads(along_axes, rows_of_axes)


# shapes and slices
RESHAPE = Leads(
    batch=lambda b, x, *, shape: reshape(x, (b.n, *shape)),
    rows=lambda n, N, p: None if row_axes(n.args[0].shape, N) is None else (ROW,),
)
TRANSPOSE = Leads(
    batch=lambda b, x, *, perm: transpose(x, (0, *(p + 1 for p in perm))),
    rows=lambda n, N, p: (ROW,) if n.attrs["perm"][:p] == tuple(range(p)) else None,
)
BROADCAST = Leads(
    batch=lambda b, x, *, shape: broadcast(b.aligned(x, True, len(shape)), (b.n, *shape)),
    rows=rows_of_elementwise,
)
SLICE = Leads(
    batch=lambda b, x, *, index: apply("slice", x, index=(_whole(b), *index)),
    rows=lambda n, N, p: (ROW,) if _full(n.attrs["index"], n.args[0].shape, p) else None,
)


def _whole(b: Batch) -> tuple[int, int, int]:
    return (0, b.n, 1)


def _full(index, shape, p: int) -> bool:
    pairs = zip(index[:p], shape)
    return all(tuple(s) in ((0, m, 1), (None, None, None), (0, m, None), (0, None, 1)) for s, m in pairs)


def batch_of_assemble(
    b: Batch, *parts: Node, shape: Sequence[int], indices: Sequence[tuple], dtype: str
) -> Node:
    """All parts get the axis: those who read assembles take a part for as large as its slice."""
    sizes = [tuple(map(len, ranges(i, shape))) for i in indices]
    aligned = [b.aligned(x, has, len(shape)) for x, has in zip(parts, b.flags)]
    whole = [broadcast(x, (b.n, *size)) for x, size in zip(aligned, sizes)]
    slices = tuple((_whole(b), *i) for i in indices)
    return apply("assemble", *whole, shape=(b.n, *shape), indices=slices, dtype=dtype)


def rows_of_parts(n: Node, N: int, p: int) -> Flags:
    """The parts lie within the rows, and none is stretched over its slice."""
    indices = n.attrs["indices"] if n.op == "assemble" else (n.attrs["index"],)
    within = all(_full(i, n.shape, p) for i in indices) and all(a.shape[:p] == n.shape[:p] for a in n.args)
    return (ROW,) * len(n.args) if within else None


def batch_of_update(b: Batch, x: Node, v: Node, *, index: Sequence[tuple]) -> Node:
    whole = b.front(x, b.flags[0])
    return apply("update", whole, b.aligned(v, b.flags[1], whole.ndim - 1), index=(_whole(b), *index))


ASSEMBLE = Leads(batch_of_assemble, rows_of_parts)
UPDATE = Leads(batch_of_update, rows_of_parts)


# arrays of indices
def _indexed(
    b: Batch, spec: Sequence, arrays: Sequence[Node], flags: Sequence[bool]
) -> tuple[tuple, list[Node], int, int]:
    """(spec, index arrays) that pick for every example from its own row, how many axes the arrays make, and
    where those stand in the result for one example.
    """
    m = max((x.ndim - has for x, has in zip(arrays, flags)), default=0)
    rows = const(np.arange(b.n).reshape((b.n,) + (1,) * m))
    wider = (("array", 0), *(("array", s[1] + 1) if s != "new" and s[0] == "array" else s for s in spec))
    aligned = [rows, *(b.aligned(x, has, m) for x, has in zip(arrays, flags))]
    return wider, aligned, m, first_of_adjacent(spec) or 0


def batch_of_gather(b: Batch, x: Node, *arrays: Node, spec: Sequence) -> Node:
    if b.flags[0] and not any(b.flags[1:]) and first_of_adjacent(spec) is not None:
        return apply("gather", x, *arrays, spec=(_whole(b), *spec))
    whole = b.front(x, b.flags[0])
    spec, indices, m, first = _indexed(b, spec, arrays, b.flags[1:])
    picked = apply("gather", whole, *indices, spec=spec)  # (n, *axes of the arrays, *others)
    return transpose(picked, _moved(picked.ndim, m, first))


def rows_of_gather(n: Node, N: int, p: int) -> Flags:
    """Of gathers that pick rows, table[index]: the index comes first, and no other axis is cut."""
    table, *arrays = n.args
    return (WHOLE, ROW) if takes_rows(n.attrs["spec"], table, arrays) and p <= arrays[0].ndim else None


def first_of_adjacent(spec: Sequence) -> int | None:
    """The position of the first index array, if no slice or new axis stands between two of them."""
    positions = [k for k, s in enumerate(spec) if s != "new" and s[0] == "array"]
    adjacent = bool(positions) and positions[-1] - positions[0] + 1 == len(positions)
    return positions[0] if adjacent else None


def _moved(ndim: int, m: int, first: int) -> list[int]:
    """The permutation that brings m axes from after the first axis to where they stand for one example."""
    others = list(range(1 + m, ndim))
    return [0, *others[:first], *range(1, 1 + m), *others[first:]]


def batch_of_scatter(b: Batch, x: Node, v: Node, *arrays: Node, spec: Sequence) -> Node:
    whole = b.front(x, b.flags[0])
    one_shape = apply("gather", _one(b, x, 0), *(_one(b, a, 2 + k) for k, a in enumerate(arrays)), spec=spec)
    values = b.aligned(b.front(v, b.flags[1]), True, one_shape.ndim)
    spec, indices, m, first = _indexed(b, spec, arrays, b.flags[2:])
    order = np.argsort(_moved(one_shape.ndim + 1, m, first)).tolist()
    return apply(b.out.op, whole, transpose(values, order), *indices, spec=spec)


def _one(b: Batch, x: Node, k: int) -> Node:
    """Of the type that x has for one example: what an op would infer from is its type alone."""
    return Node("input", (), {}, x.shape[1:], x.dtype) if b.flags[k] else x


def batch_of_along(b: Batch, *args: Node, axis: int) -> Node:
    """take_along, and its transpose: all arguments have the same axes."""
    first = b.out.op == "scatter_along_add"
    kept = [has or first and k == 0 for k, has in enumerate(b.flags)]
    arguments = zip(args, b.flags, kept)
    whole = [b.front(x, has) if keep else reshape(x, (1, *x.shape)) for x, has, keep in arguments]
    return apply(b.out.op, *whole, axis=_behind(axis))


def batch_of_search(b: Batch, a: Node, v: Node, *, side: str) -> Node:
    if b.flags[0]:
        raise NoRule  # one sorted vector an example
    return apply("searchsorted", a, v, side=side)


GATHER = Leads(batch_of_gather, rows_of_gather)
SCATTER = Leads(batch_of_scatter)
TAKE_ALONG = Leads(batch_of_along, rows_of_axes)
SEARCH = Leads(batch_of_search)
