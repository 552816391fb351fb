"""The op `distribution`: one method of one of SciPy's distributions, element by element.

    distribution(x, *shapes, loc, scale; law, method)    of discrete laws without scale

Values are those of SciPy's own formulas, except in the far tails where those give -inf or nan. Derivatives
come from a table: `Law` has for each law the derivatives of its log density, and

    pdf' = pdf (log pdf)',  cdf' = pdf,  sf' = -pdf,  logcdf' = pdf / cdf,  logsf' = -pdf / sf

The two quotients are methods as well, of (z, *shapes): "reversed_hazard" and "hazard". A derivative is 0
outside of the support, nan where the value is nan, and that from inside at an edge of the support, where a
density begins with a power (`End`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.special as sp
import scipy.stats

from ...graph import Node, is_scalar_const
from ...ops import leads
from ...ops.build import absolute, equal, floor, guarded, log, sign, square, tanh, where
from ...ops.elementwise import broadcast_shape
from ...ops.table import ALWAYS, apply, row
from .special import no_formula, psi, psi_rise

INF, NAN = math.inf, math.nan
LARGEST = np.finfo(float).max.item()
NEAR = 1e-290  # below it 1 / z may be infinite
UNDERFLOW = 1e-290  # below it the logarithm of a tail is no longer exact
LOG_2 = math.log(2.0)


@dataclass(frozen=True)
class End:
    """An edge near which the density is u**exponent times a power series in the distance u from it.

    exponent       (*shapes) -> the exponent; of a discrete law (k, *shapes), where u is the distance of the
                   last shape
    shapes         which shapes the exponent depends on: it grows with them
    coefficient    (n, e, *shapes) -> the coefficient of u**n where the exponent is the whole number e <= n;
                   None where the formulas of the law hold at the edge too
    sense          du / dz, 1 or -1
    """

    at: float
    exponent: Callable
    shapes: tuple[int, ...] = ()
    coefficient: Callable | None = None
    sense: float = 1.0


@dataclass(frozen=True)
class Law:
    """Formulas of a SciPy distribution at z = (x - loc) / scale.

    Of nodes (z, *shapes), z within the support:

    by_z, by_scale   d log density / dz; and 1 + z times that, which scale * d / d scale is the negative of
    by_shape         d log density / d shape for each; None: a shape that is a whole number
    cdf_by_shape     for each shape the factor of z * density, or of a probability, in d cdf / d shape; none
                     where there is no formula
    ends             the edges of the support, or of a discrete law's last shape, near which it is a power
    valid            a condition for each shape; that it is positive, if nothing is said

    Of arrays (z, *shapes), `values`: methods for which SciPy has no formula or one that fails somewhere.
    """

    name: str
    shapes: tuple[str, ...]
    by_z: Callable | None
    by_scale: Callable | None
    by_shape: tuple[Callable | None, ...] = ()
    cdf_by_shape: tuple[Callable, ...] = ()
    low: float = -INF
    high: float = INF
    ends: tuple[End, ...] = ()
    valid: tuple[Callable, ...] = ()
    values: dict[str, Callable] = field(default_factory=dict)

    @property
    def theirs(self) -> Any:
        return getattr(scipy.stats, self.name)

    @property
    def discrete(self) -> bool:
        return self.by_z is None

    @property
    def powers(self) -> list[End]:
        return [end for end in self.ends if end.coefficient is not None]

    @property
    def density(self) -> str:
        return "pmf" if self.discrete else "pdf"


LAWS: dict[str, Law] = {}


def law(signature: str, by_z: Any = None, by_scale: Any = None, **given: Any) -> None:
    """A law by its name, followed by its shapes; `values` under the names of their methods."""
    name, *shapes = signature.split()

    def from_slope(z):
        return 1.0 + z * by_z(z)

    columns = {key: given.pop(key) for key in [*given] if key in Law.__dataclass_fields__}
    LAWS[name] = Law(name, tuple(shapes), by_z, by_scale or from_slope, values=given, **columns)


# ---- Values ----------------------------------------------------------------------------------------------


def evaluate(*args: Any, law: str, method: str) -> np.ndarray:
    """The method on arrays; nan where the parameters are not valid."""
    of = LAWS[law]
    dtype = result_dtype(args)
    args = [np.asarray(a, np.float64) for a in args]
    with np.errstate(all="ignore"):
        if method in QUOTIENTS:
            return np.asarray(standard(of, method, args[0], args[1:]), dtype)[()]
        z, *shapes = args[: 1 + len(of.shapes)]
        loc, scale = args[1 + len(of.shapes)], None if of.discrete else args[-1]
        z = z if loc.ndim == 0 and loc == 0 else z - loc
        valid = of.theirs._argcheck(*shapes) & ~np.isnan(z)
        if scale is None or scale.ndim == 0 and scale == 1:
            out = within(of, method, z, shapes)
        else:
            valid = valid & (scale > 0)
            out = within(of, method, z / scale, shapes)
            out = out / scale if method == "pdf" else out - np.log(scale) if method == "logpdf" else out
        return np.asarray(out if np.all(valid) else np.where(valid, out, NAN), dtype)[()]


def within(of: Law, method: str, z: np.ndarray, shapes: list) -> np.ndarray:
    """The method at z, also outside of the support."""
    low, high = support(of, shapes)
    if method in ("pdf", "pmf", "logpdf", "logpmf"):
        inside = (z >= low) & (z <= high) & ~np.isinf(z)
        if of.discrete:
            inside &= np.floor(z) == z
        if np.all(inside):
            return standard(of, method, z, shapes)
        filled = np.where(inside, z, of.low if np.isfinite(of.low) else 0.0)
        return np.where(inside, standard(of, method, filled, shapes), -INF if "log" in method else 0.0)
    below, above = {"cdf": (0.0, 1.0), "logcdf": (-INF, 0.0), "sf": (1.0, 0.0), "logsf": (0.0, -INF)}[method]
    under = z < low if of.discrete else z <= low
    tail = standard(of, method, np.clip(z, low, high), shapes)
    return np.where(under, below, np.where(z >= high, above, tail))


def support(of: Law, shapes: list) -> tuple:
    return (0.0, shapes[0]) if of.name == "binom" else (of.low, of.high)


def standard(of: Law, method: str, z: np.ndarray, shapes: Sequence) -> np.ndarray:
    """The method at z within the support: by the law's formula, SciPy's, or one that all laws share."""
    if method in of.values:
        return of.values[method](z, *shapes)
    if method in SHARED and "_" + method not in vars(type(of.theirs)):
        return SHARED[method](of, z, *shapes)
    return getattr(of.theirs, "_" + method)(z, *shapes)


def log_tail(here: str, there: str) -> Callable:
    """The logarithm of a tail; of 1 - the other tail where this one is the larger."""

    def tail(of: Law, z, *shapes):
        part, other = standard(of, here, z, shapes), standard(of, there, z, shapes)
        logarithm = np.where(part < 0.5, np.log(part), np.log1p(-other))
        far = of.values.get("far_" + here)
        if far is not None and np.any(small := part < UNDERFLOW):
            logarithm = np.where(small, far(z, *shapes), logarithm)
        return logarithm

    return tail


def quotient(tail: str) -> Callable:
    def density_by_tail(of: Law, z, *shapes):
        density = standard(of, "log" + of.density, np.floor(z) if of.discrete else z, shapes)
        ratio = np.exp(density - standard(of, tail, z, shapes))
        ratio = np.where(density == -INF, 0.0, ratio)
        end = of.high if tail == "logsf" else of.low
        return np.where(z == end, INF, ratio) if np.isfinite(end) and not of.discrete else ratio

    return density_by_tail


SHARED = {
    "logcdf": log_tail("cdf", "sf"),
    "logsf": log_tail("sf", "cdf"),
    "hazard": quotient("logsf"),
    "reversed_hazard": quotient("logcdf"),
}
QUOTIENTS = ("hazard", "reversed_hazard")


def normal_hazard(z: np.ndarray) -> np.ndarray:
    return math.sqrt(2.0 / math.pi) / sp.erfcx(z / math.sqrt(2.0))


def log_upper_gamma(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """For x > a. DLMF 8.5.3, 13.2.40."""
    u = np.where(x > 1e100, 1.0 / x, sp.hyperu(1.0, a + 1.0, np.clip(x, a + 1.0, 1e100)))
    return a * np.log(x) - x - sp.gammaln(a) + np.log(u)


def log_lower_gamma(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    return a * np.log(x) - x - sp.gammaln(a + 1.0) + np.log(sp.hyp1f1(1.0, a + 1.0, np.minimum(x, a)))


def gamma_hazard(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    """The hazard of the gamma law; by its quotient where the logarithms are large."""
    hazard = SHARED["hazard"](LAWS["gamma"], x, a)
    far = (x > 500.0) & (x > 2.0 * a)
    if np.any(far):
        z = np.minimum(np.where(far, x, 2.0 * a + 500.0), 1e100)  # beyond it is 1
        hazard = np.where(far, 1.0 / (z * sp.hyperu(1.0, a + 1.0, z)), hazard)
    return hazard


def gamma_reversed(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    """x times the reversed hazard of the gamma law."""
    near = x < a
    series = a / sp.hyp1f1(1.0, a + 1.0, np.where(near, x, 0.0))
    filled = np.where(near | np.isinf(x), a, x)
    inner = np.where(near, series, filled * SHARED["reversed_hazard"](LAWS["gamma"], filled, a))
    return np.where(np.isinf(x), 0.0, inner)


def log_lower_beta(a: Any, b: Any, x: np.ndarray, y: np.ndarray, log_x: Any = None) -> np.ndarray:
    """The logarithm of a small tail at x = 1 - y. DLMF 8.17.8."""
    log_x = np.log(x) if log_x is None else log_x
    series = sp.hyp2f1(a + b, 1.0, a + 1.0, np.minimum(x, a / (a + b)))
    return a * log_x + b * np.log(y) - np.log(a) - sp.betaln(a, b) + np.log(series)


# ---- Derivatives -----------------------------------------------------------------------------------------


def partials(out: Node, *args: Node) -> tuple:
    method = out.attrs["method"]
    if method in QUOTIENTS:
        return quotient_partials(out, *args)
    return (Tail if "cdf" in method or "sf" in method else Density)(out, *args).partials()


class Standardized:
    """z and the parameters of a node, with the shared parts of its derivatives.

    Subclasses have by_x, by_scale and by_shape(k): the partial derivatives, as nodes.
    """

    def __init__(self, out: Node, *args: Node):
        self.args, self.of, self.method = args, LAWS[out.attrs["law"]], out.attrs["method"]
        x, *self.shapes = args[: 1 + len(self.of.shapes)]
        loc = args[1 + len(self.of.shapes)]
        self.z = self.from_0 = x if is_number(loc, 0.0) else x - loc
        self.scale = None if self.of.discrete or is_number(args[-1], 1.0) else args[-1]
        if self.scale is not None:
            self.z = self.z / self.scale
            # at an edge at 0 the scale does not move z: dz / dscale is 0 there, also times infinity
            self.from_0 = self.from_0 / apply("stop_gradient", self.scale)

    def partials(self: Any) -> tuple:
        shaped = [lambda k=k: self.by_shape(k) for k in range(len(self.shapes))]
        if self.of.discrete:
            steps = [lambda: self.checked(constant(0.0, self.z))]
            return (*steps, *shaped, *steps)
        return self.by_x, *shaped, lambda: -self.by_x(), self.by_scale

    def inside(self, d: Node) -> Node:
        """d within the support, 0 outside, and nan where the parameters are not valid."""
        low, high = support(self.of, self.shapes)
        high = LARGEST if self.of.discrete and high is INF else high
        if isinstance(high, Node) or high < INF:
            d = where(self.z > high, 0.0, d)
        if low > -INF:
            d = where(self.z < low, 0.0, d)
        return self.checked(d)

    def checked(self, d: Node) -> Node:
        """d, and nan where the parameters are not valid."""
        conditions = self.of.valid or (positive,) * len(self.shapes)
        parameters = [*zip(conditions, self.shapes)]
        if self.scale is not None:
            parameters.append((positive, self.scale))
        for condition, p in parameters:
            if not is_scalar_const(p) or not p.value > 0 or condition is not positive:
                d = d * where(condition(p), 1.0, NAN)
        return d

    def per_scale(self, d: Node) -> Node:
        return d if self.scale is None else d / self.scale


class Density(Standardized):
    """A point of a density, whose node is `density`, or of its logarithm (None)."""

    def __init__(self, out: Node, *args: Node):
        super().__init__(out, *args)
        self.density = None if self.method.startswith("log") else out
        of, z = self.of, self.z
        low, high = support(of, self.shapes)
        bounded = isinstance(high, Node) or high < INF
        # A point of the support for those outside, so that formulas do not warn
        inner = low if of.discrete else 0.5 * (low + high) if bounded else low + 1.0
        z = where(z < low, inner, z) if low > -INF else z
        self.inner = where(z > high, inner, z) if bounded else z

    def inside(self, d: Node) -> Node:
        """The same; of a discrete law 0 between whole numbers too."""
        return super().inside(where(floor(self.z) < self.z, 0.0, d) if self.of.discrete else d)

    def weighed(self, rule: Callable, ends: Sequence[End] = ()) -> Node:
        """A derivative of the logarithm as one of the density, if it is that: away from these ends."""
        z, shapes = self.inner, list(self.shapes)
        if self.density is None:
            return rule(z, *shapes)
        for end in ends:  # at which the rule may be infinite
            if self.of.discrete:
                shapes[-1] = where(equal(shapes[-1], end.at), 0.5, shapes[-1])
            else:
                z = where(equal(z, end.at), self.of.low + 0.5, z)
        return zero_times(self.density, rule(z, *shapes))

    def with_limits(self, slope: Node, ends: Sequence[End], order: int, logs: int = 0) -> Node:
        """The slope, and at these ends its limit from inside."""
        varied = self.shapes[-1] if self.of.discrete else self.z
        for end in ends if self.density is not None else ():
            z = self.inner if end.at or self.of.discrete else self.from_0
            there = limit(self.of, end, order, logs, z, *self.shapes)
            there = self.per_scale(there * end.sense if order else there)
            slope = where(equal(varied, end.at), there, slope)
        return slope

    def by_z(self) -> Node:
        ends = self.of.powers
        return self.with_limits(self.weighed(self.of.by_z, ends), ends, 1)  # type: ignore[arg-type]

    def by_x(self) -> Node:
        return self.inside(self.per_scale(self.by_z()))

    def by_scale(self) -> Node:
        ends = [end for end in self.of.powers if end.at]
        slope = self.weighed(self.of.by_scale, ends)  # type: ignore[arg-type]
        for end in ends if self.density is not None else ():
            slope = where(equal(self.inner, end.at), self.density + self.inner * self.by_z(), slope)
        return -self.inside(self.per_scale(slope))

    def by_shape(self, k: int) -> Node:
        rule = self.of.by_shape[k]
        if rule is None:
            return self.checked(constant(0.0, self.z))
        if self.of.discrete:
            ends = self.of.powers if k == len(self.shapes) - 1 else ()
            return self.inside(self.with_limits(self.weighed(rule, ends), ends, 1))
        ends = [end for end in self.of.powers if k in end.shapes]
        return self.inside(self.with_limits(self.weighed(rule, ends), ends, 0, 1))


class Tail(Standardized):
    """A point of a cdf or sf, or of its logarithm."""

    def __init__(self, out: Node, *args: Node):
        super().__init__(out, *args)
        self.logarithm = self.method.startswith("log")

    def signed(self, d: Node) -> Node:
        return d if "cdf" in self.method else -d

    def density_at(self, z: Node) -> Node:
        """The density by x, or the quotient by z; of a discrete law the probability at floor(z)."""
        if self.logarithm:
            name = "reversed_hazard" if "cdf" in self.method else "hazard"
            return self.inside(self.apply(name, z, *self.shapes))
        if self.of.discrete:
            return self.apply("pmf", floor(z), *self.shapes, 0.0)
        return self.apply("pdf", *self.args)

    def apply(self, method: str, *args: Any) -> Node:
        return apply("distribution", *args, law=self.of.name, method=method)

    def z_times_density(self) -> Node:
        """At an edge at 0 its limit: z / cdf times the density goes to the power with which cdf begins."""
        of, z = self.of, self.z
        density = self.density_at(z)
        start = apply("known_slope", zero_times(z, density), z, density)  # 0, also times infinity
        d = where(equal(z, 0.0), start, zero_times(density, z))
        if self.method != "logcdf" or of.low != 0.0:
            return d
        if of.ends:
            return self.inside(where(z < NEAR, of.ends[0].exponent(*self.shapes) + 1.0, d))
        return self.inside(where(equal(z, 0.0), INF, d))

    def by_x(self) -> Node:
        d = self.density_at(self.z)
        return self.signed(self.per_scale(d) if self.logarithm else d)

    def by_scale(self) -> Node:
        d = self.z_times_density()
        return -self.signed(self.checked(self.per_scale(d) if self.logarithm else d))

    def by_shape(self, k: int) -> Node:
        of, z = self.of, self.z
        if not of.cdf_by_shape:
            raise no_formula(f"scipy.stats.{of.name}.{self.method}", of.shapes[k], of.shapes[k])
        if of.discrete:
            d = self.density_at(z)
        elif of.low > 0.0:
            if self.logarithm:  # infinity times 0 at the edge: the limit, whose own derivative is unknown
                beside = apply("known_slope", z * 0.0 + np.nextafter(of.low, INF).item(), z, z * NAN)
                z = where(z <= of.low, beside, z)
            z = above(z, of.low)
            d = zero_times(self.density_at(z), z)
        else:
            d = self.z_times_density()
        if self.scale is not None and not self.logarithm:
            d = d * self.scale
        factor = of.cdf_by_shape[k](z, *self.shapes)
        slope = zero_times(d, factor)
        if of.low == 0.0 and not (of.discrete or self.logarithm):  # z log(z) times the density
            start = apply("known_slope", 0.0 * slope, z, zero_times(self.density_at(z), factor))
            slope = where(equal(z, 0.0), start, slope)
        return self.signed(self.checked(slope))


def quotient_partials(out: Node, z: Node, *shapes: Node) -> tuple:
    """Partial derivatives of the density divided by a tail."""
    of, method = LAWS[out.attrs["law"]], out.attrs["method"]
    more = out if method == "hazard" else -out

    def by_shape(k: int):
        if not of.cdf_by_shape:
            what = f"scipy.stats.{of.name}: its {method.replace('_', ' ')}"
            raise no_formula(what, of.shapes[k], of.shapes[k])
        rule = of.cdf_by_shape[k](z, *shapes)
        factor = rule if of.discrete else z * rule
        own = of.by_shape[k](floor(z) if of.discrete else z, *shapes)
        return zero_times(out, own + zero_times(more, factor))

    def by_z():
        return constant(0.0, z) if of.discrete else zero_times(out, of.by_z(z, *shapes) + more)

    return by_z, *[lambda k=k: by_shape(k) for k in range(len(shapes))]


def limit(of: Law, end: End, order: int, logs: int, z: Node, *shapes: Node) -> Node:
    """The derivative of a standardized density at an edge, from inside: `order` times by the distance u from
    it, `logs` times by the exponent.

    Where the exponent is a whole number, the derivative by u is a coefficient of the series. Otherwise it is
    0 or infinite, as its first term u**(exponent - order) * log(u)**logs is, with the sign of its factor.
    """
    held = [apply("stop_gradient", s) if k in end.shapes else s for k, s in enumerate(shapes)]
    exponent = end.exponent(z, *held) if of.discrete else end.exponent(*held)
    value = exponent * 0.0
    if not of.discrete:
        whole = equal(exponent, floor(exponent)) * (exponent >= 0.0) * (not logs)
        steep = where(equal(z, end.at) * (exponent <= order) * equal(whole, 0.0), INF, 0.0)
        steep = steep * (-1.0) ** logs
        for i in range(order):  # a factor that is 0 has a derivative by the exponent, with one log fewer
            steep = steep * where(equal(exponent, i), -1.0, exponent - i)
        value = value + steep
    for e in range(0 if logs else order + 1):
        coefficient = end.coefficient(order, e, *held) * float(math.factorial(order))
        value = where(equal(exponent, e), coefficient, value)
    attrs = {"law": of.name, "end": of.ends.index(end), "order": order, "logs": logs}
    return apply("distribution_limit", value, z, *shapes, **attrs)


def limit_partials(out: Node, value: Node, z: Node, *shapes: Node) -> tuple:
    """One derivative more by z, or by the exponent; others of a finite value are in it."""
    of, order, logs = LAWS[out.attrs["law"]], out.attrs["order"], out.attrs["logs"]
    end = of.ends[out.attrs["end"]]

    def by_u():
        return limit(of, end, order + 1, logs, z, *shapes) * end.sense

    def by_exponent():
        return limit(of, end, order, logs + 1, z, *shapes)

    def by_other(k: int):
        growth = of.by_shape[k](where(equal(z, end.at), z, end.at), *shapes)
        growth = where(absolute(growth) < 1e-12, NAN, growth)  # of f with dfn = 2 it is 0
        return where(apply("isinf", out), out * growth, 0.0)

    if of.discrete:
        return 1.0, None, *[None] * (len(shapes) - 1), by_u
    others = [by_exponent if k in end.shapes else lambda k=k: by_other(k) for k in range(len(shapes))]
    return 1.0, by_u, *others


def first(value: np.ndarray, *others: np.ndarray, **attrs: Any) -> np.ndarray:
    return np.array(np.broadcast_arrays(value, *others)[0])


def zero_times(p: Node, q: Node) -> Node:
    return p * guarded(q, p)


def constant(value: float, z: Node) -> Node:
    """The value; nan where z is nan."""
    return where(equal(z, z), value, NAN)


def positive(p: Node) -> Node:
    return p > 0.0


def is_number(p: Node, value: float) -> bool:
    return is_scalar_const(p) and p.value == value


def result_dtype(args: Sequence) -> np.dtype:
    dtype = np.result_type(*args)
    if dtype.kind == "c":
        raise TypeError("a distribution of complex numbers; SciPy's take real ones")
    return dtype if dtype.kind == "f" else np.dtype(np.float64)


# ---- The laws --------------------------------------------------------------------------------------------


def above(z: Node, edge: float = 0.0) -> Node:
    return where(z < edge, edge, z)


def over(c: Node | float, z: Node) -> Node:
    """c / z, which is 0 where both are."""
    if not isinstance(c, Node):
        return c / above(z)
    at_0 = apply("known_slope", 0.0 * c, c, 1.0 / above(z))
    return where(equal(c, 0.0) * equal(z, 0.0), at_0, c / above(z))


def log_of(z: Node) -> Node:
    """log(z), which is -inf below 0."""
    return where(z < 0.0, -INF, log(above(z)))


def rising(x: Any, n: int) -> Any:
    """x (x + 1) ... (x + n - 1)."""
    return math.prod([x + float(i) for i in range(n)], start=1.0)


def choose(x: Any, n: int) -> Any:
    return rising(x - (n - 1.0), n) / math.factorial(n)


def of_exponential(n: int, e: int) -> float:
    """The coefficient of u**n in u**e / e! exp(-u)."""
    return (-1.0) ** (n - e) / math.factorial(n - e) / math.factorial(e)


def symmetric(hazard: Callable) -> dict[str, Callable]:
    return {"hazard": hazard, "reversed_hazard": lambda z: hazard(-z)}


def inverse_if_large(z: Node) -> tuple[Node, Node]:
    """Whether |z| > 1; and 1 / z where it is, else z."""
    large = absolute(z) > 1.0
    return large, where(large, 1.0 / where(large, z, 1.0), z)


law("norm", lambda z: -z, **symmetric(normal_hazard))


def _laplace_hazard(z):
    smaller = 0.5 * np.exp(np.minimum(z, 0.0))
    return np.where(z > 0, 1.0, smaller / (1.0 - smaller))


law(
    "laplace",
    lambda z: -sign(z),
    logpdf=lambda z: -np.abs(z) - LOG_2,
    far_cdf=lambda z: z - LOG_2,
    far_sf=lambda z: -z - LOG_2,
    **symmetric(_laplace_hazard),
)
law("logistic", lambda z: -tanh(0.5 * z), **symmetric(sp.expit))


def _cauchy_hazard(z):
    far = z > 1e8
    filled = np.where(far, 0.0, z)
    return np.where(far, 1.0 / z, 1.0 / ((1.0 + filled * filled) * np.arctan2(1.0, filled)))


law("cauchy", lambda z: _t_by_z(z, 1.0), lambda z: _t_by_scale(z, 1.0), **symmetric(_cauchy_hazard))
law(
    "gumbel_r",
    lambda z: apply("expm1", -z),
    far_sf=lambda z: -z,
    hazard=lambda z: 1.0 / sp.exprel(np.exp(-z)),
    reversed_hazard=lambda z: np.exp(-z),
)


def _t_by_z(z, df):
    large, small = inverse_if_large(z)
    r = 1.0 / df
    below = where(large, square(small) + r, 1.0 + r * square(small))
    return -(1.0 + r) * small / below


def _t_by_scale(z, df):
    large, small = inverse_if_large(z)
    r = 1.0 / df
    below = where(large, square(small) + r, 1.0 + r * square(small))
    return where(large, square(small) - 1.0, 1.0 - square(small)) / below


def _t_by_df(z, df):
    large, small = inverse_if_large(z)
    rest = where(large, 2.0 * log(absolute(where(large, z, 1.0))) - log(df), 0.0)
    rest = rest + apply("log1p", where(large, df * square(small), square(small) / df))
    return 0.5 * (psi_rise(0.5 * df, 0.5) - rest - _t_by_scale(z, df) / df)


def _t_log(z, df):
    far = np.abs(z) > 1e150
    values = scipy.stats.t._logpdf(np.where(far, 1.0, z), df)
    if not np.any(far):
        return values
    start = scipy.stats.t._logpdf(0.0, df)
    return np.where(far, start - 0.5 * (df + 1.0) * (2.0 * np.log(np.abs(z)) - np.log(df)), values)


def _t_cdf(z, df):
    """SciPy's is 1/2 where z is small."""
    small = z * z < 1e-6 * np.minimum(df, 1.0)
    if not np.any(small):
        return sp.stdtr(df, z)
    share = sp.betainc(0.5, 0.5 * df, np.where(small, z * z / (df + z * z), 0.0))
    return np.where(small, 0.5 + 0.5 * np.sign(z) * share, sp.stdtr(df, z))


