"""scipy.ndimage: filters along the axes of an image, and linear interpolation between pixels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.ndimage as _scipy

from ..custom.custom import stop_gradient
from ..record.value import Recorded, value_of
from .interpolate import nan_slopes
from .passing import names_of, ours, unsupported_option

__getattr__, __dir__ = names_of(_scipy)


# ---- Boundary modes --------------------------------------------------------------------------------------


def _within(index: Any, n: int, mode: str) -> Any:
    """Indices of pixels mapped into the image by the boundary mode; for constants any index."""
    if mode in ("reflect", "grid-mirror"):
        index = index % (2 * n)
        return np.minimum(index, 2 * n - 1 - index)
    if mode == "mirror":
        period = max(2 * n - 2, 1)
        index = index % period
        return np.minimum(index, (2 * n - 2 - index) % period)
    if mode in ("wrap", "grid-wrap"):
        return index % n
    return np.clip(index, 0, n - 1)


PADDING: dict[str, Any] = {  # np.pad's modes
    "reflect": "symmetric",
    "grid-mirror": "symmetric",
    "constant": "constant",
    "grid-constant": "constant",
    "nearest": "edge",
    "mirror": "reflect",
    "grid-wrap": "wrap",
    "wrap": "wrap",
}


def _known(name: str, mode: Any) -> str:
    if mode not in PADDING:
        raise RuntimeError(f"{name}: boundary mode {mode!r} is not supported; there are {', '.join(PADDING)}")
    return mode


# ---- Filters ---------------------------------------------------------------------------------------------


def _check_real(name: str, x: Any) -> None:
    if np.asarray(value_of(x)).dtype.kind not in "fc":
        raise unsupported_option(f"scipy.ndimage.{name}", "of integers, whose result SciPy rounds,")


def _correlated(name: str, x: Any, weights: Any, axis: int, mode: str, cval: float, origin: int) -> Any:
    """The sum over taps of weights[k] * x[i + k - size // 2 - origin]."""
    _check_real(name, x)
    size, n = np.shape(weights)[0], np.shape(x)[axis]
    before = size // 2 + origin
    if not 0 <= before < size:
        raise ValueError(f"{name}: origin is {origin}, which lies outside of {size} weights")
    x = np.moveaxis(x, axis, 0)
    margins = [(before, size - 1 - before)] + [(0, 0)] * (np.ndim(x) - 1)
    padding = PADDING[_known(name, mode)]
    options: Any = {"constant_values": cval} if padding == "constant" else {}
    wide = np.pad(x, margins, padding, **options)
    total = weights[0] * wide[:n]
    for k in range(1, size):
        total = total + weights[k] * wide[k : k + n]
    return np.moveaxis(total, 0, axis)


@ours(_scipy)
def correlate1d(input, weights, axis=-1, mode="reflect", cval=0.0, origin=0) -> Any:
    return _correlated("correlate1d", input, weights, axis, mode, cval, origin)


@ours(_scipy)
def convolve1d(input, weights, axis=-1, mode="reflect", cval=0.0, origin=0) -> Any:
    even = np.shape(weights)[0] % 2 == 0
    return _correlated("convolve1d", input, weights[::-1], axis, mode, cval, -origin - even)


@ours(_scipy)
def uniform_filter1d(input, size, axis=-1, mode="reflect", cval=0.0, origin=0) -> Any:
    return _correlated("uniform_filter1d", input, [1.0 / size] * size, axis, mode, cval, origin)


@ours(_scipy)
def gaussian_filter1d(
    input, sigma, axis=-1, order=0, mode="reflect", cval=0.0, truncate=4.0, radius=None
) -> Any:
    """Differentiable by sigma too, through the weights; their number depends on its value.

    A derivative of the bell exp(-x**2 / 2) is a Hermite polynomial times it, with alternating signs.
    """
    if order < 0:
        raise ValueError(f"gaussian_filter: order is {order}, expected no negative number")
    if radius is None:
        if type(sigma) is Recorded:  # the recording is valid for this number only
            sigma._read(float(value_of(sigma)), "float")
        radius = int(truncate * float(value_of(sigma)) + 0.5)
    x = np.arange(-radius, radius + 1)
    bell = np.exp(-0.5 / (sigma * sigma) * x**2)
    polynomial = np.polynomial.hermite_e.hermeval(x / sigma, [0.0] * order + [1.0])
    weights = bell / np.sum(bell) * polynomial * (-1.0 / sigma) ** order
    return _correlated("gaussian_filter1d", input, weights[::-1], axis, mode, cval, 0)


@ours(_scipy)
def gaussian_filter(
    input, sigma, order=0, mode="reflect", cval=0.0, truncate=4.0, radius=None, axes=None
) -> Any:
    """One axis after another."""
    x = input
    for axis, s, o, m, r in _by_axis("gaussian_filter", x, axes, sigma, order, mode, radius):
        if type(s) is Recorded or s > 1e-15:
            x = gaussian_filter1d.__wrapped__(x, s, axis, o, m, cval, truncate, r)
    return x


@ours(_scipy)
def uniform_filter(input, size=3, mode="reflect", cval=0.0, origin=0, axes=None) -> Any:
    x = input
    for axis, s, m, o in _by_axis("uniform_filter", x, axes, size, mode, origin):
        x = _correlated("uniform_filter", x, [1.0 / s] * s, axis, m, cval, o)
    return x


def _by_axis(name: str, x: Any, axes: Any, *settings: Any) -> Iterator[tuple]:
    """Each axis with its settings, which are given for all of them or as lists."""
    _check_real(name, x)
    along = range(np.ndim(x)) if axes is None else np.atleast_1d(axes)
    columns = []
    for setting in settings:
        listed = isinstance(setting, list | tuple) or not isinstance(setting, str) and np.ndim(setting) > 0
        columns.append([setting[k] for k in range(len(setting))] if listed else [setting] * len(along))
        if len(columns[-1]) != len(along):
            given = f"{len(columns[-1])} values are given for {len(along)} axes"
            raise RuntimeError(f"{name}: {given}: {setting!r}")
    return zip(map(int, along), *columns)


FURTHEST = 2.0**62  # beyond it a coordinate is no index


# ---- Between the pixels ----------------------------------------------------------------------------------


def _folded(c: Any, n: int, mode: str) -> Any:
    """Coordinates outside of the image, wrapped if `mode` says so."""
    if mode == "wrap" and n > 1:  # the first and the last pixel are one
        turns = stop_gradient(np.where(c < 0, -1.0 - np.floor(-c / (n - 1)), np.floor(c / (n - 1))))
        return np.where((c >= 0) & (c <= n - 1), c, c - turns * (n - 1))
    return np.zeros_like(c) if mode == "wrap" else c


@ours(_scipy)
def map_coordinates(input, coordinates, order=3, mode="constant", cval=0.0) -> Any:
    """The value at each point, from the 2**d pixels around; at a pixel with the slope to its right."""
    name = "scipy.ndimage.map_coordinates"
    if order != 1:
        raise unsupported_option(name, f"with order={order!r} (order=1 has one)")
    _check_real("map_coordinates", input)
    x, mode, sizes = input, _known(name, mode), np.shape(input)
    if np.shape(coordinates)[0] != len(sizes):
        raise RuntimeError(f"{name}: coordinates of shape {np.shape(coordinates)} for {len(sizes)} axes")
    axes = [coordinates[d] for d in range(len(sizes))]
    points = [_folded(c, n, mode) for c, n in zip(axes, sizes)]
    low = [np.floor(stop_gradient(c)) for c in points]
    share = [c - i for c, i in zip(points, low)]
    low = [np.clip(i, -2, n + 1) for i, n in zip(low, sizes)] if mode == "nearest" else low
    flat, total = np.ravel(x), 0.0
    for corner in np.ndindex(*(2,) * len(sizes)):
        weight, position, beyond = 1.0, 0, False
        for d, (step, n) in enumerate(zip(corner, sizes)):
            index = (low[d] + step).astype(np.intp)
            weight = weight * (share[d] if step else 1.0 - share[d])
            position = position * n + _within(index, n, "nearest" if mode == "wrap" else mode)
            beyond = beyond | (index < 0) | (index >= n)
        value = flat[position]
        value = np.where(beyond, cval, value) if mode == "grid-constant" else value
        total = total + weight * value
    if mode == "constant":
        inside = True
        for c, n in zip(axes, sizes):
            inside = inside & (c >= 0) & (c <= n - 1)
        total = np.where(inside, total, cval)
    elif mode not in ("grid-constant", "nearest"):
        # As in SciPy cval where a coordinate is nan or infinite; in a wrapping mode nan for inf
        outside, infinite = False, False
        for c in axes:
            outside = outside | (~(c > -FURTHEST) if "wrap" in mode else ~(np.abs(c) < FURTHEST))
            infinite = infinite | (c >= FURTHEST)
        total = np.where(outside | infinite, np.where(outside, cval, np.nan), total)
    return nan_slopes(total, axes, 0)
