"""Exercise 5: softmax and negative log likelihood in one (Bridle 1990).

For each row of V logits, with its target t:

    p[v] = exp(logits[v]) / sum over w of exp(logits[w])
    loss = -log p[t] = log(sum over w of exp(logits[w])) - logits[t]

    logits   (..., V)
    targets  (...) int
    losses   (...), and so is dlosses

Write `crossentropy_backward`: dlogits (..., V), and None for the targets, which are integers. Use the second
form of the loss: what is the derivative of the logarithm of a sum of exponentials?
"""

import numpy as np


def crossentropy_forward(logits, targets):
    largest = np.max(logits, axis=-1, keepdims=True)  # so that no exponential overflows
    total = np.sum(np.exp(logits - largest), axis=-1, keepdims=True)
    at_target = np.take_along_axis(logits, targets[..., None], axis=-1)
    losses = np.log(total) + largest - at_target  # (..., 1)
    return losses[..., 0], (logits, targets, largest, total)


def crossentropy_backward(dlosses, saved):
    logits, targets, largest, total = saved
    p = np.exp(logits - largest) / total
    is_target = np.arange(logits.shape[-1]) == targets[..., None]
    return (p - is_target) * dlosses[..., None], None


HINTS = (
    "d/d logits[v] of log(sum of exp(logits)) is exp(logits[v]) / sum of exp(logits): a probability. And of "
    "- logits[t]?",
    "dlogits[v] = (p[v] - 1 if v is the target else p[v]) * the row's dlosses. "
    "np.arange(V) == targets[..., None] says where the target is.",
)
