"""Time the matrix products of a run with the OpenBLAS kernels of this process.

    python -m gpt2.train.products own|NAME SETTINGS     answers each line, the number of a core or nothing,
                                                        with the seconds of each product

gpt2.train.kernels starts it once per kernels. It times the products of GPT-2 with its weights, one in the
forward and two in the backward, on one thread; those of a block count once per block. Own layers are assumed
to have the same products.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np

from gpt2.autodiff import blas_kernels
from gpt2.train.kernels import approximate_vocabulary
from gpt2.train.recipe import new_settings
from gpt2.train.settings import OWN, Settings

TRIALS, LARGEST = 40, 400
# Larger products are cut to this size, and their time scaled
MOST_ROWS, MOST_OUT = 1024, 4096


def main(argv: Sequence[str]) -> int:
    """Answer lines with times; exits with 1 if OpenBLAS has not loaded the kernels of that name."""
    name, given = argv[0], json.loads(argv[1])
    if name != OWN and blas_kernels() != name:
        return 1
    if name != OWN:
        exercise()
    timed = list(products(new_settings(given)))
    for product in timed:
        product.seconds()  # touches the memory
    for line in sys.stdin:
        if line.strip():
            os.sched_setaffinity(0, {int(line)})
        print(*(product.seconds() for product in timed), flush=True)
    return 0


def exercise() -> None:
    """Compute products of varied shapes, in both dtypes and orders: faulty kernels may crash."""
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        for _ in range(TRIALS):
            M, K, N = (int(n) for n in rng.integers(1, LARGEST, 3))
            lefts = np.ones((M, K), dtype), np.ones((K, M), dtype).T
            rights = np.ones((K, N), dtype), np.ones((N, K), dtype).T
            for left, right in itertools.product(lefts, rights):
                np.matmul(left, right)


class Product:
    """A layer's three products with a weight (N, K), of M rows.

    times   how often they occur in the model, scaled if they were cut
    """

    def __init__(self, shape: tuple[int, int, int], dtype: str, times: float):
        (M, N, K), rng = shape, np.random.default_rng(0)
        self.times, shapes = times, ((M, K), (N, K), (M, N))
        arrays = [rng.standard_normal(shape, np.float32).astype(dtype) for shape in shapes]
        self.inp, self.weight, self.dout = arrays
        self.dinp, self.dweight, self.out = map(np.zeros_like, arrays)

    def seconds(self) -> float:
        """Seconds of all three."""
        begin = time.perf_counter()
        np.matmul(self.inp, self.weight.T, out=self.out)
        np.matmul(self.dout, self.weight, out=self.dinp)
        np.matmul(self.dout.T, self.inp, out=self.dweight)
        return self.times * (time.perf_counter() - begin)


def products(s: Settings) -> Iterator[Product]:
    """The products of GPT-2 with these settings."""
    C, L, V = s.n_embd, s.n_layer, approximate_vocabulary(s.tokenizer)
    F = s.n_inner or 4 * C
    rows = s.batch_size * s.block_size
    M = min(rows, MOST_ROWS)
    for OC, K, count in ((3 * C, C, L), (C, C, L), (F, C, L), (C, F, L), (V, C, 1)):
        N = min(OC, max(MOST_OUT, 4 * C))
        yield Product((M, N, K), s.dtype, count * (OC / N) * (rows / M))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
