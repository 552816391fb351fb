"""The things that a recording can reach: numbers, containers, objects, classes, and the facts noted of them.

Of an object only the attributes count whose names occur in code that ran. What is of no known kind
(kinds.py) is trouble: the function is recorded at each call then.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from ..atoms import ATOMS
from ..record.draws import Drawing
from ..record.interception import plain
from ..record.local.arrays import is_local, unwrapped
from ..record.recorder import Recorder
from ..record.ufuncs import op_of
from ..record.value import Recorded
from . import kinds
from .guard import settings_of_texts

MISSING = object()
_NAMES_OF_CODE = ("__name__", "__qualname__", "__module__")  # of functions
BYTES_LIMIT = 1 << 28  # of arrays, each of which is copied

_DISPATCHER = type(np.sum)
# NumPy reads these attributes of any object, and Python the first of a module
_NUMPY_ATTRIBUTES = frozenset(
    "__getattr__ shape ndim size dtype real imag T flat __array__ __array_interface__ __array_struct__ "
    "__array_priority__ __array_ufunc__ __array_function__ __array_wrap__".split()
)
# Facts of which one thing may have several
_SEVERAL = ("entry", "absent", "attribute", "answer", "slot", "no slot")


class Names:
    """A holder of attributes: an object, a class, a module, a function. Code can only read attributes whose
    names it has, so nothing else is followed or compared.

    initial   the attributes when the holder was first met. Those whose names come up later are unchanged:
              code that changes one has its name
    """

    def __init__(self, holder: Any, initial: Any):
        self.holder = holder
        self.initial = dict(initial)

    def reach(self, reach: Callable, name: str) -> None:
        """Call reach(value) with what this name has here, as some code reads it."""
        if name in self.initial:
            reach(self.initial[name])

    def note(self, names: set[str], fact: Callable) -> None:
        """Call fact(kind, *parts) for each fact that the guard needs: of these names, which code has."""
        present = tuple(n for n in self.initial if n in names)
        absent = frozenset(names.difference(present))
        fact("attributes", self.holder, present, tuple(plain(self.initial[n]) for n in present), absent)


class ModuleNames(Names):
    def reach(self, reach: Callable, name: str) -> None:
        if name in self.initial:
            reach(self.initial[name], called=name == "__getattr__")


class ArrayNames(Names):
    """The names of an array, looked up only where some code has them; its bytes are always compared."""

    def note(self, names: set[str], fact: Callable) -> None:
        if "base" in names:
            fact("attribute", self.holder, "base", self.initial["base"])
        if "flags" in names:
            fact("answer", self.holder, "flags.num", self.initial["flags.num"])


class FunctionNames(Names):
    def note(self, names: set[str], fact: Callable) -> None:
        if self.initial:
            super().note(names, fact)
        else:
            fact("bare", self.holder)
        for name in _NAMES_OF_CODE:
            if name in names:
                fact("attribute", self.holder, name, getattr(self.holder, name))


class ClassNames(Names):
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


class Things:
    """What was reached. `facts` are tuples whose first entry names a template of guard.py."""

    def __init__(self):
        self.trouble: str | None = None
        self.facts: dict[tuple, tuple] = {}  # by what they are of
        self.names: set[str] = set(_NUMPY_ATTRIBUTES)
        self.refused: dict[int, str] = {}  # id of code -> a function that may be mentioned and not called
        self._seen: dict[int, object] = {}  # keeps what was seen alive, so that an id means one object
        self._todo: list = []
        self._open: list[Names] = []  # holders of attributes
        self._exits: list = []
        self._nbytes = 0
        self._before = Recorder.last

    def found(self, f: types.FunctionType) -> None:
        """Note what a function of the user's reads, if its code has run: world.py knows."""

    def fail(self, why: str | None) -> None:
        self.trouble = self.trouble or why

    def fact(self, kind: str, *parts: Any) -> None:
        if kind in ("entry", "cell"):
            parts = (*parts[:-1], plain(parts[-1]))
        key = (kind, id(parts[0]), parts[1] if kind in _SEVERAL else None)
        self.facts.setdefault(key, (kind, *parts))

    def _formats(self) -> None:
        self.fact("texts", kinds.TEXTS, settings_of_texts())

    def walk(self) -> None:
        """Visit what was reached, and what that reaches."""
        while self._todo and self.trouble is None:
            v = self._todo.pop()
            t = type(v)
            visit = _VISITS.get(t)
            if visit is not None:
                visit(self, v)
            elif issubclass(t, np.dtype) and not v.hasobject:
                self._dtype(v)
            elif issubclass(t, type):
                self._class(v)
            elif kinds.is_ours(t):
                self._of_ours(v)
            elif t.__module__ != "typing" and t not in (types.GenericAlias, types.UnionType):
                self._instance(v, t)

    def _safely(self, act, *args) -> None:
        """act(*args); objects may raise when they are inspected, and this runs inside the user's function."""
        if self.trouble is None:
            try:
                act(*args)
            except Exception as error:
                self.fail(f"it cannot be followed ({type(error).__name__}: {error})")

    def reach(self, v: Any, called: bool = False) -> None:
        """Note a value that may be read. `called`: it is only called."""
        if isinstance(v, Drawing):  # draws are recorded
            return
        if is_local(v):
            if v._memory.birth > self._before:  # the function made it, out of what is noted
                return
            v = unwrapped(v)
        v = plain(v)
        if v in _FORMATTERS:
            self._formats()
        if type(v) in ATOMS or v in kinds.LISTED or self.trouble:
            return
        if not (called and self._needs_no_visit(v)) and id(v) not in self._seen:
            self._seen[id(v)] = v
            self._todo.append(v)

    def _needs_no_visit(self, v: Any) -> bool:
        """Whether a function that is only called is refused, or `calls` is told of it."""
        if type(v) is types.FunctionType and kinds.is_inside(v.__code__) and not kinds.is_own(v.__code__):
            self.refused[id(v.__code__)] = f"it calls {kinds.name_of(v)}()"
        elif type(v) is _DISPATCHER and hasattr(v._implementation, "__code__"):
            self.refused[id(v._implementation.__code__)] = f"it calls {kinds.name_of(v)}()"
        else:
            return (
                type(v) is types.BuiltinFunctionType
                and kinds.is_of_a_module(v)
                and v not in kinds.NAMING.values()
            )
        return True

    def _signature(self, f) -> None:
        """Note what decides whether a call with given arguments is a TypeError."""
        self.fact("function", f, f.__code__, f.__defaults__, f.__kwdefaults__, f.__qualname__)

    def _function(self, f) -> None:
        code = f.__code__
        if kinds.is_inside(code) and not kinds.is_own(code):
            return self.fail(f"it uses {kinds.name_of(f)}")
        self._signature(f)
        self.reach(f.__defaults__)
        self.reach(f.__kwdefaults__)
        self._opened(FunctionNames(f, f.__dict__))
        if kinds.is_own(code):  # wrappers of the user's functions
            state = getattr(f, "__derived__", None)
            for v in [state] if state is not None else [c.cell_contents for c in f.__closure__ or ()]:
                self.reach(v)
            return None
        return self.found(f)

    def _module(self, m) -> None:
        """Note a module that is passed around. Some of NumPy's have a __getattr__."""
        made_up = m.__dict__.get("__getattr__")
        if type(made_up) is types.FunctionType:
            self.refused[id(made_up.__code__)] = f"it uses a name of {m.__name__} that is not there"
        self.fact("type", m, types.ModuleType)
        self._opened(ModuleNames(m, {k: plain(v) for k, v in m.__dict__.items()}))

    def _array(self, a) -> None:
        if a.dtype.hasobject:
            return self.fail(f"it reads an array of dtype {a.dtype}")
        self._nbytes += a.nbytes
        if self._nbytes > BYTES_LIMIT:
            return self.fail(f"it reads arrays of more than {BYTES_LIMIT >> 20} MiB")
        self._dtype(a.dtype)
        self.fact("array", a, a.copy(order="K"), a.strides)
        self._opened(ArrayNames(a, {"base": a.base, "flags.num": a.flags.num}))
        return None

    def _dtype(self, d) -> None:
        """Names of fields can be assigned, also in the copy that is compared."""
        if d.metadata is not None or d.names is not None:
            self.fail("it reads a dtype with metadata or fields")

    def _dict(self, d) -> None:
        self.fact("dict", d, tuple(d), tuple(d.values()))
        for v in (*d, *d.values()):
            self.reach(v)

    def _default_dict(self, d) -> None:
        self.fact("attribute", d, "default_factory", d.default_factory)
        self.reach(d.default_factory)
        self._dict(d)

    def _items(self, items) -> None:
        if type(items) is not tuple:
            self.fact("items", items, tuple(items))
        for v in items:
            self.reach(v)

    def _parts(self, v, *names: str) -> None:
        """Note an object of a Python type with these parts."""
        for name in names:
            part = getattr(v, name)
            if type(v) is functools.partial:
                self.fact("attribute", v, name, part)
            self.reach(part)

    def _recorded(self, x) -> None:
        self.fact("attribute", x, "node", x.node)

    def _bound(self, v) -> None:
        """Note a method of an object written in C, as `add = items.append`."""
        if kinds.is_of_a_module(v) or not kinds.is_pure_method(v):
            return self._refuse_c(v)
        return self.reach(v.__self__)

    def _of_type(self, v) -> None:
        """Note a method of a type written in C, as `str.upper`."""
        if v.__name__ not in kinds.METHODS.get(v.__objclass__, ()):
            self._refuse_c(v)

    def _refuse_c(self, v) -> None:
        self.fail(f"it uses {kinds.name_of(v)}")

    def _of_ours(self, v) -> None:
        """Note an object of this package, and its attributes that the user's code reads."""
        self._opened(InstanceNames(v, type(v)))
        if hasattr(type(v), "_reuse_roots"):  # the user's objects in it
            self.fact("roots", v, v._reuse_roots())
            for part in v._reuse_roots():
                self.reach(part)

    def _class(self, c) -> None:
        classes = kinds.looked_into(c)
        for k in classes:
            if k in kinds.LISTED or not kinds.is_written_in_python(k):
                return self.fail(f"it uses {kinds.name_of(k)}")
        for k in classes:
            self.fact("type", k, type(k))
            self._opened(ClassNames(k, k.__dict__))
            exit = k.__dict__.get("__exit__")
            if exit is not None:
                self._exits.append(exit)
        if type(c) is not type:
            self.reach(type(c))
        return None

    def _instance(self, v, t) -> None:
        for c in kinds.looked_into(t):
            if c in kinds.LISTED or not kinds.is_written_in_python(c) or kinds.has_other_attributes(c):
                return self.fail(f"it reads a {kinds.name_of(t)}")
        if issubclass(t, BaseException):
            return self.fail(f"it reads a {kinds.name_of(t)}")
        self.fact("type", v, t)
        self.reach(t)
        self._opened(InstanceNames(v, t))
        unseen = [c for c in kinds.looked_into(t) if kinds.is_numpy_class(c)]
        if unseen or issubclass(t, types.SimpleNamespace):  # repr and == read all attributes
            self.fact("namespace", v, tuple(v.__dict__), tuple(map(plain, v.__dict__.values())))
            for part in v.__dict__.values():
                self.reach(part)
        for part in [part for c in unseen for part in c.__dict__.values() if type(part) in _HELD]:
            self.reach(part)
        if isinstance(v, tuple):
            for part in tuple.__iter__(v):
                self.reach(part)
        return None

    def _opened(self, holder) -> None:
        self._open.append(holder)
        for name in self.names:
            holder.reach(self.reach, name)


