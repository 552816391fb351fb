"""ad.repeated: recorded once for all calls that are alike, with the numbers of the function itself."""

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


class Counted:
    """A function, and how often it ran."""

    def __init__(self, f):
        self.f, self.runs = f, 0

    def __call__(self, *args, **kwargs):
        self.runs += 1
        return self.f(*args, **kwargs)


def layer(x, w, power=2):
    h = np.tanh(x @ w)
    h = h - h.mean(axis=-1, keepdims=True)
    return x + h * np.exp(-(h**power)) + np.sin(h) * np.cos(h)


def model(layer, n=30):
    def f(x, w):
        for k in range(n):
            x = layer(x, w[k])
        return np.sum(x * x)

    return f


def both(f, *args, **static):
    """The value and gradients of f by a FixedPair."""
    value, grads = ad.FixedPair(f).both(np.ones(()), *args, **static)
    return [value, *grads]


def calls(f, *args):
    return [n for n in record_pure(f, args).graph.nodes if n.op == "stretch"]


def assert_same(f, g, *args):
    for got, want in zip(both(f, *args), both(g, *args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3, 30])
def test_numbers_are_those_of_the_function(n):
    assert_same(model(ad.repeated(layer), n), model(layer, n), X, W)


@pytest.mark.parametrize("n", [2, 30])
def test_few_calls_are_opened(n):
    forward, _ = ad.FixedPair(model(ad.repeated(layer), n)).graphs(X, W)
    assert any(x.op == "stretch" for x in forward.nodes) == (n > 2)


def test_both_halves_in_one_program_share_their_views_of_inputs():
    """Each call of the forward and of the backward is given a part of the weights: one view for both."""
    source = ad.FixedPair(model(ad.repeated(layer))).entry((X, W), {})[0].joint.program.source
    for k in range(30):
        assert source.count(f"= w[{k}:{k + 1}]") == (0 < k < 29)


def test_views_of_many_weights_come_from_a_table():
    w = np.random.default_rng(2).normal(size=(120, 8, 8)) / 9
    f = model(ad.repeated(layer), 120)
    source = ad.FixedPair(f).entry((X, w), {})[0].joint.program.source
    assert "cut_steps" in source
    assert "= w[6:7]" not in source
    assert_same(f, model(layer, 120), X, w)


def biased(x, w, b):
    return layer(x, w) * np.cos(b) + np.tanh(b)


@pytest.mark.parametrize("axis", [0, 1])
def test_many_views_side_by_side_are_given_as_rows(axis):
    def f(of):
        def g(x, w, b):
            for k in range(40):
                x = of(x, w[k] if axis == 0 else w[:, k], b[k])
            return np.sum(x * x)

        return g

    rng = np.random.default_rng(2)
    w, b = np.moveaxis(rng.normal(size=(40, 8, 8)), 0, axis) / 9, rng.normal(size=(40, 8))
    source = ad.FixedPair(f(ad.repeated(biased))).entry((X, w, b), {})[0].joint.program.source
    lines = source.splitlines()
    assert sum("*given_7," in line for line in lines) == 2  # by the forward's call and the backward's
    assert sum("*made_7," in line for line in lines) == (axis == 0)  # elsewhere they would lie in strides
    assert sum("row_steps" in line for line in lines) == 1
    assert_same(f(ad.repeated(biased)), f(biased), X, w, b)


def test_slices_of_arguments_are_cut_by_the_calls():
    """A part that one call alone reads is no node of the program; the gradient of all is one."""
    forward, backward = ad.FixedPair(model(ad.repeated(layer))).graphs(X, W)
    cuts = [n.attrs["cuts"] for n in forward.nodes if n.op == "stretch"]
    assert cuts == [(None, (0, k, k + 1)) for k in range(30)]
    assert not any(n.op == "slice" for n in (*forward.nodes, *backward.nodes))
    assert [n.op for n in backward.outputs][1] == "collect"
    assert "w[7:8]" in str(forward)


def joint_graph(f):
    """Result and gradients of f, with calls in it, and the inputs of such a graph."""
    pipeline = Pipeline("f")
    graph = pipeline.simplified(record_pure(f, (X, W)).graph, alike=True)
    return vjp_graph(graph, [0, 1], [0]), [X, W, np.array(0.7)]