def _t_far(z, df):
    x = df / (df + z * z)
    log_x = np.log(df) - 2.0 * np.log(np.abs(z)) - np.log1p(df / z / z)  # also where x is 0
    return log_lower_beta(0.5 * df, 0.5, x, 1.0 - x, log_x) - LOG_2


law(
    "t df",
    _t_by_z,
    _t_by_scale,
    by_shape=(_t_by_df,),
    logpdf=_t_log,
    cdf=_t_cdf,
    sf=lambda z, df: _t_cdf(-z, df),
    far_cdf=_t_far,
    far_sf=_t_far,
)
law(
    "expon",
    lambda z: constant(-1.0, z),
    low=0.0,
    ends=(End(0.0, lambda: 0.0),),
    hazard=lambda z: np.where(np.isnan(z), z, 1.0),
    reversed_hazard=lambda z: 1.0 / np.expm1(z),
)
law(
    "uniform",
    lambda z: constant(0.0, z),
    low=0.0,
    high=1.0,
    ends=(End(0.0, lambda: 0.0),),
    hazard=lambda z: 1.0 / (1.0 - z),
    reversed_hazard=lambda z: 1.0 / z,
)


law(
    "halfnorm",
    lambda z: -z,
    low=0.0,
    ends=(End(0.0, lambda: 0.0),),
    far_sf=lambda z: LOG_2 + sp.log_ndtr(-z),
    hazard=normal_hazard,
)


