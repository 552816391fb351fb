"""python -m gpt2: the list of commands is complete and true."""

import subprocess
import sys
from pathlib import Path

import pytest

import gpt2.__main__ as commands

ROOT = Path(__file__).parents[1]


def test_the_list_says_what_each_does(capsys):
    assert commands.main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert commands.main([]) == 0
    assert capsys.readouterr().out == listed
    for name in ("convert", "evaluate", "plot", "sample"):
        assert f"python -m gpt2.{name} " in listed
    assert "python -m gpt2.train " in listed and "python -m gpt2.data " in listed
    assert "`python train.py`" in listed and "`python -m data`" in listed
    assert "gpt2.backward" not in listed  # as gpt2.certificate was called before
    assert "pretrained" not in listed  # a module that is no command
    assert all(what for what in commands.commands().values())


@pytest.mark.parametrize("name", ["certificate", "convert", "data", "evaluate", "plot", "sample", "train"])
def test_each_explains_itself(name):
    """Under either spelling, and without importing anything that may be missing."""
    told = [
        subprocess.run([sys.executable, "-m", *words, "--help"], cwd=ROOT, capture_output=True, text=True)
        for words in ((f"gpt2.{name}",), ("gpt2", name))
    ]
    assert [run.returncode for run in told] == [0, 0], told[0].stderr + told[1].stderr
    assert told[0].stdout == told[1].stdout and "usage" in told[0].stdout


def test_a_command_that_is_not_there(capsys):
    assert commands.main(["sampel"]) == 2
    assert capsys.readouterr().err == "error: no command 'sampel'; did you mean sample?\n"
    assert commands.main(["xyzzy"]) == 2
    assert "--help lists" in capsys.readouterr().err


def test_the_status_of_a_command_is_kept(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "gpt2", "plot", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 2 and "no run here" in run.stderr


def test_the_name_that_a_command_had_before():
    """python -m gpt2.backward and python -m gpt2 backward are python -m gpt2.certificate."""
    told = [
        subprocess.run([sys.executable, "-m", *words, "gelu"], cwd=ROOT, capture_output=True, text=True)
        for words in (("gpt2.certificate",), ("gpt2.backward",), ("gpt2", "backward"))
    ]
    assert [run.returncode for run in told] == [0, 0, 0] and "gelu_backward" in told[0].stdout
    assert told[0].stdout == told[1].stdout == told[2].stdout
