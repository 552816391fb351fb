"""Sampling: tokens beyond the window; temperature, top-k, top-p and seed; gpt2 sample."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest

from gpt2 import sampling
from gpt2.commands import evaluate, sample
from gpt2.data import tokenizer
from gpt2.errors import UserError
from gpt2.model import GPT2, GPT2Config
from gpt2.model.decoder import Decoder
from gpt2.sampling import generate
from tests.support.models import random_model

CONFIG = GPT2Config(vocab_size=256, block_size=12, n_layer=2, n_head=3, n_embd=24, dtype="float64")


@pytest.fixture(scope="module")
def model():
    return random_model(CONFIG)


def test_decoder_refuses_positions_past_the_window(model):
    decoder = Decoder(model)
    decoder.read([[0] * 12])
    with pytest.raises(ValueError, match="13 positions, block_size is 12"):
        decoder.read([[0]])


def greedy_by_definition(model, tokens, count):
    """The likeliest token, `count` times, each by a whole pass over the documented window."""
    block = model.config.block_size
    window, generated = list(tokens)[-block:], []
    for _ in range(count):
        generated.append(int(np.argmax(model.forward(np.array([window]))[0, -1])))
        window.append(generated[-1])
        if len(window) > block:
            window = window[-(block // 2) :]
    return generated


@pytest.mark.parametrize("prompt", [[7], [1, 2, 3], list(range(12)), list(range(30))], ids=len)
def test_tokens_beyond_the_window_are_those_of_whole_passes(model, prompt):
    assert list(generate(model, prompt, 40, temperature=0)) == greedy_by_definition(model, prompt, 40)


def test_model_of_one_position_generates():
    model = GPT2(GPT2Config(vocab_size=5, block_size=1, n_layer=1, n_head=1, n_embd=4))
    assert len(list(generate(model, [0], 4))) == 4


def test_seed_determines_the_tokens(model):
    def run(seed):
        return list(generate(model, [1], 20, seed=seed))

    assert run(1) == run(1) != run(2)


@pytest.mark.parametrize("options", [(1.0, 0, 1.0), (0.8, 20, 1.0), (0.8, 200, 0.9), (1.3, 500, 0.5)])
def test_draws_are_those_of_numpys_choice(options):
    """The same token and the same state of the generator, also with equal logits."""
    draw = sampling.TokenDraw(300)
    for seed in range(20):
        ours, theirs = np.random.default_rng(seed), np.random.default_rng(seed)
        logits = (3.0 * np.random.default_rng([seed, 1]).standard_normal(300)).astype("f4")
        logits = np.round(logits) if seed % 2 else logits
        drawn = draw(logits, *options, ours)
        probs = draw.probabilities(logits, *options)
        assert np.count_nonzero(probs) == min(options[1], 300) or options[1] == 0 or options[2] < 1.0
        assert drawn == theirs.choice(300, p=probs) and ours.random() == theirs.random()


def test_probabilities_with_temperature_top_k_and_top_p():
    logits = np.log(np.array([0.15, 0.5, 0.05, 0.3])).astype(np.float32)

    def probs(temperature=1.0, top_k=0, top_p=1.0):
        return sampling.TokenDraw(4).probabilities(logits, temperature, top_k, top_p).copy()

    close = dict(rtol=1e-6)  # float32 logits
    assert np.allclose(probs(), [0.15, 0.5, 0.05, 0.3], **close)
    assert np.allclose(probs(top_k=2), [0, 0.625, 0, 0.375], **close)
    assert np.allclose(probs(top_k=9), probs(), **close)
    assert np.allclose(probs(top_p=0.6), [0, 0.625, 0, 0.375], **close)
    assert np.allclose(probs(top_p=1e-9), [0, 1, 0, 0])
    squares = np.array([0.15, 0.5, 0.05, 0.3]) ** 2
    assert np.allclose(probs(temperature=0.5), squares / squares.sum(), **close)
    assert sampling.TokenDraw(len(logits))(logits, 0, 0, 1.0, None) == 1


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(temperature=float("nan")), "temperature is nan"),
        (dict(top_p=0), "top_p is 0"),
        (dict(top_p=1.5), "top_p is 1.5"),
        (dict(tokens=[]), "prompt is empty"),
        (dict(tokens=3), "tokens is 3, expected a text or a list"),
        (dict(tokens=[[1], [2, 3]]), "expected a text or a list"),
        (dict(tokens=[1.5]), r"tokens is \[1.5\], expected"),
        (dict(tokens=[256]), "token 256, expected ids from 0 to 255"),
        (dict(tokens=[-1]), "token -1"),
    ],
)
def test_generate_refuses_invalid_arguments_when_called(model, options, message):
    with pytest.raises(UserError, match=message):
        generate(model, **{"tokens": [1], **options})


def test_logits_that_are_not_finite_are_refused():
    with pytest.raises(UserError, match="not finite"):
        sampling.TokenDraw(2)(np.array([0.0, np.nan]), 1.0, 0, 1.0, np.random.default_rng(0))


# ---- The command -------------------------------------------------------------------------------------------


def test_command_needs_only_the_folder_of_the_run(run, model, monkeypatch):
    monkeypatch.delenv("GPT2_DATA_DIR", raising=False)
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out := io.BytesIO(), encoding="utf-8"))
    options = ["--max-tokens", "9", "--temperature", "0", "--prompt", "é: "]
    assert sample.main(["--run", str(run), *options]) == 0
    sys.stdout.flush()
    expected = bytes(generate(model, "é: ".encode(), 9, temperature=0)).decode(errors="replace")
    assert out.getvalue().decode() == "é: " + expected + "\n"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--run", "nowhere"], "no run here"),
        (["--run", "run/last.safetensors"], "; for weights: --init run/last.safetensors\n"),
        (["--init", "x"], "--run and --init both name weights"),
        (["--temperature", "-1"], "error: --temperature is -1.0, expected 0 or more\n"),
        (["--top-k", "-1"], "error: --top-k is -1, expected 1 or more, or 0 for all tokens\n"),
        (["--chat", "--add-special-tokens"], "error: --add-special-tokens has no effect with --chat, whose"),
        (["--top-p", "2"], "error: --top-p is 2.0, expected more than 0 and at most 1\n"),
        (["--max-tokens", "-1"], "error: --max-tokens is -1, expected 0 or more\n"),
        (["--samples", "0"], "error: --samples is 0, expected 1 or more\n"),
        (["--seed", "-1"], "--seed -1"),
        (["--threads", "100000"], "--threads 100000: expected 1 to 1024"),
        (["--logprobs", "-1"], "--logprobs -1"),
        (["--prompt", "a\udcff"], "--prompt a\\udcff: not UTF-8 text (character 1)"),  # the byte ff
        (["--stop", "\udcfe"], "--stop \\udcfe: not UTF-8 text (character 0)"),
        (["--prompt-file", "nowhere"], "--prompt-file nowhere: No such file"),
        (["--prompt-file", "bad", "--prompt", "x"], "give one of them"),
        (["--prompt-file", "bad"], "not UTF-8 text (byte 1)"),
    ],
)
def test_invalid_arguments_are_one_line(run, monkeypatch, refusal, arguments, message):
    monkeypatch.chdir(run.parent)
    Path("bad").write_bytes(b"a\xff")
    assert message in refusal(sample.main, "--run", "run", *arguments)


def test_closed_standard_input_is_one_line(run, monkeypatch, refusal):
    monkeypatch.setattr(sys, "stdin", None)  # as Python has it after `<&-`
    assert "standard input is closed" in refusal(sample.main, "--run", run, "--prompt-file", "-")


def test_more_samples_than_fit_in_memory_are_refused(model, monkeypatch):
    """Their lists alone would take minutes to make."""
    monkeypatch.setattr(sampling, "free_memory", lambda swap: 1 << 30)
    with pytest.raises(
        UserError, match="samples is 100000000: their keys and values take .* 1.0 GiB are free"
    ):
        sampling.write_samples(model, tokenizer.byte(), "x", samples=10**8)


@pytest.mark.parametrize("main, more", [(sample.main, []), (evaluate.main, ["--data", "x.txt"])])
def test_tokenizer_of_another_model_is_refused(run, refusal, main, more):
    tokenizer.char("abc").save(run / "tokenizer.json")
    assert "the model has 256 tokens, its tokenizer 3" in refusal(main, "--run", run, *more)


def test_newest_run_is_the_default(run, monkeypatch, refusal):
    monkeypatch.chdir(run.parent)
    assert "no run in" in refusal(sample.main)
    (run.parent / "runs").mkdir()
    run.rename(run.parent / "runs" / "one")
    assert sample.main(["--max-tokens", "1"]) == 0
