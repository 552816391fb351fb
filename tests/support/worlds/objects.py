"""Objects and classes of things, and changes of them, for kinds.txt."""

from __future__ import annotations

import abc
import contextvars
import dataclasses
import threading
import types

import numpy as np


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


def with_rate(v):
    v.rate = 1
    return v


VARIABLE = contextvars.ContextVar("rate", default=2)
