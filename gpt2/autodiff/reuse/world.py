"""What a function reads besides its arguments, noted while it runs: the World of one recording.

    with Watch(f) as world:
        record(f, ...)
    guard = world.guard()

The interpreter tells of each function that begins to run (sys.setprofile). Before it does, world looks up the
names that its bytecode mentions, and takes down what they stand for: numbers, containers, the bytes of
arrays; of an object those attributes whose names some code that ran has. So a branch into another function, an
object that is merely held, and a `print` that is not reached count for nothing, and whatever runs, by
whichever way it came to, is seen.

Run again in an equal world, the function does the same, as far as everything it touched is of a kind that is
understood: kinds.py has the list. Code that was reached in a way that is not followed, a function written in
C or an object that is not on the list: then world.trouble says so, and the function is recorded at each call.
"""

from __future__ import annotations

import collections
import functools
import gc
import os
import sys
import threading
import types

import numpy as np

from ..record import source_lines
from ..record.bytecode import CATCHES, reads, returns_nothing
from ..record.dispatch import HANDLERS, RAW, REFUSED
from ..record.value import Recorded
from .guard import Guard, make_guard, never
from .kinds import ATOMS, BASES, LISTED, METHODS, SCALARS, is_exception, is_pure_method

LIMIT = 20_000  # facts; a larger world is cheaper to record again than to look over
BYTES_LIMIT = 1 << 28  # of arrays, each of which is copied

LISTED.add({*HANDLERS, *RAW} - {*REFUSED})
_PACKAGE = __package__.rpartition(".")[0]
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_WRITTEN_FOR = (_PACKAGE, "numpy.", "namedtuple_")  # modules whose classes Python writes methods for
_DISPATCHER = type(np.sum)
# NumPy asks any object for these, and Python a module for the first
_ASKED_FOR = frozenset("__getattr__ shape ndim size dtype __array__ __array_ufunc__ __array_function__".split())
_NAMES_OF_CODE = ("__name__", "__qualname__", "__module__")
_C_MEMBERS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
_ERRSTATE = np.errstate.__init__.__code__
_LOUD = ("raise", "call", "print", "log")
_MISSING = object()


def is_inside(code) -> bool:
    """Is it code of this package or of NumPy?"""
    return source_lines.is_inside(code.co_filename)


def _serves_inside(frame) -> bool:
    """Is it code of the standard library that this package or NumPy has called, or part of an import?"""
    if frame.f_globals.get("__name__", "").startswith(_WRITTEN_FOR):
        return True
    standard = True
    while frame is not None and not is_inside(frame.f_code):
        file = frame.f_code.co_filename
        if file.startswith("<frozen importlib"):
            return True
        standard = standard and source_lines.is_standard(file)
        frame = frame.f_back
    return standard and frame is not None


