"""Runs NumPy's functions on recorded values, each as a composition of ops.

`@handles(np.var)` names the NumPy function that a handler stands for. The handler takes the same arguments,
with nodes in place of recorded values, and returns the node of the result, or a tuple or list of them.
NumPy itself computes the concrete value, so value, shape, dtype and errors are its own; that the node
agrees in shape and dtype is checked at each call. Where NumPy gives a view, the handler's node is reached
from the argument's by ops that can be undone (writes.py).

A handler under `@raw(np.put)` gets the recorded values themselves: it writes to one, or gives no array.

The handlers stand in functions/, one family a file. Most of what NumPy composes in Python has none: it runs
on the recorded values as NumPy wrote it (functions/as_written.py).
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
from . import recording, source_lines
from .conversions import plain
from .recording import NUMBERS, ActiveRecording, current, innermost, local
from .unwatched import unwatched
from .value import ANSWERS, Recorded, as_node, node_in

if TYPE_CHECKING:
    import numpy.typing as npt

    from .source_lines import Site


@dataclass
class Entry:
    """How a function or a ufunc is recorded: one of the first four says it, unless there is a rule."""

    op: str | None = None  # the row of a ufunc
    nodes: Callable | None = None  # makes the nodes of the result from those of the arguments
    takes: Callable | None = None  # takes the recorded values themselves
    refused: str | None = None  # why it must not even be tried
    rule: Callable | None = None  # of a program's own: it takes the call, or gives NotImplemented
    is_helper: bool = False  # one of functions/, and none of NumPy's
    # It runs nothing of the user's where it is given arrays and numbers, nor does its handler: it is noted
    # unwatched
    quiet: bool = False
    moves: bool = False  # it only moves numbers, so that no warning can come of it: it is computed so, too


TABLE: dict[Callable, Entry] = {}
NO_ENTRY = Entry()
# Functions whose node had another dtype than NumPy's result: a test keeps this empty
SETTLED: set[str] = set()

# An argument that may be recorded: a handler then gets its node, and otherwise what the user gave. Handlers
# say Node where the argument is the only one that can be recorded.
Operand: TypeAlias = "Node | npt.ArrayLike"
# The same for functions that take recorded values
Given: TypeAlias = "Recorded | npt.ArrayLike"


def recorded_functions() -> set[Callable]:
    """The functions of NumPy's, other than ufuncs, that can be called with recorded values."""
    return {
        function
        for function, entry in TABLE.items()
        if (entry.nodes or entry.takes) and not entry.is_helper and not isinstance(function, np.ufunc)
    }


def _entering(field: str, *functions: Callable, **more: bool) -> Callable[[Callable], Callable]:
    def enter(handler):
        for function in functions:
            TABLE[function] = Entry(**{field: handler}, **more)
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
    return _entering("takes", *functions)


def helper(function: Callable) -> Callable[[Callable], Callable]:
    """Enter a handler for a function of our own, which computes with NumPy what the handler records."""
    return _entering("nodes", function, is_helper=True)


def refuse(because: str, *functions: Callable) -> None:
    """Enter functions that must not even be tried."""
    for function in functions:
        TABLE[function] = Entry(refused=because)


def quiet(*functions: Callable, moves: bool = False) -> None:
    """Note of functions in the table that they are quiet, and whether they only move numbers."""
    for function in functions:
        TABLE[function].quiet, TABLE[function].moves = True, moves


def operand(x: Any, like: np.dtype | None = None) -> Node:
    """A handler's argument as a node. Python numbers take their dtype from `like`."""
    return as_node(recording.local.building, x, like)


def operands(*xs: Any) -> list[Node]:
    """Several arguments as nodes, with Python numbers in the dtype that NumPy 2 gives them here."""
    dtypes = [x.dtype for x in xs if hasattr(x, "dtype")]
    like = np.result_type(*dtypes) if dtypes else None
    return [operand(x, like) for x in xs]


