"""The state of a recording that runs: its inputs, captured arrays, and the values that were looked at.

Recordings nest. A value belongs to the recorder that made it; an operation belongs to the innermost recorder
among its operands, and operands of the outer ones are lifted: they become inputs of the inner graph.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
import threading
import warnings
from builtins import getattr, hasattr  # noqa: A004  Python's own, also while the names are replaced
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import AutodiffError, DtypeError, EscapedError, WriteError, location, written_to_plain
from ..graph import Node
from ..ops import OPS, const, input_node
from ..same import same_array
from . import unevaluated
from .source_lines import error_here, error_is_caught, here, user_frame

if TYPE_CHECKING:
    from .source_lines import Site

NUMBERS = "biufc"  # dtype kinds
_serials = itertools.count(1)
LONG = 50_000  # operations of one recording, from which on a loop in it is too long for Python's `for`


class _ThreadState(threading.local):
    """What a thread records."""

    building: Recorder | None = None  # the recorder for which a handler makes nodes
    plain = False  # whether random generators give plain numbers
    # ids of NumPy's functions that may be compared (type_tests.py); None: no stand-ins yet
    spared: Collection[int] | None = None
    as_written: tuple | None = None  # a function that runs as NumPy wrote it, and the user's frame

    def __init__(self) -> None:
        self.stack: list[Recorder] = []


local = _ThreadState()


class Read(NamedTuple):
    """A recorded value that was made plain: `if x > 0`, `float(x)`, `range(n)`, `x[mask]`, `print(x)`."""

    node: Node
    value: object  # a Python or NumPy scalar, or an array
    kind: str  # "bool" | "int" | "float" | "array" | "text"
    loc: tuple


@dataclass(eq=False, slots=True)
class Capture:
    """An array from outside, and a copy of its content when it was first read."""

    array: np.ndarray
    node: Node
    content: np.ndarray | None  # None: its memory is read-only


class Recorder:
    """One run of a function that is being recorded."""

    last = 0  # the largest serial so far: 0 if nothing has been recorded in this process

    def __init__(self, name: str, dry: bool = False):
        self.name = name
        self.operations = 0
        self.dry = dry  # large values are not computed (unevaluated.py)
        self.guessed: set[Node] = set()  # nodes of values that were not computed
        self.repeated: dict = {}  # recordings of functions under ad.repeated (programs/repeated.py)
        self.serial = Recorder.last = next(_serials)  # inner recordings have larger ones
        self.active = True
        self.arguments: list = []  # a Recorded for each flat input
        self.captures: dict[int, list[Capture]] = {}  # by id of the array
        self.lifted: dict[Node, tuple[Node, object]] = {}  # outer node -> (input, outer Recorded)
        self.reads: list[Read] = []
        self.texts: list = []  # the recorded values of which texts were made
        self.leaves: Sequence = ()  # the flat arguments
        self.written: list[int] = []  # flat positions of arguments, in the order of the first write
        # the last error raised by a recorded value, which NumPy may replace by its own
        self.refused: AutodiffError | None = None
        self.unanswered: AutodiffError | None = None  # an error that the function must not handle
        self.unstable: list[str] = []  # why another run might give another graph
        self.draws: Any = None  # of random numbers (draws.py); None: they are plain numbers
        self.plain_draws_noted: list[str] = []  # methods of random generators that gave plain numbers

    def refuse(self, error: AutodiffError) -> AutodiffError:
        self.refused = error
        return error

    def read(self, node: Node, value: Any, kind: str) -> None:
        self.note(Read(node, value, kind, here()))

    def note(self, read: Read) -> None:
        if self.guessed and unevaluated.depends_on(read.node, self.guessed):
            raise unevaluated.Unknown
        self.reads.append(read)

    def count(self) -> None:
        """Count one more operation; say once what to write where there are very many."""
        self.operations += 1
        if self.operations == LONG:
            warnings.warn(
                f"{location(here())}: {self.name} has recorded {LONG:,} operations, and each takes memory "
                "and time to compile. A Python loop is recorded step by step; ad.scan and ad.while_loop "
                "record its body once",
                stacklevel=2,
            )

    def note_query(self) -> None:
        """Note that the function asked how arrays lie in memory."""
        self.unstable.append("it asks how arrays lie in memory (flags, strides, shares_memory)")

    def check_computed(self) -> None:
        """Raise Unknown in a dry run where the function catches errors that the values might raise."""
        if self.dry and error_is_caught():
            raise unevaluated.Unknown

    def skips_write(self, target: np.ndarray, node: Node) -> bool:
        """Whether this is a dry run that does not write the node's value into the target."""
        if not self.dry or target.size < unevaluated.LARGE or target.dtype.kind not in "fc":
            return False
        self.guessed.add(node)
        return True

    def has_derivative(self, node: Node) -> bool:
        """Whether the value depends smoothly on an argument, or on a value of an enclosing recording."""
        constants = {c.node for captured in self.captures.values() for c in captured}
        outer = {inner: x for inner, x in self.lifted.values()}
        seen: set[Node] = set()
        todo = [node]
        while todo:
            n = todo.pop()
            if n in seen or n in constants or n.op == "const":
                continue
            if type(n.dtype) is not tuple and n.dtype.kind not in "fc":
                continue
            if n.op != "input" and OPS[n.op].kind == "nondiff":
                continue
            if n.op == "input" and (n not in outer or outer[n]._rec.has_derivative(outer[n].node)):
                return True
            seen.add(n)
            todo += n.args
        return False

    def lift(self, outer: Any) -> Node:
        """The input for a value of an enclosing recording."""
        node = outer.node
        if node not in self.lifted:
            inp = input_node(node.shape, node.dtype, node.name)
            inp.loc = node.loc
            self.lifted[node] = (inp, outer.snapshot())
        return self.lifted[node][0]

    def capture(self, array: np.ndarray) -> Node:
        """The input for an array from outside, with its present content."""
        check_numbers(array.dtype)
        if not array.dtype.isnative:
            raise DtypeError(
                f"an array of dtype {array.dtype} met a recorded value, and that is not this machine's byte "
                'order. Convert it with a.astype(a.dtype.newbyteorder("="))',
                here(),
            )
        check_kind(array, f"a {type(array).__name__} met a recorded value")
        known = self.captures.get(id(array))
        if known is not None:
            last = known[-1]
            if last.content is None or same_array(array, last.content):
                return last.node
        content = None if is_frozen(array) else np.array(array, order="K")
        node = input_node(array.shape, array.dtype, known[-1].node.name if known else variable_name(array))
        self.captures.setdefault(id(array), []).append(Capture(array, node, content))
        return node

    def close(self) -> list[tuple[Node, np.ndarray]]:
        """End the recording. Arrays of no other owner become constants; the others are (input, array)."""
        self.active = False
        captures = []
        views = Counter(id(captured[0].array.base) for captured in self.captures.values())
        # all are checked before any becomes a constant, which refers to its array as well
        privacy = [self._is_private(captured, views) for captured in self.captures.values()]
        for captured, private in zip(self.captures.values(), privacy):
            for i, c in enumerate(captured):
                changed = i + 1 < len(captured) or not (c.content is None or same_array(c.array, c.content))
                if changed and not private:
                    name = c.node.name or "without a name"
                    self.unstable.append(f"it writes to an array from outside ({name})")
                if changed or private and c.node.shape != ():
                    # The graph does not exist yet, so this edits the node
                    value: Any = c.content if changed else c.array
                    c.node.op, c.node._key = "const", None
                    c.node.attrs = {"value": value if value.ndim else value.item()}
                else:
                    captures.append((c.node, c.array))
        return captures

    def _is_private(self, captured: list[Capture], views: Counter) -> bool:
        """Whether only the recording refers to this array and to its base."""
        array = captured[0].array
        if sys.getrefcount(array) > len(captured) + views[id(array)] + _EXTRA_REFS:
            return False
        base = array.base
        del array
        if base is None:
            return True
        own = self.captures.get(id(base), ())
        held = sys.getrefcount(base) <= len(own) + views[id(base)] + _EXTRA_REFS
        return isinstance(base, np.ndarray) and _base(base) is None and held


