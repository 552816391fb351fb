"""Random worlds: functions that read objects of every kind, and every way to change these under their hands.

    world = World(seed)       a function world.f of one array, and things that it reads in various places
    world.step()              changes something, or nothing, and raises Stale where the compiled function and
                              the function itself differ

A kind is made by a function below under @kind: a value, the text that reads it, how to make another one of
its kind, and what can be done to it. Kinds that the compiler's guard understands and kinds that it does not
stand side by side: the answer has to be right for all of them. Numbers are small integers, so that every
order of arithmetic gives the same.
"""

from __future__ import annotations

import abc
import array
import builtins
import collections
import contextlib
import contextvars
import dataclasses
import enum
import fractions
import functools
import io
import itertools
import operator
import random
import string
import sys
import threading
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gpt2 import autodiff as ad


class Stale(AssertionError):
    """The compiled function gave another answer than the function itself."""


@dataclass
class Thing:
    """`read`: an expression over {v}, the value's place. `again(rng)`: another value for that place.
    `changes`: what to do to the value, as (name, function of a number).
    """

    value: object
    read: str
    again: Callable | None = None
    changes: list = field(default_factory=list)
    undo: Callable | None = None


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
    for i, t in enumerate(kinds):
        if type(x) is t:
            if t is range or t is slice:
                return 100 * i + x.start + 10 * x.stop + 3 * x.step
            if t is str or t is bytes:
                return 100 * i + len(x)
            return 100 * i + (0 if x is None else int(x.real))
    return 5000


SCALE = 2


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
            ("order", lambda n: (v.clear(), v.update([8, 16, 0][: n % 3 + 1]))),
        ],
    )


@kind
def a_frozenset(rng):
    return Thing(
        frozenset([0, 8]), "weigh({v})", lambda r: frozenset([0, 8, 16][:: 1 if r.integers(2) else -1])
    )


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
def array_of_objects(rng):
    v = np.array([[1], [2]], object)
    return Thing(v, "weigh({v}[0, 0:1])", None, [("item", lambda n: v.__setitem__((0, 0), n))])


@kind
def structured_array(rng):
    v = np.zeros(2, [("a", float)])
    return Thing(v, "float({v}['a'][0])", None, [("field", lambda n: v["a"].__setitem__(0, n))])


@kind
def a_dtype(rng):
    return Thing(
        np.dtype("f4"), "np.zeros(2, {v}).itemsize", lambda r: np.dtype(("f4", "f8", "i2")[r.integers(3)])
    )


# --- objects


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
    """And what its class can do to it."""

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


READ_OBJECT = "getattr({v}, 'rate', 1) + {v}.scaled(2) + len({v})"


class Root:
    rate = 4

    def scaled(self, x):
        return 3 * x

    def __len__(self):
        return 2


@kind
def instance(rng):
    class Middle(Root):
        pass

    class Thing_(Middle):
        pass

    v = Thing_()
    v.rate = 2
    return Thing(
        v, READ_OBJECT, None, [*change_attributes(v), *change_class(v, Middle), *change_class(v, Thing_)]
    )


@kind
def instance_with_slots(rng):
    class Slotted:
        __slots__ = ("_rate", "bare")

        @property
        def rate(self):
            return self._rate

    class Bare:
        __slots__ = ("rate",)

    v, bare = Slotted(), Bare()
    v._rate = bare.rate = 2
    v.bare = bare

    def deleted(n):
        if hasattr(bare, "rate"):
            del bare.rate

    return Thing(
        v,
        "{v}.rate + getattr({v}.bare, 'rate', 50)",
        None,
        [
            ("slot", lambda n: setattr(v, "_rate", n)),
            ("slot of another", lambda n: setattr(bare, "rate", n)),
            ("slot emptied", deleted),
            ("descriptor", lambda n: setattr(Slotted, "rate", n)),
        ],
    )


def made_by_make_dataclass():
    return dataclasses.make_dataclass("Made", [("rate", int)], bases=(Root,))(2)


