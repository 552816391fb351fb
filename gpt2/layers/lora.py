"""Low-rank adapter: a linear layer with a frozen weight, plus a product of two thin matrices.

    out = inp @ weight.T + bias + scale * (inp @ a.T) @ b.T         a (r, C), b (OC, r)

b starts at zero, so that at first the layer is the linear one. Hu et al. 2021. There is no manual backward:
the compiler derives it, without the gradients that are not needed, above all that of weight.
"""

from gpt2.layers.layer import Array, Layer
from gpt2.layers.matmul import check_shapes


def lora_forward(
    inp: Array, weight: Array, bias: Array | None, a: Array, b: Array, *, scale: float
) -> tuple[Array, tuple]:
    """matmul_forward with the weight weight + scale * b @ a, which is never formed.

    inp     (..., C)
    weight  (OC, C)
    bias    (OC,) or None
    a, b    (r, C) and (OC, r)

    Returns out (..., OC).
    """
    check_shapes("lora_forward", inp, weight, bias)
    OC, C = weight.shape
    if a.shape[1:] != (C,) or b.shape != (OC, a.shape[0]):
        raise ValueError(
            f"lora_forward: a has shape {a.shape}, b {b.shape}, expected (r, {C}) and ({OC}, r) "
            f"to match weight {weight.shape}"
        )
    rows = inp.reshape(-1, C)
    out = rows @ weight.T + (scale * (rows @ a.T)) @ b.T  # (N, OC)
    if bias is not None:
        out = out + bias
    return out.reshape(*inp.shape[:-1], OC), ()


LAYER = Layer("lora", lora_forward, None, by_position=True)
