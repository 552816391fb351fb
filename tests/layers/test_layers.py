"""Properties of all layers, tested on every row of cases.CASES, then properties of single layers."""

import re

import numpy as np
import pytest

from gpt2.backward import auto, choose
from gpt2.layers import ALL_LAYERS, LAYERS, attention, matmul
from tests.support.cases import CASES, NH, B, C, T, V, float_arguments

pytestmark = pytest.mark.numeric

CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def seeded_gradient(out, seed=1):
    """A random output gradient. With ones, the input gradients of softmax and layernorm are zero."""
    return np.random.default_rng(seed).standard_normal(out.shape).astype(out.dtype)


def relative_error(a, b):
    """Largest difference relative to the largest entry of b."""
    return np.max(np.abs(a - b), initial=0.0) / max(np.max(np.abs(b), initial=0.0), 1e-300)


def backward(case, inputs, dout):
    layer = ALL_LAYERS[case.layer]
    _, saved = layer.forward(*inputs, **case.static)
    return layer.backward(dout, saved, **case.static)


@CASE
def test_forward_equals_its_formula(case):
    inputs = case.inputs()
    out, _ = case.forward(*inputs)
    expected = case.formula(*inputs, **case.static)
    assert out.shape == expected.shape
    assert relative_error(out, expected) < 1e-13  # a few hundred roundings of 1e-16


@CASE
def test_backward_is_the_slope(case):
    """Along random directions in each input, against central differences with an error of h^2 = 1e-10."""
    inputs = case.inputs()
    dout = seeded_gradient(case.forward(*inputs)[0])
    gradients = backward(case, inputs, dout)
    assert len(gradients) == len(inputs)
    h = 1e-5
    for i in float_arguments(inputs):
        for seed in range(3):
            direction = np.random.default_rng(10 + seed).standard_normal(inputs[i].shape)

            def along(step, i=i, direction=direction):
                moved = list(inputs)
                moved[i] = inputs[i] + step * direction
                return np.sum(case.forward(*moved)[0] * dout)

            slope = (along(h) - along(-h)) / (2 * h)
            # Relative to the lengths, as the slope may be near zero
            size = np.linalg.norm(gradients[i]) * np.linalg.norm(direction)
            assert size > 0
            found, bound = np.vdot(gradients[i], direction), 1e-6 * size / np.sqrt(direction.size)
            assert abs(found - slope) < bound, (
                f"{case.name}: gradient {i} is not the slope; `gpt2 check {case.layer}` says more"
            )


@CASE
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_shapes_and_dtype_are_kept(case, dtype):
    inputs = case.inputs(dtype)
    out, saved = case.forward(*inputs)
    assert out.dtype == dtype
    assert isinstance(saved, tuple)
    gradients = backward(case, inputs, seeded_gradient(out))
    assert isinstance(gradients, tuple)
    for x, dx in zip(inputs, gradients, strict=True):
        if x is None or x.dtype.kind != "f":
            assert dx is None
        else:
            assert (dx.shape, dx.dtype) == (x.shape, dtype)


@CASE
def test_arguments_are_untouched(case):
    inputs = case.inputs()
    for x in inputs:
        if x is not None:
            x.flags.writeable = False  # a write would raise
    out, saved = case.forward(*inputs)
    dout = seeded_gradient(out)
    dout.flags.writeable = False
    before = [None if x is None else x.copy() for x in saved]
    first, second = (ALL_LAYERS[case.layer].backward(dout, saved, **case.static) for _ in range(2))
    for was, x in zip(before, saved):
        assert was is x or np.array_equal(was, x)
    for a, b in zip(first, second):
        assert a is b is None or np.array_equal(a, b)


@CASE
def test_layout_does_not_matter(case):
    inputs = case.inputs()
    strided = [x if x is None else np.repeat(x, 2, axis=-1)[..., ::2] for x in inputs]
    transposed = [x if x is None else np.asfortranarray(x) for x in inputs]
    out, _ = case.forward(*inputs)
    dout = seeded_gradient(out)
    for other in (strided, transposed):
        assert relative_error(case.forward(*other)[0], out) < 1e-13
        for a, b in zip(backward(case, other, np.asfortranarray(dout)), backward(case, inputs, dout)):
            assert a is b is None or relative_error(a, b) < 1e-13


