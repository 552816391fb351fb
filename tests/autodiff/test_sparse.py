"""ad.sparse_jacobian against ad.jacobian, and the number of products it needs."""

import itertools
import sys

import numpy as np
import pytest

import gpt2.autodiff as ad
from gpt2.autodiff.sparse import colours


def function_of(pattern):
    """A function whose Jacobian is nonzero exactly at the entries of the pattern."""
    rows, cols = np.nonzero(pattern)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, rows.size)

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


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("check", [True, False])
def test_sparse_jacobian_is_the_jacobian(name, check):
    pattern = PATTERNS[name]
    f, x = function_of(pattern), np.random.default_rng(1).uniform(0.1, 0.5, pattern.shape[1])
    jacobian = ad.sparse_jacobian(f, pattern, check=check)(x)
    np.testing.assert_allclose(jacobian, ad.jacobian(f)(x), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "name, colour_count",
    {"tridiagonal": 3, "arrow of rows": 2, "arrow of columns": 2, "nothing": 1, "full": 3}.items(),
)
def test_number_of_colours(name, colour_count):
    """Of rows or of columns, whichever are fewer: an arrow has one for its dense line, one for the others."""
    pattern = PATTERNS[name]
    (rows, cols), (m, n) = np.nonzero(pattern), pattern.shape
    assert 1 + min(colours(cols, rows, n).max(), colours(rows, cols, m).max()) == colour_count


def test_columns_of_one_colour_share_no_row():
    pattern = np.random.default_rng(0).random((40, 50)) < 0.1
    rows, cols = np.nonzero(pattern)
    colour = colours(cols, rows, 50)
    for a, b in itertools.combinations(range(50), 2):
        if colour[a] == colour[b]:
            assert not np.any(pattern[:, a] & pattern[:, b])


@pytest.mark.parametrize("name", ["tridiagonal", "arrow of rows", "arrow of columns", "random"])
def test_missing_entry_of_the_pattern_is_detected(name):
    pattern = PATTERNS[name].astype(bool)
    f, x = function_of(pattern), np.linspace(0.1, 0.5, pattern.shape[1])
    for k in range(np.count_nonzero(pattern)):
        less = pattern.copy()
        less[tuple(np.argwhere(pattern)[k])] = False
        with pytest.raises(ad.AutodiffError, match="outside of the pattern"):
            ad.sparse_jacobian(f, less)(x)


def test_function_is_recorded_once():
    def f(x):
        return np.diff(x) ** 2

    calls = []
    g = ad.sparse_jacobian(f, np.eye(4, 5) + np.eye(4, 5, 1))
    g(np.ones(5))
    sys.setprofile(lambda frame, event, _: calls.append(event) if frame.f_code is f.__code__ else None)
    try:
        jacobian = g(np.arange(5.0) ** 2)
    finally:
        sys.setprofile(None)
    np.testing.assert_allclose(jacobian, ad.jacobian(f)(np.arange(5.0) ** 2), rtol=1e-12)
    assert not calls


def test_argnum_keywords_shapes_and_single_precision():
    def f(scale, p, *, power):
        return scale * (p["x"] if isinstance(p, dict) else p)[:, ::-1] ** power

    x = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    pattern = np.kron(np.eye(2), np.eye(3)[::-1])
    jacobian = ad.sparse_jacobian(f, pattern, 1)(np.float32(2), x, power=2)
    expected = ad.jacobian(lambda x: f(np.float32(2), x, power=2))(x).reshape(6, 6)
    assert jacobian.dtype == np.float32
    np.testing.assert_allclose(jacobian, expected, rtol=1e-6)
    np.testing.assert_array_equal(ad.sparse_jacobian(f, pattern, -1)(np.float32(2), x, power=2), jacobian)


@pytest.mark.parametrize("kind", ["csr_array", "csc_matrix", "coo_array"])
def test_pattern_of_scipy_sparse(kind):
    sparse = pytest.importorskip("scipy.sparse")
    pattern = PATTERNS["random"]
    matrix = getattr(sparse, kind)(pattern.astype(float))
    f, x = function_of(pattern), np.linspace(0.1, 0.5, pattern.shape[1])
    jacobian = ad.sparse_jacobian(f, matrix)(x)
    assert jacobian.format == "csr" and jacobian.nnz == np.count_nonzero(pattern)
    assert isinstance(jacobian, sparse.sparray) == isinstance(matrix, sparse.sparray)
    np.testing.assert_allclose(jacobian.toarray(), ad.jacobian(f)(x), rtol=1e-12)


@pytest.mark.parametrize("call, match", [
    (lambda: ad.sparse_jacobian(np.sin, np.eye(3))(np.ones(4)), "3 columns, and argument 0 has 4 elements"),
    (lambda: ad.sparse_jacobian(np.sin, np.ones((4, 3)))(np.ones(3)), "4 rows, and the result is 3 elements"),
    (lambda: ad.sparse_jacobian(np.sin, np.ones(3)), r"shape \(3,\), expected"),
    (lambda: ad.sparse_jacobian(np.sin, np.eye(3))(np.ones(3, complex)), "complex128, expected real"),
    (lambda: ad.sparse_jacobian(np.sin, np.eye(3))(np.ones(3, int)), "int64, expected real"),
    (lambda: ad.sparse_jacobian(np.sign, np.eye(3), 1)(np.ones(3)), "argnum is 1, and 1 arguments"),
])  # fmt: skip
def test_errors(call, match):
    with pytest.raises(ad.AutodiffError, match=match):
        call()