def _lognorm_by_z(z, s):
    z = where(z > LARGEST, LARGEST, z)
    return over(-(1.0 + log_of(z) / square(s)), z)


law(
    "lognorm s",
    _lognorm_by_z,
    lambda z, s: -log_of(z) / square(s),
    by_shape=(lambda z, s: (square(log_of(z) / s) - 1.0) / s,),
    cdf_by_shape=(lambda z, s: -log_of(z) / s,),
    low=0.0,
    reversed_hazard=lambda z, s: normal_hazard(-np.log(z) / s) / s / z,
)
law(
    "gamma a",
    lambda z, a: over(a - 1.0, z) - 1.0,
    lambda z, a: a - z,
    by_shape=(lambda z, a: log_of(z) - psi(a),),
    low=0.0,
    ends=(End(0.0, lambda a: a - 1.0, (0,), lambda n, e, a: of_exponential(n, e)),),
    far_cdf=lambda z, a: log_lower_gamma(a, z),
    far_sf=lambda z, a: log_upper_gamma(a, z),
    hazard=gamma_hazard,
    reversed_hazard=lambda z, a: gamma_reversed(z, a) / z,
)


def _invgamma_log(z, a):
    return np.where(z == 0, -INF, -(a + 1.0) * np.log(z) - sp.gammaln(a) - 1.0 / z)


