"""One run of a function under observation: its inputs, what it captured, and which values it looked at.

Recordings nest. A value belongs to the recording in which it was made; an operation belongs to the innermost
recording that one of its operands belongs to, and operands of the others are lifted: they become inputs of
the inner graph.
"""

from __future__ import annotations

import itertools
import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import AutodiffError, DtypeError, EscapedError, location
from ..graph import Node
from ..ops import OPS, const, input_node
from . import unevaluated
from .source_lines import error_is_awaited, here, user_frame

if TYPE_CHECKING:
    from .source_lines import Site

NUMBERS = "biufc"  # dtype kinds
_serials = itertools.count(1)

# stack: the recordings of a thread; building (dispatch.py); plain (draws.py); as_written (functions/)
local = threading.local()


class Read(NamedTuple):
    """A recorded value that became a plain one: `if x > 0`, `float(x)`, `range(n)`, `x[mask]`, `print(x)`."""

    node: Node
    value: object  # what it was: a Python or NumPy scalar, or an array
    kind: str  # "bool" | "int" | "float" | "array" | "text"
    loc: tuple


class Capture:
    """An array from outside, and what it held when it was first read."""

    __slots__ = ("array", "node", "content")

    def __init__(self, array: np.ndarray, node: Node, content: np.ndarray | None):
        self.array = array
        self.node = node
        self.content = content  # None: the array is read-only for everybody


class ActiveRecording:
    last = 0  # the largest serial so far

    def __init__(self, name: str, dry: bool = False):
        self.name = name
        self.dry = dry  # large values are not computed (unevaluated.py)
        self.guessed: set[Node] = set()  # those that were not
        self.repeated: dict = {}  # recordings of functions that it calls often (programs/repeated.py)
        self.serial = ActiveRecording.last = next(_serials)  # inner recordings have larger ones
        self.active = True
        self.arguments: list = []  # a Recorded for each flat input
        self.captures: dict[int, list[Capture]] = {}  # by id of the array
        self.lifted: dict[Node, tuple[Node, object]] = {}  # outer node -> (input, outer Recorded)
        self.reads: list[Read] = []
        self.texts: list = []  # a Recorded for each text that was made of one
        self.given: Sequence = ()  # the flat arguments as they came
        self.asked: set[str] = set()  # what was asked of them besides values: "layout", "memory"
        self.layout: list | None = None  # and how they lay then
        self.written: list[int] = []  # flat positions of arguments, in the order of the first write
        # raised where NumPy may replace it with an error of its own
        self.refused: AutodiffError | None = None
        self.unstable: list[str] = []  # why another run might give another graph
        self.draws: Any = None  # of random numbers (draws.py); None: they are plain numbers
        self.drew_plainly: list[str] = []  # methods of random generators that gave plain numbers

    def refuse(self, error: AutodiffError) -> AutodiffError:
        self.refused = error
        return error

    def read(self, node: Node, value: Any, kind: str) -> None:
        self.note(Read(node, value, kind, here()))

    def note(self, read: Read) -> None:
        """Note that something looks at a value."""
        if self.guessed and unevaluated.hangs_on(read.node, self.guessed):
            raise unevaluated.Unknown
        self.reads.append(read)

    def ask(self, question: str) -> None:
        """Note a question about arguments of which their types are not the whole answer."""
        self.asked.add(question)
        if self.dry and question == "memory":
            raise unevaluated.Unknown
        if question == "layout" and self.layout is None:
            self.layout = layout_of(self.given)

    def check_computed(self) -> None:
        """Raise Unknown in a dry run whose function waits for errors that the values might raise."""
        if self.dry and error_is_awaited():
            raise unevaluated.Unknown

    def stand_in(self, ufunc: np.ufunc, values: Sequence) -> np.ndarray | None:
        """In a dry run, what takes the place of ufunc(*values); None where it has to be computed."""
        return unevaluated.stand_in(ufunc, values) if self.dry else None

    def reduced(self, function: Callable, values: Sequence, options: Mapping) -> Any:
        """In a dry run, what takes the place of function(*values, **options); None to compute it."""
        return unevaluated.reduced(function, values, options) if self.dry else None

    def leaves_out(self, target: np.ndarray, node: Node) -> bool:
        """Whether this is a dry run that does not write the node's value into the target."""
        if not self.dry or target.size < unevaluated.LARGE or target.dtype.kind not in "fc":
            return False
        self.guessed.add(node)
        return True

    def has_derivative(self, node: Node) -> bool:
        """Whether the value depends smoothly on an argument, or on a value of an enclosing recording."""
        constants = {c.node for captured in self.captures.values() for c in captured}
        constants |= {draw.node for draw in getattr(self.draws, "made", ())}
        outer = {inner: x for inner, x in self.lifted.values()}
        seen: set[Node] = set()
        todo = [node]
        while todo:
            n = todo.pop()
            if n in seen or n in constants or not _is_smooth(n):
                continue
            if n.op == "input" and (n not in outer or outer[n]._rec.has_derivative(outer[n].node)):
                return True
            seen.add(n)
            todo += n.args
        return False

    def lift(self, outer: Any) -> Node:
        """The input that stands for a value of an enclosing recording."""
        node = outer.node
        found = self.lifted.get(node)
        if found is None:
            inp = input_node(node.shape, node.dtype, node.name)
            inp.loc = node.loc
            found = self.lifted[node] = (inp, outer.snapshot())
        return found[0]

    def capture(self, array: np.ndarray) -> Node:
        """The input that stands for an array from outside, with the content that it has now."""
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
            if last.content is None or same_content(array, last.content):
                return last.node
        content = None if is_frozen(array) else np.array(array, order="K")
        node = input_node(array.shape, array.dtype, known[-1].node.name if known else variable_name(array))
        self.captures.setdefault(id(array), []).append(Capture(array, node, content))
        return node

    def close(self) -> list[tuple[Node, np.ndarray]]:
        """End the recording. Arrays that cannot be reached from elsewhere become constants; the others are
        returned, as (input, array) in the order of their first use.
        """
        self.active = False
        found = []
        views = Counter(id(captured[0].array.base) for captured in self.captures.values())
        # all are asked before any becomes a constant, which holds its array as well
        privacy = [self._is_private(captured, views) for captured in self.captures.values()]
        for captured, private in zip(self.captures.values(), privacy):
            for i, c in enumerate(captured):
                changed = i + 1 < len(captured) or not (c.content is None or same_content(c.array, c.content))
                if changed and not private:
                    self.unstable.append(
                        f"it writes to an array from outside ({c.node.name or 'without a name'})"
                    )
                if changed or private and c.node.shape != ():
                    _make_constant(c.node, c.content if changed else c.array)
                else:
                    found.append((c.node, c.array))
        return found

    def _is_private(self, captured: list[Capture], views: Counter) -> bool:
        """Whether the recording alone holds this array, and the array that it is a view of."""
        array = captured[0].array
        if sys.getrefcount(array) > len(captured) + views[id(array)] + _SEEN:
            return False
        base = array.base
        del array
        if base is None:
            return True
        own = self.captures.get(id(base), ())
        held = sys.getrefcount(base) <= len(own) + views[id(base)] + _SEEN
        return isinstance(base, np.ndarray) and base.base is None and held


