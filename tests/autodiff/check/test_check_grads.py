"""check_grads and check_backward: they pass correct backwards, and describe errors."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.check.check_grads import BackwardMismatch, check_backward, check_grads
from gpt2.autodiff.check.numeric import GradientMismatch, check_graph
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import OPS, apply, input_node

RNG = np.random.default_rng(0)
B, C = 3, 4


# --- check_grads ----------------------------------------------------------------------------------------


def test_a_function_of_nested_arguments():
    def f(params, x, scale):
        return {"y": [np.tanh(x @ params["w"]) * scale, params["b"][0] ** 2]}

    params = {"w": RNG.standard_normal((C, 2)), "b": (1.5,), "name": "layer"}
    check_grads(f, (params, RNG.standard_normal((B, C)).astype(np.float32), 2.0))


def test_captured_arrays_and_arguments_written_to():
    table = RNG.standard_normal((B, C))

    def f(out, x):
        out[:] = x * table
        out += np.sin(x)
        return out.sum()

    check_grads(f, (np.zeros((B, C)), RNG.standard_normal((B, C))))


def test_either_mode_alone_and_other_orders():
    for modes in (("fwd",), ("rev",)):
        check_grads(lambda x: x**3 * np.exp(x), (np.array([0.5, -1.0]),), order=3, modes=modes)


def test_complex_arguments():
    check_grads(lambda z: np.abs(z * z + 1j), (np.array([0.5 + 2j, 1 - 1j]),))


@pytest.fixture
def wrong_tanh(monkeypatch):
    monkeypatch.setattr(OPS["tanh"], "partials", lambda out, x: (1.0 + out * out,))


def test_a_wrong_rule_is_found_in_both_modes(wrong_tanh):
    x = RNG.standard_normal(4)
    with pytest.raises(GradientMismatch, match="forward mode, tangent of output 0.* by central differences"):
        check_grads(np.tanh, (x,), modes=("fwd",))
    with pytest.raises(GradientMismatch, match=r"reverse mode.*wrong with respect to input 1 \(y\)"):
        check_grads(lambda x, y: x * np.tanh(y), (x, x), modes=("rev",))


def test_a_rule_that_is_right_only_forward_is_found(monkeypatch):
    def twice(g, out, x, shape):
        return (apply("reshape", g, shape=x.shape) * 2.0,)

    monkeypatch.setattr(OPS["reshape"], "transpose", twice)
    with pytest.raises(GradientMismatch, match="reverse mode"):
        check_grads(lambda x: x.reshape(4) ** 2, (np.ones((2, 2)),))


def test_a_wrong_second_derivative_is_found(monkeypatch):
    """cos is right here as the derivative of sin, and its own derivative is wrong."""
    monkeypatch.setattr(OPS["cos"], "partials", lambda out, x: (out,))
    x = RNG.standard_normal(4)
    check_grads(np.sin, (x,), order=1)
    with pytest.raises(GradientMismatch, match="jvp|vjp"):
        check_grads(np.sin, (x,), order=2)


@pytest.mark.parametrize("modes", [("fwd", "rev"), ("fwd",), ("rev",)], ids="-".join)
@pytest.mark.parametrize(
    "f, x",
    [
        (lambda x: np.sum(x**2), np.zeros(3)),
        (lambda x: np.sum((x - np.ones(3)) ** 2), np.ones(3)),
        (lambda x: x[0] * x[1] * x[2], np.zeros(3)),
        (lambda x: np.var(x), np.ones(3)),
        (lambda x: np.sum(np.exp(x) / np.sum(np.exp(x))), np.linspace(-1.3, 0.9, 7)),
        (lambda x: np.sum(x - np.mean(x)), np.linspace(-1.3, 0.9, 7)),
        (lambda x: np.linalg.norm(x / np.linalg.norm(x)), np.linspace(-1.3, 0.9, 7)),
    ],
)
def test_a_derivative_that_is_zero_may_be_compared_with_rounding(f, x, modes):
    check_grads(f, (x,), modes=modes)


def test_rounding_excuses_neither_a_random_function_nor_a_small_mistake():
    rng = np.random.default_rng(0)
    with pytest.raises(GradientMismatch):
        check_grads(lambda x: np.sum(x - np.mean(x)) + 1e-6 * rng.random(), (np.ones(3),))

    @ad.custom_vjp
    def small(x):
        return 1e-9 * np.sin(x)

    small.defvjp(lambda dout, out, x: (1.00001e-9 * dout * np.cos(x),))
    with pytest.raises(GradientMismatch):
        check_grads(small, (np.linspace(-1.3, 0.9, 7),))


POINT = np.linspace(-1.3, 0.9, 7)
LARGE = np.linspace(1.0, 3.0, 7)


@pytest.mark.parametrize(
    "value, slope, x, factor",
    [
        (lambda x: 1e8 + np.sin(x), np.cos, POINT, 1.3),  # what is added hides some of the digits ...
        (lambda x: 1e6 + x, np.ones_like, POINT, 1.01),
        (lambda x: 1e6 + np.abs(x), np.sign, np.array([1e-3, -1e-3, 1.0]), 1.01),
        (lambda x: 1.0 + 1e-7 * np.sin(x), lambda x: 1e-7 * np.cos(x), POINT, 0.0),
        (lambda x: 1.0 + 1e-9 * x, lambda x: np.full_like(x, 1e-9), POINT, 0.0),
        (lambda x: x * x, lambda x: 2.0 * x, 1e6 * LARGE, 1.01),
        (lambda x: x * x, lambda x: 2.0 * x, 1e8 * LARGE, -1.0),
        (lambda x: np.log(x), lambda x: 1.0 / x, 1e6 * LARGE, 1.01),
        (lambda x: 1e-200 * np.sin(x), lambda x: 1e-200 * np.cos(x), POINT, 1.0001),  # ... a scale does not
        (lambda x: 1e200 * np.sin(x), lambda x: 1e200 * np.cos(x), POINT, 1.0001),
    ],
)
@pytest.mark.parametrize("modes", [("fwd", "rev"), ("fwd",), ("rev",)], ids="-".join)
def test_what_rounding_leaves_to_be_seen_is_seen(value, slope, x, factor, modes):
    """At all points, and where it is wrong at a single one."""

    def checked(factors):
        g = ad.custom_vjp(value)
        g.defvjp(lambda dout, out, x: (factors * dout * slope(x),))
        check_grads(g, (x,), order=1, modes=modes)

    checked(np.ones(x.shape))
    for factors in (np.full(x.shape, factor), np.where(np.arange(x.size) == 1, -1.0, 1.0)):
        with pytest.raises(GradientMismatch):
            checked(factors)


def test_nan_is_a_mismatch():
    x = input_node((1,), np.float64, "x")
    with np.errstate(all="ignore"), pytest.raises(GradientMismatch):
        check_graph(Graph([x], [apply("sqrt", x)]), [np.zeros(1)])


def test_arguments_are_checked():
    with pytest.raises(TypeError, match=r"args must be a tuple of arguments, got ndarray: write \(x,\)"):
        check_grads(np.sin, np.ones(3))
    with pytest.raises(ValueError, match="modes must be"):
        check_grads(np.sin, (np.ones(3),), modes=("forward",))


# --- check_backward -------------------------------------------------------------------------------------


def layernorm_forward(inp, weight, bias):
    mean = inp.mean(-1, keepdims=True)
    rstd = 1.0 / np.sqrt(((inp - mean) ** 2).mean(-1, keepdims=True) + 1e-5)
    return (inp - mean) * rstd * weight + bias, (inp, weight, mean, rstd)


def layernorm_backward(dout, saved):
    inp, weight, mean, rstd = saved
    norm = (inp - mean) * rstd
    dnorm = dout * weight
    dinp = dnorm - dnorm.mean(-1, keepdims=True) - norm * (dnorm * norm).mean(-1, keepdims=True)
    return dinp * rstd, (dout * norm).sum(0), dout.sum(0)


def layernorm_case(dtype=np.float64):
    return tuple(RNG.standard_normal(shape).astype(dtype) for shape in ((B, C), (C,), (C,)))


def report(forward, backward, *cases):
    with pytest.raises(BackwardMismatch) as e:
        check_backward(forward, backward, cases)
    return str(e.value)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_right_backward_passes(dtype):
    check_backward(layernorm_forward, layernorm_backward, [layernorm_case(dtype), layernorm_case(dtype)])


def test_the_layers_of_the_engine_pass():
    from gpt2.layers import LAYERS

    check_backward(LAYERS["gelu"].forward, LAYERS["gelu"].backward, [(RNG.standard_normal((2, 5)),)])
    qkv = RNG.standard_normal((2, 5, 36))
    attention = LAYERS["attention"]
    cases = [((qkv,), {"num_heads": 3}), ((qkv,), {"num_heads": 2})]
    check_backward(attention.forward, attention.backward, cases)


def test_a_left_out_path_is_named_with_its_line():
    def backward(dout, saved):
        inp, weight, mean, rstd = saved
        norm = (inp - mean) * rstd
        dnorm = dout * weight
        dinp = dnorm - dnorm.mean(-1, keepdims=True)
        return dinp * rstd, (dout * norm).sum(0), dout.sum(0)

    text = report(layernorm_forward, backward, layernorm_case())
    assert "case 0, gradient 0 (inp): wrong at 12 of 12, most at [" in text
    assert "the path through rstd (test_check_grads.py:" in text and "rstd = 1.0 / np.sqrt" in text
    assert "gradient 1" not in text


def test_wrong_sums_orders_and_types():
    def unsummed(dout, saved):
        return layernorm_backward(dout, saved)[0], (dout * saved[0]).sum(0), dout

    text = report(layernorm_forward, unsummed, layernorm_case())
    assert "gradient 2 (bias): it has shape (3, 4), expected (4,)" in text
    assert "not summed over axes (0,)" in text

    text = report(layernorm_forward, lambda d, s: layernorm_backward(d, s)[::-1], layernorm_case())
    assert "shape" in text

    def widened(dout, saved):
        return tuple(np.float64(1.0) * g for g in layernorm_backward(dout, saved))

    text = report(layernorm_forward, widened, layernorm_case(np.float32))
    assert "it has dtype float64, and its input float32" in text
    assert "gradients returned: 2, inputs: 3" in report(
        layernorm_forward, lambda d, s: layernorm_backward(d, s)[:2], layernorm_case()
    )


def test_a_backward_without_saved_values():
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


def test_integer_inputs_have_no_gradient():
    def forward(table, ids):
        return table[ids], (table, ids)

    def backward(dout, saved):
        table, ids = saved
        dtable = np.zeros_like(table)
        dtable[ids] += dout
        return dtable, None

    ids = np.array([3, 1, 3, 0])
    assert "np.add.at" in report(forward, backward, (RNG.standard_normal((5, 2)), ids))


def test_a_kink_nearby_is_no_mismatch():
    check_grads(np.abs, (np.array([1e-4, -2e-4, 1.0]),))
    with pytest.raises(GradientMismatch):
        check_grads(np.abs, (np.array([1e-6]),))
