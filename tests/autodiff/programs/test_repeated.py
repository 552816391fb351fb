"""ad.repeated: a function recorded once for all its calls of the same types, with the same results."""

from functools import partial

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.derive.differentiate import jvp_graph, vjp_graph
from gpt2.autodiff.keep.partition import partition
from gpt2.autodiff.ops.interpret import evaluate_graph
from gpt2.autodiff.ops.subgraph import with_slices
from gpt2.autodiff.passes.alike import flat
from gpt2.autodiff.pipeline import Pipeline
from gpt2.autodiff.record.record import record_pure
from gpt2.model import GPT2, GPT2Config

X = np.random.default_rng(0).normal(size=(5, 8))
W = np.random.default_rng(1).normal(size=(30, 8, 8)) / 3


def layer(x, w, power=2):
    h = np.tanh(x @ w)
    h = h - h.mean(axis=-1, keepdims=True)
    return x + h * np.exp(-(h**power)) + np.sin(h) * np.cos(h)


def chain(part, x, w):
    for k in range(len(w)):
        x = part(x, w[k])
    return np.sum(x * x)


def pair(f, part=layer):
    """A FixedPair of f(part, ...) with `part` repeated."""
    return ad.FixedPair(partial(f, ad.repeated(part)))


def joint_source(part):
    return pair(chain, part).entry((X, W), {})[0].joint.program.source


def recorded_calls(f, *args):
    return [n for n in record_pure(f, args).graph.nodes if n.op == "outlined"]


def assert_same(f, part=layer, args=(X, W)):
    """Value and gradients of f(part, ...) are the same with `part` repeated as without."""
    results = []
    for form in (ad.repeated(part), part):
        value, grads = ad.FixedPair(partial(f, form)).both(np.ones(()), *args)
        results.append([value, *grads])
    for got, want in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3, 30])
def test_repeated_keeps_results_and_inlines_few_calls(n):
    assert_same(chain, args=(X, W[:n]))
    forward, _ = pair(chain).graphs(X, W[:n])
    assert any(x.op == "outlined" for x in forward.nodes) == (n == 30)


def test_joint_program_makes_each_view_of_an_input_once():
    """Every call, in the forward and in the backward, reads a slice of the weights."""
    source = joint_source(layer)
    assert source.count("= each_row(w)") == 1 and "= w[" not in source


@pytest.mark.parametrize("axis", [0, 1])
def test_several_slices_per_call(axis):
    def f(part, x, w, b):
        for k in range(40):
            x = part(x, w[k] if axis == 0 else w[:, k], b[k])
        return np.sum(x * x)

    def biased(x, w, b):
        return layer(x, w) * np.cos(b) + np.tanh(b)

    rng = np.random.default_rng(2)
    w, b = np.moveaxis(rng.normal(size=(40, 8, 8)), 0, axis) / 9, rng.normal(size=(40, 8))
    assert_same(f, biased, (X, w, b))


def test_calls_take_slices_of_arguments_themselves():
    """A slice that only one call reads is not a node of the program; its gradient is part of one array."""
    forward, backward = pair(chain).graphs(X, W)
    cuts = [n.attrs["cuts"] for n in forward.nodes if n.op == "outlined"]
    assert cuts == [(None, (0, k, k + 1)) for k in range(30)]
    assert not any(n.op == "slice" for n in (*forward.nodes, *backward.nodes))
    assert [n.op for n in backward.outputs][1] == "assemble"
    assert "w[7:8]" in str(forward)


def joint_graph(f):
    """The graph of result and gradients of f with `layer` repeated, before calls are inlined."""
    graph = record_pure(partial(f, ad.repeated(layer)), (X, W)).graph
    return vjp_graph(Pipeline("f").simplified(graph, alike=True), [0, 1], [0])


