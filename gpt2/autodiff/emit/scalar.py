"""Programs of Python floats, as plain `math` code.

A NumPy call on one number costs about a microsecond, and `math.sin` thirty nanoseconds; so a graph in which
every value is a single float64 (or bool) is written out in Python's own arithmetic:

    from math import cos, sin

    def f_grad(x):
        dx = cos(x) * x + sin(x)
        return dx

The C library's exp rounds in a few cases otherwise than NumPy's. In strict mode a value that has to keep
every bit (ops/exactness.py) is therefore computed by `np.exp`, and what only a derivative reads by `exp`.

Python raises where NumPy gives inf or nan (1.0 / 0.0, exp(1000.0), log(-1.0)). The program then starts over
in NumPy, so that the answer is the one NumPy gives, warning included; that path is slow, and rare.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

import numpy as np

from ..doors import beside
from ..graph import Graph, Immutable, Node, const_value, exchanged, is_scalar_const, source_name, source_names
from ..hidden import Hidden, decided, known
from ..ops import OPS
from ..ops.interpret import evaluate_graph
from .expressions import (
    AND,
    ATOM,
    CHOICE,
    FORMS,
    MULTIPLY,
    NOT,
    OR,
    POWER,
    Forms,
    Text,
    is_written,
    number_text,
    written,
)
from .program import hidden_in, load_source, with_globals

# Ops without a Python operator. An argument that appears twice is a name or a number.
_FORMS: Forms = {
    **FORMS,
    **dict.fromkeys(
        ("real", "conjugate", "copy", "reshape", "broadcast", "transpose", "stop_gradient"), (ATOM, "{0}")
    ),
    "sign": (CHOICE, "0.0 if {0} == 0.0 else {0} if {0} != {0} else copysign(1.0, {0})"),
    "heaviside": (CHOICE, "{1} if {0} == 0.0 else {0} if {0} != {0} else float({0} > 0.0)"),
    "maximum": (CHOICE, "{0} if {0} >= {1} or {0} != {0} else {1}"),
    "minimum": (CHOICE, "{0} if {0} <= {1} or {0} != {0} else {1}"),
    "fmax": (CHOICE, "{0} if {0} >= {1} or {1} != {1} else {1}"),
    "fmin": (CHOICE, "{0} if {0} <= {1} or {1} != {1} else {1}"),
    "floor": (ATOM, "copysign(floor({0}), {0})"),  # Python's are integers, which have no -0.0
    "ceil": (ATOM, "copysign(ceil({0}), {0})"),
    "trunc": (ATOM, "copysign(trunc({0}), {0})"),
    "remainder": (MULTIPLY, "{0} % {1}"),
    "floor_divide": (MULTIPLY, "{0} // {1}"),
    "logical_and": (AND, "{0} and {1}"),
    "logical_or": (OR, "{0} or {1}"),
    "logical_not": (NOT, "not {0}"),
    "where": (CHOICE, "{1} if {0} else {2}"),
}
# What those forms call
_IMPORTS = {"sign": ("copysign",), **{op: (op, "copysign") for op in ("floor", "ceil", "trunc")}}
# Of these, Python and NumPy have the same bits
_ALIKE = frozenset("sqrt absolute fabs copysign fmod isnan isinf isfinite".split())
_LOGIC = ("logical_and", "logical_or", "logical_not")
_LONGEST = 72  # characters of an expression before a part of it gets a line of its own

# What Python raises where NumPy returns inf or nan
FLOAT_ERRORS = (ArithmeticError, ValueError)


def reserved() -> set[str]:
    """Names that the text uses, so that no variable may have them."""
    functions = {op.math for op in OPS.values() if op.math is not None}
    called = {name for names in _IMPORTS.values() for name in names}
    return {*functions, *called, "pow", "nan", "inf", "float", "bool", "np"}


def is_scalar(graph: Graph) -> bool:
    """Whether the graph can be written as `math` code."""
    kinds = {n.dtype for n in graph.outputs}  # a constant may be an int64, or a float32
    known_kinds = bool(kinds) and kinds <= {np.dtype(np.float64), np.dtype(np.bool_)}
    return known_kinds and all(map(_fits, graph.nodes))


def _fits(n: Node) -> bool:
    if n.shape != () or n.dtype not in (np.float64, np.bool_):
        return is_scalar_const(n) and isinstance(const_value(n), (int, float))
    if n.op in ("input", "const"):
        return n.dtype == np.float64 or n.op == "const"
    if n.op in _LOGIC:  # of floats: bools in NumPy, floats in Python
        return all(a.dtype == np.bool_ for a in n.args)
    if n.op == "cast":
        return n.dtype == np.float64 and n.args[0].dtype in (np.float64, np.bool_)
    function = OPS[n.op].math
    return n.op == "power" or is_written(n.op, _FORMS) or function is not None and hasattr(math, function)


class _Writer:
    """Writes the lines of one graph, in order. What is read once stands where it is read."""

    def __init__(self, graph: Graph, exact: Container[int]):
        self.graph, self.exact, self.reserved = graph, exact, reserved()
        self.names = source_names(graph, self.reserved)
        self.users = graph.users()
        self.imported: set[str] = set()
        self.texts: dict[Node, Text] = {}
        self.lines: list[str] = []

    def source(self, name: str) -> str:
        for n in self.graph.nodes:
            self.texts[n] = self.text(n)
        results = ", ".join(self.texts[o].text for o in self.graph.outputs)
        inputs = ", ".join(self.names[i] for i in self.graph.inputs)
        functions = ", ".join(sorted(self.imported - {"np"}))
        imports = [f"from math import {functions}\n"] if functions else []
        if "np" in self.imported:
            imports.append("import numpy as np\n")
        head = "\n".join(imports) + "\n\n" if imports else ""
        body = "".join(f"    {line}\n" for line in (*self.lines, f"return {results}"))
        return f"{head}def {source_name(name, self.reserved)}({inputs}):\n{body}"

    def text(self, n: Node) -> Text:
        """The text by which later lines read n."""
        if n.op == "input":
            return Text(self.names[n])
        if n.op == "const":
            return self.literal(n)
        expression = self.expression(n)
        if len(self.users[n]) == 1 and n not in self.graph.outputs and len(expression.text) <= _LONGEST:
            (user,) = self.users[n]
            repeats_arguments = user.op in _FORMS and _FORMS[user.op][1].count("{") > len(user.args)
            if not repeats_arguments:
                return expression
        self.lines.append(f"{self.names[n]} = {expression.text}")
        return Text(self.names[n])

    def expression(self, n: Node) -> Text:
        args = [self.texts[a] for a in n.args]
        if n.op == "power":
            return self.power(*n.args)
        if n.op == "cast":
            return self.call("float", *args) if n.args[0].dtype == np.bool_ else Text(args[0].at(ATOM))
        if is_written(n.op, _FORMS):
            if n.op in _IMPORTS:
                self.imported.update(_IMPORTS[n.op])
            return written(n.op, args, _FORMS)
        if n.id in self.exact and n.op not in _ALIKE:
            self.imported.add("np")
            return self.call("bool" if n.dtype == np.bool_ else "float", self.call(f"np.{n.op}", *args))
        self.imported.add(OPS[n.op].math)
        return self.call(OPS[n.op].math, *args)

    def call(self, function: str, *args: Text) -> Text:
        return Text(f"{function}({', '.join(a.text for a in args)})")

    def power(self, base: Node, exponent: Node) -> Text:
        """`x ** 3`; where Python would turn to complex numbers (a negative base), math.pow, which raises."""
        x = self.texts[base]
        if is_scalar_const(exponent):
            k = const_value(exponent)
            if decided(_is_exact_integer, k):
                return Text(f"{x.at(ATOM)} ** {int(known(k))}", POWER)
        self.imported.add("pow")
        return self.call("pow", x, self.texts[exponent])

    def literal(self, n: Node) -> Text:
        if n.dtype == np.bool_:
            return Text(repr(bool(const_value(n))))
        value = const_value(n)
        if decided(math.isfinite, value):
            return number_text(repr(value if type(value) is Hidden else float(value)))
        self.imported.add("nan" if value != value else "inf")
        return number_text(repr(value))


def _is_exact_integer(k: float) -> bool:
    return float(k).is_integer() and abs(k) < 2**53


class ScalarProgram(Immutable):
    """A graph of floats as a Python function, which never raises where NumPy gives inf or nan."""

    def __init__(self, graph: Graph, name: str | None = None, exact: Container[int] = frozenset()):
        self.graph = graph
        self.name = name or graph.name
        self.source = _Writer(graph, exact).source(self.name)
        function = source_name(self.name, reserved())
        self.function = load_source(self.source, {}, function)
        self._hidden = hidden_in(self.source, {})
        self.single = len(graph.outputs) == 1
        self.measures = "plain Python"

    def exchanged(self, values: Sequence) -> ScalarProgram:
        """A copy of the program with these values for the hidden ones."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.function = with_globals(self.function, self._hidden, values)
        other.graph = exchanged(self.graph, values)
        return other

    def __call__(self, *floats: float, out: None = None) -> tuple:
        try:
            results = self.function(*floats)
        except FLOAT_ERRORS:
            return self.in_numpy(*floats)
        return (results,) if self.single else results

    def _repr_html_(self) -> str:
        return beside("show.drawing").shown(self.graph, self.name, self.source)

    def in_numpy(self, *floats: float) -> tuple:
        """The same by NumPy's rules for inf and nan; float results."""
        values = evaluate_graph(self.graph, floats)
        return tuple(v if isinstance(v, bool) else np.asarray(v).item() for v in values)