class World:
    """See the head of this file. `facts` are tuples whose first entry names a template of guard.py."""

    def __init__(self):
        self.trouble: str | None = None
        self.facts: dict[tuple, tuple] = {}  # by what they are of
        self.names: set[str] = set(_ASKED_FOR)
        self._seen: dict[int, object] = {}  # keeps what was seen alive, so that an id means one object
        self._todo: list = []
        self._open: list[_Names] = []  # what is looked into by name
        self._functions: dict[int, list] = {}  # id of code -> functions that were reached
        self._ran: dict[int, object] = {}  # id of code -> code that ran
        self._known: dict[int, object] = {}  # id of code -> code inside of what ran, and of ours and NumPy's
        self._refused: dict[int, str] = {}  # id of code -> a function that may be mentioned and not called
        self._exits: list = []
        self._enters = False
        self._nbytes = 0

    def guard(self) -> Guard:
        if self.trouble is None:
            self._finish()
        if self.trouble is not None:
            return Guard(self.trouble, never)
        guard = make_guard(self.facts.values())
        if not guard.holds():
            return Guard("running it changes what it reads", never)
        return guard

    def _finish(self) -> None:
        for found in self._open:
            found.note(self)
        if self._enters and not all(map(_lets_through, self._exits)):
            self.fail(CATCHES)
        if len(self.facts) > LIMIT:
            self.fail(f"more than {LIMIT} values can be reached from it")

    def fail(self, why: str) -> None:
        self.trouble = self.trouble or why

    def fact(self, kind: str, *parts) -> None:
        key = (kind, id(parts[0]), parts[1] if kind in ("entry", "absent", "attribute") else None)
        self.facts.setdefault(key, (kind, *parts))

    # what runs

    def runs(self, frame) -> None:
        """A Python function begins to run."""
        code = frame.f_code
        if id(code) in self._ran:
            return None
        if is_inside(code):
            if frame.f_back is not None and id(frame.f_back.f_code) in self._ran:
                self._enters_ours(frame)
            return None
        self._ran[id(code)] = code
        functions = self._functions.get(id(code)) or self._in_classes(code)
        if not functions and id(code) not in self._known:
            if _serves_inside(frame):
                del self._ran[id(code)]
                return None
            return self.fail(f"it runs {_of(code)}, which it came to in a way that is not followed")
        found = self._code(code)
        for f in functions:
            self._free(f, found)
        self._globals(found, frame.f_globals, frame.f_builtins)
        return self.walk()

    def _enters_ours(self, frame) -> None:
        """The user's code calls a function of NumPy's, or of the compiler's."""
        code = frame.f_code
        if id(code) in self._refused:
            self.fail(self._refused[id(code)])
        elif code is _ERRSTATE and any(v in _LOUD for v in frame.f_locals.values() if type(v) is str):
            self.fail("it has floating-point errors raised (np.errstate)")

    def calls(self, function) -> None:
        """Code that ran calls a function written in C."""
        if function in LISTED:
            return
        if _is_of_a_module(function):
            self.fail(f"it calls {_name(function)}()")
        elif not is_pure_method(function):
            self.fail(f"it calls {function.__name__}() of a {_name(type(function.__self__))}")

    def _code(self, code):
        found = reads(code)
        if found.trouble:
            self.fail(f"{found.trouble} ({_of(code)})")
        self._enters |= found.enters
        self._known.update((id(c), c) for c in code.co_consts if type(c) is types.CodeType)
        new = found.names - self.names
        if new:
            self.names |= new
            for opened in tuple(self._open):
                for name in new:
                    opened.reach(self, name)
        return found

    def _in_classes(self, code) -> list:
        """Methods run without being mentioned: for operators, by other names."""
        for opened in tuple(self._open):
            if type(opened) is _Class:
                for v in opened.then.values():
                    for f in _functions_of(v):
                        if f.__code__ is code:
                            self._reach(f)
        self.walk()
        return self._functions.get(id(code), [])

    def _globals(self, found, namespace: dict, builtin: dict) -> None:
        for name, uses in found.globals.items():
            value = namespace.get(name, _MISSING)
            if value is not _MISSING:
                self.fact("entry", namespace, name, value)
            else:
                self.fact("absent", namespace, name)
                value = builtin.get(name, _MISSING)
                self._entry(builtin, name, value)
            if value is not _MISSING:
                self._used(value, uses)
        for name in found.imports:
            self._entry(sys.modules, name, sys.modules.get(name, _MISSING))
            if name in sys.modules:
                self._reach(sys.modules[name.split(".", 1)[0]])
                self._reach(sys.modules[name])

    def _entry(self, namespace: dict, name: str, value) -> None:
        if value is _MISSING:
            self.fact("absent", namespace, name)
        else:
            self.fact("entry", namespace, name, value)

    def _free(self, f, found) -> None:
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or ()):
            try:
                value = cell.cell_contents
            except ValueError:  # not assigned yet
                return self.fail(f"its variable {name!r} has no value yet")
            self.fact("cell", cell, value)
            self._used(value, found.free.get(name, ()))
        return None

    def _used(self, value, uses) -> None:
        """What is read of `value`: of a module the attributes named, of anything else what the kind says."""
        for chain, called in uses:
            v = value
            for k, name in enumerate(chain):
                if type(v) is not types.ModuleType:
                    called = False
                    break
                if name not in v.__dict__:
                    return self.fail(f"it uses {v.__name__}.{name}, which is not there")
                self.fact("type", v, types.ModuleType)
                self.fact("entry", v.__dict__, name, v.__dict__[name])
                v = v.__dict__[name]
            self._reach(v, called)
        return None

    # what is there

    def walk(self) -> None:
        while self._todo and self.trouble is None:
            self._visit(self._todo.pop())

    def reach_root(self, value) -> None:
        self._reach(value)
        self.walk()

    def _reach(self, v, called: bool = False) -> None:
        """Something that may be read. `called`: nothing but a call is done with it."""
        if type(v) in ATOMS or v in LISTED or self.trouble:
            return
        if called and type(v) is types.FunctionType and is_inside(v.__code__) and not _is_own(v.__code__):
            self._refused[id(v.__code__)] = f"it calls {_name(v)}()"
        elif called and type(v) is types.BuiltinFunctionType and _is_of_a_module(v):
            pass  # `calls` sees it
        elif called and type(v) is _DISPATCHER:
            self._refused[id(v._implementation.__code__)] = f"it calls {_name(v)}()"
        elif id(v) not in self._seen:
            self._seen[id(v)] = v
            self._todo.append(v)

    def _visit(self, v) -> None:
        t = type(v)
        visit = _VISITS.get(t)
        if visit is not None:
            visit(self, v)
        elif isinstance(v, SCALARS) and not isinstance(v, np.ndarray):
            pass
        elif issubclass(t, type):
            self._class(v)
        elif t.__module__.startswith(_PACKAGE):
            self._of_ours(v)
        elif t.__module__ == "typing" or t in (types.GenericAlias, types.UnionType):
            pass
        else:
            self._instance(v, t)

    def _function(self, f) -> None:
        code = f.__code__
        if is_inside(code) and not _is_own(code):
            return self.fail(f"it uses {_name(f)}")
        self.fact("function", f, code, f.__defaults__, f.__kwdefaults__)
        self._reach(f.__defaults__)
        self._reach(f.__kwdefaults__)
        if _is_own(code):  # what the compiler made of the user's functions
            state = getattr(f, "__derived__", None)
            for v in [state] if state is not None else [c.cell_contents for c in f.__closure__ or ()]:
                self._reach(v)
            return None
        self._functions.setdefault(id(code), []).append(f)
        self._opened(_Function(f))
        if id(code) in self._ran:
            found = reads(code)
            self._free(f, found)
            self._globals(found, f.__globals__, f.__builtins__)
        return None

    def _module(self, m) -> None:
        """A module that is passed around. NumPy makes some names up."""
        made_up = m.__dict__.get("__getattr__")
        if type(made_up) is types.FunctionType:
            self._refused[id(made_up.__code__)] = f"it uses a name of {m.__name__} that is not there"
        self.fact("type", m, types.ModuleType)
        self._opened(_Module(m))

    def _array(self, a) -> None:
        if a.dtype.hasobject:
            return self.fail(f"it reads an array of dtype {a.dtype}")
        self._nbytes += a.nbytes
        if self._nbytes > BYTES_LIMIT:
            return self.fail(f"it reads arrays of more than {BYTES_LIMIT >> 20} MiB")
        self.fact("array", a, a.copy(order="K"), a.strides)
        return None

    def _dict(self, d) -> None:
        self.fact("dict", d, tuple(d), tuple(d.values()))
        for v in (*d, *d.values()):
            self._reach(v)

    def _items(self, items) -> None:
        if type(items) is not tuple:
            self.fact("items", items, tuple(items))
        for v in items:
            self._reach(v)

    def _parts(self, v, *names: str) -> None:
        """An object of Python's own whose parts these are."""
        for name in names:
            part = getattr(v, name)
            if type(v) is functools.partial:
                self.fact("attribute", v, name, part)
            self._reach(part)

    def _recorded(self, x) -> None:
        self.fact("attribute", x, "node", x.node)

    def _bound(self, v) -> None:
        """A method of an object written in C, as `add = items.append`."""
        if _is_of_a_module(v) or not is_pure_method(v):
            return self._refuse_c(v)
        return self._reach(v.__self__)

    def _of_type(self, v) -> None:
        """A method of a type written in C, as `str.upper`."""
        if v.__name__ not in METHODS.get(v.__objclass__, ()):
            self._refuse_c(v)

    def _refuse_c(self, v) -> None:
        self.fail(f"it uses {_name(v)}")

    def _of_ours(self, v) -> None:
        if hasattr(type(v), "_reuse_roots"):  # says which of the user's objects it holds
            self.fact("roots", v, v._reuse_roots())
            for part in v._reuse_roots():
                self._reach(part)

    def _class(self, c) -> None:
        kinds = _looked_into(c)
        for k in kinds:
            if k in LISTED or not _is_written_in_python(k):
                return self.fail(f"it uses {_name(k)}")
        for k in kinds:
            self.fact("type", k, type(k))
            self._opened(_Class(k))
            exit = k.__dict__.get("__exit__")
            if exit is not None:
                self._exits.append(exit)
        if type(c) is not type:
            self._reach(type(c))
        return None

    def _instance(self, v, t) -> None:
        for c in _looked_into(t):
            if c in LISTED or not _is_written_in_python(c) or _hides_attributes(c):
                return self.fail(f"it reads a {_name(t)}")
        self.fact("type", v, t)
        self._reach(t)
        self._opened(_Instance(v, t))
        if isinstance(v, tuple):
            for part in tuple.__iter__(v):
                self._reach(part)
        return None

    def _opened(self, found) -> None:
        self._open.append(found)
        for name in self.names:
            found.reach(self, name)


