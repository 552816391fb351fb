"""Unusual circumstances: each is one line or goes well, and never a traceback or a wall of warnings."""

import os
import sys

import pytest

from gpt2.errors import UserError
from gpt2.storage import download, runs
from gpt2.train import program
from tests.support import small_run

pytestmark = pytest.mark.usefixtures("quick_peak")
posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX processes")


def one_line(done, *words):
    """A program that ended with status 2 and one line on standard error, with these words in it."""
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stderr.startswith("error: "), done
    for word in words:
        assert word in done.stderr, done.stderr


# ---- Numbers -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--compile", "on"], ["--parallel", "processes", "--workers", "2"]])
def test_a_learning_rate_beyond_reason(prose, tmp_path, more):
    flags = small_run.flags(prose[0], tmp_path / "a", "--lr", "1e9", "--warmup", "0", *more)
    done = small_run.run(small_run.command(*flags))
    # compiled, the loss may still be a number in the step whose gradient is none
    first = "the gradient's norm is nan" if "norm" in done.stderr and "--compile" in more else ""
    one_line(done, first or "is nan; first output that is not finite: block 0", "try a lower --lr than 1e+09")


@pytest.mark.slow
def test_who_asks_for_warnings_gets_them(prose, tmp_path):
    flags = small_run.flags(prose[0], tmp_path / "a", "--lr", "1e9", "--warmup", "0")
    words = small_run.command(*flags)
    assert "RuntimeWarning: overflow" in small_run.run([words[0], "-W", "default", *words[1:]]).stderr


# ---- Users -------------------------------------------------------------------------------------------------

HOMELESS = """
import os, pwd, sys
def no_user(*_):
    raise KeyError("getpwuid(): uid not found: 54321")
pwd.getpwuid = no_user
from gpt2.train import program
sys.exit(program.main(sys.argv[1:]))
"""


@pytest.mark.slow
@posix
def test_a_user_without_a_home(prose, tmp_path):
    without = {
        name: value
        for name, value in small_run.environment().items()
        if name not in ("HOME", "GPT2_CACHE_DIR", "XDG_CACHE_HOME")
    }
    flags = small_run.flags(prose[0], tmp_path / "a", "--compile", "on")
    one_line(
        small_run.python(HOMELESS, *flags, env=without), "no home folder", "set GPT2_CACHE_DIR to a folder"
    )
    done = small_run.python(HOMELESS, *flags, env={**without, "GPT2_CACHE_DIR": str(tmp_path / "cache")})
    assert done.returncode == 0 and done.stderr == ""


@posix
def test_data_are_found_without_a_home(tmp_path, monkeypatch):
    for name in ("HOME", "GPT2_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    monkeypatch.setenv("GPT2_DATA_DIR", str(tmp_path))
    assert download.data_folders() == [tmp_path]
    with pytest.raises(UserError, match="GPT2_CACHE_DIR"):
        download.cache_folder()


@pytest.mark.slow
@posix
def test_a_home_that_cannot_be_written(prose, tmp_path):
    (tmp_path / "home").write_text("a file, and no folder")
    environment = small_run.environment(HOME=str(tmp_path / "home"))
    del environment["GPT2_CACHE_DIR"]
    flags = small_run.flags(prose[0], tmp_path / "a", "--compile", "on")
    one_line(small_run.run(small_run.command(*flags), env=environment), "set GPT2_CACHE_DIR to a folder")


# ---- Names of files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--out", "--data", "--resume", "--config", "--init"])
@pytest.mark.parametrize(
    "name", ["x" * 300, "/".join(["folder"] * 1000), "nul\0byte"], ids=["long", "deep", "nul"]
)
def test_names_that_no_file_can_have(prose, tmp_path, monkeypatch, capsys, flag, name):
    monkeypatch.chdir(tmp_path)
    if flag == "--resume":
        arguments = [flag, name]
    else:
        arguments = [*small_run.flags(prose[0], tmp_path / "a"), flag, name]
    assert program.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("error: ")


@pytest.mark.parametrize("flag", ["--out", "--data", "--init"])
def test_names_that_are_no_text(prose, tmp_path, monkeypatch, capsys, flag):
    """They could not stand in settings.toml."""
    monkeypatch.chdir(tmp_path)
    arguments = [*small_run.flags(prose[0], tmp_path / "a"), flag, "a\udcff"]
    assert program.main(arguments) == 2
    assert capsys.readouterr().err == f"error: {flag} a\\udcff: not UTF-8 text (character 1)\n"
    assert not list(tmp_path.glob("a*"))


# ---- python -OO --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_python_without_docstrings_and_assertions(prose, tmp_path):
    words = small_run.command(*small_run.flags(prose[0], tmp_path / "a", "--compile", "on"))
    for arguments in (
        words[1:],
        ["-m", "gpt2"],
        ["-m", "gpt2", "explain", "gelu"],
        ["-m", "gpt2", "explain", "gelu"],
        ["-m", "gpt2", "plot", "--help"],
        ["-m", "gpt2", "sample", "--run", tmp_path / "a", "--max-tokens", 3],
        ["-m", "gpt2", "evaluate", "--run", tmp_path / "a", "--data", prose[0]],
    ):
        done = small_run.run([sys.executable, "-OO", *map(str, arguments)], errors="replace")
        text = [line for line in done.stderr.splitlines() if not line.startswith("reading ")]
        assert done.returncode == 0 and not text, (arguments, done.stderr)
    assert (tmp_path / "a" / runs.LAST).exists()
