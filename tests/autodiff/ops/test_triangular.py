"""solve_triangular: blocks of the diagonal, both triangles, stacks; what stands in the other is not read."""

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
def test_it_solves_as_numpy_does(n, columns, upper):
    for lead in ((), (2,)):
        a, b = rng.normal(size=(*lead, n, n)) + n * np.eye(n), rng.normal(size=(*lead, n, columns))
        triangle = np.triu(a) if upper else np.tril(a)
        found = triangular.evaluate(a, b, upper)
        np.testing.assert_allclose(found, np.linalg.solve(triangle, b), rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("kinds", [("f4", "f8"), ("f8", "f4"), ("f4", "c16")])
def test_digits_are_those_of_the_result(kinds):
    """Not those of the matrix, whose blocks are inverted."""
    a, b = (rng.normal(size=s) for s in ((100, 100), (100, 2)))
    a, b = (a + 100 * np.eye(100)).astype(kinds[0]), b.astype(kinds[1])
    expected = np.linalg.solve(np.tril(a).astype(np.result_type(a, b)), b)
    compiled = ad.compile(lambda a, b: linalg.solve_triangular(a, b, lower=True))
    for _ in range(3):
        np.testing.assert_allclose(compiled(a, b), expected, rtol=1e-11, atol=1e-14, strict=True)


def test_a_singular_matrix_is_numpys_error():
    with pytest.raises(np.linalg.LinAlgError, match="Singular"):
        triangular.evaluate(np.diag([1.0, 0.0, 2.0]), np.ones((3, 1)), False)


def test_the_gradient_of_a_factor_of_several_blocks():
    """Against the derivative of the logarithm of a determinant, which is the inverse."""
    x = rng.normal(size=(70, 70))
    a = x @ x.T + 70.0 * np.eye(70)
    found = ad.grad(lambda a: 2.0 * np.sum(np.log(np.diagonal(np.linalg.cholesky(a)))))(a)
    expected = np.linalg.inv(a)
    np.testing.assert_allclose(found + found.T, 2.0 * expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("lead", [(), (2,)])
def test_equations_with_a_matrix_and_its_transpose_invert_its_blocks_once(lead):
    a = np.tril(rng.normal(size=(*lead, 70, 70))) + 20.0 * np.eye(70)
    b = rng.normal(size=(*lead, 70, 3))

    def f(a, b):
        x = linalg.solve_triangular(a, b, lower=True)
        y = linalg.solve_triangular(np.swapaxes(a, -1, -2), x, lower=False)
        return y, linalg.solve_triangular(a, y, lower=False)

    compiled = ad.compile(f)
    for found, expected in zip(compiled(a, b), f(a, b)):
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-14)
    assert ad.source(compiled, emitted=True).count("_triangle_inverses(") == 2  # of each triangle


def test_what_is_put_in_its_place_leaves_other_nodes_alone():
    """The matrix under a transpose is the program's own, though it has no line."""
    a, b = input_node((80, 80), "float64"), input_node((80, 2), "float64")
    matrix = apply("tanh", a)
    solved = apply("solve_triangular", apply("transpose", matrix, perm=(1, 0)), b, upper=True)
    solved.loc, solved.derived = ("here.py", 1, "f"), True
    lowered = lower(Graph([a, b], [solved]))
    assert matrix.loc is None and not matrix.derived
    made = [n for n in lowered.nodes if n.op in ("triangle_inverses", "substitute")]
    assert len(made) == 2 and all(n.loc == solved.loc and n.derived for n in made)
