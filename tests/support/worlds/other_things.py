"""Kinds of things that the guard does not know, and of functions that act, for random_worlds.py."""

from __future__ import annotations

import array
import builtins
import collections
import contextvars
import fractions
import functools
import io
import itertools
import operator
import random
import string
import threading
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpt2 import autodiff as ad
from tests.support.worlds.objects import Root, made_by_make_dataclass
from tests.support.worlds.things import KINDS, Thing, kind


def other_container(make, read, *changes):
    def made(rng):
        v = make()
        return Thing(v, read, None, [(name, functools.partial(change, v)) for name, change in changes])

    return made


def _set(key):
    return (f"[{key!r}]", lambda v, n: v.__setitem__(key, n))


RATE = ("attribute", lambda v, n: setattr(v, "rate", n))
RATE_OF_SECOND = ("attribute", lambda v, n: setattr(v[1], "rate", n))


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


def with_rate(v):
    v.rate = 1
    return v


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
    "number_subclass": other_container(lambda: IntOf(2), "({v} + getattr({v}, 'rate', 0))", RATE),
    "float_subclass": other_container(lambda: with_rate(FloatOf(2)), "({v} + 1)", RATE),
    "numpy_number_subclass": other_container(lambda: with_rate(Float64Of(2)), "({v} + {v}.rate)", RATE),
    "derived_function": other_container(lambda: with_rate(ad.grad(np.sin)), "{v}.rate", RATE),
    "rule": other_container(lambda: with_rate(ad.custom_vjp(np.sin)), "{v}.rate", RATE),
    "repeated_function": other_container(lambda: with_rate(ad.repeated(np.sin)), "{v}.rate", RATE),
    "dtype_with_metadata": other_container(
        lambda: np.dtype(float, metadata={"rate": [1]}),
        "{v}.metadata['rate'][0]",
        ("inside", lambda v, n: v.metadata["rate"].__setitem__(0, n)),
    ),
    "static_method": other_container(lambda: with_rate(staticmethod(len)), "{v}.rate", RATE),
    "tuple_subclass": other_container(lambda: with_rate(TupleOf((1, 2))), "{v}[0]", RATE),
    "thread_local": other_container(Local, "{v}.rate", RATE),
    "context_variable": other_container(lambda: VARIABLE, "{v}.get()", ("set", lambda v, n: v.set(n))),
    "weak_reference": other_container(
        lambda: (lambda o: (weakref.ref(o), o))(Root()), "{v}[0]().rate", RATE_OF_SECOND
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
        lambda: (operator.attrgetter("rate"), Root()), "{v}[0]({v}[1])", RATE_OF_SECOND
    ),
    "nested_getattr": other_container(
        lambda: ("ra", Root()), "getattr({v}[1], {v}[0] + 'te')", RATE_OF_SECOND
    ),
    "getattr_by_another_name": other_container(
        lambda: (getattr, types.SimpleNamespace(rate=1), "rate"), "{v}[0]({v}[1], {v}[2])", RATE_OF_SECOND
    ),
    "getattr_of_a_module": other_container(
        lambda: (builtins, types.SimpleNamespace(rate=1), "rate"),
        "{v}[0].getattr({v}[1], {v}[2])",
        RATE_OF_SECOND,
    ),
    "text_of_a_namespace": other_container(
        lambda: types.SimpleNamespace(rate=[1]),
        "len(repr({v})) + (2 if {v} == types.SimpleNamespace(rate=[1]) else 3)",
        ("attribute", lambda v, n: setattr(v, "rate", [n] * n)),
        ("inside", lambda v, n: v.rate.__setitem__(0, 10**n)),
    ),
    "an_exception": other_container(
        lambda: ValueError([1]),
        "{v}.args[0][0]",
        ("args", lambda v, n: setattr(v, "args", ([n],))),
        ("inside", lambda v, n: v.args[0].__setitem__(0, n)),
    ),
    "by_vars": other_container(lambda: types.SimpleNamespace(rate=1), "weigh(vars({v}).values())", RATE),
    "by_format": other_container(
        lambda: types.SimpleNamespace(rate=1),
        "len('{{0.rate}}'.format({v}))",
        ("attribute", lambda v, n: setattr(v, "rate", "a" * n)),
    ),
    "by_match": other_container(
        lambda: made_by_make_dataclass(),
        "matched({v})",
        RATE,
        ("names", lambda v, n: setattr(type(v), "__match_args__", ("other",) if n % 2 else ("rate",))),
        ("the other", lambda v, n: setattr(v, "other", n)),
    ),
    "by_replace": other_container(lambda: made_by_make_dataclass(), "dataclasses.replace({v}).rate", RATE),
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


# --- functions that act: each call increments a counter, whether or not anything changed


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
