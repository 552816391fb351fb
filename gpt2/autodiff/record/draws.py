"""Random numbers as inputs of a program: draws from np.random.Generator while a function is recorded.

While a function is recorded, its generators are replaced by objects of Drawing: those among its arguments, in
its closures and globals, in those of the functions that these lead to, and in the attributes of an object
whose method it is. A Drawing draws from the same stream, and notes the call. Its result is an input of the
graph; before each later run of the program the same calls are repeated in the same order. So the program gets
the numbers that the function itself would get, and leaves the generator in the same state.

A function that uses a method without a rule, or branches on a random number, is recorded at each call, with
plain generators.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..doors import beside
from ..errors import UnsupportedError
from ..graph import Graph, Node
from ..ops import input_node
from ..ops.interpret import evaluate_graph
from ..tree import LEAF, Tree
from ..undo import undoing
from . import recorder, source_lines
from .bytecode import reads
from .recorder import NUMBERS, Recorder
from .value import Recorded

_MOST = 1000  # functions and objects that are looked through for generators


class Draw:
    """One call of a generator's method. `params` are recorded values that it takes before its other
    arguments; `node` is the input of the graph for its result, and `value` the first result.
    """

    def __init__(self, generator: np.random.Generator, name: str, params: tuple, args: tuple, kwargs: dict):
        self.generator, self.name, self.params = generator, name, params
        self.args, self.kwargs = args, kwargs
        self.node: Any = None
        self.value: Any = None

    def repeat(self, params: Sequence = ()) -> Any:
        return getattr(self.generator, self.name)(*params, *self.args, **self.kwargs)


class Draws:
    """The draws of one recording, in order, and the initial state of each generator."""

    def __init__(self):
        self.calls: list[Draw] = []
        self.states: dict[int, tuple[np.random.Generator, dict]] = {}

    def add(self, run: Recorder, draw: Draw, params: Sequence = ()) -> Recorded:
        """The result of a new call, as an input of the recording."""
        g = draw.generator
        if id(g) not in self.states:
            self.states[id(g)] = g, g.bit_generator.state
        value = draw.repeat(params)
        dtype = np.asarray(value).dtype
        if dtype.kind not in NUMBERS:
            raise UnsupportedError(f"rng.{draw.name} gives dtype {dtype}", source_lines.here())
        draw.value = np.asarray(value)
        draw.node = input_node(np.shape(value), dtype, draw.name)
        draw.node.loc = source_lines.here()
        self.calls.append(draw)
        return Recorded(run, draw.node, value, owned=False)


def redraw(draws: Sequence[tuple[int, Draw]], inputs: Sequence[Node], operands: list) -> None:
    """Draw again, into entry k of the recorded graph's operands for each (k, draw).

    A parameter is computed op by op, as it was while recording, so that it is the same to the last bit.
    """
    for k, draw in draws:
        params = evaluate_graph(Graph(inputs, draw.params), operands) if draw.params else ()
        operands[k] = np.asarray(draw.repeat(params))


# --- the objects that replace generators -----------------------------------------------------------


@contextmanager
def plain_draws() -> Iterator[None]:
    """A context in which generators give plain numbers: for functions that run as one op."""
    before, recorder.local.plain = recorder.local.plain, True
    try:
        yield
    finally:
        recorder.local.plain = before


def drawing_recorder() -> Recorder | None:
    """The recorder for draws in this thread: the outermost, if it records them."""
    run = recorder.outermost()
    return None if run is None or run.draws is None or recorder.local.plain else run


def count() -> int:
    """The number of draws so far in the outermost recording."""
    run = recorder.outermost()
    if run is None:
        return 0
    return len(run.plain_draws_noted) + (0 if run.draws is None else len(run.draws.calls))


class Drawing(np.random.Generator):
    """Stands in for a generator of the user's while a function is recorded: the same stream, each call noted.
    In a thread that does not record it behaves as the generator itself.
    """

    def __init__(self, generator: np.random.Generator):
        super().__init__(generator.bit_generator)
        self.generator = generator

    @property
    def bit_generator(self) -> Any:
        run = recorder.outermost()
        if run is not None:
            run.plain_draws_noted.append("bit_generator")
        return self.generator.bit_generator

    def __reduce__(self):
        return self.generator.__reduce__()

    def __eq__(self, other):
        return plain_generator(other) is self.generator

    def __hash__(self):
        return hash(self.generator)


def _drawing(generator: np.random.Generator) -> Drawing:
    return beside("random.generators").Noting(generator)


def plain_generator(x: Any) -> Any:
    """The generator behind a Drawing; anything else as it is."""
    return x.generator if isinstance(x, Drawing) else x


# --- where generators, and other objects that get a stand-in, are found -----------------------------------

_lock = threading.Lock()
_exchanged: dict[tuple, tuple] = {}  # (id of the holder, name) -> (users, holder, stand-in)


def with_drawings(f: Callable, draws: Draws, run: Callable, other: Callable, spared: Collection[int]) -> Any:
    """run(draws), with objects of Drawing for the generators that f leads to, and `other` stand-ins."""

    def stand_in(held):
        g = plain_generator(held)
        return (g, _drawing(g)) if type(g) is np.random.Generator else other(held)

    with exchanging(f, draws, stand_in, spared):
        return run(draws)


@contextmanager
def exchanging(f: Callable, user: Any, stand_in: Callable, spared: Collection[int]) -> Iterator[None]:
    """Replaces what f leads to by stand-ins: stand_in(object) gives (the original, the stand-in), or None.
    `user` is the object that this is for, `spared` what recorder.local.spared says meanwhile.
    """
    holders = list(_holders(f, stand_in))
    put_back = functools.partial(_put_back, user, holders, recorder.local.spared)
    with undoing(put_back), undoing(put_back):
        with _lock:
            for holder, name, held, replacement in holders:
                users, *_ = _exchanged.setdefault((id(holder), name), (set(), holder, replacement))
                users.add(user)
                if len(users) == 1 and content(holder, name) is held:  # not changed by another thread since
                    _put(holder, name, replacement)
        recorder.local.spared = spared
        yield


def _put_back(user: Any, holders: Sequence, spared: Collection[int] | None) -> None:
    recorder.local.spared = spared
    with _lock:
        for holder, name, held, _ in holders:
            users, _, replacement = _exchanged.get((id(holder), name), (None, None, None))
            if users is None:
                continue
            users.discard(user)
            if not users:
                if content(holder, name) is replacement:
                    _put(holder, name, held)
                del _exchanged[id(holder), name]


def _put(holder: Any, name: str, value: Any) -> None:
    if isinstance(holder, types.CellType):
        holder.cell_contents = value
    else:
        holder[name] = value


def content(holder: Any, name: str) -> Any:
    try:
        return holder.cell_contents if isinstance(holder, types.CellType) else holder.get(name)
    except ValueError:  # an empty cell
        return None


def _holders(f: Any, stand_in: Callable[[Any], tuple | None]) -> Iterator[tuple[Any, str, Any, Any]]:
    """(cell or namespace, name, object, its stand-in) that can be reached from f by the names in the code."""
    todo, visited, stand_ins = [f], set(), {}
    while todo and len(visited) < _MOST:
        v = todo.pop()
        if id(v) in visited:
            continue
        visited.add(id(v))
        for holder, name, held in around(v):
            pair = stand_ins.get(id(held)) or stand_in(held)
            if pair is not None:
                stand_ins[id(held)] = pair
                if holder is not None and (id(holder), name) not in visited:
                    visited.add((id(holder), name))
                    yield holder, name, *pair
            elif isinstance(held, (types.FunctionType, types.MethodType, functools.partial)):
                todo.append(held)


def around(v: Any) -> Iterator[tuple[Any, str, Any]]:
    """(holder or None, name there, value) for each value that v leads to."""
    if isinstance(v, types.FunctionType):
        file = v.__code__.co_filename
        if source_lines.is_own(file):
            state = getattr(v, "__derived__", None)
            yield None, "", getattr(state, "f", None)
            for cell in v.__closure__ or ():  # of a transform: the function that it calls
                yield None, "", content(cell, "")
        elif not (source_lines.is_inside(file) or source_lines.is_of_compiled(file)):
            codes = [v.__code__]
            for code in codes:
                codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
                for name in filter(v.__globals__.__contains__, reads(code).globals):
                    yield v.__globals__, name, v.__globals__[name]
            for cell in v.__closure__ or ():
                yield cell, "", content(cell, "")
    elif isinstance(v, types.MethodType):
        yield None, "", v.__func__
        yield from _attributes(v.__self__)
    elif isinstance(v, functools.partial):
        yield None, "", v.func
    else:
        yield None, "", type(v).__dict__.get("__call__")
        yield from _attributes(v)


def _attributes(v: Any) -> Iterator[tuple[Any, str, Any]]:
    """The attributes of an object, and the functions of its class."""
    held = getattr(v, "__dict__", None)
    if type(held) is dict:
        for name, x in held.items():
            yield held, name, x
        for c in type(v).__mro__[:-1]:
            for x in c.__dict__.values():
                yield None, "", x


def with_drawings_in(tree: Tree) -> Tree:
    """The tree of arguments with each generator among its static values replaced by a Drawing."""
    drawings: dict[int, Drawing] = {}

    def noting(static: Tree) -> Tree:
        g = static.value
        if type(g) is not np.random.Generator:
            return static
        return Tree.static(drawings.setdefault(id(g), _drawing(g)))

    return tree.mapped(lambda: LEAF, noting)
