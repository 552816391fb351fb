"""Rules that are patterns: what stands in a program, and what takes its place.

    enter(
        family,
        R("-(-x)", "x", bits=ALL),
        R("x * 1", "x", bits="biuf"),
        R("where(logical_not(c), x, y)", "where(c, y, x)", bits=ALL),
    )

A pattern is a Python expression of operators, and of ops by their names. A name stands for any value, and for
the same one wherever it occurs again; a capital one stands for a number that is known, also where that was
broadcast. Numbers stand for themselves: 0 for any zero, 0.0 and -0.0 for the one with that sign or a complex
one, True and False for whatever is true or false. Where the outermost op commutes, its arguments may be
exchanged.

What takes its place is made in the same terms. An op that the pattern begins with has the settings that it
had; `cast` converts to the dtype of the result; a value by itself is converted and broadcast to the type of
the result. A rewrite whose dtype would be another one is not made.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

from ..graph import Node
from ..ops import OPS, apply, build, const
from .engine import BITS, Family, Sweep
from .match import ONE_NUMBER, as_type_of, number

ALL = "biufc"  # kinds of dtypes
Values = dict[str, Node]  # what the names of a pattern stand for
Matcher = Callable[[Node, Values], bool]
Maker = Callable[[Node, Values], Any]

_OPERATORS: dict[type, str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.USub: "negative",
}


class R:
    """A rule: `before` becomes `after`.

    bits     kinds of dtypes, of the result and its arguments, for which every bit is kept; for others the
             rule is tried with math="fast" alone
    kinds    kinds of dtypes to which it is limited even then
    when     when(node, values by name): a further condition
    """

    def __init__(
        self, before: str, after: str, bits: str = "", *, kinds: str = ALL, when: Callable | None = None
    ):
        self.__name__ = f"{before} -> {after}"
        pattern, result = (ast.parse(text, mode="eval").body for text in (before, after))
        self.op, parts = _op_of(pattern)
        self._made, self._is_value = _maker(result), isinstance(result, ast.Name)
        self.bits, self.kinds, self._when = bits, kinds, when
        # (position, ops, matcher) of each argument, those first that fit least often
        places = [(i, _heads(p), _matcher(p)) for i, p in enumerate(parts)]
        places.sort(key=lambda place: place[1] is None)
        self.reads = places[0][1] or ()  # ops of which one argument is wherever the rule applies
        self._orders = [places]
        if OPS[self.op].commutes:
            self._orders.append([(1 - i, *rest) for i, *rest in places])

    def __call__(self, n: Node, sweep: Sweep) -> Node | None:
        for places in self._orders:
            values: Values = {}
            for i, heads, matches in places:
                a = n.args[i]
                if heads is not None and a.op not in heads or not matches(a, values):
                    break
            else:
                return self._rewritten(n, values, sweep)
        return None

    def _rewritten(self, n: Node, values: Values, sweep: Sweep) -> Node | None:
        kinds = self.kinds if sweep.fast else self.bits
        if kinds != ALL and any([a.dtype.kind not in kinds for a in n.args]):
            return None
        if self._when is not None and not self._when(n, values):
            return None
        result = self._made(n, values)
        if self._is_value:
            return as_type_of(n, result)
        return build.broadcast(result, n.shape) if result.dtype == n.dtype else None


def enter(family: Family, *rewrites: R) -> None:
    """Enter rules that are patterns into a family, in this order."""
    for r in rewrites:
        if r.bits:
            family.rule(r.op, keeps=BITS, kinds=r.bits, reads=r.reads)(r)
        if r.bits != r.kinds:
            family.rule(r.op, kinds=r.kinds, reads=r.reads)(r)


def _op_of(e: ast.expr) -> tuple[str, list[ast.expr]]:
    """The op that an expression is of, and its arguments."""
    match e:
        case ast.BinOp():
            return _OPERATORS[type(e.op)], [e.left, e.right]
        case ast.UnaryOp():
            return _OPERATORS[type(e.op)], [e.operand]
        case ast.Call(func=ast.Name(id=name)):
            return name, e.args
    raise ValueError(f"a pattern of {ast.unparse(e)}")


def _number_of(e: ast.expr) -> Any:
    """The number that an expression is; None if it is not one."""
    try:
        return ast.literal_eval(e)
    except ValueError:
        return None


def _heads(e: ast.expr) -> tuple[str, ...] | None:
    """The ops that a value of this pattern may be of; None for any."""
    if isinstance(e, ast.Name):
        return ONE_NUMBER if e.id.isupper() else None
    return ONE_NUMBER if _number_of(e) is not None else (_op_of(e)[0],)


def _matcher(e: ast.expr) -> Matcher:
    """The function that compares a value with a pattern, and enters what the names stand for."""
    if isinstance(e, ast.Name):
        known = e.id.isupper()
        return lambda n, values: values.setdefault(e.id, n) is n and (not known or number(n) is not None)
    literal = _number_of(e)
    if literal is not None:
        return lambda n, values: _is(number(n), literal)
    op, parts = _op_of(e)
    matchers = [_matcher(p) for p in parts]
    return lambda n, values: n.op == op and all([m(a, values) for m, a in zip(matchers, n.args)])


def _is(value: Any, literal: complex) -> bool:
    """Whether a number is the one of a pattern."""
    if value is None:
        return False
    if isinstance(literal, bool):
        return bool(value) == literal
    if value != literal:
        return False
    signed = isinstance(literal, float) and literal == 0
    return not signed or type(value) is complex or math.copysign(1.0, value) == math.copysign(1.0, literal)


def _maker(e: ast.expr) -> Maker:
    """The function that makes what an expression says: a node, or a number to stand beside one."""
    value = _number_of(e)
    if value is not None:
        return lambda n, values: value
    if isinstance(e, ast.Name):
        return lambda n, values: values[e.id]
    op, parts = _op_of(e)
    if op == "negative" and isinstance(parts[0], ast.Name) and parts[0].id.isupper():
        name = parts[0].id
        return lambda n, values: const(-number(values[name]), values[name].dtype)
    makers = [_maker(p) for p in parts]
    if op == "cast":
        return lambda n, values: build.cast(makers[0](n, values), n.dtype)
    return lambda n, values: apply(op, *[m(n, values) for m in makers], **(n.attrs if op == n.op else {}))
