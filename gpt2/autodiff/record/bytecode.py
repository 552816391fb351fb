"""Reads from a function's bytecode what it may read besides its arguments: `reads(code)` gives a Reads.

Each Python has its own instructions: `instructions_of` spells those of 3.11 to 3.15 in one way. Code with
another one has trouble.

Functions defined inside count when they run. world.py looks up the values of the names. A result is kept only
as long as its code object lives: a process may make functions without end.
"""

from __future__ import annotations

import dis
import functools
import opcode
import re
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, EllipsisType, NoneType
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class CodeMap(dict[int, Any]):
    """A dict by the ids of code objects. An entry goes when its code object does."""

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


def cached_by_code(function: Callable[[CodeType], T]) -> Callable[[CodeType], T]:
    """Decorator: caches a function of code objects in `known`, as long as they live."""

    @functools.wraps(function)
    def cached(code: CodeType) -> Any:
        known = cached.known  # type: ignore[attr-defined]
        value = known.get(id(code), known)
        return known.note(code, function(code)) if value is known else value

    cached.known = CodeMap()  # type: ignore[attr-defined]
    return cached


# --- the instructions of all Pythons -------------------------------------------------------------------

_SPELLINGS = {
    **dict.fromkeys(("LOAD_FAST_BORROW", "LOAD_FAST_CHECK"), "LOAD_FAST"),
    "LOAD_SMALL_INT": "LOAD_CONST",
    "LOAD_CLASSDEREF": "LOAD_DEREF",
}
_PAIR = re.compile(r"(LOAD|STORE)_FAST(?:_BORROW)?_(LOAD|STORE)_FAST(?:_BORROW)?")
JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_CALLED = "NULL|self"  # in the text of a LOAD_ATTR that takes a method to be called
_COMMON_CONSTANTS = getattr(opcode, "_common_constants", ())  # from 3.14 on


@cached_by_code
def instructions_of(code: CodeType) -> list[dis.Instruction]:
    """The instructions of a function, in one spelling for every Python."""
    return list(_respelled([*dis.get_instructions(code)]))


def _respelled(instructions: list[dis.Instruction]) -> Iterator[dis.Instruction]:
    for ins, following in zip(instructions, (*instructions[1:], None)):
        if ins.opname == "LOAD_COMMON_CONSTANT":
            yield ins._replace(opname="LOAD_CONST", argval=_COMMON_CONSTANTS[ins.arg])
        elif ins.opname == "LOAD_ASSERTION_ERROR":
            yield ins._replace(opname="LOAD_CONST", argval=AssertionError)
        elif ins.opname == "LOAD_METHOD":
            yield ins._replace(opname="LOAD_ATTR", argrepr=f"{_CALLED} + {ins.argval}")
        elif ins.opname == "RETURN_CONST":
            yield ins._replace(opname="LOAD_CONST")
            yield ins._replace(opname="RETURN_VALUE")
        elif pair := _PAIR.fullmatch(ins.opname):  # both have the source position of the first variable
            yield ins._replace(opname=f"{pair[1]}_FAST", argval=ins.argval[0])
            # The second begins where an attribute of it, or a call of it, does
            goes_on = following is not None and following.opname.startswith(("LOAD_ATTR", "PUSH_NULL"))
            places = following.positions if goes_on else None
            yield ins._replace(opname=f"{pair[2]}_FAST", argval=ins.argval[1], positions=places)
        else:
            yield ins._replace(opname=_SPELLINGS.get(ins.opname, ins.opname))


# --- what they read -------------------------------------------------------------------------------------