def made_by_new_class():
    v = types.new_class("Made", (Root,))()
    v.rate = 2
    return v


def made_by_abc():
    v = abc.ABCMeta("Made", (Root,), {})()
    v.rate = 2
    return v


def made_by_type():
    v = type("Made", (Root,), {"__module__": "numpy"})()
    v.rate = 2
    return v


@kind
def class_made_at_run_time(rng):
    v = (made_by_make_dataclass, made_by_new_class, made_by_abc, made_by_type)[rng.integers(4)]()
    return Thing(v, READ_OBJECT, None, [*change_attributes(v), *change_class(v, type(v))])


@kind
def data_class(rng):
    @dataclass
    class Settings:
        rate: int = 2
        sizes: list = field(default_factory=lambda: [1, 2])

    v = Settings()
    return Thing(
        v,
        "{v}.rate + weigh({v}.sizes) + (3 if {v} == {v} else 4)",
        lambda r: Settings(small(r), [small(r)]),
        [
            ("attribute", lambda n: setattr(v, "rate", n)),
            ("list inside", lambda n: v.sizes.append(n) if len(v.sizes) < 4 else v.sizes.pop()),
            ("equality", lambda n: setattr(Settings, "__eq__", lambda a, b: n % 2 == 0)),
        ],
    )


@kind
def namespace(rng):
    v = types.SimpleNamespace(rate=2, deep=types.SimpleNamespace(rate=3))
    return Thing(
        v,
        "getattr({v}, 'rate', 1) + getattr({v}.deep, 'rate', 1)",
        lambda r: types.SimpleNamespace(rate=small(r), deep=v.deep),
        [
            *change_attributes(v),
            *change_attributes(v.deep),
            ("replaced", lambda n: setattr(v, "deep", types.SimpleNamespace(rate=n))),
        ],
    )


@kind
def named_tuple(rng):
    Pair = collections.namedtuple("Pair", "a b")
    v = Pair(1, [2])
    return Thing(
        v,
        "{v}.a + {v}[1][0] + {v}.b[0]",
        lambda r: Pair(small(r), [small(r)]),
        [
            ("list inside", lambda n: v.b.__setitem__(0, n)),
            ("field", lambda n: setattr(Pair, "a", property(lambda self: n))),
        ],
    )


@kind
def enumeration(rng):
    class Mode(enum.Enum):
        FIRST = 1
        LIST = [1, 2]  # noqa: RUF012

    Mode.FIRST.rate = 2
    return Thing(
        Mode,
        "{v}.FIRST.rate + weigh({v}.LIST.value) + {v}.FIRST.value + len({v}.FIRST.name)",
        None,
        [
            ("attribute of a member", lambda n: setattr(Mode.FIRST, "rate", n)),
            ("mutable value", lambda n: Mode.LIST.value.__setitem__(0, n)),
            ("value", lambda n: setattr(Mode.FIRST, "_value_", n)),
            ("name", lambda n: setattr(Mode.FIRST, "_name_", "A" * n)),
        ],
    )


@kind
def class_itself(rng):
    class Meta(type):
        rate = 3

        def scaled(cls, x):
            return 2 * x

        def __len__(cls):
            return 4

    class OtherMeta(Meta):
        rate = 5

    class Made(metaclass=Meta):
        other = 1

    def metaclass(n):
        Made.__class__ = OtherMeta if n % 2 else Meta

    return Thing(
        Made,
        "{v}.rate + {v}.scaled(2) + len({v}) + len({v}.__name__)",
        None,
        [
            ("attribute", lambda n: setattr(Made, "rate", n)),
            ("attribute of the metaclass", lambda n: setattr(Meta, "rate", n)),
            ("method of the metaclass", lambda n: setattr(Meta, "scaled", lambda cls, x: n * x)),
            ("metaclass", metaclass),
            ("name", lambda n: setattr(Made, "__name__", "A" * n)),
            ("deleted", lambda n: delattr(Made, "rate") if "rate" in Made.__dict__ else None),
        ],
    )


