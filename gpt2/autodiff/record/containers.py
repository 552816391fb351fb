"""Notices changes of containers among the arguments: a recording gets copies, so they would be lost."""

from __future__ import annotations

import dis
import operator
import types
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import WriteError
from ..tree import Tree, flatten

_CHANGES = frozenset(
    "append extend insert remove pop clear sort reverse update setdefault popitem add discard".split()
)


def check_unchanged(f: Callable, name: str, given: Any, tree: Tree, leaves: Sequence) -> None:
    """Raise where f changed a container among its arguments, of which `given` is a copy."""
    _drop_defaults(given, tree)
    found, now = flatten(given)
    if now == tree and all(a is b for a, b in zip(found, leaves)):
        return
    where = None
    if now.size == tree.size:
        paths = (p for p, a, b in zip(tree.paths(), found, leaves) if a is not b)
        where = next(paths, None)
    what = (
        "a list or dict among its arguments" if where is None else f"what its arguments hold at {where[1:]}"
    )
    lines = changing_lines(f)
    loc = lines[0] if len(lines) == 1 else None
    there = "" if loc or not lines else f" (in line {' or '.join(str(line) for _, line, _ in lines)})"
    raise WriteError(
        f"{name} changes {what}{there}, and the caller would not see it: it has a copy. Change a copy of "
        "your own (dict(d), list(l)), and return what is new",
        loc,
    )


def with_tuples(made: Any, given: Any) -> Any:
    """`made`, which was put together of recorded values like `given`, with the tuples of `given` in which
    nothing is recorded: a function may ask for one by `is`. What else holds something is a copy.
    """
    if type(made) is not type(given) or not (isinstance(made, tuple) or type(made) in (list, dict)):
        return made
    places = list(made) if type(made) is dict else range(len(made))
    if not isinstance(made, tuple):
        for k in places:
            made[k] = with_tuples(made[k], given[k])
        return made
    parts = [with_tuples(made[k], given[k]) for k in places]
    if all(map(operator.is_, parts, given)):
        return given
    return type(made)(*parts) if hasattr(made, "_fields") else type(made)(parts)


def changing_lines(f: Callable) -> list[tuple]:
    """(file, line, function) of what looks like changes of containers in f."""
    f = getattr(f, "__wrapped__", f)
    code = getattr(getattr(f, "__func__", f), "__code__", None)
    if not isinstance(code, types.CodeType):
        return []
    found, line = [], code.co_firstlineno
    for i in dis.get_instructions(code):
        line = i.positions.lineno or line if i.positions is not None else line
        if i.opname in ("STORE_SUBSCR", "DELETE_SUBSCR") or (
            i.opname in ("LOAD_METHOD", "LOAD_ATTR") and i.argval in _CHANGES
        ):
            found.append((code.co_filename, line, code.co_name))
    return list(dict.fromkeys(found))


def _drop_defaults(x: Any, tree: Tree) -> None:
    """Take out of each defaultdict what merely reading it put there."""
    if tree.kind is None:
        return
    if isinstance(x, defaultdict) and x.default_factory is not None:
        for k in [k for k in x if k not in tree.keys]:
            default = x.default_factory()
            if type(x[k]) is type(default) and repr(x[k]) == repr(default):
                del x[k]
    try:
        parts = tree.items_of(x)
    except (LookupError, TypeError, AttributeError):  # something is not there any more
        return
    for part, child in zip(parts, tree.children):
        _drop_defaults(part, child)
