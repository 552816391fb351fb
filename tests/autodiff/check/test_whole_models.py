"""check_backward of a whole GPT-2: the layer whose backward is wrong is named."""

import dataclasses
import re

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.layers import LAYERS
from gpt2.model import GPT2, GPT2Config, loss_fn

CONFIG = GPT2Config(vocab_size=17, block_size=8, n_layer=2, n_head=3, n_embd=12, dtype="float64")


def doubled(k):
    return lambda grads: tuple(2 * g if i == k and g is not None else g for i, g in enumerate(grads))


def layernorm_without_mean(dout, saved):
    inp, weight, mean, rstd = saved
    norm, dnorm = (inp - mean) * rstd, dout * weight
    dinp = (dnorm - norm * np.mean(dnorm * norm, -1, keepdims=True)) * rstd
    return dinp, np.sum(dout * norm, (0, 1)), np.sum(dout, (0, 1))


def gelu_without_product_rule(dout, saved):
    (inp,) = saved
    return (dout * 0.5 * (1.0 + np.tanh(0.7978845608028654 * (inp + 0.044715 * inp**3))),)


def crossentropy_without_target(dlosses, saved):
    logits, targets, largest, total = saved
    return np.exp(logits - largest) / total * dlosses[..., None], None


def attention_without_values(dout, saved, *, num_heads):
    (dqkv,) = LAYERS["attention"].backward(dout, saved, num_heads=num_heads)
    dqkv = dqkv.copy()
    dqkv[..., 24:] = 0
    return (dqkv,)


# name -> layer, its wrong backward, what is said first, what the cause is
WRONG = {
    "gelu": ("gelu", gelu_without_product_rule, r"gelu_forward \(gelu.py:", "path through"),
    "attention": ("attention", attention_without_values, r"attention.py:", "left out|left at zero"),
    "layernorm": ("layernorm", layernorm_without_mean, r"layernorm_forward \(layernorm.py:", "mean"),
    "crossentropy": ("crossentropy", crossentropy_without_target, "crossentropy_forward", "at_target"),
    "a bias": (
        "matmul",
        lambda dout, saved: doubled(2)(LAYERS["matmul"].backward(dout, saved)),
        r"b\[1\] alone is wrong, in the backward of matmul_forward",
        "added twice",
    ),
}


def report(layer, wrong):
    model = GPT2(CONFIG, compile=False, seed=1)
    model.layers[layer] = dataclasses.replace(LAYERS[layer], backward=wrong)
    model.flat_params += 0.2 * np.random.default_rng(3).standard_normal(model.flat_params.shape)
    tokens, targets = np.random.default_rng(0).integers(0, 17, (2, 2, 5))

    def forward(params, tokens, targets):
        return loss_fn(params, tokens, targets, config=CONFIG, layers=LAYERS)

    def backward(dout, params, tokens, targets):
        model.forward(tokens, targets)
        model.backward(float(dout))
        return dict(model.grads), None, None

    try:
        ad.check_backward(forward, backward, [(model.params, tokens, targets)])
    except ad.BackwardMismatch as error:
        return str(error)
    return None


def test_a_right_model_is_left_in_peace():
    assert report("gelu", LAYERS["gelu"].backward) is None


@pytest.mark.parametrize("name", WRONG)
def test_the_wrong_layer_is_named(name):
    layer, wrong, where, cause = WRONG[name]
    lines = report(layer, wrong).split("\n")
    assert re.search(where, lines[1]) and " or " not in lines[1], lines[:3]
    assert re.search(cause, lines[2]), lines[:3]
