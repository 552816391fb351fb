"""Linear layer: out = inp @ weight.T + bias.

weight is (OC, C), as in llm.c and PyTorch: row o holds the weights of output o. In index form

    out[n, o]     = sum_c inp[n, c] * weight[o, c] + bias[o]

every product of an inp and a weight appears once, so the chain rule only swaps which index is summed:

    dinp[n, c]    = sum_o dout[n, o] * weight[o, c]       dout @ weight
    dweight[o, c] = sum_n dout[n, o] * inp[n, c]          dout.T @ inp
    dbias[o]      = sum_n dout[n, o]

The layer itself is three matrix products by BLAS. The naive form is the formula above as loops: the reference
for tests, and for the benchmark of what BLAS gains.
"""

import numpy as np

from gpt2.layers.layer import Array, Layer


def matmul_forward(inp: Array, weight: Array, bias: Array | None) -> tuple[Array, tuple]:
    """Multiply each row of inp with weight.T and add bias.

    inp     (..., C)
    weight  (OC, C)
    bias    (OC,) or None

    Returns out (..., OC). Leading axes are flattened first: one large product, where a batched matmul would
    be a loop over small ones. Saved: inp, weight, bias, none of them copied.
    """
    check_shapes("matmul_forward", inp, weight, bias)
    OC, C = weight.shape
    out = inp.reshape(-1, C) @ weight.T  # (N, OC)
    if bias is not None:
        out += bias
    return out.reshape(*inp.shape[:-1], OC), (inp, weight, bias)


def matmul_backward(dout: Array, saved: tuple) -> tuple:
    """Gradient of matmul_forward: dinp (..., C), dweight (OC, C), dbias (OC,), or None without a bias.

    dout   (..., OC)
    saved  inp, weight, bias
    """
    inp, weight, bias = saved
    OC, C = weight.shape
    rows = dout.reshape(-1, OC)  # (N, OC)
    dinp = (rows @ weight).reshape(inp.shape)
    dweight = rows.T @ inp.reshape(-1, C)  # (OC, C)
    dbias = None if bias is None else np.sum(rows, axis=0)
    return dinp, dweight, dbias


def matmul_forward_naive(inp: Array, weight: Array, bias: Array | None) -> tuple[Array, tuple]:
    """matmul_forward as three loops, one product at a time."""
    check_shapes("matmul_forward_naive", inp, weight, bias)
    OC, C = weight.shape
    rows = inp.reshape(-1, C)
    N = rows.shape[0]
    out = np.zeros_like(inp, shape=(N, OC))
    for n in range(N):
        for o in range(OC):
            total = 0.0 if bias is None else bias[o]
            for c in range(C):
                total = total + rows[n, c] * weight[o, c]
            out[n, o] = total
    return out.reshape(*inp.shape[:-1], OC), (inp, weight, bias)


def matmul_backward_naive(dout: Array, saved: tuple) -> tuple:
    """matmul_backward as three loops. Each product of the forward pass gives one term to each gradient."""
    inp, weight, bias = saved
    OC, C = weight.shape
    rows, drows = inp.reshape(-1, C), dout.reshape(-1, OC)
    N = rows.shape[0]
    dinp = np.zeros_like(rows)
    dweight = np.zeros_like(weight)
    dbias = None if bias is None else np.zeros_like(bias)
    for n in range(N):
        for o in range(OC):
            d = drows[n, o]
            for c in range(C):
                dinp[n, c] += d * weight[o, c]
                dweight[o, c] += d * rows[n, c]
            if dbias is not None:
                dbias[o] += d
    return dinp.reshape(inp.shape), dweight, dbias


def check_shapes(function: str, inp: Array, weight: Array, bias: Array | None) -> None:
    """Raise ValueError, naming function, unless inp (..., C), weight (OC, C) and bias (OC,) fit."""
    if weight.ndim != 2 or weight.shape[1] != inp.shape[-1]:
        raise ValueError(
            f"{function}: weight has shape {weight.shape}, expected (OC, {inp.shape[-1]}) "
            f"to match inp {inp.shape}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"{function}: bias has shape {bias.shape}, expected ({weight.shape[0]},) "
            f"to match weight {weight.shape}"
        )


LAYER = Layer("matmul", matmul_forward, matmul_backward, by_position=True)
NAIVE = Layer("matmul_naive", matmul_forward_naive, matmul_backward_naive)
