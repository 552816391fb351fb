"""Exercises: write the backwards of GPT-2's seven layers from their forwards, and grade them.

gpt2 exercises
"""

import ast
import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from gpt2 import cli
from gpt2.commands.check import cases_of, mistakes, raised, run_file
from gpt2.commands.exercises.sheets import ORDER
from gpt2.errors import UserError, printable
from gpt2.hints import quoted, typed
from gpt2.output import painted
from gpt2.storage.files import made_folder, write_atomically

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
FOLDER = "exercises"  # where none is named
WORDS = ("grade", "hint", "solutions")  # flags, which are easily typed without their dashes
HOW = "# gpt2's command exercises grades it with --grade, and helps with --hint {name}"
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
    until = "".join(source.splitlines(keepends=True)[: backward.lineno])
    return f"{until}    {HOW.format(name=name)}\n    {TO_WRITE}\n"


def file_of(folder: Path, name: str) -> Path:
    """The path of an exercise."""
    return folder / f"{ORDER.index(name) + 1}_{name}.py"


def grading(folder: Path) -> str:
    """The command that grades a folder."""
    return typed(f"gpt2 exercises {'' if str(folder) == FOLDER else quoted(folder) + ' '}--grade")


def write(folder: Path, solved: bool) -> None:
    """Write all exercises. Raises UserError if one exists."""
    paths = {name: file_of(folder, name) for name in ORDER}
    for path in paths.values():
        if path.exists():
            raise UserError(
                f"{path} exists already; name another folder, or grade what is written: {grading(folder)}"
            )
    made_folder(folder)
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
    try:
        wrong = mistakes(getattr(sheet(name), f"{name}_forward"), backward, cases_of(name))
    except NotImplementedError:
        return graded("open", "not written yet")
    except (Exception, SystemExit) as error:
        return graded("wrong", f"{name}_backward raises {raised(error, path)}")
    if wrong:
        lines = [f"{name}_backward is not the derivative of its forward:", *wrong[1:]]
        return graded("wrong", "\n".join(lines).replace(f"{name}.py:", f"{path.name}:"))
    return graded("right")


def layer_of(text: str) -> str:
    """The layer that is meant by its name, its number and name, or the path of its file."""
    stem = Path(text).name.removesuffix(".py")
    return stem[2:] if stem[:1].isdigit() and stem[1:2] == "_" else stem


def existing(folder: Path) -> Path:
    """`folder`, if there is one, else UserError with what was probably meant."""
    if folder.is_dir():
        return folder
    here = [name for name in ORDER if file_of(Path(), name).exists()]
    if folder.is_file():
        raise UserError(f"{folder}: is a file; grade its folder with: {grading(folder.parent)}")
    if here:
        raise UserError(f"{folder}: no such folder; grade this one with: {grading(Path())}")
    raise UserError(f"{folder}: no such folder; write the exercises with: {typed('gpt2 exercises')}")


def first_inside(folder: Path) -> Path | None:
    """The first folder in `folder` that has exercises, if `folder` itself has none."""
    if any(file_of(folder, name).exists() for name in ORDER):
        return None
    return next((sub for sub in sorted(folder.iterdir()) if file_of(sub, ORDER[0]).exists()), None)


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
    add("folder", nargs="?", default=FOLDER, metavar="FOLDER", help=f"default: {FOLDER}")
    one = command.add_mutually_exclusive_group()
    about = "say which are right, and what is wrong with the others"
    one.add_argument("--grade", action="store_true", help=about)
    one.add_argument("--hint", metavar="LAYER", type=layer_of, choices=ORDER, help=", ".join(ORDER))
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
    if args.folder in WORDS and not folder.exists():
        raise UserError(f"{args.folder}: would be a folder; did you mean --{args.folder}?")
    if args.hint:
        print(cli.filled(sheet(args.hint).HINTS[args.more]))
    elif args.solutions:
        write(Path(args.solutions), solved=True)
        print(f"wrote the solutions into {printable(args.solutions)}")
    elif args.grade:
        results = [grade(file_of(existing(folder), name), name) for name in ORDER]
        report(results)
        if inside := first_inside(folder):
            print(f"note: {printable(folder)} has no exercises, {printable(inside)} has: {grading(inside)}")
        right = sum(result["state"] == "right" for result in results)
        if args.json:
            summary = {"right": right, "of": len(results), "exercises": results}
            write_atomically(Path(args.json), (json.dumps(summary, indent=1) + "\n").encode())
        return 0 if right == len(results) else 1
    else:
        write(folder, solved=False)
        print(f"begin with {file_of(folder, ORDER[0])}; then: {grading(folder)}")
        print(f"a hint: {typed(f'gpt2 exercises --hint {ORDER[0]}')}")
    return 0


# Exit status 0, 1 where --grade finds a backward that is not right, 2 for a wrong command line.
main = cli.command(parser, _run)
