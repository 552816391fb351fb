"""Every command and program in README.md and docs/*.md is run, or stands in a table here with a reason.

One that is new on a page is run as it is; if it cannot be, this test fails until it has a row. After a change
of what the examples print: GPT2_GOLDEN=write pytest tests/test_docs.py, and read the difference.
"""

import argparse
import importlib.util
import inspect
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2 import layers
from gpt2.__main__ import commands as listed
from gpt2.errors import UserError
from gpt2.model import GPT2, GPT2Config
from gpt2.train import flags
from tests.support import pages
from tests.support.pages import PAGES, ROOT, blocks

# Pages whose commands and programs another test runs, in an order and on data of their own
ELSEWHERE = {
    "docs/formats.md": "weights/test_formats_page.py",
    "docs/adding-an-op.md": "autodiff/whole/test_adding_an_op.py",
    "docs/autodiff.md": "autodiff/whole/test_guide.py",
}
# Commands that are not run here: `parse` has their own parser read the arguments, and nothing more; `not
# here` is for those that cannot even be read in this process.
INSTALLS = "takes minutes and a network; CI runs the README's line word for word"
LONG = "measures for minutes; tests/bench/test_bench.py runs the same code on small cases"
LLAMA = "trains for minutes; tests/test_llama_example.py runs the program on a short text"
EXCEPTIONS = {
    "python3 -m venv .venv": ("not here", INSTALLS),
    ".venv/bin/pip install -e .": ("not here", INSTALLS),
    ".venv/bin/pip install -e '.[test]'": ("not here", INSTALLS),
    ".venv/bin/python train.py": ("not here", INSTALLS),
    ".venv/bin/python -m pytest": ("not here", INSTALLS),
    "python train.py --parallel processes": (
        "parse",
        "several processes; tests/parallel has them",
    ),
    "python train.py --parallel processes --workers 4": ("parse", "as above"),
    "mpiexec -n 4 python train.py --parallel mpi": (
        "not here",
        "needs MPI; tests/parallel has it",
    ),
    "python train.py --layers rmsnorm.py": ("parse", "tests/test_own.py runs it, with the page's files"),
    "python examples/llama.py --steps 300": ("not here", LLAMA),
    "python examples/llama.py --n-layer 8 --n-embd 512 --n-head 8 --n-kv-head 4 --tokenizer bpe:8192": (
        "not here",
        LLAMA,
    ),
    "python examples/llama.py --weights FOLDER --tokenizer gpt2": ("not here", LLAMA),
    "pip install -e '.[bench]'": ("not here", INSTALLS),
    "pip install 'numpy-gpt2[hf]'": ("not here", INSTALLS),
    "pip install pre-commit": ("not here", INSTALLS),
    "pip install -e '.[docs]'": ("not here", INSTALLS),
    "pip install -e '.[notebooks]'": ("not here", INSTALLS),
    "python -m pytest": ("not here", "these tests are some of them"),
    "python -m pytest -m ''": ("not here", "as above"),
    "python -m pytest tests/autodiff/derive": ("not here", "as above"),
    "python -m pytest tests/layers -k attention": ("not here", "as above"),
    "python -m docs.coverage": (
        "not here",
        "another test compares the page with what it prints",
    ),
    "python -m docs.ops": ("not here", "as above"),
    "python -m docs.architecture": ("not here", "as above"),
    "python -m docs.front": ("not here", "as above"),
    "python -m docs.demo": ("not here", "as above"),
    "python -m docs.slides": ("not here", "as above"),
    "python -m gpt2.autodiff.compat.autograd program.py --its arguments": (
        "not here",
        "tests/autodiff/compat runs one",
    ),
    "python -m gpt2.autodiff.compat.autograd -m pytest tests": ("not here", "somebody's tests"),
    "python -m gpt2 exercises --grade": ("parse", "status 1 until all are right: tests/test_exercises.py"),
    "python -m gpt2 exercises work --grade --json grade.json": ("parse", "as above"),
    "python -m docs.notebooks": ("not here", "tests/test_notebooks.py runs the same code"),
}
# Families of such commands, by their beginning
LONG_ONES = ("python -m bench.", "python -m tests.long.", "python tests/long/")
# Programs without a fence or a prompt: the first line, and the function below that checks them
SNIPPETS = {
    (
        "docs/adding-a-setting.md",
        'ema: float = setting(0.0, "optimisation", "memory of averaged weights", minimum=0, below=1)',
    ): "check_setting",
    ("docs/derivatives.md", "np.where(x > 0, np.sqrt(x), 0.0)"): "check_branch_not_taken",
    ("docs/derivatives.md", "safe = np.where(x > 0, x, 1.0)"): "check_branch_not_taken",
    ("docs/tour.md", "dinp = rstd * (dnorm - mean(dnorm) - norm * mean(dnorm * norm))"): "check_formula",
}
# Make a run of train.py short, and its model small where it is not given
SHORT = "--steps 2 --batch-size 2 --block-size 32 --warmup 0 --eval-batches 1 --sample-tokens 4 --threads 1"
SMALL = "--n-layer 1 --n-head 2 --n-embd 16"
# Commands that start from the released weights, and those that go on with the run made of them: a small model
# stands in for the weights, but their tokenizer is GPT-2's own
RELEASED = re.compile(r"--init gpt2|--preset (finetune|llm\.c)|gpt2 convert gpt2|runs/mine")
# Commands that need more than `pip install -e '.[test]'`
NEEDS = {
    "python -m gpt2 convert runs/shakespeare-1 mine-hf": "safetensors",
    "python -m gpt2 plot runs/shakespeare-1": "matplotlib",
}


