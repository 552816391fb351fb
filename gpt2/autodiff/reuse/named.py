"""Follows things that hold others under names: objects, classes, modules, functions. Only names that some
code has can be read of them, so nothing else is followed or compared.

`then` is what such a thing held when it was first met. Names that come up later, in other code, were not
changed until then: what changes them has them.
"""

from __future__ import annotations

import types
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..record.conversions import plain
from .guard import patterns_of

if TYPE_CHECKING:
    from .world import World

MISSING = object()
_NAMES_OF_CODE = ("__name__", "__qualname__", "__module__")  # of functions


class Names:
    def __init__(self, holder: Any, then: Any):
        self.holder = holder
        self.then = dict(then)

    def reach(self, world: World, name: str) -> None:
        """Note that some code reads this name, perhaps of this object."""
        value = self.then.get(name, MISSING)
        if value is not MISSING:
            world.reach(value)

    def note(self, world: World) -> None:
        """Enter what the guard has to look at."""
        names = tuple(n for n in self.then if n in world.names)
        absent = frozenset(world.names.difference(names))
        world.fact("attributes", self.holder, names, tuple(plain(self.then[n]) for n in names), absent)


class ModuleNames(Names):
    def __init__(self, module: ModuleType):
        super().__init__(module, {k: plain(v) for k, v in module.__dict__.items()})

    def reach(self, world: World, name: str) -> None:
        if name in self.then:
            world.reach(self.then[name], called=name == "__getattr__")


class ArrayNames(Names):
    """The names of an array, looked up only where some code has them; its bytes are always compared."""

    def __init__(self, a: np.ndarray):
        super().__init__(a, {"base": a.base, "flags.num": a.flags.num})

    def note(self, world: World) -> None:
        if "base" in world.names:
            world.fact("attribute", self.holder, "base", self.then["base"])
        if "flags" in world.names:
            world.fact("answer", self.holder, "flags.num", self.then["flags.num"])


class FunctionNames(Names):
    def __init__(self, f: FunctionType):
        super().__init__(f, f.__dict__)

    def note(self, world: World) -> None:
        if self.then:
            super().note(world)
        else:
            world.fact("bare", self.holder)
        _note_names(world, self.holder)


class ClassNames(Names):
    def __init__(self, c: type):
        super().__init__(c, c.__dict__)

    def note(self, world: World) -> None:
        c = self.holder
        world.fact("class", c, tuple(self.then), tuple(self.then.values()), c.__mro__, patterns_of(c))
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
