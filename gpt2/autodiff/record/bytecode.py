"""Finds in the bytecode of a function what it may read besides its arguments.

    reads(code).globals   name -> Uses: the attribute chains that follow it, and whether it is called at once.
                          `np.linalg.norm(x)` gives {"np": {Use(("linalg", "norm"), called=True)}}
    reads(code).free      the same for variables of an enclosing function, those that functions inside read
                          included: they have no other way to them
    reads(code).names     every attribute that it reads, sets or deletes, of whatever: an object's attribute
                          whose name is not here cannot be read
    reads(code).imports   modules that it imports
    reads(code).asked_for   what it asks for by `is`, as a name and the attributes that follow it; () for what
                          is no name. None, True and False are left out: there is one of each
    reads(code).types     what it asks for with `type(x) is float`: the name x, None for what is no
                          argument; the path as in asked_for; and the line
    reads(code).texts     whether it writes something as a text, by `%` or in an f-string
    reads(code).tries     where an exception may end in it: ranges of its instructions, as offsets
    reads(code).trouble   why running it again might not give the same, whatever its values are; or None

Functions defined inside count when they run. Which values stand behind the names, and what those hold in
turn, is for world.py. What is found is remembered for as long as a code object lives: a
process may make functions without end.
"""

from __future__ import annotations

import dis
import functools
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class OfCode(dict[int, Any]):
    """Values by the ids of code objects. They go when those go."""

    def __init__(self) -> None:
        super().__init__()
        self._alive: dict[int, weakref.ref] = {}

    def note(self, code: CodeType, value: T) -> T:
        key = id(code)

        def forget(_) -> None:
            self.pop(key, None)
            self._alive.pop(key, None)

        self[key] = value
        self._alive[key] = weakref.ref(code, forget)
        return value


def remembered(function: Callable[[CodeType], T]) -> Callable[[CodeType], T]:
    """Decorator: a function of code objects that is called once for each. `known` has what it gave."""

    @functools.wraps(function)
    def found(code: CodeType) -> Any:
        known = found.known  # type: ignore[attr-defined]
        value = known.get(id(code), known)
        return known.note(code, function(code)) if value is known else value

    found.known = OfCode()  # type: ignore[attr-defined]
    return found


# Attributes that lead to what is not followed: frames, code, a function's own insides, all names at once
OPAQUE_ATTRIBUTES = frozenset(
    "__globals__ __builtins__ __closure__ __code__ __defaults__ __kwdefaults__ __annotations__ __annotate__ "
    "__doc__ __dict__ __dir__ __subclasses__ __getattribute__ __getattr__ __setattr__ __delattr__ __reduce__ "
    "__reduce_ex__ __getstate__ __setstate__ f_globals f_locals f_builtins f_back gi_frame cr_frame ag_frame "
    "tb_frame ctypes __array_interface__ __array_struct__".split()
)
# Built-in functions that take the name of an attribute, which must stand there
BY_NAME = frozenset("getattr hasattr setattr delattr".split())

# A recording holds for arguments at which nothing is raised, or the same is. A program cannot tell: it does
# not run what was caught, and 1.0 / 0.0 is inf in it.
CATCHES = "it catches exceptions"


class Use(NamedTuple):
    chain: tuple[str, ...]
    called: bool  # and nothing else is done with it


