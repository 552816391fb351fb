"""Derivatives where a formula has no value: norms at 0, singular matrices, ties, infinities.

Right values come from mathematics, or are the conventions of docs/derivatives.md. Each reason stands beside
its row.
"""

import itertools

import numpy as np
import pytest

from gpt2 import autodiff as ad
from tests.support.exact.points import check_derivatives

A, inf, nan = np.array, np.inf, np.nan
ORIGIN, ZERO = np.zeros(2), np.zeros((2, 2))
TWICE_I = 2.0 * np.eye(2)
norm = np.linalg.norm


def distances(v):
    return np.sum((v[:, None, None] - v[None, :, None]) ** 2, axis=-1)


# Norms, whose least subgradient at 0 is 0
NORMS = {
    "norm": norm,
    "norm, ord=3": lambda v: norm(v, 3),
    "norm, axis": lambda v: norm(v[None], axis=1)[0],
    "norm, frobenius": lambda v: norm(np.outer(v, v)),
    "norm, complex": lambda v: norm(v + 0j),
    "vector_norm": np.linalg.vector_norm,
    "hypot": lambda v: np.hypot(v[0], v[1]),
    "hypot.reduce": np.hypot.reduce,
    "std": np.std,
    "sqrt of var": lambda v: np.sqrt(np.var(v)),
    "sum of squares": lambda v: np.sqrt(np.sum(v**2)),
    "weighted": lambda v: np.sqrt(np.sum(A([1.0, 3.0]) * v**2) / 2.0),
    "mean of squares": lambda v: np.sqrt(np.mean(np.square(v))),
    "squares of sizes": lambda v: np.sqrt(np.sum(np.abs(v) ** 2)),
    "by elements": lambda v: np.sqrt(v[0] * v[0] + v[1] ** 2),
    "to the power 0.5": lambda v: np.sum(v**2) ** 0.5,
    "v @ v": lambda v: np.sqrt(v @ v),
    "inner": lambda v: np.sqrt(np.inner(v, v)),
    "einsum": lambda v: np.sqrt(np.einsum("i,i->", v, v)),
    "all distances": lambda v: np.sum(np.sqrt(distances(v))),
    "of a zero times v": lambda v: norm(v * 0.0),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_at_0(name):
    f = NORMS[name]
    check_derivatives(f, ORIGIN, ORIGIN, ZERO)
    if name != "of a zero times v":
        ad.check_grads(f, (A([3.0, 4.0]),), order=2)


SQUARES = [  # smooth, so that the second derivative is that of the sum of squares
    lambda v: norm(v) ** 2,
    lambda v: np.square(norm(v)),
    lambda v: (lambda r: r * r)(np.sqrt(v @ v)),
    lambda v: np.hypot(v[0], v[1]) ** 2,
    lambda v: np.sum(np.abs(v) ** 2),
    lambda v: np.sum(np.abs(v + 0j) ** 2),
    lambda v: -2.0 * np.exp(-0.5 * norm(v) ** 2) * 1.0,
]


@pytest.mark.parametrize("f", SQUARES)
def test_squares_of_norms_at_0(f):
    check_derivatives(f, ORIGIN, ORIGIN, TWICE_I)


@pytest.mark.parametrize(
    "f",
    [
        lambda v: np.sqrt(v[0] * v[1]),  # infinite
        lambda v: np.sqrt(v[0]),
        lambda v: np.sqrt(np.sum(v**2 * A([1.0, -1.0]))),  # weights of both signs: 0 elsewhere too
        lambda v: np.sqrt(np.einsum("ij,ji->", np.outer(v, v[::-1]), np.outer(v, v[::-1]))),  # a trace
        lambda v: np.sqrt(np.sum(v[:1] * v[1:])),
    ],
)
def test_other_roots_keep_their_infinity(f):
    with np.errstate(all="ignore"):
        assert not np.isfinite(ad.grad(f)(A([0.0, 0.0]))).all()


POINTS = {
    # e**-inf weighs nothing, e**inf all
    "logaddexp(inf, 0)": (lambda v: np.logaddexp(v[0], v[1]), A([inf, 0.0]), [1.0, 0.0]),
    "logaddexp2(0, inf)": (lambda v: np.logaddexp2(v[0], v[1]), A([0.0, inf]), [0.0, 1.0]),
    "logaddexp(inf, inf)": (lambda v: np.logaddexp(v[0], v[1]), A([inf, inf]), [0.5, 0.5]),
    "sum of exponentials": (lambda v: np.log(np.sum(np.exp(v))), A([-inf, -inf]), [0.0, 0.0]),
    "its shift": (
        lambda v: np.log(np.sum(np.exp(v - np.where(np.isfinite(np.max(v)), np.max(v), 0.0)))),
        A([-inf, -inf]),
        [0.0, 0.0],
    ),
    # the exponent's derivative, nan, stays with the exponent
    "x**y at (-2, 2)": (lambda v: v[0] ** v[1], A([-2.0, 2.0]), [-4.0, nan]),
    # abs(x) times a sign: 0 at 0, as of abs
    "copysign": (lambda x: np.sum(np.copysign(x, A([-1.0, 1.0, -2.0]))), A([0.0, 0.0, 3.0]), [0, 0, -1]),
    # of np.interp the slope to the right, 0 from the last point on
    "interp": (
        lambda x: np.sum(np.interp(x, np.arange(4.0), np.arange(4.0) ** 2)),
        A([0.0, 1.0, 1.5, 3.0]),
        [1.0, 3.0, 3.0, 0.0],
    ),
    # no direction
    "arctan2 at the origin": (lambda v: np.arctan2(v[0], v[1]), ORIGIN, [nan, nan]),
    # m is x / 2**e
    "frexp": (lambda x: np.sum(np.frexp(x)[0]), A([1.0, 3.0, -0.3]), [0.5, 0.25, 2.0]),
}


@pytest.mark.parametrize("name", POINTS)
def test_points(name):
    check_derivatives(*POINTS[name])


def test_bessel_function_is_smooth_at_0():
    check_derivatives(np.i0, 0.0, 0.0, 0.5)  # 1 + x**2 / 4 + ...


# ---- Determinants ----------------------------------------------------------------------------------------


def minor(x, rows, columns):
    kept = np.delete(np.delete(x, rows, 0), columns, 1)
    return np.linalg.det(kept) if kept.size else 1.0


def cofactors(x):
    n = range(len(x))
    return A([[(-1.0) ** (i + j) * minor(x, i, j) for j in n] for i in n])


def second_of_det(x):
    """By the elements (i, j) and (k, l): the minor without these rows and columns, with its sign."""
    n, out = len(x), np.zeros(x.shape * 2)
    for i, j, k, l in itertools.product(range(n), repeat=4):
        if i != k and j != l:
            sign = (-1.0) ** (i + j + k + l + (k > i) + (l > j))
            out[i, j, k, l] = sign * minor(x, [i, k], [j, l])
    return out


@pytest.mark.parametrize("n, rank", [(n, r) for n in (1, 2, 3, 4) for r in range(n + 1)])
def test_determinant_of_any_rank(n, rank):
    rng = np.random.default_rng(n)
    x = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, n))
    check_derivatives(np.linalg.det, x, cofactors(x), second_of_det(x) if n > 1 else None, rtol=1e-9)


