"""The model as a whole: its table, its start, and its hand-written backward against central differences."""

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
from gpt2.model.config import PRESETS, parameter_table
from gpt2.model.forward import logits_fn
from gpt2.model.gpt2 import MATRICES, parameter_ranges
from tests.support.peaks import peak_of

pytestmark = pytest.mark.numeric

NAMES = "wte wpe ln1w ln1b qkvw qkvb attprojw attprojb ln2w ln2b fcw fcb fcprojw fcprojb lnfw lnfb".split()
V, MAX_T, L, NH, C, B, T = 13, 8, 2, 3, 12, 2, 5


def small_model(dtype="float64", seed=0, **how):
    """A model of a few thousand parameters, all of them random: no gain is 1 and no bias 0."""
    model = GPT2(GPT2Config(V, MAX_T, L, NH, C, dtype), **how)
    model.flat_params += 0.2 * np.random.default_rng(seed).standard_normal(model.flat_params.shape)
    return model


def batch(seed=0, rows=B):
    return np.random.default_rng(seed).integers(0, V, (2, rows, T))  # tokens and targets


# ---- Parameters


def test_table_is_llm_c_s():
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


def test_presets_take_changes():
    assert GPT2Config.preset("tiny", block_size=7).block_size == 7
    for name in PRESETS:
        GPT2Config.preset(name)


def test_tensors_are_views_of_the_flat_buffers_in_order():
    model = small_model()
    assert list(model.params) == list(model.grads) == NAMES
    for flat, views in ((model.flat_params, model.params), (model.flat_grads, model.grads)):
        flat[...] = np.arange(flat.size)
        assert np.array_equal(np.concatenate([x.ravel() for x in views.values()]), flat)
        assert all(np.shares_memory(x, flat) and x.flags.c_contiguous for x in views.values())
    for name, (start, stop) in parameter_ranges(model.config).items():
        assert np.shares_memory(model.params[name], model.flat_params[start:stop])


def test_decay_applies_to_matrices_and_embeddings():
    model = small_model()
    model.flat_params[...] = 0
    for start, stop in model.decayed:
        model.flat_params[start:stop] = 1
    decayed = [name for name, x in model.params.items() if x.all()]
    assert decayed == ["wte", "wpe", "qkvw", "attprojw", "fcw", "fcprojw"]
    assert not any(model.params[name].any() for name in set(NAMES) - set(decayed))


def test_initialisation_is_gpt_2_s():
    model = GPT2(GPT2Config(300, 64, 8, 2, 64))
    for name, x in model.params.items():
        if name in ("ln1w", "ln2w", "lnfw"):
            assert (x == 1).all(), name
        elif name.endswith("b"):
            assert (x == 0).all(), name
        else:
            deviation = 0.02 / math.sqrt(16) if name in ("attprojw", "fcprojw") else 0.02
            # Of n draws the deviation is known to 1/sqrt(2n), below 1.2% here: four times that.
            assert abs(x.std() / deviation - 1) < 0.05, name
    tokens = np.random.default_rng(0).integers(0, 300, (4, 64))
    assert abs(model.loss(tokens, tokens[::-1]) - math.log(300)) < 0.05  # it knows nothing yet


def test_seed_decides_and_dtype_does_not():
    config = GPT2Config(V, MAX_T, L, NH, C)
    first, same, other = GPT2(config, seed=1), GPT2(config, seed=1), GPT2(config, seed=2)
    double = GPT2(GPT2Config(V, MAX_T, L, NH, C, "float64"), seed=1)
    assert np.array_equal(first.flat_params, same.flat_params)
    assert not np.array_equal(first.flat_params, other.flat_params)
    assert np.array_equal(double.flat_params, first.flat_params)


def test_initial_weights_do_not_depend_on_the_number_of_threads(monkeypatch):
    """Nor do any two pieces, of one tensor or of two, hold the same numbers."""
    monkeypatch.setattr(gpt2.model.gpt2, "PIECE", 48)  # so that these small tensors have several
    config = GPT2Config(V, MAX_T, L, NH, C)
    found = []
    try:
        for threads in (1, 2, 3):
            ad.set_threads(threads)
            found.append(GPT2(config, seed=1))
    finally:
        ad.set_threads(1)
    for other in found[1:]:
        assert np.array_equal(other.flat_params, found[0].flat_params)
    pieces = [
        piece.tobytes()
        for name in MATRICES
        for piece in np.array_split(
            found[0].params[name].reshape(-1), range(48, found[0].params[name].size, 48)
        )
    ]
    assert len(pieces) > 50 and len(set(pieces)) == len(pieces)


