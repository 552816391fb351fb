"""scipy.integrate: solutions of ordinary differential equations, with their derivatives.

discrete   the solver's steps are differentiated, with their lengths as constants: the exact derivative of the
           computed numbers. solve_ivp with RK45 and RK23, compiled as one loop
adjoint    SciPy's solver runs as it is, and the gradient is the solution of another equation, integrated
           backwards in time: accurate to the tolerances, and only the results are kept. odeint, and
           solve_ivp with every method
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.integrate as _scipy

from ..custom.custom import custom_vjp, stop_gradient
from ..errors import AutodiffError, ConvergenceError
from ..graph import Graph
from ..loops.scan import scan
from ..loops.while_loop import while_loop
from ..pipeline import program_of
from ..programs.bodies import body_graph, recorded_once
from ..record import recorder
from ..record.record import inline, record
from ..record.source_lines import error_here, here
from ..record.value import Recorded, value_of
from ..transforms.forward import jvp
from ..transforms.vjp import vjp
from ..tree import flatten, unflatten
from .passing import Result, is_recorded, names_of, ours, stacked, unsupported_option

STEPPED = {"RK45": _scipy.RK45, "RK23": _scipy.RK23}  # whose steps are differentiated
SAFETY, LEAST, MOST = 0.9, 0.2, 10.0  # how far a step may change the next one's length; SciPy's numbers
KEPT = 32  # steps between two results of which the backward keeps the state

__getattr__, __dir__ = names_of(_scipy)


@ours(_scipy)
def trapezoid(y, x=None, dx=1.0, axis=-1) -> Any:
    return np.trapezoid(stacked(y), x, dx, axis)


@ours(_scipy)
def cumulative_trapezoid(y, x=None, dx=1.0, axis=-1, initial=None) -> Any:
    y = np.moveaxis(stacked(y), axis, -1)
    width = dx if x is None else np.diff(x) if np.ndim(x) == 1 else np.diff(np.moveaxis(x, axis, -1))
    total = np.cumsum(0.5 * width * (y[..., 1:] + y[..., :-1]), axis=-1)
    if initial not in (None, 0):
        raise ValueError("`initial` must be `None` or `0`.")
    if initial is not None:
        total = np.concatenate([total[..., :1] * 0.0, total], axis=-1)
    return np.moveaxis(total, -1, axis)


# ---- The adjoint equation --------------------------------------------------------------------------------


class Flow:
    """The right-hand side of an equation, as the graph of (y, t, *consts) -> dy/dt, and its solver.

    solver   solver(slope, y0, ts) -> the states at ts, of a plain function slope(y, t)
    between  the same for the two ends of an interval, for derivatives
    """

    def __init__(self, graph: Graph, solver: Callable, between: Callable):
        self.graph, self.solver, self.between = graph, solver, between

    def slope(self, y: Any, t: Any, *consts: Any) -> Any:
        return inline(self.graph, [y, t, *consts])[0]


@custom_vjp
def _trajectory(flow: Flow, y0: Any, ts: Any, *consts: Any) -> Any:
    """The states at ts, the first of which is y0."""
    y0, ts, *held = (np.asarray(v) for v in (y0, ts, *consts))
    program, t_type = program_of(flow.graph), flow.graph.inputs[1].dtype.type

    def slope(y, t):
        return program(np.asarray(y, y0.dtype), t_type(t), *held)[0]

    return flow.solver(slope, y0, ts)


@_trajectory.defvjp
def _trajectory_vjp(dout: Any, out: Any, flow: Flow, y0: Any, ts: Any, *consts: Any) -> tuple:
    """The adjoint method: from each time to the one before, the state y, its adjoint a, and integrals of
    a df/dconsts are one system; at each time the gradient of that row is added to the adjoint. Chen and
    others 2018.
    """
    n = np.shape(y0)[0]
    sizes = [np.size(c) if np.asarray(value_of(c)).dtype.kind == "f" else 0 for c in consts]

    def backwards(z, t, *consts):
        y, a = z[:n], z[n : 2 * n]
        dy, pull = vjp(lambda y, *consts: flow.slope(y, t, *consts), y, *consts)
        return np.concatenate([dy, *(np.ravel(d) for d in pull(-a) if d is not None)])

    z0 = np.zeros(2 * n + sum(sizes))
    back, _ = _flow("the adjoint equation", backwards, z0, 0.0, consts, flow.between)

    def before(carry, x):
        a, integrals = carry
        y, t, earlier, g = x
        z = _trajectory(back, np.concatenate([y, a, integrals]), np.stack([t, earlier]), *consts)[1]
        return (z[n : 2 * n] + g, z[2 * n :]), None

    rows = out[1:], ts[1:], ts[:-1], dout[:-1]
    (a, flat), _ = scan(before, (dout[-1], np.zeros(sum(sizes))), rows, reverse=True)
    ends = np.cumsum(sizes)
    parts = [np.reshape(flat[e - s : e], np.shape(c)) if s else None for c, s, e in zip(consts, sizes, ends)]
    # A row's derivative by its own time; below, that by the first time
    rows = out[1:], ts[1:], dout[1:]
    _, growth = scan(lambda _, x: (0.0, np.dot(flow.slope(x[0], x[1], *consts), x[2])), 0.0, rows)
    first = -np.dot(flow.slope(y0, ts[0], *consts), a - dout[0])
    return None, a, np.concatenate([np.reshape(first, (1,)), growth]), *parts


@_trajectory.defjvp
def _trajectory_jvp(primals: tuple, tangents: tuple) -> tuple:
    """State and tangent are solved as one system."""
    (flow, y0, ts, *consts), (_, dy0, dts, *dconsts) = primals, tangents
    n, m = np.shape(y0)[0], len(consts)
    along = [d for d in dconsts if d is not None]

    def both(z, t, *all_consts):
        values, rest = all_consts[:m], iter(all_consts[m:])
        moved = [None if d is None else next(rest) for d in dconsts]
        pair = jvp(lambda y, *consts: flow.slope(y, t, *consts), (z[:n], *values), (z[n:], *moved))
        return np.concatenate(pair)

    pair, _ = _flow("the tangent equation", both, np.zeros(2 * n), 0.0, [*consts, *along], flow.between)
    start = dy0 - flow.slope(y0, ts[0], *consts) * dts[0]
    states = _trajectory(pair, np.concatenate([y0, start]), ts, *consts, *along)
    out = states[:, :n]
    rows = out[1:], ts[1:], dts[1:]
    _, moved = scan(lambda _, x: (0.0, flow.slope(x[0], x[1], *consts) * x[2]), 0.0, rows)
    return out, np.concatenate([np.reshape(dy0, (1, n)), states[1:, n:] + moved])


def _flow(
    name: str, f: Callable, y, t, params: Sequence, solver: Callable, between: Callable | None = None
) -> tuple[Flow, list]:
    """(the flow of f, its inputs besides y and t: the leaves of params, and captured values)."""

    def slope(y, t, params):
        return _vector(name, f(y, t, *params), np.shape(y))

    slope.__name__ = getattr(f, "__name__", "f")
    leaves = flatten(params)[0]
    start = np.asarray(value_of(y)), float(np.asarray(value_of(t)))
    plain = unflatten(flatten(params)[1], [value_of(x) for x in leaves])
    _, rec = recorded_once(f, lambda: slope(*start, plain), lambda: record(slope, (*start, plain)))
    if rec is None:
        raise AutodiffError(
            f"{name}: the function has to be the same at every state, and it branches on values, draws "
            "random numbers or changes something. Choose with np.where, and take what changes as an argument",
            here(),
        )
    consts = rec.operands([None, None, *leaves])[2:]
    return Flow(body_graph(rec), solver, between or solver), list(consts)


def _vector(name: str, slope: Any, shape: tuple) -> Any:
    """The result of a right-hand side, as a vector like the state."""
    if isinstance(slope, (list, tuple)):
        slope = np.stack([np.reshape(v, ()) for v in slope])
    if np.shape(slope) == shape:
        return slope
    if np.size(slope) == math.prod(shape):
        return np.reshape(slope, shape)
    raise error_here(
        f"{name}: the function gave values of shape {np.shape(slope)} for a state of shape {shape}"
    )


def _state(name: str, y0: Any) -> Any:
    """The first state as a vector of floats."""
    y0 = y0 if type(y0) is Recorded else np.stack(y0) if isinstance(y0, (list, tuple)) else np.asarray(y0)
    if y0.dtype.kind == "c":
        raise unsupported_option(name, "of complex states")
    if np.ndim(y0) > 1:
        raise ValueError(f"{name}: y0 has shape {np.shape(y0)}, expected a vector")
    return np.reshape(y0.astype(float), (-1,))


def _reads_recorded(slope: Callable) -> bool:
    """Whether a right-hand side returns recorded values, as it does if it captures some."""
    return recorder.current() is not None and is_recorded(slope())


def _check_plain(name: str, options: dict) -> None:
    for key, value in options.items():
        if is_recorded(value):
            raise unsupported_option(
                name, f"by {key}=, which is a recorded value here: as a constant it is fine, and"
            )


def odeint(func: Callable, y0: Any, t: Any, args: Any = (), *, tfirst: Any = False, **options: Any) -> Any:
    """SciPy's solver (LSODA), with derivatives by y0, t, args and values that func captures."""
    args = args if isinstance(args, tuple) else (args,)
    start = y0 if is_recorded(y0) else np.atleast_1d(np.asarray(y0, float))
    if not is_recorded((y0, t, args)) and not _reads_recorded(
        lambda: func(t[0], start, *args) if tfirst else func(start, t[0], *args)
    ):
        return _scipy.odeint(func, y0, t, args, tfirst=tfirst, **options)
    _check_plain("scipy.integrate.odeint", options)
    for name in ("Dfun", "full_output"):
        if options.pop(name, None):
            raise unsupported_option("scipy.integrate.odeint", f"with {name}=")

    def slope(y, t, *args):
        return func(t, y, *args) if tfirst else func(y, t, *args)

    def solver(slope, y0, ts):
        return _scipy.odeint(slope, y0, ts, **options)

    y0, ts = _state("odeint", y0), t if type(t) is Recorded else np.stack(t)
    flow, consts = _flow("odeint", slope, y0, ts[0], args, solver)
    return _trajectory(flow, y0, ts, *consts)


