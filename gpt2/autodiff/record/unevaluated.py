"""Dry runs: recording without the arithmetic, as a graph needs only shape, dtype and layout of large values.

In a dry run a ufunc's large result is an array of zeros that is never filled, writes to large arrays are left
out, and sums over such zeros are not computed. The nodes are those of a real run. If the function looks at a
value (`if x.max() > 3:`, x[mask]) that depends on such a stand-in, Unknown ends the attempt, and the function
is recorded again, with values. Integers and small arrays are always computed.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..graph import Node

LARGE = 1 << 15  # elements: smaller arrays are computed as quickly as not
# The shape, dtype and layout of their results do not depend on how many elements are reduced
REDUCTIONS = frozenset((np.sum, np.prod, np.mean, np.max, np.min))


class Unknown(BaseException):
    """Raised when a dry run needs a value. Not an Exception, so that the function does not catch it."""


def depends_on(node: Node, guessed: set[Node]) -> bool:
    """Whether the node is computed from one of these."""
    seen, todo = set(), [node]
    while todo:
        n = todo.pop()
        if n in guessed:
            return True
        if n not in seen:
            seen.add(n)
            todo.extend(n.args)
    return False


def stand_in(function: Callable, values: Sequence, options: Mapping) -> np.ndarray | None:
    """Zeros like function(*values); None if it must be computed: small, not real or complex, or an error."""
    if not isinstance(function, np.ufunc):
        return _reduced(function, values, options)
    arrays = [v for v in values if isinstance(v, np.ndarray)]
    if function is np.matmul:
        return _product(*values) if len(arrays) == 2 else None
    if function.signature is not None or function.nout != 1 or not any(a.size >= LARGE for a in arrays):
        return None
    return _elementwise(function, values)


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        return None
    try:
        shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    except ValueError:
        return None
    dtype = np.result_type(a, b)
    if dtype.kind not in "fc" or max(a.size, b.size, np.prod(shape, dtype=float)) < LARGE:
        return None
    return _zeros(shape, dtype)


def _elementwise(ufunc: np.ufunc, values) -> np.ndarray | None:
    kinds = tuple(v.dtype if isinstance(v, (np.ndarray, np.generic)) else type(v) for v in values)
    try:
        dtype = ufunc.resolve_dtypes((*kinds, None))[-1]
        if dtype.kind not in "fc":
            return None
        # NumPy's own iterator lays the result out as the ufunc would, and fills nothing
        flags = [["readonly"]] * len(values) + [["writeonly", "allocate"]]
        types = [None] * len(values) + [dtype]
        like = np.nditer((*values, None), ["zerosize_ok"], flags, op_dtypes=types).operands[-1]
    except (TypeError, ValueError):
        return None
    return zeros_like(like, dtype)


def zeros_like(like: np.ndarray, dtype: np.dtype | None = None) -> np.ndarray:
    """Zeros of the same shape, with the axes in the same order in memory."""
    order = np.argsort([-s for s in like.strides], kind="stable")
    return _zeros(tuple(np.array(like.shape)[order]), dtype or like.dtype).transpose(np.argsort(order))


def _reduced(function: Callable, values: Sequence, options: Mapping) -> Any:
    """A stand-in for the reduction of a large stand-in; None if it must be computed."""
    if function not in REDUCTIONS or len(values) > 2 or not options.keys() <= {"axis", "keepdims", "dtype"}:
        return None
    x = values[0] if values else None
    if not isinstance(x, np.ndarray) or x.size < LARGE or x.dtype.kind not in "fc":
        return None
    base: Any = x  # of _zeros, or of a view of them, that is in a memory map; a mapped file counts as well
    while isinstance(base, np.ndarray):
        base = base.base
    if not isinstance(base.obj if isinstance(base, memoryview) else base, mmap.mmap):
        return None
    axis = values[1] if len(values) == 2 else options.get("axis")
    axes = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    try:
        cut = np.lib.array_utils.normalize_axis_tuple(axes, x.ndim)
        part = x[tuple([slice(0, 1) if k in cut else slice(None) for k in range(x.ndim)])]
        return function(np.zeros_like(part), *values[1:], **options)  # without touching a page of x
    except (TypeError, ValueError):
        return None


def _zeros(shape: tuple, dtype: np.dtype) -> np.ndarray:
    """An array of zeros in pages of its own, allocated when touched: np.zeros may fill the heap."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < mmap.PAGESIZE:
        return np.zeros(shape, dtype)
    return np.frombuffer(mmap.mmap(-1, nbytes), dtype).reshape(shape)
