"""solve_triangular: blocked substitution, both triangles, stacks; the other triangle is not read."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.ops import triangular
from gpt2.autodiff.scipy import linalg

rng = np.random.default_rng(2)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("columns", [1, 3, 40])
@pytest.mark.parametrize("n", [3, triangular.BLOCK, triangular.BLOCK + 1, 100])
def test_solution_is_that_of_numpy(n, columns, upper):
    for lead in ((), (2,)):
        a, b = rng.normal(size=(*lead, n, n)) + n * np.eye(n), rng.normal(size=(*lead, n, columns))
        expected = np.linalg.solve(np.triu(a) if upper else np.tril(a), b)
        np.testing.assert_allclose(triangular.evaluate(a, b, upper), expected, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("dtypes", [("f4", "f8"), ("f8", "f4"), ("f4", "c16")])
def test_precision_is_that_of_the_result(dtypes):
    """Not that of the matrix, whose blocks are inverted."""
    a, b = rng.normal(size=(100, 100)) + 100 * np.eye(100), rng.normal(size=(100, 2))
    a, b = a.astype(dtypes[0]), b.astype(dtypes[1])
    expected = np.linalg.solve(np.tril(a).astype(np.result_type(a, b)), b)
    compiled = ad.compile(lambda a, b: linalg.solve_triangular(a, b, lower=True))
    for _ in range(3):
        np.testing.assert_allclose(compiled(a, b), expected, rtol=1e-11, atol=1e-14, strict=True)


def test_singular_matrix_raises_numpys_error():
    with pytest.raises(np.linalg.LinAlgError, match="Singular"):
        triangular.evaluate(np.diag([1.0, 0.0, 2.0]), np.ones((3, 1)), False)


def test_gradient_of_a_cholesky_factor_of_several_blocks():
    """The derivative of log det a is the inverse of a."""
    x = rng.normal(size=(70, 70))
    a = x @ x.T + 70.0 * np.eye(70)
    slope = ad.grad(lambda a: 2.0 * np.sum(np.log(np.diagonal(np.linalg.cholesky(a)))))(a)
    np.testing.assert_allclose(slope + slope.T, 2.0 * np.linalg.inv(a), rtol=1e-9, atol=1e-12)
