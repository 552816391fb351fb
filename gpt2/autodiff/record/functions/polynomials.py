"""Polynomials as rows of coefficients, the highest power first; and weights added up in bins."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ...graph import Node
from ...ops import apply, build, table
from ..dispatch import call_function, handles, helper, operand, raw
from ..value import Recorded
from .linalg import lstsq_nodes
from .select import convolve, vander
from .shape import concatenate


def _row(p) -> Node:
    p = operand(p)
    return build.reshape(p, (p.size,)) if p.ndim != 1 else p


def _as_long(p: Node, n: int) -> Node:
    """With zeros in front."""
    if p.size == n:
        return p
    return build.assemble([p], (n,), [((n - p.size, n, 1),)], p.dtype)


def _both(a1, a2) -> tuple[Node, Node]:
    p, q = _row(a1), _row(a2)
    n = max(p.size, q.size)
    dtype = np.result_type(p.dtype, q.dtype)
    return _as_long(build.cast(p, dtype), n), _as_long(build.cast(q, dtype), n)


@handles(np.polyadd)
def polyadd(a1: Any, a2: Any) -> Node:
    p, q = _both(a1, a2)
    return p + q


@handles(np.polysub)
def polysub(a1: Any, a2: Any) -> Node:
    p, q = _both(a1, a2)
    return p - q


@handles(np.polymul)
def polymul(a1: Any, a2: Any) -> Node:
    return convolve(_row(a1), _row(a2))


@handles(np.polyder)
def polyder(p: Any, m: int = 1) -> Node:
    p = _row(p)
    for _ in range(operator.index(m)):
        n = p.size - 1
        powers = np.arange(n, 0, -1)
        p = build.slice_(p, ((0, max(n, 0), 1),)) * table.const(powers)
    return p


@handles(np.polyint)
def polyint(p: Any, m: int = 1, k: Any = None) -> Node:
    p, m = _row(p), operator.index(m)
    if k is not None:
        k = build.broadcast(_row(k), (m,)) if _row(k).size == 1 else _row(k)
    for i in range(m):
        last = build.zeros((1,), p.dtype) if k is None else build.slice_(k, ((i, i + 1, 1),))
        p = concatenate((p / table.const(np.arange(p.size, 0, -1)), last))
    return p


@handles(np.poly)
def poly(seq_of_zeros: Any) -> Node:
    """The polynomial that is zero there: (x - z1) (x - z2) ..."""
    zeros = operand(seq_of_zeros)
    if zeros.ndim != 1:
        raise NotImplementedError("of a matrix is not recorded")
    if zeros.dtype.kind == "c":
        raise NotImplementedError("of complex zeros is not recorded")
    made = build.full((1,), 1.0, zeros.dtype)
    for k in range(zeros.size):
        factor = concatenate((build.full((1,), 1.0, zeros.dtype), -build.slice_(zeros, ((k, k + 1, 1),))))
        made = convolve(made, factor)
    return made


@raw(np.polyfit)
def polyfit(
    x: Any, y: Any, deg: int, rcond: Any = None, full: bool = False, w: Any = None, cov: bool = False
) -> Any:
    if full or cov:
        raise NotImplementedError("np.polyfit with full=True or cov=True is not recorded")
    return call_function(_polyfit, (x, y, operator.index(deg), rcond, w), {})


def _polyfit(x, y, deg, rcond, w):
    return np.polyfit(x, y, deg, rcond, False, w)


@helper(_polyfit)
def polyfit_nodes(x: Any, y: Any, deg: int, rcond: Any, w: Any) -> Node:
    """Least squares on the powers of x, each scaled to length 1, as NumPy does it."""
    x, y = (operand(v) for v in (x, y))
    given = y.dtype if y.dtype.kind in "fc" else np.dtype(float)
    x, y = (build.cast(v, np.promote_types(v.dtype, float)) for v in (x, y))
    if rcond is None:
        rcond = x.size * np.finfo(x.dtype).eps
    powers = vander(x, deg + 1)
    if w is not None:
        w = build.cast(operand(w), np.result_type(powers.dtype, operand(w).dtype))
        powers = powers * build.reshape(w, (w.size, 1))
        product = y * (build.reshape(w, (w.size, 1)) if y.ndim == 2 else w)
        y = build.cast(build.cast(product, given), y.dtype)  # NumPy multiplies in place
    scale = apply("sqrt", apply("sum", powers * powers, axes=(0,), keepdims=False))
    found, _, _ = lstsq_nodes(powers / scale, y, rcond, (0,))
    return found / (build.reshape(scale, (deg + 1, 1)) if found.ndim == 2 else scale)


# ---- weights added up in bins. Where the values lie is looked at: other bins are another program ----


@raw(np.bincount)
def bincount(x: Any, /, weights: Any = None, minlength: int = 0) -> Any:
    x = _plain(x)
    if type(weights) is not Recorded:
        return np.bincount(x, weights, operator.index(minlength))
    return call_function(_bincount, (x, weights, operator.index(minlength)), {})


def _plain(x) -> np.ndarray:
    return x._read(np.array(x.value), "array") if type(x) is Recorded else np.asarray(x)


def _bincount(x, weights, minlength):
    return np.bincount(x, weights, minlength)


@helper(_bincount)
def bincount_nodes(x: Any, weights: Any, minlength: Any) -> Node:
    weights = build.cast(operand(weights), float)
    n = max(minlength, int(x.max()) + 1 if x.size else 0)
    return _added(weights, x, n)


def _added(weights: Node, places: np.ndarray, n: int) -> Node:
    zeros = build.zeros((n,), weights.dtype)
    if not places.size:
        return zeros
    return apply("scatter_add", zeros, weights, table.const(places.astype(np.intp)), spec=(("array", 0),))


@raw(np.histogram)
def histogram(
    a: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> tuple[Any, Any]:
    a = _plain(a)
    if type(bins) is Recorded:
        bins = _plain(bins)
    if type(weights) is not Recorded:
        return np.histogram(a, bins, range, density, weights)
    edges = np.histogram_bin_edges(a, bins, range)  # these say nothing of the weights
    return call_function(_histogram, (a, bins, range, density, weights), {}), edges


def _histogram(a, bins, range, density, weights):
    return np.histogram(a, bins, range, density, weights)[0]


@helper(_histogram)
def histogram_nodes(a: Any, bins: Any, range: Any, density: Any, weights: Any) -> Node:
    """Bins of one width are added up one weight after another, others as differences of running sums."""
    weights, edges = operand(weights), np.histogram_bin_edges(a, bins, range)
    a, n = a.ravel(), len(edges) - 1
    flat = build.reshape(weights, (weights.size,))
    if np.ndim(bins) == 0:
        places = np.searchsorted(edges, a, "right") - 1
        places[a == edges[-1]] = n - 1
        inside = np.flatnonzero((places >= 0) & (places < n))
        found = _added(build.cast(_taken(flat, inside), float), places[inside], n)
        found = build.cast(found, weights.dtype)
    else:
        order = np.argsort(a)
        sums = apply("cumsum", _taken(flat, order), axis=0, reverse=False)
        ends = np.append(np.searchsorted(a[order], edges[:-1]), np.searchsorted(a[order], edges[-1], "right"))
        sums = _taken(concatenate((build.zeros((1,), sums.dtype), sums)), ends)
        found = build.slice_(sums, ((1, n + 1, 1),)) - build.slice_(sums, ((0, n, 1),))
    if density:
        total = apply("sum", found, axes=(0,), keepdims=False)
        found = found / table.const(np.diff(edges)) / total
    return found


def _taken(x: Node, places: np.ndarray) -> Node:
    return apply("gather", x, table.const(places), spec=(("array", 0),))
