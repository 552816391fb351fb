"""Solvers in plain NumPy that programs call: fixed-point iteration, Newton's method, GMRES.

All of them take and return flat vectors of floats, and raise ConvergenceError if they find no solution.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..errors import ConvergenceError

Vector = np.ndarray
HALVINGS = 30  # of a Newton step that increases the residual
RESTART = 50  # directions that GMRES keeps


def largest(x: Vector) -> float:
    """The magnitude of the largest entry; nan if there is one."""
    return float(np.max(np.abs(x), initial=0.0))


def iterate(f: Callable, x: Vector, tol: float, max_steps: int, loc: tuple | None) -> Vector:
    """Iterates x = f(x) until it changes by at most tol * max(1, |x|)."""
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
    f: Callable, inverse: Callable, x: Vector, tol: float, max_steps: int, loc: tuple | None
) -> Vector:
    """x with |f(x)| <= tol by Newton's method, with steps halved while they increase the residual; and one
    more step, which costs little and squares the error.

    inverse   inverse(b, x): the d with J d = b, where J is the Jacobian at x
    """
    value = f(x)
    for step in range(max_steps):
        residual = largest(value)
        if not math.isfinite(residual):
            raise _failed("root", "|f(x)|", residual, step, tol, loc)
        try:
            d = inverse(-value, x)
        except np.linalg.LinAlgError as error:
            if residual <= tol:
                return x
            raise ConvergenceError(
                f"root: the Jacobian is singular after {step} steps, at which |f(x)| is {residual:.3g}. "
                "Start from another x0, or give a solver of your own",
                residual,
                step,
                loc,
            ) from error
        for halvings in range(HALVINGS):
            new = x + 0.5**halvings * d
            new_value = f(new)
            if largest(new_value) < residual:
                break
        if residual <= tol:
            return new if largest(new_value) <= residual else x
        x, value = new, new_value
    raise _failed("root", "|f(x)|", largest(value), max_steps, tol, loc)


def _failed(
    name: str, quantity: str, residual: float, steps: int, tol: float, loc: tuple | None
) -> ConvergenceError:
    outcome = f"a residual of {residual:.3g} (the largest entry of {quantity}), more than tol={tol:.3g}"
    if not math.isfinite(residual):
        outcome = f"{quantity} that is not finite"
    elif name == "fixed_point":
        outcome += ", times the size of x where that is above 1"
    return ConvergenceError(
        f"{name}: {steps} steps leave {outcome}. Start from another x0, allow more max_steps, or give a "
        "solver of your own",
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
    restarts, residual = 0, 1.0
    while restarts < max(10, 2 * b.size // RESTART):
        r = b - matvec(x)
        residual = float(np.linalg.norm(r)) / size
        if residual <= tol:
            return x
        if not math.isfinite(residual):
            break
        x = x + _arnoldi(matvec, r, min(RESTART, b.size))
        restarts += 1
    raise ConvergenceError(
        f"the linear system of an implicit derivative: {restarts * RESTART} steps of GMRES leave a residual "
        f"of {residual:.3g} of |b|. Give linear_solve=, a solver of your own",
        residual,
        restarts * RESTART,
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
        for _ in range(2):  # twice, for rounding
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
