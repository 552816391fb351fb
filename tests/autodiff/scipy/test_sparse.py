"""gpt2.autodiff.scipy.sparse: products and linear systems with constant matrices, against dense ones."""

import numpy as np
import pytest

pytest.importorskip("scipy")
import scipy.sparse
import scipy.sparse.linalg

from gpt2 import autodiff as ad
from gpt2.autodiff.check.numeric import check_graph
from gpt2.autodiff.scipy import sparse
from gpt2.autodiff.scipy.rules import sparse_matrices
from gpt2.autodiff.scipy.sparse.linalg import factorized, splu, spsolve
from tests.autodiff.ops.test_rules import instance
from tests.autodiff.transforms import test_batch
from tests.support.calls.op_samples import samples_of

pytestmark = pytest.mark.numeric

DENSE = np.diag([2.0, 3.0, 4.0, 5.0]) + np.diag([0.5, 0.2, 0.1], 1)
A = sparse.csr_array(DENSE)
X, B = np.array([0.3, -1.2, 0.7, 2.0]), np.arange(8.0).reshape(4, 2)
CASES = [
    pytest.param(name, s, dtype, id=f"{name}-{i}-{dtype}")
    for name in ("sparse_matmul", "sparse_solve")
    for i, s in enumerate(samples_of(name))
    for dtype in s.dtypes
]
assert sparse_matrices  # the import adds these ops to the table


@pytest.mark.parametrize("name, sample, dtype", CASES)
def test_ops_and_their_batched_forms(name, sample, dtype):
    graph, values = instance(name, sample, dtype)
    check_graph(graph, values, order=2)
    rng = np.random.default_rng(1)
    graph, values = test_batch.instance(name, sample, dtype, rng)
    test_batch.compared(graph, values, [True])


def test_products_equal_dense_products():
    f = lambda x, b: np.sum(np.sin(A @ x) * (x @ A)) + np.sum((A.T @ b) ** 2) + np.sum(A.dot(x))  # noqa: E731

    def dense(x, b):
        return np.sum(np.sin(DENSE @ x) * (x @ DENSE)) + np.sum((DENSE.T @ b) ** 2) + np.sum(DENSE @ x)

    g = ad.grad(f, (0, 1))
    for ours, theirs in zip(g(X, B), ad.grad(dense, (0, 1))(X, B)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    g(X, B)
    assert ad.why_recorded(g) is None
    ad.check_grads(f, (X, B), order=2)
    np.testing.assert_allclose(ad.vmap(lambda x: A @ x)(np.stack([X, 2 * X])), [DENSE @ X, DENSE @ X * 2])
    np.testing.assert_allclose(ad.jacobian(lambda x: A @ x)(X), DENSE)
    np.testing.assert_allclose(ad.grad(lambda x, A: np.sum(A @ x))(X, A), DENSE.sum(0))


@pytest.mark.parametrize("name", [f"{f}_{kind}" for f in sparse.FORMATS for kind in ("array", "matrix")])
def test_every_format(name):
    theirs = getattr(scipy.sparse, name)
    matrix = getattr(sparse, name)(DENSE)
    assert isinstance(matrix, theirs) and isinstance(matrix.T, type(sparse.ours(matrix.T)))
    np.testing.assert_allclose(ad.grad(lambda x: np.sum((matrix @ x) ** 2))(X), 2 * DENSE.T @ (DENSE @ X))
    np.testing.assert_array_equal((matrix @ matrix).toarray(), DENSE @ DENSE)
    if name.endswith("matrix"):
        np.testing.assert_allclose(ad.grad(lambda x: np.sum(matrix * x))(X), DENSE.sum(0))


def test_linear_systems_equal_dense_ones():
    f = lambda b: np.sum(np.sin(spsolve(A, b)) + factorized(A)(b) ** 2)  # noqa: E731
    dense = lambda b: np.sum(np.sin(np.linalg.solve(DENSE, b)) + np.linalg.solve(DENSE, b) ** 2)  # noqa: E731
    g = ad.grad(f)
    np.testing.assert_allclose(g(X), ad.grad(dense)(X), rtol=1e-12)
    g(X)
    assert ad.why_recorded(g) is None
    ad.check_grads(f, (X,), order=2)
    factors = splu(scipy.sparse.csc_array(DENSE))
    for trans, matrix in (("N", DENSE), ("T", DENSE.T), ("H", DENSE.T)):
        solve = ad.compile(lambda b: factors.solve(b, trans))  # noqa: B023
        np.testing.assert_allclose(solve(B), np.linalg.solve(matrix, B), rtol=1e-12)
    np.testing.assert_allclose(
        ad.vmap(lambda b: spsolve(A, b))(np.stack([X, -X])),
        [*np.linalg.solve(DENSE, [[*v] for v in zip(X, -X)]).T],
    )
    assert spsolve(A, X).shape == ad.compile(lambda b: spsolve(A, b))(B[:, :1]).shape == (4,)
    with pytest.warns(scipy.sparse.linalg.MatrixRankWarning):
        assert np.isnan(ad.compile(lambda b: spsolve(sparse.csr_array((4, 4)), b))(X)).all()


def test_matrix_modified_in_place_is_read_again():
    matrix = sparse.csr_array(DENSE)
    g = ad.grad(lambda x: np.sum(matrix @ x) + np.sum(spsolve(matrix, x)))
    g(X), g(X)
    matrix.data *= 2.0
    expected = 2.0 * DENSE.sum(0) + 0.5 * np.linalg.solve(DENSE.T, np.ones(4))
    np.testing.assert_allclose(g(X), expected, rtol=1e-12)
    matrix.data *= 0.5
    np.testing.assert_allclose(g(X), DENSE.sum(0) + np.linalg.solve(DENSE.T, np.ones(4)), rtol=1e-12)


def test_constructors_return_differentiable_matrices():
    matrix = sparse.diags_array([np.ones(4), np.ones(3)], offsets=[0, 1])
    assert sparse.issparse(matrix) and isinstance(sparse.eye_array(3), scipy.sparse.sparray)
    np.testing.assert_allclose(ad.grad(lambda x: np.sum(matrix @ x))(X), [1.0, 2.0, 2.0, 2.0])
    np.testing.assert_allclose(ad.grad(lambda x: np.sum(matrix.tocsc().T @ x))(X), [2.0, 2.0, 2.0, 1.0])


@pytest.mark.parametrize("call, message", [
    (lambda x: scipy.sparse.csr_array(DENSE) @ x, r"test_sparse.py:\d+: .*csr_array.__matmul__ turns"),
    (lambda x: (A * x).toarray(), "entry by entry"),
    (lambda x: A.multiply(x).toarray(), "entry by entry"),
    (lambda x: A + x, r"test_sparse.py:\d+: scipy.sparse.csr_array"),
    (lambda x: sparse.csr_array(x), "sparse matrices are constants"),
    (lambda x: A @ x[:3], r"test_sparse.py:\d+: .*shape \(4, 4\), and a value of shape \(3,\)"),
    (lambda x: sparse.linalg.cg(A, x)[0], "scipy.sparse.linalg.cg has no derivative rule"),
    (lambda x: spsolve(np.outer(x, x), x), "of a matrix that is a recorded value"),
])  # fmt: skip
def test_unsupported_calls_are_errors(call, message):
    with pytest.raises(Exception, match=message):
        ad.grad(lambda x: np.sum(call(x)))(X)
