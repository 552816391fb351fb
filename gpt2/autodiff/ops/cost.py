"""Rough estimates of what computing and keeping a value costs, in nanoseconds.

Measured with NumPy 2.4 on one core of a two-core AVX-512 machine, float32, in blocks that stay in cache (an
elementwise op takes 0.1 ns an element there) and beyond it (copy 0.34 ns an element, fill 0.26, sum 0.28).
"""

from __future__ import annotations

from collections.abc import Callable

from ..graph import Node
from .table import Op, facts

# Writing a byte to memory and reading it back, (0.26 + 0.28) / 4, and a third for what it drives out of cache
NS_PER_BYTE = 0.18
NS_PER_CACHED_BYTE = 0.05  # where all that is kept is small beside the last cache, or memory no concern
GFLOPS = 50.0  # of a product in the background of everything else; 76 alone
NS_REDUCE = 0.3  # per element read by a reduction
NS_MOVE = 0.1  # per byte read or written by ops that move values without computing

_CACHED_BYTES = 4  # Op.cost is for elements of this size


def nanoseconds(n: Node) -> float:
    """Time to compute the value from its arguments."""
    op = facts(n)
    return _WORK[op.work](n, op)


def _computes(n: Node, op: Op) -> float:
    read = 0 if op.ufunc is not None else sum(a.size for a in n.args if not isinstance(a.dtype, tuple))
    if isinstance(n.dtype, tuple):
        return op.cost * max(read, 1)
    return op.cost * max(1.0, n.dtype.itemsize / _CACHED_BYTES) * max(n.size, read)


_WORK: dict[str, Callable[[Node, Op], float]] = {
    "computes": _computes,
    "streams": lambda n, op: op.cost * n.size,
    "free": lambda n, op: 0.0,
    "moves": lambda n, op: NS_MOVE * 2 * n.nbytes,
    "scatters": lambda n, op: NS_MOVE * (2 * n.nbytes + 10 * n.args[1].nbytes),
    "reduces": lambda n, op: NS_REDUCE * n.args[0].size,
    "multiplies": lambda n, op: op.flops(n) / GFLOPS,
}
