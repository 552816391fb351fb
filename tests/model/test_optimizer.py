"""AdamW against its formula in float64; clipping, decay, saved state, and the learning rate schedule."""

import inspect
import math
from types import SimpleNamespace

import numpy as np
import pytest

from gpt2.model import optimizer
from gpt2.model.optimizer import AdamW, cosine_lr
from tests.support.peaks import peak_of

pytestmark = pytest.mark.numeric

N, DECAYED = 1000, [(100, 350), (350, 400), (990, 1000)]


def model_of_arrays(dtype="float64", **arrays):
    """What AdamW needs of a model, with random numbers where no array is given."""
    params, grads = np.random.default_rng(0).standard_normal((2, N)).astype(dtype)
    return SimpleNamespace(**{"flat_params": params, "flat_grads": grads, "decayed": DECAYED} | arrays)


def decayed_entries():
    """Which of the N entries are decayed."""
    mask = np.zeros(N, bool)
    for start, stop in DECAYED:
        mask[start:stop] = True
    return mask


def formula(p, gradients, lr, beta1, beta2, eps, decay, clip):
    """Parameters after one step per gradient: the three lines of AdamW's docstring on whole arrays."""
    m, v = np.zeros(N), np.zeros(N)
    for t, g in enumerate(gradients, 1):
        norm = np.linalg.norm(g)
        if clip is not None and norm > clip:
            g = g * clip / (norm + 1e-6)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        p = p - lr * decay * decayed_entries() * p - lr * m_hat / (np.sqrt(v_hat) + eps)
    return p


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 2e-6)])
@pytest.mark.parametrize("clip", [None, 1.0, 1e6])
def test_steps_follow_the_formula(dtype, tolerance, clip):
    model = model_of_arrays(dtype)
    start = model.flat_params.astype(np.float64)
    gradients = [s * np.random.default_rng(s).standard_normal(N).astype(dtype) for s in range(1, 6)]
    adam = AdamW(model, lr=0.01, betas=(0.8, 0.97), eps=1e-3, weight_decay=0.3)
    for gradient in gradients:
        model.flat_grads[...] = gradient
        norm = adam.step(clip=clip)
        assert abs(norm / np.linalg.norm(gradient.astype(np.float64)) - 1) < tolerance
    expected = formula(start, [g.astype(np.float64) for g in gradients], 0.01, 0.8, 0.97, 1e-3, 0.3, clip)
    assert np.abs(model.flat_params - expected).max() < tolerance * np.abs(expected).max()
    assert adam.t == 5


def test_clipping_by_a_large_factor_keeps_precision(monkeypatch):
    """The square of that factor is subnormal in float32."""
    monkeypatch.setattr("gpt2.model.optimizer.SUM_BLOCK", 1)  # lets the norm exceed 1e19
    small, large = model_of_arrays("float32"), model_of_arrays("float32")
    gradient = np.random.default_rng(3).standard_normal(N).astype("float32")
    for model, size in ((small, 1e3), (large, 5e18)):
        model.flat_grads[...] = gradient * np.float32(size)
        AdamW(model, lr=0.01, eps=1e-12).step(clip=1.0)
    np.testing.assert_allclose(large.flat_params, small.flat_params, rtol=1e-5)


def test_block_size_changes_no_bit(monkeypatch):
    results = []
    for block in (128 * 1024, 64):  # 64 divides none of the decayed ranges
        monkeypatch.setattr(optimizer, "BLOCK", block)
        model = model_of_arrays()
        AdamW(model).step(clip=None)
        results.append(model.flat_params)
    assert np.array_equal(*results)


def test_step_keeps_gradients_and_takes_another_lr():
    model, other = model_of_arrays(), model_of_arrays()
    gradients = model.flat_grads.copy()
    AdamW(model, lr=123.0).step(lr=0.01)
    AdamW(other, lr=0.01).step()
    assert np.array_equal(model.flat_grads, gradients)
    assert np.array_equal(model.flat_params, other.flat_params)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_gradient_changes_nothing(bad):
    model = model_of_arrays()
    adam = AdamW(model)
    adam.step()
    before = model.flat_params.copy(), adam.m.copy(), adam.v.copy()
    model.flat_grads[7] = bad
    assert not math.isfinite(adam.step())
    for was, x in zip(before, (model.flat_params, adam.m, adam.v)):
        assert np.array_equal(was, x)
    assert adam.t == 1


