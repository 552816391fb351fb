"""The World of a recording: what the function read besides its arguments while it ran.

When a function begins to run (watch.py), world looks up the names in its bytecode and notes their values:
numbers, containers, the bytes of arrays; of an object the attributes whose names occur in code that ran. So a
function that is not called, an object that is only held, and a `print` that is not reached do not count.

In an equal world the function does the same, if everything it used is of a known kind (kinds.py). If code was
reached in a way that is not followed, or a C function or object is not on the list, world.trouble says so,
and the function is recorded at each call.
"""

from __future__ import annotations

import abc
import enum
import operator
import sys
import types
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..atoms import ATOMS
from ..record import source_lines
from ..record.bytecode import CATCHES, CodeMap, catches_at, reads, returns_nothing
from ..record.interception import INTERCEPTED, Intercepted, plain
from ..record.local.arrays import Promoted, is_local
from ..record.type_tests import type_test_error
from ..record.value import Recorded
from . import kinds
from .guard import Guard, make_guard, never
from .things import MISSING, ClassNames, Things

LIMIT = 20_000  # facts; a larger world is cheaper to record again than to check

_ABSTRACT = (abc.ABCMeta.__instancecheck__.__code__, abc.ABCMeta.__subclasscheck__.__code__)
_ERRSTATE = np.errstate.__init__.__code__
# What they return of a recorded value does not depend on its numbers
_TYPE_GETTERS = {
    getattr(Recorded.__dict__[name], "fget", Recorded.__dict__[name]).__code__
    for name in ("shape", "dtype", "ndim", "size", "itemsize", "nbytes", "__len__", "__class__")
}
_IDENTITY_FUNCTIONS = (id, operator.is_, operator.is_not)
_RAISING = ("raise", "call", "print", "log")
_ENUM_GETTER = enum.property.__get__.__code__  # reads .value and .name of a member of an enumeration

OWN_CODE = CodeMap()  # code of the compiler's and of NumPy's that ran


