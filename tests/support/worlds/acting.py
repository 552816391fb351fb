"""Functions that act: each call changes something, whether or not anything changed outside."""

from __future__ import annotations

import itertools
import random
import types
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


def bump(v):
    v[0] = v[0] + 1
    return v[0]


def bump_quietly(v):
    v.append(1)
    return 0


def bump_attribute(f):
    f.calls = getattr(f, "calls", 0) + 1
    return f.calls


def draws(v):
    return v.randint(1, 50)


def advances(v):
    return next(v)


@dataclass
class Acting:
    """`make()` gives two equal things: one for the compiled function, one for the function itself."""

    make: Callable
    read: str


ACTING = {
    "counts": Acting(lambda: [0], "bump({v})"),
    "appends": Acting(lambda: [0], "bump_quietly({v}) + len({v})"),
    "counts_in_an_attribute": Acting(lambda: types.SimpleNamespace(), "bump_attribute({v})"),
    "draws": Acting(lambda: random.Random(3), "draws({v})"),
    "draws_numpy": Acting(lambda: np.random.default_rng(3), "int({v}.integers(50))"),
    "iterates": Acting(lambda: itertools.count(), "advances({v})"),
    "pops": Acting(lambda: list(range(1000)), "{v}.pop()"),
    "writes": Acting(lambda: np.zeros(1), "written({v})"),
}


def written(a):
    a += 1
    return float(a[0])
