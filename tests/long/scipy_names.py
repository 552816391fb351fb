"""Every SciPy function with derivatives, four ways: python -m tests.long.scipy_names [part of a name].

For each: its value is SciPy's, both modes agree with differences, the gradient's own derivative agrees with
differences of the gradient, and `ad.vmap` gives what a loop gives. Prints a line for each with what it saw,
and the seconds; a name that refuses says so with its one line. Ends with 1 where anything is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np

from gpt2 import autodiff as ad
from gpt2.autodiff.ops import input_node
from gpt2.autodiff.scipy import integrate, ndimage, optimize, sparse, stats
from gpt2.autodiff.scipy import interpolate as ours
from gpt2.autodiff.scipy.rules import special
from gpt2.autodiff.scipy.sparse.linalg import factorized, splu, spsolve
from tests.autodiff.scipy import test_interpolate as curves
from tests.autodiff.scipy import test_modules as modules

IMAGE, WIDE = modules.IMAGE, np.random.default_rng(1).normal(size=3)
POINTS = np.array([[0.5, 1.4, 2.3], [2.2, 3.1, 0.4]])
MATRIX = sparse.csr_array(np.diag([2.0, 3.0, 4.0]) + np.diag([0.5, 0.2], 1))
EQUAL = {"first_step": 0.1, "max_step": 0.1, "rtol": 0.1}
SHARP = {"rtol": 1e-12, "atol": 1e-13}


def decay(t, y, a):
    return -a * y * y


def steps(method: str) -> Callable:
    return lambda a, y: integrate.solve_ivp(decay, (0.0, 0.2), y, method, [0.2], args=(a,), **EQUAL).y


def adjoint(method: str) -> Callable:
    return lambda a, y: (
        integrate.solve_ivp(decay, (0.0, 0.2), y, method, [0.2], args=(a,), derivative="adjoint", **SHARP).y
    )


def energy(x, b):
    return np.sum(np.cosh(x)) - b * x[0]


ONE = np.array([1.1, 0.7])
OTHERS: dict[str, tuple[Callable, tuple]] = {
    "ndimage.gaussian_filter": (lambda x, s: ndimage.gaussian_filter(x, s), (IMAGE, 0.8)),
    "ndimage.gaussian_filter1d": (lambda x: ndimage.gaussian_filter1d(x, 0.9, 0), (IMAGE,)),
    "ndimage.uniform_filter": (lambda x: ndimage.uniform_filter(x, 3), (IMAGE,)),
    "ndimage.uniform_filter1d": (lambda x: ndimage.uniform_filter1d(x, 3, 0), (IMAGE,)),
    "ndimage.correlate1d": (lambda x, w: ndimage.correlate1d(x, w, 0), (IMAGE, WIDE)),
    "ndimage.convolve1d": (lambda x, w: ndimage.convolve1d(x, w, 0), (IMAGE, WIDE)),
    "ndimage.map_coordinates": (lambda x, c: ndimage.map_coordinates(x, c, order=1), (IMAGE, POINTS)),
    "sparse A @ x": (lambda x: (MATRIX @ x) ** 2, (WIDE,)),
    "sparse x @ A": (lambda x: (x @ MATRIX) ** 2, (WIDE,)),
    "sparse A.dot(x)": (lambda x: MATRIX.dot(x) ** 2, (WIDE,)),
    "sparse.linalg.spsolve": (lambda b: spsolve(MATRIX, b) ** 2, (WIDE,)),
    "sparse.linalg.splu": (lambda b: splu(MATRIX.tocsc()).solve(b) ** 2, (WIDE,)),
    "sparse.linalg.factorized": (lambda b: factorized(MATRIX.tocsc())(b) ** 2, (WIDE,)),
    "integrate.solve_ivp, RK45": (steps("RK45"), (1.2, ONE)),
    "integrate.solve_ivp, RK23": (steps("RK23"), (1.2, ONE)),
    "integrate.solve_ivp, adjoint": (adjoint("RK45"), (1.2, ONE)),
    "integrate.solve_ivp, LSODA": (adjoint("LSODA"), (1.2, ONE)),
    "integrate.odeint": (
        lambda a, y: integrate.odeint(decay, y, [0.0, 0.2], (a,), tfirst=True, **SHARP),
        (1.2, ONE),
    ),
    "integrate.trapezoid": (lambda y, x: integrate.trapezoid(y**2, np.cumsum(x**2)), (WIDE, WIDE)),
    "integrate.cumulative_trapezoid": (
        lambda y, x: integrate.cumulative_trapezoid(y**2, np.cumsum(x**2)),
        (WIDE, WIDE),
    ),
    "optimize.root": (
        lambda a: optimize.root(lambda x, a: x**3 - a, np.ones(2), args=(a,), tol=1e-13).x,
        (ONE,),
    ),
    "minimum, as the root of a gradient": (lambda b: ad.root(ad.grad(energy), np.zeros(2), b), (0.7,)),
}


def ufuncs() -> dict:
    """The rows of scipy.special, with the arguments of their own tests; one without a derivative is held."""
    found = {}
    for ufunc, op in special.OP_OF.items():
        if ufunc.__name__ == "gammasgn":  # piecewise constant: its differences are rounding
            continue
        partials, domain = special.PARTIALS[op.removeprefix(special.PREFIX)]
        n, rng = ufunc.nin, np.random.default_rng(3)
        args = [rng.uniform(*domain, 3) for _ in range(n)]
        held = [float(np.linspace(*domain, 3)[1])] * n
        free = [not h for h in no_formula(partials, n)]

        def f(*xs, ufunc=ufunc, free=free, held=held):
            given = iter(xs)
            return ufunc(*(next(given) if moves else h for moves, h in zip(free, held)))

        found[f"special.{ufunc.__name__}"] = f, tuple(a for a, moves in zip(args, free) if moves)
    return found


def no_formula(partials: Callable, n: int) -> list[bool]:
    if n == 1:
        return [False]
    node = input_node((), np.float64)
    return [d is None for d in partials(*[node] * (n + 1))]


def distributions() -> dict:
    found = {}
    for name, (x, shapes) in modules.DISTRIBUTIONS.items():
        d, x = getattr(stats, name), x * 1.3 + 0.2 if name not in ("uniform", "beta") else x
        for method in ("logpdf", "pdf", "cdf", "logcdf", "sf", "logsf"):
            f = getattr(d, method)
            moving = shapes if "pdf" in method or name not in modules.NO_SHAPE else ()

            def by_all(x, scale, *p, f=f, shapes=shapes):
                return f(x, *(p or shapes), loc=0.1, scale=scale)

            found[f"stats.{name}.{method}"] = by_all, (x, 1.4, *moving)
    for name, (k, shapes) in modules.DISCRETE.items():
        for method in ("logpmf", "pmf"):
            f, whole = getattr(getattr(stats, name), method), [s for s in shapes if type(s) is int]
            floats = tuple(s for s in shapes if type(s) is float)
            found[f"stats.{name}.{method}"] = (
                lambda *p, f=f, k=k, whole=tuple(whole): f(k, *whole, *p),
                floats,
            )
    return found


def everything() -> dict[str, tuple[Callable, tuple]]:
    named = {name: (f, args) for name, (f, args, _) in modules.CALLS.items()}
    read = {
        f"interpolate: {name}": (lambda *a, f=f: f(ours, *a), args)
        for name, (f, args) in curves.CALLS.items()
    }
    return {**ufuncs(), **named, **distributions(), **read, **OTHERS}


def value(f: Callable, args: tuple) -> None:
    same(ad.compile(f)(*args), f(*args))


def batch(f: Callable, args: tuple) -> None:
    """Two examples at once, of all arguments and of each alone."""
    others = tuple(np.asarray(a, float) * 1.0003 + 1e-4 for a in args)
    both = tuple(np.stack([a, b]) for a, b in zip(args, others))
    same(ad.vmap(f)(*both), both_by_loop(f, args, others))
    if len(args) > 1:
        for k in range(len(args)):
            axes = tuple(0 if i == k else None for i in range(len(args)))
            mixed = tuple(both[i] if i == k else args[i] for i in range(len(args)))
            changed = tuple(others[i] if i == k else args[i] for i in range(len(args)))
            same(ad.vmap(f, axes)(*mixed), both_by_loop(f, args, changed))


def both_by_loop(f: Callable, args: tuple, others: tuple) -> list:
    rows = zip(ad.tree.leaves(f(*args)), ad.tree.leaves(f(*others)))
    return [np.stack([np.asarray(a), np.asarray(b)]) for a, b in rows]


def same(found, expected) -> None:
    for a, b in zip(ad.tree.leaves(found), ad.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


CHECKS: dict[str, Callable] = {
    "value": value,
    "reverse": lambda f, args: ad.check_grads(f, args, order=1, modes=("rev",)),
    "forward": lambda f, args: ad.check_grads(f, args, order=1, modes=("fwd",)),
    "twice": lambda f, args: ad.check_grads(f, args, order=2),
    "vmap": batch,
    "grad in vmap": lambda f, args: batch(ad.grad(total(f), tuple(range(len(args)))), args),
}


def total(f: Callable) -> Callable:
    """The sum of squares of f's results."""
    return lambda *args: sum(np.sum(np.sin(leaf) * 1.0) for leaf in ad.tree.leaves(f(*args)))


def outcome(check: Callable, f: Callable, args: tuple) -> str:
    try:
        check(f, args)
    except NotImplementedError as error:
        return "refused: " + str(error).split("\n")[0]
    except Exception as error:
        return f"WRONG: {type(error).__name__}: " + " ".join(str(error).split())[:160]
    return "yes"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.scipy_names", description=__doc__.split("\n")[0]
    )
    parser.add_argument("part", nargs="?", default="", help="of the names to try")
    part = parser.parse_args(argv).part
    warnings.simplefilter("ignore")
    wrong = refused = 0
    chosen = {name: row for name, row in everything().items() if part in name}
    for name, (f, args) in chosen.items():
        begin = time.perf_counter()
        found = {check: outcome(run, f, args) for check, run in CHECKS.items()}
        bad = {check: text for check, text in found.items() if text != "yes"}
        wrong += any(text.startswith("WRONG") for text in bad.values())
        refused += any(text.startswith("refused") for text in bad.values())
        print(f"{name:40} {time.perf_counter() - begin:5.1f} s  {'as it should be' if not bad else ''}")
        for check, text in bad.items():
            print(f"    {check}: {text}", flush=True)
    print(f"{len(chosen)} names: {wrong} wrong, {refused} refused in part")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
