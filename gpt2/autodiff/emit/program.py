"""From graph to callable: Program(graph) plans the graph, emits NumPy source, and loads it."""

from __future__ import annotations

import contextlib
import itertools
import linecache
import re
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from .. import hidden
from ..doors import beside
from ..graph import Graph, Immutable, exchanged
from ..ops import anomaly
from ..ops.exactness import exact
from ..run import kernels, recycled, split_matmul, threads
from ..run.memory import Memory, Needs
from ..run.one_row import matmul_in_any_order
from ..switches import DEFAULT, FAST, Options, followed
from . import numexpr, tuned
from .emitter import Emitter
from .plan import Plan, Routine

_serial = itertools.count(1)


class Program(Immutable):
    """A compiled graph. `program(*arrays, out=None)` returns a tuple; `source` is the NumPy text that runs.

    Results are arrays that nothing else refers to: new ones at first, later those that callers have released.
    `out` is a tuple with a buffer (or None) for each result, which is written instead; it may be one of the
    arguments (and is used directly where the program no longer needs that argument by then).
    Several threads may call one program at once: each call works in memory of its own.

    share_inputs   a result that is an argument is that very array, not a copy
    lend           until a result is written, its memory holds other values; a caller's buffer that is one of
                   the arguments is then filled by copying
    """

    def __init__(
        self,
        graph: Graph,
        options: Options | None = None,
        name: str | None = None,
        share_inputs: bool = False,
        lend: bool = False,
    ):
        self._graph = graph
        self.name = name or graph.name
        self._plan, routine = _compiled(
            graph, options or DEFAULT, self.name, share_inputs=share_inputs, lend=lend
        )
        self._function, self._needs = routine.function, routine.needs
        self.source = "\n\n".join(r.source for r in dict.fromkeys([*self._plan.called.values(), routine]))
        self._hidden = hidden_in(routine.source, routine.function.__globals__)
        setup = routine.source[: routine.source.rindex(f"def {routine.name}(")]
        self._setup_reads_hidden = not self._hidden.keys().isdisjoint(re.findall(r"\w+", setup))
        self._values: Sequence | None = None
        self.arena_bytes = self._plan.arena_bytes
        outputs = self._plan.graph.outputs
        self._results = [None if o.op == "input" else recycled.Recycled(o.shape, o.dtype) for o in outputs]
        self._take = [r.allocator() for r in self._results if r]
        self._dtypes = [i.dtype for i in graph.inputs]
        self._free: list[Memory] = []
        self._lock = threading.Lock()

    @property
    def graph(self) -> Graph:
        """The graph that it computes."""
        if self._values is not None:
            self._graph, self._values = exchanged(self._graph, self._values), None
        return self._graph

    def exchanged(self, values: Sequence) -> Program:
        """A copy of the program with these values for the hidden ones."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._function = with_globals(self._function, self._hidden, values)
        other._values = values
        if self._setup_reads_hidden:  # constant arrays, where the memory is made
            setup = with_globals(self._needs.setup, self._hidden, values)
            other._needs, other._free = replace(self._needs, setup=setup), []
        return other

    def memory_drawing(self) -> str:
        """Which value holds which memory in the course of a call, as an SVG."""
        return beside("show.holdings").drawing(self._plan, self.name)

    def __repr__(self) -> str:
        return f"<Program {self.name}: {len(self.graph.nodes)} values, {self.measures}>"

    def _repr_html_(self) -> str:
        return beside("show.drawing").shown(self.graph, self.name, self.source)

    @property
    def measures(self) -> str:
        """Its size, in words."""
        count, scratch = self._needs.count_regions(), self._needs.scratch_bytes()
        regions = "1 region" if count == 1 else f"{count} regions"
        return f"{regions}, {self.arena_bytes:,} bytes of arena, {scratch:,} of scratch a thread"

    @property
    def working_bytes(self) -> int:
        """The bytes that a call works in, beside its results."""
        return self.arena_bytes + threads.get_threads() * self._needs.scratch_bytes()

    def __call__(self, *arrays: Any, out: Sequence[np.ndarray | None] | None = None) -> tuple:
        for a in arrays:
            if type(a) is not np.ndarray:
                arrays = tuple(np.asarray(a, d) for a, d in zip(arrays, self._dtypes))
                break
        if any(followed()):
            anomaly.follow(self.graph, arrays, self.name)
        n_threads = threads.get_threads()
        with self._lock:  # taking results apart from other threads' calls
            memory = self._free.pop() if self._free else None
            results = [take() for take in self._take] if out is None else self._with(out, arrays)
        if memory is None or memory.threads < n_threads:
            memory = Memory(self._needs, n_threads)
        try:
            values = self._function(*arrays, *results, memory)
        finally:
            self._free.append(memory)
        if out is None:
            return values
        written = True  # straight to the caller's buffers, all of them: the usual case
        for buffer, value in zip(out, values):
            if buffer is not value:
                written = False
                if buffer is not None:
                    np.copyto(buffer, value)
        return values if written else tuple([v if b is None else b for b, v in zip(out, values)])

    @contextmanager
    def borrowed(self) -> Iterator[Callable]:
        """For loops: a function run(arrays, buffers) that works in memory taken once.

        The arguments are arrays of the right types; the buffers, one for each result, are C-contiguous and
        share no memory with them.
        """
        n_threads = threads.get_threads()
        with self._lock:
            memory = self._free.pop() if self._free else None
        if memory is None or memory.threads < n_threads:
            memory = Memory(self._needs, n_threads)
        function = self._function
        try:
            yield lambda arrays, buffers: function(*arrays, *buffers, memory)
        finally:
            self._free.append(memory)

    def _with(self, out, arrays) -> list[np.ndarray]:
        """The caller's buffers where they can be written while arguments are read, own arrays elsewhere."""
        chosen = []
        owners = [_owner(a) for a in arrays]
        for k, (buffer, own) in enumerate(zip(out, self._results)):
            if own is None:
                continue
            fits = buffer is not None and buffer.shape == own.shape and buffer.flags.c_contiguous
            fits = fits and (buffer.dtype is own.dtype or buffer.dtype == own.dtype)
            if fits:
                buffer_owner = _owner(buffer)
                for i, (a, owner) in enumerate(zip(arrays, owners)):
                    if buffer_owner is not None and owner is not None and buffer_owner is not owner:
                        continue
                    if buffer is a:
                        fits = self._plan.result_over_input(k, i)
                    else:
                        fits = not np.may_share_memory(buffer, a)
                    if not fits:
                        break
            chosen.append(buffer if fits else own.take())
        return chosen


