"""gpt2 evaluate: each token is predicted once, from the documented context; figures by their definitions."""

import dataclasses
import json
import math

import numpy as np
import pytest

from gpt2.commands import evaluate
from gpt2.data import corpora, named, tokenizer
from gpt2.data.tokens import write_tokens
from gpt2.model import GPT2, GPT2Config

CONFIG = GPT2Config(vocab_size=256, block_size=8, n_layer=1, n_head=2, n_embd=12, dtype="float64")


@pytest.fixture(scope="module")
def model():
    model = GPT2(CONFIG, seed=1)
    model.flat_params += 0.3 * np.random.default_rng(2).standard_normal(model.flat_params.shape)
    return model


def losses_by_definition(model, tokens, T, stride):
    """One token at a time, each from the window that is documented for it."""
    losses = []
    for i in range(len(tokens) - 1):  # the loss of token i + 1
        if i < T:
            start = 0
        else:
            stop = min(len(tokens) - 1, T + stride * ((i - T) // stride + 1))
            start = stop - T
        logits = model.forward(tokens[None, start : i + 1])[0, -1]
        losses.append(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[tokens[i + 1]])
    return np.array(losses)


@pytest.mark.parametrize("count", [2, 5, 8, 9, 10, 17, 30])
@pytest.mark.parametrize("stride", [0, 1, 3, 8])
def test_losses_of_tokens(model, count, stride):
    tokens = np.random.default_rng(count).integers(0, 256, count)
    expected = losses_by_definition(model, tokens, 8, stride or 8)
    losses = evaluate.token_losses(model, tokens, stride)
    assert losses.shape == (count - 1,)
    assert np.allclose(losses, expected, rtol=1e-10)


@pytest.mark.parametrize(
    "count, T, stride", [(1, 8, 8), (7, 8, 3), (8, 8, 1), (50, 8, 3), (50, 8, 8), (51, 7, 5)]
)
def test_windows_predict_each_token_once(count, T, stride):
    counted = []
    for start, stop, first in evaluate.windows(count, T, stride):
        assert 0 <= start <= first < stop <= count and stop - start <= T
        assert start == 0 or first - start >= T - stride  # context of the first prediction that counts
        counted += range(first, stop)
    assert counted == list(range(count))


def test_smaller_batches_give_the_same_losses(model, monkeypatch):
    tokens = np.random.default_rng(0).integers(0, 256, 100)
    expected = evaluate.token_losses(model, tokens)
    monkeypatch.setattr(evaluate, "LOGITS_AT_ONCE", 1)
    assert np.allclose(evaluate.token_losses(model, tokens), expected, rtol=1e-12)


WORDS = tokenizer.byte()
WITH_END = tokenizer.Tokenizer("bpe:256", tokenizer.GPT2_PIECES, WORDS.ranks, {tokenizer.END_OF_TEXT: 256})


@pytest.mark.parametrize(
    "words, tokens, predicted, count",
    [
        (WORDS, [*"naïve and free".encode()], 14, 14),  # of 15 bytes the first is not predicted
        (tokenizer.char("aé"), [0, 1, 1], 2, 4),
        (WITH_END, [65, 256, 66], 3, 2),  # the first is predicted from an end of text, which has no bytes
        (WITH_END, [65], 1, 1),
    ],
    ids=["bytes", "characters", "end of text", "one token"],
)
def test_figures_of_equal_logits(words, tokens, predicted, count):
    """Of a model of zeros: log V nats per token, perplexity V, and their bits by the count of bytes."""
    V = words.vocab_size
    zeros = GPT2(dataclasses.replace(CONFIG, vocab_size=V), seed=None)
    score = evaluate.evaluate(zeros, words, np.array(tokens))
    assert (score.tokens, score.bytes) == (predicted, count)
    assert math.isclose(score.nats_per_token, math.log(V)) and math.isclose(score.perplexity, V)
    assert math.isclose(score.bits_per_byte, predicted * math.log2(V) / count)


# ---- The command -----------------------------------------------------------------------------------------


def test_json_of_the_command(run, model, prose, capsys):
    path, text = prose
    assert evaluate.main(["--run", str(run), "--data", str(path), "--stride", "4", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    tokens = np.frombuffer(text.encode(), np.uint8)
    mean = evaluate.token_losses(model, tokens, 4).mean()
    assert figures["tokens"] == len(tokens) - 1 == figures["bytes"]
    assert math.isclose(figures["nats_per_token"], mean, rel_tol=1e-12)
    assert math.isclose(figures["perplexity"], math.exp(mean), rel_tol=1e-12)
    assert math.isclose(figures["bits_per_byte"], mean / math.log(2), rel_tol=1e-12)


def test_text_and_token_file_give_the_same_figures(run, prose, tmp_path, capsys):
    path, text = prose
    write_tokens(tmp_path / "x.bin", np.frombuffer(text.encode(), np.uint8))
    for data in (path, tmp_path / "x.bin"):
        assert evaluate.main(["--init", str(run), "--data", str(data)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:4] == lines[5:8] and lines[1].startswith("nats per token")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--data", "nowhere.txt"], "nowhere.txt: No such file"),
        (["--data", "latin.txt"], "not UTF-8 text (byte 1 is 0xef)"),
        (["--data", "empty.txt"], "the file is empty (0 bytes)"),
        (["--data", "large.bin"], "holds token 300, the tokenizer byte has 0 to 255"),
        (["--data", "fine.txt", "--stride", "9"], "error: --stride is 9, expected 1 to block_size, 8"),
        (["--data", "fine.txt", "--stride", "-1"], "--stride is -1"),
        (["--data", "chat.jsonl", "--stride", "4"], "--stride: conversations have no windows; leave it out"),
        (["--data", "fine.txt", "--run", "nowhere"], "nowhere: no run here"),
        (["--data", "fine.txt", "--run", "run", "--init", "run"], "give one of them"),
        (["--data", "fine.txt", "--init", "elsewhere"], "elsewhere: no such file or folder"),
    ],
)
def test_invalid_arguments_are_one_line(run, monkeypatch, refusal, arguments, message):
    monkeypatch.chdir(run.parent)
    (run.parent / "latin.txt").write_bytes(b"n\xefve")
    (run.parent / "empty.txt").write_bytes(b"")
    (run.parent / "fine.txt").write_bytes(b"fine enough")
    (run.parent / "chat.jsonl").write_text('{"prompt": "How?", "completion": "So."}')
    write_tokens(run.parent / "large.bin", [300, 1, 2])
    arguments = arguments if {"--run", "--init"} & set(arguments) else ["--run", "run", *arguments]
    assert message in refusal(evaluate.main, *arguments)


def test_corpus_may_be_named(monkeypatch):
    monkeypatch.setattr(named, "tinyshakespeare", lambda: "O Romeo")
    assert WORDS.decode(evaluate.read_data("tinyshakespeare", WORDS)) == "O Romeo"
    assert set(corpora.NAMED) == {"tinyshakespeare", "stdlib"}
