"""Refuses changes of containers among the arguments: f gets copies, so they would be lost."""

from __future__ import annotations

import operator
import types
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import WriteError
from ..tree import Tree, flatten
from .bytecode import instructions_of

_CHANGES = frozenset(
    "append extend insert remove pop clear sort reverse update setdefault popitem add discard".split()
)


def check_unchanged(f: Callable, name: str, copies: Any, tree: Tree, leaves: Sequence) -> None:
    """Raise WriteError if f changed a container among its arguments; `copies` are what it got."""
    _drop_defaults(copies, tree)
    new_leaves, new_tree = flatten(copies)
    if new_tree == tree and all(a is b for a, b in zip(new_leaves, leaves)):
        return
    where = None
    if new_tree.size == tree.size:
        paths = (p for p, a, b in zip(tree.paths(), new_leaves, leaves) if a is not b)
        where = next(paths, None)
    inside = f"what its arguments hold at {where[1:]}" if where is not None else ""
    description = inside or "a list or dict among its arguments"
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
        if i.opname in ("STORE_SUBSCR", "DELETE_SUBSCR") or (
            i.opname == "LOAD_ATTR" and i.argval in _CHANGES
        ):
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
