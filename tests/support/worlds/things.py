"""Kinds of things that a function may read: how to make one, read it, and change it. For random_worlds.py.

A kind is made by a function under @kind, which gives a Thing. Numbers are small integers, so that every order
of arithmetic gives the same.
"""

from __future__ import annotations

import re
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

# --- plain values


@kind
def scalar(rng):
    values = [1, True, 1.0, 2, 3.0, "a", "ab", b"a", None, 1 + 0j, np.float32(1), np.float64(1), np.int64(1)]
    values += [range(0, 5, 2), range(0, 6, 2), slice(0, 5, 2), slice(0, 6, 2)]
    return Thing(1.0, "number({v})", lambda r: values[r.integers(len(values))])


@kind
def sign_of_zero(rng):
    return Thing(0.0, "(2 if str({v}) == '0.0' else 3)", lambda r: (0.0, -0.0)[r.integers(2)])


@kind
def factor(rng):
    """A number that may be exchanged in a program, or by which programs differ."""
    values = [0.0, -0.0, 0.1, 0.5, 1.0, -1.0, 2.0, 3.0, 1e300, float("inf")]
    return Thing(
        0.3, "{v}", lambda r: values[r.integers(10)] if r.random() < 0.3 else float(r.uniform(-2.0, 2.0))
    )


@kind
def an_array_to_fill(rng):
    """A copy of it, or what is made of it, is filled with x."""
    v = np.array([1.0, 2.0, 3.0])
    makes = [m for m in fills.GRAMMAR["makes"] if re.search(r"\bG\b", m) and not re.search(r"\bM\b", m)]
    call = f"np.sum(fill{rng.integers(len(fills.GRAMMAR['fills']))}({rng.choice(makes)}, x))"
    changes = [("item", lambda n: v.__setitem__(n % 3, n)), ("all", lambda n: v.__imul__(0.5))]
    return Thing(v, re.sub(r"\bG\b", "{v}", call), lambda r: r.integers(1, 9, 3) * 1.0, changes)


@kind
def a_list(rng):
    v = [1, 2, 3]
    return Thing(
        v,
        "weigh({v})",
        lambda r: [small(r) for _ in range(3)],
        [
            ("item", lambda n: v.__setitem__(n % len(v), n)),
            ("append", lambda n: v.append(n)),
            ("remove", lambda n: v.pop() if len(v) > 1 else None),
            ("reverse", lambda n: v.reverse()),
            ("slice", lambda n: v.__setitem__(slice(0, 1), [n, n + 1])),
            ("type", lambda n: v.__setitem__(0, float(v[0]))),
        ],
    )


@kind
def nested_lists(rng):
    inner = [1, 2]
    v = [inner, (inner, [3])]
    return Thing(
        v,
        "weigh({v}[0]) + weigh({v}[1][0]) + weigh({v}[1][1])",
        None,
        [
            ("inner", lambda n: inner.__setitem__(0, n)),
            ("deep", lambda n: v[1][1].__setitem__(0, n)),
            ("replaced", lambda n: v.__setitem__(0, [n])),
        ],
    )


@kind
def a_dict(rng):
    v = {"a": 1, "b": 2}
    return Thing(
        v,
        "weigh({v}.values()) + len({v})",
        lambda r: dict(zip("ba", (small(r), small(r)))),
        [
            ("value", lambda n: v.__setitem__("a", n)),
            ("key", lambda n: v.__setitem__(str(n), n)),
            ("order", lambda n: v.__setitem__("a", v.pop("a", n))),
            ("pop", lambda n: v.pop(next(iter(v))) if len(v) > 1 else None),
        ],
    )


@kind
def keys_of_a_dict(rng):
    v = {1: 5}
    return Thing(v, "number(next(iter({v})))", lambda r: {(1, True, 1.0)[r.integers(3)]: 5})


@kind
def a_set(rng):
    v = {0, 8}
    return Thing(
        v,
        "weigh({v})",
        lambda r: set([0, 8][:: 1 if r.integers(2) else -1]),
        [
            ("add", lambda n: v.add(n)),
            ("discard", lambda n: v.discard(n)),
            ("order", lambda n: (v.clear(), v.update([0, 8][:: 1 if n % 2 else -1]))),
        ],
    )


@kind
def a_frozenset(rng):
    return Thing(
        frozenset([0, 8]), "weigh({v})", lambda r: frozenset([0, 8, 16][:: 1 if r.integers(2) else -1])
    )


TWIN, NAN = tuple([1.0, 2.0]), float("nan")  # functions ask for these by `is`, and as members of lists


