"""Models whose GPT2Config differs from GPT-2 as it was released: every backward, generation, tuning, counts.

What they compute is compared with transformers in tests/weights/test_variants.py.
"""

import math
import pickle
from dataclasses import asdict

import mpmath
import numpy as np
import pytest

import gpt2
from gpt2.commands.check import VARIANT
from gpt2.errors import UserError
from gpt2.layers.gelu_erf import gelu_erf_backward, gelu_erf_forward, upper_tail
from gpt2.layers.relu import relu_backward, relu_forward
from gpt2.model import GPT2, GPT2Config
from gpt2.model.decoder import Decoder
from gpt2.train.flops import training_flops
from tests.support.models import random_model, slope

SIZES = dict(vocab_size=17, block_size=8, n_layer=3, n_head=3, n_embd=12, dtype="float64")
TOKENS, TARGETS = np.random.default_rng(0).integers(0, 17, (2, 2, 6))
MODELS = {
    "every setting": VARIANT,
    "by block": {"scale_attn_by_inverse_layer_idx": True},
    "unscaled relu": {"scale_attn_weights": False, "activation_function": "relu"},
    "untied, no biases": {"tie_word_embeddings": False, "bias": False},
}
MODEL = pytest.mark.parametrize("settings", MODELS.values(), ids=MODELS)


