"""Random programs that make plain arrays and write recorded values into them, and a check of each.

    check(write(seed))      raises programs.Difference where the program's values or derivatives are wrong, or
                            where a change of an array from outside leaves its compiled form stale

The arrays come from all kinds of functions, from copies of arrays outside and from operators on them; the
statements that write, to views and aliases too, are those of programs.py and those below.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpt2 import autodiff as ad
from tests.support.random import programs
from tests.support.random.programs import CONTROL, WRITES, Difference, Program, Writer, shrink  # noqa: F401

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
MAKES = """
np.zeros(3)
np.zeros({a}.shape)
np.ones((3, 4))
np.ones((3, 3), order="F")
np.full({a}.shape, 0.5)
np.full((2, 3), 0.1).T
np.arange(4.0) * 0.2
np.arange(12).reshape(3, 4) / 10
np.linspace(0.0, 1.0, 3)
np.array([0.0, 1.0, 2.0])
np.array([[0.1, 0.2], [0.3, 0.4]])
np.array([G, G * 2.0, [0.0, 1.0, 2.0]])
G.copy()
M.copy()
M.astype(float)
G * 2.0
-M
np.array(G)
np.array(TABLE["row"])
np.zeros_like(M)
np.full_like(G, 0.2)
np.ones(3) * G + G
np.exp(G)
np.sort(G)[::-1]
np.r_[0.0, 1.0, 2.0]
np.c_[G, G]
np.mgrid[0:2, 0:3][1] * 0.3
zeros((3, 3))
np.eye(3)
np.eye(3)[1]
np.identity(3)[:, 0]
np.tri(3)
np.diag(G)
np.outer(G, G)
np.tile(G, (3, 1))
np.meshgrid(G, G)[0]
np.concatenate([G[:1], G[1:]])
np.stack([G, G])
np.hanning(5)[1:4]
np.fromfunction(lambda i, j: i + 0.5 * j, (3, 3))
np.where(G > 0, G, 0.0)
np.cumsum(G)
M @ G
M.T.copy()
M[:, [2, 0]]
M.sum(axis=0)
np.linalg.inv(np.eye(3) + np.outer(G, G))
copy.deepcopy(M)
copy.copy(G)
np.block([[np.eye(2), np.zeros((2, 1))]])
np.kron(np.eye(2), np.ones((1, 2)))
np.poly1d([1.0, 0.5])(G)
np.vectorize(lambda v: v * 0.5)(G)
np.fromiter((0.1 * k for k in range(4)), float)
np.split(np.arange(6.0) * 0.1, 2)[1]
np.asarray(np.ones(3))
np.ascontiguousarray(M.T)
np.repeat(G, 2).reshape(2, 3)
np.zeros(8)[::2]
np.zeros((2, 3, 2))[:, :, 1]
Box((2, 3)).y
""".strip().splitlines()
FILLS = [
    "{c}[0] = {b}.reshape(-1)[0]",
    "{c}[-1] = {b}.sum() * 0.3",
    "{c}[:1] += {b}.mean()",
    "{c}.flat[1] = {b}.max()",
    "{c}.T[...] = {b}.min()",
    "{c}.reshape(-1)[::2] = {b}.sum() * 0.1",
    "fill({c}, {b}.sum() * 0.2)",
    "fill({c}[1:], {b}.mean())",
    "np.add.at({c}, [0, 0, 1], {b}.mean())",
    "np.multiply({c}, {b}.mean(), out={c})",
    "np.copyto({c}, {b}.mean())",
    "np.put({c}, [0, 1], {b}.mean())",
    "{t} = Box({c}.shape).put(0, {b}.sum() * 0.1).y",
    "{t} = [{c}, {c}[0]]\n{t}[0][-1] = {b}.mean()\n{t} = {t}[0]",
    "{t} = {c}.copy()\n{c}[0] = {b}.mean()",
    "{t} = {c}[1:]\n{c}[...] = {b}.mean()\n{t} = {t} * 2.0",
    "{t} = np.asarray({c})\n{c}[0] = {b}.mean()\n{t} = {t} * 1.5",
    "for k, row in enumerate({c}):\n    row[...] = {b}.mean() * k",
    "{t} = filled({b})",
    "{t} = np.zeros({b}.shape)\nfor k in range(len({b})):\n    {t}[k] = {t}[k - 1] * 0.5 + {b}[k]",
    "{t} = np.zeros((2, *{b}.shape))\n{t}[0], {t}[1] = {b}, {b} * 0.5",
    "{t} = np.zeros(len({b}) + 1)\nfor k in range(len({b})):\n    {t}[k + 1] = {t}[k] + {b}[k].sum()",
    "{t} = np.arange(3.0)\n{t} = {b} * ({t}[2] + len({t}) + math.fsum({t}) + int({t}[1])) * 0.1",
    "{t} = np.zeros(3)\n{t}[1] = 2.0\n{t} = {b} * [0.5, 0.1, 0.3][int({t}[1])] * len(f'{{{t}[0]:.2f}}')",
    "{t} = np.zeros(2, int)\n{t}[0] = 1\n{t} = {b}[{t}[0]]",
    "{t} = np.empty(3)\n{t}[:] = [{b}.sum() * 0.1, 1.0, {b}.mean()]",
]


def fillers() -> str:
    """The source of functions fill0, fill1, ... of an array c and a value b, one for each of FILLS, which
    return c, or what the statement makes.
    """
    source = HELPERS
    for k, statement in enumerate(FILLS):
        lines = statement.format(c="c", b="b", t="t").split("\n")
        result = "t" if "{t}" in statement else "c"
        source += "\n    ".join([f"def fill{k}(c, b):", *lines, f"return {result}"]) + "\n"
    return source


FILLED = [f"fill{k}({make}, {{a}})" for make in MAKES for k in range(len(FILLS))]


@dataclass(frozen=True)
class Filling(Program):
    HELPERS = HELPERS


class Filler(Writer):
    """Writes programs in which arrays are made by MAKES, and filled."""

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
        return f"{self.fresh()} = " + self.one_of(MAKES).format(a=self.pick())

    def fill(self):
        arrays = self.arrays().items()  # not the numbers among them
        made = [k for k, v in arrays if k not in self.arguments and isinstance(v, np.ndarray) and v.ndim]
        c = self.pick(lambda v: isinstance(v, np.ndarray) and v.ndim and v.flags.writeable)
        if made and self.rng.random() < 0.7:
            c = made[self.rng.integers(len(made))]
        b = self.pick(lambda v: isinstance(v, np.ndarray) and v.ndim > 0)
        return None if c is None or b is None else self.one_of(FILLS).format(b=b, c=c, t=self.fresh())

    def program(self, seed) -> Program:
        return Filling(**{**vars(super().program(seed))})


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
