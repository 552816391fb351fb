"""Checks what a recorded function returns: inside other objects recorded values would be useless."""

from __future__ import annotations

import functools
import types

from ..tree import Tree
from .local.arrays import Promoted
from .recorder import Recorder
from .source_lines import error_here
from .value import Recorded

LIMIT = 1000  # objects that are looked at
_ATOMS = (type(None), bool, int, float, complex, str, bytes)
_PLAIN = (*_ATOMS, type, types.ModuleType, types.BuiltinFunctionType)


def check_results(rec: Recorder, tree: Tree) -> None:
    """Raise where a result other than an array, a number or a container holds a value of this recording."""
    for x in tree.statics():
        if isinstance(x, _PLAIN):
            continue
        if hasattr(type(x), "__next__"):  # isinstance(x, Iterator) would run Python code
            raise error_here(
                f"{rec.name} returns a {type(x).__name__}, whose values would be computed after the "
                "recording has ended. Return a list of them"
            )
        if holds(x, rec):
            raise error_here(
                f"{rec.name} returns a {type(x).__name__} with a recorded value inside, which would be of no "
                "use outside. Return arrays and numbers, in tuples, lists and dicts where there are several"
            )


def holds(x: object, rec: Recorder | None = None, kinds: str = "biufc") -> bool:
    """Whether an object holds a value of this recording, or of any, with a dtype of these kinds."""
    seen: dict[int, object] = {}
    todo = [x]
    while todo and len(seen) < LIMIT:
        x = todo.pop()
        x = x.recorded if type(x) is Promoted else x
        if type(x) is Recorded:
            if (rec is None or x._rec is rec) and x.dtype.kind in kinds:
                return True
        elif not isinstance(x, _PLAIN) and id(x) not in seen:
            seen[id(x)] = x
            todo += _parts(x)
    return False


def _parts(x) -> list:
    """Everything that an object holds: items, attributes, and what a function closes over."""
    parts = list(getattr(x, "__dict__", {}).values())
    own = [n for c in type(x).__mro__ for n in _slots(c) if n not in ("__weakref__", "__dict__")]
    parts += [getattr(x, n) for n in own if hasattr(x, n)]
    if isinstance(x, dict):
        parts += x.values()
    elif isinstance(x, (list, tuple, set, frozenset)):
        parts += x
    elif isinstance(x, types.FunctionType):
        parts += [x.__defaults__, x.__kwdefaults__, *map(_content, x.__closure__ or ())]
    elif isinstance(x, types.MethodType):
        parts.append(x.__self__)
    elif isinstance(x, functools.partial):
        parts += [x.func, x.args, x.keywords]
    return parts


def _slots(c: type):
    slots = c.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else slots


def _content(cell):
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None
