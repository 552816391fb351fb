"""Errors of the compiler: the user's file and line, what happened, and what to write instead."""

from __future__ import annotations

import functools
import os
import re

import numpy as np


class AutodiffError(Exception):
    """A function that cannot be recorded as it is written. `loc` is (file, line, function).

    >>> table = np.empty(2)
    >>> def f(x):
    ...     table[:] = x * x
    ...     return np.sum(table)
    >>> try:
    ...     ad.grad(f)(np.ones(2))
    ... except ad.AutodiffError as error:
    ...     print(str(error).partition(": ")[2].split(",")[0])
    this assignment writes a recorded value into the plain array 'table'
    """

    def __init__(self, message: str, loc: tuple | None = None):
        super().__init__(f"{location(loc)}: {message}" if loc else message)
        self.loc = loc


class UnsupportedError(AutodiffError, NotImplementedError):
    """A NumPy function, or a way to call it, that has no rule."""


class EscapedError(AutodiffError, RuntimeError):
    """A recorded value used after its recording had ended."""


class ConversionError(AutodiffError, TypeError):
    """A recorded value converted to a plain one, which would lose its derivative."""


class WriteError(AutodiffError, ValueError):
    """A write of a recorded value that cannot be recorded."""


class DtypeError(AutodiffError, TypeError):
    """An array that does not hold numbers."""


class ConvergenceError(AutodiffError, ArithmeticError):
    """A solver that did not converge: its `residual` after so many `steps`.

    >>> try:
    ...     x = ad.fixed_point(lambda x: 2.0 * x + 1.0, 1.0, max_steps=20)
    ... except ad.ConvergenceError as error:
    ...     print(error.steps)
    20
    """

    def __init__(self, message: str, residual: float, steps: int, loc: tuple | None = None):
        super().__init__(message, loc)
        self.residual = residual
        self.steps = steps


def location(loc: tuple) -> str:
    """file:line, the file relative to the working directory if it is inside."""
    file, line = loc[0], loc[1]
    try:
        short = os.path.relpath(file)
    except ValueError:  # another drive
        short = file
    return f"{file if short.startswith('..') else short}:{line}"


def located(error: Exception, what: str, loc: tuple | None) -> Exception:
    """NumPy's error with the user's file and line, of the same kind, so that handlers still catch it."""
    if isinstance(error, AutodiffError):
        return error
    kind = type(error)
    if kind.__module__.startswith("numpy._"):  # NumPy's private kinds take arguments of their own
        kind = next(k for k in (IndexError, TypeError, ValueError, AttributeError) if isinstance(error, k))
    return _located(kind)(f"{what}: {error}", loc)


@functools.cache
def _located(kind: type) -> type:
    return type(kind.__name__, (AutodiffError, kind), {"__module__": __name__})


def not_accepted(error: TypeError, what: str, loc: tuple) -> Exception:
    """The error for a TypeError of a function or operator that does not accept recorded values."""
    instead = (
        "A Recorded stands for an array or a number while gpt2.autodiff records the function. What takes "
        "none needs a rule, with @ad.custom_vjp; ad.from_torch(f) and ad.from_jax(f) give one to functions "
        "of theirs"
    )
    if what in _OF_NUMPY:
        instead = f"Write {_OF_NUMPY[what]}"
    return located(TypeError(f"{error}. {instead}"), what, loc)


_FROM_ELSEWHERE = {
    "at": "arrays can be written to here: x[i] = v is what x.at[i].set(v) is in JAX",
    "backward": "derivatives come from ad.grad(f), which is called with the arguments of f",
    "detach": "a constant is ad.stop_gradient(x)",
    "numpy": "it stands for an array of NumPy's already",
}


def no_attribute(kind: type, name: str, loc: tuple) -> Exception:
    """The error for x.name of a recorded value, which has no such attribute. `kind` is what it stands for."""
    if name in _FROM_ELSEWHERE:
        instead = _FROM_ELSEWHERE[name]
    elif hasattr(kind, name):  # not an AttributeError, which getattr(x, name, default) would catch
        return UnsupportedError(
            f"attribute {name!r}: a recorded {kind.__name__} has none of this name; what needs it may run as "
            "it is, in a function with a rule of its own, @ad.custom_vjp",
            loc,
        )
    else:
        instead = f"and {kind.__name__} itself has none either"
    error = AttributeError(f"a recorded {kind.__name__} has none of this name; {instead}")
    return located(error, f"attribute {name!r}", loc)


