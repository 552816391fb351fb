"""The model as a whole: parameters, initialisation, gradients, memory, and arguments that are refused."""

import math
import re
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

import gpt2.model
from gpt2 import autodiff as ad
from gpt2.backward import choose
from gpt2.layers import LAYERS, Layer
from gpt2.model import GPT2, GPT2Config, loss_fn
from gpt2.model.config import parameter_table
from gpt2.model.description import Description
from gpt2.model.forward import forward_pass
from gpt2.model.parameters import MATRICES
from gpt2.model.tensors import ranges_of
from tests.support.models import random_model, slope
from tests.support.peaks import peak_of

pytestmark = pytest.mark.numeric

NAMES = "wte wpe ln1w ln1b qkvw qkvb attprojw attprojb ln2w ln2b fcw fcb fcprojw fcprojb lnfw lnfb".split()
V, MAX_T, L, NH, C, B, T = 13, 8, 2, 3, 12, 2, 5


def small_model(dtype="float64", **options):
    return random_model(GPT2Config(V, MAX_T, L, NH, C, dtype), **options)


def batch(seed=0, rows=B):
    """Random tokens and targets, (2, rows, T)."""
    return np.random.default_rng(seed).integers(0, V, (2, rows, T))


# ---- Parameters


def test_parameter_table_is_llmcs():
    config = GPT2Config.preset("gpt2")
    table = dict(parameter_table(config))
    assert list(table) == NAMES
    assert table["qkvw"] == (12, 2304, 768) and table["fcprojw"] == (12, 768, 3072)
    assert config.num_parameters == 124_439_808


@pytest.mark.parametrize(
    ("name", "millions"), [("gpt2", 124), ("gpt2-medium", 355), ("gpt2-large", 774), ("gpt2-xl", 1558)]
)
def test_presets_have_their_published_size(name, millions):
    assert round(GPT2Config.preset(name).num_parameters / 1e6) == millions


def test_tensors_are_views_of_the_flat_buffers_in_order():
    model = small_model()
    assert list(model.params) == list(model.grads) == NAMES
    for flat, views in ((model.flat_params, model.params), (model.flat_grads, model.grads)):
        flat[...] = np.arange(flat.size)
        assert np.array_equal(np.concatenate([x.ravel() for x in views.values()]), flat)
        assert all(np.shares_memory(x, flat) and x.flags.c_contiguous for x in views.values())
    for name, (start, stop) in ranges_of(Description(model.config).shapes).items():
        assert np.shares_memory(model.params[name], model.flat_params[start:stop])


def test_decay_applies_to_matrices_and_embeddings():
    model = small_model()
    model.flat_params[...] = 0
    for start, stop in model.decayed:
        model.flat_params[start:stop] = 1
    decayed = [name for name, x in model.params.items() if x.all()]
    assert decayed == ["wte", "wpe", "qkvw", "attprojw", "fcw", "fcprojw"]
    assert not any(model.params[name].any() for name in set(NAMES) - set(decayed))


def test_initialisation_is_that_of_gpt2():
    model = GPT2(GPT2Config(300, 64, 8, 2, 64))
    for name, x in model.params.items():
        if name in ("ln1w", "ln2w", "lnfw"):
            assert (x == 1).all(), name
        elif name.endswith("b"):
            assert (x == 0).all(), name
        else:
            deviation = 0.02 / math.sqrt(16) if name in ("attprojw", "fcprojw") else 0.02
            # Standard error of the deviation of n draws: 1/sqrt(2n), below 1.2% here. Four times that
            assert abs(x.std() / deviation - 1) < 0.05, name
    tokens = np.random.default_rng(0).integers(0, 300, (4, 64))
    assert abs(model.loss(tokens, tokens[::-1]) - math.log(300)) < 0.05  # predictions are uniform


def test_initial_weights_depend_on_the_seed_not_the_dtype():
    config = GPT2Config(V, MAX_T, L, NH, C)
    first, same, other = GPT2(config, seed=1), GPT2(config, seed=1), GPT2(config, seed=2)
    double = GPT2(GPT2Config(V, MAX_T, L, NH, C, "float64"), seed=1)
    assert np.array_equal(first.flat_params, same.flat_params)
    assert not np.array_equal(first.flat_params, other.flat_params)
    assert np.array_equal(double.flat_params, first.flat_params)


