"""Runs with tokenizers of transformers, from the first step to a converted folder, and their prompts."""

import json
import os
import re

import numpy as np
import pytest

import gpt2
from gpt2.commands import convert, evaluate, sample
from gpt2.data import huggingface, tokenizer
from gpt2.data.tokens import read_tokens
from gpt2.model import GPT2, GPT2Config
from gpt2.storage import runs
from gpt2.train import program
from gpt2.weights import huggingface as model_files
from tests.data.test_huggingface import END, write_json, write_settings
from tests.support.small_run import flags

pytestmark = pytest.mark.usefixtures("quick_peak")
TEXT = "a cat, a hat, a bat<|endoftext|> and caf\u00e9. " * 200


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.setenv("GPT2_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path / "my.txt"


def live(capsys, text, *start):
    """Train, resume, sample, evaluate and convert; returns the Tokenizer of the run."""
    capsys.readouterr()
    assert program.main(flags(text, "run", "--block-size", "8", *start)) == 0
    printed = re.search(r"more text: .* (sample .*)", capsys.readouterr().out)[1]
    assert program.main(["--resume", "run", "--steps", "8"]) == 0
    assert sample.main([*printed.replace('"', "").split()[1:], "--max-tokens", "3"]) == 0
    assert evaluate.main(["--run", "run", "--data", str(text)]) == 0
    assert convert.main(["run", "back"]) == 0
    words = gpt2.load_tokenizer("run")
    ids = words.encode(TEXT)
    assert gpt2.load_tokenizer("back").encode(TEXT).tolist() == ids.tolist()
    assert np.array_equal(gpt2.load("back").flat_params, gpt2.load("run").flat_params)
    return words


@pytest.mark.parametrize(
    "change",
    [
        {"added_tokens": [END]},
        pytest.param({"added_tokens": [END], "normalizer": {"type": "NFD"}}, marks=pytest.mark.slow),
    ],
)
def test_a_run_keeps_the_tokenizer_that_it_was_given(text, tmp_path, capsys, change):
    if "normalizer" in change:
        pytest.importorskip("tokenizers")
    (tmp_path / "mine").mkdir()
    write_json(tmp_path / "mine", **change)
    words = live(capsys, text, "--tokenizer", "mine")
    os.rename(tmp_path / "mine", tmp_path / "moved")  # the run has it
    assert words.encode("a<|endoftext|>").tolist() == [97, 262] and words.vocab_size == 263
    assert program.main(["--resume", "run", "--steps", "10"]) == 0
    settings = (tmp_path / "run" / runs.SETTINGS).read_text()
    assert f'tokenizer = "{tmp_path / "mine"}"' in settings


def test_a_run_from_weights_keeps_their_tokenizer_and_their_rows(text, tmp_path, capsys):
    """As in the course of Hugging Face: a tokenizer that ends up beside a model with more rows."""
    gpt2.save(GPT2(GPT2Config(300, 8, 1, 2, 16), seed=0), tmp_path / "base")
    write_json(tmp_path / "base", added_tokens=[END])
    words = live(capsys, text, "--init", "base", "--tokenizer", "auto")
    assert words.vocab_size == gpt2.load("run").config.vocab_size == 300


def test_a_vocabulary_above_65536_is_trained_sampled_and_converted(text, tmp_path, capsys):
    """Ids that need more than 16 bits are in the token files, and nothing of the run is lost."""
    end = "<|end|>"
    gpt2.save(GPT2(GPT2Config(70_001, 8, 1, 2, 16), seed=0), tmp_path / "base")
    words = tokenizer.bpe(TEXT, 262)
    vocab = {model_files.spell(token): i for i, token in enumerate(words.ranks)}
    vocab |= {f"<{i}>": i for i in range(262, 70_000)} | {end: 70_000}
    write_json(tmp_path / "base")
    fields = json.loads((tmp_path / "base" / "tokenizer.json").read_text())
    merges = list(map(list, ([*map(model_files.spell, p)] for p in model_files.merges(words))))
    fields |= {"model": {"type": "BPE", "vocab": vocab, "merges": merges}}
    fields["added_tokens"] = [{"content": end, "id": 0, "special": True}]
    (tmp_path / "base" / "tokenizer.json").write_text(json.dumps(fields))
    write_settings(tmp_path / "base", tokenizer_class="PreTrainedTokenizerFast", eos_token=end)
    text.write_text(TEXT.replace("<|endoftext|>", end), encoding="utf-8")
    words = live(capsys, text, "--init", "base", "--tokenizer", "auto")
    assert words.end_of_text == 70_000
    (train,) = (tmp_path / "cache" / "tokens").glob("my-*/train.bin")
    assert read_tokens(train).dtype == np.uint32 and int(read_tokens(train).max()) == 70_000


def test_prompts_of_printed_commands_come_from_the_text(text, capsys):
    text.write_text("zyx, zy. " * 300, encoding="utf-8")  # without the letters of most prompts
    assert program.main(flags(text, "run", "--tokenizer", "char")) == 0
    printed = capsys.readouterr().out
    assert re.search(r"more text: .*gpt2 sample --run run --prompt \"zyx?\"", printed)
    assert sample.main(["--run", "run", "--prompt", "O "]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and "1 characters of the text are not in its vocabulary" in shown.err


def test_a_name_that_is_neither_a_tokenizer_nor_a_path_is_refused(text, refusal):
    message = refusal(program.main, *flags(text, "run", "--tokenizer", "nowhere"))
    assert "expected gpt2, byte, char, bpe:N, or the path of a tokenizer of transformers" in message
    assert huggingface.FILES[0] in refusal(program.main, *flags(text, "run", "--tokenizer", "."))
