"""ad.sparse_jacobian against ad.jacobian, and how many directions it takes."""

import itertools
import sys

import numpy as np
import pytest

import gpt2.autodiff as ad
from gpt2.autodiff.sparse import colours


def of_pattern(pattern, seed=0):
    """A function whose Jacobian has these entries, none of them zero."""
    rng = np.random.default_rng(seed)
    rows, cols = np.nonzero(pattern)
    weights = rng.uniform(0.5, 2.0, rows.size)

    def f(x):
        flat = np.ravel(x)
        terms = np.sin(weights * flat[cols])
        out = np.zeros_like(flat, shape=(pattern.shape[0],))
        for k in range(rows.size):
            out[rows[k]] += terms[k]
        return out

    return f


PATTERNS = {
    "tridiagonal": np.eye(7) + np.eye(7, k=1) + np.eye(7, k=-1),
    "arrow of rows": np.vstack([np.ones((1, 6)), np.eye(6)]),
    "arrow of columns": np.hstack([np.ones((6, 1)), np.eye(6)]),
    "empty row and column": np.diag([1.0, 0.0, 1.0]),
    "nothing": np.zeros((3, 4)),
    "full": np.ones((3, 5)),
    "random": np.random.default_rng(3).random((9, 7)) < 0.25,
}
COLOURS = {"tridiagonal": 3, "arrow of rows": 2, "arrow of columns": 2, "nothing": 1, "full": 3}


def directions(pattern):
    rows, cols = np.nonzero(pattern)
    m, n = pattern.shape
    return 1 + min(colours(cols, rows, n).max(), colours(rows, cols, m).max())


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("check", [True, False])
def test_it_is_the_jacobian(name, check):
    pattern = PATTERNS[name]
    f, x = of_pattern(pattern), np.random.default_rng(1).uniform(0.1, 0.5, pattern.shape[1])
    np.testing.assert_allclose(
        ad.sparse_jacobian(f, pattern, check=check)(x), ad.jacobian(f)(x), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("name", COLOURS)
def test_few_directions_are_enough(name):
    """Of rows and columns those that need fewer: an arrow's dense line takes one, and all others another."""
    assert directions(PATTERNS[name]) == COLOURS[name]


def test_lines_of_one_colour_share_nothing():
    pattern = np.random.default_rng(0).random((40, 50)) < 0.1
    rows, cols = np.nonzero(pattern)
    colour = colours(cols, rows, 50)
    for a, b in itertools.combinations(range(50), 2):
        if colour[a] == colour[b]:
            assert not np.any(pattern[:, a] & pattern[:, b])


@pytest.mark.parametrize("name", ["tridiagonal", "arrow of rows", "arrow of columns", "random"])
def test_an_entry_that_is_left_out_is_noticed(name):
    pattern = PATTERNS[name].astype(bool)
    f, x = of_pattern(pattern), np.linspace(0.1, 0.5, pattern.shape[1])
    for k in range(np.count_nonzero(pattern)):
        less = pattern.copy()
        less[tuple(np.argwhere(pattern)[k])] = False
        with pytest.raises(ad.AutodiffError, match="outside of the pattern"):
            ad.sparse_jacobian(f, less)(x)


def test_it_is_recorded_once():
    def f(x):
        return np.diff(x) ** 2

    calls = []
    g = ad.sparse_jacobian(f, np.eye(4, 5) + np.eye(4, 5, 1))
    g(np.ones(5))
    sys.setprofile(lambda frame, event, _: calls.append(event) if frame.f_code is f.__code__ else None)
    try:
        found = g(np.arange(5.0) ** 2)
    finally:
        sys.setprofile(None)
    np.testing.assert_allclose(found, ad.jacobian(f)(np.arange(5.0) ** 2), rtol=1e-12)
    assert not calls


def test_other_arguments_shapes_and_single_precision():
    def f(scale, p, *, power):
        return scale * (p["x"] if isinstance(p, dict) else p)[:, ::-1] ** power

    x = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    pattern = np.kron(np.eye(2), np.eye(3)[::-1])
    found = ad.sparse_jacobian(f, pattern, 1)(np.float32(2), x, power=2)
    expected = ad.jacobian(lambda x: f(np.float32(2), x, power=2))(x).reshape(6, 6)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_array_equal(ad.sparse_jacobian(f, pattern, -1)(np.float32(2), x, power=2), found)


@pytest.mark.parametrize("kind", ["csr_array", "csc_matrix", "coo_array"])
def test_scipy_sparse(kind):
    sparse = pytest.importorskip("scipy.sparse")
    pattern = PATTERNS["random"]
    given = getattr(sparse, kind)(pattern.astype(float))
    f, x = of_pattern(pattern), np.linspace(0.1, 0.5, pattern.shape[1])
    found = ad.sparse_jacobian(f, given)(x)
    assert found.format == "csr" and isinstance(found, sparse.sparray) == isinstance(given, sparse.sparray)
    assert found.nnz == np.count_nonzero(pattern)
    np.testing.assert_allclose(found.toarray(), ad.jacobian(f)(x), rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda: ad.sparse_jacobian(np.sin, np.eye(3))(np.ones(4)),
            "3 columns, and argument 0 has 4 elements",
        ),
        (
            lambda: ad.sparse_jacobian(np.sin, np.ones((4, 3)))(np.ones(3)),
            "4 rows, and the result is 3 elements",
        ),
        (lambda: ad.sparse_jacobian(np.sin, np.ones(3)), r"shape \(3,\), expected"),
        (lambda: ad.sparse_jacobian(np.sin, np.eye(3))(np.ones(3, complex)), "complex128, expected real"),
        (lambda: ad.sparse_jacobian(np.sin, np.eye(3))(np.ones(3, int)), "int64, expected real"),
        (lambda: ad.sparse_jacobian(np.sign, np.eye(3), 1)(np.ones(3)), "argnum is 1, and 1 arguments"),
    ],
)
def test_what_does_not_fit(call, match):
    with pytest.raises(ad.AutodiffError, match=match):
        call()
