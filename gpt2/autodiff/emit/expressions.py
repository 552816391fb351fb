"""Expressions as text, with the parentheses that they need and no others; and the text of views.

Shared by programs of Python floats (scalar.py), single numbers in a NumPy program (emitter.py), numexpr
(numexpr.py) and readable source (readable.py). Binary operators are in the op's row (`operator`), other
spellings in FORMS.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ..graph import Node
from ..ops.rowwise import row_axes
from ..ops.shape import index_text
from ..ops.table import OPS

# How tightly a text binds, from `a if c else b` to a name. For Python `a @ b` binds as `a * b` does; here it
# is looser (MATRIX), so that products of matrices stand in parentheses among others.
CHOICE, OR, AND, NOT, COMPARE, BITS, SUM, MATRIX, MULTIPLY, UNARY, POWER, ATOM = range(12)

# sign -> how tightly the expression binds, and how tightly its left and right argument have to
_SIGNS = {
    **dict.fromkeys(("+", "-"), (SUM, SUM, MULTIPLY)),
    **dict.fromkeys(("*", "/"), (MULTIPLY, MULTIPLY, UNARY)),
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), (COMPARE, SUM, SUM)),
    "@": (MATRIX, MATRIX, ATOM),
}

# op -> how tightly its text binds, and the text over its arguments' texts
Forms = Mapping[str, tuple[int, str]]
FORMS: Forms = {
    "square": (MULTIPLY, "{0} * {0}"),
    "reciprocal": (MULTIPLY, "1.0 / {0}"),
    "negative": (UNARY, "-{0}"),
    "positive": (ATOM, "{0}"),
}


@dataclass
class Text:
    """An expression, and how tightly it binds."""

    text: str
    tightness: int = ATOM

    def at(self, tightness: int) -> str:
        """The text as an operand that has to bind so tightly: in parentheses if it does not."""
        return self.text if self.tightness >= tightness else f"({self.text})"


def number_text(text: str) -> Text:
    """A number's literal: with a sign in front it binds as an operator does."""
    return Text(text, UNARY if text.startswith("-") else ATOM)


def infix(sign: str, a: Text, b: Text) -> Text:
    """`a + b`, for any of the signs."""
    own, left, right = _SIGNS[sign]
    return Text(f"{a.at(left)} {sign} {b.at(right)}", own)


def is_written(op: str, forms: Forms = FORMS) -> bool:
    """Whether `written` has a text for the op."""
    return op in forms or op in OPS and OPS[op].operator is not None


def written(op: str, args: Iterable[Text], forms: Forms = FORMS) -> Text:
    """The op with its operator between the arguments, or in its form."""
    if op in forms:
        tightness, form = forms[op]
        return Text(form.format(*(a.at(min(tightness + 1, ATOM)) for a in args)), tightness)
    return infix(OPS[op].operator, *args)


def view_text(text: str, n: Node) -> str:
    """The text of a view, from that of the array that it is a view of."""
    if n.op == "slice":
        return f"{text}[{index_text(n.attrs['index'], n.args[0].shape)}]"
    return OPS[n.op].code(text, **n.attrs)


def rows_of(text: str, views: list[Node], N: int, elementwise: bool) -> str:
    """Text for a chain of views of a block. An elementwise op broadcasts its operands by itself."""
    for k, n in enumerate(views):
        if n.op != "broadcast":
            (attr,) = n.attrs.values()
            text += row_view_text(n.op, attr, n.args[0].shape, N)
        elif not elementwise or k + 1 < len(views):
            row = "".join(f", {length}" for length in n.shape[row_axes(n.shape, N) :])
            text = f"np.broadcast_to({text}, (j - i{row or ','}))"
    return text


def row_view_text(op: str, attr: tuple, before: tuple[int, ...], N: int) -> str:
    """A view inside a block, where the row axes are one axis in front. `before`: the shape of all rows."""
    p = row_axes(before, N)
    if op == "reshape":
        return f".reshape({', '.join(map(str, (-1, *attr[row_axes(attr, N) :])))})"
    if op == "transpose":
        return f".transpose({(0, *(a - p + 1 for a in attr[p:]))})"
    return f"[:, {index_text(attr[p:], before[p:])}]"


@functools.cache
def dtype_name(dtype: np.dtype) -> str:
    """The dtype's name in NumPy: str(dtype) takes 10 us."""
    return "bool_" if dtype.kind == "b" else str(dtype)
