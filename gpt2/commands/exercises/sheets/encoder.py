"""Exercise 6: token and position embedding.

    out[b, t] = wte[tokens[b, t]] + wpe[t]

    tokens  (B, T) int   in [0, V)
    wte     (V, C)       a vector for each token of the vocabulary
    wpe     (maxT, C)    a vector for each position, maxT >= T
    out     (B, T, C)

Write `encoder_backward`: None for the tokens, then dwte (V, C) and dwpe (maxT, C).

A row of wte serves every position that holds its token, and a row of wpe every sequence: the gradient of a
row is the sum over its uses. Rows that were not used have gradient zero. A token may occur many times.
"""

import numpy as np


def encoder_forward(tokens, wte, wpe):
    T = tokens.shape[1]
    return wte[tokens] + wpe[:T], (tokens, wte, wpe)


def encoder_backward(dout, saved):
    tokens, wte, wpe = saved
    dwte = np.zeros_like(wte)
    np.add.at(dwte, tokens, dout)
    dwpe = np.zeros_like(wpe)
    dwpe[: tokens.shape[1]] = np.sum(dout, axis=0)
    return None, dwte, dwpe


HINTS = (
    "Begin with arrays of zeros shaped like wte and wpe. For wpe: which axis of dout do the sequences of the "
    "batch lie along?",
    "dwpe[:T] = dout summed over axis 0. dwte[tokens] += dout counts a repeated token once; "
    "np.add.at(dwte, tokens, dout) counts each.",
)
