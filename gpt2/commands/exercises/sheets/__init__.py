"""The exercises: an explanation, what is given, the solution as the last function, and two hints for each.

Those of the set `layers` are a layer's forward and backward; those of the set `compiler` are the steps of a
compiler for backwards, and judge an answer by a function of their own.
"""

import ast
import importlib
from pathlib import Path
from types import ModuleType

SETS = {
    "layers": ("residual", "matmul", "gelu", "layernorm", "crossentropy", "encoder", "attention"),
    "compiler": ("order", "record", "rules", "derive", "emit"),
}
ALL = tuple(name for names in SETS.values() for name in names)
TO_WRITE = 'raise NotImplementedError("write this function")'
HOW = "# gpt2's command exercises grades it with --grade, and helps with --hint {name}"
TASKS = {"order": "in_order"} | {name: name for name in SETS["compiler"][1:]}


def set_of(name: str) -> str:
    """The set that an exercise belongs to."""
    return next(key for key, names in SETS.items() if name in names)


def task_of(name: str) -> str:
    """The name of the function to be written."""
    return TASKS.get(name, f"{name}_backward")


def sheet(name: str) -> ModuleType:
    """The module of an exercise: what is given, solution and hints."""
    return importlib.import_module(f"{__name__}.{name}")


def text_of(name: str, solved: bool) -> str:
    """The text of an exercise, with its solution or with an empty function."""
    source = Path(str(sheet(name).__file__)).read_text(encoding="utf-8")
    source = source[: source.index("\n\nHINTS = (")]
    if solved:
        return source
    (task,) = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == task_of(name)
    ]
    until = "".join(source.splitlines(keepends=True)[: task.lineno])
    return f"{until}    {HOW.format(name=name)}\n    {TO_WRITE}\n"


def file_of(folder: Path, name: str) -> Path:
    """The path of an exercise."""
    return folder / f"{SETS[set_of(name)].index(name) + 1}_{name}.py"


def sets_in(folder: Path) -> list[str]:
    """The sets of which a folder has a file."""
    return [key for key, names in SETS.items() if any(file_of(folder, name).exists() for name in names)]
