"""Takes work out of reductions: nothing is summed along axes of length 1, or along which it was broadcast.

    sum(broadcast(x)) -> n * sum(x), broadcast along axes that are not summed

sum(a + row) -> sum(a) + n * row is not among them: in sum(x - mean(x)) it would trade an exact small
difference for that of two large numbers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..graph import Node
from ..ops import apply, build, const
from .collect import representable
from .engine import BITS, DIGITS, Family
from .match import CHOICES, is_inexact, padded

if TYPE_CHECKING:
    from .engine import Sweep

reduce = Family("reduce")


@reduce.rule(*CHOICES, keeps=BITS)
@reduce.rule("prod", keeps=BITS, kinds="biuf")
@reduce.rule("sum", "prod")
def over_nothing(n: Node, sweep: Sweep) -> Node | None:
    """A reduction over axes of length 1 is a reshape. But NumPy's sum of -0.0 is 0.0, and its product of
    inf * 1j has a nan: it begins with 1 + 0j.
    """
    (x,) = n.args
    axes = n.attrs["axes"]
    if n.dtype != x.dtype:
        return None
    if all(x.shape[i] == 1 for i in axes):
        return build.reshape(x, n.shape)
    long = tuple(i for i in axes if x.shape[i] != 1)
    if len(long) < len(axes) and n.attrs["keepdims"]:
        return apply(n.op, x, axes=long, keepdims=True)
    return None


@reduce.rule(*CHOICES, keeps=BITS)
@reduce.rule("sum", keeps=DIGITS, reads=("broadcast",))
def of_broadcast(n: Node, sweep: Sweep) -> Node | None:
    """A reduction of what was broadcast is one of what there was before."""
    (x,) = n.args
    if x.op != "broadcast" or n.dtype != x.dtype or 0 in x.shape:
        return None
    shape, axes = padded(x.args[0].shape, x.ndim), n.attrs["axes"]
    if shape == x.shape:
        return None
    z = apply(n.op, build.reshape(x.args[0], shape), axes=axes, keepdims=n.attrs["keepdims"])
    copies = math.prod(x.shape[i] for i in axes if shape[i] == 1)
    if n.op == "sum" and copies > 1:
        if not is_inexact(n) or not representable(float(copies), n.dtype):
            return None
        z = z * const(float(copies), n.dtype)
    return build.broadcast(z, n.shape)
