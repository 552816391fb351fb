"""Refuses what a recorded function must not do with containers and other objects: change those among its
arguments, which are copies, so that the change would be lost; return one with a recorded value inside.
"""

from __future__ import annotations

import gc
import operator
import types
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import WriteError
from ..tree import Tree, flatten
from .bytecode import instructions_of
from .local.arrays import Promoted
from .recorder import Recorder
from .source_lines import error_here
from .value import Recorded

_CHANGES = frozenset(
    "append extend insert remove pop clear sort reverse update setdefault popitem add discard".split()
)


def check_unchanged(f: Callable, name: str, copies: Any, tree: Tree, leaves: Sequence) -> None:
    """Raise WriteError if f changed a container among its arguments; `copies` are what it got."""
    _drop_defaults(copies, tree)
    new_leaves, new_tree = flatten(copies)
    if new_tree == tree and all(a is b for a, b in zip(new_leaves, leaves)):
        return
    description = "a list or dict among its arguments"
    if new_tree.size == tree.size:
        changed = [p for p, a, b in zip(tree.paths(), new_leaves, leaves) if a is not b]
        if changed:
            description = f"what its arguments hold at {changed[0][1:]}"
    lines = changing_lines(f)
    loc = lines[0] if len(lines) == 1 else None
    lines_text = "" if loc or not lines else f" (in line {' or '.join(str(line) for _, line, _ in lines)})"
    raise WriteError(
        f"{name} changes {description}{lines_text}, and the caller would not see it: it has a copy. Change "
        "a copy of your own (dict(d), list(l)), and return what is new",
        loc,
    )


def with_tuples(copy: Any, original: Any) -> Any:
    """`copy` with those tuples of `original` that hold nothing recorded, which may be tested by `is`."""
    if type(copy) is not type(original) or not (isinstance(copy, tuple) or type(copy) in (list, dict)):
        return copy
    places = list(copy) if type(copy) is dict else range(len(copy))
    if not isinstance(copy, tuple):
        for k in places:
            copy[k] = with_tuples(copy[k], original[k])
        return copy
    parts = [with_tuples(copy[k], original[k]) for k in places]
    if all(map(operator.is_, parts, original)):
        return original
    return type(copy)(*parts) if hasattr(copy, "_fields") else type(copy)(parts)


def changing_lines(f: Callable) -> list[tuple]:
    """(file, line, function) of the lines of f that seem to change containers."""
    f = getattr(f, "__wrapped__", f)
    code = getattr(getattr(f, "__func__", f), "__code__", None)
    if not isinstance(code, types.CodeType):
        return []
    changes, line = [], code.co_firstlineno
    for i in instructions_of(code):
        line = i.positions.lineno or line if i.positions is not None else line
        named = i.opname == "LOAD_ATTR" and i.argval in _CHANGES
        if named or i.opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
            changes.append((code.co_filename, line, code.co_name))
    return list(dict.fromkeys(changes))


def _drop_defaults(x: Any, tree: Tree) -> None:
    """Remove from each defaultdict the entries that reading it has added."""
    if tree.kind is None:
        return
    if isinstance(x, defaultdict) and x.default_factory is not None:
        for k in [k for k in x if k not in tree.keys]:
            default = x.default_factory()
            if type(x[k]) is type(default) and repr(x[k]) == repr(default):
                del x[k]
    try:
        parts = tree.items_of(x)
    except (LookupError, TypeError, AttributeError):  # a part was removed
        return
    for part, child in zip(parts, tree.children):
        _drop_defaults(part, child)


LIMIT = 1000  # objects that are looked at
_ATOMS = (type(None), bool, int, float, complex, str, bytes)
_PLAIN = (*_ATOMS, type, types.ModuleType, types.BuiltinFunctionType, types.FrameType, types.TracebackType)


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
            if isinstance(x, types.FunctionType):  # without its global variables
                todo += [x.__defaults__, x.__kwdefaults__, x.__closure__]
            else:
                todo += gc.get_referents(x)
    return False
