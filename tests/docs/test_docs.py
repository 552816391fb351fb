"""Every command and program in README.md and docs/*.md is run, or has a row in a table here with the reason.

What is new on a page is run as it is; if it cannot be, this test fails until it has a row. After a change of
what the examples print: GPT2_GOLDEN=write pytest tests/docs/test_docs.py, and read the difference.
"""

import argparse
import functools
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

from examples import compiler
from gpt2 import autodiff as ad
from gpt2 import layers
from gpt2.__main__ import commands as gpt2_commands
from gpt2.errors import UserError
from gpt2.layers import cases
from gpt2.model import GPT2, GPT2Config
from gpt2.train import flags, settings
from gpt2.train.flops import training_flops
from gpt2.weights import huggingface
from tests.support import pages
from tests.support.pages import PAGES, ROOT, blocks

# Pages whose commands and programs another test runs, in its own order and on its own data
ELSEWHERE = {
    "docs/formats.md": "weights/test_formats_page.py",
    "docs/your-data.md": "train/test_your_data.py",
    "docs/adding-an-op.md": "autodiff/whole/test_adding_an_op.py",
}
# Commands that are not run here, by their beginning, with the reason. Their own parsers read the arguments
PARSED = {
    r"python (-m bench\.|-m tests\.long\.|tests/long/)": "measures for minutes; tests/bench has small cases",
    r"python -m docs\.": "another test compares the result with the page",
    r"python train\.py --parallel processes": "starts processes; tests/parallel",
    r"python train\.py --layers rmsnorm\.py$": "tests/model/test_own.py runs it with the page's files",
    r"python -m gpt2 exercises.* --grade": "exits with 1 until all are right; test_exercises.py",
}
# Commands that are not even parsed
SKIPPED = {
    r"python3 -m venv|\.venv/bin/|pip install": "needs a network; CI runs README's lines word for word",
    r"python -m pytest|pytest": "this test is one of them",
    r"python examples/llama\.py": "trains for minutes; tests/docs/test_llama_example.py has a short text",
    r"mpiexec": "needs MPI; tests/parallel",
    r"python -m gpt2\.autodiff\.compat\.autograd": "runs any program; tests/autodiff/compat",
}
# Flags that make a run of train.py short, and its model small unless the sizes are given
SHORT = "--steps 2 --batch-size 2 --block-size 32 --warmup 0 --eval-batches 1 --sample-tokens 4 --threads 1"
SMALL = "--n-layer 1 --n-head 2 --n-embd 16"
# Commands that start from the released weights or continue a run made of them: a small model takes the place
# of the weights, with GPT-2's own tokenizer
RELEASED = re.compile(r"--init gpt2|--preset (finetune|llm\.c)|gpt2 convert gpt2|runs/mine")
# Commands that need more than `pip install -e '.[test]'`
NEEDS = {
    "python -m gpt2 convert runs/shakespeare-1 mine-hf": "safetensors",
    "python -m gpt2 plot runs/shakespeare-1": "matplotlib",
}
NOT_FILES = {"bench/results", "docs/tutorial.md"}  # written by benchmarks; a page of another project


def treatment(command):
    """How a command is tested: run, parse (its arguments only), or skip."""
    for how, patterns in (("skip", SKIPPED), ("parse", PARSED)):
        if any(re.match(pattern, command) for pattern in patterns):
            return how
    return "run"


def commands(page):
    return [command for block in blocks(page) if block.kind == "commands" for command in block.commands]


TESTED_PAGES = [page for page in PAGES if page not in ELSEWHERE]
WITH_COMMANDS = [page for page in TESTED_PAGES if commands(page)]
WITH_EXAMPLES = [page for page in TESTED_PAGES if any(block.kind == "examples" for block in blocks(page))]


# ---- The tables, and how pages are read ------------------------------------------------------------------


def test_pages_are_read_into_blocks(tmp_path, monkeypatch):
    page = (
        "text `python -m this --here`\n\n"
        "    python train.py --steps 3    what it does\n    $ pytest a && pip b\n    3 passed\n\n"
        "text\n\n    >>> 1 + 1\n    2\n\ntext\n\n    tolerance: 3\n\ntext\n\n    x = np.ones(2)\n\n"
        "```python\nimport os\n```\n\n```\n$ git status\n```\n"
    )
    (tmp_path / "page.md").write_text(page)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    read = blocks("page.md")
    kinds = [block.kind for block in read]
    assert kinds == ["commands", "examples", "output", "python", "python", "commands"]
    assert read[0].commands == ["python train.py --steps 3", "pytest a", "pip b"]
    assert read[-1].commands == ["git status"] and read[-2].language == "python"
    assert pages.inline_commands("page.md") == ["python -m this --here"]
    (tmp_path / "page.md").write_text("    >>> 1 + 1\n    3\n")
    assert tuple(pages.check_examples("page.md"))[:2] == (1, 1)
    pages.rewrite_examples("page.md")
    assert (tmp_path / "page.md").read_text() == "    >>> 1 + 1\n    2\n"


