"""Runs every command of docs/formats.md in order, with a small model in place of the released one."""

import shlex
from pathlib import Path

import numpy as np
import pytest

from gpt2.data import tokenizer
from gpt2.model import GPT2, GPT2Config
from gpt2.train.settings import PRESETS
from gpt2.weights import huggingface, llmc
from tests.support import pages

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age. " * 80


def commands():
    """The commands of the page that begin with python, in order."""
    found = [command for block in pages.blocks("docs/formats.md") for command in block.commands]
    return [command for command in found if command.startswith("python ")]


def test_page_has_commands():
    assert len(commands()) >= 15
    assert {shlex.split(command)[3] for command in commands()} >= {"convert", "sample", "plot"}


@pytest.mark.slow
def test_every_command_works(tmp_path, monkeypatch, capsys, gpt2_tokenizer, quick_peak):
    pytest.importorskip("matplotlib")
    config = GPT2Config(vocab_size=50257, block_size=1024, n_layer=1, n_head=1, n_embd=4)
    model = GPT2(config)
    huggingface.write(tmp_path / "released" / "gpt2", model.params, config)
    monkeypatch.setenv("GPT2_DATA_DIR", str(tmp_path / "released"))
    monkeypatch.setitem(PRESETS, "finetune", {**PRESETS["finetune"], "steps": 3})
    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text(TEXT, encoding="utf-8")
    Path("my-tokenizer").mkdir()
    for name, content in huggingface.tokenizer_contents(tokenizer.bpe(TEXT, 260), 64).items():
        Path("my-tokenizer", name).write_bytes(content)
    # the files of llm.c that commands name
    llmc.write("gpt2_124M.bin", model.params, config)
    from gpt2.commands.convert import state_of

    ids = np.arange(8).reshape(2, 4)
    llmc.write_state("gpt2_124M_debug_state.bin", state_of(model, ids, ids + 1), config)
    for command in commands():
        # smaller batches, as the text is too short for a validation split of five
        command = command.replace("--init model.bin", "--batch-size 2 --block-size 32 --init model.bin")
        assert pages.run(command) == 0, command + "\n" + capsys.readouterr().err
    for path in ("mine-hf/model.safetensors", "model.bin", "model_tokenizer.bin", "curves.svg", "runs/small"):
        assert Path(path).exists(), path


@pytest.mark.slow
def test_transformers_reads_the_result(tmp_path, gpt2_tokenizer):
    """With the Python code of the page."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    model = GPT2(GPT2Config(vocab_size=50257, block_size=16, n_layer=1, n_head=1, n_embd=4))
    huggingface.write(tmp_path, model.params, model.config, gpt2_tokenizer)
    peer = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    words = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = words("It was the best", return_tensors="pt")["input_ids"]
    assert ids[0].tolist() == gpt2_tokenizer.encode("It was the best").tolist()
    assert peer(ids).logits.shape == (1, 4, 50257)
