"""A position a step, compiled: the forward's numbers, no memory that is not used again."""

import threading
import tracemalloc

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2 import sampling
from gpt2.layers import Layer
from gpt2.model import GPT2, GPT2Config
from gpt2.model.decoder import Decoder
from gpt2.model.description import Block

pytestmark = pytest.mark.numeric

CONFIG = GPT2Config(vocab_size=23, block_size=9, n_layer=2, n_head=3, n_embd=12, dtype="float64")
TOKENS = np.random.default_rng(5).integers(0, 23, (2, 9))


def model_of(config=CONFIG, **options):
    model = GPT2(config, seed=1, **options)
    model.flat_params += 0.2 * np.random.default_rng(2).standard_normal(model.flat_params.shape)
    return model


def read(model, pieces, last_only=False, tokens=TOKENS):
    """The logits of tokens read in pieces."""
    decoder = Decoder(model, batch=len(tokens))
    cuts = np.cumsum([0, *pieces])
    return [np.array(decoder.read(tokens[:, a:b], last_only)) for a, b in zip(cuts, cuts[1:])]


def is_close(found, expected):
    return np.abs(found - expected).max() < 1e-12 * np.abs(expected).max()


def compiled(model, batch=2):
    of, step = model.generation.programs.get(batch, (None, None))
    return of is model.description and step is not None


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("temperature, top_k", [(0, 0), (0.8, 5)])
def test_a_token_allocates_nothing(batch, temperature, top_k):
    """But for one copy: what a block's attention gives is that of a callback, and copied. What Python makes
    on the way, views above all, is less than one vector of the residual stream.

    NumPy's loops over arrays of unlike shapes work in buffers that are no arrays: they are made small here.
    """
    model = GPT2(GPT2Config(vocab_size=64, block_size=64, n_layer=1, n_head=2, n_embd=2048), seed=0)
    before = np.setbufsize(16)
    try:
        steps = sampling.generate_batch(model, [1, 2, 3], batch, 60, temperature, top_k)
        for _ in range(12):
            next(steps)
        assert compiled(model, batch)
        tracemalloc.start()
        taken = []
        for _ in range(8):
            now, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            next(steps)
            taken.append(tracemalloc.get_traced_memory()[1] - now)
        # Other threads of the process may take some during a token: five of the eight have to be without.
        assert sorted(taken)[4] < (1 + batch) * model.params["lnfw"].nbytes
    finally:
        tracemalloc.stop()
        np.setbufsize(before)


@pytest.mark.parametrize("pieces", [[1] * 9, [3, 1, 1, 4]])
def test_adapters_and_frozen_blocks_are_read(pieces):
    """Their tensors lie apart, block by block, and an adapter is a layer like any other."""
    model = model_of(train="lora:2")
    found = np.concatenate(read(model, pieces), axis=1)
    assert compiled(model) and is_close(found, model.forward(TOKENS))
    assert not is_close(found, model_of().forward(TOKENS))


def test_it_is_not_compiled_where_the_model_is_not():
    model = model_of(compile=False)
    (*_, logits) = read(model, [1] * 9)
    assert not model.generation.programs and is_close(logits[:, 0], model.forward(TOKENS)[:, -1])


def test_a_block_that_looks_at_values_is_read_as_it_is_written():
    """Its program would hold for one way through it alone: here the second block goes another way."""

    def block(x, p, layers, config):
        y = layers["attention"](x @ p["qkvw"].T, num_heads=config.n_head)
        return x + y if float(p["qkvb"][0]) > 0.0 else x - y

    model = model_of(block=Block(block, by_position=True))
    model.params["qkvb"][:, 0] = 1.0, -1.0
    found = np.concatenate(read(model, [1] * 9), axis=1)
    assert not compiled(model) and is_close(found, model.forward(TOKENS))


def running_mean(inp, weight):
    """A norm that looks back: the mean of a position and of all before it is taken off."""
    count = np.arange(1.0, inp.shape[1] + 1.0)[:, None]
    return (inp - 0.1 * np.cumsum(inp, axis=1) / count) * weight


def read_running_mean(inp, weight, *, kept, start, length):
    total = kept["total"] if start else np.zeros_like(inp[:, 0])
    sums = total[:, None] + np.cumsum(inp, axis=1)
    kept["total"] = sums[:, -1].copy()
    count = np.arange(start + 1.0, start + inp.shape[1] + 1.0)[:, None]
    return (inp - 0.1 * sums / count) * weight


@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize("pieces", [[9], [1] * 9, [4, 1, 3, 1]])
def test_layers_that_look_back_at_every_place(pieces, last_only):
    """Two of them stand in a block, and one behind the blocks, which has to be given all that is new."""
    layers = {"layernorm": Layer("running", running_mean, None, read=read_running_mean)}
    model = model_of(layers=layers)
    found = read(model, pieces, last_only)
    assert compiled(model)
    ends = np.cumsum(pieces)
    expected = model.forward(TOKENS)
    wanted = expected[:, ends - 1] if last_only else expected
    assert is_close(np.concatenate(found, axis=1), wanted)


def test_a_state_moves_once_a_token():
    """Recording a program runs nothing of what a layer reads on: its state would have moved twice."""
    calls = []

    def counted(*inputs, kept, start, length):
        calls.append(start)
        return read_running_mean(*inputs, kept=kept, start=start, length=length)

    model = model_of(layers={"layernorm": Layer("running", running_mean, None, read=counted)})
    decoder = Decoder(model, 2)
    calls.clear()
    model.generation.programs.clear()  # it compiles again
    for t in range(4):
        decoder.read(TOKENS[:, t : t + 1])
    assert calls == [t for t in range(4) for _ in range(5)]


def test_several_texts_at_once_and_in_several_threads():
    model = model_of()
    expected = model.forward(TOKENS)
    first, second = Decoder(model, 1), Decoder(model, 1)
    for t in range(9):
        for row, decoder in enumerate((first, second)):
            logits = decoder.read(TOKENS[row : row + 1, t : t + 1])
            assert is_close(logits[0, 0], expected[row, t])
    found = {}

    def job(row):
        tokens = TOKENS[row : row + 1]
        for _ in range(20):
            found[row] = np.concatenate(read(model, [1] * 9, tokens=tokens), axis=1)

    threads = [threading.Thread(target=job, args=(row,)) for row in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(is_close(found[row][0], expected[row]) for row in range(2))


def test_a_layer_that_is_changed_is_read_from_the_next_text_on():
    model = model_of()
    older = Decoder(model, 2)
    older.read(TOKENS[:, :1])
    before = model.forward(TOKENS)
    model.layers["gelu"] = Layer("tanh", lambda inp: np.tanh(inp), None, by_position=True)
    found = np.concatenate(read(model, [1] * 9), axis=1)
    assert compiled(model) and is_close(found, model.forward(TOKENS))
    assert is_close(older.read(TOKENS[:, 1:2])[:, 0], before[:, 1])


def test_threads_change_no_bit():
    config = GPT2Config(vocab_size=97, block_size=16, n_layer=2, n_head=4, n_embd=320)
    model = GPT2(config, seed=0)
    texts = []
    try:
        for threads in (1, 2):
            ad.set_threads(threads)
            texts.append(np.concatenate(read(model, [5, 1, 1, 1], tokens=TOKENS[:, :8]), axis=1))
    finally:
        ad.set_threads(1)
    np.testing.assert_array_equal(*texts)
