"""Records a function of the user's as one node: shared by scan, parallel_map, checkpoint and custom rules.

first, rec = recorded_once(body, lambda: body(*args), lambda: record(body, args))
if rec is None: run it each time
graph = body_graph(rec)
results = applied("scan", operands_of_body(graph, leaves, rec), evaluate, body=graph, ...)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..graph import Graph
from ..record import draws
from ..record.record import Recording, apply_op
from ..record.value import Recorded
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


def recorded_for_all(record: Callable[[], Recording], *functions: Callable) -> tuple[Recording, str | None]:
    """(a recording, why it does not hold for all calls of the user's `functions`; or None)."""
    drawn = draws.count()
    rec, trouble = watched(record, *functions)
    if draws.count() > drawn:
        trouble = "it draws random numbers"
    elif not trouble and not holds_for_all(rec):
        trouble = "it branches on values" if rec.value_dependent else rec.unstable[0]
    return rec, trouble


def holds_for_all(rec: Recording) -> bool:
    """Whether all runs would give this graph."""
    return not rec.value_dependent and not rec.unstable


def changes(x: Any) -> bool:
    """Whether x is a leaf of a body's result: it may change from run to run, as may Python ints and bools."""
    return is_dynamic(x) or isinstance(x, (int, bool))


def as_arrays(leaves: Sequence) -> list:
    """The leaves, with Python ints and bools as arrays. A recorded value may look like either."""
    return [np.asarray(x) if type(x) is not Recorded and isinstance(x, (int, bool)) else x for x in leaves]


def on_leaves(f: Callable, tree: Tree) -> Callable:
    """f as a function of the flat leaves of its (args, kwargs), whose results are arrays."""

    def one(leaves):
        args, kwargs = unflatten(tree, leaves)
        out, out_tree = flatten(f(*args, **kwargs), changes)
        return unflatten(out_tree, as_arrays(out))

    one.__name__ = getattr(f, "__name__", "f")
    return one


def body_graph(rec: Recording) -> Graph:
    """The recorded body without the arguments that it wrote to, which were copies."""
    return Graph(rec.graph.inputs, rec.graph.outputs[: rec.n_results], rec.graph.name)


def operands_of_body(graph: Graph, leaves: Sequence, rec: Recording | None = None) -> list:
    """The leaves, then what the body reads from outside; plain ones in the types of the graph's inputs."""
    outside = [] if rec is None else rec.operands([None] * len(leaves))[len(leaves) :]
    return [
        x if type(x) is Recorded else np.asarray(x, i.dtype)[()]
        for x, i in zip([*leaves, *outside], graph.inputs, strict=True)
    ]


def applied(op: str, operands: Sequence, evaluate: Callable, **attrs: Any) -> Any:
    """The results of a node: recorded where an operand is, else computed at once by `evaluate`."""
    if any(type(x) is Recorded for x in operands):
        return apply_op(op, *operands, **attrs)
    return evaluate(*operands, **attrs)
