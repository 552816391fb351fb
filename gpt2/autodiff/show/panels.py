"""The sources of a function and its backwards, statement by statement: each with the lines of the function
that it comes from, and the values that it computed in a run on an example.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import CodeType
from typing import Any

import numpy as np

from ..switches import Options
from .origins import Origins

ROWS, NUMBERS = 2, 16  # rows of an array that are shown; above so many numbers they are abbreviated


@dataclass(frozen=True)
class SourcePart:
    """Some lines of a source.

    line     the number of the first one in its file: identifies a statement of the forward; 0 between them
    origins  the statements of the forward that it comes from, by line
    values   the values computed on the example: names, types and numbers, as text
    folded   whether it is collapsed to its first line: docstrings, and checks of arguments
    """

    source: str
    line: int = 0
    origins: tuple[int, ...] = ()
    values: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Panels:
    """The three sources, and the stages of ad.Origins.changes; `shapes` describes the example."""

    forward: list[SourcePart]
    manual: list[SourcePart]
    derived: list[SourcePart]
    stages: list
    shapes: str


def panels(
    name: str, forward: Callable, backward: Callable | None, args: Sequence, options: Options
) -> Panels:
    """The Panels of forward(*args) -> (out, saved) and of backward(dout, saved), on an example in double
    precision."""
    origins = Origins(forward, args, {}, options)
    written = Source.of(forward, lambda: forward(*args))
    starts = written.starts
    manual = []
    if backward is not None:
        by_hand = Source.of(backward, lambda: backward(origins.cotangents[0], origins.saved))
        manual = by_hand.statements(origins.by_hand(backward), starts)

    def at_starts(line):
        return replace(line, origins=frozenset(starts[k] for k in line.origins if k in starts))

    stages = [replace(s, lines=[at_starts(line) for line in s.lines]) for s in origins.changes()]
    shapes = [f"{k} {np.shape(a)}" for k, a in zip(inspect.signature(forward).parameters, args)]
    return Panels(
        written.statements({}, starts), manual, derived(origins, name, starts), stages, ", ".join(shapes)
    )


def derived(origins: Origins, name: str, starts: Mapping[int, int]) -> list[SourcePart]:
    """The derived forward and backward, run one after the other."""
    parts: list[SourcePart] = []
    inputs: Sequence | None = origins.arrays
    for half, written in zip(("forward", "backward"), origins.derived(name)):
        text = "\n".join(line for line, _ in written.lines).rstrip()
        function, results = _run(text, f"{name}_{half}", written.constants, inputs)
        source = Source(text, 1, None, lambda: None)
        if function is not None:
            source = Source(text, 1, function.__code__, partial(function, *inputs))
        shown = source.statements({k: lines for k, (_, lines) in enumerate(written.lines, 1)}, starts)
        if parts:  # without a second `import numpy as np`
            head, *rest = (s for s in shown if "import numpy" not in s.source)
            shown = [SourcePart("\n\n" + head.source.lstrip()), *rest]
        parts += shown
        inputs = None if results is None else [*results[1:], origins.cotangents[0]]
    return parts


def _run(text: str, name: str, constants: dict, args: Sequence | None) -> tuple[Any, tuple | None]:
    """The function defined by a text, and its results; (None, None) without arguments, or if the text cannot
    be run: it may have a loop that NumPy has no name for."""
    names = dict(constants)
    try:
        exec(compile(text, f"<{name}>", "exec"), names)
        return (names[name], names[name](*args)) if args is not None else (None, None)
    except (SyntaxError, NameError):
        return None, None


@dataclass
class Source:
    """The source of a function, its first line in its file, and a call of it."""

    text: str
    first: int
    code: CodeType | None
    call: Callable[[], Any]

    @classmethod
    def of(cls, function: Callable, call: Callable[[], Any]) -> "Source":
        inner = inspect.unwrap(function)
        try:
            lines, first = inspect.getsourcelines(inner)
        except (OSError, TypeError):
            return cls(f"# {function.__name__}: its source cannot be found.", 1, None, call)
        return cls(textwrap.dedent("".join(lines)).rstrip(), first, inner.__code__, call)

    @cached_property
    def pieces(self) -> list[tuple[int, int, bool, ast.stmt]]:
        """(first line, last line, whether folded, statement); for a loop or a condition, its head."""
        shift = self.first - 1
        try:
            statements = list(_pieces(ast.parse(self.text).body))
        except SyntaxError:  # a derived text with an op that NumPy has no name for: line by line
            lines = enumerate(self.text.split("\n"), 1)
            statements = [(k, k, False, ast.Pass()) for k, line in lines if line.startswith(" ")]
        return [(a + shift, b + shift, folded, statement) for a, b, folded, statement in statements]

    @property
    def starts(self) -> dict[int, int]:
        """Each line -> the first line of its statement."""
        return {line: a for a, b, folded, _ in self.pieces if not folded for line in range(a, b + 1)}

    def statements(self, origins: Mapping[int, Iterable[int]], starts: Mapping[int, int]) -> list[SourcePart]:
        """All of the text, in order.

        origins  the lines of the forward that a line comes from
        starts   of the forward
        """
        lines = self.text.split("\n")
        values, parts, at = self.values(), [], self.first  # at: the line that comes next

        def text(a, b):
            return "\n".join(lines[a - self.first : b - self.first + 1])

        for a, b, folded, _ in self.pieces:
            if a > at:
                parts.append(SourcePart(text(at, a - 1)))
            origin_lines = {
                starts[k] for line in range(a, b + 1) for k in origins.get(line, ()) if k in starts
            }
            parts.append(SourcePart(text(a, b), a, tuple(sorted(origin_lines)), values.get(a, ""), folded))
            at = b + 1
        if at - self.first < len(lines):
            parts.append(SourcePart(text(at, self.first + len(lines))))
        return parts

    def values(self) -> dict[int, str]:
        """First line of a statement -> the values of its last run."""
        by_line = {line: piece for piece in self.pieces for line in range(piece[0], piece[1] + 1)}
        texts: dict[int, str] = {}
        running: list[tuple] = []

        def trace(frame, event, arg):
            if running:
                a, _, folded, statement = running.pop()
                if isinstance(statement, ast.Return):  # what it computes, other than plain names
                    is_tuple = isinstance(statement.value, ast.Tuple)
                    parts = statement.value.elts if is_tuple else [statement.value]
                    results = zip(parts, arg if is_tuple else [arg]) if event == "return" else []
                    computed = [(ast.unparse(e), x) for e, x in results if not isinstance(e, ast.Name)]
                else:
                    computed = [(k, frame.f_locals[k]) for k in _written(statement) if k in frame.f_locals]
                if not folded:
                    texts[a] = "\n\n".join(t for k, v in computed if (t := value_text(k, v)))
            if event == "line" and frame.f_lineno in by_line:
                running.append(by_line[frame.f_lineno])
            return trace

        before = sys.gettrace()
        sys.settrace(lambda frame, event, arg: trace if frame.f_code is self.code else None)
        try:
            self.call()
        finally:
            sys.settrace(before)
        return texts


def _pieces(body: Sequence[ast.stmt]) -> Iterator[tuple[int, int, bool, ast.stmt]]:
    for statement in body:
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        inner = [part for field in ("body", "orelse", "finalbody") for part in getattr(statement, field, [])]
        is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if is_docstring or _is_check(statement):
            yield first, last, True, statement
        elif inner and inner[0].lineno > first:
            if not isinstance(statement, ast.FunctionDef):
                yield first, inner[0].lineno - 1, False, statement
            yield from _pieces(inner)
        else:
            yield first, last, False, statement


def _is_check(statement: ast.stmt) -> bool:
    """Whether it only checks arguments: `if ...: raise`, or a call of check_...."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return ast.unparse(statement.value.func).split(".")[-1].startswith("check")
    inside = list(ast.walk(statement))
    return (
        isinstance(statement, (ast.If, ast.For))
        and any(isinstance(n, ast.Raise) for n in inside)
        and not any(isinstance(n, (ast.Assign, ast.AugAssign, ast.Return)) for n in inside)
    )


