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
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..atoms import is_plain
from ..errors import AutodiffError, located, unsupported, written_to_plain
from ..graph import Node
from ..ops import build
from . import recorder, source_lines
from .interception import plain
from .recorder import NUMBERS, Recorder, current, innermost, local
from .unwatched import unwatched
from .value import PROTOCOLS, Recorded, as_node, node_in

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
    return {
        function
        for function, entry in TABLE.items()
        if (entry.nodes or entry.raw) and not isinstance(function, np.ufunc)
    }


def _entering(field: str, *functions: Callable) -> Callable[[Callable], Callable]:
    def enter(handler):
        for function in functions:
            TABLE[function] = Entry(**{field: handler})
        return handler

    return enter


def handles(*functions: Callable) -> Callable[[Callable], Callable]:
    """Enter a handler for these NumPy functions into the table."""
    return _entering("nodes", *functions)


def since(name: str) -> tuple[Callable, ...]:
    """The function np.NAME as a tuple of one; empty where this NumPy is too old to have it."""
    return (getattr(np, name),) if hasattr(np, name) else ()


def raw(*functions: Callable) -> Callable[[Callable], Callable]:
    """Enter a handler that takes recorded values rather than nodes."""
    return _entering("raw", *functions)


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
    if entry.rule is not None and (result := entry.rule(*args, **kwargs)) is not NotImplemented:
        return result
    if entry.raw is not None:
        return entry.raw(*args, **kwargs)
    if entry.refused is not None:
        raise unsupported(full_name(function), source_lines.here(), entry.refused)
    return bind(function, args, kwargs, entry.nodes)


def bind(function: Callable, args: Sequence, kwargs: dict, handler: Callable | None) -> Any:
    """The recorded result of a function: it computes the value itself, and `handler` makes the nodes."""
    entry = TABLE.get(function, NO_ENTRY)
    args, kwargs, out = _without_out(function, args, kwargs)
    recorded: list[Recorded] = []
    values, options, rec, site, known = _values_of_call(args, kwargs, out, recorded)
    known = known and entry.quiet
    unwatched_too = known and entry.moves and options.keys() <= _LAYOUT_OPTIONS
    value, guess = (_compute_unwatched if unwatched_too else _compute)(rec, function, values, options, site)
    if handler is None:
        return _without_handler(function, value, recorded, site)
    add = _add_node if known else _add_node_watched
    result = add(rec, handler, args, kwargs, function, site, value, recorded)
    if guess:
        rec.guessed.add(result.node)
    if out is None:
        return result
    if not np.can_cast(result.dtype, out.dtype, "same_kind"):
        raise TypeError(
            f"Cannot cast array data from {result.dtype!r} to {out.dtype!r} according to 'same_kind'"
        )
    out[...] = result
    return out


_LAYOUT_OPTIONS = frozenset(("axis", "axes", "order", "shape"))


@unwatched
def _values_of_call(args: Sequence, kwargs: dict, out: Recorded | None, recorded: list) -> tuple:
    """(positional values, keyword values, recorder, site, whether none is an object of the user's). Recorded
    values are added to `recorded`.
    """
    values = _values(args, recorded)
    options = {k: _values(v, recorded) for k, v in kwargs.items()} if kwargs else {}
    if not recorded:  # only `like=` or `out=` is recorded
        rec = innermost((out,)) if out is not None else _like_recording()
    else:
        rec = innermost(recorded)
    site = source_lines.site()
    if rec.dry:
        rec.check_computed()
    return values, options, rec, site, is_plain(values) and all(map(is_plain, options.values()))


def _compute(
    rec: Recorder, function: Callable, values: Sequence, options: dict, site: Site
) -> tuple[Any, bool]:
    """(NumPy's result, False), or in a dry run perhaps (a guess, True)."""
    try:
        guess = rec.reduced(function, values, options) if rec.dry else None
        return (function(*values, **options), False) if guess is None else (guess, True)
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        if isinstance(error, AutodiffError):
            raise
        raise located(error, full_name(function), site.loc) from error


_compute_unwatched = unwatched(_compute)


def _add_node_watched(
    rec: Recorder,
    handler: Callable,
    args: Sequence,
    kwargs: dict,
    function,
    site: Site,
    value,
    recorded: list,
) -> Any:
    """The result of a call, with its node in the graph."""
    return _wrap(rec, _handled(rec, handler, args, kwargs, function, site), value, recorded, site, function)


_add_node = unwatched(_add_node_watched)


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
        raise written_to_plain(source_lines.here(), f"{full_name(function)}(..., out=)")
    return args, kwargs, out