def treatment(command):
    """How a command is treated: run, parse, or not here."""
    if command.startswith("pytest bench/"):
        return "not here"  # LONG, and pytest itself reads its options
    if command.startswith(LONG_ONES):
        return "parse"
    return EXCEPTIONS.get(command, ("run", ""))[0]


def commands(page):
    return [command for block in blocks(page) if block.kind == "commands" for command in block.commands]


PAGES_HERE = [page for page in PAGES if page not in ELSEWHERE]
WITH_COMMANDS = [page for page in PAGES_HERE if commands(page)]
WITH_EXAMPLES = [page for page in PAGES_HERE if any(block.kind == "examples" for block in blocks(page))]


# ---- The reader ------------------------------------------------------------------------------------------


def test_the_reader_reads(tmp_path, monkeypatch):
    """What the other tests rely on."""
    page = (
        "text `python -m this --here`\n\n"
        "    python train.py --steps 3    what it does\n    $ pytest a && pip b\n    3 passed\n\n"
        "text\n\n    >>> 1 + 1\n    2\n\ntext\n\n    tolerance: 3\n\ntext\n\n    x = np.ones(2)\n\n"
        "```python\nimport os\n```\n\n```\n$ git status\n```\n"
    )
    (tmp_path / "page.md").write_text(page)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    found = blocks("page.md")
    kinds = [block.kind for block in found]
    assert kinds == ["commands", "examples", "output", "python", "python", "commands"]
    assert found[0].commands == ["python train.py --steps 3", "pytest a", "pip b"]
    assert found[-1].commands == ["git status"] and found[-2].language == "python"
    assert pages.inline_commands("page.md") == ["python -m this --here"]
    (tmp_path / "page.md").write_text("    >>> 1 + 1\n    3\n")
    assert tuple(pages.check_examples("page.md"))[:2] == (1, 1)
    pages.rewrite_examples("page.md")
    assert (tmp_path / "page.md").read_text() == "    >>> 1 + 1\n    2\n"


def test_files_that_contributors_are_sent_to_are_there():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:gpt2|tests|docs|bench|\.ci)/[\w/.-]*\w", text))
    assert len(named) > 20 and not [name for name in named if not (ROOT / name).exists()]
    tests = {name: test for name, test in re.findall(r"`(test_\w+)(\[\.\.\.\])?`", text)}
    for name in tests:
        assert any(
            f"def {name}(" in path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")
        )


def test_the_tables_are_up_to_date():
    """No row for something that no page says any more, and no page left to a test that does not know it."""
    text = {command for page in PAGES for command in (*commands(page), *pages.inline_commands(page))}
    assert set(EXCEPTIONS) <= text, set(EXCEPTIONS) - text
    assert set(NEEDS) <= text, set(NEEDS) - text
    assert set(SNIPPETS) <= {(page, block.first) for page in PAGES for block in blocks(page)}
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / "tests" / test).read_text(encoding="utf-8")


