"""scipy.special: its functions that are not ufuncs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.special as _scipy

from ..custom.custom import stop_gradient
from .passing import names_of, ours, unsupported_option

LARGEST = 700.0  # of which exp is finite

__getattr__, __dir__ = names_of(_scipy)


@ours(_scipy)
def logsumexp(a, axis=None, b=None, keepdims=False) -> Any:
    """log(sum(b * exp(a))). Entries of -inf add nothing, and a row of them gives -inf; where b is 0,
    even infinity adds nothing.
    """
    largest = np.max(a if b is None else np.where(b == 0.0, -np.inf, a), axis=axis, keepdims=True)
    shift = stop_gradient(np.where(np.isfinite(largest), largest, 0.0))  # it cancels
    if b is None:
        # the largest terms sum to 1: without them the sum is exact where the others are small
        first = np.isfinite(largest) & (a == largest)
        share = first / np.maximum(np.sum(first, axis=axis, keepdims=True), 1)
        rest = np.sum(np.exp(a - shift) - share, axis=axis, keepdims=True) - ~np.isfinite(largest)
        empty = largest == -np.inf
        out = np.where(empty, -np.inf, np.log1p(np.where(empty, 0.0, rest)) + shift)
    else:
        power = np.where(b == 0.0, np.minimum(a - shift, LARGEST), a - shift)
        out = np.log(np.sum(b * np.exp(power), axis=axis, keepdims=True)) + shift
    return out if keepdims else np.squeeze(out, axis=axis)


@ours(_scipy)
def softmax(x, axis=None) -> Any:
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


@ours(_scipy)
def log_softmax(x, axis=None) -> Any:
    largest = np.max(x, axis=axis, keepdims=True)
    shifted = x - stop_gradient(np.where(np.isfinite(largest), largest, 0.0))  # it cancels
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


@ours(_scipy)
def polygamma(n, x) -> Any:
    """psi, or a Hurwitz zeta function. n is one int."""
    if not isinstance(n, (int, np.integer)):
        raise unsupported_option("scipy.special.polygamma", "with an order that is no int")
    if n == 0:
        return _scipy.psi(x)
    return (-1.0) ** (n + 1) * float(_scipy.gamma(n + 1.0)) * _scipy.zeta(n + 1.0, x)


@ours(_scipy)
def multigammaln(a, d) -> Any:
    """nan for an a of at most (d - 1) / 2, for which SciPy raises a ValueError."""
    total = d * (d - 1) / 4 * math.log(math.pi) + sum(_scipy.gammaln(a - j / 2) for j in range(d))
    return np.where(a > (d - 1) / 2, total, np.nan)
