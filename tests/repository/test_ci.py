"""CI starts like a new user, with README's lines word for word on bare machines, and runs every test."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import ROOT, conftest

STRANGER = ROOT / ".ci" / "stranger"
README = (ROOT / "README.md").read_text(encoding="utf-8")
posix = pytest.mark.skipif(os.name != "posix" or not STRANGER.exists(), reason="needs POSIX processes")


def steps(text):
    """The commands of a script or a workflow, in order, without list markers and comments."""
    lines = (re.sub(r"^\s*(- )?(run: )?", "", line) for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


@posix
@pytest.mark.parametrize("name", [".ci/run", ".github/workflows/tests.yml"])
def test_readme_lines_run_before_anything_is_installed(name):
    commands = steps((ROOT / name).read_text(encoding="utf-8"))
    first_install = next((i for i, line in enumerate(commands) if "pip install" in line), len(commands))
    tests = next(i for i, line in enumerate(commands) if line.startswith(".ci/stranger pytest"))
    assert commands.index(".ci/stranger train.py") < tests < first_install


@posix
def test_ci_runs_all_tests():
    """Slow ones included, and every file with tests has a name that pytest collects."""
    commands = steps((ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    (line,) = (line for line in commands if "-m pytest" in line)
    assert line.endswith(".venv/bin/python -m pytest -m ''")
    # what runs beside other steps is waited for, which is where it fails
    assert sum(line.endswith(" &") for line in commands) == sum(line.startswith("wait ") for line in commands)
    addopts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"]
    assert re.findall(r"-m '[^']*'|-k|--ignore|--deselect", addopts) == ["-m 'not slow'"]
    for path in set((ROOT / "tests").rglob("*.py")) - set((ROOT / "tests" / "support").rglob("*")):
        if re.search(r"^def test_", path.read_text(encoding="utf-8"), re.MULTILINE):
            assert path.name.startswith("test_"), path


@pytest.mark.parametrize("end", ["train.py", "pytest"])
def test_readme_has_one_line_for_each_start(end):
    assert len(re.findall(rf"^ *python3 -m venv .*{end}$", README, re.MULTILINE)) == 1


@posix
@pytest.mark.parametrize("flag", [None, "--with-corpus"])
def test_stranger_runs_a_line_in_a_fresh_clone_and_environment(tmp_path, flag):
    origin = tmp_path / "origin"
    (origin / ".ci").mkdir(parents=True)
    shutil.copy(STRANGER, origin / ".ci")
    line = 'python3 -m venv -h > /dev/null && pwd && ls && test -z "$(ls -A ~)" && env && echo train.py'
    (origin / "README.md").write_text(f"text\n\n    {line}\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=b", "-C", str(origin)]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    (origin / "not-committed").touch()
    dropped = {"GPT2_OFFLINE": "1", "OPENBLAS_CORETYPE": "Haswell", "PYTHONPATH": "/nowhere"}
    corpus = {"GPT2_DATA_DIR": "/data", "TIKTOKEN_CACHE_DIR": "/vocabulary"}
    command = [str(origin / ".ci" / "stranger"), *([flag] if flag else []), "train.py"]
    environment = {**os.environ, **dropped, **corpus}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    home = next(line.removeprefix("HOME=") for line in lines if line.startswith("HOME="))
    assert (lines[0], lines[-1]) == (f"+ {line}", "train.py")
    assert lines[1] == str(Path(home).parent / "clone") and "not-committed" not in lines
    names = {line.partition("=")[0] for line in lines}
    assert not names & set(dropped)
    assert names & set(corpus) == (set(corpus) if flag else set())
    assert not Path(home).exists()


@pytest.mark.parametrize(
    "source, options, in_worker, workers",
    [
        ("TESTPATHS", {}, False, 3),
        ("TESTPATHS", {}, True, None),
        ("ARGS", {}, False, None),
        ("TESTPATHS", {"usepdb": True}, False, None),
        ("TESTPATHS", {"numprocesses": 0}, False, 0),
    ],
)
def test_only_whole_runs_start_workers(source, options, in_worker, workers, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 5}, raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    if in_worker:
        monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    defaults = {"numprocesses": None, "usepdb": False, "collectonly": False, "dist": "no"}
    option = SimpleNamespace(**defaults | options)
    conftest.pytest_cmdline_main(SimpleNamespace(option=option, args_source=pytest.Config.ArgsSource[source]))
    assert option.numprocesses == workers and (option.dist == "worksteal") == bool(workers)