# ---- The steps of the solver -----------------------------------------------------------------------------


class Stepped(NamedTuple):
    """How steps are taken: the method's coefficients, the tolerances, the ends of the interval."""

    method: Any
    start: float
    end: float
    rtol: Any = 1e-3
    atol: Any = 1e-6
    first_step: float | None = None
    max_step: float = np.inf

    @property
    def sign(self) -> float:
        return 1.0 if self.end >= self.start else -1.0

    def size(self, x: Any, state: Any) -> Any:
        """The mean size of x relative to the tolerances for a state of these sizes."""
        scale = self.atol + state * np.maximum(self.rtol, 100 * np.finfo(float).eps)
        return np.sqrt(np.mean((x / scale) ** 2))

    def first(self, f: Callable, y: Any, slope: Any) -> Any:
        """The length of the first step. Hairer, Norsett, Wanner, Ordinary Differential Equations I, II.4."""
        whole = abs(self.end - self.start)
        if self.first_step is not None:
            return self.first_step
        size = np.abs(y)
        d0, d1 = self.size(y, size), self.size(slope, size)
        slow = (d0 < 1e-5) | (d1 < 1e-5)
        h0 = np.minimum(np.where(slow, 1e-6, 0.01 * d0 / np.where(slow, 1.0, d1)), whole)
        moved = f(self.start + h0 * self.sign, y + h0 * self.sign * slope)
        d2 = self.size(moved - slope, size) / h0
        steepest = np.maximum(d1, d2)
        flat = steepest <= 1e-15
        power = 1.0 / (self.method.error_estimator_order + 1)
        h1 = np.where(flat, np.maximum(1e-6, h0 * 1e-3), (0.01 / np.where(flat, 1.0, steepest)) ** power)
        return np.minimum(np.minimum(100.0 * h0, h1), min(whole, self.max_step))

    def attempt(self, f: Callable, s: dict) -> dict:
        """One step of the length in the state: accepted, or to be repeated with a shorter one."""
        m, t, y = self.method, s["t"], s["y"]
        shortest = 10.0 * np.finfo(float).eps * np.abs(t)
        failed = s["again"] & (s["h"] < shortest)
        length = np.where(s["again"], s["h"], np.clip(s["h"], shortest, self.max_step))
        ahead = t + length * self.sign
        ahead = stop_gradient(np.where(self.sign * (ahead - self.end) > 0, self.end, ahead))
        h = ahead - t
        k = [s["slope"]]
        for a, c in zip(m.A[1:], m.C[1:]):
            k.append(f(t + c * h, y + h * _sum(a, k)))
        new = y + h * _sum(m.B, k)
        k.append(f(ahead, new))
        error = stop_gradient(h * _sum(m.E, k))
        off = self.size(error, stop_gradient(np.maximum(np.abs(y), np.abs(new))))
        good = off < 1.0
        power = -1.0 / (m.error_estimator_order + 1)
        factor = SAFETY * np.where(off > 0.0, off, 1.0) ** power
        factor = np.where(off == 0.0, MOST, factor)
        longer = np.where(factor < MOST, factor, MOST)
        longer = np.where(s["again"] & (longer > 1.0), 1.0, longer)
        shorter = np.where(factor > LEAST, factor, LEAST)  # and where it is nan
        bends = np.stack([_sum(column, k) for column in m.P.T])
        taken = dict(t=ahead, y=new, slope=k[-1], start=t, y_start=y, length=h, bends=bends)
        chosen = {name: np.where(good, value, s[name]) for name, value in taken.items()}
        h_next = np.abs(h) * np.where(good, longer, shorter)
        return dict(chosen, h=stop_gradient(h_next), again=~good, failed=s["failed"] | failed)

    def until(self, f: Callable, s: dict, t: Any) -> tuple[dict, Any]:
        """(the state after the step that reaches t, y at t by that step's polynomial)."""

        def goes_on(s):
            return (self.sign * (s["t"] - t) < 0.0) & ~s["failed"]

        s = while_loop(goes_on, lambda s: self.attempt(f, s), s, keep=KEPT)
        none = s["length"] == 0.0
        x = np.where(none, 0.0, (t - s["start"]) / np.where(none, 1.0, s["length"]))
        y, power = s["y_start"], 1.0
        for bend in range(self.method.P.shape[1]):
            power = power * x
            y = y + s["length"] * power * s["bends"][bend]
        return s, y


