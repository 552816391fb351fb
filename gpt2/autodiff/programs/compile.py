"""ad.compile: the optimised program of a function itself, without a derivative.

Operators, such as ad.scan, take a function and run it at once: as such a program, or inside the current
recording.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from ..record import recorder
from ..record.record import Recording
from ..record.value import Recorded
from ..tree import flatten
from .derived import derived_function, derived_of
from .wiring import Arguments, Transform, Update, Wiring, result_outs

P = ParamSpec("P")
R = TypeVar("R")


class Compile(Transform):
    """The program of f itself. Arguments that f writes to are written to, as f does."""

    name, suffix = "compile", "compiled"
    differentiates = False

    def wiring(self, rec: Recording, call: Arguments, f: Callable) -> Wiring:
        updates = [Update(leaf, rec.n_results + i) for i, leaf in enumerate(rec.written)]
        return Wiring(rec.graph, *call.sources(rec), rec.out_tree, result_outs(rec), updates)


@overload
def compile(f: Callable[P, R], *, pure: bool = False) -> Callable[P, R]: ...
@overload
def compile(f: None = None, *, pure: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def compile(f: Callable | None = None, *, pure: bool = False) -> Callable:
    """The optimised program of f itself, no derivative. Also a decorator, with or without arguments.

    Arguments are arrays, NumPy scalars, Python floats and complex numbers, and nested tuples, lists and dicts
    of these; for each combination of shapes, dtypes and structure there is a program of its own. Anything
    else among them (ints, strings, functions, settings) is a constant of the program. Results are plain
    arrays in this machine's byte order, whatever subclass or byte order an argument had.

    pure   a promise that f reads nothing but its arguments that could change, changes nothing itself, and
           calls nothing that catches exceptions which values raise. Without it each call looks whether
           closed-over and global values are still the same (reuse/guard.py).

        >>> fast = ad.compile(lambda x: np.sum(np.exp(x) / (1 + np.exp(x))))
        >>> float(fast(np.zeros(4)))
        2.0
    """
    if f is None:
        return lambda f: derived_function(f, Compile(), pure)
    return derived_function(f, Compile(), pure)


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