@functools.cache
def names_of_tests():
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    return {name for source in sources for name in re.findall(r"^def (test_\w+)\(", source, re.M)}


@pytest.mark.parametrize("page", PAGES)
def test_files_and_tests_named_on_a_page_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    paths = set(re.findall(r"(?<![\w/.-])(?:gpt2|tests|docs|bench|examples|\.ci)/[\w/.-]*\w", text))
    assert not [path for path in paths - NOT_FILES if not (ROOT / path).exists()]
    if page != "docs/from-autograd.md":  # names tests of other projects
        assert set(re.findall(r"`(test_\w+)(?:\[\.\.\.\])?`", text)) <= names_of_tests()


def test_tables_have_no_stale_rows():
    """Each row is about something on a page, and the tests in ELSEWHERE name their pages."""
    on_pages = {command for page in PAGES for command in (*commands(page), *pages.inline_commands(page))}
    for pattern in (*PARSED, *SKIPPED):
        assert any(re.match(pattern, command) for command in on_pages), pattern
    assert not NEEDS.keys() - on_pages
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


@pytest.mark.parametrize("page", TESTED_PAGES)
def test_programs_run(page):
    """The fenced Python of a page as one program; other programs have their own checks."""
    for block in blocks(page):
        if block.kind == "python" and not block.language:
            check = SNIPPETS.get((page, block.first))
            assert check, f"{page}:{block.line}: give this program a row in SNIPPETS, or make it an example"
            check(block.text)
    if page not in WITH_EXAMPLES:  # there they run with the examples
        pages.run_python(page)


def test_programs_of_readme_run_alone(tmp_path):
    """Each in a new process and an empty folder; it prints the number in its last comment."""
    programs = [block.text for block in blocks("README.md") if block.language == "python"]
    assert programs
    for text in programs:
        done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True)
        expected = re.search(r"# ([\d.]+)", text.splitlines()[-1])[1]
        assert (done.stderr, done.stdout.strip()) == ("", expected)


def check_branch_not_taken(text):
    """The gradient is right where the branch is taken, and finite where it is not."""
    *before, last = text.strip().split("\n")

    def f(x):
        names = {"np": np, "x": x}
        exec("\n".join(before), names)
        return np.sum(eval(last, names))

    x = np.array([4.0]) if before else np.array([4.0, -1.0, 0.0])
    with np.errstate(all="ignore"):
        gradient = ad.grad(f)(x)
    np.testing.assert_allclose(gradient, [0.25, 0.0, 0.0][: len(x)], rtol=1e-12)
    if before:
        assert ad.grad(f)(np.array([-1.0])) == 0.0


def check_setting(text):
    """A field of this kind is parsed from a flag, and its limits hold."""
    names: dict = {"OPTIMISATION": settings.OPTIMISATION, "__name__": "settings"}
    exec(f"import dataclasses\n@dataclasses.dataclass\nclass S:\n    {text.strip()}", names)
    assert flags.convert(names["S"], "ema", "0.5", "--ema") == 0.5 == names["S"](ema=0.5).ema
    with pytest.raises(UserError, match="ema"):
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


def check_small_compiler(text):
    """What examples/compiler.py prints."""
    case = cases.at(cases.Sizes(B=2, T=5, C=12, OC=7, NH=3, V=11, max_t=8))["gelu"]
    _, source = compiler.backward_of(layers.LAYERS["gelu"].forward, *case.inputs())
    assert text.strip() == source


SETTING = 'ema: float = OPTIMISATION(0.0, "memory of averaged weights", minimum=0, below=1)'
# Programs without a fence or a prompt: page and first line -> the function that checks them
SNIPPETS = {
    ("docs/adding-a-setting.md", SETTING): check_setting,
    ("docs/compiler.md", "def gelu_backward(dout, inp):"): check_small_compiler,
    ("docs/derivatives.md", "np.where(x > 0, np.sqrt(x), 0.0)"): check_branch_not_taken,
    ("docs/derivatives.md", "safe = np.where(x > 0, x, 1.0)"): check_branch_not_taken,
    ("docs/tour.md", "dinp = rstd * (dnorm - mean(dnorm) - norm * mean(dnorm * norm))"): check_formula,
}


# ---- Commands --------------------------------------------------------------------------------------------


