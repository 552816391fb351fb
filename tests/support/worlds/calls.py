"""Kinds of questions that a function asks of its arguments, of what is raised, and of what it gives back, for
random_worlds.py.
"""

from __future__ import annotations

import collections
import dataclasses
import types

import numpy as np

from gpt2 import autodiff as ad
from tests.support.worlds.things import Thing, kind

X = np.array([1.0, 2.0])


def read_only():
    x = X.copy()
    x.flags.writeable = False
    return x, X.copy()


def unaligned():
    return np.frombuffer(bytearray(b"-" + X.tobytes()), np.uint8)[1:].view(float), X.copy()


def one_array():
    x = X.copy()
    return x, x


def overlapping():
    base = np.array([3.0, 1.0, 2.0])
    return base[1:], base[:2]


# Arguments (x, y) of a call, by name. Their types, shapes and strides are the same but for the number.
ARGUMENTS = {
    "plain": lambda: (X.copy(), X.copy()),
    "negative": lambda: (-X, X.copy()),
    "read-only": read_only,
    "view": lambda: (np.array([1.0, 2.0, 3.0])[:2], X.copy()),
    "unaligned": unaligned,
    "metadata": lambda: (X.astype(np.dtype(float, metadata={"rate": 5})), X.copy()),
    "one array": one_array,
    "overlapping": overlapping,
    "number": lambda: (2.0, 3.0),
}


def asked(name, arguments, *reads):
    """Register a kind of question: numeric expressions over x and y."""

    def make(rng):
        return Thing(0, f"({reads[rng.integers(len(reads))]}) + {{v}}", arguments=("plain", *arguments))

    make.__name__ = name
    kind(make)


asked(
    "flags_of_an_argument",
    ("read-only", "view", "unaligned"),
    "2 if x.flags.writeable else 3",
    "2 if x.flags['WRITEABLE'] else 3",
    "2 if x.flags.owndata else 3",
    "2 if x.flags.aligned else 3",
    "2 if x[1:].flags.writeable else 3",
    "x.flags.num",
)
asked(
    "memory_of_arguments",
    ("one array", "overlapping"),
    "2 if np.shares_memory(x, y) else 3",
    "2 if np.may_share_memory(x, y) else 3",
    "2 if np.shares_memory(x[1:], y[1:]) else 3",
)
asked(
    "one_argument_or_two",
    ("one array", "overlapping"),
    "2 if x is y else 3",
    "2 if operator.is_not(y, x) else 3",
    "2 if id(x) == id(y) else 3",
)
asked("metadata_of_an_argument", ("metadata",), "2 if x.dtype.metadata is None else 3")
asked(
    "type_of_an_argument",
    ("number", "view"),
    "2 if type(x) is float else 3",
    "2 if type(x) == float else 3",
    "2 if type(x) in (np.ndarray, int) else 3",
    "2 if type(x) is type(y) else 3",
    "sum(2 if type(v) is np.ndarray else 3 for v in (x, y))",
    "2 if x.__class__ is float else 3",
    "2 if hasattr(x, 'shape') else 3",
    "2 if getattr(x, 'base', None) is None else 3",
)


# --- exceptions out of what is not watched


def fails(x):
    if x[0] < 0:
        raise {1: KeyError, 2: StopIteration}[int(x[1] == -2.0) + 1]
    return x * 1.0


@ad.custom_vjp
def fails_by_a_rule(x):
    return fails(np.sort(memoryview(x))[::-1])


fails_by_a_rule.defvjp(lambda dout, out, x: (dout,))


def caught(x):
    try:
        return 2 + 0 * ad.callback(fails, x, x)[0]
    except (KeyError, StopIteration):
        return 7


def caught_further_out(x):
    try:
        try:
            return 2 + 0 * fails_by_a_rule(x * 1.0)[0]
        finally:
            x = None
    except Exception:
        return 8


asked("caught_exceptions", ("negative",), "caught(x)", "caught_further_out(x)")


# --- what is given back besides arrays


@dataclasses.dataclass
class Found:
    names: set


def giving(name, text, spoil=lambda v: None):
    """Register a kind of thing that is given back: an expression, and how to change what was given."""

    def make(rng):
        arguments = ("plain", "number") if "number" in name else ("plain",)
        return Thing(0, "{v}", arguments=arguments, gives=text, spoil=spoil)

    make.__name__ = name
    kind(make)


giving("a_set_made", "{1}", lambda v: v.add(9))
giving("bytes_made", "bytearray(b'a')", lambda v: v.append(9))
giving("deque_made", "deque([1])", lambda v: v.append(9))
giving("namespace_made", "types.SimpleNamespace(rate=1)", lambda v: setattr(v, "rate", 9))
giving("nested_made", "types.SimpleNamespace(deep=[set()])", lambda v: v.deep[0].add(9))
giving("data_class_made", "Found({1})", lambda v: v.names.add(9))
giving("settings_made", "Found(1)", lambda v: setattr(v, "names", 9))
giving("in_containers_made", "{'a': [({1},)]}", lambda v: v["a"][0][0].add(9))
giving("function_made", "vars(with_rate(lambda: 1))", lambda v: v.update(rate=9))
giving("number_given", "np.sin(x)")
giving("number_of_python_given", "x * 2")
giving("numbers_given", "(np.float64(2.0), 3.0, np.maximum(x, 1.0))")


@kind
def setting_given_back(rng):
    """An existing object is returned itself, even if another one is equal to it."""

    def another(r=None):
        return Found(1) if rng.integers(2) else types.SimpleNamespace(rate=1)

    return Thing(another(), "0", another, gives="{v}", same=True)


HELPERS = dict(
    deque=collections.deque,
    Found=Found,
    caught=caught,
    caught_further_out=caught_further_out,
)
