"""Reuses the memory of earlier results, once they are released."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

FEW, MOST = 4, 256  # result arrays kept for reuse: at first, and if that many are needed at once
ROUND = 16  # results, beside four for each array kept, after which arrays that were not needed are given back
# Bytes of a result from which arrays are reused. Up to 32 KiB allocating is as fast as checking an old array,
# but a compiled program should allocate nothing.
RECYCLE_FROM = 512


class Recycled:
    """Returns arrays of one shape and dtype, reusing those that were released.

    A view keeps its base alive, so counting references to the owner is enough: a result is safe as long as it
    is referenced, and a training loop allocates nothing after its first steps.

    At first FEW arrays are kept. A caller that needs more at once (a model whose layers are one program)
    finds more kept from the second time on; those unused for a while are released.
    """

    __slots__ = ("shape", "dtype", "arrays", "limit", "missed", "reach", "left", "many")

    def __init__(self, shape: tuple[int, ...], dtype: Any):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.arrays: list[np.ndarray] = []
        self.limit = FEW  # arrays to keep
        self.missed = 0  # arrays made and not kept since one was used again
        self.reach = 0  # most arrays in use at once since `left` was set
        self.left = ROUND  # calls until unused arrays are released
        self.many = False  # whether to count at all

    def allocator(self) -> Callable[[], np.ndarray]:
        """The function to call for an array."""
        new = functools.partial(np.empty, self.shape, self.dtype)
        return new if new().nbytes < RECYCLE_FROM else self.take

    def take(self) -> np.ndarray:
        """An array without another owner: one that was used before, or a new one."""
        for a in self.arrays:
            if sys.getrefcount(a) == _ALONE:
                break
        else:
            a = np.empty(self.shape, self.dtype)
            if len(self.arrays) < self.limit:
                self.arrays.append(a)
                self.reach = len(self.arrays)
            else:
                self.missed += 1
                self.many = True
            return a
        # a caller may have given it another shape, or made it read-only
        if not (a.shape == self.shape and a.dtype is self.dtype and a.flags.carray):
            self.arrays = [b for b in self.arrays if b is not a]
            return self.take()
        if self.many:
            self._count(a)
        return a

    def _count(self, a: np.ndarray) -> None:
        """Keep as many as were needed at once, and after a while no more than that."""
        self.limit, self.missed = min(MOST, self.limit + self.missed), 0
        self.reach = max(self.reach, next(k for k, b in enumerate(self.arrays, 1) if b is a))
        self.left -= 1
        if not self.left:
            self.limit = max(FEW, self.reach)
            del self.arrays[self.limit :]
            self.reach, self.many = 0, self.limit > FEW
            self.left = ROUND + 4 * self.limit  # about four rounds in which every kept array is used


def _probe() -> int:
    """What getrefcount returns, inside `take`, for an array that only its recycler holds."""
    counts: list[int] = []
    r = Recycled((1,), np.float64)
    r.arrays.append(np.empty(1))
    for a in r.arrays:
        counts.append(sys.getrefcount(a))
    return counts[0]


_ALONE = _probe()
