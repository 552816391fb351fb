"""Programs for fixed types: what an engine calls thousands of times with arrays of the same shapes.

    Fixed(f)              f compiled as it stands
    FixedPair(f, wrt)     f's first result, and the pullback: a forward program that saves what a minimum cut says,
                          and a backward program for it

Both keep one entry for each combination of shapes, dtypes and static arguments. Unlike `ad.grad` and its kin they do
not look for what f reads besides its arguments: f promises to be a pure function of them. What f decides by looking
at its arguments (`if ids.max() >= V: raise`) is checked at each call, by a small program of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from . import passes
from .differentiate import vjp_graph
from .graph import Graph
from .program import Program, compile_graph
from .record import Recording, record
from .tree import LEAF, unflatten


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
        rec = record(self.f, args, static, name=self.name)
        if rec.written or rec.lifted:
            raise ValueError(f"{rec.graph.name}: a function that writes to its arguments cannot be compiled like this")
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


class _FixedEntry(_Entry):
    def __init__(self, rec: Recording, options):
        graph = passes.simplify(rec.graph, options)
        self.program = compile_graph(graph, options, share_inputs=True)
        self.tree = rec.out_tree


class Fixed(_Entries):
    """fixed(*args, out=None, **static): f's results. `out`: where f returns a tuple, a buffer (or None) for each."""

    def __call__(self, *args, out=None, **static):
        e, arrays = self.entry(args, static)
        if out is not None:
            out = tuple(b for b, part in zip(out, e.tree.spec[2]) if part is LEAF)
        return unflatten(e.tree, e.program(*arrays, *e.captured, out=out))

    def build(self, rec, args):
        return _FixedEntry(rec, self.options)


class _PairEntry(_Entry):
    def __init__(self, rec: Recording, args: Sequence, wrt: Sequence[int], options):
        graph = passes.simplify(Graph(rec.graph.inputs, rec.graph.outputs[:1], rec.graph.name), options)
        positions = [k for k, a in enumerate(args) if type(a) is np.ndarray]
        inputs = [positions.index(k) for k in wrt if k in positions]
        joint = passes.simplify(vjp_graph(graph, inputs, (0,)), options)
        forward, backward, _ = passes.partition(joint, len(graph.inputs), 1)
        self.forward = compile_graph(passes.simplify(forward, options), options, f"{graph.name}_forward", share_inputs=True)
        self.backward = compile_graph(passes.simplify(backward, options), options, f"{graph.name}_backward", share_inputs=True)
        order = iter(range(len(inputs)))
        self.places = [next(order) if k in wrt and k in positions else None for k in range(len(args))]


class Saved(tuple):
    """What a FixedPair's forward keeps for its backward."""

    backward: Program
    places: list


class FixedPair(_Entries):
    """forward(*args, **static) -> (out, saved), backward(dout, saved, out=None) -> one gradient an argument, or None.

    wrt: positions of the arguments to differentiate, where they are arrays of floats.
    """

    def __init__(self, f: Callable, options=None, name: str | None = None):
        super().__init__(f, options, name)

    def build(self, rec, args):
        wrt = [k for k, a in enumerate(args) if type(a) is np.ndarray and a.dtype.kind in "fc"]
        return _PairEntry(rec, args, wrt, self.options)

    def forward(self, *args, **static):
        e, arrays = self.entry(args, static)
        out, *kept = e.forward(*arrays, *e.captured)
        saved = Saved(kept)
        saved.backward, saved.places = e.backward, e.places
        return out, saved

    def backward(self, dout, saved, out=None):
        if out is not None:
            flat = [None] * sum(p is not None for p in saved.places)
            for p, buffer in zip(saved.places, out):
                if p is not None:
                    flat[p] = buffer
            out = tuple(flat)
        grads = saved.backward(*saved, dout, out=out)
        return tuple(None if p is None else grads[p] for p in saved.places)
