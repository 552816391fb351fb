"""Remembers what was found out about code objects for as long as these live: a process may make functions
without end.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

T = TypeVar("T")


class OfCode(dict[int, Any]):
    """Values by the ids of code objects. They go when those go."""

    def __init__(self) -> None:
        super().__init__()
        self._alive: dict[int, weakref.ref] = {}

    def note(self, code: CodeType, value: T) -> T:
        key = id(code)

        def forget(_) -> None:
            self.pop(key, None)
            self._alive.pop(key, None)

        self[key] = value
        self._alive[key] = weakref.ref(code, forget)
        return value


def remembered(function: Callable[[CodeType], T]) -> Callable[[CodeType], T]:
    """Decorator: a function of code objects that is called once for each. `known` has what it gave."""

    @functools.wraps(function)
    def found(code: CodeType) -> Any:
        known = found.known  # type: ignore[attr-defined]
        value = known.get(id(code), known)
        return known.note(code, function(code)) if value is known else value

    found.known = OfCode()  # type: ignore[attr-defined]
    return found
