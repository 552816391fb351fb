"""Programs at a terminal: a stream that is one, and a pseudo-terminal for a program in a new process."""

import io
import os

import pytest

from tests.support import small_run


class Terminal(io.StringIO):
    def isatty(self):
        return True


def at_a_terminal(words, prepare=lambda terminal: None):
    """(exit status, what the command writes to standard output and standard error) at a pseudo-terminal.

    prepare   called with the file number of the terminal, before the command starts
    """
    pytest.importorskip("pty", reason="needs a pseudo-terminal")
    ours, theirs = os.openpty()
    prepare(theirs)
    words = list(map(str, words))
    process = small_run.start(words, stdout=theirs, stderr=theirs, env=small_run.environment(TERM="xterm"))
    os.close(theirs)
    written = b""
    try:
        while part := os.read(ours, 1 << 16):
            written += part
    except OSError:  # how Linux reports that the other end is closed
        pass
    os.close(ours)
    return process.wait(), written.decode(errors="replace")
