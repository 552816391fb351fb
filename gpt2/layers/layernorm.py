"""Layer normalisation over the last axis. Ba, Kiros and Hinton 2016.

    norm = (inp - mean) * rstd          mean and rstd = 1/sqrt(variance + eps) of each row
    out  = norm * weight + bias

Backward, for one row of C channels, with dnorm = dout * weight and sums over the row:

    dinp[i] = sum_j dnorm[j] * d norm[j] / d inp[i]
    d norm[j] / d inp[i] = rstd * (delta_ij - 1/C) - (inp[j] - mean) * rstd^3 * (inp[i] - mean) / C
                         = rstd * (delta_ij - 1/C - norm[j] * norm[i] / C)
    dinp    = rstd * (dnorm - mean(dnorm) - norm * mean(dnorm * norm))

The two means remove from dnorm what the forward pass ignores: a shift of the row, and (up to eps) a change
of its scale. Parameters are shared by all rows, so their gradients are sums over rows.
"""

import numpy as np

from gpt2.layers.layer import Array, Layer

EPS = 1e-5  # as in GPT-2's own code


def layernorm_forward(inp: Array, weight: Array, bias: Array, *, eps: float = EPS) -> tuple[Array, tuple]:
    """Normalise each row of inp, then scale and shift it.

    inp     (..., C)
    weight  (C,)
    bias    (C,)
    eps     added to the variance

    Returns out, shaped like inp. Saved: inp, weight, mean (..., 1), rstd (..., 1).
    """
    C = inp.shape[-1]
    for name, vector in (("weight", weight), ("bias", bias)):
        if vector.shape != (C,):
            raise ValueError(
                f"layernorm_forward: {name} has shape {vector.shape}, expected ({C},) "
                f"to match inp {inp.shape}"
            )
    mean = np.mean(inp, axis=-1, keepdims=True)  # (..., 1)
    centred = inp - mean
    variance = np.mean(centred * centred, axis=-1, keepdims=True)  # (..., 1)
    rstd = 1.0 / np.sqrt(variance + eps)
    out = centred * rstd * weight + bias
    return out, (inp, weight, mean, rstd)


def layernorm_backward(dout: Array, saved: tuple, *, eps: float = EPS) -> tuple:
    """Gradient of layernorm_forward: dinp (..., C), dweight (C,), dbias (C,).

    dout   (..., C)
    saved  inp, weight, mean, rstd. The normalised rows are computed again, cheaper than keeping them.
    """
    inp, weight, mean, rstd = saved
    C = inp.shape[-1]
    norm = (inp - mean) * rstd
    dnorm = dout * weight
    shift = np.mean(dnorm, axis=-1, keepdims=True)  # (..., 1)
    scale = np.mean(dnorm * norm, axis=-1, keepdims=True)  # (..., 1)
    dinp = (dnorm - shift - norm * scale) * rstd
    dweight = np.sum((dout * norm).reshape(-1, C), axis=0)
    dbias = np.sum(dout.reshape(-1, C), axis=0)
    return dinp, dweight, dbias


def layernorm_no_bias_forward(inp: Array, weight: Array, *, eps: float = EPS) -> tuple[Array, tuple]:
    """layernorm_forward without a bias, as with nanoGPT's bias=False."""
    return layernorm_forward(inp, weight, np.zeros_like(weight), eps=eps)


def layernorm_no_bias_backward(dout: Array, saved: tuple, *, eps: float = EPS) -> tuple:
    """Gradient of layernorm_no_bias_forward: dinp (..., C), dweight (C,)."""
    return layernorm_backward(dout, saved, eps=eps)[:2]


LAYER = Layer("layernorm", layernorm_forward, layernorm_backward, by_position=True)
NO_BIAS = Layer("layernorm_no_bias", layernorm_no_bias_forward, layernorm_no_bias_backward, by_position=True)
