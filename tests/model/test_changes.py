"""Values that own layers read may change: every way to run sees the new values, or refuses."""

import types

import numpy as np
import pytest

from gpt2 import GPT2, AdamW, GPT2Config, generate
from gpt2.backward import auto
from gpt2.errors import UserError
from gpt2.layers import Layer
from gpt2.model.decoder import Decoder
from gpt2.model.description import Block
from gpt2.parallel.processes import Processes
from gpt2.parallel.shares import Shares
from tests.support import parallel_jobs as jobs

pytestmark = pytest.mark.numeric

CONFIG = GPT2Config(vocab_size=13, block_size=8, n_layer=1, n_head=2, n_embd=8, dtype="float64")
TOKENS = np.arange(12).reshape(2, 6)
BATCH = TOKENS, TOKENS + 1
BACKWARDS = ["manual,gelu=auto", "auto", "whole"]


def scale(factor):
    """A layer that multiplies its input by factor()."""
    return {"gelu": Layer("scale", lambda inp: inp * factor(), None, by_position=True)}


def closure():
    k = 1.0

    def change():
        nonlocal k
        k = 25.0

    return scale(lambda: k), change


def dictionary():
    K = {"k": 1.0}
    return scale(lambda: K["k"]), lambda: K.update(k=25.0)


def attribute():
    settings = types.SimpleNamespace(k=1.0)
    return scale(lambda: settings.k), lambda: vars(settings).update(k=25.0)


def helper():
    """A module whose function is replaced, as importlib.reload does."""
    module = types.ModuleType("helper")
    module.factor = lambda: 1.0
    return scale(lambda: module.factor()), lambda: setattr(module, "factor", lambda: 25.0)


def array_written_in_place():
    W = np.ones(1)
    return scale(lambda: W), lambda: W.fill(25.0)


def replaced_array():
    K = {"w": np.ones(1)}
    return scale(lambda: K["w"]), lambda: K.update(w=np.full(1, 25.0))


def threshold():
    """Out of reach of the inputs on which layers are tried, before and after the change."""
    K = {"most": 1e4}
    layer = Layer("clip", lambda inp: np.minimum(inp, K["most"]), None, by_position=True)
    return {"gelu": layer}, lambda: K.update(most=100.0)


def counting():
    """A layer that changes what it reads at every call, so that no recording of it can be reused."""
    K = {"k": 1.0, "calls": 0}

    def factor():
        K["calls"] += 1
        return K["k"]

    return scale(factor), lambda: K.update(k=25.0)


KINDS = [closure, dictionary, attribute, helper, array_written_in_place, replaced_array, counting, threshold]

CHANGES = [
    pytest.param(
        kind, backward, marks=() if kind is dictionary or backward == BACKWARDS[0] else pytest.mark.slow
    )
    for kind in KINDS
    for backward in BACKWARDS
]


def with_large_parameters(model):
    """The model with parameters so large that every change, also of the threshold, shows."""
    rng = np.random.default_rng(0)
    model.flat_params[...] = rng.standard_normal(model.flat_params.shape) * 5.0
    return model


def results(model):
    """What each way to run the model returns; generated tokens come last."""
    logits = model.forward(TOKENS)
    loss = model.forward(*BATCH)
    model.backward()
    gradients = model.flat_grads.copy()
    step = model.loss_and_grads(*BATCH), model.flat_grads.copy()
    decoder = Decoder(model)
    read = [np.array(decoder.read(TOKENS[:1, t : t + n])) for t, n in ((0, 2), (2, 1), (3, 1))]
    text = list(generate(model, [1, 2], 4, temperature=0))
    return [logits, loss, gradients, *step, *read, text]


@pytest.mark.parametrize(("kind", "backward"), CHANGES)
def test_change_reaches_every_way_to_run(kind, backward):
    layers, change = kind()
    model = with_large_parameters(GPT2(CONFIG, backward, layers=layers))
    shares = Shares(model, None, 2)
    before, shared = results(model), shares.gradient([BATCH])
    change()
    after, shared_after = results(model), shares.gradient([BATCH])
    fresh = results(with_large_parameters(GPT2(CONFIG, backward, layers=layers)))
    uncompiled = with_large_parameters(GPT2(CONFIG, "manual,gelu=auto", layers=layers, compile=False))
    for old, new, expected in zip(before, after, fresh, strict=True):
        np.testing.assert_array_equal(new, expected)
        assert old is before[-1] or not np.array_equal(old, new)  # the tokens may stay the same
    np.testing.assert_allclose(after[0], uncompiled.forward(TOKENS), rtol=1e-9)
    assert shared_after != shared and shared_after == Shares(model, None, 2).gradient([BATCH])


def test_change_reaches_a_block_and_its_layers():
    K, L = {"k": 1.0}, {"k": 1.0}
    act = Layer("act", lambda inp: inp * L["k"], None, by_position=True)

    def block(x, p, layers, config):
        return x + K["k"] * layers["gelu"](layers["matmul"](x, p["attprojw"], None))

    model = GPT2(CONFIG, "whole", layers={"gelu": act}, block=Block(block, by_position=True))
    losses = [with_large_parameters(model).loss_and_grads(*BATCH)]
    for changed in (K, L):
        changed["k"] = 25.0
        losses.append(model.loss_and_grads(*BATCH))
        assert losses[-1] == model.twin().loss(*BATCH) != losses[-2]


def test_change_reaches_the_manual_backward_of_an_assigned_layer():
    K = {"k": 1.0}
    layer = Layer("act", lambda inp: (inp * 1.0, ()), lambda dout, saved: (dout * K["k"],))
    model = with_large_parameters(GPT2(CONFIG, "manual"))
    for assigned in (layer, auto(dictionary()[0]["gelu"]), layer):
        model.layers["gelu"] = assigned
    model.loss_and_grads(*BATCH)
    before = model.flat_grads.copy()
    K["k"] = 25.0
    model.loss_and_grads(*BATCH)
    assert not np.array_equal(model.flat_grads, before)


def test_array_written_in_place_compiles_nothing_again():
    layers, change = array_written_in_place()
    model = GPT2(CONFIG, "whole", layers=layers)
    model.loss_and_grads(*BATCH)
    programs = model.program, model.layers["gelu"]
    change()
    model.loss_and_grads(*BATCH)
    assert (model.program, model.layers["gelu"]) == programs


FILE = """
K = {"k": 1.0}
LAYERS = {"gelu": lambda inp: inp * K["k"]}
"""


@pytest.mark.slow
def test_worker_processes_refuse_a_change(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    model = GPT2(CONFIG, layers=tmp_path / "mine.py")
    message = "value that own layers read has changed since .* train without"
    with Processes(model, AdamW(model), 2) as team:
        team.step([BATCH])
        model.description.own["gelu"].forward.__globals__["K"]["k"] = 25.0
        for call in (lambda: team.step([BATCH]), lambda: team.loss(*BATCH)):
            with pytest.raises(UserError, match=message):
                call()


@pytest.mark.slow
def test_worker_processes_that_import_other_values_are_refused(monkeypatch):
    """Workers import the module again and get the factor as written there."""
    monkeypatch.setitem(jobs.FACTOR, "k", 25.0)
    model = GPT2(CONFIG, layers={"gelu": jobs.scaled})
    with pytest.raises(UserError, match="import own layers anew, and get different ones"):
        Processes(model, AdamW(model), 2)
