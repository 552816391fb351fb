"""solve_triangular: blocked substitution, both triangles, stacks; the other triangle is not read."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.emit.layout import lower
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import apply, input_node, triangular
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


@pytest.mark.parametrize("lead", [(), (2,)])
def test_matrix_and_its_transpose_share_inverted_blocks(lead):
    a = np.tril(rng.normal(size=(*lead, 70, 70))) + 20.0 * np.eye(70)
    b = rng.normal(size=(*lead, 70, 3))

    def f(a, b):
        x = linalg.solve_triangular(a, b, lower=True)
        y = linalg.solve_triangular(np.swapaxes(a, -1, -2), x, lower=False)
        return y, linalg.solve_triangular(a, y, lower=False)

    compiled = ad.compile(f)
    np.testing.assert_allclose(compiled(a, b), f(a, b), rtol=1e-11, atol=1e-14)
    assert ad.source(compiled, emitted=True).count("_triangle_inverses(") == 2  # one for each triangle


def test_lowering_keeps_source_lines_of_other_nodes():
    """The matrix under the transpose is recorded by the user, though it has no line."""
    a, b = input_node((80, 80), "float64"), input_node((80, 2), "float64")
    matrix = apply("tanh", a)
    solved = apply("solve_triangular", apply("transpose", matrix, perm=(1, 0)), b, upper=True)
    solved.loc, solved.derived = ("here.py", 1, "f"), True
    lowered = lower(Graph([a, b], [solved]))
    assert matrix.loc is None and not matrix.derived
    added = [n for n in lowered.nodes if n.op in ("triangle_inverses", "substitute")]
    assert len(added) == 2 and all(n.loc == solved.loc and n.derived for n in added)