def _sum(weights: Sequence, parts: Sequence) -> Any:
    return sum(float(w) * part for w, part in zip(weights, parts) if w)


@custom_vjp
def _arrived(ys: Any, failed: Any, name: str, end: str, loc: tuple) -> Any:
    if np.any(failed):
        raise ConvergenceError(
            f"{name}: the solver came to no step that is short enough for its tolerances before t = {end}",
            math.nan,
            0,
            loc,
        )
    return ys


@_arrived.defvjp
def _arrived_vjp(dout: Any, out: Any, ys: Any, failed: Any, *static: Any) -> tuple:
    return dout, *(None,) * (1 + len(static))


def _discretely(name: str, fun: Callable, how: Stepped, y0: Any, ts: Any, args: tuple) -> Any:
    """The states at ts, row by row, from the steps of the solver."""

    def f(t, y):
        return _vector(name, fun(t, y, *args), np.shape(y))

    slope = f(how.start, y0)
    state = dict(
        t=how.start,
        y=y0,
        slope=slope,
        start=how.start,
        y_start=y0,
        length=0.0,
        bends=np.stack([y0 * 0.0] * how.method.P.shape[1]),
        h=stop_gradient(how.first(f, y0, slope)),
        again=np.array(False),
        failed=np.array(False),
    )
    final, ys = scan(lambda s, t: how.until(f, s, t), state, ts)
    return _arrived(ys, final["failed"], name, str(how.end), here())


