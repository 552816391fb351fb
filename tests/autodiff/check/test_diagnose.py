"""likely_cause recognizes mistakes in manual backwards."""

import re

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.check.diagnose import Problem, likely_cause
from gpt2.autodiff.derive.differentiate import vjp_graph
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import input_node
from gpt2.autodiff.ops.build import expand, sqrt, sum_
from gpt2.autodiff.ops.interpret import evaluate_graph

B, C = 3, 4


def layernorm_problem() -> Problem:
    types = ((B, C), "inp"), ((C,), "weight"), ((C,), "bias")
    inp, weight, bias = inputs = [input_node(shape, np.float64, name) for shape, name in types]
    centred = inp - expand(sum_(inp, 1) / float(C), (1,), 2)
    variance = expand(sum_(centred * centred, 1) / float(C), (1,), 2)
    graph = Graph(inputs, [centred / sqrt(variance + 1e-5) * weight + bias])
    rng = np.random.default_rng(0)
    *values, cotangent = (rng.standard_normal(n.shape) for n in (*inputs, graph.outputs[0]))
    gradients = evaluate_graph(vjp_graph(graph, range(3), [0]), [*values, cotangent])[1:]
    return Problem(graph, values, 0, cotangent, list(gradients))


# Those that test_forty_mistakes.py does not have
MISTAKES = {
    "half": (lambda p: p.expected / 2, "used twice counts twice"),
    "nan": (lambda p: p.expected * np.nan, "nan or infinite at 12 of 12"),
    "flat": (lambda p: p.expected.ravel(), "only the shape is wrong"),
    "one row": (lambda p: p.expected + np.eye(B, C, 1) * [[1], [0], [0]], "only index 0 of axis 0 differ"),
    "added per row": (lambda p: p.expected + np.arange(B)[:, None] / 7, "the same all along axis 1"),
}


@pytest.mark.parametrize("name", list(MISTAKES))
def test_mistakes_are_recognized(name):
    mistake, expected = MISTAKES[name]
    problem = layernorm_problem()
    cause = likely_cause(problem, mistake(problem), 1e-9)
    assert cause is not None and re.search(expected, cause), cause


def test_unknown_mistake_has_no_cause():
    problem = layernorm_problem()
    assert likely_cause(problem, np.random.default_rng(5).standard_normal((B, C)), 1e-9) is None


def test_notebook_cells_are_named_as_such():
    """ipykernel compiles each cell with the name of a temporary file."""
    cell = """
def cubed(x):
    return np.sin(x**3 + x)
def by_hand(dout, x):
    return (dout * np.cos(x**3 + x) * (x**2 + 1),)
"""
    names = {"np": np}
    exec(compile(cell, "/tmp/ipykernel_7/123.py", "exec"), names)
    with pytest.raises(ad.BackwardMismatch, match=r"in by_hand \(notebook cell:5\)\n .*lacks the factor 3"):
        ad.check_backward(names["cubed"], names["by_hand"], [(np.arange(1.0, 6.0),)])
