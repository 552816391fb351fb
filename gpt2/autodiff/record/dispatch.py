"""Runs NumPy's functions on recorded values, each as a composition of ops.

`@handles(np.var)` names the NumPy function that a handler stands for. The handler takes the same arguments,
with nodes in place of recorded values, and returns the node of the result, or a tuple or list of them.
NumPy itself computes the concrete value, so value, shape, dtype and errors are its own; each call checks that
the node has the same shape and dtype. Where NumPy returns a view, the ops from the argument's node to the
handler's are ones that can be undone (writes.py).

A handler under `@raw(np.put)` gets the recorded values themselves: it writes to one, or returns no array.

The handlers are in functions/, one family a file. Most of what NumPy writes in Python needs none: NumPy's own
code runs on the recorded values (functions/as_written.py).
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
from builtins import getattr, hasattr  # noqa: A004  Python's own, also while the names are replaced
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..atoms import ATOMS, is_plain
from ..errors import AutodiffError, located, of_another_library, unsupported
from ..graph import Node
from ..ops import build
from . import recorder, source_lines
from .interception import plain
from .local.arrays import is_local, unwrapped, written_to
from .recorder import NUMBERS, Recorder, current, innermost, local
from .unevaluated import stand_in
from .unwatched import call_unwatched, unwatched
from .value import PROTOCOLS, Recorded, as_node, mapped, node_in

if TYPE_CHECKING:
    import numpy.typing as npt

    from .source_lines import Site


@dataclass
class Entry:
    """How a function or ufunc is recorded: by one of the first four fields, unless `rule` takes the call."""

    op: str | None = None  # the row of a ufunc
    nodes: Callable | None = None  # makes the nodes of the result from those of the arguments
    raw: Callable | None = None  # a handler of the recorded values themselves
    refused: str | None = None  # why it must not even be tried
    rule: Callable | None = None  # the user's own, which may return NotImplemented
    # On arrays and numbers neither it nor its handler runs code of the user's: its node is added unwatched
    quiet: bool = False
    moves: bool = False  # it only moves numbers, which cannot warn: it is computed unwatched, too


TABLE: dict[Callable, Entry] = {}
NO_ENTRY = Entry()
# Functions whose node had another dtype than NumPy's result, and was cast: a test keeps this empty
RECAST: set[str] = set()

# An argument that may be recorded: a handler gets its node, or else the plain argument. Handlers say Node
# where only this argument can be recorded.
Operand: TypeAlias = "Node | npt.ArrayLike"
# The same for raw handlers
RecordedLike: TypeAlias = "Recorded | npt.ArrayLike"


def recorded_functions() -> set[Callable]:
    """The functions of NumPy's, other than ufuncs, that can be called with recorded values."""
    entered = {function for function, entry in TABLE.items() if entry.nodes or entry.raw}
    return {function for function in entered if not isinstance(function, np.ufunc)}


def _entering(field: str, *functions: Callable) -> Callable[[Callable], Callable]:
    def enter(handler):
        for function in functions:
            TABLE[function] = Entry(**{field: handler})
        return handler

    return enter


# Decorators: @handles(np.var) enters a handler of nodes, @raw(np.put) one of the recorded values themselves
handles = functools.partial(_entering, "nodes")
raw = functools.partial(_entering, "raw")


def since(name: str) -> tuple[Callable, ...]:
    """The function np.NAME as a tuple of one; empty where this NumPy is too old to have it."""
    return (getattr(np, name),) if hasattr(np, name) else ()


def refuse(because: str, *functions: Callable) -> None:
    """Enter functions that are not supported, and must not even be tried."""
    for function in functions:
        TABLE[function] = Entry(refused=because)


def quiet(*functions: Callable, moves: bool = False) -> None:
    """Mark functions in the table as quiet, and as only moving numbers."""
    for function in functions:
        TABLE[function].quiet, TABLE[function].moves = True, moves


