"""scipy.interpolate: curves at fixed knots, differentiated by the points of evaluation and by the values at
the knots.

The classes are SciPy's, with its methods. Called with recorded values they return a `Piecewise` of this
module instead, which can be evaluated, differentiated and integrated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.interpolate as _scipy

from ..errors import unsupported
from ..record.source_lines import here
from ..record.value import Recorded
from .passing import is_recorded, ours, scipy_value, stacked, unsupported_option


def __getattr__(name: str) -> Any:
    value = scipy_value(_scipy, name)
    if isinstance(value, type) and any("__call__" in vars(base) for base in value.__mro__):
        about = {"__module__": __name__, "__doc__": value.__doc__}
        value = globals()[name] = type(name, (_Curve, value), about)
    return value


def __dir__() -> list[str]:
    return dir(_scipy)


# ---- Evaluating a curve ----------------------------------------------------------------------------------


def _interval(x: Any, knots: np.ndarray) -> Any:
    """Which interval each point lies in; points beyond the ends belong to the outermost ones."""
    return np.clip(np.searchsorted(knots, x, side="right") - 1, 0, len(knots) - 2)


def _clipped(x: Any, first: float, last: float) -> Any:
    """np.clip, with the derivative 1 at both ends: that from inside, as there is no curve outside."""
    return np.where(x < first, first, np.where(x > last, last, x))


def _across(factor: Any, ndim: int) -> Any:
    """A number for each point, with axes appended to broadcast against values of so many axes."""
    return np.reshape(factor, (*np.shape(factor), *(1,) * ndim))


def nan_slopes(y: Any, points: Sequence, ndim: int) -> Any:
    """y, with derivatives by the points that are nan where y is nan.

    With several values for each point nan enters as a factor of arctangents, which are finite where a point
    is infinite.
    """
    if ndim == 0:
        return y + np.where(np.isnan(y), sum(points) * np.nan, 0.0)
    point = sum(np.arctan(x) for x in points)
    return y + _across(point, ndim) * np.where(np.isnan(y), np.nan, 0.0)


def _along(y: Any, ndim: int, axis: int) -> Any:
    """y with the axes of the points moved to where the axis of the values was."""
    return np.moveaxis(y, range(ndim), range(axis, axis + ndim)) if axis else y


def _times(x: Any) -> Any:
    """Points as an array of floats."""
    x = np.stack(x) if isinstance(x, (list, tuple)) and is_recorded(x) else x
    return x if type(x) is Recorded else np.asarray(x, float)


class Piecewise:
    """Polynomials as of SciPy's PPoly: c[j, i] belongs to (x - x[i])**(degree - j) in interval i."""

    def __init__(self, c: Any, x: np.ndarray, extrapolate: Any = None, axis: int = 0):
        self.c, self.x, self.axis = c, x, axis % (np.ndim(c) - 1)
        self.extrapolate = True if extrapolate is None else extrapolate

    def _reuse_roots(self) -> tuple:
        return self.c, self.x, self.extrapolate, self.axis

    def __call__(self, x: Any, nu: int = 0, extrapolate: Any = None) -> Any:
        c = self.derivative(nu).c if nu else self.c
        ndim, x = np.ndim(c) - 2, _times(x)
        beyond = self.extrapolate if extrapolate is None else extrapolate
        first, last = float(self.x[0]), float(self.x[-1])
        outside = np.isnan(x) if beyond else ~((x >= first) & (x <= last))
        at = first + (x - first) % (last - first) if beyond == "periodic" else x
        at = at if beyond else np.where(outside, first, x)
        i = _interval(at, self.x)
        d = _across(at - self.x[i], ndim)
        y = c[0][i]
        for j in range(1, np.shape(c)[0]):
            y = y * d + c[j][i]
        if not beyond or np.shape(c)[0] == 1:  # a constant does not pass a point that is nan on
            y = np.where(_across(outside, ndim), np.nan, y)
        return _along(nan_slopes(y, [x], ndim), np.ndim(x), self.axis)

    def derivative(self, nu: int = 1) -> Piecewise:
        if nu < 0:
            return self.antiderivative(-nu)
        c = self.c
        for _ in range(nu):
            k = np.shape(c)[0] - 1
            c = c[:-1] * _across(np.arange(k, 0.0, -1.0), np.ndim(c) - 1) if k else c * 0.0
        return Piecewise(c, self.x, self.extrapolate, self.axis)

    def antiderivative(self, nu: int = 1) -> Piecewise:
        c, h = self.c, np.diff(self.x)
        for _ in range(nu):
            k, ndim = np.shape(c)[0], np.ndim(c) - 2
            c = c / _across(np.arange(k, 0.0, -1.0), ndim + 1)
            whole = sum(c[j] * _across(h ** (k - j), ndim) for j in range(k))
            start = np.concatenate([whole[:1] * 0.0, np.cumsum(whole, axis=0)[:-1]])
            c = np.concatenate([c, np.reshape(start, (1, *np.shape(start)))])
        return Piecewise(c, self.x, self.extrapolate, self.axis)

    def integrate(self, a: Any, b: Any, extrapolate: Any = None) -> Any:
        beyond = self.extrapolate if extrapolate is None else extrapolate
        if beyond == "periodic":
            raise unsupported_option("scipy.interpolate: integrate", "with extrapolate='periodic'")
        whole = self.antiderivative()
        return whole(b, extrapolate=beyond) - whole(a, extrapolate=beyond)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise unsupported(f"scipy.interpolate: {name} of a curve that goes through recorded values", here())