# Attributes that lead to what is not followed: frames, code, the insides of functions, all names at once
OPAQUE_ATTRIBUTES = frozenset(
    "__globals__ __builtins__ __closure__ __code__ __defaults__ __kwdefaults__ __annotations__ __annotate__ "
    "__doc__ __dict__ __dir__ __subclasses__ __getattribute__ __getattr__ __setattr__ __delattr__ __reduce__ "
    "__reduce_ex__ __getstate__ __setstate__ f_globals f_locals f_builtins f_back gi_frame cr_frame ag_frame "
    "tb_frame ctypes __array_interface__ __array_struct__".split()
)
# Built-in functions that take the name of an attribute, which must be a constant
BY_NAME = frozenset("getattr hasattr setattr delattr".split())

# A recording holds only where the same exceptions are raised. A program cannot tell: 1.0 / 0.0 is inf in it.
CATCHES = "it catches exceptions"


class Use(NamedTuple):
    """What follows a name: `np.linalg.norm(x)` gives np the use Use(("linalg", "norm"), called=True)."""

    chain: tuple[str, ...]
    called: bool  # and nothing else is done with it


@dataclass
class Reads:
    globals: dict[str, set[Use]] = field(default_factory=dict)
    # Variables of enclosing functions, also those that functions inside read: they have no other way to them
    free: dict[str, set[Use]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)  # attributes that it reads, sets or deletes, of any object
    imports: set[str] = field(default_factory=set)
    # What it compares with by `is`, as a name and the attributes that follow it, () if it is not a name; not
    # None, True and False, of which there is one each
    identity_tests: set[tuple[str, ...]] = field(default_factory=set)
    # Its tests `type(x) is float`: the name x, or None if that is not an argument; the path as above; line;
    # the name x if it is global; whether it calls `type`: else it is `kind is float`, kind perhaps type(x)
    types: list[tuple[str | None, tuple[str, ...], int, str | None, bool]] = field(default_factory=list)
    formats: bool = False  # whether it formats a value, by `%` or in an f-string
    tries: list[tuple[int, int]] = field(default_factory=list)  # where it may catch an exception, as offsets
    withs: int = 0
    errstates: int = 0  # those of NumPy let exceptions through
    trouble: str | None = None  # why running it again might not give the same, whatever its values are

    def fail(self, why: str) -> None:
        self.trouble = self.trouble or why

    def read_attribute(self, name: str) -> None:
        self.names.add(name)
        if name in OPAQUE_ATTRIBUTES:
            self.fail(f"it uses .{name}")