law(
    "invgamma a",
    lambda z, a: over(over(1.0, z) - (a + 1.0), z),
    lambda z, a: over(1.0, z) - a,
    by_shape=(lambda z, a: -log_of(z) - psi(a),),
    low=0.0,
    logpdf=_invgamma_log,
    pdf=lambda z, a: np.exp(_invgamma_log(z, a)),
    far_cdf=lambda z, a: log_upper_gamma(a, 1.0 / z),
    far_sf=lambda z, a: log_lower_gamma(a, 1.0 / z),
    hazard=lambda z, a: np.where(z == 0, 0.0, gamma_reversed(1.0 / z, a) / z),
    reversed_hazard=lambda z, a: np.where(np.isinf(z), 0.0, gamma_hazard(1.0 / z, a) / z / z),
)


def _beta_pdf(z, a, b):
    try:
        return scipy.stats.beta._pdf(z, a, b)
    except OverflowError:  # SciPy's, where the density is infinite
        return np.exp(scipy.stats.beta._logpdf(z, a, b))


def _beta_coefficient(n, e, b):
    """Of u**n in u**e (1 - u)**(b - 1) / B(e + 1, b)."""
    return rising(b, e + 1) / math.factorial(e) * choose(b - 1.0, n - e) * (-1.0) ** (n - e)


