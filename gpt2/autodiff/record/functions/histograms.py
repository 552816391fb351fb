"""Handlers for bincount and histograms: sums of weights in bins. The values that are counted are read: other
bins are another program.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.polynomial

from ...errors import unsupported
from ...graph import Node
from ...ops import apply, build, table
from ..dispatch import Operand, RecordedLike, handled, operand, raw
from ..source_lines import here
from ..value import Recorded
from .shape import concatenate


@raw(np.bincount)
def bincount(
    x: RecordedLike, /, weights: RecordedLike | None = None, minlength: int = 0
) -> Recorded | np.ndarray:
    x = _plain(x)
    if type(weights) is not Recorded:
        return np.bincount(x, weights, operator.index(minlength))
    return handled(np.bincount, (x, weights, operator.index(minlength)), {}, bincount_nodes)


def _plain(x) -> np.ndarray:
    return x._read(np.array(x.value), "array") if type(x) is Recorded else np.asarray(x)


def bincount_nodes(x: np.ndarray, weights: Operand, minlength: int) -> Node:
    weights = build.cast(operand(weights), float)
    n = max(minlength, int(x.max()) + 1 if x.size else 0)
    return _added(weights, x, n)


def _added(weights: Node, positions: np.ndarray, n: int) -> Node:
    zeros = build.zeros((n,), weights.dtype)
    if not positions.size:
        return zeros
    return apply("scatter_add", zeros, weights, table.const(positions.astype(np.intp)), spec=(("array", 0),))


def _edges(a: Recorded | np.ndarray, bins: RecordedLike, range: Sequence | None) -> Any:
    """The edges of bins: recorded where they depend on recorded numbers."""
    values, limits = _plain(a), _limits(range)
    if np.ndim(bins) == 1:
        np.histogram_bin_edges(values, _plain(bins), limits)  # raises what NumPy raises
        return bins if type(bins) is Recorded else np.asarray(bins)
    plain = np.histogram_bin_edges(values, bins, limits)
    sources = (a,) if range is None else range
    if not any(type(v) is Recorded and v.dtype.kind in "fc" for v in sources) or not values.size:
        return plain
    low, high = (np.min(a), np.max(a)) if range is None else range
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, len(plain), dtype=plain.dtype)
    if not np.array_equal(edges.value, plain):
        raise unsupported("np.histogram_bin_edges", here(), "with bins like these is not recorded")
    return edges


@raw(np.histogram_bin_edges)
def histogram_bin_edges(
    a: RecordedLike,
    bins: RecordedLike = 10,
    range: Sequence | None = None,
    weights: RecordedLike | None = None,
) -> Recorded | np.ndarray:
    return _edges(a, bins, range)


@raw(np.histogram)
def histogram(
    a: RecordedLike,
    bins: RecordedLike = 10,
    range: Sequence | None = None,
    density: bool | None = None,
    weights: RecordedLike | None = None,
) -> tuple[Any, Any]:
    edges = _edges(a, bins, range)
    arguments = _plain(a), _plain(bins) if np.ndim(bins) else bins, _limits(range)
    if type(weights) is Recorded:
        counts = handled(_histogram, (*arguments, weights), {}, histogram_nodes)
    else:
        counts = np.histogram(*arguments, False, weights)[0]
    if density:
        counts = counts / np.diff(edges).astype(float) / counts.sum()
    return counts, edges


def _limits(range):
    """The ends of a range as plain numbers of the same types."""
    if range is None:
        return None
    return tuple(v._read(v.value, "float") if type(v) is Recorded else v for v in range)


def _histogram(a, bins, range, weights):
    return np.histogram(a, bins, range, False, weights)[0]


def histogram_nodes(a: np.ndarray, bins: Operand, range: Operand, weights: Operand) -> Node:
    """Sums in equal bins weight by weight, in others as differences of a cumulative sum, as in NumPy."""
    weights, edges = operand(weights), np.histogram_bin_edges(a, bins, range)
    a, n = a.ravel(), len(edges) - 1
    flat = build.reshape(weights, (weights.size,))
    if np.ndim(bins) == 0:
        bins = np.searchsorted(edges, a, "right") - 1
        bins[a == edges[-1]] = n - 1
        inside = np.flatnonzero((bins >= 0) & (bins < n))
        sums_in_bins = _added(build.cast(_taken(flat, inside), float), bins[inside], n)
        return build.cast(sums_in_bins, weights.dtype)
    order = np.argsort(a)
    sums = apply("cumsum", _taken(flat, order), axis=0, reverse=False)
    ends = np.append(np.searchsorted(a[order], edges[:-1]), np.searchsorted(a[order], edges[-1], "right"))
    sums = _taken(concatenate((build.zeros((1,), sums.dtype), sums)), ends)
    return build.slice_(sums, ((1, n + 1, 1),)) - build.slice_(sums, ((0, n, 1),))


def _is_row(bins) -> bool:
    """Whether bins are given for each axis, not one number for all."""
    return type(bins) in (list, tuple) or np.ndim(bins) > 0


@raw(np.histogramdd)
def histogramdd(
    sample: Recorded | np.ndarray,
    bins: RecordedLike = 10,
    range: Sequence | None = None,
    density: bool | None = None,
    weights: RecordedLike | None = None,
) -> Recorded | np.ndarray:
    columns = list(sample) if type(sample) in (list, tuple) else list(np.atleast_2d(sample.T))
    bins = list(bins) if _is_row(bins) else [bins] * len(columns)
    ranges = [None] * len(columns) if range is None else list(range)
    edges = [_edges(c, b, r) for c, b, r in zip(columns, bins, ranges, strict=True)]
    points = np.stack([_plain(c) for c in columns], axis=1)
    bin_values = [_plain(b) if np.ndim(b) else b for b in bins]
    limits = [_limits(r) for r in ranges]
    if type(weights) is Recorded:
        counts = handled(_histogramdd, (points, bin_values, limits, weights), {}, histogramdd_nodes)
    else:
        counts = np.histogramdd(points, bin_values, limits, False, weights)[0]
    if density:
        total = counts.sum()
        for axis, e in enumerate(edges):
            shape = [1] * len(edges)
            shape[axis] = len(e) - 1
            counts = counts / np.diff(e).reshape(shape)
        counts = counts / total
    return counts, edges


def _histogramdd(sample, bins, ranges, weights):
    return np.histogramdd(sample, bins, ranges, False, weights)[0]


def histogramdd_nodes(sample: Node, bins: Operand, ranges: Operand, weights: Operand) -> Node:
    """Each weight is added to its bin, or outside the range to one of the bins around them."""
    edges = np.histogramdd(sample, bins, ranges)[1]
    bins = [np.searchsorted(e, column, "right") for e, column in zip(edges, sample.T)]
    for e, column, of_column in zip(edges, sample.T, bins):
        of_column[column == e[-1]] -= 1
    counts = [len(e) + 1 for e in edges]
    weights = build.cast(operand(weights), float)
    sums = _added(weights, np.ravel_multi_index(bins, counts), int(np.prod(counts)))
    return build.slice_(build.reshape(sums, tuple(counts)), tuple((1, n - 1, 1) for n in counts))


def _taken(x: Node, positions: np.ndarray) -> Node:
    return apply("gather", x, table.const(positions), spec=(("array", 0),))
