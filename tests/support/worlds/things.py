"""What a kind of things is, and the code of users that reads things. For random_worlds.py.

A kind is made by a function of a random generator, which gives a Thing: see kinds.py and calls.py. Numbers
are small integers, so that every order of arithmetic gives the same.
"""

from __future__ import annotations

import abc
import contextvars
import dataclasses
import threading
import types
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tests.support.random import fills


class Thing(NamedTuple):
    """`read`: an expression over {v}, the value's place. `again(rng)`: another value for that place.
    `changes`: what to do to the value, as (name, function of a number).

    `arguments`: names of calls.ARGUMENTS that make a difference. `gives`: an expression for what the function
    gives back besides; `spoil` changes what was given back, `same` says that it is the object that is there.
    """

    value: object
    read: str
    again: Callable | None = None
    changes: Sequence = ()
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
    kinds = (bool, int, float, complex, str, bytes, type(None))
    kinds += (np.float32, np.float64, np.int64, range, slice)
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


# ---- Objects and classes, and changes of them, for kinds.txt -----------------------------------------------


def change_attributes(v) -> list:
    """Every way to change the attribute `rate` of an object with a __dict__."""

    def replaced(n):
        v.__dict__ = {"rate": n}

    found = [
        ("attribute", lambda n: setattr(v, "rate", n)),
        ("__dict__ entry", lambda n: v.__dict__.__setitem__("rate", n)),
        ("another attribute", lambda n: setattr(v, "other", n)),
        ("deleted", lambda n: v.__dict__.pop("rate", None)),
    ]
    return found if type(v) is types.SimpleNamespace else [*found, ("__dict__", replaced)]


def change_class(v, c) -> list:
    """Also through changes of its class."""

    class Other(c):
        rate = 7

        def scaled(self, x):
            return 11 * x

        def __len__(self):
            return 5

    class Base:
        rate = 6

        def scaled(self, x):
            return 13 * x

    original = c.__bases__

    def another_class(n):
        v.__class__ = Other if n % 2 else c

    def another_base(n):
        c.__bases__ = (Base, *original) if n % 2 and object not in original else original

    return [
        ("class attribute", lambda n: setattr(c, "rate", n)),
        ("method", lambda n: setattr(c, "scaled", lambda self, x: n * x)),
        ("property", lambda n: setattr(c, "rate", property(lambda self: n))),
        ("__class__", another_class),
        ("__bases__", another_base),
        ("special method", lambda n: setattr(c, "__len__", lambda self: n)),
        ("deleted from the class", lambda n: delattr(c, "rate") if "rate" in c.__dict__ else None),
    ]


class Root:
    rate = 4

    def scaled(self, x):
        return 3 * x

    def __len__(self):
        return 2


def made_by_make_dataclass():
    return dataclasses.make_dataclass("Made", [("rate", int)], bases=(Root,))(2)


def made_by_new_class():
    return with_rate(types.new_class("Made", (Root,))(), 2)


def made_by_abc():
    return with_rate(abc.ABCMeta("Made", (Root,), {})(), 2)


def made_by_type():
    return with_rate(type("Made", (Root,), {"__module__": "numpy"})(), 2)


class ListOf(list):
    pass


class DictOf(dict):
    def __missing__(self, key):
        return len(self)


class SetOf(set):
    pass


class IntOf(int):
    pass


class FloatOf(float):
    def __add__(self, other):
        return self.rate + other

    __radd__ = __add__


class Float64Of(np.float64):
    pass


class TupleOf(tuple):
    def __getitem__(self, key):
        return self.rate


class Local(threading.local):
    rate = 2


def with_rate(v, rate=1):
    v.rate = rate
    return v


VARIABLE = contextvars.ContextVar("rate", default=2)