law(
    "beta a b",
    lambda z, a, b: over(a - 1.0, z) - over(b - 1.0, 1.0 - z),
    lambda z, a, b: a - over((b - 1.0) * z, 1.0 - z),
    by_shape=(
        lambda z, a, b: log_of(z) + psi_rise(a, b),
        lambda z, a, b: apply("log1p", -z) + psi_rise(b, a),
    ),
    low=0.0,
    high=1.0,
    ends=(
        End(0.0, lambda a, b: a - 1.0, (0,), lambda n, e, a, b: _beta_coefficient(n, e, b)),
        End(1.0, lambda a, b: b - 1.0, (1,), lambda n, e, a, b: _beta_coefficient(n, e, a), -1.0),
    ),
    pdf=_beta_pdf,
    far_cdf=lambda z, a, b: log_lower_beta(a, b, z, 1.0 - z),
    far_sf=lambda z, a, b: log_lower_beta(b, a, 1.0 - z, z),
)


def _f_middle(z, n, m):
    """(1 - z) / (m + n z)."""
    large, small = inverse_if_large(z)
    return where(large, (small - 1.0) / (m * small + n), (1.0 - small) / (m + n * small))


def _f_by_n(z, n, m):
    rest = apply("log1p", over(m / n, z))
    return 0.5 * (psi_rise(0.5 * n, 0.5 * m) + m * _f_middle(z, n, m) - rest)