_VISITS = {
    types.FunctionType: Things._function,
    types.MethodType: lambda w, v: w._parts(v, "__func__", "__self__"),
    types.ModuleType: Things._module,
    np.ndarray: Things._array,
    Recorded: Things._recorded,
    dict: Things._dict,
    collections.defaultdict: Things._default_dict,
    collections.deque: Things._items,  # its maxlen cannot be changed
    tuple: Things._items,
    list: Things._items,
    set: Things._items,
    frozenset: Things._items,
    slice: lambda w, v: w._parts(v, "start", "stop", "step"),
    functools.partial: lambda w, v: w._parts(v, "func", "args", "keywords", "__dict__"),
    staticmethod: lambda w, v: w._parts(v, "__func__", "__dict__"),
    classmethod: lambda w, v: w._parts(v, "__func__", "__dict__"),
    property: lambda w, v: w._parts(v, "fget", "fset", "fdel"),
    types.MemberDescriptorType: lambda w, v: None,  # a slot: the instance has the value
    types.GetSetDescriptorType: lambda w, v: None,
    types.WrapperDescriptorType: lambda w, v: None,
    types.MethodDescriptorType: Things._of_type,
    type(collections.namedtuple("_", "a").a): lambda w, v: None,
    types.BuiltinFunctionType: lambda w, v: w._bound(v),
    np.ufunc: lambda w, v: None if op_of(v) is not None else w._refuse_c(v),  # SciPy's, with a rule
    _DISPATCHER: Things._refuse_c,
}


_HELD = (np.ndarray, dict, list, set)
_FORMATTERS = kinds.Listed(kinds.TEXTS)
