"""Random numbers as inputs of a program: what an np.random.Generator gives while a function is recorded.

The first time a function runs under observation, its generators are exchanged for objects of Drawing: those
among its arguments, and those that stand in its closures and globals, in those of the functions that these
lead to, and in the attributes of an object whose method it is. A Drawing draws from the same stream, and
notes the call. What it gives is an input of the graph; before each later run of the program the same calls
are made again, in the same order. So the numbers are fresh, the same that the function itself would get, and
the generator is left as the function would leave it.

What is not understood here, a method without a rule or a function that turns noise into a decision, has the
function recorded at each call, with plain generators.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Iterator, Sequence
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
from . import recording, source_lines
from .bytecode import reads
from .recording import NUMBERS, ActiveRecording
from .value import Recorded

_MOST = 1000  # functions and objects that are looked through for generators


class Draw:
    """One call of a generator's method. `params` are recorded values that it takes before its other
    arguments, `node` is the graph's input that stands for what it gives, and `value` what it gave at first.
    """

    def __init__(
        self, generator: np.random.Generator, name: str, params: tuple[Node, ...], args: tuple, kwargs: dict
    ):
        self.generator, self.name, self.params = generator, name, params
        self.args, self.kwargs = args, kwargs
        self.node: Any = None
        self.value: Any = None

    def again(self, params: Sequence = ()) -> Any:
        return getattr(self.generator, self.name)(*params, *self.args, **self.kwargs)


class Draws:
    """The draws of one recording, in order; and the state in which each generator was before."""

    def __init__(self):
        self.made: list[Draw] = []
        self.states: dict[int, tuple[np.random.Generator, dict]] = {}

    def add(self, run: ActiveRecording, draw: Draw, params: Sequence = ()) -> Recorded:
        """Adds what a new call gives as an input of the recording."""
        g = draw.generator
        if id(g) not in self.states:
            self.states[id(g)] = g, g.bit_generator.state
        value = draw.again(params)
        dtype = np.asarray(value).dtype
        if dtype.kind not in NUMBERS:
            raise UnsupportedError(f"rng.{draw.name} gives dtype {dtype}", source_lines.here())
        draw.value = np.asarray(value)
        draw.node = input_node(np.shape(value), dtype, draw.name)
        draw.node.loc = source_lines.here()
        self.made.append(draw)
        return Recorded(run, draw.node, value, owned=False)

    def rewind(self) -> None:
        """Put the generators back to where they were."""
        for g, state in self.states.values():
            g.bit_generator.state = state


def again(made: Sequence[tuple[int, Draw]], inputs: Sequence[Node], operands: list) -> None:
    """Draw once more. operands are those of the recorded graph, of which entry k is what each (k, draw) gave.

    A parameter is computed op by op, as it was while recording, so that it is the same to the last bit.
    """
    for k, draw in made:
        params = evaluate_graph(Graph(inputs, draw.params), operands) if draw.params else ()
        operands[k] = np.asarray(draw.again(params))


# --- the objects that stand in for generators -----------------------------------------------------------


@contextmanager
def plainly() -> Iterator[None]:
    """Within this context generators give plain numbers: for functions that run as one op."""
    before, recording.local.plain = recording.plain(), True
    try:
        yield
    finally:
        recording.local.plain = before


def taker() -> ActiveRecording | None:
    """The recording that takes what is drawn in this thread, the outermost."""
    run = recording.outermost()
    return None if run is None or run.draws is None or recording.plain() else run


def count() -> int:
    """How often something was drawn so far in the outermost recording."""
    run = recording.outermost()
    if run is None:
        return 0
    return len(run.drew_plainly) + (0 if run.draws is None else len(run.draws.made))


class Drawing(np.random.Generator):
    """A generator of the user's while a function is recorded: the same stream, with every call noted. In a
    thread that does not record it is as the generator itself.
    """

    def __init__(self, generator: np.random.Generator):
        super().__init__(generator.bit_generator)
        self.generator = generator

    @property
    def bit_generator(self) -> Any:
        run = recording.outermost()
        if run is not None:
            run.drew_plainly.append("bit_generator")
        return self.generator.bit_generator

    def __reduce__(self):
        return self.generator.__reduce__()

    def __eq__(self, other):
        return plain_generator(other) is self.generator

    def __hash__(self):
        return hash(self.generator)


def _noting(generator: np.random.Generator) -> Drawing:
    return beside("random.generators").Noting(generator)


def plain_generator(x: Any) -> Any:
    """The generator behind a Drawing; anything else as it is."""
    return x.generator if isinstance(x, Drawing) else x


# --- where generators are found -------------------------------------------------------------------------

_lock = threading.Lock()
_exchanged: dict[tuple, tuple] = {}  # (id of the holder, name) -> (for whom, holder, generator)


def seen(f: Callable, draws: Draws, run: Callable[[Draws], Any]) -> Any:
    """run(draws), during which the generators that f leads to are exchanged for objects of Drawing."""
    holders = list(_holders(f))
    put_back = functools.partial(_put_back, draws, holders)
    with undoing(put_back), undoing(put_back):
        _exchange(draws, holders)
        return run(draws)


def _exchange(draws: Draws, holders: Sequence) -> None:
    proxies: dict[int, Drawing] = {}
    with _lock:
        for holder, name, g in holders:
            whom, *_ = _exchanged.setdefault((id(holder), name), (set(), holder, g))
            whom.add(draws)
            if len(whom) == 1:
                _put(holder, name, proxies.setdefault(id(g), _noting(g)))


def _put_back(draws: Draws, holders: Sequence) -> None:
    with _lock:
        for holder, name, g in holders:
            whom, *_ = _exchanged.get((id(holder), name), (None,))
            if whom is None:
                continue
            whom.discard(draws)
            if not whom:
                if isinstance(_held(holder, name), Drawing):
                    _put(holder, name, g)
                del _exchanged[id(holder), name]


def _put(holder: Any, name: str, value: Any) -> None:
    if isinstance(holder, types.CellType):
        holder.cell_contents = value
    else:
        holder[name] = value


def _held(holder: Any, name: str) -> Any:
    try:
        return holder.cell_contents if isinstance(holder, types.CellType) else holder.get(name)
    except ValueError:  # an empty cell
        return None


def _holders(f: Any) -> Iterator[tuple[Any, str, np.random.Generator]]:
    """(cell or namespace, name, generator) that can be reached from f by the names in the code."""
    todo, met = [f], set()
    while todo and len(met) < _MOST:
        v = todo.pop()
        if id(v) in met:
            continue
        met.add(id(v))
        for holder, name, held in _around(v):
            held = plain_generator(held)
            if type(held) is np.random.Generator:
                if holder is not None and (id(holder), name) not in met:
                    met.add((id(holder), name))
                    yield holder, name, held
            elif isinstance(held, (types.FunctionType, types.MethodType, functools.partial)):
                todo.append(held)


def _around(v: Any) -> Iterator[tuple[Any, str, Any]]:
    """(where it stands or None, its name there, what it is) for what v leads to."""
    if isinstance(v, types.FunctionType):
        if source_lines.is_own(v.__code__.co_filename):
            state = getattr(v, "__derived__", None)
            yield None, "", getattr(state, "f", None)
        elif not source_lines.is_inside(v.__code__.co_filename):
            yield from _variables(v)
    elif isinstance(v, types.MethodType):
        yield None, "", v.__func__
        yield from _attributes(v.__self__)
    elif isinstance(v, functools.partial):
        yield None, "", v.func
    else:
        yield None, "", type(v).__dict__.get("__call__")
        yield from _attributes(v)


def _variables(f: types.FunctionType) -> Iterator[tuple[Any, str, Any]]:
    codes = [f.__code__]
    for code in codes:
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
        for name in reads(code).globals:
            if name in f.__globals__:
                yield f.__globals__, name, f.__globals__[name]
    for cell in f.__closure__ or ():
        yield cell, "", _held(cell, "")


def _attributes(v: Any) -> Iterator[tuple[Any, str, Any]]:
    """Those of an object, and the functions of its class."""
    held = getattr(v, "__dict__", None)
    if type(held) is dict:
        for name, x in held.items():
            yield held, name, x
        for c in type(v).__mro__[:-1]:
            for x in c.__dict__.values():
                yield None, "", x


def exchanged_in(tree: Tree) -> Tree:
    """The tree of arguments, with a Drawing for each generator among the static values."""
    found: dict[int, Drawing] = {}

    def noting(static: Tree) -> Tree:
        g = static.value
        if type(g) is not np.random.Generator:
            return static
        return Tree.static(found.setdefault(id(g), _noting(g)))

    return tree.mapped(lambda: LEAF, noting)