def test_initial_weights_are_those_of_always():
    """A change here changes every run from a seed: docs/promises.md and README have to tell of it."""
    params = GPT2(GPT2Config(V, MAX_T, L, NH, C), seed=1).params
    first = {name: params[name].reshape(-1)[0].item() for name in MATRICES}
    expected = {
        "wte": -0.0140906,
        "wpe": -0.0340399,
        "qkvw": 0.00351072,
        "attprojw": -0.000959137,
        "fcw": -0.0180374,
        "fcprojw": -0.00110628,
    }
    assert first == pytest.approx(expected, rel=1e-5)


# ---- Gradients


@pytest.mark.parametrize("name", NAMES)
def test_gradient_is_the_slope(name):
    """Random directions in one tensor. The central difference errs by h^2 = 1e-10 of the third derivative."""
    model = small_model()
    tokens, targets = batch()
    model.forward(tokens, targets)
    model.backward()
    gradient = model.grads[name]
    typical = np.linalg.norm(gradient)  # of a slope, as directions are normal
    for direction, slope in slopes(model, name, tokens, targets):
        assert abs(np.sum(gradient * direction) - slope) < 1e-6 * typical


def slopes(model, name, tokens, targets, h=1e-5):
    """Three random directions in one tensor, each with the central difference of the loss along it."""
    parameter = model.params[name]
    start = parameter.copy()
    for seed in range(3):
        direction = np.random.default_rng(seed).standard_normal(parameter.shape)
        parameter[...] = start + h * direction
        above = model.forward(tokens, targets)
        parameter[...] = start - h * direction
        below = model.forward(tokens, targets)
        parameter[...] = start
        yield direction, (above - below) / (2 * h)


def test_tied_embedding_gets_both_gradients():
    model = small_model()
    shares = []

    def overheard(layer, position):
        """The layer, noting each gradient of wte's shape that its backward returns."""

        def backward(dout, saved):
            gradients = layer.backward(dout, saved)
            if gradients[position].shape == (V, C):
                shares.append(gradients[position].copy())
            return gradients

        return replace(layer, backward=backward)

    model.layers["matmul"] = overheard(LAYERS["matmul"], 1)
    model.layers["encoder"] = overheard(LAYERS["encoder"], 1)
    model.forward(*batch())
    model.backward()
    head, embedding = shares
    assert head.any() and embedding.any()
    np.testing.assert_allclose(model.grads["wte"], head + embedding, rtol=1e-14)


def test_float32_gradients_agree_with_float64():
    double, single = small_model("float64"), small_model("float32")
    tokens, targets = batch()
    losses = [model.forward(tokens, targets) for model in (double, single)]
    assert abs(losses[0] - losses[1]) < 1e-6 * losses[0]
    for model in (double, single):
        model.backward()
    for name in NAMES:
        assert single.grads[name].dtype == np.float32
        error = np.abs(single.grads[name] - double.grads[name]).max()
        assert error < 1e-5 * np.abs(double.grads[name]).max(), name  # some hundred roundings of 6e-8


@pytest.mark.parametrize("compile", [True, False])
def test_accumulated_halves_are_the_whole(compile):
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
def test_backward_replaces_what_was_there(compile):
    model = small_model(compile=compile)
    model.forward(*batch())
    model.backward()
    first = model.flat_grads.copy()
    model.flat_grads[...] = np.nan
    model.forward(*batch())
    model.backward()
    assert np.array_equal(model.flat_grads, first)


def test_one_batch_is_learnt_by_heart():
    model = GPT2(GPT2Config(V, MAX_T, L, NH, C))
    tokens, targets = batch()
    targets = (7 * tokens + np.arange(T)) % V  # so that the same past never has two futures
    for _ in range(300):
        loss = model.forward(tokens, targets)
        model.backward()
        model.flat_params -= 0.5 * model.flat_grads
    assert loss < 0.05


# ---- Functions


def test_pure_functions_are_the_model():
    model = small_model()
    tokens, targets = batch()
    layers = choose("manual")
    logits = model.forward(tokens)
    assert logits.shape == (B, T, V)
    assert np.array_equal(logits, logits_fn(model.params, tokens, config=model.config, layers=layers))
    loss = model.forward(tokens, targets)
    assert isinstance(loss, float)
    assert loss == loss_fn(model.params, tokens, targets, config=model.config, layers=layers)
    assert loss == model.loss(tokens, targets)