def test_initial_weights_do_not_depend_on_the_number_of_threads(monkeypatch):
    """And no two pieces, of one tensor or of two, hold the same numbers."""
    monkeypatch.setattr(gpt2.model.parameters, "PIECE", 48)  # so that these small tensors have several
    models = []
    for threads in (1, 2, 3):
        ad.set_threads(threads)
        models.append(GPT2(GPT2Config(V, MAX_T, L, NH, C), seed=1))
    for other in models[1:]:
        assert np.array_equal(other.flat_params, models[0].flat_params)
    tensors = [models[0].params[name].reshape(-1) for name in MATRICES]
    pieces = [x[start : start + 48].tobytes() for x in tensors for start in range(0, x.size, 48)]
    assert len(pieces) > 50 and len(set(pieces)) == len(pieces)


def test_initial_weights_of_a_seed_never_change():
    """A change here changes every run from a seed: docs/promises.md and README have to say so."""
    params = GPT2(GPT2Config(V, MAX_T, L, NH, C), seed=1).params
    expected = {
        "wte": -0.0140906,
        "wpe": -0.0340399,
        "qkvw": 0.00351072,
        "attprojw": -0.000959137,
        "fcw": -0.0180374,
        "fcprojw": -0.00110628,
    }
    first = {name: params[name].reshape(-1)[0].item() for name in MATRICES}
    assert first == pytest.approx(expected, rel=1e-5)


# ---- Gradients


@pytest.mark.parametrize("name", NAMES)
def test_gradient_is_the_slope(name):
    """Along random directions in one tensor; central differences err by 1e-10 of the third derivative."""
    model = small_model()
    tokens, targets = batch()
    model.forward(tokens, targets)
    model.backward()
    gradient = model.grads[name]
    typical = np.linalg.norm(gradient)  # of a slope, as directions are standard normal
    for direction, expected in slopes(model, name, tokens, targets):
        assert abs(np.sum(gradient * direction) - expected) < 1e-6 * typical


def slopes(model, name, tokens, targets):
    """Three random directions in one tensor, each with the central difference of the loss along it."""
    parameter = model.params[name]
    for seed in range(3):
        direction = np.random.default_rng(seed).standard_normal(parameter.shape)
        yield direction, slope(model, parameter, direction, tokens, targets)


def test_tied_embedding_gets_both_gradients():
    model = small_model()
    shares = []

    def recording(layer, position):
        """The layer, whose backward also appends its gradient of wte's shape to `shares`."""

        def backward(dout, saved):
            gradients = layer.backward(dout, saved)
            if gradients[position].shape == (V, C):
                shares.append(gradients[position].copy())
            return gradients

        return replace(layer, backward=backward)

    model.layers["matmul"] = recording(LAYERS["matmul"], 1)
    model.layers["encoder"] = recording(LAYERS["encoder"], 1)
    model.forward(*batch())
    model.backward()
    head, embedding = shares
    assert head.any() and embedding.any()
    np.testing.assert_allclose(model.grads["wte"], head + embedding, rtol=1e-14)


