"""Random worlds: functions that read things of every kind, and every way to change these between calls.

    world = World(seed)       a function world.f of one array, and things that it reads in various places
    world.step()              changes something, or nothing, and raises Stale where the compiled function and
                              the function itself differ

Kinds that the compiler's guard understands and kinds that it does not stand side by side (kinds.txt): the
answer has to be right for all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import operator
import random
import types
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gpt2 import autodiff as ad
from tests.support.worlds import calls, things
from tests.support.worlds.calls import ARGUMENTS, X
from tests.support.worlds.kinds import KINDS
from tests.support.worlds.things import Thing, names_of, small


class Stale(AssertionError):
    """The compiled function gave another answer than the function itself."""


HELPERS = {
    **things.FILLERS,
    **names_of(things),
    **{"np": np, "types": types, "operator": operator, "dataclasses": dataclasses},
    **calls.HELPERS,
}
# Where a thing is, and what a function writes to read the i-th one there
PLACES = {
    "global": "g{i}",
    "closure": "c{i}",
    "default": "d{i}",
    "item": "table['k{i}']",
    "attribute": "holder.a{i}",
    "argument": "s{i}",
    "helper": "h{i}",
    "list": "items[{i}]",
}


class World:
    """See the head of this file. The answers of a fresh recording are asked for now and then as well."""

    def __init__(self, seed: int, kinds=None):
        self.rng = np.random.default_rng(seed)
        names = kinds or sorted(KINDS)
        count = int(self.rng.integers(1, 4))
        self.things = [(n, KINDS[n](self.rng)) for n in self.rng.choice(names, count)]
        self.log: list[str] = []
        self.set: list[Callable] = []
        self.namespace = dict(HELPERS, __name__="world")
        asked = [set(t.arguments) for _, t in self.things if t.arguments]
        # a float lacks the attributes of an array
        numbers = {"number"} - set.intersection(*asked, {"number"})
        self.variants = sorted(set().union(*asked) - numbers)
        self.arguments = ARGUMENTS["plain"]()
        self.source = self._write()
        exec(self.source, self.namespace)
        self.f = self.namespace["make"](*[t.value for _, t in self.things])
        self.g = ad.compile(self.f)
        self._places()

    def _write(self) -> str:
        """Source of a function that makes f."""
        self.places = [self._place(thing) for _, thing in self.things]
        head, parameters, reads, body, gives = [], ["x", "y"], [], [], []
        for i, (place, (_, thing)) in enumerate(zip(self.places, self.things)):
            text = PLACES[place].format(i=i)
            if place == "closure":
                head.append(f"    c{i} = v{i}")
            elif place == "default":
                parameters.append(f"d{i}=v{i}")
            elif place == "argument":
                parameters.append(f"s{i}=None")
            read = thing.read.replace("{v}", text).replace("{{", "{").replace("}}", "}")
            if place == "helper":
                body.append(f"def read{i}(x, y):\n    return {read}\n")
                read = f"read{i}(x, y)"
            if thing.gives is not None:
                gives.append(thing.gives.replace("{v}", text))
            reads.append(f"{2 * i + 1} * ({read})")
        parameters.sort(key=lambda p: p.startswith("s"))  # those given by name stand last
        lines = [*body, f"def make({', '.join(f'v{i}' for i in range(len(self.things)))}):", *head]
        lines += [
            f"    def f({', '.join(parameters)}):",
            f"        total = {' + '.join(reads)}",
            f"        return x * total, [{', '.join(gives)}]",
            "    return f",
        ]
        return "\n".join(lines) + "\n"

    def _place(self, thing: Thing) -> str:
        place = list(PLACES)[self.rng.integers(len(PLACES))]
        dynamic = (list, dict, tuple, float, complex, np.ndarray, np.generic)  # arguments that are recorded
        again = thing.again(self.rng) if thing.again is not None else None
        recorded = isinstance(thing.value, dynamic) or isinstance(again, dynamic)
        return "closure" if place == "argument" and recorded else place

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
                "closure": lambda v, i=i: self._put_in_the_function(f"c{i}", v),
                "default": lambda v, i=i: self._put_in_the_function(f"d{i}", v),
            }[place]
            put(thing.value)
            self.set.append(put)

    def _put_in_the_function(self, name, v):
        """A value into a cell of its closure, or in the place of a default."""
        code = self.f.__code__
        if name in code.co_freevars:
            self.f.__closure__[code.co_freevars.index(name)].cell_contents = v
            return
        found = list(self.f.__defaults__)
        found[code.co_varnames[2 : code.co_argcount].index(name)] = v
        self.f.__defaults__ = tuple(found)

    def change(self) -> None:
        """Change something, or nothing; a change that Python refuses counts as nothing."""
        variant = self.variants[self.rng.integers(len(self.variants))] if len(self.variants) > 1 else "plain"
        self.arguments = ARGUMENTS[variant]()
        i = int(self.rng.integers(len(self.things)))
        name, thing = self.things[i]
        options = [("nothing", None), *thing.changes]
        if thing.again is not None:
            options.append(("replaced", lambda n: self.set[i](thing.again(self.rng))))
        what, act = options[self.rng.integers(len(options))]
        self.log.append(f"{name} in a {self.places[i]}: {what}; {variant} arguments")
        if act is not None:
            with contextlib.suppress(TypeError, ValueError, AttributeError, KeyError, IndexError):
                act(small(self.rng))

    def check(self) -> None:
        found = self._outcome(self.g)
        expected = self._outcome(self.f)
        if found is None:
            return
        if isinstance(found, str) or isinstance(expected, str):
            equal = isinstance(found, str) and isinstance(expected, str)
        else:
            (a, _), (b, _) = found, expected
            equal = type(a) is type(b) and np.array_equal(a, b, equal_nan=True)
        if not equal or not self._given_alike(found, expected):
            again = self._outcome(ad.compile(self.f))
            raise Stale(
                "\n".join([self.source, *self.log])
                + f"\nfound {found}, expected {expected}, after recording again {again}, "
                f"why_recorded: {ad.why_recorded(self.g)}"
            )

    def _outcome(self, f):
        try:
            return f(*self.arguments, **self.keywords)
        except ad.AutodiffError:
            return None  # refused: never a wrong answer
        except Exception as error:
            return type(error).__name__

    def _given_alike(self, a, b) -> bool:
        """Whether both gave the same besides. What the compiled function gave is changed then."""
        if not isinstance(a, tuple):
            return True
        for thing, found, expected in zip([t for _, t in self.things if t.gives is not None], a[1], b[1]):
            if not (found is expected if thing.same else _alike(found, expected)):
                return False
            thing.spoil(found)
        return True

    def step(self) -> None:
        self.change()
        self.check()

    def close(self) -> None:
        """Put back what was changed outside of the world."""
        for _, thing in self.things:
            if thing.undo is not None:
                thing.undo()


def _alike(a, b) -> bool:
    """Whether two things are of the same type, and so are their parts, and written in the same way."""
    parts = zip(a, b) if isinstance(a, (tuple, list)) else ()
    return type(a) is type(b) and repr(a) == repr(b) and all(_alike(x, y) for x, y in parts)


class Twins(World):
    """Every call is of a new function of the same code, as a lambda in a loop is. `shared` counts those that
    used what was recorded for another one.
    """

    shared = 0

    def check(self) -> None:
        f = self.f
        for _ in range(3):
            cells = tuple(types.CellType(c.cell_contents) for c in f.__closure__ or ())
            twin = types.FunctionType(f.__code__, f.__globals__, f.__name__, f.__defaults__, cells)
            self.g = ad.compile(twin)
            super().check()
            state = self.g.__derived__
            self.shared += state.last is not None and state.why is None and not len(state.cache)


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


def check_twins(seed: int, kinds=None) -> int:
    """How often a function used the recording of another one."""
    twins = Twins(seed, kinds)
    try:
        twins.check()
        for _ in range(STEPS):
            twins.step()
    finally:
        twins.close()
    return twins.shared


# ---- Functions that act: each call changes something, whether or not anything changed outside --------------


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


class Acting(NamedTuple):
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


def check_acting(name: str, calls: int = 20, anew: bool = False) -> None:
    """Does a function that acts act at every call? With `anew`, each call is of a new function."""
    acting = ACTING[name]
    a, b = acting.make(), acting.make()
    namespace = {**HELPERS, **globals()}
    body = f"        return x * ({acting.read.replace('{v}', 'v')})\n"
    exec(f"def make(v):\n    def f(x):\n{body}    return f", namespace)
    make = namespace["make"]
    g, f = ad.compile(make(a)), make(b)
    for _ in range(calls):
        if anew:
            g = ad.compile(make(a))
        if not np.array_equal(g(X), f(X)):
            raise Stale(f"{name}: a function that acts was not run")