_NAMES = {"LOAD_ATTR", "STORE_ATTR", "DELETE_ATTR", "IMPORT_FROM", "LOAD_SUPER_ATTR"}
_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL", "DELETE_GLOBAL"}
_FREE = {"LOAD_DEREF", "LOAD_FROM_DICT_OR_DEREF", "STORE_DEREF", "DELETE_DEREF"}
# These read nothing but constants, local variables and the stack
_NEUTRAL = frozenset(
    """
    ASYNC_GEN_WRAP BEFORE_ASYNC_WITH BEFORE_WITH BINARY_OP BINARY_SLICE BINARY_SUBSCR BUILD_CONST_KEY_MAP
    BUILD_INTERPOLATION BUILD_LIST BUILD_MAP BUILD_SET BUILD_SLICE BUILD_STRING BUILD_TEMPLATE BUILD_TUPLE
    CALL CALL_FUNCTION_EX CALL_INTRINSIC_1 CALL_INTRINSIC_2 CALL_KW CHECK_EG_MATCH CHECK_EXC_MATCH
    CLEANUP_THROW COMPARE_OP CONTAINS_OP CONVERT_VALUE COPY COPY_FREE_VARS DELETE_FAST DELETE_NAME
    DELETE_SUBSCR DICT_MERGE DICT_UPDATE END_ASYNC_FOR END_FOR END_SEND EXTENDED_ARG FORMAT_SIMPLE
    FORMAT_VALUE FORMAT_WITH_SPEC FOR_ITER GET_AITER GET_ANEXT GET_AWAITABLE GET_ITER GET_LEN
    GET_YIELD_FROM_ITER JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT JUMP_FORWARD JUMP_IF_FALSE_OR_POP
    JUMP_IF_TRUE_OR_POP KW_NAMES LIST_APPEND LIST_EXTEND LIST_TO_TUPLE LOAD_BUILD_CLASS LOAD_CLOSURE
    LOAD_CONST LOAD_FAST LOAD_FAST_AND_CLEAR LOAD_LOCALS LOAD_SPECIAL MAKE_CELL MAKE_FUNCTION MAP_ADD
    MATCH_KEYS NOP NOT_TAKEN POP_EXCEPT POP_ITER POP_JUMP_BACKWARD_IF_FALSE POP_JUMP_BACKWARD_IF_NONE
    POP_JUMP_BACKWARD_IF_NOT_NONE POP_JUMP_BACKWARD_IF_TRUE POP_JUMP_FORWARD_IF_FALSE POP_JUMP_FORWARD_IF_NONE
    POP_JUMP_FORWARD_IF_NOT_NONE POP_JUMP_FORWARD_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE
    POP_JUMP_IF_NOT_NONE POP_JUMP_IF_TRUE POP_TOP PRECALL PREP_RERAISE_STAR PUSH_EXC_INFO PUSH_NULL
    RAISE_VARARGS RERAISE RESUME RETURN_GENERATOR RETURN_VALUE SEND SETUP_ANNOTATIONS SET_ADD
    SET_FUNCTION_ATTRIBUTE SET_UPDATE STORE_FAST STORE_NAME STORE_SLICE STORE_SUBSCR SWAP TO_BOOL UNARY_INVERT
    UNARY_NEGATIVE UNARY_NOT UNARY_POSITIVE UNPACK_EX UNPACK_SEQUENCE YIELD_VALUE
    """.split()
)
_PATTERNS = {"MATCH_CLASS", "MATCH_SEQUENCE", "MATCH_MAPPING"}
KNOWN = _NEUTRAL | _NAMES | _GLOBAL | _FREE | _PATTERNS | {"IMPORT_NAME", "IS_OP", "WITH_EXCEPT_START"}


@cached_by_code
def reads(code: CodeType) -> Reads:
    result = Reads()
    own_names = set()  # what a class body inside the function has defined: LOAD_NAME finds it first
    instructions = instructions_of(code)
    for i, ins in enumerate(instructions):
        op, name = ins.opname, ins.argval
        if op == "STORE_NAME":
            own_names.add(name)
        elif op != "LOAD_NAME" or name not in own_names:
            _read(result, code, instructions, i)
        if op == "BINARY_OP" and ins.argrepr.startswith("%"):
            result.formats |= not _is_constant(instructions[i - 1], (int, float))
        result.formats |= op in _FORMATTING
        result.errstates += op in _GLOBAL | {"LOAD_ATTR"} and name == "errstate"
        if op in _NAMES:
            result.read_attribute(name)
    result.tries = _caught_ranges(code, instructions)
    if code.co_name == "__exit__" and not returns_nothing(code):
        result.fail(CATCHES)
    for inner in _inner(code):
        for name, uses in reads(inner).free.items():
            if name in code.co_freevars:  # else it is a local variable of `code`
                result.free.setdefault(name, set()).update(uses)
    return result


