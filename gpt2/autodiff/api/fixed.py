"""Programs for fixed types: what an engine calls thousands of times with arrays of the same shapes.

    Fixed(f)              f compiled as it stands
    FixedPair(f)          f's first result and its pullback: a forward program that saves what a minimum cut
    says, and
                          a backward program for it; or the two in one

Both keep one entry for each combination of shapes, dtypes and static arguments. Unlike `ad.grad` and its
kin they do not look for what f reads besides its arguments: f promises to be a pure function of them.
What f decides by looking at its arguments (`if ids.max() >= V: raise`) is checked at each call, by a
small program of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from .. import passes
from ..derive.differentiate import vjp_graph
from ..emit.program import Program, compile_graph
from ..graph import Graph, with_args
from ..keep.partition import partition
from ..ops import apply, input_node
from ..ops.cost import NS_PER_BYTE
from ..record.record import Recording, record_pure
from ..tree import LEAF, unflatten


def signature(args: Sequence, static: dict) -> tuple:
    """What an entry depends on: types of the arrays, and everything else by value."""
    types = tuple((a.shape, a.dtype) if type(a) is np.ndarray else a for a in args)
    return types, tuple(sorted(static.items()))


class _Decisions:
    """What the recorded run looked at, and what it saw: another run may use its graph if it sees the same."""

    def __init__(self, rec: Recording):
        reads = [r for r in rec.reads if r.kind != "text"]
        self.seen = [r.value for r in reads]
        graph = passes.simplify(Graph(rec.graph.inputs, [r.node for r in reads], "decisions"))
        self.program = compile_graph(graph) if reads else None

    def hold(self, arrays) -> bool:
        if self.program is None:
            return True
        return all(np.array_equal(now, then) for now, then in zip(self.program(*arrays), self.seen))


class _Entries:
    """Entries by signature; those of one signature differ in what their recordings looked at."""

    def __init__(self, f: Callable, options=None, name: str | None = None):
        self.f, self.options, self.name = f, options, name
        self.entries: dict[tuple, list] = {}

    def entry(self, args: Sequence, static: dict):
        """The entry for a call, recorded where there is none, and the call's arrays."""
        key = signature(args, static)
        arrays = [a for a in args if type(a) is np.ndarray]
        for e in self.entries.get(key, ()):
            if e.decisions.hold([*arrays, *e.captured]):
                return e, arrays
        rec = record_pure(self.f, args, static, name=self.name)
        if rec.written or rec.lifted:
            raise ValueError(
                f"{rec.graph.name}: a function that writes to its arguments cannot be compiled like this"
            )
        e = self.build(rec, args)
        e.decisions = _Decisions(rec)
        e.captured = [a for _, a in rec.captures]
        self.entries.setdefault(key, []).append(e)
        return e, arrays

    def build(self, rec: Recording, args: Sequence):
        raise NotImplementedError


class _Entry:
    decisions: _Decisions
    captured: list


class _Summing:
    """A program and, made when first asked for, the one that adds its results to the caller's buffers."""

    def __init__(self, graph: Graph, options, name: str, lend: bool = False):
        self.graph, self.options, self.name = graph, options, name
        self.program = compile_graph(graph, options, name, share_inputs=True, lend=lend)
        self.sums: dict[tuple, Program] = {}

    def __call__(self, *arrays, out=None, add=False):
        if not add:
            return self.program(*arrays, out=out)
        which = tuple(k for k, b in enumerate(out) if b is not None)
        if which not in self.sums:
            graph = passes.simplify(_plus_inputs(self.graph, which), self.options)
            self.sums[which] = compile_graph(graph, self.options, f"{self.name}_add", share_inputs=True)
        return self.sums[which](*arrays, *(out[k] for k in which), out=out)


def _plus_inputs(graph: Graph, which: tuple[int, ...]) -> Graph:
    """The graph with, for each of these outputs, an input that it is added to."""
    sums = {k: input_node(graph.outputs[k].shape, graph.outputs[k].dtype, f"sum{k}") for k in which}
    outputs = [apply("add", sums[k], o) if k in sums else o for k, o in enumerate(graph.outputs)]
    return Graph((*graph.inputs, *sums.values()), outputs, graph.name)


class _FixedEntry(_Entry):
    def __init__(self, rec: Recording, options):
        self.program = _Summing(passes.simplify(rec.graph, options), options, rec.graph.name)
        self.tree = rec.out_tree


