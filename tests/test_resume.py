"""What a resumed run is trained on: the whole text that it began with, wherever that lies."""

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
    """A text file, and a cache folder of the test's own."""
    monkeypatch.setenv("GPT2_CACHE_DIR", str(tmp_path / "cache"))
    return prose[0]


@pytest.fixture
def run(text, tmp_path):
    """A run that has done its steps."""
    folder = tmp_path / "a run"
    assert program.main(flags(text, folder)) == 0
    return folder


def edit(path, old, new, at):
    """Replace `old` by `new` in a file, where it stands first after a share `at` of it."""
    content = path.read_text(encoding="utf-8")
    place = content.index(old, int(at * len(content)))
    path.write_text(content[:place] + new + content[place + len(old) :], encoding="utf-8", newline="\n")


def resumed(capsys, folder, *more):
    """(status, standard error) of going on for two steps."""
    capsys.readouterr()
    status = program.main(["--resume", str(folder), "--steps", "8", *map(str, more)])
    return status, capsys.readouterr().err


# ---- The text ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0.0, 0.5, 0.95])
def test_a_letter_that_changed_anywhere_is_noticed(run, text, capsys, at):
    edit(text, "e", "a", at)
    status, error = resumed(capsys, run)
    assert status == 2 and "text or tokens have changed" in error and error.count("\n") == 1


def test_a_letter_that_changed_everywhere_is_noticed(text, tmp_path, capsys):
    """Numbered by characters, the tokens stay the same: another letter has the number now."""
    folder = tmp_path / "chars"
    assert program.main(flags(text, folder, "--tokenizer", "char")) == 0
    content = text.read_text(encoding="utf-8")
    text.write_text(content.replace("ï", "ð"), encoding="utf-8", newline="\n")
    status, error = resumed(capsys, folder)
    assert status == 2 and "text or tokens have changed" in error


def test_a_character_more_is_no_fault_of_the_checkpoint(text, tmp_path, capsys):
    folder = tmp_path / "chars"
    assert program.main(flags(text, folder, "--tokenizer", "char")) == 0
    edit(text, "e", "Q", 0.5)
    status, error = resumed(capsys, folder)
    assert status == 2 and "text or tokens have changed" in error and "expected float32" not in error


def test_token_files_are_fingerprinted_as_well(tmp_path, capsys, gpt2_tokenizer):
    tokens = np.random.default_rng(0).integers(0, 50000, 2000)
    train, val = tmp_path / "my_train.bin", tmp_path / "my_val.bin"
    write_tokens(train, tokens), write_tokens(val, tokens[:200])
    assert program.main(flags(train, tmp_path / "a", "--tokenizer", "gpt2")) == 0
    write_tokens(val, [*tokens[:199], 7])
    status, error = resumed(capsys, tmp_path / "a")
    assert status == 2 and "text or tokens have changed" in error


# ---- A text that was moved ---------------------------------------------------------------------------------


def test_a_text_that_was_moved_is_named_by_data(run, text, tmp_path, capsys, monkeypatch):
    moved = tmp_path / "elsewhere.txt"
    text.rename(moved)
    status, error = resumed(capsys, run)
    assert status == 2 and error.count("\n") == 1
    assert f"{text}: No such file or directory; if it was moved, name where it is now with --data" in error
    monkeypatch.chdir(tmp_path)
    assert resumed(capsys, run, "--data", "elsewhere.txt") == (0, "")
    assert resumed(capsys, run, "--steps", "9") == (0, "")  # the new place is kept
    assert f'data = "{moved}"' in (run / runs.SETTINGS).read_text()


def test_another_text_is_refused_by_name(run, text, tmp_path, capsys):
    other = tmp_path / "other.txt"
    other.write_text(text.read_text(encoding="utf-8")[::-1], encoding="utf-8")
    before = (run / runs.LAST).read_bytes()
    status, error = resumed(capsys, run, "--data", other)
    assert status == 2 and error.count("\n") == 1
    assert error.startswith(f"error: --data {other}: the run in {run} has another text ({text})")
    assert (run / runs.LAST).read_bytes() == before


# ---- Damaged token files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["train", "val", "tokenizer"])
def test_damage_to_a_cached_file_is_mended_and_nobody_blamed(text, run, capsys, part):
    made = corpora.prepare(str(text), "byte")
    path = made.train.with_name("tokenizer.json") if part == "tokenizer" else getattr(made, part)
    whole = path.read_bytes()
    if part == "tokenizer":
        damaged = whole.replace(b'"YQ==", "Yg=="', b'"Yg==", "YQ=="')  # a and b exchanged
    else:
        damaged = bytearray(whole)
        damaged[-4] ^= 1  # the last token but one
    assert damaged != whole
    path.write_bytes(damaged)
    assert resumed(capsys, run) == (0, "")
    assert path.read_bytes() == whole


