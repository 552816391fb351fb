"""Kinds of objects, functions and modules, for random_worlds.py."""

from __future__ import annotations

import abc
import builtins
import collections
import collections.abc
import dataclasses
import enum
import functools
import numbers
import sys
import types
from dataclasses import dataclass, field

import numpy as np

from tests.support.worlds.things import Thing, kind, small

SCALE = 2


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
def list_of_the_library(rng):
    v = collections.UserList([1.0, 2.0])
    read = ("float(np.asarray({v})[0])", "float(np.array({v})[0])", "float(np.sum(np.full((3, 2), {v})))")
    return Thing(
        v,
        read[rng.integers(3)],
        lambda r: collections.UserList([small(r), 1.0]),
        [
            ("item", lambda n: v.data.__setitem__(0, float(n))),
            ("all of it", lambda n: setattr(v, "data", [float(n), 3.0])),
        ],
    )


@kind
def polynomial_of_numpy(rng):
    kind = (np.polynomial.Polynomial, np.polynomial.Chebyshev)[rng.integers(2)]
    v = kind([1.0, 2.0, 3.0])
    return Thing(
        v,
        "float({v}(0.5))",
        lambda r: kind([1.0, small(r)]),
        [
            ("coefficient", lambda n: v.coef.__setitem__(1, n)),
            ("coefficients", lambda n: setattr(v, "coef", np.array([2.0, n]))),
            ("domain", lambda n: setattr(v, "domain", np.array([0.0, n]))),
            ("in the domain", lambda n: v.domain.__setitem__(0, -n)),
        ],
    )


@kind
def registered_class(rng):
    class Registered:
        def keys(self):
            return ["a"]

        def get(self, key, default=None):
            return 1

        def __len__(self):
            return 1

        def __getitem__(self, key):
            if key not in ("a", 0):
                raise IndexError
            return 1

    v = Registered()
    read = ("(2 if np.isscalar({v}) else 3)", "pattern({v})")[rng.integers(2)]
    return Thing(
        v,
        read,
        None,
        [
            ("as a number", lambda n: numbers.Number.register(Registered)),
            ("as a mapping", lambda n: collections.abc.Mapping.register(Registered)),
            ("as a sequence", lambda n: collections.abc.Sequence.register(Registered)),
        ],
    )


def pattern(x):
    match x:
        case {"a": _}:
            return 2
        case [_]:
            return 3
    return 4


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

    read = (
        "len({v}.__doc__) + len({v}.__annotations__)",
        "len(str({v}))",
        "len(in_braces({v}))",
        "len(str([{v}]))",
    )
    return Thing(
        helper,
        read[rng.integers(4)],
        None,
        [
            ("__doc__", lambda n: setattr(helper, "__doc__", "a" * n)),
            ("__annotations__", lambda n: setattr(helper, "__annotations__", dict.fromkeys(range(n)))),
            ("__qualname__", lambda n: setattr(helper, "__qualname__", "a" * n)),
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
