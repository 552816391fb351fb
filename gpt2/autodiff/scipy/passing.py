"""Dispatch of SciPy's functions: SciPy's own for plain arrays, those of this package for recorded values."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize as _optimize

from ..errors import located, unsupported
from ..record.source_lines import here
from ..record.value import Recorded
from ..tree import flatten

_HARMLESS = frozenset(
    "overwrite_a overwrite_b overwrite_ab overwrite_c check_finite lapack_driver lwork method prefilter "
    "use_umfpack".split()
)
_THEIRS: dict[str, Callable] = {}  # SciPy's functions, which are not part of what a recording depends on


def is_recorded(*values: Any) -> bool:
    return any(type(x) is Recorded for x in flatten(values)[0])


def stacked(y: Any) -> Any:
    return np.stack(y) if isinstance(y, (list, tuple)) else y


def ours(module: Any, name: str | None = None) -> Callable[[Callable], Callable]:
    """Decorator for this package's version of a function of a SciPy module, or of an object with a name.

    Options that it does not take are refused, unless they make no difference to the result.
    """

    def enter(function: Callable) -> Callable:
        key = f"{name or module.__name__}.{function.__name__}"
        _THEIRS[key] = theirs = getattr(module, function.__name__, None)
        own = frozenset(inspect.signature(function).parameters)

        @functools.wraps(function)
        def either(*args, **kwargs):
            if not is_recorded(args, kwargs):
                return _THEIRS[key](*args, **kwargs)
            try:
                call = inspect.signature(_THEIRS[key]).bind(*args, **kwargs)
            except TypeError as error:
                raise located(error, key, here()) from error
            for option in [n for n in call.arguments if n not in own]:
                value, default = call.arguments.pop(option), call.signature.parameters[option].default
                if option not in _HARMLESS and value is not default and (np.ndim(value) or value != default):
                    raise unsupported_option(key, f"with {option}=")
            return function(*call.args, **call.kwargs)

        either.__doc__ = getattr(theirs, "__doc__", None)
        return either

    return enter


class Result(_optimize.OptimizeResult):
    """SciPy's result class with recorded values, whose attributes are read by code of this package."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def unsupported_option(name: str, what: str) -> Exception:
    """The error for an option without a derivative rule."""
    return unsupported(name, here(), f"{what} has no derivative rule")


def scipy_value(module: Any, name: str, called: str | None = None) -> Any:
    """SciPy's value of that name. A function without a rule raises UnsupportedError for recorded values.

    called   the module's name in the message, if not its own
    """
    value, whole = getattr(module, name), f"{called or module.__name__}.{name}"
    if isinstance(value, type) or not callable(value) or hasattr(value, "nin"):
        return value
    if not inspect.isroutine(value):
        return Delegate(value, whole)

    @functools.wraps(value)
    def theirs(*args, **kwargs):
        if is_recorded(args, kwargs):
            raise unsupported(whole, here())
        return value(*args, **kwargs)

    return theirs


def names_of(module: Any) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a module that has SciPy's names besides its own."""
    name = module.__name__  # recordings depend on what functions contain: not on a whole module of SciPy
    return lambda attribute: scipy_value(sys.modules[name], attribute), lambda: dir(sys.modules[name])


class Delegate:
    """A callable object of SciPy, such as a distribution. Methods without a rule refuse recorded values.

    rules   functions in place of some methods
    """

    def __init__(self, theirs: Any, name: str, rules: dict[str, Callable] | None = None):
        self._theirs, self._name, self._rules = theirs, name, rules or {}

    def __getattr__(self, name: str) -> Any:
        # copy and pickle read them before they are set
        if name.startswith("__") or name in ("_theirs", "_name", "_rules"):
            raise AttributeError(name)
        return self._rules.get(name) or scipy_value(self._theirs, name, self._name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_recorded(args, kwargs):
            raise unsupported(self._name, here())
        return self._theirs(*args, **kwargs)

    def __dir__(self) -> list[str]:
        return dir(self._theirs)

    def __repr__(self) -> str:
        return repr(self._theirs)