def _piecewise(t: np.ndarray, c: Any, k: int, extrapolate: Any = True, axis: int = 0) -> Piecewise:
    """A sum of B-splines, as scipy.interpolate.BSpline has it: knots t, coefficients c, degree k."""
    n = len(t) - k - 1
    x = t[k : n + 1]
    # column r has the B-splines r, r + k + 1, ..., of which only one is not zero in an interval
    each = _scipy.BSpline(t, np.eye(k + 1)[np.arange(n) % (k + 1)], k)
    powers = [each(x[:-1], nu) / math.factorial(nu) for nu in range(k, -1, -1)]  # by (interval, column)
    i = np.arange(n - k)
    total: Any = 0.0
    for j in range(k + 1):  # the k + 1 B-splines that are not zero in interval i
        weights = np.stack([power[i, (i + j) % (k + 1)] for power in powers])
        total = total + _across(weights, np.ndim(c) - 1) * c[j : n - k + j]
    return Piecewise(total, x, extrapolate, axis)


@ours(_scipy)
def splev(x, tck, der=0, ext=0) -> Any:
    """Differentiable by x, and by a vector of coefficients."""
    if not isinstance(tck, (tuple, list)) or np.ndim(tck[1]) != 1:
        raise unsupported_option("scipy.interpolate.splev", "of anything but (t, c, k) with a vector c")
    t, c, k = _knots("splev", tck[0]), tck[1], tck[2]
    first, last = t[k], t[len(t) - k - 1]
    if ext == 2:
        raise unsupported_option("scipy.interpolate.splev", "with ext=2")
    x = _times(x)
    y = _piecewise(t, c, k)(_clipped(x, first, last) if ext in (1, 3) else x, der)
    return np.where((x < first) | (x > last), 0.0, y) if ext == 1 else y


# ---- Polynomials between the knots -----------------------------------------------------------------------


class _Curve:
    """Mixin for SciPy's classes. Of recorded values they are what `_of_recorded` returns; and those of plain
    ones can be called with recorded values if they have `_ours`, this module's curve for them.
    """

    def __new__(cls, *args: Any, **options: Any) -> Any:
        return cls._of_recorded(*args, **options) if is_recorded((args, options)) else super().__new__(cls)

    @classmethod
    def _of_recorded(cls, *args: Any, **options: Any) -> Any:
        raise unsupported(f"scipy.interpolate.{cls.__name__} of recorded values", here())

    def _ours(self) -> Any:
        raise unsupported(f"scipy.interpolate.{type(self).__name__}", here())

    def __call__(self, *args: Any, **options: Any) -> Any:
        if is_recorded((args, options)):
            return self._ours()(*args, **options)
        return super().__call__(*args, **options)  # type: ignore[misc]


