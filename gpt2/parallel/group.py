"""Group, the interface for communication between workers; One, Pipes and MPIGroup implement it.

A group has `size` workers with a `rank` from 0. Every method is called by all workers, in the same
order. Sums are taken in an order that depends only on the size: a run can be repeated bit for bit.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpt2.autodiff import run_on_threads
from gpt2.model.optimizer import SUM_BLOCK, sum_of_squares

GRAIN = 1024  # entries: parts of a flat buffer begin at multiples of it, so that no two share a page
CHUNK = 8192  # bytes in one exchange: no pipe holds less, so no worker blocks in a write


class Group:
    """All methods follow from `exchange`; a group may override those that it can do faster."""

    rank = 0
    size = 1

    def exchange(self, payload: bytes) -> list[bytes]:
        """All-gather: send up to CHUNK bytes to every worker, and return those of all, by rank."""
        raise NotImplementedError

    def barrier(self) -> None:
        """Return once every worker has called this."""
        self.exchange(b"")

    def wait_for_root(self) -> None:
        """A barrier with a longer time limit, for work that the root does alone."""
        self.barrier()

    def broadcast(self, array: np.ndarray, root: int = 0) -> None:
        """Fill a flat array with that of worker `root`."""
        for piece in _pieces(array):
            parts = self.exchange(piece.tobytes() if self.rank == root else b"")
            piece[...] = np.frombuffer(parts[root], array.dtype)

    def all_reduce(self, array: np.ndarray) -> None:
        """Replace a flat array by its sum over all workers."""
        for piece in _pieces(array):
            parts = self.exchange(piece.tobytes())
            piece[...] = np.frombuffer(parts[0], array.dtype)
            for part in parts[1:]:
                piece += np.frombuffer(part, array.dtype)

    def start_all_reduce(self, array: np.ndarray) -> Any:
        """Begin all_reduce(array), and return an object with wait(). Do not use the array before.

        Here all of it happens in wait(): between processes of one machine, adding early takes the cores and
        the memory bandwidth that the computation needs, and gains nothing.
        """
        return _Later(self, array)

    def total(self, *values: float) -> list[float]:
        """Sums of numbers over all workers, in the order of ranks: a list of floats."""
        parts = self.exchange(struct.pack(f"{len(values)}d", *values))
        return [sum(column) for column in zip(*(struct.unpack(f"{len(values)}d", part) for part in parts))]

    def highest(self, value: float) -> float:
        """The largest of the workers' numbers."""
        return max(struct.unpack("d", part)[0] for part in self.exchange(struct.pack("d", value)))

    def part(self, n: int, rank: int | None = None) -> tuple[int, int]:
        """(start, stop): the part of a flat buffer of n entries that belongs to a worker."""
        return part(n, self.rank if rank is None else rank, self.size)

    def all_gather(self, array: np.ndarray) -> None:
        """Complete a flat array of which each worker has its own part()."""
        for r in range(self.size):
            start, stop = self.part(array.size, r)
            self.broadcast(array[start:stop], root=r)

    def gather(self, part: np.ndarray, n: int) -> np.ndarray:
        """All workers' parts of n entries as one array (n,), on the root; undefined elsewhere."""
        whole = np.empty(n, part.dtype)
        start, stop = self.part(n)
        whole[start:stop] = part
        self.all_gather(whole)
        return whole

    def from_root(self, function: Callable[[], Any]) -> Any:
        """Call function() on the root and return its result on all ranks. A UserError is raised on all."""
        return function()

    def reduction(self, grads: np.ndarray) -> Reduction:
        """A Reduction, which sums the workers' gradients, grads (n,)."""
        return Reduction(self, grads)

    def note(self, phase: str) -> None:
        """Heartbeat for the process that watches this worker. phase is one of worker.PHASES."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        """Leave the group; after an error in such a way that no worker is left waiting."""


class Reduction:
    """The sum of gradients over all workers, taken while they are computed.

    model.backward calls it with (start, stop) when these entries are final in this worker.
    """

    def __init__(self, group: Group, grads: np.ndarray):
        self.group, self.grads = group, grads

    def __call__(self, start: int, stop: int) -> None:
        self.group.note("computing")

    def wait(self) -> float:
        """Finish: this worker's part of the gradients is summed. Returns the sum of that part's squares."""
        self.group.all_reduce(self.grads)
        start, stop = self.group.part(self.grads.size)
        return sum_of_squares(self.grads[start:stop])


def add_up(arrays: Sequence[np.ndarray], start: int, stop: int) -> float:
    """Sum arrays[0], arrays[1], ... into arrays[0], entries start..stop. Returns the sum of the squares.

    Block by block, so that sums are squared while they are in cache.
    """
    first, *others = arrays
    starts = range(start, stop, SUM_BLOCK)
    squares = [0.0] * len(starts)
    todo = iter(enumerate(starts))

    def job(thread):
        for k, begin in todo:
            block = slice(begin, min(begin + SUM_BLOCK, stop))
            for other in others:
                first[block] += other[block]
            squares[k] = float(np.dot(first[block], first[block]))

    run_on_threads(job)
    return math.fsum(squares)


def part(n: int, rank: int, size: int) -> tuple[int, int]:
    """(start, stop): the part of n entries that belongs to one of `size` workers, in whole GRAINs."""
    grains = -(-n // GRAIN)
    return min(n, grains * rank // size * GRAIN), min(n, grains * (rank + 1) // size * GRAIN)


def share(count: int, rank: int, size: int) -> slice:
    """The slice of `count` sequences for a worker. Shares differ by at most one."""
    return slice(count * rank // size, count * (rank + 1) // size)


class _Later:
    def __init__(self, group, array):
        self.group, self.array = group, array

    def wait(self):
        self.group.all_reduce(self.array)


def _pieces(array):
    """Views of at most CHUNK bytes of a flat array."""
    if array.ndim != 1:
        raise ValueError(f"expected a flat array, got shape {array.shape}; pass array.reshape(-1)")
    step = CHUNK // array.itemsize
    return (array[start : start + step] for start in range(0, array.size, step))
