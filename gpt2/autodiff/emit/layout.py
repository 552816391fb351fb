"""Views, and layouts: which nodes are mere views of memory that another value owns.

Everything is static. A Layout says where a value's elements lie in memory, as NumPy will have them there: so
it is known whether NumPy can reshape without copying, and whether two values are in the same place.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..graph import Graph, GraphError, Node, is_scalar_const, rewrite, with_args
from ..ops import apply
from ..ops.shape import index_slices
from ..ops.table import VIEWS, facts, takes_plain_numbers


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a value's elements lie: in some memory, from byte `start` on. A description, not an array.

    memory   an object for the memory; values in the same one share it
    """

    memory: object
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def contiguous(self) -> bool:
        """Whether the elements follow one another in C's order."""
        in_order = _row_strides(self.shape, self.itemsize)
        return 0 in self.shape or _same_strides(self.shape, self.strides, in_order)

    @property
    def span(self) -> tuple[int, int]:
        """The first byte of the memory that belongs to it, and the one after the last."""
        if 0 in self.shape:
            return self.start, self.start
        reach = [(n - 1) * s for n, s in zip(self.shape, self.strides)]
        low, high = (sum(r for r in reach if (r < 0) is below) for below in (True, False))
        return self.start + low, self.start + high + self.itemsize


def whole(shape: Sequence[int], dtype: np.dtype) -> Layout:
    """The layout of an array in memory of its own, in C's order."""
    return Layout(object(), 0, tuple(shape), _row_strides(shape, dtype.itemsize), dtype.itemsize)


def _row_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    after = itertools.accumulate(reversed(shape), lambda step, n: step * max(n, 1), initial=itemsize)
    return tuple(after)[-2::-1]


def _same_strides(shape: Sequence[int], a: Sequence[int], b: Sequence[int]) -> bool:
    return all(n == 1 or s == t for n, s, t in zip(shape, a, b))


def view(x: Layout, n: Node) -> Layout | None:
    """The layout of `n`, a view op, of a value that lies so; None where NumPy would have to copy."""
    if n.op == "transpose":
        perm = n.attrs["perm"]
        return replace(x, shape=n.shape, strides=tuple(x.strides[k] for k in perm))
    if n.op == "slice":
        return slice_view(x, n.attrs["index"])
    if n.op == "broadcast":
        new = len(n.shape) - len(x.shape)
        strides = (0 if a != b else s for a, b, s in zip(x.shape, n.shape[new:], x.strides))
        return replace(x, shape=n.shape, strides=(0,) * new + tuple(strides))
    if n.op == "reshape":
        return reshape_view(x, n.shape)
    raise GraphError(f"{n.op} is in VIEWS, but the emitter does not know its layout")


def slice_view(x: Layout, index: Sequence[tuple]) -> Layout:
    """The layout of x[index]."""
    start, strides = x.start, []
    parts = [range(n)[s] for s, n in zip(index_slices(index), x.shape)]
    for part, stride in zip(parts, x.strides):
        start += part.start * stride
        strides.append(part.step * stride)
    return Layout(x.memory, start, tuple(map(len, parts)), tuple(strides), x.itemsize)


def reshape_view(x: Layout, shape: Sequence[int]) -> Layout | None:
    """The layout of x.reshape(shape) where that needs no copy, else None."""
    if x.contiguous:
        return replace(x, shape=tuple(shape), strides=_row_strides(shape, x.itemsize))
    strides = _reshaped_strides(x.shape, x.strides, tuple(shape))
    return None if strides is None else replace(x, shape=tuple(shape), strides=strides)


def _reshaped_strides(old, strides, new) -> tuple[int, ...] | None:
    """Strides of the same memory under another shape; None if a new axis is not evenly strided."""
    runs: list[tuple[int, int]] = []  # (elements, stride) of axes that follow one another, innermost first
    for n, s in zip(reversed(old), reversed(strides)):
        if runs and s == math.prod(runs[-1]):
            runs[-1] = n * runs[-1][0], runs[-1][1]
        elif n != 1:
            runs.append((n, s))
    left, step = 1, 0
    new_strides: list[int] = []
    for n in reversed(new):
        if left == 1 and n != 1:
            left, step = runs.pop(0)
        if left % n:
            return None
        new_strides.append(step)
        left, step = left // n, n * step
    return tuple(reversed(new_strides))


def lower(graph: Graph, share_inputs: bool = False, exact: Container[int] = frozenset()) -> Graph:
    """The graph with every copy that NumPy would make spelled out, and each result a value of its own.

    - a reshape that no view can give becomes a copy and a reshape of the copy;
    - an elementwise op reads through broadcasts: ufuncs broadcast by themselves;
    - products that may add up many rows in any order become `row_product`;
    - sums that must have NumPy's bits (`exact` has their ids) become `sum_as_numpy`;
    - each output is a fresh value, so that a caller never gets a view of an input or the same array twice;
      with `share_inputs`, an output that is an input is returned as it is, as a Python function would.
    """
    graph = rewrite(graph, _Lowering(exact).rule)
    times = Counter(graph.outputs)
    outputs: list[Node] = []
    for o in graph.outputs:
        moved = is_result_of_call(o) and times[o] == 1
        if not moved and not (share_inputs and o.op == "input"):
            name = o.name if o.op not in ("input", "const") else None
            o = Node("copy", (o,), {}, o.shape, o.dtype, name, o.loc, o.derived)
        outputs.append(o)
    return Graph(graph.inputs, outputs, graph.name)


