"""Programs of n operations, to measure how compile time grows (bench.compile_time --growth, and tests).

Each is a function of n that returns (f, arguments), with f to be differentiated. n counts NumPy operations as
they are written, not as compiled; for `parameters` it counts parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

SMALL, LARGE = 5, 20_000  # elements; large arrays are computed in blocks of rows
X = np.linspace(0.0, 1.0, SMALL)


def repeated(step: Callable, operations: int, *args, end: Callable = np.sum) -> Callable:
    """A program that makes one step after another, each of so many operations: step(k, x, *others) -> x."""

    def program(n: int):
        def f(x, *others):
            for k in range(n // operations):
                x = step(k, x, *others)
            return end(x)

        return f, args

    return program


def dot_step(k, x, y):
    """A dot product, which scales the next vector."""
    return x * 0.5 + np.dot(x, y) * 0.01 * y


def branch_step(k, x):
    """A comparison, and np.where on its result."""
    return np.where(x > k % 3 * 0.3, x * 0.9, x + 0.2)


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

    return f, (X,)


def fan(n: int):
    """One value with n readers, stacked again."""

    def f(x):
        x = np.exp(x)
        return np.stack([np.cos(x * k) for k in range(n // 2)]).sum()

    return f, (X,)


def views(n: int):
    """Writes through views of views of one array."""

    def f(x):
        a = np.zeros_like(x, shape=(20, 20))
        for i in range(n // 5):
            v = a[1:-1].T[2:-2][::2]
            v[i % 8] += x[0]
        return (a * a).sum()

    return f, (X,)


def deep_views(n: int):
    """A chain of views, each a view of the one before and written to."""

    def f(x):
        v = x * 1.0
        total = 0.0
        for i in range(n // 5):
            v = v[::-1]
            v[i % 5] += x[0]
            total = total + v[0]
        return total

    return f, (X,)


def lists(n: int):
    """Nested lists of arrays, stacked, and read by rows and columns."""
    side = max(2, round((n / 4) ** 0.5))

    def f(rows):
        square = [[a * b for b in row] for row, a in zip(rows, rows[0])]
        table = np.stack([np.stack(row) for row in square])
        return (table * table).sum() + sum(row[i % side] for i, row in enumerate(square)).sum()

    return f, ([[np.linspace(0.0, 1.0, 3) + i + j for j in range(side)] for i in range(side)],)


def layers(n: int):
    """A perceptron with many small layers."""

    def f(x, ws, bs):
        for w, b in zip(ws, bs):
            x = np.tanh(x @ w + b)
        return (x * x).sum()

    rng = np.random.default_rng(0)
    ws, bs = ([rng.normal(size=s) for _ in range(n // 3)] for s in ((4, 4), (4,)))
    return f, (rng.normal(size=(3, 4)), ws, bs)


SQUARE = np.linspace(-1.0, 1.0, 16).reshape(4, 4)
PROGRAMS = {
    "chain": repeated(lambda k, x: np.sin(x), 1, X),
    "large_chain": repeated(lambda k, x: np.sin(x), 1, np.linspace(0.0, 1.0, LARGE)),
    # algebraic rules match sums and products in a row in groups; of one Python float they become scalar code
    "affine": repeated(lambda k, x: x * 0.99 + 0.1, 2, X),
    "numbers": repeated(lambda k, x: x * 0.99 + 0.1 * x * x, 4, 0.3, end=lambda x: x),
    **{f.__name__: f for f in (parameters, grid, fan)},
    "matrices": repeated(lambda k, x, w: np.tanh(x @ w), 2, np.linspace(0.0, 1.0, 12).reshape(3, 4), SQUARE),
    **{f.__name__: f for f in (views, deep_views)},
    "branches": repeated(branch_step, 4, X),
    "lists": lists,
    "dots": repeated(dot_step, 4, X, np.linspace(1.0, 0.0, SMALL)),
    "layers": layers,
}
