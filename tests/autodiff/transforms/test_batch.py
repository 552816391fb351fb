"""Batching of every op of the table, and of its derivatives in both modes, against a loop over examples."""

import itertools

import numpy as np
import pytest

from gpt2.autodiff.derive.differentiate import jvp_graph, vjp_graph
from gpt2.autodiff.graph import Graph, GraphError
from gpt2.autodiff.ops import OPS, apply, input_node
from gpt2.autodiff.ops.build import item
from gpt2.autodiff.ops.interpret import evaluate_graph
from gpt2.autodiff.ops.table import Leads
from gpt2.autodiff.transforms.vmap import batched
from tests.autodiff.ops.test_rules import cases, draw
from tests.support.calls.op_samples import samples_of

pytestmark = pytest.mark.numeric

N = 3


def instance(name, sample, dtype, rng):
    """A graph of one op, all its arguments inputs, and the values of N examples of its sample."""
    inputs, values = [], []
    for arg in sample.args:
        if isinstance(arg, np.ndarray):
            rows = [shuffled(name, arg, rng) for _ in range(N)]
        elif callable(arg):
            rows = [arg(rng, dtype) for _ in range(N)]
        else:
            rows = [draw(sample, arg, dtype, rng) for _ in range(N)]
        values.append([np.asarray(x) for x in rows])
        inputs.append(input_node(values[-1][0].shape, values[-1][0].dtype, "x"))
    out = apply(name, *inputs, **sample.attrs)
    outputs = [item(out, i) for i in range(len(out.dtype))] if isinstance(out.dtype, tuple) else [out]
    return Graph(inputs, outputs, name), values


def shuffled(name, arg, rng):
    """Other indices or another mask: sorted arrays stay sorted, and each row of a mask keeps a True."""
    if name == "searchsorted":
        return arg + rng.uniform(0.0, 0.5)
    if name == "share_among":
        return rng.permuted(arg, axis=-1)
    return rng.permutation(arg.ravel()).reshape(arg.shape)


def compared(graph, values, flags, rtol=1e-11):
    """Compares the batched graph with a loop. Arguments without a flag are the same for all examples."""
    many, batched_outputs = batched(graph, flags, N)
    results = evaluate_graph(many, [np.stack(v) if flag else v[0] for v, flag in zip(values, flags)])
    for k in range(N):
        expected = evaluate_graph(graph, [v[k] if flag else v[0] for v, flag in zip(values, flags)])
        for result, e, is_batched in zip(results, expected, batched_outputs, strict=True):
            actual = np.asarray(result)[k] if is_batched else result
            assert np.shape(actual) == np.shape(e)
            size = np.max(np.abs(e), initial=0.0)
            assert np.isfinite(size)  # a tolerance of nan would accept anything
            np.testing.assert_allclose(actual, e, rtol=rtol, atol=rtol * (1 + size))


def flags_of(n):
    """All arguments batched; each alone; all but one."""
    return [flags for flags in itertools.product((True, False), repeat=n) if sum(flags) in (n, 1, n - 1)]


@cases()
def test_values(name, sample, dtype):
    graph, values = instance(name, sample, dtype, np.random.default_rng(1))
    for flags in filter(any, flags_of(len(values))):
        compared(graph, values, flags)


@cases(lambda name, op: op.kind != "nondiff", of=False)
def test_derivatives(name, sample, dtype):
    """In both modes: their graphs have other ops, which have to be batched too."""
    rng = np.random.default_rng(2)
    graph, values = instance(name, sample, dtype, rng)
    wrt = [i for i, x in enumerate(graph.inputs) if x.dtype.kind in "fc"]
    outs = [i for i, o in enumerate(graph.outputs) if o.dtype.kind in "fc"]
    if not wrt or not outs:
        return
    for derived in (vjp_graph(graph, wrt, outs), jvp_graph(graph, wrt)):
        seeds = [
            [draw(sample, x.shape, str(x.dtype), rng) for _ in range(N)]
            for x in derived.inputs[len(graph.inputs) :]
        ]
        compared(derived, [*values, *seeds], (True,) * len(derived.inputs), rtol=1e-9)


@pytest.mark.parametrize("name", ["cumsum", "eigh"])
def test_op_without_a_batch_rule_is_a_loop(name, monkeypatch):
    monkeypatch.setattr(OPS[name], "leads", Leads())
    graph, values = instance(name, samples_of(name)[0], "float64", np.random.default_rng(3))
    assert "map" in {n.op for n in batched(graph, (True,), N)[0].nodes}
    compared(graph, values, (True,))


def test_wrong_batch_rule_is_detected(monkeypatch):
    wrong = Leads(lambda b, x, axis, reverse: apply("sum", x, axes=(0,), keepdims=False))
    monkeypatch.setattr(OPS["cumsum"], "leads", wrong)
    graph, _ = instance("cumsum", samples_of("cumsum")[0], "float64", np.random.default_rng(4))
    with pytest.raises(AssertionError, match="batch rule of cumsum"):
        batched(graph, (True,), N)


@pytest.mark.parametrize("name", ["gather", "scatter", "scatter_add"])
def test_indexing_with_any_of_its_arguments_batched(name):
    rng = np.random.default_rng(5)
    for sample in samples_of(name):
        graph, values = instance(name, sample, "float64", rng)
        for flags in itertools.product((False, True), repeat=len(values)):
            if any(flags):
                compared(graph, values, flags)


def test_negative_axis_in_a_graph_is_refused():
    """Batch rules add 1 to an axis, which is another axis if it counts from the end."""
    x = input_node((3, 4), np.float64, "x")
    with pytest.raises(GraphError, match="axis -1 in a graph") as error:
        batched(Graph([x], [apply("cumsum", x, axis=-1, reverse=False)], "f"), [True], 5)
    assert "raised by the batch rule of cumsum" in error.value.__notes__[0]