def _written(statement: ast.stmt) -> list[str]:
    """The variables that a statement assigns or writes to."""
    if isinstance(statement, (ast.Assign, ast.AugAssign, ast.For)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        targets = [part for t in targets for part in (t.elts if isinstance(t, ast.Tuple) else [t])]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value  # np.exp(x, out=x), np.add.at(x, ...)
        targets = [k.value for k in call.keywords if k.arg == "out"] or call.args[:1]
    else:
        return []
    while any(isinstance(t, (ast.Subscript, ast.Starred)) for t in targets):
        targets = [t.value if isinstance(t, (ast.Subscript, ast.Starred)) else t for t in targets]
    return list(dict.fromkeys(t.id for t in targets if isinstance(t, ast.Name)))


def value_text(name: str, value: Any) -> str:
    """A value as text: an array's type and its first numbers, or a number; "" for anything else."""
    if isinstance(value, np.ndarray) and value.ndim:
        rows = np.atleast_2d(value.squeeze())
        rows = rows.reshape(-1, rows.shape[-1])
        first = rows[:ROWS]
        numbers = np.array2string(first, precision=3, suppress_small=True, threshold=NUMBERS, edgeitems=2)
        left = len(rows) - ROWS
        more = f"\n... {left} more {'rows' if left > 1 else 'row'}" if left > 0 else ""
        return f"{name}: {value.dtype} {value.shape}\n{numbers}{more}"
    if isinstance(value, (bool, int, float, np.ndarray, np.number)):
        return f"{name} = {value}"
    return ""