# ---- Examples and programs -------------------------------------------------------------------------------


@pytest.mark.parametrize("page", WITH_EXAMPLES)
def test_examples_print_what_the_page_says(page, capsys):
    if page == "docs/scipy.md":
        pytest.importorskip("scipy")
    if os.environ.get("GPT2_GOLDEN") == "write":
        pages.rewrite_examples(page)
    failed, tried = pages.check_examples(page)[:2]
    assert tried and not failed, capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES_HERE)
def test_programs(page):
    """Fenced Python runs as a page; other programs have a check of their own."""
    for block in blocks(page):
        if block.kind == "python" and not block.language:
            check = SNIPPETS.get((page, block.first))
            assert check, f"{page}:{block.line}: give this program a row in SNIPPETS, or make it an example"
            globals()[check](block.text)
    if page not in WITH_EXAMPLES:  # there they run with the examples
        pages.run_python(page)


def test_the_programs_of_readme_run_as_they_stand(tmp_path):
    """Each alone, in a new process and an empty folder; they print the first word of the last comment."""
    programs = [block.text for block in blocks("README.md") if block.language == "python"]
    assert programs
    for text in programs:
        done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True)
        promised = re.search(r"# ([\d.]+)", text.splitlines()[-1])[1]
        assert (done.stderr, done.stdout.strip()) == ("", promised)


def check_branch_not_taken(text):
    """The gradient is finite where the other branch is not, and right where it is taken."""
    *before, last = text.strip().split("\n")

    def f(x):
        names = {"np": np, "x": x}
        exec("\n".join(before), names)
        return np.sum(eval(last, names))

    x = np.array([4.0]) if before else np.array([4.0, -1.0, 0.0])  # with its sum over an axis: one number
    with np.errstate(all="ignore"):
        gradient = ad.grad(f)(x)
    np.testing.assert_allclose(gradient, [0.25, 0.0, 0.0][: len(x)], rtol=1e-12)
    if before:
        assert ad.grad(f)(np.array([-1.0])) == 0.0


def check_setting(text):
    """A field of this kind is parsed from a flag, and its limits hold."""
    names: dict = {"setting": flags.setting, "__name__": "settings"}
    exec(f"import dataclasses\n@dataclasses.dataclass\nclass S:\n    {text.strip()}", names)
    assert flags.convert(names["S"], "ema", "0.5", "--ema") == 0.5 == names["S"](ema=0.5).ema
    with pytest.raises(UserError, match="--ema"):
        flags.convert(names["S"], "ema", "1", "--ema")


def check_formula(text):
    rng = np.random.default_rng(0)
    (inp, dout), (weight, bias) = rng.standard_normal((2, 3, 5)), rng.standard_normal((2, 5))
    _, saved = layers.layernorm_forward(inp, weight, bias)
    names = {
        "rstd": saved[3],
        "dnorm": dout * weight,
        "norm": (inp - saved[2]) * saved[3],
        "mean": lambda x: x.mean(axis=-1, keepdims=True),
    }
    exec(text, names)
    np.testing.assert_allclose(names["dinp"], layers.layernorm_backward(dout, saved)[0], rtol=1e-12)


# ---- Commands --------------------------------------------------------------------------------------------


def shortened(command):
    """The command as it is run here."""
    if not command.startswith("python train.py") or "--help" in command:
        return command
    if "--resume" in command:
        return f"{command} --steps 4"
    given = RELEASED.search(command) or "--init" in command
    text = "" if "--data" in command else " --data my.txt"
    return f"{command} {SHORT}{'' if given else ' ' + SMALL}{text}"


def write_released(folder):
    """A small model in place of the released one; returns the folder for GPT2_DATA_DIR."""
    pytest.importorskip("safetensors")
    from gpt2.weights import huggingface

    model = GPT2(GPT2Config(vocab_size=50257, block_size=128, n_layer=2, n_head=1, n_embd=4))
    huggingface.write(folder / "gpt2", model.params, model.config)
    return folder


