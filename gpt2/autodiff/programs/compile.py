"""ad.compile: the optimised program of a function itself, without a derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, overload

from .derived import derived_function
from .wiring import Compile

P = ParamSpec("P")
R = TypeVar("R")


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