def test_determinants_of_a_stack():
    singular = A([[1.0, 2.0], [2.0, 4.0]])
    nearly = singular + A([[0.0, 0.0], [0.0, 1e-13]])
    x = np.stack([singular, np.eye(2), nearly, np.full((2, 2), nan)])
    wanted = np.stack([cofactors(m) for m in x])
    np.testing.assert_allclose(ad.grad(lambda x: np.sum(np.linalg.det(x)))(x), wanted, 1e-12)
    np.testing.assert_allclose(ad.vmap(ad.grad(np.linalg.det))(x), wanted, 1e-12)
    assert ad.grad(np.linalg.det)(singular.astype(np.float32)).dtype == np.float32


def test_third_derivative_of_a_determinant():
    x = np.random.default_rng(0).standard_normal((3, 3))
    third = np.zeros((3,) * 6)
    for p, q in itertools.product(itertools.permutations(range(3)), repeat=2):
        signs = np.linalg.det(np.eye(3)[list(p)]) * np.linalg.det(np.eye(3)[list(q)])
        third[p[0], q[0], p[1], q[1], p[2], q[2]] = signs
    for transform in (ad.jacfwd, ad.jacrev):
        np.testing.assert_allclose(transform(ad.hessian(np.linalg.det))(x), third, 1e-9, 1e-9)


# ---- reduceat --------------------------------------------------------------------------------------------


def reduced_at(ufunc, x, starts, axis):
    """ufunc.reduceat by ufunc.reduce."""
    x = np.moveaxis(x, axis, 0)
    ends = [*starts[1:], len(x)]
    parts = [ufunc.reduce(x[a:b], axis=0) if a < b else x[a] for a, b in zip(starts, ends)]
    return np.moveaxis(np.stack(parts), 0, axis)


@pytest.mark.parametrize("ufunc", [np.add, np.maximum, np.minimum])
@pytest.mark.parametrize("starts", [[0, 3], [0, 4, 1, 5], [2], [0, 0, 3, 6], [6, 0, 2]])
def test_reduceat(ufunc, starts):
    rng = np.random.default_rng(0)
    x, t = rng.integers(0, 4, (7, 5)).astype(float), rng.standard_normal((7, 5))  # with ties
    for axis, y, d in ((0, x, t), (-1, x.T, t.T)):
        f = lambda v: np.sum(np.sin(1.3 * ufunc.reduceat(v, starts, axis)))  # noqa: B023, E731
        plain = lambda v: np.sum(np.sin(1.3 * reduced_at(ufunc, v, starts, axis)))  # noqa: B023, E731
        value = ad.compile(lambda v: ufunc.reduceat(v, starts, axis))(y)  # noqa: B023
        np.testing.assert_array_equal(value, ufunc.reduceat(y, starts, axis))
        np.testing.assert_allclose(ad.grad(f)(y), ad.grad(plain)(y), 1e-12)
        np.testing.assert_allclose(ad.jvp(f, (y,), (d,))[1], ad.jvp(plain, (y,), (d,))[1], 1e-11)
        np.testing.assert_allclose(ad.hvp(f, y, d), ad.hvp(plain, y, d), 1e-11, 1e-14)


def test_reduceat_follows_indices_that_change_and_names_bad_ones():
    starts, x = np.array([0, 2]), np.arange(6.0)
    f = ad.grad(lambda x: np.add.reduceat(x, starts)[1])
    np.testing.assert_array_equal(f(x), [0, 0, 1, 1, 1, 1])
    starts[1] = 4
    np.testing.assert_array_equal(f(x), [0, 0, 0, 0, 1, 1])
    largest = ad.grad(lambda x: np.sum(np.maximum.reduceat(x, [0, 2])))
    np.testing.assert_array_equal(largest(A([1.0, nan, 3.0, 3.0])), [nan, nan, 0.5, 0.5])
    with pytest.raises(IndexError, match=r"test_hard_points.py:\d+: np.add.reduceat: index 9 out"):
        ad.compile(lambda x: np.add.reduceat(x, [9]))(x)
