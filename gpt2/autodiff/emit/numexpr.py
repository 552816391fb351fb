"""The second elementwise backend: elementwise ops that follow each other, fused into one numexpr expression.

A fusion is a tree of ops whose intermediate values have no other reader. It becomes one node, `fused`, that a
region runs like any other elementwise op: numexpr walks over its arguments in pieces of a thousand elements
and keeps what lies between in its own registers. What numexpr cannot spell, or takes fifty times as long for
as NumPy, stays with NumPy.

numexpr is loaded on first use and set to one thread, for the whole process: regions have threads of their
own. Unlike NumPy it does not warn of overflow.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import numpy as np

from ..graph import Graph, GraphError, Node, is_scalar_const, remade, with_args
from ..ops import leads
from ..ops.table import root, row
from ..switches import NO_NUMEXPR
from .expressions import ATOM, BITS, FORMS, UNARY, Forms, Text, is_written, number_text, written

# What numexpr takes besides Python's operators
_FORMS: Forms = {
    **FORMS,
    "absolute": (ATOM, "abs({0})"),
    "sqrt": (ATOM, "sqrt({0})"),
    "where": (ATOM, "where({0}, {1}, {2})"),
}
_LOGIC: Forms = {
    "logical_and": (BITS, "{0} & {1}"),
    "logical_or": (BITS, "{0} | {1}"),
    "logical_not": (UNARY, "~{0}"),
}
# Only where numexpr was built on Intel's VML. Its wheels call the C library for each element: 15 to 25 ns for
# a tanh in float32, where NumPy's vector loops take 0.35. GELU's forward took 13.8 ms so, 2.3 with the tanh
# left to NumPy, and 1.2 by NumPy alone (B=4, T=64, C=3072, one thread).
FUNCTIONS = (
    "exp expm1 log log1p log10 sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh arctanh"
)


def _not_recorded(*args, **attrs):
    raise GraphError("fused occurs only in a graph that is being emitted")


# A fusion as one node. Its text has {0}, {1}, ... for the arguments
row(
    "fused",
    "structural",
    infer=_not_recorded,
    evaluate=_not_recorded,
    discontinuous=False,
    work="streams",
    streams=True,
    leads=leads.ELEMENTWISE,
)

LONGEST = 1000  # characters of an expression: a square spells its argument twice
MOST_ARGUMENTS = 16
MOST_INPUTS = 30  # arguments and numbers: numexpr takes NumPy's NPY_MAXARGS, once 32, with the result


@cache
def load() -> ModuleType:
    """The numexpr module, on one thread. Raises ImportError, in one line, where there is none."""
    try:
        import numexpr
    except ImportError:
        raise ImportError(NO_NUMEXPR) from None
    numexpr.set_num_threads(1)
    return numexpr


@cache
def forms() -> Forms:
    """The ops that this numexpr can compute, with their texts, besides Python's operators."""
    functions = FUNCTIONS.split() if load().use_vml else ()
    return {**_FORMS, **_LOGIC, **{name: (ATOM, f"{name}({{0}})") for name in functions}}


class Fused:
    """A numexpr expression of named arrays: fused(*arrays, out=array) -> out.

    types  for each name, in the order of the arguments, "float32", "float64" or "bool"

    Numbers in the text get the type of the floating-point arrays: numexpr takes them for float64, and would
    compute in float64 from there on. A compiled expression has its own registers and releases the interpreter
    lock, so that two threads in one would crash: each concurrent call has its own.
    """

    def __init__(self, text: str, /, **types: str):
        self.text = text
        kind = next(t for t in types.values() if t != "bool")
        numbers = _Numbers(types)
        self.spelling = ast.unparse(numbers.visit(ast.parse(text, mode="eval")))
        self.numbers = [np.asarray(float(text), kind) for text in numbers.names]
        names = [*types.items(), *((name, kind) for name in numbers.names.values())]
        # in numexpr a signature's float is single precision
        kinds = {"bool": bool, "float32": float, "float64": np.double}
        self.signature = [(name, kinds[t]) for name, t in names]
        self.vml = load().use_vml
        self.free: list = []

    def __call__(self, *arrays: np.ndarray, out: np.ndarray) -> np.ndarray:
        try:
            run = self.free.pop()  # atomic under the interpreter lock
        except IndexError:
            # "none": no quotient by a number turned into a multiplication, which would round twice
            options = dict(sanitize=False, optimization="none", truediv=True)
            run = load().NumExpr(self.spelling, self.signature, **options)
        run(*arrays, *self.numbers, out=out, order="K", casting="equiv", ex_uses_vml=self.vml)
        self.free.append(run)
        return out


class _Numbers(ast.NodeTransformer):
    """Replaces floating-point literals by names that are not in `taken`: one for each number."""

    def __init__(self, taken: Container[str]):
        self.names: dict[str, str] = {}  # the number's text, as 0.0 == -0.0 -> its name
        self.free = (name for k in itertools.count() if (name := f"number_{k}") not in taken)

    def visit_Constant(self, node):
        text = repr(node.value)
        if text not in self.names:
            self.names[text] = next(self.free)
        return ast.Name(self.names[text], ast.Load())

    def visit_UnaryOp(self, node):
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            return self.visit_Constant(ast.Constant(-node.operand.value))
        return self.generic_visit(node)