@kind
def special_methods(rng):
    state = [2]

    class Special:
        def __str__(self):
            return "a" * state[0]

        __repr__ = __str__

        def __format__(self, spec):
            return "b" * state[0]

        def __getitem__(self, key):
            return state[0]

        def __iter__(self):
            return iter(state)

        def __call__(self):
            return state[0]

        def __bool__(self):
            return state[0] > 4

        def __eq__(self, other):
            return state[0] % 2 == 0

        def __contains__(self, x):
            return state[0] % 3 == 0

        def __hash__(self):
            return state[0]

        def __index__(self):
            return state[0]

        def __add__(self, other):
            return state[0]

        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return state[0]

        def __enter__(self):
            return state[0]

        def __exit__(self, *error):
            return None

        def __array__(self, dtype=None, copy=None):
            return np.array(state, float)

    reads = [
        "len(str({v}))",
        "len(repr({v}))",
        "written_out({v})",
        "len('%s' % ({v},))",
        "len('{{}}'.format({v}))",
        "{v}[0]",
        "weigh({v})",
        "{v}()",
        "(2 if {v} else 3)",
        "(2 if {v} == 1 else 3)",
        "(2 if 1 in {v} else 3)",
        "hash({v})",
        "operator.index({v})",
        "({v} + 1)",
        "{v}.anything",
        "entered({v})",
        "float(np.asarray({v})[0])",
    ]
    return Thing(
        Special(),
        reads[rng.integers(len(reads))],
        None,
        [
            ("what they read", lambda n: state.__setitem__(0, n)),
            ("__call__", lambda n: setattr(Special, "__call__", lambda self: n)),
            ("__str__", lambda n: setattr(Special, "__str__", lambda self: "c" * n)),
        ],
    )


def written_out(x):
    return len(f"{x}")


def entered(context):
    with context as n:
        return n


@kind
def descriptors(rng):
    state = [2]

    class Described:
        def __get__(self, instance, owner=None):
            return state[0]

    class Holder:
        rate = Described()

        @functools.cached_property
        def kept(self):
            return state[0]

        @classmethod
        def of_class(cls):
            return state[0]

        @staticmethod
        def alone():
            return state[0]

    v = Holder()
    read = ("{v}.rate", "{v}.kept", "{v}.of_class()", "{v}.alone()")[rng.integers(4)]
    return Thing(
        v,
        read,
        lambda r: Holder(),
        [
            ("what they read", lambda n: state.__setitem__(0, n)),
            ("the descriptor", lambda n: setattr(Described, "__get__", lambda *a: n)),
            ("in its place", lambda n: setattr(Holder, "rate", n)),
            ("the cache", lambda n: v.__dict__.pop("kept", None)),
            ("in the cache", lambda n: v.__dict__.__setitem__("kept", n)),
        ],
    )


# --- functions and modules


@kind
def function(rng):
    k, table = 2, [1]

    def helper(a=1, *, b=2):
        return a + 3 * b + k + table[0] * SCALE + getattr(helper, "rate", 0)

    def other(a=1, *, b=2):
        return a - b - k - table[0] * SCALE

    def another_cell(n):
        helper.__closure__[helper.__code__.co_freevars.index("k")].cell_contents = n

    def another_code(n):
        if n % 2 and len(helper.__code__.co_freevars) == len(other.__code__.co_freevars):
            helper.__code__ = other.__code__

    return Thing(
        helper,
        "{v}() + len({v}.__name__)",
        None,
        [
            ("__defaults__", lambda n: setattr(helper, "__defaults__", (n,))),
            ("__kwdefaults__", lambda n: setattr(helper, "__kwdefaults__", {"b": n})),
            ("in __kwdefaults__", lambda n: helper.__kwdefaults__.__setitem__("b", n)),
            ("cell", another_cell),
            ("code", another_code),
            ("what it reads", lambda n: table.__setitem__(0, n)),
            ("attribute", lambda n: setattr(helper, "rate", n)),
            ("__dict__", lambda n: setattr(helper, "__dict__", {"rate": n})),
            ("name", lambda n: setattr(helper, "__name__", "a" * n)),
            ("a global", lambda n: globals().__setitem__("SCALE", n)),
        ],
        lambda: globals().__setitem__("SCALE", 2),
    )