@kind
def equal_twins(rng):
    twins = (TWIN, tuple([1.0, 2.0]), 0.1, float("0.1"))
    read = (
        "(2 if {v} is TWIN else 3)",
        "(2 if TWIN is not {v} else 3)",
        "(2 if operator.is_({v}, TWIN) else 3)",
    )
    return Thing(TWIN, read[rng.integers(3)], lambda r: twins[r.integers(4)])


TEXT, NUMBER = "one of two", 10**9  # settings that arguments are, and of which others are equal


@kind
def equal_settings(rng):
    twins = (TEXT, " ".join(TEXT.split()), NUMBER, int(str(NUMBER)))
    read = ("(2 if {v} is TEXT else 3)", "(2 if NUMBER is {v} else 3)", "(2 if {v} is not TEXT else 3)")
    return Thing(TEXT, read[rng.integers(3)], lambda r: twins[r.integers(4)])


@kind
def nans_in_a_list(rng):
    v = [NAN]
    read = ("(2 if NAN in {v} else 3)", "(2 if {v} == [NAN] else 3)", "(2 if {v}.count(NAN) else 3)")
    another = ("another", lambda n: v.__setitem__(0, NAN if n % 2 else float("nan")))
    return Thing(v, read[rng.integers(3)], lambda r: [NAN if r.integers(2) else float("nan")], [another])


# --- arrays


@kind
def an_array(rng):
    v = np.arange(1.0, 5.0)
    base = np.arange(8.0)
    if rng.integers(2):
        v = base[::2]
    return Thing(
        v,
        "weigh([float(e) for e in {v}.reshape(-1)]) + {v}.ndim + {v}.shape[0] + number({v}.reshape(-1)[0])",
        lambda r: np.arange(small(r), 9.0),
        [
            ("element", lambda n: v.__setitem__((0,) * v.ndim, n)),
            ("view", lambda n: v[..., 1:].fill(n)),
            ("base", lambda n: (v if v.base is None else v.base).fill(n)),
            ("buffer", lambda n: memoryview(v).__setitem__((0,) * v.ndim, v.dtype.type(n).item())),
            ("sort", lambda n: v.sort()),
            ("put", lambda n: np.put(v, [1], n)),
            ("copyto", lambda n: np.copyto(v, n)),
            ("shape", lambda n: setattr(v, "shape", (2, 2) if n % 2 else (4,))),
            ("dtype", lambda n: setattr(v, "dtype", np.float64 if n % 2 else np.int64)),
        ],
    )


@kind
def array_as_operand(rng):
    v = np.array([1.0, 2.0])
    return Thing(
        v,
        "np.sum({v} * 3)",
        lambda r: np.array([small(r), 1.0]),
        [("element", lambda n: v.__setitem__(0, n)), ("fill", lambda n: v.fill(n))],
    )


@kind
def text_of_an_array(rng):
    read = ("len(str({v}))", "len(repr({v}))", "len('%s' % ({v},))")[rng.integers(3)]
    return Thing(
        np.array([1 / 3, 2.0]),
        read,
        None,
        [("settings", lambda n: np.set_printoptions(precision=n))],
        lambda: np.set_printoptions(precision=8),
    )


@kind
def text_of_a_number(rng):
    read = (
        "len(repr({v}))",
        "len('%r' % {v})",
        "len('%r' % ({v},))",
        "len(str([{v}]))",
        "len(in_braces({v}))",
    )
    return Thing(
        np.float64(2.0),
        read[rng.integers(5)],
        lambda r: np.float64(small(r)),
        [("settings", lambda n: np.set_printoptions(legacy="1.25" if n % 2 else False))],
        lambda: np.set_printoptions(legacy=False),
    )


def in_braces(x):
    return f"{x!r}"


@kind
def array_of_objects(rng):
    v = np.array([[1], [2]], object)
    return Thing(v, "weigh({v}[0, 0:1])", None, [("item", lambda n: v.__setitem__((0, 0), n))])


@kind
def structured_array(rng):
    v = np.zeros(2, [("a", float), ("b", float)])
    v["b"] = 5

    def rename(n):
        v.dtype.names = ("a", "b") if n % 2 else ("b", "a")

    return Thing(
        v,
        "float({v}['a'][0])",
        None,
        [("field", lambda n: v[v.dtype.names[0]].__setitem__(0, n)), ("names", rename)],
    )


@kind
def a_dtype(rng):
    return Thing(
        np.dtype("f4"), "np.zeros(2, {v}).itemsize", lambda r: np.dtype(("f4", "f8", "i2")[r.integers(3)])
    )
