"""ad.scan: a loop of any length whose body is recorded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..programs import bodies
from ..programs.carries import leaves_of_carry, recorded_step, writable
from ..programs.compile import Operator
from ..programs.wiring import rebuilt, result_kind
from ..record.record import record
from ..record.source_lines import error_here
from ..record.value import value_of
from ..tracebacks import of_user
from ..tree import Tree, flatten, is_dynamic, unflatten
from .scan_op import default_every, evaluate_scan


@of_user
def scan(
    body: Callable,
    init: Any,
    xs: Any = None,
    *,
    length: int | None = None,
    every: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Carry a value through a loop: returns (final carry, stacked ys).

    body     body(carry, x) -> (carry, y). The carry keeps its structure, shapes and dtypes; y is anything
             made of arrays, or None. It may write to both; init and xs stay as they are
    init     the first carry: arrays and numbers, nested as you like
    xs       arrays, nested as you like, taken slice by slice along the leading axis; None if body needs none
    length   the number of steps, where xs is None
    every    the backward keeps every so many carries (1: all of them); by default about sqrt(n)
    reverse  from the last slice to the first; ys stay in the order of xs

    body is recorded once. One that cannot be recorded for all steps (it branches on values, draws random
    numbers, prints) is run step by step, as a Python loop would, and so is its derivative.

        >>> def body(carry, x):
        ...     carry = 0.5 * carry + x
        ...     return carry, carry
        >>> final, ys = ad.scan(body, 0.0, np.array([1.0, 1.0, 1.0]))
        >>> ys
        array([1.  , 1.5 , 1.75])
        >>> ad.grad(lambda xs: ad.scan(body, 0.0, xs)[0])(np.ones(3))
        array([0.25, 0.5 , 1.  ])
    """
    return Operator("scan", "scan", _scan, length, every, reverse)(body, init, xs)


def _scan(body: Callable, init, xs, length, every, reverse: bool):
    carry, carry_tree = flatten(init, bodies.changes)
    slices, xs_tree = flatten(xs, lambda x: is_dynamic(x) or type(x) is np.ndarray)
    if length is None and not slices:
        raise error_here("scan: without xs it needs length=, the number of steps")
    whole = isinstance(length, int | np.integer) and not isinstance(length, bool)
    if length is not None and not (whole and length >= 0):
        raise error_here(f"scan: length is {length!r}, expected an int that is not negative")
    n = bodies.common_length("scan", slices, *(() if length is None else (length,)))
    if n == 0:
        return _no_step(body, carry, carry_tree, slices, xs_tree)
    if every is None:
        every = default_every(n, sum(np.asarray(value_of(x)).nbytes for x in carry))
    if not isinstance(every, int) or every < 1:
        raise error_here(f"scan: every is {every!r}, expected a positive int")
    if reverse:
        slices = [x[::-1] for x in slices]
    step = _step(body, carry_tree, xs_tree)
    kinds = [result_kind(value_of(x)) for x in carry]
    first, rec = bodies.recorded_once(
        body,
        lambda: _one_step(step, carry, slices, 0),
        lambda: recorded_step("scan", step, carry, carry_tree, slices),
    )
    if rec is None:
        carry, y = first
        kept = [y]
        for t in range(1, n):
            carry, y = _one_step(step, carry, slices, t)
            kept.append(y)
        leaves = [flatten(y)[0] for y in (reversed(kept) if reverse else kept)]
        stacked = [np.stack(parts) for parts in zip(*leaves)]
        return unflatten(carry_tree, carry), unflatten(flatten(kept[0])[1], stacked)
    graph = bodies.body_graph(rec)
    operands = bodies.operands_of_body(graph, [*carry, *slices], rec)
    sizes = dict(n=n, carries=len(carry), slices=len(slices), every=min(every, n))
    results = bodies.applied("scan", operands, evaluate_scan, body=graph, **sizes)
    ys = results[len(carry) : len(graph.outputs)]
    y_tree = rec.out_tree.children[1]
    final = rebuilt(carry_tree, results[: len(carry)], kinds)
    return final, unflatten(y_tree, [y[::-1] for y in ys] if reverse else ys)


def _no_step(body: Callable, carry, carry_tree: Tree, slices, xs_tree: Tree):
    """No step: the initial carry, and ys of length 0 with the shapes of those for a slice of zeros."""
    step = _step(body, carry_tree, xs_tree)
    shapes = [np.zeros(value_of(x).shape[1:], value_of(x).dtype)[()] for x in slices]
    rec = record(step, ([np.asarray(v)[()] for v in map(value_of, carry)], shapes))
    ys = [np.zeros((0, *o.shape), o.dtype) for o in rec.graph.outputs[len(carry) : rec.n_results]]
    y_tree = rec.out_tree.children[1]
    return unflatten(carry_tree, carry), unflatten(y_tree, ys)


def _step(body: Callable, carry_tree: Tree, xs_tree: Tree) -> Callable:
    """body on flat values: (carry leaves, x leaves) -> (carry leaves, y)."""

    def step(carry, x):
        pair = body(unflatten(carry_tree, carry), unflatten(xs_tree, x))
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise error_here(f"scan: body should return (carry, y), it gave {type(pair).__name__}")
        y, y_tree = flatten(pair[1], bodies.changes)
        return leaves_of_carry("scan", pair[0], carry_tree), unflatten(y_tree, bodies.with_numpy_ints(y))

    step.__name__ = getattr(body, "__name__", "body")
    return step


def _one_step(step: Callable, carry, slices, t: int):
    return step(list(map(writable, carry)), [writable(x[t]) for x in slices])