@pytest.mark.parametrize("compile", [True, False])
def test_accumulated_halves_equal_the_whole_batch(compile):
    model = small_model(compile=compile)
    tokens, targets = batch(rows=4)
    model.forward(tokens, targets)
    model.backward()
    whole = model.flat_grads.copy()
    for i in range(2):
        model.forward(tokens[2 * i : 2 * i + 2], targets[2 * i : 2 * i + 2])
        model.backward(scale=0.5, accumulate=i > 0)
    np.testing.assert_allclose(model.flat_grads, whole, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("compile", [True, False])
def test_backward_overwrites_old_gradients(compile):
    model = small_model(compile=compile)
    model.forward(*batch())
    model.backward()
    first = model.flat_grads.copy()
    model.flat_grads[...] = np.nan
    model.forward(*batch())
    model.backward()
    assert np.array_equal(model.flat_grads, first)


# ---- Functions


def test_pure_functions_equal_the_model():
    model = small_model()
    tokens, targets = batch()
    layers = choose("manual")
    logits = model.forward(tokens)
    assert logits.shape == (B, T, V)
    assert np.array_equal(logits, forward_pass(model.params, tokens, model.description, layers)[0])
    loss = model.forward(tokens, targets)
    assert isinstance(loss, float)
    assert loss == loss_fn(model.params, tokens, targets, config=model.config, layers=layers)
    assert loss == model.loss(tokens, targets)


def test_forward_and_backward_write_to_no_argument():
    model = small_model()
    tokens, targets = batch()
    for array in (tokens, targets, model.flat_params, *model.params.values()):
        array.flags.writeable = False
    model.forward(tokens, targets)
    model.backward()


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
def test_tokens_of_any_integer_type(dtype):
    model = small_model()
    tokens, targets = batch()
    loss = model.forward(tokens.astype(dtype), targets.astype(dtype))
    assert loss == model.forward(tokens.tolist(), targets.tolist())


def test_uncompiled_step_holds_two_copies_of_the_logits_at_most():
    """With V much larger than C logits outweigh all else: a third copy would show, or one kept too long."""
    config = GPT2Config(vocab_size=5000, block_size=64, n_layer=1, n_head=1, n_embd=4)
    model = GPT2(config, compile=False)
    tokens = np.random.default_rng(0).integers(0, 5000, (2, 64))
    logits_bytes = tokens.size * 5000 * 4
    held = []

    def encoder_backward(dout, saved):
        held.append(tracemalloc.get_traced_memory()[0])
        return LAYERS["encoder"].backward(dout, saved)

    model.layers["encoder"] = replace(LAYERS["encoder"], backward=encoder_backward)

    def step():
        model.forward(tokens, tokens)
        model.forward(tokens, tokens)  # replaces the first, whose backward is never run
        model.backward()

    assert peak_of(step) < 2.5 * logits_bytes
    assert held[0] < 1.5 * logits_bytes  # after the backward of the blocks


@pytest.mark.parametrize("backward", ["manual", "auto", "manual,attention=auto", "whole"])
def test_step_allocates_no_array_after_the_first(backward):
    """Python's own objects stay well below the smallest activation, (B, T, C)."""
    config = GPT2Config(vocab_size=3000, block_size=64, n_layer=1, n_head=2, n_embd=128)
    model = GPT2(config, backward)
    rng = np.random.default_rng(0)
    activation = 4 * 64 * config.n_embd * 4  # bytes

    def step():
        tokens, targets = rng.integers(0, 3000, (2, 4, 64))
        model.loss_and_grads(tokens, targets)

    step()
    step()
    assert peak_of(step) < activation


def test_whole_step_holds_the_logits_once_and_little_else(monkeypatch):
    """Where memory is short: the logits' gradient overwrites them, saved values use the memory of later
    gradients, and no bias's gradient waits for the end."""
    monkeypatch.setattr("gpt2.backward.AMPLE", 0)  # memory is never ample, also for this small model
    config = GPT2Config(vocab_size=3000, block_size=64, n_layer=6, n_head=4, n_embd=256)
    model = GPT2(config, "whole")
    tokens = np.random.default_rng(0).integers(0, 3000, (2, 64))
    model.loss_and_grads(tokens, tokens)
    ((entry,),) = model.program.entries.values()
    logits, wide = 2 * 64 * 3000 * 4, 2 * 64 * 4 * 256 * 4  # bytes; wide: the hidden layer of one block
    assert entry.joint.program.arena_bytes < logits + 4 * wide


@pytest.mark.parametrize("backward", ["manual", "auto"])
def test_logits_use_the_memory_of_later_gradients(backward):
    """Logits smaller than the gradients of the blocks take no memory of their own."""
    config = GPT2Config(vocab_size=3000, block_size=64, n_layer=2, n_head=4, n_embd=128)
    model = GPT2(config, backward)
    tokens = np.random.default_rng(0).integers(0, 3000, (2, 64))
    logits = 2 * 64 * 3000 * 4  # bytes
    assert not np.shares_memory(model._scratch, model.grads["wte"])  # the head's backward writes that one
    for _ in range(2):
        model.loss_and_grads(tokens, tokens)

    def halves():
        model.forward(tokens, tokens)
        model.backward()

    assert peak_of(halves) > logits  # the first time they allocate what no step has kept
    assert peak_of(halves) < logits / 2


OPTIONS = [dict(), dict(backward="auto"), dict(compile=False)]


@pytest.mark.parametrize("train", ["all", "last:1", "biases", "lora:2"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_logits_scratch_changes_no_bit(options, train):
    """loss_and_grads uses dirty scratch memory, forward and backward apart use none."""
    model = GPT2(GPT2Config(V, MAX_T, L, NH, C), seed=1, train=train, **options)
    assert model._logits_scratch(B, T).base is not None and model._logits_scratch(100 * B, T) is None
    model.forward(*batch())
    model.backward(scale=0.5)
    expected = model.flat_grads.copy()
    model.flat_grads[...] = np.nan
    model.loss_and_grads(*batch(), scale=0.5)
    assert np.array_equal(model.flat_grads, expected)
    model.loss_and_grads(*batch(), scale=0.5, accumulate=True)
    np.testing.assert_allclose(model.flat_grads, 2 * expected, rtol=1e-5)


def tanh_head():
    """A linear layer with a tanh, whose backward reads its output."""

    def forward(inp, weight, bias):
        out = np.tanh(inp @ weight.T + (0.0 if bias is None else bias))
        return out, (inp, weight, bias, out)

    def backward(dout, saved):
        inp, weight, bias, out = saved
        rows = (dout * (1.0 - out * out)).reshape(-1, len(weight))
        dinp = (rows @ weight).reshape(inp.shape)
        return dinp, rows.T @ inp.reshape(-1, inp.shape[-1]), None if bias is None else rows.sum(axis=0)

    return Layer("matmul", forward, backward)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_head_may_save_its_output(options):
    """Then the logits' gradient does not overwrite the logits."""
    model = small_model(layers={"matmul": tanh_head()}, **options)
    model.loss_and_grads(*batch())
    direction = np.random.default_rng(3).standard_normal(model.flat_params.shape)
    expected = slope(model, model.flat_params, direction, *batch())
    assert model.flat_grads @ direction == pytest.approx(expected, rel=1e-6)


def test_gradient_of_the_logits_uses_their_memory():
    """Unless the head saves its output, see above."""
    outs = []

    for layers in ({}, {"matmul": tanh_head()}):
        model = small_model(compile=False, layers=layers)
        layer = model.layers["crossentropy"]

        def backward(dlosses, saved, out, layer=layer):
            outs.append(out[0] is not None)
            return layer.backward(dlosses, saved, out=out)

        model.layers["crossentropy"] = replace(layer, backward=backward)
        model.forward(*batch())
        model.backward()
    assert outs == [True, False]


@pytest.mark.parametrize("backward", ["auto", "manual,attention=auto,gelu=auto", "whole"])
@pytest.mark.parametrize("halves", [False, True])
def test_derived_gradients_agree_with_uncompiled_manual(backward, halves):
    """In float64 to 1e-12, scaled and accumulated too; test_backwards.py has the loss curves of float32."""
    rng = np.random.default_rng(0)
    manual, derived = small_model(compile=False), small_model(backward=backward)
    for accumulate in (False, True, True):
        tokens, targets = batch(rng)
        expected = manual.forward(tokens, targets)
        manual.backward(scale=0.5, accumulate=accumulate)
        if halves:
            loss = derived.forward(tokens, targets)
            derived.backward(scale=0.5, accumulate=accumulate)
        else:
            loss = derived.loss_and_grads(tokens, targets, scale=0.5, accumulate=accumulate)
        assert loss == pytest.approx(expected, rel=1e-12)
        for name, gradient in manual.grads.items():
            atol = 1e-12 * np.abs(gradient).max()
            np.testing.assert_allclose(derived.grads[name], gradient, rtol=0, atol=atol, err_msg=name)


def test_backward_needs_a_forward_each_time():
    model = small_model()

    def forward_and_backward():
        model.forward(*batch())
        model.backward()

    for before in (lambda: None, forward_and_backward, lambda: model.loss(*batch())):
        before()
        with pytest.raises(RuntimeError, match="call forward"):
            model.backward()


# ---- Errors


@pytest.mark.parametrize(
    ("name", "index", "step"),
    [
        ("wpe", 2, "encoder (encoder)"),
        ("ln1w", (0, 1), "block 0 ln1 (layernorm)"),
        ("qkvb", (1, 0), "block 1 qkv (matmul)"),
        ("fcw", (1, 3), "block 1 fc (matmul)"),
        ("lnfb", 0, "lnf (layernorm)"),
    ],
)
def test_first_non_finite_layer_is_named(name, index, step):
    model = small_model()
    tokens, targets = batch()
    assert model.first_non_finite(tokens, targets) is None
    model.params[name][index] = np.inf
    assert model.first_non_finite(tokens, targets) == step
    assert model.first_non_finite(tokens) == step


@pytest.mark.parametrize(
    ("tokens", "targets", "message"),
    [
        ([[0, V]], None, f"tokens contains {V}, expected ids from 0 to {V - 1}"),
        ([[0, -1]], None, f"tokens contains -1, expected ids from 0 to {V - 1}"),
        ([[0, 1]], [[0, V]], f"targets contains {V}, expected ids from 0 to {V - 1}"),
        ([[0, 1]], [[0, 1, 2]], "targets has shape (1, 3), expected (1, 2) to match tokens"),
        ([0, 1], None, "tokens has shape (2,), expected (B, T); np.array(tokens)[None]"),
        (np.zeros((0, 4), int), None, "tokens has shape (0, 4), expected (B, T), not empty"),
        ([[]], None, "tokens has shape (1, 0), expected (B, T), not empty"),
        ([[0.0, 1.0]], None, "tokens has dtype float64, expected integers"),
        ([[0] * 9], None, "tokens has T=9 positions, more than block_size 8; pass shorter sequences"),
    ],
)
def test_bad_batches_are_refused(tokens, targets, message):
    with pytest.raises(ValueError, match="^" + re.escape(f"GPT2.forward: {message}")) as error:
        small_model().forward(tokens, targets)
    assert "\n" not in str(error.value)


def test_gradients_need_targets():
    with pytest.raises(ValueError, match=r"targets has shape \(\), expected \(B, T\)"):
        small_model().loss_and_grads([[0, 1]], None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_embd": 100}, "n_embd 100 is not divisible by n_head 12"),
        ({"n_layer": 0}, "n_layer is 0, expected a whole number from 1"),
        ({"block_size": 2.5}, "block_size is 2.5, expected a whole number from 1"),
        ({"n_head": True}, "n_head is True, expected a whole number from 1"),
        ({"dtype": "float16"}, "dtype is 'float16', expected float32 or float64"),
        ({"dtype": "pear"}, "dtype is 'pear', expected float32 or float64"),
    ],
)
def test_bad_sizes_are_refused(changes, message):
    with pytest.raises(ValueError, match="^GPT2Config: " + re.escape(message)):
        GPT2Config(**changes)


def test_unknown_preset_is_refused():
    with pytest.raises(ValueError, match="no preset 'gpt3', expected one of gpt2, gpt2-medium"):
        GPT2Config.preset("gpt3")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("automatic", "'automatic' is not one of manual, auto, whole"),
        ("manual,atention=auto", "'atention=auto' is not LAYER=MODE, with LAYER one of encoder, layernorm"),
        ("manual,attention", "'attention' is not LAYER=MODE"),
        ("manual,gelu=pear", "'pear' is not one of manual, auto"),
    ],
)
def test_unknown_backward_is_refused(spec, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        GPT2(GPT2Config.preset("tiny"), backward=spec)
