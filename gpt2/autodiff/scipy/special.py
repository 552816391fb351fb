"""scipy.special: the functions of it that are no ufuncs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.special as _scipy

from ..api.custom import stop_gradient
from .passing import not_like_this, ours, passed_on


def __getattr__(name: str) -> Any:
    return passed_on(_scipy, name)


def __dir__() -> list[str]:
    return dir(_scipy)


@ours(_scipy)
def logsumexp(
    a: Any, axis: Any = None, b: Any = None, keepdims: Any = False, return_sign: Any = False
) -> Any:
    """log(sum(b * exp(a))). Entries of -inf add nothing, and a row of them gives -inf."""
    if return_sign:
        raise not_like_this("scipy.special.logsumexp", "with return_sign=True")
    largest = np.max(a, axis=axis, keepdims=True)
    shift = stop_gradient(np.where(np.isfinite(largest), largest, 0.0))  # it cancels
    terms = np.exp(a - shift)
    total = np.sum(terms if b is None else terms * b, axis=axis, keepdims=True)
    out = np.log(total) + shift
    return out if keepdims else np.squeeze(out, axis=axis)


@ours(_scipy)
def softmax(x: Any, axis: Any = None) -> Any:
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


@ours(_scipy)
def log_softmax(x: Any, axis: Any = None) -> Any:
    shifted = x - np.max(x, axis=axis, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


@ours(_scipy)
def polygamma(n: Any, x: Any) -> Any:
    """psi, or a Hurwitz zeta function. n is one int."""
    if not isinstance(n, (int, np.integer)):
        raise not_like_this("scipy.special.polygamma", "with an order that is no int")
    return _scipy.psi(x) if n == 0 else (-1.0) ** (n + 1) * math.factorial(n) * _scipy.zeta(n + 1.0, x)


@ours(_scipy)
def multigammaln(a: Any, d: Any) -> Any:
    return d * (d - 1) / 4 * math.log(math.pi) + sum(_scipy.gammaln(a - j / 2) for j in range(d))
