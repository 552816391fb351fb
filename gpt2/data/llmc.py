"""Batches in the order of llm.c's program for the CPU.

Sample k is the B*T + 1 tokens from k*B*T on. Training takes them in an order shuffled by the Mersenne Twister
with seed 42, anew in each epoch; validation takes the first ones, in order.
"""

from collections.abc import Iterator

import numpy as np

from gpt2.data.tokens import Loader, evenly, take
from gpt2.errors import UserError

SHUFFLE_SEED = 42


class LlmcLoader(Loader):
    """Batches of B sequences of T tokens in llm.c's order.

    tokens   (count,) integers; an epoch has (count - 1) // (B * T) batches
    seed     ignored: the order is always that of SHUFFLE_SEED, as in llm.c
    """

    def __init__(self, tokens: np.ndarray, B: int, T: int, seed: int = SHUFFLE_SEED) -> None:
        self.samples = _samples(tokens, B, T)
        super().__init__(tokens, B, T, seed)
        self._orders = _Orders(self.samples)

    def batch(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Batch number k, wherever the loader stands."""
        epoch, index = divmod(k, self.samples)
        return _sample(self.tokens, self.B, self.T, self._orders[epoch][index])

    def state(self) -> dict[str, int]:
        return {"position": self.position}


class _Orders:
    """The order of samples in each epoch. The generator continues from one to the next."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self._restart()

    def _restart(self):
        # NumPy's legacy generator is the Mersenne Twister, seeded as in llm.c, and frozen (NEP 19)
        self.twister = np.random.RandomState(SHUFFLE_SEED)
        self.drawn = 0

    def __getitem__(self, epoch):
        if epoch < self.drawn - 1:
            self._restart()
        while self.drawn <= epoch:
            self.order = permutation(self.samples, self.twister)
            self.drawn += 1
        return self.order


def permutation(count: int, twister: np.random.RandomState) -> list[int]:
    """0 .. count-1 shuffled as llm.c does: from the end, each entry swaps with one drawn from those up to it.

    twister  a numpy.random.RandomState; count - 1 of its 32-bit numbers are used
    """
    draws = twister.randint(0, 1 << 32, size=max(count - 1, 0), dtype=np.uint32).tolist()
    order = list(range(count))
    for i, draw in zip(range(count - 1, 0, -1), draws):
        j = draw % (i + 1)
        order[i], order[j] = order[j], order[i]
    return order


def validation(tokens: np.ndarray, B: int, T: int, batches: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The first `batches` samples in file order, repeated if there are fewer: inputs, targets.

    With batches=0 all of `tokens`, as gpt2.data.tokens.evenly cuts it: llm.c has no such setting.
    """
    if not batches:
        yield from evenly(tokens, B, T)
        return
    samples = _samples(tokens, B, T)
    for k in range(batches):
        yield _sample(tokens, B, T, k % samples)


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
