"""SiLU, also called Swish, and its steeper form quick GELU: the input times a sigmoid of it.

    out = x * s                             s = 1 / (1 + exp(-k x)); k is 1, for quick GELU 1.702
    d out / d x = s + k x * s (1 - s)       as s' = k s (1 - s)

Elfwing, Uchibe and Doya 2017; quick GELU: Hendrycks and Gimpel 2016, section 2.
"""

import numpy as np

from gpt2.layers.layer import Array, Layer

QUICK = 1.702  # with which x * s is near GELU


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) of each element, by tanh, which does not overflow."""
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def silu_forward(inp: Array) -> tuple[Array, tuple]:
    """Apply SiLU to each element of inp, of any shape. Saved: inp."""
    return inp * sigmoid(inp), (inp,)


def silu_backward(dout: Array, saved: tuple) -> tuple:
    """Gradient of silu_forward: (dinp,), shaped like inp. The sigmoid is computed again rather than kept."""
    (inp,) = saved
    s = sigmoid(inp)
    return (dout * (s + inp * (s * (1.0 - s))),)


def quick_gelu_forward(inp: Array) -> tuple[Array, tuple]:
    """Apply quick GELU to each element of inp, of any shape. Saved: inp."""
    return inp * sigmoid(QUICK * inp), (inp,)


def quick_gelu_backward(dout: Array, saved: tuple) -> tuple:
    """Gradient of quick_gelu_forward: (dinp,), shaped like inp."""
    (inp,) = saved
    s = sigmoid(QUICK * inp)
    return (dout * (s + QUICK * inp * (s * (1.0 - s))),)


LAYER = Layer("silu", silu_forward, silu_backward, by_position=True)
QUICK_GELU = Layer("quick_gelu", quick_gelu_forward, quick_gelu_backward, by_position=True)
