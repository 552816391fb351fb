"""Resumed runs: the same text, wherever it lies; finite weights only; which run `--resume` continues."""

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from gpt2.data import corpora
from gpt2.data.tokens import read_tokens, write_tokens
from gpt2.errors import UserError
from gpt2.storage import runs
from gpt2.train import Settings, opened, program
from gpt2.weights import checkpoint
from tests.support.small_run import flags

pytestmark = pytest.mark.usefixtures("quick_peak")


@pytest.fixture
def text(prose, tmp_path, monkeypatch):
    """A text file, and an empty cache folder."""
    monkeypatch.setenv("GPT2_CACHE_DIR", str(tmp_path / "cache"))
    return prose[0]


@pytest.fixture
def run(text, tmp_path):
    """A run that has done its six steps."""
    folder = tmp_path / "a run"
    assert program.main(flags(text, folder)) == 0
    return folder


def edit(path, old, new, at):
    """Replace the first `old` after a share `at` of the file by `new`."""
    content = path.read_text(encoding="utf-8")
    place = content.index(old, int(at * len(content)))
    path.write_text(content[:place] + new + content[place + len(old) :], encoding="utf-8", newline="\n")


def check_resumes(capsys, folder, *more):
    """Resume the run for two steps, without a word on standard error."""
    capsys.readouterr()
    assert program.main(["--resume", str(folder), "--steps", "8", *map(str, more)]) == 0
    assert capsys.readouterr().err == ""


@pytest.fixture
def resume_error(refusal):
    """resume_error(folder, *more): the one line with which resuming the run fails."""
    return lambda folder, *more: refusal(program.main, "--resume", folder, "--steps", 8, *more)


CHANGED = "text or tokens have changed"

# ---- The text ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0.0, 0.5, 0.95])
def test_changed_letter_is_noticed(run, text, resume_error, at):
    edit(text, "e", "a", at)
    assert CHANGED in resume_error(run)


@pytest.mark.parametrize("old, new, count", [("ï", "ð", -1), ("e", "Q", 1)], ids=["replaced", "added"])
def test_changed_alphabet_is_noticed(text, tmp_path, resume_error, old, new, count):
    """With a letter replaced everywhere the tokens stay the same; with one more the model's sizes change."""
    folder = tmp_path / "chars"
    assert program.main(flags(text, folder, "--tokenizer", "char")) == 0
    content = text.read_text(encoding="utf-8")
    text.write_text(content.replace(old, new, count), encoding="utf-8", newline="\n")
    assert CHANGED in resume_error(folder)


def test_changed_token_file_is_noticed(tmp_path, resume_error, gpt2_tokenizer):
    tokens = np.random.default_rng(0).integers(0, 50000, 2000)
    train, val = tmp_path / "my_train.bin", tmp_path / "my_val.bin"
    write_tokens(train, tokens), write_tokens(val, tokens[:200])
    assert program.main(flags(train, tmp_path / "a", "--tokenizer", "gpt2")) == 0
    write_tokens(val, [*tokens[:199], 7])
    assert CHANGED in resume_error(tmp_path / "a")


# ---- A text that was moved ---------------------------------------------------------------------------------


def test_moved_text_is_named_with_data(run, text, tmp_path, capsys, resume_error, monkeypatch):
    moved = tmp_path / "elsewhere.txt"
    text.rename(moved)
    expected = f"{text}: No such file or directory; if it was moved, name where it is now with --data"
    assert expected in resume_error(run)
    monkeypatch.chdir(tmp_path)
    check_resumes(capsys, run, "--data", "elsewhere.txt")
    check_resumes(capsys, run, "--steps", "9")  # the new place is stored
    assert f'data = "{moved}"' in (run / runs.SETTINGS).read_text()


def test_other_text_is_refused(run, text, tmp_path, resume_error):
    other = tmp_path / "other.txt"
    other.write_text(text.read_text(encoding="utf-8")[::-1], encoding="utf-8")
    before = (run / runs.LAST).read_bytes()
    error = resume_error(run, "--data", other)
    assert error.startswith(f"error: --data {other}: the run in {run} has another text ({text})")
    assert (run / runs.LAST).read_bytes() == before


# ---- Damaged token files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["train", "val", "tokenizer"])
def test_damaged_cached_file_is_written_again(text, run, capsys, part):
    data = corpora.prepare(str(text), "byte")
    path = data.train.with_name("tokenizer.json") if part == "tokenizer" else getattr(data, part)
    whole = path.read_bytes()
    if part == "tokenizer":
        damaged = whole.replace(b'"YQ==", "Yg=="', b'"Yg==", "YQ=="')  # a and b exchanged
    else:
        damaged = bytearray(whole)
        damaged[-4] ^= 1  # the last token but one
    assert damaged != whole
    path.write_bytes(damaged)
    check_resumes(capsys, run)
    assert path.read_bytes() == whole


def test_token_files_of_a_changed_text_are_written_again(text, tmp_path):
    corpora.prepare(str(text), "byte", tmp_path / "tokens")
    edit(text, "king", "duke", 0.1)
    data = corpora.prepare(str(text), "byte", tmp_path / "tokens")
    assert "duke" in data.tokenizer.decode(read_tokens(data.train))


