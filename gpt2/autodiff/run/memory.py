"""The working memory of a program's call: an arena, and scratch blocks for each thread.

Functions that a program calls many times (emit/emitter.py) work in a part of its arena, and in its scratch
blocks: only one of them runs at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

ALIGN = 64  # bytes, a cache line: where the arena, what lies in it, and each slot of scratch begin


def rounded(nbytes: int) -> int:
    return -(-max(nbytes, 1) // ALIGN) * ALIGN


def arena_views(arena: np.ndarray, layout: Sequence[tuple]) -> list[np.ndarray]:
    """The arrays that lie in an arena: one for each (offset, dtype, shape)."""
    return [np.ndarray(shape, dtype, arena, offset) for offset, dtype, shape in layout]


def each_row(x: np.ndarray) -> list[np.ndarray]:
    """The arrays x[0:1], x[1:2], and so on."""
    return [x[k : k + 1] for k in range(len(x))]


@dataclass(eq=False)
class Needs:
    """The memory that a function needs.

    setup        makes views of an arena of `arena_bytes`
    regions      (blocks, slot shapes) of each region of row blocks, in order
    calls        (what that function needs, where in the arena) for each that is called
    """

    setup: Callable | None
    arena_bytes: int
    regions: Sequence[tuple]
    calls: Sequence[tuple[Needs, int]] = field(default_factory=tuple)

    def scratch_bytes(self) -> int:
        """Bytes of a thread's block, which serves all regions."""
        own = max([_slot_offsets(r)[1] for r in self.regions], default=0)
        return max([own, *{id(n): n.scratch_bytes() for n, _ in self.calls}.values()])

    def count_regions(self) -> int:
        """The regions of the function, and of each that is called."""
        return len(self.regions) + sum({id(n): n.count_regions() for n, _ in self.calls}.values())


class Memory:
    """Memory of a function: `arrays` in its arena, `scratch` by region and thread, `calls` of others."""

    __slots__ = ("arrays", "calls", "scratch", "threads")

    def __init__(
        self, needs: Needs, threads: int, arena: np.ndarray | None = None, blocks: Sequence | None = None
    ):
        if arena is None:
            arena = aligned(needs.arena_bytes)
        if blocks is None:  # one block of memory a thread serves all regions: only one of them runs at a time
            size = needs.scratch_bytes()
            blocks = [aligned(size) for _ in range(threads)]
        self.threads = threads
        self.arrays = needs.setup(arena) if needs.setup else ()
        each = range(threads)
        self.scratch = tuple([tuple([_scratch_views(r, blocks[t]) for t in each]) for r in needs.regions])
        self.calls = tuple(
            [Memory(n, threads, arena[at : at + n.arena_bytes], blocks) for n, at in needs.calls]
        )


def aligned(nbytes: int) -> np.ndarray:
    """Bytes that start at a multiple of ALIGN."""
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
        widths[slot] = max(widths.get(slot, 0), rounded(nbytes))
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
