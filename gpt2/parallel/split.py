"""What each of several workers does: its share of a batch, and its part of the parameters.

Threads, processes and MPI ranks all use these functions, so that the same number of workers gives the same
bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpt2.errors import UserError
from gpt2.model.optimizer import sum_of_squares

if TYPE_CHECKING:
    from gpt2.model.gpt2 import GPT2

Batch = tuple[np.ndarray, np.ndarray]  # inputs and targets, (B, T) each


def cut(batch: Batch, rank: int, size: int) -> Batch:
    """A worker's share of a batch. Shares differ by at most one sequence."""
    inputs, targets = batch
    mine = slice(len(inputs) * rank // size, len(inputs) * (rank + 1) // size)
    return inputs[mine], targets[mine]


def counted(targets: np.ndarray) -> int:
    """The number of targets that count."""
    return int(np.count_nonzero(np.asarray(targets) >= 0))


def counted_in(batches: Sequence[Batch]) -> int:
    """The number of targets of a step that count. Raises UserError if none does."""
    total = sum(counted(targets) for _, targets in batches)
    if not total:
        raise UserError("no target of this step counts: all are -1 or -100, so there is no loss to train on")
    return total


def gradient_of(
    model: GPT2,
    shares: Sequence[Batch],
    size: int,
    total: int,
    on_ready: Callable[[int, int], None] | None = None,
    beat: Callable[[], None] | None = None,
) -> float:
    """A worker's part of the mean loss of a step; model.grads then hold the gradient of that part.

    The mean is over all targets of the step that count, so a share weighs as many as it has: the mean of the
    shares' means would be another number where they count differently.

    shares    the worker's share of each batch
    size      workers
    total     targets that count in all shares of all workers
    on_ready  as for model.backward, called in the last backward
    beat      called before each batch
    """
    loss = 0.0
    batches = len(shares)
    mean = total / (size * batches)  # targets of a share
    for i, (inputs, targets) in enumerate(shares):
        if beat is not None:
            beat()
        ready = (on_ready,) if on_ready is not None and i == batches - 1 else ()
        weight = counted(targets) / mean / size  # 1 / size where all count
        loss += weight * model.loss_and_grads(inputs, targets, weight / batches, i > 0, *ready) / batches
    return loss


def loss_of(model: GPT2, share: Batch, total: int) -> float:
    """A worker's part of the mean loss over `total` targets that count, from its share of them."""
    inputs, targets = share
    return model.loss(inputs, targets) * (counted(targets) / total) if len(inputs) else 0.0


def add_up(gradients: Sequence[np.ndarray], start: int, stop: int) -> float:
    """Add the entries start..stop of all gradients to those of the first. Returns their sum of squares."""
    first, *others = (gradient[start:stop] for gradient in gradients)
    return sum_of_squares(first, others)
