"""The choice of backward changes neither the loss curve nor, in a training loop, the memory."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.backward import auto
from gpt2.layers import ALL_LAYERS
from gpt2.layers.cases import Sizes, at
from gpt2.model import GPT2, GPT2Config
from gpt2.model.optimizer import AdamW
from tests.support.peaks import peak_of

pytestmark = pytest.mark.numeric

CONFIG = GPT2Config(vocab_size=65, block_size=16, n_layer=2, n_head=2, n_embd=32)


def loss_curve(backward, steps=20):
    """Losses of a short training run in float32, each step on a new batch."""
    model = GPT2(CONFIG, backward, seed=1)
    optimizer = AdamW(model, lr=3e-3)
    rng = np.random.default_rng(0)
    losses = []
    for _ in range(steps):
        tokens = rng.integers(0, 65, (4, 16)) // 3  # some are more frequent: there is something to learn
        losses.append(model.loss_and_grads(tokens[:, ::-1], tokens))
        optimizer.step()
    return np.array(losses)


@pytest.fixture(scope="module")
def manual_curve():
    return loss_curve("manual")


@pytest.mark.parametrize(
    "backward",
    [
        "auto",
        "whole",
        "manual,attention=auto",
        "manual,gelu=auto,matmul=auto,encoder=auto",
        "auto,layernorm=manual,crossentropy=manual,residual=manual",
    ],
)
def test_loss_curve_equals_that_of_manual(backward, manual_curve):
    """Each operation rounds by 6e-8; over 20 steps that grows to less than 1e-5 of the loss."""
    assert manual_curve[-1] < 0.9 * manual_curve[0]  # it learns, so later losses depend on all gradients
    np.testing.assert_allclose(loss_curve(backward), manual_curve, rtol=1e-5)


# ---- Memory ----------------------------------------------------------------------------------------------

B, T, C = 4, 64, 128
LAYER_CASES = at(Sizes(B=B, T=T, C=C, OC=4 * C, NH=4, V=640, max_t=T))
# Freed again within a call: frames, tuples, and the buffers of 8192 elements that NumPy's iterator needs for
# broadcast or transposed operands. The smallest activation, (B, T, C), takes 131 KB
OVERHEAD = 100_000


def layer_inputs(name):
    """A layer's inputs in float32, its static arguments, and a gradient of its output."""
    case = LAYER_CASES[name]
    inputs, static = case.inputs(np.float32), case.static
    out = ALL_LAYERS[name].forward(*inputs, **static)[0]
    return inputs, static, np.random.default_rng(0).standard_normal(out.shape).astype(np.float32)


@pytest.mark.parametrize("name", ALL_LAYERS)
def test_derived_layer_allocates_only_its_results(name):
    """The caller keeps the results of forward and backward; nothing else is allocated."""
    inputs, static, dout = layer_inputs(name)
    layer = auto(ALL_LAYERS[name])
    held = []

    def step():
        out, saved = layer.forward(*inputs, **static)
        held.append((out, saved, layer.backward(dout, saved, **static)))

    step()
    step()
    out, saved, grads = held[-1]
    returned = {id(a): a.nbytes for a in (out, *saved, *grads) if a is not None}
    results = sum(returned.values()) - sum(a.nbytes for a in inputs if id(a) in returned)
    assert peak_of(step) < results + OVERHEAD


@pytest.mark.parametrize("name", ALL_LAYERS)
def test_derived_layer_allocates_nothing_in_a_loop(name):
    """The memory of dropped results is reused; with the caller's buffers there are no results."""
    inputs, static, dout = layer_inputs(name)
    layer = auto(ALL_LAYERS[name])
    buffers = tuple(np.empty_like(a) if a.dtype.kind == "f" else None for a in inputs)

    def step():
        _, saved = layer.forward(*inputs, **static)
        layer.backward(dout, saved, **static)

    def into_buffers():
        _, saved = layer.forward(*inputs, **static)
        layer.backward(dout, saved, out=buffers, **static)

    for call in (step, into_buffers):
        call()
        call()
        assert peak_of(call, times=3) < OVERHEAD


@pytest.mark.parametrize("name", ALL_LAYERS)
def test_gradient_into_buffers_allocates_nothing(name):
    """ad.autodiff with shadows, and ad.grad with out=."""
    inputs, static, dout = layer_inputs(name)
    wrt = [k for k, a in enumerate(inputs) if a.dtype.kind == "f"]

    def fill(out, *inputs):
        out[...] = ALL_LAYERS[name].forward(*inputs, **static)[0]

    def loss(dout, *inputs):
        return np.sum(ALL_LAYERS[name].forward(*inputs, **static)[0] * dout)

    shadows = [np.zeros_like(a) if k in wrt else None for k, a in enumerate(inputs)]
    activities = [ad.Const(a) if s is None else ad.Duplicated(a, s) for a, s in zip(inputs, shadows)]
    out, seed = np.empty_like(dout), np.empty_like(dout)
    gradient = ad.grad(loss, argnums=tuple(k + 1 for k in wrt))
    buffers = tuple(np.empty_like(inputs[k]) for k in wrt)

    def with_shadows():
        seed[...] = dout
        ad.autodiff(fill, ad.Duplicated(out, seed), *activities)

    def with_out():
        gradient(dout, *inputs, out=buffers)

    for call in (with_shadows, with_out):
        for _ in range(3):
            call()
        assert peak_of(call, times=3) < OVERHEAD
    for k, b in zip(wrt, buffers):  # the shadows hold the sum of six calls
        np.testing.assert_allclose(shadows[k], 6 * b, rtol=1e-4, atol=1e-4 * np.abs(b).max())
