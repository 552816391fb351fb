"""Batches in the order of llm.c's program for the CPU.

Sample k is the B*T + 1 tokens from k*B*T on. Training takes them in an order shuffled by the Mersenne Twister
with seed 42, anew in each epoch; validation takes the first ones, in order. Of several files an epoch takes
one after the other, themselves in shuffled order, as its DataLoader does in a single process.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import Any

import numpy as np

from gpt2.data.tokens import RELEASE, Loader, evenly, parts_of, release, take
from gpt2.errors import UserError

SHUFFLE_SEED = 42


class LlmcLoader(Loader):
    """Batches of B sequences of T tokens in llm.c's order.

    tokens   (count,) integers, or Shards: an epoch takes the files in random order, and from each its
             (count - 1) // (B * T) samples, shuffled too
    seed     ignored: the order is always that of SHUFFLE_SEED, as in llm.c
    """

    def __init__(self, tokens: Any, B: int, T: int, seed: int = SHUFFLE_SEED) -> None:
        self.parts = parts_of(tokens)
        self._counts = [_samples(part, B, T) for part in self.parts]
        self.samples = sum(self._counts)
        self._restart()
        super().__init__(tokens, B, T, seed)

    def _restart(self):
        self._orders = _orders(self._counts)
        self._first, self._file, self._order = 0, 0, ()  # the first batch of a file, the file, its samples

    def batch(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        if k < self._first:  # one draw follows from the other, so going back means to start again
            self._restart()
        while k >= self._first + len(self._order):
            self._first += len(self._order)
            self._file, self._order = next(self._orders)
        part = self.parts[self._file]
        if k % max(1, RELEASE // self.B) == 0:
            release(part)
        return _sample(part, self.B, self.T, self._order[k - self._first])

    def state(self) -> dict[str, int]:
        return {"position": self.position}


def _orders(counts):
    """(a file, the order of its samples), one file after the other, for ever; counts: of samples."""
    # NumPy's legacy generator is the Mersenne Twister, seeded as in llm.c, and frozen (NEP 19)
    twister = np.random.RandomState(SHUFFLE_SEED)
    files = list(range(len(counts)))
    while True:
        files = [files[i] for i in permutation(len(files), twister)]
        for file in files:
            yield file, permutation(counts[file], twister)


def permutation(count: int, twister: np.random.RandomState) -> Sequence[int]:
    """0 .. count-1 shuffled as llm.c does: from the end, each entry swaps with one drawn from those up to it.

    twister  a numpy.random.RandomState; count - 1 of its 32-bit numbers are used
    """
    draws = twister.randint(0, 1 << 32, size=max(count - 1, 0), dtype=np.uint32)
    order = array("i", range(count))  # a file has fewer than 1 << 31; a list would take ten times the memory
    for i, draw in zip(range(count - 1, 0, -1), draws.data):
        j = draw % (i + 1)
        order[i], order[j] = order[j], order[i]
    return order


def validation(tokens: Any, B: int, T: int, batches: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The first `batches` samples in the order of files, repeated if there are fewer; 0: all of `tokens`."""
    if not batches:
        yield from evenly(tokens, B, T)
        return
    samples = [(part, k) for part in parts_of(tokens) for k in range(min(batches, _samples(part, B, T)))]
    for part, k in islice(cycle(samples), batches):
        yield _sample(part, B, T, k)


def _samples(tokens, B, T):
    """The number of samples; each needs one more token, the target of its last one."""
    samples = (len(tokens) - 1) // (B * T)
    if samples < 1:
        raise UserError(
            f"{len(tokens)} tokens, llm.c's batches of {B} times {T} need {B * T + 1}; use a "
            "longer text, or a smaller --batch-size or --block-size"
        )
    return samples


def _sample(tokens, B, T, k):
    return take(tokens, (k * B + np.arange(B)) * T, T)
