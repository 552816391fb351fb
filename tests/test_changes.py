"""Own layers that read what changes: every way to run goes by what is there now, or is refused."""

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
from gpt2.parallel.shares import BatchShares
from tests.support import parallel_jobs as jobs

pytestmark = pytest.mark.numeric

CONFIG = GPT2Config(vocab_size=13, block_size=8, n_layer=1, n_head=2, n_embd=8, dtype="float64")
TOKENS = np.arange(12).reshape(2, 6)
BATCH = TOKENS, TOKENS + 1
BACKWARDS = ["manual,gelu=auto", "auto", "whole"]


def scale(read):
    """A layer that multiplies by what read() gives."""
    return {"gelu": Layer("scale", lambda inp: inp * read(), None, by_position=True)}


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
    """A module whose function is another one now, as after importlib.reload."""
    module = types.ModuleType("helper")
    module.factor = lambda: 1.0
    return scale(lambda: module.factor()), lambda: setattr(module, "factor", lambda: 25.0)


def array_in_place():
    W = np.ones(1)
    return scale(lambda: W), lambda: W.fill(25.0)


def another_array():
    K = {"w": np.ones(1)}
    return scale(lambda: K["w"]), lambda: K.update(w=np.full(1, 25.0))


def threshold():
    """It is beyond the numbers of the trial, at first and now."""
    K = {"most": 1e4}
    layer = Layer("cut", lambda inp: np.minimum(inp, K["most"]), None, by_position=True)
    return {"gelu": layer}, lambda: K.update(most=100.0)


def counting():
    """What the layer reads cannot be followed: it changes with every call."""
    K = {"k": 1.0, "calls": 0}

    def read():
        K["calls"] += 1
        return K["k"]

    return scale(read), lambda: K.update(k=25.0)


KINDS = [closure, dictionary, attribute, helper, array_in_place, another_array, counting, threshold]

QUICK = [(kind, BACKWARDS[0]) for kind in KINDS]
QUICK += [(dictionary, backward) for backward in BACKWARDS[1:]]
SLOW = [
    pytest.param(kind, backward, marks=pytest.mark.slow)
    for kind in KINDS
    for backward in BACKWARDS
    if (kind, backward) not in QUICK
]


def large(model):
    """Numbers with which the layer has something to do."""
    rng = np.random.default_rng(0)
    model.flat_params[...] = rng.standard_normal(model.flat_params.shape) * 5.0
    return model


def ways(model):
    """What each way to run gives: a loss, a norm, logits, gradients, generated logits."""
    logits = model.forward(TOKENS)
    loss = model.forward(*BATCH)
    model.backward()
    gradients = model.flat_grads.copy()
    step = model.loss_and_grads(*BATCH), model.flat_grads.copy()
    decoder = Decoder(model)
    read = [np.array(decoder.read(TOKENS[:1, t : t + n])) for t, n in ((0, 2), (2, 1), (3, 1))]
    text = list(generate(model, [1, 2], 4, temperature=0))
    return [logits, loss, gradients, *step, *read, text]


@pytest.mark.parametrize(("kind", "backward"), QUICK + SLOW)
def test_a_change_is_seen_by_every_way_to_run(kind, backward):
    layers, change = kind()
    model = large(GPT2(CONFIG, backward, layers=layers))
    shares = BatchShares(model, 2)
    before, whole = ways(model), shares.gradient([BATCH])
    change()
    after, again = ways(model), shares.gradient([BATCH])
    written = large(GPT2(CONFIG, "manual,gelu=auto", layers=layers, compile=False))
    for a, b, new in zip(before, after, ways(large(GPT2(CONFIG, backward, layers=layers))), strict=True):
        np.testing.assert_array_equal(b, new)
        assert a is before[-1] or not np.array_equal(a, b)
    np.testing.assert_allclose(after[0], written.forward(TOKENS), rtol=1e-9)
    assert again != whole and again == BatchShares(model, 2).gradient([BATCH])


def test_a_block_and_the_layers_in_it():
    K, L = {"k": 1.0}, {"k": 1.0}
    act = Layer("act", lambda inp: inp * L["k"], None, by_position=True)

    def block(x, p, layers, config):
        return x + K["k"] * layers["gelu"](layers["matmul"](x, p["attprojw"], None))

    model = large(GPT2(CONFIG, "whole", layers={"gelu": act}, block=Block(block, by_position=True)))
    losses = [model.loss_and_grads(*BATCH)]
    for changed in (K, L):
        changed["k"] = 25.0
        losses.append(model.loss_and_grads(*BATCH))
        assert losses[-1] == model.twin().loss(*BATCH) != losses[-2]


def test_a_backward_by_hand_and_an_assigned_layer():
    K = {"k": 1.0}
    layer = Layer("act", lambda inp: (inp * 1.0, ()), lambda dout, saved: (dout * K["k"],))
    model = large(GPT2(CONFIG, "manual"))
    for given in (layer, auto(dictionary()[0]["gelu"])):
        model.layers["gelu"] = given
    model.layers["gelu"] = layer
    model.loss_and_grads(*BATCH)
    before = model.flat_grads.copy()
    K["k"] = 25.0
    model.loss_and_grads(*BATCH)
    assert not np.array_equal(model.flat_grads, before)


def test_what_has_not_changed_is_not_compiled_again():
    layers, change = array_in_place()
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
    with Processes(model, AdamW(model), 2) as team:
        team.step([BATCH])
        model.description.own["gelu"].forward.__globals__["K"]["k"] = 25.0
        for act in (lambda: team.step([BATCH]), lambda: team.loss(*BATCH)):
            with pytest.raises(
                UserError, match="value that own layers read has changed since .* train without"
            ):
                act()


@pytest.mark.slow
def test_worker_processes_that_would_compute_something_else_are_refused(monkeypatch):
    """They import the module again, with the number as written there."""
    monkeypatch.setitem(jobs.FACTOR, "k", 25.0)
    model = GPT2(CONFIG, layers={"gelu": jobs.scaled})
    with pytest.raises(UserError, match="import own layers anew, and get different ones"):
        Processes(model, AdamW(model), 2)
