"""What a value costs: bytes to keep, nanoseconds to compute. Rough, but right in order of magnitude.

Measured with NumPy 2.4 on one core of a two-core AVX-512 machine, float32, in blocks that stay in cache (an
elementwise op takes 0.1 ns an element there) and beyond it (copy 0.34 ns an element, fill 0.26, sum 0.28).
"""

from __future__ import annotations

import math

from ..graph import Node
from . import OPS
from .matrix import letter_sizes

# Writing a byte to memory and reading it back, (0.26 + 0.28) / 4, and a third for what it drives out of cache
NS_PER_BYTE = 0.18
NS_PER_CACHED_BYTE = 0.05  # where all that is kept is small beside the last cache, or memory no concern
GFLOPS = 50.0  # of a product in the background of everything else; 76 alone
NS_REDUCE = 0.3  # per element read by a reduction
NS_MOVE = 0.1  # per byte read or written by ops that place values without computing

FREE = frozenset(("reshape", "transpose", "slice", "broadcast", "item", "const", "input", "stop_gradient"))
_MOVES = frozenset(("assemble", "update", "gather", "take_along", "copy"))
_SCATTERS = frozenset(("scatter", "scatter_add", "scatter_along_add"))
_REDUCTIONS = frozenset(("sum", "max", "min", "prod", "any", "all", "argmax", "argmin"))
_PRODUCTS = frozenset(("matmul", "einsum"))
_CACHED_BYTES = 4  # Op.cost is for elements of this size


def is_view(n: Node) -> bool:
    """Does NumPy compute nothing for it, and hand out the memory of its argument?"""
    return n.op in ("reshape", "transpose", "slice", "broadcast")


def nbytes(n: Node) -> int:
    """Bytes that keeping the value takes."""
    return n.nbytes


def flops(n: Node) -> float:
    """Floating-point operations of a matrix product."""
    if n.op == "matmul":
        return 2.0 * n.size * n.args[0].shape[-1]
    return 2.0 * math.prod(letter_sizes(n.attrs["subscripts"], n.args).values())


def nanoseconds(n: Node) -> float:
    """Time to compute the value from its arguments."""
    if n.op in FREE:
        return 0.0
    read = sum(a.size for a in n.args if not isinstance(a.dtype, tuple))
    if n.op in _PRODUCTS:
        return flops(n) / GFLOPS
    if n.op in _REDUCTIONS:
        return NS_REDUCE * n.args[0].size
    if n.op in _MOVES:
        return NS_MOVE * 2 * n.nbytes
    if n.op in _SCATTERS:
        return NS_MOVE * (2 * n.nbytes + 10 * n.args[1].nbytes)
    if isinstance(n.dtype, tuple):
        return OPS[n.op].cost * max(read, 1)
    wide = max(1.0, n.dtype.itemsize / _CACHED_BYTES)
    return OPS[n.op].cost * wide * max(n.size, read if OPS[n.op].ufunc is None else 0)
