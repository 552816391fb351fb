"""Random programs that make plain arrays and write recorded values into them, and a check of each.

    check(write(seed))      raises programs.Difference where the program's values or derivatives are wrong, or
                            where a change of an array from outside leaves its compiled form stale

The arrays come from all kinds of functions, from copies of arrays outside and from operators on them; the
statements that write, to views and aliases too, are those of programs.txt and fills.txt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpt2 import autodiff as ad
from tests.support.random import programs
from tests.support.random.programs import Difference, Program, Writer, shrink  # noqa: F401
from tests.support.tables import sections

HELPERS = """\
import copy, math
from numpy import zeros
G = np.array([0.3, -0.7, 1.1])
M = np.array([[0.2, 0.4, -0.6], [1.0, -0.1, 0.5]])
TABLE = {"row": np.array([0.5, 0.25, -1.0])}
def fill(c, b):
    c[...] = b
class Box:
    def __init__(self, shape):
        self.y = np.zeros(shape)
    def put(self, k, v):
        self.y[k] = v
        return self
def filled(a):
    out = np.empty(np.shape(a))
    for k in np.ndindex(*out.shape):
        out[k] = a[k] * 2.0
    return out
"""
GRAMMAR = sections(__file__)


def fillers() -> str:
    """The source of functions fill0, fill1, ... of an array c and a value b, one for each of the fills, which
    return c, or what the statement makes.
    """
    source = HELPERS
    for k, statement in enumerate(GRAMMAR["fills"]):
        lines = statement.format(c="c", b="b", t="t").split("\n")
        result = "t" if "{t}" in statement else "c"
        source += "\n    ".join([f"def fill{k}(c, b):", *lines, f"return {result}"]) + "\n"
    return source


FILLED = [f"fill{k}({make}, {{a}})" for make in GRAMMAR["makes"] for k in range(len(GRAMMAR["fills"]))]


@dataclass(frozen=True)
class Filling(Program):
    HELPERS = HELPERS


class Filler(Writer):
    """Writes programs in which arrays are made by one of the makes, and filled."""

    def run(self) -> None:
        self.names = {"np": np, **{k: v.copy() for k, v in self.arguments.items()}}
        exec(HELPERS, self.names)
        for statement in self.body:
            exec(statement, self.names)

    def arrays(self) -> dict:
        return {k: v for k, v in super().arrays().items() if k not in ("G", "M")}

    def statement(self) -> str | None:
        kind = self.rng.choice(
            ["make", "fill", "write", "unary", "binary", "reduce", "shape", "matrix", "control"],
            p=[0.24, 0.24, 0.16, 0.06, 0.08, 0.06, 0.08, 0.03, 0.05],
        )
        return getattr(self, kind)()

    def make(self):
        return f"{self.fresh()} = " + self.one_of(GRAMMAR["makes"]).format(a=self.pick())

    def fill(self):
        arrays = self.arrays().items()  # not the numbers among them
        made = [k for k, v in arrays if k not in self.arguments and isinstance(v, np.ndarray) and v.ndim]
        c = self.pick(lambda v: isinstance(v, np.ndarray) and v.ndim and v.flags.writeable)
        if made and self.rng.random() < 0.7:
            c = made[self.rng.integers(len(made))]
        b = self.pick(lambda v: isinstance(v, np.ndarray) and v.ndim > 0)
        if c is None or b is None:
            return None
        return self.one_of(GRAMMAR["fills"]).format(b=b, c=c, t=self.fresh())

    def program(self, seed) -> Program:
        return Filling(**vars(super().program(seed)))


def write(seed: int) -> Program:
    writer = Filler(seed)
    for _ in range(int(writer.rng.integers(5, 16))):
        writer.grow()
    return writer.program(seed)


def check(program: Program, api: bool = False) -> programs.Report:
    """programs.check, and the compiled program after arrays from outside have changed."""
    report = programs.check(program, api)
    f = program.function()
    compiled = ad.compile(f)
    compiled(*program.values())
    for _ in range(2):
        f.__globals__["G"][:] *= 0.5
        f.__globals__["M"] = f.__globals__["M"] + 0.1
        try:
            wanted = f(*program.values())
        except (ValueError, IndexError, TypeError, ArithmeticError):
            break
        programs._same("compiled, after a change outside", compiled(*program.values()), wanted)
    return report
