"""What can go wrong in a function that is being recorded. Every message starts with the user's file and line, says
what happened, and what to write instead.
"""

from __future__ import annotations

import os


class AutodiffError(Exception):
    """A function that cannot be recorded or differentiated as it is written. `loc` is (file, line, function)."""

    def __init__(self, message: str, loc=None):
        super().__init__(f"{place(loc)}: {message}" if loc else message)
        self.loc = loc


class UnsupportedError(AutodiffError, NotImplementedError):
    """A NumPy function, or a way to call it, that has no rule."""


class EscapedError(AutodiffError, RuntimeError):
    """A recorded value used after its recording had ended."""


class ConversionError(AutodiffError, TypeError):
    """A recorded value asked to become a plain one, which would lose its derivative."""


class WriteError(AutodiffError, ValueError):
    """A recorded value written to where it cannot be followed."""


class DtypeError(AutodiffError, TypeError):
    """An array that does not hold numbers."""


def place(loc) -> str:
    """file:line, the file relative to the working directory where it lies inside."""
    file, line = loc[0], loc[1]
    try:
        short = os.path.relpath(file)
    except ValueError:  # another drive
        short = file
    return f"{file if short.startswith('..') else short}:{line}"


_located: dict[type, type] = {}


def located(error: Exception, what: str, loc) -> Exception:
    """The same kind of error as NumPy raised, so that handlers still catch it, with the user's file and line."""
    kind = type(error)
    if kind not in _located:
        _located[kind] = type(kind.__name__, (AutodiffError, kind), {"__module__": __name__})
    return _located[kind](f"{what}: {error}", loc)


def unsupported(name: str, loc, because: str = "has no derivative rule yet") -> UnsupportedError:
    short = name.rsplit(".", 1)[-1]
    return UnsupportedError(
        f"{name} {because}. Write it with other NumPy functions, or register a rule of your own:\n\n"
        f"    @ad.custom_vjp\n"
        f"    def my_{short}(x):\n"
        f"        return {name}(x)                  # plain NumPy: x is an ordinary array here\n\n"
        f"    @my_{short}.defvjp\n"
        f"    def my_{short}_vjp(dout, out, x):\n"
        f"        return (dout * ...,)              # one gradient per argument, in its shape\n",
        loc,
    )


def written_to_plain(loc, what: str = "this assignment") -> WriteError:
    return WriteError(
        f"{what} writes a recorded value into a plain NumPy array, where its derivative would be lost. Make the "
        "array with np.zeros_like(x, shape=...) or np.zeros(shape, like=x), with x a recorded value, and it can be "
        "written to; or collect the parts in a list and join them with np.stack or np.concatenate",
        loc,
    )