def _read(result: Reads, code: CodeType, instructions, i: int) -> None:
    """Note what instruction i reads from outside, or why the code cannot be followed."""
    op, name = instructions[i].opname, instructions[i].argval
    if op in _GLOBAL:
        result.globals.setdefault(name, set()).add(_use(instructions, i))
        if name in BY_NAME:  # getattr(x, "rate"), with or without a default: the name counts as read
            text = _second_argument(instructions, i)
            if text is None or text.opname != "LOAD_CONST" or type(text.argval) is not str:
                result.fail(f"it calls {name}() with a name that is not a constant")
            else:
                result.read_attribute(text.argval)
    elif op in _FREE and name in code.co_freevars:
        result.free.setdefault(name, set()).add(_use(instructions, i))
    elif op == "IMPORT_NAME":
        result.imports.add(name)
        if instructions[i - 2].argval != 0:
            result.fail(f"it imports {name!r} relative to its package")
    elif op in _PATTERNS:  # which reads attributes and flags of a class
        result.fail("it matches a class, sequence or mapping (`match`)")
    elif op == "WITH_EXCEPT_START":
        result.withs += 1
    elif op == "IS_OP" and not _is_constant(instructions[i - 1], _SINGLE):
        result.identity_tests.add(_path_to(instructions, i - 1))
        _note_type_test(result, instructions, i)
    elif op not in KNOWN:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        result.fail(f"its instruction {op} is not known: Python {version} is new")


# Constants of which there is one each. A class or function is not the user's: from 3.14 on the code of
# `tuple(... for ...)` has an inline variant, for the case that the name `tuple` is the built-in class
_SINGLE = (bool, NoneType, EllipsisType, type, BuiltinFunctionType)
_FORMATTING = {"FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE"}


def _is_constant(ins: dis.Instruction, kinds: tuple) -> bool:
    return ins.opname == "LOAD_CONST" and type(ins.argval) in kinds


def _path_to(instructions, i: int) -> tuple[str, ...]:
    """A global name and the attributes taken of it, up to instruction i; () if that is something else."""
    path: list[str] = []
    while i >= 0 and instructions[i].opname == "LOAD_ATTR":
        path.append(instructions[i].argval)
        i -= 1
    return (instructions[i].argval, *reversed(path)) if instructions[i].opname == "LOAD_GLOBAL" else ()


def _note_type_test(result: Reads, instructions, i: int) -> None:
    """`type(x) is float` or `kind is float` at instruction i: note x and float."""
    path = _path_to(instructions, i - 1)
    known = len(result.types)
    for end in (i - 1, i - 1 - len(path)):  # the call of `type` on the right, or on the left of a path
        for k in range(end):
            named = instructions[k].opname == "LOAD_GLOBAL" and instructions[k].argval == "type"
            if named and is_call_of(instructions[end], instructions[k]):
                operand = [ins for ins in instructions[k + 1 : end] if ins.opname.startswith("LOAD")]
                is_local = len(operand) == 1 and operand[0].opname.startswith("LOAD_FAST")
                name = operand[0].argval if is_local else None
                if any(ins.opname == "STORE_FAST" and ins.argval == name for ins in instructions):
                    name = None
                held = operand[0].argval if [ins.opname for ins in operand] == ["LOAD_GLOBAL"] else None
                if any(ins.opname == "STORE_GLOBAL" and ins.argval == held for ins in instructions):
                    held = None
                result.types.append((name, path, instructions[k].positions.lineno, held, True))
    if len(result.types) == known:
        variable = i - 1 - len(path)
        if not path and instructions[variable].opname.startswith("LOAD_FAST"):  # float is kind
            path = _path_to(instructions, i - 2)
        if instructions[variable].argval != "__class__":
            result.types.append((None, path, instructions[i].positions.lineno, None, False))


def _inner(code: CodeType) -> list[CodeType]:
    return [const for const in code.co_consts if isinstance(const, CodeType)]


def _use(instructions, i: int) -> Use:
    """The chain of attributes of what instruction i loads, and whether the last one is called."""
    end = i + 1
    while end < len(instructions) and instructions[end].opname == "LOAD_ATTR":
        end += 1
    # what is called has a NULL below it on the stack, or since 3.13 above it
    beside = instructions[end if sys.version_info >= (3, 13) else i - 1].opname
    marked = beside == "PUSH_NULL" or any(map(is_loaded_to_call, instructions[i:end]))
    return Use(tuple([ins.argval for ins in instructions[i + 1 : end]]), marked)


