"""Standard output: colour, control characters, and what to do when its reader has gone or its disk is full.

painted("BAD", "red")           the text in colour, where standard output is a terminal that has it
with standing_in() as out:      sys.stdout is `out` within the block
    print(...)
    if out.lost: ...            why nothing more can be written, or None
"""

import contextlib
import errno
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

STYLES = {
    "bold": 1,
    "red": 31,
    "green": 32,
    "yellow": 33,
    "blue": 36,
}  # cyan for blue: a dark screen shows it


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
    return os.name != "nt" or "WT_SESSION" in os.environ or "TERM" in os.environ  # an old console shows codes


def painted(text: str, style: str, stream: Any = None) -> str:
    """The text in one of STYLES where the stream shows colours, else as it is."""
    return trusted(f"\x1b[{STYLES[style]}m{text}\x1b[0m") if has_colour(stream) else text


CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")  # all but tab and line ends
_trusted: set[str] = set()  # texts with control characters that reach a terminal as they are


def trusted(text: str) -> str:
    """The text, which `Output` from now on passes on to a terminal with its control characters."""
    _trusted.add(text)
    return text


def escaped(text: str) -> str:
    """The text with its control characters spelt as in Python, but for those that are `trusted`.

    Names, settings and generated text may hold sequences that would take over a terminal.
    """
    if not CONTROL.search(text):
        return text
    own = "|".join(map(re.escape, _trusted)) or "(?!)"
    parts = re.split(f"({own})", text)  # every second one is trusted
    parts[::2] = [CONTROL.sub(lambda found: repr(found[0])[1:-1], part) for part in parts[::2]]
    return "".join(parts)


class OutputLost(Exception):
    """Standard output takes no more. `seen_enough` where its reader has gone, as `head` does."""

    def __init__(self, error: Exception):
        self.seen_enough = isinstance(error, BrokenPipeError)
        super().__init__(getattr(error, "strerror", None) or str(error).rstrip("."))


class Output:
    """A text stream in front of another one, which writes to a terminal what `escaped` makes of a text.

    A write that fails is noted, and nothing is written after it.

    lost      the OutputLost, or None
    reported  whether the program has told its user so
    raising   whether it is raised as well; else the program decides when to look
    """

    def __init__(self, stream: TextIO, raising: bool = False):
        self.stream, self.raising = stream, raising
        self.lost: OutputLost | None = None
        self.reported = False
        self.live = stream.isatty()

    def write(self, text: str) -> int:
        self._do(self.stream.write, escaped(text) if self.live else text)
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
            self._let_go()
            if self.raising:
                raise self.lost from None

    def _let_go(self):
        """Have what is still buffered go nowhere: Python would try it once more as it ends, and complain."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextlib.contextmanager
def standing_in(raising: bool = False) -> Iterator[Output]:
    """sys.stdout as an Output, which has written everything at the end of the block, or lost it.

    Where a program is started with standard output closed, it goes nowhere. sys.stderr is an Output as well.
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


def open_what_is_closed() -> None:
    """Keep the numbers 0, 1 and 2 occupied where they are closed: else the next file that is opened has one,
    and whatever a library writes to "standard output" ends up in it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError as error:
            if error.errno == errno.EBADF:
                os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this one
