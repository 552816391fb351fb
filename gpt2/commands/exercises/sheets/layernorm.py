"""Exercise 4: layer normalisation (Ba, Kiros and Hinton 2016).

For each row of C channels:

    norm = (inp - mean) * rstd               rstd = 1 / sqrt(variance + eps)
    out  = norm * weight + bias

Write `layernorm_backward`: dinp (..., C), dweight (C,), dbias (C,).

weight and bias serve all rows, so their gradients are sums over rows. For dinp go in two steps. First dnorm,
the gradient of norm. Then, within a row, every norm[j] depends on every inp[i], by mean and by rstd:

    d norm[j] / d inp[i] = rstd * (delta_ij - 1/C - norm[j] * norm[i] / C)

(delta_ij is 1 where i = j, else 0). Put that into the chain rule and look for two means over the row.
"""

import numpy as np

EPS = 1e-5


def layernorm_forward(inp, weight, bias):
    mean = np.mean(inp, axis=-1, keepdims=True)  # (..., 1)
    variance = np.mean((inp - mean) ** 2, axis=-1, keepdims=True)
    rstd = 1.0 / np.sqrt(variance + EPS)
    out = (inp - mean) * rstd * weight + bias
    return out, (inp, weight, mean, rstd)


def layernorm_backward(dout, saved):
    inp, weight, mean, rstd = saved
    C = inp.shape[-1]
    norm = (inp - mean) * rstd
    dnorm = dout * weight
    shift = np.mean(dnorm, axis=-1, keepdims=True)
    scale = np.mean(dnorm * norm, axis=-1, keepdims=True)
    dinp = rstd * (dnorm - shift - norm * scale)
    dweight = np.sum((dout * norm).reshape(-1, C), axis=0)
    dbias = np.sum(dout.reshape(-1, C), axis=0)
    return dinp, dweight, dbias


HINTS = (
    "dnorm = dout * weight. dinp[i] = sum over j of dnorm[j] * d norm[j] / d inp[i]: multiply out the three "
    "terms in the brackets, one after another.",
    "dinp = rstd * (dnorm - mean(dnorm) - norm * mean(dnorm * norm)), with means over the last axis and "
    "keepdims=True. dweight is the sum of dout * norm over all rows, dbias that of dout.",
)
