"""AdamW against its formula in float64, entry by entry; clipping, decay, the course of the learning rate."""

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


def toy(dtype="float64", seed=0):
    """A stand-in for a model: what AdamW asks of one."""
    rng = np.random.default_rng(seed)
    params, grads = rng.standard_normal((2, N)).astype(dtype)
    return SimpleNamespace(flat_params=params.copy(), flat_grads=grads.copy(), decayed=DECAYED)


def formula(p, gradients, lr, beta1, beta2, eps, decay, clip):
    """Parameters after one step per gradient: the docstring's three lines on whole arrays."""
    m, v = np.zeros(N), np.zeros(N)
    mask = np.zeros(N)
    for start, stop in DECAYED:
        mask[start:stop] = 1.0
    for t, g in enumerate(gradients, 1):
        norm = np.linalg.norm(g)
        if clip is not None and norm > clip:
            g = g * clip / (norm + 1e-6)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        p = p - lr * decay * mask * p - lr * m_hat / (np.sqrt(v_hat) + eps)
    return p


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 2e-6)])
@pytest.mark.parametrize("clip", [None, 1.0, 1e6])
def test_steps_follow_the_formula(dtype, tolerance, clip):
    model = toy(dtype)
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


def test_a_gradient_that_is_clipped_by_a_large_factor(monkeypatch):
    """The square of that factor is not a normal number in float32."""
    monkeypatch.setattr("gpt2.model.optimizer.SUM_BLOCK", 1)  # so that the norm may be above 1e19
    small, large = toy("float32"), toy("float32")
    gradient = np.random.default_rng(3).standard_normal(N).astype("float32")
    for model, size in ((small, 1e3), (large, 5e18)):
        model.flat_grads[...] = gradient * np.float32(size)
        AdamW(model, lr=0.01, eps=1e-12).step(clip=1.0)
    np.testing.assert_allclose(large.flat_params, small.flat_params, rtol=1e-5)


def test_block_size_does_not_matter(monkeypatch):
    results = []
    for block in (128 * 1024, 64):  # 64 divides none of the decayed ranges
        monkeypatch.setattr(optimizer, "BLOCK", block)
        model = toy()
        AdamW(model).step(clip=None)
        results.append(model.flat_params)
    assert np.array_equal(*results)


def test_decay_alone_shrinks_decayed_ranges_only():
    model = toy()
    before = model.flat_params.copy()
    model.flat_grads[...] = 0.0
    AdamW(model, lr=0.1, weight_decay=0.5).step()
    decayed = np.zeros(N, bool)
    for start, stop in DECAYED:
        decayed[start:stop] = True
    np.testing.assert_allclose(model.flat_params[decayed], 0.95 * before[decayed], rtol=1e-15)
    assert np.array_equal(model.flat_params[~decayed], before[~decayed])


def test_step_leaves_gradients_and_takes_another_lr():
    model, other = toy(), toy()
    gradients = model.flat_grads.copy()
    AdamW(model, lr=123.0).step(lr=0.01)
    AdamW(other, lr=0.01).step()
    assert np.array_equal(model.flat_grads, gradients)
    assert np.array_equal(model.flat_params, other.flat_params)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_gradient_that_is_not_finite_changes_nothing(bad):
    model = toy()
    adam = AdamW(model)
    adam.step()
    before = model.flat_params.copy(), adam.m.copy(), adam.v.copy()
    model.flat_grads[7] = bad
    assert not math.isfinite(adam.step())
    for was, x in zip(before, (model.flat_params, adam.m, adam.v)):
        assert np.array_equal(was, x)
    assert adam.t == 1


def test_norm_is_exact_over_many_entries():
    """Ten million equal float32 entries: added one by one in float32, the squares lose whole percents."""
    model = SimpleNamespace(
        flat_params=np.zeros(10**7, "f4"), flat_grads=np.full(10**7, 0.1, "f4"), decayed=[]
    )
    assert abs(AdamW(model).grad_norm() / (0.1 * math.sqrt(10**7)) - 1) < 1e-5


def test_step_allocates_nothing_that_grows():
    model = SimpleNamespace(flat_params=np.zeros(10**6, "f4"), flat_grads=np.ones(10**6, "f4"), decayed=[])
    adam = AdamW(model)
    adam.step()
    assert peak_of(adam.step) < 10_000  # bytes; the parameters are four million


def test_state_carries_on_bit_for_bit():
    straight, first = toy(), toy()
    a = AdamW(straight)
    b = AdamW(first)
    for _ in range(2):
        a.step()
        b.step()
    resumed = toy()
    resumed.flat_params[...] = first.flat_params
    c = AdamW(resumed)
    c.load_state({name: np.copy(x) for name, x in b.state().items()})
    a.step()
    c.step()
    assert np.array_equal(straight.flat_params, resumed.flat_params)
    assert a.t == c.t == 3


def test_state_that_does_not_fit_is_refused_whole():
    adam = AdamW(toy())
    with pytest.raises(ValueError, match=r"load_state: v has shape \(3,\), expected \(1000,\)"):
        adam.load_state({"t": 3, "m": np.ones(N), "v": np.ones(3)})
    assert adam.t == 0 and not adam.m.any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"betas": (0.9, 1.0)}, "betas is"),
        ({"lr": -1.0}, "lr is -1.0, expected at least 0"),
        ({"weight_decay": math.nan}, "weight_decay is nan"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=f"^AdamW: {message}"):
        AdamW(toy(), **settings)


@pytest.mark.parametrize("dtype, eps, is_fine", [
    ("float32", 0.0, False), ("float32", 1e-50, False), ("float32", 1e-30, True), ("float64", 1e-50, True),
    ("float64", math.nan, False),
])  # fmt: skip
def test_eps_keeps_unused_parameters_from_nan(dtype, eps, is_fine):
    """A row of the embedding that no batch ever names has no gradient."""
    model = toy(dtype)
    model.flat_grads[:10] = 0.0
    before = model.flat_params[:10].copy()
    if not is_fine:
        with pytest.raises(ValueError, match=f"^AdamW: eps is {eps}, expected more than 0"):
            AdamW(model, eps=eps)
        return
    adam = AdamW(model, eps=eps)
    for _ in range(3):
        adam.step()
    assert np.isfinite(model.flat_params).all()
    np.testing.assert_array_equal(model.flat_params[:10], before)


def test_learning_rate_rises_and_falls():
    def rate(step):
        return cosine_lr(step, lr=1.0, min_lr=0.1, warmup=10, steps=110)

    assert rate(0) == pytest.approx(1 / 11)
    assert rate(9) == pytest.approx(10 / 11)
    assert rate(10) == 1.0
    assert rate(60) == pytest.approx(0.55)  # half way between
    assert rate(110) == rate(10**6) == 0.1
    course = [rate(step) for step in range(130)]
    assert all(a < b for a, b in zip(course[:10], course[1:11]))
    assert all(a >= b for a, b in zip(course[10:], course[11:]))
    assert cosine_lr(0, lr=1.0, min_lr=0.1, warmup=0, steps=5) == 1.0  # no warm-up at all


def test_another_process_makes_the_same_optimizer():
    """A keyword of AdamW that `options` leaves out would not reach worker processes."""
    model = SimpleNamespace(flat_params=np.ones(4), flat_grads=np.ones(4), decayed=[])
    optimizer = AdamW(model, lr=0.5, betas=(0.1, 0.2), eps=0.3, weight_decay=0.4)
    assert set(optimizer.options()) == set(inspect.signature(AdamW).parameters) - {"model"}
    assert AdamW(model, **optimizer.options()).options() == optimizer.options()