def _f_by_m(z, n, m):
    slope = 0.5 * (psi_rise(0.5 * m, 0.5 * n) - n * _f_middle(z, n, m) - apply("log1p", n * z / m))
    rounding = equal(z, 0.0) * equal(n, 2.0)  # of 0, beside an infinite derivative by n
    return where(rounding, slope - apply("stop_gradient", slope), slope)


def _f_ratios(z, n, m):
    """The argument of the incomplete beta function, and 1 minus it."""
    return n * z / (n * z + m), m / (n * z + m)


def _f_log(z, n, m):
    return np.where(np.isinf(z), -INF, scipy.stats.f._logpdf(np.where(np.isinf(z), 1.0, z), n, m))


def _f_coefficient(j, e, m):
    """Of z**j in z**e (1 + n z / m)**(-(n + m) / 2) (n / m)**(n / 2) / B(n / 2, m / 2); n is 2 e + 2."""
    n = 2.0 * e + 2.0
    return rising(0.5 * m, e + 1) / math.factorial(e) * choose(-0.5 * (n + m), j - e) * (n / m) ** (j + 1.0)


law(
    "f dfn dfd",
    lambda z, n, m: (over((0.5 * n - 1.0) * m, z) - (0.5 * m + 1.0) * n) / (m + n * z),
    lambda z, n, m: 0.5 * n * m * _f_middle(z, n, m),
    by_shape=(_f_by_n, _f_by_m),
    low=0.0,
    ends=(End(0.0, lambda n, m: 0.5 * n - 1.0, (0,), lambda j, e, n, m: _f_coefficient(j, e, m)),),
    far_cdf=lambda z, n, m: log_lower_beta(0.5 * n, 0.5 * m, *_f_ratios(z, n, m)),
    far_sf=lambda z, n, m: log_lower_beta(0.5 * m, 0.5 * n, *reversed(_f_ratios(z, n, m))),
    logpdf=_f_log,
)
law(
    "pareto b",
    lambda z, b: -(b + 1.0) / z,
    lambda z, b: constant(-1.0, z) * b,
    by_shape=(lambda z, b: 1.0 / b - log(above(z, 1.0)),),
    cdf_by_shape=(lambda z, b: log(above(z, 1.0)) / b,),
    low=1.0,
    logpdf=lambda z, b: np.log(b) - (b + 1.0) * np.log(z),
    cdf=lambda z, b: -np.expm1(-b * np.log(z)),
    logsf=lambda z, b: -b * np.log(z),
    hazard=lambda z, b: b / z,
    reversed_hazard=lambda z, b: b / z / np.expm1(b * np.log(z)),
)