@pytest.fixture
def folder_of_a_reader(tmp_path, monkeypatch, quick_peak):
    """Where the commands are run: a folder with my.txt in it."""
    monkeypatch.chdir(tmp_path)
    # varied enough for a vocabulary of 1024, on every machine, and with the letters of the prompts
    text = "ROMEO: " + inspect.getsource(argparse)[:30_000]
    Path("my.txt").write_text(text, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_commands(page, folder_of_a_reader, capsys):
    """All but those of the next test. What needs a package that is missing is left out, and told."""
    missing = [package for package in set(NEEDS.values()) if importlib.util.find_spec(package) is None]
    for command in commands(page):
        how = treatment(command)
        if RELEASED.search(command) or NEEDS.get(command) in missing:
            continue
        if how == "run":
            assert pages.run(shortened(command)) == 0, f"{command}\n{capsys.readouterr().err}"
        elif how == "parse":
            assert understood(command), command
    left_out = [command for command in commands(page) if NEEDS.get(command) in missing]
    if left_out:
        pytest.skip(f"needs {' and '.join(sorted(missing))}: {'; '.join(left_out)} (all others were run)")


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in WITH_COMMANDS if any(map(RELEASED.search, commands(p)))])
def test_commands_that_start_from_released_weights(
    page, tmp_path, monkeypatch, capsys, gpt2_tokenizer, folder_of_a_reader
):
    monkeypatch.setenv("GPT2_DATA_DIR", str(write_released(tmp_path / "released")))
    for command in commands(page):
        if RELEASED.search(command):
            assert treatment(command) == "run", command
            assert pages.run(shortened(command)) == 0, f"{command}\n{capsys.readouterr().err}"


@pytest.mark.parametrize("page", PAGES_HERE)
def test_commands_in_the_text(page):
    """Those between back quotes are read by their own parsers, at least."""
    for command in pages.inline_commands(page):
        command = command.split(" > ")[0]
        if treatment(command) != "not here" and command.startswith("python ") and "pytest" not in command:
            assert understood(command), command


def understood(command):
    """Whether a command's own parser accepts its arguments; one without arguments has to be there."""
    words = shlex.split(command)
    if words[2:3] == ["gpt2"] and len(words) <= 4:
        return words[:2] == ["python", "-m"] and set(words[3:]) <= set(listed())
    if len(words) == 3:
        name = words[2] + (".__main__" if (ROOT / words[2].replace(".", "/")).is_dir() else "")
        return importlib.import_module(name) is not None
    return pages.parse(command)


def test_extras_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for name in re.findall(r"pip install (?:-e )?'[\w.]*\[(\w+)\]'", text):
            assert name in extras["optional-dependencies"], f"{page}: {name}"


# ---- Figures that are facts ------------------------------------------------------------------------------


def in_place(np):
    """The three lines of docs/comparison.md's table, in NumPy or what is like it."""

    def f(x):
        y = np.exp(x)
        y[0] = 5.0
        return np.sum(y)

    return f


def test_writing_in_place():
    np.testing.assert_allclose(ad.grad(in_place(np))(np.ones(3)), [0.0, np.e, np.e], rtol=1e-12)


def autograd_in_place():
    import autograd
    import autograd.numpy

    autograd.grad(in_place(autograd.numpy))(np.ones(3))


def jax_in_place():
    import jax

    jax.grad(in_place(jax.numpy))(np.ones(3))


def torch_in_place():
    import torch

    in_place(torch)(torch.ones(3, requires_grad=True)).backward()


@pytest.mark.parametrize(
    "peer, error, text",
    [
        ("autograd", TypeError, "does not support item assignment"),
        ("jax", TypeError, "immutable"),
        ("torch", RuntimeError, "modified by an inplace operation"),
    ],
)
def test_writing_in_place_elsewhere(peer, error, text):
    pytest.importorskip(peer)
    with pytest.raises(error, match=text):
        globals()[f"{peer}_in_place"]()


def test_memory_of_the_released_sizes():
    """The table of docs/limits.md, as far as it is counted and not measured."""
    from gpt2.train.flops import training_flops

    page = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"):
        config = GPT2Config.preset(name)
        row = next(line for line in page.split("\n") if line.startswith(f"| {name} |")).split("|")
        assert row[2].strip() == f"{config.num_parameters:,}"
        assert row[3].strip() == f"{16 * config.num_parameters / 2**30:.1f} GiB"
        gflop = 2 * training_flops(config, 4, 128) / 1e9
        assert abs(float(row[6].replace(",", "")) - gflop) < 1.5