def test_forward_and_backward_touch_no_argument():
    model = small_model()
    tokens, targets = batch()
    for array in (tokens, targets, model.flat_params, *model.params.values()):
        array.flags.writeable = False
    model.forward(tokens, targets)
    model.backward()


def test_logits_do_not_depend_on_the_future():
    model = small_model()
    tokens, _ = batch()
    changed = tokens.copy()
    changed[:, 3:] = (changed[:, 3:] + 1) % V
    before, after = model.forward(tokens), model.forward(changed)
    assert np.array_equal(before[:, :3], after[:, :3])
    assert not np.array_equal(before[:, 3:], after[:, 3:])


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
def test_tokens_of_any_integer_type(dtype):
    model = small_model()
    tokens, targets = batch()
    loss = model.forward(tokens.astype(dtype), targets.astype(dtype))
    assert loss == model.forward(tokens.tolist(), targets.tolist())


def test_logits_exist_at_most_twice_as_written():
    """At V much larger than C logits outweigh all else: three at once would show, or one kept too long."""
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
        model.forward(tokens, tokens)  # a second time, with the first not used
        model.backward()

    assert peak_of(step) < 2.5 * logits_bytes
    assert held[0] < 1.5 * logits_bytes  # by the time that the blocks are done


@pytest.mark.parametrize("backward", ["manual", "auto", "manual,attention=auto", "whole"])
def test_a_step_allocates_no_array_after_the_first(backward):
    """What remains is Python's own small change: well below the smallest activation, (B, T, C)."""
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


def test_a_whole_step_keeps_the_logits_once_and_little_else(monkeypatch):
    """The gradient of the logits is written over them, what the layers keep lies where gradients come later,
    and no bias's gradient waits for the end. So where memory counts: this model is too small for that."""
    monkeypatch.setattr("gpt2.backward.AMPLE", 0)
    config = GPT2Config(vocab_size=3000, block_size=64, n_layer=6, n_head=4, n_embd=256)
    model = GPT2(config, "whole")
    tokens = np.random.default_rng(0).integers(0, 3000, (2, 64))
    model.loss_and_grads(tokens, tokens)
    ((entry,),) = model.program.entries.values()
    logits, wide = 2 * 64 * 3000 * 4, 2 * 64 * 4 * 256 * 4  # bytes; wide: the hidden layer of one block
    assert entry.joint.program.arena_bytes < logits + 4 * wide


@pytest.mark.parametrize("backward", ["manual", "auto"])
def test_logits_lie_where_gradients_come_later(backward):
    """Where blocks have more gradients than there are logits, these take no memory of their own."""
    config = GPT2Config(vocab_size=3000, block_size=64, n_layer=2, n_head=4, n_embd=128)
    model = GPT2(config, backward)
    tokens = np.random.default_rng(0).integers(0, 3000, (2, 64))
    logits = 2 * 64 * 3000 * 4  # bytes
    assert not np.shares_memory(model._scratch, model.grads["wte"])  # which the head's backward writes
    for _ in range(2):
        model.loss_and_grads(tokens, tokens)

    def halves():
        model.forward(tokens, tokens)
        model.backward()

    assert peak_of(halves) > logits  # they make an array that no step before has made and kept
    assert peak_of(halves) < logits / 2


HOW = [dict(), dict(backward="auto"), dict(compile=False)]


@pytest.mark.parametrize("train", ["all", "last:1", "biases", "lora:2"])
@pytest.mark.parametrize("how", HOW, ids=str)
def test_logits_scratch_changes_no_bit(how, train):
    """A step at once, in memory that held anything before, and its two halves, which lend nothing."""
    model = GPT2(GPT2Config(V, MAX_T, L, NH, C), seed=1, train=train, **how)
    assert model._logits_scratch(B, T).base is not None and model._logits_scratch(100 * B, T) is None
    model.forward(*batch())
    model.backward(scale=0.5)
    wanted = model.flat_grads.copy()
    model.flat_grads[...] = np.nan
    model.loss_and_grads(*batch(), scale=0.5)
    assert np.array_equal(model.flat_grads, wanted)
    model.loss_and_grads(*batch(), scale=0.5, accumulate=True)
    np.testing.assert_allclose(model.flat_grads, 2 * wanted, rtol=1e-5)


