"""Parts of the compiler that run while a function is recorded, and that need not be watched.

The interpreter tells reuse/watch.py of every call while a function is recorded: that is how it finds what
the function depends on. To make one node of the graph takes a hundred calls of the compiler's own, and for
each of them the interpreter of Python 3.11 puts together a frame with all of its variables: half of the time
that recording took. So the hook is set aside where nothing but the compiler's own code can run:

    @unwatched
    def noted(rec, inputs): ...

Such a function may look at the types of what the user has made, and at arrays and numbers of NumPy's and
Python's own. It must not do anything that runs a method of another class, nor compute with NumPy what may
warn: an error handler or a warning may be the user's code.

From Python 3.12 on it costs more to set the hook aside than is gained, as the interpreter rewrites all code
that runs, so there these functions are as they are written.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable)
PAYS = sys.version_info < (3, 12)
_hook: Callable | None = None  # what `watches` decorates


def watches(hook: F) -> F:
    """Decorator for the hook that is set aside. Others, such as a profiler's, are left alone."""
    global _hook
    _hook = hook
    return hook


def unwatched(function: F) -> F:
    """Decorator: the function, which takes arguments by position alone, runs without the hook."""
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
