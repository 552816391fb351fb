"""Students' folders, and what a class has done: a table, its mistakes, CSV, JSON and a worksheet each."""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gpt2.commands.exercises.sheets import ALL, file_of, sets_in, sheet
from gpt2.errors import printable
from gpt2.hints import typed
from gpt2.output import painted

STATES = {"right": "green", "wrong": "red", "open": "blue"}
HEADS = {"layernorm": "layer norm", "crossentropy": "cross entropy"}  # titles of columns that need two lines
LONGEST = 20  # characters of a name in the table: it fits into 80 columns

Student = dict[str, Any]  # name, folder, right, of, exercises: a result of each


def folders_of(given: Sequence[Path]) -> dict[str, Path]:
    """Name -> folder of exercises, of each student in the folders given.

    A folder without exercises is a class: each of its folders is a student's, whose exercises lie there or
    one folder below, as in unpacked archives. A student's name is that of the folder, or its path if two
    have the same.
    """
    found: list[tuple[str, Path]] = []
    for folder in given:
        name, below = folder.resolve().name, [] if sets_in(folder) else _subfolders(folder)
        members = [(sub.name, next(filter(sets_in, [sub, *_subfolders(sub)]), sub)) for sub in below]
        if not any(sets_in(path) for _, path in members):
            members = [(name, folder)]
        elif len(members) == 1 and len(given) > 1:
            members = [(name, members[0][1])]
        found += members
    count = Counter(name for name, _ in found)
    return {name if count[name] == 1 else str(path): path for name, path in found}


def _subfolders(folder: Path) -> list[Path]:
    """Folders in a folder, without hidden ones, __pycache__ and __MACOSX."""
    try:
        return sorted(
            sub for sub in folder.iterdir() if sub.is_dir() and not sub.name.startswith((".", "__"))
        )
    except OSError:
        return []


def student(name: str, folder: Path, results: list[dict[str, Any]]) -> Student:
    right = sum(result["state"] == "right" for result in results)
    return {"name": name, "folder": str(folder), "right": right, "of": len(results), "exercises": results}


def heading(names: Iterable[str], exercises: Sequence[str]) -> list[str]:
    """The lines over the table: two, if the title of an exercise needs them."""
    upper, lower = zip(*(HEADS.get(name, f" {name}").split(" ") for name in exercises))
    room = _room(names)
    above = [_line(room, "", exercises, upper)] if any(upper) else []
    return [*above, _line(room, "student", exercises, lower, "right")]


def row(names: Iterable[str], of: Student) -> str:
    exercises, states = zip(*((result["name"], result["state"]) for result in of["exercises"]))
    return _line(_room(names), printable(of["name"]), exercises, states, f"{of['right']} of {of['of']}")


def total(names: Iterable[str], students: Sequence[Student]) -> str:
    """The last line: how many have each exercise right, and all."""
    exercises = [result["name"] for result in students[0]["exercises"]]
    each = zip(*(of["exercises"] for of in students))
    counts = [str(sum(result["state"] == "right" for result in results)) for results in each]
    right = sum(of["right"] == of["of"] for of in students)
    return _line(_room(names), "right", exercises, counts, f"{right} have all")


def _room(names):
    return min(LONGEST, max(len(printable(name)) for name in (*names, "student")))


def _line(room, name, exercises, cells, last=""):
    """A line of the table; a longer name stands on a line of its own."""
    begin = f"{name:{room}}" if len(name) <= room else f"{name}\n{'':{room}}"
    for exercise, cell in zip(exercises, cells):
        width = max(5, *map(len, HEADS.get(exercise, exercise).split()))
        text = f"  {cell:{width}}"
        begin += text.replace(cell, painted(cell, STATES[cell])) if cell in STATES else text
    return f"{begin}  {last}".rstrip()


def mistakes_of(students: Iterable[Student]) -> list[dict[str, Any]]:
    """{layer, cause, students} of each mistake that was made, those of most students first."""
    who: dict[tuple[str, str], list[str]] = {}
    for of in students:
        for result in of["exercises"]:
            if result["state"] == "wrong":
                who.setdefault((result["name"], result["cause"]), []).append(of["name"])
    ordered = sorted(who.items(), key=lambda item: (-len(item[1]), ALL.index(item[0][0]), item[0][1]))
    return [{"layer": layer, "cause": cause, "students": names} for (layer, cause), names in ordered]


def as_csv(students: Sequence[Student]) -> bytes:
    """A line for each student: the name, the state of each exercise, how many are right."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["student", *(result["name"] for result in students[0]["exercises"]), "right"])
    for of in students:
        writer.writerow([of["name"], *(result["state"] for result in of["exercises"]), of["right"]])
    return text.getvalue().encode()


def worksheets(students: Iterable[Student], folder: Path) -> dict[Path, bytes]:
    """Path -> content of a Markdown page for each student: what is wrong, with a hint, and what is left."""
    pages = {}
    for of in students:
        lines = [f"# {printable(of['name'])}: {of['right']} of {of['of']} right"]
        if right := [result["name"] for result in of["exercises"] if result["state"] == "right"]:
            lines.append(f"Right: {', '.join(right)}.")
        for result in of["exercises"]:
            if result["state"] == "right":
                continue
            message = "\n".join(f"    {printable(line)}" for line in result["message"].split("\n"))
            title = file_of(Path(), result["name"])
            lines += [f"## {title}: {result['state']}", message, f"A hint: {sheet(result['name']).HINTS[0]}"]
            lines.append(typed(f"A second one: `gpt2 exercises --hint {result['name']} --more`"))
        name = "-".join(Path(of["name"]).parts).strip("/\\-")
        pages[folder / f"{name}.md"] = ("\n\n".join(lines) + "\n").encode()
    return pages
