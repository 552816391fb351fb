"""autograd.wrap_util: unary_to_nary, which extends operators on functions of one argument to many."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from ...same import same_items
from .tracer import subvals

roots: list = []  # what every function here depends on besides: NumPy's functions with a program's rule


class _Open(threading.local):
    """How many operators of these modules are running in a thread."""

    operators = 0


class _Calls(threading.local):
    """The calls of a Unary that are running in a thread: (args, kwargs, which are recorded besides)."""

    def __init__(self) -> None:
        self.stack: list[tuple] = []


_open = _Open()


def running() -> bool:
    """Whether an operator of these modules is running in this thread."""
    return _open.operators > 0


class Unary:
    """A function of many arguments as a function of those selected by argnum; the others are those of the
    call that is running in this thread.

    One object serves all calls, so that recordings are shared; `derived` caches its derived functions. The
    other arguments are passed plain at first. If a real number or an array among them changes from one call
    to the next, such arguments are recorded from then on (`recorded_others`), so that one program serves all
    their values; if the function fails with recorded ones, they stay plain for good.
    """

    compiles_when_called_again = True  # `grad(f)(x)` makes a new function, often for one call

    def __init__(self, fun: Callable, argnum: Any):
        self.fun = fun
        self.argnum = argnum
        self.derived: dict = {}
        self.records_others: bool | None = None  # None: they have been the same so far
        self._last: tuple | None = None
        self._calls: Any = _Calls()
        self.__name__ = self.__qualname__ = get_name(fun)
        self.__doc__ = get_doc(fun)

    def _plain_others(self) -> tuple[tuple, list]:
        """(how many arguments a call has, which are recorded and which named; those that are not recorded)"""
        args, kwargs, recorded = self._calls.stack[-1]
        chosen = {*self._chosen(len(args)), *recorded}
        rest = [x for i, x in enumerate(args) if i not in chosen]
        return (len(args), recorded, tuple(kwargs)), [*rest, *kwargs.values()]

    def _reuse_roots(self) -> tuple:
        """The values that a recording depends on: the function, and the other arguments, unless recorded."""
        settings, values = self._plain_others() if self._calls.stack else ((), [])
        return (self.fun, *roots, *settings, *values)

    def _same_code(self) -> tuple | None:
        """(settings, function, other arguments): equal ones give equal recordings."""
        if not self._calls.stack or type(self.argnum) is list:
            return None
        settings, values = self._plain_others()
        return (self.argnum, *settings), self.fun, values

    def _chosen(self, n: int) -> list[int]:
        chosen = (self.argnum,) if isinstance(self.argnum, int) else self.argnum
        return [i + n if i < 0 else i for i in chosen]

    def __call__(self, x: Any, *others: Any) -> Any:
        args, kwargs, recorded = self._calls.stack[-1]
        chosen = [(self.argnum, x)] if isinstance(self.argnum, int) else zip(self.argnum, x)
        return self.fun(*subvals(subvals(args, zip(recorded, others)), chosen), **kwargs)

    def recorded_others(self) -> list:
        """The other arguments that are recorded for the rest of this call: if they change, real or complex
        numbers and arrays of them, as a batch of data is.
        """
        args, kwargs, _ = self._calls.stack[-1]
        if self.records_others is False:
            return []
        chosen = self._chosen(len(args))
        numbers = [i for i, x in enumerate(args) if i not in chosen and _is_real_or_complex(x)]
        if self.records_others is None:
            now = tuple(args[i] for i in numbers)
            if self._last is None or same_items(now, self._last):
                numbers = []
            else:
                self.records_others = True
            self._last = now
        self._calls.stack[-1] = args, kwargs, tuple(numbers)
        return [args[i] for i in numbers]

    def within(self, args: tuple, kwargs: dict, run: Callable, *rest: Any, **options: Any) -> Any:
        """run(self, the arguments selected by argnum, ...), with the others bound for the call."""
        x = args[self.argnum] if isinstance(self.argnum, int) else tuple(args[i] for i in self.argnum)
        calls = self._calls.stack
        calls.append((args, kwargs, ()))
        _open.operators += 1
        try:
            return run(self, x, *rest, **options)
        except Exception:
            if not calls[-1][2]:
                raise
        finally:
            _open.operators -= 1
            calls.pop()
        self.records_others = False  # try with plain ones; an error of the function itself is raised again
        return self.within(args, kwargs, run, *rest, **options)

    def bound(self) -> Unary:
        """The same function with the other arguments of this call bound for good."""
        unary = Unary(self.fun, self.argnum)
        args, kwargs, _ = self._calls.stack[-1]
        unary._calls = types.SimpleNamespace(stack=[(args, kwargs, ())])  # in all threads
        return unary


def _is_real_or_complex(x: Any) -> bool:
    return type(x) in (float, complex) or type(x) is np.ndarray and x.dtype.kind in "fc"


def unary_to_nary(unary_operator: Callable) -> Callable:
    """operator(fun, x, ...) as nary(fun, argnum=0, ...)(*args); argnum is a position, or several."""

    @functools.wraps(unary_operator)
    def nary_operator(fun, argnum=0, *nary_op_args, **nary_op_kwargs):
        if type(argnum) not in (int, tuple, list):
            raise TypeError(
                f"{unary_operator.__name__}: argnum is {argnum!r}, expected an int or a tuple of ints"
            )
        unary = Unary(fun, argnum)

        @wrap_nary_f(fun, unary_operator, argnum)
        def nary_f(*args, **kwargs):
            return unary.within(args, kwargs, unary_operator, *nary_op_args, **nary_op_kwargs)

        return nary_f

    return nary_operator


def wraps(fun: Callable, namestr: str = "{fun}", docstr: str = "{doc}", **kwargs: Any) -> Callable:
    """Decorator that sets a function's name and docstring after another's."""

    def named(f):
        with suppress(AttributeError, KeyError, ValueError):
            f.__name__ = namestr.format(fun=get_name(fun), **kwargs)
            f.__doc__ = docstr.format(fun=get_name(fun), doc=get_doc(fun), **kwargs)
        return f

    return named


def wrap_nary_f(fun: Callable, op: Callable, argnum: Any) -> Callable:
    return wraps(
        fun,
        "{op}_of_{fun}_wrt_argnum_{argnum}",
        "    {op} of function {fun} with respect to argument number {argnum}. It takes the same arguments.",
        op=get_name(op),
        argnum=argnum,
    )


def get_name(f: Any) -> str:
    return getattr(f, "__name__", "[unknown name]")


def get_doc(f: Any) -> str:
    return getattr(f, "__doc__", "") or ""
