"""The exercises: each a layer with its mathematics, forward, backward (the solution) and two hints."""

import ast
import importlib
from pathlib import Path
from types import ModuleType

ORDER = ("residual", "matmul", "gelu", "layernorm", "crossentropy", "encoder", "attention")
TO_WRITE = 'raise NotImplementedError("write this backward")'
HOW = "# gpt2's command exercises grades it with --grade, and helps with --hint {name}"


def sheet(name: str) -> ModuleType:
    """The module of an exercise: forward, solution and hints."""
    return importlib.import_module(f"{__name__}.{name}")


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


def has_exercises(folder: Path) -> bool:
    """Whether a folder has the file of an exercise."""
    return any(file_of(folder, name).exists() for name in ORDER)