def _count_seen() -> int:
    """What sys.getrefcount counts besides: a local variable and, before Python 3.14, its own argument."""
    holder = [np.zeros(1)]
    array = holder[0]
    return sys.getrefcount(array) - 1


_SEEN = _count_seen()


def _make_constant(node: Node, value: np.ndarray) -> None:
    """Before anyone has seen the graph, so that this is part of making the node."""
    node.op = "const"
    node.attrs = {"value": value if value.ndim else value.item()}
    node._key = None


# What a subclass of ndarray may give another meaning
_MEANINGS = "__array_ufunc__ __array_function__ __add__ __mul__ __matmul__ __pow__ __truediv__".split()


def computes_as_ndarray(array: np.ndarray) -> bool:
    """Whether such arrays compute as plain ones: np.memmap does, np.matrix and arrays with units do not."""
    kind = type(array)
    return kind is np.ndarray or all(getattr(kind, m) is getattr(np.ndarray, m) for m in _MEANINGS)


def native(dtype: np.dtype) -> np.dtype:
    """The dtype in this machine's byte order."""
    return dtype if dtype.isnative else np.dtype(dtype.type)


def _is_smooth(n: Node) -> bool:
    if n.op == "const" or type(n.dtype) is not tuple and n.dtype.kind not in "fc":
        return False
    return n.op == "input" or OPS[n.op].kind != "nondiff"


def check_numbers(dtype: np.dtype) -> None:
    if dtype.kind not in NUMBERS:
        raise DtypeError(
            f"an array of dtype {dtype} met a recorded value; only arrays of numbers and "
            "bools can be recorded",
            here(),
        )