def operand(x: Any, like: np.dtype | None = None) -> Node:
    """A handler's argument as a node. Python numbers take their dtype from `like`."""
    return as_node(recorder.local.building, x, like)


def operands(*xs: Any) -> list[Node]:
    """Several arguments as nodes, with Python numbers in the dtype that NumPy 2 gives them here."""
    dtypes = [x.dtype for x in xs if hasattr(x, "dtype")]
    like = np.result_type(*dtypes) if dtypes else None
    return [operand(x, like) for x in xs]


def call_function(function: Callable, args: Sequence, kwargs: dict) -> Any:
    """Run one of NumPy's functions on arguments of which some are recorded."""
    function = plain(function)
    entry = TABLE.get(function, NO_ENTRY)
    if not (_NO_LOCALS.issuperset(map(type, args)) and _NO_LOCALS.issuperset(map(type, kwargs.values()))):
        args, kwargs = _unwrapped(function, args, kwargs)
    if entry.rule is not None and (result := entry.rule(*args, **kwargs)) is not NotImplemented:
        return result
    if entry.raw is not None:
        return entry.raw(*args, **kwargs)
    if entry.refused is not None:
        raise unsupported(full_name(function), source_lines.here(), entry.refused)
    return handled(function, args, kwargs, entry.nodes)


# The parameter that a function writes to, the first; of others it is `out`
_FILLED = dict.fromkeys((np.put, np.putmask, np.fill_diagonal), "a")
_FILLED |= {np.copyto: "dst", np.place: "arr", np.put_along_axis: "arr"}


_NO_LOCALS = ATOMS | {Recorded, np.ndarray, type(np._NoValue)}


@unwatched
def _unwrapped(function: Callable, args: Sequence, kwargs: dict) -> tuple[tuple, dict]:
    """The arguments of a call without the arrays that the recorded function made (local/)."""
    filled, position = _FILLED.get(function, "out"), 0
    if filled == "out":
        position = _position_of_out(function) if any(map(is_local, args)) else None
    new = tuple([written_to(v) if k == position else unwrapped(v) for k, v in enumerate(args)])
    return new, {k: written_to(v) if k == filled else unwrapped(v) for k, v in kwargs.items()}


def handled(function: Callable, args: Sequence, kwargs: dict, handler: Callable | None) -> Any:
    """The result of one of NumPy's functions. `handler` makes its nodes from those of the arguments."""
    args, kwargs, out = _without_out(function, args, kwargs)
    if out is not None and function in _ADDING and kwargs.get("dtype") is None and len(args) in (1, 2):
        x = args[0] if hasattr(args[0], "dtype") else np.asarray(args[0])
        kwargs = {**kwargs, "dtype": np.result_type(out.dtype, x.dtype)}  # in which NumPy adds up

    def compute(values, options, site):
        try:
            position = _position_of_out(function) if out is not None else None
            if position is not None and position < len(values):  # for errors of the shape or dtype of `out`
                function(*values[:position], np.copy(out.value), *values[position + 1 :], **options)
            elif out is not None:
                function(*values, **options, out=np.copy(out.value))
            return function(*values, **options)
        except (ValueError, TypeError, IndexError, AttributeError) as error:
            if isinstance(error, AutodiffError):
                raise
            raise located(error, full_name(function), site.loc) from error

    def make(rec, values, value, site):
        return None if handler is None else _nodes_by(handler, rec, args, kwargs, function, site)

    result = bind(function, args, kwargs, compute, make, out=out)
    if out is None:
        return result
    if not np.can_cast(result.dtype, out.dtype, "same_kind"):
        types = f"from {result.dtype!r} to {out.dtype!r}"
        raise TypeError(f"Cannot cast array data {types} according to 'same_kind'")
    out[...] = result
    return out


_ADDING = (np.sum, np.prod, np.cumsum, np.cumprod)


