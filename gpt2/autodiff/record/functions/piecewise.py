"""np.piecewise and np.vectorize, which call a function of the user's.

np.piecewise applies each function to the part of an array where its condition holds. A function is recorded
on its part. If it works element by element, it is then applied to the whole array and selected by np.where,
so that the program does not depend on which elements a part has; where the condition does not hold, it gets
an element of the part, at which it can be computed. Any other function (v - v.mean()) gets the part, and the
recording holds only for this part. np.vectorize calls its function for each element, with recorded numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...graph import Graph, Node, remade
from ...ops import apply, build, input_node
from ...ops.table import is_elementwise
from .. import record, source_lines
from ..dispatch import RecordedLike, raw
from ..interception import INTERCEPTED, OfClass, replace
from ..local.arrays import adopted, unwrapped
from ..recorder import current
from ..value import PROTOCOLS, Recorded, value_of


@raw(np.piecewise)
def piecewise(x: RecordedLike, condlist: Sequence, funclist: Sequence, *args: Any, **kw: Any) -> Recorded:
    x = x if type(x) is Recorded else np.asarray(x)
    conditions, functions = _pairs(x, condlist, list(funclist))
    some = x if type(x) is Recorded else next(c for c in conditions if type(c) is Recorded)
    out = np.zeros(x.shape, x.dtype, like=some)
    for condition, function in zip(conditions, functions):
        if not callable(function):
            out[condition] = function
        elif np.any(value_of(condition)) or np.any(condition):  # if not, NumPy does not call it: that is read
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
        conditions.append(np.logical_not(functools.reduce(np.logical_or, conditions)))
    if len(functions) != len(conditions):
        n = len(conditions)
        raise ValueError(f"with {n} condition(s), either {n} or {n + 1} functions are expected")
    return conditions, functions


def _with_part(x, condition, function: Callable, out):
    """out with the function's results where the condition holds."""
    part = np.asarray(value_of(x))[np.asarray(value_of(condition))]
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
    for n in trial.graph.nodes:
        is_number = n.op in ("input", "const") and n.shape == ()
        spread = n.op == "broadcast" and n.args[0].shape == ()
        keeps = (spread or is_elementwise(n.op)) and n.shape in ((), part.shape)
        if not (n is part or is_number or keeps):
            return False
    return True


def _widened(graph: Graph, shape: tuple) -> Graph:
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


# np.vectorize
_call = np.vectorize._vectorize_call
_ARRAY = np.array  # its name is replaced while something is recorded


def _vectorize_call(self: np.vectorize, func: Callable, args: Sequence) -> Any:
    """np.vectorize._vectorize_call: `func` has the arguments left that are not excluded."""
    of_library = source_lines.is_of_compiled(source_lines.user_frame().f_code.co_filename)
    if current() is None or of_library or self.signature is not None or not args:
        return _call(self, func, args)
    as_array = INTERCEPTED[id(_ARRAY)].call_always
    arrays = [x if type(x) is Recorded else as_array(x, copy=None) for x in map(unwrapped, args)]
    shape = np.broadcast_shapes(*[x.shape for x in arrays])
    if 0 in shape:
        return _call(self, func, [value_of(x) for x in arrays])
    columns = [np.broadcast_to(x, shape).reshape(-1) for x in arrays]
    rows = zip(*[x.tolist() for x in columns])
    results = []
    if self.otypes is None:  # NumPy calls the function once more, for the types
        first = func(*[x[0] for x in columns])
        results += [first] if self.cache and next(rows) else []
        types = [np.asarray(value_of(v)).dtype for v in (first if isinstance(first, tuple) else (first,))]
    else:
        types = list(map(np.dtype, self.otypes))
    results += [func(*row) for row in rows]
    if len(types) == 1:
        return _joined(results, types[0], shape)
    return tuple([_joined(part, dtype, shape) for part, dtype in zip(zip(*results), types, strict=True)])


def _joined(numbers: Sequence, dtype: np.dtype, shape: tuple[int, ...]) -> Any:
    numbers = [unwrapped(v) for v in numbers]
    if any(type(v) is Recorded for v in numbers):
        return PROTOCOLS["function"](_ARRAY, (numbers,), {}).astype(dtype).reshape(shape)
    return adopted(np.array(numbers, dtype).reshape(shape))


replace(OfClass(np.vectorize), _vectorize_call=_vectorize_call)