def test_norm_of_many_entries_is_exact():
    """Ten million equal float32 entries: summed one by one in float32, the squares lose whole percents."""
    model = model_of_arrays(flat_params=np.zeros(10**7, "f4"), flat_grads=np.full(10**7, 0.1, "f4"))
    assert abs(AdamW(model).grad_norm() / (0.1 * math.sqrt(10**7)) - 1) < 1e-5


def test_step_allocates_no_arrays():
    model = model_of_arrays(flat_params=np.zeros(10**6, "f4"), flat_grads=np.ones(10**6, "f4"))
    adam = AdamW(model)
    adam.step()
    assert peak_of(adam.step) < 10_000  # bytes; the parameters take four million


def test_loaded_state_continues_bit_for_bit():
    straight, interrupted, resumed = (model_of_arrays() for _ in range(3))
    a, b, c = (AdamW(model) for model in (straight, interrupted, resumed))
    for _ in range(2):
        a.step()
        b.step()
    resumed.flat_params[...] = interrupted.flat_params
    c.load_state({name: np.copy(x) for name, x in b.state().items()})
    a.step()
    c.step()
    assert np.array_equal(straight.flat_params, resumed.flat_params)
    assert a.t == c.t == 3


def test_state_of_another_shape_is_refused():
    adam = AdamW(model_of_arrays())
    with pytest.raises(ValueError, match=r"load_state: v has shape \(3,\), expected \(1000,\)"):
        adam.load_state({"t": 3, "m": np.ones(N), "v": np.ones(3)})
    assert adam.t == 0 and not adam.m.any()


@pytest.mark.parametrize(
    ("dtype", "settings", "message"),
    [
        ("float64", {"betas": (0.9, 1.0)}, "betas is"),
        ("float64", {"lr": -1.0}, "lr is -1.0, expected at least 0"),
        ("float64", {"weight_decay": math.nan}, "weight_decay is nan"),
        ("float64", {"eps": math.nan}, "eps is nan, expected more than 0"),
        ("float32", {"eps": 0.0}, "eps is 0.0, expected more than 0"),
        ("float32", {"eps": 1e-50}, "eps is 1e-50, expected more than 0"),
    ],
)
def test_bad_options_are_refused(dtype, settings, message):
    with pytest.raises(ValueError, match=f"^AdamW: {message}"):
        AdamW(model_of_arrays(dtype), **settings)


@pytest.mark.parametrize("dtype, eps", [("float32", 1e-30), ("float64", 1e-50)])
def test_parameters_without_gradient_stay_for_any_eps(dtype, eps):
    """A row of the embedding that no batch names has no gradient: 0 / eps must not be nan."""
    model = model_of_arrays(dtype)
    model.flat_grads[:10] = 0.0
    before = model.flat_params[:10].copy()
    adam = AdamW(model, eps=eps)
    for _ in range(3):
        adam.step()
    assert np.isfinite(model.flat_params).all()
    np.testing.assert_array_equal(model.flat_params[:10], before)


def test_learning_rate_warms_up_and_decays():
    def rate(step):
        return cosine_lr(step, lr=1.0, min_lr=0.1, warmup=10, steps=110)

    assert rate(0) == pytest.approx(1 / 11)
    assert rate(9) == pytest.approx(10 / 11)
    assert rate(10) == 1.0
    assert rate(60) == pytest.approx(0.55)  # half way between
    assert rate(110) == rate(10**6) == 0.1
    rates = [rate(step) for step in range(130)]
    assert all(a < b for a, b in zip(rates[:10], rates[1:11]))
    assert all(a >= b for a, b in zip(rates[10:], rates[11:]))
    assert cosine_lr(0, lr=1.0, min_lr=0.1, warmup=0, steps=5) == 1.0  # no warm-up


def test_options_rebuild_the_optimizer():
    """A keyword of AdamW missing from `options` would not reach worker processes."""
    model = model_of_arrays()
    adam = AdamW(model, lr=0.5, betas=(0.1, 0.2), eps=0.3, weight_decay=0.4)
    assert set(adam.options()) == set(inspect.signature(AdamW).parameters) - {"model"}
    assert AdamW(model, **adam.options()).options() == adam.options()
