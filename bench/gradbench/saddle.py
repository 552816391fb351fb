"""saddle: min over x of max over y of f(x, y), by descent in x over ascent in y (Pearlmutter, Siskind 2008).

The gradient of the maximum differentiates through the ascent that finds it. The ascent's step sizes are found
on plain numbers first; a loop over these steps is then differentiated.
"""

from functools import cache, partial

import numpy as np

from bench.gradbench import Function
from bench.gradbench.descent import MODES, VARIANTS, ascend, descend
from gpt2 import autodiff as ad


def f(y, x):
    return (x[0] ** 2 + x[1] ** 2) - (y[0] ** 2 + y[1] ** 2)


def maximum(slope, x, start, etas):
    """f at the end of the ascent from start with these step sizes. slope(y, x) is the gradient of f in y."""

    def step(y, eta):
        return [a + eta * d for a, d in zip(y, slope(y, x))], None

    y, _ = ad.scan(step, start, etas)
    return f(y, x)


@cache
def programs(outer, inner):
    """(gradient of f in y, maximum, its gradient), cached with their compiled programs."""
    slope = MODES[inner](f)
    top = partial(maximum, slope)
    return slope, ad.compile(top, pure=True), MODES[outer](top)


def saddle_point(outer, inner, start):
    """The saddle point as [x0, x1, y0, y1]. Descent and ascent begin at start, two floats."""
    slope, value, gradient = programs(outer, inner)

    def steps(x):
        return np.array(ascend(lambda y: f(y, x), lambda y: slope(y, x), start)[1])

    x, _ = descend(lambda x: value(x, start, steps(x)), lambda x: gradient(x, start, steps(x)), start)
    y, _ = ascend(lambda y: f(y, x), lambda y: slope(y, x), start)
    return [*x, *y]


def _read(data):
    a, b = data["start"]
    return ([float(a), float(b)],)


FUNCTIONS = {variant: Function(partial(saddle_point, *variant), _read) for variant in VARIANTS}
