"""Exercise 7: causal self-attention (Vaswani et al. 2017).

For one head, with queries q, keys k and values v of shape (T, HS):

    scores = q @ k.T / sqrt(HS)             position i sees positions j <= i only
    att    = softmax of each row of scores  (T, T)
    y      = att @ v

qkv (B, T, 3C) holds queries, keys and values of all heads side by side. Saved are q, k, v (B, NH, T, HS) and
att (B, NH, T, T).

Write `attention_backward`, which returns a tuple of one: (dqkv,). Go through the three lines in reverse:

    y = att @ v         gives datt and dv                        as in exercise 2
    the softmax         gives dscores, for each row:
                        d att[j] / d scores[i] = att[j] * (delta_ij - att[i])
    q @ k.T / sqrt(HS)  gives dq and dk                          do not forget the scale

Where a position may not see another, att is 0, and so is the gradient of that score.
"""

import numpy as np


def attention_forward(qkv, *, num_heads):
    B, T, C3 = qkv.shape
    parts = qkv.reshape(B, T, 3, num_heads, C3 // 3 // num_heads)
    q, k, v = (parts[:, :, i].transpose(0, 2, 1, 3) for i in range(3))  # views, (B, NH, T, HS)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])  # (B, NH, T, T)
    scores = np.where(np.tri(T, dtype=bool), scores, -np.inf)
    exps = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    att = exps / np.sum(exps, axis=-1, keepdims=True)
    out = (att @ v).transpose(0, 2, 1, 3).reshape(B, T, C3 // 3)
    return out, (q, k, v, att)


def attention_backward(dout, saved, *, num_heads):
    q, k, v, att = saved
    B, NH, T, HS = q.shape
    dy = dout.reshape(B, T, NH, HS).transpose(0, 2, 1, 3)  # (B, NH, T, HS)
    dv = att.swapaxes(-1, -2) @ dy
    datt = dy @ v.swapaxes(-1, -2)
    dscores = att * (datt - np.sum(att * datt, axis=-1, keepdims=True)) / np.sqrt(HS)
    dq = dscores @ k
    dk = dscores.swapaxes(-1, -2) @ q
    dqkv = np.stack([dq, dk, dv], axis=2)  # (B, NH, 3, T, HS)
    return (dqkv.transpose(0, 3, 2, 1, 4).reshape(B, T, 3 * NH * HS),)


HINTS = (
    "dv = att.T @ dy and datt = dy @ v.T, head by head (swapaxes(-1, -2) transposes a stack of matrices). "
    "For the softmax put its derivative into the chain rule: a sum over j remains, one number a row.",
    "dscores = att * (datt - sum of att * datt over the row), keepdims=True; divide by sqrt(HS); "
    "dq = dscores @ k, dk = dscores.T @ q. Then put dq, dk and dv side by side as in qkv.",
)
