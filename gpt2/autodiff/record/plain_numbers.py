"""Checks whether a recorded value may become a plain number: `if float(x) > 0`, `range(int(n))`,
`math.sin(x)`.

A plain number has no derivative. One that the user's code gets by float(x), int(x) or complex(x) may only
decide: in if, while, range, as an index, a size, in a format. All other uses are refused. This is data flow
analysis of the bytecode: from the call on, all paths through the function are followed, with the stack slots
and variables that hold the number or what is computed from it. Instructions that are not known are refused.
"""

from __future__ import annotations

import dis
import math
import sys
import types
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np

from ..tracebacks import observers
from .bytecode import JUMPS, CodeMap, instructions_of, is_loaded_to_call
from .source_lines import is_inside, is_standard

_OF_MATH = tuple(getattr(math, name) for name in "isnan isinf isfinite isclose".split())
_SIZED = (np.zeros, np.ones, np.empty, np.eye, np.isnan, np.isfinite, np.isclose, np.allclose)
# The user may call these: their results have no derivative, or are not numbers
_ALLOWED = (bool, format, str, repr, print, range, len, isinstance, *_OF_MATH, *_SIZED)
_ARITHMETIC = (float, int, complex, abs, min, max, round, divmod, pow, math.floor, math.ceil, math.trunc)
_BY_KEY = (sorted, min, max)
_CONVERSIONS = {"__float__": "float", "__int__": "int", "__complex__": "complex"}


def consumer(name: str) -> str | None:
    """What converts the value to a plain number: "assignment" for `plain[0] = x`, the name of a function that
    loses the derivative (`math.sin`, or `float` if its result does more than decide), or None if that is
    allowed. `name` is that of the recorded function, which may itself be the one.
    """
    frame = sys._getframe(1)
    while is_inside(frame.f_code.co_filename):
        if id(frame.f_code) in observers:
            return name
        frame = frame.f_back
    if is_standard(frame.f_code.co_filename):
        return f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"
    instructions, k = _running(frame)
    ins, before = instructions[k], instructions[:k]
    if ins.opname.startswith("STORE_"):
        return "assignment"
    if ins.opname == "BINARY_OP" and ins.argrepr.startswith("%") and _starts_as(ins, before, str, frame):
        return None
    if not ins.opname.startswith(("CALL", "PRECALL")):
        return UNKNOWN_FUNCTION
    names, called = _callee(ins, before, frame)
    if _is_one(called, _ALLOWED):
        return None
    kind = _CONVERSIONS.get(names[-1]) if names else None
    if _is_one(called, (float, int, complex)):
        kind = called.__name__
    if kind is not None:
        return None if _only_decides(frame, kind) else kind
    return ".".join(names) or UNKNOWN_FUNCTION


UNKNOWN_FUNCTION = "a function that cannot be seen"


def _is_one(called: Any, functions: tuple) -> bool:
    """Whether it is one of these functions, or its replacement while something is recorded."""
    plain = getattr(called, "function", called)
    return any(called is f or plain is f for f in functions)


# what becomes of a number

DECIDES, RETURNS, LOST = "decides", "returns", "lost"
_fates = CodeMap()  # for each code object: instruction -> what becomes of its result
_MOST_STATES = 10_000  # steps on all ways through a function


def _only_decides(frame: FrameType | None, kind: str) -> bool:
    """Whether the result of the call that runs in the frame only decides, there and where it is returned."""
    while frame is not None and not is_inside(frame.f_code.co_filename):
        fate = _fate(frame, kind)
        if fate != RETURNS:
            return fate == DECIDES
        name, frame = frame.f_code.co_name, frame.f_back
        instructions, k = _running(frame) if frame is not None else ([], 0)
        if not instructions or not instructions[k].opname.startswith(("CALL", "PRECALL")):
            break
        names, called = _callee(instructions[k], instructions[:k], frame)
        if names[-1:] != (name,):
            return _is_one(called, _BY_KEY) or names[-1:] == ("sort",)
    return False


