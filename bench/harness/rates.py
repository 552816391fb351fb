"""Measure this machine's peak rates: float32 matrix products (FLOP/s) and memory copies (bytes/s)."""

import numpy as np

from bench.harness.sizes import step_flops
from gpt2 import autodiff as ad
from gpt2.commands.bench.machine import best as _fastest
from gpt2.commands.bench.machine import shared

COPY_BYTES = 256 << 20  # far larger than any cache
# Rows of the square matrices. Smaller ones lose to threading overhead (512: 195 GFLOP/s on two threads, where
# 1536 and 2048 reach 211); larger ones are no faster (3072 and 4096: 205).
SIDES = (1024, 1536, 2048)


class SquareProduct:
    """out = a @ b of square float32 matrices on several threads.

    way  "BLAS": the threads of BLAS. "columns": single-threaded BLAS on Python threads, each of which
         computes some columns of the result, as this engine does
    """

    def __init__(self, a, b, out, way, threads):
        self.a, self.b, self.out = a, b, out
        self.way, self.threads = way, threads
        n = len(a)
        self.flops = 2 * n**3
        self.title = f"{n} x {n}" + (", columns shared out over Python's threads" if way == "columns" else "")
        starts = [n * k // threads for k in range(threads + 1)]
        self.parts = [slice(*ends) for ends in zip(starts, starts[1:])]

    def prepare(self):
        """Set up the threads, and wake them by a first call."""
        if self.way == "columns":
            ad.set_threads(self.threads)
        else:
            ad.limit_blas_threads(self.threads)
        self()

    def __call__(self):
        if self.way == "columns":
            ad.run_on_threads(self._columns)
        else:
            np.matmul(self.a, self.b, out=self.out)

    def _columns(self, thread):
        part = self.parts[thread]
        np.matmul(self.a, self.b[:, part], out=self.out[:, part])


def fastest_product(threads, seconds=1.0):
    """The fastest SquareProduct of this machine, prepared, and its rate in FLOP/s."""
    ways = ("BLAS", "columns") if threads > 1 and ad.limit_blas_threads(1) else ("BLAS",)
    rng = np.random.default_rng(0)
    matrices = [rng.standard_normal((3, n, n), dtype=np.float32) for n in SIDES]
    products = [SquareProduct(*abc, way, threads) for abc in matrices for way in ways]
    rates = dict.fromkeys(products, 0.0)
    for product in products * 2:  # twice, so that one interruption does not decide
        product.prepare()
        rate = product.flops / _fastest(product, seconds / len(products) / 2)
        rates[product] = max(rate, rates[product])
    best = max(products, key=rates.get)
    best.prepare()
    return best, rates[best]


def sgemm_peak(threads, seconds=1.0):
    """The best rate of a float32 product, in FLOP/s. Restores the threads of the engine and of BLAS."""
    before = ad.get_threads()
    rate = fastest_product(threads, seconds)[1]
    ad.set_threads(before)
    ad.limit_blas_threads(threads if before == 1 else 1)
    return rate


def copy_of(nbytes):
    """A function that copies nbytes on the engine's threads; NumPy copies without the interpreter lock."""
    source = np.ones(nbytes, np.uint8)
    return shared(lambda s, t: np.copyto(t, s), source, np.zeros_like(source))


def copy_bandwidth(seconds=1.0):
    """Bytes read and written a second while copying an array larger than any cache."""
    return 2 * COPY_BYTES / _fastest(copy_of(COPY_BYTES), seconds)


# ---- The peak as a contender -------------------------------------------------------------------------------

# Seconds of products, at most: for longer steps a share is computed, and its time is scaled up.
LONGEST_S = 0.5


class Products:
    """Equal products with about the FLOPs of a step, or of a share of it. It trains nothing.

    As it runs in the same rounds as the other contenders, their share of the peak does not depend on how fast
    the machine was at another time.

    share  the exact share of a step's FLOPs that step() does; more than 1 if a single product has more
    """

    def __init__(self, size, threads):
        self.product, rate = fastest_product(threads)
        wanted = min(step_flops(size), LONGEST_S * rate)
        self.count = max(1, round(wanted / self.product.flops))
        self.share = self.count * self.product.flops / step_flops(size)
        self.about = f"{self.product.title}, {rate / 1e9:.0f} GFLOP/s at best when it was chosen"

    def step(self, tokens, targets):
        for _ in range(self.count):
            self.product()


def training(size, variant, threads):
    return Products(size, threads)


llama = training
