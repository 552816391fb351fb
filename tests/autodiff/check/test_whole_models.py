"""check_backward of a whole GPT-2 names the layer with the wrong backward."""

import dataclasses
import re

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.layers import LAYERS
from gpt2.model import GPT2, GPT2Config, loss_fn
from tests.autodiff.check.test_forty_mistakes import edited

CONFIG = GPT2Config(vocab_size=17, block_size=8, n_layer=2, n_head=3, n_embd=12, dtype="float64")


def double_bias_gradient(dout, saved):
    dinp, dweight, dbias = LAYERS["matmul"].backward(dout, saved)
    return dinp, dweight, None if dbias is None else 2 * dbias


# Layer, its wrong backward or what is changed in a right one, the reported place, the reported cause
WRONG = [
    ("gelu", (" + 0.5 * inp * (1 - t * t) * du", ""), r"gelu_forward \(gelu.py:", "path through"),
    ("attention", ("[dq, dk, dv]", "[dq, dk, 0 * dv]"), r"attention.py:", "left out|left at zero"),
    ("layernorm", ("dnorm - shift", "dnorm"), r"layernorm_forward \(layernorm.py:", "mean"),
    ("crossentropy", ("(probs - onehot)", "probs"), "crossentropy_forward", "at_target"),
    (
        "matmul",
        double_bias_gradient,
        r"b\[1\] alone is wrong, in the backward of matmul_forward",
        "added twice",
    ),
]


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


def test_correct_model_passes():
    assert report("gelu", LAYERS["gelu"].backward) is None


@pytest.mark.parametrize("layer, wrong, where, cause", WRONG, ids=[layer for layer, *_ in WRONG])
def test_wrong_layer_is_named(layer, wrong, where, cause):
    lines = report(layer, wrong if callable(wrong) else edited(layer, *wrong)).split("\n")
    assert re.search(where, lines[1]) and " or " not in lines[1], lines[:3]
    assert re.search(cause, lines[2]), lines[:3]