@kind
def function_s_texts(rng):
    def helper():
        """doc"""

    return Thing(
        helper,
        "len({v}.__doc__) + len({v}.__annotations__)",
        None,
        [
            ("__doc__", lambda n: setattr(helper, "__doc__", "a" * n)),
            ("__annotations__", lambda n: setattr(helper, "__annotations__", dict.fromkeys(range(n)))),
        ],
    )


@kind
def function_that_is_replaced(rng):
    def make(n):
        return lambda: n

    return Thing(make(2), "{v}()", lambda r: make(small(r)))


@kind
def a_partial(rng):
    v = functools.partial(lambda a, b=1, c=1: a + 2 * b + 3 * c, 1, b=2)
    return Thing(
        v,
        "{v}()",
        lambda r: functools.partial(lambda a: a, small(r)),
        [
            ("keywords", lambda n: v.keywords.__setitem__("c", n)),
            ("all of it", lambda n: v.__setstate__((lambda *a, **k: n, (), {}, {}))),
        ],
    )


@kind
def bound_method(rng):
    class Holder:
        rate = 2

        def read(self):
            return self.rate

    v = Holder()
    return Thing(
        v.read,
        "{v}()",
        lambda r: Holder().read,
        [
            ("attribute", lambda n: setattr(v, "rate", n)),
            ("class attribute", lambda n: setattr(Holder, "rate", n)),
            ("method", lambda n: setattr(Holder, "read", lambda self: n)),
            ("code", lambda n: setattr(Holder.read, "__code__", (lambda self: 9).__code__)),
        ],
    )


@kind
def method_of_a_list(rng):
    items = [1, 2, 1]
    v = items.count
    return Thing(v, "{v}(1)", None, [("item", lambda n: items.append(n % 3))])


@kind
def module(rng):
    v = types.ModuleType("settings")
    v.rate, v.deep = 2, types.ModuleType("settings.deep")
    v.deep.rate = 3
    return Thing(
        v,
        "{v}.rate + {v}.deep.rate + getattr({v}, 'late', 0)",
        None,
        [
            ("attribute", lambda n: setattr(v, "rate", n)),
            ("deep", lambda n: setattr(v.deep, "rate", n)),
            ("late", lambda n: setattr(v, "late", n)),
            ("made up", lambda n: setattr(v, "__getattr__", lambda name: n)),
            ("replaced", lambda n: setattr(v, "deep", types.SimpleNamespace(rate=n))),
        ],
    )


@kind
def names_of_numpy(rng):
    np.rate_of_the_fuzzer = 2
    original = np.maximum

    def undo():
        np.__dict__.pop("rate_of_the_fuzzer", None)
        np.maximum = original

    def other(n):
        np.maximum = np.minimum if n % 2 else original

    return Thing(
        np,
        "np.rate_of_the_fuzzer + {v}.rate_of_the_fuzzer + float(np.maximum(1., 2.))",
        None,
        [("attribute", lambda n: setattr(np, "rate_of_the_fuzzer", n)), ("function", other)],
        undo,
    )


@kind
def built_in_names(rng):
    original = builtins.divmod

    def undo():
        builtins.divmod = original
        builtins.__dict__.pop("rate_of_the_fuzzer", None)

    builtins.rate_of_the_fuzzer = 2
    return Thing(
        0,
        "divmod(7 + {v}, 2)[0] + rate_of_the_fuzzer",
        lambda r: small(r),
        [
            ("function", lambda n: setattr(builtins, "divmod", lambda a, b: (n, n))),
            ("name", lambda n: setattr(builtins, "rate_of_the_fuzzer", n)),
        ],
        undo,
    )


