"""Writes of every kind into arrays of every dtype, against NumPy: the same bits, or the same error.

    check(write(seed))      "right", "refused", or "undecided", where NumPy refuses it with both arguments

The function is compiled, and called with two arguments of one type: what the first call has recorded must not
hide an error that the second one has.
"""

import random

import numpy as np

from gpt2 import autodiff as ad

ARGUMENTS = """
np.array([1.5, -2.0, 0.0, 3.0, -1.0, 200.0]) | np.array([0.5, 2.0, -3.0, 1.0, 7.0, 2.0])
np.array([1, -2, 0.5, 3, -1, 2], np.float32) | np.array([np.nan, 2, 1e30, 1, -np.inf, 2], np.float32)
np.array([1, -2, 0, 3, -1, 2]) | np.array([100, 2, -3, 300, 7, 2])
np.array([1, -2, 0, 3, -1, 2], np.int8) | np.array([100, 2, -3, 127, 7, 2], np.int8)
np.array([1, 2, 0, 3, 1, 2], np.uint8) | np.array([100, 2, 3, 255, 7, 2], np.uint8)
np.array([1 + 2j, -2j, 0, 3, -1, 2]) | np.array([np.nan, 2j, 1e308, 1, np.inf, 2])
np.array([True, False, True, True, False, False]) | np.array([False, False, True, False, False, True])
2.0 | 200.0
-1.5 | np.nan
3 | 300
np.float32(2.0) | np.float32(np.inf)
""".strip().splitlines()
MADE = """
np.array(x) | np.asarray(x) * 1 | np.zeros(6) | np.arange(6) - 2 | np.ones(6, np.float32)
np.zeros(6, np.int8) | np.full(6, 1j) | np.zeros(6, bool) | np.arange(6.0).reshape(2, 3)
np.reshape(x, (2, 3)).copy() | np.array(2.0) | np.full((3, 3), x) if np.ndim(x) == 0 else np.outer(x, x)
np.arange(9).reshape(3, 3) | np.array(x, np.int64) | np.array(x, order="F") | np.zeros((2, 3), np.uint8).T
np.linspace(-1.0, 1.0, 6) | np.array(3)
"""
NUMBERS = """
1.5 | -2 | 300 | np.nan | np.inf | 1j | True | x | x * 1.5 | np.max(x) * 1.5 | np.min(x) * 100 | np.max(x)
-x | y * 0.7 | np.sum(y) | y[::-1] | y.T | np.mean(x) | [1, 2] | np.int8(100) | np.float64(0.5) | x == x
np.abs(x) + 0.5
"""
PLACES = "0 | -1 | ... | : | 1: | ::2 | ::-1 | [0, 0, 1] | [1] | y > 0 | np.array([2, 0]) | (0,) | None"
WRITES = """
y[{i}] = {v} | y[{i}] += {v} | y[{i}] *= {v} | y[{i}] -= {v} | y += {v} | y *= {v} | y -= {v} | y /= {v}
y //= {v} | y **= 2 | y.flat[{i}] = {v} | w = y.flat[{i}]; w *= 10 | w = y.flat[0:2]; y *= 2; y = w
y.flat = {v} | y.fill({v}) | np.put(y, [0, 2], {v}) | y.put([1, 1], {v}) | np.putmask(y, y > 0, {v})
np.copyto(y, {v}) | np.copyto(y, {v}, casting="unsafe")
np.copyto(y, {v}, where=y > 0) | np.fill_diagonal(y, {v}) | np.add.at(y, [0, 0, 1], {v})
np.subtract.at(y, [1, 1], {v}) | np.multiply.at(y, [0, 1], {v}) | np.maximum.at(y, 0, {v})
np.add(y, {v}, out=y) | np.multiply(y, {v}, out=y, casting="unsafe") | np.sqrt(y, out=y)
np.negative(y, out=y) | y[...] = y[::-1] | y[1:] = y[:-1] | y[y > 0] = y[::-1]
y[:-1] += y[1:] | np.add(y[1:], y[:-1], out=y[1:]) | w = y.T; w[...] = {v} | w = y.ravel(); w[{i}] = {v}
w = y.reshape(-1); w[{i}] += {v} | w = y[1:]; w -= {v} | w = y.real; w[...] = {v} | y.real = {v}
y.imag = {v} | w = y[:]; y = y * 2; w[0] = {v} | y.sort() | w = y[{i}]; w *= 2
np.nan_to_num(y, copy=False) | np.clip(y, 0, 1, out=y)
np.maximum(y, {v}, out=y, where=y > 0) | y = np.full_like(y, {v}) | y = np.nan_to_num(y * {v})
y = y.astype(np.int8) | y[0], y[1] = y[1], y[0] | np.round(y, out=y)
np.take(y, [0, 1], out=y[:2]) | y = np.insert(y, 1, {v}) | y = np.append(y, {v}) | x[{i}] = {v} | x += {v}
y = x; y[0] = 1
"""
WRITES, MADE, NUMBERS, PLACES = (
    [part.strip() for line in table.strip().splitlines() for part in line.split(" | ")]
    for table in (WRITES, MADE, NUMBERS, PLACES)
)


def write(seed: int) -> str:
    """The source of a function f of x, and two arguments for it."""
    rng = random.Random(seed)
    lines = [f"y = {rng.choice(MADE)}"]
    for _ in range(rng.choice((1, 1, 2))):
        lines.append(rng.choice(WRITES).format(i=rng.choice(PLACES), v=rng.choice(NUMBERS)))
    first, second = rng.choice(ARGUMENTS).split(" | ")
    body = "\n    ".join(lines)
    return f"def f(x):\n    {body}\n    return y\nfirst, second = {first}, {second}\n"


def check(source: str) -> str:
    """How it went; raises AssertionError with the source where the result differs."""
    names = {"np": np}
    exec(source, names)
    f, first, second = names["f"], names["first"], names["second"]
    compiled, seen = ad.compile(f), set()
    for x in (first, second, second, first):
        wanted, after = _outcome(f, x)
        found, also = _outcome(compiled, x)
        refused = isinstance(found, ad.AutodiffError | ValueError | TypeError | IndexError | OverflowError)
        seen.add("undecided" if isinstance(wanted, Exception) else "refused" if refused else "right")
        same = refused or _same(found, wanted) and _same(also, after)
        assert same, f"{found!r} for {wanted!r}, x {also!r} for {after!r} of {x!r} in\n{source}"
    return next(outcome for outcome in ("right", "refused", "undecided") if outcome in seen)


def _outcome(f, x):
    """What f gives or raises, and its argument afterwards."""
    x = np.array(x) if isinstance(x, np.ndarray) else x
    with np.errstate(all="ignore"):
        try:
            return f(x), x
        except Exception as error:
            return error, x


def _same(a, b) -> bool:
    if isinstance(a, Exception) or isinstance(b, Exception):
        return False
    return (
        type(a) is type(b)
        and np.result_type(a) == np.result_type(b)
        and np.shape(a) == np.shape(b)
        and (np.array_equal(a, b, equal_nan=np.result_type(a).kind in "fc"))
    )
