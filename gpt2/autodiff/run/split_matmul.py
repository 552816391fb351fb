"""Shares a matrix product out over threads: by rows, by columns or not at all, whatever is fastest here.

Where the second operand is a transpose, (N, K) in memory, columns may also be made as the rows of
b.T @ a.T, and put in their place afterwards ("turned"): OpenBLAS then reads the larger operand as it lies.
With 256 rows and weights of 16 MB that takes 0.9 of the time, the final move included.

A way is used only if it keeps every bit of the whole product, so that neither the choice nor the number of
threads changes results. Which cuts do depends on the kernels that BLAS picks for this
processor: OpenBLAS's for AVX-512 keep the bits of float32 products cut at multiples of 48 rows or columns,
its kernels for Haswell and Zen only of those cut by rows. So a way is tried on random numbers, once for each
kind of product, before it is used. Which ways keep the bits is remembered for this machine and these kernels
(remembered.py); which of them is the fastest may depend on what else the machine does, so that each process
times them on real calls.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from functools import cache

import numpy as np

from . import threads
from .blas import blas_kernels
from .caches import in_cache
from .remembered import Choices

# Multiply-adds. Below, waking a thread costs more than it saves; up to four times as many, doing the product
# whole is one of the ways.
SPLIT_FROM = 4_000_000
WAYS = ("columns", "rows", "even rows", "turned", "whole")
BY_ROWS = ("even rows", "rows")
# Pieces are multiples of this, and none is smaller: the kernels of OpenBLAS work in tiles of 8, 12, 16 and
# 24, and add up in another order what is left over beside them. Of few rows that makes uneven pieces: 256 are
# cut in 144 and 112, and one thread waits for the other. Those for Haswell keep the bits of rows that are cut
# at multiples of 12 as well: 132 and 124 take 0.93 of the time.
TILE, SMALL_TILE = 48, 12
# Bytes. A product with more in its result is not timed; one with more in operands and result is checked
# on fewer columns (or rows, whichever is not cut). Checks of GPT-2 124M's products, all of them in the first
# step of a process, took 0.55 s where only those with more than 32 MiB were cut short, 0.3 s like this.
LARGE = 1 << 25
MUCH = 1 << 21
# Rows up to which a product may be turned: with 1024 it took longer than cut by columns.
FEW = 512
# What is turned has memory of its own, for each thread, of so many bytes at most, a quarter of a core's
# cache; it is moved in strips of so many columns, and its rows lie so many elements further apart than they
# are long: rows that begin a power of two apart meet in few places of a cache.
MOST_TURNED = in_cache(2, 1 << 18, 1 << 22)
STRIP, APART = 64, 16
SAMPLES = 5  # times of a way, of which the shortest counts


def _software() -> str:
    """What the bits depend on besides the product: the kernels, and how the ways cut."""
    kernels = f"OpenBLAS kernels for {blas_kernels()}" if blas_kernels() else ""
    return f"{kernels}, {', '.join(WAYS)}"


class Trials:
    """Chooses the fastest of several ways to do the same thing, by timing them on real calls, in turn.

    All ways have to give the same bits. Each is timed SAMPLES times for a key; its shortest time counts.
    Choices hold for the process: one that was made while the machine was busy is not there in the next.
    """

    def __init__(self) -> None:
        self.chosen: dict[Hashable, str] = {}
        self.open: dict[Hashable, dict[str, list[float]]] = {}
        self._lock = threading.Lock()

    def run(self, key: Hashable, do: Callable[[str], object], ways: Callable[[], Iterable[str]]) -> None:
        """do(way), in the way that was chosen for this key, or in the one that has been tried least.

        ways   called once for a key: the ways to choose from
        """
        way = self.chosen.get(key)
        if way is not None:
            do(way)
            return
        with self._lock:
            times = self.open.get(key)
            if times is None:
                times = self.open[key] = {way: [] for way in ways()}
            way = min(times, key=lambda way: len(times[way]))
        began = time.perf_counter()
        do(way)
        took = time.perf_counter() - began
        with self._lock:
            times[way].append(took)
            if len(times) == 1 or all(len(t) >= SAMPLES for t in times.values()):
                self.chosen[key] = min(times, key=lambda way: min(times[way]))
                self.open.pop(key, None)


trials = Trials()
checked = Choices("products.json", None, _software)  # for each kind of product, the ways that keep the bits
_own = threading.local()  # its `memory`: what the thread turns


def matmul(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> np.ndarray:
    """np.matmul(a, b, out=out) for 2-D operands, shared out over the pool. Returns out."""
    M, N = out.shape
    work, n_threads = M * N * a.shape[1], threads.count
    if n_threads == 1 or work < SPLIT_FROM or _is_square_of_one(a, b):
        return np.matmul(a, b, out=out)
    key = (M, a.shape[1], N, _order(a), _order(b), out.dtype.char, n_threads)
    trials.run(key, lambda way: _run(way, a, b, out, n_threads), lambda: _ways(key, a, b, out, n_threads))
    return out


def _is_square_of_one(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether it is x @ x.T, for which BLAS (syrk) adds up in an order of its own."""
    turned = a.strides == b.strides[::-1] and a.shape == b.shape[::-1]
    return turned and a.__array_interface__["data"][0] == b.__array_interface__["data"][0]


def _order(a) -> str:
    return "T" if a.strides[0] < a.strides[1] else "C"


