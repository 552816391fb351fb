"""The readable source of a graph as a text that runs; constants too large to print are arguments."""

from __future__ import annotations

import ast
import builtins
import os
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from ..graph import Graph, Node
from .readable import ReadableWriter

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


class RunnableWriter(ReadableWriter):
    """A ReadableWriter that defines constant arrays, or makes them parameters, and breaks long lists:

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
    for text in _expressions(x):
        with np.errstate(all="ignore"):
            value = eval(text, {"np": np})
        if (value.dtype, value.shape, value.tobytes()) == (x.dtype, x.shape, x.tobytes()):
            return text
    return None


def _expressions(x: np.ndarray) -> Iterator[str]:
    """Expressions that may have the value x, the simplest first."""
    dtype, shape = f"np.{x.dtype}", x.shape
    yield f"np.full({shape}, {_number(x.flat[0].item()) if x.size else 0}, {dtype})"
    if x.size <= PRINTED:
        yield f"np.array({_nested(x.tolist())}, {dtype})"
    elif x.ndim == 1 and x.dtype.kind in "iuf":  # equal steps
        first, step = x[0].item(), (x[1] - x[0]).item()
        start, times = f"{_number(first)} + " if first else "", f"{_number(step)} * " if step != 1 else ""
        yield f"{start}{times}np.arange({len(x)}, dtype={dtype})"
    else:
        for one in (x[:1], x[..., :1]):  # equal rows, or columns
            text = written(one[0] if one.shape[0] == 1 else one) if one.size < x.size else None
            if text:
                yield f"np.broadcast_to({text}, {shape})"
        if x.ndim == 2:
            yield from _triangles(x)


def _triangles(x: np.ndarray) -> Iterator[str]:
    """A number on a diagonal, or one above or below it, maybe another on it, and zeros elsewhere."""
    on = x[0, 0].item()
    eye = f"np.eye{x.shape}" if on == 1.0 else f"{_number(on)} * np.eye{x.shape}"
    for part, corner, beside in (("triu", x[0, -1], 1), ("tril", x[-1, 0], -1)):
        for k in range(-1, 2):
            text = f"np.{part}(np.full({x.shape}, {_number(corner.item())}, np.{x.dtype}), {k})"
            yield text
            if k == beside:
                yield f"{text} + {eye}" if corner else eye


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
    read, known = set(), {"np", *dir(builtins)}
    for n in syntax:
        if isinstance(n, ast.Name):
            (read if isinstance(n.ctx, ast.Load) else known).add(n.id)
        elif isinstance(n, ast.arg | ast.FunctionDef):
            known.add(n.arg if isinstance(n, ast.arg) else n.name)
    return read <= known
