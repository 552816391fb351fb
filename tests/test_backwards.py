"""What the choice of a backward leaves as it is: the loss curve, and the memory of a training loop."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.backward import auto
from gpt2.layers import LAYERS
from gpt2.layers.cases import Sizes, at
from gpt2.model import GPT2, GPT2Config
from gpt2.model.optimizer import AdamW
from tests.support.peaks import peak_of

pytestmark = pytest.mark.numeric

STEPS = 20
CONFIG = GPT2Config(vocab_size=65, block_size=16, n_layer=2, n_head=2, n_embd=32)


def loss_curve(backward):
    """Losses of 20 steps in float32, a new batch each."""
    model = GPT2(CONFIG, backward, seed=1)
    optimizer = AdamW(model, lr=3e-3)
    rng = np.random.default_rng(0)
    losses = []
    for _ in range(STEPS):
        tokens = rng.integers(0, 65, (4, 16)) // 3  # a few letters are common, so there is something to learn
        losses.append(model.loss_and_grads(tokens[:, ::-1], tokens))
        optimizer.step()
    return np.array(losses)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


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
def test_loss_curve_is_that_of_manual(backward, manual_curve):
    """Rounding of float32 differs, 6e-8 an operation; in 20 steps it grows to less than 1e-5 of the loss."""
    assert manual_curve[-1] < 0.9 * manual_curve[0]  # it learns, so later losses depend on all gradients
    np.testing.assert_allclose(loss_curve(backward), manual_curve, rtol=1e-5)


# ---- Memory ----------------------------------------------------------------------------------------------

B, T, C = 4, 64, 128
LAYER_CASES = at(Sizes(B=B, T=T, C=C, OC=4 * C, NH=4, V=640, max_t=T))
# What comes and goes within a call: frames and tuples, and buffers of 8192 elements, which NumPy's iterator
# takes for operands that are broadcast or transposed. The smallest activation, (B, T, C), is 131 KB
SMALL = 100_000


def drawn(name, rng):
    """Inputs of a layer in float32, its static arguments, and a gradient of its output."""
    case = LAYER_CASES[name]
    inputs, static = case.inputs(np.float32), case.static
    out = LAYERS[name].forward(*inputs, **static)[0]
    return inputs, static, rng.standard_normal(out.shape).astype(np.float32)


@pytest.mark.parametrize("name", LAYERS)
def test_a_derived_layer_allocates_only_its_results(name, rng):
    """Forward and backward, results held by the caller: they are all that is allocated."""
    inputs, static, dout = drawn(name, rng)
    layer = auto(LAYERS[name])
    held = []

    def step():
        out, saved = layer.forward(*inputs, **static)
        held.append((out, saved, layer.backward(dout, saved, **static)))

    step()
    step()
    out, saved, grads = held[-1]
    own = {id(a): a.nbytes for a in (out, *saved, *grads) if a is not None}
    results = sum(own.values()) - sum(a.nbytes for a in inputs if id(a) in own)
    assert peak_of(step) < results + SMALL


@pytest.mark.parametrize("name", LAYERS)
def test_a_derived_layer_allocates_nothing_in_a_loop(name, rng):
    """Results that were let go are used again; with the caller's buffers there are none."""
    inputs, static, dout = drawn(name, rng)
    layer = auto(LAYERS[name])
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
        assert peak_of(call, times=3) < SMALL


@pytest.mark.parametrize("name", LAYERS)
def test_a_gradient_into_buffers_allocates_nothing(name, rng):
    """ad.autodiff with shadows, and ad.grad with out=."""
    inputs, static, dout = drawn(name, rng)
    wrt = [k for k, a in enumerate(inputs) if a.dtype.kind == "f"]

    def fill(out, *inputs):
        out[...] = LAYERS[name].forward(*inputs, **static)[0]

    def loss(dout, *inputs):
        return np.sum(LAYERS[name].forward(*inputs, **static)[0] * dout)

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
        assert peak_of(call, times=3) < SMALL
    for k, b in zip(wrt, buffers):  # in the shadows six calls add up
        np.testing.assert_allclose(shadows[k], 6 * b, rtol=1e-4, atol=1e-4 * np.abs(b).max())
