"""Unusual conditions end in one line or in a run: large rates, no home folder, impossible names, -OO."""

import sys

import pytest

from gpt2.errors import UserError
from gpt2.storage import download, runs
from gpt2.train import program
from tests.support import small_run
from tests.support.small_run import assert_one_error_line, posix

pytestmark = pytest.mark.usefixtures("quick_peak")


@pytest.fixture
def flags(prose, tmp_path):
    """flags(*more): the command line of a run into tmp_path / "a"."""
    return lambda *more: small_run.flags(prose[0], tmp_path / "a", *more)


# ---- Learning rates ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", "--compile on", "--parallel processes --workers 2"])
def test_learning_rate_of_1e9_is_named(flags, more):
    words = f"--lr 1e9 --warmup 0 --optimizer adamw {more}".split()
    done = small_run.run(small_run.command(*flags(*words)))
    # compiled, the loss may still be finite in the step whose gradient is not
    only_norm = "norm" in done.stderr and "--compile" in more
    reason = "the gradient's norm is nan" if only_norm else "is nan; first output that is not finite: block 0"
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stderr.startswith("error: "), done
    assert reason in done.stderr and "try a lower --lr than 1e+09" in done.stderr


@pytest.mark.slow
def test_warnings_of_numpy_are_shown_on_request(flags):
    words = small_run.command(*flags("--lr", "1e9", "--warmup", "0"))
    assert "RuntimeWarning: overflow" in small_run.run([words[0], "-W", "default", *words[1:]]).stderr


# ---- Home folders ------------------------------------------------------------------------------------------

NO_USER = """
import os, pwd, sys
def no_user(*_):
    raise KeyError("getpwuid(): uid not found: 54321")
pwd.getpwuid = no_user
from gpt2.train import program
sys.exit(program.main(sys.argv[1:]))
"""


HOMES = ("HOME", "GPT2_CACHE_DIR", "XDG_CACHE_HOME")
CACHE = "set GPT2_CACHE_DIR to a folder"


@pytest.mark.slow
@posix
def test_user_without_a_home_needs_a_cache_folder(flags, tmp_path):
    environment = small_run.environment()
    for name in HOMES:
        environment.pop(name, None)
    words = flags("--compile", "on")
    assert_one_error_line(small_run.python(NO_USER, *words, env=environment), "no home folder", CACHE)
    environment["GPT2_CACHE_DIR"] = str(tmp_path / "cache")
    done = small_run.python(NO_USER, *words, env=environment)
    assert done.returncode == 0 and done.stderr == ""


@posix
def test_data_folder_needs_no_home(tmp_path, monkeypatch):
    for name in HOMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    monkeypatch.setenv("GPT2_DATA_DIR", str(tmp_path))
    assert download.data_folders() == [tmp_path]
    with pytest.raises(UserError, match="GPT2_CACHE_DIR"):
        download.cache_folder()


@pytest.mark.slow
@posix
def test_home_that_cannot_be_written_needs_a_cache_folder(flags, tmp_path):
    (tmp_path / "home").write_text("not a folder")
    environment = small_run.environment(HOME=str(tmp_path / "home"))
    del environment["GPT2_CACHE_DIR"]
    done = small_run.run(small_run.command(*flags("--compile", "on")), env=environment)
    assert_one_error_line(done, CACHE)


@posix
def test_removed_working_folder_is_one_line(tmp_path):
    """As in a terminal that was left in it."""
    remove = "import os, sys\nos.rmdir(os.getcwd())\n"
    (tmp_path / "numpy").mkdir()
    if small_run.python(remove + "import numpy", cwd=tmp_path / "numpy").returncode:  # Python 3.13.0
        pytest.skip("NumPy cannot be imported in a folder that has been removed")
    removed = remove + "from gpt2.__main__ import main\nsys.exit(main(sys.argv[1:]))"
    for number, words in enumerate((["sample"], ["train", "--resume"], ["convert", "x", "y.bin"])):
        (tmp_path / str(number)).mkdir()
        done = small_run.python(removed, *words, cwd=tmp_path / str(number))
        reason = "x: no such file" if words[0] == "convert" else "the working folder has been removed"
        assert_one_error_line(done, reason)


# ---- Names of files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--out", "--data", "--resume", "--config", "--init"])
@pytest.mark.parametrize(
    "name", ["x" * 300, "/".join(["folder"] * 1000), "nul\0byte"], ids=["long", "deep", "nul"]
)
def test_impossible_file_name_is_one_line(flags, tmp_path, monkeypatch, refusal, flag, name):
    monkeypatch.chdir(tmp_path)
    refusal(program.main, *([] if flag == "--resume" else flags()), flag, name)


@pytest.mark.parametrize("flag", ["--out", "--data", "--init"])
def test_file_name_that_is_not_utf_8_is_refused(flags, tmp_path, monkeypatch, refusal, flag):
    """It could not be written to settings.toml."""
    monkeypatch.chdir(tmp_path)
    error = refusal(program.main, *flags(), flag, "a\udcff")
    assert error == f"error: {flag} a\\udcff: not UTF-8 text (character 1)\n"
    assert not list(tmp_path.glob("a*"))


# ---- python -OO --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_commands_without_docstrings_and_assertions(flags, prose, tmp_path):
    words = small_run.command(*flags("--compile", "on"))
    for arguments in (
        words[1:],
        ["-m", "gpt2"],
        ["-m", "gpt2", "explain", "gelu"],
        ["-m", "gpt2", "plot", "--help"],
        ["-m", "gpt2", "check", "--help"],
        ["-m", "gpt2", "bench", "--help"],
        ["-m", "gpt2", "sample", "--run", tmp_path / "a", "--max-tokens", 3],
        ["-m", "gpt2", "evaluate", "--run", tmp_path / "a", "--data", prose[0]],
    ):
        done = small_run.run([sys.executable, "-OO", *map(str, arguments)], errors="replace")
        errors = [line for line in done.stderr.splitlines() if not line.startswith("reading ")]
        assert done.returncode == 0 and not errors, (arguments, done.stderr)
    assert (tmp_path / "a" / runs.LAST).exists()
