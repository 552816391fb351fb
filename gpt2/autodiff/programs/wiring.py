"""A Transform turns a recording into a Wiring: a graph, its inputs' sources, its results' structure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..atoms import SCALARS
from ..errors import AutodiffError
from ..graph import Graph, Node
from ..ops.interpret import evaluate_graph
from ..pipeline import Pipeline
from ..record import recorder
from ..record.memory.writes import overlapping
from ..record.record import Recording, inline
from ..record.recorder import computes_as_ndarray, native
from ..record.value import Recorded, value_of
from ..switches import current_options
from ..tree import Leaf, Tree, flatten, matched, numbered, unflatten

# The kinds of Out: the form of a result
ARRAY, SCALAR, NUMBER = "array", "scalar", "number"


@dataclass(frozen=True)
class Out:
    """A leaf of the result: output `index` of the graph, as an array, a NumPy scalar, or a Python number."""

    index: int
    kind: str = ARRAY


@dataclass(frozen=True)
class Update:
    """Output `index` of the graph becomes the new content of a leaf of the call, or is added to it."""

    leaf: int
    index: int
    added: bool = False


@dataclass
class Wiring:
    """A graph, where its inputs come from, and how its outputs make up the result.

    The inputs are the call's leaves numbered in `feed`, then the captured arrays (and, in an enclosing
    recording, lifted values) in `outside`.
    """

    graph: Graph
    feed: list[int]
    outside: list
    tree: Tree
    outs: list[Out]
    updates: list[Update] = field(default_factory=list)
    written: tuple[int, ...] = ()  # leaves that f writes to

    def operands(self, leaves: Sequence) -> list:
        return [*(leaves[i] for i in self.feed), *self.outside]

    def result(self, outputs: Sequence) -> Any:
        return rebuilt(self.tree, [outputs[o.index] for o in self.outs], [o.kind for o in self.outs])

    def types_only(self) -> Wiring:
        """The wiring to keep with its program, without nodes, which take hundreds of megabytes."""
        outputs = [Node("input", (), {}, o.shape, o.dtype, o.name) for o in self.graph.outputs]
        return replace(self, graph=Graph(self.graph.inputs, outputs, self.graph.name), outside=[])


@dataclass
class Arguments:
    """The flattened arguments of one call. `copies`: leaves that are private copies."""

    args: tuple
    kwargs: dict
    leaves: list
    tree: Tree
    copies: tuple[int, ...] = ()

    @classmethod
    def of(cls, args: tuple, kwargs: dict) -> Arguments:
        flat, tree = flatten((args, kwargs))
        leaves = list(map(plain_array, flat))
        made = [i for i, (x, y) in enumerate(zip(flat, leaves)) if x is not y]
        copies = [i for i in made if not np.may_share_memory(flat[i], leaves[i])]
        return cls(args, kwargs, leaves, tree, tuple(copies))

    def key(self) -> tuple:
        return self.tree, tuple(map(leaf_key, self.leaves)), current_options()

    def leaf_range(self, k: int) -> range:
        """The numbers of the leaves that positional argument k is made of."""
        positional = self.tree.children[0].children
        start = sum([tree.size for tree in positional[:k]])
        return range(start, start + positional[k].size)

    def subtree(self, k: int) -> Tree:
        return self.tree.children[0].children[k]

    def check_written(self, name: str, wiring: Wiring) -> None:
        """Raise AutodiffError where f writes to a copy, which the caller would not see."""
        for i in self.copies:
            if i in wiring.written or any(u.leaf == i for u in wiring.updates):
                raise AutodiffError(
                    f"{name}: it writes to an array in a byte order that is not this machine's. Pass "
                    'x.astype(x.dtype.newbyteorder("="))'
                )

    def sources(self, rec: Recording) -> tuple[list[int], list]:
        """(feed, outside) of a wiring with the inputs of the recorded graph."""
        return list(range(len(self.leaves))), rec.outside

    def recorded(self) -> bool:
        return recorder.current() is not None or any(type(x) is Recorded for x in self.leaves)


def plain_array(x: Any) -> Any:
    """An argument as programs take it: np.memmap as a plain view, another byte order as a copy."""
    if not isinstance(x, np.ndarray) or type(x) is np.ndarray and x.dtype.isnative:
        return x
    return np.asarray(x, native(x.dtype)) if computes_as_ndarray(x) else x


def leaf_key(x: Any) -> tuple:
    """The type of an argument: all that a program depends on but its numbers."""
    if isinstance(x, np.ndarray):
        return type(x), x.dtype, x.dtype.metadata is None, x.shape, layout(x)
    return (type(x), x.dtype) if isinstance(x, np.generic) else (type(x), getattr(x, "shape", None))


def layout(x: np.ndarray) -> bool | tuple[int, ...]:
    """C-contiguous or not: whether a reshape is a view, and so what a write through it reaches."""
    return x.flags.c_contiguous or x.strides


class Transform:
    """A way to derive a function from another, such as Grad.

    `name` is the public one; the derived function is called f_<suffix>.
    """

    name = "compile"
    suffix = "compiled"
    takes_out = True
    differentiates = True
    reverse = False  # reverse mode, in which equal parts of the graph are differentiated once

    def key(self) -> tuple:
        """Equal for transforms that make the same wiring of the same recording."""
        return (type(self),)

    def function(self, f: Callable) -> Callable:
        return f

    def split(self, call: Arguments) -> tuple[tuple, dict]:
        return call.args, call.kwargs

    def check(self, call: Arguments, f: Callable) -> None:
        """Raise AutodiffError if f cannot be recorded because of its arguments."""

    def wiring(self, rec: Recording, call: Arguments, f: Callable) -> Wiring:
        raise NotImplementedError

    # A transform that needs more than one program (vjp) replaces these.
    def compile(self, wiring: Wiring, pipeline: Pipeline, scalar: bool) -> Any:
        """The last stages: what `execute` takes as its program."""
        title = "simplified again" if self.differentiates else "simplified"
        return pipeline.program(wiring.graph, scalar=scalar, title=title)

    def execute(
        self, program: Callable, wiring: Wiring, leaves: Sequence, outside: Sequence, out: Any
    ) -> Any:
        results = program(*(leaves[i] for i in wiring.feed), *outside, out=out)
        return finish(wiring, leaves, results)

    def uncompiled(self, wiring: Wiring) -> Any:
        """The program of a graph that was never seen before and may never be again."""
        return Interpreted(wiring.graph)

    def inline(self, wiring: Wiring, leaves: Sequence) -> Any:
        """The result as values of the enclosing recording."""
        results = inline(wiring.graph, wiring.operands(leaves))
        for u in wiring.updates:
            x, new = leaves[u.leaf], results[u.index]
            x[...] = x + new if u.added else new
        return wiring.result(results)


class Interpreted:
    """A graph that is not compiled, called like a program. Its source is its text."""

    def __init__(self, graph: Graph):
        self.graph = graph

    @property
    def source(self) -> str:
        return str(self.graph)

    def __call__(self, *arrays: Any, out: Sequence | None = None) -> list:
        results = [np.array(r) for r in evaluate_graph(self.graph, arrays)]  # in memory of their own
        for k, buffer in enumerate(out or ()):
            if buffer is not None:
                np.copyto(buffer, results[k])
                results[k] = buffer
        return results


def finish(wiring: Wiring, leaves: Sequence, results: Sequence) -> Any:
    for u in wiring.updates:
        x = leaves[u.leaf]
        if u.added:
            np.add(x, results[u.index], out=x)
        else:
            np.copyto(x, results[u.index])
    return wiring.result(results)


def as_kind(value: Any, kind: str) -> Any:
    if kind == ARRAY:
        return np.asarray(value) if type(value) in SCALARS else value
    if type(value) is Recorded:
        return Recorded(value._rec, value.node, np.asarray(value.value).item()) if kind == NUMBER else value
    if type(value) in SCALARS:  # from a program of `math` code
        return np.asarray(value)[()] if kind == SCALAR else value
    return value[()] if kind == SCALAR else value.item()


def rebuilt(tree: Tree, leaves: Sequence, kinds: Iterable[str]) -> Any:
    return unflatten(tree, list(map(as_kind, leaves, kinds)))


def result_kind(x: Any) -> str:
    """The kind of Out for a result like this one."""
    value = value_of(x)
    if isinstance(value, np.ndarray):
        return ARRAY
    return SCALAR if isinstance(value, np.generic) else NUMBER


def result_outs(rec: Recording) -> list[Out]:
    return [Out(i, result_kind(x)) for i, x in enumerate(result_leaves(rec))]


def result_leaves(rec: Recording) -> list:
    """The concrete results, flat; flatten would treat one that is a Python int as static."""
    return rec.out_tree.leaves_of(rec.results)


def select(wiring: Wiring) -> Wiring:
    """The wiring with only those outputs of the graph that the result needs."""
    used = sorted({o.index for o in wiring.outs} | {u.index for u in wiring.updates})
    new_index = {old: new for new, old in enumerate(used)}
    graph = Graph(wiring.graph.inputs, [wiring.graph.outputs[i] for i in used], wiring.graph.name)
    outs = [replace(o, index=new_index[o.index]) for o in wiring.outs]
    updates = [replace(u, index=new_index[u.index]) for u in wiring.updates]
    return replace(wiring, graph=graph, outs=outs, updates=updates)


# --- output buffers


def output_buffers(name: str, wiring: Wiring, out: Any, leaves: Sequence = ()) -> tuple | None:
    """The arrays of `out`, which has the structure of the result, in the order of the graph's outputs."""
    if out is None:
        return None
    chosen: list = [None] * len(wiring.graph.outputs)
    for o, buffer, path in matched_buffers(name, wiring, out):
        node = wiring.graph.outputs[o.index]
        if o.kind == NUMBER:
            raise AutodiffError(f"{name}: out{path} stands for a Python number, which cannot be written into")
        if type(buffer) is not np.ndarray or buffer.shape != node.shape or buffer.dtype != node.dtype:
            got = repr(buffer)
            if isinstance(buffer, np.ndarray):
                got = f"an array of shape {buffer.shape} and dtype {buffer.dtype}"
            raise AutodiffError(
                f"{name}: out{path} is {got}, expected an array of shape {node.shape} and dtype {node.dtype}"
            )
        if not buffer.flags.writeable:
            raise AutodiffError(f"{name}: out{path} is read-only. Pass an array that can be written to")
        chosen[o.index] = buffer
    check_apart(name, [*chosen, *(leaves[u.leaf] for u in wiring.updates)], len(wiring.updates))
    return tuple(chosen)