class Fixed(_Entries):
    """fixed(*args, out=None, add=False, **static): f's results.

    out   where f returns a tuple: a buffer (or None) for each result, written instead of a new array
    add   add the results to what the buffers hold
    """

    def __call__(self, *args, out=None, add=False, **static):
        e, arrays = self.entry(args, static)
        if out is not None:
            out = tuple(b for b, part in zip(out, e.tree.spec[2]) if part is LEAF)
        return unflatten(e.tree, e.program(*arrays, *e.captured, out=out, add=add))

    def build(self, rec, args):
        return _FixedEntry(rec, self.options)


class _PairEntry(_Entry):
    """Forward and backward program; `joint`, made when first asked for, does the work of both in one."""

    def __init__(self, rec: Recording, wrt: Sequence[int], options, rate: float, ample: int):
        self.name, self.options = rec.graph.name, options
        graph = passes.simplify(Graph(rec.graph.inputs, rec.graph.outputs[:1], rec.graph.name), options)
        joint = passes.simplify(vjp_graph(graph, wrt, (0,)), options)
        forward, backward, _ = partition(joint, len(graph.inputs), 1, rate=rate, ample=ample)
        self.graphs = passes.simplify(forward, options), passes.simplify(backward, options)

    @cached_property
    def forward(self):
        return compile_graph(self.graphs[0], self.options, f"{self.name}_forward", share_inputs=True)

    @cached_property
    def backward(self):
        return _Summing(self.graphs[1], self.options, f"{self.name}_backward")

    @cached_property
    def joint(self):
        """(inputs, cotangent) -> (out, gradients)."""
        forward, backward = self.graphs
        return _Summing(_joined(forward, backward), self.options, f"{self.name}_and_gradients", lend=True)


def _joined(forward: Graph, backward: Graph) -> Graph:
    """Both as one program. What the backward computes again stays apart from what it is a copy of."""
    kept = forward.outputs[1:]
    stands = dict(zip(backward.inputs, kept))
    cotangents = backward.inputs[len(kept) :]
    new: dict = {}
    for n in backward.nodes:
        if n in stands:
            new[n] = stands[n]
        elif n.op == "input":
            new[n] = n
        else:
            new[n] = with_args(n, tuple(new[a] for a in n.args))
    return Graph(
        (*forward.inputs, *cotangents),
        (forward.outputs[0], *(new[o] for o in backward.outputs)),
        forward.name,
    )


class Saved(tuple):
    """What a FixedPair's forward keeps for its backward."""

    backward: _Summing
    places: list


class FixedPair(_Entries):
    """f's first result and its pullback, for all arguments that are arrays of floats.

    forward(*args, **static) -> (out, saved)
    backward(dout, saved, out=None, add=False) -> one gradient an argument, or None; out and add as for Fixed
    both(dout, *args, out=None, add=False, **static) -> (out, gradients), in one program

    rate   what keeping a byte costs, in nanoseconds (passes/cost.py): higher rates save memory and
           recompute more
    ample  bytes that may be kept nearly free of charge: the rate counts where more would be kept
    """

    def __init__(
        self,
        f: Callable,
        options=None,
        name: str | None = None,
        rate: float = NS_PER_BYTE,
        ample: int = 0,
    ):
        super().__init__(f, options, name)
        self.rate, self.ample = rate, ample

    def build(self, rec, args):
        arrays = [a for a in args if type(a) is np.ndarray]
        wrt = [k for k, a in enumerate(arrays) if a.dtype.kind in "fc"]
        return _PairEntry(rec, wrt, self.options, self.rate, self.ample)

    def forward(self, *args, **static):
        e, arrays = self.entry(args, static)
        out, *kept = e.forward(*arrays, *e.captured)
        saved = Saved(kept)
        saved.backward, saved.places = e.backward, _places(args)
        return out, saved

    def backward(self, dout, saved, out=None, add=False):
        places = saved.places
        grads = saved.backward(*saved, dout, out=_in_places(out, places), add=add)
        return tuple(None if p is None else grads[p] for p in places)

    def both(self, dout, *args, out=None, add=False, **static):
        e, arrays = self.entry(args, static)
        places = _places(args)
        flat = _in_places(out, places)
        value, *grads = e.joint(*arrays, *e.captured, dout, out=flat and (None, *flat), add=add)
        return value, tuple(None if p is None else grads[p] for p in places)


def _places(args) -> list:
    """For each argument the number of its gradient, or None."""
    count = itertools.count()
    return [next(count) if type(a) is np.ndarray and a.dtype.kind in "fc" else None for a in args]


def _in_places(out, places):
    """Buffers an argument, as buffers a gradient."""
    return None if out is None else tuple(b for b, p in zip(out, places) if p is not None)
