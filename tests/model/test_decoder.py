"""Generation with cached keys and values: the forward's logits, compiled, without allocations per token."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2 import sampling
from gpt2.layers import Layer
from gpt2.model import GPT2, GPT2Config
from gpt2.model.decoder import Decoder
from gpt2.model.description import Block
from tests.support.models import random_model
from tests.support.peaks import peak_of

pytestmark = pytest.mark.numeric

CONFIG = GPT2Config(vocab_size=23, block_size=9, n_layer=2, n_head=3, n_embd=12, dtype="float64")
TOKENS = np.random.default_rng(5).integers(0, 23, (2, 9))


def read(model, pieces, last_only=False, tokens=TOKENS):
    """The logits of tokens read in pieces of these lengths: one array a piece."""
    decoder = Decoder(model, batch=len(tokens))
    ends = np.cumsum([0, *pieces])
    return [np.array(decoder.read(tokens[:, a:b], last_only)) for a, b in zip(ends, ends[1:])]


def read_all(model, pieces=(1,) * 9, tokens=TOKENS):
    return np.concatenate(read(model, pieces, tokens=tokens), axis=1)


def is_close(out, expected):
    return np.abs(out - expected).max() < 1e-12 * np.abs(expected).max()


def is_compiled(model, batch=2):
    description, step = model.one_position.get(batch, (None, None))
    return description is model.description and step is not None


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("temperature, top_k", [(0, 0), (0.8, 5)])
def test_token_allocates_no_array(batch, temperature, top_k):
    """One copy aside: attention's result comes from a callback. Python's objects, mostly views, take less
    than one vector of the residual stream; NumPy's buffers for loops over unlike shapes are made small here.
    """
    model = GPT2(GPT2Config(vocab_size=64, block_size=64, n_layer=1, n_head=2, n_embd=2048), seed=0)
    before = np.setbufsize(16)
    try:
        steps = sampling.generate_batch(model, [1, 2, 3], batch, 60, temperature, top_k)
        for _ in range(12):
            next(steps)
        assert is_compiled(model, batch)
        # Other threads of the process may allocate during a token: the median of the eight has to be small
        peaks = [peak_of(lambda: next(steps)) for _ in range(8)]
        assert sorted(peaks)[4] < (1 + batch) * model.params["lnfw"].nbytes
    finally:
        np.setbufsize(before)


@pytest.mark.parametrize("pieces", [[1] * 9, [3, 1, 1, 4]])
def test_generation_reads_adapters_and_frozen_blocks(pieces):
    """Frozen tensors are stored block by block, and an adapter is a layer like any other."""
    model = random_model(CONFIG, train="lora:2")
    logits = read_all(model, pieces)
    assert is_compiled(model) and is_close(logits, model.forward(TOKENS))
    assert not is_close(logits, random_model(CONFIG).forward(TOKENS))


def test_uncompiled_model_generates_uncompiled():
    model = random_model(CONFIG, compile=False)
    assert is_close(read_all(model), model.forward(TOKENS)) and not model.one_position


def test_block_that_branches_on_values_runs_uncompiled():
    """A program holds for one branch alone, and here the second block takes the other."""

    def block(x, p, layers, config):
        y = layers["attention"](x @ p["qkvw"].T, num_heads=config.n_head)
        return x + y if float(p["qkvb"][0]) > 0.0 else x - y

    model = random_model(CONFIG, block=Block(block, by_position=True))
    model.params["qkvb"][:, 0] = 1.0, -1.0
    assert is_close(read_all(model), model.forward(TOKENS)) and not is_compiled(model)


def running_mean(inp, weight):
    """A norm that looks back: subtracts the mean of a position and all before it."""
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
def test_layers_that_look_back_see_all_earlier_positions(pieces, last_only):
    """Two in a block, and one behind the blocks that needs all new positions even for one logit."""
    layers = {"layernorm": Layer("running", running_mean, None, read=read_running_mean)}
    model = random_model(CONFIG, layers=layers)
    logits = np.concatenate(read(model, pieces, last_only), axis=1)
    assert is_compiled(model) == (1 in pieces)
    expected = model.forward(TOKENS)
    assert is_close(logits, expected[:, np.cumsum(pieces) - 1] if last_only else expected)


def test_state_of_a_layer_advances_once_per_token():
    """Recording a program must not run what a layer reads with: its state would advance twice."""
    calls = []

    def counted(*inputs, kept, start, length):
        calls.append(start)
        return read_running_mean(*inputs, kept=kept, start=start, length=length)

    model = random_model(CONFIG, layers={"layernorm": Layer("running", running_mean, None, read=counted)})
    decoder = Decoder(model, 2)
    calls.clear()
    model.one_position.clear()  # it compiles again
    for t in range(4):
        decoder.read(TOKENS[:, t : t + 1])
    assert calls == [t for t in range(4) for _ in range(5)]


def test_texts_may_be_interleaved_and_read_in_threads():
    model = random_model(CONFIG)
    expected = model.forward(TOKENS)
    decoders = Decoder(model, 1), Decoder(model, 1)
    for t in range(9):
        for row, decoder in enumerate(decoders):
            logits = decoder.read(TOKENS[row : row + 1, t : t + 1])
            assert is_close(logits[0, 0], expected[row, t])

    def agrees(row):
        return all(
            is_close(read_all(model, tokens=TOKENS[row : row + 1])[0], expected[row]) for _ in range(20)
        )

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(agrees, range(2)))


def test_assigned_layer_takes_effect_with_the_next_text():
    model = random_model(CONFIG)
    decoder = Decoder(model, 2)
    decoder.read(TOKENS[:, :1])
    before = model.forward(TOKENS)
    model.layers["gelu"] = Layer("tanh", lambda inp: np.tanh(inp), None, by_position=True)
    assert is_close(read_all(model), model.forward(TOKENS)) and is_compiled(model)
    assert is_close(decoder.read(TOKENS[:, 1:2])[:, 0], before[:, 1])


def test_number_of_threads_changes_no_bit():
    config = GPT2Config(vocab_size=97, block_size=16, n_layer=2, n_head=4, n_embd=320)
    model = GPT2(config, seed=0)
    logits = []
    for threads in (1, 2):
        ad.set_threads(threads)
        ad.limit_blas_threads(1)
        logits.append(read_all(model, [5, 1, 1, 1], TOKENS[:, :8]))
    np.testing.assert_array_equal(*logits)
