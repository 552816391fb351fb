"""Programs written out in n operations, for the growth of compile time (bench.compile_time --growth).

Each is a function of n that gives (f, arguments); its gradient is compiled. n counts NumPy operations as the
user wrote them (parameters, for `parameters`), whatever the compiler makes of them.
"""

from __future__ import annotations

import numpy as np

SMALL, LARGE = 5, 20_000  # elements; large arrays are computed in blocks of rows


def chain(n: int, size: int = SMALL):
    """One function after another."""

    def f(x):
        for _ in range(n):
            x = np.sin(x)
        return x.sum()

    return f, (np.linspace(0.0, 1.0, size),)


def large_chain(n: int):
    return chain(n, LARGE)


def affine(n: int):
    """A loop of sums and products, which the rules of algebra look at in pairs and more."""

    def f(x):
        for _ in range(n // 2):
            x = x * 0.99 + 0.1
        return x.sum()

    return f, (np.linspace(0.0, 1.0, SMALL),)


def numbers(n: int):
    """The same on one Python float: plain math code comes out."""

    def f(x):
        for _ in range(n // 4):
            x = x * 0.99 + 0.1 * x * x
        return x

    return f, (0.3,)


def parameters(n: int):
    """A dict of n parameters."""

    def f(p):
        return sum(np.sum(np.sin(v)) for v in p.values())

    return f, ({f"p{k}": np.linspace(0.0, 1.0, 3) + k for k in range(n)},)


def grid(n: int):
    """An array filled element by element."""
    side = max(1, round((n / 5) ** 0.5))

    def f(x):
        out = np.zeros_like(x, shape=(side, side))
        for i in range(side):
            for j in range(side):
                out[i, j] = x[0] * i + x[1] * j
        return (out * out).sum()

    return f, (np.linspace(0.0, 1.0, SMALL),)


def fan(n: int):
    """One value that n operations read, put together again."""

    def f(x):
        return np.stack([np.cos(x * k) for k in range(n // 2)]).sum()

    return f, (np.linspace(0.0, 1.0, SMALL),)


def matrices(n: int):
    """Matrix products in a row, with a function between."""

    def f(x, w):
        for _ in range(n // 2):
            x = np.tanh(x @ w)
        return x.sum()

    return f, (np.linspace(0.0, 1.0, 12).reshape(3, 4), np.linspace(-1.0, 1.0, 16).reshape(4, 4))


PROGRAMS = {f.__name__: f for f in (chain, large_chain, affine, numbers, parameters, grid, fan, matrices)}