class _Lowering:
    """What each node becomes in `lower`."""

    def __init__(self, exact: Container[int]):
        self.exact = exact
        self.layouts: dict[Node, Layout] = {}

    def rule(self, n: Node, args: tuple) -> Node | None:
        op = facts(n)
        if n.op in ("item", "outlined"):
            return None
        if n.op == "stop_gradient":  # it shares its argument's memory, which the plan of memory cannot say
            return args[0]
        if n.op in VIEWS:
            return self.of_view(n, args)
        if op.streams and any(a.op == "broadcast" or is_scalar_const(a) for a in args):
            return _through_broadcasts(n, args, n.id in self.exact)
        if n.op in ("matmul", "einsum") and n.id in self.exact:
            filled = tuple(self.filled(a, 2 if n.op == "matmul" else a.ndim) for a in args)
            return None if filled == args else with_args(n, filled)
        make = _by_rows if n.op == "matmul" else _in_order
        return make(n, args, n.id in self.exact)

    def filled(self, x: Node, axes: int) -> Node:
        """An operand of a product, with memory for each element along its last axes, as np.full and np.tile
        make it: NumPy does not use BLAS for operands with zero strides.
        """
        strides = self.layout(x).strides
        if all(n == 1 or s for n, s in zip(x.shape[-axes:], strides[-axes:])):
            return x
        if x.op in VIEWS and x.op != "broadcast":
            view = with_args(x, (self.filled(x.args[0], x.args[0].ndim),))
            copied = self.of_view(view, view.args)
            return view if copied is None else copied
        return apply("copy", x)

    def of_view(self, n: Node, args: tuple) -> Node | None:
        x = args[0]
        if n.op in ("transpose", "slice", "broadcast"):  # views of any layout
            return None
        if n.op == "reshape" and x.op not in VIEWS:  # of contiguous memory
            return None
        if view(self.layout(x), with_args(n, args)) is not None:
            return None
        x = apply("copy", x)
        x.loc, x.name = n.loc, None
        return with_args(n, (x,))

    def layout(self, n: Node) -> Layout:
        if n not in self.layouts:
            below = view(self.layout(n.args[0]), n) if n.op in VIEWS else None
            self.layouts[n] = below if below is not None else whole(n.shape, n.dtype)
        return self.layouts[n]


def _through_broadcasts(n: Node, args: tuple, exact: bool) -> Node | None:
    """An op that reads its arguments before they were broadcast: the result has memory of the full shape. A
    constant of another dtype than a Python number would have here stays a 0-d array. NumPy takes a power with
    the number 2 for a square, but not one with an array of 2.
    """
    reads = [a.args[0] if a.op == "broadcast" else a for a in args]
    if exact and n.op in ("power", "float_power") and args[1].op == "broadcast" and is_scalar_const(reads[1]):
        reads[1] = apply("copy", args[1])
        reads[1].loc = n.loc
    if not takes_plain_numbers(reads):
        reads = [apply("broadcast", a, shape=()) if is_scalar_const(a) else a for a in reads]
    elif all(a is b for a, b in zip(reads, args)):
        return None
    return with_args(n, tuple(reads))


def _in_order(n: Node, args: tuple, exact: bool) -> Node | None:
    """A sum or einsum that adds in NumPy's order if exact, else in any order; None if n does so already."""
    if n.op == "sum" and exact and n.dtype.kind in "fc":
        return Node("sum_as_numpy", args, n.attrs, n.shape, n.dtype, n.name, n.loc, n.derived)
    if n.op == "einsum" and not exact and "optimize" in n.attrs:
        attrs = {"subscripts": n.attrs["subscripts"]}
        return Node("einsum", args, attrs, n.shape, n.dtype, n.name, n.loc, n.derived)
    return None


PRODUCT_SIZE = 1 << 13  # elements at most of a row_product, which each block of rows adds to
LARGE = 1 << 18  # elements at least of its factor: smaller ones may be in memory as a whole


def _by_rows(n: Node, args: tuple, exact: bool) -> Node | None:
    """x.T @ y as a sum over rows, where x and y have many and their product is small."""
    if exact or n.ndim != 2 or args[0].op != "transpose" or n.size > PRODUCT_SIZE:
        return None
    x, y = args[0].args[0], args[1]
    if x.ndim != 2 or x.size < LARGE or y.ndim != 2 or {x.dtype, y.dtype} != {n.dtype} or n.dtype.kind != "f":
        return None
    return Node("row_product", (x, y), {}, n.shape, n.dtype, n.name, n.loc, n.derived)


def is_result_of_call(n: Node) -> bool:
    """Whether n is written by an outlined call, into memory that the program gives it."""
    return n.op == "item" and n.args[0].op == "outlined"


def results_of(graph: Graph) -> dict[Node, dict[int, list[Node]]]:
    """For each outlined call the nodes that are its results, by number: none, one or several equal ones."""
    results: dict[Node, dict[int, list[Node]]] = {n: {} for n in graph.nodes if n.op == "outlined"}
    for n in graph.nodes:
        if n.op == "item" and n.args[0] in results:
            results[n.args[0]].setdefault(n.attrs["i"], []).append(n)
    return results


def same_memory(a: Layout, b: Layout) -> bool:
    """Whether two values are the same view of the same memory."""
    same = a.memory is b.memory and a.start == b.start and a.shape == b.shape
    return same and _same_strides(a.shape, a.strides, b.strides)