def check_kind(array: np.ndarray, what: str) -> None:
    if isinstance(array, np.ma.MaskedArray):
        raise DtypeError(f"{what}: masked arrays are not recorded; pass the data and the mask", here())
    if not computes_as_ndarray(array):
        raise DtypeError(
            f"{what}, which computes in a way of its own; only plain arrays can be recorded. Convert it with "
            "np.asarray(x)",
            here(),
        )


def is_frozen(array: np.ndarray) -> bool:
    """Whether this memory is read-only."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    return array is None or isinstance(array, bytes)


def same_content(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are equal to the last bit: nan equals nan, and 0.0 does not equal -0.0."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.itemsize <= 8:
        word = f"u{a.itemsize}"
        return bool((a.view(word) == b.view(word)).all())
    return a.tobytes() == b.tobytes()


def variable_name(value: Any) -> str | None:
    """The name that the user's function has for this object, if it has one there."""
    frame = user_frame()
    for names in (frame.f_locals, frame.f_globals):
        for name, held in names.items():
            if held is value:
                return name
    return None


def innermost(operands: Iterable) -> ActiveRecording:
    """The recording that an operation on these recorded values belongs to."""
    rec = None
    for x in operands:
        r = x._rec
        if not r.active:
            raise escaped(x)
        if rec is None or r.serial > rec.serial:
            rec = r
    if rec is None:
        raise AutodiffError("no recorded value among the operands", here())
    return rec


def escaped(x: Any) -> EscapedError:
    made = f"made at {location(x._node.loc)}" if x._node.loc else "an argument"
    what = f"{x._node.name!r}, " if x._node.name else ""
    return EscapedError(
        f"a recorded value ({what}{made} while {x._rec.name} was recorded) is used after that recording "
        "ended. Return it from the function instead of keeping it in a global or a list outside",
        here(),
    )


def push(rec: ActiveRecording) -> None:
    _stack().append(rec)


def state() -> tuple:
    """What a recording changes in its thread, for `restore`."""
    return len(_stack()), building(), plain()


def restore(state: tuple) -> None:
    del _stack()[state[0] :]
    local.building, local.plain = state[1:]


def building() -> ActiveRecording | None:
    """The recording for which a handler makes nodes in this thread."""
    return getattr(local, "building", None)


def plain() -> bool:
    """Whether random generators give plain numbers in this thread."""
    return getattr(local, "plain", False)


def recorded_so_far() -> bool:
    """Whether anything has been recorded in this process."""
    return ActiveRecording.last > 0


def current() -> ActiveRecording | None:
    """The innermost recording of this thread."""
    stack = _stack()
    return stack[-1] if stack else None


def outermost() -> ActiveRecording | None:
    """The outermost recording of this thread."""
    stack = _stack()
    return stack[0] if stack else None


def _stack() -> list[ActiveRecording]:
    try:
        return local.stack
    except AttributeError:
        local.stack = []
        return local.stack


def layout_of(arrays: Iterable) -> list:
    """How arrays lie in memory: their strides, and all of their flags."""
    return [(x.strides, x.flags.num) for x in arrays if type(x) is np.ndarray]


def scalar_const(value: complex, dtype: np.dtype) -> Node:
    """A Python scalar as a constant of the dtype it takes beside arrays of `dtype`."""
    target = weak_dtype(dtype, type(value))
    if target.kind in "iu" and type(value) is int and not _fits(value, target):
        if not -(2**63) <= value < 2**63:  # compared with, as NumPy has raised its error at all else
            return const(math.copysign(math.inf, value), np.dtype(np.float64))
        target = np.dtype(np.int64)
    if target.kind == "f" and type(value) is not float:
        value = float(value)
    return const(value, target)


def _fits(value: int, dtype: np.dtype) -> bool:
    info = np.iinfo(dtype)
    return info.min <= value <= info.max


_weak: dict[tuple, np.dtype] = {}


def weak_dtype(dtype: np.dtype, kind: type) -> np.dtype:
    """The dtype of NumPy 2 where an array of `dtype` meets a Python scalar of this type (NEP 50)."""
    key = (dtype, kind)
    found = _weak.get(key)
    if found is None:
        found = _weak[key] = np.result_type(dtype, kind(0))
    return found


def label(node: Node, site: Site) -> None:
    """Give a new node, and the new ones that it was composed of, their line in the user's source."""
    if node.loc is not None or node.op == "input":
        return
    if node.op != "const" and node.name is None and local.__dict__.get("as_written") is None:
        node.name = site.name
    loc = site.loc
    todo = [node]
    while todo:
        n = todo.pop()
        if n.loc is None and n.op != "input":
            n.loc = loc
            todo.extend(n.args)