def _fate(frame: FrameType, kind: str) -> str:
    known: dict[int, str] = _fates.get(id(frame.f_code)) or _fates.note(frame.f_code, {})
    if frame.f_lasti not in known:
        flow = _Flow(frame.f_code, frame, kind)
        k = _running(frame)[1]
        # Of Python 3.11, which may do the work of the CALL after it
        k += flow.instructions[k].opname == "PRECALL"
        known[frame.f_lasti] = flow.fate(_State(k + 1, (True,), frozenset()))
    return known[frame.f_lasti]


class _State(NamedTuple):
    """The next instruction, and which stack slots (from the top on) and variables hold the number."""

    k: int
    stack: tuple[bool, ...]
    names: frozenset[str]

    def after(self, pops: int, *pushed: bool) -> _State:
        stack = (*pushed, *self.stack[pops:])
        while stack and not stack[-1]:
            stack = stack[:-1]
        return _State(self.k + 1, stack, self.names)


class _Lost(Exception):
    """The number does more than decide."""


# How many values an instruction pops, how many it pushes, and what becomes of a number among those popped
_EFFECTS = {
    **dict.fromkeys("COMPARE_OP CONTAINS_OP IS_OP FORMAT_WITH_SPEC".split(), (2, 1, "ends")),
    **dict.fromkeys("UNARY_NOT TO_BOOL FORMAT_SIMPLE CONVERT_VALUE".split(), (1, 1, "ends")),
    **dict.fromkeys("UNARY_NEGATIVE UNARY_POSITIVE UNARY_INVERT".split(), (1, 1, "passes")),
    **dict.fromkeys("LIST_EXTEND SET_UPDATE DICT_UPDATE LIST_APPEND SET_ADD".split(), (1, 0, "loses")),
    "POP_TOP": (1, 0, "ends"),
    "STORE_ATTR": (2, 0, "loses"),
}
# What becomes of a number among the values that it joins
_BUILDS = dict.fromkeys(("BUILD_TUPLE", "BUILD_SLICE"), "passes") | {"BUILD_STRING": "ends"}
_BUILDS |= dict.fromkeys(("BUILD_LIST", "BUILD_SET"), "loses")
# How many values it pops, how many it pushes, and how many of those popped are the index
_INDEXING = {
    "BINARY_SUBSCR": (2, 1, 1),
    "STORE_SUBSCR": (3, 0, 1),
    "DELETE_SUBSCR": (2, 0, 1),
    "BINARY_SLICE": (3, 1, 2),
    "STORE_SLICE": (4, 0, 2),
}
_NOTHING = frozenset(
    "RESUME NOP CACHE PRECALL KW_NAMES EXTENDED_ARG MAKE_CELL COPY_FREE_VARS NOT_TAKEN JUMP_FORWARD "
    "JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT".split()
)
_LOADS = frozenset(
    "LOAD_CONST LOAD_FAST LOAD_FAST_AND_CLEAR LOAD_GLOBAL LOAD_NAME LOAD_DEREF LOAD_CLOSURE PUSH_NULL".split()
)
_ENDINGS = frozenset("RETURN_VALUE RAISE_VARARGS RERAISE".split())
_SHOW_VARIABLES = frozenset("locals vars eval exec dir".split())  # they show variables without naming them


