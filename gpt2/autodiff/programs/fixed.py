"""Programs for fixed types: for functions called thousands of times with arrays of the same shapes.

Fixed and FixedPair keep one entry for each combination of shapes, dtypes, layouts and static arguments.
Unlike `ad.grad` they do not check what f reads besides its arguments: f must be a pure function of them.
Branches on values of arguments (`if ids.max() >= V: raise`) are checked at each call by a small program.
"""

from __future__ import annotations

import inspect
import itertools
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ..doors import beside
from ..errors import AutodiffError, WriteError
from ..graph import Graph, Node, remade, with_args
from ..ops import apply, input_node
from ..ops.cost import NS_PER_BYTE
from ..ops.table import VIEWS
from ..pipeline import Pipeline
from ..record.record import Recording, input_names, record_pure
from ..reuse.cache import drop_oldest
from ..reuse.conditions import MOST, path_of_pure
from ..reuse.kinds import cannot_change
from ..switches import Options
from ..tree import flatten, unflatten
from .derived import name_of
from .wiring import check_apart, layout


def signature(args: Sequence, static: dict) -> tuple:
    """The key of an entry: types and layouts of arrays; all else by type and value, as 2 == 2.0."""
    types = tuple((a.shape, a.dtype, layout(a)) if type(a) is np.ndarray else (type(a), a) for a in args)
    return types, tuple((name, type(v), v) for name, v in sorted(static.items()))


def _arrays(args: Sequence) -> list[np.ndarray]:
    return [a for a in args if type(a) is np.ndarray]


def of_arrays(f: Callable, args: Sequence, static: dict) -> tuple[Callable, Sequence, dict]:
    """(f, args, static) in which only arrays are operands of a recording.

    Numbers are constants of the program here, while `record` treats Python floats as operands.
    """
    leaves, tree = flatten((tuple(args), static))
    if all(type(x) is np.ndarray for x in leaves):
        return f, args, static

    def function(*arrays):
        remaining = iter(arrays)
        return f(*(next(remaining) if type(a) is np.ndarray else a for a in args), **static)

    names = [name for name, x in zip(input_names(f, tree), leaves) if type(x) is np.ndarray]
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # names the inputs
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names]
    )
    return function, _arrays(args), {}


def check_pure(rec: Recording) -> None:
    """Raise WriteError or AutodiffError for a function that does more than compute from its arguments."""
    name = rec.graph.name
    for held in rec.out_tree.objects():
        if not cannot_change(held):
            raise AutodiffError(
                f"{name}: it returns a {type(held).__name__}, which would be one object for all calls. "
                "Return arrays and numbers, in tuples, lists and dicts, and make other objects outside"
            )
    if rec.written or rec.lifted:
        raise WriteError(f"{name}: a function that writes to its arguments cannot be compiled like this")
    for read in rec.reads:
        if read.kind == "text":
            raise AutodiffError(
                f"{name}: it makes text of a value (print, f-string), which a compiled program does not "
                "repeat. Take that out",
                read.loc,
            )


Buffers = Sequence[np.ndarray | None] | None  # of out=
SIGNATURES = 256  # that programs are cached for; the oldest go first


class _Entries:
    """The programs of each recording, by signature; those of one signature differ in their paths."""

    entry_type: Any

    def __init__(self, f: Callable, options: Options | None = None, name: str | None = None):
        self.f, self.options, self.name = f, options, name
        self.entries: dict[tuple, list] = {}

    def __getstate__(self) -> dict:
        return {**vars(self), "entries": {}}  # a copy records and compiles for itself

    def entry(self, args: Sequence, static: dict):
        """The entry for a call, recorded where there is none, and the call's arrays."""
        key, arrays = signature(args, static), _arrays(args)
        try:
            known = self.entries.get(key, ())
        except TypeError as error:  # a list, or a tuple of arrays
            raise AutodiffError(
                f"{self.name or name_of(self.f)}: {error}; arguments are arrays and values that can be hashed"
            ) from None
        for e in known:
            if e.path.taken(arrays, e.captured):
                return e, arrays
        e = self.build(args, static)
        self.entries[key] = [e, *self.entries.get(key, ())][:MOST]
        while len(self.entries) > SIGNATURES:
            drop_oldest(self.entries)
        return e, arrays

    def build(self, args: Sequence, static: dict, on_stage: Callable | None = None):
        """A new entry. With on_stage, called after each stage, programs are made now, else when needed."""
        begin = time.perf_counter()
        rec = record_pure(*of_arrays(self.f, args, static), name=self.name or name_of(self.f))
        check_pure(rec)
        pipeline = Pipeline(rec.graph.name, self.options, on_stage)
        why = "new types of arguments, or another way through f"
        pipeline.recorded(rec.graph, time.perf_counter() - begin, why)
        e = self.entry_type(self, rec, args, pipeline)
        e.path, e.captured = path_of_pure(rec), [a for _, a in rec.captures]
        if on_stage is not None and isinstance(e, _PairEntry):
            e.forward, e.backward, e.joint  # noqa: B018
        return e


