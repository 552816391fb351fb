"""Precision at any scale, equal bits on any number of threads, lines of anomalies, spikes of the loss."""

import itertools
import re

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.run import blas, threads
from gpt2.backward import auto
from gpt2.errors import UserError
from gpt2.layers import ALL_LAYERS, LAYERS
from gpt2.model import GPT2, GPT2Config
from gpt2.train.run import FEWEST, RECENT, Spikes
from tests.support.cases import CASES, NH, C

pytestmark = pytest.mark.numeric

ROUNDING = 2.0**-24  # of float32: half a unit in the last place of 1

# ---- Precision -------------------------------------------------------------------------------------------

SCALES = (1e-6, 1e-4, 1e-2, 1.0, 1e2, 1e4)
# What docs/promises.md states. Measured: 4.8 at most, on these inputs.
ROUNDINGS = 8


def condition(case, inputs, dout):
    """What a float32 rounding may add to the errors of output and gradients, besides their own size.

    A softmax turns an error of a score into one of the same size in its logarithm, so attention's output errs
    with its largest score, and its gradients with that times the queries, keys and values they multiply.
    """
    if "attention" not in case.layer:
        return 0.0, 0.0
    size, HS = np.max(np.abs(inputs[0])), C // case.static["num_heads"]
    score = size**2 * (np.sqrt(HS) if case.static.get("scaled", True) else HS)
    return score * size, np.max(np.abs(dout)) * score


