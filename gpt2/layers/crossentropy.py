"""Softmax and negative log likelihood in one: the surprise at each target, in nats.

    p[v]   = exp(logits[v]) / sum_w exp(logits[w])
    loss   = -log p[target] = log(sum_w exp(logits[w])) - logits[target]

Taken together the logarithm cancels the exponential, and neither a Jacobian nor a division by a small
probability is needed:

    d loss / d logits[v] = p[v] - [v is the target]                                      Bridle 1990

The largest logit of a row is subtracted first. It cancels in the fraction, and no exponent can then overflow.
"""

import numpy as np

from gpt2.layers.encoder import check_ids, check_integers
from gpt2.layers.layer import Array, Layer


def crossentropy_forward(logits: Array, targets: Array) -> tuple[Array, tuple]:
    """Loss of each row of logits at its target.

    logits   (..., V)
    targets  (...) int, each in [0, V)

    Returns losses (...), in nats, in the dtype of logits.
    Saved: logits, targets, the largest logit of each row (..., 1) and the sum of its exponentials (..., 1).
    The probabilities are not kept: they would be a second array of the size of logits.
    """
    check_integers("crossentropy_forward", "targets", targets)
    if targets.shape != logits.shape[:-1]:
        raise ValueError(
            f"crossentropy_forward: targets has shape {targets.shape}, expected {logits.shape[:-1]} "
            f"to match logits {logits.shape}"
        )
    check_ids("crossentropy_forward", "targets", targets, logits.shape[-1])
    largest = np.max(logits, axis=-1, keepdims=True)  # (..., 1)
    at_target = np.take_along_axis(logits, targets[..., None], axis=-1)  # (..., 1)
    exps = logits - largest  # (..., V)
    np.exp(exps, out=exps)  # in place: one array of the size of logits is enough
    total = np.sum(exps, axis=-1, keepdims=True)  # (..., 1)
    losses = np.log(total) - (at_target - largest)
    return losses[..., 0], (logits, targets, largest, total)


def crossentropy_backward(dlosses: Array, saved: tuple) -> tuple:
    """Gradient of crossentropy_forward: dlogits (..., V), and None for the targets.

    dlosses  (...)      gradient of each loss
    saved    logits, targets, largest, total
    """
    logits, targets, largest, total = saved
    dlogits = logits - largest
    np.exp(dlogits, out=dlogits)
    dlogits *= dlosses[..., None] / total  # probabilities, each row times the gradient of its loss
    dlogits[(*np.indices(targets.shape), targets)] -= dlosses  # one entry of each row, so none is hit twice
    return dlogits, None


LAYER = Layer("crossentropy", crossentropy_forward, crossentropy_backward)