# ---- Weights that are not finite -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["params.fcw", "muon.m.fcw"])
def test_weights_that_are_not_finite_are_refused_with_the_first_index(run, resume_error, name):
    path = run / runs.LAST
    arrays, state = checkpoint.load(path)
    arrays[name][0, 3, 2:4] = np.nan
    checkpoint.save(path, arrays, state)
    tensor = name.removeprefix("params.")
    assert f"{path}: {tensor}[0, 3, 2] is nan, expected finite numbers" in resume_error(run)


@pytest.mark.parametrize(
    "change",
    [
        {"loader": []},
        {"loader": {"seed": 1, "position": -1}},
        {"loader": {"seed": 1, "position": 1, "sequences": -1}},
        {"loader": {"position": "x"}},
        {"best": "low"},
        {"validated": []},
        {"spikes": 3},
    ],
)
def test_checkpoint_with_another_state_is_refused(run, resume_error, change):
    arrays, state = checkpoint.load(run / runs.LAST)
    checkpoint.save(run / runs.LAST, arrays, {**state, **change})
    assert "holds no training state, expected a checkpoint of train.py" in resume_error(run)


def test_empty_tensor_in_a_checkpoint_is_refused(run, resume_error):
    arrays, state = checkpoint.load(run / runs.LAST)
    checkpoint.save(run / runs.LAST, {**arrays, "params.more": np.empty(0, np.float32)}, state)
    assert "params.more is not a tensor of this model" in resume_error(run)


def test_weights_whose_loss_is_not_finite_are_not_saved(run, capsys, resume_error):
    """After a step of 1e30 all weights are finite, but the loss is not."""
    before = (run / runs.LAST).read_bytes()
    error = resume_error(run, "--lr", "1e30", "--save-every", "1", "--eval-every", "0")
    assert "step 7 has spoilt the weights, and they are not saved: the loss is" in error
    assert "the last checkpoint is intact; try a lower --lr than 1e+30" in error
    assert (run / runs.LAST).read_bytes() == before
    check_resumes(capsys, run, "--lr", "1e-3")
    assert checkpoint.load_state(run / runs.LAST)["step"] == 8


def test_infinite_numbers_that_leave_the_loss_finite_are_not_saved(text, tmp_path):
    """A moment, or a position beyond the sequences that are trained on."""
    sizes = dict(n_layer=1, n_head=2, n_embd=8, block_size=8, context=16, batch_size=2)
    settings = Settings(data=str(text), out=str(tmp_path / "run"), tokenizer="byte", compile="off", **sizes)
    with opened(settings) as run:
        run.train_step()
        run.save()
        before = (tmp_path / "run" / runs.LAST).read_bytes()
        for name, array, at in (
            ("adamw.v.wte[0, 0]", run.optimizer.v, 0),
            ("wpe[15, 7]", run.model.params["wpe"], (15, 7)),
        ):
            number, array[at] = array[at], np.inf
            with pytest.raises(UserError, match=f"step 1 has spoilt .*: {re.escape(name)} is inf"):
                run.save()
            array[at] = number
        assert (tmp_path / "run" / runs.LAST).read_bytes() == before
        run.save()


# ---- --resume without a folder -----------------------------------------------------------------------------


@pytest.fixture
def two_runs(text, tmp_path, monkeypatch):
    """The folders runs/a and runs/b: b was started later, a saved later. The dates of the files are wrong."""
    monkeypatch.chdir(tmp_path)
    a, b = Path("runs/a"), Path("runs/b")
    for folder in (a, b):
        assert program.main(flags(text, folder)) == 0
    assert program.main(["--resume", str(a), "--steps", "7"]) == 0
    os.utime(a / runs.LAST, (0, 0))
    return a, b


def test_resume_continues_the_run_saved_last_whatever_the_dates(two_runs, capsys):
    a, b = two_runs
    check_resumes(capsys, "")
    assert [checkpoint.load_state(folder / runs.LAST)["step"] for folder in (a, b)] == [8, 6]
    assert program.main(["--resume", str(b), "--steps", "7"]) == 0
    assert runs.newest_first() == [b, a]


@pytest.mark.parametrize("case", ["copied", "of an earlier version", "damaged"])
def test_resume_asks_for_a_folder_if_checkpoints_do_not_tell_the_last(two_runs, capsys, resume_error, case):
    a, b = two_runs
    if case == "copied":
        shutil.copytree(a, a.with_name("c"))
    elif case == "damaged":
        (b / runs.LAST).write_bytes(b"damaged")
    else:
        for folder in (a, b):
            arrays, state = checkpoint.load(folder / runs.LAST)
            checkpoint.save(folder / runs.LAST, arrays, {k: v for k, v in state.items() if k != "turn"})
    other = "runs/c" if case == "copied" else "runs/b"
    expected = f"the checkpoints of runs/a and {other} do not say which was saved last; name the run"
    assert expected in resume_error("")
    check_resumes(capsys, a)
