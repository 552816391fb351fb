"""np.piecewise: each function is applied to the part of an array where its condition holds.

A function is recorded on its part. If it works element by element, it is then applied to the whole array and
selected by np.where, so that the program does not depend on which elements a part has; where the condition
does not hold, it gets an element of the part, at which it can be computed. Any other function
(v - v.mean()) gets the part, and the recording holds only for this part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...graph import Graph, Node, remade
from ...ops import apply, build, input_node
from ...ops.table import is_elementwise
from .. import record
from ..dispatch import RecordedLike, raw
from ..value import Recorded, value_of


@raw(np.piecewise)
def piecewise(x: RecordedLike, condlist: Sequence, funclist: Sequence, *args: Any, **kw: Any) -> Recorded:
    x = x if type(x) is Recorded else np.asarray(x)
    conditions, functions = _pairs(x, condlist, list(funclist))
    some = x if type(x) is Recorded else next(c for c in conditions if type(c) is Recorded)
    out = np.zeros(x.shape, x.dtype, like=some)
    for condition, function in zip(conditions, functions):
        if not callable(function):
            out[condition] = function
        elif _is_anywhere(condition):
            out = _with_part(x, condition, lambda v, f=function: f(v, *args, **kw), out)
    return out


def _pairs(x, conditions, functions: list) -> tuple[list, list]:
    """A condition for each function; the last may be for the elements at which none of the others holds."""
    several = isinstance(conditions, (list, tuple))
    depth = 1 + np.ndim(conditions[0]) if several else np.ndim(conditions)
    if depth < 2 and (x.ndim or not several):
        conditions = [conditions]
    conditions = [c if type(c) is Recorded else np.asarray(c, bool) for c in conditions]
    conditions = [c if c.dtype.kind == "b" else c != 0 for c in conditions]
    if len(functions) == len(conditions) + 1:
        any_holds = conditions[0]
        for condition in conditions[1:]:
            any_holds = np.logical_or(any_holds, condition)
        conditions.append(np.logical_not(any_holds))
    if len(functions) != len(conditions):
        n = len(conditions)
        raise ValueError(f"with {n} condition(s), either {n} or {n + 1} functions are expected")
    return conditions, functions


def _is_anywhere(condition) -> bool:
    """Whether the condition holds somewhere; if not, NumPy does not call the function, which is noted."""
    return bool(np.any(_concrete(condition))) or bool(np.any(condition))


def _concrete(x):
    return np.asarray(value_of(x))


def _with_part(x, condition, function: Callable, out):
    """out with the function's results where the condition holds."""
    part = _concrete(x)[_concrete(condition)]
    trial = record.record(function, (part.copy(),))
    if _is_elementwise(trial):
        inside = condition.reshape(condition.shape + (1,) * (x.ndim - condition.ndim))
        filled = np.where(inside, x, part.flat[0])
        (value,) = record.inline(_widened(trial.graph, x.shape), trial.operands([filled]))
        return np.where(inside, value.astype(out.dtype), out)
    part = x[condition]
    if type(part) is Recorded:
        record.note_reads_outside(trial, [part])
    if trial.out_tree.is_leaf:
        out[condition] = record.inline(trial.graph, trial.operands([part]))[0]
    else:
        out[condition] = trial.results
    return out


def _is_elementwise(trial: record.Recording) -> bool:
    """Whether each element of the result depends on one element of the argument, and on numbers."""
    if not trial.out_tree.is_leaf or trial.reads or trial.unstable or trial.written:
        return False
    part = trial.graph.inputs[0]
    return all(n is part or _keeps_positions(n, part.shape) for n in trial.graph.nodes)


def _keeps_positions(n: Node, whole: tuple) -> bool:
    if n.op in ("input", "const"):
        return n.shape == ()
    spread = n.op == "broadcast" and n.args[0].shape == ()
    return (spread or is_elementwise(n.op)) and n.shape in ((), whole)


def _widened(graph: Graph, shape: tuple) -> Graph:
    """The graph for a first input of this shape."""
    part = graph.inputs[0]
    wide = input_node(shape, part.dtype, part.name)

    def widened(n: Node, args: tuple) -> Node:
        if not args:
            return n
        if n.op == "broadcast":
            new = build.broadcast(args[0], shape if n.shape else ())
        else:
            new = apply(n.op, *args, **n.attrs)
        if new not in args:
            new.name, new.loc = n.name, n.loc
        return new

    return Graph([wide, *graph.inputs[1:]], remade(graph.outputs[:1], {part: wide}, widened), graph.name)
