"""The product of one row with a matrix, as the dot products of the row with the matrix's columns.

Such a product takes as long as its matrix takes to be read. Where the columns lie in one piece (the matrix is
a transpose, as of a linear layer's weight), BLAS's product of matrix and vector is twice as slow as that;
dot products are as fast. The columns are shared out over the pool, in pieces: a thread that wakes up late
does fewer of them. Each is added up by itself, so neither pieces nor threads change a bit.

Whether other threads are worth waking depends on how much faster several cores read than one, and is measured
for each size of matrix.
"""

from __future__ import annotations

import numpy as np

from . import threads
from .split_matmul import Trials, matmul

PIECE = 1 << 21  # bytes of the matrix that a thread takes at a time
# Bytes of a matrix below which one thread computes it: waking others takes some 60 us, and a core reads this
# in less. Where one core nearly reaches the memory's bandwidth (27 of 31 GB/s) 40 MB gain a tenth at most.
SHARE_FROM = 1 << 20

trials = Trials()
WAYS = ("alone", "shared")


def matmul_in_any_order(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> np.ndarray:
    """`matmul` where sums may be added up in another order than BLAS does. Returns out."""
    in_one_piece = b.strides[0] == b.itemsize and b.dtype.kind == "f" and a.dtype is b.dtype
    if a.shape[0] != 1 or not in_one_piece:
        return matmul(a, b, out)
    n_threads = threads.count
    if n_threads == 1 or b.nbytes < SHARE_FROM:
        _run("alone", a, b, out, n_threads)
    else:
        key = *b.shape, b.dtype.char, n_threads
        trials.run(key, lambda way: _run(way, a, b, out, n_threads), lambda: WAYS)
    return out


def _run(way: str, a, b, out, n_threads: int) -> None:
    columns, row, results = b.T, a[0], out[0]
    if way == "alone":
        np.vecdot(columns, row, out=results)
        return
    N = len(columns)
    count = -(-b.nbytes // (PIECE * n_threads)) * n_threads  # as many for each thread
    step = -(-N // count)
    todo = iter(range(0, N, step))  # next() on it is atomic

    def job(thread: int) -> None:
        for i in todo:
            np.vecdot(columns[i : i + step], row, out=results[i : i + step])

    threads.run_on_threads(job)