def solve_ivp(
    fun: Callable,
    t_span: Any,
    y0: Any,
    method: Any = "RK45",
    t_eval: Any = None,
    dense_output: Any = False,
    events: Any = None,
    vectorized: Any = False,
    args: Any = None,
    *,
    derivative: str | None = None,
    **options: Any,
) -> Any:
    """The states at t_eval, with derivatives by y0, args and values that fun captures.

    derivative   "discrete" (for RK45 and RK23, and there by default) or "adjoint" (every method; by t_eval
                 too). See the head of this file
    """
    name = "scipy.integrate.solve_ivp"
    rest = args or ()
    if not is_recorded((t_span, y0, t_eval, rest)) and not _reads_recorded(
        lambda: fun(t_span[0], np.atleast_1d(np.asarray(y0)), *rest)
    ):
        return _scipy.solve_ivp(
            fun, t_span, y0, method, t_eval, dense_output, events, vectorized, args, **options
        )
    for option, value in (("dense_output=", dense_output), ("events=", events), ("vectorized=", vectorized)):
        if value:
            raise unsupported_option(name, f"with {option}")
    _check_plain(name, options)
    if is_recorded(t_span):
        raise unsupported_option(name, "by t_span (by t_eval it has one, with derivative='adjoint')")
    if t_eval is None:
        raise unsupported_option(
            name,
            "without t_eval=, where the number of results depends on values (t_eval=t_span gives both ends)",
        )
    derivative = derivative or ("discrete" if method in STEPPED else "adjoint")
    start, end = map(float, t_span)
    ts = t_eval if type(t_eval) is Recorded else _checked_times(name, np.asarray(t_eval, float), start, end)
    y0 = _state(name, y0)
    if derivative == "adjoint":
        ys = _adjointly(name, fun, start, end, y0, method, ts, tuple(rest), options)
    elif derivative != "discrete":
        raise ValueError(f"{name}: derivative is {derivative!r}, expected 'discrete' or 'adjoint'")
    elif method not in STEPPED:
        raise unsupported_option(
            name, f"with method={method!r} and derivative='discrete' (there is 'adjoint')"
        )
    elif unknown := set(options) - set(Stepped._field_defaults):
        raise unsupported_option(name, f"with {', '.join(sorted(unknown))}=")
    elif type(ts) is Recorded:
        raise unsupported_option(name, "by t_eval with derivative='discrete' (there is 'adjoint')")
    else:
        how = Stepped(STEPPED[method], start, end, **options)
        ys = _discretely(name, fun, how, y0, ts, tuple(rest))
    return Result(t=ts, y=np.transpose(ys), sol=None, t_events=None, y_events=None, status=0, success=True)


