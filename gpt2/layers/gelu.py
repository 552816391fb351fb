"""GELU in its tanh form. Hendrycks and Gimpel 2016; the constants are those of GPT-2's own code.

    out = x/2 * (1 + tanh(u))               u = sqrt(2/pi) * (x + 0.044715 x^3)

By the product rule, with tanh' = 1 - tanh^2:

    d out / d x = (1 + tanh(u))/2 + x/2 * (1 - tanh(u)^2) * du/dx
    du/dx       = sqrt(2/pi) * (1 + 3 * 0.044715 x^2)
"""

import math

import numpy as np

from gpt2.layers.layer import Array, Layer

SCALE = math.sqrt(2.0 / math.pi)
CUBIC = 0.044715


def gelu_forward(inp: Array) -> tuple[Array, tuple]:
    """Apply GELU to each element of inp, of any shape. Saved: inp.

    The cube is written as products: NumPy's x**3 costs as much as 70 of them.
    """
    u = SCALE * inp * (1.0 + CUBIC * inp * inp)
    out = 0.5 * inp * (1.0 + np.tanh(u))
    return out, (inp,)


def gelu_backward(dout: Array, saved: tuple) -> tuple:
    """Gradient of gelu_forward: (dinp,), shaped like inp. tanh is computed again rather than kept."""
    (inp,) = saved
    square = CUBIC * inp * inp
    tanh = np.tanh(SCALE * inp * (1.0 + square))
    du = SCALE * (1.0 + 3.0 * square)
    dinp = dout * (0.5 * (1.0 + tanh) + 0.5 * inp * (1.0 - tanh * tanh) * du)
    return (dinp,)


LAYER = Layer("gelu", gelu_forward, gelu_backward, by_position=True)
