"""Every row of the op table for many examples at once, against a loop over the examples: made from the rows'
own samples, for the op and for its derivatives in both modes.
"""

import itertools

import numpy as np
import pytest

from gpt2.autodiff.derive.differentiate import jvp_graph, vjp_graph
from gpt2.autodiff.graph import Graph, GraphError
from gpt2.autodiff.ops import OPS, apply, input_node
from gpt2.autodiff.ops.build import item
from gpt2.autodiff.ops.interpret import evaluate_graph
from gpt2.autodiff.ops.table import Leads
from gpt2.autodiff.transforms.batch import batched
from tests.autodiff.ops.test_rules import cases, draw
from tests.support.op_samples import samples_of

pytestmark = pytest.mark.numeric

N = 3


def instance(name, sample, dtype, rng):
    """The op on its sample: a graph whose inputs are all arguments, and the values of N examples."""
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
    """Other indices, or another mask; what is sorted stays so, and of each row something is chosen."""
    if name == "searchsorted":
        return arg + rng.uniform(0.0, 0.5)
    if name == "share_among":
        return rng.permuted(arg, axis=-1)
    return rng.permutation(arg.ravel()).reshape(arg.shape)


def compared(graph, values, flags, rtol=1e-11):
    """The batched graph against the loop. Values without a flag are those of the first example in all."""
    many, has = batched(graph, flags, N)
    given = [np.stack(v) if flag else v[0] for v, flag in zip(values, flags)]
    found = evaluate_graph(many, given)
    for k in range(N):
        expected = evaluate_graph(graph, [v[k] if flag else v[0] for v, flag in zip(values, flags)])
        for f, e, differs in zip(found, expected, has, strict=True):
            got = np.asarray(f)[k] if differs else f
            assert np.shape(got) == np.shape(e)
            size = np.max(np.abs(e), initial=0.0)
            assert np.isfinite(size)  # beside nan everything would do
            np.testing.assert_allclose(got, e, rtol=rtol, atol=rtol * (1 + size))


def flags_of(n):
    """All arguments differ; each alone; all but each."""
    found = [(True,) * n, *(tuple(i == k for i in range(n)) for k in range(n))]
    return list(dict.fromkeys([*found, *(tuple(i != k for i in range(n)) for k in range(n) if n > 2)]))


@cases(lambda name, op: True)
def test_values(name, sample, dtype):
    rng = np.random.default_rng(1)
    graph, values = instance(name, sample, dtype, rng)
    for flags in filter(any, flags_of(len(values))):
        compared(graph, values, flags)


@cases(lambda name, op: op.kind != "nondiff", of=False)
def test_derivatives(name, sample, dtype):
    """Both modes of differentiation give graphs of other ops, which have to be batched too."""
    rng = np.random.default_rng(2)
    graph, values = instance(name, sample, dtype, rng)
    wrt = [i for i, x in enumerate(graph.inputs) if x.dtype.kind in "fc"]
    outs = [i for i, o in enumerate(graph.outputs) if o.dtype.kind in "fc"]
    if not wrt or not outs:
        return
    for derived in (vjp_graph(graph, wrt, outs), jvp_graph(graph, wrt)):
        given = derived.inputs[len(graph.inputs) :]
        seeds = [[draw(sample, x.shape, str(x.dtype), rng) for _ in range(N)] for x in given]
        flags = (True,) * len(derived.inputs)
        compared(derived, [*values, *seeds], flags, rtol=1e-9)


def test_a_row_without_a_rule(monkeypatch):
    """It is done by a loop."""
    rng = np.random.default_rng(3)
    monkeypatch.setattr(OPS["cumsum"], "leads", Leads())
    monkeypatch.setattr(OPS["eigh"], "leads", Leads())
    for name in ("cumsum", "eigh"):
        graph, values = instance(name, samples_of(name)[0], "float64", rng)
        many, _ = batched(graph, (True,), N)
        assert "map" in {n.op for n in many.nodes}
        compared(graph, values, (True,))


def test_a_wrong_rule_is_found(monkeypatch):
    def wrong(b, x, axis, reverse):
        return apply("sum", x, axes=(0,), keepdims=False)

    monkeypatch.setattr(OPS["cumsum"], "leads", Leads(wrong))
    graph, _ = instance("cumsum", samples_of("cumsum")[0], "float64", np.random.default_rng(4))
    with pytest.raises(AssertionError, match="batch rule of cumsum"):
        batched(graph, (True,), N)


def test_indices_that_differ_in_everything():
    """gather and scatter with every pattern of what differs, arrays apart, a new axis between."""
    rng = np.random.default_rng(5)
    for name in ("gather", "scatter", "scatter_add"):
        for sample in samples_of(name):
            graph, values = instance(name, sample, "float64", rng)
            for flags in itertools.product((False, True), repeat=len(values)):
                if any(flags):
                    compared(graph, values, flags)


def test_an_axis_from_the_end_is_refused():
    """axis + 1 of it would be another axis."""
    x = input_node((3, 4), np.float64, "x")
    with pytest.raises(GraphError, match="axis -1 in a graph") as error:
        batched(Graph([x], [apply("cumsum", x, axis=-1, reverse=False)], "f"), [True], 5)
    assert "raised by the batch rule of cumsum" in error.value.__notes__[0]
