"""ad.repeated: for functions called many times with arguments of the same types, such as a model's blocks.

    block = ad.repeated(block)
    for weights in blocks:
        x = block(x, *weights)          recorded once, and one node of the graph each time

The node is `outlined` (derive/outlined.py), as passes/alike.py makes of equal parts of a graph. So
simplification, differentiation and the choice of what is kept are done once, whatever the number of calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ops.subgraph import items, outlined
from ..record import recorder
from ..record.record import Recording, record
from ..record.recorder import Recorder
from ..record.source_lines import site
from ..record.unevaluated import zeros_like
from ..record.value import Recorded
from ..tree import flatten, unflatten
from .wiring import leaf_key, result_leaves


def repeated(f: Callable) -> Callable:
    """f, a pure function of its arguments, recorded once for many calls with the same types.

    If the calling function is recorded by a FixedPair, f is recorded once for all calls with the same types
    of arrays and equal other arguments, and the program has its code once. Everywhere else, and if f reads
    values or arrays from outside, or returns what shares memory with its arguments, this is f.

        >>> layer = ad.repeated(lambda x, w: np.tanh(x @ w))
        >>> def model(x, *weights):
        ...     for w in weights:
        ...         x = layer(x, w)
        ...     return np.sum(x)
        >>> pair = ad.FixedPair(model)
        >>> loss, grads = pair.both(np.ones(()), np.ones((2, 3)), np.eye(3), np.eye(3))
        >>> [g.shape for g in grads]
        [(2, 3), (3, 3), (3, 3)]
    """

    @functools.wraps(f)
    def called(*args, **kwargs):
        rec = recorder.current()
        if rec is None or not rec.dry or rec is not recorder.outermost():
            return f(*args, **kwargs)
        leaves, tree = flatten((args, kwargs))
        if not all(type(x) is Recorded and x._rec is rec and type(x.value) is np.ndarray for x in leaves):
            return f(*args, **kwargs)
        rec.check_computed()
        key = called, tree, tuple([leaf_key(x.value) for x in leaves])
        if key not in rec.repeated:
            rec.repeated[key] = _recorded(f, args, kwargs)
        known = rec.repeated[key]
        return f(*args, **kwargs) if known is None else _call(rec, known, leaves)

    return called


def _recorded(f: Callable, args: Sequence, kwargs: dict) -> Recording | None:
    rec = record(f, args, kwargs, dry=True)
    if rec.captures or rec.lifted or rec.written or rec.reads or rec.unstable or rec.draws:
        return None
    results = result_leaves(rec)
    if any(type(r) is not np.ndarray for r in results):
        return None
    arrays = [*results, *(x.value for x in flatten((args, kwargs))[0])]
    for k, result in enumerate(results):
        dense = zeros_like(result).strides == result.strides  # in some order of its axes
        if not dense or any(np.may_share_memory(result, other) for other in arrays[k + 1 :]):
            return None
    return rec


def _call(rec: Recorder, known: Recording, leaves: Sequence[Recorded]) -> Any:
    """The results of a call, as stand-ins that are not computed."""
    node = outlined(known.graph, [x.node for x in leaves])
    node.loc = site().loc
    results = []
    for n, o, value in zip(items(node), known.graph.outputs, result_leaves(known)):
        n.name, n.loc = o.name, o.loc
        rec.guessed.add(n)
        results.append(Recorded(rec, n, zeros_like(value)))
    return unflatten(known.out_tree, results)
