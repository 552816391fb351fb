"""Team: a model and its optimizer, trained by the workers of a group.

A step, in each worker:

    forward, backward     on its share of every batch; the gradient is that of its share of the mean loss
    reduce                the sum of all workers' gradients; with MPI it began during the backward pass
    norm                  from the squares that each worker adds up for its part of the gradients
    update                its part of parameters and moments, or all of them if they are not sharded
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt2.parallel.errors import check_batch
from gpt2.parallel.group import Group, share

if TYPE_CHECKING:
    from gpt2.model.gpt2 import GPT2
    from gpt2.model.optimizer import AdamW


class Team:
    """Trains with one process, several, or MPI, where every rank makes the same calls.

    part   (start, stop) of the parameters that this worker updates; None for all of them
    shard  whether each worker keeps all parameters, but only the moments of its part

    root   whether this process prints and writes files
    size   workers
    """

    def __init__(
        self,
        group: Group,
        model: GPT2,
        optimizer: AdamW,
        part: tuple[int, int] | None = None,
        shard: bool = False,
    ):
        self.group, self.model, self.optimizer = group, model, optimizer
        self.size, self.root = group.size, group.rank == 0
        self.shard = shard
        self.part = group.part(model.flat_params.size) if shard else part or (0, model.flat_params.size)
        if shard:
            self.put_moments(optimizer.m, optimizer.v)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close()

    # -- what a step computes

    def step(
        self,
        batches: Sequence[tuple[np.ndarray, np.ndarray]],
        lr: float | None = None,
        clip: float | None = 1.0,
    ) -> tuple[float, float]:
        """One optimizer step. Returns the mean loss and the norm of its gradient.

        batches  a list of (inputs, targets), each (B, T): the gradients of all of them make one step
        lr       learning rate, by default the optimizer's
        clip     the largest norm: a longer gradient is scaled down to it; None for no clipping

        If loss or norm is not finite, parameters and moments stay unchanged.
        """
        check_batch(len(batches[0][0]), self.size)
        shares = [self._share(*batch) for batch in batches]
        return self.step_on(shares, 1.0 / self.size, lr, clip)

    def step_on(
        self,
        shares: Sequence[tuple[np.ndarray, np.ndarray]],
        weight: float,
        lr: float | None,
        clip: float | None,
    ) -> tuple[float, float]:
        """step() in one worker, on its shares of the batches; weight is their part of the whole."""
        group, model = self.group, self.model
        reduction = group.reduction(model.flat_grads)
        loss = 0.0
        for i, (inputs, targets) in enumerate(shares):
            group.note("computing")
            on_ready = reduction if i == len(shares) - 1 and group.size > 1 else None
            part = model.loss_and_grads(inputs, targets, weight / len(shares), i > 0, on_ready)
            loss += weight * part / len(shares)
        squares = reduction.wait()
        loss, squares = group.total(loss, squares)
        norm = math.sqrt(squares)
        if math.isfinite(loss) and math.isfinite(norm):
            group.note("updating")
            self.optimizer.update(norm, lr, clip, *self.part)
            if self.shard:
                group.all_gather(model.flat_params)
        return loss, norm

    def loss(self, inputs: np.ndarray, targets: np.ndarray) -> float:
        """The mean loss over a batch (B, T) in nats per token, whose shares need not be equal."""
        mine = share(len(inputs), self.group.rank, self.size)
        return self.loss_on(inputs[mine], targets[mine], len(inputs))

    def loss_on(self, inputs: np.ndarray, targets: np.ndarray, count: int) -> float:
        """loss() in one worker, on its share of `count` sequences."""
        self.group.note("computing")
        weighted = self.model.loss(inputs, targets) * (len(inputs) / count) if len(inputs) else 0.0
        return self.group.total(weighted)[0]

    def _share(self, inputs, targets):
        mine = share(len(inputs), self.group.rank, self.size)
        return inputs[mine], targets[mine]

    # -- moments

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """m and v of all trained parameters, (n,) each, on the root; undefined elsewhere."""
        m, v = self.optimizer.m, self.optimizer.v
        n = self.model.flat_params.size
        return (self.group.gather(m, n), self.group.gather(v, n)) if self.shard else (m, v)

    def put_moments(self, m: np.ndarray, v: np.ndarray) -> None:
        """Set m and v of all trained parameters, as returned by moments()."""
        if self.shard:
            start, stop = self.part
            model = self.model
            self.optimizer.use(
                model.flat_params, model.flat_grads, m[start:stop].copy(), v[start:stop].copy(), first=start
            )

    # -- agreement

    def from_root(self, function: Callable[[], Any]) -> Any:
        """Call function() on the root and return its result on all ranks. A UserError is raised on all."""
        return self.group.from_root(function)

    def wait_for_root(self) -> None:
        """Wait until the root is done with work that it does alone."""
        if self.size > 1:
            self.group.wait_for_root()

    def highest(self, number: float) -> float:
        """The largest of all ranks' numbers."""
        return self.group.highest(number)

    def close(self) -> None:
        """End the workers. The model stays as it is."""
