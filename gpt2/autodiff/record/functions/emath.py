"""np.emath: where a real function has no value, the complex one is taken. Whether there is such an element is
looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..dispatch import Given, call_function, raw
from ..value import Recorded


def _array(x: Given) -> Any:
    return call_function(np.asarray, (x,), {}) if type(x) is Recorded else np.asarray(x)


def _complex_if(outside: Recorded | np.ndarray, x: Recorded | np.ndarray) -> Any:
    """x as complex numbers, of NumPy's choice of width, where a real element lies outside."""
    if x.dtype.kind == "c" or not np.any(outside):
        return x
    return x.astype(np.complex64 if x.dtype.char in "fbBhH" else np.complex128)


def _without_negative(x: Given) -> Any:
    x = _array(x)
    return _complex_if(x < 0, x)


def _within_one(x: Given) -> Any:
    x = _array(x)
    return _complex_if(abs(x) > 1, x)


def _of_one(ufunc: np.ufunc, prepared: Callable) -> Callable:
    def handler(x: Given) -> Any:
        return ufunc(prepared(x))

    return handler


for _name in ("sqrt", "log", "log2", "log10"):
    raw(getattr(np.emath, _name))(_of_one(getattr(np, _name), _without_negative))
for _name in ("arccos", "arcsin", "arctanh"):
    raw(getattr(np.emath, _name))(_of_one(getattr(np, _name), _within_one))


@raw(np.emath.logn)
def logn(n: Given, x: Given) -> Recorded | np.ndarray:
    return np.log(_without_negative(x)) / np.log(_without_negative(n))


@raw(np.emath.power)
def power(x: Given, p: Given) -> Recorded | np.ndarray:
    """Integer powers that are negative are taken of floats."""
    x, p = _without_negative(x), _array(p)
    return np.power(x, p * 1.0 if p.dtype.kind in "biu" and np.any(p < 0) else p)