class _Polynomials(_Curve):
    """Polynomials between the knots."""

    c: Any
    x: Any
    extrapolate: Any
    axis: Any

    def _ours(self) -> Piecewise:
        return Piecewise(self.c, self.x, self.extrapolate, self.axis)

    def _reuse_roots(self) -> tuple:
        return self.c, self.x, self.extrapolate, self.axis

    def derivative(self, nu: Any = 1) -> Any:
        return super().derivative(nu)  # type: ignore[misc]  # called from here, it is not the user's code

    def antiderivative(self, nu: Any = 1) -> Any:
        return super().antiderivative(nu)  # type: ignore[misc]

    def integrate(self, a: Any, b: Any, extrapolate: Any = None) -> Any:
        if not is_recorded((a, b)):
            return super().integrate(a, b, extrapolate)  # type: ignore[misc]
        return self._ours().integrate(a, b, extrapolate)


def _knots(name: str, x: Any) -> np.ndarray:
    if is_recorded(x):
        raise unsupported_option(f"scipy.interpolate.{name}", "with knots that are recorded values")
    return np.asarray(x, float)


def _in_front(y: Any, axis: int) -> Any:
    return np.moveaxis(stacked(y), axis, 0)


class PPoly(_Polynomials, _scipy.PPoly):
    @classmethod
    def _of_recorded(cls, c: Any, x: Any, extrapolate: Any = None, axis: Any = 0) -> Any:
        return Piecewise(c, _knots("PPoly", x), extrapolate, axis)


def _hermite(x: np.ndarray, y: Any, slopes: Any, extrapolate: Any, axis: int) -> Piecewise:
    """Cubics with these values and slopes at the knots."""
    h = _across(np.diff(x), np.ndim(y) - 1)
    rise = (y[1:] - y[:-1]) / h
    bend = (slopes[:-1] + slopes[1:] - 2 * rise) / h
    c = np.stack([bend / h, (rise - slopes[:-1]) / h - bend, slopes[:-1], y[:-1]])
    return Piecewise(c, x, extrapolate, axis)


class CubicHermiteSpline(_Polynomials, _scipy.CubicHermiteSpline):
    @classmethod
    def _of_recorded(cls, x: Any, y: Any, dydx: Any, axis: Any = 0, extrapolate: Any = None) -> Any:
        x = _knots("CubicHermiteSpline", x)
        return _hermite(x, _in_front(y, axis), _in_front(dydx, axis), extrapolate, axis)


class Akima1DInterpolator(_Polynomials, _scipy.Akima1DInterpolator):
    """Differentiable by the points of evaluation."""


class CubicSpline(_Polynomials, _scipy.CubicSpline):
    """Its coefficients are linear in the values, and in the derivatives at the ends."""

    @classmethod
    def _of_recorded(cls, x, y, axis=0, bc_type="not-a-knot", extrapolate=None) -> Any:
        if isinstance(bc_type, str) and bc_type == "periodic":
            raise unsupported_option(
                "scipy.interpolate.CubicSpline", "with bc_type='periodic' and recorded values"
            )
        x, y = _knots("CubicSpline", x), _in_front(y, axis)
        n, ends = np.shape(y)[0], [bc_type] * 2 if isinstance(bc_type, str) else list(bc_type)
        none = [e if isinstance(e, str) else (e[0], np.zeros(n)) for e in ends]
        c = np.tensordot(_scipy.CubicSpline(x, np.eye(n), bc_type=tuple(none)).c, y, 1)
        for k, end in enumerate(ends):
            if not isinstance(end, str):
                one: list = [e if isinstance(e, str) else (e[0], 0.0) for e in ends]
                one[k] = (end[0], 1.0)
                alone = _scipy.CubicSpline(x, np.zeros(n), bc_type=tuple(one)).c
                c = c + _across(alone, np.ndim(y) - 1) * end[1]
        return Piecewise(c, x, extrapolate, axis)


