"""docs/ops.md is up to date, its types are NumPy's, and graphs print by its grammar."""

import re

import numpy as np
import pytest

from docs import ops as page
from gpt2 import autodiff as ad
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import OPS, apply, build, const, input_node
from gpt2.commands.explain.parts import split
from tests.support.op_samples import samples_of
from tests.support.random_graphs import RING, random_graph

PAGE = page.ROOT / "docs" / "ops.md"
HERE = {name for name, op in OPS.items() if op.needs is None}  # the page is about NumPy's
NAMES = sorted(name for name in HERE if samples_of(name))
GRAMMAR = page.grammar()


def listed(text):
    """The ops that have a line in a table of the page."""
    return {match[1] for match in re.finditer(r"^\| (\w+)", text, re.M)} - {"op"}


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page.page(), "run: python -m docs.ops"


def test_every_op_has_a_line_and_no_sentence_is_left_over():
    assert listed(PAGE.read_text(encoding="utf-8")) == HERE
    ufuncs = {name for name, op in OPS.items() if op.ufunc is not None}
    assert HERE - ufuncs == set(page.MEANING), "docs/ops.py: one sentence in MEANING for each of these"


@pytest.mark.parametrize("name", NAMES)
def test_types_are_those_of_numpy(name):
    """In every dtype that the page lists, where the row's own samples have two."""
    op, first = OPS[name], samples_of(name)[0]
    for dtype in page.TRIED:
        nodes = page.nodes_of(page.shapes_of(first), dtype)
        try:
            inferred = apply(name, *nodes, **first.attrs).dtype
            result = page.computed(op, nodes, first.attrs)
        except (TypeError, ValueError, np.linalg.LinAlgError):
            continue
        several = isinstance(inferred, tuple)
        given = tuple(np.asarray(r).dtype for r in result) if several else np.asarray(result).dtype
        assert given == inferred, f"{name}: infer says {inferred}, evaluate gives {given} for {dtype}"


# ---- The grammar -----------------------------------------------------------------------------------------


def holds(text):
    return GRAMMAR.fullmatch(text) is not None


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("dtype", ["float64", "complex64", "int64"])
def test_random_graphs_print_by_the_grammar(seed, dtype):
    graph = random_graph(
        np.random.default_rng(seed), dtype=dtype, makers=None if dtype == "float64" else RING
    )
    assert holds(str(graph)), str(graph)


def test_several_results_and_odd_constants_print_by_the_grammar():
    x = input_node((3, 3), "complex128", "x")
    pair = apply("eigh", x, uplo="L")
    one = apply("multiply", build.item(pair, 0), const(float("-inf"), "float64"))
    two = apply("multiply", x, const(complex(-0.0, float("nan")), "complex128"))
    table = const(np.arange(6.0).reshape(2, 3))
    graph = Graph(
        [x], [pair.args[0], one, apply("add", two, 1e-300), apply("sum", table, axes=(0,), keepdims=True)]
    )
    assert holds(str(graph)), str(graph)
    assert "(f64[3], c128[3,3]) = eigh(x, uplo='L')" in str(graph) and "= const()" in str(graph)


def test_the_stages_of_a_program_print_by_the_grammar():
    def loss(w, x):
        def step(carry, row):
            return np.tanh(carry @ w) + row, np.sum(carry)

        last, sums = ad.scan(step, x[0], x)
        return np.sum(last) + np.sum(np.where(sums > 0.0, sums, 2j * 1j * sums).real)

    rng = np.random.default_rng(0)
    text = ad.stages(loss, rng.standard_normal((3, 3)), rng.standard_normal((4, 3)))
    graphs = [body for title, body in split(text) if "emitted" not in title]
    assert len(graphs) >= 4
    for body in graphs:
        assert holds(body.strip("\n")), body


@pytest.mark.parametrize(
    "wrong",
    [
        "f(x: f64[2])",
        "f(x: f64[2])\n  return x\n",
        "f(x: f65[2])\n  return x",
        "f(x: f64[2,])\n  return x",
        "f(x f64[2])\n  return x",
        "f(x: f64[2])\n  y: f64[2] = tanh(x\n  return y",
        "f(x: f64[2])\n  y: f64[2] = (x)\n  return y",
        "f(x: f64[2])\n  y = tanh(x)\n  return y",
    ],
)
def test_what_is_not_a_graph_is_not_in_the_grammar(wrong):
    assert holds("f(x: f64[2])\n  return x") and not holds(wrong)


def test_a_grammar_that_cannot_be_read_says_where(monkeypatch):
    monkeypatch.setattr(page, "GRAMMAR", 'graph = "a" ? "b"\n')
    with pytest.raises(ValueError, match="cannot be read from ' \\? \"b\"'"):
        page.grammar()