class _Flow:
    """All paths through one function."""

    def __init__(self, code: CodeType, frame: FrameType, kind: str):
        self.code, self.frame, self.kind = code, frame, kind
        self.instructions = instructions_of(code)
        self.at = {ins.offset: k for k, ins in reversed(list(enumerate(self.instructions)))}
        self.handlers = [k for k, ins in enumerate(self.instructions) if ins.opname == "PUSH_EXC_INFO"]
        self.returns = False

    def fate(self, first: _State) -> str:
        seen: set[_State] = set()
        todo = [first]
        try:
            while todo:
                state = todo.pop()
                if state in seen or not (state.stack or state.names):
                    continue
                seen.add(state)
                if len(seen) > _MOST_STATES:
                    return LOST
                todo += self.following(state)
                if state.names:  # an exception may be raised anywhere, and caught by any handler
                    todo += [_State(k, (), state.names) for k in self.handlers]
        except _Lost:
            return LOST
        return RETURNS if self.returns else DECIDES

    def following(self, state: _State) -> Iterator[_State]:
        ins = self.instructions[state.k]
        after = self.after(ins, state)
        if ins.opname in _ENDINGS:
            return
        if ins.opcode in JUMPS:
            left = state if ins.opname.endswith("_OR_POP") else after
            yield left._replace(k=self.at[ins.argval])
            if ins.opname.startswith(("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE")):
                return
        yield after

    def after(self, ins: dis.Instruction, state: _State) -> _State:
        op, held = ins.opname, state.stack
        if op in _NOTHING:
            return state.after(0)
        if op in _LOADS:
            return self.loaded(ins, state)
        if op in ("STORE_FAST", "STORE_DEREF", "DELETE_FAST"):
            return self.stored(ins, state)
        if op in ("COPY", "SWAP"):
            n = ins.arg
            slots = [*held, *[False] * (n - len(held))]
            if op == "COPY":
                return state.after(0, slots[n - 1])
            slots[0], slots[n - 1] = slots[n - 1], slots[0]
            return state.after(len(slots), *slots)
        if op == "RETURN_VALUE":
            self.returns |= any(held[:1])
            return state.after(1)
        pops, pushes, fate = self.effect(ins, state)
        if fate == "loses" and any(held[:pops]):
            raise _Lost
        passed = fate == "passes" and any(held[:pops])
        return state.after(pops, *[passed] * pushes)

    def loaded(self, ins, state: _State) -> _State:
        name = ins.argval
        is_variable = ins.opname.startswith(("LOAD_FAST", "LOAD_DEREF"))
        if ins.opname == "LOAD_GLOBAL":
            if state.names and name in _SHOW_VARIABLES:
                raise _Lost
            return state.after(0, *[False] * (1 + is_loaded_to_call(ins)))
        after = state.after(0, is_variable and name in state.names)
        return after._replace(names=state.names - {name}) if ins.opname.endswith("CLEAR") else after

    def stored(self, ins, state: _State) -> _State:
        name, deletes = ins.argval, ins.opname == "DELETE_FAST"
        after = state.after(0 if deletes else 1)
        if deletes or not any(state.stack[:1]):
            return after._replace(names=state.names - {name})
        if ins.opname == "STORE_DEREF":
            self.check_inner(name)
        return after._replace(names=state.names | {name})

    def check_inner(self, name: str) -> None:
        if name in self.code.co_freevars:
            raise _Lost
        for inner in self.code.co_consts:
            if isinstance(inner, CodeType) and name in inner.co_freevars:
                first = _State(0, (), frozenset({name}))
                if _Flow(inner, self.frame, self.kind).fate(first) != DECIDES:
                    raise _Lost

    def effect(self, ins, state: _State) -> tuple[int, int, str]:
        """(values popped, values pushed, what becomes of a number among those popped)."""
        op, n = ins.opname, ins.arg or 0
        if op in _EFFECTS:
            return _EFFECTS[op]
        if op in _INDEXING:  # a float may be looked up, but not be a new key of a dict
            pops, pushes, keys = _INDEXING[op]
            loses = any(state.stack[keys:pops]) or op == "STORE_SUBSCR" and self.kind != "int"
            return pops, pushes, "loses" if loses else "ends"
        if op.startswith("POP_JUMP") or op.endswith("_OR_POP"):
            return 1, 0, "ends"
        if op == "BINARY_OP":
            return self.computed(ins, state)
        if op in ("CALL", "CALL_KW"):
            return n + 2 + (op == "CALL_KW"), 1, self.called(ins, state, n)
        if op in _BUILDS:
            return n, 1, _BUILDS[op]
        if op == "UNPACK_SEQUENCE":
            return 1, n, "passes"
        if op == "FORMAT_VALUE":
            return 1 + bool(n & 4), 1, "ends"
        if op == "LOAD_ATTR":
            return 1, 1 + is_loaded_to_call(ins), "loses"
        if op == "CALL_INTRINSIC_1":
            return 1, 1, "passes" if "POSITIVE" in ins.argrepr else "loses"
        if any(state.stack):  # its effect on the stack is not known
            raise _Lost
        return 0, 0, "loses"

    def computed(self, ins, state: _State) -> tuple[int, int, str]:
        """a + b: what is computed from the number is followed like the number."""
        right, left = (*state.stack, False, False)[:2]
        if ins.argrepr.startswith("["):
            return 2, 1, "loses" if left else "ends"
        before = self.instructions[: state.k]
        if ins.argrepr[0] == "%" and not left and _starts_as(ins, before, str, self.frame):
            return 2, 1, "ends"
        # `a += n` may change an array that has other names
        return 2, 1, "loses" if right and ins.argrepr.endswith("=") else "passes"

    def called(self, ins, state: _State, n: int) -> str:
        if not any(state.stack[:n]):
            return "loses"
        before = self.instructions[: state.k]
        names, called = _callee(ins, before, self.frame, variables=False)
        if _is_one(called, _ALLOWED) or _is_one(called, (np.arange,)) and n == 1:
            return "ends"
        if _is_one(called, _ARITHMETIC):
            return "passes"
        # `assert` as pytest rewrites it: the call that shows the operands has the position of the whole
        # statement
        shows = any(b.argval == "@pytest_ar" and b.positions == ins.positions for b in before[-16:])
        parts = _beginning(ins, before)
        text = parts and parts[0].opname == "LOAD_CONST" and type(parts[0].argval) is str
        method = parts[-1].argval if parts and parts[-1].opname == "LOAD_ATTR" else None
        formats = method == "reshape" or text and method == "format"  # x.reshape(n, -1), or "{}".format(n)
        return "ends" if shows or formats else "loses"


