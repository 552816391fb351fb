"""Team: a model and its optimizer, trained by the workers of a group.

A step, in each worker:

    forward, backward     on its share of every batch; the gradient is that of its share of the mean loss
    reduce                the sum of all workers' gradients; with MPI it began during the backward pass
    norm                  from the squares that each worker adds up for its part of the gradients
    update                its part of parameters and moments, or all of them if they are not sharded
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpt2.model.optimizer import sum_of_squares
from gpt2.parallel.group import Group, check_batch
from gpt2.parallel.split import Batch, counted, counted_in, cut, gradient_of, loss_of

if TYPE_CHECKING:
    from gpt2.model.gpt2 import GPT2
    from gpt2.model.optimizer import AdamW


class Team:
    """Trains with one process, or with MPI, where every rank makes the same calls.

    shard  whether each worker keeps all parameters, but only the moments of its part

    root   whether this process prints and writes files
    size   workers
    """

    def __init__(self, group: Group, model: GPT2, optimizer: AdamW, shard: bool = False):
        self.group, self.model, self.optimizer = group, model, optimizer
        self.size, self.root = group.size, group.rank == 0
        self.shard = shard
        if shard:
            self.put_moments(optimizer.m, optimizer.v)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close()

    # -- what a step computes

    def step(
        self, batches: Sequence[Batch], lr: float | None = None, clip: float | None = 1.0
    ) -> tuple[float, float]:
        """One optimizer step. Returns the mean loss and the norm of its gradient.

        batches  a list of (inputs, targets), each (B, T): the gradient is that of one batch with all of them
        lr       learning rate, by default the optimizer's
        clip     the largest norm: a longer gradient is scaled down to it; None for no clipping

        If loss or norm is not finite, parameters and moments stay unchanged.
        """
        check_batch(len(batches[0][0]), self.size)
        loss, norm = self.gradient(batches)
        if math.isfinite(loss) and math.isfinite(norm):
            self.update(norm, lr, clip)
        return loss, norm

    def gradient(self, batches: Sequence[Batch]) -> tuple[float, float]:
        """The mean loss over the targets of all batches that count, and the norm of its gradient."""
        group, grads = self.group, self.model.flat_grads
        shares = [cut(batch, group.rank, self.size) for batch in batches]
        reduction = group.reduction(grads)
        loss = gradient_of(self.model, shares, self.size, counted_in(batches), reduction)
        squares = sum_of_squares(grads) if reduction is None else reduction.wait()
        loss, squares = group.total(loss, squares)
        return loss, math.sqrt(squares)

    def update(self, norm: float, lr: float | None, clip: float | None) -> None:
        """Update the parameters by a gradient of this norm."""
        self.optimizer.update(norm, lr, clip, *(self._part() if self.shard else ()))
        if self.shard:
            self.group.all_gather(self.model.flat_params, self._parts())

    def loss(self, inputs: np.ndarray, targets: np.ndarray) -> float:
        """The mean loss over the targets of a batch (B, T) that count, in nats; shares need not be equal."""
        share = cut((inputs, targets), self.group.rank, self.size)
        return self.group.total(loss_of(self.model, share, max(1, counted(targets))))[0]

    def _parts(self):
        return [self.optimizer.part(rank, self.size) for rank in range(self.size)]

    def _part(self):
        return self.optimizer.part(self.group.rank, self.size)

    # -- moments

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """m and v of all trained parameters, (n,) each, on the root; undefined elsewhere."""
        m, v = self.optimizer.m, self.optimizer.v
        return (self._gather(m), self._gather(v)) if self.shard else (m, v)

    def _gather(self, mine):
        whole = np.empty(self.model.flat_params.size, mine.dtype)
        whole[slice(*self._part())] = mine
        self.group.all_gather(whole, self._parts())
        return whole

    def put_moments(self, m: np.ndarray, v: np.ndarray) -> None:
        """Set m and v of all trained parameters, as returned by moments()."""
        if self.shard:
            start, stop = self._part()
            model = self.model
            self.optimizer.use(
                model.flat_params, model.flat_grads, m[start:stop].copy(), v[start:stop].copy(), first=start
            )

    def close(self) -> None:
        """End the workers. The model stays as it is."""
