"""What is carried through a loop from step to step: what ad.scan and ad.while_loop have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import AutodiffError
from ..ops import const
from ..record import recording
from ..record.record import Recording, record
from ..record.source_lines import here
from ..record.value import Recorded, value_of
from ..tree import Tree, flatten
from .bodies import changes

BODY = ("body", "carry")  # what errors call the function, and what it takes and gives back


def leaves_of_carry(name: str, carry: Any, expected: Tree, words: tuple[str, str] = BODY) -> list:
    """The leaves of what a body gave back as its carry. `name` is the loop's, for errors."""
    new, tree = flatten(carry, changes)
    if tree != expected:
        body, what = words
        what = "a carry" if words is BODY else what
        raise AutodiffError(f"{name}: {body} turned {what} with the structure {expected} into {tree}", here())
    return new


def recorded_step(
    name: str, step: Callable, carry: list, tree: Tree, slices: list, words: tuple[str, str] = BODY
) -> Recording:
    """The recording of one step. `carry` is put into the dtypes that the step gives it back in.

    step   step(carry leaves, slices) -> (carry leaves, anything)
    """
    body, what = words
    for _ in range(3):
        # A Python float takes the dtype of what it meets, here as in a loop. An int is a number that changes.
        first = [np.asarray(v)[()] if isinstance(v, (int, bool)) else v for v in map(value_of, carry)]
        rec = record(step, (first, [value_of(x[0]) for x in slices]))
        changed = False
        for k, (c, o, path) in enumerate(zip(first, rec.graph.outputs, tree.paths())):
            where = what + "".join(f"[{p!r}]" for p in path)
            if o.shape != np.shape(c):
                raise AutodiffError(
                    f"{name}: {body} turned {where} of shape {np.shape(c)} into one of shape {o.shape}",
                    here(),
                )
            if o.dtype != np.asarray(c).dtype:
                carry[k] = _widened(name, f"{body} turned {where}", carry[k], np.asarray(c).dtype, o.dtype)
                changed = True
        if not changed:
            return rec
    raise AutodiffError(
        f"{name}: the dtype of the {what} changes from step to step; convert it in {body} with .astype",
        here(),
    )


def _widened(name: str, turned: str, x: Any, before: np.dtype, after: np.dtype) -> Any:
    """The carry in the dtype in which a step gives it back."""
    number = isinstance(value_of(x), (int, float))
    if not np.can_cast(before, after, "same_kind" if number else "safe"):
        raise AutodiffError(f"{name}: {turned} of dtype {before} into {after}. Start from that dtype", here())
    return x.astype(after) if hasattr(x, "astype") else np.asarray(x, after)[()]


def own(x: Any) -> Any:
    """x, for a body that may write to it: what it was is the carry before, or a y that was kept.

    A plain array in a function that is recorded becomes a recorded constant: a body may write recorded values
    to it.
    """
    rec = recording.current()
    if rec is not None and type(x) is np.ndarray and x.dtype.kind in recording.NUMBERS:
        return Recorded(rec, const(x.copy()), x.copy())
    return x.copy() if hasattr(x, "copy") else x
