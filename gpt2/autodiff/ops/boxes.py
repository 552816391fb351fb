"""Boxes: parts of an array that slices reach, as one range of Python's for each axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def ranges(index: Sequence[tuple], shape: Sequence[int]) -> tuple[range, ...]:
    return tuple(range(n)[slice(*s)] for s, n in zip(index, shape))


def as_index(rs: Sequence[range]) -> tuple:
    """The index that stands for these ranges; equal ranges have equal indices."""
    return tuple(map(triple, rs))


def triple(r: range) -> tuple:
    """(start, stop, step) of a range, with 0 <= start, and stop None where it runs back to the beginning."""
    if len(r) == 0:
        return (0, 0, 1)
    if len(r) == 1:
        return (r[0], r[0] + 1, 1)
    if r.step > 0:
        return (r[0], r[-1] + 1, r.step)
    return (r[0], r[-1] - 1 if r[-1] else None, r.step)


def is_full(rs: Sequence[range], shape: Sequence[int]) -> bool:
    """Whether the ranges take everything, in order."""
    return all(r == range(n) for r, n in zip(rs, shape))


def disjoint(a: Sequence[range], b: Sequence[range]) -> bool:
    """Whether two boxes of steps of 1 or more, given by ranges, share no element."""
    return any(_apart(x, y) for x, y in zip(a, b))


def _apart(x: range, y: range) -> bool:
    if len(x) == 0 or len(y) == 0:
        return True
    if max(x[0], x[-1]) < min(y[0], y[-1]) or max(y[0], y[-1]) < min(x[0], x[-1]):
        return True
    if abs(x.step) == abs(y.step):
        return (x[0] - y[0]) % abs(x.step) != 0
    return False


FEW_BOXES = 32  # up to here boxes are compared in pairs
_MOST_MARKED = 1 << 24  # elements: of larger arrays no map is drawn


def alone(boxes: Sequence[Sequence[range]], shape: Sequence[int]) -> list[bool]:
    """For each box, whether it shares no element with any other. Many boxes are drawn on a map of the array,
    as the time for comparing pairs grows with the square.
    """
    if len(boxes) <= FEW_BOXES or math.prod(shape) > _MOST_MARKED:
        return [all(disjoint(a, b) for j, b in enumerate(boxes) if j != k) for k, a in enumerate(boxes)]
    drawn = np.zeros(shape, np.int32)
    places = [slices_of(b) for b in boxes]
    for p in places:
        drawn[p] += 1
    return [bool((drawn[p] == 1).all()) for p in places]


def slices_of(box: Sequence[range]) -> tuple[slice, ...]:
    """The index that takes a box out of an array."""
    return tuple(slice(*s) for s in as_index(box))


def inside(inner: Sequence[range], outer: Sequence[range]) -> tuple[range, ...] | None:
    """Where the box `inner` lies within `outer`, in the coordinates of `outer`; None where it leaves it."""
    places = []
    for r, box in zip(inner, outer):
        if len(r) == 0:
            places.append(range(0))
        elif r[0] in box and r[-1] in box and (len(r) == 1 or r.step % box.step == 0):
            first, last = box.index(r[0]), box.index(r[-1])
            step = r.step // box.step if len(r) > 1 else 1
            places.append(range(first, last + (1 if step > 0 else -1), step))
        else:
            return None
    return tuple(places)
