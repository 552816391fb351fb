"""Puts slices, writes and additions into arrays of zeros together into one op each.

x + scatter_add(zeros, v)              -> scatter_add(x, v)
zeros; x[0] = a; x[1] = b              -> assemble(a, b)
assemble(a, b)[where a lies]           -> a

What is built up part by part in a loop of thousands waits until it is complete, and is then put together at
once: copying all parts for each new one would take time that grows with the square.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..graph import Node
from ..ops import apply, build
from ..ops.boxes import FEW_BOXES, as_index, disjoint, inside, is_full, ranges, slices_of
from .engine import BITS, DIGITS, Family
from .match import ZEROS, is_zeros

if TYPE_CHECKING:
    from .engine import Sweep

assemble = Family("assemble")


def parts_of(n: Node) -> list[tuple[Node, tuple]]:
    """The parts of an assemble, with where they lie as ranges."""
    return [(p, ranges(i, n.shape)) for p, i in zip(n.args, n.attrs["indices"])]


def _stretched(p: Node, rs: tuple) -> Node:
    """A part in the shape that its slice has."""
    return build.broadcast(p, tuple(map(len, rs)))


def assembled(parts: Sequence[tuple[Node, tuple]], like: Node) -> Node:
    """Zeros like `like` with the parts added; parts are made to fit their slices."""
    fitted = [_stretched(build.cast(p, like.dtype), rs) for p, rs in parts]
    return build.assemble(fitted, like.shape, [as_index(rs) for _, rs in parts], like.dtype)


# assemble
@assemble.rule("assemble", keeps=BITS)
def one_part_is_everything(n: Node, sweep: Sweep) -> Node | None:
    if not n.args:
        return build.zeros(n.shape, n.dtype)
    if len(n.args) == 1 and is_full(parts_of(n)[0][1], n.shape):
        return build.broadcast(build.cast(n.args[0], n.dtype), n.shape)
    return None


@assemble.rule("assemble", keeps=DIGITS, reads=(*ZEROS, "add"))
def parts_in_parts(n: Node, sweep: Sweep) -> Node | None:
    """Parts that are zeros go; parts that are assembled themselves, or x + assembled, are put in directly."""
    parts, inner, changed = parts_of(n), [], False
    for p, rs in parts:
        opened = _opened(p, rs, sweep)
        changed |= opened is not None
        inner.extend([(p, rs)] if opened is None else opened)
    return assembled(inner, n) if changed else None


def _opened(p: Node, rs, sweep) -> list | None:
    """The parts that a part is made of, with where they lie; None where it is to stay as it is."""

    def goes_back(box: Sequence[range]) -> bool:
        return any(len(r) and r.step < 0 for r in box)

    if is_zeros(p):
        return []
    if p.op not in ("assemble", "add") or not sweep.single(p) or goes_back(rs):
        return None
    if p.op == "add":
        for a, b in (p.args, p.args[::-1]):
            if b.op == "assemble" and sweep.single(b) and a.shape == b.shape:
                return [(a, rs), (b, rs)]
        return None
    if any(goes_back(box) for _, box in parts_of(p)):
        return None
    return [
        (q, tuple(r[s.start : s.stop : s.step] if len(s) else range(0) for r, s in zip(rs, inner)))
        for q, inner in parts_of(p)
    ]


@assemble.rule("slice", keeps=BITS, reads=("assemble",))
def slice_of_assemble(n: Node, sweep: Sweep) -> Node | None:
    """A slice that meets one part of what it cuts from, or none; or several, if the whole is not read."""
    (x,) = n.args
    if x.op != "assemble":
        return None
    want = ranges(n.attrs["index"], x.shape)
    met = [(p, rs) for p, rs in parts_of(x) if not disjoint(want, rs)]
    if not met:
        return build.zeros(n.shape, n.dtype)
    if len(met) == 1:
        (p, rs) = met[0]
        within = inside(want, rs)
        if within is not None:
            return build.cast(build.slice_(_stretched(p, rs), as_index(within)), n.dtype)
    if not sweep.single(x):
        return None
    inner = []
    for p, rs in met:
        within = inside(rs, want)  # only parts that the slice takes whole: others would have to be cut
        if within is None:
            return None
        inner.append((p, within))
    return assembled(inner, n)


# update
@assemble.rule("update", keeps=BITS, reads=(*ZEROS, "update"))
def update_zeros(n: Node, sweep: Sweep) -> Node | None:
    """A write into zeros is a part; a write over parts replaces those that it covers."""
    x, v = n.args
    box = ranges(n.attrs["index"], x.shape)
    if is_zeros(x):
        return assembled([(v, box)], n)
    if x.op == "update" and not sweep.written_over:
        return _written_parts(n, sweep)
    if x.op != "assemble" or len(x.args) >= FEW_BOXES and sweep.written_over:
        return None
    left = [(p, rs) for p, rs in parts_of(x) if inside(rs, box) is None]
    if all(disjoint(box, rs) for _, rs in left):
        return assembled([*left, (v, box)], n)
    return None


_MOST_MARKED = 1 << 24  # elements of an array in which many parts are written


def _written_parts(n: Node, sweep) -> Node | None:
    """The parts that many writes into zeros, the last of which is `n`, leave to be seen at the end. None
    where one write covers another in part only.
    """
    writes = []  # the last one first
    x = n
    while x.op == "update" and (x is n or sweep.single(x)):
        writes.append((x.args[1], ranges(x.attrs["index"], x.shape)))
        x = x.args[0]
    if not (is_zeros(x) or x.op == "assemble") or math.prod(x.shape) > _MOST_MARKED:
        return None
    if x.op == "assemble" and not sweep.single(x) and x.args:
        return None
    before = [] if is_zeros(x) else parts_of(x)
    taken = np.zeros(x.shape, bool)
    seen = []
    for k, (v, box) in enumerate((*writes, *before[::-1])):
        there = taken[slices_of(box)]
        if not there.any():
            seen.append((v, box))
            there[...] = k < len(writes)  # parts of an assemble may lie over one another: they are added
        elif not there.all():
            return None
    return assembled(seen[::-1], n)


@assemble.rule("update", keeps=BITS, reads=("slice", "update"))
def update_again(n: Node, sweep: Sweep) -> Node | None:
    """Drops what is overwritten; writing back what was there changes nothing."""
    x, v = n.args
    box = ranges(n.attrs["index"], n.shape)
    if v.op == "slice" and v.args[0] is x and v.attrs["index"] == n.attrs["index"]:
        return x
    if x.op == "update" and inside(ranges(x.attrs["index"], x.shape), box) is not None:
        return build.update(x.args[0], v, n.attrs["index"])
    return None


@assemble.rule("add", keeps=DIGITS, reads=("update", "assemble"))
def add_where_cleared(n: Node, sweep: Sweep) -> Node | None:
    """update(x, 0, i) + assemble(v at i) -> update(x, v, i): for x[i] += v the gradient of x is as it was."""
    for u, part in (n.args, n.args[::-1]):
        same = u.op == "update" and part.op == "assemble" and (u.shape, u.dtype) == (part.shape, part.dtype)
        if same and is_zeros(u.args[1]) and part.attrs["indices"] == (u.attrs["index"],):
            return build.update(u.args[0], part.args[0], u.attrs["index"])
    return None


# additions at indices
@assemble.rule("add", keeps=DIGITS, reads=("scatter_add", "scatter_along_add"))
def add_scattered(n: Node, sweep: Sweep) -> Node | None:
    """x + scatter_add(zeros, v) -> scatter_add(x, v): the array of zeros is never made."""
    for x, s in (n.args, n.args[::-1]):
        if s.op in ("scatter_add", "scatter_along_add") and is_zeros(s.args[0]) and sweep.single(s):
            if x.shape == s.shape == n.shape and x.dtype == n.dtype and not is_zeros(x):
                return apply(s.op, x, *s.args[1:], **s.attrs)
    return None