def unsupported(
    name: str, loc: tuple | None, because: str = "has no derivative rule yet"
) -> UnsupportedError:
    called = re.findall(r"[\w.]+", name)[0]  # without what follows in brackets
    short = called.rpartition(".")[-1]
    return UnsupportedError(
        f"{name} {because}. Write it with other functions, or register a rule of your own:\n\n"
        f"    @ad.custom_vjp\n"
        f"    def my_{short}(*args):\n"
        f"        return {called}(*args)              # plain NumPy: args are ordinary arrays here\n\n"
        f"    @my_{short}.defvjp\n"
        f"    def my_{short}_vjp(dout, out, *args):\n"
        f"        return (dout * ...,)              # one gradient per argument, in its shape\n",
        loc,
    )


def lost_in_scipy(name: str, loc: tuple | None) -> ConversionError:
    module = ".".join(name.split(".")[:2])
    function = "a function of SciPy" if name == "scipy" else name
    short = module.removeprefix("scipy.").replace("scipy", "linalg")
    return ConversionError(
        f"{function} turns a recorded value into a plain array, and its derivative would be lost. What has "
        f"derivative rules in {module} is in gpt2.autodiff.scipy, under the same names, classes such as "
        f"matrices and splines among them:\n\n    from gpt2.autodiff.scipy import {short}\n\n"
        "Anything else takes a rule of your own, with @ad.custom_vjp: docs/scipy.md has one",
        loc,
    )


def written_to_plain(loc: tuple | None, what: str = "this assignment", name: str | None = None) -> WriteError:
    target = "a plain array" if name is None else f"the plain array {name!r}"
    return WriteError(
        f"{what} writes a recorded value into {target}, which the function did not make: its derivative "
        "would be lost. Write into an array that the function makes, by np.zeros(shape) or as a copy, "
        f"np.array({name or 'a'}); or collect the parts in a list and join them with np.stack or "
        "np.concatenate",
        loc,
    )


def of_another_library(x: object, loc: tuple | None) -> DtypeError:
    """The error for an operation with an array of another library's, such as a tensor."""
    kind = f"{type(x).__module__.partition('.')[0]}.{type(x).__name__}"
    return DtypeError(
        f"a {kind} met a recorded value; only NumPy's arrays can be recorded. Convert it, ad.as_numpy(x)", loc
    )


_OF_NUMPY = {
    "math.fsum": "np.sum",
    "statistics.mean": "np.mean",
    "statistics.fmean": "np.mean",
    "statistics.variance": "np.var(x, ddof=1)",
    "statistics.stdev": "np.std(x, ddof=1)",
    "statistics.pvariance": "np.var",
    "statistics.pstdev": "np.std",
    "statistics.correlation": "np.corrcoef",
    "statistics.covariance": "np.cov",
    "statistics.linear_regression": "np.polyfit",
}


_KEEPING = {
    "float": "x itself keeps it, and x.item() of an array",
    "int": "math.trunc(x) is the same number, and has the derivative zero",
    "complex": "a + 1j * b keeps it",
}


def number_lost(function: str, loc: tuple | None) -> ConversionError:
    """The error for a function that loses the derivative: math.sin, or float if it does more than decide."""
    if function in _KEEPING:
        return ConversionError(
            f"{function}() takes a plain number out of a recorded value, which may only decide (if, while, "
            "range, an index, a format), and is used otherwise here: its derivative would be lost. "
            f"{_KEEPING[function]}; {function}(ad.stop_gradient(x)) is a constant",
            loc,
        )
    instead = "Use a NumPy function"
    module, _, name = function.rpartition(".")
    if function in _OF_NUMPY:
        instead = f"Use {_OF_NUMPY[function]}"
    elif module == "math" and hasattr(np, name):
        instead = f"Use np.{name}"
    return ConversionError(
        f"{function}() would take a plain number out of a recorded value, and its derivative would be lost. "
        f"{instead} instead, x.astype(...) to convert, or ad.stop_gradient(x) if a constant is meant",
        loc,
    )


def type_unknown(loc: tuple | None) -> ConversionError:
    """The error for `type(x) is float`, where x is a recorded value."""
    return ConversionError(
        "type(x) of a recorded value is not the type of the value that it stands for. Write isinstance(x, "
        "float), or x.__class__ is float",
        loc,
    )


def array_lost(loc: tuple | None) -> ConversionError:
    """The error if NumPy would convert a recorded value to a plain array."""
    return ConversionError(
        "here NumPy would turn a recorded value into a plain array, and its derivative would be lost. Write\n"
        "    x.astype(np.float32)          for np.float32(x)\n"
        "    np.sin(np.array([a, b]))      for np.sin([a, b]), and other ufuncs of a list\n"
        "    np.array(x)                   for array(x) where array is a variable that holds np.array\n"
        "    np.dot(a, x)                  for a.dot(x)\n"
        "    x + rng.normal()              for rng.normal(x) of a generator that is made in the function\n"
        "    ad.stop_gradient(x)           if a constant is meant",
        loc,
    )