class _Summing:
    """A program and, made on first use, the one that adds its results to the caller's buffers."""

    def __init__(self, graph: Graph, pipeline: Pipeline, name: str, half: str = "", lend: bool = False):
        self.graph, self.pipeline, self.name = graph, pipeline, name
        self.program = pipeline.emitted(graph, name, half=half, share_inputs=True, lend=lend)
        self.sums: dict = {}

    def __call__(self, *arrays, out=None, add=False):
        if out is not None:
            self.check(out)
        elif add:
            raise AutodiffError(f"{self.name}: add=True adds to buffers. Pass them as out=")
        if not add:
            return self.program(*arrays, out=out)
        which = tuple(k for k, b in enumerate(out) if b is not None)
        if which not in self.sums:
            sums = {k: self.graph.outputs[k] for k in which}
            sums = {k: input_node(o.shape, o.dtype, f"sum{k}") for k, o in sums.items()}
            outputs = [apply("add", sums[k], o) if k in sums else o for k, o in enumerate(self.graph.outputs)]
            graph = Graph((*self.graph.inputs, *sums.values()), outputs, self.graph.name)
            graph = self.pipeline.prepared(graph)
            self.sums[which] = self.pipeline.emitted(graph, f"{self.name}_add", share_inputs=True)
        return self.sums[which](*arrays, *(out[k] for k in which), out=out)

    def check(self, out: Sequence[np.ndarray | None]) -> None:
        """Raise AutodiffError if a buffer is unlike its result, or two of them share memory."""
        for b, o in zip(out, self.graph.outputs, strict=True):
            if b is not None and (b.shape != o.shape or b.dtype != o.dtype):
                raise AutodiffError(
                    f"{self.name}: out has a buffer of shape {b.shape} and dtype {b.dtype}, expected "
                    f"{o.shape} and {o.dtype}, like its result"
                )
        check_apart(self.name, out)


class _FixedEntry:
    def __init__(self, fixed: Fixed, rec: Recording, args: Sequence, pipeline: Pipeline):
        graph = pipeline.prepared(pipeline.opened(rec.graph), "simplified")
        self.program = _Summing(graph, pipeline, rec.graph.name)
        self.tree = rec.out_tree

    def buffers(self, out: Sequence[np.ndarray | None]) -> tuple:
        """Buffers by array, from those for the parts of a tuple of results: None for arrays in containers."""
        by_array: list[np.ndarray | None] = []
        if self.tree.is_leaf or len(out) != len(self.tree.children):
            raise AutodiffError(
                f"{self.program.name}: out has a buffer, or None, for each result in a tuple; got {len(out)}"
            )
        for b, part in zip(out, self.tree.children):
            by_array += [b] if part.is_leaf else [None] * part.size
        return tuple(by_array)


