"""Own layers: the code of a file that a checkpoint names runs only if the user names the file, or has trained
with it on this machine."""

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
from tests.support.small_run import posix

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


REFUSED = "their code runs only if"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The working folder, with a text and a file of layers that leaves a file `ran` when it is executed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    (tmp_path / "mine.py").write_text(LAYERS)
    return tmp_path


def train_run():
    """Train the run `run`, and copy its checkpoint to alone.safetensors."""
    assert program.main([*SMALL, "--layers", "mine.py", "--out", "run"]) == 0
    shutil.copy("run/best.safetensors", "alone.safetensors")
    os.remove("ran")


@pytest.fixture
def received(place, monkeypatch):
    """The same folder, with a run and a checkpoint of another machine."""
    with monkeypatch.context() as there:
        there.setenv("GPT2_CACHE_DIR", str(place / "there"))
        train_run()
    monkeypatch.setenv("GPT2_CACHE_DIR", str(place / "here"))
    return place


SOURCES = (["--run", "run"], ["--init", "alone.safetensors"])
# Commands that read a run or a checkpoint, with the layers that it names
READERS = [
    *((sample.main, [*source, "--max-tokens", "1"]) for source in SOURCES),
    *((evaluate.main, [*source, "--data", "text.txt"]) for source in SOURCES),
    (convert.main, ["run", "copy.safetensors"]),
    (program.main, ["--resume", "run", "--steps", "3"]),
]
# Commands that start another run, whose layers are those of --layers
STARTERS = [
    (program.main, [*SMALL, "--init", "alone.safetensors", "--dry-run"]),
    (program.main, [*SMALL, "--init", "alone.safetensors", "--out", "new"]),
]


def check_all_run(commands, *flags):
    for main, argv in commands:
        assert main([*argv, *flags]) == 0, argv


def test_layers_named_by_a_received_checkpoint_are_not_executed(received, refusal):
    for main, argv in READERS + STARTERS:
        error = refusal(main, *argv)
        assert f"mine.py: own layers; {REFUSED} you have trained" in error and "--layers" in error
    for load in (
        lambda: gpt2.load("run"),
        lambda: gpt2.load("alone.safetensors", "auto", "float64"),
        lambda: resumed_settings("run", {"steps": 3}),
    ):
        with pytest.raises(UserError, match=REFUSED):
            load()
    assert REFUSED in refusal(program.main, "--config", "run/settings.toml", "--out", "again")
    assert not (received / "ran").exists() and not (received / "again").exists()


def test_layers_named_by_the_user_are_executed(received):
    check_all_run(READERS + STARTERS, "--layers", "mine.py")
    assert gpt2.load("alone.safetensors", layers="mine.py").description.own
    assert gpt2.load("run").description.own  # as it was trained further here


def test_copy_of_the_sender_s_layers_may_be_named(received):
    """The path in the checkpoint is the sender's; a file of the same content replaces it."""
    (received / "mine.py").rename(received / "copy.py")
    check_all_run(READERS + STARTERS, "--layers", "copy.py")


def test_naming_other_layers_does_not_execute_those_of_the_checkpoint(received, refusal):
    (received / "other.py").write_text(LAYERS.replace("ran", "other-ran").replace("tanh", "sin"))
    main, argv = STARTERS[1]
    assert REFUSED in refusal(main, *argv, "--layers", "other.py")
    assert not (received / "ran").exists()


def test_layers_trained_with_on_this_machine_need_not_be_named(place, refusal):
    train_run()
    check_all_run(READERS)
    assert program.main(["--config", "run/settings.toml", "--out", "again"]) == 0
    (place / "mine.py").write_text(LAYERS + "\n# changed\n")
    (place / "ran").unlink()
    for main, argv in READERS:
        assert "has changed since the run began" in refusal(main, *argv)
    assert not (place / "ran").exists()


def test_layers_of_a_model_saved_on_this_machine_need_not_be_named(place):
    model = GPT2(GPT2Config(256, 8, 1, 2, 8), layers="mine.py")
    gpt2.save(model, "x.safetensors")
    (place / "ran").unlink()
    assert gpt2.load("x.safetensors").description.own and (place / "ran").exists()


def test_neither_path_nor_hash_alone_is_trusted(place):
    file = OwnFile.at("mine.py")
    file.remember()
    assert own.trained_with(file.path) == [file.sha256]
    OwnFile(file.path, file.sha256).contents()
    (place / "sub").mkdir()
    shutil.copy("mine.py", "sub")  # where it may import other modules
    for path, sha256 in ((str(place / "sub" / "mine.py"), file.sha256), (file.path, "0" * 64)):
        with pytest.raises(UserError, match=REFUSED):
            OwnFile(path, sha256).contents()


@posix
def test_record_that_others_own_or_can_write_is_not_trusted(place, monkeypatch):
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


def test_truncated_record_is_written_again(place):
    file = OwnFile.at("mine.py")
    file.remember()
    record = own._record(file.path)
    record.write_bytes(record.read_bytes()[:-5])
    assert own.trained_with(file.path) == []
    file.remember()
    assert own.trained_with(file.path) == [file.sha256]


def test_run_without_a_cache_folder_for_the_record_is_trained(place, monkeypatch):
    (place / "no-folder").touch()
    data = corpora.prepare("text.txt", "byte", place / "tokens")
    monkeypatch.setattr(corpora, "prepare", lambda *args, **options: data)
    monkeypatch.setenv("GPT2_CACHE_DIR", str(place / "no-folder"))
    assert program.main([*SMALL, "--layers", "mine.py", "--out", "run"]) == 0
    assert sample.main(["--run", "run", "--max-tokens", "1"]) == 2
    assert sample.main(["--run", "run", "--max-tokens", "1", "--layers", "mine.py"]) == 0


def test_layers_named_by_the_base_of_adapters_are_not_executed(received):
    """A checkpoint of adapters names its base, as PEFT's folders do, and the base a file of layers."""
    base = gpt2.load("alone.safetensors", layers="mine.py")
    tuned = "--train lora:2 --init alone.safetensors --layers mine.py --out tuned --backward auto".split()
    with pytest.MonkeyPatch.context() as there:
        there.setenv("GPT2_CACHE_DIR", str(received / "there"))
        assert program.main([*SMALL, *tuned]) == 0
    gpt2.save(GPT2(base.config, train="lora:2"), "adapter")
    file = received / "adapter" / peft.CONFIG
    base_path = {"base_model_name_or_path": str(received / "alone.safetensors")}
    file.write_text(json.dumps({**json.loads(file.read_text()), **base_path}))
    (received / "ran").unlink()
    for name in ("tuned", "adapter"):
        with pytest.raises(UserError, match=REFUSED):
            gpt2.load(name)
    assert not (received / "ran").exists()
    assert gpt2.load("tuned", layers="mine.py").description.own


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX pipes")
def test_pipe_named_as_layers_is_refused(place):
    os.mkfifo("pipe.py")
    with pytest.raises(UserError, match="pipe.py: own layers cannot be read from here: not a regular"):
        GPT2(GPT2Config(256, 8, 1, 2, 8), layers="pipe.py")


def test_tokenizer_of_a_received_run_needs_its_layers(received):
    with pytest.raises(UserError, match=REFUSED):
        gpt2.load_tokenizer("run")
    assert gpt2.load_tokenizer("run", layers="mine.py").name == tokenizer.byte().name
