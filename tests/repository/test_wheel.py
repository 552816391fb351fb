"""The source distribution is complete; the wheel built from it installs gpt2 alone, which works by itself."""

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import gpt2
from gpt2 import __main__ as commands
from tests import ROOT

pytestmark = pytest.mark.slow
INFO = f"numpy_gpt2-{gpt2.__version__}.dist-info"
SMALL = (
    "--tokenizer byte --n-layer 1 --n-head 2 --n-embd 16 --block-size 16 --batch-size 4 --warmup 0".split()
)
SHORT = "--eval-batches 1 --sample-tokens 4 --compile off --steps 3".split()


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The source distribution, built in a copy of the repository, as a build leaves folders behind."""
    folder = tmp_path_factory.mktemp("sdist")
    source = folder / "source"
    ignored = shutil.ignore_patterns("__pycache__", "results", "*.bin", "*.safetensors")
    for name in ("gpt2", "data", "bench", "tests", "docs"):
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file() and path.suffix in (".toml", ".md", ".in", ".cff", ".py", ""):
            shutil.copy(path, source / path.name)
    program = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True, cwd=source, capture_output=True)
    (archive,) = folder.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """The wheel, built from the source distribution."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, *"-m pip wheel --no-build-isolation --no-deps --no-index -q".split()]
    subprocess.run([*build, str(sdist), "-w", str(folder)], check=True, cwd=folder)
    (archive,) = folder.glob("*.whl")
    return archive


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The scripts of a virtual environment with the wheel, which finds the packages it needs in this one.

    A .pth file names their folder. It does not lead to gpt2 where that is installed for development: then a
    .pth file of that folder names gpt2, and those are not read here.
    """
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, with_pip=False, symlinks=os.name == "posix")
    install = [sys.executable, "-m", "pip", "--python", str(folder), "install", "-q", "--no-deps"]
    subprocess.run([*install, "--no-index", str(wheel)], check=True)
    paths = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})
    packages = {sysconfig.get_paths()[name] for name in ("purelib", "platlib")}
    (Path(paths["purelib"]) / "packages.pth").write_text("\n".join(sorted(packages)) + "\n")
    return Path(paths["scripts"])


@pytest.fixture
def run(installed, tmp_path, monkeypatch):
    """Runs a program of that environment in a folder with a text and packages named like this project's."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for name in ("data", "train", "bench", "tests"):
        (tmp_path / name).mkdir()
        module = "raise SystemExit('a package of the user was imported')\n"
        (tmp_path / name / "__init__.py").write_text(module)
    (tmp_path / "my.txt").write_text("the king and queen of a far country went to see\n" * 60)

    def run(*command):
        program = shutil.which(command[0], path=str(installed))
        done = subprocess.run([program, *command[1:]], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    return run


def test_wheel_holds_gpt2_alone(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = email.message_from_bytes(archive.read(f"{INFO}/METADATA"))
        entries = archive.read(f"{INFO}/entry_points.txt").decode()
    assert {name.split("/")[0] for name in names} == {"gpt2", INFO}
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "gpt2").rglob("*.py*")}
    modules = {name for name in sources if name.endswith((".py", ".pyi"))}
    assert modules | {"gpt2/py.typed", f"{INFO}/licenses/LICENSE"} <= set(names)
    assert "gpt2 = gpt2.__main__:main" in entries
    assert metadata["Name"] == "numpy-gpt2" and metadata["License-Expression"] == "MIT"
    assert metadata["Description-Content-Type"] == "text/markdown"
    classifiers = " ".join(metadata.get_all("Classifier"))
    assert "Typing :: Typed" in classifiers and "3.14" in classifiers and metadata.get_all("Project-URL")


def test_source_distribution_is_complete(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    expected = {"train.py", "data/__main__.py", "bench/step.py", "docs/house.py", "tests/conftest.py"}
    expected |= {"CHANGELOG.md", "CITATION.cff", "LICENSE", "docs/autodiff.md", "tests/golden/gelu.py.txt"}
    assert expected <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith((".bin", ".safetensors"))]


def test_citation_and_changelog_have_this_version():
    assert f"\nversion: {gpt2.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {gpt2.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_command_has_help(run):
    assert run("gpt2", "--version").startswith(f"gpt2 {gpt2.__version__} (")
    for name in commands.commands():
        assert re.match(rf"usage: \S*gpt2 {name}\s", run("gpt2", name, "--help"))


def test_commands_without_a_run(run):
    assert "def gelu_backward(" in run("gpt2", "explain", "gelu")
    assert run("gpt2", "explain", "gelu", "--out", "gelu.html") == "wrote gelu.html\n"
    assert "all hold" in run("gpt2", "check", "gelu")
    assert "whole" in run("gpt2", "bench", "--size", "tiny", "--block-size", "8", "--seconds", "0.01")
    assert "tokenizer byte" in run("gpt2", "data", "my.txt", "--tokenizer", "byte", "--out", "tokens")
    assert "_gpt2()" in run("gpt2", "completion", "bash")


def test_training_and_the_commands_that_read_a_run(run, tmp_path):
    pytest.importorskip("matplotlib")
    assert "gpt2" in run("python", "-c", "import gpt2; print(gpt2.__file__)")
    text = run("gpt2", "train", "--data", "my.txt", "--out", "run", *SMALL, *SHORT)
    assert "done: 3 steps" in text and "gpt2 train --resume run --steps 6" in text
    run("gpt2", "train", "--resume", "run", "--steps", "5")
    assert run("gpt2", "sample", "--run", "run", "--prompt", "the ", "--max-tokens", "5").startswith("the ")
    assert "perplexity" in run("gpt2", "evaluate", "--run", "run", "--data", "my.txt")
    assert "wrote" in run("gpt2", "convert", "run", "mine.bin")
    run("gpt2", "plot", "run", "--out", "curves.svg")
    assert (tmp_path / "curves.svg").exists()


def test_run_from_python(run):
    program = (
        "from gpt2.train import Settings, steps\n"
        "s = Settings(data='my.txt', tokenizer='byte', n_layer=1, n_head=2, n_embd=16, block_size=16,"
        " steps=3, warmup=0, batch_size=4, compile='off')\n"
        "print([step.number for step in steps(s)])"
    )
    assert run("python", "-c", program) == "[1, 2, 3]\n"


def test_train_py_ignores_packages_of_the_user(run, tmp_path):
    """Such as a package `data` beside it."""
    shutil.copy(ROOT / "train.py", tmp_path / "train.py")
    shutil.rmtree(tmp_path / "train")
    assert "done: 3 steps" in run("python", "train.py", "--data", "my.txt", "--out", "run", *SMALL, *SHORT)
