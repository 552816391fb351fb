"""Exercises: write the backwards of GPT-2's seven layers, or a compiler for them, and have them graded."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpt2 import cli
from gpt2.commands.exercises import classes
from gpt2.commands.exercises.grading import Grader
from gpt2.commands.exercises.sheets import ALL, SETS, file_of, set_of, sets_in, sheet, text_of
from gpt2.errors import UserError, printable
from gpt2.hints import quoted, typed
from gpt2.output import painted
from gpt2.storage.files import made_folder, write_atomically

ABOUT = """Exercises: write the backwards of GPT-2's seven layers, or a compiler for them; graded.

Writes a file per layer into a folder: its mathematics, its forward, and an empty backward; with --set
compiler a file for each of five steps. --grade runs the files and says which are right, and what is probably
wrong with the others. Of several folders, or of a folder with a folder for each student, it prints a table
and the mistakes of the class."""
EXAMPLES = (
    ("gpt2 exercises", "write the exercises into the folder exercises"),
    ("gpt2 exercises --grade", "grade them"),
    ("gpt2 exercises --hint gelu", "a hint; a second one with --more"),
    ("gpt2 exercises --set compiler", "a compiler for backwards, in five steps"),
    ("gpt2 exercises --grade class --csv grades.csv --worksheets sheets", "grade a class"),
    ("gpt2 exercises --solutions solved", "write the solutions"),
)
FOLDERS = {"layers": "exercises", "compiler": "compiler"}  # where none is named
TIMEOUT = 60.0  # seconds; a right solution and Python's start take one, the search for a mistake another
WORDS = ("grade", "hint", "solutions")  # flags, which are easily typed without their dashes
WITH_GRADE = ("json", "csv", "worksheets", "timeout")


def grading(folder: Path) -> str:
    """The command that grades a folder."""
    return typed(f"gpt2 exercises {'' if str(folder) == FOLDERS['layers'] else quoted(folder) + ' '}--grade")


def write(folder: Path, solved: bool, of: str = "layers") -> None:
    """Write all exercises of a set. Raises UserError if one exists."""
    paths = {name: file_of(folder, name) for name in SETS[of]}
    for path in paths.values():
        if path.exists():
            text = f"name another folder, or grade what is written: {grading(folder)}"
            raise UserError(f"{path} exists already; {text}")
    made_folder(folder)
    for name, path in paths.items():
        write_atomically(path, text_of(name, solved).encode())


def layer_of(text: str) -> str:
    """The layer that is meant by its name, its number and name, or the path of its file."""
    stem = Path(text).name.removesuffix(".py")
    return stem[2:] if stem[:1].isdigit() and stem[1:2] == "_" else stem


def existing(folder: Path) -> Path:
    """`folder`, if there is one, else UserError with what was probably meant."""
    if folder.is_dir():
        return folder
    if folder.is_file():
        raise UserError(f"{folder}: is a file; grade its folder with: {grading(folder.parent)}")
    if sets_in(Path()):
        raise UserError(f"{folder}: no such folder; grade this one with: {grading(Path())}")
    raise UserError(f"{folder}: no such folder; write the exercises with: {typed('gpt2 exercises')}")


def report(results: Sequence[dict[str, Any]]) -> None:
    """Print a line per exercise, what is wrong with it, and how many are right."""
    for result in results:
        first, *rest = (printable(line) for line in result["message"].split("\n"))
        state = painted(f"{result['state']:5}", classes.STATES[result["state"]])
        print(f"{state}  {result['name']:12}  {first}".rstrip())
        for line in rest:
            print("\n".join(cli.wrapped(line, min(cli.width(), 110) - 1)))
    right = sum(result["state"] == "right" for result in results)
    print(f"{right} of {len(results)} right")


def graded(
    folders: Mapping[str, Path], exercises: Sequence[str], timeout: float
) -> Iterator[classes.Student]:
    """Each student, in order, as soon as the exercises are graded."""
    with Grader(timeout, prints=len(folders) == 1) as grader:
        jobs = {
            name: [grader.submit(file_of(folder, exercise), exercise) for exercise in exercises]
            for name, folder in folders.items()
        }
        for name, futures in jobs.items():
            yield classes.student(name, folders[name], [future.result() for future in futures])


def grade_class(
    folders: Mapping[str, Path], exercises: Sequence[str], timeout: float
) -> list[classes.Student]:
    """Print the table of a class, a line as soon as it is known, and the mistakes that were made."""
    print("\n".join(classes.heading(folders, exercises)))
    students = []
    for student in graded(folders, exercises, timeout):
        students.append(student)
        print(classes.row(folders, student), flush=True)
    print(classes.total(folders, students))
    if mistakes := classes.mistakes_of(students):
        print("\nmistakes, with the number of students:")
    for mistake in mistakes:
        names = ", ".join(map(printable, mistake["students"]))
        text = f"{len(mistake['students']):3}  {mistake['layer']}: {printable(mistake['cause'])} ({names})"
        print("\n".join(cli.wrapped(text, min(cli.width(), 110) - 1)))
    return students


def run_grade(args: Any) -> int:
    """The flag --grade: 0 if all is right, else 1."""
    given = [Path(folder) for folder in args.folder]
    for path in [path for path in given if path.is_file() and len(given) > 1]:
        cli.tell(f"note: {path} is a file and is not graded")
        given.remove(path)
    folders = classes.folders_of([existing(folder) for folder in given])
    sets = {args.set} if args.set else {key for path in folders.values() for key in sets_in(path)}
    exercises = [name for name in ALL if set_of(name) in (sets or {"layers"})]
    timeout = TIMEOUT if args.timeout is None else args.timeout
    if alone := len(folders) == 1 and [*folders.values()] == given:
        students = list(graded(folders, exercises, timeout))
        report(students[0]["exercises"])
    else:
        students = grade_class(folders, exercises, timeout)
    if args.json:
        everything = {"students": students, "mistakes": classes.mistakes_of(students)}
        content = students[0] if alone else everything
        write_atomically(Path(args.json), (json.dumps(content, indent=1) + "\n").encode())
    if args.csv:
        write_atomically(Path(args.csv), classes.as_csv(students))
    if args.worksheets:
        for path, page in classes.worksheets(students, made_folder(args.worksheets)).items():
            write_atomically(path, page)
    return 0 if all(student["right"] == student["of"] for student in students) else 1


def seconds(text: str) -> float:
    if not (number := float(text)) > 0 or number == math.inf:
        raise ValueError
    return number


def parser() -> cli.Parser:
    command = cli.Parser("exercises", ABOUT, EXAMPLES)
    add = command.add_argument
    where = "default: exercises, or the name of the set"
    add("folder", nargs="*", metavar="FOLDER", help=where)
    about = "layers (the default) or compiler; with --grade, by default what the folder has"
    add("--set", choices=SETS, help=about)
    one = command.add_mutually_exclusive_group()
    about = "say which are right, and what is wrong with the others"
    one.add_argument("--grade", action="store_true", help=about)
    one.add_argument("--hint", metavar="NAME", type=layer_of, choices=ALL, help=", ".join(ALL))
    one.add_argument("--solutions", metavar="OUT", help="write the solutions into this folder")
    add("--json", metavar="FILE", help="with --grade: write the results to a file")
    add("--csv", metavar="FILE", help="with --grade: a table of students and exercises, for a spreadsheet")
    add("--worksheets", metavar="OUT", help="with --grade: a page for each student, with mistakes and hints")
    limit = f"with --grade: the time limit of a file (default: {TIMEOUT:g})"
    add("--timeout", type=seconds, metavar="SECONDS", help=limit)
    add("--more", action="store_true", help="with --hint: the second hint, which is nearly the solution")
    return command


def _run(args) -> int:
    for name in WITH_GRADE:
        if getattr(args, name) is not None and not args.grade:
            raise UserError(f"--{name} has no effect without --grade; give both, or neither")
    if args.more and not args.hint:
        raise UserError("--more has no effect without --hint NAME; give both, or neither")
    of = args.set or "layers"
    args.folder = args.folder or [FOLDERS[of]]
    if args.grade:
        return run_grade(args)
    if len(args.folder) > 1:
        raise UserError(f"several folders are for --grade: {' '.join(args.folder)}")
    folder = Path(args.folder[0])
    if str(folder) in WORDS and not folder.exists():
        raise UserError(f"{folder}: would be a folder; did you mean --{folder}?")
    if args.hint:
        print(cli.filled(sheet(args.hint).HINTS[args.more]))
    elif args.solutions:
        write(Path(args.solutions), True, of)
        print(f"wrote the solutions into {printable(args.solutions)}")
    else:
        write(folder, False, of)
        first = SETS[of][0]
        print(f"begin with {file_of(folder, first)}; then: {grading(folder)}")
        print(f"a hint: {typed(f'gpt2 exercises --hint {first}')}")
    return 0


# Exit status 0, 1 where --grade finds a backward that is not right, 2 for a wrong command line.
main = cli.command(parser, _run)
