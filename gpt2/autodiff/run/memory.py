"""The working memory of a program's call: an arena, and scratch blocks for each thread.

Functions that a program calls many times (emit/emitter.py) work in a part of its arena, and in its scratch
blocks: only one of them runs at a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
    calls: Sequence[tuple[Needs, int]] = ()

    def scratch_bytes(self) -> int:
        """Bytes of a thread's block, which serves all regions."""
        own = max([sum(_sizes(r)[1].values()) for r in self.regions], default=0)
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


def _sizes(region) -> tuple[list[int], dict[int, int]]:
    """The lengths of a region's blocks, the common one and that of a shorter last; the bytes of each slot."""
    blocks, views = region
    lengths = sorted({b[-1] - b[-2] for b in blocks}, reverse=True)
    widths: dict[int, int] = {}
    for row, dtype, _, slot in views:
        widths[slot] = max(widths.get(slot, 0), rounded(lengths[0] * math.prod(row) * dtype.itemsize))
    return lengths, dict(sorted(widths.items()))


def _scratch_views(region, block: np.ndarray) -> tuple:
    """(common length, the views for it, the views for the shorter last block)."""
    lengths, widths = _sizes(region)
    offsets = dict(zip(widths, itertools.accumulate(widths.values(), initial=0)))
    sets = []
    for length in lengths:
        views = []
        for row, dtype, planes, slot in region[1]:
            shape = (row[-1], length, *row[:-1]) if planes else (length, *row)
            view = np.ndarray(shape, dtype, block, offsets[slot])
            views.append(np.moveaxis(view, 0, -1) if planes else view)
        sets.append(tuple(views))
    return (lengths[0], sets[0], sets[-1])
