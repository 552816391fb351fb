"""Sampling: the cache changes the cost, never the numbers; the knobs do what they say."""

import io
import sys

import numpy as np
import pytest

from gpt2 import sampling
from gpt2.commands import sample
from gpt2.data import tokenizer
from gpt2.errors import UserError
from gpt2.model import GPT2, GPT2Config
from gpt2.model.decoder import Decoder
from gpt2.sampling import generate

CONFIG = GPT2Config(vocab_size=256, block_size=12, n_layer=2, n_head=3, n_embd=24, dtype="float64")


@pytest.fixture(scope="module")
def model():
    """A model whose logits differ from each other: weights ten times as large as at the start of training."""
    model = GPT2(CONFIG, seed=1)
    rng = np.random.default_rng(2)
    model.flat_params += 0.2 * rng.standard_normal(model.flat_params.shape)
    return model


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 2e-5)])
@pytest.mark.parametrize("pieces", [[12], [1] * 12, [5, 1, 4, 2]])
def test_logits_with_the_cache_are_the_models(dtype, tolerance, pieces):
    config = GPT2Config(**{**vars(CONFIG), "dtype": dtype})
    model = GPT2(config, seed=1)
    model.flat_params += 0.2 * np.random.default_rng(2).standard_normal(model.flat_params.shape).astype(dtype)
    tokens = np.random.default_rng(3).integers(0, 256, (2, 12))
    decoder = Decoder(model, batch=2)
    cuts = np.cumsum([0, *pieces])
    logits = np.concatenate([decoder.read(tokens[:, a:b]) for a, b in zip(cuts, cuts[1:])], axis=1)
    expected = model.forward(tokens)
    assert logits.dtype == expected.dtype
    scale = np.abs(expected).max()
    assert np.abs(logits - expected).max() < tolerance * scale


def test_only_the_last_row_is_the_last_row(model):
    tokens = [[1, 2, 3, 4]]
    whole = Decoder(model).read(tokens)
    assert np.allclose(Decoder(model).read(tokens, last_only=True), whole[:, -1:], rtol=1e-12)


def test_a_decoder_refuses_to_run_past_the_window(model):
    decoder = Decoder(model)
    decoder.read([[0] * 12])
    with pytest.raises(ValueError, match="13 positions, block_size is 12"):
        decoder.read([[0]])


def greedy_by_definition(model, tokens, count):
    """The likeliest token, `count` times, each by a whole pass over the window that the docs promise."""
    block = model.config.block_size
    window, made = list(tokens)[-block:], []
    for _ in range(count):
        made.append(int(np.argmax(model.forward(np.array([window]))[0, -1])))
        window.append(made[-1])
        if len(window) > block:
            window = window[-(block // 2) :]
    return made


@pytest.mark.parametrize("prompt", [[7], [1, 2, 3], list(range(12)), list(range(30))], ids=len)
def test_text_beyond_the_window_is_what_whole_passes_give(model, prompt):
    assert list(generate(model, prompt, 40, temperature=0)) == greedy_by_definition(model, prompt, 40)


def test_a_model_of_one_position_can_still_speak():
    model = GPT2(GPT2Config(vocab_size=5, block_size=1, n_layer=1, n_head=1, n_embd=4))
    assert len(list(generate(model, [0], 4))) == 4


def test_the_seed_decides(model):
    def run(seed):
        return list(generate(model, [1], 20, seed=seed))

    assert run(1) == run(1) != run(2)


def test_draws_follow_the_probabilities():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05]))
    rng = np.random.default_rng(0)
    draws = np.bincount([sampling.choose(logits, 1.0, 0, 1.0, rng) for _ in range(4000)], minlength=4) / 4000
    # four standard deviations of a frequency near 1/2: 4 * sqrt(0.25 / 4000)
    assert np.abs(draws - [0.5, 0.3, 0.15, 0.05]).max() < 0.032