@dataclass(eq=False)
class Fusion:
    """Elementwise ops that are computed as one expression."""

    root: Node
    inner: set[Node]
    leaves: list[Node]
    text: str  # with {0}, {1}, ... for the leaves


def fusions_of(members: list[Node], users: dict) -> list[Fusion]:
    """The largest fusions of two ops or more among a region's members that are one expression each."""
    inside = set(members)
    taken: set[Node] = set()
    fusions = []
    for n in reversed(members):
        if n in taken or not _is_spelled(n):
            continue
        # Not what multiplies only for a sum over the last axis: one call of NumPy (schedule.py)
        last = (n.ndim - 1,)
        summed = all(u.op == "sum" and u.attrs["axes"] == last for u in users[n])
        if summed and n.op in ("multiply", "square"):
            continue
        fusion = _grow(n, inside, users)
        if fusion is not None:
            taken |= fusion.inner
            fusions.append(fusion)
    return fusions[::-1]


def _grow(n: Node, inside: set[Node], users) -> Fusion | None:
    """The largest fusion with this root; None where there is none that numexpr takes."""
    inner: set[Node] = set()
    leaves: dict[Node, str] = {}
    numbers: set[str] = set()

    def spelled(m: Node) -> Text:
        texts = []
        for a in m.args:
            if is_scalar_const(a):
                numbers.add(repr(float(a.value)))
                texts.append(number_text(repr(float(a.value))))
            elif a in inside and a.shape == n.shape and len(users[a]) == 1 and _is_spelled(a):
                inner.add(a)
                texts.append(spelled(a))
            else:
                texts.append(Text(leaves.setdefault(a, f"{{{len(leaves)}}}")))
        spelling = written(m.op, texts, forms())
        if len(spelling.text) > LONGEST:
            raise OverflowError
        return spelling

    try:
        text = spelled(n).text
    except OverflowError:
        return None
    kinds = {m.dtype for m in (n, *inner, *leaves) if m.dtype.kind == "f"}
    if (
        not inner
        or len(leaves) > MOST_ARGUMENTS
        or len(leaves) + len(numbers) > MOST_INPUTS
        or len(kinds) != 1
        or len({root(a) for a in leaves}) < len(leaves)  # one may be written over while another is read
    ):
        return None
    return Fusion(n, inner, list(leaves), text)


def _is_spelled(n: Node) -> bool:
    """Whether numexpr computes n as NumPy does, in n's own type."""
    if not is_written(n.op, forms()) or n.size <= 1:
        return False
    floats = [a for a in n.args if a.dtype.kind != "b"]
    if n.op in _LOGIC:
        return not floats
    if n.op == "where" and (n.args[0].dtype.kind != "b" or len(floats) != 2):
        return False
    kinds = {a.dtype.name for a in floats}
    if kinds != {"float32"} and kinds != {"float64"}:
        return False
    return all(math.isfinite(a.value) for a in floats if is_scalar_const(a))


def fused_regions(graph: Graph, regions: list, pick: Callable | None = None) -> Graph:
    """The graph with its fusions, all or those that pick(region, fusions, users) takes, as one node each.

    The regions' members are changed to its nodes.
    """
    users = graph.users()
    fusion: dict[Node, Fusion] = {}
    for r in regions:
        fusions = fusions_of(r.members, users)
        fusion.update((t.root, t) for t in (pick(r, fusions, users) if pick and fusions else fusions))
    if not fusion:
        return graph
    inner = {m for t in fusion.values() for m in t.inner}
    new = {i: i for i in graph.inputs}

    def make(n: Node, args: tuple) -> Node:
        if n in fusion:
            args, attrs = tuple(new[a] for a in fusion[n].leaves), {"text": fusion[n].text}
            new[n] = Node("fused", args, attrs, n.shape, n.dtype, n.name, n.loc, n.derived)
        else:
            new[n] = n if args == n.args else with_args(n, args)
        return new[n]

    outputs = remade(graph.outputs, {}, make)
    for r in regions:
        r.members = [new[m] for m in r.members if m not in inner]
        r.sums = [new[m] for m in r.sums]
    return Graph(graph.inputs, outputs, graph.name)


def expression(n: Node, names: list[str]) -> tuple[str, str]:
    """A fused node in the user's names: the expression, and the types of the names as keyword arguments."""
    functions = load().expressions.functions
    for k, name in enumerate(names):
        while name in functions or name in names[:k]:
            name += "_"
        names[k] = name
    text = ast.unparse(ast.parse(n.attrs["text"].format(*names), mode="eval"))
    return text, ", ".join(f'{name}="{a.dtype}"' for name, a in zip(names, n.args))
