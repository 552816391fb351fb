"""Exercises: write the backwards of GPT-2's seven layers from their forwards, and grade them.

gpt2 exercises
"""

import ast
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from gpt2 import autodiff as ad
from gpt2 import cli
from gpt2.commands.check import known_cases, run_file
from gpt2.commands.exercises.sheets import ORDER
from gpt2.errors import UserError, printable, reason
from gpt2.hints import quoted, typed
from gpt2.output import painted
from gpt2.storage.files import write_atomically

ABOUT = """Exercises: write the backwards of GPT-2's seven layers from their forwards, and grade them.

Writes a file per layer into a folder: its mathematics, its forward, and an empty backward. --grade runs the
files and says which are right, and what is probably wrong with the others."""
EXAMPLES = (
    ("gpt2 exercises", "write the exercises into the folder exercises"),
    ("gpt2 exercises --grade", "grade them"),
    ("gpt2 exercises --hint gelu", "a hint; a second one with --more"),
    ("gpt2 exercises work --grade --json grade.json", "grade another folder, with a file of results"),
    ("gpt2 exercises --solutions solved", "write the solutions"),
)
TO_WRITE = 'raise NotImplementedError("write this backward")'
STATES = {"right": "green", "wrong": "red", "open": "blue"}


def sheet(name: str) -> ModuleType:
    """The module of an exercise: forward, solution and hints."""
    return importlib.import_module(f"gpt2.commands.exercises.sheets.{name}")


def text_of(name: str, solved: bool) -> str:
    """The text of an exercise, with its solution or with an empty backward."""
    source = Path(str(sheet(name).__file__)).read_text(encoding="utf-8")
    source = source[: source.index("\n\nHINTS = (")]
    if solved:
        return source
    (backward,) = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == f"{name}_backward"
    ]
    return "".join(source.splitlines(keepends=True)[: backward.lineno]) + f"    {TO_WRITE}\n"


def file_of(folder: Path, name: str) -> Path:
    """The path of an exercise."""
    return folder / f"{ORDER.index(name) + 1}_{name}.py"


def write(folder: Path, solved: bool) -> None:
    """Write all exercises. Raises UserError if one exists."""
    paths = {name: file_of(folder, name) for name in ORDER}
    for path in paths.values():
        if path.exists():
            raise UserError(f"{path} exists already; name another folder, or move it")
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in paths.items():
        write_atomically(path, text_of(name, solved).encode())


def grade(path: Path, name: str) -> dict[str, Any]:
    """{name, state, message} of one exercise; state is `right`, `wrong`, or `open` if nothing is written yet.

    Compares with the derivative of the sheet's forward, not of the file's.
    """

    def graded(state: str, message: str = "") -> dict[str, Any]:
        return {"name": name, "state": state, "message": message}

    if not path.exists():
        return graded("open", f"{path} is missing")
    try:
        backward = run_file(path).get(f"{name}_backward")
    except UserError as error:
        return graded("wrong", str(error))
    if backward is None:
        return graded("wrong", f"{path}: has no function {name}_backward")
    forward, cases = getattr(sheet(name), f"{name}_forward"), known_cases(name)
    try:
        ad.check_backward(forward, backward, cases)
    except NotImplementedError:
        return graded("open", "not written yet")
    except ad.BackwardMismatch as mismatch:
        details = [line for line in str(mismatch).split("\n")[1:] if line.startswith(("  case 0", "      "))]
        lines = [f"{name}_backward is not the derivative of its forward:", *dict.fromkeys(details)]
        return graded("wrong", "\n".join(lines).replace(f"{name}.py:", f"{path.name}:"))
    except (Exception, SystemExit) as error:
        return graded("wrong", f"{name}_backward raises {type(error).__name__}: {reason(error)}")
    return graded("right")


def report(results: Sequence[dict[str, Any]]) -> None:
    """Print a line per exercise, what is wrong with it, and how many are right."""
    for result in results:
        first, *rest = (printable(line) for line in result["message"].split("\n"))
        state = painted(f"{result['state']:5}", STATES[result["state"]])
        print(f"{state}  {result['name']:12}  {first}".rstrip())
        for line in rest:
            print("\n".join(cli.wrapped(line, min(cli.width(), 110) - 1)))
    right = sum(result["state"] == "right" for result in results)
    print(f"{right} of {len(results)} right")


def parser() -> cli.Parser:
    """The flags of `gpt2 exercises`."""
    command = cli.Parser("exercises", ABOUT, EXAMPLES)
    add = command.add_argument
    add("folder", nargs="?", default="exercises", metavar="FOLDER", help="default: exercises")
    one = command.add_mutually_exclusive_group()
    about = "say which are right, and what is wrong with the others"
    one.add_argument("--grade", action="store_true", help=about)
    one.add_argument("--hint", metavar="LAYER", choices=ORDER, help=", ".join(ORDER))
    one.add_argument("--solutions", metavar="OUT", help="write the solutions into this folder")
    add("--json", metavar="FILE", help="with --grade: write the results to a file")
    add("--more", action="store_true", help="with --hint: the second hint, which is nearly the solution")
    return command


def _run(args) -> int:
    if args.json and not args.grade:
        raise UserError("--json has no effect without --grade; give both, or neither")
    if args.more and not args.hint:
        raise UserError("--more has no effect without --hint LAYER; give both, or neither")
    folder = Path(args.folder)
    if args.hint:
        print(cli.filled(sheet(args.hint).HINTS[args.more]))
    elif args.solutions:
        write(Path(args.solutions), solved=True)
    elif args.grade:
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; write the exercises with: {typed('gpt2 exercises')}")
        results = [grade(file_of(folder, name), name) for name in ORDER]
        report(results)
        right = sum(result["state"] == "right" for result in results)
        if args.json:
            summary = {"right": right, "of": len(results), "exercises": results}
            write_atomically(Path(args.json), (json.dumps(summary, indent=1) + "\n").encode())
        return 0 if right == len(results) else 1
    else:
        write(folder, solved=False)
        grading = typed(f"gpt2 exercises {quoted(folder)} --grade")
        print(f"begin with {file_of(folder, ORDER[0])}; then: {grading}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0, 1 where --grade finds a backward that is not right, 2 for a wrong command line."""
    return cli.run(parser(), _run, argv)


if __name__ == "__main__":
    sys.exit(main())
