"""Tests whether all that a function read is unchanged: the facts of a World (world.py) as one compiled
function.

For a function of its arguments and NumPy the test takes about 150 nanoseconds. An array is compared by its
bytes, so a function over large arrays from outside pays for reading them at every call; pass such arrays as
arguments, or promise with `pure=True` that nothing outside the arguments will change.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

import numpy as np

from ..record.interception import INTERCEPTED, plain
from ..same import COMPARED, interchangeable, same_array

MISSING = object()


@dataclass(slots=True, eq=False)
class Guard:
    """The test whether a recording still holds.

    trouble         why the function cannot be guarded, so that it is recorded at every call; or None
    watched         the number of facts that `holds` tests
    text            the test of a short guard as an expression over `names`, to be inlined
    facts           what is tested
    tests_identity  the function compares by `is` what may be an argument; `arrays_read`: the arrays it reads
    """

    trouble: str | None
    holds: Callable[[], bool]
    watched: int = 0
    text: str | None = None
    names: dict | None = None
    facts: list | None = None
    tests_identity: bool = False
    arrays_read: frozenset[int] = frozenset()


def never() -> bool:
    return False


# Each kind of fact as an expression over its parts, a b c d e: the cheap and likely changes first.
_TEMPLATES = {
    "function": "{a}.__code__ is {b} and {a}.__defaults__ is {c} and {a}.__kwdefaults__ is {d} and "
    "{a}.__qualname__ is {e}",
    "cell": "{a}.cell_contents is {b}",
    "entry": "{a}[{b}] is {c}",
    "absent": "{b} not in {a}",
    "bare": "not {a}.__dict__",
    "type": "type({a}) is {b}",
    "slot": "same({b}.__get__({a}), {c})",
    "no slot": "is_unset({a}, {b})",
    "attribute": "same({a}.{b}, {c})",
    "answer": "{a}.{b} == {c}",
    "texts": "settings_of_texts() == {b}",
    "attributes": "same_attributes(same, {a}.__dict__, {b}, {c}, {d})",
    "namespace": "same_items({a}.__dict__.values(), {c}) and same_items({a}.__dict__, {b})",
    "class": "same_class({a}, {b}, {c}, {d})",
    "dict": "same_items({a}.values(), {c}) and same_items({a}, {b})",
    "items": "same_items({a}, {b})",
    "roots": "same_items({a}._reuse_roots(), {b})",
    "array": "{a}.strides == {c} and same_array({a}, {b})",
}
_ORDER = {kind: i for i, kind in enumerate(_TEMPLATES)}
# Parts that are names -> how the text has them
_NAMES = {("entry", 1): repr, ("absent", 1): repr, ("attribute", 1): str, ("answer", 1): str}
# An equal value could stand in for one of these: `SCALE = 0.1` run again makes another object
_MAY_BE_EQUAL = (*COMPARED, tuple, frozenset, slice, np.generic, np.dtype)

SHORT = 16  # facts
# Raised by a test if a name is gone, a cell was emptied, or another thread changes a dict
GONE = (KeyError, ValueError, AttributeError, RuntimeError)


def make_guard(facts: Iterable[tuple]) -> Guard:
    """All facts as one function: by identity, then by equality of what cannot change (floats, names)."""
    env: dict[str, Any] = dict(
        same=interchangeable,
        same_items=functools.partial(same_items, interchangeable),
        settings_of_texts=settings_of_texts,
        same_array=same_array,
        same_class=same_class,
        same_attributes=same_attributes,
        is_unset=is_unset,
        plain=plain,
        gone=GONE,
    )
    known: dict[int, str] = {}  # id of a part -> its name

    def ref(part) -> str:
        if part is None or type(part) is bool:
            return repr(part)
        if id(part) not in known:
            known[id(part)] = name = f"v{len(known)}"
            env[name] = part
        return known[id(part)]

    def test(kind, *parts) -> str:
        texts = [_NAMES.get((kind, k), ref)(p) for k, p in enumerate(parts)]
        text = _TEMPLATES[kind].format(**dict(zip("abcde", texts)))
        if kind not in ("cell", "entry"):
            return text
        current = text.rsplit(" is ", 1)[0]
        if isinstance(parts[-1], _MAY_BE_EQUAL):
            return f"({text} or same({current}, {ref(parts[-1])}))"
        if type(parts[-1]) is np.ndarray or id(parts[-1]) in INTERCEPTED:
            # the test may run while something is recorded
            return f"({text} or plain({current}) is {ref(parts[-1])})"
        return text

    facts = sorted(facts, key=lambda fact: _ORDER[fact[0]])
    tests = [test(*fact) for fact in facts]
    source = "def holds():\n    try:\n"
    for i in range(0, len(tests), 100):
        source += f"        if not ({' and '.join(tests[i : i + 100])}):\n            return False\n"
    source += "        return True\n    except gone:\n        return False\n"
    exec(compiled(source, "<autodiff guard>"), env)
    holds = env.pop("holds")
    text = " and ".join(tests) or "True" if len(tests) <= SHORT else None
    return Guard(None, holds, len(tests), text, env, facts)


@functools.lru_cache(256)
def compiled(source: str, name: str) -> CodeType:
    """Compile a test or fast entry, whose text is the same for all functions of one code."""
    return compile(source, name, "exec")


def same_items(same: Callable, items: Collection, then: tuple) -> bool:
    return len(items) == len(then) and all(map(same, items, then))


def settings_of_texts() -> dict:
    """The settings that determine the texts of NumPy's numbers and arrays."""
    return {**np.get_printoptions()}


def same_class(c: type, names: tuple, values: tuple, mro: tuple[type, ...]) -> bool:
    now: Mapping = c.__dict__
    if len(now) > len(names):  # added by pickle
        now = {name: value for name, value in now.items() if name != "__slotnames__"}
    if len(c.__mro__) != len(mro) or not all(map(operator.is_, c.__mro__, mro)):
        return False
    return tuple(now) == names and all(map(operator.is_, now.values(), values))


def same_attributes(same: Callable, now: dict, names: tuple, values: tuple, absent: frozenset) -> bool:
    """Whether these names have these values, and the others are still missing."""
    for name, value in zip(names, values):
        current = now.get(name, MISSING)
        if current is not value and plain(current) is not value and not same(current, value):
            return False
    return absent.isdisjoint(now) if len(now) < len(absent) else not any(map(now.__contains__, absent))


def is_unset(v: Any, slot: Any) -> bool:
    try:
        slot.__get__(v)
    except AttributeError:
        return True
    return False