def call_function(function: Callable, args: Sequence, kwargs: dict) -> Any:
    """Run one of NumPy's functions on arguments of which some are recorded."""
    function = plain(function)
    entry = TABLE.get(function, NO_ENTRY)
    if entry.rule is not None and (answer := entry.rule(*args, **kwargs)) is not NotImplemented:
        return answer
    if entry.takes is not None:
        return entry.takes(*args, **kwargs)
    if entry.refused is not None:
        raise unsupported(full_name(function), source_lines.here(), entry.refused)
    args, kwargs, out = _without_out(function, args, kwargs)
    found: list[Recorded] = []
    values, options, rec, site, known = _begun(args, kwargs, out, found)
    known = known and entry.quiet
    moved = known and entry.moves and options.keys() <= _PLACES
    value, guess = (_moved if moved else _computed)(rec, function, values, options, site)
    if entry.nodes is None:
        return _without_handler(function, value, found, site)
    noted = _noted if known else _noted_watched
    result = noted(rec, entry.nodes, args, kwargs, function, site, value, found)
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


_PLACES = frozenset(("axis", "axes", "order", "shape"))


@unwatched
def _begun(args: Sequence, kwargs: dict, out: Recorded | None, found: list) -> tuple:
    """The concrete values of a call, by position and by name, the recording that it belongs to, where it
    stands, and whether there is no object of the user's among them. Recorded values are added to `found`.
    """
    values = _values(args, found)
    options = {k: _values(v, found) for k, v in kwargs.items()} if kwargs else {}
    if not found:  # only `like=` or `out=` is recorded
        rec = innermost((out,)) if out is not None else _like_recording()
    else:
        rec = innermost(found)
    site = source_lines.site()
    if rec.dry:
        rec.check_computed()
    return values, options, rec, site, is_plain(values) and all(map(is_plain, options.values()))


def _computed(
    rec: ActiveRecording, function: Callable, values: Sequence, options: dict, site: Site
) -> tuple[Any, bool]:
    """What NumPy gives, or in a dry run a guess; and whether it is one."""
    try:
        guess = rec.reduced(function, values, options) if rec.dry else None
        return (function(*values, **options), False) if guess is None else (guess, True)
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        if isinstance(error, AutodiffError):
            raise
        raise located(error, full_name(function), site.loc) from error


_moved = unwatched(_computed)


def _noted_watched(
    rec: ActiveRecording,
    handler: Callable,
    args: Sequence,
    kwargs: dict,
    function,
    site: Site,
    value,
    found: list,
) -> Any:
    """The result of a call, in the graph."""
    return _wrap(rec, _handled(rec, handler, args, kwargs, function, site), value, found, site, function)


_noted = unwatched(_noted_watched)


