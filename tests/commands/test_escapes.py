"""Control characters in names, texts and settings never reach a terminal; names of runs in pictures."""

import io
import sys

import numpy as np
import pytest

from gpt2 import output
from gpt2.commands import plot
from gpt2.errors import printable
from gpt2.output import Output, painted, trusted
from gpt2.storage.metrics import Metrics
from tests.support.small_run import command, flags, posix
from tests.support.terminal import Terminal, at_a_terminal

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m"


def test_terminal_gets_no_control_characters_but_trusted_ones(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    words = ["a\tb\r\n", EVIL, painted("BAD", "red"), trusted("\x1b[H"), "naïve\u3000中\x85"]
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        print(*words, sep="|", file=Output(stream))
    assert terminal.getvalue() == (
        "a\tb\r\n|\\x1b]0;owned\\x07\\x1b[2J\\x9b31m|\x1b[31mBAD\x1b[0m|\x1b[H|naïve\u3000中\\x85\n"
    )
    assert EVIL in file.getvalue()


def harmless(text):
    """Whether a terminal got no control characters but those of the word "error" in red."""
    return not output.CONTROL.search(text.replace("\x1b[31merror:\x1b[0m", ""))


@posix
@pytest.mark.slow
def test_control_characters_in_names_and_texts_do_not_reach_a_terminal(tmp_path):
    """In the names of the run and the text file, in settings, in the text and in samples."""
    evil = tmp_path / f"a{EVIL}b"
    evil.mkdir()
    text = evil / f"{EVIL}.txt"
    text.write_text(EVIL * 300)
    words = flags(text, evil / "run", "--tokenizer", "char", "--sample-tokens", 20, "--steps", 2)
    status, shown = at_a_terminal(command(*words))
    assert status == 0 and harmless(shown) and "\\x1b]0;owned" in shown, repr(shown)
    for words in (
        ["sample", "--run", evil / "run", "--prompt", EVIL, "--max-tokens", 20],
        ["evaluate", "--run", evil / "run", "--data", text],
        ["data", text, "--tokenizer", "char", "--out", evil / "tokens"],
        ["convert", evil / "run", evil / "mine.safetensors"],
        ["sample", "--run", evil],
    ):
        status, shown = at_a_terminal([sys.executable, "-m", "gpt2", *words])
        assert harmless(shown) and "\\x1b" in shown, (words, shown)


@pytest.mark.parametrize("name", ["$x$", "a_$1", "_hidden", "$\\frac{1}{", "plain", EVIL])
def test_name_of_a_run_is_shown_literally_in_pictures(name, tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    steps = np.arange(4.0)
    runs = [Metrics(name, {"loss": (steps, steps + 1)}), Metrics("other", {"loss": (steps, steps)})]
    plot.save(runs, [tmp_path / "a.svg"])
    axes = plot.figure(runs).axes[0]
    texts = axes.get_legend().get_texts()
    drawn = [text.get_text() for text in texts]
    shown = printable(name)
    assert [text.lstrip("\N{ZERO WIDTH SPACE}") for text in drawn] == [shown, "other"]
    assert not any(text.get_parse_math() for text in texts) and not drawn[0].startswith("_")
    assert plot.screen(runs, 200, 20).startswith(shown)
