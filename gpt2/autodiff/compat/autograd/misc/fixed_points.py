"""autograd.misc.fixed_points: x = f(a)(x) by iteration, with an implicit derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core import defvjp, make_vjp, vspace
from ..tracer import primitive


@primitive
def fixed_point(f: Callable, a: Any, x0: Any, distance: Callable, tol: float) -> Any:
    """The x with f(a)(x) = x, iterated from x0 until the distance between two iterates is at most tol."""
    step = f(a)
    x, before = step(x0), x0
    while distance(x, before) > tol:
        x, before = step(x), x
    return x


def _fixed_point_vjp(ans: Any, f: Callable, a: Any, x0: Any, distance: Callable, tol: float) -> Callable:
    """The adjoint u = g + (df/dx)^T u is a fixed point too, and the gradient (df/da)^T u."""
    pull_a, _ = make_vjp(lambda a: f(a)(ans), a)

    def adjoint_step(values):
        a, x, g = values
        pull_x, _ = make_vjp(f(a), x)
        return lambda u: vspace(x).add(pull_x(u), g)

    return lambda g: pull_a(fixed_point(adjoint_step, (a, ans, g), vspace(x0).zeros(), distance, tol))


defvjp(fixed_point, None, _fixed_point_vjp, None)