def check_apart(name: str, buffers: Sequence, n_updated: int = 0) -> None:
    """Raise if two buffers of out= share memory. The last n_updated are arguments that are written to."""
    pair = overlapping(buffers)
    if pair is None:
        return
    first, second = pair
    other = "an argument that it writes to" if second >= len(buffers) - n_updated else "another one"
    shares = "whose own elements share memory" if first == second else f"that shares memory with {other}"
    raise AutodiffError(f"{name}: out has a buffer {shares}. Pass arrays that lie apart")


def matched_buffers(name: str, wiring: Wiring, out: Any) -> Iterator[tuple[Out, Any, str]]:
    """(leaf of the result, what `out` has for it, the path to it), without those for which it has None."""

    def fail(path, expected, got):
        raise AutodiffError(f"{name}: out{path} is {got!r}, expected {expected}, like the result")

    for leaf, buffer, path in matched(numbered(wiring.tree), out, fail):
        if isinstance(leaf, Leaf) and buffer is not None:
            yield wiring.outs[leaf.index], buffer, path


def parameters_of(f: Callable) -> list[str]:
    """The names of f's parameters, as far as they are known."""
    try:
        return list(inspect.signature(f).parameters)
    except (TypeError, ValueError):
        return []


def argument_text(f: Callable, k: int, path: Sequence = ()) -> str:
    """The argument as the user would name it: `params['w']`."""
    names = parameters_of(f)
    text = names[k] if k < len(names) else f"argument {k}"
    return text + "".join(f"[{p!r}]" for p in path)


def check_overlap(name: str, written: Sequence[int], leaves: Sequence, outside: Sequence = ()) -> None:
    """Raise if an argument that is written to shares memory with another array: two in a recording."""
    leaves, outside = [list(map(value_of, part)) for part in (leaves, outside)] if written else ((), ())
    for i in written:
        for k, x in enumerate((*leaves, *outside)):
            if k != i and isinstance(x, np.ndarray) and np.may_share_memory(x, leaves[i]):
                other = "another argument" if k < len(leaves) else "an array that it reads from outside"
                raise AutodiffError(
                    f"{name}: it writes to an argument that shares memory with {other}. Pass a copy of "
                    "one of them"
                )
