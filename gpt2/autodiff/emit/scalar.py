"""Programs of Python floats only, as plain `math` code.

A NumPy call on one number costs about a microsecond, and `math.sin` thirty nanoseconds; so a graph in which
every value is a single float64 (or bool) is written out in Python's own arithmetic:

    from math import cos, sin

    def f_grad(x):
        dx = cos(x) * x + sin(x)
        return dx

Python raises where NumPy gives inf or nan (1.0 / 0.0, exp(1000.0), log(-1.0)). The program then starts over
in NumPy, so that the answer is the one NumPy gives, warning included; that path is slow, and rare.
"""

from __future__ import annotations

import math

import numpy as np

from ..graph import Graph, Node, is_scalar_const, source_name, source_names
from ..ops.interpret import evaluate_graph
from .program import load_source

# op -> (how tightly the expression binds, its text over the arguments' texts). A digit after the op's name in
# _ARGUMENTS says how tightly each argument has to bind to stand without parentheses.
ATOM, POWER, UNARY, PRODUCT, SUM, COMPARE, NOT, AND, OR, CHOICE = range(10, 0, -1)

_INFIX = {
    "add": (SUM, "+", SUM, PRODUCT),
    "subtract": (SUM, "-", SUM, PRODUCT),
    "multiply": (PRODUCT, "*", PRODUCT, UNARY),
    "divide": (PRODUCT, "/", PRODUCT, UNARY),
    "less": (COMPARE, "<", SUM, SUM),
    "less_equal": (COMPARE, "<=", SUM, SUM),
    "greater": (COMPARE, ">", SUM, SUM),
    "greater_equal": (COMPARE, ">=", SUM, SUM),
    "equal": (COMPARE, "==", SUM, SUM),
    "not_equal": (COMPARE, "!=", SUM, SUM),
}

_MATH = {  # op -> name in the math module
    **{
        n: n
        for n in "exp expm1 log log2 log10 log1p sqrt sin cos tan sinh cosh tanh hypot copysign degrees "
        "radians fmod".split()
    },
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "arctanh": "atanh",
    "arctan2": "atan2",
    "absolute": "fabs",
    "fabs": "fabs",
    "deg2rad": "radians",
    "rad2deg": "degrees",
    "exp2": "exp2",
    "cbrt": "cbrt",
    "isnan": "isnan",
    "isinf": "isinf",
    "isfinite": "isfinite",
}

# The rest, spelled out. Arguments are names or numbers here, as some appear twice.
_SPELLED = {
    "square": (PRODUCT, "{0} * {0}"),
    "reciprocal": (PRODUCT, "1.0 / {0}"),
    "negative": (UNARY, "-{0}"),
    "positive": (ATOM, "{0}"),
    "real": (ATOM, "{0}"),
    "conjugate": (ATOM, "{0}"),
    "copy": (ATOM, "{0}"),
    "sign": (CHOICE, "{0} if {0} == 0.0 or {0} != {0} else copysign(1.0, {0})"),
    "heaviside": (CHOICE, "{1} if {0} == 0.0 else {0} if {0} != {0} else float({0} > 0.0)"),
    "maximum": (CHOICE, "{0} if {0} >= {1} or {0} != {0} else {1}"),
    "minimum": (CHOICE, "{0} if {0} <= {1} or {0} != {0} else {1}"),
    "fmax": (CHOICE, "{0} if {0} >= {1} or {1} != {1} else {1}"),
    "fmin": (CHOICE, "{0} if {0} <= {1} or {1} != {1} else {1}"),
    "floor": (ATOM, "float(floor({0}))"),
    "ceil": (ATOM, "float(ceil({0}))"),
    "trunc": (ATOM, "float(trunc({0}))"),
    "remainder": (PRODUCT, "{0} % {1}"),
    "floor_divide": (PRODUCT, "{0} // {1}"),
    "logical_and": (AND, "{0} and {1}"),
    "logical_or": (OR, "{0} or {1}"),
    "logical_not": (NOT, "not {0}"),
    "where": (CHOICE, "{1} if {0} else {2}"),
}
_USES = {"sign": ("copysign",), "floor": ("floor",), "ceil": ("ceil",), "trunc": ("trunc",)}
# What the text calls by these names, so no variable may have them
RESERVED = {*_MATH.values(), *(u for used in _USES.values() for u in used), "pow", "nan", "inf", "float"}
_LONGEST = 72  # characters of an expression before a part of it gets a line of its own

# What Python raises where NumPy returns inf or nan
TROUBLE = (ArithmeticError, ValueError)


def is_scalar(graph: Graph) -> bool:
    """Can the graph be written as `math` code?"""
    return bool(graph.outputs) and all(_fits(n) for n in graph.nodes)


def _fits(n: Node) -> bool:
    if n.shape != () or n.dtype not in (np.float64, np.bool_):
        return is_scalar_const(n) and isinstance(_number(n), (int, float))
    if n.op in ("input", "const"):
        return n.dtype == np.float64 or n.op == "const"
    if n.op in ("logical_and", "logical_or", "logical_not"):  # of floats: bools in NumPy, floats in Python
        return all(a.dtype == np.bool_ for a in n.args)
    if n.op in ("reshape", "broadcast", "transpose", "stop_gradient"):
        return True
    if n.op == "cast":
        return n.dtype == np.float64 and n.args[0].dtype in (np.float64, np.bool_)
    return (
        n.op in _INFIX or n.op in _MATH and hasattr(math, _MATH[n.op]) or n.op in _SPELLED or n.op == "power"
    )


