"""python -m gpt2: the list of commands, or one of them.

    python -m gpt2                      what there is
    python -m gpt2 sample --run mine    the same as python -m gpt2.sample --run mine
    gpt2 sample --run mine              the same again, where the package is installed

A module of this package is a command if it can be run (it has an `if __name__ == "__main__"`); the first line
of its docstring says what it does. So a new one is listed as soon as it is there.
"""

import ast
import difflib
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from gpt2.errors import exit_status

# What a command was called before, and is still understood as
BEFORE = {"backward": "certificate"}


def commands() -> dict[str, str]:
    """name -> what it does, for every module beside this one that is a command. Nothing is imported."""
    found = {}
    for path in sorted(Path(__file__).parent.iterdir()):
        file = path / "__main__.py" if path.is_dir() else path
        if path.stem.startswith("_") or path.stem in BEFORE or file.suffix != ".py" or not file.exists():
            continue
        source = file.read_text(encoding="utf-8")
        if path.is_dir() or 'if __name__ == "__main__":' in source:
            lines = (ast.get_docstring(ast.parse(source)) or "").splitlines()
            found[path.stem] = lines[0].rstrip(".") if lines else ""
    return found


def overview() -> str:
    """The text that python -m gpt2 --help prints."""
    rows = [(f"python -m gpt2.{name}", what) for name, what in commands().items()]
    width = max(len(command) for command, _ in rows)
    lines = [f"  {command:<{width}}  {what}" for command, what in rows]
    first = "GPT-2 in NumPy, with gradients written by hand or derived by a compiler."
    last = "Each explains itself with --help. In a checkout `python train.py` trains as well, and\n"
    last += "`python -m data` turns text into token files."
    return "\n".join([first, "", *lines, "", last])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names, or list what there is. Returns the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        return exit_status(lambda: print(overview()))
    name = BEFORE.get(argv[0], argv[0])
    if name not in commands():
        close = difflib.get_close_matches(name, commands(), n=1)
        print(
            f"error: no command {name!r}; "
            + (f"did you mean {close[0]}?" if close else "python -m gpt2 --help lists what there is"),
            file=sys.stderr,
        )
        return 2
    sys.argv = [f"gpt2.{name}", *argv[1:]]
    runpy.run_module(f"gpt2.{name}", run_name="__main__", alter_sys=True)
    return 0  # a command ends by SystemExit, with its own status


if __name__ == "__main__":
    sys.exit(main())