def _checked_times(name: str, ts: np.ndarray, start: float, end: float) -> np.ndarray:
    if ts.ndim != 1 or not ts.size:
        raise ValueError(f"{name}: t_eval has shape {ts.shape}, expected a vector of times")
    if np.any(ts < min(start, end)) or np.any(ts > max(start, end)):
        raise ValueError(f"{name}: t_eval lies not within t_span")
    if np.any(np.diff(ts) * (1.0 if end >= start else -1.0) <= 0):
        raise ValueError(f"{name}: t_eval is not sorted from the start of t_span to its end")
    return ts


def _adjointly(name, fun, start, end, y0, method, ts, args, options) -> Any:
    def between(slope, y0, ts, last=None):
        if np.all(ts == ts[0]):
            return np.stack([y0] * len(ts))
        sign = 1.0 if ts[-1] > ts[0] else -1.0
        times, inverse = np.unique(sign * ts, return_inverse=True)
        span = ts[0], ts[-1] if last is None else last
        settings = {**options, "method": method, "t_eval": sign * times}
        solution = _scipy.solve_ivp(lambda t, y: slope(y, t), span, y0, **settings)
        if not solution.success:
            raise ConvergenceError(f"{name}: {solution.message}", math.nan, int(solution.nfev))
        return solution.y.T[inverse]

    def solver(slope, y0, ts):
        return between(slope, y0, ts, end)

    flow, consts = _flow(name, lambda y, t, *args: fun(t, y, *args), y0, start, args, solver, between)
    ahead = type(ts) is Recorded or ts[0] != start
    ts = np.concatenate([[start], ts]) if ahead else ts
    ys = _trajectory(flow, y0, ts, *consts)
    return ys[1:] if ahead else ys