@pytest.mark.parametrize("options", [(1.0, 0, 1.0), (0.8, 20, 1.0), (0.8, 200, 0.9), (1.3, 500, 0.5)])
def test_draws_are_those_of_the_generator_from_the_probabilities(options):
    """The same token, and the same state of the generator, as of rng.choice; equal logits among them."""
    draw = sampling.TokenDraw(300)
    for seed in range(20):
        ours, theirs = np.random.default_rng(seed), np.random.default_rng(seed)
        logits = (3.0 * np.random.default_rng([seed, 1]).standard_normal(300)).astype("f4")
        logits = np.round(logits) if seed % 2 else logits
        drawn = draw(logits, *options, ours)
        probs = draw.probabilities(logits, *options)
        assert np.count_nonzero(probs) == min(options[1], 300) or options[1] == 0 or options[2] < 1.0
        assert drawn == theirs.choice(300, p=probs) and ours.random() == theirs.random()


def test_the_knobs():
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
    assert sampling.choose(logits, 0, 0, 1.0, None) == 1


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(temperature=-1), "temperature is -1"),
        (dict(temperature=float("nan")), "temperature is nan"),
        (dict(top_k=-1), "top_k is -1"),
        (dict(top_p=0), "top_p is 0"),
        (dict(top_p=1.5), "top_p is 1.5"),
        (dict(max_tokens=-1), "max_tokens is -1"),
        (dict(tokens=[]), "prompt is empty"),
        (dict(tokens=3), "tokens is 3, expected a text or a list"),
        (dict(tokens=[[1], [2, 3]]), "expected a text or a list"),
        (dict(tokens=[1.5]), r"tokens is \[1.5\], expected"),
        (dict(tokens=[256]), "token 256, expected ids from 0 to 255"),
        (dict(tokens=[-1]), "token -1"),
    ],
)
def test_arguments_out_of_range_are_refused_at_once(model, options, message):
    with pytest.raises(UserError, match=message):
        generate(model, **{"tokens": [1], **options})


def test_a_broken_model_says_so():
    with pytest.raises(UserError, match="not finite"):
        sampling.choose(np.array([0.0, np.nan]), 1.0, 0, 1.0, np.random.default_rng(0))


# ---- The command -------------------------------------------------------------------------------------------


def test_the_command_needs_the_runs_folder_and_nothing_else(run, capsys, model, monkeypatch):
    monkeypatch.delenv("GPT2_DATA_DIR", raising=False)
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out := io.BytesIO(), encoding="utf-8"))
    options = ["--max-tokens", "9", "--temperature", "0", "--prompt", "é: "]
    assert sample.main(["--run", str(run), *options]) == 0
    sys.stdout.flush()
    expected = bytes(generate(model, "é: ".encode(), 9, temperature=0)).decode(errors="replace")
    assert out.getvalue().decode() == "é: " + expected + "\n"


@pytest.mark.parametrize(
    "options, message",
    [
        (["--run", "nowhere"], "no run here"),
        (["--temperature", "-1"], "temperature is -1"),
        (["--seed", "-1"], "--seed -1"),
    ],
)
def test_a_mistake_is_one_line(run, capsys, options, message):
    assert sample.main(["--run", str(run), *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1


def test_weights_in_the_place_of_a_run(run, capsys):
    assert sample.main(["--run", str(run / "last.safetensors")]) == 2
    assert f"; for weights: --init {run / 'last.safetensors'}\n" in capsys.readouterr().err


def test_a_tokenizer_of_another_run_is_refused(run, capsys):
    tokenizer.char("abc").save(run / "tokenizer.json")
    assert sample.main(["--run", str(run)]) == 2
    assert "the model has 256 tokens, its tokenizer 3" in capsys.readouterr().err


def test_without_a_name_the_newest_run_is_taken(run, monkeypatch, capsys):
    monkeypatch.chdir(run.parent)
    assert sample.main([]) == 2 and "no run in" in capsys.readouterr().err
    (run.parent / "runs").mkdir()
    run.rename(run.parent / "runs" / "one")
    assert sample.main(["--max-tokens", "1"]) == 0
