"""Writes the values of a graph as readable NumPy lines, without buffers and blocks.

A part that the program repeats is a function within the text, defined once and called each time; readable.py
writes loops over its calls.

A value that has a name in the user's source, or is read more than once, gets a line of its own. Factors are
put in order, so results may differ from the program's in the last bit: constants first, divisors last,
`x * x * x` as a power, a sum over n elements times 1 / n as a mean.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..emit.expressions import ATOM, CHOICE, MULTIPLY, SUM, Text, infix, number_text
from ..emit.layout import results_of
from ..emit.windows import covers, parts_apart
from ..graph import Graph, Node, is_scalar_const, scalar_text, source_name, source_names
from ..ops import OPS
from ..ops.shape import index_text
from ..ops.subgraph import with_slices

LONGEST, SHORT = 70, 30  # longer expressions get a line of their own; SHORT: those for parts of an array
RESERVED = {"np", "complex", "list", "tuple"}  # names that the text uses


@dataclass
class Factors:
    """A product as its sign, numbers, texts of factors, texts of divisors."""

    negative: bool = False
    numbers: tuple[float, ...] = ()
    above: tuple[tuple[str, Node], ...] = ()
    below: tuple[str, ...] = ()

    def times(self, other: Factors) -> Factors:
        return Factors(
            self.negative != other.negative,
            self.numbers + other.numbers,
            self.above + other.above,
            self.below + other.below,
        )


@dataclass
class FactorsText(Text):
    """The text of a product, to which factors can be added."""

    factors: Factors = field(default_factory=Factors)


@dataclass
class KeptRows:
    """A list with a row for each call of a loop, by its name, and how many values are in a row."""

    name: str
    width: int = 0


@dataclass(frozen=True)
class KeptAt:
    """Where in a record a value lies."""

    record: KeptRows
    row: int
    column: int


@dataclass
class Writer:
    """Writes the lines of one graph, in order."""

    graph: Graph
    name: str
    users: dict = field(default_factory=dict)
    names: dict = field(default_factory=dict)
    texts: dict = field(default_factory=dict)  # values that are written where they are read
    lines: list = field(default_factory=list)
    outer: Writer | None = None  # of the function that contains this one
    # values in records of loops; a record of inputs is passed in the place of the first of them
    places: dict[Node, KeptAt] = field(default_factory=dict)
    # number of an input -> a name if it has none
    hints: dict[int, str] = field(default_factory=dict)
    returns_records: bool = False  # whether results in a record of a loop are returned as the record

    def __post_init__(self):
        self.graph = with_slices(self.graph)
        self.users = self.graph.users()
        reserved = RESERVED if self.outer is None else {*RESERVED, *self.outer.shared}
        all_names = source_names(self.graph, reserved)
        self.names = {n: text for n, text in all_names.items() if n.name is not None}
        self.taken = {*self.names.values(), *reserved}
        self.constants: dict[Node, str] = {}  # arrays, also of inner functions
        self.further: list[str] = []  # parameters besides the inputs
        self.depth: int = 1 if self.outer is None else self.outer.depth + 1
        self.functions: dict[Graph, str] = {}
        self.calls = results_of(self.graph)
        self.results = set(self.graph.outputs)
        self.defined: set[Node] = set()  # values that have a line already
        self.written_for: list[Node | None] = []  # for each line the value that it was written for
        self.order: Sequence[Node] = self.graph.nodes

    def source(self) -> str:
        return "\n".join(["import numpy as np", "", "", *self.function()]) + "\n"

    def function(self) -> list[str]:
        parameters = self.parameters()
        for n in self.graph.nodes:
            if n.op == "const" and n.shape:
                self.begin_constant(n)
        for body in dict.fromkeys(n.attrs["body"] for n in self.calls):
            for n in body.nodes:
                if n.op == "const" and n.shape:
                    self.begin_constant(n)
            name = self.functions[body] = self.fresh(source_name(body.name, RESERVED))
            inner = type(self)(body, name, outer=self, hints=self.hints_for(body))
            self.lines += ["", *inner.function(), ""]
        self.attribute(None)
        for n in self.order:
            if n.op not in ("input", "const"):
                self.statement(n)
            self.attribute(n)
        outputs = self.returned()
        short = [f"return ({outputs[0]},)" if outputs else "return ()"]
        self.lines += self.listed("return ", outputs) if len(outputs) > 1 else short
        head = self.listed(f"def {source_name(self.name, RESERVED)}(", [*parameters, *self.further], "):", -1)
        return [*head, *(f"    {line}" if line else "" for line in self.lines)]

    def listed(self, before: str, items: Sequence[str], after: str = "", depth: int = 0) -> list[str]:
        """The lines of a list of items between two texts. depth: of blocks within this function"""
        return [f"{before}{', '.join(items)}{after}"]

    def call_lines(
        self, targets: Sequence[str], body: Graph, args: Sequence[str], depth: int = 0
    ) -> list[str]:
        comma = "," * (len(targets) == 1)
        return self.listed(f"{', '.join(targets)}{comma} = {self.functions[body]}(", args, ")", depth)

    def attribute(self, n: Node | None) -> None:
        """Note that the new lines were written for this value."""
        self.written_for += [n] * (len(self.lines) - len(self.written_for))

    def parameters(self) -> list[str]:
        """A name for each input, or for the record that it is in."""
        self.taken.update(place.record.name for place in self.places.values())
        parameters = []
        for k, n in enumerate(self.graph.inputs):
            place = self.places.get(n)
            if place is None:
                parameters.append(self.begin(n, self.hints.get(k, "saved")))
            else:
                self.place(n, place)
                parameters.append(place.record.name)
        return list(dict.fromkeys(parameters))

    def returned(self) -> list[str]:
        """The texts behind `return`, a record once."""
        texts: list[str] = []
        for o in self.graph.outputs:
            place = self.place_returned(o)
            text = self.ref(o).at(SUM) if place is None else place.record.name
            if place is None or text not in texts:
                texts.append(text)
        return texts

    def place_returned(self, o: Node) -> KeptAt | None:
        """The place of a result that is returned with its record; never of the first result."""
        alone = o is not self.graph.outputs[0] and self.graph.outputs.count(o) == 1
        return self.places.get(o) if self.returns_records and alone else None

    def place(self, n: Node, place: KeptAt) -> None:
        """Note that a value is in a record, which is its name if it has no other."""
        self.places[n] = place
        if n not in self.defined:
            self.names[n] = f"{place.record.name}[{place.row}][{place.column}]"
            self.defined.add(n)

    def fresh(self, hint: str) -> str:
        """A name that is not taken."""
        name, number = hint, 1
        while name in self.taken or not name.isidentifier():
            number += 1
            name = f"{hint}_{number}"
        self.taken.add(name)
        return name

    # ---- inner functions

    @property
    def shared(self) -> set[str]:
        """The names that an inner function reads from this one."""
        return {*self.constants.values(), *self.functions.values()}

    def begin_constant(self, n: Node) -> str:
        """The name of a constant array, which has its line at the top of the outermost function."""
        if self.outer is not None:
            self.names[n] = self.outer.begin_constant(n)
            self.defined.add(n)
        elif n not in self.constants:
            self.constants[n] = self.begin(n, "constant")
            self.lines.append(self.constant_line(n, self.constants[n]))
        return self.names[n]

    def constant_line(self, n: Node, name: str) -> str:
        return f"# {name}: {n.dtype} {n.shape}, never changed"

    def hints_for(self, body: Graph) -> dict[int, str]:
        """Number of an input of an inner function -> its name if it has none."""
        return {}

    def write_outlined(self, n: Node) -> bool:
        """The line of a call; unread results are called _."""
        results, body = self.calls[n], n.attrs["body"]
        names = []
        for k, o in enumerate(body.outputs):
            same = results.get(k, [])
            names.append(self.begin(same[0], o.name) if same else "_")
            for other in same[1:]:
                self.names[other] = names[-1]
                self.defined.add(other)
        self.lines += self.call_lines(names, body, list(map(self.argument, n.args)))
        return True

    def argument(self, a: Node) -> str:
        """The text of an argument of an inner function: a number as a NumPy scalar, which may be reshaped."""
        return f"np.{a.dtype}({scalar_text(a)})" if is_scalar_const(a) else self.ref(a).text

    def write_item(self, n: Node) -> bool:
        """Nothing, for a result of a call that has its line."""
        return n.args[0] in self.calls

    # ---- values

    def statement(self, n: Node) -> None:
        """Write the lines that begin with this value, if it has any."""
        self.value(n)

    def value(self, n: Node) -> None:
        """Keep the expression for where it is read, or give it a line."""
        statement = getattr(self, f"write_{n.op}", None)
        if statement is not None and statement(n):
            return
        text = self.expression(n)
        alone = n.name is None and len(self.users[n]) == 1 and n not in self.results
        if alone and len(text.text) < (SHORT if self.users[n][0].op == "assemble" else LONGEST):
            self.texts[n] = text
        else:
            self.lines.append(f"{self.begin(n)} = {text.text}")

    def ref(self, n: Node) -> Text:
        if is_scalar_const(n):
            return number_text(scalar_text(n))
        return self.texts.get(n) or Text(self.names[n])

    def begin(self, n: Node, hint: str | None = None) -> str:
        """The name of a value, which counts as defined from now on."""
        self.defined.add(n)
        return self.named(n, hint)

    def named(self, n: Node, hint: str | None = None) -> str:
        """A name: the user's, or one after its op and argument, or t1, t2, ..."""
        if n in self.names:
            return self.names[n]
        if hint is None:
            simple = OPS[n.op].ufunc is not None and len(n.args) == 1 and n.op not in ("negative", "positive")
            argument = self.names.get(n.args[0], "") if simple else ""
            hint = f"{n.op}_{argument}" if argument.isalpha() else "t"
            hint = "out" if n in self.graph.outputs[:1] else hint
        number = 1 if hint == "t" else 2
        name = f"t{number}" if hint == "t" else hint
        while name in self.taken:
            number += name[-1].isdigit()
            name = f"{hint}{number}" if hint == "t" else f"{hint}_{number}"
        self.taken.add(name)
        self.names[n] = name
        return name

    # ---- expressions

    def expression(self, n: Node) -> Text:
        op = n.op
        if op in ("multiply", "divide", "negative") or op == "square" and n.args[0] in self.defined:
            p = self.factors_of(n)
            factors, numbers, below = self.with_means(p)
            text = " / ".join([" * ".join(numbers + _powers(factors)) or "1.0", *below])
            alone = text in factors and text.isidentifier() and not p.negative
            return FactorsText("-" + text if p.negative else text, ATOM if alone else MULTIPLY, p)
        if op in ("add", "subtract"):
            return self.sum_of(*map(self.ref, n.args), minus=op == "subtract")
        if op == "matmul":
            return infix("@", *map(self.ref, n.args))
        text = self.call(n)
        closed = code_of(n.op) is None or isinstance(ast.parse(text, mode="eval").body, UNDIVIDED)
        return Text(text, ATOM if closed else CHOICE)

    def sum_of(self, a: Text, b: Text, minus: bool) -> Text:
        if not minus and a.text.startswith("-") and not b.text.startswith("-"):
            a, b = b, a
        right = b.at(MULTIPLY if minus else SUM)
        if right.startswith("-"):
            right, minus = right[1:], not minus
        return Text(f"{a.at(SUM)} {'-' if minus else '+'} {right}", SUM)

    def factors_of(self, n: Node) -> Factors:
        """n as its factors, those of arguments without a line of their own included."""
        if is_scalar_const(n):
            v = n.value
            if isinstance(v, float) and np.isfinite(v):
                return Factors(v < 0, (abs(v),))
            return Factors(above=((scalar_text(n), n),))
        known = self.texts.get(n)
        if n in self.defined:
            return Factors(above=((self.names[n], n),))
        if isinstance(known, FactorsText):
            return known.factors
        if known is not None:
            return Factors(above=((known.at(MULTIPLY), n),))
        first = self.factors_of(n.args[0])
        if n.op == "square":
            return first.times(first)
        if n.op == "negative":
            return first.times(Factors(True))
        if n.op == "multiply":
            return first.times(self.factors_of(n.args[1]))
        return first.times(Factors(below=(self.ref(n.args[1]).at(ATOM),)))

    def with_means(self, p: Factors) -> tuple[list[str], list[str], list[str]]:
        """(factors, numbers, divisors) as texts: a number that is 1 / n divides, or makes a mean of a sum."""
        above, numbers, below = list(p.above), [], list(p.below)
        for c in p.numbers:
            n = round(1 / c) if c else 0
            if len(repr(c)) < 8 or n < 3 or abs(n * c - 1) > 1e-15:
                numbers.append(repr(c))
                continue
            k = next((k for k, (_, m) in enumerate(above) if self.averages(m, n)), None)
            if k is None:
                below.insert(0, str(n))
            else:
                above[k] = self.call(above[k][1]).replace("np.sum", "np.mean", 1), above[k][1]
        return [text for text, _ in above], numbers, below

    def averages(self, n: Node, count: int) -> bool:
        """Whether n is a sum over so many elements, written where it is read."""
        return n.op == "sum" and n in self.texts and count * n.size == n.args[0].size

    def call(self, n: Node) -> str:
        args, attrs = n.args, n.attrs
        if n.op in ("reshape", "transpose"):
            item = self.entry(n) if n.op == "reshape" else None
            return item or f"{self.ref(args[0]).at(ATOM)}{view_text(n)}"
        if n.op == "slice":
            return f"{self.ref(args[0]).at(ATOM)}[{index_text(attrs['index'], args[0].shape)}]"
        if n.op == "gather":
            return f"{self.ref(args[0]).at(ATOM)}[{self.spec(n, args[1:])}]"
        if n.op == "broadcast" and is_scalar_const(args[0]):
            return f"np.full({n.shape}, {scalar_text(args[0])}, np.{n.dtype})"
        if n.op == "assemble" and (axis := _axis(n)) is not None:
            order = sorted(range(len(args)), key=lambda k: attrs["indices"][k][axis][0])
            return f"np.concatenate(({', '.join(self.ref(args[k]).text for k in order)}), axis={axis})"
        code = code_of(n.op)
        if code is not None:
            return applied(code, [self.ref(a) for a in args], attrs)
        settings = [f"{k}={v!r}" for k, v in attrs.items()]
        return f"{n.op}({', '.join([self.ref(a).text for a in args] + settings)})"

    def entry(self, n: Node) -> str | None:
        """x[:, 0] for a slice of length 1 whose axis is then dropped."""
        s = n.args[0]
        if s.op != "slice" or s not in self.texts:
            return None
        index, shape = s.attrs["index"], s.args[0].shape
        dropped = [k for k, m in enumerate(s.shape) if m == 1 and shape[k] > 1]
        if not dropped or tuple(m for k, m in enumerate(s.shape) if k not in dropped) != n.shape:
            return None
        each = enumerate(zip(index, shape))
        parts = [str(i[0]) if k in dropped else index_text((i,), (m,)) for k, (i, m) in each]
        while parts[-1] == ":":
            parts.pop()
        return f"{self.ref(s.args[0]).at(ATOM)}[{', '.join(parts)}]"

    def spec(self, n: Node, arrays: Sequence[Node]) -> str:
        """The index of gather, scatter and scatter_add."""
        return index_text(n.attrs["spec"], n.args[0].shape, [self.ref(a).text for a in arrays])

    # ---- ops that take more than one line: True if they were written

    def begin_copy(self, n: Node) -> str:
        """A name for n, which starts as a copy of its first argument."""
        x = n.args[0]
        start = self.ref(x)
        fresh = x in self.texts and (OPS[x.op].ufunc is not None or x.op == "matmul")
        name = self.begin(n)
        while x.op == "broadcast":
            x = x.args[0]
        if is_scalar_const(x) and x.value == 0:
            self.lines.append(f"{name} = np.zeros({n.shape}, np.{n.dtype})")
        else:
            self.lines.append(f"{name} = {start.text if fresh else f'{start.at(ATOM)}.copy()'}")
        return name

    def write_assemble(self, n: Node) -> bool:
        if _axis(n) is not None:
            return False
        name = self.begin(n)
        self.lines.append(f"{name} = np.zeros({n.shape}, np.{n.dtype})")
        sign = "=" if parts_apart(n) else "+="
        for x, index in zip(n.args, n.attrs["indices"]):
            self.lines.append(f"{name}[{index_text(index, n.shape)}] {sign} {self.ref(x).text}")
        return True

    def write_update(self, n: Node) -> bool:
        name = self.begin_copy(n)
        index = index_text(n.attrs["index"], n.shape)
        self.lines.append(f"{name}[{index}] = {self.ref(n.args[1]).text}")
        return True

    def write_scatter(self, n: Node) -> bool:
        name = self.begin_copy(n)
        self.lines.append(f"{name}[{self.spec(n, n.args[2:])}] = {self.ref(n.args[1]).text}")
        return True

    def write_scatter_add(self, n: Node) -> bool:
        name = self.begin_copy(n)
        index = self.spec(n, n.args[2:])
        if len(n.attrs["spec"]) > 1 and ", " in index:
            index = f"np.s_[{index}]"
        self.lines.append(f"np.add.at({name}, {index}, {self.ref(n.args[1]).text})")
        return True

    def write_scatter_along_add(self, n: Node) -> bool:
        name, (_, index, v), axis = self.begin_copy(n), n.args, n.attrs["axis"]
        several = index.shape[axis] != 1  # entries may be hit more than once
        grid = self.named(Node("grid", (), {}, (), n.dtype), "grid") if several else ""
        at = self.ref(index).text
        if index in self.texts:
            at = self.begin(index, "index")
            self.lines.append(f"{at} = {self.texts[index].text}")
        if several:
            self.lines.append(f"{grid} = list(np.indices({index.shape}, sparse=True))")
            self.lines.append(f"{grid}[{axis}] = {at}")
            self.lines.append(f"np.add.at({name}, tuple({grid}), {self.ref(v).text})")
            return True
        taken = f"np.take_along_axis({name}, {at}, axis={axis})"
        added = self.sum_of(Text(taken), self.ref(v), minus=False).text
        self.lines.append(f"np.put_along_axis({name}, {at}, {added}, axis={axis})")
        return True