def test_token_files_are_those_of_the_text_also_in_a_folder_of_the_users(text, tmp_path):
    corpora.prepare(str(text), "byte", tmp_path / "tokens")
    edit(text, "king", "duke", 0.1)
    again = corpora.prepare(str(text), "byte", tmp_path / "tokens")
    assert "duke" in again.tokenizer.decode(read_tokens(again.train))


# ---- Weights that are not finite -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["params.fcw", "adamw.v.fcw"])
def test_weights_that_are_not_finite_are_refused_with_the_place_of_the_first(run, capsys, name):
    path = run / runs.LAST
    arrays, state = checkpoint.load(path)
    arrays[name][0, 3, 2:4] = np.nan
    checkpoint.save(path, arrays, state)
    status, error = resumed(capsys, run)
    text = name.removeprefix("params.")
    assert status == 2 and f"{path}: {text}[0, 3, 2] is nan, expected finite numbers" in error, error


def test_spoilt_weights_are_not_saved_over_good_ones(run, capsys):
    """After a step of 1e30 all weights are finite, and no loss is any more; nor after a signal."""
    before = (run / runs.LAST).read_bytes()
    status, error = resumed(capsys, run, "--lr", "1e30", "--save-every", "1", "--eval-every", "0")
    assert status == 2 and error.count("\n") == 1
    assert "step 7 has spoilt the weights, and they are not saved: the loss is" in error
    assert "the last checkpoint is intact; try a lower --lr than 1e+30" in error
    assert (run / runs.LAST).read_bytes() == before
    assert resumed(capsys, run, "--lr", "1e-3")[0] == 0
    assert checkpoint.load_state(run / runs.LAST)["step"] == 8


def test_numbers_that_no_loss_shows_are_not_saved(text, tmp_path):
    """A moment, or a position behind the sequences that are trained on."""
    settings = Settings(
        data=str(text),
        tokenizer="byte",
        n_layer=1,
        n_head=2,
        n_embd=8,
        block_size=8,
        context=16,
        batch_size=2,
        compile="off",
        out=str(tmp_path / "run"),
    )
    with opened(settings) as made:
        made.train_step()
        made.save()
        before = (tmp_path / "run" / runs.LAST).read_bytes()
        for name, array in (
            ("adamw.v.wte[0, 0]", made.optimizer.v),
            ("wpe[15, 7]", made.model.params["wpe"]),
        ):
            at, kept = (0 if array.ndim == 1 else (-1, -1)), array.copy()
            array[at] = np.inf
            with pytest.raises(UserError, match=f"step 1 has spoilt .*: {re.escape(name)} is inf"):
                made.save()
            array[...] = kept
        assert (tmp_path / "run" / runs.LAST).read_bytes() == before
        made.save()


# ---- Which run goes on -------------------------------------------------------------------------------------


@pytest.fixture
def two_runs(text, tmp_path, monkeypatch):
    """The folders runs/a and runs/b: b was begun later, a saved later. The files' dates say otherwise."""
    monkeypatch.chdir(tmp_path)
    a, b = Path("runs/a"), Path("runs/b")
    for folder in (a, b):
        assert program.main(flags(text, folder)) == 0
    assert program.main(["--resume", str(a), "--steps", "7"]) == 0
    os.utime(a / runs.LAST, (0, 0))
    return a, b


def test_the_run_saved_last_goes_on_whatever_a_clock_said(two_runs, capsys):
    a, b = two_runs
    assert resumed(capsys, "")[0] == 0
    assert [checkpoint.load_state(folder / runs.LAST)["step"] for folder in (a, b)] == [8, 6]
    assert program.main(["--resume", str(b), "--steps", "7"]) == 0
    assert runs.newest_first() == [b, a]


@pytest.mark.parametrize("how", ["copied", "of an earlier version", "damaged"])
def test_where_checkpoints_do_not_say_which_was_saved_last_the_run_is_asked_for(two_runs, capsys, how):
    a, b = two_runs
    if how == "copied":
        shutil.copytree(a, a.with_name("c"))
    elif how == "damaged":
        (b / runs.LAST).write_bytes(b"damaged")
    else:
        for folder in (a, b):
            arrays, state = checkpoint.load(folder / runs.LAST)
            checkpoint.save(folder / runs.LAST, arrays, {k: v for k, v in state.items() if k != "turn"})
    status, error = resumed(capsys, "")
    assert status == 2 and error.count("\n") == 1
    other = "runs/c" if how == "copied" else "runs/b"
    assert f"the checkpoints of runs/a and {other} do not say which was saved last; name the run" in error
    assert resumed(capsys, a)[0] == 0
