"""Control characters of names, texts and settings: a terminal never gets them. Names in pictures."""

import io
import os
import subprocess
import sys

import numpy as np
import pytest

from gpt2 import output
from gpt2.commands import plot
from gpt2.errors import printable
from gpt2.output import Output, painted, trusted
from gpt2.storage.metrics import Metrics
from tests.support.small_run import ROOT, environment, flags

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_no_control_characters_but_trusted_ones(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    live, pipe = Terminal(), io.StringIO()
    for stream in (live, pipe):
        out = Output(stream)
        print(
            "a\tb\r\n", EVIL, painted("BAD", "red"), trusted("\x1b[H"), "naïve\u3000中\x85", file=out, sep="|"
        )
    assert live.getvalue() == (
        "a\tb\r\n|\\x1b]0;owned\\x07\\x1b[2J\\x9b31m|\x1b[31mBAD\x1b[0m|\x1b[H|naïve\u3000中\\x85\n"
    )
    assert EVIL in pipe.getvalue()  # a file gets what was written


def at_a_terminal(*words, **options):
    """What a program writes to a pseudo-terminal, standard output and standard error, and its status."""
    pty = pytest.importorskip("pty", reason="needs a pseudo-terminal")
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, *map(str, words)],
        stdout=theirs,
        stderr=theirs,
        env=environment(TERM="xterm"),
        **options,
    )
    os.close(theirs)
    text = b""
    try:
        while part := os.read(ours, 1 << 16):
            text += part
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    return program.wait(), text.decode(errors="replace")


def harmless(text):
    """Whether a terminal got no control characters but those of the word "error" in red."""
    return not output.CONTROL.search(text.replace("\x1b[31merror:\x1b[0m", ""))


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX")
@pytest.mark.slow
def test_a_run_with_such_names_and_texts_leaves_a_terminal_alone(tmp_path):
    """Run folder, text file, settings, the text itself, and what is sampled of it."""
    evil = tmp_path / f"a{EVIL}b"
    evil.mkdir()
    text = evil / f"{EVIL}.txt"
    text.write_text(EVIL * 300)
    words = flags(text, evil / "run", "--tokenizer", "char", "--sample-tokens", 20, "--steps", 2)
    status, said = at_a_terminal(ROOT / "train.py", *words, cwd=ROOT)
    assert status == 0 and harmless(said) and "\\x1b]0;owned" in said, repr(said)
    for command in (
        ["sample", "--run", evil / "run", "--prompt", EVIL, "--max-tokens", 20],
        ["evaluate", "--run", evil / "run", "--data", text],
        ["data", text, "--tokenizer", "char", "--out", evil / "tokens"],
        ["convert", evil / "run", evil / "mine.safetensors"],
        ["sample", "--run", evil],
    ):
        status, said = at_a_terminal("-m", "gpt2", *command, cwd=ROOT)
        assert harmless(said) and "\\x1b" in said, (command, said)


@pytest.mark.parametrize("name", ["$x$", "a_$1", "_hidden", "$\\frac{1}{", "plain", EVIL])
def test_names_of_runs_in_a_picture(name, tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    steps = np.arange(4.0)
    runs = [Metrics(name, {"loss": (steps, steps + 1)}), Metrics("other", {"loss": (steps, steps)})]
    plot.save(runs, [tmp_path / "a.svg"])
    axes = plot.figure(runs).axes[0]
    drawn = [text.get_text() for text in axes.get_legend().get_texts()]
    shown = printable(name)
    assert [text.lstrip("\N{ZERO WIDTH SPACE}").replace(r"\$", "$") for text in drawn] == [shown, "other"]
    assert drawn[0].count(r"\$") == name.count("$") and not drawn[0].startswith("_")
    assert plot.screen(runs, 200, 20).startswith(shown)
