"""Softmax and negative log likelihood in one: the surprise at each target, in nats.

    p[v]   = exp(logits[v]) / sum_w exp(logits[w])
    loss   = -log p[target] = log(sum_w exp(logits[w])) - logits[target]

Taken together the logarithm cancels the exponential, and neither a Jacobian nor a division by a small
probability is needed:

    d loss / d logits[v] = p[v] - [v is the target]                                      Bridle 1990

The largest logit of a row is subtracted first. It cancels in the fraction, and no exponent can then overflow.

A target of -1 (nanoGPT, llm.c) or -100 (PyTorch) does not count: its loss and its gradient are 0.
"""

import numpy as np

from gpt2.layers.encoder import check_ids, check_integers
from gpt2.layers.layer import Array, Layer

IGNORED = (-1, -100)  # targets that do not count


def crossentropy_forward(logits: Array, targets: Array) -> tuple[Array, tuple]:
    """Loss of each row of logits at its target.

    logits   (..., V)
    targets  (...) int, each in [0, V), or one of IGNORED

    Returns losses (...), in nats, in the dtype of logits; 0 where the target is ignored.
    Saved: logits, targets, the largest logit of each row (..., 1) and the sum of its exponentials (..., 1).
    The probabilities are not kept: they would be a second array of the size of logits.
    """
    check_integers("crossentropy_forward", "targets", targets)
    if targets.shape != logits.shape[:-1]:
        raise ValueError(
            f"crossentropy_forward: targets has shape {targets.shape}, expected {logits.shape[:-1]} "
            f"to match logits {logits.shape}"
        )
    check_targets("crossentropy_forward", targets, logits.shape[-1])
    largest = np.max(logits, axis=-1, keepdims=True)  # (..., 1)
    ids = targets if all_count(targets) else np.maximum(targets, 0)
    at_target = np.take_along_axis(logits, ids[..., None], axis=-1)  # (..., 1)
    exps = logits - largest  # (..., V)
    np.exp(exps, out=exps)  # in place: one array of the size of logits is enough
    total = np.sum(exps, axis=-1, keepdims=True)  # (..., 1)
    losses = np.log(total) - (at_target - largest)  # (..., 1)
    if not all_count(targets):
        losses = np.where(targets[..., None] < 0, 0.0, losses)
    return losses[..., 0], (logits, targets, largest, total)


def crossentropy_backward(dlosses: Array, saved: tuple) -> tuple:
    """Gradient of crossentropy_forward: dlogits (..., V), and None for the targets.

    dlosses  (...)      gradient of each loss
    saved    logits, targets, largest, total
    """
    logits, targets, largest, total = saved
    if not all_count(targets):
        dlosses = np.where(targets < 0, 0.0, dlosses)
        targets = np.maximum(targets, 0)
    dlogits = logits - largest
    np.exp(dlogits, out=dlogits)
    dlogits *= dlosses[..., None] / total  # probabilities, each row times the gradient of its loss
    dlogits[(*np.indices(targets.shape), targets)] -= dlosses  # one entry of each row, so none is hit twice
    return dlogits, None


def all_count(targets: Array) -> bool:
    """Whether no target is ignored. A compiled program of such targets has no trace of the others."""
    return not targets.size or bool(np.min(targets) >= 0)


def mean_loss(losses: Array, targets: Array) -> np.floating:
    """The mean of losses (...) over the targets (...) that count, in the dtype of losses; 0 if none does."""
    if all_count(targets):
        return np.mean(losses)
    counted = targets >= 0
    return np.sum(np.where(counted, losses, 0.0)) / np.maximum(np.sum(counted, dtype=losses.dtype), 1.0)


def check_targets(function: str, targets: Array, V: int) -> None:
    """Raise ValueError unless every target is in [0, V) or one of IGNORED."""
    if not all_count(targets):
        targets = np.where((targets == -1) | (targets == -100), 0, targets)
    check_ids(function, "targets", targets, V, ", or -1 or -100 for targets that do not count")


LAYER = Layer("crossentropy", crossentropy_forward, crossentropy_backward)
