"""Small functions, one for each construct of Python that a function of a user's may hold: constructs.txt.

    name -- body of f(x) -- what must hold, if not: it is recorded once

x is an array of three numbers; ` ;; ` ends a line of the body, and the world that it reads is WORLD. What
must hold is the same on each Python: `again: why it is recorded at each call`, or `error: what it says`. A
name that ends in `3.14+` is a construct of that version. Value and derivative are compared with those of
the function itself, also after the world has changed.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")

WORLD = """
import contextlib, dataclasses, enum, functools, itertools, math, sys, time, types, typing
import numpy as np
{lazy}
K, N, TEXT, TE, NONE, FLAG, COUNT = 2.0, 2, "abc", "te", None, True, 0
LIST, PAIRS, ARRAY, LOG = [1.0, 2.0, 3.0], {{"a": 1.0, "b": 2.0}}, np.array([1.0, 2.0, 3.0]), []
KIND, FUNCTION = float, len

settings = sys.modules["constructs_settings"] = types.ModuleType("constructs_settings")
settings.k = 1.5

class Matrix:
    def __rmatmul__(self, other): return other * K

class Thing:
    rate = 1.5
    def twice(self, k): return 2.0 * k * self.rate
    @property
    def half(self): return self.rate / 2.0
    @classmethod
    def made(cls): return cls.rate
    @staticmethod
    def fixed(k): return 3.0 * k
    def __add__(self, other): return self.rate + other
    def __call__(self, v): return v * self.rate

class Special(Thing):
    def twice(self, k): return super().twice(k) + 1.0

class Slotted:
    __slots__ = ("rate",)

class Answering:
    def __getattr__(self, name): return len(name) * K

class Described:
    class Descriptor:
        def __get__(self, instance, owner): return K
    k = Descriptor()

@dataclasses.dataclass
class Point:
    a: float
    b: float = 2.0

@dataclasses.dataclass(frozen=True)
class Frozen:
    a: float

class Pair(typing.NamedTuple):
    first: float
    second: float

class Colour(enum.Enum):
    RED = 1.0
    BLUE = 2.0

class Scope:
    def __enter__(self): return K
    def __exit__(self, *error): return None
    async def __aenter__(self): return K
    async def __aexit__(self, *error): return None

class Catching(Scope):
    def __exit__(self, *error): return True

@contextlib.contextmanager
def scope(): yield K

def helper(v, k): return v * k
def with_default(v, k=1.5): return v * k
def power(v, n): return v if n <= 1 else v * power(v, n - 1)
def as_number(v): return float(v)
def twice(g): return lambda *args: 2.0 * g(*args)
def doubled(g):
    @functools.wraps(g)
    def wrapper(*args): return 2.0 * g(*args)
    return wrapper
@doubled
def decorated(v): return v * K
def finished(coroutine):
    try: coroutine.send(None)
    except StopIteration as end: return end.value
async def arriving():
    for k in LIST: yield k

THING, SPECIAL, SLOTTED, ANSWERING, DESCRIBED = Thing(), Special(), Slotted(), Answering(), Described()
THING.rate, SLOTTED.rate, MATRIX, COLOUR = 1.25, 1.25, Matrix(), Colour.RED
SPACE = types.SimpleNamespace(k=1.5)
POINT, FROZEN = Point(1.0, 2.0), Frozen(1.5)
"""
CHANGE = """
K, N, TEXT, NONE, FLAG, KIND, FUNCTION, COLOUR = 3.0, 3, "a,bcd", 4.0, False, int, max, Colour.BLUE
LIST[0], PAIRS["a"], ARRAY[0], THING.rate, SLOTTED.rate, SPACE.k, POINT.b = 5.0, 4.0, 9.0, 7.0, 8.0, 6.0, 5.5
sys.modules["constructs_settings"] = types.SimpleNamespace(k=2.5)
PAIRS["z"], Thing.rate, POINT.a, with_default.__defaults__ = 6.5, 8.5, 9.5, (4.5,)
"""
# After the change names of built-in functions are the module's own
SHADOWS = """
import builtins
def tuple(items=()): return [*builtins.tuple(items), 1.0]
def any(items): return not builtins.any(items)
def all(items): return not builtins.all(items)
def len(items): return builtins.len(items) + 1
"""


@dataclass
class Construct:
    name: str
    body: str
    expected: str  # "reused", "again: why" or "error: what it says"
    since: tuple[int, int]

    @property
    def here(self) -> bool:
        """Whether this Python has it."""
        return self.since <= sys.version_info[:2]

    def world(self) -> dict:
        """A world of its own, and f in it."""
        lazy = "lazy import math as LAZY" if sys.version_info >= (3, 15) else ""
        names: dict = {"__name__": __name__}
        exec(WORLD.format(lazy=lazy), names)
        lines = "".join(f"    {line}\n" for line in self.body.split(" ;; "))
        exec(compile(f"def f(x):\n{lines}", f"<{self.name}>", "exec", dont_inherit=True), names)
        return names


def _parsed(line: str) -> Construct:
    name, body, *expected = line.split(" -- ")
    version = name.rpartition(" ")[2]
    since = ast.literal_eval(version[:-1].replace(".", ",")) if version.endswith("+") else (3, 11)
    return Construct(name, body, *(expected or ["reused"]), since)


CONSTRUCTS = [_parsed(line) for line in TABLE.splitlines() if line]
