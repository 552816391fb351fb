"""check_grads and check_backward accept correct derivatives, and describe what is wrong with others."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.check.check_grads import BackwardMismatch, check_backward, check_grads
from gpt2.autodiff.check.numeric import GradientMismatch, check_graph
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import OPS, apply, input_node
from gpt2.layers import LAYERS
from tests.autodiff.check.test_forty_mistakes import edited

RNG = np.random.default_rng(0)
B, C = 3, 4
POINT, LARGE = np.linspace(-1.3, 0.9, 7), np.linspace(1.0, 3.0, 7)


# --- check_grads ----------------------------------------------------------------------------------------


def test_nested_arguments():
    def f(params, x, scale):
        return {"y": [np.tanh(x @ params["w"]) * scale, params["b"][0] ** 2]}

    params = {"w": RNG.standard_normal((C, 2)), "b": (1.5,), "name": "layer"}
    check_grads(f, (params, RNG.standard_normal((B, C)).astype(np.float32), 2.0))


def test_captured_arrays_and_writes_to_arguments():
    table = RNG.standard_normal((B, C))

    def f(out, x):
        out[:] = x * table
        out += np.sin(x)
        return out.sum()

    check_grads(f, (np.zeros((B, C)), RNG.standard_normal((B, C))))


def test_single_modes_to_third_order():
    for modes in (("fwd",), ("rev",)):
        check_grads(lambda x: x**3 * np.exp(x), (np.array([0.5, -1.0]),), order=3, modes=modes)


def test_complex_arguments():
    check_grads(lambda z: np.abs(z * z + 1j), (np.array([0.5 + 2j, 1 - 1j]),))


@pytest.fixture
def wrong_tanh(monkeypatch):
    monkeypatch.setattr(OPS["tanh"], "partials", lambda out, x: (1.0 + out * out,))


def test_wrong_rule_fails_in_both_modes(wrong_tanh):
    x = RNG.standard_normal(4)
    with pytest.raises(GradientMismatch, match="forward mode, tangent of output 0.* by central differences"):
        check_grads(np.tanh, (x,), modes=("fwd",))
    with pytest.raises(GradientMismatch, match=r"reverse mode.*wrong with respect to input 1 \(y\)"):
        check_grads(lambda x, y: x * np.tanh(y), (x, x), modes=("rev",))


def test_wrong_transpose_fails_in_reverse_mode(monkeypatch):
    def doubled(g, out, x, shape):
        return (apply("reshape", g, shape=x.shape) * 2.0,)

    monkeypatch.setattr(OPS["reshape"], "transpose", doubled)
    with pytest.raises(GradientMismatch, match="reverse mode"):
        check_grads(lambda x: x.reshape(4) ** 2, (np.ones((2, 2)),))


def test_wrong_second_derivative_fails(monkeypatch):
    """cos is the right derivative of sin, but has a wrong derivative itself."""
    monkeypatch.setattr(OPS["cos"], "partials", lambda out, x: (out,))
    x = RNG.standard_normal(4)
    check_grads(np.sin, (x,), order=1)
    with pytest.raises(GradientMismatch, match="jvp|vjp"):
        check_grads(np.sin, (x,), order=2)


@pytest.mark.parametrize("modes", [("fwd", "rev"), ("fwd",), ("rev",)], ids="-".join)
@pytest.mark.parametrize("f, x", [
    (lambda x: np.sum(x**2), np.zeros(3)),
    (lambda x: np.sum((x - np.ones(3)) ** 2), np.ones(3)),
    (lambda x: x[0] * x[1] * x[2], np.zeros(3)),
    (lambda x: np.var(x), np.ones(3)),
    (lambda x: np.sum(np.exp(x) / np.sum(np.exp(x))), POINT),
    (lambda x: np.sum(x - np.mean(x)), POINT),
    (lambda x: np.linalg.norm(x / np.linalg.norm(x)), POINT),
])  # fmt: skip
def test_zero_derivatives_pass_despite_rounding(f, x, modes):
    check_grads(f, (x,), modes=modes)


def test_random_function_and_small_mistake_are_not_taken_for_rounding():
    rng = np.random.default_rng(0)
    with pytest.raises(GradientMismatch):
        check_grads(lambda x: np.sum(x - np.mean(x)) + 1e-6 * rng.random(), (np.ones(3),))

    @ad.custom_vjp
    def small(x):
        return 1e-9 * np.sin(x)

    small.defvjp(lambda dout, out, x: (1.00001e-9 * dout * np.cos(x),))
    with pytest.raises(GradientMismatch):
        check_grads(small, (POINT,))


@pytest.mark.parametrize("value, slope, x, factor", [
    # a large term hides digits ...
    (lambda x: 1e8 + np.sin(x), np.cos, POINT, 1.3),
    (lambda x: 1e6 + x, np.ones_like, POINT, 1.01),
    (lambda x: 1e6 + np.abs(x), np.sign, np.array([1e-3, -1e-3, 1.0]), 1.01),
    (lambda x: 1.0 + 1e-7 * np.sin(x), lambda x: 1e-7 * np.cos(x), POINT, 0.0),
    (lambda x: 1.0 + 1e-9 * x, lambda x: np.full_like(x, 1e-9), POINT, 0.0),
    (lambda x: x * x, lambda x: 2.0 * x, 1e6 * LARGE, 1.01),
    (lambda x: x * x, lambda x: 2.0 * x, 1e8 * LARGE, -1.0),
    (lambda x: np.log(x), lambda x: 1.0 / x, 1e6 * LARGE, 1.01),
    # ... a scale factor does not
    (lambda x: 1e-200 * np.sin(x), lambda x: 1e-200 * np.cos(x), POINT, 1.0001),
    (lambda x: 1e200 * np.sin(x), lambda x: 1e200 * np.cos(x), POINT, 1.0001),
])  # fmt: skip
@pytest.mark.parametrize("modes", [("fwd", "rev"), ("fwd",), ("rev",)], ids="-".join)
def test_mistakes_larger_than_rounding_fail(value, slope, x, factor, modes):
    """A derivative that is wrong at all points, and at a single one."""

    def check_scaled(factors):
        g = ad.custom_vjp(value)
        g.defvjp(lambda dout, out, x: (factors * dout * slope(x),))
        check_grads(g, (x,), order=1, modes=modes)

    check_scaled(np.ones(x.shape))
    for factors in (np.full(x.shape, factor), np.where(np.arange(x.size) == 1, -1.0, 1.0)):
        with pytest.raises(GradientMismatch):
            check_scaled(factors)


def test_nan_fails():
    x = input_node((1,), np.float64, "x")
    with np.errstate(all="ignore"), pytest.raises(GradientMismatch):
        check_graph(Graph([x], [apply("sqrt", x)]), [np.zeros(1)])


def test_invalid_arguments_are_errors():
    with pytest.raises(TypeError, match=r"args must be a tuple of arguments, got ndarray: write \(x,\)"):
        check_grads(np.sin, np.ones(3))
    with pytest.raises(ValueError, match="modes must be"):
        check_grads(np.sin, (np.ones(3),), modes=("forward",))


# --- check_backward -------------------------------------------------------------------------------------


LAYERNORM = LAYERS["layernorm"]


def layernorm_case(dtype=np.float64):
    return tuple(RNG.standard_normal(shape).astype(dtype) for shape in ((2, B, C), (C,), (C,)))


def report(forward, backward, *cases):
    with pytest.raises(BackwardMismatch) as e:
        check_backward(forward, backward, cases)
    return str(e.value)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_correct_backward_passes(dtype):
    check_backward(LAYERNORM.forward, LAYERNORM.backward, [layernorm_case(dtype), layernorm_case(dtype)])


def test_manual_backwards_of_layers_pass():
    check_backward(LAYERS["gelu"].forward, LAYERS["gelu"].backward, [(RNG.standard_normal((2, 5)),)])
    qkv = RNG.standard_normal((2, 5, 36))
    attention = LAYERS["attention"]
    cases = [((qkv,), {"num_heads": 3}), ((qkv,), {"num_heads": 2})]
    check_backward(attention.forward, attention.backward, cases)


def test_missing_path_is_reported_with_its_line():
    text = report(LAYERNORM.forward, edited("layernorm", " - norm * scale", ""), layernorm_case())
    assert "case 0, gradient 0 (inp): wrong at 24 of 24, most at [" in text
    assert "the path through variance (layernorm.py:" in text and "variance = np.mean(" in text
    assert "gradient 1" not in text


def test_wrong_shapes_dtypes_and_counts_are_reported():
    def widened(dout, saved):
        return tuple(np.float64(1.0) * g for g in LAYERNORM.backward(dout, saved))

    unsummed = edited("layernorm", "dbias = np.sum(dout, axis=(0, 1))", "dbias = dout")
    text = report(LAYERNORM.forward, unsummed, layernorm_case())
    assert "gradient 2 (bias): it has shape (2, 3, 4), expected (4,)" in text
    assert "not summed over axes (0, 1)" in text
    text = report(LAYERNORM.forward, lambda d, s: LAYERNORM.backward(d, s)[::-1], layernorm_case())
    assert "shape" in text
    text = report(LAYERNORM.forward, widened, layernorm_case(np.float32))
    assert "it has dtype float64, and its input float32" in text
    text = report(LAYERNORM.forward, lambda d, s: LAYERNORM.backward(d, s)[:2], layernorm_case())
    assert "gradients returned: 2, inputs: 3" in text


def test_backward_that_takes_the_inputs():
    def forward(x, y):
        return x * y

    case = (np.ones(3), np.arange(3.0))
    check_backward(forward, lambda dout, x, y: (dout * y, dout * x), [case])
    text = report(forward, lambda dout, x, y: (dout * y, -dout * x), case)
    assert "gradient 1 (y)" in text and "the sign is wrong" in text


def test_writing_to_arguments_is_reported():
    def backward(dout, saved):
        dout *= saved[0]
        return (dout,)

    assert "dout is written to" in report(lambda x: (x * x / 2, (x,)), backward, (np.arange(3.0),))


def test_nearby_kink_passes_unless_within_the_difference_step():
    check_grads(np.abs, (np.array([1e-4, -2e-4, 1.0]),))
    with pytest.raises(GradientMismatch):
        check_grads(np.abs, (np.array([1e-6]),))
