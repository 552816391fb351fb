"""UserError, the exception for bad input that the user can correct, and how a command reports it.

Programs (train.py, python -m gpt2 sample, ...) print its text as a single line and exit with status 2.
Any other exception is a bug and keeps its traceback.
"""

import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gpt2.output import OutputLost, escaped, painted, replace_stdout

MAX_LENGTH = 2000  # characters of a message
NO_FOLDER = "the working folder has been removed; change to another one"  # os.getcwd() names no file
CLOSE = 0.75  # the ratio of difflib from which on a word is taken for a typing error


def printable(text: object) -> str:
    """The text in one line, with characters that do not print escaped as in Python."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def counted(count: int, noun: str) -> str:
    """A number of things: "1 block", "2,000 blocks"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


# A command, which is left as it is, or a flag
FLAG = re.compile(
    r"(-m gpt2\b|\bgpt2 [a-z]+ -|\btrain\.py )[^;`]*|(?<![\w-])--(no-)?([a-z][a-z0-9-]*[a-z0-9])(?![\w=-])"
)


def as_arguments(text: str) -> str:
    """A message with its flags as arguments in Python: "--min-lr 2" becomes "min_lr 2"."""

    def argument(match):
        name = (match[3] or "").replace("-", "_")
        return match[0] if match[1] else f"{name}=False" if match[2] else name

    return FLAG.sub(argument, text)


class UserError(ValueError):
    """Bad input. The message says what is wrong, what was expected and what to do, in one line.

    The text names flags, as commands print it (`as_flag`); str(error) names arguments, as Python programs do.

    Messages quote files and arguments, which may hold anything: characters that do not print, such as line
    breaks and terminal control sequences, are escaped as in Python, and long messages lose their middle.
    """

    def __init__(self, text: object = ""):
        text = str(text)
        if len(text) > MAX_LENGTH:
            text = f"{text[: MAX_LENGTH // 2]} [...] {text[-MAX_LENGTH // 2 :]}"
        super().__init__(printable(text))

    def __str__(self) -> str:
        return as_arguments(self.args[0])

    @property
    def as_flag(self) -> str:
        """The message as a command prints it."""
        return self.args[0]


class OptionError(UserError):
    """A UserError about an argument that commands offer as a flag.

    as_flag   the same message, with the flag as a user types it
    """

    def __init__(self, text: str, as_flag: str):
        super().__init__(text)
        self._as_flag = UserError(as_flag).as_flag

    @property
    def as_flag(self) -> str:
        return self._as_flag


def option_error(name: str, text: str) -> OptionError:
    """The OptionError that says `text` of the argument `name`: "top_p is 2", or "--top-p is 2"."""
    return OptionError(f"{name} {text}", f"--{name.replace('_', '-')} {text}")


def suggestion(name: str, names: Iterable[str], aliases: Mapping[str, str] | None = None) -> str:
    """ "; did you mean X?" if one of the names is like `name` or contains it, else nothing.

    aliases   other words that may be typed -> the name that each stands for
    """
    import difflib  # needed after a typing error alone

    called = {_bare(n): n for n in names}
    meant = {**called, **{_bare(word): n for word, n in (aliases or {}).items()}}
    typed = _bare(name)
    close = difflib.get_close_matches(typed, meant, n=1, cutoff=CLOSE)
    if not close and len(typed) >= 5:
        close = sorted((n for n in called if typed in n), key=len)
    elif not close and len(typed) >= 3:
        close = sorted((n for n in called if f"-{typed}-" in f"-{n}-"), key=len)
    return f"; did you mean {meant[close[0]]}?" if close else ""


def _bare(name: str) -> str:
    """A name in lower case, with - for _ and without leading dashes: `batch-size` for `--batch_size`."""
    return name.lower().replace("_", "-").lstrip("-")


def nearest(name: str, names: Iterable[str], aliases: Mapping[str, str] | None = None) -> str:
    """`suggestion`, or a pointer to --help if nothing is close."""
    return suggestion(name, names, aliases) or "; --help lists what there is"


def print_error(text: str) -> None:
    """Print "error: ..." on standard error."""
    print(escaped(f"{painted('error:', 'red', sys.stderr)} {text}"), file=sys.stderr)


def reason(error: BaseException) -> str:
    """The text of an exception, in one line and never empty."""
    text = error.as_flag if isinstance(error, UserError) else getattr(error, "strerror", None) or str(error)
    return text.splitlines()[0] if text.strip() else type(error).__name__


@contextmanager
def os_errors(what: object) -> Iterator[None]:
    """Within the block an OSError is a UserError: what, and the reason."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{what}: {reason(error)}") from None


def no_overflow_warnings() -> None:
    """Turn off NumPy's overflow warnings in this process: a loss or norm that is not finite is reported in a
    line, with its position."""
    if not sys.warnoptions:  # python -W wins
        kinds = "overflow|underflow|invalid value|divide by zero"
        warnings.filterwarnings("ignore", f"({kinds}) encountered", RuntimeWarning)


def exit_status(run: Callable[..., int | None], *args: Any) -> int:
    """Call run(*args) and return the exit status: its result (None: 0), 2 after a UserError or for lack of
    memory, 130 after Ctrl-C, 0 if the reader of the output has closed it, as `head` does, 1 if the disk is
    full.
    """
    try:
        with replace_stdout(raising=True):
            return run(*args) or 0
    except UserError as error:
        print_error(error.as_flag)
        return 2
    except MemoryError as error:
        print_error(f"not enough memory ({reason(error)})")
        return 2
    except FileNotFoundError as error:
        if error.filename is not None:
            raise
        print_error(NO_FOLDER)
        return 2
    except KeyboardInterrupt:
        return 130
    except OutputLost as error:
        if not error.reader_closed:
            print_error(f"standard output: {error}")
        return 0 if error.reader_closed else 1
