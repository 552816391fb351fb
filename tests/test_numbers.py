"""Numbers one can trust: precision at any scale, the same bits on any number of threads, anomalies traced."""

import re

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.run import blas, threads
from gpt2.backward import auto, choose
from gpt2.errors import UserError
from gpt2.layers import LAYERS
from gpt2.model import GPT2, GPT2Config
from gpt2.train.step import FEWEST, RECENT, Spikes
from tests.support.cases import CASES, NH, C

pytestmark = pytest.mark.numeric

ROUNDING = 2.0**-24  # of float32: half a unit in the last place of 1

# ---- Precision -------------------------------------------------------------------------------------------

SCALES = (1e-6, 1e-4, 1e-2, 1.0, 1e2, 1e4)
# What docs/promises.md states. Measured: 4.8 at most, on these inputs.
ROUNDINGS = 8


def condition(case, inputs, dout):
    """What a rounding of one float32 operation may become, beyond the size of the result itself.

    A softmax turns an error of a score into one of the same size in its logarithm, so attention's results err
    with its largest score, and its gradients with that times the queries, keys and values they multiply.
    """
    if case.layer != "attention":
        return 0.0, 0.0
    size, HS = np.max(np.abs(inputs[0])), C // case.static["num_heads"]
    return size**2 * np.sqrt(HS) * size, np.max(np.abs(dout)) * size**2 * np.sqrt(HS)


