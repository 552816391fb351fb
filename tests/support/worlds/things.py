"""What a kind of things is, and the code of users that reads things. For random_worlds.py.

A kind is made by a function of a random generator, which gives a Thing: see kinds.py and calls.py. Numbers
are small integers, so that every order of arithmetic gives the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.support.random import fills


@dataclass
class Thing:
    """`read`: an expression over {v}, the value's place. `again(rng)`: another value for that place.
    `changes`: what to do to the value, as (name, function of a number).

    `arguments`: names of calls.ARGUMENTS that make a difference. `gives`: an expression for what the function
    gives back besides; `spoil` changes what was given back, `same` says that it is the object that is there.
    """

    value: object
    read: str
    again: Callable | None = None
    changes: list = field(default_factory=list)
    undo: Callable | None = None
    arguments: tuple = ("plain",)
    gives: str | None = None
    spoil: Callable = lambda v: None
    same: bool = False


KINDS: dict[str, Callable] = {}


def kind(make):
    KINDS[make.__name__] = make
    return make


def names_of(module) -> dict:
    """What a module defines and imports."""
    return {name: value for name, value in vars(module).items() if not name.startswith("__")}


def small(rng) -> int:
    return int(rng.integers(1, 9))


# What the functions call besides. It is user code like theirs.


def weigh(items):
    """A number that depends on the order."""
    return sum((i + 1) * v for i, v in enumerate(items))


def number(x):
    """A number for anything: of equal values of different types another one."""
    kinds = (
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        type(None),
        np.float32,
        np.float64,
        np.int64,
        range,
        slice,
    )
    if type(x) not in kinds:
        return 5000
    i = kinds.index(type(x))  # not `is`: code that compares by identity accepts no equal object
    if isinstance(x, (range, slice)):
        return 100 * i + x.start + 10 * x.stop + 3 * x.step
    if isinstance(x, (str, bytes)):
        return 100 * i + len(x)
    return 100 * i + (0 if x is None else int(x.real))


FILLERS: dict = {"np": np}
exec(fills.fillers(), FILLERS)


TWIN, NAN = tuple([1.0, 2.0]), float("nan")  # functions ask for these by `is`, and as members of lists
TEXT, NUMBER = "one of two", 10**9  # settings that arguments are, and of which others are equal


def in_braces(x):
    return f"{x!r}"


def written_out(x):
    return len(f"{x}")


def entered(context):
    with context as n:
        return n


def imported_rate(zero):
    import settings_of_the_fuzzer
    from settings_of_the_fuzzer import rate

    return settings_of_the_fuzzer.rate + rate + zero


def pattern(x):
    match x:
        case {"a": _}:
            return 2
        case [_]:
            return 3
    return 4


def matched(x):
    class_ = type(x)
    match x:
        case class_(n):
            return n
    return 77
