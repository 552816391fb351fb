"""A checkpoint is inert: the code of a file of layers that it names runs only if the user names it, or has
trained with it on this machine."""

import json
import os
import shutil

import pytest

import gpt2
from gpt2.commands import convert, evaluate, sample
from gpt2.data import corpora, tokenizer
from gpt2.errors import UserError
from gpt2.model import GPT2, GPT2Config, own
from gpt2.model.own import OwnFile
from gpt2.train import program, resumed_settings
from gpt2.weights import peft

pytestmark = pytest.mark.usefixtures("quick_peak")

LAYERS = """
import pathlib
import numpy as np
pathlib.Path(__file__).with_name("ran").touch()

def act(inp):
    return np.tanh(inp)

LAYERS = {"gelu": act}
"""
SMALL = (
    "--data text.txt --tokenizer byte --n-layer 1 --n-head 2 --n-embd 8 --block-size 8 --batch-size 2 "
    "--steps 2 --warmup 0 --eval-batches 1 --sample-tokens 0 --threads 1 --backward manual,gelu=auto"
).split()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, with a text and a file of layers that notes that it ran."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    (tmp_path / "mine.py").write_text(LAYERS)
    return tmp_path


@pytest.fixture
def stranger(place, monkeypatch):
    """The same folder, with a run and a checkpoint that were made on a machine with another record."""
    with monkeypatch.context() as there:
        there.setenv("GPT2_CACHE_DIR", str(place / "there"))
        assert program.main([*SMALL, "--layers", "mine.py", "--out", "run"]) == 0
    shutil.copy(place / "run" / "best.safetensors", place / "alone.safetensors")
    (place / "ran").unlink()
    monkeypatch.setenv("GPT2_CACHE_DIR", str(place / "here"))
    return place


def commands(layers=()):
    """Everything that reads a run or a checkpoint, as (name, call)."""
    more = ["--layers", layers] if layers else []
    for source in (["--run", "run"], ["--init", "alone.safetensors"]):
        yield lambda source=source: sample.main([*source, "--max-tokens", "1", *more])
        yield lambda source=source: evaluate.main([*source, "--data", "text.txt", *more])
    yield lambda: convert.main(["run", "copy.safetensors", *more])
    yield lambda: program.main([*SMALL, "--init", "alone.safetensors", "--dry-run", *more])
    yield lambda: program.main([*SMALL, "--init", "alone.safetensors", "--out", "new", *more])
    yield lambda: program.main(["--resume", "run", "--steps", "3", *more])


def test_nothing_that_a_stranger_sends_is_run(stranger, capsys):
    capsys.readouterr()
    for command in commands():
        assert command() == 2
        error = capsys.readouterr().err
        assert "mine.py: own layers; their code runs only if you have trained" in error
        assert error.count("\n") == 1 and "--layers" in error
    for load in (lambda: gpt2.load("run"), lambda: gpt2.load("alone.safetensors", "auto", "float64")):
        with pytest.raises(UserError, match="their code runs only if"):
            load()
    with pytest.raises(UserError, match="their code runs only if"):
        resumed_settings("run", {"steps": 3})
    assert program.main(["--config", "run/settings.toml", "--out", "again"]) == 2
    assert "their code runs only if" in capsys.readouterr().err
    assert not (stranger / "ran").exists() and not (stranger / "again").exists()


def test_what_the_user_names_is_run(stranger, capsys):
    for number, command in enumerate(commands("mine.py")):
        assert command() == 0, (number, capsys.readouterr().err)
    assert gpt2.load("alone.safetensors", layers="mine.py").description.own
    assert gpt2.load("run").description.own  # by now it was trained further here


def test_a_sender_s_copy_elsewhere_is_named(stranger, capsys):
    """The path in the checkpoint is the sender's: the user's copy of the same content is taken."""
    (stranger / "mine.py").rename(stranger / "copy.py")
    for number, command in enumerate(commands("copy.py")):
        assert command() == 0, (number, capsys.readouterr().err)


def test_naming_a_file_lets_no_other_run(stranger, capsys):
    (stranger / "other.py").write_text(LAYERS.replace("ran", "other-ran").replace("tanh", "sin"))
    assert program.main([*SMALL, "--init", "alone.safetensors", "--out", "new", "--layers", "other.py"]) == 2
    assert "their code runs only if" in capsys.readouterr().err
    assert not (stranger / "ran").exists()