@kind
def imported(rng):
    v = sys.modules["settings_of_the_fuzzer"] = types.ModuleType("settings_of_the_fuzzer")
    v.rate = 2

    def other(n):
        sys.modules["settings_of_the_fuzzer"] = types.SimpleNamespace(rate=n)

    return Thing(
        0,
        "imported_rate({v})",
        None,
        [("attribute", lambda n: setattr(v, "rate", n)), ("module", other)],
        lambda: sys.modules.pop("settings_of_the_fuzzer", None),
    )


def imported_rate(zero):
    import settings_of_the_fuzzer
    from settings_of_the_fuzzer import rate

    return settings_of_the_fuzzer.rate + rate + zero


@kind
def flags_of_an_array(rng):
    base = np.zeros((2, 2))
    v = base[:]
    return Thing(
        v,
        "(1 if {v}.flags.writeable else 2) + {v}.strides[0] + (3 if {v}.base is None else 4) + {v}.base.ndim",
        lambda r: np.zeros((2, 2), order="CF"[r.integers(2)])[:],
        [
            ("writeable", lambda n: setattr(v.flags, "writeable", n % 2 == 0)),
            ("strides", lambda n: setattr(v, "strides", (8, 16) if n % 2 else (16, 8))),
            ("shape of the base", lambda n: setattr(base, "shape", (4,) if n % 2 else (2, 2))),
        ],
    )


@kind
def functions_inside(rng):
    state = {"rate": 2}

    def outer(n):
        class Inside:
            rate = state["rate"]

            def scaled(self, x):
                return x * state["rate"] + self.rate

        def generate():
            for k in range(3):
                yield k * state["rate"]

        return Inside().scaled(n) + sum(generate()) + sum(k * state["rate"] for k in range(n))

    return Thing(outer, "{v}(2)", None, [("what they read", lambda n: state.__setitem__("rate", n))])


@kind
def error_state(rng):
    before = np.geterr()
    return Thing(
        0,
        "(2 + {v} if np.geterr()['under'] == 'ignore' else 3)",
        None,
        [("state", lambda n: np.seterr(under="warn" if n % 2 else "ignore"))],
        lambda: np.seterr(**before),
    )


# --- what the guard does not know


def other_container(make, read, *changes):
    def made(rng):
        v = make()
        return Thing(v, read, None, [(name, functools.partial(change, v)) for name, change in changes])

    return made


def _set(key):
    return (f"[{key!r}]", lambda v, n: v.__setitem__(key, n))


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


class TupleOf(tuple):
    def __getitem__(self, key):
        return self.rate


class Local(threading.local):
    rate = 2


VARIABLE = contextvars.ContextVar("rate", default=2)

