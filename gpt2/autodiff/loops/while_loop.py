"""ad.while_loop: a loop that goes on as long as a condition holds, recorded and compiled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import AutodiffError
from ..graph import Graph
from ..ops.build import cast
from ..ops.subgraph import inputs_like
from ..programs.bodies import applied, body_graph, changes, operands_of_body, recorded_once, stands_for_all
from ..programs.carries import leaves_of_carry, own, recorded_step
from ..programs.operators import Operator
from ..programs.transform import as_kind, result_kind
from ..record.record import record
from ..record.source_lines import here
from ..record.value import Recorded, value_of
from ..tree import Tree, flatten, unflatten
from .while_op import default_keep, evaluate_while, too_many


def while_loop(
    cond: Callable, body: Callable, init: Any, *, keep: int | None = None, limit: int | None = None
) -> Any:
    """The carry after `while cond(carry): carry = body(carry)`, starting with init.

    cond   cond(carry) -> one truth value: a bool, a number, an array of shape ()
    body   body(carry) -> carry, of the same structure, shapes and dtypes. It may write to it
    init   the first carry: arrays and numbers, nested as you like; it stays as it is
    keep   how many carries the forward keeps for a backward, at least 1. A loop of up to so many steps
           computes no carry twice in its backward; a longer one keeps every second, fourth, ... and computes
           those between again, up to `keep` of them at a time. 1 keeps the first alone. By default 128, or
           fewer if they took more than 256 MiB, but 8. Where no derivative is asked for, nothing is kept
    limit  the most steps that there may be, at least 1: where cond still holds after them, an error is
           raised. By default there is no limit, and a loop whose cond never fails has no end

    cond and body are recorded once, and the program has them once, however many steps there are: neither its
    length nor the time to compile it depends on that. Both are called at least once, even where no step is
    taken. Forward mode takes the memory of one more carry; reverse mode that of 2 `keep` carries, and of
    `keep` more for each further forward run that it needs (about log(steps) / log(keep) of them).

    Cond or body that cannot stand for all steps (they branch on values, draw random numbers, print) are run
    step by step instead, as a Python loop would, and so is the derivative.

    Raises AutodiffError, with the line, where body changes the structure, a shape or a dtype of the carry,
    where cond gives something else than one truth value, where keep or limit is no positive int, and where
    the limit is passed.

        >>> def root(a):  # Newton's method, until the square is close
        ...     step = lambda x: (x + a / x) / 2
        ...     return ad.while_loop(lambda x: np.abs(x * x - a) > 1e-12, step, 1.0 + 0 * a)
        >>> root(2.0)
        1.414213562373095

    Griewank and Walther 2008, Evaluating Derivatives, chapter 12; while_op.py keeps the carries.
    """
    for name, n in (("keep", keep), ("limit", limit)):
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
            raise AutodiffError(f"while_loop: {name} is {n!r}, expected a positive int", here())
    return Operator("while_loop", "while", _while, keep, limit)(body, init, cond)


def _while(body: Callable, init: Any, cond: Callable, keep: int | None, limit: int | None) -> Any:
    carry, tree = flatten(init, changes)
    step, test = _step(body, tree), _test(cond, tree)
    kinds = [result_kind(value_of(x)) for x in carry]
    carry = _numbers(carry)
    (more, first), rec = recorded_once(
        body,
        lambda: (test(list(map(own, carry))), step(list(map(own, carry)), [])[0]),
        lambda: recorded_step("while_loop", step, carry, tree, []),
        cond,
    )
    rec_test = None if rec is None else record(test, (_plain(carry),))
    if rec is None or not stands_for_all(rec_test):
        found = _unrolled(test, step, carry, more, first, limit)
        return unflatten(tree, [as_kind(x, kind) for x, kind in zip(found, kinds)])
    graph, test_graph = _on_same_inputs(body_graph(rec), body_graph(rec_test), len(carry))
    outside = [r.operands([None] * len(carry))[len(carry) :] for r in (rec, rec_test)]
    operands = operands_of_body(graph, [*carry, *outside[0], *outside[1]])
    keep = default_keep(sum(o.nbytes for o in graph.outputs)) if keep is None else keep
    sizes = dict(carries=len(carry), keep=keep, limit=limit)
    found = applied("while_loop", operands, evaluate_while, test=test_graph, body=graph, **sizes)
    return unflatten(tree, [as_kind(x, kind) for x, kind in zip(found, kinds)])


def _plain(carry: list) -> list:
    """The values of a carry, as a step is recorded with them."""
    return _numbers(list(map(value_of, carry)))


def _numbers(carry: list) -> list:
    """Python's ints and bools as NumPy's, which end where a program's end: step by step, too."""
    return [np.asarray(x)[()] if type(x) in (int, bool) else x for x in carry]


def _step(body: Callable, tree: Tree) -> Callable:
    """body on flat values, as a scan without slices has it: (carry leaves, []) -> (carry leaves, [])."""

    def step(carry, _):
        return leaves_of_carry("while_loop", body(unflatten(tree, carry)), tree), []

    step.__name__ = getattr(body, "__name__", "body")
    return step


def _test(cond: Callable, tree: Tree) -> Callable:
    """cond on flat values: one truth value, as an array or a recorded one."""

    def test(carry):
        found = cond(unflatten(tree, carry))
        shape = None if type(found) in (list, tuple, dict) else np.shape(value_of(found))
        if shape != () or np.asarray(value_of(found)).dtype.kind not in "biufc":
            what = type(found).__name__ if shape is None or shape == () else f"an array of shape {shape}"
            raise AutodiffError(f"while_loop: cond gave {what}, expected one truth value", here())
        return found if type(found) is Recorded else np.asarray(found)

    test.__name__ = getattr(cond, "__name__", "cond")
    return test


def _on_same_inputs(body: Graph, test: Graph, n: int) -> tuple[Graph, Graph]:
    """Both graphs with all inputs: the carry, what body reads from outside, what test reads from outside."""
    extra, other = body.inputs[n:], test.inputs[n:]
    wide = Graph([*body.inputs, *inputs_like(other)], body.outputs, body.name)
    truth = [cast(test.outputs[0], bool)]
    return wide, Graph([*test.inputs[:n], *inputs_like(extra), *other], truth, test.name)


def _unrolled(test: Callable, step: Callable, carry: list, more: Any, first: list, limit: int | None) -> list:
    """The last carry, step by step; the first was taken, and is forgotten if there is none."""
    if not more:
        return carry
    carry, steps = _numbers(first), 1
    while test(list(map(own, carry))):
        if steps == limit:
            raise too_many(steps, here())
        carry = _numbers(step(list(map(own, carry)), [])[0])
        steps += 1
    return carry