def test_who_trained_with_a_file_need_not_name_it(place, capsys):
    assert program.main([*SMALL, "--layers", "mine.py", "--out", "run"]) == 0
    shutil.copy(place / "run" / "best.safetensors", place / "alone.safetensors")
    for number, command in enumerate(commands()):
        if number not in (5, 6):  # --init starts another run, whose layers are named
            assert command() == 0, (number, capsys.readouterr().err)
    assert program.main(["--config", "run/settings.toml", "--out", "again"]) == 0
    (place / "mine.py").write_text(LAYERS + "\n# changed\n")
    (place / "ran").unlink()
    capsys.readouterr()
    for number, command in enumerate(commands()):
        if number not in (5, 6):
            assert command() == 2
            assert "has changed since the run began" in capsys.readouterr().err
    assert not (place / "ran").exists()


def test_who_saved_a_model_need_not_name_its_file(place):
    model = GPT2(GPT2Config(256, 8, 1, 2, 8), layers="mine.py")
    gpt2.save(model, "x.safetensors")
    (place / "ran").unlink()
    assert gpt2.load("x.safetensors").description.own and (place / "ran").exists()


def test_a_path_is_not_enough_and_a_hash_is_not_enough(place):
    file = OwnFile.at("mine.py")
    file.remember()
    assert own.trained_with(file.path) == [file.sha256]
    OwnFile(file.path, file.sha256).contents()
    (place / "sub").mkdir()
    shutil.copy("mine.py", "sub")  # beside it may lie other modules
    with pytest.raises(UserError, match="their code runs only if"):
        OwnFile(str(place / "sub" / "mine.py"), file.sha256).contents()
    with pytest.raises(UserError, match="their code runs only if"):
        OwnFile(file.path, "0" * 64).contents()


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX modes")
def test_a_record_that_others_can_write_or_own_says_nothing(place, monkeypatch):
    file = OwnFile.at("mine.py")
    file.remember()
    record = own._record(file.path)
    assert record.stat().st_mode & 0o777 == 0o600
    record.chmod(0o620)
    assert own.trained_with(file.path) == []
    record.chmod(0o600)
    monkeypatch.setattr(own, "_user", lambda: os.geteuid() + 1)
    record.rename(own._record(file.path))
    assert own.trained_with(file.path) == []


def test_a_record_cut_short_is_written_again(place):
    file = OwnFile.at("mine.py")
    file.remember()
    record = own._record(file.path)
    record.write_bytes(record.read_bytes()[:-5])
    assert own.trained_with(file.path) == []
    file.remember()
    assert own.trained_with(file.path) == [file.sha256]


def test_without_a_place_for_the_record_the_run_goes_well(place, monkeypatch):
    (place / "no-folder").touch()
    data = corpora.prepare("text.txt", "byte", place / "tokens")
    monkeypatch.setattr(corpora, "prepare", lambda *args: data)
    monkeypatch.setenv("GPT2_CACHE_DIR", str(place / "no-folder"))
    assert program.main([*SMALL, "--layers", "mine.py", "--out", "run"]) == 0
    assert sample.main(["--run", "run", "--max-tokens", "1"]) == 2
    assert sample.main(["--run", "run", "--max-tokens", "1", "--layers", "mine.py"]) == 0


def test_weights_below_adapters_are_inert_as_well(stranger, capsys):
    """A checkpoint of adapters names its base, as peft's folders do, and the base a file of layers."""
    base = gpt2.load("alone.safetensors", layers="mine.py")
    tuned = ["--train", "lora:2", "--init", "alone.safetensors", "--layers", "mine.py", "--out", "tuned"]
    tuned += ["--backward", "auto"]
    with pytest.MonkeyPatch.context() as there:
        there.setenv("GPT2_CACHE_DIR", str(stranger / "there"))
        assert program.main([*SMALL, *tuned]) == 0, capsys.readouterr().err
    gpt2.save(GPT2(base.config, train="lora:2"), "adapter")
    config = json.loads((stranger / "adapter" / peft.CONFIG).read_text())
    config["base_model_name_or_path"] = str(stranger / "alone.safetensors")
    (stranger / "adapter" / peft.CONFIG).write_text(json.dumps(config))
    (stranger / "ran").unlink()
    for name in ("tuned", "adapter"):
        with pytest.raises(UserError, match="their code runs only if"):
            gpt2.load(name)
    assert not (stranger / "ran").exists()
    assert gpt2.load("tuned", layers="mine.py").description.own


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX pipes")
def test_a_pipe_in_place_of_the_file_does_not_hang(place):
    os.mkfifo("pipe.py")
    with pytest.raises(UserError, match="pipe.py: own layers cannot be read from here: not a regular"):
        GPT2(GPT2Config(256, 8, 1, 2, 8), layers="pipe.py")


def test_the_tokenizer_of_such_a_model(stranger):
    with pytest.raises(UserError, match="their code runs only if"):
        gpt2.load_tokenizer("run")
    assert gpt2.load_tokenizer("run", layers="mine.py").name == tokenizer.byte().name