@dataclass
class Reads:
    globals: dict[str, set[Use]] = field(default_factory=dict)
    free: dict[str, set[Use]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    imports: set[str] = field(default_factory=set)
    asked_for: set[tuple[str, ...]] = field(default_factory=set)
    types: list[tuple[str | None, tuple[str, ...], int]] = field(default_factory=list)
    texts: bool = False
    tries: list[tuple[int, int]] = field(default_factory=list)
    withs: int = 0
    errstates: int = 0  # those of NumPy let exceptions through
    trouble: str | None = None

    def fail(self, why: str) -> None:
        self.trouble = self.trouble or why


_ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD"}
_NAMES = _ATTRIBUTE | {"STORE_ATTR", "DELETE_ATTR", "IMPORT_FROM", "LOAD_SUPER_ATTR"}
_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL", "DELETE_GLOBAL"}
_FREE = {"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF", "STORE_DEREF", "DELETE_DEREF"}


@remembered
def reads(code: CodeType) -> Reads:
    """The analysis of one code object."""
    found = Reads()
    own_names = set()  # what a class body inside the function has defined: LOAD_NAME finds it first
    instructions = list(dis.get_instructions(code))
    for i, ins in enumerate(instructions):
        op, name = ins.opname, ins.argval
        if op == "STORE_NAME":
            own_names.add(name)
        elif op != "LOAD_NAME" or name not in own_names:
            _read(found, code, instructions, i)
        found.texts |= _writes(instructions, i)
        found.errstates += op in _ATTRIBUTE | _GLOBAL and name == "errstate"
        if op in _NAMES:
            found.names.add(name)
            if name in OPAQUE_ATTRIBUTES:
                found.fail(f"it uses .{name}")
    found.tries = _tries(code, instructions)
    if code.co_name == "__exit__" and not returns_nothing(code):
        found.fail(CATCHES)
    for inner in _inner(code):
        for name, uses in reads(inner).free.items():
            if name in code.co_freevars:  # else it is a local variable of `code`
                found.free.setdefault(name, set()).update(uses)
    return found


def _read(found: Reads, code: CodeType, instructions, i: int) -> None:
    """Note what instruction i reads from outside, or keeps from being understood."""
    op, name = instructions[i].opname, instructions[i].argval
    if op in _GLOBAL:
        found.globals.setdefault(name, set()).add(_use(instructions, i))
        if name in BY_NAME:
            _by_name(found, instructions, i)
    elif op in _FREE and name in code.co_freevars:
        found.free.setdefault(name, set()).add(_use(instructions, i))
    elif op == "IMPORT_NAME":
        found.imports.add(name)
        if instructions[i - 2].argval != 0:
            found.fail(f"it imports {name!r} from where it stands")
    elif op == "MATCH_CLASS":
        _matched(found, instructions, i)
    elif op == "WITH_EXCEPT_START":
        found.withs += 1
    elif op == "IS_OP" and not _is_constant(instructions[i - 1], (bool, type(None), type(...))):
        found.asked_for.add(_path_to(instructions, i - 1))
        _asked_for_type(found, instructions, i)


_FORMATTING = {"FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE"}


def _writes(instructions, i: int) -> bool:
    """Whether instruction i writes something as a text, unless that is a number that stands there."""
    if instructions[i].opname == "BINARY_OP" and instructions[i].argrepr.startswith("%"):
        return not _is_constant(instructions[i - 1], (int, float))
    return instructions[i].opname in _FORMATTING


def _is_constant(ins: dis.Instruction, kinds: tuple) -> bool:
    return ins.opname.startswith(("LOAD_CONST", "LOAD_SMALL_INT")) and type(ins.argval) in kinds


def _path_to(instructions, i: int) -> tuple[str, ...]:
    """A global name and the attributes taken of it, of which instruction i is the last; () if it is not."""
    path: list[str] = []
    while i >= 0 and instructions[i].opname in _ATTRIBUTE:
        path.append(instructions[i].argval)
        i -= 1
    return (instructions[i].argval, *reversed(path)) if instructions[i].opname == "LOAD_GLOBAL" else ()


def _asked_for_type(found: Reads, instructions, i: int) -> None:
    """`type(x) is float` at instruction i: note x and float."""
    path = _path_to(instructions, i - 1)
    for end in (i - 1, i - 1 - len(path)):  # the call of `type` on the right, or on the left of a path
        for k in range(end):
            named = instructions[k].opname == "LOAD_GLOBAL" and instructions[k].argval == "type"
            if named and is_call_of(instructions[end], instructions[k]):
                operand = [ins for ins in instructions[k + 1 : end] if ins.opname.startswith("LOAD")]
                is_local = len(operand) == 1 and operand[0].opname.startswith("LOAD_FAST")
                name = operand[0].argval if is_local else None
                if any(ins.opname == "STORE_FAST" and ins.argval == name for ins in instructions):
                    name = None
                found.types.append((name, path, instructions[k].positions.lineno))


def _inner(code: CodeType) -> list[CodeType]:
    return [const for const in code.co_consts if isinstance(const, CodeType)]


def _use(instructions, i: int) -> Use:
    """The attributes taken, one after another, of what instruction i loads; and is the last one called?"""
    end = i + 1
    while end < len(instructions) and instructions[end].opname in _ATTRIBUTE:
        end += 1
    # what is called has a NULL below it on the stack, or since 3.13 above it
    beside = instructions[end if sys.version_info >= (3, 13) else i - 1].opname
    own = instructions[i:end]
    marked = beside == "PUSH_NULL" or any(x.opname == "LOAD_METHOD" or "NULL" in x.argrepr for x in own)
    return Use(tuple([ins.argval for ins in instructions[i + 1 : end]]), marked)


def _by_name(found: Reads, instructions, i: int) -> None:
    """getattr(x, "rate"), with or without a default: the name counts as read."""
    call = next(
        (k for k in range(i + 1, len(instructions)) if is_call_of(instructions[k], instructions[i])), i
    )
    before = [ins for ins in instructions[i + 1 : call] if ins.opname not in ("PRECALL", "CACHE")]
    n = instructions[call].arg if instructions[call].opname == "CALL" else 0
    name = before[-1] if n == 2 else before[-2] if n == 3 and len(before) > 2 else None
    if instructions[i].argval == "setattr" and n == 3:
        name = next((ins for ins in before[2:] if ins.opname == "LOAD_CONST"), None)
    if name is None or name.opname != "LOAD_CONST" or type(name.argval) is not str:
        return found.fail(f"it calls {instructions[i].argval}() with a name that does not stand there")
    found.names.add(name.argval)
    if name.argval in OPAQUE_ATTRIBUTES:
        found.fail(f"it uses .{name.argval}")
    return None


def is_call_of(call: dis.Instruction, callee: dis.Instruction) -> bool:
    """Whether the instruction calls what the other one loads: its text begins with that of what it calls."""
    if not call.opname.startswith("CALL") or call.opname == "CALL_INTRINSIC_1":
        return False
    a, b = call.positions, callee.positions
    if a is None or b is None or None in (a.lineno, a.col_offset, b.lineno, b.col_offset):
        return False
    return (a.lineno, a.col_offset) == (b.lineno, b.col_offset)


def _matched(found: Reads, instructions, i: int) -> None:
    """`case Point(x=0)` reads attributes; `case Point(0)` those that the class names."""
    names = instructions[i - 1].argval
    if instructions[i].arg or not isinstance(names, tuple):
        return found.fail("it matches a class by position")
    found.names.update(names)
    return None


def _tries(code: CodeType, instructions: list) -> list[tuple[int, int]]:
    """The stretches of code whose exceptions may end in a handler, be it one further out. A `with` asks
    __exit__ instead, which world.py looks at.
    """
    entries = dis.Bytecode(code).exception_entries
    places = {ins.offset: i for i, ins in enumerate(instructions)}
    ending = {e.target for e in entries if _may_end(instructions[places[e.target] :])}

    def ends(entry) -> bool:
        while entry is not None and entry.target not in ending:  # it raises again, to what is around it
            entry = next((e for e in entries if e.start <= entry.target < e.end), None)
        return entry is not None

    return [(e.start, e.end) for e in entries if ends(e)]


def _may_end(handler: list) -> bool:
    """Whether an exception may end in this handler, given as its instructions and all that follow."""
    is_one = handler[0].opname == "PUSH_EXC_INFO" and handler[1].opname != "WITH_EXCEPT_START"
    return is_one and _ends(handler[1:])


def awaits(code: CodeType, lasti: int) -> bool:
    """Whether an exception that is raised at this instruction may end in the function itself."""
    return any(start <= lasti < end for start, end in reads(code).tries)


def _ends(rest) -> bool:
    """Whether this handler can be left without raising again: `except:`, or a return in `finally`."""
    for before, ins, after in zip(rest, rest[1:], rest[2:]):
        if ins.opname == "POP_EXCEPT":
            if after.opname != "RERAISE":
                return True
            if before.opname == "COPY":  # the end of the handler
                return False
    return True


@remembered
def returns_nothing(code: CodeType) -> bool:
    """Whether all that it returns is None or False. An __exit__ that does so lets exceptions through."""
    instructions = list(dis.get_instructions(code))
    for before, ins in zip(instructions, instructions[1:]):
        if ins.opname == "RETURN_VALUE" and not (before.opname == "LOAD_CONST" and not before.argval):
            return False
        if ins.opname == "RETURN_CONST" and ins.argval:
            return False
    return True


@remembered
def catches(code: CodeType) -> bool:
    """Whether the function, or one inside it, ends exceptions. An __exit__ of a `with` is not looked into."""
    found = reads(code)
    return found.withs > found.errstates or bool(found.tries) or any(map(catches, _inner(code)))
