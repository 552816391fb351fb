"""Several samples at once, stop strings, log-probabilities, prompts from files."""

import io
import json
import sys

import numpy as np
import pytest

from gpt2 import sampling
from gpt2.commands import sample
from gpt2.data import tokenizer
from gpt2.errors import UserError
from gpt2.model import GPT2, GPT2Config
from gpt2.sampling import Stop

CONFIG = GPT2Config(vocab_size=256, block_size=12, n_layer=2, n_head=3, n_embd=24)


@pytest.fixture(scope="module")
def model():
    """A model that prefers ASCII letters, so that its text can be searched for."""
    model = GPT2(CONFIG, seed=1)
    rng = np.random.default_rng(2)
    model.flat_params += (0.2 * rng.standard_normal(model.flat_params.shape)).astype(np.float32)
    model.params["lnfw"][:] = 0.2
    model.params["lnfb"][:] = 1.0
    model.params["wte"][:] *= 0.5
    model.params["wte"][97:105] += 0.5
    return model


# ---- Stop strings ----------------------------------------------------------------------------------------


def in_pieces(text, strings, size):
    """What is shown of a text that comes in pieces, and whether a string was found."""
    stop = Stop(strings)
    shown = "".join(stop.feed(text[i : i + size]) for i in range(0, len(text), size))
    return shown + stop.close(), stop.found


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    "text, strings, expected",
    [
        ("to be or not", [" or"], "to be"),
        ("aaab", ["aab"], "a"),  # a wrong beginning inside the right one
        ("abcabd", ["abd"], "abc"),
        ("one two", ["two", "one"], ""),
        ("abcd", ["d", "bc"], "a"),  # the first in the text, not in the list
        ("abcd", ["bcd", "cd"], "a"),
        ("abcd", ["abcd", "bc"], "a"),  # the one that is complete first
        ("one or two", ["one or two", "or"], "one "),
        ("tail ab", ["abc"], "tail ab"),  # never completed: given out at the end
        ("plain", [], "plain"),
        ("plain", [""], "plain"),
    ],
)
def test_stop_at_the_first(text, strings, expected, size):
    assert in_pieces(text, strings, size) == (expected, expected != text)


def test_nothing_is_held_back_without_need():
    stop = Stop(["\n\n", "END"])
    shown = [stop.feed(piece) for piece in ("a", "b\n", "c", "E", "N", "x")]
    assert shown == ["a", "b", "\nc", "", "", "ENx"]


# ---- Samples ---------------------------------------------------------------------------------------------


def test_the_first_of_a_batch_is_the_only_one_of_none(model):
    one = list(sampling.generate(model, [1, 2, 3], 40, seed=5))
    steps = list(sampling.generate_batch(model, [1, 2, 3], 3, 40, seed=5))
    assert [int(ids[0]) for ids, _ in steps] == one  # past the window of 12 as well
    rows = np.array([ids for ids, _ in steps]).T
    assert len({tuple(row) for row in rows.tolist()}) == 3


def test_rows_do_not_touch_each_other(model):
    """The logits of each row are those of a whole pass over its own tokens."""
    steps = list(sampling.generate_batch(model, [7, 8], 4, 8, seed=1))
    rows = np.array([[7, 8]] * 4)
    for ids, logits in steps:
        expected = model.forward(rows)[:, -1]
        assert np.abs(logits - expected).max() < 1e-4 * np.abs(expected).max()
        rows = np.concatenate([rows, ids[:, None]], axis=1)


def test_log_probabilities_are_the_models_own(model):
    """Whatever temperature and top_k say: by a whole pass, in float64."""
    words = tokenizer.byte()
    options = dict(max_tokens=6, temperature=0.5, top_k=4, seed=1)
    (made,) = sampling.write_samples(model, words, "ab", logprobs=3, **options)
    tokens = [97, 98, *made.tokens]
    for i, (token, logprob, top) in enumerate(zip(made.tokens, made.logprobs, made.top)):
        logits = model.forward(np.array([tokens[: 2 + i]]))[0, -1].astype(np.float64)
        expected = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        assert np.isclose(logprob, expected[token], atol=1e-4)
        order = np.argsort(-expected)[:3]
        assert [k for k, _ in top] == order.tolist()
        assert np.allclose([p for _, p in top], expected[order], atol=1e-4)
    assert sampling.write_samples(model, words, "ab", max_tokens=3)[0].logprobs == []