@pytest.mark.parametrize("kind", ["manual", "auto"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_float32_agrees_with_float64_within_roundings(case, kind):
    """Activations are scaled; weights are not, as they stay near 1 in a model. Nothing overflows."""
    exact = ALL_LAYERS[case.layer]
    layer = exact if kind == "manual" else auto(exact)
    for scale, seed in itertools.product(SCALES, range(2)):
        single = scaled_inputs(case, scale, seed)
        double = [x if x is None or x.dtype.kind != "f" else x.astype(np.float64) for x in single]
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            out, saved = layer.forward(*single, **case.static)
            out64, saved64 = exact.forward(*double, **case.static)
            dout = np.random.default_rng(seed).standard_normal(out64.shape).astype(np.float32)
            gradients = layer.backward(dout, saved, **case.static)
            gradients64 = exact.backward(dout.astype(np.float64), saved64, **case.static)
        forward, backward = condition(case, double, dout)
        assert_close(out, out64, forward, f"{scale:g}")
        for a, b in zip(gradients, gradients64):
            if b is not None:
                assert_close(a, b, backward, f"gradient, {scale:g}")


def scaled_inputs(case, scale, seed):
    """Inputs in float32, of which the activations are scaled."""
    activations = {"encoder": (1, 2), "residual": (0, 1)}.get(case.layer, (0,))
    return [
        x if x is None or x.dtype.kind != "f" else (x * scale if i in activations else x).astype(np.float32)
        for i, x in enumerate(case.inputs(np.float64, seed))
    ]


def assert_close(result, expected, condition, name):
    size = np.max(np.abs(expected))
    assert np.max(np.abs(result - expected)) <= ROUNDINGS * ROUNDING * (size + condition), name


def test_exponentials_never_overflow():
    """Logits of 1e30 and scores near 1e27, whose exponentials overflow: softmax subtracts the largest first,
    and the mask's -1e30 is still below all of them."""
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
            assert np.array_equal(out[:, 0], qkv[:, 0, 2 * C :])  # the first position attends to itself only
            (dqkv,) = layer.backward(dout, saved, num_heads=NH)
            assert np.isfinite(dqkv).all() and dqkv[:, :, 2 * C :].any()


# ---- The same bits ---------------------------------------------------------------------------------------

# Large enough that products are split in two and regions have several blocks; no size is a power of two
SHAPE, B, T = dict(vocab_size=517, block_size=100, n_layer=1, n_head=5, n_embd=155), 6, 91


@pytest.mark.parametrize("backward", ["manual", "auto", "whole"])
def test_threads_and_repetition_change_no_bit(backward):
    blas.limit_blas_threads(1)
    tokens, targets = np.random.default_rng(0).integers(0, SHAPE["vocab_size"], (2, B, T))
    results = []
    for n in (1, 2, 3, 1):
        threads.set_threads(n)
        model = GPT2(GPT2Config(**SHAPE), backward)
        for _ in range(2):  # the second step reuses memory
            loss = model.loss_and_grads(tokens, targets)
            results.append((loss, model.flat_grads.copy()))
    first_loss, first_grads = results[0]
    assert first_grads.any()
    assert all(loss == first_loss and np.array_equal(grads, first_grads) for loss, grads in results)


def test_model_of_that_size_splits_products_and_regions(monkeypatch):
    """Otherwise the test above would pass without any parallel work."""
    jobs, run_on_threads = set(), threads.run_on_threads
    monkeypatch.setattr(
        threads, "run_on_threads", lambda job: (jobs.add(job.__qualname__), run_on_threads(job))
    )
    tokens = np.zeros((B, T), int)
    threads.set_threads(2)
    GPT2(GPT2Config(**SHAPE)).loss_and_grads(tokens, tokens)
    assert {"_run.<locals>.job", "run_blocks.<locals>.job"} <= jobs


# ---- Anomalies -------------------------------------------------------------------------------------------


def logarithm(x):
    y = x * 2.0
    z = np.log(y)
    return np.sum(z * x)


def root(x):
    return np.sum(np.sqrt(x * 1.5))


def masked(x):
    return np.sum(np.where(x > 0.0, np.log(np.abs(x)), 0.0))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_anomaly_names_its_line():
    x = np.array([1.0, 0.0, 2.0])
    line = logarithm.__code__.co_firstlineno + 2
    for run in (ad.grad(logarithm), ad.value_and_grad(logarithm), ad.compile(logarithm)):
        with ad.detect_anomaly(), pytest.raises(ad.AnomalyError) as error:
            run(x)
        text = str(error.value)
        assert re.match(rf"tests/model/test_numbers.py:{line}: log made -inf at \[1\]", text), text
        assert "= 0" in text
    assert np.isnan(ad.compile(logarithm)(x))  # detection ends with its context


@pytest.mark.parametrize(
    "x, text",
    [
        ([1.0, 0.0], rf"test_numbers.py:{root.__code__.co_firstlineno + 1}: \w+ made (nan|inf)"),
        ([np.nan, 1.0], r"argument x .*holds nan at \[0\] already"),
    ],
)
def test_anomaly_in_a_gradient_names_the_forward_line_or_the_argument(x, text):
    with ad.detect_anomaly(), pytest.raises(ad.AnomalyError, match=text):
        ad.grad(root)(np.array(x))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_masked_infinity_is_no_anomaly():
    x = np.array([1.0, 0.0, 2.0])
    with ad.detect_anomaly():
        traced = ad.grad(masked)(x)
    assert np.array_equal(traced, ad.grad(masked)(x)) and np.isfinite(traced).all()


def watched_model(backward="manual", **options):
    return GPT2(GPT2Config(13, 8, 2, 3, 12), backward, detect_anomaly=True, **options)


BATCH = np.arange(20).reshape(2, 2, 5) % 13
BACKWARDS = ["manual", "auto", "whole"]


@pytest.mark.parametrize("backward", BACKWARDS)
def test_anomaly_detection_changes_no_bit(backward):
    plain, watched = GPT2(GPT2Config(13, 8, 2, 3, 12), backward), watched_model(backward)
    assert watched.loss_and_grads(*BATCH) == plain.loss_and_grads(*BATCH)
    assert np.array_equal(watched.flat_grads, plain.flat_grads)


@pytest.mark.parametrize(
    "backward, compile", [*((backward, True) for backward in BACKWARDS), ("manual", False)]
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_overflow_in_a_model_names_the_layer_line(backward, compile):
    model = watched_model(backward, compile=compile)
    model.params["qkvb"][1] = 1e25  # scores of 1e50
    with pytest.raises(UserError, match=r"gpt2/layers/attention.py:\d+: ") as error:
        model.loss_and_grads(*BATCH)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("backward", BACKWARDS)
def test_overflow_in_a_backward_names_the_layer_line(backward):
    """The forward is finite, and so are gradients of 1e10 times the loss. Of 1e30 times, the gradient of the
    head's weight is not: the last layernorm's output, 1e18, meets a gradient of 1e28."""
    model = watched_model(backward)
    model.params["lnfw"][...] = 1e18
    model.params["wte"][...] *= 1e-18
    assert np.isfinite(model.loss_and_grads(*BATCH, scale=1e10)) and np.isfinite(model.flat_grads).all()
    text = r"^gpt2/layers/matmul.py:\d+: matmul made -?inf at .* float32 \(13, 12\)"  # (V, C)
    with pytest.raises(UserError, match=text):
        model.loss_and_grads(*BATCH, scale=1e30)


# ---- Spikes ----------------------------------------------------------------------------------------------


def test_spike_is_reported_once_and_noise_is_not():
    rng = np.random.default_rng(0)
    losses = 3.0 + 2.0 * np.exp(-np.arange(500) / 50) + 0.05 * rng.standard_normal(500)
    spikes = Spikes()
    assert all(spikes.of(loss) is None for loss in losses)
    losses[300] = 5.0
    spikes = Spikes()
    usual = {step: spikes.of(loss) for step, loss in enumerate(losses)}
    assert [step for step in usual if usual[step] is not None] == [300]
    assert usual[300] == pytest.approx(3.0, abs=0.1)


def test_loss_that_stays_high_becomes_the_usual_loss():
    spikes = Spikes()
    reported = [spikes.of(loss) is not None for loss in [3.0, 3.01] * 20 + [6.0, 6.01] * 40]
    assert sum(reported) == FEWEST and reported[40] and not any(reported[40 + FEWEST :])


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
def test_invalid_spike_state_is_refused(state):
    spikes = Spikes()
    with pytest.raises((KeyError, TypeError, ValueError)):
        spikes.load_state(state)
    assert spikes.state() == Spikes().state()