def test_table_lists_the_seven_layers():
    assert list(LAYERS) == "encoder layernorm matmul attention gelu residual crossentropy".split()
    assert {layer.kind for layer in LAYERS.values()} == {"manual"}
    assert {case.layer for case in CASES} == set(ALL_LAYERS)
    assert set(choose("manual")) == set(LAYERS)


# Encoder


def test_encoder_repeated_tokens_add_up():
    tokens = np.array([[3, 1, 3], [3, 3, 0]])
    dout = seeded_gradient(np.empty((2, 3, 4)))
    out, saved = LAYERS["encoder"].forward(tokens, np.zeros((5, 4)), np.zeros((6, 4)))
    _, dwte, dwpe = LAYERS["encoder"].backward(dout, saved)
    np.testing.assert_allclose(dwte[3], dout[0, 0] + dout[0, 2] + dout[1, 0] + dout[1, 1], rtol=1e-14)
    assert not dwte[[2, 4]].any() and not dwpe[3:].any()  # unused rows


# Matmul


@pytest.mark.parametrize("bias", [True, False])
def test_naive_matmul_equals_matmul(bias):
    rng = np.random.default_rng(0)
    inp, weight, dout = (rng.standard_normal(shape) for shape in ((B, T, C), (7, C), (B, T, 7)))
    bias = rng.standard_normal(7) if bias else None
    fast, naive = LAYERS["matmul"], matmul.NAIVE
    (out, saved), (out_naive, saved_naive) = fast.forward(inp, weight, bias), naive.forward(inp, weight, bias)
    assert relative_error(out_naive, out) < 1e-14
    for a, b in zip(naive.backward(dout, saved_naive), fast.backward(dout, saved), strict=True):
        assert a is b is None or relative_error(a, b) < 1e-14


def test_matmul_saves_without_a_copy():
    inputs = np.ones((2, 3)), np.ones((4, 3)), np.ones(4)
    _, saved = LAYERS["matmul"].forward(*inputs)
    assert all(a is b for a, b in zip(saved, inputs))


# Attention


def test_attention_is_causal():
    """Changing a position changes no bit of earlier outputs and gradients."""
    rng = np.random.default_rng(0)
    qkv, dout = rng.standard_normal((1, 6, 3 * C)), rng.standard_normal((1, 6, C))
    changed = qkv.copy()
    changed[:, 4:] = 1e3 * rng.standard_normal((1, 2, 3 * C))
    dout[:, 4:] = 0.0  # no loss from position 4 on
    results = []
    for x in (qkv, changed):
        out, saved = attention.attention_forward(x, num_heads=NH)
        (dqkv,) = attention.attention_backward(dout, saved, num_heads=NH)
        results.append((out[:, :4], dqkv[:, :4], dqkv[:, 4:]))
    for a, b in zip(*results):
        assert np.array_equal(a, b)
    assert not results[0][2].any()


def test_attention_in_blocks_equals_attention(monkeypatch):
    rng = np.random.default_rng(0)
    qkv, dout = rng.standard_normal((B, 13, 3 * C)), rng.standard_normal((B, 13, C))
    results = []
    for block in (128, 4):  # 13 = 4 + 4 + 4 + 1: the last block is partial
        monkeypatch.setattr(attention, "QUERY_BLOCK", block)
        out, saved = attention.attention_forward(qkv, num_heads=NH)
        results.append((out, *attention.attention_backward(dout, saved, num_heads=NH)))
    for a, b in zip(*results):
        assert relative_error(a, b) < 1e-14


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_attention_survives_large_scores(dtype):
    """With scores of 1e6 softmax selects one value, and exp of a raw score would overflow."""
    qkv = (1e3 * np.random.default_rng(0).standard_normal((1, T, 3 * C))).astype(dtype)
    out, saved = attention.attention_forward(qkv, num_heads=NH)
    (dqkv,) = attention.attention_backward(np.ones_like(out), saved, num_heads=NH)
    assert np.isfinite(out).all() and np.isfinite(dqkv).all()
    np.testing.assert_array_equal(out[:, 0], qkv[:, 0, 2 * C :])  # the first position attends to itself only


# Crossentropy


