"""The modules of gpt2 and what each imports, read from the source: for docs/architecture.py and the tests.

files()             dotted name -> path of every module
imports(path)       every import of a file: at its top, inside functions, and those a package makes on demand
arrows()            module -> the modules of gpt2 that it imports
between(arrows, room_of)   the same between rooms, counted
floors(arrows)      names by how much stands below them; a circle is an error
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
Arrows = dict[str, set[str]]


@dataclass(frozen=True)
class Import:
    """One name that a file imports: `module.name`, or a module alone. `inside`: in the body of a function."""

    target: str
    line: int
    inside: bool


def name_of(path: Path) -> str:
    """The dotted name under which a file of the repository is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def files(package: str = "gpt2") -> dict[str, Path]:
    """Dotted name -> path of the package's modules, by name."""
    return {name_of(path): path for path in sorted((ROOT / package).rglob("*.py"))}


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """The imports of a file, relative ones made absolute; those for type checkers alone are left out."""
    package, tree = path.relative_to(ROOT).parent.parts, parsed(path)
    return (*_within(tree, package, inside=False), *_on_demand(tree, ".".join(package)))


def _within(node: ast.AST, package: tuple[str, ...], inside: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, inside) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = package[: len(package) - child.level + 1] if child.level else ()
            module = ".".join((*base, *((child.module,) if child.module else ())))
            # `from gpt2 import model` and `from gpt2.model import GPT2` both name gpt2.model
            yield from (Import(f"{module}.{alias.name}", child.lineno, inside) for alias in child.names)
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from _within(ast.Module(child.orelse, []), package, inside)
        else:
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _within(child, package, inside or function)


def _on_demand(tree: ast.Module, package: str) -> Iterator[Import]:
    """What a package loads when a name is first asked for: the modules that its table _EXPORTS names."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "_EXPORTS":
            for left, right in ast.literal_eval(statement.value).items():
                # {name: module}, None for a module of the package itself; or {module of the package: names}
                home = right if str(right).startswith(package) else f"{package}.{left}"
                yield Import(home, statement.lineno, inside=False)


def longest(name: str, known: Iterable[str]) -> str | None:
    """The module that a dotted name belongs to, or None where it is none of those known."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None


def arrows(package: str = "gpt2") -> Arrows:
    """Module -> the other modules of the package that it imports, wherever in its text."""
    known = files(package)
    found: Arrows = {}
    for name, path in known.items():
        targets = {longest(i.target, known) for i in imports(path)}
        found[name] = {target for target in targets if target is not None and target != name}
    return found


def between(arrows: Mapping[str, set[str]], room_of: Callable[[str], str | None]) -> dict[str, Counter]:
    """Room -> how many imports lead to each other room. Modules without a room (None) are left out."""
    found: dict[str, Counter] = {}
    for module, targets in arrows.items():
        room = room_of(module)
        if room is None:
            continue
        found.setdefault(room, Counter()).update(
            other for other in map(room_of, sorted(targets)) if other not in (None, room)
        )
    return found


def floors(arrows: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The names in floors: each one above the highest that it imports. A circle is a CycleError."""
    sorter = TopologicalSorter(arrows)
    sorter.prepare()
    found = []
    while sorter.is_active():
        found.append(sorted(sorter.get_ready()))
        sorter.done(*found[-1])
    return found
