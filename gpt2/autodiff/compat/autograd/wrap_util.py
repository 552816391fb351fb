"""autograd.wrap_util: an operator on functions of one argument becomes one on functions of many."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .util import subvals


class Unary:
    """A function of many arguments as a function of those that argnum names; the others are as they are,
    plain, those of the call that is running in this thread.

    It is one object for all calls, so that what was recorded in one call serves the next. `made` keeps the
    derived functions of it.
    """

    def __init__(self, fun: Callable, argnum: Any):
        self.fun = fun
        self.argnum = argnum
        self.made: dict = {}
        self._running = threading.local()
        self.__name__ = self.__qualname__ = get_name(fun)
        self.__doc__ = get_doc(fun)

    def _calls(self) -> list:
        try:
            return self._running.calls
        except AttributeError:
            self._running.calls = []
            return self._running.calls

    def _reuse_roots(self) -> tuple:
        """What a recording of it depends on: the function, and the other arguments."""
        calls = self._calls()
        if not calls:
            return (self.fun,)
        args, kwargs = calls[-1]
        chosen = (self.argnum,) if isinstance(self.argnum, int) else self.argnum
        n = len(args)
        places = {i + n if i < 0 else i for i in chosen}
        rest = [x for i, x in enumerate(args) if i not in places]
        return (self.fun, len(args), *rest, *kwargs, *kwargs.values())

    def __call__(self, x: Any) -> Any:
        args, kwargs = self._calls()[-1]
        chosen = [(self.argnum, x)] if isinstance(self.argnum, int) else zip(self.argnum, x)
        return self.fun(*subvals(args, chosen), **kwargs)

    def within(self, args: tuple, kwargs: dict, run: Callable, *rest: Any, **options: Any) -> Any:
        """run(self, the arguments that argnum names, ...), with the others at hand."""
        calls = self._calls()
        calls.append((args, kwargs))
        try:
            x = args[self.argnum] if isinstance(self.argnum, int) else tuple(args[i] for i in self.argnum)
            return run(self, x, *rest, **options)
        finally:
            calls.pop()

    def settled(self) -> Unary:
        """The same function with the other arguments of this call, for use after it."""
        unary = Unary(self.fun, self.argnum)
        unary._running = _Settled([self._calls()[-1]])
        return unary


class _Settled:
    """In place of a thread's own list of calls: one call, for all threads."""

    def __init__(self, calls: list):
        self.calls = calls


def unary_to_nary(unary_operator: Callable) -> Callable:
    """operator(fun, x, ...) as nary(fun, argnum=0, ...)(*args): argnum is a position, or a tuple of several."""

    @functools.wraps(unary_operator)
    def nary_operator(fun, argnum=0, *nary_op_args, **nary_op_kwargs):
        if type(argnum) not in (int, tuple, list):
            raise TypeError(
                f"{unary_operator.__name__}: argnum is {argnum!r}, expected an int or a tuple of ints"
            )
        unary = Unary(fun, argnum)

        def nary_f(*args, **kwargs):
            return unary.within(args, kwargs, unary_operator, *nary_op_args, **nary_op_kwargs)

        return wrap_nary_f(fun, unary_operator, argnum)(nary_f)

    return nary_operator


def wraps(fun: Callable, namestr: str = "{fun}", docstr: str = "{doc}", **kwargs: Any) -> Callable:
    """Names a function after another."""

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
        "    {op} of function {fun} with respect to argument {argnum}; it takes the arguments of {fun}.",
        op=get_name(op),
        argnum=argnum,
    )


def get_name(f: Any) -> str:
    return getattr(f, "__name__", "[unknown name]")


def get_doc(f: Any) -> str:
    return getattr(f, "__doc__", "") or ""