def assert_equal_graphs(a, b, *arrays):
    for got, want in zip(evaluate_graph(a, arrays), evaluate_graph(b, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_calls_can_be_opened_at_any_time():
    """What they cut is then cut before them, and what was collected from them is assembled."""
    joint, arrays = joint_graph(model(ad.repeated(layer)))
    assert any(n.op == "collect" for n in joint.nodes)
    for opened in (flat(joint), with_slices(joint)):
        assert not any(n.op == "collect" or n.attrs.get("cuts") for n in opened.nodes)
        assert_equal_graphs(joint, opened, *arrays)


def test_derivatives_of_gradients_that_calls_have_given():
    joint, arrays = joint_graph(model(ad.repeated(layer)))
    assert any(n.op == "collect" for n in joint.nodes)
    opened = flat(joint)
    moved = np.random.default_rng(4).normal(size=W.shape)
    assert_equal_graphs(jvp_graph(joint, [1]), jvp_graph(opened, [1]), *arrays, moved)
    assert_equal_graphs(vjp_graph(joint, [0, 1], [2]), vjp_graph(opened, [0, 1], [2]), *arrays, moved)


def test_calls_that_differ_in_what_they_cut_alone():
    """Each is paired with the call that computes its own gradient, and gives it what it has kept."""

    def f(of):
        def g(x, w):
            return np.sum(sum(of(x, w[k]) for k in range(30)) ** 2)

        return g

    joint, _ = joint_graph(f(ad.repeated(layer)))
    forward, backward, _ = partition(joint, 2, 1)
    for half in (forward, backward):
        bodies = [n.attrs["body"] for n in half.nodes if n.op == "stretch"]
        assert len(bodies) == 30
        assert len(set(bodies)) == 1
    assert_same(f(ad.repeated(layer)), f(layer), X, W)


def test_weights_that_are_read_outside_of_the_calls_as_well():
    def f(of):
        def g(x, w):
            for k in range(30):
                x = of(x, w[k])
            return np.sum(x * x) + np.sum(w**2) + np.sum(np.sin(w[3]))

        return g

    assert_same(f(ad.repeated(layer)), f(layer), X, W)


def test_a_slice_that_two_calls_read_stays():
    """Its gradient is the sum of what both give."""

    def f(of):
        def g(x, w):
            for k in range(30):
                x = of(of(x, w[k]), w[min(k, 28)])
            return np.sum(x * x)

        return g

    forward, _ = ad.FixedPair(f(ad.repeated(layer))).graphs(X, W)
    cuts = [n.attrs["cuts"] for n in forward.nodes if n.op == "stretch"]
    assert [k for k, c in enumerate(cuts) if c] == [58]
    assert_same(f(ad.repeated(layer)), f(layer), X, W)


@pytest.mark.parametrize(
    "at", [lambda w, k: w[:, k], lambda w, k: w[:, :, k : k + 2], lambda w, k: w[-k - 1]]
)
def test_parts_along_any_axis(at):
    def part(x, w):
        return np.tanh(x + np.mean(w) * np.sin(w).sum()) * np.cos(x) + np.exp(-x * x) / (2 + x**2)

    def f(of):
        def g(x, w):
            for k in range(20):
                x = of(x, at(w, k))
            return np.sum(x * x)

        return g

    w = np.random.default_rng(3).normal(size=(30, 21, 22)) / 9
    forward, _ = ad.FixedPair(f(ad.repeated(part))).graphs(X, w)
    assert sum(bool(n.attrs["cuts"]) for n in forward.nodes if n.op == "stretch") == 20
    assert_same(f(ad.repeated(part)), f(part), X, w)


def test_it_is_recorded_once():
    counted = Counted(layer)
    f = model(ad.repeated(counted))
    assert len(calls(f, X, W)) == 30
    assert counted.runs == 1
    assert "def " in ad.FixedPair(f).entry((X, W), {})[0].joint.program.source


def test_other_types_and_settings_are_recorded_apart():
    once = ad.repeated(layer)

    def f(x, w):
        for k in range(10):
            x = once(x, w[k])
        y = x[:2]
        for k in range(10):
            y = once(y, w[k], power=4)
        return np.sum(x) + np.sum(y)

    assert len({n.attrs["body"] for n in calls(f, X, W)}) == 2

    def plain(x, w):
        for k in range(10):
            x = layer(x, w[k])
        y = x[:2]
        for k in range(10):
            y = layer(y, w[k], power=4)
        return np.sum(x) + np.sum(y)

    assert_same(f, plain, X, W)


def test_several_results():
    def two(x, w):
        h = np.tanh(x @ w)
        return h, {"sum": np.sin(h).T}

    def f(of):
        def g(x, w):
            total = 0.0
            for k in range(40):
                x, rest = of(x, w[k % 30])
                total = total + np.sum(rest["sum"] ** 2)
            return total + np.sum(x)

        return g

    assert_same(f(ad.repeated(two)), f(two), X, W)


OUTSIDE = np.arange(8.0)


def looks(x, w):
    return np.tanh(x @ w) if x.sum() > 0 else np.sin(x @ w)


def reads(x, w):
    return np.tanh(x @ w + OUTSIDE)


def writes(x, w):
    x += 1.0
    return np.tanh(x @ w)


def gives_its_argument(x, w):
    return x


def gives_a_view(x, w):
    return x[:, ::-1]


@pytest.mark.parametrize("f", [looks, reads, gives_its_argument, gives_a_view])
def test_what_one_recording_cannot_stand_for_runs_each_time(f):
    def used(of):
        def g(x, w):
            for k in range(30):
                y = of(x, w[k])
                y = y * 1.01
                x = y + 0.1
            return np.sum(x * x)

        return g

    assert not calls(used(ad.repeated(f)), X, W)
    assert_same(used(ad.repeated(f)), used(f), X, W)


def test_it_may_write_to_its_arguments():
    def used(of):
        def g(x, w):
            x = x * 1.0
            for k in range(30):
                of(x, w[k])
            return np.sum(x * x)

        return g

    assert_same(used(ad.repeated(writes)), used(writes), X, W)


def test_what_is_written_to_a_result_stays_there():
    def used(of):
        def g(x, w):
            for k in range(30):
                y = of(x, w[k])
                y[0] *= 2.0
                x = y
            return np.sum(x * x)

        return g

    assert_same(used(ad.repeated(layer)), used(layer), X, W)


def test_who_looks_at_a_result_gets_the_number():
    def used(of):
        def g(x, w):
            for k in range(30):
                x = of(x, w[k])
            return np.sum(x) if x[0, 0] > 0 else np.sum(-3.0 * x)

        return g

    for sign in (1, -1):
        assert_same(used(ad.repeated(layer)), used(layer), sign * X, W)


def test_elsewhere_it_is_the_function():
    once = ad.repeated(layer)
    np.testing.assert_array_equal(once(X, W[0]), layer(X, W[0]))
    f, g = model(once), model(layer)
    np.testing.assert_allclose(ad.grad(f, 1)(X, W), ad.grad(g, 1)(X, W), rtol=1e-12)
    np.testing.assert_allclose(ad.Fixed(f)(X, W), g(X, W), rtol=1e-12)
    with ad.options(before=False):
        assert_same(f, g, X, W)
    written_out = ad.FixedPair(f, ad.Options(off=("alike",))).both(np.ones(()), X, W)[1][1]
    np.testing.assert_allclose(written_out, ad.grad(g, 1)(X, W), rtol=1e-9)


def test_gpt2s_blocks_are_recorded_once():
    config = GPT2Config(vocab_size=65, block_size=8, n_layer=6, n_head=2, n_embd=16)
    model = GPT2(config, backward="whole", seed=0)
    tokens = np.arange(16).reshape(2, 8)
    args = [*model.params.values(), tokens, tokens + 1]
    found = calls(model._whole_loss, *args)
    assert len(found) == 6
    assert len({n.attrs["body"] for n in found}) == 1


def test_blocks_of_ones_own_are_recorded_each():
    def block(x, p, layers, config):
        return x + np.tanh(x) * p["ln1w"]

    config = GPT2Config(vocab_size=65, block_size=8, n_layer=6, n_head=2, n_embd=16)
    model = GPT2(config, backward="whole", seed=0, block=block)
    tokens = np.arange(16).reshape(2, 8)
    assert not calls(model._whole_loss, *model.params.values(), tokens, tokens + 1)


# ---- Forward and backward as one program -------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "twice"), [(None, False), (1.0, True)])
def test_one_program_of_both_computes_again_only_to_save_memory(rate, twice):
    """`centred` is cheaper to compute again than to keep, but not where it is at hand."""

    def normalized(x):
        centred = x - np.mean(x, -1, keepdims=True)
        return centred / np.sqrt(np.mean(centred * centred, -1, keepdims=True) + 1e-5)

    pair = ad.FixedPair(normalized, **({} if rate is None else {"rate": rate}))
    x = np.random.default_rng(0).standard_normal((64, 300))
    dout = np.random.default_rng(1).standard_normal(x.shape)
    entry, _ = pair.entry((x,), {})
    keys = [n.key() for n in entry.joint.graph.nodes if n.op not in ("input", "const")]
    assert (len(set(keys)) < len(keys)) == twice
    out, (gradient,) = pair.both(dout, x)
    alone, saved = pair.forward(x)
    np.testing.assert_allclose(out, alone, rtol=1e-12)
    np.testing.assert_allclose(gradient, pair.backward(dout, saved)[0], rtol=1e-9, atol=1e-12)
