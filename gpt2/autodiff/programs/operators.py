"""Operators, such as ad.scan: they take a function and run it at once, as a compiled program or inside the
current recording.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..record import recorder
from ..record.value import Recorded
from ..tree import flatten
from .derived import derived_of
from .wiring import Compile


class Operator(Compile):
    """Called with f and its arguments it returns compute(f, *args, *settings).

    Outside recordings that is compiled, and the program is cached on f.
    """

    takes_out = False

    def __init__(self, name: str, suffix: str, compute: Callable, *settings: Any):
        self.name, self.suffix, self.compute, self.settings = name, suffix, compute, settings

    def key(self) -> tuple:
        return type(self), self.name, *self.settings

    def function(self, f: Callable) -> Callable:
        def operated(*args):
            return self.compute(f, *args, *self.settings)

        return operated

    def __call__(self, f: Callable, *args: Any, pure: bool = False) -> Any:
        if recorder.current() is None and not any(type(x) is Recorded for x in flatten(args)[0]):
            return derived_of(f, self, pure).entry(args, {})
        return self.compute(f, *args, *self.settings)
