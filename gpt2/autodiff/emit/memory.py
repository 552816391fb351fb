"""What a call of a program works in: an arena, where in it each stretch of memory lies, and scratch blocks.

`Taken` is the one allocator: it finds room for a stretch of memory beside those that live at the same time,
in the arena (`offsets`) or in a result that lends its memory (buffers.py). Functions that a program calls
many times (calls.py) work in a part of its arena, and in its scratch blocks: only one of them runs at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

ALIGN = 64


class Stretch(Protocol):
    """A stretch of memory for the steps from `start` to `end`."""

    nbytes: int
    start: int
    end: int
    offset: int


def rounded(nbytes: int) -> int:
    return -(-max(nbytes, 1) // ALIGN) * ALIGN


def stretches(arena: np.ndarray, layout: list[tuple]) -> list[np.ndarray]:
    """The arrays that lie in an arena: one for each (offset, dtype, shape)."""
    return [np.ndarray(shape, dtype, arena, offset) for offset, dtype, shape in layout]


def cuts(owners: Sequence[np.ndarray], layout: Sequence[tuple[int, tuple]]) -> list[np.ndarray]:
    """Views of arrays: one for each (number of the array, steps that lead to the view).

    A step is a method of arrays and what it is given.
    """
    found = []
    for k, steps in layout:
        x = owners[k]
        for method, how in steps:
            x = method(x, how)
        found.append(x)
    return found


def rows_of_cuts(
    owners: Sequence[np.ndarray], layout: Sequence[Sequence[tuple[int, tuple]]]
) -> list[list[np.ndarray]]:
    """The same row by row."""
    return [cuts(owners, row) for row in layout]


class Span(NamedTuple):
    """Bytes lo:hi of some memory that are taken in the steps from start to end, both included. hi is rounded
    up to where the next may begin.
    """

    lo: int
    hi: int
    start: int
    end: int


class Taken:
    """The spans of one piece of memory that are taken, the arena's or a result's.

    A deep program has thousands. So they are the columns of a table, whose rows are lo, hi, start and end, in
    the order of lo: what is alive in a given time, and wide enough, is found by NumPy.
    """

    def __init__(self, spans: Iterable[Span] = ()):
        self.table = np.array(sorted(spans), np.int64).reshape(-1, 4).T.copy()
        self.count = self.table.shape[1]  # the columns in use; the others are for more

    def room(self, s: Stretch) -> int:
        """The lowest offset from which there is room for s during its whole life."""
        lo, hi, start, end = self.table[:, : self.count]
        alive = np.flatnonzero((start <= s.end) & (s.start <= end))
        if not alive.size or lo[alive[0]] >= s.nbytes:
            return 0
        until = np.maximum.accumulate(hi[alive])  # a gap begins after each span, and the last one is endless
        fits = np.append(lo[alive[1:]] - until[:-1] >= s.nbytes, True)
        return int(until[fits.argmax()])

    def take(self, s: Stretch) -> int:
        """Note that s has its offset from now on; give the first byte after it."""
        n = self.count
        if n == self.table.shape[1]:
            self.table = np.concatenate([self.table, np.empty((4, n + 16), np.int64)], axis=1)
        span = Span(s.offset, s.offset + rounded(s.nbytes), s.start, s.end)
        k = self.table[0, :n].searchsorted(span.lo)
        self.table[:, k + 1 : n + 1] = self.table[:, k:n]
        self.table[:, k] = span
        self.count = n + 1
        return span.hi

    def next_use(self, s: Stretch, at: int) -> int:
        """The first step after the life of s in which its bytes, from `at` on, are taken; 0 if never."""
        lo, hi, start, _ = self.table[:, : self.count]
        later = start[(start > s.end) & (lo < at + s.nbytes) & (at < hi)]
        return int(later.min()) if later.size else 0


def offsets(stretches: Iterable[Stretch]) -> int:
    """Place every stretch at the lowest offset that is free for its whole life, large ones first; give the
    total.
    """
    taken, total = Taken(), 0
    for s in sorted(stretches, key=lambda s: (-s.nbytes, s.start)):
        s.offset = taken.room(s)
        total = max(total, taken.take(s))
    return total


@dataclass(eq=False)
class Needs:
    """The memory that a function asks for.

    setup        makes views of an arena of `arena_bytes`
    regions      (blocks, slot shapes) of each region of row blocks, in order
    calls        (what that function needs, where in the arena) for each that is called
    """

    setup: Callable | None
    arena_bytes: int
    regions: Sequence[tuple]
    calls: Sequence[tuple[Needs, int]] = field(default_factory=tuple)

    def scratch_bytes(self) -> int:
        """Of the block that serves all regions of a thread."""
        own = max([_slot_offsets(r)[1] for r in self.regions], default=0)
        return max([own, *{id(n): n.scratch_bytes() for n, _ in self.calls}.values()])


class Memory:
    """Memory for a function: `arrays` are views of its arena, `scratch` has blocks for each region and
    thread, `calls` the memory of the functions that it calls.
    """

    __slots__ = ("arrays", "calls", "scratch", "threads")

    def __init__(
        self,
        needs: Needs,
        threads: int,
        arena: np.ndarray | None = None,
        blocks: Sequence[np.ndarray] | None = None,
    ):
        if arena is None:
            arena = aligned(needs.arena_bytes)
        if blocks is None:  # one block of memory a thread serves all regions: only one of them runs at a time
            size = needs.scratch_bytes()
            blocks = [aligned(size) for _ in range(threads)]
        self.threads = threads
        self.arrays = needs.setup(arena) if needs.setup else ()
        self.scratch = tuple(
            [tuple([_scratch_views(r, blocks[t]) for t in range(threads)]) for r in needs.regions]
        )
        self.calls = tuple(
            [Memory(n, threads, arena[at : at + n.arena_bytes], blocks) for n, at in needs.calls]
        )


def aligned(nbytes: int) -> np.ndarray:
    """Bytes that start at a cache line."""
    raw = np.empty(nbytes + ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    return raw[start : start + nbytes]


def _sizes(region) -> tuple[int, ...]:
    """Lengths of the region's blocks: the common one, and that of the last if it is shorter."""
    blocks, _ = region
    return tuple(sorted({b[-1] - b[-2] for b in blocks}, reverse=True))


def _slot_offsets(region) -> tuple[dict[int, int], int]:
    """Where each slot starts in the scratch block, and the bytes of all of them."""
    _, views = region
    size = _sizes(region)[0]
    widths: dict[int, int] = {}
    for row, dtype, _, slot in views:
        nbytes = size * int(np.prod(row, dtype=np.int64)) * dtype.itemsize
        widths[slot] = max(widths.get(slot, 0), -(-nbytes // ALIGN) * ALIGN)
    offsets, at = {}, 0
    for slot, width in sorted(widths.items()):
        offsets[slot], at = at, at + width
    return offsets, at


def _scratch_views(region, block: np.ndarray) -> tuple:
    """(common length, the views for it, the views for the shorter last block)."""
    _, views = region
    offsets, _ = _slot_offsets(region)
    sets = []
    for size in _sizes(region):
        one = []
        for row, dtype, planes, slot in views:
            nbytes = size * int(np.prod(row, dtype=np.int64)) * dtype.itemsize
            flat = block[offsets[slot] : offsets[slot] + nbytes].view(dtype)
            if planes:
                one.append(np.moveaxis(flat.reshape(row[-1], size, *row[:-1]), 0, -1))
            else:
                one.append(flat.reshape(size, *row))
        sets.append(tuple(one))
    return (_sizes(region)[0], sets[0], sets[-1])
