"""When may a recording be used again? When running the function anew would give the same.

`watch(f)` walks over everything that f reads besides its arguments: closures, defaults, globals, the
functions and classes it calls, objects and containers reachable from them, down to the bytes of arrays. The
result is a Guard.

    guard.trouble    why nothing can be promised (f draws random numbers, prints, reads a file, assigns a
                     global, ...), or None. Such a function is recorded at every call: slower, and right.
    guard.holds()    is everything still as it was when the guard was made? For a function of nothing but its
                     arguments and NumPy this takes about 100 nanoseconds: it is compiled to one expression.

What is taken as constant: NumPy, the stateless part of the standard library (reads.TRUSTED) and the built-in
functions in PURE_BUILTINS. Anything that is not understood counts as trouble.

An array is compared by its bytes, so a function over large captured arrays pays for reading them at every
call; pass such arrays as arguments, or promise with `pure=True` that nothing outside the arguments will
change.
"""

from __future__ import annotations

import types

import numpy as np

from ..same import same, same_array, same_class, same_items
from .world import _MISSING, _cached, _Walk


class Guard:
    """See the head of this file. `watched` is how many facts `holds` looks at; `text` is the test of a short
    guard as an expression over `names`, for those who would rather not call a function.
    """

    __slots__ = ("trouble", "holds", "watched", "text", "names")

    def __init__(self, trouble, holds, watched: int = 0, text: str | None = None, names: dict | None = None):
        self.trouble = trouble
        self.holds = holds
        self.watched = watched
        self.text = text
        self.names = names


def watch(*roots) -> Guard:
    """The guard for what these functions (or other objects) read."""
    walk = _Walk()
    for root in roots:
        walk.todo.append(root)
    walk.run()
    if walk.trouble:
        return Guard(walk.trouble, _never)
    return _compile(walk.facts)


def trust(*roots) -> Guard:
    """The guard of a promise (`pure=True`): it always holds."""
    return Guard(None, _always, 0, "True", {})


def _never() -> bool:
    return False


def _always() -> bool:
    return True


# Each kind of fact as an expression over its parts, a b c d.
_TEMPLATES = {
    "function": "{a}.__code__ is {b} and {a}.__defaults__ is {c} and {a}.__kwdefaults__ is {d}",
    "cell": "{a}.cell_contents is {b}",
    "global": "{a}[{b}] is {c}",
    "absent": "{b} not in {a}",
    "type": "type({a}) is {b}",
    "cache": "cached({a}) == ({b}, {c})",
    "class": "same_class({a}, {b}, {c}, {d})",
    "slots": "same_items([getattr({a}, n, missing) for n in {b}], {c})",
    "dict": "same_items({a}.values(), {c}) and same_items({a}, {b})",
    "attributes": "same_items([getattr({a}, n, missing) for n in {b}], {c})",
    "items": "same_items({a}, {b})",
    "set": "{a} == {b} and sorted(map(id, {a})) == sorted(map(id, {b}))",
    "array": "same_array({a}, {b})",
}
# The cheap and likely changes first.
_ORDER = {kind: i for i, kind in enumerate(_TEMPLATES)}


SHORT = 6  # facts
# What a test raises where a name is gone, a cell was emptied, or another thread is changing a dict
GONE = (KeyError, ValueError, AttributeError, RuntimeError)


def _compile(facts) -> Guard:
    """All facts as one function: identity first, and equality only of values that cannot change (floats,
    names).
    """
    env = dict(
        same=same,
        same_items=same_items,
        same_array=same_array,
        same_class=same_class,
        cached=_cached,
        missing=_MISSING,
        gone=GONE,
    )
    known: dict[int, str] = {}

    def ref(part) -> str:
        if part is None or type(part) is bool:
            return repr(part)
        if id(part) not in known:
            known[id(part)] = name = f"v{len(known)}"
            env[name] = part
        return known[id(part)]

    tests = []
    for kind, *parts in sorted(facts, key=lambda fact: _ORDER[fact[0]]):
        if kind == "array":
            parts.append(parts[0].copy(order="K"))
        texts = [repr(p) if kind in ("global", "absent") and k == 1 else ref(p) for k, p in enumerate(parts)]
        text = _TEMPLATES[kind].format(**dict(zip("abcd", texts)))
        if kind in ("cell", "global") and _may_be_equal(parts[-1]):
            current = text.rsplit(" is ", 1)[0]
            text = f"({text} or same({current}, {ref(parts[-1])}))"
        tests.append(text)
    source = "def holds():\n    try:\n"
    for i in range(0, len(tests), 100):
        source += f"        if not ({' and '.join(tests[i : i + 100])}):\n            return False\n"
    source += "        return True\n    except gone:\n        return False\n"
    exec(source, env)
    holds = env.pop("holds")
    return Guard(None, holds, len(tests), " and ".join(tests) or "True" if len(tests) <= SHORT else None, env)


def _may_be_equal(value) -> bool:
    """Could an equal value stand in for this one? (`SCALE = 0.1` run a second time makes another object.)"""
    return not isinstance(value, (types.ModuleType, types.FunctionType, type, np.ndarray, np.ufunc))
