"""likely_cause: typical mistakes in a hand-written backward, each recognised."""

import re

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.check.diagnose import Problem, likely_cause
from gpt2.autodiff.derive.differentiate import vjp_graph
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import apply, input_node
from gpt2.autodiff.ops.build import expand, sqrt, sum_
from gpt2.autodiff.ops.interpret import evaluate_graph

B, C = 3, 4


def layernorm_problem(index: int) -> Problem:
    types = ((B, C), "inp"), ((C,), "weight"), ((C,), "bias")
    inp, weight, bias = (input_node(shape, np.float64, name) for shape, name in types)
    mean = expand(sum_(inp, 1) / float(C), (1,), 2)
    mean.name, mean.loc = "mean", ("layernorm.py", 54, "layernorm_forward")
    centred = inp - mean
    variance = expand(sum_(centred * centred, 1) / float(C), (1,), 2)
    variance.name = "variance"
    out = centred / sqrt(variance + 1e-5) * weight + bias
    return problem_of(Graph([inp, weight, bias], [out]), index)


def problem_of(graph: Graph, index: int, *integers) -> Problem:
    rng = np.random.default_rng(0)
    given = iter(integers)
    values = [rng.standard_normal(x.shape) if x.dtype.kind == "f" else next(given) for x in graph.inputs]
    cotangent = rng.standard_normal(graph.outputs[0].shape)
    wrt = [i for i, x in enumerate(graph.inputs) if x.dtype.kind == "f"]
    found = dict(zip(wrt, evaluate_graph(vjp_graph(graph, wrt, [0]), [*values, cotangent])[1:]))
    return Problem(graph, values, index, cotangent, [found.get(i) for i in range(len(values))])


def layernorm_parts(p: Problem):
    inp, weight, _ = p.values
    centred = inp - inp.mean(1, keepdims=True)
    rstd = 1 / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    return centred * rstd, rstd, p.cotangent * weight


def missing_mean(p):
    norm, rstd, dnorm = layernorm_parts(p)
    return rstd * (dnorm - norm * (dnorm * norm).mean(1, keepdims=True))


def missing_variance(p):
    norm, rstd, dnorm = layernorm_parts(p)
    return rstd * (dnorm - dnorm.mean(1, keepdims=True))


def wrong_sign_of_variance(p):
    norm, rstd, dnorm = layernorm_parts(p)
    return rstd * (dnorm - dnorm.mean(1, keepdims=True) + norm * (dnorm * norm).mean(1, keepdims=True))


def sum_for_variance(p):
    norm, rstd, dnorm = layernorm_parts(p)
    return rstd * (dnorm - dnorm.mean(1, keepdims=True) - norm * (dnorm * norm).sum(1, keepdims=True))


MISTAKES = {
    "sign": (0, lambda p: -p.expected, "the sign is wrong"),
    "twice": (0, lambda p: 2 * p.expected, "something is added twice"),
    "half": (0, lambda p: p.expected / 2, "used twice counts twice"),
    "mean": (1, lambda p: p.expected / B, r"it is 1/3 times .*: a mean over axis 0 of inp \(3\)"),
    "zero": (0, lambda p: 0 * p.expected, "zero everywhere"),
    "nan": (0, lambda p: p.expected * np.nan, "nan or infinite at 12 of 12"),
    "not summed": (2, lambda p: p.cotangent, r"not summed over axes \(0,\)"),
    "transposed": (0, lambda p: p.expected.T, "transposed"),
    "flat": (0, lambda p: p.expected.ravel(), "only the shape is wrong"),
    "another": (1, lambda p: p.gradients[2], r"gradient of input 2 \(bias\): the results are in the"),
    "ones": (2, lambda p: np.full(C, float(B)), "output gradient is ignored"),
    "no mean": (0, missing_mean, r"the path through mean \(layernorm.py:54\) is left out"),
    "no variance": (0, missing_variance, "the path through variance is left out"),
    "sum for variance": (0, sum_for_variance, "variance counts 4 times: a sum over axis 1 of inp"),
    "plus variance": (0, wrong_sign_of_variance, "the path through variance has the wrong sign"),
    "one row": (0, lambda p: p.expected + np.eye(B, C, 1) * [[1], [0], [0]], "only index 0 of axis 0 differ"),
    "a shift": (0, lambda p: p.expected + np.arange(B)[:, None] / 7, "the same all along axis 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(MISTAKES))
def test_mistakes_are_recognised(name):
    index, mistake, expected = MISTAKES[name]
    problem = layernorm_problem(index)
    cause = likely_cause(problem, mistake(problem), 1e-9)
    assert cause is not None
    assert re.search(expected, cause), cause


def test_repeated_indices():
    table, ids = input_node((5, 2), np.float64, "table"), input_node((4,), np.int64, "ids")
    graph = Graph([table, ids], [apply("gather", table, ids, spec=(("array", 0),))])
    problem = problem_of(graph, 0, np.array([3, 1, 3, 0]))
    got = np.zeros((5, 2))
    got[problem.values[1]] += problem.cotangent
    assert "ids) names more than once" in likely_cause(problem, got, 1e-9)


def test_what_is_like_nothing_known_gets_no_cause():
    problem = layernorm_problem(0)
    assert likely_cause(problem, np.random.default_rng(5).standard_normal((B, C)), 1e-9) is None


def test_a_cell_of_a_notebook_is_called_so():
    """ipykernel compiles a cell under the name of a file that does not exist."""
    names = {"np": np}
    exec(compile("def cubed(x):\n    return np.sin(x**3 + x)", "/tmp/ipykernel_7/123.py", "exec"), names)
    with pytest.raises(ad.BackwardMismatch, match=r"factor 3 .*\(the gradient of notebook cell:2\)"):
        ad.check_backward(
            names["cubed"], lambda dout, x: (dout * np.cos(x**3 + x) * (x**2 + 1),), [(np.arange(1.0, 6.0),)]
        )