def keeping_head():
    """A linear layer with a tanh, whose backward reads its own result."""

    def forward(inp, weight, bias):
        out = np.tanh(inp @ weight.T + (0.0 if bias is None else bias))
        return out, (inp, weight, bias, out)

    def backward(dout, saved):
        inp, weight, bias, out = saved
        rows = (dout * (1.0 - out * out)).reshape(-1, len(weight))
        dinp = (rows @ weight).reshape(inp.shape)
        return dinp, rows.T @ inp.reshape(-1, inp.shape[-1]), None if bias is None else rows.sum(axis=0)

    return Layer("matmul", forward, backward)


@pytest.mark.parametrize("how", HOW, ids=str)
def test_a_head_may_keep_its_result(how):
    """The gradient of the logits is then not written over them."""
    model = small_model(layers={"matmul": keeping_head()}, **how)
    start, towards = (
        model.flat_params.copy(),
        np.random.default_rng(3).standard_normal(model.flat_params.shape),
    )
    model.loss_and_grads(*batch())
    losses = []
    for step in (1e-5, -1e-5):
        model.flat_params[...] = start + step * towards
        losses.append(model.loss(*batch()))
    assert model.flat_grads @ towards == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-6)


@pytest.mark.parametrize("backward", ["auto", "manual,attention=auto,gelu=auto", "whole"])
@pytest.mark.parametrize("halves", [False, True])
def test_derived_gradients_agree_with_manual_as_written(backward, halves):
    """Float64 to 1e-12, and the loss curve of float32 is another test. Accumulating and scaling included."""
    rng = np.random.default_rng(0)
    want, got = small_model(compile=False, dtype="float64"), small_model(backward=backward, dtype="float64")
    for accumulate in (False, True, True):
        tokens, targets = batch(rng)
        for model, apart in ((want, True), (got, halves)):
            if apart:
                loss = model.forward(tokens, targets)
                model.backward(scale=0.5, accumulate=accumulate)
            else:
                loss = model.loss_and_grads(tokens, targets, scale=0.5, accumulate=accumulate)
            if model is want:
                wanted_loss = loss
        assert loss == pytest.approx(wanted_loss, rel=1e-12)
        for name, gradient in want.grads.items():
            scale = np.abs(gradient).max()
            np.testing.assert_allclose(got.grads[name], gradient, rtol=0, atol=1e-12 * scale, err_msg=name)


def test_activations_are_used_up():
    model = small_model()
    with pytest.raises(RuntimeError, match="call forward"):
        model.backward()
    model.forward(*batch())
    model.backward()
    with pytest.raises(RuntimeError, match="call forward"):
        model.backward()
    model.loss(*batch())
    with pytest.raises(RuntimeError, match="call forward"):
        model.backward()


# ---- What went wrong


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
def test_first_layer_that_is_not_finite_is_named(name, index, step):
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
        ([0, 1], None, "tokens has shape (2,), expected (B, T)"),
        (np.zeros((0, 4), int), None, "tokens has shape (0, 4), expected (B, T), not empty"),
        ([[0.0, 1.0]], None, "tokens has dtype float64, expected integers"),
        ([[0] * 9], None, "tokens has T=9 positions, more than block_size 8; pass shorter sequences"),
    ],
)
def test_bad_batches_are_named(tokens, targets, message):
    with pytest.raises(ValueError, match="^" + re.escape(f"GPT2.forward: {message}")) as error:
        small_model().forward(tokens, targets)
    assert "\n" not in str(error.value)


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
def test_bad_settings_are_named(changes, message):
    with pytest.raises(ValueError, match="^GPT2Config: " + re.escape(message)):
        GPT2Config(**changes)


def test_config_takes_any_spelling_of_dtype():
    assert GPT2Config(dtype=np.float64) == GPT2Config(dtype="float64") == GPT2Config(dtype=np.dtype("f8"))


def test_unknown_preset_is_named():
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
def test_unknown_backward_is_named(spec, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        GPT2(GPT2Config.preset("tiny"), backward=spec)


def test_one_sequence_that_is_no_batch_is_told_how_to_become_one():
    model = GPT2(GPT2Config(vocab_size=16, block_size=8, n_layer=1, n_head=1, n_embd=4), seed=0)
    with pytest.raises(
        ValueError, match=r"tokens has shape \(3,\), expected \(B, T\); np.array\(tokens\)\[None\]"
    ):
        model.forward([1, 2, 3])
    with pytest.raises(ValueError, match=r"tokens has shape \(1, 0\), expected \(B, T\), not empty"):
        model.forward([[]])
    assert "; 1 block, 1 head, 4 channels, 16 tokens, context 8;" in repr(model)
