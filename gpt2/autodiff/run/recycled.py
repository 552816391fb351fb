"""Uses the memory of earlier results again, once they are released."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

FEW, MOST = 4, 256  # result arrays kept to be used again: at first, and if that many are needed at once
ROUND = 16  # results, beside four for each array kept, after which arrays that were not needed are given back
# Bytes of a result from which arrays are used again. Up to 32 KiB a new one is made as quickly as a used one
# is checked, but a program with buffers of its own is to allocate nothing.
RECYCLE_FROM = 512


class Recycled:
    """Hands out arrays of one shape and dtype; one that was released is used again.

    A view keeps its base alive, so counting references to the owner is enough. That makes
    a result safe for as long as anybody can see it, and makes a training loop allocate nothing after its
    first steps.

    At first FEW arrays are kept for another time. Who comes back for more than that (a model whose layers are
    one program) finds more kept from the second time on; those unused for a while are given back.
    """

    __slots__ = ("shape", "dtype", "arrays", "limit", "missed", "reach", "left", "many")

    def __init__(self, shape: tuple[int, ...], dtype: Any):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.arrays: list[np.ndarray] = []
        self.limit = FEW  # arrays to keep
        self.missed = 0  # arrays made and not kept since one was used again
        self.reach = 0  # how many of the kept ones were in use at once, since `left` was set
        self.left = ROUND  # calls until those that were not are given back
        self.many = False  # whether any of this is to be looked at

    def taker(self) -> Callable[[], np.ndarray]:
        """The function to call for an array."""
        made = functools.partial(np.empty, self.shape, self.dtype)
        return made if made().nbytes < RECYCLE_FROM else self.take

    def take(self) -> np.ndarray:
        """An array without another owner: one that was used before, or a new one."""
        for a in self.arrays:
            if sys.getrefcount(a) == _ALONE:
                break
        else:
            return self._new()
        # whoever held it may have given it another shape, or made it read-only
        if not (a.shape == self.shape and a.dtype is self.dtype and a.flags.carray):
            self.arrays = [b for b in self.arrays if b is not a]
            return self.take()
        if self.many:
            self._count(a)
        return a

    def _new(self) -> np.ndarray:
        a = np.empty(self.shape, self.dtype)
        if len(self.arrays) < self.limit:
            self.arrays.append(a)
            self.reach = len(self.arrays)
        else:
            self.missed += 1
            self.many = True
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
    """What getrefcount says, inside `take`, of an array that only its recycler holds."""
    counts: list[int] = []
    r = Recycled((1,), np.float64)
    r.arrays.append(np.empty(1))
    for a in r.arrays:
        counts.append(sys.getrefcount(a))
    return counts[0]


_ALONE = _probe()
