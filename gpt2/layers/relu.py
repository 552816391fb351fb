"""ReLU: negative entries become zero. Fukushima 1969.

out = max(x, 0)
d out / d x = 1 where x > 0, else 0, at 0 too, as in PyTorch
"""

import numpy as np

from gpt2.layers.layer import Array, Layer


def relu_forward(inp: Array) -> tuple[Array, tuple]:
    """Apply ReLU to each element of inp, of any shape; nan stays. Saved: inp."""
    return np.where(inp <= 0.0, 0.0, inp), (inp,)


def relu_backward(dout: Array, saved: tuple) -> tuple:
    """Gradient of relu_forward: (dinp,), shaped like inp."""
    (inp,) = saved
    return (np.where(inp <= 0.0, 0.0, dout),)


LAYER = Layer("relu", relu_forward, relu_backward, by_position=True)