@pytest.mark.parametrize("kind", ["manual", "auto"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_float32_is_float64_within_roundings(case, kind):
    """The stream is scaled; weights are not, as they stay near 1 in a model. Nothing overflows on the way."""
    layer = LAYERS[case.layer] if kind == "manual" else auto(LAYERS[case.layer])
    exact = LAYERS[case.layer]
    for scale in SCALES:
        for seed in range(2):
            single = scaled(case, scale, seed)
            double = [x if x is None or x.dtype.kind != "f" else x.astype(np.float64) for x in single]
            with np.errstate(over="raise", invalid="raise", divide="raise"):
                out, saved = layer.forward(*single, **case.static)
                out64, saved64 = exact.forward(*double, **case.static)
                dout = np.random.default_rng(seed).standard_normal(out64.shape).astype(np.float32)
                gradients = layer.backward(dout, saved, **case.static)
                gradients64 = exact.backward(dout.astype(np.float64), saved64, **case.static)
            forward, backward = condition(case, double, dout)
            close(out, out64, forward, f"{scale:g}")
            for a, b in zip(gradients, gradients64):
                if b is not None:
                    close(a, b, backward, f"gradient, {scale:g}")


def scaled(case, scale, seed):
    inputs = case.inputs(np.float64, seed)
    stream = {"encoder": (1, 2), "residual": (0, 1)}.get(case.layer, (0,))
    return [
        x if x is None or x.dtype.kind != "f" else (x * scale if i in stream else x).astype(np.float32)
        for i, x in enumerate(inputs)
    ]


def close(got, want, more, what):
    size = np.max(np.abs(want))
    assert np.max(np.abs(got - want)) <= ROUNDINGS * ROUNDING * (size + more), what


def test_exponentials_never_overflow():
    """Logits of 1e30 and scores near 1e27, whose exponentials no float holds: softmax takes the largest away
    first, and what the mask adds, -1e30, is still beyond them."""
    logits = np.array([[1e30, 0.0, -1e30]], np.float32)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for layer in (LAYERS["crossentropy"], auto(LAYERS["crossentropy"])):
            losses, saved = layer.forward(logits, np.array([0]))
            dlogits, _ = layer.backward(np.ones(1, np.float32), saved)
            assert losses[0] == 0.0 and not dlogits.any()
        rng = np.random.default_rng(0)
        qkv = (1e13 * rng.standard_normal((1, 4, 3 * C))).astype(np.float32)
        dout = rng.standard_normal((1, 4, C)).astype(np.float32)
        for layer in (LAYERS["attention"], auto(LAYERS["attention"])):
            out, saved = layer.forward(qkv, num_heads=NH)
            assert np.isfinite(out).all()
            assert np.array_equal(out[:, 0], qkv[:, 0, 2 * C :])  # the first position sees itself alone
            (dqkv,) = layer.backward(dout, saved, num_heads=NH)
            assert np.isfinite(dqkv).all() and dqkv[:, :, 2 * C :].any()


# ---- The same bits ---------------------------------------------------------------------------------------

SMALL = dict(vocab_size=65, block_size=32, n_layer=2, n_head=4, n_embd=64), 6, 32
# Products of 4 million and more are cut in two, and regions have several blocks; no size is a power of two
LARGER = dict(vocab_size=517, block_size=100, n_layer=1, n_head=5, n_embd=155), 6, 91


@pytest.mark.parametrize("sizes", [SMALL, LARGER], ids=["small", "larger"])
@pytest.mark.parametrize("backward", ["manual", "auto", "whole"])
def test_threads_and_repetition_change_no_bit(sizes, backward):
    shape, B, T = sizes
    blas.limit_blas_threads(1)
    rng = np.random.default_rng(0)
    tokens, targets = rng.integers(0, shape["vocab_size"], (2, B, T))
    found = []
    try:
        for n in (1, 2, 3, 1):
            threads.set_threads(n)
            model = GPT2(GPT2Config(**shape), backward)
            for _ in range(2):  # the second run works in used memory
                loss = model.loss_and_grads(tokens, targets)
                found.append((loss, model.flat_grads.copy()))
    finally:
        threads.set_threads(1)
    assert np.abs(found[0][1]).max() > 0
    for loss, grads in found[1:]:
        assert loss == found[0][0]
        assert np.array_equal(grads, found[0][1])


def test_those_products_and_regions_are_cut(monkeypatch):
    """Without this, the test above would hold for a compiler that never shares out work."""
    shared = []
    original = threads.run_on_threads
    monkeypatch.setattr(
        threads, "run_on_threads", lambda job: (shared.append(job.__qualname__), original(job))
    )
    shape, B, T = LARGER
    tokens = np.zeros((B, T), int)
    threads.set_threads(2)
    try:
        GPT2(GPT2Config(**shape)).loss_and_grads(tokens, tokens)
    finally:
        threads.set_threads(1)
    assert {"_timed.<locals>.watched.<locals>.timed", "run_blocks.<locals>.job"} <= set(shared)


# ---- Anomalies -------------------------------------------------------------------------------------------


def logarithm(x):
    y = x * 2.0
    z = np.log(y)
    return np.sum(z * x)


def root(x):
    return np.sum(np.sqrt(x * x))


def masked(x):
    return np.sum(np.where(x > 0.0, np.log(np.abs(x)), 0.0))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_anomaly_is_traced_to_its_line():
    x = np.array([1.0, 0.0, 2.0])
    line = logarithm.__code__.co_firstlineno + 2
    for run in (ad.grad(logarithm), ad.value_and_grad(logarithm), ad.compile(logarithm)):
        with ad.detect_anomaly(), pytest.raises(ad.AnomalyError) as error:
            run(x)
        text = str(error.value)
        assert re.match(rf"tests/test_numbers.py:{line}: log made -inf at \[1\]", text), text
        assert "= 0" in text
    assert np.isnan(ad.compile(logarithm)(x))  # and nothing is followed outside


def test_an_anomaly_of_a_gradient_names_the_forward_s_line():
    line = root.__code__.co_firstlineno + 1
    text = rf"test_numbers.py:{line}: \w+ made (nan|inf)"
    with ad.detect_anomaly(), pytest.raises(ad.AnomalyError, match=text):
        ad.grad(root)(np.array([1.0, 0.0]))


def test_an_anomaly_in_an_argument_is_told_apart():
    text = r"argument x .*holds nan at \[0\] already"
    with ad.detect_anomaly(), pytest.raises(ad.AnomalyError, match=text):
        ad.grad(root)(np.array([np.nan, 1.0]))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_no_result_shows_is_no_anomaly():
    x = np.array([1.0, 0.0, 2.0])
    with ad.detect_anomaly():
        traced = ad.grad(masked)(x)
    assert np.array_equal(traced, ad.grad(masked)(x)) and np.isfinite(traced).all()


def small_model(backward="manual", **how):
    return GPT2(GPT2Config(13, 8, 2, 3, 12), backward, detect_anomaly=True, **how)


BATCH = np.arange(20).reshape(2, 2, 5) % 13


@pytest.mark.parametrize("backward", ["manual", "auto", "whole"])
def test_following_changes_no_bit(backward):
    plain = GPT2(GPT2Config(13, 8, 2, 3, 12), backward)
    followed = small_model(backward)
    assert followed.loss_and_grads(*BATCH) == plain.loss_and_grads(*BATCH)
    assert np.array_equal(followed.flat_grads, plain.flat_grads)


HOW = [dict(backward=b) for b in ("manual", "auto", "whole")]


@pytest.mark.parametrize("how", [*HOW, dict(compile=False)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_overflow_in_a_model_is_traced_to_its_layer_s_line(how):
    model = small_model(**how)
    model.params["qkvb"][1] = 1e25  # scores of 1e50
    with pytest.raises(UserError, match=r"gpt2/layers/attention.py:\d+: ") as error:
        model.loss_and_grads(*BATCH)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("how", HOW)
def test_an_overflow_in_a_backward_is_traced(how):
    """The forward is finite, and so are gradients of 1e10 times the loss: of 1e30 times, the gradient of the
    head's weight is not, where the last layernorm's output, 1e18, meets a gradient of 1e28."""
    model = small_model(**how)
    model.params["lnfw"][...] = 1e18
    model.params["wte"][...] *= 1e-18
    assert np.isfinite(model.loss_and_grads(*BATCH, scale=1e10)) and np.isfinite(model.flat_grads).all()
    text = r"^gpt2/layers/matmul.py:\d+: matmul made -?inf at .* float32 \(13, 12\)"  # (V, C)
    with pytest.raises(UserError, match=text):
        model.loss_and_grads(*BATCH, scale=1e30)


# ---- Spikes ----------------------------------------------------------------------------------------------


def test_a_spike_is_noticed_once_and_noise_is_not():
    rng = np.random.default_rng(0)
    losses = 3.0 + 2.0 * np.exp(-np.arange(500) / 50) + 0.05 * rng.standard_normal(500)
    spikes = Spikes()
    assert not [step for step, loss in enumerate(losses) if spikes.of(loss) is not None]
    losses[300] = 5.0
    spikes = Spikes()
    found = {step: spikes.of(loss) for step, loss in enumerate(losses)}
    found = {step: usual for step, usual in found.items() if usual is not None}
    assert list(found) == [300] and found[300] == pytest.approx(3.0, abs=0.1)


def test_a_loss_that_stays_up_becomes_the_usual_one():
    spikes = Spikes()
    found = [spikes.of(loss) is not None for loss in [3.0, 3.01] * 20 + [6.0, 6.01] * 40]
    assert sum(found) == FEWEST and found[40] and not any(found[40 + FEWEST :])


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"recent": [3.0], "above": None},
        {"recent": ["three"], "above": []},
        {"recent": [np.nan], "above": []},
        {"recent": [3.0] * (RECENT + 1), "above": []},
        {"recent": [3.0] * RECENT, "above": [9.0] * FEWEST},
    ],
)
def test_losses_that_no_spikes_has_kept_are_refused(state):
    spikes = Spikes()
    with pytest.raises((KeyError, TypeError, ValueError)):
        spikes.load_state(state)
    assert spikes.state() == Spikes().state()


def test_seven_layers_are_held():
    assert {case.layer for case in CASES} == set(LAYERS) == set(choose("manual"))
