"""Assignments to model.params and model.grads are copied into the model, or refused."""

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
def test_assigned_tensor_is_copied_and_trained(assign):
    assigned, written = GPT2(CONFIG, seed=1), GPT2(CONFIG, seed=1)
    new = np.linspace(0.5, 2.0, 8, dtype="float32")
    assign(assigned.params, new)
    written.params["lnfw"][...] = new
    for model in (assigned, written):
        optimizer = AdamW(model, lr=0.1)
        for _ in range(2):
            model.loss_and_grads(TOKENS, TOKENS + 1)
            optimizer.step()
    np.testing.assert_array_equal(assigned.flat_params, written.flat_params)
    assert not np.array_equal(assigned.params["lnfw"], new) and new[0] == 0.5
    assert np.shares_memory(assigned.params["lnfw"], assigned.flat_params)


def test_gradients_take_assignments_and_in_place_operators():
    model = GPT2(CONFIG)
    model.grads["qkvb"] = np.ones((2, 24))
    model.grads["qkvb"] *= 3.0
    assert model.flat_grads.sum() == 3.0 * 48


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda p: p.update(lnfw=np.ones(7)), ValueError, r"lnfw: .* has shape \(7,\), expected \(8,\)"),
        (lambda p: p.__setitem__("lnfw", 1.0), ValueError, r"lnfw: .* has shape \(\), expected"),
        (lambda p: p.__setitem__("lnf", np.ones(8)), KeyError, "there is no tensor 'lnf'; there are wte"),
        (lambda p: p.pop("lnfw"), TypeError, "tensors cannot be replaced"),
        (lambda p: p.__delitem__("lnfw"), TypeError, "tensors cannot be replaced"),
        (lambda p: p.setdefault("new", 3), TypeError, "tensors cannot be replaced"),
        (lambda p: p.clear(), TypeError, "tensors cannot be replaced"),
    ],
)
def test_assignments_that_do_not_fit_are_refused(change, error, message):
    for mapping in (GPT2(CONFIG).params, GPT2(CONFIG).grads):
        with pytest.raises(error, match=message):
            change(mapping)
        assert len(mapping) == 16


def test_frozen_tensors_take_assignments_unless_read_only(tmp_path):
    """Those of a block are separate arrays; those of a file may be mapped read-only."""
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


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p)), dict])
def test_params_behave_as_a_dict(copied):
    model = GPT2(CONFIG, seed=1)
    assert isinstance(model.params, dict) and list(copied(model.params)) == list(model.params)
    gradient = ad.grad(lambda p: np.sum(p["wte"] ** 2) + np.sum(p["lnfw"]))(copied(model.params))
    np.testing.assert_array_equal(gradient["wte"], 2.0 * model.params["wte"])
    assert list(gradient) == list(model.params)
