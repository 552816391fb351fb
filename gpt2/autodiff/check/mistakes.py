"""Common mistakes in a gradient's formula, tried one by one on the derived formula.

mistakes(formula) yields (description, wrong gradient) for every single step of the right gradient done
wrongly: an operand transposed, a term or a factor left out or with the wrong sign, a mean for a sum, parts in
another order, one value for another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import permutations

import numpy as np

from ..graph import Graph, Node, reachable
from ..ops import evaluate
from ..ops.interpret import evaluate_graph
from .axes import about_factor, axis_names

MOST = 4000  # wrong steps to try; each costs the rest of the formula
SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "matmul": "@"}


def text_of(n: Node, depth: int = 2) -> str:
    """A value as text: its name in the source, or a short formula."""
    if n.name:
        return n.name
    if n.op == "const":
        return f"{n.value:g}" if not n.shape and np.isrealobj(n.value) else "a constant"
    if depth == 0 or not n.args:
        return "..."
    parts = [text_of(a, depth - 1) for a in n.args]
    if n.op in ("broadcast", "reshape"):
        return parts[0]
    if n.op in SIGNS and len(parts) == 2:
        return f"({parts[0]} {SIGNS[n.op]} {parts[1]})"
    return f"{n.op}({', '.join(parts)})"


class DerivedFormula:
    """The graph of a function and its gradient with all values, which can be evaluated with one of them
    changed.

    graph    the gradient is its last output
    forward  the values that belong to the function itself
    """

    text = whole = staticmethod(text_of)
    is_right = True  # mistakes are tried in it; in a wrong one, corrections

    def __init__(self, graph: Graph, forward: set[Node], values: Sequence[np.ndarray]):
        self.graph, self.forward = graph, forward
        self.values = dict(zip(graph.nodes, evaluate_graph(Graph(graph.inputs, graph.nodes), values)))
        self.needed = set(reachable(graph.outputs[-1:]))

    def of(self, *nodes: Node) -> list[np.ndarray]:
        return [self.values[n] for n in nodes]

    def with_values(self, new: dict[Node, np.ndarray], backward_alone: bool = False) -> np.ndarray:
        """The gradient if nodes had these values: everywhere, or with backward_alone in the gradient's own
        steps, as if the forward had saved the values that depend on them."""
        for n in self.graph.nodes:
            if backward_alone and n in self.forward:
                continue
            if n not in new and n in self.needed and any(a in new for a in n.args):
                new[n] = evaluate(n.op, [new.get(a, self.values[a]) for a in n.args], n.attrs)
        return new.get(self.graph.outputs[-1], self.values[self.graph.outputs[-1]])


def mistakes(formula: DerivedFormula, suspected: Callable[[Node], bool]) -> Iterator[tuple[str, np.ndarray]]:
    """(description, wrong gradient) for the suspected steps, likeliest kinds first."""
    steps = [n for n in formula.graph.nodes if n in formula.needed and n.args]
    steps = [n for n in steps if not isinstance(n.dtype, tuple) and n.dtype.kind in "fc"]
    steps = [n for n in steps if suspected(n)]
    # the gradient's own steps before those of the function, which a backward may compute again
    steps.sort(key=lambda n: n in formula.forward)
    tried = 0
    for kind in KINDS:
        for n in steps:
            for text, value in kind(formula, n):
                if value.shape != n.shape and kind is not other_axes:
                    continue
                tried += 1
                if tried > MOST:
                    return
                for alone in (False, True)[: 1 + (n in formula.forward)]:
                    with suppress(ValueError):  # shapes that do not fit
                        yield text + _location(n), formula.with_values({n: value}, backward_alone=alone)
    yield from _constants(formula)


def file_name(path: str) -> str:
    """A source file without its folder. A notebook's cell runs from a file of ipykernel named by a number."""
    folder, name = os.path.split(path)
    return "notebook cell" if os.path.basename(folder).startswith("ipykernel_") else name


def _location(n: Node) -> str:
    if n.loc is None:
        return ""
    return f" ({'the gradient of ' if n.derived else ''}{file_name(n.loc[0])}:{n.loc[1]})"


def products(formula: DerivedFormula, n: Node) -> Iterator:
    if n.op == "transpose":
        x = formula.values[n.args[0]]
        if x.shape == n.shape:
            yield _transposed(formula, n), x
    if n.op == "matmul" and len(n.args) == 2:
        a, b = formula.of(*n.args)
        first, second = map(formula.text, n.args)
        text = f"in {first} @ {second}, "
        if a.ndim > 1 and a.shape[-1] == a.shape[-2]:
            yield text + _transposed(formula, n.args[0]), np.swapaxes(a, -1, -2) @ b
        if b.ndim > 1 and b.shape[-1] == b.shape[-2]:
            yield text + _transposed(formula, n.args[1]), a @ np.swapaxes(b, -1, -2)
        if a.shape == b.shape and a.ndim > 1 and a.shape[-1] == a.shape[-2]:
            yield text + "the operands are in the wrong order", b @ a