def _weibull_coefficient(n, e):
    """Of z**n in c z**e exp(-z**c), where c is e + 1."""
    j, rest = divmod(n - e, e + 1)
    return 0.0 if rest else (e + 1.0) * (-1.0) ** j / math.factorial(j)


law(
    "weibull_min c",
    lambda z, c: over(c - 1.0, z) - c * above(z) ** (c - 1.0),
    lambda z, c: c * (1.0 - above(z) ** c),
    by_shape=(lambda z, c: 1.0 / c + log_of(z) * (1.0 - above(z) ** c),),
    cdf_by_shape=(lambda z, c: log_of(z) / c,),
    low=0.0,
    ends=(End(0.0, lambda c: c - 1.0, (0,), lambda n, e, c: _weibull_coefficient(n, e)),),
    pdf=lambda z, c: np.exp(scipy.stats.weibull_min._logpdf(z, c)),
    hazard=lambda z, c: np.where(np.isnan(z), z, c * z ** (c - 1.0)),
    reversed_hazard=lambda z, c: c / z / sp.exprel(z**c),
)


law(
    "rayleigh",
    lambda z: over(1.0, z) - z,
    lambda z: 2.0 - square(z),
    low=0.0,
    ends=(End(0.0, lambda: 1.0, (), lambda n, e: _weibull_coefficient(n, e) / 2.0 ** ((n + 1) / 2)),),
    hazard=lambda z: z,
    reversed_hazard=lambda z: 2.0 / z / sp.exprel(0.5 * z * z),
)


