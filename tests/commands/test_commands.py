"""The `gpt2` command: its list, typing errors, terminals of 80 columns, completion; gpt2 check and bench."""

import importlib
import io
import re
import shlex
import shutil
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
from tests.support import small_run
from tests.support.terminal import Terminal

NAMES = list(commands.commands())


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """Output without colours, of the default width, by a program that was started as gpt2."""
    monkeypatch.setattr(hints, "_program", lambda name: " ".join(filter(None, ["gpt2", name])))
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


def test_list_has_each_command_with_its_purpose(capsys):
    assert commands.main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert commands.main([]) == 0
    assert capsys.readouterr().out == listed
    for name in ("train", "sample", "evaluate", "plot", "convert", "explain", "check", "bench", "data"):
        assert f"\n  {name} " in listed
    assert "pretrained" not in listed  # a module that is no command
    assert all(commands.commands().values())
    assert max(map(len, listed.splitlines())) < 80


def test_version(capsys):
    assert commands.main(["--version"]) == 0
    pattern = r"gpt2 \d+\.\d+\.\d+ \(NumPy [\d.a-z]+, Python [\d.a-z+]+, \w+\)\n"
    assert re.fullmatch(pattern, capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["check", "convert", "data", "evaluate", "plot", "sample", "train"])
def test_help_of_each_command_in_a_new_process(name):
    done = small_run.run([sys.executable, "-m", "gpt2", name, "--help"])
    assert done.returncode == 0 and f"usage: {sys.executable} -m gpt2 {name}" in done.stdout, done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_help_fits_80_columns_and_its_examples_parse(name, monkeypatch):
    parser = completion.parser_of(name)
    for columns in ("80", "300"):
        monkeypatch.setenv("COLUMNS", columns)
        text = parser.format_help()
        assert max(map(len, text.splitlines())) < 80, text
    assert len(parser.examples) >= 2 and "\nexamples:\n" in text
    for command, purpose in parser.examples:
        assert purpose
        if command.startswith("gpt2 ") and ">" not in command:
            program, first, *words = shlex.split(command)
            assert first == name
            parser.parse_args(words)


@pytest.mark.slow
@pytest.mark.parametrize(
    "word, hint",
    [
        ("sampel", "unknown command 'sampel'; did you mean sample?"),
        ("generate", "did you mean sample?"),
        ("--verison", "did you mean --version?"),
        ("xyzzy", "gpt2 --help lists"),
    ],
)
def test_unknown_command_gets_a_suggestion(word, hint, refusal):
    assert hint in refusal(commands.main, word)