def _ways(key: tuple, a, b, out, n_threads: int) -> list[str]:
    """The ways to choose from; only one for a large product, which is not timed."""
    known = [way for way in (checked.get(key) or "").split(",") if way in WAYS]
    if known:
        return known
    M, N = out.shape
    work = M * N * a.shape[1]
    count = _count(work, n_threads)
    coarse, fine = (max(s.stop - s.start for s in _pieces(M, count, tile)) for tile in (TILE, SMALL_TILE))
    by_rows = BY_ROWS if fine <= 0.95 * coarse else ("rows",)
    kinds = [by_rows, ("columns",)] if M > N else [("columns",), by_rows]
    if _may_turn(b, out, n_threads):
        kinds.append(("turned",))
    large = out.nbytes >= LARGE
    ways: list[str] = []
    for kind in kinds:
        if not (large and ways):
            held = (way for way in kind if keeps_bits(way, a, b, out, n_threads))
            ways += itertools.islice(held, 1)
    if not ways or not large and work < 4 * SPLIT_FROM:
        ways.append("whole")
    checked.put(key, ",".join(ways))
    return ways


def _run(way: str, a, b, out, n_threads: int) -> None:
    if way == "whole":
        np.matmul(a, b, out=out)
        return
    M, N = out.shape
    todo = iter(_pieces_of(way, M, N, _count(M * N * a.shape[1], n_threads)))

    def job(thread: int) -> None:
        for s in todo:
            _piece(way, s, a, b, out)

    threads.run_on_threads(job)


def _count(work: int, n_threads: int) -> int:
    """How many pieces: one a thread, or fewer where there is little to do."""
    return min(n_threads, max(2, work // SPLIT_FROM))


def _pieces_of(way: str, M: int, N: int, count: int) -> list[slice]:
    """Where the rows or columns are cut in this way."""
    return _pieces(M if way in BY_ROWS else N, count, SMALL_TILE if way == "even rows" else TILE)


def _pieces(length: int, count: int, tile: int = TILE) -> list[slice]:
    """So many pieces of as many tiles."""
    size = -(-length // (count * tile)) * tile
    starts = range(0, max(length - tile, 0) + 1, size)  # a last piece of fewer goes with the one before it
    return [slice(i, j) for i, j in zip(starts, [*starts[1:], length])]


def _piece(way: str, s: slice, a, b, out) -> None:
    if way in BY_ROWS:
        np.matmul(a[s], b, out=out[s])
    elif way == "columns":
        np.matmul(a, b[:, s], out=out[:, s])
    else:
        rows, columns = s.stop - s.start, len(a)
        needed = _bytes_turned(rows, columns, out.dtype)
        memory = getattr(_own, "memory", None)
        if memory is None or memory.nbytes < needed:
            memory = _own.memory = np.empty(needed, np.uint8)
        turned = memory[:needed].view(out.dtype).reshape(rows, columns + APART)[:, :columns]
        np.matmul(b[:, s].T, a.T, out=turned)
        part = out[:, s]
        for j in range(0, len(turned), STRIP):
            part[:, j : j + STRIP] = turned[j : j + STRIP].T


def _bytes_turned(rows: int, columns: int, dtype: np.dtype) -> int:
    return rows * (columns + APART) * dtype.itemsize


def _may_turn(b: np.ndarray, out: np.ndarray, n_threads: int) -> bool:
    """Whether the second operand is a transpose, and large beside the first, and the pieces find room."""
    M, N = out.shape
    longest = max(s.stop - s.start for s in _pieces(N, _count(M * N * len(b), n_threads)))
    fits = _bytes_turned(longest, M, out.dtype) <= MOST_TURNED
    return fits and _order(b) == "T" and M <= FEW and len(b) >= 2 * M


def keeps_bits(way: str, a: np.ndarray, b: np.ndarray, out: np.ndarray, n_threads: int) -> bool:
    """Whether a product cut in this way has the bits of the whole one, tried on random numbers.

    Random, as the numbers at hand may hide a difference: zeros add up to zero in any order.
    """
    if way == "whole":
        return True
    (M, N), K = out.shape, a.shape[1]
    pieces = _pieces_of(way, M, N, _count(M * N * K, n_threads))
    if way != "turned":  # which calls BLAS in another way: a part says nothing of the rest
        K = _fewer(K, M * N)
        if a.nbytes + b.nbytes + out.nbytes >= MUCH:
            M, N = (M, _fewer(N, M * K)) if way in BY_ROWS else (_fewer(M, N * K), N)
    x, y = _random_like(0, a, (M, K)), _random_like(1, b, (K, N))
    whole, cut = np.matmul(x, y), np.empty((M, N), out.dtype)
    for s in pieces:
        _piece(way, s, x, y, cut)
    return whole.tobytes() == cut.tobytes()


def _fewer(n: int, others: int) -> int:
    """A smaller size with the same remainder in tiles, for a product of so much work in its other sizes.

    It stays above SPLIT_FROM multiply-adds a piece: BLAS may have other kernels for small products.
    """
    least = max(2 * TILE, 3 * SPLIT_FROM // others)
    return min(n, -(-least // TILE) * TILE + n % TILE)


def _random_like(start: int, a: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Random numbers in the dtype and the order of a: those of a pool from `start` on, again and again."""
    pool = _pool(a.dtype)
    numbers = np.resize(np.roll(pool, start), shape[0] * shape[1])
    return numbers.reshape(shape[::-1]).T if _order(a) == "T" else numbers.reshape(shape)


@cache
def _pool(dtype: np.dtype) -> np.ndarray:
    """Random numbers, a prime number of them, so that no two rows of an operand are alike."""
    numbers = np.random.default_rng(0).standard_normal(100_003)
    return numbers.astype(dtype)
