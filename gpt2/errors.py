"""The one exception that means: the user can put this right.

Programs (train.py, python -m gpt2 sample, ...) print its text as a single line and leave with status 2.
Anything else that escapes is a fault of this project and keeps its traceback.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpt2.output import OutputLost, escaped, painted, standing_in

LONGEST = 2000  # characters of a message


def printable(text: object) -> str:
    """The text in one line without control characters: what does not print is escaped as in Python."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def counted(count: int, noun: str) -> str:
    """A number of things: "1 block", "2,000 blocks"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


class UserError(ValueError):
    """Bad input. The text names what was wrong, what was expected and what to do, in one line.

    Texts quote what files and arguments hold, which may be anything: characters that do not print, such as
    line breaks and the sequences that control a terminal, are spelt out, as in a string of Python, and of
    what is very long the middle is left out.
    """

    def __init__(self, text: object = ""):
        text = str(text)
        if len(text) > LONGEST:
            text = f"{text[: LONGEST // 2]} [...] {text[-LONGEST // 2 :]}"
        super().__init__(printable(text))

    @property
    def as_flag(self) -> str:
        """The message as a program tells it."""
        return str(self)


class OptionError(UserError):
    """A UserError about a choice that a program offers as a flag.

    as_flag   the same message in the program's words, with the flag as a user types it
    """

    def __init__(self, text: str, as_flag: str):
        super().__init__(text)
        self._as_flag = UserError(as_flag)

    @property
    def as_flag(self) -> str:
        return str(self._as_flag)


def option_error(name: str, text: str) -> OptionError:
    """The OptionError that says `text` of the argument `name`: "top_p is 2", or "--top-p is 2"."""
    return OptionError(f"{name} {text}", f"--{name.replace('_', '-')} {text}")


def suggestion(name: str, names: Iterable[str], meant: Mapping[str, str] | None = None) -> str:
    """ "; did you mean X?" where one of the names is close to what was typed, else nothing.

    Close is one edit (a letter more, less or other, or two exchanged) for every four letters, and one in a
    shorter word; or that what was typed is a part of the name, as `batch` of `batch-size`. Of several names
    that are as close, one that begins alike counts.

    meant   further words that may have been typed, and which of the names each stands for
    """
    called = {**{n: n for n in names}, **(meant or {})}
    typed = _bare(name)
    near = {n: d for n in called if (d := _edits(typed, _bare(n), max(1, len(typed) // 4))) is not None}
    parts = [n for n in called if n not in (meant or {}) and _is_part(typed, _bare(n))]
    best = min(near, key=lambda n: (near[n], typed[:1] != _bare(n)[:1]), default=None)
    best = best or min(parts, key=len, default=None)
    return f"; did you mean {called[best]}?" if best is not None else ""


def _bare(name: str) -> str:
    """A name without what does not tell it from others: `batch-size` of `--batch_size`."""
    return name.lower().replace("_", "-").lstrip("-")


def _is_part(typed: str, name: str) -> bool:
    return f"-{typed}-" in f"-{name}-" if 3 <= len(typed) < 5 else len(typed) >= 5 and typed in name


def _edits(a: str, b: str, most: int) -> int | None:
    """How many edits make b of a; None where they are more than `most`, or half of the word."""
    if abs(len(a) - len(b)) > most:
        return None
    before: list[int] = []
    row = [*range(len(b) + 1)]  # row[j]: edits from the letters of a that were seen to b[:j]
    for i, letter in enumerate(a):
        last, before, row = before, row, [i + 1]
        for j, other in enumerate(b):
            exchanged = i and j and letter == b[j - 1] and a[i - 1] == other
            here = min(before[j] + (letter != other), before[j + 1] + 1, row[j] + 1)
            row.append(min(here, last[j - 1] + 1) if exchanged else here)
    return row[-1] if row[-1] <= most and 2 * row[-1] < max(len(a), len(b)) else None


def nearest(name: str, names: Iterable[str], meant: Mapping[str, str] | None = None) -> str:
    """The same, with a pointer to --help where nothing is close."""
    return suggestion(name, names, meant) or "; --help lists what there is"


def say_error(text: str) -> None:
    """Print "error: ..." on standard error."""
    print(escaped(f"{painted('error:', 'red', sys.stderr)} {text}"), file=sys.stderr)


def reason(error: BaseException) -> str:
    """The text of an exception, in one line and never empty."""
    text = getattr(error, "strerror", None) or str(error)
    return text.splitlines()[0] if text.strip() else type(error).__name__


def no_overflow_warnings() -> None:
    """Have NumPy not warn of overflow in this process. What overflows in a step ends in a loss or a norm that
    is not finite, which is reported in one line, with its position."""
    if not sys.warnoptions:  # who asked for warnings gets them
        kinds = "overflow|underflow|invalid value|divide by zero"
        warnings.filterwarnings("ignore", f"({kinds}) encountered", RuntimeWarning)


def exit_status(run: Callable[..., int | None], *args: Any, interrupted: int = 130) -> int:
    """run(*args) as a program: its own status (None: 0), 2 after a UserError, `interrupted` after Ctrl-C.

    A reader of the output that has seen enough, as `head` has, is no error; an output that is full is 1.
    """
    try:
        with standing_in(raising=True):
            return run(*args) or 0
    except UserError as error:
        say_error(error.as_flag)
        return 2
    except KeyboardInterrupt:
        return interrupted
    except OutputLost as error:
        if not error.seen_enough:
            say_error(f"standard output: {error}")
        return 0 if error.seen_enough else 1
