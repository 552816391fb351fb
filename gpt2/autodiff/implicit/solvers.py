"""Solvers in plain NumPy, for what programs call while they run: fixed points, Newton's method, GMRES.

All of them take and give flat vectors of floats, and raise ConvergenceError where they come to no solution.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..errors import ConvergenceError

Vector = np.ndarray
HALVINGS = 30  # of a step of Newton's that leads uphill
RESTART = 50  # directions that GMRES keeps


def largest(x: Vector) -> float:
    """The magnitude of the largest entry; nan if there is one."""
    return float(np.max(np.abs(x), initial=0.0))


def iterate(
    f: Callable[[Vector], Vector], x: Vector, tol: float, max_steps: int, loc: tuple | None
) -> Vector:
    """x = f(x) again and again, until it moves by no more than tol * max(1, |x|)."""
    residual, step = math.inf, 0
    while step < max_steps:
        step += 1
        new = f(x)
        residual = largest(new - x)
        if not math.isfinite(residual):
            break
        if residual <= tol * max(1.0, largest(new)):
            return new
        x = new
    raise _failed("fixed_point", "|f(x) - x|", residual, step, tol, loc)


def newton(
    f: Callable[[Vector], Vector],
    step_of: Callable[[Vector, Vector], Vector],
    x: Vector,
    tol: float,
    max_steps: int,
    loc: tuple | None,
) -> Vector:
    """x with |f(x)| <= tol, by steps of Newton's method, halved where they lead uphill; and one step more,
    which costs little and squares what is left.

    step_of   step_of(x, f(x)): the d with J d = -f(x)
    """
    found = f(x)
    for step in range(max_steps):
        left = largest(found)
        if not math.isfinite(left):
            raise _failed("root", "|f(x)|", left, step, tol, loc)
        try:
            d = step_of(x, found)
        except np.linalg.LinAlgError as error:
            if left <= tol:
                return x
            raise ConvergenceError(
                f"root: the Jacobian is singular after {step} steps, at which |f(x)| is {left:.3g}. Start "
                "from another x0, or give a solver of your own",
                left,
                step,
                loc,
            ) from error
        new, there = _downhill(f, x, d, left)
        if left <= tol:
            return new if largest(there) <= left else x
        x, found = new, there
    raise _failed("root", "|f(x)|", largest(found), max_steps, tol, loc)


def _downhill(f: Callable[[Vector], Vector], x: Vector, d: Vector, left: float) -> tuple[Vector, Vector]:
    """(x moved along d, f there): the whole way, or half of it, a quarter, ..."""
    part = 1.0
    for _ in range(HALVINGS):
        new = x + part * d
        found = f(new)
        if largest(found) < left:
            return new, found
        part /= 2
    return new, found


def _failed(
    name: str, what: str, residual: float, steps: int, tol: float, loc: tuple | None
) -> ConvergenceError:
    told = f"a residual of {residual:.3g} (the largest entry of {what}), more than tol={tol:.3g}"
    if not math.isfinite(residual):
        told = f"{what} that is not finite"
    elif name == "fixed_point":
        told += ", times the size of x where that is above 1"
    return ConvergenceError(
        f"{name}: {steps} steps leave {told}. Start from another x0, allow more max_steps, or give a solver "
        "of your own",
        residual,
        steps,
        loc,
    )


def gmres(matvec: Callable[[Vector], Vector], b: Vector, loc: tuple | None = None) -> Vector:
    """The x of A x = b, from products with A alone, to ten digits (four in single precision).

    Saad and Schultz 1986, GMRES: a generalized minimal residual algorithm.
    """
    tol = 1e-10 if b.dtype == np.float64 else 1e-4
    x, size = np.zeros_like(b), float(np.linalg.norm(b))
    if size == 0.0:
        return x
    turns, left = 0, 1.0
    while turns < max(10, 2 * b.size // RESTART):
        r = b - matvec(x)
        left = float(np.linalg.norm(r)) / size
        if left <= tol:
            return x
        if not math.isfinite(left):
            break
        x = x + _arnoldi(matvec, r, min(RESTART, b.size))
        turns += 1
    raise ConvergenceError(
        f"the linear system of an implicit derivative: {turns * RESTART} steps of GMRES leave a residual of "
        f"{left:.3g} of |b|. Give linear_solve=, a solver of your own",
        left,
        turns * RESTART,
        loc,
    )


def _arnoldi(matvec: Callable[[Vector], Vector], r: Vector, most: int) -> Vector:
    """The best step from r in the space of r, A r, A A r, ..."""
    basis = np.zeros((most + 1, r.size), r.dtype)
    H = np.zeros((most + 1, most), r.dtype)
    norm = np.linalg.norm(r)
    basis[0] = r / norm
    for k in range(most):
        w = matvec(basis[k])
        for _ in range(2):  # once more: what rounding left over
            h = basis[: k + 1] @ w
            w = w - h @ basis[: k + 1]
            H[: k + 1, k] += h
        H[k + 1, k] = np.linalg.norm(w)
        if H[k + 1, k] <= 1e-14 * np.linalg.norm(H[: k + 1, k]):
            break
        basis[k + 1] = w / H[k + 1, k]
    k += 1
    rhs = np.zeros(k + 1, r.dtype)
    rhs[0] = norm
    y = np.linalg.lstsq(H[: k + 1, :k], rhs)[0]
    return y @ basis[:k]