def is_loaded_to_call(ins: dis.Instruction) -> bool:
    """Whether the instruction pushes a second value, because what it loads is called."""
    return ins.opname == "LOAD_GLOBAL" and ins.arg & 1 or ins.opname == "LOAD_ATTR" and _CALLED in ins.argrepr


_LEAVE = ("LOAD_", "PUSH_NULL", "PRECALL", "EXTENDED_ARG")  # what is on the stack


def _second_argument(instructions, i: int) -> dis.Instruction | None:
    """The instruction that by itself makes the second argument for the callee that instruction i loads."""
    depth, second = 0, None  # values on the stack above the callee
    for ins in instructions[i + 1 :]:
        if is_call_of(ins, instructions[i]):
            return second
        if ins.opcode in JUMPS:
            return None
        if depth == 1:
            second = ins
        elif depth == 2 and (ins.opname == "LOAD_ATTR" or not ins.opname.startswith(_LEAVE)):
            second = None
        depth += -1 if ins.opname == "STORE_FAST" else pushed(ins)
        if depth == 2 and ins is not second:  # it computes with it
            second = None
    return None


def pushed(ins: dis.Instruction) -> int:
    """How many values more are on the stack after the instruction; one half of a pair loads one."""
    return 1 if ins.opname == "LOAD_FAST" else dis.stack_effect(ins.opcode, ins.arg, jump=False)


def is_call_of(call: dis.Instruction, callee: dis.Instruction) -> bool:
    """Whether the instruction calls what the other one loads: both begin at the same place in the source."""
    if not call.opname.startswith("CALL") or call.opname == "CALL_INTRINSIC_1":
        return False
    a, b = call.positions, callee.positions
    if a is None or b is None or None in (a.lineno, a.col_offset, b.lineno, b.col_offset):
        return False
    return (a.lineno, a.col_offset) == (b.lineno, b.col_offset)


def _caught_ranges(code: CodeType, instructions: list) -> list[tuple[int, int]]:
    """The ranges of code whose exceptions a handler may catch, also one further out."""
    entries = dis.Bytecode(code).exception_entries
    places = {ins.offset: i for i, ins in enumerate(instructions)}
    ending = {e.target for e in entries if _leaves_handler(instructions[places[e.target] :])}

    def ends(entry) -> bool:
        while entry is not None and entry.target not in ending:  # it raises again, to what is around it
            entry = next((e for e in entries if e.start <= entry.target < e.end), None)
        return entry is not None

    return [(e.start, e.end) for e in entries if ends(e)]


def catches_at(code: CodeType, lasti: int) -> bool:
    """Whether the function may catch an exception that is raised at this instruction."""
    return any(start <= lasti < end for start, end in reads(code).tries)


def _leaves_handler(handler: list) -> bool:
    """Whether this handler, with all that follows, can be left without raising again: `except:`, a return."""
    first, *rest = handler
    if first.opname != "PUSH_EXC_INFO" or rest[0].opname == "WITH_EXCEPT_START":
        return False
    for before, ins, after in zip(rest, rest[1:], rest[2:]):
        if ins.opname == "POP_EXCEPT":
            if after.opname != "RERAISE":
                return True
            if before.opname == "COPY":  # the end of the handler
                return False
    return True


@cached_by_code
def returns_nothing(code: CodeType) -> bool:
    """Whether it only returns None or False. Such an __exit__ lets exceptions through."""
    instructions = instructions_of(code)
    for before, ins in zip(instructions, instructions[1:]):
        if ins.opname == "RETURN_VALUE" and not (before.opname == "LOAD_CONST" and not before.argval):
            return False
    return True


@cached_by_code
def catches(code: CodeType) -> bool:
    """Whether the function, or one inside it, catches exceptions; an __exit__ is not looked into."""
    result = reads(code)
    return result.withs > result.errstates or bool(result.tries) or any(map(catches, _inner(code)))
