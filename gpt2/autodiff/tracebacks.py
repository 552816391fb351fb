"""Tracebacks without the compiler's frames: what users see of a mistake are the lines that they wrote."""

from __future__ import annotations

import dis
import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

from .errors import AutodiffError
from .graph import GraphError
from .switches import Switch

F = TypeVar("F", bound=Callable)
_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
observers: set[int] = set()  # ids of code objects whose frames call the function that is recorded
_full = Switch("full_tracebacks")
_always_full = bool(os.environ.get("GPT2_AD_FULL_TRACEBACKS"))  # read once


def full_tracebacks() -> AbstractContextManager[None]:
    """Within `with ad.full_tracebacks():` tracebacks keep the frames of the compiler, otherwise left out.

    The environment variable GPT2_AD_FULL_TRACEBACKS=1 keeps them everywhere, and so does an error of the
    compiler itself.

        >>> with ad.full_tracebacks():
        ...     try:
        ...         ad.grad(lambda x: x.no_such)(np.ones(2))
        ...     except AttributeError as error:
        ...         print(error.__traceback__.tb_next.tb_next is not None)
        True
    """
    return _full.turned({"full": True})


def of_user(function: F) -> F:
    """Decorator of a function that users call: errors that pass through it show their frames alone."""

    @functools.wraps(function)
    def called(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except Exception as error:
            hide_frames(error)
            raise

    return called  # type: ignore[return-value]


def hide_frames(error: Exception) -> None:
    """Take the compiler's frames out of an error's traceback, unless the error is the compiler's own.

    An error that replaces another has the frames of that one: the user's function ran in them. A bare `raise`
    that follows adds no frame of its own.
    """
    if _always_full or _full.open():
        return
    every = [*_walked(error.__traceback__)]
    users = [t for t in every if not _is_own(t)]
    if isinstance(error, AutodiffError):
        replaced = error.__cause__ or error.__context__
        trail = [] if replaced is None else [*_walked(replaced.__traceback__)]
        if replaced is not None and (not trail or _is_own(trail[-1])):  # raised in the compiler, or in its C
            users = users or [t for t in trail if not _is_own(t)]
            error.__cause__, error.__suppress_context__ = None, True
        at = error.loc and (error.loc[0], error.loc[1])
        if at and at not in [(t.tb_frame.f_code.co_filename, t.tb_lineno) for t in users]:
            users.append(_entry_at(*error.loc))
    elif every and _is_own(every[-1]) and not _is_meant(error, every[-1]):
        return
    trace = None
    for t in reversed(users):
        trace = TracebackType(trace, t.tb_frame, t.tb_lasti, t.tb_lineno)
    error.__traceback__ = trace


def _walked(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_own(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(_OWN)


def _is_meant(error: Exception, last: TracebackType) -> bool:
    """Whether the compiler raised an error on purpose, or called the user's function with arguments that it
    does not take."""
    code = last.tb_frame.f_code
    raised = dis.opname[code.co_code[last.tb_lasti]] == "RAISE_VARARGS"
    return id(code) in observers or raised and not isinstance(error, (GraphError, AssertionError))


def _entry_at(file: str, line: int, function: str) -> Any:
    """An entry of a traceback for a line of a file."""
    code = compile("frame = getframe()", file, "exec").replace(co_name=function or "<module>")
    names = {"getframe": sys._getframe}
    exec(code, names)
    return TracebackType(None, names["frame"], -1, line)  # type: ignore[arg-type]
