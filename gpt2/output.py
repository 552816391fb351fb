"""Standard output: colour, control characters, and what happens when a pipe is closed or a disk is full."""

import contextlib
import errno
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

# Cyan for blue: a dark screen shows it
STYLES = {"bold": 1, "red": 31, "green": 32, "yellow": 33, "blue": 36}


def has_colour(stream: Any = None) -> bool:
    """Whether a stream, by default standard output, goes to a terminal that shows colours.

    NO_COLOR, set to anything, says no (https://no-color.org); FORCE_COLOR says yes.
    """
    stream = sys.stdout if stream is None else stream
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    if stream is None or not stream.isatty() or os.environ.get("TERM") == "dumb":
        return False
    # an old console prints the codes
    return os.name != "nt" or "WT_SESSION" in os.environ or "TERM" in os.environ


def painted(text: str, style: str, stream: Any = None) -> str:
    """The text in one of STYLES if the stream shows colours, else unchanged."""
    return trusted(f"\x1b[{STYLES[style]}m{text}\x1b[0m") if has_colour(stream) else text


CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")  # all but tab and line ends
_trusted: set[str] = set()  # texts with control characters that reach a terminal as they are


def trusted(text: str) -> str:
    """Register a text whose control characters `Output` passes on to a terminal; returns it."""
    _trusted.add(text)
    return text


def escaped(text: str) -> str:
    """The text with control characters escaped as in Python, except in `trusted` parts.

    Names, settings and generated text may hold sequences that would take over a terminal.
    """
    if not CONTROL.search(text):
        return text
    allowed = "|".join(map(re.escape, _trusted)) or "(?!)"
    parts = re.split(f"({allowed})", text)  # every second one is trusted
    parts[::2] = [CONTROL.sub(lambda match: repr(match[0])[1:-1], part) for part in parts[::2]]
    return "".join(parts)


class OutputLost(Exception):
    """Standard output cannot be written. `reader_closed`: by a closed pipe, as after `head`."""

    def __init__(self, error: Exception):
        self.reader_closed = isinstance(error, BrokenPipeError)
        super().__init__(getattr(error, "strerror", None) or str(error).rstrip("."))


class Output:
    """A text stream that wraps another one, and escapes control characters on a terminal.

    After a write that fails, nothing more is written.

    lost      the OutputLost of that write, or None
    reported  whether the program has told its user
    raising   whether it is raised as well; otherwise the program looks at `lost`
    """

    def __init__(self, stream: TextIO, raising: bool = False):
        self.stream, self.raising = stream, raising
        self.lost: OutputLost | None = None
        self.reported = False
        self.is_terminal = stream.isatty()

    def write(self, text: str) -> int:
        self._do(self.stream.write, escaped(text) if self.is_terminal else text)
        return len(text)

    def flush(self) -> None:
        self._do(self.stream.flush)

    def _do(self, method: Callable[..., Any], *args: Any) -> None:
        if self.lost is not None:
            return
        try:
            method(*args)
        except UnicodeError:
            raise
        except (OSError, ValueError) as error:  # ValueError: the file is closed
            self.lost = OutputLost(error)
            # Python would try to write at exit what is still buffered, and complain: send it to os.devnull
            with contextlib.suppress(OSError, ValueError, AttributeError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self.stream.fileno())
                os.close(nowhere)
            if self.raising:
                raise self.lost from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextlib.contextmanager
def replace_stdout(raising: bool = False) -> Iterator[Output]:
    """Replace sys.stdout by an Output, flushed at the end of the block, and sys.stderr as well.

    If standard output is closed, it is os.devnull.
    """
    before, errors = sys.stdout, sys.stderr
    out = Output(before if before is not None else open(os.devnull, "w", encoding="utf-8"), raising)
    sys.stdout = out
    sys.stderr = Output(errors) if errors is not None else None
    try:
        yield out
        out.flush()
    finally:
        out.raising = False
        out.flush()
        sys.stdout, sys.stderr = before, errors


def reserve_standard_descriptors() -> None:
    """Open os.devnull on the descriptors 0, 1 and 2 that are closed: otherwise the next file that is opened
    gets one, and whatever a library writes to "standard output" ends up in it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError as error:
            if error.errno == errno.EBADF:
                os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, which is this one