# What is looked into by name. `then` is what it held when it was first met: names that come up later were not
# changed until then, as what changes a name has it.


class _Names:
    def __init__(self, holder, then):
        self.holder = holder
        self.then = dict(then)

    def reach(self, world: World, name: str) -> None:
        """Some code reads this name, perhaps of this object."""
        value = self.then.get(name, _MISSING)
        if value is not _MISSING:
            world._reach(value)

    def note(self, world: World) -> None:
        """Enter what the guard has to look at."""
        names = tuple(n for n in self.then if n in world.names)
        absent = frozenset(world.names.difference(names))
        world.fact("attributes", self.holder, names, tuple(self.then[n] for n in names), absent)


class _Module(_Names):
    def __init__(self, module):
        super().__init__(module, module.__dict__)


class _Function(_Names):
    def __init__(self, f):
        super().__init__(f, f.__dict__)

    def note(self, world: World) -> None:
        if self.then:
            super().note(world)
        else:
            world.fact("bare", self.holder)
        _note_names(world, self.holder)


class _Class(_Names):
    def __init__(self, c):
        super().__init__(c, c.__dict__)

    def note(self, world: World) -> None:
        c = self.holder
        world.fact("class", c, tuple(self.then), tuple(self.then.values()), c.__mro__)
        _note_names(world, c)