def _without_out(function, args: Sequence, kwargs: dict) -> tuple[Sequence, dict, Recorded | None]:
    """The arguments without out=, and the recorded array that it names."""
    place = _place_of_out(function) if len(args) > 1 else None
    if place is not None and place < len(args):
        out = args[place]
        args = (*args[:place], None, *args[place + 1 :])
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
def _place_of_out(function: Callable) -> int | None:
    """Where out= stands among the arguments by position."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # written in C, without a signature
        return None
    return next((k for k, p in enumerate(parameters) if p.name == "out" and p.kind == _BY_PLACE), None)


_BY_PLACE = inspect.Parameter.POSITIONAL_OR_KEYWORD


def _handled(rec: ActiveRecording, handler: Callable, args: Sequence, kwargs: dict, function, site) -> Any:
    """The nodes that a handler makes of a call."""
    before, recording.local.building = recording.building(), rec
    try:
        return handler(*_nodes(rec, args), **{k: _nodes(rec, v) for k, v in kwargs.items()})
    except NotImplementedError as error:
        if isinstance(error, AutodiffError):
            raise
        raise unsupported(
            full_name(function), site.loc, str(error) or "called like this is not recorded"
        ) from error
    except TypeError as error:  # NumPy has taken these arguments: it is the handler that does not know them
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise
        raise unsupported(full_name(function), site.loc, "called like this is not recorded") from error
    finally:
        recording.local.building = before


def _like_recording() -> ActiveRecording:
    rec = current()
    if rec is None:
        raise AutodiffError("like= names a recorded value whose recording has ended", source_lines.here())
    return rec


def _without_handler(function, value, found, site):
    """The value of a function that has no handler: fine where it has no derivative, else an error."""
    if _carries_derivative(value) and any(x.dtype.kind in "fc" for x in found):
        raise unsupported(full_name(function), site.loc)
    for x in found:
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
    """Is it one of scipy.special's, if that is imported? That module has NumPy's sinc as well."""
    if getattr(np, ufunc.__name__, None) is ufunc:
        return False
    module = sys.modules.get("scipy.special")
    found = getattr(module, ufunc.__name__, None) is ufunc
    return found or getattr(getattr(module, "_ufuncs", None), ufunc.__name__, None) is ufunc


def full_name(function: Callable) -> str:
    """What the user calls it; inside of a function that runs as NumPy wrote it, that one."""
    outer, frame = local.__dict__.get("as_written") or (function, None)
    if frame is not None and frame is source_lines.user_frame():
        function = outer
    if is_of_scipy(function):
        return f"scipy.special.{function.__name__}"
    module = (getattr(function, "__module__", None) or "numpy").replace("numpy", "np", 1)
    module = module.replace("np.lib.scimath", "np.emath")
    return f"{module}.{function.__name__}"


def _values(x, found: list):
    """x with concrete values in place of recorded ones, which are collected in `found`."""
    kind = type(x)
    if kind is Recorded:
        found.append(x)
        return x.value
    if kind is list:
        return [_values(v, found) for v in x]
    if kind is tuple:
        return tuple([_values(v, found) for v in x])
    return x


def _nodes(rec: ActiveRecording, x):
    kind = type(x)
    if kind is Recorded:
        return node_in(rec, x)
    if kind is list:
        return [_nodes(rec, v) for v in x]
    if kind is tuple:
        return tuple([_nodes(rec, v) for v in x])
    return x


def _wrap(rec: ActiveRecording, made, value, found, site, function):
    """The handler's nodes and NumPy's values, joined. None in place of a node: a value without derivative."""
    if made is None:
        return _without_handler(function, value, found, site)
    if not isinstance(made, Node):
        parts = [_wrap(rec, m, v, found, site, function) for m, v in zip(made, value, strict=True)]
        kind = type(value)
        return parts if kind is list else kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    made = _settled(made, value, found, site, function)
    if isinstance(value, np.ndarray) and (
        value.base is not None or not value.flags.owndata or _is_operand(value, found)
    ):
        for x in found:
            if x._rec is rec and isinstance(x._value, np.ndarray) and np.may_share_memory(value, x._value):
                return x.view_of(made, value)
        return Recorded(rec, made, value, owned=value.base is None)
    return Recorded(rec, made, value)


def _settled(made: Node, value, found, site, function) -> Node:
    """The handler's node with its place, and in the dtype that NumPy gave."""
    recording.label(made, site)
    shape, dtype = np.shape(value), getattr(value, "dtype", None) or np.asarray(value).dtype
    if dtype.kind not in NUMBERS:
        raise AutodiffError(
            f"{full_name(function)} gave dtype {dtype}; only numbers can be recorded", site.loc
        )
    if made.shape != shape or made.dtype != dtype:
        if made.shape != shape:
            raise AssertionError(f"{full_name(function)}: recorded as {made.shape}, but NumPy gives {shape}")
        if not any(x.weak for x in found):
            SETTLED.add(full_name(function))
        made = build.cast(made, dtype)
        recording.label(made, site)
    return made


def _is_operand(value, found) -> bool:
    return any(value is x._value for x in found)


ANSWERS["function"] = call_function
