"""How a matrix product is shared out over threads: by rows, by columns or not at all, the fastest here.

The ways are tried on real calls: each product of the first steps is one sample, until every way has been
timed SAMPLES times; then the fastest stays, and is kept (choices.py), so that a machine is measured once. A
way whose result differs from the whole product's in a single bit is not taken, so neither the choice nor the
number of threads changes what a program computes.
"""

from __future__ import annotations

import threading
import time

import numpy as np

from .remembered import Choices

SAMPLES = 3
# Multiply-adds. Below, waking a thread costs more than it saves; up to four times as many, doing the product
# whole is one of the ways.
SPLIT_FROM = 4_000_000
WAYS = ("columns", "rows", "whole")
# Pieces are multiples of this, and none is smaller: OpenBLAS's kernels for AVX-512 work in tiles of 16 and
# 24, and add up in another order what is left over beside them: other cuts change the last bits.
TILE = 48
# Bytes of a result from which nothing is tried: a second result to compare with would be a large part of a
# training step's memory. The longer side is cut then.
LARGE = 1 << 25

chosen = Choices("products.json", WAYS)
_trials: dict[tuple, _Trial] = {}
_lock = threading.Lock()


def product(a, b, out, threads: int, share):
    """np.matmul(a, b, out=out) for 2-D operands on so many threads; `share(job)` runs job(k) on each."""
    M, N = out.shape
    work = M * N * a.shape[1]
    if threads == 1 or work < SPLIT_FROM:
        return np.matmul(a, b, out=out)
    if out.nbytes >= LARGE:
        return _run("rows" if M > N else "columns", a, b, out, threads, share)
    key = (M, a.shape[1], N, _order(a), _order(b), out.dtype.char, threads)
    way = chosen.get(key)
    if way is None:
        return _try(key, a, b, out, threads, share)
    return _run(way, a, b, out, threads, share)


def _order(a) -> str:
    return "T" if a.strides[0] < a.strides[1] else "C"


def _run(way: str, a, b, out, threads: int, share):
    if way == "whole":
        return np.matmul(a, b, out=out)
    M, N = out.shape
    length = M if way == "rows" else N
    count = min(threads, max(2, M * N * a.shape[1] // SPLIT_FROM))
    size = -(-length // (count * TILE)) * TILE
    starts = range(0, max(length - TILE, 0) + 1, size)  # a last piece of fewer goes with the one before it
    todo = iter([slice(i, j) for i, j in zip(starts, [*starts[1:], length])])

    def job(thread: int) -> None:
        for s in todo:
            if way == "rows":
                np.matmul(a[s], b, out=out[s])
            else:
                np.matmul(a, b[:, s], out=out[:, s])

    share(job)
    return out


class _Trial:
    """The times of each way for one kind of product."""

    def __init__(self, work: int):
        self.times: dict[str, list[float]] = {w: [] for w in WAYS[: 3 if work < 4 * SPLIT_FROM else 2]}

    def next(self) -> str:
        return min(self.times, key=lambda w: len(self.times[w]), default="whole")

    def best(self) -> str | None:
        """The fastest way, once all have been timed; the first few runs may have met cold memory."""
        if any(len(t) < SAMPLES for t in self.times.values()):
            return None
        return min(self.times, key=lambda w: min(self.times[w]), default="whole")


def _try(key: tuple, a, b, out, threads: int, share):
    with _lock:
        trial = _trials.setdefault(key, _Trial(out.size * a.shape[1]))
        way = trial.next()
    want = None
    if way != "whole" and not trial.times.get(way):  # its first run
        want = np.matmul(a, b)
    start = time.perf_counter()
    _run(way, a, b, out, threads, share)
    took = time.perf_counter() - start
    with _lock:
        if want is not None and not _same_bits(want, out):
            trial.times.pop(way, None)
            out[...] = want
        elif way in trial.times:
            trial.times[way].append(took)
        best = trial.best()
        if best is not None and chosen.get(key) is None:
            chosen.put(key, best)
            _trials.pop(key, None)
    return out


def _same_bits(x, y) -> bool:
    """Whether two arrays hold the same, nan included, in blocks of rows."""
    rows = max(1, (1 << 16) // x.shape[1])
    pieces = (slice(i, i + rows) for i in range(0, len(x), rows))
    return all(np.array_equal(x[s], y[s], equal_nan=True) for s in pieces)
