"""Exercise 2: linear layer.

    out[n, o] = sum over c of inp[n, c] * weight[o, c] + bias[o]

    inp     (..., C)   rows n; leading axes are flattened to one
    weight  (OC, C)    row o holds what output o listens to
    bias    (OC,)
    out     (..., OC)

Write `matmul_backward`: dinp, dweight and dbias, shaped like inp, weight and bias. Start from the chain rule
in index form. Each product inp[n, c] * weight[o, c] appears once in the forward, so that

    dinp[n, c]    is a sum over o
    dweight[o, c] is a sum over n
    dbias[o]      is a sum over n

Then write each sum as one matrix product, or np.sum. `bias` may be None; its gradient is then None.
"""

import numpy as np


def matmul_forward(inp, weight, bias):
    OC, C = weight.shape
    out = inp.reshape(-1, C) @ weight.T  # (N, OC)
    if bias is not None:
        out = out + bias
    return out.reshape(*inp.shape[:-1], OC), (inp, weight, bias)


def matmul_backward(dout, saved):
    inp, weight, bias = saved
    OC, C = weight.shape
    rows = dout.reshape(-1, OC)  # (N, OC)
    dinp = (rows @ weight).reshape(inp.shape)
    dweight = rows.T @ inp.reshape(-1, C)
    dbias = None if bias is None else np.sum(rows, axis=0)
    return dinp, dweight, dbias


HINTS = (
    "dinp[n, c] = sum over o of dout[n, o] * weight[o, c]. Which product of matrices is that? Shapes decide: "
    "(N, OC) and (OC, C).",
    "dinp = dout @ weight, dweight = dout.T @ inp, dbias = the sum of dout's rows; with leading axes "
    "flattened before, and dinp reshaped to inp's shape after.",
)