# Discrete laws: a number of events that is no integer has probability 0, and the derivative by it is 0
def counted(k: Node, p: Node) -> Node:
    """k / p, which is 0 where k is."""
    return where(equal(k, 0.0), 0.0, k / p)


def _binom_coefficient(m, e, n, p):
    """Of p**m in p**e (1 - p)**(n - e) n! / e! / (n - e)!."""
    return choose(n, e) * choose(n - e, m - e) * (-1.0) ** (m - e)


def _nbinom_coefficient(m, e, n, p):
    """Of q**m in q**e (1 - q)**n n (n + 1) ... (n + e - 1) / e!."""
    return rising(n, e) / math.factorial(e) * choose(n, m - e) * (-1.0) ** (m - e)


law(
    "poisson mu",
    by_shape=(lambda k, mu: counted(k, mu) - 1.0,),
    cdf_by_shape=(lambda k, mu: constant(-1.0, mu),),
    low=0.0,
    valid=(lambda mu: mu >= 0.0,),
    ends=(End(0.0, lambda k, mu: k + 0.0 * mu, (), lambda n, e, mu: of_exponential(n, e)),),
    far_cdf=lambda k, mu: log_upper_gamma(np.floor(k) + 1.0, mu),
    far_sf=lambda k, mu: log_lower_gamma(np.floor(k) + 1.0, mu),
)
law(
    "binom n p",
    by_shape=(None, lambda k, n, p: counted(k, p) - counted(n - k, 1.0 - p)),
    low=0.0,
    valid=(lambda n: where(n >= 0.0, floor(n), NAN) >= n, lambda p: absolute(p - 0.5) <= 0.5),
    ends=(
        End(0.0, lambda k, n, p: k + 0.0 * p, (), _binom_coefficient),
        End(1.0, lambda k, n, p: n - k, (), _binom_coefficient, -1.0),
    ),
)
law(
    "nbinom n p",
    by_shape=(lambda k, n, p: psi_rise(n, k) + log(p), lambda k, n, p: n / p - counted(k, 1.0 - p)),
    low=0.0,
    valid=(positive, lambda p: where(p <= 1.0, p, NAN) > 0.0),
    ends=(End(1.0, lambda k, n, p: k + 0.0 * p, (), _nbinom_coefficient, -1.0),),
)
law(
    "geom p",
    by_shape=(lambda k, p: 1.0 / p - counted(k - 1.0, 1.0 - p),),
    low=1.0,
    valid=(lambda p: where(p <= 1.0, p, NAN) > 0.0,),
    ends=(
        End(
            1.0,
            lambda k, p: k - 1.0 + 0.0 * p,
            (),
            lambda m, e, p: choose(1.0, m - e) * (-1.0) ** (m - e),
            -1.0,
        ),
    ),
)


# ---- The row ---------------------------------------------------------------------------------------------


row(
    "distribution",
    "elementwise",
    infer=lambda *args, law, method: (broadcast_shape(*args), result_dtype([a.dtype for a in args])),
    evaluate=evaluate,
    partials=partials,
    singular=ALWAYS,
    leads=leads.ELEMENTWISE,
    cost=40.0,
    needs="scipy",
)

# A value with derivatives of its own
row(
    "distribution_limit",
    "elementwise",
    infer=lambda value, *args, law, end, order, logs: (broadcast_shape(value, *args), value.dtype),
    evaluate=first,
    partials=limit_partials,
    singular=ALWAYS,
    leads=leads.ELEMENTWISE,
    needs="scipy",
)
row(
    "known_slope",  # value, with the derivative `slope` by x
    "elementwise",
    infer=lambda value, x, slope: (broadcast_shape(value, x, slope), value.dtype),
    evaluate=first,
    partials=lambda out, value, x, slope: (None, slope, None),
    singular=ALWAYS,
    leads=leads.ELEMENTWISE,
    needs="scipy",
)
