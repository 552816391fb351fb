"""From graph to callable: compile_graph(graph) emits NumPy source, compiles it, and wraps it as a Program."""

from __future__ import annotations

import itertools
import linecache
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from ..graph import Graph
from ..ops import anomaly
from ..ops.exactness import exact
from ..run import kernels, recycled, threads
from ..switches import FAST, Options
from . import numexpr, tuned
from .arena import ALIGN
from .drawing import shown
from .source import emit

_serial = itertools.count(1)


class Memory:
    """What one call works in: views of an arena, and scratch blocks for each region and thread."""

    __slots__ = ("arrays", "scratch", "threads")

    def __init__(self, setup: Callable | None, arena_bytes: int, regions: Sequence[tuple], threads: int):
        self.arrays = setup(aligned(arena_bytes)) if setup else ()
        self.threads = threads
        # one block of memory a thread serves all regions: only one of them runs at a time
        blocks = [aligned(max([_slot_offsets(r)[1] for r in regions], default=0)) for _ in range(threads)]
        self.scratch = tuple(tuple(_scratch_views(r, blocks[t]) for t in range(threads)) for r in regions)


def aligned(nbytes: int) -> np.ndarray:
    """Bytes that start at a cache line."""
    raw = np.empty(nbytes + ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    return raw[start : start + nbytes]


def _sizes(region) -> tuple[int, ...]:
    """Lengths of the region's blocks: the common one, and that of the last if it is shorter."""
    blocks, _ = region
    return tuple(sorted({b[-1] - b[-2] for b in blocks}, reverse=True))


def _slot_offsets(region) -> tuple[dict[int, int], int]:
    """Where each slot starts in the scratch block, and the bytes of all of them."""
    _, views = region
    size = _sizes(region)[0]
    widths: dict[int, int] = {}
    for row, dtype, slot in views:
        nbytes = size * int(np.prod(row, dtype=np.int64)) * dtype.itemsize
        widths[slot] = max(widths.get(slot, 0), -(-nbytes // ALIGN) * ALIGN)
    offsets, at = {}, 0
    for slot, width in sorted(widths.items()):
        offsets[slot], at = at, at + width
    return offsets, at


def _scratch_views(region, block: np.ndarray) -> tuple:
    """(common length, the views for it, the views for the shorter last block)."""
    _, views = region
    offsets, _ = _slot_offsets(region)
    sets = []
    for size in _sizes(region):
        one = []
        for row, dtype, slot in views:
            nbytes = size * int(np.prod(row, dtype=np.int64)) * dtype.itemsize
            one.append(block[offsets[slot] : offsets[slot] + nbytes].view(dtype).reshape(size, *row))
        sets.append(tuple(one))
    return (_sizes(region)[0], sets[0], sets[-1])


class Program:
    """A compiled graph. `program(*arrays, out=None)` returns a tuple; `source` is the NumPy text that runs.

    Results are arrays that nobody else holds: fresh ones at first, and later those that every caller has let
    go of. `out` is a tuple with a buffer (or None) for each result, which is written instead; it may be one
    of the arguments (and is used directly where the program has no need of that argument any more by then).
    Several threads may call one program at once: each call works in memory of its own.
    """

    def __init__(
        self,
        graph: Graph,
        options: Options | None = None,
        name: str | None = None,
        share_inputs: bool = False,
        lend: bool = False,
    ):
        self.graph = graph
        self.name = name or graph.name
        fast = options is not None and options.math == FAST
        kept = frozenset() if fast else exact(graph)
        emitted = emit(graph, self.name, share_inputs, lend, _fusing(options), kept)
        self.source = emitted.source
        env = {**emitted.env, "run_blocks": kernels.run_blocks, "matmul": kernels.matmul}
        self._function = load_source(emitted.source, env, emitted.function)
        self._setup = env.get("setup")
        self._regions = emitted.regions
        self._overwrites = emitted.overwrites
        self.arena_bytes = emitted.arena_bytes
        self._results = [r and recycled.Recycled(*r) for r in emitted.results]
        self._take = [r.taker() for r in self._results if r]
        self._dtypes = [i.dtype for i in graph.inputs]
        self._free: list[Memory] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Program {self.name}: {len(self.graph.nodes)} values, {self.measures}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return shown(self.graph, self.name, self.source)

    @property
    def measures(self) -> str:
        """How much there is of it, in words."""
        regions = "1 region" if len(self._regions) == 1 else f"{len(self._regions)} regions"
        return f"{regions}, {self.arena_bytes:,} bytes of arena"

    def __call__(self, *arrays: Any, out: Sequence[np.ndarray | None] | None = None) -> tuple:
        for a in arrays:
            if type(a) is not np.ndarray:
                arrays = tuple(np.asarray(a, d) for a, d in zip(arrays, self._dtypes))
                break
        if anomaly.watching:
            anomaly.follow(self.graph, arrays, self.name)
        n_threads = threads.get_threads()
        with self._lock:  # taking results apart from other threads' calls
            memory = self._free.pop() if self._free else None
            results = [take() for take in self._take] if out is None else self._with(out, arrays)
        if memory is None or memory.threads < n_threads:
            memory = Memory(self._setup, self.arena_bytes, self._regions, n_threads)
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
            memory = Memory(self._setup, self.arena_bytes, self._regions, n_threads)
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
            fits = (
                buffer is not None
                and buffer.shape == own.shape
                and (buffer.dtype is own.dtype or buffer.dtype == own.dtype)
                and buffer.flags.c_contiguous
            )
            if fits:
                mine = _owner(buffer)
                for i, (a, its) in enumerate(zip(arrays, owners)):
                    if mine is not None and its is not None and mine is not its:
                        continue
                    if buffer is a:
                        fits = (k, i) in self._overwrites
                    else:
                        fits = not np.may_share_memory(buffer, a)
                    if not fits:
                        break
            chosen.append(buffer if fits else own.take())
        return chosen


def _owner(a: np.ndarray) -> np.ndarray | None:
    """The array whose memory it lies in, or None where that is not known to be NumPy's own: then two owners
    may share it. np.may_share_memory, asked of each pair, took 0.3 ms for GPT-2's gradients and arguments.
    """
    owner = a if a.base is None else a.base
    return owner if type(owner) is np.ndarray and owner.flags.owndata else None


def compile_graph(
    graph: Graph,
    options: Options | None = None,
    name: str | None = None,
    share_inputs: bool = False,
    lend: bool = False,
) -> Program:
    """Compile a graph of NumPy ops.

    share_inputs   a result that is an argument is that very array, not a copy
    lend           until a result is written, its memory holds other values; a caller's buffer that is one of
                   the arguments is then filled by copying
    """
    return Program(graph, options, name, share_inputs, lend)


def _fusing(options: Options | None) -> Callable | None:
    """What gives elementwise trees to numexpr, as emit takes it; None where NumPy computes everything."""
    backend = "numpy" if options is None else options.elementwise
    if backend == "numpy":
        return None
    pick = partial(tuned.faster, compile=_with_backend) if backend == "tuned" else None
    return partial(numexpr.fused_regions, pick=pick)


def _with_backend(graph: Graph, backend: str) -> Program:
    return compile_graph(graph, Options(elementwise=backend, math=FAST))


def load_source(source: str, env: dict, name: str) -> Callable:
    """Execute emitted source so that tracebacks and debuggers can show its lines."""
    filename = f"<autodiff {name} {next(_serial)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    exec(compile(source, filename, "exec"), env)
    return env[name]
