"""Tests whether all that was read is as it was: the facts of a World (world.py) as one compiled function.

    guard.trouble    why nothing can be promised, or None. Such a function is recorded at every call: slower,
                     and right.
    guard.holds()    is everything still as it was? For a function of its arguments and NumPy this takes about
                     150 nanoseconds: it is compiled to one expression.

An array is compared by its bytes, so a function over large arrays from outside pays for reading them at every
call; pass such arrays as arguments, or promise with `pure=True` that nothing outside the arguments will
change.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterable
from types import CodeType
from typing import Any

import numpy as np

from ..record.conversions import SEEN, plain
from ..same import COMPARED, interchangeable, same_array

MISSING = object()


class Guard:
    """The test whether a recording still holds. `watched` is how many facts `holds` looks at; `text` is the
    test of a short guard as an expression over `names`, for those who would rather not call a function;
    `facts` are what it looks at, and `by_identity` is as make_guard has it. `by_is`: the function asks by
    `is` for what may be an argument; `met` are then the arrays that it reads.
    """

    __slots__ = ("trouble", "holds", "watched", "text", "names", "facts", "by_identity", "by_is", "met")

    def __init__(
        self,
        trouble: str | None,
        holds: Callable[[], bool],
        watched: int = 0,
        text: str | None = None,
        names: dict | None = None,
        facts: list | None = None,
        by_identity: bool = False,
    ):
        self.trouble = trouble
        self.holds = holds
        self.watched = watched
        self.text = text
        self.names = names
        self.facts = facts
        self.by_identity = by_identity
        self.by_is = False
        self.met: frozenset[int] = frozenset()


def trust() -> Guard:
    """The guard of a promise (`pure=True`): it always holds."""
    return Guard(None, lambda: True, 0, "True", {})


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
    "class": "same_class({a}, {b}, {c}, {d}, {e})",
    "dict": "same_items({a}.values(), {c}) and same_items({a}, {b})",
    "items": "same_items({a}, {b})",
    "roots": "same_items({a}._reuse_roots(), {b})",
    "array": "{a}.strides == {c} and same_array({a}, {b})",
}
_ORDER = {kind: i for i, kind in enumerate(_TEMPLATES)}
_NAMES = {("entry", 1), ("absent", 1), ("attribute", 1), ("answer", 1)}  # parts that are written out

SHORT = 16  # facts
# What a test raises where a name is gone, a cell was emptied, or another thread is changing a dict
GONE = (KeyError, ValueError, AttributeError, RuntimeError)


def make_guard(facts: Iterable[tuple], by_identity: bool = False) -> Guard:
    """All facts as one function: by identity, then by equality of what cannot change (floats, names).

    by_identity   equality does not do: some code asks whether two such things are one object
    """
    same = operator.is_ if by_identity else interchangeable
    env = dict(
        same=same,
        same_items=functools.partial(same_items, same),
        settings_of_texts=settings_of_texts,
        same_array=same_array,
        same_class=same_class,
        same_attributes=same_attributes,
        is_unset=is_unset,
        plain=plain,
        gone=GONE,
    )
    facts = sorted(facts, key=lambda fact: _ORDER[fact[0]])
    tests = _tests(facts, by_identity, env)
    source = "def holds():\n    try:\n"
    for i in range(0, len(tests), 100):
        source += f"        if not ({' and '.join(tests[i : i + 100])}):\n            return False\n"
    source += "        return True\n    except gone:\n        return False\n"
    exec(compiled(source, "<autodiff guard>"), env)
    holds = env.pop("holds")
    text = " and ".join(tests) or "True" if len(tests) <= SHORT else None
    return Guard(None, holds, len(tests), text, env, facts, by_identity)


def _tests(facts: list[tuple], by_identity: bool, env: dict[str, Any]) -> list[str]:
    """A test of each fact, as text. What a text names is put into `env`."""
    known: dict[int, str] = {}

    def ref(part) -> str:
        if part is None or type(part) is bool:
            return repr(part)
        if id(part) not in known:
            known[id(part)] = name = f"v{len(known)}"
            env[name] = part
        return known[id(part)]

    def test(kind, *parts) -> str:
        texts = [_written(kind, p) if (kind, k) in _NAMES else ref(p) for k, p in enumerate(parts)]
        text = _TEMPLATES[kind].format(**dict(zip("abcde", texts)))
        if kind in ("cell", "entry") and not by_identity and _may_be_equal(parts[-1]):
            current = text.rsplit(" is ", 1)[0]
            return f"({text} or same({current}, {ref(parts[-1])}))"
        if kind == "entry" and id(parts[-1]) in SEEN:  # asked while something is recorded
            return f"({text} or plain({text.rsplit(' is ', 1)[0]}) is {ref(parts[-1])})"
        return text

    return [test(*fact) for fact in facts]


@functools.lru_cache(256)
def compiled(source: str, name: str) -> CodeType:
    """Code of the compiler's own, which is known by its name. A function that is made again and again, as a
    lambda in a loop, is tested by the same text each time: what differs are the names that it runs with.
    """
    return compile(source, name, "exec")


def _written(kind: str, name: str) -> str:
    return name if kind in ("attribute", "answer") else repr(name)


def _may_be_equal(value) -> bool:
    """Whether an equal value could stand in for this one: `SCALE = 0.1` run again makes another object."""
    return isinstance(value, (*COMPARED, tuple, frozenset, slice, np.generic, np.dtype))


def same_items(same: Callable, items: Collection, then: tuple) -> bool:
    return len(items) == len(then) and all(map(same, items, then))


def settings_of_texts() -> object:
    """What decides, besides a number of NumPy's itself, how it is written as a text."""
    return np.get_printoptions().get("legacy")


_PATTERNS = 1 << 5 | 1 << 6  # Py_TPFLAGS_SEQUENCE and _MAPPING: what `match` takes for one


def patterns_of(c: type) -> int:
    """Whether `match` takes instances for sequences or mappings: registering a class changes that."""
    return c.__flags__ & _PATTERNS


def same_class(c: type, names: tuple, values: tuple, mro: tuple[type, ...], patterns: int) -> bool:
    now = c.__dict__
    return (
        patterns_of(c) == patterns
        and len(c.__mro__) == len(mro)
        and all(map(operator.is_, c.__mro__, mro))
        and len(now) == len(names)
        and all(map(operator.is_, now.values(), values))
        and tuple(now) == names
    )


def same_attributes(same: Callable, now: dict, names: tuple, values: tuple, absent: frozenset) -> bool:
    """Whether these names have these values, and those that were missing are still not there."""
    for name, value in zip(names, values):
        found = now.get(name, MISSING)
        if found is not value and plain(found) is not value and not same(found, value):
            return False
    return absent.isdisjoint(now) if len(now) < len(absent) else not any(map(now.__contains__, absent))


def is_unset(v: Any, slot: Any) -> bool:
    """Whether the slot has no value."""
    try:
        slot.__get__(v)
    except AttributeError:
        return True
    return False