# instructions


def _running(frame: FrameType) -> tuple[list[dis.Instruction], int]:
    """The instructions of a frame's function, and the index of the one that runs."""
    instructions = instructions_of(frame.f_code)
    # Or in its cache
    return instructions, max(k for k, ins in enumerate(instructions) if ins.offset <= frame.f_lasti)


def _begins_with(whole, part) -> bool:
    """Whether the source of one instruction begins with that of the other, and goes on."""
    a, b = whole.positions, part.positions
    if a is None or b is None or None in (*a, *b):
        return False
    same_start = (a.lineno, a.col_offset) == (b.lineno, b.col_offset)
    return same_start and (b.end_lineno, b.end_col_offset) < (a.end_lineno, a.end_col_offset)


def _beginning(call, before) -> list[dis.Instruction]:
    """The instructions whose source begins where that of the call does; not the names of its keywords."""
    before = before[:-1] if call.opname == "CALL_KW" else before
    return [ins for ins in before if _begins_with(call, ins) and ins.opname != "KW_NAMES"]


def _callee(call, before, frame: FrameType, variables: bool = True) -> tuple[tuple[str, ...], Any]:
    """The callee of a call: names, and the object if known, without `variables` not for local names."""
    parts = _beginning(call, before)
    if any(not ins.opname.startswith(("LOAD_", "PUSH_NULL")) for ins in parts):
        return (), None
    names = tuple(dict.fromkeys(ins.argval for ins in parts if ins.opname.startswith("LOAD_")))
    is_variable = any(ins.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) for ins in parts)
    if not names or is_variable and not variables:
        return names, None
    callee = _value(frame, names[0])
    for name in names[1:]:
        callee = getattr(callee, name, None) if type(callee) is types.ModuleType else None
    return names, callee


def _value(frame, name: str):
    for namespace in (frame.f_locals, frame.f_globals, frame.f_builtins):
        if name in namespace:
            return namespace[name]
    return None


def _starts_as(ins, before, kind: type, frame) -> bool:
    """Whether the left operand is of this type: `"%.3f" % x`."""
    left = [b for b in before if _begins_with(ins, b)]
    if len(left) != 1:
        return False
    value = left[0].argval if left[0].opname == "LOAD_CONST" else _value(frame, left[0].argval)
    return type(value) is kind
