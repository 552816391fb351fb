"""Random functions in which plain numbers are taken out of recorded values, and what becomes of them.

    check(write(seed))      "refused", or "right": the gradient is the slope of the function as it is written

The function computes a number of x. On the way it takes plain ones (float(x), int(x), complex(x, 1.0)),
passes them through variables, containers, branches, loops, handlers and functions, decides by some and
computes with others. Where a taken number reached the result, the derivative that the compiler knows lacks a
part of the slope: so a function must either be refused or have the slope that differences give.
"""

import math
import random

import numpy as np

from gpt2 import autodiff as ad
from tests.support.tables import sections

AT = 2.618  # no threshold and no step lies near, nor near its multiples
STEP = 1e-6
HEAD = ["def helper(v):", "    return float(v)", "def steps(v):", "    return int(v)"]
# {n} is a plain number that was taken, {y} and {z} are recorded ones, {c} is a constant
GRAMMAR = sections(__file__)


def write(seed: int) -> str:
    """The source of a function f."""
    rng = random.Random(seed)
    lines = ["y, z = x * 1.5, x + 0.25", "m, n = 2.0, 0.75"]
    for _ in range(rng.randint(2, 6)):
        lines += _statement(rng, 0)
    lines.append(f"return {rng.choice(('y', 'y * z', 'y + z', 'y', 'z * y'))}")
    return "\n".join([*HEAD, "def f(x):", *("    " + line for line in lines)])


def _statement(rng: random.Random, depth: int) -> list[str]:
    names = {
        "n": rng.choice("mn"),
        "y": rng.choice("yz"),
        "z": rng.choice("yz"),
        "c": rng.choice("0.7321 1.4427 3.1717".split()),
    }
    if depth < 2 and rng.random() < 0.2:
        head = rng.choice(GRAMMAR["blocks"])
        inner = [line for _ in range(rng.randint(1, 3)) for line in _statement(rng, depth + 1)]
        return [head, *("    " + line for line in inner), *(["    break"] if head == "while True:" else [])]
    if rng.random() < 0.4:
        taken = rng.choice(GRAMMAR["taken"]).format(**names)
        return [f"{names['n']} = {taken}"]
    kind = rng.choices((GRAMMAR["deciding"], GRAMMAR["computing"], GRAMMAR["plain"]), (6, 2, 3))[0]
    return rng.choice(kind).format(**names).split("\n")


def check(source: str) -> str:
    """Whether it is "refused", "right", or "undecided", where f does not run as it is or has no slope.

    Raises AssertionError where the gradient is wrong.
    """
    names = {"np": np, "math": math, "ad": ad}
    exec(compile(source, "<escape>", "exec"), names)
    f = names["f"]
    try:
        low, mid, high, further = (f(AT + k * STEP) for k in (-1, 0, 1, 2))
    except Exception:  # it does not run as it is
        return "undecided"
    slope, other = (high - low) / (2 * STEP), (further - mid) / (2 * STEP)
    if not np.isfinite(slope) or not abs(slope) < 1e6 or not np.isclose(slope, other, 1e-3, 1e-3):
        return "undecided"
    try:
        found = ad.grad(f)(AT)
    except ad.AutodiffError:
        return "refused"
    if not np.isfinite(found):  # 0 times the infinite slope of 0.0 ** 0.75
        return "undecided"
    assert np.isclose(found, slope, 1e-3, 1e-3 * (1 + abs(mid))), f"{found} for {slope} of\n{source}"
    return "right"
