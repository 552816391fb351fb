"""What emitted programs call: a small pool of threads, products split over it, and recycled result arrays.

Threads pay off because NumPy releases the interpreter lock inside ufuncs and products. With
`set_threads(n)`, n > 1, BLAS itself is limited to one thread and every product and row region is split over
this pool instead: OpenBLAS's own workers spin between calls and would fight the pool for the cores.
(Measured on two cores: two halves of a product on two Python threads run as fast as OpenBLAS's two threads
from about 30 million multiply-adds.)

Work is cut the same way however many threads there are, so results do not depend on their number, to the
last bit.
"""

from __future__ import annotations

import contextvars
import ctypes
import functools
import itertools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from .products import product

FEW, MOST = 4, 256  # result arrays kept to be used again: at first, and if that many are needed at once
ROUND = 16  # results, beside four for each array kept, after which arrays that were not needed are given back
# Bytes of a result from which arrays are used again. Up to 32 KiB a new one is made as quickly as a used one
# is checked, but a program with buffers of its own is to allocate nothing.
RECYCLE_FROM = 512

_threads = 1
_pool: list[_Worker] = []
_pool_lock = threading.Lock()  # held while the pool runs a job: a second caller does its work alone
_pool_pid = os.getpid()


class _Worker(threading.Thread):
    """Runs jobs handed over through a pair of locks: the cheapest hand-over in Python (some 30 us)."""

    def __init__(self, index: int):
        super().__init__(name=f"autodiff-{index}", daemon=True)
        self.index = index
        self.go, self.done = threading.Lock(), threading.Lock()
        self.go.acquire()
        self.done.acquire()
        self.job: Callable[[int], None] | None = None
        self.context: contextvars.Context | None = None  # a copy of the caller's: np.errstate is part of it
        self.error: BaseException | None = None
        self.start()

    def run(self):
        while True:
            self.go.acquire()
            job, context = self.job, self.context
            if job is None or context is None:
                return
            try:
                context.run(job, self.index)
            except BaseException as error:  # handed to the caller, who raises it
                self.error = error
            self.job = self.context = job = context = None  # keep no reference to the caller's arrays
            self.done.release()


def set_threads(n: int) -> None:
    """Use n threads for regions and products (1: none beside the caller's, and BLAS as it was set up)."""
    global _threads
    if n < 1:
        raise ValueError(f"set_threads: n is {n}, expected at least 1")
    with _pool_lock:
        _start(n)
        _threads = n
        if n > 1:
            limit_blas_threads(1)


def get_threads() -> int:
    """The number of threads that regions and products use; see set_threads."""
    return _threads


def _start(n: int) -> None:
    global _pool_pid
    if _pool_pid != os.getpid():  # after a fork the threads are gone
        _pool.clear()
        _pool_pid = os.getpid()
    while len(_pool) < n - 1:
        _pool.append(_Worker(len(_pool) + 1))
    while len(_pool) > n - 1:
        worker = _pool.pop()
        worker.job = None
        worker.go.release()


def share(job: Callable[[int], None]) -> None:
    """Run job(thread index) on every thread of the pool at once; index 0 is the caller's."""
    if _threads == 1 or not _pool_lock.acquire(blocking=False):
        job(0)
        return
    try:
        if _pool_pid != os.getpid():
            _start(_threads)
        workers = _pool[: _threads - 1]
        for w in workers:
            w.job, w.context = job, contextvars.copy_context()
            w.go.release()
        try:
            job(0)
        finally:
            for w in workers:
                w.done.acquire()
        for w in workers:
            if w.error is not None:
                error, w.error = w.error, None
                raise error
    finally:
        _pool_lock.release()