class _Instance(_Names):
    def __init__(self, v, t):
        super().__init__(v, getattr(v, "__dict__", ()))
        self.has_dict = bool(t.__dictoffset__)
        self.slots = {}
        for c in t.__mro__:
            for name, member in c.__dict__.items():
                if type(member) is types.MemberDescriptorType and name not in self.slots:
                    try:
                        self.slots[name] = member, member.__get__(v)
                    except AttributeError:
                        self.slots[name] = member, _MISSING

    def reach(self, world: World, name: str) -> None:
        super().reach(world, name)
        value = self.slots.get(name, (None, _MISSING))[1]
        if value is not _MISSING:
            world._reach(value)

    def note(self, world: World) -> None:
        if self.has_dict:
            super().note(world)
        for name, (member, value) in self.slots.items():
            if name in world.names:
                fact = ("no slot", self.holder, member) if value is _MISSING else ("slot", self.holder, member, value)
                world.facts["slot", id(self.holder), name] = fact


def _note_names(world: World, holder) -> None:
    for name in _NAMES_OF_CODE:
        if name in world.names:
            world.fact("attribute", holder, name, getattr(holder, name))


_VISITS = {
    types.FunctionType: World._function,
    types.MethodType: lambda w, v: w._parts(v, "__func__", "__self__"),
    types.ModuleType: World._module,
    np.ndarray: World._array,
    Recorded: World._recorded,
    dict: World._dict,
    tuple: World._items,
    list: World._items,
    set: World._items,
    frozenset: World._items,
    slice: lambda w, v: w._parts(v, "start", "stop", "step"),
    functools.partial: lambda w, v: w._parts(v, "func", "args", "keywords", "__dict__"),
    staticmethod: lambda w, v: w._parts(v, "__func__"),
    classmethod: lambda w, v: w._parts(v, "__func__"),
    property: lambda w, v: w._parts(v, "fget", "fset", "fdel"),
    types.MemberDescriptorType: lambda w, v: None,  # a slot: the instance has the value
    types.GetSetDescriptorType: lambda w, v: None,
    types.WrapperDescriptorType: lambda w, v: None,
    types.MethodDescriptorType: World._of_type,
    type(collections.namedtuple("_", "a").a): lambda w, v: None,
    types.BuiltinFunctionType: lambda w, v: w._bound(v),
    np.ufunc: World._refuse_c,
    _DISPATCHER: World._refuse_c,
}


