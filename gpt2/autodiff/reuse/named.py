"""Follows holders of attributes: objects, classes, modules, functions. Code can only read attributes whose
names it has, so nothing else is followed or compared.

`initial` has the attributes when the holder was first met. Those whose names come up later are unchanged:
code that changes one has its name.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from ..record.interception import plain

MISSING = object()
_NAMES_OF_CODE = ("__name__", "__qualname__", "__module__")  # of functions


class Names:
    def __init__(self, holder: Any, initial: Any):
        self.holder = holder
        self.initial = dict(initial)

    def reach(self, reach: Callable, name: str) -> None:
        """Call reach(value) with what this name has here, as some code reads it, perhaps of this holder."""
        value = self.initial.get(name, MISSING)
        if value is not MISSING:
            reach(value)

    def note(self, names: set[str], fact: Callable) -> None:
        """Call fact(kind, *parts) for each fact that the guard needs: of these names, which code has."""
        present = tuple(n for n in self.initial if n in names)
        absent = frozenset(names.difference(present))
        fact("attributes", self.holder, present, tuple(plain(self.initial[n]) for n in present), absent)


class ModuleNames(Names):
    def __init__(self, module: ModuleType):
        super().__init__(module, {k: plain(v) for k, v in module.__dict__.items()})

    def reach(self, reach: Callable, name: str) -> None:
        if name in self.initial:
            reach(self.initial[name], called=name == "__getattr__")


class ArrayNames(Names):
    """The names of an array, looked up only where some code has them; its bytes are always compared."""

    def __init__(self, a: np.ndarray):
        super().__init__(a, {"base": a.base, "flags.num": a.flags.num})

    def note(self, names: set[str], fact: Callable) -> None:
        if "base" in names:
            fact("attribute", self.holder, "base", self.initial["base"])
        if "flags" in names:
            fact("answer", self.holder, "flags.num", self.initial["flags.num"])


class FunctionNames(Names):
    def __init__(self, f: FunctionType):
        super().__init__(f, f.__dict__)

    def note(self, names: set[str], fact: Callable) -> None:
        if self.initial:
            super().note(names, fact)
        else:
            fact("bare", self.holder)
        _note_names(self.holder, names, fact)


class ClassNames(Names):
    def __init__(self, c: type):
        super().__init__(c, c.__dict__)

    def note(self, names: set[str], fact: Callable) -> None:
        c = self.holder
        fact("class", c, tuple(self.initial), tuple(self.initial.values()), c.__mro__)
        for name in ("__name__", "__qualname__"):  # the text of an instance has them
            fact("attribute", c, name, getattr(c, name))


class InstanceNames(Names):
    def __init__(self, v: Any, t: type):
        super().__init__(v, getattr(v, "__dict__", ()))
        self.has_dict = bool(t.__dictoffset__)
        self.slots = {}
        for c in t.__mro__:
            for name, member in c.__dict__.items():
                if type(member) is types.MemberDescriptorType and name not in self.slots:
                    try:
                        self.slots[name] = member, member.__get__(v)
                    except AttributeError:
                        self.slots[name] = member, MISSING

    def reach(self, reach: Callable, name: str) -> None:
        super().reach(reach, name)
        value = self.slots.get(name, (None, MISSING))[1]
        if value is not MISSING:
            reach(value)

    def note(self, names: set[str], fact: Callable) -> None:
        if self.has_dict:
            super().note(names, fact)
        for name, (member, value) in self.slots.items():
            if name in names and value is MISSING:
                fact("no slot", self.holder, member)
            elif name in names:
                fact("slot", self.holder, member, value)


def _note_names(holder: Any, names: set[str], fact: Callable) -> None:
    for name in _NAMES_OF_CODE:
        if name in names:
            fact("attribute", holder, name, getattr(holder, name))
