"""Handlers for bincount and histogram. The counted values are read: others make other programs."""

from __future__ import annotations

import operator
import sys
from typing import Any

import numpy as np

from ...graph import Node
from ...ops import apply, build, table
from ..dispatch import Operand, handled, operand, raw
from ..value import Recorded
from .as_written import Written, replaces


@raw(np.bincount)
def bincount(x, /, weights=None, minlength=0) -> Recorded | np.ndarray:
    x = _plain(x)
    if type(weights) is not Recorded:
        return np.bincount(x, weights, operator.index(minlength))
    return handled(np.bincount, (x, weights, operator.index(minlength)), {}, bincount_nodes)


def _plain(x) -> np.ndarray:
    return x._read(np.array(x.value), "array") if type(x) is Recorded else np.asarray(x)


def bincount_nodes(x: np.ndarray, weights: Operand, minlength: int) -> Node:
    weights = build.cast(operand(weights), float)
    sums = build.zeros((max(minlength, int(x.max()) + 1 if x.size else 0),), weights.dtype)
    if not x.size:
        return sums
    return apply("scatter_add", sums, weights, table.const(x.astype(np.intp)), spec=(("array", 0),))


@replaces(sys.modules["numpy.lib._histograms_impl"]._search_sorted_inclusive)
def _search_sorted_inclusive(a: Any, v: Any) -> Any:
    """NumPy's own calls the method of an array, which takes no recorded edges."""
    return np.concatenate((np.searchsorted(a, v[:-1], "left"), np.searchsorted(a, v[-1:], "right")))


_histogram = Written(np.histogram)


@raw(np.histogram)
def histogram(a, bins=10, range=None, density=None, weights=None) -> tuple[Any, Any]:
    """As NumPy wrote it. Where the edges do not depend on `a`, it is read as it is: the program holds for
    the same values, and not only for the same rounded bins.
    """
    sources = (bins,) if np.ndim(bins) else (a,) if range is None else range
    if not any(type(x) is Recorded for x in sources):
        a = _plain(a)
    return _histogram(a, bins, range, density, weights)