def _compiled(graph: Graph, options: Options, name: str, **settings: bool) -> tuple[Plan, Routine]:
    """Plan, emit and load the program of a graph; the settings are those of Plan."""
    fast, backend = options.math == FAST, options.elementwise
    pick = partial(tuned.faster, compile=_with_backend) if backend == "tuned" else None
    fusing = None if backend == "numpy" else partial(numexpr.fused_regions, pick=pick)
    routines = partial(_routine, options=options)
    plan = Plan(graph, frozenset() if fast else exact(graph), fusing, routines, **settings)
    emitter = Emitter(plan, name)
    source = emitter.source()
    product = matmul_in_any_order if fast else split_matmul.matmul
    env = {**emitter.env, "run_blocks": kernels.run_blocks, "matmul": product}
    function = load_source(source, env, emitter.function)
    calls = [(r.needs, at) for r, at in emitter.works]
    needs = Needs(env.get("setup"), plan.arena_bytes, emitter.block_regions, calls)
    return plan, Routine(emitter.function, source, function, needs)


def _with_backend(graph: Graph, backend: str) -> Program:
    return Program(graph, Options(elementwise=backend, math=FAST))


def _routine(body: Graph, options: Options) -> Routine:
    """The function for the body of outlined calls, made once for all programs that call it."""
    known = body.kept.setdefault("routines", {})
    if options not in known:
        _, routine = _compiled(body, options, body.name, results_early=True)
        if hidden_in(routine.source, routine.function.__globals__):
            raise TypeError("a function called by the program has a hidden number")
        known[options] = routine
    return known[options]


def hidden_in(source: str, env: dict) -> dict[str, int]:
    """The hidden values of a program, by their names in its source."""
    arrays = {name: v.index for name, v in env.items() if hidden.is_hidden(v)}
    return {**hidden.named_in(source), **arrays} if hidden.active() is not None else {}


def _owner(a: np.ndarray) -> np.ndarray | None:
    """The array that owns a's memory, if NumPy allocated it. np.may_share_memory takes far longer."""
    owner = a if a.base is None else a.base
    return owner if type(owner) is np.ndarray and owner.flags.owndata else None


def load_source(source: str, env: dict, name: str) -> Callable:
    """Execute emitted source so that tracebacks and debuggers can show its lines."""
    forget_collected()
    filename = f"<autodiff {name} {next(_serial)}>"
    exec(compile(source, filename, "exec"), env)
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    # not taken out at once: Python 3.11's linecache.checkcache fails if an entry goes while it iterates
    weakref.finalize(env[name].__code__, _collected.append, filename).atexit = False
    return env[name]


_collected: list[str] = []  # files of programs that are no more, which linecache still has


def forget_collected() -> None:
    """Take the sources of collected programs out of linecache."""
    with contextlib.suppress(IndexError):
        while True:
            linecache.cache.pop(_collected.pop(), None)


def with_globals(function: Callable | None, names: dict[str, int], values: Sequence) -> Callable:
    """A copy of a program's function with these values for the globals in `names`."""
    assert isinstance(function, types.FunctionType)
    own = {name: values[i] for name, i in names.items()}
    return types.FunctionType(function.__code__, {**function.__globals__, **own})