@functools.cache
def _position_of_out(function: Callable) -> int | None:
    """The position of the parameter `out`."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # written in C, without a signature
        return None
    return next((k for k, p in enumerate(parameters) if p.name == "out" and p.kind == _POSITIONAL), None)


_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD


def _handled(rec: Recorder, handler: Callable, args: Sequence, kwargs: dict, function, site) -> Any:
    """The nodes that a handler makes of a call."""
    before, recorder.local.building = recorder.building(), rec
    try:
        return handler(*_nodes(rec, args), **{k: _nodes(rec, v) for k, v in kwargs.items()})
    except NotImplementedError as error:
        if isinstance(error, AutodiffError):
            raise
        raise unsupported(
            full_name(function), site.loc, str(error) or "called like this is not recorded"
        ) from error
    except TypeError as error:  # NumPy has accepted these arguments, so the handler lacks them
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise
        raise unsupported(full_name(function), site.loc, "called like this is not recorded") from error
    finally:
        recorder.local.building = before


def _like_recording() -> Recorder:
    rec = current()
    if rec is None:
        raise AutodiffError("like= names a recorded value whose recording has ended", source_lines.here())
    return rec


def _without_handler(function, value, recorded, site):
    """The value of a function without a handler; an error if it has a derivative."""
    if _carries_derivative(value) and any(x.dtype.kind in "fc" for x in recorded):
        raise unsupported(full_name(function), site.loc)
    for x in recorded:
        x._read(np.array(x.value), "array")
    return value


def _carries_derivative(value) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_carries_derivative, value))
    return (
        value is None
        or isinstance(value, (float, complex))
        or getattr(value, "dtype", np.dtype(int)).kind in "fcO"
    )


def is_of_scipy(ufunc: Callable) -> bool:
    """Whether it is one of scipy.special's, if that is imported. NumPy's sinc is there as well."""
    if getattr(np, ufunc.__name__, None) is ufunc:
        return False
    module = sys.modules.get("scipy.special")
    is_public = getattr(module, ufunc.__name__, None) is ufunc
    return is_public or getattr(getattr(module, "_ufuncs", None), ufunc.__name__, None) is ufunc


def full_name(function: Callable) -> str:
    """The function's public name; inside a function that runs as NumPy wrote it, the name of that one."""
    outer, frame = local.__dict__.get("as_written") or (function, None)
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


def _nodes(rec: Recorder, x):
    kind = type(x)
    if kind is Recorded:
        return node_in(rec, x)
    if kind is list:
        return [_nodes(rec, v) for v in x]
    if kind is tuple:
        return tuple([_nodes(rec, v) for v in x])
    return x


def _wrap(rec: Recorder, nodes, value, recorded, site, function):
    """Recorded values of the handler's nodes and NumPy's values. Node None: a value without derivative."""
    if nodes is None:
        return _without_handler(function, value, recorded, site)
    if not isinstance(nodes, Node):
        parts = [_wrap(rec, m, v, recorded, site, function) for m, v in zip(nodes, value, strict=True)]
        kind = type(value)
        return parts if kind is list else kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    nodes = _typed(nodes, value, recorded, site, function)
    if isinstance(value, np.ndarray) and (
        value.base is not None or not value.flags.owndata or _is_operand(value, recorded)
    ):
        for x in recorded:
            if x._rec is rec and isinstance(x._value, np.ndarray) and np.may_share_memory(value, x._value):
                return x.view_of(nodes, value)
        return Recorded(rec, nodes, value, owned=value.base is None)
    return Recorded(rec, nodes, value)


def _typed(node: Node, value, recorded, site, function) -> Node:
    """The handler's node, labelled with its source line and in the dtype of NumPy's result."""
    recorder.label(node, site)
    shape, dtype = np.shape(value), getattr(value, "dtype", None) or np.asarray(value).dtype
    if dtype.kind not in NUMBERS:
        raise AutodiffError(
            f"{full_name(function)} gave dtype {dtype}; only numbers can be recorded", site.loc
        )
    if node.shape != shape or node.dtype != dtype:
        if node.shape != shape:
            raise AssertionError(f"{full_name(function)}: recorded as {node.shape}, but NumPy gives {shape}")
        if not any(x.weak for x in recorded):
            RECAST.add(full_name(function))
        node = build.cast(node, dtype)
        recorder.label(node, site)
    return node


def _is_operand(value, recorded) -> bool:
    return any(value is x._value for x in recorded)


PROTOCOLS["function"] = call_function