def _transposed(formula, n):
    while n.op == "transpose":
        (n,) = n.args
    return f"{formula.text(n)} and its transpose are taken for each other"


def _sums(formula: DerivedFormula, n: Node):
    if n.op != "sum":
        return
    x = n.args[0]
    axes = n.attrs.get("axes") or tuple(range(x.ndim))
    count = int(np.prod([x.shape[k] for k in axes]))
    where = _axes(axes)
    names = axis_names(formula.graph).get(x.name or "", [])
    if len(names) == x.ndim and all(names[k] for k in axes):
        where = " and ".join(names[k] for k in axes)
    value = formula.values[n]
    yield f"the mean of {text_of(x)} over {where} is taken where the sum is meant", value / count
    first = formula.values[x][tuple(slice(0, 1) if k in axes else slice(None) for k in range(x.ndim))]
    if first.size == value.size:
        yield f"the first of {where} of {text_of(x)} is taken where the sum is meant", first.reshape(n.shape)


def other_axes(formula: DerivedFormula, n: Node) -> Iterator:
    """A sum, a mean or an extreme over another axis, where the shapes still broadcast."""
    axes = n.attrs.get("axes") or ()
    if n.op not in ("sum", "max", "min") or not n.attrs.get("keepdims") or len(axes) > 1 and formula.is_right:
        return
    x, count = formula.values[n.args[0]], np.prod([n.args[0].shape[k] for k in axes])
    for k in range(x.ndim):
        if axes != (k,):
            value = evaluate(n.op, [x], {**n.attrs, "axes": (k,)})
            wrong, meant = ((k,), axes) if formula.is_right else (axes, (k,))
            over = f"is over {_axes(wrong)} where {_axes(meant)} is meant"
            text = f"the {n.op} of {formula.text(n.args[0])} {over}"
            yield text, value
            if n.op == "sum":
                yield text.replace("sum", "mean", 1), value * (count / x.shape[k])


def _axes(axes: Sequence[int]) -> str:
    return f"{'axis' if len(axes) == 1 else 'axes'} {', '.join(map(str, axes))}"


def _constants(formula: DerivedFormula) -> Iterator[tuple[str, np.ndarray]]:
    """A number of the formula that is left out wherever it stands, as the 1 / sqrt(d) of attention."""
    groups: dict[float, list[Node]] = {}
    for n in formula.graph.nodes:
        if n.op == "const" and not n.shape and n.dtype.kind == "f" and n in formula.needed:
            groups.setdefault(float(formula.values[n]), []).append(n)
    for number, nodes in groups.items():
        if number not in (0.0, 1.0):
            cause = about_factor(1.0 / number, formula.graph)
            as_root = f", 1/{cause[0]}" if cause and not cause[0].replace(".", "").isdigit() else ""
            values = {n: np.ones((), n.dtype) for n in nodes}
            yield f"the factor {number:g}{as_root} is left out everywhere", formula.with_values(values)


def _scalings(formula: DerivedFormula, n: Node):
    if n.op in ("multiply", "divide") and n.args[1].op == "const" and not n.args[1].shape:
        a, c = formula.of(*n.args)
        yield f"{text_of(n.args[0])} is scaled by {c:g} twice", a * c * c if n.op == "multiply" else a / c / c


def _terms(formula: DerivedFormula, n: Node):
    if n.op not in ("add", "subtract") or len(n.args) != 2:
        return
    x, y = (np.broadcast_to(v, n.shape) for v in formula.of(*n.args))
    sign = 1 if n.op == "add" else -1
    named = _softmax_term(formula, n)
    whole = f"{text_of(n.args[0])} {SIGNS[n.op]} {text_of(n.args[1])}"
    yield named or f"of {whole} the term {text_of(n.args[1])} is left out", x
    yield f"of {whole} the term {text_of(n.args[0])} is left out", sign * y
    yield f"of {whole} the term {text_of(n.args[1])} has the wrong sign", x - sign * y
    yield f"of {whole} the term {text_of(n.args[0])} has the wrong sign", -x + sign * y


SOFTMAX = (
    "the softmax's sum term is missing: with p = softmax(s), ds = p * (dp - sum(p * dp)), "
    "and only p * dp is there"
)


