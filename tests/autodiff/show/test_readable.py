"""The readable source computes what the graph does, and how it reads."""

import functools

import numpy as np
import pytest

from gpt2.autodiff import FixedPair, passes
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import OPS, Op, apply, input_node
from gpt2.autodiff.ops.interpret import evaluate_graph
from gpt2.autodiff.ops.subgraph import splice
from gpt2.autodiff.record.record import record
from gpt2.autodiff.show.readable import constants, readable_source
from gpt2.autodiff.show.runnable import runnable_source, written
from gpt2.autodiff.switches import Options
from gpt2.backward import options_for
from gpt2.commands.explain import sources
from gpt2.commands.explain.subject import SIZES, subject
from gpt2.layers import LAYERS
from gpt2.model import GPT2, GPT2Config
from tests.autodiff.ops import test_rules
from tests.support.random.graphs import random_arrays, random_graph

F8 = np.dtype(np.float64)


def simplify(graph):
    return passes.simplify(graph, Options(math="fast"))


def check_source(graph, arrays, rtol):
    """Its results have the graph's values, dtypes and shapes; its arguments are unchanged."""
    env = constants(graph)
    # No functions of NumPy's: the text calls them by the names of the ops
    env |= {name: OPS[name].evaluate for name in ("complex", "cofactors", "cofactors_along")}
    exec(readable_source(graph, "f"), env)
    before = [np.array(a) for a in arrays]
    with np.errstate(all="ignore"):
        got, want = env["f"](*arrays), evaluate_graph(graph, arrays)
    for a, b in zip(arrays, before):
        np.testing.assert_array_equal(a, b)
    for x, y in zip(got, want, strict=True):
        assert np.shape(x) == np.shape(y) and np.asarray(x).dtype == np.asarray(y).dtype
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol * np.max(np.abs(y), initial=0))


def pair_of(name):
    """The compiler's forward and backward graphs of a layer, and their programs."""
    case = subject(name, SIZES, "float32")
    return FixedPair(case.layer.forward, options_for(), name=name).entry(case.inputs(), case.static)[0]


@pytest.mark.parametrize("name", LAYERS)
def test_sources_of_layers_run(name, rng):
    """In float32, where another order of products changes some units in the last place, 6e-8 each."""
    for graph in pair_of(name).graphs:
        arrays = [
            rng.integers(0, 7, i.shape) if i.dtype.kind in "iu" else rng.uniform(0.5, 2, i.shape)
            for i in graph.inputs
        ]
        arrays = [a.astype(i.dtype) for a, i in zip(arrays, graph.inputs)]
        check_source(graph, arrays, rtol=1e-5)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("seed", range(60))
def test_sources_of_random_graphs_run(seed):
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, size=25)
    arrays = random_arrays(rng, graph)
    check_source(graph, arrays, rtol=1e-9)
    check_source(simplify(graph), arrays, rtol=1e-9)


def text_of(f, *arrays):
    return readable_source(simplify(record(f, arrays).graph)).split(":\n", 1)[1]


def test_source_reads_like_numpy():
    x, y = np.ones((4, 768)), np.ones((4, 768))
    assert text_of(lambda x: np.mean(x, axis=1), x) == ("    out = np.mean(x, axis=1)\n    return (out,)\n")
    assert "out = y - x**3 / 768" in text_of(lambda x, y: -(x * x * x) / 768 + y, x, y)
    assert "out = x[2]" in text_of(lambda x: x[2], x)
    assert "out = x.T @ y" in text_of(lambda x, y: x.T @ y, x, y)


def test_view_is_copied_before_it_is_written(rng):
    x, v = input_node((2, 6), F8, "x"), input_node((3,), F8, "v")
    turned = apply("reshape", x, shape=(4, 3))
    written = apply("update", turned, v, index=((1, 2, 1), (0, 3, 1)))
    check_source(Graph((x, v), (written,)), [rng.standard_normal((2, 6)), rng.standard_normal(3)], rtol=1e-12)


# ---- Loops -------------------------------------------------------------------------------------------------


def check_steps(body, steps, *arrays):
    """The source of a FixedPair of `steps` calls of body. Running it gives the pair's results."""
    pair = FixedPair(
        lambda *args: functools.reduce(lambda x, k: body(x, k, *args[1:]), range(steps), args[0])
    )
    text = pair.source(*arrays)
    env = {}
    exec(text, env)
    forward, backward = (f for name, f in env.items() if callable(f) and name != "np")
    out, *kept = forward(*arrays)
    dout = np.random.default_rng(3).standard_normal(out.shape)
    before = [np.array(a) for a in arrays]
    grads = backward(*kept, dout)
    for a, b in zip(arrays, before):
        np.testing.assert_array_equal(a, b)
    want, saved = pair.forward(*arrays)
    np.testing.assert_allclose(out, want, rtol=1e-12)
    for x, y in zip(grads, pair.backward(dout, saved), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)
    return text


