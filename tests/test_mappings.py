"""model.params and model.grads: what is assigned is copied in, or refused."""

import copy
import pickle

import numpy as np
import pytest

import gpt2
from gpt2 import GPT2, AdamW, GPT2Config
from gpt2 import autodiff as ad

CONFIG = GPT2Config(vocab_size=13, block_size=8, n_layer=2, n_head=2, n_embd=8)
TOKENS = np.arange(12).reshape(2, 6)


@pytest.mark.parametrize(
    "assign",
    [
        lambda params, new: params.__setitem__("lnfw", new),
        lambda params, new: params.update(lnfw=new),
        lambda params, new: params.update({"lnfw": new.astype("float64")}),
        lambda params, new: params.__ior__({"lnfw": new}),
    ],
)
def test_what_is_assigned_is_used_and_trained(assign):
    model, written = GPT2(CONFIG, seed=1), GPT2(CONFIG, seed=1)
    new = np.linspace(0.5, 2.0, 8, dtype="float32")
    assign(model.params, new)
    written.params["lnfw"][...] = new
    for each in (model, written):
        optimizer = AdamW(each, lr=0.1)
        for _ in range(2):
            each.loss_and_grads(TOKENS, TOKENS + 1)
            optimizer.step()
    np.testing.assert_array_equal(model.flat_params, written.flat_params)
    assert not np.array_equal(model.params["lnfw"], new) and new[0] == 0.5
    assert np.shares_memory(model.params["lnfw"], model.flat_params)


def test_gradients_and_operators_in_place():
    model = GPT2(CONFIG)
    model.grads["qkvb"] = np.ones((2, 24))
    model.grads["qkvb"] *= 3.0
    assert model.flat_grads.sum() == 3.0 * 48


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (
            lambda p: p.__setitem__("lnfw", np.ones(7)),
            ValueError,
            r"lnfw: .* has shape \(7,\), expected \(8,\)",
        ),
        (lambda p: p.__setitem__("lnfw", 1.0), ValueError, r"lnfw: .* has shape \(\), expected"),
        (lambda p: p.__setitem__("lnf", np.ones(8)), KeyError, "there is no tensor 'lnf'; there are wte"),
        (lambda p: p.pop("lnfw"), TypeError, "tensors cannot be replaced"),
        (lambda p: p.__delitem__("lnfw"), TypeError, "tensors cannot be replaced"),
        (lambda p: p.setdefault("new", 3), TypeError, "tensors cannot be replaced"),
        (lambda p: p.clear(), TypeError, "tensors cannot be replaced"),
    ],
)
def test_what_does_not_fit_is_refused(act, error, message):
    for mapping in (GPT2(CONFIG).params, GPT2(CONFIG).grads):
        with pytest.raises(error, match=message):
            act(mapping)
        assert len(mapping) == 16


def test_frozen_tensors(tmp_path):
    """They are written where they lie: in memory, block by block; in a file they cannot be."""
    model = GPT2(CONFIG, train="last:1", seed=1)
    for name in ("wte", "qkvb"):
        model.params[name] = np.full(model.params[name].shape, 2.0)
        np.testing.assert_array_equal(np.asarray(model.params[name]), 2.0)
    gpt2.save(GPT2(CONFIG, seed=1), tmp_path / "m.safetensors")
    base = gpt2.load(tmp_path / "m.safetensors")
    assert base.params["wte"].flags.writeable
    base.params["wte"].flags.writeable = False
    with pytest.raises(ValueError, match="wte: is read-only"):
        base.params["wte"] = np.zeros((13, 8))


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p)), dict])
def test_it_is_a_dict_to_everything_else(way):
    model = GPT2(CONFIG, seed=1)
    assert isinstance(model.params, dict) and list(way(model.params)) == list(model.params)
    gradient = ad.grad(lambda p: np.sum(p["wte"] ** 2) + np.sum(p["lnfw"]))(way(model.params))
    np.testing.assert_array_equal(gradient["wte"], 2.0 * model.params["wte"])
    assert list(gradient) == list(model.params)
