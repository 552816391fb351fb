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
        self._orders = _Orders([_samples(part, B, T) for part in self.parts])
        self.samples = sum(self._orders.samples)
        super().__init__(tokens, B, T, seed)

    def batch(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Batch number k, wherever the loader stands."""
        which, sample = self._orders[k]
        part = self.parts[which]
        if k % max(1, RELEASE // self.B) == 0:
            release(part)
        return _sample(part, self.B, self.T, sample)

    def state(self) -> dict[str, int]:
        return {"position": self.position}


class _Orders:
    """The file and the sample of each batch; samples: of each file.

    The order of the files is drawn at the begin of an epoch, that of a file's samples when it is reached.
    The generator continues from one draw to the next, so going back means to start again.
    """

    def __init__(self, samples: Sequence[int]) -> None:
        self.samples = list(samples)
        self._restart()

    def _restart(self):
        # NumPy's legacy generator is the Mersenne Twister, seeded as in llm.c, and frozen (NEP 19)
        self.twister = np.random.RandomState(SHUFFLE_SEED)
        self.files = list(range(len(self.samples)))
        self.at = len(self.files)  # in `files`: at the end of an epoch
        self.first, self.order = 0, array("i")  # the first batch of the file, and its samples

    def __getitem__(self, k):
        if k < self.first:
            self._restart()
        while k >= self.first + len(self.order):
            self.first += len(self.order)
            self.at += 1
            if self.at >= len(self.files):
                self.files = [self.files[i] for i in permutation(len(self.files), self.twister)]
                self.at = 0
            self.order = permutation(self.samples[self.files[self.at]], self.twister)
        return self.files[self.at], self.order[k - self.first]


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
    """The first `batches` samples in the order of files, repeated if there are fewer: inputs, targets.

    With batches=0 all of `tokens`, as gpt2.data.tokens.evenly cuts it: llm.c has no such setting.
    """
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
