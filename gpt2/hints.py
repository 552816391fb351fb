"""Commands in messages, spelt so that they work in the user's shell.

Texts say `gpt2 NAME` and `python ...`. `typed` replaces these by the program as it was called: the command
gpt2, or the interpreter with a script or a module.
"""

import importlib.util
import os
import re
import shlex
import shutil
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

STARTED = sys.argv[0] if sys.argv else ""  # as it was typed; runpy changes it later
PACKAGE = Path(__file__).resolve().parent
# At the beginning of a line, or after a back quote or a parenthesis
COMMAND = re.compile(r"(?m)(^ *|[`(])(?:gpt2(?= -)|gpt2 (\w+)|python(?= ))")


def typed(text: str) -> str:
    """`text` with its commands as the user has to type them."""

    def program(match):
        if match[0].endswith("python"):
            return match[1] + python()
        return match[1] + _program(match[2])

    return COMMAND.sub(program, text)


def _program(name):
    """The command line that starts the command `name`, or gpt2 itself for None."""
    script = Path(STARTED)
    if script.stem == "gpt2" and script.suffix in ("", ".exe"):
        known = _is_same(shutil.which("gpt2"), shutil.which(STARTED))
        return " ".join(filter(None, ["gpt2" if known else quoted(STARTED), name]))
    if name == "train" and _is_same(STARTED, PACKAGE.parent / "train.py"):
        return f"{python()} {quoted(STARTED)}"
    return f"{_path()}{python()} -m {' '.join(filter(None, ['gpt2', name]))}"


def _is_same(one, other):
    try:
        return bool(one and other) and os.path.samefile(one, other)
    except OSError:
        return False


def python() -> str:
    """The interpreter as it was called, or its full path if that name resolves to another one."""
    called = sys.orig_argv[0] if sys.orig_argv else ""
    path = shutil.which(called)
    known = path and os.path.abspath(path) == os.path.abspath(sys.executable)
    return quoted(called if known else sys.executable or "python")


def _path():
    """PYTHONPATH=... for `python -m gpt2`, if a script was started from outside its checkout."""
    places = [*sys.path]
    if not sys.flags.safe_path:
        with suppress(OSError):  # the working folder has been removed
            places[:1] = [os.getcwd()]
    specs = [PathFinder.find_spec("gpt2", places)]
    specs += [finder.find_spec("gpt2", None) for finder in sys.meta_path if finder is not PathFinder]
    if any(spec and spec.origin and Path(spec.origin).resolve().parent == PACKAGE for spec in specs):
        return ""
    folders = filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")])
    return f"PYTHONPATH={quoted(os.pathsep.join(folders))} " if os.name == "posix" else ""


def install(*packages: str) -> str:
    """The command that installs packages for this interpreter."""
    if importlib.util.find_spec("pip") is None:
        return f"install {' and '.join(packages)}"
    return f"{python()} -m pip install {' '.join(map(quoted, packages))}"


def quoted(path: str | Path) -> str:
    """A path quoted for the shell, without control characters, and not mistaken for a flag."""
    text = str(path)
    text = f"./{text}" if text.startswith("-") else text
    if os.name == "nt":
        return f'"{text}"' if " " in text else text
    if text.isprintable():
        return shlex.quote(text)
    spelt = [
        c if c.isprintable() and c not in "\\'" else "".join(f"\\x{byte:02x}" for byte in os.fsencode(c))
        for c in text
    ]
    return f"$'{''.join(spelt)}'"