def shortened(command):
    """The command, with flags that make a run of train.py take a moment."""
    if not command.startswith("python train.py") or "--help" in command:
        return command
    if "--resume" in command:
        return f"{command} --steps 4"
    has_sizes = RELEASED.search(command) or "--init" in command
    data = "" if "--data" in command else " --data my.txt"
    return f"{command} {SHORT}{'' if has_sizes else ' ' + SMALL}{data}"


@pytest.fixture
def reader_folder(tmp_path, monkeypatch, quick_peak):
    """The working directory of the commands, with texts."""
    monkeypatch.chdir(tmp_path)
    # has enough words for a vocabulary of 1024, and the letters of the prompts
    text = "ROMEO: " + inspect.getsource(argparse)[:30_000]
    Path("texts").mkdir()
    for name in ("my.txt", "other.txt", "texts/a.txt"):
        Path(name).write_text(text, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_commands_run(page, reader_folder, capsys):
    """All but those of the next test; those that need a missing package are listed as skipped."""
    missing = [package for package in set(NEEDS.values()) if importlib.util.find_spec(package) is None]
    for command in commands(page):
        how = treatment(command)
        if RELEASED.search(command) or NEEDS.get(command) in missing:
            continue
        if how == "run":
            assert pages.run(shortened(command)) == 0, f"{command}\n{capsys.readouterr().err}"
        elif how == "parse":
            assert is_accepted(command), command
    skipped = [command for command in commands(page) if NEEDS.get(command) in missing]
    if skipped:
        pytest.skip(f"needs {' and '.join(sorted(missing))}: {'; '.join(skipped)} (all others were run)")


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in WITH_COMMANDS if any(map(RELEASED.search, commands(p)))])
def test_commands_on_released_weights_run(page, tmp_path, monkeypatch, capsys, gpt2_tokenizer, reader_folder):
    model = GPT2(GPT2Config(vocab_size=50257, block_size=128, n_layer=2, n_head=1, n_embd=4))
    huggingface.write(tmp_path / "released" / "gpt2", model.params, model.config)
    monkeypatch.setenv("GPT2_DATA_DIR", str(tmp_path / "released"))
    for command in commands(page):
        if RELEASED.search(command):
            assert treatment(command) == "run", command
            assert pages.run(shortened(command)) == 0, f"{command}\n{capsys.readouterr().err}"


@pytest.mark.parametrize("page", TESTED_PAGES)
def test_inline_commands_are_accepted(page):
    """Commands between back quotes are read by their own parsers."""
    for command in pages.inline_commands(page):
        command = command.split(" > ")[0]
        if treatment(command) != "skip" and command.startswith("python ") and "pytest" not in command:
            assert is_accepted(command), command


def is_accepted(command):
    """Whether a command's own parser accepts its arguments; without arguments, whether the module exists."""
    words = shlex.split(command)
    if words[2:3] == ["gpt2"] and len(words) <= 4:
        return words[:2] == ["python", "-m"] and set(words[3:]) <= set(gpt2_commands())
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


# ---- Facts in tables -------------------------------------------------------------------------------------


def sum_after_write(np):
    """The three lines in docs/comparison.md's table, with NumPy or its counterpart in another library."""

    def f(x):
        y = np.exp(x)
        y[0] = 5.0
        return np.sum(y)

    return f


def test_write_in_place_is_differentiated():
    np.testing.assert_allclose(ad.grad(sum_after_write(np))(np.ones(3)), [0.0, np.e, np.e], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "peer, error, text",
    [
        ("autograd.numpy", TypeError, "does not support item assignment"),
        ("jax.numpy", TypeError, "immutable"),
        ("torch", RuntimeError, "modified by an inplace operation"),
    ],
)
def test_peers_refuse_write_in_place(peer, error, text):
    module = pytest.importorskip(peer)
    f = sum_after_write(module)
    with pytest.raises(error, match=text):
        if peer == "torch":
            f(module.ones(3, requires_grad=True)).backward()
        else:
            sys.modules[peer.partition(".")[0]].grad(f)(np.ones(3))


@pytest.mark.parametrize("name", ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"])
def test_limits_table_of_released_sizes(name):
    """The columns of docs/limits.md that are counted, not measured."""
    page = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    config = GPT2Config.preset(name)
    row = next(line for line in page.split("\n") if line.startswith(f"| {name} |")).split("|")
    assert row[2].strip() == f"{config.num_parameters:,}"
    assert row[3].strip() == f"{16 * config.num_parameters / 2**30:.1f} GiB"
    gflop = 2 * training_flops(config, 4, 128) / 1e9
    assert abs(float(row[6].replace(",", "")) - gflop) < 1.5