def bind(
    function: Callable,
    args: Sequence,
    kwargs: dict,
    compute: Callable,
    make: Callable,
    *,
    out: Recorded | None = None,
    views: bool = True,
) -> Any:
    """The recorded result of a call with recorded arguments, of a function, ufunc, op or graph.

    compute  compute(values, options, site) gives its value
    make     make(rec, values, value, site) gives its node, or nodes in a tuple or list like the value; None
             for a value without derivative
    out      the array that it is going to be written to: perhaps the only recorded argument
    views    whether the result may be a view of an argument; if not, shared memory is copied before a write
    """
    recorded: list[Recorded] = []
    values, options, rec, site, known = _values_of_call(args, kwargs, out, recorded)
    entry = TABLE.get(function, NO_ENTRY)
    known = known and (entry.quiet or isinstance(function, np.ufunc))
    value = guess = stand_in(function, values, options) if rec.dry else None
    if guess is None:
        moves = known and entry.moves and options.keys() <= {"axis", "axes", "order", "shape"}
        value = (call_unwatched if moves else operator.call)(compute, values, options, site)

    def result() -> Any:
        return _wrap(rec, make(rec, values, value, site), value, recorded, site, function, views)

    x = call_unwatched(result) if known else result()
    if guess is not None:
        rec.guessed.add(x.node)
    return x


@unwatched
def _values_of_call(args: Sequence, kwargs: dict, out: Recorded | None, recorded: list) -> tuple:
    """(values, keyword values, recorder, site, whether none is the user's object)."""
    values = _values(args, recorded)
    options = {k: _values(v, recorded) for k, v in kwargs.items()} if kwargs else {}
    rec = innermost(recorded or (out,)) if recorded or out is not None else current()
    if rec is None:
        raise source_lines.error_here("like= names a recorded value whose recording has ended")
    site = source_lines.site()
    if rec.dry:
        rec.check_computed()
    return values, options, rec, site, is_plain(values) and all(map(is_plain, options.values()))


def _without_out(function, args: Sequence, kwargs: dict) -> tuple[Sequence, dict, Recorded | None]:
    """(args, kwargs, out): the arguments without out=, and its recorded array."""
    position = _position_of_out(function) if len(args) > 1 else None
    if position is not None and position < len(args):
        out = args[position]
        args = (*args[:position], None, *args[position + 1 :])
    else:
        out = kwargs.get("out")
    if out is None:
        return args, kwargs, None
    kwargs = {k: v for k, v in kwargs.items() if k != "out"}
    out = out[0] if isinstance(out, tuple) else out
    if type(out) is not Recorded:
        raise recorder.lost_write(out, f"{full_name(function)}(..., out=)")
    return args, kwargs, out


@functools.lru_cache(maxsize=1000)  # some are made anew at each call
def _position_of_out(function: Callable) -> int | None:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # written in C, without a signature
        return None
    return next((k for k, p in enumerate(parameters) if p.name == "out" and p.kind == _POSITIONAL), None)


_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD


def _nodes_by(handler: Callable, rec: Recorder, args: Sequence, kwargs: dict, function, site) -> Any:
    before, recorder.local.building = recorder.local.building, rec
    try:
        to_node = functools.partial(node_in, rec)
        if any(v is np._NoValue for v in args):  # which stands for an argument that was left out
            args, kwargs = (), inspect.signature(handler).bind(*args, **kwargs).arguments
        options = {k: mapped(v, to_node) for k, v in kwargs.items() if v is not np._NoValue}
        return handler(*[mapped(v, to_node) for v in args], **options)
    except (NotImplementedError, TypeError) as error:
        # NumPy has accepted these arguments: a TypeError of this call says that the handler lacks them
        of_call = isinstance(error, TypeError) and error.__traceback__.tb_next is None  # type: ignore
        if isinstance(error, AutodiffError) or not (of_call or isinstance(error, NotImplementedError)):
            raise
        why = "" if of_call else str(error)
        raise unsupported(full_name(function), site.loc, why or "called like this is not recorded") from error
    finally:
        recorder.local.building = before


def _carries_derivative(value) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_carries_derivative, value))
    kind = getattr(value, "dtype", np.dtype(int)).kind
    return value is None or isinstance(value, (float, complex)) or kind in "fcO"


