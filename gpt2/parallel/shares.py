"""A team of threads in one process: each computes forward and backward of its shares of the batch alone.

A share runs on one thread, matrix products included, with its own gradients and activations: between the
start of a step and the sum of the gradients no thread waits for another.

The number of shares decides the arithmetic, the number of threads does not: gradients, losses and squares are
added in the order of the shares, by the formulas of gpt2.parallel.processes. So any number of threads, and as
many worker processes as there are shares, give the same bits.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpt2.autodiff import run_apart
from gpt2.model.gpt2 import GPT2
from gpt2.model.optimizer import part
from gpt2.parallel.group import Group
from gpt2.parallel.split import Batch, add_up, counted, counted_in, cut, gradient_of, loss_of
from gpt2.parallel.team import Team


class Shares(Team):
    """Team with `size` shares of each batch, computed on the threads of set_threads. After a step model.grads
    holds its gradient. Without an optimizer it computes gradients and losses alone.
    """

    def __init__(self, model: GPT2, optimizer: Any, size: int):
        super().__init__(Group(), model, optimizer)
        self.size = size
        self.models = [model, *(model.twin() for _ in range(size - 1))]
        self.compiled: set[tuple] = set()  # (kind, accumulates, all count, shape) whose program is compiled

    def gradient(self, batches: Sequence[Batch]) -> tuple[float, float]:
        total = counted_in(batches)

        def work(model: GPT2, share: Sequence[Batch]) -> float:
            return gradient_of(model, share, self.size, total)

        loss = sum(self._each_share("gradient", batches, work))
        grads = [model.flat_grads for model in self.models]
        # Squares by parts, as worker processes do: another order may differ in the last bit
        parts = [part(grads[0].size, r, self.size) for r in range(self.size)]
        return loss, math.sqrt(sum(add_up(grads, *each) for each in parts))

    def loss(self, inputs: np.ndarray, targets: np.ndarray) -> float:
        total = max(1, counted(targets))

        def work(model: GPT2, share: Sequence[Batch]) -> float:
            return loss_of(model, share[0], total)

        return sum(self._each_share("loss", [(inputs, targets)], work))

    def _each_share(
        self, kind: str, batches: Sequence[Batch], work: Callable[[GPT2, Sequence[Batch]], float]
    ) -> list[float]:
        """The results of work(model, share of each batch) for each share. If one of its programs is new, the
        first thread does them all, so that nothing is compiled twice.
        """
        shares = [[cut(batch, r, self.size) for batch in batches] for r in range(self.size)]
        if self.size == 1:  # the threads work inside its products
            return [work(self.models[0], shares[0])]
        programs = {
            (kind, i > 0, bool((targets >= 0).all()), targets.shape)
            for share in shares
            for i, (_, targets) in enumerate(share)
        }
        results = [0.0] * self.size
        todo = iter(range(self.size))  # next() on it is atomic
        alone = not programs <= self.compiled

        def job(thread: int) -> None:
            if alone and thread:
                return
            for r in todo:
                results[r] = work(self.models[r], shares[r])

        run_apart(job)
        self.compiled |= programs
        return results