for _name, _make in {
    "deque": other_container(
        lambda: collections.deque([1, 2]), "weigh({v})", _set(0), ("rotate", lambda v, n: v.rotate(1))
    ),
    "ordered_dict": other_container(
        lambda: collections.OrderedDict(a=1, b=2),
        "weigh({v}.values())",
        _set("a"),
        ("order", lambda v, n: v.move_to_end("ab"[n % 2])),
    ),
    "default_dict": other_container(
        lambda: collections.defaultdict(lambda: 2),
        "{v}.default_factory()",
        ("factory", lambda v, n: setattr(v, "default_factory", lambda: n)),
    ),
    "counter": other_container(lambda: collections.Counter(a=2), "{v}['a']", _set("a")),
    "byte_array": other_container(lambda: bytearray(b"ab"), "{v}[0]", _set(0)),
    "memory_view": other_container(lambda: memoryview(bytearray(b"ab")), "{v}[0]", _set(0)),
    "array_array": other_container(lambda: array.array("d", [1, 2]), "{v}[0]", _set(0)),
    "mapping_proxy": other_container(
        lambda: types.SimpleNamespace(under={"a": 1}).__dict__,
        "{v}['under']['a']",
        ("under", lambda v, n: v["under"].__setitem__("a", n)),
    ),
    "proxy": other_container(
        lambda: (lambda d: (types.MappingProxyType(d), d))({"a": 1}),
        "{v}[0]['a']",
        ("under", lambda v, n: v[1].__setitem__("a", n)),
    ),
    "chain_map": other_container(lambda: collections.ChainMap({}, {"a": 1}), "{v}['a']", _set("a")),
    "list_subclass": other_container(
        lambda: ListOf([1, 2]), "weigh({v})", _set(0), ("append", lambda v, n: list.append(v, n))
    ),
    "dict_subclass": other_container(
        lambda: DictOf(a=1),
        "{v}['a'] + {v}['b']",
        _set("a"),
        ("__missing__", lambda v, n: setattr(DictOf, "__missing__", lambda self, key: n)),
    ),
    "set_subclass": other_container(lambda: SetOf([1]), "weigh({v})", ("add", lambda v, n: v.add(n))),
    "number_subclass": other_container(
        lambda: IntOf(2),
        "({v} + getattr({v}, 'rate', 0))",
        ("attribute", lambda v, n: setattr(v, "rate", n)),
    ),
    "float_subclass": other_container(
        lambda: (lambda v: (setattr(v, "rate", 1), v)[1])(FloatOf(2)),
        "({v} + 1)",
        ("attribute", lambda v, n: setattr(v, "rate", n)),
    ),
    "tuple_subclass": other_container(
        lambda: (lambda v: (setattr(v, "rate", 1), v)[1])(TupleOf((1, 2))),
        "{v}[0]",
        ("attribute", lambda v, n: setattr(v, "rate", n)),
    ),
    "thread_local": other_container(Local, "{v}.rate", ("attribute", lambda v, n: setattr(v, "rate", n))),
    "context_variable": other_container(lambda: VARIABLE, "{v}.get()", ("set", lambda v, n: v.set(n))),
    "weak_reference": other_container(
        lambda: (lambda o: (weakref.ref(o), o))(Root()),
        "{v}[0]().rate",
        ("attribute", lambda v, n: setattr(v[1], "rate", n)),
    ),
    "text_stream": other_container(
        lambda: io.StringIO("ab"), "len({v}.getvalue())", ("write", lambda v, n: v.write("c" * n))
    ),
    "fraction": other_container(
        lambda: [fractions.Fraction(1)],
        "int({v}[0])",
        ("item", lambda v, n: v.__setitem__(0, fractions.Fraction(n))),
    ),
    "template": other_container(
        lambda: string.Template("$a"),
        "len({v}.substitute(a='b'))",
        ("text", lambda v, n: setattr(v, "template", "c" * n)),
    ),
    "item_getter": other_container(
        lambda: (operator.itemgetter(0), [1]), "{v}[0]({v}[1])", ("item", lambda v, n: v[1].__setitem__(0, n))
    ),
    "attribute_getter": other_container(
        lambda: (operator.attrgetter("rate"), Root()),
        "{v}[0]({v}[1])",
        ("attribute", lambda v, n: setattr(v[1], "rate", n)),
    ),
    "nested_getattr": other_container(
        lambda: ("ra", Root()),
        "getattr({v}[1], {v}[0] + 'te')",
        ("attribute", lambda v, n: setattr(v[1], "rate", n)),
    ),
    "by_vars": other_container(
        lambda: types.SimpleNamespace(rate=1),
        "weigh(vars({v}).values())",
        ("attribute", lambda v, n: setattr(v, "rate", n)),
    ),
    "by_format": other_container(
        lambda: types.SimpleNamespace(rate=1),
        "len('{{0.rate}}'.format({v}))",
        ("attribute", lambda v, n: setattr(v, "rate", "a" * n)),
    ),
    "by_match": other_container(
        lambda: made_by_make_dataclass(),
        "matched({v})",
        ("attribute", lambda v, n: setattr(v, "rate", n)),
        ("names", lambda v, n: setattr(type(v), "__match_args__", ("other",) if n % 2 else ("rate",))),
        ("the other", lambda v, n: setattr(v, "other", n)),
    ),
    "by_replace": other_container(
        lambda: made_by_make_dataclass(),
        "dataclasses.replace({v}).rate",
        ("attribute", lambda v, n: setattr(v, "rate", n)),
    ),
    "lock": other_container(
        threading.Lock,
        "(2 if {v}.locked() else 3)",
        ("acquired", lambda v, n: v.acquire() if not v.locked() else v.release()),
    ),
}.items():
    KINDS[_name] = _make


