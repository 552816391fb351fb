"""gpt2: list the commands, or run one.

Every module of gpt2/commands is a command, and every package of gpt2 with a `__main__.py`; the first line
docstring is its line in the list.
"""

import ast
import importlib
import importlib.metadata
import platform
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from gpt2 import __version__
from gpt2.errors import exit_status, nearest, print_error
from gpt2.hints import typed
from gpt2.output import painted

# A command's name in other programs -> here, for the suggestion in the error message
ALIASES = {
    "benchmark": "bench",
    "curves": "plot",
    "eval": "evaluate",
    "export": "convert",
    "finetune": "train",
    "generate": "sample",
    "test": "check",
    "tokenize": "data",
    "verify": "check",
}
# Most used first; the others follow alphabetically
ORDER = ("train", "sample", "evaluate", "plot", "convert", "explain", "check", "bench", "data")


def commands() -> dict[str, str]:
    """name -> what it does, for every command. Nothing is imported."""
    summaries = {}
    for name, file in _files().items():
        docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        summaries[name] = docstring.partition("\n")[0].rstrip(".")
    names = [name for name in ORDER if name in summaries]
    return {name: summaries[name] for name in [*names, *(n for n in summaries if n not in names)]}


def module_of(name: str) -> str:
    """The module of a command, which has the functions `parser` and `main`."""
    file = _files()[name].relative_to(Path(__file__).parent)
    return ".".join(["gpt2", *file.parent.parts, file.stem])


def _files() -> dict[str, Path]:
    """name -> the file of each command."""
    here = Path(__file__).parent
    files = {
        file.parent.name: file for file in [*here.glob("*/__main__.py"), *here.glob("commands/*/__main__.py")]
    }
    files |= {file.stem: file for file in here.glob("commands/*.py") if file.stem != "__init__"}
    return dict(sorted(files.items()))


def overview() -> str:
    """The text that gpt2 --help prints."""
    about = f"{painted('GPT-2 in NumPy', 'bold')}, with gradients written by hand or derived by a compiler."
    lines = [about, ""]
    for name, summary in commands().items():
        first, *rest = textwrap.wrap(summary, 58)
        lines.append(f"  {painted(name, 'blue')}{' ' * (13 - len(name))}{first}")
        lines += [" " * 15 + line for line in rest]
    more = "A command explains itself with --help; --version says which version this is:"
    lines += ["", more, "", f"  {typed('gpt2 sample')} --help", f"  {typed('gpt2 --version')}"]
    return "\n".join(lines)


def version() -> str:
    """The versions of gpt2, NumPy and Python, and the system."""
    numpy = importlib.metadata.version("numpy")
    return f"gpt2 {__version__} (NumPy {numpy}, Python {platform.python_version()}, {platform.system()})"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names, or list all. Returns the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        return exit_status(lambda: print(overview()))
    if argv[0] in ("-V", "--version", "version"):
        return exit_status(lambda: print(version()))
    name = argv[0]
    if name not in commands():
        kind = "unknown argument" if name.startswith("-") else "unknown command"
        close = nearest(name, (*commands(), "--help", "--version"), ALIASES)
        print_error(f"{kind} {name!r}{close.replace('--help lists', typed('gpt2 --help') + ' lists')}")
        return 2
    try:
        return importlib.import_module(module_of(name)).main(argv[1:])
    except KeyboardInterrupt:  # while the command's modules are loaded
        return 130


if __name__ == "__main__":
    sys.exit(main())
