"""The readable source computes what the graph says, and reads as meant."""

import numpy as np
import pytest

from gpt2 import certificate
from gpt2.autodiff import passes
from gpt2.autodiff.emit.readable import constants, readable_source
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import apply, input_node
from gpt2.autodiff.ops.interpret import evaluate_graph
from gpt2.autodiff.record.record import record
from gpt2.autodiff.switches import Options
from gpt2.layers import LAYERS
from tests.support.random_graphs import random_arrays, random_graph

F8 = np.dtype(np.float64)


def simplify(graph):
    """As the engine asks for it."""
    return passes.simplify(graph, Options(math="fast"))


def agrees(graph, arrays, rtol):
    """Run the source. Arguments stay as they are, results have their dtype and shape."""
    env = constants(graph)
    exec(readable_source(graph, "f"), env)
    before = [np.array(a) for a in arrays]
    with np.errstate(all="ignore"):
        got, want = env["f"](*arrays), evaluate_graph(graph, arrays)
    for a, b in zip(arrays, before):
        np.testing.assert_array_equal(a, b)
    for x, y in zip(got, want, strict=True):
        assert np.shape(x) == np.shape(y) and np.asarray(x).dtype == np.asarray(y).dtype
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol * np.max(np.abs(y), initial=0))


@pytest.mark.parametrize("name", LAYERS)
def test_sources_of_layers_run(name, rng):
    """In float32: products in another order differ by some units in the last place, 6e-8 each."""
    pair = certificate.pair_of(name, certificate.SIZES)
    for graph in pair.graphs:
        arrays = [
            rng.integers(0, 7, i.shape) if i.dtype.kind in "iu" else rng.uniform(0.5, 2, i.shape)
            for i in graph.inputs
        ]
        arrays = [a.astype(i.dtype) for a, i in zip(arrays, graph.inputs)]
        agrees(graph, arrays, rtol=1e-5)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("seed", range(60))
def test_sources_of_random_graphs_run(seed):
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, size=25)
    arrays = random_arrays(rng, graph)
    agrees(graph, arrays, rtol=1e-9)
    agrees(simplify(graph), arrays, rtol=1e-9)


def text_of(f, *arrays):
    return readable_source(simplify(record(f, arrays).graph)).split(":\n", 1)[1]


def test_how_it_reads():
    x, y = np.ones((4, 768)), np.ones((4, 768))
    assert text_of(lambda x: np.mean(x, axis=1), x) == ("    out = np.mean(x, axis=1)\n    return (out,)\n")
    assert "out = y - x**3 / 768" in text_of(lambda x, y: -(x * x * x) / 768 + y, x, y)
    assert "out = x[2]" in text_of(lambda x: x[2], x)
    assert "out = x.T @ y" in text_of(lambda x, y: x.T @ y, x, y)


def test_a_view_is_copied_before_it_is_written_to(rng):
    x, v = input_node((2, 6), F8, "x"), input_node((3,), F8, "v")
    turned = apply("reshape", x, shape=(4, 3))
    written = apply("update", turned, v, index=((1, 2, 1), (0, 3, 1)))
    agrees(Graph((x, v), (written,)), [rng.standard_normal((2, 6)), rng.standard_normal(3)], rtol=1e-12)