# NumPy expressions for ops that programs compute with functions of the compiler
SPELT: dict[str, Callable] = {
    "solve_triangular": lambda a, b, upper: f"np.linalg.solve(np.{'triu' if upper else 'tril'}({a}), {b})",
    "eig": lambda x, dtype: f"tuple(part.astype(np.{dtype}) for part in np.linalg.eig({x}))",
    "round_decimal": lambda x, digits: f"np.asarray(round(np.asarray({x}).item(), {digits}))",
    "in_order": lambda x: f"np.copy({x})",
}


def code_of(op: str) -> Callable | None:
    """The function from the texts of arguments to that of an op; None for an op without a name in NumPy."""
    return SPELT.get(op, OPS[op].code)


def applied(code: Callable, args: Sequence[Text], attrs: Mapping[str, Any]) -> str:
    """The text of an op by its row of the table, with parentheses around arguments where needed."""
    text = code(*(a.text for a in args), **attrs)
    if all(a.tightness == ATOM for a in args):
        return text
    apart = code(*(a.at(ATOM) for a in args), **attrs)
    tree, other = (ast.dump(ast.parse(code, mode="eval")) for code in (text, apart))
    return text if tree == other else apart


# What needs no parentheses in other expressions
UNDIVIDED = (ast.Call, ast.Subscript, ast.Attribute, ast.Name, ast.Constant, ast.Tuple, ast.List)


def _axis(n: Node) -> int | None:
    """The axis along which an assemble concatenates its parts; None if it does anything else."""
    indices = n.attrs["indices"]
    axes = [a for a in range(n.ndim) if any(i[a] != (0, n.shape[a], 1) for i in indices)]
    return axes[0] if len(axes) == 1 and len(indices) > 1 and covers(n) else None


def _powers(factors: list[str]) -> list[str]:
    """The factors, a repeated name as a power."""
    return [
        f"{text}**{factors.count(text)}" if factors.count(text) > 1 and text.isidentifier() else text
        for k, text in enumerate(factors)
        if not text.isidentifier() or text not in factors[:k]
    ]


def view_text(n: Node) -> str:
    """The method call for a reshape or a transpose of an array."""
    if n.op == "reshape":
        return f".reshape({n.shape})"
    perm = n.attrs["perm"]
    moved = [k for k, p in enumerate(perm) if k != p]
    if tuple(perm) == (1, 0):
        return ".T"
    return f".swapaxes({moved[0]}, {moved[1]})" if len(moved) == 2 else f".transpose({tuple(perm)})"
