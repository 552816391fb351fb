"""autograd.misc.flatten: nested tuples, lists and dicts of arrays as one vector, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..builtins import type as type_of


def flatten(value: Any) -> tuple[Any, Callable]:
    """(vector, unflatten): all entries in one array, those of a dict in the order of its sorted keys, and the
    function that converts such a vector back.
    """
    leaves = [np.ravel(leaf) for leaf in _leaves(value)]
    vector = np.concatenate(leaves) if leaves else np.array([])
    shape, size = _shape(value), np.size(vector)

    def unflatten(vector):
        if np.shape(vector) != (size,):
            raise ValueError(f"unflatten: an array of shape {np.shape(vector)}, expected {size} entries")
        return _rebuilt(shape, vector, 0)[0]

    return vector, unflatten


def _leaves(value: Any) -> Iterator:
    t = type_of(value)
    if t in (list, tuple):
        for part in value:
            yield from _leaves(part)
    elif t is dict:
        for key in sorted(value):
            yield from _leaves(value[key])
    else:
        yield value


def _shape(value: Any) -> Any:
    """The structure of a value: (its type, keys, parts) for a container, the shape of an array."""
    t = type_of(value)
    if t in (list, tuple):
        return t, None, tuple(map(_shape, value))
    if t is dict:
        return dict, tuple(value), tuple((k, _shape(value[k])) for k in sorted(value))
    return "array", np.shape(value), None


def _rebuilt(shape: Any, vector: Any, start: int) -> tuple[Any, int]:
    """A value of this structure from the entries at `start`, and where the next begins."""
    kind, keys, parts = shape
    if kind == "array":
        size = int(np.prod(keys))
        return (np.reshape(vector[start : start + size], keys) if keys else vector[start]), start + size
    rebuilt = {}
    for key, part in parts if kind is dict else enumerate(parts):
        rebuilt[key], start = _rebuilt(part, vector, start)
    if kind is dict:
        return {k: rebuilt[k] for k in keys}, start
    return kind(rebuilt.values()), start


def flatten_func(func: Callable, example: Any) -> tuple[Callable, Callable, Any]:
    """A function of a tree as one of a vector: (function, unflatten, the example's vector)."""
    vector, unflatten = flatten(example)

    def of_vector(x, *args):
        return flatten(func(unflatten(x), *args))[0]

    return of_vector, unflatten, vector
