"""copy.deepcopy and pickle: of models, optimizers, layers, derived functions and programs."""

import copy
import gc
import pickle
import sys
import types

import numpy as np
import pytest

import gpt2
from gpt2 import GPT2, AdamW, GPT2Config
from gpt2 import autodiff as ad
from gpt2.backward import auto, choose
from gpt2.data import tokenizer
from gpt2.layers import LAYERS

CONFIG = GPT2Config(vocab_size=13, block_size=8, n_layer=2, n_head=2, n_embd=8)
TOKENS = np.arange(12).reshape(2, 6)
COPIERS = {"deepcopy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x))}
by_deepcopy_and_pickle = pytest.mark.parametrize("copied", COPIERS.values(), ids=COPIERS)


def train(model, optimizer, steps):
    """Losses of this many steps."""
    return [(model.loss_and_grads(TOKENS, TOKENS + 1), optimizer.step())[0] for _ in range(steps)]


@by_deepcopy_and_pickle
@pytest.mark.parametrize(("backward", "steps_before"), [("manual,gelu=auto", 0), ("auto", 2), ("whole", 2)])
def test_copied_model_and_optimizer_train_like_the_originals(backward, steps_before, copied):
    model = GPT2(CONFIG, backward, seed=1)
    optimizer = AdamW(model, lr=1e-2)
    train(model, optimizer, steps_before)
    twin, its_optimizer = copied((model, optimizer))
    assert repr(twin) == repr(model) and twin.layers["gelu"].kind == model.layers["gelu"].kind
    losses = train(model, optimizer, 3)
    assert train(twin, its_optimizer, 3) == losses
    np.testing.assert_array_equal(twin.flat_params, model.flat_params)
    assert not np.shares_memory(twin.flat_params, model.flat_params)
    assert np.shares_memory(twin.params["qkvw"], twin.flat_params)


@by_deepcopy_and_pickle
def test_frozen_tensors_are_copied(copied):
    model = GPT2(CONFIG, train="last:1", seed=1)
    twin = copied(model)
    model.params["wte"][...] = 0.0
    assert twin.params["wte"].any() and twin.forward(TOKENS, TOKENS) > 0.0


@by_deepcopy_and_pickle
def test_copy_keeps_an_assigned_layer(copied):
    model = GPT2(CONFIG, seed=1)
    model.layers["gelu"] = np.tanh
    np.testing.assert_array_equal(copied(model).forward(TOKENS), model.forward(TOKENS))


def test_deepcopy_keeps_an_own_block():
    model = GPT2(CONFIG, block=lambda x, p, layers, config: x + layers["gelu"](x) * p["ln1w"], seed=1)
    assert copy.deepcopy(model).forward(TOKENS, TOKENS) == model.forward(TOKENS, TOKENS)


@by_deepcopy_and_pickle
def test_copy_of_a_loaded_model_keeps_its_tokenizer(copied, tmp_path):
    def text(model):
        return "".join(gpt2.generate(model, "abc", max_tokens=2, seed=1))

    words = tokenizer.byte()
    gpt2.save(GPT2(GPT2Config(words.vocab_size, 8, 1, 1, 8)), tmp_path / "m.safetensors", words)
    loaded = gpt2.load(tmp_path / "m.safetensors")
    assert text(copied(loaded)) == text(loaded)


def test_own_layer_that_cannot_be_pickled_is_named():
    model = GPT2(CONFIG, layers={"gelu": lambda inp: inp * 2.0})
    assert copy.deepcopy(model).forward(TOKENS).shape == (2, 6, 13)
    message = "GPT2: its own layer gelu cannot be pickled .* at the top of a module"
    with pytest.raises(TypeError, match=message):
        pickle.dumps(model)


@by_deepcopy_and_pickle
@pytest.mark.parametrize("layer", [LAYERS["gelu"], auto(LAYERS["gelu"]), choose("manual")["gelu"]])
def test_copied_layers_compute_the_same(layer, copied):
    inp = np.linspace(-2.0, 2.0, 12).reshape(3, 4)
    layer.forward(inp)
    out, saved = copied(layer).forward(inp)
    expected, kept = LAYERS["gelu"].forward(inp)
    np.testing.assert_allclose(out, expected, rtol=1e-14)
    dinp = copied(layer).backward(np.ones_like(inp), saved)[0]
    np.testing.assert_allclose(dinp, LAYERS["gelu"].backward(np.ones_like(inp), kept)[0], rtol=1e-13)


def cubes(x):
    return np.sum(x**3)


def scaled_tanh(x, w):
    return np.tanh(x @ w)


@by_deepcopy_and_pickle
@pytest.mark.parametrize("transform", [ad.grad, ad.compile, ad.hessian, ad.value_and_grad, ad.vmap])
def test_copied_derived_functions_compute_the_same(transform, copied):
    f, x = transform(cubes), np.arange(6.0).reshape(2, 3) if transform is ad.vmap else np.arange(3.0)
    for _ in range(3):
        expected = f(x)
    result = copied({"f": f})["f"](x)
    for a, b in zip(ad.tree.leaves(expected), ad.tree.leaves(result), strict=True):
        np.testing.assert_array_equal(a, b)


class Quadratic:
    """A user's callable object, on which the compiler keeps its programs."""

    def __init__(self):
        self.w = np.ones(3)

    def __call__(self, x):
        return np.sum(self.w * x * x)


@by_deepcopy_and_pickle
def test_copy_of_a_differentiated_object_is_independent(copied):
    model, x = Quadratic(), np.arange(3.0)
    for _ in range(3):
        ad.vjp(model, x)
    twin = copied(model)
    twin.w *= 2.0
    np.testing.assert_array_equal(ad.vjp(twin, x)[1](1.0)[0], 4.0 * x)
    np.testing.assert_array_equal(ad.vjp(model, x)[1](1.0)[0], 2.0 * x)


@by_deepcopy_and_pickle
def test_copied_fixed_programs_compute_the_same(copied):
    pair, x, w = ad.FixedPair(scaled_tanh), np.ones((2, 3)), np.full((3, 4), 0.1)
    out, saved = pair.forward(x, w)
    twin = copied(pair)
    again, kept = twin.forward(x, w)
    np.testing.assert_array_equal(again, out)
    for a, b in zip(twin.backward(out, kept), pair.backward(out, saved)):
        np.testing.assert_array_equal(a, b)
    fixed = ad.Fixed(scaled_tanh)
    np.testing.assert_array_equal(fixed(x, w), copied(fixed)(x, w))


def test_pullbacks_and_programs_are_not_pickled():
    x = np.arange(3.0)
    _, pullback = ad.vjp(cubes, x)
    np.testing.assert_array_equal(copy.deepcopy(pullback)(1.0)[0], pullback(1.0)[0])
    program = pullback.program
    assert copy.deepcopy(program) is program and copy.copy(program) is program
    for thing in (pullback, program):
        with pytest.raises(TypeError, match="cannot be pickled; pickle the function it was made from"):
            pickle.dumps(thing)


def arrays_without_owner(*roots):
    """Arrays reachable from these objects whose memory belongs to no live object, only to an address."""
    arrays, todo = [], list(roots)
    # functions lead to the globals of their modules, and these to all that other tests have loaded
    seen = {id(vars(m)) for name, m in [*sys.modules.items()] if name.partition(".")[0] != "gpt2"}
    while todo:
        x = todo.pop()
        if id(x) in seen or isinstance(x, (type, types.ModuleType)):
            continue
        seen.add(id(x))
        todo += gc.get_referents(x)
        if issubclass(type(x), np.ndarray):  # not a recorded value
            owner = x
            while isinstance(owner, np.ndarray) and owner.base is not None:
                owner = owner.base
            if not isinstance(owner, np.ndarray) and hasattr(owner, "__array_interface__"):
                arrays.append(x)
    return arrays


class FakeBuffer:
    __array_interface__ = {"shape": (3,), "typestr": "<f8", "data": (1 << 40, False), "version": 3}


def test_no_array_without_owner_can_be_reached():
    """Copying or printing one is a segmentation fault."""
    assert len(arrays_without_owner({"x": [np.asarray(FakeBuffer())[1:]]})) == 1
    derived = ad.grad(cubes), ad.compile(scaled_tanh), ad.Fixed(scaled_tanh)
    for f, args in zip(derived, [(np.ones(3),), *[(np.ones((2, 3)), np.ones((3, 4)))] * 2]):
        f(*args)
    models = [GPT2(CONFIG, backward) for backward in ("manual", "auto", "whole")]
    for model in models:
        train(model, AdamW(model), 1)
        list(gpt2.generate(model, [1, 2], 3))
    found = len(arrays_without_owner(models, derived, ad.vjp(cubes, np.ones(3))))
    assert found == 0  # a list would print them
