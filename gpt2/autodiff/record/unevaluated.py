"""Records without the arithmetic: what a graph needs of large values is their shape, dtype and layout.

In a dry run a ufunc's large result is an array of zeros that nobody fills, and a large array that is written
to stays as it was. The nodes are those of a real run. What looks at a value (`if x.max() > 3:`, x[mask])
makes sure first that it does not hang on such a stand-in; if it does, Unknown ends the attempt, and
`record` runs the function again, with values. Integers and small arrays are always computed.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import numpy as np

from ..graph import Node

LARGE = 1 << 15  # elements: below, to compute is as quick as not to


class Unknown(BaseException):
    """Raised where a dry run is asked for a value. No Exception: the function must not catch it."""


def hangs_on(node: Node, guessed: set[Node]) -> bool:
    """Whether the value of the node is computed from one of these."""
    seen, todo = set(), [node]
    while todo:
        n = todo.pop()
        if n in guessed:
            return True
        if n not in seen:
            seen.add(n)
            todo.extend(n.args)
    return False


def stand_in(ufunc: np.ufunc, values: Sequence) -> np.ndarray | None:
    """Zeros like ufunc(*values); None where it must be computed: small, not real or complex, or an error."""
    arrays = [v for v in values if isinstance(v, np.ndarray)]
    if ufunc is np.matmul:
        return _product(*values) if len(arrays) == 2 else None
    if ufunc.signature is not None or ufunc.nout != 1 or not any(a.size >= LARGE for a in arrays):
        return None
    return _elementwise(ufunc, values)


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
    order = np.argsort([-s for s in like.strides], kind="stable")
    return _zeros(tuple(np.array(like.shape)[order]), dtype).transpose(np.argsort(order))


def _zeros(shape: tuple, dtype: np.dtype) -> np.ndarray:
    """An array of zeros in pages of its own, which exist once somebody touches them. np.zeros would take what
    it can from the heap, and fill it.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < mmap.PAGESIZE:
        return np.zeros(shape, dtype)
    return np.frombuffer(mmap.mmap(-1, nbytes), dtype).reshape(shape)
