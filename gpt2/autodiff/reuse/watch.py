"""Watches a recording: the interpreter tells a World (world.py) of every call, through sys.setprofile.

rec, world = watch(lambda: record(f, ...), f)
guard = world.guard()
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from ..pipeline import uncollected
from ..record.unwatched import watches
from ..undo import undoing
from .world import OURS, World

_local = threading.local()


def watch(run: Callable[[], Any], *roots: Any) -> tuple[Any, World]:
    """What run() gives, and the World of what it read in this thread, beginning with what `roots` are.

    Watches nest: the inner one sees the inner part, the outer one all.

        >>> K = {"k": 2.0}
        >>> def f(x):
        ...     return K["k"] * x
        >>> from functools import partial
        >>> y, world = ad.watch(partial(f, 3.0), f)
        >>> guard = world.guard()
        >>> before = guard.holds()
        >>> K["k"] = 5.0
        >>> before, guard.holds(), guard.trouble
        (True, False, None)

    guard.trouble says why nothing can be promised of f, or is None. world.guard(arrays=False) leaves out the
    numbers in arrays.

    The garbage collector waits: what it runs (finalizers, gc.callbacks) is none of the function's doing.
    """
    world, worlds = World(), _worlds()
    depth, other = len(worlds), sys.getprofile()

    def undo() -> None:
        del worlds[depth:]
        if not depth and sys.getprofile() is not other:
            sys.setprofile(None)
            _resume(other)

    def observed() -> Any:
        with undoing(undo), undoing(undo):
            worlds.append(world)
            if not depth:
                _suspend(other)
                sys.setprofile(_observe)
            return run()

    world.begin(roots)
    return uncollected.run(observed), world


def watched(run: Callable[[], Any], *functions: Callable) -> tuple:
    """What run() gives, and why these functions, which it calls, may do something else when they are called
    again, or None.
    """
    found, world = watch(run, *functions)
    return found, world.guard().trouble


def is_watching() -> bool:
    """Whether a function is being watched in this thread."""
    return bool(_worlds())


def _worlds() -> list[World]:
    try:
        return _local.worlds
    except AttributeError:
        _local.worlds = []
        return _local.worlds


@watches
def _observe(frame, event: str, arg) -> None:
    """Called by the interpreter at each call and return, but in what is unwatched (record/unwatched.py)."""
    if event == "call":
        back = frame.f_back  # the compiler calls itself: most of what runs while a function is recorded
        if id(frame.f_code) in OURS and back is not None and id(back.f_code) in OURS:
            return
        for world in _local.worlds:
            world.runs(frame)
    elif event == "c_call" and id(frame.f_code) not in OURS:
        for world in _local.worlds:
            world.calls(frame.f_code, arg)


def _suspend(other) -> None:
    """Set the profiler aside that is running: it would see the compiler, and there is room for one."""
    if hasattr(other, "disable"):  # cProfile before Python 3.12
        other.disable()


def _resume(other) -> None:
    if hasattr(other, "enable"):
        other.enable()
    elif other is not None:
        sys.setprofile(other)
