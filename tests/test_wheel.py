"""What is published: a source distribution with everything, and a wheel made of it that installs gpt2 alone.
Commands and library work away from the repository."""

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

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
INFO = f"numpy_gpt2-{gpt2.__version__}.dist-info"
SMALL = (
    "--tokenizer byte --n-layer 1 --n-head 2 --n-embd 16 --block-size 16 --batch-size 4 --warmup 0".split()
)
SHORT = "--eval-batches 1 --sample-tokens 4 --compile off --steps 3".split()


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The source distribution, built from a copy of what it is made of: a build leaves folders behind."""
    place = tmp_path_factory.mktemp("sdist")
    source = place / "source"
    unwanted = shutil.ignore_patterns("__pycache__", "results", "*.bin", "*.safetensors")
    for name in ("gpt2", "data", "bench", "tests", "docs"):
        shutil.copytree(ROOT / name, source / name, ignore=unwanted)
    for path in ROOT.iterdir():
        if path.is_file() and path.suffix in (".toml", ".md", ".in", ".cff", ".py", ""):
            shutil.copy(path, source / path.name)
    program = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", program, str(place)], check=True, cwd=source, capture_output=True)
    (made,) = place.glob("*.tar.gz")
    return made


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """The wheel, built from the source distribution."""
    place = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-q"]
    subprocess.run([*command, str(sdist), "-w", str(place)], check=True, cwd=place)
    (made,) = place.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The programs of a virtual environment that has the wheel, and finds the packages it needs in this one.

    A .pth file names their folder: gpt2 itself, where it is installed for development, is found by a .pth
    file of that folder, and those are not read here.
    """
    place = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(place, with_pip=False, symlinks=os.name == "posix")
    paths = sysconfig.get_paths(vars={"base": str(place), "platbase": str(place)})
    site = Path(paths["purelib"])
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(place),
        "install",
        "--no-deps",
        "--no-index",
        "-q",
    ]
    subprocess.run([*command, str(wheel)], check=True)
    packages = {sysconfig.get_paths()[name] for name in ("purelib", "platlib")}
    (site / "packages.pth").write_text("\n".join(sorted(packages)) + "\n")
    return Path(paths["scripts"])


@pytest.fixture
def ran(installed, tmp_path, monkeypatch):
    """Runs a program of that environment, where a text lies beside packages named like this project's."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for name in ("data", "train", "bench", "tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(
            "raise SystemExit('a package of the user was imported')\n"
        )
    (tmp_path / "my.txt").write_text("the king and queen of a far country went to see\n" * 60)

    def run(*command):
        program = shutil.which(command[0], path=str(installed))
        done = subprocess.run([program, *command[1:]], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    return run


def test_nothing_is_installed_but_gpt2(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        about = email.message_from_bytes(archive.read(f"{INFO}/METADATA"))
        entries = archive.read(f"{INFO}/entry_points.txt").decode()
    assert {name.split("/")[0] for name in names} == {"gpt2", INFO}
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "gpt2").rglob("*.py*")}
    wanted = {name for name in sources if name.endswith((".py", ".pyi"))} | {"gpt2/py.typed"}
    assert wanted <= set(names)
    assert f"{INFO}/licenses/LICENSE" in names and "gpt2 = gpt2.__main__:main" in entries
    assert about["Name"] == "numpy-gpt2" and about["License-Expression"] == "MIT"
    assert about["Description-Content-Type"] == "text/markdown"
    text = " ".join(about.get_all("Classifier"))
    assert "Typing :: Typed" in text and "3.14" in text and about.get_all("Project-URL")


def test_the_source_distribution_holds_its_tests(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    wanted = {"train.py", "data/__main__.py", "bench/step.py", "docs/house.py", "tests/conftest.py"}
    wanted |= {"CHANGELOG.md", "CITATION.cff", "LICENSE", "docs/autodiff.md", "tests/golden/gelu.py.txt"}
    assert wanted <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith((".bin", ".safetensors"))]


def test_what_is_to_be_cited_has_this_version():
    assert f"\nversion: {gpt2.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {gpt2.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_command_explains_itself(ran):
    assert ran("gpt2", "--version").startswith(f"gpt2 {gpt2.__version__} (")
    for name in commands.commands():
        assert re.match(rf"usage: \S*gpt2 {name}\s", ran("gpt2", name, "--help"))


def test_the_commands_that_need_no_run(ran):
    assert "def gelu_backward(" in ran("gpt2", "explain", "gelu")
    assert ran("gpt2", "explain", "gelu", "--out", "gelu.html") == "wrote gelu.html\n"
    assert "all hold" in ran("gpt2", "check", "gelu")
    assert "whole" in ran("gpt2", "bench", "--size", "tiny", "--block-size", "8", "--seconds", "0.01")
    assert "tokenizer byte" in ran("gpt2", "data", "my.txt", "--tokenizer", "byte", "--out", "tokens")
    assert "_gpt2()" in ran("gpt2", "completion", "bash")


def test_it_trains_samples_evaluates_and_plots(ran, tmp_path):
    pytest.importorskip("matplotlib")
    assert "gpt2" in ran("python", "-c", "import gpt2; print(gpt2.__file__)")
    text = ran("gpt2", "train", "--data", "my.txt", "--out", "run", *SMALL, *SHORT)
    assert "done: 3 steps" in text and "gpt2 train --resume run --steps 6" in text
    ran("gpt2", "train", "--resume", "run", "--steps", "5")
    assert ran("gpt2", "sample", "--run", "run", "--prompt", "the ", "--max-tokens", "5").startswith("the ")
    assert "perplexity" in ran("gpt2", "evaluate", "--run", "run", "--data", "my.txt")
    assert "wrote" in ran("gpt2", "convert", "run", "mine.bin")
    ran("gpt2", "plot", "run", "--out", "curves.svg")
    assert (tmp_path / "curves.svg").exists()


def test_a_run_from_python(ran):
    program = (
        "from gpt2.train import Settings, steps\n"
        "s = Settings(data='my.txt', tokenizer='byte', n_layer=1, n_head=2, n_embd=16, block_size=16,"
        " steps=3, warmup=0, batch_size=4, compile='off')\n"
        "print([step.number for step in steps(s)])"
    )
    assert ran("python", "-c", program) == "[1, 2, 3]\n"


def test_a_checkout_minds_no_packages_of_the_user(ran, tmp_path):
    """train.py beside a package `data` of somebody else's: it does not look at it."""
    shutil.copy(ROOT / "train.py", tmp_path / "train.py")
    shutil.rmtree(tmp_path / "train")
    assert "done: 3 steps" in ran("python", "train.py", "--data", "my.txt", "--out", "run", *SMALL, *SHORT)