def _number(n: Node):
    v = n.value
    return v.item() if isinstance(v, (np.ndarray, np.generic)) else v


def scalar_source(graph: Graph, name: str) -> str:
    """The Python source: a function from the graph's inputs to its outputs (the one output, or a tuple).

    It is called source_name(name, RESERVED).
    """
    names = source_names(graph, RESERVED)
    uses = {n: 0 for n in graph.nodes}
    for n in graph.nodes:
        for a in n.args:
            uses[a] += 1
    imported: set[str] = set()
    texts: dict[Node, tuple[int, str]] = {}  # how tightly it binds, and the text
    lines: list[str] = []
    twice = {
        a
        for n in graph.nodes
        for a in n.args
        if n.op in _SPELLED and _SPELLED[n.op][1].count("{") > len(n.args)
    }

    def arg(n: Node, tightness: int) -> str:
        own, text = texts[n]
        return text if own >= tightness else f"({text})"

    for n in graph.nodes:
        if n.op == "input":
            texts[n] = (ATOM, names[n])
        elif n.op == "const":
            texts[n] = _literal(_number(n), n.dtype, imported)
        else:
            tightness, text = _expression(n, arg, imported)
            # One use: it stands where it is used. A name of its own: what is used again, results, long
            # expressions.
            inline = uses[n] == 1 and n not in twice and n not in graph.outputs and len(text) <= _LONGEST
            if not inline:
                lines.append(f"    {names[n]} = {text}\n")
                tightness, text = ATOM, names[n]
            texts[n] = (tightness, text)
    head = f"from math import {', '.join(sorted(imported))}\n\n\n" if imported else ""
    inputs = ", ".join(names[i] for i in graph.inputs)
    results = ", ".join(arg(o, CHOICE) for o in graph.outputs)
    return f"{head}def {source_name(name, RESERVED)}({inputs}):\n{''.join(lines)}    return {results}\n"


def _expression(n: Node, arg, imported: set) -> tuple[int, str]:
    op, args = n.op, n.args
    if op in _INFIX:
        tightness, sign, left, right = _INFIX[op]
        return tightness, f"{arg(args[0], left)} {sign} {arg(args[1], right)}"
    if op == "power":
        return _power(args, arg, imported)
    if op in _MATH:
        imported.add(_MATH[op])
        return ATOM, f"{_MATH[op]}({', '.join(arg(a, CHOICE) for a in args)})"
    if op == "cast":
        return (
            (ATOM, f"float({arg(args[0], CHOICE)})")
            if args[0].dtype == np.bool_
            else (ATOM, arg(args[0], ATOM))
        )
    if op in _SPELLED:
        tightness, text = _SPELLED[op]
        imported.update(_USES.get(op, ()))
        return tightness, text.format(*(arg(a, min(tightness + 1, ATOM)) for a in args))
    return ATOM, arg(args[0], ATOM)  # reshapes of one number


def _power(args, arg, imported: set) -> tuple[int, str]:
    """`x ** 3`; where Python would turn to complex numbers (a negative base), math.pow, which raises."""
    base, exponent = args
    if is_scalar_const(exponent):
        k = float(_number(exponent))
        if k == 0.5:  # also for NumPy, which shows at -inf
            imported.add("sqrt")
            return ATOM, f"sqrt({arg(base, CHOICE)})"
        if k.is_integer() and abs(k) < 2**53:
            return POWER, f"{arg(base, ATOM)} ** {int(k)}"
    imported.add("pow")
    return ATOM, f"pow({arg(base, CHOICE)}, {arg(exponent, CHOICE)})"


def _literal(value, dtype, imported: set) -> tuple[int, str]:
    if dtype == np.bool_:
        return ATOM, repr(bool(value))
    value = float(value)
    if math.isfinite(value):
        return (ATOM if math.copysign(1.0, value) > 0 else UNARY), repr(value)
    imported.add("nan" if value != value else "inf")
    return (ATOM, "nan") if value != value else (ATOM, "inf") if value > 0 else (UNARY, "-inf")


class ScalarProgram:
    """A graph of floats as a Python function. `function` is the emitted one; calling the program never raises
    where NumPy would give inf or nan. `source` is the text that runs.
    """

    def __init__(self, graph: Graph, name: str | None = None):
        self.graph = graph
        self.name = name or graph.name
        self.source = scalar_source(graph, self.name)
        self.function = load_source(self.source, {}, source_name(self.name, RESERVED))
        self.single = len(graph.outputs) == 1
        self.measures = "plain Python"

    def __call__(self, *floats, out=None) -> tuple:
        try:
            results = self.function(*floats)
        except TROUBLE:
            return self.in_numpy(*floats)
        return (results,) if self.single else results

    def in_numpy(self, *floats) -> tuple:
        """The same by NumPy's rules for inf and nan; float results."""
        return tuple(
            v if isinstance(v, bool) else np.asarray(v).item() for v in evaluate_graph(self.graph, floats)
        )
