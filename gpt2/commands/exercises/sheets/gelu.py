"""Exercise 3: GELU, in its tanh form (Hendrycks and Gimpel 2016).

    out = x/2 * (1 + tanh(u))               u = sqrt(2/pi) * (x + 0.044715 x^3)

Each element of out depends on one element of x alone, so that dinp = dout * (d out / d x), element by
element. Write `gelu_backward`, which returns a tuple of one: (dinp,).

You need the product rule, the derivative of tanh, which is 1 - tanh(u)^2, and d u / d x.
"""

import numpy as np

SCALE = np.sqrt(2.0 / np.pi)
CUBIC = 0.044715


def gelu_forward(inp):
    u = SCALE * (inp + CUBIC * inp**3)
    out = 0.5 * inp * (1.0 + np.tanh(u))
    return out, (inp,)


def gelu_backward(dout, saved):
    (inp,) = saved
    tanh = np.tanh(SCALE * (inp + CUBIC * inp**3))
    du = SCALE * (1.0 + 3.0 * CUBIC * inp**2)
    return (dout * (0.5 * (1.0 + tanh) + 0.5 * inp * (1.0 - tanh**2) * du),)


HINTS = (
    "out is a product of x/2 and (1 + tanh(u)): its derivative has two terms.",
    "d out / d x = (1 + tanh(u))/2 + x/2 * (1 - tanh(u)^2) * sqrt(2/pi) * (1 + 3 * 0.044715 x^2). "
    "Mind the 3 of the cube.",
)
