"""saddle: min over x of max over y of f(x, y), by descent in x over ascent in y (Pearlmutter, Siskind 2008).

The gradient of the maximum differentiates through the ascent that finds it. Which step sizes the ascent takes
has no derivative: they are found on plain numbers, and the ascent by these steps is differentiated as a loop.
"""

from functools import cache, partial

import numpy as np

from bench.gradbench.descent import MODES, VARIANTS, ascend, descend
from bench.gradbench.function import Function
from gpt2 import autodiff as ad


def f(y, x):
    return (x[0] ** 2 + x[1] ** 2) - (y[0] ** 2 + y[1] ** 2)


def maximum(slope, x, start, etas):
    """f where the ascent from start, by steps of these sizes, ends. slope(y, x): its gradient in y."""

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
    """[x, x, y, y]: descent and ascent all begin at start, two floats."""
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