def assert_equal_graphs(a, b, *arrays):
    for got, want in zip(evaluate_graph(a, arrays), evaluate_graph(b, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_inlined_calls_and_their_derivatives():
    """Then slices are nodes again."""
    joint, arrays = joint_graph(chain), [X, W, np.array(0.7)]
    for inlined in (flat(joint), with_slices(joint)):
        assert not any(n.attrs.get("cuts") for n in inlined.nodes)
        assert_equal_graphs(joint, inlined, *arrays)
    arrays.append(np.random.default_rng(4).normal(size=W.shape))
    for derive in (lambda graph: jvp_graph(graph, [1]), lambda graph: vjp_graph(graph, [0, 1], [2])):
        assert_equal_graphs(derive(joint), derive(flat(joint)), *arrays)


def test_calls_that_differ_only_in_their_slices():
    """Each is paired with the backward call of the same slice, and hands its saved values to that one."""

    def f(part, x, w):
        return np.sum(sum(part(x, w[k]) for k in range(30)) ** 2)

    forward, backward, _ = partition(joint_graph(f), 2, 1)
    for half in (forward, backward):
        bodies = [n.attrs["body"] for n in half.nodes if n.op == "outlined"]
        assert len(bodies) == 30 and len(set(bodies)) == 1
    assert_same(f)


def test_a_slice_that_two_calls_read_stays_a_node():
    """Its gradient is the sum of the gradients from both calls."""

    def f(part, x, w):
        for k in range(30):
            x = part(part(x, w[k]), w[min(k, 28)])
        return np.sum(x * x)

    forward, _ = pair(f).graphs(X, W)
    cuts = [n.attrs["cuts"] for n in forward.nodes if n.op == "outlined"]
    assert [k for k, c in enumerate(cuts) if c] == [58]
    assert_same(f)


@pytest.mark.parametrize("slice_k", [
    lambda w, k: w[:, k], lambda w, k: w[:, :, k : k + 2], lambda w, k: w[-k - 1]
])  # fmt: skip
def test_slices_along_any_axis(slice_k):
    def part(x, w):
        return np.tanh(x + np.mean(w) * np.sin(w).sum()) * np.cos(x) + np.exp(-x * x) / (2 + x**2)

    def f(part, x, w):
        for k in range(20):
            x = part(x, slice_k(w, k))
        return np.sum(x * x)

    w = np.random.default_rng(3).normal(size=(30, 21, 22)) / 9
    forward, _ = pair(f, part).graphs(X, w)
    assert sum(bool(n.attrs["cuts"]) for n in forward.nodes if n.op == "outlined") == 20
    assert_same(f, part, (X, w))


def test_function_runs_once_for_all_calls():
    runs = []

    def counted(x, w):
        runs.append(1)
        return layer(x, w)

    assert len(recorded_calls(partial(chain, ad.repeated(counted)), X, W)) == 30
    assert len(runs) == 1
    assert "def " in joint_source(counted)


def test_other_types_and_settings_are_recorded_separately():
    def f(part, x, w):
        for k in range(10):
            x = part(x, w[k])
        y = x[:2]
        for k in range(10):
            y = part(y, w[k], power=4)
        return np.sum(x) + np.sum(y)

    assert len({n.attrs["body"] for n in recorded_calls(partial(f, ad.repeated(layer)), X, W)}) == 2
    assert_same(f)


def test_several_results():
    def two(x, w):
        h = np.tanh(x @ w)
        return h, {"sum": np.sin(h).T}

    def f(part, x, w):
        total = 0.0
        for k in range(40):
            x, rest = part(x, w[k % 30])
            total = total + np.sum(rest["sum"] ** 2)
        return total + np.sum(x)

    assert_same(f, two)


OFFSET = np.arange(8.0)


@pytest.mark.parametrize("part", [
    lambda x, w: np.tanh(x @ w) if x.sum() > 0 else np.sin(x @ w),
    lambda x, w: np.tanh(x @ w + OFFSET),
    lambda x, w: x,
    lambda x, w: x[:, ::-1],
], ids=["branches on a value", "reads a global", "returns its argument", "returns a view"])  # fmt: skip
def test_functions_that_must_run_at_each_call(part):
    """Their recordings do not hold for other calls."""

    def f(part, x, w):
        for k in range(30):
            y = part(x, w[k])
            y = y * 1.01
            x = y + 0.1
        return np.sum(x * x)

    assert not recorded_calls(partial(f, ad.repeated(part)), X, W)
    assert_same(f, part)


def test_writes_to_arguments():
    def writes(x, w):
        x += 1.0
        return np.tanh(x @ w)

    def f(part, x, w):
        x = x * 1.0
        for k in range(30):
            part(x, w[k])
        return np.sum(x * x)

    assert_same(f, writes)


def test_writes_to_results_branches_on_them_and_weights_read_outside_the_calls():
    def f(part, x, w):
        for k in range(30):
            x = part(x, w[k])
            x[0] *= 2.0
        total = np.sum(w**2) + np.sum(np.sin(w[3]))
        return total + np.sum(x) if x[0, 0] > 0 else total - np.sum(3.0 * x)

    for sign in (1, -1):
        assert_same(f, args=(sign * X, W))


def test_other_transforms_take_repeated_functions():
    repeated = ad.repeated(layer)
    np.testing.assert_array_equal(repeated(X, W[0]), layer(X, W[0]))
    f, g = partial(chain, repeated), partial(chain, layer)
    np.testing.assert_allclose(ad.grad(f, 1)(X, W), ad.grad(g, 1)(X, W), rtol=1e-12)
    np.testing.assert_allclose(ad.Fixed(f)(X, W), g(X, W), rtol=1e-12)
    with ad.options(before=False):
        assert_same(chain)
    inlined = ad.FixedPair(f, ad.Options(off=("alike",))).both(np.ones(()), X, W)[1][1]
    np.testing.assert_allclose(inlined, ad.grad(g, 1)(X, W), rtol=1e-9)


def user_block(x, p, layers, config):
    return x + np.tanh(x) * p["ln1w"]


@pytest.mark.parametrize(("options", "n_calls"), [({}, 6), ({"block": user_block}, 0)])
def test_blocks_of_gpt2_are_recorded_once_but_user_blocks_each_time(options, n_calls):
    config = GPT2Config(vocab_size=65, block_size=8, n_layer=6, n_head=2, n_embd=16)
    model = GPT2(config, backward="whole", seed=0, **options)
    tokens = np.arange(16).reshape(2, 8)
    calls = recorded_calls(model._whole_loss, *model.params.values(), tokens, tokens + 1)
    assert len(calls) == n_calls
    assert len({n.attrs["body"] for n in calls}) == min(n_calls, 1)


# ---- Forward and backward as one program -------------------------------------------------------------------


@pytest.mark.parametrize(("options", "recomputes"), [({}, False), ({"rate": 1.0}, True)])
def test_joint_program_recomputes_only_to_save_memory(options, recomputes):
    """`centred` is cheaper to recompute than to keep, but the joint program has it anyway."""

    def normalized(x):
        centred = x - np.mean(x, -1, keepdims=True)
        return centred / np.sqrt(np.mean(centred * centred, -1, keepdims=True) + 1e-5)

    pair = ad.FixedPair(normalized, **options)
    x = np.random.default_rng(0).standard_normal((64, 300))
    dout = np.random.default_rng(1).standard_normal(x.shape)
    entry, _ = pair.entry((x,), {})
    keys = [n.key() for n in entry.joint.graph.nodes if n.op not in ("input", "const")]
    assert (len(set(keys)) < len(keys)) == recomputes
    out, (gradient,) = pair.both(dout, x)
    alone, saved = pair.forward(x)
    np.testing.assert_allclose(out, alone, rtol=1e-12)
    np.testing.assert_allclose(gradient, pair.backward(dout, saved)[0], rtol=1e-9, atol=1e-12)
