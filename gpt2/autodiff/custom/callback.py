"""ad.callback: a Python function that a program calls, and does not record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import AutodiffError
from ..record.record import apply_op
from ..record.source_lines import error_here
from ..record.unevaluated import Unknown, depends_on
from ..record.value import Recorded
from ..tree import flatten, unflatten
from . import call  # noqa: F401  its rows enter the table on import


def callback(f: Callable, like: Any, *args: Any) -> Any:
    """f(*args), called as plain Python each time a compiled program reaches it. f is not recorded.

    f      takes arrays, one for each of args, and gives an array or a tree of arrays, which are copied. It
           may keep a state and have side effects. The arrays that it takes are the program's own memory: good
           for as long as the call lasts, and not to be written to
    like   an array, or a tree of arrays, of the structure, shapes and dtypes that f gives

    A program calls f once for each recorded call whose result is used. f is also called while the function
    around it is recorded: by ad.Fixed at the first call with new types, by ad.compile whenever f has changed
    what that function reads. It has no derivative: if one is needed, call f in a function with a rule,
    ad.custom_vjp.

    Raises AutodiffError if f returns something that is not like `like`.

        >>> seen = []
        >>> def note(x):
        ...     seen.append(float(x[0]))
        ...     return x + len(seen)
        >>> fixed = ad.Fixed(lambda x: np.sqrt(ad.callback(note, x, x * x)))
        >>> [float(fixed(np.full(1, 4.0))[0]) for _ in range(2)], len(seen)
        ([4.242640687119285, 4.358898943540674], 3)
    """
    if not any(type(x) is Recorded for x in args):
        return f(*args)
    for x in args:
        if type(x) is Recorded and depends_on(x.node, x._rec.guessed):  # f is to see real values
            raise Unknown
    examples, tree = flatten(like)
    if not examples:
        raise error_here("callback: like has no array, and a program leaves out what gives none")
    types = [(np.shape(x), x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype) for x in examples]
    name = getattr(f, "__name__", "f")

    def function(*values):
        results, result_tree = flatten(f(*map(_read_only, values)))
        if result_tree != tree or [(np.shape(x), getattr(x, "dtype", None)) for x in results] != types:
            returned = ", ".join(f"{getattr(x, 'dtype', type(x).__name__)} {np.shape(x)}" for x in results)
            expected = ", ".join(f"{dtype} {shape}" for shape, dtype in types)
            raise AutodiffError(f"callback: {name} gives {returned}, expected {expected}")
        return tuple(results)

    function.__name__ = name
    shapes, dtypes = zip(*types)
    results = apply_op("host", *args, function=function, shapes=shapes, dtypes=tuple(map(str, dtypes)))
    return unflatten(tree, results)


def _read_only(x: np.ndarray) -> np.ndarray:
    """A read-only view: the program may use one array for two of the function around it."""
    x = np.asarray(x)[...]
    x.flags.writeable = False
    return x