def run_blocks(body: Callable, blocks: tuple, scratch: tuple, alone: bool = False) -> None:
    """body(k, *block, *scratch arrays) for every block, on all threads or on the caller's alone.

    scratch[t] belongs to thread t: (rows in a block, arrays of that many rows, arrays for a shorter last
    block). The blocks are handed out one by one, so a thread that is held up does fewer of them.
    """
    todo = iter(enumerate(blocks))  # next() on it is atomic under the interpreter lock

    def job(thread: int) -> None:
        size, full, last = scratch[thread]
        for k, block in todo:
            body(k, *block, *(full if block[-1] - block[-2] == size else last))

    if alone or _threads == 1 or len(blocks) == 1:
        job(0)
    else:
        share(job)


def matmul(a, b, out):
    """np.matmul(a, b, out=out) for 2-D operands, shared out over the pool (products.py). Returns out."""
    return product(a, b, out, _threads, share)


class Recycled:
    """Hands out arrays of one shape and dtype; one that nobody holds any more is used again.

    A view that somebody holds keeps its base alive, so counting references to the owner is enough. That makes
    a result safe for as long as anybody can see it, and makes a training loop allocate nothing after its
    first steps.

    At first FEW arrays are kept for another time. Who comes back for more than that (a model whose layers are
    one program) finds more kept from the second time on; those that nobody needs for a while are given back.
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
            self.left = ROUND + 4 * self.limit  # some four times what makes use of all of them


def take_rows(table, index, out) -> None:
    """out[...] = table[index], without the temporary array that NumPy's indexing makes."""
    index = np.asarray(index)  # a constant may be a plain number
    if index.size and index.dtype.kind in "iu" and index.min() >= 0 and index.max() < len(table):
        # they were looked at, and only "clip" writes straight to out
        np.take(table, index, axis=0, out=out, mode="clip")
    else:
        out[...] = table[index]  # negative indices, and NumPy's own error for those out of range


def add_rows(table, index, rows) -> None:
    """np.add.at(table, index, rows): a loop of row additions takes a seventh of its time."""
    rows = rows.reshape(-1, rows.shape[-1])  # one a index, also where the index is one number
    for k, t in enumerate(np.ravel(index).tolist()):
        table[t] += rows[k]


def add_along(x, index, values, axis) -> None:
    """Add values to x at index along one axis; repeated indices add up."""
    grid = list(np.ogrid[tuple(slice(n) for n in index.shape)])
    grid[axis] = index
    if index.shape[axis] == 1:
        x[tuple(grid)] += values  # one entry a row: nothing is hit twice
    else:
        np.add.at(x, tuple(grid), values)


def _probe() -> int:
    """What getrefcount says, inside `take`, of an array that only its recycler holds."""
    counts: list[int] = []
    r = Recycled((1,), np.float64)
    r.arrays.append(np.empty(1))
    for a in r.arrays:
        counts.append(sys.getrefcount(a))
    return counts[0]


_ALONE = _probe()


def blas_library():
    """The OpenBLAS that NumPy's wheel carries, and the suffix of its names; None for another BLAS."""
    paths = []
    try:
        with open("/proc/self/maps") as maps:
            paths = sorted({line.split()[-1] for line in maps if "openblas" in line and ".so" in line})
    except OSError:
        root = os.path.dirname(np.__file__)
        for folder in (os.path.join(os.path.dirname(root), "numpy.libs"), os.path.join(root, ".dylibs")):
            if os.path.isdir(folder):
                paths += [os.path.join(folder, f) for f in sorted(os.listdir(folder)) if "openblas" in f]
    for path in paths:
        try:
            lib = ctypes.CDLL(path)
        except OSError:
            continue
        for prefix, suffix in itertools.product(("scipy_openblas", "openblas"), ("64_", "_64", "")):
            if hasattr(lib, f"{prefix}_set_num_threads{suffix}"):
                return lib, prefix, suffix
    return None


def limit_blas_threads(n: int) -> bool:
    """Give BLAS n threads. False where it is no OpenBLAS that can be told: set OMP_NUM_THREADS then."""
    found = blas_library()
    if found is None:
        return False
    lib, prefix, suffix = found
    getattr(lib, f"{prefix}_set_num_threads{suffix}")(ctypes.c_int(n))
    return True
