"""Suspends the profiling hook in parts of the compiler that run while a function is recorded.

reuse/watch.py hears of every call while a function is recorded, to find what the function depends on. One
node of the graph takes a hundred calls of the compiler's own, and for each of them Python 3.11 builds a frame
object with all of its variables: half of the time of recording. So the hook is suspended where only the
compiler's own code can run:

    @unwatched
    def noted(rec, inputs): ...

Such a function may look at the types of the user's objects, and use plain arrays and numbers. It must not run
a method of another class, nor compute with NumPy what may warn: an error handler may be the user's code.

From Python 3.12 on setting the hook costs more than is gained, as the interpreter rewrites all code that
runs, so there the decorator does nothing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable)
PAYS = sys.version_info < (3, 12)
_hook: Callable | None = None  # the function that `watches` decorates


def watches(hook: F) -> F:
    """Decorator for the hook that is suspended. Others, such as a profiler's, are left alone."""
    global _hook
    _hook = hook
    return hook


def unwatched(function: F) -> F:
    """Decorator: the function runs without the hook. It takes positional arguments only."""
    if not PAYS:
        return function
    get, put = sys.getprofile, sys.setprofile

    @functools.wraps(function)
    def alone(*args):
        hook = get()
        if hook is None or hook is not _hook:
            return function(*args)
        put(None)
        try:
            return function(*args)
        finally:
            put(hook)

    return alone  # type: ignore[return-value]


@unwatched
def call_unwatched(function: Callable, *args: Any) -> Any:
    return function(*args)