class PchipInterpolator(_Polynomials, _scipy.PchipInterpolator):
    @classmethod
    def _of_recorded(cls, x: Any, y: Any, axis: Any = 0, extrapolate: Any = None) -> Any:
        x, y = _knots("PchipInterpolator", x), _in_front(y, axis)
        h = _across(np.diff(x), np.ndim(y) - 1)
        rise = (y[1:] - y[:-1]) / h
        if np.shape(y)[0] == 2:
            return _hermite(x, y, np.concatenate([rise, rise]), extrapolate, axis)
        # Harmonic means of the slopes on both sides, 0 where they differ in sign. Fritsch and Butland 1984
        a, b = rise[:-1], rise[1:]
        w, v = 2 * h[1:] + h[:-1], h[1:] + 2 * h[:-1]
        rises = a * b > 0
        mean = (w + v) / (w / np.where(rises, a, 1.0) + v / np.where(rises, b, 1.0))
        inner = np.where(rises, mean, np.where(np.isnan(a * b), np.nan, 0.0))
        first, last = _end_slope(h[0], h[1], rise[0], rise[1]), _end_slope(h[-1], h[-2], rise[-1], rise[-2])
        return _hermite(x, y, np.concatenate([first[None], inner, last[None]]), extrapolate, axis)


def _end_slope(h0: Any, h1: Any, rise0: Any, rise1: Any) -> Any:
    """By a parabola through three points, bent so that the curve stays monotone."""
    slope = ((2 * h0 + h1) * rise0 - h0 * rise1) / (h0 + h1)
    back = np.sign(slope) != np.sign(rise0)
    steep = (np.sign(rise0) != np.sign(rise1)) & (np.abs(slope) > 3.0 * np.abs(rise0))
    return np.where(back & ~np.isnan(slope), 0.0, np.where(steep, 3.0 * rise0, slope))


# ---- B-splines -------------------------------------------------------------------------------------------


class BSpline(_Curve, _scipy.BSpline):
    @classmethod
    def _of_recorded(cls, t: Any, c: Any, k: Any, extrapolate: Any = True, axis: Any = 0) -> Any:
        return _piecewise(_knots("BSpline", t), _in_front(c, axis), k, extrapolate, axis)

    def _ours(self) -> Piecewise:
        return _piecewise(self.t, self.c, self.k, self.extrapolate, self.axis)

    def _reuse_roots(self) -> tuple:
        return self.t, self.c, self.k, self.extrapolate, self.axis


def make_interp_spline(
    x: Any, y: Any, k: Any = 3, t: Any = None, bc_type: Any = None, axis: Any = 0, **options: Any
) -> Any:
    """Its coefficients are linear in the values."""
    if not is_recorded((x, y, t, bc_type)):
        spline = _scipy.make_interp_spline(x, y, k, t, bc_type, axis, **options)
        return BSpline.construct_fast(spline.t, spline.c, spline.k, spline.extrapolate, spline.axis)
    name = "scipy.interpolate.make_interp_spline"
    if is_recorded((t, bc_type)) or not (bc_type is None or isinstance(bc_type, str)):
        raise unsupported_option(name, "of recorded values, with values given in bc_type=,")
    if bc_type == "periodic":
        raise unsupported_option(name, "with bc_type='periodic' and recorded values")
    x, y = _knots("make_interp_spline", x), _in_front(y, axis)
    each = np.eye(np.shape(y)[0])
    whole = _scipy.make_interp_spline(x, each, k, t, bc_type)
    c = y if np.array_equal(whole.c, each) else np.tensordot(whole.c, y, 1)  # a value may be nan beside 0
    return _piecewise(whole.t, c, k, whole.extrapolate, axis)


# ---- interp1d --------------------------------------------------------------------------------------------

ORDERS = {"zero": 0, "slinear": 1, "quadratic": 2, "cubic": 3}


