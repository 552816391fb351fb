"""Follows holders of attributes: objects, classes, modules, functions. Code can only read attributes whose
names it has, so nothing else is followed or compared.

`initial` has the attributes when the holder was first met. Those whose names come up later are unchanged:
code that changes one has its name.
"""

from __future__ import annotations

import types
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..record.interception import plain

if TYPE_CHECKING:
    from .world import World

MISSING = object()
_NAMES_OF_CODE = ("__name__", "__qualname__", "__module__")  # of functions


class Names:
    def __init__(self, holder: Any, initial: Any):
        self.holder = holder
        self.initial = dict(initial)

    def reach(self, world: World, name: str) -> None:
        """Note that some code reads this name, perhaps of this holder."""
        value = self.initial.get(name, MISSING)
        if value is not MISSING:
            world.reach(value)

    def note(self, world: World) -> None:
        """Add the facts for the guard."""
        names = tuple(n for n in self.initial if n in world.names)
        absent = frozenset(world.names.difference(names))
        world.fact("attributes", self.holder, names, tuple(plain(self.initial[n]) for n in names), absent)


class ModuleNames(Names):
    def __init__(self, module: ModuleType):
        super().__init__(module, {k: plain(v) for k, v in module.__dict__.items()})

    def reach(self, world: World, name: str) -> None:
        if name in self.initial:
            world.reach(self.initial[name], called=name == "__getattr__")


class ArrayNames(Names):
    """The names of an array, looked up only where some code has them; its bytes are always compared."""

    def __init__(self, a: np.ndarray):
        super().__init__(a, {"base": a.base, "flags.num": a.flags.num})

    def note(self, world: World) -> None:
        if "base" in world.names:
            world.fact("attribute", self.holder, "base", self.initial["base"])
        if "flags" in world.names:
            world.fact("answer", self.holder, "flags.num", self.initial["flags.num"])


class FunctionNames(Names):
    def __init__(self, f: FunctionType):
        super().__init__(f, f.__dict__)

    def note(self, world: World) -> None:
        if self.initial:
            super().note(world)
        else:
            world.fact("bare", self.holder)
        _note_names(world, self.holder)


class ClassNames(Names):
    def __init__(self, c: type):
        super().__init__(c, c.__dict__)

    def note(self, world: World) -> None:
        c = self.holder
        world.fact("class", c, tuple(self.initial), tuple(self.initial.values()), c.__mro__)
        for name in ("__name__", "__qualname__"):  # the text of an instance has them
            world.fact("attribute", c, name, getattr(c, name))


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

    def reach(self, world: World, name: str) -> None:
        super().reach(world, name)
        value = self.slots.get(name, (None, MISSING))[1]
        if value is not MISSING:
            world.reach(value)

    def note(self, world: World) -> None:
        if self.has_dict:
            super().note(world)
        for name, (member, value) in self.slots.items():
            if name in world.names:
                fact = (
                    ("no slot", self.holder, member)
                    if value is MISSING
                    else ("slot", self.holder, member, value)
                )
                world.facts["slot", id(self.holder), name] = fact


def _note_names(world, holder) -> None:
    for name in _NAMES_OF_CODE:
        if name in world.names:
            world.fact("attribute", holder, name, getattr(holder, name))