_base = np.ndarray.base.__get__  # also of what has become a recorded value


def _count_extra_refs() -> int:
    """What sys.getrefcount adds: a local variable and, before Python 3.14, its own argument."""
    holder = [np.zeros(1)]
    array = holder[0]
    return sys.getrefcount(array) - 1


_EXTRA_REFS = _count_extra_refs()


# Methods by which a subclass of ndarray may compute in another way
_MEANINGS = "__array_ufunc__ __array_function__ __add__ __mul__ __matmul__ __pow__ __truediv__".split()


def computes_as_ndarray(array: np.ndarray) -> bool:
    """Whether such arrays compute as plain ones: np.memmap does, np.matrix and arrays with units do not."""
    kind = type(array)
    return kind is np.ndarray or all(getattr(kind, m) is getattr(np.ndarray, m) for m in _MEANINGS)


def native(dtype: np.dtype) -> np.dtype:
    return dtype if dtype.isnative else np.dtype(dtype.type)


def check_numbers(dtype: np.dtype) -> None:
    if dtype.kind not in NUMBERS:
        raise DtypeError(
            f"an array of dtype {dtype} met a recorded value; only arrays of numbers and "
            "bools can be recorded",
            here(),
        )


def check_kind(array: np.ndarray, subject: str) -> None:
    # Its module is imported only where somebody uses it, and never while names are replaced
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(array, masked.MaskedArray):
        raise DtypeError(f"{subject}: masked arrays are not recorded; pass the data and the mask", here())
    if not computes_as_ndarray(array):
        raise DtypeError(
            f"{subject}, which overrides NumPy's operations; only plain arrays can be recorded. Convert it "
            "with np.asarray(x)",
            here(),
        )


