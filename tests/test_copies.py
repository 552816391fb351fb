"""copy.deepcopy and pickle of models, optimizers, layers, derived functions and programs."""

import copy
import gc
import pickle
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
WAYS = {"deepcopy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x))}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def steps(model, optimizer, n):
    return [(model.loss_and_grads(TOKENS, TOKENS + 1), optimizer.step())[0] for _ in range(n)]


@every_way
@pytest.mark.parametrize(("backward", "taken"), [("manual,gelu=auto", 0), ("auto", 2), ("whole", 2)])
def test_a_model_and_its_optimizer_go_on_as_the_originals(backward, taken, way):
    model = GPT2(CONFIG, backward, seed=1)
    optimizer = AdamW(model, lr=1e-2)
    steps(model, optimizer, taken)
    twin, its_optimizer = way((model, optimizer))
    assert repr(twin) == repr(model) and twin.layers["gelu"].kind == model.layers["gelu"].kind
    losses = steps(model, optimizer, 3)
    assert steps(twin, its_optimizer, 3) == losses
    np.testing.assert_array_equal(twin.flat_params, model.flat_params)
    assert not np.shares_memory(twin.flat_params, model.flat_params)
    assert np.shares_memory(twin.params["qkvw"], twin.flat_params)


@every_way
def test_what_is_frozen_is_copied(way):
    model = GPT2(CONFIG, train="last:1", seed=1)
    twin = way(model)
    model.params["wte"][...] = 0.0
    assert twin.params["wte"].any() and twin.forward(TOKENS, TOKENS) > 0.0


@every_way
def test_a_layer_that_was_changed_stays_changed(way):
    model = GPT2(CONFIG, seed=1)
    model.layers["gelu"] = np.tanh
    np.testing.assert_array_equal(way(model).forward(TOKENS), model.forward(TOKENS))


@every_way
def test_a_loaded_model_keeps_its_tokenizer(way, tmp_path):
    words = tokenizer.byte()
    gpt2.save(GPT2(GPT2Config(words.vocab_size, 8, 1, 1, 8)), tmp_path / "m.safetensors", words)
    loaded = gpt2.load(tmp_path / "m.safetensors")
    assert "".join(gpt2.generate(way(loaded), "abc", max_tokens=2, seed=1)) == "".join(
        gpt2.generate(loaded, "abc", max_tokens=2, seed=1)
    )


def test_own_layers_that_pickle_cannot_name_are_one_line():
    model = GPT2(CONFIG, layers={"gelu": lambda inp: inp * 2.0})
    assert copy.deepcopy(model).forward(TOKENS).shape == (2, 6, 13)
    message = r"GPT2: its own layer gelu cannot be pickled .* at the top of a module"
    with pytest.raises(TypeError, match=message):
        pickle.dumps(model)


@every_way
@pytest.mark.parametrize("layer", [LAYERS["gelu"], auto(LAYERS["gelu"]), choose("manual")["gelu"]])
def test_layers(layer, way):
    inp = np.linspace(-2.0, 2.0, 12).reshape(3, 4)
    layer.forward(inp)
    out, saved = way(layer).forward(inp)
    expected, kept = LAYERS["gelu"].forward(inp)
    np.testing.assert_allclose(out, expected, rtol=1e-14)
    dinp = way(layer).backward(np.ones_like(inp), saved)[0]
    np.testing.assert_allclose(dinp, LAYERS["gelu"].backward(np.ones_like(inp), kept)[0], rtol=1e-13)


def cubes(x):
    return np.sum(x**3)


def scaled_tanh(x, w):
    return np.tanh(x @ w)


@every_way
@pytest.mark.parametrize("transform", [ad.grad, ad.compile, ad.hessian, ad.value_and_grad, ad.vmap])
def test_derived_functions(transform, way):
    f, x = transform(cubes), np.arange(6.0).reshape(2, 3) if transform is ad.vmap else np.arange(3.0)
    for _ in range(3):
        expected = f(x)
    found = way({"f": f})["f"](x)
    for a, b in zip(ad.tree.leaves(expected), ad.tree.leaves(found), strict=True):
        np.testing.assert_array_equal(a, b)


class Model:
    """A callable of a user, with which derivatives keep what they know of it."""

    def __init__(self):
        self.w = np.ones(3)

    def __call__(self, x):
        return np.sum(self.w * x * x)


@every_way
def test_an_object_that_was_differentiated(way):
    model, x = Model(), np.arange(3.0)
    for _ in range(3):
        ad.vjp(model, x)
    twin = way(model)
    twin.w *= 2.0
    np.testing.assert_array_equal(ad.vjp(twin, x)[1](1.0)[0], 4.0 * x)
    np.testing.assert_array_equal(ad.vjp(model, x)[1](1.0)[0], 2.0 * x)


@every_way
def test_fixed_programs(way):
    pair, x, w = ad.FixedPair(scaled_tanh), np.ones((2, 3)), np.full((3, 4), 0.1)
    out, saved = pair.forward(x, w)
    twin = way(pair)
    again, kept = twin.forward(x, w)
    np.testing.assert_array_equal(again, out)
    for a, b in zip(twin.backward(out, kept), pair.backward(out, saved)):
        np.testing.assert_array_equal(a, b)
    fixed = ad.Fixed(scaled_tanh)
    np.testing.assert_array_equal(fixed(x, w), way(fixed)(x, w))


def test_pullbacks_and_programs():
    x = np.arange(3.0)
    _, pullback = ad.vjp(cubes, x)
    np.testing.assert_array_equal(copy.deepcopy(pullback)(1.0)[0], pullback(1.0)[0])
    program = pullback.program
    assert copy.deepcopy(program) is program and copy.copy(program) is program
    for thing in (pullback, program):
        with pytest.raises(TypeError, match="cannot be pickled; pickle the function it was made from"):
            pickle.dumps(thing)


def without_memory(*roots):
    """The arrays that can be reached from these objects, of which nothing holds the memory."""
    found, seen, todo = [], set(), list(roots)
    while todo:
        x = todo.pop()
        if id(x) in seen or isinstance(x, (type, types.ModuleType)):
            continue
        seen.add(id(x))
        todo += gc.get_referents(x)
        if isinstance(x, np.ndarray):
            owner = x
            while isinstance(owner, np.ndarray) and owner.base is not None:
                owner = owner.base
            if not isinstance(owner, np.ndarray) and hasattr(owner, "__array_interface__"):
                found.append(x)
    return found


class Nowhere:
    __array_interface__ = {"shape": (3,), "typestr": "<f8", "data": (1 << 40, False), "version": 3}


def test_no_array_without_memory_can_be_reached():
    """Whoever copies or prints one ends in a segmentation fault."""
    assert len(without_memory({"x": [np.asarray(Nowhere())[1:]]})) == 1
    derived = ad.grad(cubes), ad.compile(scaled_tanh), ad.Fixed(scaled_tanh)
    for f, args in zip(derived, [(np.ones(3),), *[(np.ones((2, 3)), np.ones((3, 4)))] * 2]):
        f(*args)
    models = [GPT2(CONFIG, backward) for backward in ("manual", "auto", "whole")]
    for model in models:
        steps(model, AdamW(model), 1)
        list(gpt2.generate(model, [1, 2], 3))
    assert len(without_memory(models, derived, ad.vjp(cubes, np.ones(3)))) == 0  # a list would print them
