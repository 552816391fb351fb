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
from gpt2.weights import llmc

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
    """(the text up to a stop string, whether one was found), of a text that arrives in pieces."""
    stop = Stop(strings)
    shown = "".join(stop.feed(text[i : i + size]) for i in range(0, len(text), size))
    return shown + stop.close(), stop.found


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    "text, strings, expected",
    [
        ("to be or not", [" or"], "to be"),
        ("aaab", ["aab"], "a"),  # a match that begins inside a failed one
        ("abcabd", ["abd"], "abc"),
        ("one two", ["two", "one"], ""),
        ("abcd", ["d", "bc"], "a"),  # the first in the text, not in the list
        ("abcd", ["bcd", "cd"], "a"),
        ("abcd", ["abcd", "bc"], "a"),  # the one that ends first
        ("one or two", ["one or two", "or"], "one "),
        ("tail ab", ["abc"], "tail ab"),  # incomplete at the end of the text
        ("plain", [], "plain"),
        ("plain", [""], "plain"),
    ],
)
def test_text_stops_before_the_first_stop_string(text, strings, expected, size):
    assert in_pieces(text, strings, size) == (expected, expected != text)


def test_only_the_beginning_of_a_stop_string_is_held_back():
    stop = Stop(["\n\n", "END"])
    passed = [stop.feed(piece) for piece in ("a", "b\n", "c", "E", "N", "x")]
    assert passed == ["a", "b", "\nc", "", "", "ENx"]


# ---- Samples ---------------------------------------------------------------------------------------------


def test_first_sample_of_a_batch_is_that_of_generate(model):
    one = list(sampling.generate(model, [1, 2, 3], 40, seed=5))
    steps = list(sampling.generate_batch(model, [1, 2, 3], 3, 40, seed=5))
    assert [int(ids[0]) for ids, _ in steps] == one  # past the window of 12 as well
    rows = np.array([ids for ids, _ in steps]).T
    assert len({tuple(row) for row in rows.tolist()}) == 3


def test_logits_of_each_sample_are_those_of_its_tokens(model):
    steps = list(sampling.generate_batch(model, [7, 8], 4, 8, seed=1))
    rows = np.array([[7, 8]] * 4)
    for ids, logits in steps:
        expected = model.forward(rows)[:, -1]
        assert np.abs(logits - expected).max() < 1e-4 * np.abs(expected).max()
        rows = np.concatenate([rows, ids[:, None]], axis=1)


def test_log_probabilities_are_the_models_whatever_temperature_and_top_k(model):
    """Compared with those of a whole pass, in float64."""
    words = tokenizer.byte()
    options = dict(max_tokens=6, temperature=0.5, top_k=4, seed=1)
    (text,) = sampling.write_samples(model, words, "ab", logprobs=3, **options)
    tokens = [97, 98, *text.tokens]
    for i, (token, logprob, top) in enumerate(zip(text.tokens, text.logprobs, text.top)):
        logits = model.forward(np.array([tokens[: 2 + i]]))[0, -1].astype(np.float64)
        expected = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        assert np.isclose(logprob, expected[token], atol=1e-4)
        order = np.argsort(-expected)[:3]
        assert [k for k, _ in top] == order.tolist()
        assert np.allclose([p for _, p in top], expected[order], atol=1e-4)
    assert sampling.write_samples(model, words, "ab", max_tokens=3)[0].logprobs == []


def test_each_sample_ends_before_its_first_stop_string(model):
    words = tokenizer.byte()
    options = dict(samples=4, max_tokens=60, seed=3)
    whole = sampling.write_samples(model, words, "ab", **options)
    ended = sampling.write_samples(model, words, "ab", stop=["d", "eb"], **options)
    one = [sampling.write_samples(model, words, "ab", stop=stop, **options) for stop in ("eb", ["eb"])]
    assert one[0] == one[1]  # a string is not taken for its letters
    assert {text.stopped for text in whole} == {"length"} and "stop" in {text.stopped for text in ended}
    for before, after in zip(whole, ended):
        places = [place for string in ("d", "eb") if (place := before.text.find(string)) >= 0]
        if places:
            assert after.text == before.text[: min(places)] and after.stopped == "stop"
            assert after.tokens == before.tokens[: len(after.tokens)] and len(after.tokens) > len(after.text)
        else:
            assert after == before


def test_character_of_two_tokens_is_shown_whole(model, monkeypatch):
    steps = iter([([195], None), ([169], None), ([33], None)])  # é in two bytes, and !
    monkeypatch.setattr(sampling, "generate_batch", lambda *_, **__: steps)
    shown = []
    (text,) = sampling.write_samples(model, tokenizer.byte(), "x", stop=["!"], show=shown.append)
    assert text.text == "é" and shown == ["é"] and text.stopped == "stop"


def test_zero_samples_are_refused(model):
    with pytest.raises(UserError, match="samples is 0"):
        sampling.generate_batch(model, [1], 0)


# ---- The command -----------------------------------------------------------------------------------------


@pytest.fixture
def output(run, capsys):
    """output(*flags, source): what gpt2 sample prints, by default from the run and at most 5 tokens."""

    def output(*flags, source=("--run", run)):
        assert sample.main([str(word) for word in (*source, "--max-tokens", 5, *flags)]) == 0
        return capsys.readouterr().out

    return output


def test_json_of_samples(output):
    result = json.loads(output("--prompt", "ab", "--samples", 2, "--logprobs", 2))
    assert result["prompt"] == "ab" and len(result["samples"]) == 2
    for text in result["samples"]:
        assert len(text["tokens"]) == len(text["pieces"]) == len(text["logprobs"]) == len(text["top"]) == 5
        assert all(len(candidates) == 2 for candidates in text["top"])
    (plain,) = json.loads(output("--prompt", "ab", "--logprobs"))["samples"]
    assert plain["tokens"] == result["samples"][0]["tokens"] and "top" not in plain


def test_several_samples_as_text(output):
    text = output("--prompt", "ab", "--samples", 3)
    assert text.count("---- sample ") == 3 and output("--prompt", "ab") in text


def test_prompt_from_a_file_or_standard_input(output, tmp_path, monkeypatch):
    path = tmp_path / "start.txt"
    path.write_bytes("\ufeffab".encode())
    expected = output("--prompt", "ab")
    assert output("--prompt-file", path) == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab")))
    assert output("--prompt-file", "-") == expected


def test_sample_of_an_llm_c_checkpoint(output, model, tmp_path):
    """With its tokenizer beside it."""
    llmc.write(tmp_path / "x.bin", model.params, model.config)
    llmc.write_tokenizer(tmp_path / "x_tokenizer.bin", tokenizer.byte())
    assert output("--prompt", "ab", source=("--init", tmp_path / "x.bin")) == output("--prompt", "ab")