@MODEL
def test_gradients_are_the_slope_by_every_backward(settings):
    config, grads = GPT2Config(**SIZES, **settings), []
    for backward in ("manual", "auto", "whole", "manual,attention=auto"):
        model = random_model(config, backward)
        model.loss_and_grads(TOKENS, TARGETS)
        grads.append(model.flat_grads.copy())
        model.forward(TOKENS, TARGETS)
        model.backward(scale=0.5, accumulate=True)
        np.testing.assert_allclose(model.flat_grads, 1.5 * grads[-1], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(grads[-1], grads[0], rtol=1e-9, atol=1e-12)
    direction = np.random.default_rng(1).standard_normal(model.flat_params.shape)
    found = slope(model, model.flat_params, direction, TOKENS, TARGETS)
    assert abs(found - direction @ grads[0]) < 1e-6 * np.linalg.norm(direction) * np.linalg.norm(grads[0])


@MODEL
def test_generation_reads_on_as_the_forward_does(settings):
    """A prompt of two tokens, then one position at a time by the compiled program."""
    model = random_model(GPT2Config(**SIZES, **settings))
    decoder, expected = Decoder(model, 2), model.forward(TOKENS)
    assert not decoder.slow
    ends = [0, 2, 3, 4, 5, 6]
    pieces = [np.array(decoder.read(TOKENS[:, a:b])) for a, b in zip(ends, ends[1:])]
    np.testing.assert_allclose(np.concatenate(pieces, axis=1), expected, atol=1e-11)


@MODEL
def test_adapters_and_last_blocks_train_what_they_name(settings):
    model = random_model(GPT2Config(**SIZES, **settings))
    for backward in ("auto", "whole"):
        tuned = gpt2.lora(model, rank=2, targets="all-linear", backward=backward)
        tuned.flat_params += 0.2 * np.random.default_rng(3).standard_normal(tuned.flat_params.shape)
        merged = gpt2.merged(tuned)
        assert merged.config == model.config
        np.testing.assert_allclose(merged.forward(TOKENS), tuned.forward(TOKENS), atol=1e-10)
        tuned.loss_and_grads(TOKENS, TARGETS)
        direction = np.random.default_rng(1).standard_normal(tuned.flat_params.shape)
        found, size = slope(tuned, tuned.flat_params, direction, TOKENS, TARGETS), np.linalg.norm(direction)
        assert abs(found - direction @ tuned.flat_grads) < 1e-6 * size * np.linalg.norm(tuned.flat_grads)
        last = random_model(model.config, backward, train="last:1")
        full = GPT2(model.config)
        for name, tensor in last.params.items():
            full.params[name] = np.asarray(tensor)
        last.loss_and_grads(TOKENS, TARGETS)
        full.loss_and_grads(TOKENS, TARGETS)
        for name, gradient in last.grads.items():
            np.testing.assert_allclose(gradient, full.grads[name][-len(gradient) :], atol=1e-12)
        assert "lmheadw" not in last.grads  # as the head of the released model, which is wte


@MODEL
def test_copies_and_files_keep_the_settings(settings, tmp_path):
    model = random_model(GPT2Config(**SIZES, **settings))
    gpt2.save(model, tmp_path / "m.safetensors")
    for other in (pickle.loads(pickle.dumps(model)), gpt2.load(tmp_path / "m.safetensors")):
        assert other.config == model.config
        assert np.array_equal(other.forward(TOKENS), model.forward(TOKENS))
    with pytest.raises(
        UserError, match=r"m\.bin: llm\.c knows only GPT-2 as it was released, and this model"
    ):
        gpt2.save(model, tmp_path / "m.bin")
    assert not (tmp_path / "m.bin").exists()
    assert all(f"{name} {value}" in repr(model) for name, value in settings.items())


def test_released_model_is_described_as_before(tmp_path):
    """Its config has no settings, and a tanh by another name is no other model."""
    config = GPT2Config(**SIZES, n_inner=48)
    assert config == GPT2Config(**SIZES) and config.settings == {}
    named = GPT2Config(**SIZES, activation_function="gelu_pytorch_tanh")
    gpt2.save(GPT2(named), tmp_path / "m.bin")
    released = set(GPT2(config).params)
    assert len(released) == 16
    biases = {"ln1b", "qkvb", "attprojb", "ln2b", "fcb", "fcprojb", "lnfb"}
    assert set(GPT2(GPT2Config(**SIZES, bias=False)).params) == released - biases
    assert set(GPT2(GPT2Config(**SIZES, tie_word_embeddings=False)).params) == released | {"lmheadw"}


def test_operations_follow_the_sizes():
    """Two a weight and token forward, and twice that backward; n_inner changes 2 C F of a block's weights."""
    plain, narrow = GPT2Config(**SIZES), GPT2Config(**SIZES, n_inner=20)
    fewer = 2 * 12 * (48 - 20) * 3
    assert training_flops(plain, 2, 5) - training_flops(narrow, 2, 5) == 3 * 2 * 5 * 2 * fewer
    untied = GPT2Config(**SIZES, tie_word_embeddings=False)
    assert untied.num_parameters - plain.num_parameters == 17 * 12
    assert training_flops(untied, 2, 5) == training_flops(plain, 2, 5)


@pytest.mark.parametrize(
    "settings, message",
    [
        (dict(activation_function="gelo"), "activation_function is 'gelo', expected one of gelu_new"),
        (dict(activation_function=None), "activation_function is None"),
        (dict(n_inner=0), "n_inner is 0, expected a whole number from 1, or None"),
        (dict(n_inner=True), "n_inner is True"),
        (dict(layer_norm_epsilon=-1e-5), "layer_norm_epsilon is -1e-05, expected a number from 0"),
        (dict(layer_norm_epsilon=math.nan), "layer_norm_epsilon is nan"),
        (dict(bias=0), "bias is 0, expected True or False"),
        (dict(tie_word_embeddings="no"), "tie_word_embeddings is 'no'"),
    ],
)
def test_invalid_setting_is_one_line(settings, message):
    with pytest.raises(UserError, match=f"GPT2Config: {message}"):
        GPT2Config(**SIZES, **settings)


def square(inp):
    return inp * inp


@pytest.mark.parametrize(
    "settings, options, message",
    [
        (
            dict(activation_function="relu"),
            dict(layers={"gelu": square}),
            "no layer 'gelu' to replace, .* relu",
        ),
        (
            dict(activation_function="relu"),
            dict(layers={"relu": square}),
            "activation_function; leave that out",
        ),
        (
            dict(layer_norm_epsilon=1e-3),
            dict(layers={"layernorm": lambda inp, weight, bias: inp}),
            r"layers\['layernorm'\]: computes in place of GPT-2's layernorm, so layer_norm_epsilon has no",
        ),
        (
            dict(scale_attn_weights=False),
            dict(block=lambda x, p, layers, config: x * p["ln1w"]),
            "block: computes in place of GPT-2's attention, so scale_attn_weights has no effect",
        ),
        (dict(bias=False), dict(train="biases"), "nothing is left to train"),
    ],
)
def test_setting_without_effect_is_refused(settings, options, message):
    with pytest.raises(UserError, match=message):
        GPT2(GPT2Config(**SIZES, **settings), **options)


# ---- Activations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gelu_by_erf_is_right_to_the_last_digits(dtype):
    """To 5 units in the last place, against mpmath; far below zero to x^2 / 4 times as many, for exp."""
    normal = np.random.default_rng(0).standard_normal(400)
    x = np.concatenate([np.linspace(-12, 12, 601), normal]).astype(dtype)
    numbers = [mpmath.mpf(float(v)) for v in x]
    for found, of in (
        (upper_tail(np.abs(x)), lambda v: mpmath.ncdf(-abs(v))),
        (gelu_erf_forward(x)[0], None),
    ):
        exact = np.array([of(v) if of else v * mpmath.ncdf(v) for v in numbers])
        errors = np.abs((found.astype(object) - exact) / np.where(exact == 0, 1, exact)).astype(float)
        assert found.dtype == dtype
        assert np.all(errors <= 5 * np.finfo(dtype).eps * (1 + x**2 / 4 * ((x < 0) | (of is not None))))


def test_activations_at_the_ends_of_the_numbers():
    """relu has PyTorch's derivative at 0; nan stays."""
    ends = np.array([1e30, -1e30, 0.0, np.nan])
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(gelu_erf_forward(ends)[0], [1e30, 0.0, 0.0, np.nan])
        np.testing.assert_array_equal(gelu_erf_backward(np.ones(4), (ends,))[0], [1.0, 0.0, 0.5, np.nan])
    np.testing.assert_array_equal(relu_forward(ends)[0], [1e30, 0.0, 0.0, np.nan])
    np.testing.assert_array_equal(relu_backward(np.ones(3), (ends[:3],))[0], [1.0, 0.0, 0.0])


def test_fields_of_the_config_are_listed():
    assert [*VARIANT] == [name for name in asdict(GPT2Config()) if name not in SIZES]
