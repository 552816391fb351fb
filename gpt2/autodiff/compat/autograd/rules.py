"""A program's own rules for functions of NumPy and SciPy, which replace the compiler's.

`defvjp(np.where, ...)` makes np.where a primitive, which handles calls on recorded values from then on, in
the whole process, as with autograd. Earlier recordings would have the old rule, so such rules must be set
before the first derivative of the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ...record import recorder
from ...record.dispatch import NO_ENTRY, TABLE, Entry, recorded_functions
from ...record.interception import plain
from ...record.ufuncs import op_of
from .tracer import Primitive
from .wrap_util import roots, running

# Programs call them as operators, which NumPy does not dispatch; nor does it dispatch methods such as x.sum()
_OPERATORS = frozenset(
    "add subtract multiply divide true_divide floor_divide remainder power negative positive absolute matmul "
    "square sqrt reciprocal equal not_equal less less_equal greater greater_equal".split()
)


def ruled(fun: Any) -> Primitive | None:
    """The primitive for a function of NumPy or SciPy; None if it cannot have a rule."""
    fun = plain(fun)
    if not _has_rule(fun):
        return None
    rule = TABLE.get(fun, NO_ENTRY).rule
    if rule is not None:
        return rule.primitive  # type: ignore[attr-defined]
    if recorder.recorded_so_far():
        raise TypeError(
            f"{fun.__name__} has a rule here, and derivatives were taken with it already: rules of NumPy's "
            f"functions are set before the first derivative; or make a new name: primitive({fun.__name__})"
        )
    taking = TABLE.setdefault(fun, Entry()).rule = _Taking(fun)
    roots.append(taking.primitive)
    return taking.primitive


def _has_rule(fun: Any) -> bool:
    if hasattr(np.ndarray, getattr(fun, "__name__", "")):
        return False
    if isinstance(fun, np.ufunc):
        return fun.nout == 1 and fun.__name__ not in _OPERATORS and op_of(fun) is not None
    try:
        return fun in recorded_functions()
    except TypeError:  # not hashable
        return False


class _Taking:
    """Handles a function's calls on recorded values by its primitive, except calls within that primitive."""

    def __init__(self, fun: Callable):
        self.inside = threading.local()

        def computed(*args, **kwargs):
            before, self.inside.now = getattr(self.inside, "now", False), True
            try:
                return fun(*args, **kwargs)
            finally:
                self.inside.now = before

        computed.__name__ = fun.__name__
        self.primitive = Primitive(computed)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        primitive = self.primitive
        if getattr(self.inside, "now", False) or primitive.vjp is None and primitive.jvp is None:
            return NotImplemented
        if not running():
            why = f"{primitive.__name__} has a rule of the program's own, which may change"
            recorder.current().unstable.append(why)
        return primitive(*args, **kwargs)