def _is_of_a_module(function) -> bool:
    """A function written in C that is no method."""
    return function.__self__ is None or type(function.__self__) is types.ModuleType


def _functions_of(v):
    """The functions behind an entry of a class."""
    if type(v) is types.FunctionType:
        return [v]
    if type(v) in (staticmethod, classmethod):
        return _functions_of(v.__func__)
    if type(v) is property:
        return [f for part in (v.fget, v.fset, v.fdel) for f in _functions_of(part)]
    return []


def _looked_into(c) -> list[type]:
    """The class and its bases, without those that hold nothing by name."""
    return [k for k in c.__mro__ if k not in BASES and not is_exception(k)]


def _hides_attributes(c) -> bool:
    """Are its attributes not simply what is in __dict__ and in slots?"""
    names = c.__dict__.get("__dict__")
    return "__getattribute__" in c.__dict__ or names is not None and type(names) is not types.GetSetDescriptorType


def _lets_through(exit) -> bool:
    """Does this __exit__ let exceptions through?"""
    return type(exit) is types.FunctionType and returns_nothing(exit.__code__)


def _is_written_in_python(c) -> bool:
    """A class from a `class` statement, or made as one is."""
    own = c.__dict__
    return bool(c.__flags__ & 1 << 9) and "__module__" in own and not any(
        isinstance(m, _C_MEMBERS) and m.__objclass__ is c
        or isinstance(m, types.BuiltinFunctionType) and m.__self__ is c
        for m in own.values()
    )


def _is_own(code) -> bool:
    return code.co_filename.startswith(_OWN)


def _name(v) -> str:
    name = getattr(v, "__qualname__", None) or getattr(v, "__name__", None) or type(v).__name__
    module = getattr(v, "__module__", None)
    return f"{module}.{name}" if isinstance(module, str) and module != "builtins" else name


def _of(code) -> str:
    return f"{code.co_name}, {code.co_filename}:{code.co_firstlineno}"


# --- watching

_local = threading.local()


class Watch:
    """Watch one recording, in the thread that makes it. Watches nest: the inner one sees the inner part, the
    outer one all.
    """

    def __init__(self, *roots):
        self.world = World()
        self.roots = roots

    def __enter__(self) -> World:
        worlds = _worlds()
        for root in self.roots:
            self.world.reach_root(root)
        worlds.append(self.world)
        if len(worlds) == 1:
            self.collects = gc.isenabled()  # what it runs (gc.callbacks, __del__) is none of f's doing
            gc.disable()
            self.others = _suspend()
            sys.setprofile(_observe)
        return self.world

    def __exit__(self, *error) -> None:
        worlds = _worlds()
        worlds.remove(self.world)
        if not worlds:
            sys.setprofile(None)
            _resume(self.others)
            if self.collects:
                gc.enable()


def watched(f, run) -> tuple:
    """(what run() gives, why f may do something else when it is called again, or None)"""
    with Watch(f) as world:
        found = run()
    return found, world.guard().trouble


def _worlds() -> list[World]:
    try:
        return _local.worlds
    except AttributeError:
        _local.worlds = []
        return _local.worlds


def _observe(frame, event: str, arg) -> None:
    """Called by the interpreter at each call and return in this thread."""
    if event == "call":
        for world in _local.worlds:
            if world.trouble is None:
                world.runs(frame)
    elif event == "c_call":
        for world in _local.worlds:
            if id(frame.f_code) in world._ran and world.trouble is None:
                world.calls(arg)


def _suspend():
    """Set a profiler aside: it would see the compiler, and there is room for one."""
    other = sys.getprofile()
    if other is not None and hasattr(other, "disable"):  # cProfile before Python 3.12
        other.disable()
    return other


def _resume(other) -> None:
    if other is not None and hasattr(other, "enable"):
        other.enable()
    elif other is not None:
        sys.setprofile(other)