class interp1d(_Curve, _scipy.interp1d):  # noqa: N801  SciPy's name
    """Differentiable by its values and by the points of evaluation. Outside of the knots it has `fill_value`;
    where that is an error (bounds_error), the points are read, and the function is recorded at each call:
    bounds_error=False avoids that.
    """

    @classmethod
    def _of_recorded(cls, x, y, kind="linear", axis=-1, *args, **options) -> Any:
        return Interpolant(_knots("interp1d", x), y, kind, axis, *args, **options)

    def __init__(self, x: Any, y: Any, kind: Any = "linear", axis: Any = -1, *args: Any, **options: Any):
        super().__init__(x, y, kind, axis, *args, **options)
        self._made = np.array(self.x), np.array(self.y), kind, self.axis

    def _ours(self) -> Interpolant:
        x, y, *how = self._made
        if not (np.array_equal(self.x, x) and np.array_equal(self.y, y, equal_nan=True)):
            raise unsupported_option("scipy.interpolate.interp1d", "changed after it was made")
        fill = self.fill_value  # a number as an array without axes, which would be of float64
        fill = fill.item() if isinstance(fill, np.ndarray) and fill.ndim == 0 else fill
        return Interpolant(x, y, *how, bounds_error=self.bounds_error, fill_value=fill, assume_sorted=True)

    def _reuse_roots(self) -> tuple:
        return (*self._made, self.x, self.y, self.fill_value, self.bounds_error)


class Interpolant:
    """interp1d of recorded values."""

    def __init__(
        self,
        x: np.ndarray,
        y: Any,
        kind: Any = "linear",
        axis: int = -1,
        copy: Any = True,
        bounds_error: Any = None,
        fill_value: Any = np.nan,
        assume_sorted: Any = False,
    ):
        self.axis, self.kind = axis % np.ndim(stacked(y)), kind
        y = _in_front(y, axis)
        if not assume_sorted:
            order = np.argsort(x, kind="mergesort")
            x, y = x[order], y[order]
        self.x, self.y = x, y
        beyond = isinstance(fill_value, str) and fill_value == "extrapolate"
        if beyond and bounds_error:
            raise ValueError("Cannot extrapolate and raise at the same time.")
        self.fill = None if beyond else fill_value if isinstance(fill_value, tuple) else (fill_value,) * 2
        self.strict = not beyond if bounds_error is None else bounds_error
        self.spline = None
        if isinstance(kind, int) or kind in ORDERS:
            self.spline = make_interp_spline(x, y, ORDERS.get(kind, kind))
        elif kind not in ("linear", "nearest", "nearest-up", "previous", "next"):
            raise NotImplementedError(f"scipy.interpolate.interp1d: kind is {kind!r}")
        elif beyond and kind in ("previous", "next"):
            raise unsupported_option(
                "scipy.interpolate.interp1d", f"with kind={kind!r} and fill_value='extrapolate'"
            )

    def __call__(self, x: Any) -> Any:
        x = _times(x)
        if self.strict and (np.any(x < self.x[0]) or np.any(x > self.x[-1])):
            raise ValueError(
                f"interp1d: a value lies beyond {self.x[0]} to {self.x[-1]}, where the curve is given"
            )
        ndim = np.ndim(self.y) - 1
        y = self._inside(x if self.fill is None else _clipped(x, self.x[0], self.x[-1]), ndim)
        if self.fill is not None:
            below, above = self.fill
            inner = np.where(_across(x > self.x[-1], ndim), above, y)
            y = np.where(_across(x < self.x[0], ndim), below, inner)
        if ndim == 0 or self.kind in (*ORDERS, "linear"):  # others have a value where a point is nan
            y = nan_slopes(y, [x], ndim)
        return _along(y, np.ndim(x), self.axis)

    def _inside(self, x: Any, ndim: int) -> Any:
        kind, knots = self.kind, self.x
        if self.spline is not None:
            return self.spline(x)
        if kind == "linear":
            i = np.clip(np.searchsorted(knots, x), 1, len(knots) - 1)
            slope = (self.y[i] - self.y[i - 1]) / _across(knots[i] - knots[i - 1], ndim)
            return slope * _across(x - knots[i - 1], ndim) + self.y[i - 1]
        if kind.startswith("nearest"):
            knots = knots[1:] / 2.0 + knots[:-1] / 2.0
        i = np.searchsorted(knots, x, side="left" if kind in ("nearest", "next") else "right")
        return self.y[np.clip(i - (kind == "previous"), 0, len(self.x) - 1)]


# ---- Grids -----------------------------------------------------------------------------------------------


