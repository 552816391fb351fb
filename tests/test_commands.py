"""The `gpt2` command: its list is complete, helps with typing errors, and fits a terminal of 80 columns."""

import importlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpt2.__main__ as commands
from gpt2 import autodiff as ad
from gpt2 import cli, hints
from gpt2.commands import check, completion
from gpt2.commands.bench import __main__ as bench
from gpt2.commands.bench import machine
from gpt2.errors import UserError, suggestion
from gpt2.output import has_colour, painted

ROOT = Path(__file__).parents[1]
NAMES = list(commands.commands())


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """What a test prints is plain, its terminal has the usual width, and it was started as gpt2."""
    monkeypatch.setattr(hints, "_program", lambda name: " ".join(filter(None, ["gpt2", name])))
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


def test_the_list_says_what_each_does(capsys):
    assert commands.main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert commands.main([]) == 0
    assert capsys.readouterr().out == listed
    for name in ("train", "sample", "evaluate", "plot", "convert", "explain", "check", "bench", "data"):
        assert f"\n  {name} " in listed
    assert "pretrained" not in listed  # a module that is no command
    assert all(what for what in commands.commands().values())
    assert max(map(len, listed.splitlines())) < 80


def test_version(capsys):
    assert commands.main(["--version"]) == 0
    assert re.fullmatch(
        r"gpt2 \d+\.\d+\.\d+ \(NumPy [\d.a-z]+, Python [\d.a-z+]+, \w+\)\n", capsys.readouterr().out
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["check", "convert", "data", "evaluate", "plot", "sample", "train"])
def test_each_explains_itself(name):
    """Without importing anything that may be missing."""
    command = [sys.executable, "-m", "gpt2", name, "--help"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 0 and f"usage: {sys.executable} -m gpt2 {name}" in said.stdout, said.stderr


@pytest.mark.parametrize("name", NAMES)
def test_help_fits_and_its_examples_are_understood(name, monkeypatch):
    parser = completion.parser_of(name)
    for columns in ("80", "300"):
        monkeypatch.setenv("COLUMNS", columns)
        text = parser.format_help()
        assert max(map(len, text.splitlines())) < 80, text
    assert len(parser.examples) >= 2 and "\nexamples:\n" in text
    for command, what in parser.examples:
        assert what
        if command.startswith("gpt2 ") and ">" not in command:
            program, first, *words = shlex.split(command)
            assert first == name
            parser.parse_args(words)


@pytest.mark.slow
def test_a_command_that_is_not_there(capsys):
    assert commands.main(["sampel"]) == 2
    assert capsys.readouterr().err == "error: unknown command 'sampel'; did you mean sample?\n"
    assert commands.main(["generate"]) == 2
    assert "did you mean sample?" in capsys.readouterr().err
    assert commands.main(["--verison"]) == 2
    assert "did you mean --version?" in capsys.readouterr().err
    assert commands.main(["xyzzy"]) == 2
    assert "gpt2 --help lists" in capsys.readouterr().err


# Command line -> what is suggested
TYPOS = {
    "train --stpes 5": "--steps",
    "train --preset shakespear": "shakespeare",
    "train --data shakespear": "tinyshakespeare",
    "train --tokenizer gtp2": "gpt2",
    "train --compile of": "off",
    "train --backward atuo": "auto",
    "train --backward manual,attenton=auto": "attention",
    "train --init gpt2-mediun": "gpt2-medium",
    "sample --temprature 1": "--temperature",
    "sample --checkpoint bset": "best",
    "evaluate --dta x": "--data",
    "convert a b --dtype bfloat61": "bfloat16",
    "explain layernrm": "layernorm",
    "check layernrm": "layernorm",
    "explain --emited gelu": "--emitted",
    "bench --size gpt2-larg": "gpt2-large",
    "data shakespear": "tinyshakespeare",
    "plot --oput a.svg": "--out",
    "completion fsh": "fish",
}


@pytest.mark.slow
@pytest.mark.parametrize("line", TYPOS)
def test_typing_errors(line, capsys, tmp_path, monkeypatch):
    """Each is one line that names what was meant."""
    monkeypatch.chdir(tmp_path)
    name, *words = line.split()
    assert importlib.import_module(commands.module_of(name)).main(words) == 2
    text = capsys.readouterr().err
    assert text.startswith("error: ") and text.endswith(f"; did you mean {TYPOS[line]}?\n")
    assert text.count("\n") == 1


def test_flags_by_the_names_that_others_have_for_them():
    train, sample = completion.parser_of("train"), completion.parser_of("sample")
    assert train.parse_args(["--learning-rate", "3", "--max_iters=7"]).lr == "3"
    assert train.parse_args(["--max_iters=7"]).steps == "7"
    assert sample.parse_args(["--max_new_tokens", "7"]).max_tokens == 7
    assert sample.parse_args(["--prompt", "--learning-rate is", "--seed=3"]).prompt == "--learning-rate is"
    with pytest.raises(UserError, match="unknown argument --learning-rate"):  # which sampling has not
        sample.parse_args(["--learning-rate", "3"])


def test_every_synonym_stands_for_a_flag_and_hides_none():
    flags = {flag for name in NAMES for flag in completion.parser_of(name).long_flags()}
    words = [word for known in cli.SYNONYMS.values() for word in known]
    assert set(cli.SYNONYMS) <= flags and len(set(words)) == len(words) and not set(words) & flags


def test_what_is_like_nothing_gets_no_suggestion():
    assert suggestion("zzz", ["gpt2", "byte"]) == ""
    flags = completion.parser_of("train").long_flags()
    for word in "foo bar gpu wandb log-dir device verbose quiet scheduler val ab tr topk validation".split():
        assert suggestion(f"--{word}", flags) == "", word


# What is typed -> the flag of `gpt2 train` that it is like
LIKE = {
    "--batch": "--batch-size",
    "--Steps": "--steps",
    "--seeds": "--seed",
    "--weigth-dcay": "--weight-decay",
    "--eval": "--eval-every",
    "--lrr": "--lr",
    "--dryrun": "--dry-run",
}


@pytest.mark.parametrize("word", LIKE)
def test_what_is_alike_gets_a_suggestion(word):
    assert suggestion(word, completion.parser_of("train").long_flags()) == f"; did you mean {LIKE[word]}?"


def test_the_status_of_a_command_is_kept(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "gpt2", "plot", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 2 and "no run here" in run.stderr


# ---- Terminals -------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_colour_where_a_terminal_has_it(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    assert painted("x", "red", screen) == "\x1b[31mx\x1b[0m" and painted("x", "red", io.StringIO()) == "x"
    monkeypatch.setenv("TERM", "dumb")
    assert not has_colour(screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colour(screen)
    monkeypatch.setenv("FORCE_COLOR", "1")  # NO_COLOR wins: who set it wants none
    assert not has_colour(screen)
    monkeypatch.delenv("NO_COLOR")
    assert has_colour(io.StringIO())


def test_help_in_colour_says_the_same(monkeypatch):
    parser = completion.parser_of("sample")
    before = parser.format_help()
    monkeypatch.setenv("FORCE_COLOR", "1")
    after = parser.format_help()
    assert "\x1b[1m" in after and re.sub(r"\x1b\[\d+m", "", after) == before


def test_sources_side_by_side_where_there_is_room():
    texts = [("one", "a = 1\n" * 3), ("two", "b = 2\n"), ("three", "c = '" + "long " * 40 + "'\n")]
    wide, narrow = cli.side_by_side(texts, 150), cli.side_by_side(texts, 80)
    assert all(len(line) <= 150 for line in wide) and wide[2].startswith("a = 1 ") and " | b = 2" in wide[2]
    assert all(len(line) < 80 for line in narrow) and not any(" | " in line for line in narrow)
    assert [line.split()[1] for line in narrow if line.startswith("----")] == ["one", "two", "three"]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="pseudo-terminals are POSIX's")
@pytest.mark.parametrize("line", ["check gelu", "explain residual"])
def test_what_is_printed_fits_a_terminal_of_80_columns(line):
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    run = subprocess.run(
        [sys.executable, "-m", "gpt2", *line.split()],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert [text for text in run.stdout.splitlines() if len(text) > 80] == []


# ---- Completion ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def known():
    return completion.everything()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_flags_and_choices(known):
    def completed(*words):
        script = completion.bash(known) + f"\nCOMP_WORDS=({' '.join(map(shlex.quote, words))})\n"
        script += 'COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _gpt2; printf "%s\\n" "${COMPREPLY[@]}"'
        run = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
        assert run.returncode == 0 and not run.stderr
        return run.stdout.split()

    assert completed("gpt2", "ex") == ["explain", "exercises"]
    assert completed("gpt2", "sample", "--temp") == ["--temperature"]
    assert completed("gpt2", "train", "--comp") == ["--compile"]
    assert completed("gpt2", "sample", "--checkpoint", "") == ["best", "last"]
    assert completed("gpt2", "train", "--order", "e") == ["epochs"]
    assert "layernorm" in completed("gpt2", "explain", "")
    assert completed("gpt2", "plot", "") == []  # left to names of files


def test_scripts_of_the_other_shells_know_all(known):
    for shell in (completion.zsh, completion.fish):
        script = shell(known)
        for name, what in known.items():
            assert name in script
            assert all(flag.name in script for flag in what.flags)


# ---- gpt2 check ------------------------------------------------------------------------------------------

MINE = """
import numpy as np

def residual_backward(dout, saved):
    return dout, {sign}dout

def double_forward(x):
    return 2.0 * x

def double_backward(dout, x):
    return (2.0 * dout,)

double_cases = [(np.arange(3.0),)]
"""


def test_check_of_a_file(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(MINE.format(sign=""))
    assert check.main([str(file)]) == 0
    assert capsys.readouterr().out.count("ok ") == 2
    file.write_text(MINE.format(sign="-"))
    assert check.main([str(file)]) == 1
    said = capsys.readouterr().out
    assert "BAD residual_backward (mine.py:4) is not the derivative" in said and "the sign is wrong" in said
    assert "ok  double_backward" in said
    file.write_text(MINE.format(sign="1 / 0 * "))
    assert check.main([str(file)]) == 1
    said = capsys.readouterr().out
    assert "BAD residual_backward (mine.py:4): ZeroDivisionError at mine.py:5: division by zero\n" in said
    assert "ok  double_backward" in said
    for text, message in (
        ("def f(", "it cannot be run: SyntaxError"),
        ("x = 1", "no function NAME_backward"),
        ("def layernrm_backward(): 1", "has no layernrm_forward; did you mean layernorm?"),
        ("def f_forward(x): 1\ndef f_backward(d, x): 1", "f_cases is missing"),
    ):
        file.write_text(text)
        assert check.main([str(file)]) == 2
        said = capsys.readouterr().err
        assert message in said and said.count("\n") == 1


def test_check_of_a_file_that_is_not_there(tmp_path, capsys):
    assert check.main([str(tmp_path / "mine.py")]) == 2
    assert capsys.readouterr().err.endswith("mine.py: No such file or directory\n")


def test_an_interrupt_while_a_command_is_loaded(monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("runpy.run_module", interrupted)
    monkeypatch.setattr(sys, "argv", ["gpt2"])
    assert commands.main(["train"]) == 130


def test_check_finds_a_wrong_gradient(capsys):
    assert check.main(["residual"]) == 0
    text = capsys.readouterr().out
    assert "residual " in text and "layernorm" not in text and "all hold" in text


@pytest.mark.slow
def test_bench_prints_a_line_a_kind(capsys):
    options = "--size tiny --backward manual whole --batch-size 1 --block-size 8 --seconds 0.01"
    assert bench.main(options.split()) == 0
    text = capsys.readouterr().out
    assert re.search(r"^manual +[\d.]+ +[\d,]+ +[\d.]+ +(\d+%|\?) +\d+$", text, re.M) and "\nwhole " in text
    assert max(map(len, text.splitlines())) <= 80


def test_bench_looks_at_the_machine(monkeypatch, capsys):
    """Every figure for one thread and for all, with arrays and times that take no time here."""
    for name, value in {"BYTES": 1 << 16, "SIDE": 16, "SECONDS": 1e-4, "CALLS": 2, "OTHERS": ()}.items():
        monkeypatch.setattr(machine, name, value)
    monkeypatch.setattr(machine.best, "__defaults__", (1e-4,))
    monkeypatch.setattr(machine, "cores", lambda: 2)
    before = ad.get_threads()
    assert bench.main(["--machine"]) == 0
    text = capsys.readouterr().out
    assert ad.get_threads() == before and max(map(len, text.splitlines())) <= 110
    for name, (_, unit) in machine.FIGURES.items():
        assert re.search(rf"^{re.escape(name)} +{re.escape(unit)} +[\d.]+ +[\d.]+$", text, re.M), name
    assert ad.processor() in text and "AdamW works on" in text


@pytest.mark.slow
def test_other_kernels_are_measured_in_a_process_of_their_own():
    """None where this processor's OpenBLAS does not load them."""
    rate = machine.with_kernels(ad.blas_kernels() or "Haswell", 1)
    assert (rate is None) == (not ad.blas_kernels()) and machine.with_kernels("NoSuchKernels", 1) is None


def test_check_of_a_file_of_layers_says_what_checks_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("rms norm.py").write_text(
        "import numpy as np\ndef forward(inp, weight, bias): return inp * weight + bias, None\n"
        "LAYERS = {'layernorm': forward}\n"
    )
    assert check.main(["rms norm.py"]) == 2
    text = capsys.readouterr().err
    command = text.strip().partition("; its layers are checked with: gpt2 ")[2]
    assert command == "check --layers 'rms norm.py'" and text.count("\n") == 1
    assert check.main(shlex.split(command)[1:]) == 0
