"""Records a function of the user's as one node: shared by scan, parallel_map, checkpoint and custom rules.

first, rec = recorded_once(body, lambda: body(*args), lambda: record(body, args))
if rec is None: run it each time
graph = body_graph(rec)
results = applied("scan", operands_of_body(graph, leaves, rec), evaluate, body=graph, ...)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..graph import Graph
from ..record import draws
from ..record.record import Recording, apply_op, record
from ..record.source_lines import error_here
from ..record.value import Recorded, value_of
from ..reuse.watch import watched
from ..tree import Tree, flatten, is_dynamic, unflatten


def recorded_once(
    body: Callable, run: Callable[[], Any], recorded: Callable[[], Recording], *others: Callable
) -> tuple[Any, Recording | None]:
    """(the result of run(), the recording made by `recorded`; or None if it does not hold for all runs).

    `run` runs the body once as a Python loop would. If the body counts, draws or prints, or the recording
    branches on values, the caller continues the loop from there; if not, that result is not used. `others`
    are functions of the user's that `run` calls as well.
    """
    drawn = draws.count()
    result, trouble = watched(run, body, *others)
    if trouble or draws.count() > drawn:
        return result, None
    rec = recorded()
    return result, rec if holds_for_all(rec) else None


def recorded_for_all(recorded: Callable[[], Recording], *functions: Callable) -> tuple[Recording, str | None]:
    """(a recording, why it does not hold for all calls of the user's `functions`; or None)."""
    drawn = draws.count()
    rec, trouble = watched(recorded, *functions)
    if draws.count() > drawn:
        trouble = "it draws random numbers"
    elif not trouble and not holds_for_all(rec):
        trouble = "it branches on values" if rec.value_dependent else rec.unstable[0]
    return rec, trouble


def holds_for_all(rec: Recording) -> bool:
    return not rec.value_dependent and not rec.unstable


def changes(x: Any) -> bool:
    """Whether x is a leaf of a body's result: it may change from run to run, as may Python ints and bools."""
    return is_dynamic(x) or isinstance(x, int)


def with_numpy_ints(leaves: Iterable) -> list:
    """The leaves, with Python ints and bools as NumPy's: operands, which overflow as in a program."""
    # a recorded value may look like either
    return [np.asarray(x)[()] if isinstance(x, int) and type(x) is not Recorded else x for x in leaves]


def recorded_for_slices(
    name: str, f: Callable, leaves: Sequence, tree: Tree, mapped: Sequence[bool], n: int
) -> tuple[Recording | None, Tree, list]:
    """Records f for one of n slices of the mapped leaves.

    Returns (recording, structure of the results, []); or, if that does not hold for all slices, (None,
    structure of the results, the leaves of all results, stacked).
    """

    def one(leaves):
        args, kwargs = unflatten(tree, leaves)
        out, out_tree = flatten(f(*args, **kwargs), changes)
        return unflatten(out_tree, with_numpy_ints(out))

    def first_slice(x):
        return x[0] if len(x) else np.zeros(x.shape[1:], x.dtype)[()]

    def at(k: int) -> tuple[list, Tree]:
        slices = [x[k] if has else x for x, has in zip(leaves, mapped)]
        return flatten(one([x.copy() if hasattr(x, "copy") else x for x in slices]))

    one.__name__ = getattr(f, "__name__", "f")
    example = [first_slice(value_of(x)) if has else value_of(x) for x, has in zip(leaves, mapped)]
    if n == 0:  # the shapes are those for zeros
        first, rec = None, record(one, (example,))
    else:
        first, rec = recorded_once(f, lambda: at(0), lambda: record(one, (example,)))
    if rec is not None:
        return rec, rec.out_tree, []
    rows = [first, *(at(k) for k in range(1, n))]
    values, out_tree = rows[0]
    if any(t != out_tree or list(map(np.shape, x)) != list(map(np.shape, values)) for x, t in rows):
        text = getattr(f, "__name__", None) or type(f).__name__
        raise error_here(f"{name}: {text} gives results of other shapes for other examples")
    return None, out_tree, [np.stack(parts) for parts in zip(*(x for x, _ in rows))]


def common_length(name: str, arrays: Sequence, *lengths: int) -> int:
    """The length that the leading axes of the arrays have, and these lengths are."""
    known = {np.shape(value_of(x))[:1] for x in arrays} | {(n,) for n in lengths}
    if len(known) != 1 or () in known:
        also = ", which is also that given as length" if lengths else ""
        got = ", ".join(sorted(str(n[0]) if n else "none" for n in known)) or "no array"
        raise error_here(f"{name}: the arrays should have leading axes of one length{also}; got {got}")
    return known.pop()[0]


def body_graph(rec: Recording) -> Graph:
    """The recorded body without the arguments that it wrote to, which were copies."""
    return Graph(rec.graph.inputs, rec.graph.outputs[: rec.n_results], rec.graph.name)


def operands_of_body(graph: Graph, leaves: Sequence, rec: Recording | None = None) -> list:
    """The leaves, then what the body reads from outside; plain ones in the types of the graph's inputs."""
    outside = [] if rec is None else rec.outside
    values = zip([*leaves, *outside], graph.inputs, strict=True)
    return [x if type(x) is Recorded else np.asarray(x, i.dtype)[()] for x, i in values]


def applied(op: str, operands: Sequence, evaluate: Callable, **attrs: Any) -> Any:
    """The results of a node: recorded where an operand is, else computed at once by `evaluate`."""
    if any(type(x) is Recorded for x in operands):
        return apply_op(op, *operands, **attrs)
    return evaluate(*operands, **attrs)