def is_of_scipy(ufunc: Callable) -> bool:
    """Whether it is one of scipy.special's, if that is imported. NumPy's sinc is there as well."""
    if getattr(np, ufunc.__name__, None) is ufunc:
        return False
    module = sys.modules.get("scipy.special")
    is_public = getattr(module, ufunc.__name__, None) is ufunc
    return is_public or getattr(getattr(module, "_ufuncs", None), ufunc.__name__, None) is ufunc


def full_name(function: Callable) -> str:
    """The function's public name; inside a function that runs as NumPy wrote it, the name of that one."""
    function = plain(function)
    outer, frame = local.as_written or (function, None)
    if frame is not None and frame is source_lines.user_frame():
        function = outer
    if is_of_scipy(function):
        return f"scipy.special.{function.__name__}"
    module = (getattr(function, "__module__", None) or "numpy").replace("numpy", "np", 1)
    module = module.replace("np.lib.scimath", "np.emath")
    return f"{module}.{function.__name__}"


def _values(x, recorded: list):
    """x with concrete values in place of recorded ones, which are collected in `recorded`."""
    kind = type(x)
    if kind is Recorded:
        recorded.append(x)
        return x.value
    if kind is list:
        return [_values(v, recorded) for v in x]
    if kind is tuple:
        return tuple([_values(v, recorded) for v in x])
    return x


def _wrap(rec: Recorder, nodes, value, recorded, site, function, views):
    """Recorded values of the nodes and the concrete values. Node None: a value without derivative."""
    if nodes is None:
        if _carries_derivative(value) and any(x.dtype.kind in "fc" for x in recorded):
            raise unsupported(full_name(function), site.loc)
        for x in recorded:
            x._read(np.array(x.value), "array")
        return value
    if not isinstance(nodes, Node):
        parts = [_wrap(rec, m, v, recorded, site, function, views) for m, v in zip(nodes, value, strict=True)]
        kind = type(value)
        return parts if kind is list else kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    node = typed(nodes, value, site, function, recorded)
    rec.count()
    if not isinstance(value, np.ndarray) or isinstance(function, np.ufunc):
        return Recorded(rec, node, value)
    if not views:
        for x in recorded:  # which may be written to as well
            if isinstance(x._value, np.ndarray) and np.may_share_memory(value, x._value):
                x.root._owned = False
        return Recorded(rec, node, value if value.flags.writeable else value.copy(), owned=False)
    if value.base is not None or not value.flags.owndata or any(value is x._value for x in recorded):
        for x in recorded:
            if x._rec is rec and isinstance(x._value, np.ndarray) and np.may_share_memory(value, x._value):
                return x.view_of(node, value)
        return Recorded(rec, node, value, owned=value.base is None)
    return Recorded(rec, node, value)


def typed(node: Node, value: Any, site: Site, function: Callable, recorded: Sequence[Recorded] = ()) -> Node:
    """The node, labelled with its source line and in the dtype of the concrete value."""
    recorder.label(node, site)
    dtype = value.dtype if hasattr(value, "dtype") else np.dtype(type(value))
    if not isinstance(dtype, np.dtype):
        raise of_another_library(value, site.loc)
    if dtype.kind not in NUMBERS:
        raise AutodiffError(
            f"{full_name(function)} gave dtype {dtype}; only numbers and bools can be recorded", site.loc
        )
    shape = getattr(value, "shape", ())
    if node.shape != shape:
        raise AssertionError(f"{full_name(function)}: recorded as {node.shape}, but NumPy gives {shape}")
    if node.dtype != dtype:
        if type(value) is complex:
            raise AutodiffError(
                "a Python number became complex here; pass a complex argument instead", site.loc
            )
        if not isinstance(function, np.ufunc) and not any(x.weak for x in recorded):
            RECAST.add(full_name(function))
        node = build.cast(node, dtype)
        recorder.label(node, site)
    return node


PROTOCOLS["function"] = call_function
