"""Batches in the order in which llm.c's program for the CPU draws them.

Sample k is the B*T + 1 tokens from k*B*T on. Training takes them in an order shuffled by the Mersenne Twister
with seed 42, again in each round; validation takes the first, in order.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gpt2.data.tokens import evenly, take
from gpt2.errors import UserError

SHUFFLE_SEED = 42


class LlmcLoader:
    """Batches of B sequences of T tokens in llm.c's order; stands in for gpt2.data.tokens.Loader.

    tokens   (count,) integers; a round has (count - 1) // (B * T) batches
    seed     not used: the order is always that of SHUFFLE_SEED, as there
    """

    def __init__(self, tokens: np.ndarray, B: int, T: int, seed: int = SHUFFLE_SEED) -> None:
        self.tokens, self.B, self.T = tokens, B, T
        self.samples = _samples(tokens, B, T)
        self.position = 0  # batches drawn so far
        self._orders = _Orders(self.samples)

    def next_batch(self) -> tuple[np.ndarray, np.ndarray]:
        """The next batch: inputs (B, T) and targets (B, T), int32."""
        batch = self.batch(self.position)
        self.position += 1
        return batch

    def batch(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Batch number k, wherever the loader stands."""
        lap, index = divmod(k, self.samples)
        return _sample(self.tokens, self.B, self.T, self._orders[lap][index])

    def state(self) -> dict[str, int]:
        """Where the loader stands, as plain numbers for a checkpoint."""
        return {"position": self.position}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where `state()` was taken."""
        self.position = int(state["position"])


class _Orders:
    """The order of samples in each round. The twister runs on from one to the next, so they come in turn."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self._restart()

    def _restart(self):
        # NumPy's old generator is the Mersenne Twister, seeded as there, and will not change (NEP 19)
        self.twister = np.random.RandomState(SHUFFLE_SEED)
        self.drawn = 0

    def __getitem__(self, lap):
        if lap < self.drawn - 1:
            self._restart()
        while self.drawn <= lap:
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
    """The first `batches` samples in file order, over again where there are fewer: inputs, targets.

    With batches=0 the whole of `tokens`, as gpt2.data.tokens.evenly cuts it: llm.c has no word for that.
    """
    if not batches:
        yield from evenly(tokens, B, T)
        return
    samples = _samples(tokens, B, T)
    for k in range(batches):
        yield _sample(tokens, B, T, k % samples)


def _samples(tokens, B, T):
    """How many samples there are: each needs one token more than it has, the target of its last one."""
    samples = (len(tokens) - 1) // (B * T)
    if samples < 1:
        raise UserError(
            f"{len(tokens)} tokens, llm.c's batches of {B} times {T} need {B * T + 1}; use a "
            "longer text, or a smaller --batch-size or --block-size"
        )
    return samples


def _sample(tokens, B, T, k):
    return take(tokens, (k * B + np.arange(B)) * T, T)