@pytest.mark.parametrize("name, slope", [("gelu_erf", 0.5), ("relu", 0.0)])
def test_gelu_erf_and_relu_have_pytorchs_slope_at_zero(name, slope):
    _, saved = ALL_LAYERS[name].forward(np.zeros(3))
    np.testing.assert_array_equal(ALL_LAYERS[name].backward(np.ones(3), saved)[0], np.full(3, slope))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_crossentropy_survives_large_logits(dtype):
    logits = np.array([[1e4, 0.0, -1e4], [1e4, 1e4, -1e4]], dtype)
    losses, saved = LAYERS["crossentropy"].forward(logits, np.array([2, 0]))
    np.testing.assert_allclose(losses, [2e4, np.log(2)], rtol=1e-6)
    dlogits, _ = LAYERS["crossentropy"].backward(np.array([2.0, 3.0], dtype), saved)
    np.testing.assert_allclose(dlogits, [[2, 0, -2], [-1.5, 1.5, 0]], rtol=1e-6)


def test_targets_that_all_count_have_a_program_without_the_others():
    targets = ids(B, T)
    pair = auto(LAYERS["crossentropy"]).forward.__self__
    ignoring = pair.source(LOGITS, np.where(np.arange(T) == 1, -1, targets))
    assert "where" in ignoring and "where" not in pair.source(LOGITS, targets)


# Errors: one line with the argument, what was expected and what was given


def f(*shape):
    return np.zeros(shape)


def ids(*shape, value=0):
    return np.full(shape, value)


WTE, WPE, LOGITS = f(V, C), f(8, C), f(B, T, V)
BAD_INPUT = [
    ("encoder", (f(B, T), WTE, WPE), "tokens has dtype float64, expected integers"),
    ("encoder", (ids(T), WTE, WPE), "tokens has shape (5,), expected (B, T)"),
    ("encoder", (ids(B, T, value=V), WTE, WPE), "tokens contains 11, expected ids from 0 to 10"),
    ("encoder", (ids(B, T, value=-1), WTE, WPE), "tokens contains -1, expected ids from 0 to 10"),
    ("encoder", (ids(B, T), WTE, f(4, C)), "tokens has T=5 positions, but wpe has vectors for 4"),
    ("encoder", (ids(B, T), WTE, f(8, 4)), "wpe has shape (8, 4), expected (maxT, 12)"),
    ("layernorm", (f(4, 8, 48), f(64), f(48)), "weight has shape (64,), expected (48,) to match inp"),
    ("layernorm", (f(4, 8, 48), f(48), f(1)), "bias has shape (1,), expected (48,)"),
    ("matmul", (f(T, C), f(C, 7), None), "weight has shape (12, 7), expected (OC, 12) to match inp (5, 12)"),
    ("matmul", (f(T, C), f(7, C), f(1)), "bias has shape (1,), expected (7,)"),
    ("attention", (f(B, T, 35), 3), "qkv has shape (2, 5, 35), expected (B, T, 3*C)"),
    ("attention", (f(B, T, 36), 5), "num_heads is 5, expected a divisor of C=12"),
    ("attention", (f(B, T, 36), 0), "num_heads is 0, expected a divisor of C=12"),
    ("residual", (f(B, T), f(1, T)), "b has shape (1, 5), expected (2, 5)"),
    ("crossentropy", (LOGITS, ids(T, B)), "targets has shape (5, 2), expected (2, 5)"),
    ("crossentropy", (LOGITS, ids(B, T, value=V)), "targets contains 11, expected ids from 0 to 10"),
    (
        "crossentropy",
        (LOGITS, np.array([[0, -1, -2, 3, 4], [-100, 0, 0, 0, 0]])),
        "targets contains -2, expected ids from 0 to 10, or -1 or -100 for targets that do not count",
    ),
    ("crossentropy", (LOGITS, f(B, T)), "targets has dtype float64, expected integers"),
]


@pytest.mark.parametrize(("layer", "inputs", "message"), BAD_INPUT)
def test_invalid_input_is_an_error(layer, inputs, message):
    static = {}
    if layer == "attention":
        inputs, static = inputs[:1], {"num_heads": inputs[1]}
    with pytest.raises(ValueError, match="^" + re.escape(f"{layer}_forward: {message}")) as error:
        LAYERS[layer].forward(*inputs, **static)
    assert "\n" not in str(error.value)