def test_stop_ends_each_sample_where_its_own_text_has_it(model):
    words = tokenizer.byte()
    whole = sampling.write_samples(model, words, "ab", samples=4, max_tokens=60, seed=3)
    ended = sampling.write_samples(model, words, "ab", samples=4, max_tokens=60, seed=3, stop=["d", "eb"])
    assert {made.stopped for made in whole} == {"length"} and "stop" in {made.stopped for made in ended}
    for before, after in zip(whole, ended):
        places = [place for string in ("d", "eb") if (place := before.text.find(string)) >= 0]
        if places:
            assert after.text == before.text[: min(places)] and after.stopped == "stop"
            assert after.tokens == before.tokens[: len(after.tokens)] and len(after.tokens) > len(after.text)
        else:
            assert after == before


def test_characters_that_are_cut_across_tokens(model):
    """The two bytes of an e with an accent arrive apart; a stop string may be such a character."""
    words = tokenizer.byte()
    steps = iter([([195], None), ([169], None), ([33], None)])
    shown = []

    def steps_of(*_, **__):
        return steps

    original, sampling.generate_batch = sampling.generate_batch, steps_of
    try:
        (made,) = sampling.write_samples(model, words, "x", stop=["!"], show=shown.append)
    finally:
        sampling.generate_batch = original
    assert made.text == "é" and shown == ["é"] and made.stopped == "stop"


def test_no_samples_are_refused(model):
    with pytest.raises(UserError, match="samples is 0"):
        sampling.generate_batch(model, [1], 0)


# ---- The command -----------------------------------------------------------------------------------------


def output(capsys, *arguments):
    assert sample.main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def test_json(run, model, capsys):
    text = json.loads(
        output(capsys, "--run", run, "--prompt", "ab", "--samples", 2, "--logprobs", 2, "--max-tokens", 5)
    )
    assert text["prompt"] == "ab" and len(text["samples"]) == 2
    for made in text["samples"]:
        assert len(made["tokens"]) == len(made["pieces"]) == len(made["logprobs"]) == len(made["top"]) == 5
        assert all(len(place) == 2 for place in made["top"])
    plain = json.loads(output(capsys, "--run", run, "--prompt", "ab", "--logprobs", "--max-tokens", 5))
    assert plain["samples"][0]["tokens"] == text["samples"][0]["tokens"]
    assert "top" not in plain["samples"][0]


def test_several_samples_as_text(run, capsys):
    text = output(capsys, "--run", run, "--prompt", "ab", "--samples", 3, "--max-tokens", 4)
    alone = output(capsys, "--run", run, "--prompt", "ab", "--max-tokens", 4)
    assert text.count("---- sample ") == 3 and alone in text


def test_prompt_files(run, tmp_path, monkeypatch, capsys):
    path = tmp_path / "start.txt"
    path.write_bytes("\ufeffab".encode())
    expected = output(capsys, "--run", run, "--prompt", "ab", "--max-tokens", 4)
    assert output(capsys, "--run", run, "--prompt-file", path, "--max-tokens", 4) == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab")))
    assert output(capsys, "--run", run, "--prompt-file", "-", "--max-tokens", 4) == expected


def test_weights_of_another_kind(run, model, tmp_path, capsys):
    """--init takes a llm.c checkpoint with its tokenizer beside it."""
    from gpt2.weights import llmc

    llmc.write(tmp_path / "x.bin", model.params, model.config)
    llmc.write_tokenizer(tmp_path / "x_tokenizer.bin", tokenizer.byte())
    expected = output(capsys, "--run", run, "--prompt", "ab", "--max-tokens", 4)
    assert output(capsys, "--init", tmp_path / "x.bin", "--prompt", "ab", "--max-tokens", 4) == expected


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--samples", "0"], "samples is 0"),
        (["--logprobs", "-1"], "--logprobs -1"),
        (["--prompt", "a\udcff"], "--prompt: not UTF-8 text (character 1)"),  # what the byte ff becomes
        (["--stop", "\udcfe"], "--stop: not UTF-8 text (character 0)"),
        (["--prompt-file", "nowhere"], "--prompt-file nowhere: No such file"),
        (["--prompt-file", "bad", "--prompt", "x"], "give one of them"),
        (["--prompt-file", "bad"], "not UTF-8 text (byte 1)"),
        (["--init", "x"], "--run and --init both name weights"),
    ],
)
def test_mistakes(run, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(run.parent)
    (run.parent / "bad").write_bytes(b"a\xff")
    assert sample.main(["--run", "run", *arguments]) == 2
    text = capsys.readouterr().err
    assert message in text and text.count("\n") == 1