class World(Things):
    """What one recording has read: the code that ran, and the things that it reached."""

    def __init__(self):
        super().__init__()
        self.error: Exception | None = None  # raised if the function tests the type of a recorded value
        self.tests_identity = False  # does some code compare by `is` what may be an argument?
        self._types: set[int] = set()  # ids of code that asks for types
        self.guards: dict[int, Guard] = {}  # of other recordings that were used, by id
        self._functions: dict[int, list] = {}  # id of code -> functions that were reached
        self._ran: dict[int, object] = {}  # id of code -> code that ran
        self._known: dict[int, object] = {}  # id of code -> code inside of what ran, and of ours and NumPy's
        self._enters = False
        self._tries = False  # does some code catch exceptions?
        self._outermost: types.FrameType | None = None  # where watching began
        self._read: dict[int, object] = {}  # id of code -> code whose tests are noted
        self._users: set[int] = set()  # ids of those outside libraries

    def begin(self, roots: Iterable) -> None:
        """Note the function that is to be called, and the objects passed to it."""
        self._outermost = sys._getframe(1)
        for root in roots:
            self.reach(root)
        self._safely(self.walk)

    def guard(self, arrays: bool = True) -> Guard:
        """The test whether all that was read is unchanged; without `arrays`, except the numbers in arrays."""
        self._outermost = None
        self._safely(self._finish)
        guard = Guard(self.trouble, never)
        if self.trouble is None:
            facts = [*self.facts.values()]
            for other in self.guards.values():
                facts += other.facts or ()
            guard = make_guard([fact for fact in facts if arrays or fact[0] != "array"])
            if not guard.holds():
                guard = Guard("running it changes what it reads", never)
        guard.tests_identity = self.tests_identity
        if self.tests_identity:
            guard.arrays_read = frozenset(k for k, v in self._seen.items() if isinstance(v, np.ndarray))
        return guard

    def _finish(self) -> None:
        for holder in self._open:
            holder.note(self.names, self.fact)
            if self._tries and type(holder) is ClassNames:  # a call that failed before anything ran
                for f in [f for v in holder.initial.values() for f in kinds.functions_of(v)]:
                    self._signature(f)
        plain_exits = [type(e) is types.FunctionType and returns_nothing(e.__code__) for e in self._exits]
        if self._enters and not all(plain_exits):  # one may catch an exception
            self.fail(CATCHES)
        if len(self.facts) > LIMIT:
            self.fail(f"more than {LIMIT} values can be reached from it")

    def runs(self, frame: types.FrameType) -> None:
        code, code_id = frame.f_code, id(frame.f_code)
        if code_id not in self._read:
            self._read[code_id] = code
            libraries = (source_lines.is_inside, source_lines.is_standard, source_lines.is_of_scipy)
            in_library = any(is_in(code.co_filename) for is_in in libraries)
            if not (in_library or kinds.is_of_a_data_class(code) or self._serves_inside(frame)):
                self._users.add(code_id)  # tests of identity and type: a recorded value may answer wrongly
                tests = reads(code).identity_tests
                tested = [_value_of_path(path, frame.f_globals, frame.f_builtins) for path in tests]
                self.tests_identity |= () in tests or any(isinstance(v, np.ndarray) for v in tested)
                if reads(code).types:
                    self._types.add(code_id)
        if code_id in self._types:  # that of a recorded value, perhaps
            variables = dict(frame.f_locals)
            if code.co_name.startswith("<") and frame.f_back is not None:  # [... for x in xs]
                variables.update(frame.f_back.f_locals)
            self.error = self.error or type_test_error(code, variables, frame.f_globals)
        if self.trouble is not None:
            return
        if code is _ENUM_GETTER and not kinds.has_a_function(frame):
            self.fail(reads(_ENUM_GETTER).trouble)
        elif code_id not in self._ran:
            self._safely(self._runs, frame)

    def _runs(self, frame) -> None:
        code = frame.f_code
        if kinds.is_inside(code):
            if id(code) not in OWN_CODE:
                OWN_CODE.note(code, True)
            if frame.f_back is not None and id(frame.f_back.f_code) in self._ran:
                self._enters_ours(frame)
            return None
        functions = self._functions.get(id(code))
        if functions is None and id(code) not in self._known:
            if self._serves_inside(frame) and not self._is_method_of_known(frame):
                return None
            functions = self._in_classes(code)
        self._ran[id(code)] = code
        if not functions and id(code) not in self._known:
            place = kinds.location_of(code)
            return self.fail(f"it runs {place}, which was reached in a way that is not followed")
        code_reads = self._code(code)
        for f in functions or ():
            self._free(f, code_reads)
            if f.__globals__ is not frame.f_globals:  # the same code in another namespace
                self._globals(code, f.__globals__, f.__builtins__)
        self._globals(code, frame.f_globals, frame.f_builtins)
        return self.walk()

    def _serves_inside(self, frame) -> bool:
        """Whether it is the standard library's or SciPy's code, called from here, or an import."""
        if kinds.is_in_module_inside(frame):
            return True
        if kinds.is_of_named_tuples(frame):
            if not kinds.has_defaults(frame):
                return True
            frame = frame.f_back
        standard = True
        while frame is not None and not kinds.is_inside(frame.f_code):
            file = frame.f_code.co_filename
            if file.startswith("<frozen importlib"):
                return True
            if id(frame.f_code) in self._ran:
                return False
            standard = standard and (source_lines.is_standard(file) or source_lines.is_of_scipy(file))
            frame = frame.f_back
        return standard and frame is not None

    def _is_method_of_known(self, frame) -> bool:
        """Whether the function is a method of an object that was met, such as a list of the standard
        library's whose items NumPy reads; or an isinstance test of one against an abstract class.
        """
        arguments = list(frame.f_locals.values())
        if frame.f_code in _ABSTRACT:
            return any(id(v) in self._seen and not kinds.is_ours(type(v)) for v in arguments)
        if not arguments or id(arguments[0]) not in self._seen or kinds.is_ours(type(arguments[0])):
            return False
        entries = [k.__dict__.get(frame.f_code.co_name) for k in type(arguments[0]).__mro__]
        return any(f.__code__ is frame.f_code for v in entries for f in kinds.functions_of(v))

    def _enters_ours(self, frame) -> None:
        """Note that the user's code calls a function of NumPy's, or of the compiler's."""
        code = frame.f_code
        if id(code) in self.refused:
            self.fail(self.refused[id(code)])
        elif frame.f_globals.get("__name__", "").endswith(".arrayprint"):
            self.fail("it writes an array as text, for which NumPy has settings")
        elif self._tries and code not in _TYPE_GETTERS and any(map(may_be_recorded, frame.f_locals.values())):
            self._check_caught(frame.f_back)
        elif code is _ERRSTATE and any(v in _RAISING for v in frame.f_locals.values() if type(v) is str):
            self.fail("it has floating-point errors raised (np.errstate)")

    def _check_caught(self, frame: types.FrameType | None) -> None:
        """Fail if a handler may catch what recorded values raise, as that depends on the values."""
        while frame is not None and frame is not self._outermost:
            if id(frame.f_code) in self._ran and catches_at(frame.f_code, frame.f_lasti):
                return self.fail(f"{CATCHES} ({kinds.location_of(frame.f_code)})")
            frame = frame.f_back
        return None

    def calls(self, code: types.CodeType, function: Any) -> None:
        """Note the call of a function written in C by the user's code."""
        self.tests_identity |= id(code) in self._users and function in _IDENTITY_FUNCTIONS
        if self.trouble is None and id(code) in self._ran and function not in kinds.LISTED:
            self._safely(self._calls, code, function)

    def _calls(self, code, function) -> None:
        if function in kinds.NAMING.values() and function.__name__ in reads(code).globals:
            return
        if kinds.is_of_a_module(function):
            self.fail(f"it calls {kinds.name_of(function)}()")
        elif not kinds.is_pure_method(function):
            self.fail(f"it calls {function.__name__}() of a {kinds.name_of(type(function.__self__))}")

    def _code(self, code):
        code_reads = reads(code)
        if code_reads.trouble and code is not _ENUM_GETTER:
            self.fail(f"{code_reads.trouble} ({kinds.location_of(code)})")
        self._enters |= code_reads.withs > 0
        self._tries |= bool(code_reads.tries)
        if code_reads.formats:
            self._formats()
        self._known.update((id(c), c) for c in code.co_consts if type(c) is types.CodeType)
        new = code_reads.names - self.names
        if new:
            self.names |= new
            for holder in tuple(self._open):
                for name in new:
                    holder.reach(self.reach, name)
        return code_reads

    def _in_classes(self, code) -> list:
        """The methods with this code: operators run them without their names."""
        for holder in tuple(self._open):
            if type(holder) is ClassNames:
                for v in holder.initial.values():
                    for f in kinds.functions_of(v):
                        if f.__code__ is code:
                            self.reach(f)
        self.walk()
        return self._functions.get(id(code), [])

    def found(self, f: types.FunctionType) -> None:
        code = f.__code__
        self._functions.setdefault(id(code), []).append(f)
        if id(code) in self._ran:
            self._free(f, reads(code))
            self._globals(code, f.__globals__, f.__builtins__)

    def _globals(self, code, namespace: dict, builtin: dict) -> None:
        code_reads = reads(code)
        tested = [_value_of_path(path, namespace, builtin) for path in code_reads.identity_tests]
        if not all(map(_compares_by_identity, tested)) and not kinds.is_of_a_data_class(code):
            self.fail(f"it compares by `is` what may have an equal ({kinds.location_of(code)})")
        for name, uses in code_reads.globals.items():
            value = namespace.get(name, MISSING)
            self._entry(namespace, name, value)
            if value is MISSING:
                value = builtin.get(name, MISSING)
                self._entry(builtin, name, value)
            if value is not MISSING and plain(value) is not kinds.NAMING.get(name):
                self._used(value, uses)
        for name in code_reads.imports:
            if code_reads.tries and name not in sys.modules:
                self.fail(CATCHES)
            self._entry(sys.modules, name, sys.modules.get(name, MISSING))
            if name in sys.modules:
                self.reach(sys.modules[name.split(".", 1)[0]])
                self.reach(sys.modules[name])

    def _entry(self, namespace: dict, name: str, value) -> None:
        if value is MISSING:
            self.fact("absent", namespace, name)
        else:
            self.fact("entry", namespace, name, value)

    def _free(self, f, code_reads) -> None:
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or ()):
            try:
                value = cell.cell_contents
            except ValueError:  # not assigned yet
                return self.fail(f"its variable {name!r} has no value yet")
            self.fact("cell", cell, value)
            self._used(value, code_reads.free.get(name, ()))
        return None

    def _used(self, value, uses) -> None:
        """Note what is read of `value`: of a module the attributes that are named."""
        for chain, called in uses:
            v = value
            for name in chain:
                if type(v) is not types.ModuleType:
                    called = False
                    break
                if name not in v.__dict__ and v.__name__ == kinds.PACKAGE:
                    getattr(v, name, None)  # our own names are loaded on first use
                if name not in v.__dict__:
                    return self.fail(f"it uses {v.__name__}.{name}, which is not there")
                self.fact("type", v, types.ModuleType)
                self.fact("entry", v.__dict__, name, v.__dict__[name])
                v = plain(v.__dict__[name])
            self.reach(v, called)
        return None

    def returns(self, objects: Iterable) -> None:
        """Note what the function returns besides arrays: new objects at each call."""
        for v in objects:
            if not kinds.cannot_change(v):  # an argument or setting that is returned must be the same object
                self.fail(f"it returns a {kinds.name_of(type(v))}")


def _value_of_path(path: tuple[str, ...], namespace: dict, builtin: dict) -> Any:
    """The value of a path of names through modules and enumerations, or None."""
    value = namespace.get(path[0], builtin.get(path[0])) if path else None
    for name in path[1:]:
        if type(value) is types.ModuleType:
            value = value.__dict__.get(name)
        elif isinstance(value, enum.EnumType) and name in value.__members__:
            value = value.__members__[name]
        else:
            return None
    return value


def _compares_by_identity(v: Any) -> bool:
    """Whether the guard compares it by identity: a class, a function, a member of an enumeration."""
    return isinstance(v, (type, types.FunctionType, enum.Enum)) or id(plain(v)) in INTERCEPTED


def may_be_recorded(v: Any, depth: int = 0) -> bool:
    """Whether an argument is a recorded value, or an object that may hold one."""
    if type(v) in (list, tuple, dict) and depth < 4:
        parts = v.values() if type(v) is dict else v
        return any(may_be_recorded(part, depth + 1) for part in parts)
    plain = (type, types.ModuleType, np.ndarray, np.dtype, Intercepted)
    if is_local(v):
        return type(v) is Promoted
    return type(v) not in ATOMS and not issubclass(type(v), plain)  # a recorded array says it is an ndarray
