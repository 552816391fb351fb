"""A backward written by hand, recorded: all its values, and the piece of source that computes each."""

from __future__ import annotations

import inspect
import linecache
import sys
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from types import CodeType
from typing import Any

import numpy as np

from ..derive.differentiate import active_nodes
from ..graph import Graph, Node, is_scalar_const, next_id
from ..ops import evaluate
from ..ops.interpret import evaluate_graph
from ..ops.table import VIEWS
from ..record.record import Recorded, Recording, record
from ..tree import flatten, unflatten
from .diagnose import file_name, text_of

MOST_NODES = 300  # of a backward; that of a whole model has more
LONG = 50  # characters: a longer expression is named by its variable


class Trace:
    """Notes, while a function runs, which instruction makes which values, and what its variables are."""

    def __init__(self, code: CodeType):
        self.code = code
        self.at: list[tuple[int, int]] = []  # (a number below the ids of the nodes made next, instruction)
        self.bound: list[tuple[int, str, Any]] = []  # (line, variable, its node or number)
        self.line = code.co_firstlineno  # in the end that of the return
        self._known: dict[str, int] = {}  # variable -> id of its value: holding that changes the recording

    def __enter__(self) -> Trace:
        self._before = sys.gettrace()
        # Python 3.12 gives no opcodes to a frame unless some frame had asked before settrace; 3.13 and newer
        # unless the frame has its function when it asks
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self._called)
        return self

    def __exit__(self, *error):
        sys.settrace(self._before)

    def _called(self, frame, event, arg):
        if frame.f_code is not self.code:
            return None
        frame.f_trace = self._inside
        frame.f_trace_opcodes = True
        self._known = {}
        return self._inside

    def _inside(self, frame, event, arg):
        if event == "opcode":
            self.at.append((next_id(), frame.f_lasti))
        elif event in ("line", "return"):
            for name, x in frame.f_locals.items():
                if self._known.get(name) != id(x):
                    self._known[name] = id(x)
                    if type(x) in (Recorded, int, float):
                        self.bound.append((self.line, name, x.node if type(x) is Recorded else x))
            self.line = frame.f_lineno
        return self._inside


class ByHand:
    """A recorded backward.

    outputs   the node of each gradient; None where there is none
    values    each node -> its value
    names     node -> the first variable that it is bound to
    linear    the nodes that depend on the output's gradient; forward are the others
    """

    def __init__(self, rec: Recording, leaves: Sequence, outputs: list, trace: Trace):
        self.graph, self.operands = rec.graph, rec.operands(leaves)
        self.outputs, self.trace = outputs, trace
        nodes = self.graph.nodes
        self.values = dict(zip(nodes, evaluate_graph(Graph(self.graph.inputs, nodes), self.operands)))
        self.names: dict[Node, str] = {}
        for _, variable, x in trace.bound:
            if type(x) is Node:
                self.names.setdefault(x, variable)
        self.linear = set(active_nodes(self.graph.outputs, self.graph.inputs[:1]))
        self.forward = set(nodes) - self.linear
        self.users = self.graph.users()

    @classmethod
    def recorded(cls, backward: Callable, args: tuple, static: Mapping, of_inputs: Callable) -> ByHand | None:
        """The recorded backward(*args, **static), or None if it cannot be recorded.

        of_inputs   what backward returns -> the gradient of each input, or None
        """
        code = getattr(inspect.unwrap(backward), "__code__", None)
        if code is None:
            return None

        def call(*args):
            return backward(*args, **static)

        with suppress(Exception), np.errstate(all="ignore"):  # it may use what cannot be recorded
            with Trace(code) as trace:
                rec = record(call, args)
            if len(rec.graph.nodes) <= MOST_NODES:
                results = unflatten(rec.out_tree, list(rec.graph.outputs[: rec.n_results]))
                outputs = [n if type(n) is Node else None for n in of_inputs(results)]
                return cls(rec, flatten((args, {}))[0], outputs, trace)
        return None

    @cached_property
    def _spans(self) -> list:
        return list(self.trace.code.co_positions())

    def _span(self, n: Node) -> tuple | None:
        k = bisect_left(self.trace.at, (n.id, 0)) - 1
        if k < 0 or n.op == "input":
            return None
        span = self._spans[self.trace.at[k][1] // 2]
        return None if None in span else span

    def line(self, n: Node) -> int | None:
        span = self._span(n)
        return span[0] if span else None

    def place(self, line: int) -> str:
        """A line as text, with its file."""
        file = self.trace.code.co_filename
        source = linecache.getline(file, line).strip()
        return f"in {self.trace.code.co_name} ({file_name(file)}:{line}){': ' + source if source else ''}"

    def source(self, n: Node) -> str | None:
        """The expression that computes a value."""
        span = self._span(n)
        if span is None:
            return None
        first, last, begin, end = span
        file = self.trace.code.co_filename
        lines = [linecache.getline(file, k).encode() for k in range(first, last + 1)]
        lines[-1] = lines[-1][:end]
        lines[0] = lines[0][begin:]
        return " ".join(b" ".join(lines).decode(errors="replace").split()) or None

    def text(self, n: Node, inside: Node | None = None) -> str:
        """A value as the source has it: a variable, or an expression. inside: the value that reads it."""
        if is_scalar_const(n):
            return text_of(n)
        own = self.source(n)
        if inside is not None and own is not None and own == self.source(inside) and n.args:
            return self.text(n.args[0], inside) if n.op in VIEWS else own
        if n in self.names and (inside is None or self.line(n) != self.line(inside)):
            return self.names[n]
        return own or text_of(n)

    def whole(self, n: Node) -> str:
        """A value as the expression that computes it, if that is short."""
        own = self.source(n)
        return own if own is not None and len(own) <= LONG else self.text(n)

    def of(self, *nodes: Node) -> list[np.ndarray]:
        return [self.values[n] for n in nodes]

    def run(self, new: Mapping[Node, np.ndarray], operands: Mapping) -> dict[Node, np.ndarray]:
        """The values that change if nodes had these values, and nodes these operands: (node, k) -> array."""
        values, edited = dict(new), {n for n, _ in operands}
        for n in self.graph.nodes:
            if n not in values and (n in edited or any(a in values for a in n.args)):
                args = [operands.get((n, k), values.get(a, self.values[a])) for k, a in enumerate(n.args)]
                values[n] = evaluate(n.op, args, n.attrs)
        return values
