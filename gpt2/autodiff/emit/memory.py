"""What a call of a program works in: an arena, where in it each stretch of memory lies, and scratch blocks.

A stretch of memory has `nbytes`, `start` and `end`, the first and the last step of its life; `offsets` gives
it its `offset`. Functions that a program calls many times (calls.py) work in a part of its arena, and in its
scratch blocks: only one of them runs at a time.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

ALIGN = 64
MOST_COMPARED = 1000  # stretches whose lives are compared in pairs: 0.1 s for so many


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


def offsets(storages: list) -> int:
    """Place every stretch at an offset that is free for its whole life; give the total."""
    if len(storages) > MOST_COMPARED:
        return _offsets_in_time(storages)
    return _offsets_by_size(storages)


def _offsets_by_size(storages: list) -> int:
    """Large ones first, at the lowest offset. Each is compared with all before it."""
    placed: list[_Place] = []  # by offset
    known: dict[tuple[int, int], _Place] = {}
    total = 0
    for s in sorted(storages, key=lambda s: (-s.nbytes, s.start)):
        at, nbytes, begin, until = 0, s.nbytes, s.start, s.end
        for p in placed:
            if p.first <= until and begin <= p.last and (not p.starts or p.is_taken(begin, until)):
                if p.lo - at >= nbytes:
                    break
                if p.hi > at:
                    at = p.hi
        s.offset = at
        end = at + rounded(nbytes)
        if (at, end) in known:
            known[at, end].take(begin, until)
        else:
            place = known[at, end] = _Place(at, end, begin, until)
            bisect.insort(placed, place, key=_Place.bytes)
        total = max(total, end)
    return total


class _Place:
    """Bytes lo:hi of an arena, which one stretch has after the other: from step `first` on, and until `last`.

    starts, ends   of the lives, in order, where there are several. So the calls of one function, of which
                   each needs as much memory as the others, are looked at as one.
    """

    __slots__ = ("lo", "hi", "first", "last", "starts", "ends")

    def __init__(self, lo: int, hi: int, start: int, end: int):
        self.lo, self.hi, self.first, self.last = lo, hi, start, end
        self.starts: list[int] = []
        self.ends: list[int] = []

    def bytes(self) -> tuple[int, int]:
        return self.lo, self.hi

    def take(self, start: int, end: int) -> None:
        """Note one more life, which overlaps with no other."""
        if not self.starts:
            self.starts, self.ends = [self.first], [self.last]
        k = bisect.bisect(self.starts, start)
        self.starts.insert(k, start)
        self.ends.insert(k, end)
        self.first, self.last = self.starts[0], self.ends[-1]

    def is_taken(self, start: int, end: int) -> bool:
        """Whether one of several lives overlaps with these steps."""
        k = bisect.bisect(self.starts, end)
        return k > 0 and self.ends[k - 1] >= start


def _offsets_in_time(storages: list) -> int:
    """In the order of their lives, as an allocator would that is told when each begins and ends.

    The time grows with their number and not with its square. Memory is a little worse: it holds gaps that
    nothing fits in. The smallest gap that is wide enough is taken; neighbouring gaps become one.
    """
    free = Gaps()
    ending: list[tuple[int, int, int]] = []  # (last step, offset, bytes) of those that live, as a heap
    for s in sorted(storages, key=lambda s: (s.start, -s.nbytes)):
        while ending and ending[0][0] < s.start:
            _, at, nbytes = heapq.heappop(ending)
            free.give(at, nbytes)
        s.offset = free.take(rounded(s.nbytes))
        heapq.heappush(ending, (s.end, s.offset, rounded(s.nbytes)))
    return free.total


class Gaps:
    """The stretches of an arena that are free, found by their width, and by where they begin and end."""

    def __init__(self):
        self.total = 0  # bytes that the arena has so far
        self.by_width: list[tuple[int, int]] = []  # (bytes, offset), sorted
        self.ends: dict[int, int] = {}  # offset -> where that gap ends
        self.begins: dict[int, int] = {}  # where a gap ends -> its offset

    def take(self, nbytes: int) -> int:
        k = bisect.bisect_left(self.by_width, (nbytes, -1))
        if k < len(self.by_width):
            width, at = self.by_width[k]
        elif self.total in self.begins:  # the last gap grows
            at = self.begins[self.total]
            width = self.total - at
            self.total = at + nbytes
        else:
            at, self.total = self.total, self.total + nbytes
            return at
        self._remove(at, at + width)
        if width > nbytes:
            self._add(at + nbytes, at + width)
        return at

    def give(self, at: int, nbytes: int) -> None:
        end = at + nbytes
        if at in self.begins:
            before = self.begins[at]
            self._remove(before, at)
            at = before
        if end in self.ends:
            after = self.ends[end]
            self._remove(end, after)
            end = after
        self._add(at, end)

    def _add(self, at: int, end: int) -> None:
        self.ends[at], self.begins[end] = end, at
        bisect.insort(self.by_width, (end - at, at))

    def _remove(self, at: int, end: int) -> None:
        del self.ends[at], self.begins[end]
        del self.by_width[bisect.bisect_left(self.by_width, (end - at, at))]


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
