"""Watches a recording with sys.setprofile: a World (world.py) is told of every call."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

from ..pipeline import is_paused, uncollected
from ..record.interception import Intercepted, replace
from ..record.unwatched import watches
from ..undo import undoing
from .guard import Guard
from .world import OWN_CODE, World

# The user's function sees the collector as it was before
_collects = Intercepted(gc.isenabled, lambda function, args, kwargs: function() or is_paused())
replace(vars(gc), isenabled=_collects)


class _ThreadWorlds(threading.local):
    """The worlds of what is being watched in a thread, the outermost first."""

    def __init__(self) -> None:
        self.worlds: list[World] = []


_local = _ThreadWorlds()
watches_running: set[World] = set()  # in all threads


def watch(run: Callable[[], Any], *roots: Any) -> tuple[Any, World]:
    """(run(), the World of what it read in this thread, beginning with `roots`).

    Watches nest: the outer one sees the inner part as well.

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

    guard.trouble says why f cannot be guarded, or is None. world.guard(arrays=False) leaves out the numbers
    in arrays.

    The garbage collector is paused: finalizers and gc.callbacks are not part of the function.
    """
    world, worlds = World(), _local.worlds
    depth, other = len(worlds), sys.getprofile()

    def undo() -> None:
        del worlds[depth:]
        watches_running.discard(world)
        if not depth and sys.getprofile() is not other:
            sys.setprofile(None)
            _resume(other)

    def observed() -> Any:
        with undoing(undo), undoing(undo):
            worlds.append(world)
            watches_running.add(world)
            if not depth:
                if hasattr(other, "disable"):  # cProfile before Python 3.12: there can be one profiler alone
                    other.disable()
                sys.setprofile(_observe)
            return run()

    world.begin(roots)
    return uncollected(observed), world


def watched(run: Callable[[], Any], *functions: Callable) -> tuple:
    """(run(), why these functions, which it calls, may do something else when called again; or None)."""
    result, world = watch(run, *functions)
    return result, world.guard().trouble


def relied_on(guard: Guard) -> None:
    """Note in the Worlds of this thread that a recording is used, which holds while this guard does."""
    for world in _local.worlds:
        world.guards[id(guard)] = guard


def is_watching() -> bool:
    return bool(_local.worlds)


@watches
def _observe(frame, event: str, arg) -> None:
    """The profiling hook: called at each call and return, except in unwatched functions."""
    if event == "call":
        back = frame.f_back  # the compiler calls itself: most of what runs while a function is recorded
        if id(frame.f_code) in OWN_CODE and back is not None and id(back.f_code) in OWN_CODE:
            return
        for world in _local.worlds:
            world.runs(frame)
    elif event == "c_call" and id(frame.f_code) not in OWN_CODE:
        for world in _local.worlds:
            world.calls(frame.f_code, arg)


def _resume(other) -> None:
    if hasattr(other, "enable"):
        other.enable()
    elif other is not None:
        sys.setprofile(other)