def layered(x, k, w, b):
    """Own weights for each step, and enough ops for a call."""
    for _ in range(4):
        x = np.tanh(x @ w[k] + b[k]) * x + np.sin(x) * np.exp(-x * x)
    return x


def shared(x, k, w):
    """The same weights in all steps."""
    for _ in range(4):
        x = np.tanh(x @ w) * x + np.sin(x) * np.exp(-x * x)
    return x


def backwards(x, k, w):
    """Takes the last weights first."""
    return layered(x, 9 - k, w, w[:, 0])


@pytest.mark.parametrize(
    "body, sizes, ascending",
    [(layered, [(10, 3, 3), (10, 3)], True), (shared, [(3, 3)], True), (backwards, [(10, 3, 3)], False)],
)
def test_equal_steps_become_a_loop(body, sizes, ascending, rng):
    arrays = [0.3 * rng.standard_normal(size) for size in [(5, 3), *sizes]]
    text = check_steps(body, 10, *arrays)
    assert text.count("f_outlined(") == text.count("f_outlined_backward(") == 2  # defined, and called
    forward, backward = text.split("def f_backward(")
    assert ("for k in range(" in forward) == ("for k in reversed(range(" in backward) == ascending
    assert ("for k in reversed(range(" in forward) == ("for k in range(" in backward) != ascending
    assert "each_" not in text  # calls read arrays by index, not from lists made for the loop


def test_whole_model_becomes_two_loops(monkeypatch):
    """The text runs as it is, and gives the model's gradients."""
    config = GPT2Config(vocab_size=17, block_size=5, n_layer=4, n_head=3, n_embd=12, dtype="float64")
    monkeypatch.setattr(sources, "WHOLE", config)
    monkeypatch.setattr(sources, "SHOWN", SIZES)
    text = sources.whole_source()[2]
    assert "for k in range(4):" in text and "for k in reversed(range(4)):" in text
    assert text.count("loss_outlined(") == text.count("loss_outlined_backward(") == 2  # defined, and called
    env = {}
    exec(text, env)
    model = GPT2(config, "manual", seed=1)
    tokens, targets = np.random.default_rng(0).integers(0, 17, (2, 2, 5))
    loss = model.loss_and_grads(tokens, targets)
    out, *kept = env["loss_forward"](*model.params.values(), tokens, targets)
    assert abs(out - loss) < 1e-12
    for name, g in zip(model.grads, env["loss_backward"](*kept, np.float64(1.0)), strict=True):
        np.testing.assert_allclose(g, model.grads[name], rtol=1e-9, atol=1e-13, err_msg=name)


def test_masks_are_written_as_expressions():
    for k in (-1, 0, 1):
        for part in (np.triu, np.tril):
            mask = part(np.full((20, 30), -1e30, np.float32), k)
            text = written(mask)
            assert len(text) < 70 and eval(text, {"np": np}).tobytes() == mask.tobytes()
    assert written(np.arange(400.0).reshape(20, 20)) is None


def test_long_lists_are_broken_at_commas():
    names = [f"a_long_name_{k}" for k in range(20)]
    inputs = [input_node((3,), F8, name) for name in names]
    text = runnable_source(Graph(inputs, inputs[::-1], "f"), "f")
    assert "def f(\n    a_long_name_0, " in text and "    return (\n        " in text
    assert max(map(len, text.split("\n"))) <= 100
    env = {}
    exec(text, env)
    assert env["f"](*range(20)) == tuple(range(20))[::-1]


@test_rules.cases()
def test_operands_are_parenthesized_for_every_op(name, sample, dtype):
    """Each op with expressions as arguments, and as an operand of others."""
    if dtype != "float64":
        return
    graph, values = test_rules.instance(name, sample, "float64")
    args = [x - x * 0.0 if x.dtype.kind == "f" else x for x in graph.inputs]
    results = splice(graph, args)
    further = [part for o in results if o.dtype.kind == "f" for part in (2.0 - o, 3.0 * o)]
    check_source(Graph(graph.inputs, [*results, *further], "f"), values, rtol=1e-12)


def test_ops_written_as_operators_are_parenthesized(monkeypatch):

    def elementwise(name, evaluate, code):
        columns = {"infer": lambda x: (x.shape, x.dtype), "evaluate": evaluate, "code": code}
        monkeypatch.setitem(OPS, name, Op(name, "elementwise", **columns))

    elementwise("next_one", lambda x: x + 1.0, lambda x: f"{x} + 1.0")
    elementwise("inverse", lambda x: 1.0 / x, lambda x: f"1.0 / {x}")
    x, y = input_node((3,), F8, "x"), input_node((3,), F8, "y")
    first = apply("next_one", x) / apply("inverse", x * y + 2.0)
    graph = Graph((x, y), [first - apply("inverse", apply("next_one", y))], "f")
    check_source(graph, [np.array([0.5, 2.0, -3.0]), np.array([3.0, 1.0, 0.25])], rtol=0)
