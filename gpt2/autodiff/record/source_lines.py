"""The place of an operation in the user's source: file, line, function; the variable that its value is
assigned to; and whether its errors are caught. All of it is cached by instruction of the user's code.
"""

from __future__ import annotations

import bisect
import functools
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import NamedTuple

import numpy as np

from ..errors import AutodiffError
from ..tracebacks import observers
from .bytecode import JUMPS, CodeMap, catches_at, instructions_of, pushed, reads

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # the compiler
_NUMPY = os.path.dirname(os.path.abspath(np.__file__)) + os.sep
_STANDARD = (sysconfig.get_paths()["stdlib"] + os.sep, "<frozen ")
_SITE = os.sep + "site-packages" + os.sep
_inside: dict[str, bool] = {}  # file name -> is it this package or NumPy?


class Site(NamedTuple):
    loc: tuple[str, int, str]
    name: str | None  # of the variable that the value is assigned to


_sites = CodeMap()  # for each code object: instruction -> Site
_MOST_FILES = 1000  # in the caches: programs that make code as they run may have one file for each


def user_frame() -> FrameType:
    """The innermost frame that is neither of this package nor of NumPy."""
    frame = sys._getframe(1)
    known = _inside
    while frame is not None:
        file = frame.f_code.co_filename
        inside = known.get(file)
        if not (is_inside(file) if inside is None else inside):
            return frame
        frame = frame.f_back
    return sys._getframe(1)


def is_inside(file: str) -> bool:
    """Whether it is a file of this package or of NumPy."""
    if file.startswith("<autodiff "):  # each program has another name
        return True
    inside = _inside.get(file)
    if inside is None:
        if len(_inside) >= _MOST_FILES:
            _inside.clear()
        inside = _inside[file] = file.startswith((_OWN, _NUMPY, "<__array_function__"))
    return inside


def is_of_scipy(file: str) -> bool:
    return _SITE + "scipy" + os.sep in file


_COMPILED = tuple(_SITE + name + os.sep for name in "scipy jax jaxlib torch tensorflow pandas numba".split())


@functools.lru_cache(_MOST_FILES)
def is_of_compiled(file: str) -> bool:
    """Whether it is a file of a library that hands its arrays to compiled code, which may test their type."""
    return any(name in file for name in _COMPILED)


def is_of_numpy(file: str) -> bool:
    return file.startswith(_NUMPY)


def is_own(file: str) -> bool:
    return file.startswith(_OWN)


def is_standard(file: str) -> bool:
    return file.startswith(_STANDARD) and _SITE not in file


def is_foreign(file: str) -> bool:
    """Whether it is a file of this package, NumPy, or the standard library."""
    return is_inside(file) or is_standard(file)


def observer(function: Callable) -> Callable:
    """Decorator: marks a function that calls the one that is recorded."""
    observers.add(id(function.__code__))
    return function


def error_is_caught() -> bool:
    """Whether an exception raised now would be caught in the recorded function, or one that it called."""
    caught = catching = False
    frame = user_frame()
    while frame is not None:
        if id(frame.f_code) in observers:
            caught |= catching  # frames further out are not part of the function
        elif not catching and not is_inside(frame.f_code.co_filename):
            uses = reads(frame.f_code)
            catching = uses.withs > uses.errstates or catches_at(frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return caught


def site() -> Site:
    frame = user_frame()
    known: dict[int, Site] = _sites.get(id(frame.f_code)) or _sites.note(frame.f_code, {})
    known_site = known.get(frame.f_lasti)
    if known_site is None:
        code, name = frame.f_code, _name_of_result(frame.f_code, frame.f_lasti)
        known_site = known[frame.f_lasti] = Site((code.co_filename, frame.f_lineno, code.co_name), name)
    return known_site


def here() -> tuple[str, int, str]:
    """The location of the user's statement that runs now: (file, line, function)."""
    return site().loc


def error_here(message: str) -> AutodiffError:
    return AutodiffError(message, here())


def outside() -> tuple[str, int, str]:
    """`here` outside Python's standard library: the line with statistics.mean(x), not one inside it."""
    frame: FrameType | None = user_frame()
    while frame is not None and is_standard(frame.f_code.co_filename):
        frame = frame.f_back
    return here() if frame is None else (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def call_of_scipy(
    frames: Iterable[tuple[FrameType, int]] | None = None,
) -> tuple[FrameType, str, tuple[str, int, str]] | None:
    """(the frame in which SciPy was entered, its function, where it was called), if SciPy is the innermost of
    these frames, given with their lines from the innermost on. None for the user's frame and those around it.
    """
    entered, name = None, "scipy"
    for frame, line in traceback.walk_stack(user_frame()) if frames is None else frames:
        code = frame.f_code
        file = code.co_filename
        if is_of_scipy(file):
            entered, name = frame, _name_in_scipy(frame) or name
        elif os.path.isabs(file) or file.startswith("<") and file != "<stringsource>":  # not Cython's code
            if entered is None:
                return None
            if not is_inside(file):
                return entered, name, (file, line, code.co_name)
    return None


def _name_in_scipy(frame) -> str | None:
    """The public name of the function that runs in a frame; None for SciPy's own decorators."""
    public = ".".join(frame.f_globals["__name__"].split(".")[:2])
    if public.startswith("scipy._"):
        return None
    name = frame.f_code.co_name
    if name.startswith("__") and "self" in frame.f_locals:
        kind = type(frame.f_locals["self"]).__name__
        name = kind if name in ("__init__", "__call__") else f"{kind}.{name}"
    return f"{public}.{name}"


_STORES = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")
_PUSHES = tuple("LOAD_CONST LOAD_FAST LOAD_GLOBAL LOAD_DEREF LOAD_NAME PUSH_NULL COPY EXTENDED_ARG".split())
_COMPUTES = ("CALL", "PRECALL", "BINARY_", "UNARY_", "COMPARE_", "LOAD_ATTR")


def _name_of_result(code: CodeType, lasti: int) -> str | None:
    """The variable that the result of this instruction is assigned to.

    The instructions that follow are read up to the one that takes the result from the stack. So a name is
    found in `a, b = f(x), g(x)` as well, but not among four and more, which Python builds a tuple of.
    """
    instructions = instructions_of(code)
    k = bisect.bisect_right(instructions, lasti, key=lambda ins: ins.offset) - 1
    k += instructions[k].opname == "PRECALL"  # of Python 3.11, which may do the work of the CALL after it
    if not instructions[k].opname.startswith(_COMPUTES):
        return None
    height = place = 1  # of the stack, and where the result lies in it
    for i in range(k + 1, len(instructions)):
        ins = instructions[i]
        if ins.opname in _STORES:
            if place == height:  # pytest has variables with names such as @py_assert1
                return ins.argval if ins.argval.isidentifier() else None
            height -= 1
        elif ins.opname == "SWAP":
            other = height - ins.arg + 1
            place = {height: other, other: height}.get(place, place)
        elif ins.opcode in JUMPS or height == 1 and not ins.opname.startswith(_PUSHES):
            return None
        else:
            height += pushed(ins)
            if height <= 1:  # it was taken
                return None
    return None
