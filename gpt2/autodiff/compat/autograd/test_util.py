"""autograd.test_util: compares derivatives with finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from .core import floating, make_jvp, make_vjp, vspace
from .wrap_util import get_name, unary_to_nary

TOL = 1e-6
RTOL = 1e-6
EPS = 1e-6


def scalar_close(a: Any, b: Any) -> bool:
    return bool(abs(a - b) < TOL or abs(a - b) / abs(a + b) < RTOL)


@unary_to_nary
def check_grads(f: Callable, x: Any, modes: Sequence[str] | None = None, order: int = 2) -> None:
    """check_grads(f, argnum=0, modes=("fwd", "rev"), order=2)(*args): AssertionError unless the derivatives
    of f with respect to the argument agree with central differences, in a random direction.
    """
    modes = ("fwd", "rev") if modes is None else tuple(modes)
    if not set(modes) <= {"fwd", "rev"}:
        raise AssertionError(f"check_grads: modes are {modes}, expected 'fwd' and 'rev'")
    x = floating(x)

    def along(x, v):
        return make_jvp(f, x)(v)[1]

    def back(x, v):
        return make_vjp(f, x)[0](v)

    along.__name__, back.__name__ = f"jvp_{get_name(f)}", f"vjp_{get_name(f)}"
    if "fwd" in modes:
        check_jvp(f, x)
        if order > 1:
            check_grads(along, (0, 1), modes, order - 1)(x, vspace(x).randn())
    if "rev" in modes:
        check_vjp(f, x)
        if order > 1:
            check_grads(back, (0, 1), modes, order - 1)(x, vspace(f(x)).randn())


def make_numerical_jvp(f: Callable, x: Any) -> Callable:
    y = f(x)
    x_vs, y_vs = vspace(x), vspace(y)

    def jvp(v):
        ahead = f(x_vs.add(x, x_vs.scalar_mul(v, EPS / 2)))
        behind = f(x_vs.add(x, x_vs.scalar_mul(v, -EPS / 2)))
        return y_vs.scalar_mul(y_vs.add(ahead, y_vs.scalar_mul(behind, -1.0)), 1.0 / EPS)

    return jvp


def check_vjp(f: Callable, x: Any) -> None:
    vjp, y = make_vjp(f, x)
    x_vs, y_vs = vspace(x), vspace(y)
    x_v, y_v = x_vs.randn(), y_vs.randn()
    pulled = x_vs.covector(vjp(y_vs.covector(y_v)))
    exact = x_vs.inner_prod(x_v, pulled)
    numeric = y_vs.inner_prod(y_v, make_numerical_jvp(f, x)(x_v))
    if not scalar_close(numeric, exact):
        raise AssertionError(
            f"Derivative (VJP) check of {get_name(f)} failed at {x}: it gives {exact}, differences {numeric}"
        )


def check_jvp(f: Callable, x: Any) -> None:
    v = vspace(x).randn()
    check_equivalent(make_jvp(f, x)(v)[1], make_numerical_jvp(f, x)(v))


def check_equivalent(x: Any, y: Any) -> None:
    x_vs, y_vs = vspace(x), vspace(y)
    if x_vs != y_vs:
        raise AssertionError(f"values of two vector spaces: {x_vs} and {y_vs}")
    v = x_vs.randn()
    if not scalar_close(x_vs.inner_prod(x, v), x_vs.inner_prod(y, v)):
        raise AssertionError(f"two values that differ: {x} and {y}")


def combo_check(fun: Callable, *args: Any, **kwargs: Any) -> Callable:
    """check_grads for every combination of the arguments that are listed."""

    def check(*lists, **options):
        named = [[(k, x) for x in xs] for k, xs in options.items()]
        for values in product(*lists):
            for chosen in product(*named):
                check_grads(fun, *args, **kwargs)(*values, **dict(chosen))

    return check
