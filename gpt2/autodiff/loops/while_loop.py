"""ad.while_loop: a loop with a condition, recorded and compiled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..graph import Graph
from ..ops.build import cast
from ..ops.subgraph import on_all_inputs
from ..programs import bodies
from ..programs.carries import recorded_step, step_on_leaves, writable
from ..programs.compile import Operator
from ..programs.wiring import rebuilt, result_kind
from ..record.record import record
from ..record.source_lines import error_here, here
from ..record.value import Recorded, value_of
from ..tracebacks import of_user
from ..tree import Tree, flatten, unflatten
from .while_op import default_keep, evaluate_while, too_many


@of_user
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
           fewer, but at least 8, if they took more than 256 MiB. Without a derivative nothing is kept
    limit  the most steps that there may be, at least 1: where cond still holds after them, an error is
           raised. By default there is no limit, and a loop whose cond never fails has no end

    cond and body are recorded once, and the program has them once, however many steps there are: neither its
    length nor the time to compile it depends on that. Both are called at least once, even where no step is
    taken. Forward mode takes the memory of one more carry; reverse mode that of 2 `keep` carries, and of
    `keep` more for each further forward run that it needs (about log(steps) / log(keep) of them).

    If cond or body cannot be recorded for all steps (they branch on values, draw random numbers, print), they
    are run step by step, as a Python loop would, and so is the derivative.

    Raises AutodiffError, with the line, if body changes the structure, a shape or a dtype of the carry, if
    cond returns something else than one truth value, and if keep or limit is not a positive int. A program
    raises it, without the line, if the limit is exceeded.

        >>> def root(a):  # Newton's method, until the square is close
        ...     step = lambda x: (x + a / x) / 2
        ...     return ad.while_loop(lambda x: np.abs(x * x - a) > 1e-12, step, 1.0 + 0 * a)
        >>> root(2.0)
        1.414213562373095

    Griewank and Walther 2008, Evaluating Derivatives, chapter 12; while_op.py keeps the carries.
    """
    for name, n in (("keep", keep), ("limit", limit)):
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
            raise error_here(f"while_loop: {name} is {n!r}, expected a positive int")
    return Operator("while_loop", "while", _while, keep, limit)(body, init, cond)


def _while(body: Callable, init: Any, cond: Callable, keep: int | None, limit: int | None) -> Any:
    carry, tree = flatten(init, bodies.changes)
    step, test = step_on_leaves("while_loop", body, tree), _test(cond, tree)
    kinds = [result_kind(value_of(x)) for x in carry]
    carry = bodies.with_numpy_ints(carry)
    (more, first), rec = bodies.recorded_once(
        body,
        lambda: (test(list(map(writable, carry))), step(list(map(writable, carry)), [])[0]),
        lambda: recorded_step("while_loop", step, carry, tree, []),
        cond,
    )
    rec_test = None if rec is None else record(test, (bodies.with_numpy_ints(map(value_of, carry)),))
    if rec is None or not bodies.holds_for_all(rec_test):
        steps = 0
        while more:
            if steps == limit:
                raise too_many(steps, here())
            after = first if steps == 0 else step(list(map(writable, carry)), [])[0]
            carry = bodies.with_numpy_ints(after)
            steps += 1
            more = test(list(map(writable, carry)))
        return rebuilt(tree, carry, kinds)
    truth = bodies.body_graph(rec_test)
    truth = Graph(truth.inputs, [cast(truth.outputs[0], bool)], truth.name)
    graph, test_graph = on_all_inputs(len(carry), bodies.body_graph(rec), truth)
    operands = bodies.operands_of_body(graph, [*carry, *rec.outside, *rec_test.outside])
    keep = default_keep(sum(o.nbytes for o in graph.outputs)) if keep is None else keep
    sizes = dict(carries=len(carry), keep=keep, limit=limit)
    final = bodies.applied("while_loop", operands, evaluate_while, test=test_graph, body=graph, **sizes)
    return rebuilt(tree, final[: len(carry)], kinds)


def _test(cond: Callable, tree: Tree) -> Callable:
    """cond on flat values: one truth value, as an array or a recorded one."""

    def test(carry):
        truth = cond(unflatten(tree, carry))
        shape = None if type(truth) in (list, tuple, dict) else np.shape(value_of(truth))
        if shape != () or np.asarray(value_of(truth)).dtype.kind not in "biufc":
            got = type(truth).__name__ if shape is None or shape == () else f"an array of shape {shape}"
            raise error_here(f"while_loop: cond gave {got}, expected one truth value")
        return truth if type(truth) is Recorded else np.asarray(truth)

    test.__name__ = getattr(cond, "__name__", "cond")
    return test
