"""Where in the user's source an operation stands: file, line, function; the name that its value is given;
whether the number it asks for may leave the recording; and whether somebody waits for its errors.

All of it is found once per instruction of the user's code and remembered.
"""

from __future__ import annotations

import ast
import dis
import linecache
import os
import sys
from typing import NamedTuple

import numpy as np

from .bytecode import catches

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # the compiler
_NUMPY = os.path.dirname(os.path.abspath(np.__file__)) + os.sep
_inside: dict[str, bool] = {}  # file name -> is it this package or NumPy?


class Site(NamedTuple):
    loc: tuple[str, int, str]
    name: str | None  # of the variable that the value is assigned to
    code: object  # kept alive: its id is the key


_sites: dict[tuple[int, int], Site] = {}
_LIMIT = 100_000  # instructions; programs that make code as they run would fill the memory


def user_frame():
    """The innermost frame that is neither of this package nor of NumPy."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        inside = _inside.get(file)
        if inside is None:
            inside = _inside[file] = file.startswith((_OWN, _NUMPY)) or file.startswith("<__array_function__")
        if not inside:
            return frame
        frame = frame.f_back
    return sys._getframe(1)


_observers: set[int] = set()  # ids of code objects: the frames from which functions are called to be recorded
_catching: dict[int, tuple] = {}  # id of a code object -> (the code object, does it catch exceptions?)


def observer(function):
    """Mark a function whose frame is where the frames of a function under observation begin."""
    _observers.add(id(function.__code__))
    return function


def error_is_awaited() -> bool:
    """Does the function under observation catch exceptions, or one that it calls and that is running?"""
    found = catching = False
    frame = user_frame()
    while frame is not None:
        if id(frame.f_code) in _observers:
            found |= catching  # what is further out is no part of the function
        elif not catching:
            catching = _catches(frame.f_code)
        frame = frame.f_back
    return found


def _catches(code) -> bool:
    known = _catching.get(id(code))
    if known is None:
        if len(_catching) >= _LIMIT:
            _catching.clear()
        own = code.co_filename.startswith((_OWN, _NUMPY))
        known = _catching[id(code)] = code, not own and catches(code)
    return known[1]


def site() -> Site:
    frame = user_frame()
    key = (id(frame.f_code), frame.f_lasti)
    found = _sites.get(key)
    if found is None:
        if len(_sites) >= _LIMIT:
            _sites.clear()
        found = _sites[key] = _find(frame)
    return found


def here():
    """The location of the user's statement that runs now: (file, line, function)."""
    return site().loc


def _find(frame) -> Site:
    code = frame.f_code
    loc = (code.co_filename, frame.f_lineno, code.co_name)
    span = _span(code, frame.f_lasti)
    return Site(loc, _names(code.co_filename).get(span) if span else None, code)


def _span(code, lasti: int):
    """(line, end line, column, end column) of an instruction, in bytes as `ast` counts; None where not
    known.
    """
    for i, span in enumerate(code.co_positions()):
        if i == lasti // 2:
            return None if None in span else span
    return None


_named: dict[str, tuple[int, dict]] = {}  # file -> (number of lines, span -> name)


def _names(file: str) -> dict:
    """Where each value stands that the file assigns to a single name: `norm = <value>`, `a, b = <value>,
    <value>`.
    """
    lines = linecache.getlines(file)
    known = _named.get(file)
    if known is not None and known[0] == len(lines):
        return known[1]
    names: dict = {}
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        tree = ast.Module(body=[], type_ignores=[])
    for statement in _statements(tree.body):
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                _note(names, target, statement.value)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            _note(names, statement.target, statement.value)
        elif isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            names[_span_of(statement)] = statement.target.id
    _named[file] = (len(lines), names)
    return names


def _statements(body):
    for statement in body:
        yield statement
        for part in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, part, ()))
        for handler in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            yield from _statements(handler.body)


def _note(names: dict, target, value) -> None:
    if isinstance(target, ast.Name):
        names[_span_of(value)] = target.id
    elif (
        isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts)
    ):
        for t, v in zip(target.elts, value.elts):
            _note(names, t, v)


def _span_of(node) -> tuple[int, int, int, int]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


# Which functions may take the number out of a recorded value: those that the user calls by these names.
_MAY_TAKE = frozenset(
    "float int complex bool round format str repr print abs min max sum any all sorted range len isinstance "
    "divmod math.floor math.ceil math.trunc math.isnan math.isinf math.isfinite math.isclose".split()
)


def taker(frame) -> str | None:
    """What asks for the number: "assignment" for `plain[0] = x`, the name of a function that loses the
    derivative (`math.sin`), or None where taking the number is what the user asked for.
    """
    code, lasti = frame.f_code, frame.f_lasti
    op = dis.opname[code.co_code[lasti]]
    if op.startswith("STORE_"):
        return "assignment"
    if not op.startswith(("CALL", "PRECALL")):
        return None
    called = _called(code, _span(code, lasti))
    if called is None:  # no source: trust a function that mentions float and no mathematics
        return "math" if "math" in code.co_names else None
    return None if called in _MAY_TAKE else called


def _called(code, span) -> str | None:
    """The text of what a call calls."""
    if span is None:
        return None
    first, last, start, end = span
    lines = [linecache.getline(code.co_filename, n).encode() for n in range(first, last + 1)]
    if not lines or not lines[0]:
        return None
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    try:
        call = ast.parse("(" + b"".join(lines).decode() + ")", mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return ast.unparse(call.func) if isinstance(call, ast.Call) else None