class Fixed(_Entries):
    """f compiled for the types of the arguments that it is called with, to be called often.

    f         a pure function of its arguments. Arrays among them (np.ndarray itself, of any shape, real,
              complex, integer or bool) are the program's operands; everything else has to be hashable and is
              part of the program, as are keyword arguments: equal ones of one type share a program, so f must
              not compare them by `is`
    options   ad.Options, or None for the default ones
    name      the program's name in its source; by default that of f

        fixed(*args, out=None, add=False, **static)

    returns what f returns. Results are arrays, in f's structure, each in memory of its own, but for one that
    is an argument: it is that very array.

    out   where f returns a tuple: a buffer (or None) for each result, an array of the result's shape and
          dtype that is written instead of a new one. A result that is itself a container has None
    add   add the results to what the buffers in `out` hold

    Raises AutodiffError if f writes to its arguments, and whatever f raises while it is recorded. Each
    combination of shapes, dtypes and static values is compiled when it is first met.

        >>> fixed = ad.Fixed(lambda x, *, power: (x**power, np.sum(x)))
        >>> total = np.zeros(3)
        >>> for _ in range(2):
        ...     _ = fixed(np.array([1.0, 2.0, 3.0]), power=2, out=(total, None), add=True)
        >>> total
        array([ 2.,  8., 18.])
    """

    entry_type = _FixedEntry

    def __call__(self, *args: Any, out: Buffers = None, add: bool = False, **static: Any) -> Any:
        e, arrays = self.entry(args, static)
        if out is not None:
            out = e.buffers(out)
        return unflatten(e.tree, e.program(*arrays, *e.captured, out=out, add=add))


class _PairEntry:
    """Forward, backward and `joint` program; `slots`: of each argument the index of its gradient."""

    def __init__(self, pair: FixedPair, rec: Recording, args: Sequence, pipeline: Pipeline):
        self.name, self.pipeline = rec.graph.name, pipeline
        wanted = [True] * len(args) if pair.wanted is None else pair.wanted
        places, wrt = itertools.count(), []  # of arrays among the operands
        self.slots: list[int | None] = [None] * len(args)
        for i, (a, w) in enumerate(zip(args, wanted, strict=True)):
            place = next(places) if type(a) is np.ndarray else None
            if w and place is not None and a.dtype.kind in "fc":
                self.slots[i] = len(wrt)
                wrt.append(place)
        if not wrt:
            raise AutodiffError(f"{pair.name or self.name}: no gradient is wanted, or can be had")
        graph = Graph(rec.graph.inputs, rec.graph.outputs[:1], rec.graph.name)
        joint = pipeline.joint(graph, wrt, (0,))
        halves = pipeline.split(joint, len(graph.inputs), 1, rate=pair.rate, ample=pair.ample)
        self.graphs = halves.forward, halves.backward
        self.saves_memory = pair.rate > NS_PER_BYTE

    @cached_property
    def forward(self):
        name = f"{self.name}_forward"
        return self.pipeline.emitted(self.graphs[0], name, half="forward", share_inputs=True)

    @cached_property
    def backward(self):
        return _Summing(self.graphs[1], self.pipeline, f"{self.name}_backward", half="backward")

    @cached_property
    def joint(self):
        """(inputs, cotangent) -> (out, gradients)."""
        graph, name = _joined(*self.graphs), f"{self.name}_and_gradients"
        if not self.saves_memory:  # else what the backward computes again, it is to compute again here too
            graph = self.pipeline.prepared(graph, "joined")
        return _Summing(graph, self.pipeline, name, half="both in one", lend=True)


def _joined(forward: Graph, backward: Graph) -> Graph:
    """Both as one program, in which only views of the inputs are merged: recomputed values stay so."""
    saved = forward.outputs[1:]
    views: dict[tuple, Node] = {}
    from_inputs = set(forward.inputs)  # and the views of them

    def known(n: Node) -> Node:
        if n.op not in VIEWS or n.args[0] not in from_inputs:
            return n
        from_inputs.add(n)
        return views.setdefault(n.key(), n)

    for n in forward.nodes:
        known(n)
    given = dict(zip(backward.inputs, saved))
    gradients = remade(backward.outputs, given, lambda n, args: known(with_args(n, args)))
    inputs = (*forward.inputs, *backward.inputs[len(saved) :])
    return Graph(inputs, (forward.outputs[0], *gradients), forward.name)


class Saved(tuple):
    """The arrays that a FixedPair's forward keeps for its backward, a tuple.

    `backward` is the program that takes them; `slots` has for each argument of f the index of its gradient
    among the program's results.
    """

    backward: _Summing
    slots: list


