"""The carry of a loop, for ad.scan and ad.while_loop: its structure, dtypes and copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..ops import const
from ..record import recorder
from ..record.record import Recording, record
from ..record.source_lines import error_here
from ..record.value import Recorded, value_of
from ..tree import Tree, flatten, unflatten
from .bodies import changes, with_numpy_ints

BODY = ("body", "carry")  # names in errors: the function, and its argument and result


def leaves_of_carry(name: str, carry: Any, expected: Tree, words: tuple[str, str] = BODY) -> list:
    """The leaves of the carry that a body returned. `name` is the loop's, for errors."""
    new, tree = flatten(carry, changes)
    if tree != expected:
        body, described = words
        described = "a carry" if words is BODY else described
        raise error_here(f"{name}: {body} turned {described} with the structure {expected} into {tree}")
    return new


def step_on_leaves(name: str, f: Callable, tree: Tree, words: tuple[str, str] = BODY) -> Callable:
    """f on flat values, as a step: (carry leaves, slices) -> (carry leaves, [])."""

    def step(carry: list, _: Any) -> tuple[list, list]:
        return leaves_of_carry(name, f(unflatten(tree, carry)), tree, words), []

    step.__name__ = getattr(f, "__name__", "f")
    return step


def recorded_step(
    name: str, step: Callable, carry: list, tree: Tree, slices: list, words: tuple[str, str] = BODY
) -> Recording:
    """The recording of step(carry leaves, slices) -> (carry leaves, ...); `carry` is cast to their dtypes."""
    body, argument = words
    for _ in range(3):
        # A Python float takes the dtype of the arrays it meets, as in a loop. An int may change.
        first = with_numpy_ints(map(value_of, carry))
        rec = record(step, (first, [value_of(x[0]) for x in slices]))
        changed = False
        for k, (c, o, path) in enumerate(zip(first, rec.graph.outputs, tree.paths())):
            where = argument + "".join(f"[{p!r}]" for p in path)
            if o.shape != np.shape(c):
                raise error_here(
                    f"{name}: {body} turned {where} of shape {np.shape(c)} into one of shape {o.shape}"
                )
            if o.dtype != np.asarray(c).dtype:
                carry[k] = _widened(name, f"{body} turned {where}", carry[k], np.asarray(c).dtype, o.dtype)
                changed = True
        if not changed:
            return rec
    raise error_here(
        f"{name}: the dtype of the {argument} changes from step to step; convert it in {body} with .astype"
    )


def _widened(name: str, turned: str, x: Any, before: np.dtype, after: np.dtype) -> Any:
    number = isinstance(value_of(x), (int, float))
    if not np.can_cast(before, after, "same_kind" if number else "safe"):
        raise error_here(f"{name}: {turned} of dtype {before} into {after}. Start from that dtype")
    return x.astype(after) if hasattr(x, "astype") else np.asarray(x, after)[()]


def writable(x: Any) -> Any:
    """A copy of x, for a body that may write to it.

    While a function is recorded, a plain array becomes a recorded constant: the body may write recorded
    values to it.
    """
    rec = recorder.current()
    if rec is not None and type(x) is np.ndarray and x.dtype.kind in recorder.NUMBERS:
        return Recorded(rec, const(x.copy()), x.copy())
    return x.copy() if hasattr(x, "copy") else x