def is_frozen(array: np.ndarray) -> bool:
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    return array is None or isinstance(array, bytes)


def variable_name(value: Any) -> str | None:
    """The name of this object in the user's function, local or global, or None."""
    frame = user_frame()
    for names in (frame.f_locals, frame.f_globals):
        for name, held in names.items():
            if held is value:
                return name
            kind = type(held)
            if type(kind) is not type and hasattr(kind, "__autodiff_leaf__"):  # a class of local/arrays.py
                if held.__autodiff_leaf__() is value:
                    return name
    return None


def lost_write(array: Any, what: str = "this assignment") -> WriteError:
    """The error for a recorded value that is written into a plain array."""
    return written_to_plain(here(), what, variable_name(array))


def innermost(operands: Iterable) -> Recorder:
    """The recorder that an operation on these recorded values belongs to."""
    rec = None
    for x in operands:
        r = x._rec
        if not r.active:
            raise escaped(x)
        if rec is None or r.serial > rec.serial:
            rec = r
    if rec is None:
        raise error_here("no recorded value among the operands")
    return rec


def escaped(x: Any) -> EscapedError:
    origin = f"made at {location(x._node.loc)}" if x._node.loc else "an argument"
    name = f"{x._node.name!r}, " if x._node.name else ""
    return EscapedError(
        f"a recorded value ({name}{origin} while {x._rec.name} was recorded) is used after that recording "
        "ended. Return it from the function instead of keeping it in a global or a list outside",
        here(),
    )


def state() -> tuple:
    """The state of this thread that a recording changes, for `restore`."""
    return len(local.stack), local.building, local.plain


def restore(state: tuple) -> None:
    del local.stack[state[0] :]
    local.building, local.plain = state[1:]


def current() -> Recorder | None:
    """The innermost recorder of this thread."""
    stack = local.stack
    return stack[-1] if stack else None


def outermost() -> Recorder | None:
    """The outermost recorder of this thread."""
    stack = local.stack
    return stack[0] if stack else None


def scalar_const(value: complex, dtype: np.dtype) -> Node:
    """A Python scalar as a constant of the dtype it takes beside arrays of `dtype`."""
    target = weak_dtype(dtype, type(value))
    if target.kind in "iu" and type(value) is int:
        if not np.iinfo(target).min <= value <= np.iinfo(target).max:
            if not -(2**63) <= value < 2**63:  # only comparisons come here: NumPy raises for other operations
                return const(math.copysign(math.inf, value), np.dtype(np.float64))
            target = np.dtype(np.int64)
    if target.kind == "f" and type(value) is not float:
        value = float(value)
    return const(value, target)


@functools.cache
def weak_dtype(dtype: np.dtype, kind: type) -> np.dtype:
    """The dtype of NumPy 2 where an array of `dtype` meets a Python scalar of this type (NEP 50)."""
    return np.result_type(dtype, kind(0))


def label(node: Node, site: Site) -> None:
    """Set the user's source line of a new node and of the new ones that it is composed of."""
    if node.loc is not None or node.op == "input":
        return
    if node.op != "const" and node.name is None and local.as_written is None:
        node.name = site.name
    loc = site.loc
    todo = [node]
    while todo:
        n = todo.pop()
        if n.loc is None and n.op != "input":
            n.loc = loc
            todo.extend(n.args)
