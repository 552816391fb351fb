"""The readable source of a graph as a text that can be pasted and run: constant arrays are written out, and
those that are too large become arguments, with their shapes and source lines.
"""

from __future__ import annotations

import ast
import builtins
import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ..graph import Graph, Node
from .readable import Writer

PRINTED = 4  # numbers of a constant array that are written out
WIDTH = 100  # of lines, which are broken at commas


def runnable_source(graph: Graph, name: str) -> str | None:
    """The text, or None where the graph has an op that NumPy has no name for, such as a loop."""
    text = RunnableWriter(graph, name).source()
    return text if _complete(text) else None


def runnable_pair(forward: Graph, backward: Graph, names: tuple[str, str]) -> str | None:
    """The text of a function and its derivative, as FixedPair.graphs has them; None as above.

    What a loop keeps for the derivative is passed as a list with a row for each call. The backward's inputs
    are the forward's results but the first, then the gradient of that.
    """
    writer = RunnableWriter(forward, names[0], returns_records=True)
    first = writer.source()
    kept = zip(writer.graph.outputs[1:], backward.inputs)
    places = {inp: place for o, inp in kept if (place := writer.place_returned(o)) is not None}
    second = RunnableWriter(backward, names[1], places=places).source()
    if not (_complete(first) and _complete(second)):
        return None
    return first + "\n\n" + second.split("\n\n\n", 1)[1]


class RunnableWriter(Writer):
    """A Writer that defines constant arrays, or makes them parameters, and breaks long lists:

    (
        dweight[k:k + 1], dbias[k:k + 1], dout,
    ) = outlined_backward(
        weight[k:k + 1], mean, rstd, dout,
    )
    """

    def listed(self, before: str, items: Sequence[str], after: str = "", depth: int = 0) -> list[str]:
        lines = super().listed(before, items, after, depth)
        if len(lines[0]) <= self.width(depth) or len(items) < 2:
            return lines
        left, right = ("", after) if after else ("(", ")")
        return [before + left, *self.in_lines(items, depth), right]

    def call_lines(
        self, targets: Sequence[str], body: Graph, args: Sequence[str], depth: int = 0
    ) -> list[str]:
        lines = super().call_lines(targets, body, args, depth)
        if len(lines[0]) <= self.width(depth) or len(targets) < 2:
            return lines
        between = f") = {self.functions[body]}("
        return ["(", *self.in_lines(targets, depth), between, *self.in_lines(args, depth), ")"]

    def width(self, depth: int) -> int:
        return WIDTH - 4 * (self.depth + depth)

    def in_lines(self, items: Sequence[str], depth: int) -> list[str]:
        """Items with commas behind them, as many to a line as fit."""
        lines: list[str] = []
        for item in items:
            if lines and len(f"{lines[-1]} {item},") <= self.width(depth):
                lines[-1] += f" {item},"
            else:
                lines.append(f"    {item},")
        return lines

    def constant_line(self, n: Node, name: str) -> str:
        text, about = written(n.value), f"{n.dtype} {n.shape}"
        if n.loc is not None:
            about += f", from {os.path.basename(n.loc[0])}:{n.loc[1]}"
        if text is None:
            self.further.append(name)
            return f"# {name} is {about}: give it as an argument"
        return f"{name} = {text}" + (f"  # {about}" if n.size > PRINTED else "")


def written(value: ArrayLike) -> str | None:
    """An array as a NumPy expression; None if that is long."""
    x = np.asarray(value)
    dtype = f"np.{x.dtype}"
    if x.size and (x == x.flat[0]).all():
        return f"np.full({x.shape}, {_number(x.flat[0].item())}, {dtype})"
    if x.size <= PRINTED:
        return f"np.array({_nested(x.tolist())}, {dtype})"
    return _in_steps(x) or _repeated(x) or _triangle(x)


def _in_steps(x: np.ndarray) -> str | None:
    """An expression for equally spaced numbers, else None."""
    if x.ndim != 1 or x.dtype.kind not in "iuf":
        return None
    first, step, built = x[0].item(), (x[1] - x[0]).item(), np.arange(len(x), dtype=x.dtype)
    text = f"np.arange({len(x)}, dtype=np.{x.dtype})"
    with np.errstate(all="ignore"):
        if step != 1:
            text, built = f"{_number(step)} * {text}", step * built
        if first:
            text, built = f"{_number(first)} + {text}", first + built
    return text if built.tobytes() == x.tobytes() else None


def _repeated(x: np.ndarray) -> str | None:
    """An expression for equal rows, or equal columns, else None."""
    for one in (x[:1], x[..., :1]):
        if one.size < x.size and np.broadcast_to(one, x.shape).tobytes() == x.tobytes():
            text = written(one[0] if one.shape[0] == 1 else one)
            return text and f"np.broadcast_to({text}, {x.shape})"
    return None


def _triangle(x: np.ndarray) -> str | None:
    """A number on a diagonal, or one above or below it, maybe another on it, and zeros elsewhere."""
    if x.ndim != 2 or min(x.shape) < 2:
        return None
    dtype = f"np.{x.dtype}"
    for part, corner in (("triu", x[0, -1]), ("tril", x[-1, 0])):
        for k in range(-1, 2):
            text = f"np.{part}(np.full({x.shape}, {_number(corner.item())}, {dtype}), {k})"
            built = getattr(np, part)(np.full(x.shape, corner), k)
            if built.tobytes() == x.tobytes():
                return text
            if k == 1 - 2 * (part == "tril") and x.dtype == np.float64 and np.isfinite(x).all():
                on = x[0, 0].item()
                if (built + on * np.eye(*x.shape)).tobytes() == x.tobytes():
                    eye = f"np.eye{x.shape}" if on == 1.0 else f"{_number(on)} * np.eye{x.shape}"
                    return f"{text} + {eye}" if corner else eye
    return None


def _nested(x) -> str:
    return f"[{', '.join(map(_nested, x))}]" if isinstance(x, list) else _number(x)


def _number(x) -> str:
    if isinstance(x, float) and not np.isfinite(x):
        return "np.nan" if np.isnan(x) else "np.inf" if x > 0 else "-np.inf"
    return repr(x) if not isinstance(x, complex) else f"complex({_number(x.real)}, {_number(x.imag)})"


def _complete(text: str) -> bool:
    """Whether a text is Python, and all names that it reads are its own or Python's."""
    try:
        syntax = list(ast.walk(ast.parse(text)))
    except SyntaxError:
        return False
    names = [n for n in syntax if isinstance(n, ast.Name | ast.arg)]
    functions = {n.name for n in syntax if isinstance(n, ast.FunctionDef)}
    known = {n.arg if isinstance(n, ast.arg) else n.id for n in names if not _is_read(n)}
    return {n.id for n in names if isinstance(n, ast.Name) and _is_read(n)} <= {
        *known,
        *functions,
        "np",
        *dir(builtins),
    }


def _is_read(n: ast.AST) -> bool:
    return isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