def matched(x):
    class_ = type(x)
    match x:
        case class_(n):
            return n
    return 77


@kind
def cached_function(rng):
    state = [2]

    @functools.lru_cache
    def remembered(n):
        return state[0] + n

    remembered(1)

    def refilled(n):
        state[0] = n
        remembered.cache_clear()
        remembered(1)

    return Thing(
        remembered,
        "{v}(1)",
        None,
        [
            ("cleared and filled", refilled),
            ("cleared", lambda n: (state.__setitem__(0, n), remembered.cache_clear())),
        ],
    )


# --- functions that act: each call counts one up, whether or not anything changed


def acting(read):
    def made(rng):
        return Thing([0], read)

    return made


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


# --- a world

HELPERS = dict(
    np=np,
    weigh=weigh,
    number=number,
    entered=entered,
    written_out=written_out,
    imported_rate=imported_rate,
    matched=matched,
    operator=operator,
    dataclasses=dataclasses,
    bump=bump,
    bump_quietly=bump_quietly,
    bump_attribute=bump_attribute,
    draws=draws,
    advances=advances,
    written=written,
)
PLACES = ["global", "closure", "default", "item", "attribute", "argument", "helper", "list"]
X = np.array([1.0, 2.0])


class World:
    """See the head of this file. The answers of a fresh recording are asked for now and then as well."""

    def __init__(self, seed: int, kinds=None):
        self.rng = np.random.default_rng(seed)
        names = kinds or [*KINDS]
        count = int(self.rng.integers(1, 4))
        self.things = [(n, KINDS[n](self.rng)) for n in self.rng.choice(names, count)]
        self.log: list[str] = []
        self.set: list[Callable] = []
        self.namespace = dict(HELPERS, __name__="world")
        self.arguments: list = []
        self.source = self._write()
        exec(self.source, self.namespace)
        self.f = self.namespace["make"](*[t.value for _, t in self.things])
        self.g = ad.compile(self.f)
        self._places()

    def _write(self) -> str:
        """The text of a function that makes f."""
        self.places = [self._place(thing) for _, thing in self.things]
        head, parameters, reads, body = [], ["x"], [], []
        for i, (place, (_, thing)) in enumerate(zip(self.places, self.things)):
            text = {
                "global": f"g{i}",
                "closure": f"c{i}",
                "default": f"d{i}",
                "item": f"table['k{i}']",
                "attribute": f"holder.a{i}",
                "argument": f"s{i}",
                "helper": f"h{i}",
                "list": f"items[{i}]",
            }[place]
            if place == "closure":
                head.append(f"    c{i} = v{i}")
            elif place == "default":
                parameters.append(f"d{i}=v{i}")
            elif place == "argument":
                parameters.append(f"s{i}=None")
            read = thing.read.replace("{v}", text).replace("{{", "{").replace("}}", "}")
            if place == "helper":
                body.append(f"def read{i}():\n    return {read}\n")
                read = f"read{i}()"
            reads.append(f"{2 * i + 1} * ({read})")
        named = [p for p in parameters if p.startswith("s")]
        parameters = [p for p in parameters if not p.startswith("s")] + named
        lines = [*body, f"def make({', '.join(f'v{i}' for i in range(len(self.things)))}):", *head]
        lines += [f"    def f({', '.join(parameters)}):"]
        lines += [f"        total = {' + '.join(reads)}", "        return x * total", "    return f"]
        return "\n".join(lines) + "\n"

    def _place(self, thing: Thing) -> str:
        place = PLACES[self.rng.integers(len(PLACES))]
        dynamic = (list, dict, tuple, float, complex, np.ndarray, np.generic)  # arguments that are recorded
        again = thing.again(self.rng) if thing.again is not None else None
        return (
            "closure"
            if place == "argument" and (isinstance(thing.value, dynamic) or isinstance(again, dynamic))
            else place
        )

    def _places(self) -> None:
        n = self.namespace
        n["table"], n["holder"], n["items"] = {}, types.SimpleNamespace(), [None] * len(self.things)
        self.keywords = {}
        for i, (place, (_, thing)) in enumerate(zip(self.places, self.things)):
            put = {
                "global": lambda v, i=i: n.__setitem__(f"g{i}", v),
                "helper": lambda v, i=i: n.__setitem__(f"h{i}", v),
                "item": lambda v, i=i: n["table"].__setitem__(f"k{i}", v),
                "attribute": lambda v, i=i: setattr(n["holder"], f"a{i}", v),
                "argument": lambda v, i=i: self.keywords.__setitem__(f"s{i}", v),
                "list": lambda v, i=i: n["items"].__setitem__(i, v),
                "closure": lambda v, i=i: self._cell(f"c{i}", v),
                "default": lambda v, i=i: self._default(f"d{i}", v),
            }[place]
            put(thing.value)
            self.set.append(put)

    def _cell(self, name, v):
        self.f.__closure__[self.f.__code__.co_freevars.index(name)].cell_contents = v

    def _default(self, name, v):
        names = self.f.__code__.co_varnames[1 : self.f.__code__.co_argcount]
        found = list(self.f.__defaults__)
        found[names.index(name)] = v
        self.f.__defaults__ = tuple(found)

    def change(self) -> None:
        """Something, or nothing. A change that Python does not allow is none."""
        i = int(self.rng.integers(len(self.things)))
        name, thing = self.things[i]
        options: list = [("nothing", None)] + thing.changes
        if thing.again is not None:
            options.append(("replaced", lambda n: self.set[i](thing.again(self.rng))))
        what, act = options[self.rng.integers(len(options))]
        self.log.append(f"{name} in a {self.places[i]}: {what}")
        if act is not None:
            with contextlib.suppress(TypeError, ValueError, AttributeError, KeyError, IndexError):
                act(small(self.rng))

    def check(self) -> None:
        found = self._outcome(self.g)
        expected = self._outcome(self.f)
        if not self._equal(found, expected):
            again = self._outcome(ad.compile(self.f))
            raise Stale(
                "\n".join([self.source, *self.log])
                + f"\nfound {found}, expected {expected}, recorded anew {again}, "
                f"why_recorded: {ad.why_recorded(self.g)}"
            )

    def _outcome(self, f):
        try:
            return f(X, **self.keywords)
        except ad.AutodiffError:
            return None  # refused: never a wrong answer
        except Exception as error:
            return type(error).__name__

    @staticmethod
    def _equal(a, b) -> bool:
        if a is None or isinstance(a, str) or isinstance(b, str):
            return a is None or isinstance(a, str) and isinstance(b, str)
        return a.shape == b.shape and np.array_equal(a, b, equal_nan=True)

    def step(self) -> None:
        self.change()
        self.check()

    def close(self) -> None:
        """Put back what was changed outside of the world."""
        for _, thing in self.things:
            if thing.undo is not None:
                thing.undo()


STEPS = 20  # changes of one world


def check_world(seed: int, kinds=None) -> int:
    """After how many of STEPS changes was the function understood, so that it need not run at each call?"""
    world = World(seed, kinds)
    understood = 0
    try:
        world.check()
        for _ in range(STEPS):
            world.step()
            understood += ad.why_recorded(world.g) is None
    finally:
        world.close()
    return understood


def check_acting(name: str, calls: int = 20) -> None:
    """Does a function that acts act at every call?"""
    acting = ACTING[name]
    a, b = acting.make(), acting.make()
    namespace = dict(HELPERS)
    exec(
        f"def make(v):\n    def f(x):\n        return x * ({acting.read.replace('{v}', 'v')})\n    return f",
        namespace,
    )
    g, f = ad.compile(namespace["make"](a)), namespace["make"](b)
    for _ in range(calls):
        if not np.array_equal(g(X), f(X)):
            raise Stale(f"{name}: a function that acts was not run")
