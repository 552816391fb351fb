"""The product of one row with a matrix, as the dot products of the row with the matrix's columns.

Such a product takes as long as its matrix takes to be read. Where the columns lie in one piece (the matrix is
a transpose, as of a linear layer's weight), BLAS's product of matrix and vector is twice as slow as that;
dot products are as fast. The columns are shared out over the pool, in pieces: a thread that wakes up late
does fewer of them. Each is added up by itself, so neither pieces nor threads change a bit.

Whether the others are worth waking hangs on how much faster several cores read than one. It is measured for
each size of matrix: its first products are done alone and shared out in turn, until there are SAMPLES of
either, and the shortest time decides. What was found is kept (remembered.py), and believed once SURE
processes have found the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from .remembered import Choices

PIECE = 1 << 21  # bytes of the matrix that a thread takes at a time
# Bytes of a matrix below which it is not tried: waking the others takes some 60 us, and a core reads this in
# less. Where one core reads nearly as fast as the memory gives (27 of 31 GB/s) 40 MB gain a tenth at most.
SHARE_FROM = 1 << 20
SAMPLES, SURE, DAYS = 5, 3, 30

chosen = Choices("rows.json", ("alone", "shared"), str, SURE, DAYS)
_times: dict[tuple, dict[str, list[float]]] = {}
_lock = threading.Lock()


def suits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether a @ b is such a product: a has one row, and the columns of b lie in memory one by one."""
    return a.shape[0] == 1 and b.strides[0] == b.itemsize and b.dtype.kind == "f" and a.dtype is b.dtype


def product(
    a: np.ndarray,
    b: np.ndarray,
    out: np.ndarray,
    threads: int,
    share: Callable[[Callable[[int], None]], None],
) -> np.ndarray:
    """a @ b into out, of a row (1, K) and a matrix (K, N); `share(job)` runs job(k) on each thread."""
    if threads == 1 or b.nbytes < SHARE_FROM:
        return _run("alone", a, b, out, threads, share)
    key = (*b.shape, b.dtype.char, threads)
    way = chosen.get(key)
    if way is not None:
        return _run(way, a, b, out, threads, share)
    way = _least_tried(key)
    began = time.perf_counter()
    _run(way, a, b, out, threads, share)
    _note(key, way, time.perf_counter() - began)
    return out


def _run(way: str, a, b, out, threads: int, share) -> np.ndarray:
    columns, row, results = b.T, a[0], out[0]
    if way == "alone":
        np.vecdot(columns, row, out=results)
        return out
    N = len(columns)
    count = -(-b.nbytes // (PIECE * threads)) * threads  # as many for each thread
    step = -(-N // count)
    todo = iter(range(0, N, step))  # next() on it is atomic

    def job(thread: int) -> None:
        for i in todo:
            np.vecdot(columns[i : i + step], row, out=results[i : i + step])

    share(job)
    return out


def _least_tried(key: tuple) -> str:
    with _lock:
        times = _times.setdefault(key, {"alone": [], "shared": []})
        return min(times, key=lambda way: len(times[way]))


def _note(key: tuple, way: str, seconds: float) -> None:
    """Add a sample, and choose where there are enough."""
    with _lock:
        times = _times.get(key)
        if times is None:  # another thread has chosen meanwhile
            return
        times[way].append(seconds)
        if all(len(t) >= SAMPLES for t in times.values()):
            chosen.put(key, min(times, key=lambda way: min(times[way])))
            del _times[key]