# Command line -> the suggestion
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
def test_typing_error_gets_a_suggestion(line, refusal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, *words = line.split()
    main = importlib.import_module(commands.module_of(name)).main
    assert refusal(main, *words).endswith(f"; did you mean {TYPOS[line]}?\n")


def test_flags_by_their_names_in_other_programs():
    train, sample = completion.parser_of("train"), completion.parser_of("sample")
    assert train.parse_args(["--learning-rate", "3", "--max_iters=7"]).lr == "3"
    assert train.parse_args(["--max_iters=7"]).steps == "7"
    assert sample.parse_args(["--max_new_tokens", "7"]).max_tokens == 7
    assert sample.parse_args(["--prompt", "--learning-rate is", "--seed=3"]).prompt == "--learning-rate is"
    with pytest.raises(UserError, match="unknown argument learning_rate"):  # no --lr when sampling
        sample.parse_args(["--learning-rate", "3"])


def test_synonyms_stand_for_flags_and_hide_none():
    flags = {flag for name in NAMES for flag in completion.parser_of(name).long_flags()}
    words = [word for known in cli.SYNONYMS.values() for word in known]
    assert set(cli.SYNONYMS) <= flags and len(set(words)) == len(words) and not set(words) & flags


@pytest.mark.parametrize(
    "word, flag",
    [
        ("--batch", "--batch-size"),
        ("--Steps", "--steps"),
        ("--seeds", "--seed"),
        ("--weigth-dcay", "--weight-decay"),
        ("--eval", "--eval-every"),
        ("--lrr", "--lr"),
        ("--dryrun", "--dry-run"),
    ],
)
def test_similar_word_gets_a_suggestion(word, flag):
    assert suggestion(word, completion.parser_of("train").long_flags()) == f"; did you mean {flag}?"


def test_exit_status_of_a_command_is_passed_on(tmp_path):
    done = small_run.run([sys.executable, "-m", "gpt2", "plot", str(tmp_path)])
    assert done.returncode == 2 and "no run here" in done.stderr


# ---- Terminals -------------------------------------------------------------------------------------------


def test_colour_at_terminals_and_its_environment_variables(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    assert painted("x", "red", screen) == "\x1b[31mx\x1b[0m" and painted("x", "red", io.StringIO()) == "x"
    monkeypatch.setenv("TERM", "dumb")
    assert not has_colour(screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colour(screen)
    monkeypatch.setenv("FORCE_COLOR", "1")  # NO_COLOR wins
    assert not has_colour(screen)
    monkeypatch.delenv("NO_COLOR")
    assert has_colour(io.StringIO())


@pytest.mark.slow
@pytest.mark.parametrize("line", ["check gelu", "explain residual"])
def test_output_fits_80_columns(line):
    environment = small_run.environment(COLUMNS="80", NO_COLOR="1")
    done = small_run.run([sys.executable, "-m", "gpt2", *line.split()], env=environment)
    assert done.returncode == 0, done.stderr
    assert [text for text in done.stdout.splitlines() if len(text) > 80] == []


# ---- Completion ------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_flags_and_choices(tmp_path):
    pytest.importorskip("shtab")
    (tmp_path / "one file").touch()
    start = completion.script("bash")

    def completed(*words):
        script = f"{start}\ncd {tmp_path}; COMP_WORDS=({' '.join(map(shlex.quote, words))})\n"
        script += 'COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _shtab_gpt2; printf "%s\\n" "${COMPREPLY[@]}"'
        done = small_run.run(["bash", "-c", script])
        assert done.returncode == 0 and not done.stderr
        return done.stdout.split("\n")[:-1]

    assert completed("gpt2", "ex") == ["explain", "exercises"]
    assert completed("gpt2", "sample", "--tempe") == ["--temperature"]
    assert completed("gpt2", "train", "--comp") == ["--compile"]
    assert completed("gpt2", "sample", "--checkpoint", "") == ["best", "last"]
    assert completed("gpt2", "train", "--order", "e") == ["epochs"]
    assert completed("gpt2", "train", "--preset", "sh") == ["shakespeare", "shakespeare-char-cpu"]
    assert completed("gpt2", "sample", "--init", "gpt2-x") == ["gpt2-xl"]
    assert completed("gpt2", "train", "--kernels", "o") == ["own"]
    assert "layernorm" in completed("gpt2", "explain", "")
    assert completed("gpt2", "plot", "") == completed("gpt2", "train", "--data", "") == ["one file"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_scripts_have_all_commands_and_flags(shell):
    pytest.importorskip("shtab")
    script = completion.script(shell)
    for name in NAMES:
        assert name in script
        assert all(flag.removeprefix("--") in script for flag in completion.parser_of(name).long_flags())


def test_completion_without_its_package_is_one_line(monkeypatch, refusal):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert "completion scripts need the package shtab: " in refusal(completion.main, "bash")


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
# A functools.partial, and what is no function at all
NO_SOURCES = """
import functools
gelu_backward = 5
residual_backward = functools.partial(lambda dout, saved: (dout, {sign}dout))
"""


@pytest.mark.parametrize(
    "text, sign, status, lines",
    [
        (MINE, "", 0, ["ok  residual_backward"]),
        (MINE, "-", 1, ["BAD residual_backward (mine.py:4) is not the derivative", "the sign is wrong"]),
        (
            MINE,
            "1 / 0 * ",
            1,
            ["BAD residual_backward (mine.py:4): ZeroDivisionError at mine.py:5: division by zero\n"],
        ),
        (NO_SOURCES, "", 1, ["ok  residual_backward\n", "backward is 5, expected a function"]),
        (NO_SOURCES, "-", 1, ["BAD residual_backward is not the derivative", "BAD gelu_backward: TypeError"]),
    ],
    ids=["right", "wrong sign", "error", "right without a source", "wrong sign without a source"],
)
def test_check_of_a_file_of_backwards(tmp_path, capsys, text, sign, status, lines):
    file = tmp_path / "mine.py"
    file.write_text(text.format(sign=sign))
    assert check.main([str(file)]) == status
    out = capsys.readouterr().out
    assert all(line in out for line in lines) and ("ok  double_backward" in out) == (text == MINE)


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "mine.py: No such file or directory\n"),
        ("def f(", "it cannot be run: SyntaxError"),
        ("x = 1", "no function NAME_backward"),
        ("def layernrm_backward(): 1", "has no layernrm_forward; did you mean layernorm?"),
        ("def f_forward(x): 1\ndef f_backward(d, x): 1", "f_cases is missing"),
    ],
)
def test_check_of_a_file_without_backwards_is_one_line(tmp_path, refusal, text, message):
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    assert message in refusal(check.main, tmp_path / "mine.py")


def test_interrupt_while_a_command_is_imported(monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupt)
    monkeypatch.setattr(sys, "argv", ["gpt2"])
    assert commands.main(["train"]) == 130


def test_lack_of_memory_is_one_line(refusal):
    def work(arguments):
        raise MemoryError("Unable to allocate 9 PiB")

    assert refusal(cli.command(lambda: cli.Parser("x"), work)) == (
        "error: not enough memory (Unable to allocate 9 PiB)\n"
    )


@pytest.mark.parametrize(
    "words, message",
    [
        ("--seconds 0", "--seconds 0.0: expected more than 0"),
        ("--seconds nan", "--seconds nan: expected more than 0"),
        ("--block-size 1000000000", "not enough memory: "),
    ],
)
def test_impossible_bench_is_one_line(monkeypatch, refusal, words, message):
    monkeypatch.setattr("gpt2.train.cost.free_memory", lambda swap: 1 << 30)
    assert message in refusal(bench.main, "--size", "tiny", *words.split())


@pytest.mark.slow
def test_bench_prints_a_line_for_each_backward(capsys):
    options = "--size tiny --backward manual whole --batch-size 1 --block-size 8 --seconds 0.01"
    assert bench.main(options.split()) == 0
    text = capsys.readouterr().out
    assert re.search(r"^manual +[\d.]+ +[\d,]+ +[\d.]+ +(\d+%|\?) +\d+$", text, re.M) and "\nwhole " in text
    assert max(map(len, text.splitlines())) <= 80


def test_bench_of_the_machine_prints_each_figure_for_one_thread_and_all(monkeypatch, capsys):
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
def test_bench_of_kernels_in_a_new_process():
    """None if OpenBLAS does not load them."""
    rate = machine.with_kernels(ad.blas_kernels() or "Haswell", 1)
    assert (rate is None) == (not ad.blas_kernels()) and machine.with_kernels("NoSuchKernels", 1) is None


def test_check_of_a_file_of_layers_names_the_right_command(tmp_path, monkeypatch, refusal):
    monkeypatch.chdir(tmp_path)
    Path("rms norm.py").write_text(
        "import numpy as np\ndef forward(inp, weight, bias): return inp * weight + bias, None\n"
        "LAYERS = {'layernorm': forward}\n"
    )
    error = refusal(check.main, "rms norm.py").strip()
    command = error.partition("; its layers are checked with: gpt2 ")[2]
    assert command == "check --layers 'rms norm.py'"
    assert check.main(shlex.split(command)[1:]) == 0