class FixedPair(_Entries):
    """f's first result and its pullback, compiled for the types of the arguments, to be called often.

        forward(*args, out=None, **static) -> (out, saved)
        backward(dout, saved, out=None, add=False) -> one gradient an argument
        both(dout, *args, out=None, add=False, **static) -> (out, gradients), in one program

    f         as for Fixed; only its first result, one array, is differentiated. Gradients are taken with
              respect to all arguments that are arrays of floats; the others have None
    options   ad.Options, or None for the default ones
    name      the programs' name in their sources; by default that of f
    rate      the cost of keeping a byte in nanoseconds (ops/cost.py): higher rates save memory and recompute
              more, `both` too; at the default `both` computes nothing twice
    ample     bytes that may be kept nearly free: the rate applies to what exceeds them
    wanted    for each argument whether its gradient is wanted; None: of all. Nothing is computed or kept for
              the others: their gradients are None

    dout has the shape and dtype of f's first result, each gradient those of its argument. `out` has a buffer
    or None for each argument; `add` adds to what the buffers hold. For forward, `out` is a buffer or None for
    f's first result. saved is a tuple of arrays, of which those that are arguments of f are these very
    arrays: they have to stay as they are until the backward has run.

    Raises AutodiffError if f writes to its arguments, and whatever f raises while it is recorded.

        >>> pair = ad.FixedPair(lambda x, w: np.tanh(x @ w))
        >>> x, w = np.ones((2, 3)), np.zeros((3, 4))
        >>> out, saved = pair.forward(x, w)
        >>> dx, dw = pair.backward(np.ones((2, 4)), saved)
        >>> dw.shape, float(dw[0, 0])
        ((3, 4), 2.0)
    """

    def __init__(
        self,
        f: Callable,
        options: Options | None = None,
        name: str | None = None,
        rate: float = NS_PER_BYTE,
        ample: int = 0,
        wanted: Sequence[bool] | None = None,
    ):
        super().__init__(f, options, name)
        self.rate, self.ample, self.wanted = rate, ample, wanted

    entry_type = _PairEntry

    def graphs(self, *args: Any, **static: Any) -> tuple[Graph, Graph]:
        """The graphs of the forward and the backward program for these arguments; see readable_source."""
        return self.entry(args, static)[0].graphs

    def source(self, *args: Any, **static: Any) -> str:
        """Readable source of the forward and the backward for these arguments: NAME_forward(*arrays) returns
        the result and the saved arrays, NAME_backward(*saved, dout) the gradients. What the steps of a loop
        save is a list with a row for each step.

        If an op has no name in NumPy, it is the source of the programs that run.

            >>> pair = ad.FixedPair(lambda x: np.tanh(x), name="f")
            >>> print(pair.source(np.ones(3)).split("\n\n\n")[2].rstrip())
            def f_backward(saved, dout):
                dx = dout * (1.0 - saved**2)
                return (dx,)
        """
        e = self.entry(args, static)[0]
        names = f"{e.name}_forward", f"{e.name}_backward"
        forward, backward = e.graphs
        text = beside("show.runnable").runnable_pair(forward, backward, names)
        return text or f"{e.forward.source}\n\n{e.backward.program.source}"

    def forward(self, *args: Any, out: np.ndarray | None = None, **static: Any) -> tuple[Any, Saved]:
        e, arrays = self.entry(args, static)
        buffers = None if out is None else (out, *[None] * (len(e.graphs[0].outputs) - 1))
        out, *kept = e.forward(*arrays, *e.captured, out=buffers)
        saved = Saved(kept)
        saved.backward, saved.slots = e.backward, e.slots
        return out, saved

    def backward(self, dout: np.ndarray, saved: Saved, out: Buffers = None, add: bool = False) -> tuple:
        """A gradient for each argument that the forward was called with, None where there is none."""
        slots = saved.slots
        grads = saved.backward(*saved, dout, out=_filled(out, slots), add=add)
        return tuple(None if k is None else grads[k] for k in slots)

    def both(
        self, dout: np.ndarray, *args: Any, out: Buffers = None, add: bool = False, **static: Any
    ) -> tuple[Any, tuple]:
        e, arrays = self.entry(args, static)
        flat = _filled(out, e.slots)
        value, *grads = e.joint(*arrays, *e.captured, dout, out=flat and (None, *flat), add=add)
        return value, tuple(None if k is None else grads[k] for k in e.slots)


def _filled(out, slots: list):
    if out is None:
        return None
    if len(out) != len(slots):
        raise AutodiffError(f"out has a buffer, or None, for each of {len(slots)} arguments; got {len(out)}")
    return tuple(b for b, k in zip(out, slots) if k is not None)