class RegularGridInterpolator(_Curve, _scipy.RegularGridInterpolator):
    """Differentiable by the points of evaluation and by the values; for method="linear", "slinear" and
    "nearest". As interp1d, it reads the points unless bounds_error=False.
    """

    @classmethod
    def _of_recorded(
        cls, points, values, method="linear", bounds_error=True, fill_value=np.nan, **options
    ) -> Any:
        knots = [_knots("RegularGridInterpolator", p) for p in points]
        return Grid(knots, stacked(values), method, bounds_error, fill_value)

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)  # called from here, it is not the user's code

    def _reuse_roots(self) -> tuple:
        return (*self.grid, self.values, self.method, self.bounds_error, self.fill_value)

    def _ours(self) -> Grid:
        return Grid(self.grid, self.values, self.method, self.bounds_error, self.fill_value)


class Grid:
    """RegularGridInterpolator of recorded values."""

    def __init__(self, points: Sequence, values: Any, method: str, strict: Any, fill: Any):
        self.method, self.strict, self.fill = method, strict, fill
        _scipy.RegularGridInterpolator(points, np.zeros(np.shape(values)))  # checks them
        falling = [axis for axis, p in enumerate(points) if p[0] > p[-1]]
        points = [p[::-1] if axis in falling else p for axis, p in enumerate(points)]
        values = np.flip(values, tuple(falling)) if falling else values
        self.points, self.values = points, values

    def _reuse_roots(self) -> tuple:
        return (*self.points, self.values, self.method, self.strict, self.fill)

    def __call__(self, xi: Any, method: Any = None, *, nu: Any = None) -> Any:
        method = self.method if method is None else method
        name = "scipy.interpolate.RegularGridInterpolator"
        if method not in ("linear", "slinear", "nearest") or nu is not None:
            raise unsupported_option(name, f"with method={method!r} of recorded values")
        x = _coordinates(xi, len(self.points))
        columns = [x[..., k] for k in range(len(self.points))]
        outside: Any = False
        for k, (p, column) in enumerate(zip(self.points, columns)):
            if self.strict and not np.all((column >= p[0]) & (column <= p[-1])):
                raise ValueError(f"One of the requested xi is out of bounds in dimension {k}")
            outside = outside | (column < p[0]) | (column > p[-1])
        ndim = np.ndim(self.values) - len(self.points)
        intervals = [_interval(column, p) for column, p in zip(columns, self.points)]
        shares = [(c - p[i]) / (p[i + 1] - p[i]) for i, c, p in zip(intervals, columns, self.points)]
        if method == "nearest":
            y = self.values[tuple([np.where(part <= 0.5, i, i + 1) for i, part in zip(intervals, shares)])]
        else:
            y = 0.0
            for corner in itertools.product((0, 1), repeat=len(columns)):
                weight = math.prod([part if side else 1.0 - part for side, part in zip(corner, shares)])
                index = tuple([i + side for side, i in zip(corner, intervals)])
                y = y + _across(weight, ndim) * self.values[index]
        if not (self.strict or self.fill is None):
            y = np.where(_across(outside, ndim), self.fill, y)
        missing = sum(np.isnan(column) for column in columns) > 0
        return nan_slopes(np.where(_across(missing, ndim), np.nan, y), columns, ndim)


def _coordinates(xi: Any, n: int) -> Any:
    """Points as an array of shape (..., n), as SciPy takes them: one array, or one for each dimension."""
    if isinstance(xi, tuple) and len(xi) == 1:
        xi = xi[0]
    if isinstance(xi, tuple):
        shape = np.broadcast_shapes(*map(np.shape, xi))
        x = np.stack([np.broadcast_to(_times(column), shape) for column in xi], axis=-1)
    else:
        x = _times(xi)
    x = np.reshape(x, (-1, n)) if np.ndim(x) == 1 else x
    if np.shape(x)[-1:] != (n,):
        raise ValueError(f"The requested sample points have shape {np.shape(x)}, expected (..., {n})")
    return x


@ours(_scipy)
def interpn(points, values, xi, method="linear", bounds_error=True, fill_value=np.nan) -> Any:
    """RegularGridInterpolator(points, values)(xi)."""
    if method == "splinef2d":
        raise unsupported_option("scipy.interpolate.interpn", "with method='splinef2d'")
    return RegularGridInterpolator(points, values, method, bounds_error, fill_value)(xi)