def _softmax_term(formula: DerivedFormula, n: Node) -> str | None:
    """SOFTMAX if n is the difference in a softmax's gradient: it subtracts a sum of products, and is
    multiplied by exponentials; else None."""
    taken = [m for m in reachable(n.args[1:]) if m not in formula.forward]
    sums = any(m.op == "sum" for m in taken)
    users = [m for m in formula.graph.nodes if n in m.args and m.op == "multiply"]
    softmax = any(a.op == "exp" for m in users for a in m.args if a is not n)
    return SOFTMAX if sums and softmax and n not in formula.forward else None


def _factors(formula: DerivedFormula, n: Node):
    if n.op not in ("multiply", "divide") or len(n.args) != 2:
        return
    x, y = (np.broadcast_to(v, n.shape) for v in formula.of(*n.args))
    whole = f"{text_of(n.args[0])} {SIGNS[n.op]} {text_of(n.args[1])}"
    cause = None
    if n.op == "multiply" and n.args[1].op == "const" and not n.args[1].shape and np.isrealobj(y) and y.all():
        cause = about_factor(1.0 / float(n.args[1].value), formula.graph)
    if cause:
        yield f"the factor 1/{cause[0]} of {text_of(n.args[0])} is left out: {cause[1]}", x
    yield f"of {whole} the factor {text_of(n.args[1])} is left out", x
    if n.op == "multiply":
        yield f"of {whole} the factor {text_of(n.args[0])} is left out", y
        yield f"of {whole} the factor {text_of(n.args[1])} is divided by", x / np.where(y == 0, np.nan, y)
        yield f"of {whole} the factor {text_of(n.args[1])} is there twice", x * y * y
        yield f"of {whole} the factor {text_of(n.args[0])} is there twice", x * x * y
    else:
        yield f"{text_of(n.args[0])} is multiplied by {text_of(n.args[1])} where it should be divided", x * y
        yield f"{text_of(n.args[0])} is divided by {text_of(n.args[1])} twice", x / y / y


def orders(formula: DerivedFormula, n: Node) -> Iterator:
    """Concatenated parts, and axes: in another order, or one left out."""
    x = n.args[0]
    if n.op == "assemble" and 1 < len(n.args) < 5:
        parts = formula.of(*n.args)
        for order in permutations(range(len(parts))):
            fits = all(parts[i].shape == p.shape for i, p in zip(order, parts))
            if fits and order != tuple(range(len(parts))):
                wrong = evaluate(n.op, [parts[i] for i in order], n.attrs)
                yield f"the parts of {formula.whole(n)} are in the wrong order", wrong
        for k in range(len(parts)):
            wrong = evaluate(n.op, [p * (i != k) for i, p in enumerate(parts)], n.attrs)
            yield f"one part of {formula.whole(n)} is left at zero", wrong
    if (x.op, n.op) in _REARRANGED:
        start = x.args[0]
        yield f"{formula.text(start)} {_REARRANGED[x.op, n.op]}", formula.values[start].reshape(n.shape)


_REARRANGED = {
    ("reshape", "transpose"): "is reshaped where it has to be reshaped and its axes exchanged",
    ("transpose", "reshape"): "is reshaped without its axes being exchanged first",
}


def _steps_left_out(formula: DerivedFormula, n: Node):
    if len(n.args) == 1 and n.args[0].shape == n.shape and n.op not in ("transpose", "reshape"):
        yield f"{n.op} is left out: {text_of(n.args[0])} stands for {text_of(n)}", formula.values[n.args[0]]
    if n.op == "maximum" and len(n.args) == 2:
        yield f"{n.op} is left out", np.broadcast_to(formula.values[n.args[0]], n.shape)


def _other_values(formula: DerivedFormula, n: Node):
    """A value of the function where another of the same shape is meant."""
    values = [*formula.forward, formula.graph.inputs[-1]]  # the last is the output's gradient
    named = [m for m in values if m.shape and not isinstance(m.dtype, tuple) and m.dtype.kind in "fc"]
    for k, a in enumerate(n.args):
        if not a.shape or (a.args and a not in formula.forward):
            continue
        for other in named:
            if other.shape != a.shape or other.dtype != a.dtype or other is a:
                continue
            args = formula.of(*n.args)
            args[k] = formula.values[other]
            yield f"{text_of(other)} stands where {text_of(a)} is meant", evaluate(n.op, args, n.attrs)


KINDS = products, _sums, other_axes, _scalings, _terms, _factors, orders, _steps_left_out, _other_values
