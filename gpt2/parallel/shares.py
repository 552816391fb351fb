"""A team of threads in one process: each computes forward and backward of its shares of the batch alone.

A share runs on one thread, matrix products included, with its own gradients and activations: between the
start of a step and the sum of the gradients no thread waits for another. For a small model that saves most of
the time compared with threads inside each product. Compared with processes there is no start-up, no shared
memory, and only one copy of parameters and moments.

The number of shares decides the arithmetic, the number of threads does not: gradients, losses and squares are
added in the order of the shares, by the formulas of gpt2.parallel.processes. So any number of threads, and as
many worker processes as there are shares, give the same bits.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from gpt2.autodiff import run_apart
from gpt2.model.gpt2 import GPT2
from gpt2.model.optimizer import AdamW, part
from gpt2.parallel.group import Group
from gpt2.parallel.split import Batch, add_up, counted, counted_in, cut, gradient_of, loss_of
from gpt2.parallel.team import Team


class BatchShares:
    """A model whose batches are cut into `size` shares, computed on the threads of set_threads."""

    def __init__(self, model: GPT2, size: int):
        self.size = size
        self.models = [model, *(model.twin() for _ in range(size - 1))]
        self.compiled: set[tuple] = set()  # (kind, accumulates, all count, shape) whose program is compiled

    def gradient(self, batches: Sequence[Batch]) -> tuple[float, float]:
        """The mean loss over the batches and the norm of its gradient, which the first model's grads hold."""
        loss = self._losses(batches)
        grads = [model.flat_grads for model in self.models]
        # Squares by parts, as worker processes do: another order may differ in the last bit
        parts = [part(grads[0].size, r, self.size) for r in range(self.size)]
        return loss, math.sqrt(sum(add_up(grads, *each) for each in parts))

    def _losses(self, batches) -> float:
        """The mean loss over the batches; each model's grads hold the contribution of its share."""
        total = counted_in(batches)
        shares = [[cut(batch, r, self.size) for batch in batches] for r in range(self.size)]

        def work(r: int) -> float:
            return gradient_of(self.models[r], shares[r], self.size, total)

        if self.size == 1:  # the threads work inside its products
            return work(0)
        return sum(self._each(work, _programs("gradient", shares)))

    def loss(self, inputs: np.ndarray, targets: np.ndarray) -> float:
        """The mean loss over a batch, whose shares need not be equal."""
        total = max(1, counted(targets))
        shares = [cut((inputs, targets), r, self.size) for r in range(self.size)]

        def work(r: int) -> float:
            return loss_of(self.models[r], shares[r], total)

        return sum(self._each(work, _programs("loss", [[share] for share in shares])))

    def _each(self, work: Callable[[int], float], programs: set[tuple]) -> list[float]:
        """The results of work(r) for each share r. If one of its programs is new, the first thread does them
        all, so that nothing is compiled twice."""
        results = [0.0] * self.size
        todo = iter(range(self.size))  # next() on it is atomic
        alone = not programs <= self.compiled

        def job(thread: int) -> None:
            if alone and thread:
                return
            for r in todo:
                results[r] = work(r)

        run_apart(job)
        self.compiled |= programs
        return results


def _programs(kind: str, shares: Sequence[Sequence[Batch]]) -> set[tuple]:
    """What decides which programs run: see BatchShares.compiled."""
    return {
        (kind, i > 0, bool((targets >= 0).all()), targets.shape)
        for batches in shares
        for i, (_, targets) in enumerate(batches)
    }


class Shares(Team):
    """Team with `size` shares of each batch. After a step model.grads holds its gradient."""

    def __init__(self, model: GPT2, optimizer: AdamW, size: int):
        super().__init__(Group(), model, optimizer)
        self.size = size
        self.batch = BatchShares(model, size)

    def gradient(self, batches: Sequence[Batch]) -> tuple[float, float]:
        return self.batch.gradient(batches)

    def loss(self, inputs: np.ndarray, targets: np.ndarray) -> float:
        return self.batch.loss(inputs, targets)
