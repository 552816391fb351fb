"""Derived functions: what `ad.grad(f)` and its kin return, from the call down to the program.

    call -> same types as last time?   yes: the program, at once (entry.py)
                                       no:  look up the types of the arguments, record f if they are new,
                                            make the transform's graph, compile it

A Transform says what to compute for a recording, as a Plan: a graph, and how its outputs make up the result. While an
enclosing function is being recorded nothing is compiled: the plan's graph becomes part of the enclosing one.

Programs are found by two keys. The first, of a derived function, is the types of the arguments, and counts as long
as the guard of the recording holds (reuse.py). The second is the recorded graph itself: a function that has to be
recorded at every call (it draws random numbers, it branches on values, it is a new lambda each time) usually gives the
same graph, and then only the recording is repeated, not the compilation.
"""

from __future__ import annotations

import inspect
import threading
import types
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from . import run
from .entry import make_entry
from .errors import AutodiffError
from .graph import Graph, Node
from .interpret import evaluate_graph
from .pipeline import current_options, optimised_program, overrides
from .record import Recorded, Recording, inline, record
from .reuse import Cache, Guard, random_state, trust, watch
from .tree import LEAF, Tree, flatten, unflatten

# What a result is given back as: kinds of Out
ARRAY, SCALAR, NUMBER, CONSTANT = "array", "scalar", "number", "constant"


@dataclass(frozen=True)
class Out:
    """A leaf of the result: output `index` of the graph, as an array, a NumPy scalar, or a Python number."""

    index: int
    kind: str = ARRAY


@dataclass
class Plan:
    """What to compute. The graph's inputs are the call's leaves numbered in `feed`, then the captured arrays (and,
    in an enclosing recording, lifted values) in `outside`."""

    graph: Graph
    feed: list[int]
    outside: list
    tree: Tree
    outs: list[Out]
    writes: list[tuple[int, int]] = field(default_factory=list)  # (leaf of the call, output that is its new content)

    def operands(self, leaves) -> list:
        return [*(leaves[i] for i in self.feed), *self.outside]


@dataclass
class Call:
    """The arguments of one call, taken apart."""

    args: tuple
    kwargs: dict
    leaves: list
    tree: Tree

    @classmethod
    def of(cls, args: tuple, kwargs: dict) -> Call:
        return cls(args, kwargs, *flatten((args, kwargs)))

    def key(self) -> tuple:
        return self.tree, tuple(map(leaf_key, self.leaves)), current_options()

    def places(self, k: int, of: tuple = (0,)) -> range:
        """Which leaves belong to positional argument k."""
        sizes = [_size(spec) for spec in self.tree.spec[2][0][2]]
        start = sum(sizes[:k])
        return range(start, start + sizes[k])

    def subtree(self, k: int) -> Tree:
        spec = self.tree.spec[2][0][2][k]
        return Tree(spec, _size(spec))

    def recorded(self) -> bool:
        return run.current() is not None or any(type(x) is Recorded for x in self.leaves)


def _size(spec) -> int:
    if spec is LEAF:
        return 1
    return 0 if spec[0] == "static" else sum(map(_size, spec[2]))


def leaf_key(x) -> tuple:
    """What a program depends on in an argument: all but its numbers."""
    if type(x) is np.ndarray:
        return np.ndarray, x.dtype, x.shape, layout(x)
    return (type(x), x.dtype) if isinstance(x, np.generic) else (type(x), getattr(x, "shape", None))


def layout(x: np.ndarray):
    """C-contiguous or not: whether a reshape is a view, and so what a write through it reaches."""
    return x.flags.c_contiguous or x.strides


class Transform:
    """What is derived from a function. `name` is the public one; the derived function is called f_<suffix>."""

    name = "compile"
    suffix = "compiled"
    takes_out = True
    writes_back = False  # do arguments that f writes to change in the caller's hands?

    def key(self) -> tuple:
        """Equal for transforms that make the same plan of the same recording."""
        return (type(self),)

    def split(self, call: Call) -> tuple[tuple, dict]:
        """The part of the call that f is called with."""
        return call.args, call.kwargs

    def plan(self, rec: Recording, call: Call, f) -> Plan:
        raise NotImplementedError

    # A transform that needs more than one program (vjp) replaces these.
    def compile(self, plan: Plan, opts, name: str, scalar: bool):
        return optimised_program(plan.graph, opts, name, scalar)

    def execute(self, program, plan: Plan, leaves, outside, out):
        """The result, from a program."""
        results = program(*(leaves[i] for i in plan.feed), *outside, out=out)
        return finish(plan, leaves, results)

    def interpret(self, plan: Plan, leaves, out):
        """The result without compiling, for graphs that were never seen before and may never be again."""
        results = evaluate_graph(plan.graph, plan.operands(leaves))
        if out is None:
            results = [np.array(r) for r in results]
        else:
            results = [np.array(r) if b is None else _copy_into(b, r) for b, r in zip(out, results)]
        return finish(plan, leaves, results)

    def inline(self, plan: Plan, leaves):
        """The result as values of the enclosing recording."""
        results = inline(plan.graph, plan.operands(leaves))
        for leaf, index in plan.writes:
            leaves[leaf][...] = results[index]
        return unflatten(plan.tree, [as_kind(results[o.index], o.kind) for o in plan.outs])


def _copy_into(buffer, value):
    np.copyto(buffer, value)
    return buffer


def finish(plan: Plan, leaves, results):
    for leaf, index in plan.writes:
        np.copyto(leaves[leaf], results[index])
    return unflatten(plan.tree, [as_kind(results[o.index], o.kind) for o in plan.outs])


def as_kind(value, kind: str):
    if kind == ARRAY:
        return value
    if type(value) is Recorded:
        return Recorded(value._rec, value.node, np.asarray(value.value).item()) if kind == NUMBER else value
    if type(value) in (float, bool, complex, int):
        return value
    return value[()] if kind == SCALAR else value.item()


def result_kind(x) -> str:
    """How a result like this one is given back."""
    value = x.value if type(x) is Recorded else x
    if isinstance(value, np.ndarray):
        return ARRAY
    return SCALAR if isinstance(value, np.generic) else NUMBER


@dataclass
class Compiled:
    """A program for one combination of argument types."""

    plan: Plan
    program: Any
    outside: list
    guard: Guard
    entries: dict = field(default_factory=dict)  # whether `out` is given -> fast entry


class Derived:
    """The state behind one derived function."""

    def __init__(self, f: Callable, transform: Transform, pure: bool = False):
        if not callable(f):
            raise TypeError(f"{transform.name}: expected a function, got {f!r}")
        self.f = f
        self.transform = transform
        self.pure = pure
        self.name = f"{_name_of(f)}_{transform.suffix}"
        self.cache = Cache()
        self.last: Compiled | None = None
        self.why: str | None = None  # why the last recording may not be used again
        self.entry = self.slow
        self.takes_out = transform.takes_out and not _has_parameter(f, "out")

    def _reuse_roots(self):
        return (self.f,)

    def slow(self, args: tuple, kwargs: dict):
        """Any call: the one that sets up the fast entry for the next."""
        out = None
        if self.takes_out and "out" in kwargs:
            kwargs = dict(kwargs)
            out = kwargs.pop("out")
        call = Call.of(args, kwargs)
        if call.recorded():
            return self.within(call, out)
        key = call.key()
        compiled = self.cache.find(key)
        if compiled is None:
            compiled = self.compiled(call, key)
            if isinstance(compiled, Plan):
                return self.transform.interpret(compiled, call.leaves, self.buffers(compiled, out))
        self.last = compiled
        result = self.transform.execute(compiled.program, compiled.plan, call.leaves, compiled.outside,
                                        self.buffers(compiled.plan, out))  # fmt: skip
        if compiled.guard.trouble is None and not overrides:
            self.entry = make_entry(self, compiled, call, out)
        return result

    def within(self, call: Call, out):
        """A call inside a function that is itself being recorded."""
        if out is not None:
            raise AutodiffError(f"{self.transform.name}: out= writes into plain arrays, which a function that is "
                                "being differentiated cannot do; use the result")  # fmt: skip
        plan = self.plan(call)
        return self.transform.inline(plan, call.leaves)

    def plan(self, call: Call, rec: Recording | None = None) -> Plan:
        if rec is None:
            rec = record(self.f, *self.transform.split(call))
        return self.transform.plan(rec, call, self.f)

    def compiled(self, call: Call, key) -> Compiled | Plan:
        """Record anew. A Plan means: not worth compiling."""
        args, kwargs = self.transform.split(call)
        guard = self.guard(call)
        before = random_state() if not self.pure else None
        rec = record(self.f, args, kwargs)
        self.why = guard.trouble or self._trouble(rec, before, guard)
        kinds = tuple(map(result_kind, flatten(rec.results)[0]))
        graph_key = (structure(rec.graph), rec.out_tree, kinds, tuple(rec.written), self.transform.key(), key)
        found = _programs.find(graph_key)
        if found is None:
            plan = self.plan(call, rec)
            if self.why is not None and not _programs.seen(graph_key):
                return plan
            scalar = all(type(x) is float for x in call.leaves) and not plan.outside
            program = self.transform.compile(plan, key[-1], self.name, scalar)
            _programs.add(graph_key, (replace(plan, outside=[]), program))
        else:
            plan, program = found
        outside = [array for _, array in rec.captures]
        if self.why is not None:
            return Compiled(plan, program, outside, Guard(self.why, _false, 0))
        compiled = Compiled(plan, program, outside, guard)
        self.cache.add(key, guard, compiled)
        return compiled

    def guard(self, call: Call) -> Guard:
        if self.pure:
            return trust()
        statics = static_objects(call.tree.spec)
        if not statics:
            known = self.cache.guard_that_holds()
            if known is not None:
                return known
        return watch(self.f, *statics)

    def _trouble(self, rec: Recording, before, guard: Guard) -> str | None:
        if rec.value_dependent:
            return "it looks at recorded values, as in `if x > 0`"
        if rec.unstable:
            return rec.unstable[0]
        if self.pure:
            return None
        if random_state() != before:
            return "it draws random numbers"
        return None if guard.holds() else "running it changes what it reads"

    def buffers(self, plan: Plan, out):
        """The caller's buffers in the order of the graph's outputs, or None."""
        return None if out is None else output_buffers(self.transform.name, plan, out)


def _false() -> bool:
    return False


def output_buffers(name: str, plan: Plan, out) -> tuple:
    leaves, tree = flatten(out)
    expected = unflatten(plan.tree, list(range(len(plan.outs))))
    chosen: list = [None] * len(plan.graph.outputs)
    for o, buffer, path in _matched(name, plan, expected, out):
        node = plan.graph.outputs[o.index]
        if buffer is None:
            continue
        if o.kind == NUMBER:
            raise AutodiffError(f"{name}: out{path} stands for a Python number, which cannot be written into")
        if type(buffer) is not np.ndarray or buffer.shape != node.shape or buffer.dtype != node.dtype:
            got = (f"an array of shape {buffer.shape} and dtype {buffer.dtype}" if isinstance(buffer, np.ndarray)
                   else repr(buffer))  # fmt: skip
            raise AutodiffError(f"{name}: out{path} is {got}, expected an array of shape {node.shape} and dtype "
                                f"{node.dtype}")  # fmt: skip
        chosen[o.index] = buffer
    return tuple(chosen)


def _matched(name: str, plan: Plan, expected, out, path: str = ""):
    """(Out, buffer or None, path) for each leaf of the result."""
    if out is None:
        return
    if isinstance(expected, int):
        yield plan.outs[expected], out, path
    elif isinstance(expected, dict):
        if not isinstance(out, dict) or out.keys() != expected.keys():
            raise AutodiffError(f"{name}: out{path} should be a dict with keys {list(expected)}")
        for k in expected:
            yield from _matched(name, plan, expected[k], out[k], f"{path}[{k!r}]")
    elif isinstance(expected, (tuple, list)):
        if not isinstance(out, (tuple, list)) or len(out) != len(expected):
            raise AutodiffError(f"{name}: out{path} should have {len(expected)} entries, like the result")
        for k, (e, o) in enumerate(zip(expected, out)):
            yield from _matched(name, plan, e, o, f"{path}[{k}]")


def static_objects(spec) -> list:
    """Static arguments that are more than numbers and names: functions, objects. They are watched like f itself."""
    if spec is LEAF:
        return []
    if spec[0] == "static":
        plain = spec[1] is None or isinstance(spec[1], (bool, int, str, bytes, type, np.dtype))
        return [] if plain else [spec[1]]
    return [x for child in spec[2] for x in static_objects(child)]


# --- the recorded graph as a key ----------------------------------------------------------------------------------


def structure(graph: Graph) -> tuple:
    """Equal for graphs that compute the same, whatever they are called and wherever they were written."""
    number: dict[Node, int] = {}
    rows: list = []
    for i, n in enumerate(graph.nodes):
        number[n] = i
        if n.op == "input":
            rows.append((n.shape, n.dtype))
        elif n.op == "const":
            v = n.value
            rows.append((n.shape, n.dtype, v.tobytes() if isinstance(v, np.ndarray) else repr(v)))
        else:
            attrs = tuple((k, _attr_key(v)) for k, v in n.attrs.items())
            rows.append((n.op, tuple([number[a] for a in n.args]), attrs, n.dtype))
    return tuple(rows), tuple([number[i] for i in graph.inputs]), tuple([number[o] for o in graph.outputs])


def _attr_key(v):
    if isinstance(v, Graph):
        return structure(v)
    if isinstance(v, (tuple, list)):
        return tuple(map(_attr_key, v))
    if isinstance(v, dict):
        return tuple((k, _attr_key(x)) for k, x in v.items())
    if hasattr(v, "structure"):
        return v.structure()
    return (type(v), v)  # 1 and True are equal


class _Programs:
    """Compiled graphs by their structure, and a note of structures seen once. Both bounded, oldest out first."""

    SIZE, NOTES = 256, 4096

    def __init__(self):
        self._lock = threading.Lock()
        self._programs: OrderedDict = OrderedDict()
        self._notes: OrderedDict = OrderedDict()

    def find(self, key):
        with self._lock:
            found = self._programs.get(key)
            if found is not None:
                self._programs.move_to_end(key)
            return found

    def add(self, key, value) -> None:
        with self._lock:
            self._programs[key] = value
            if len(self._programs) > self.SIZE:
                self._programs.popitem(last=False)

    def seen(self, key) -> bool:
        """Was this structure met before? From now on it was."""
        mark = hash(key)
        with self._lock:
            known = mark in self._notes
            self._notes[mark] = None
            if len(self._notes) > self.NOTES:
                self._notes.popitem(last=False)
            return known


_programs = _Programs()


# --- functions around Derived --------------------------------------------------------------------------------------


def derived_function(f: Callable, transform: Transform, pure: bool = False):
    """The function that the user gets."""
    state = Derived(f, transform, pure)

    def derived(*args, **kwargs):
        return state.entry(args, kwargs)

    derived.__name__ = derived.__qualname__ = state.name
    derived.__doc__ = f"{transform.name} of {_name_of(f)}, made by gpt2.autodiff.\n\n{inspect.getdoc(f) or ''}".rstrip()
    derived.__wrapped__ = f
    derived.__derived__ = state
    return derived


_STATES = "__autodiff_states__"
_bound: OrderedDict = OrderedDict()  # the same for bound methods, which are made anew at every access
_bound_lock = threading.Lock()


def derived_of(f: Callable, transform: Transform, pure: bool = False) -> Derived:
    """The Derived of (f, transform), for ad.vjp(f, ...), ad.autodiff(f, ...) and others that are called with f.

    It is kept with the function itself, from the second call on: a lambda that is called once leaves nothing behind,
    and what belongs to a function goes with it.
    """
    key = (*transform.key(), pure)
    if type(f) is types.MethodType:
        with _bound_lock:
            state = _bound.pop((f, key), None) or Derived(f, transform, pure)
            _bound[f, key] = state
            if len(_bound) > 32:
                _bound.popitem(last=False)
            return state
    try:
        states = f.__dict__.setdefault(_STATES, {})
    except AttributeError:  # a callable without attributes
        return Derived(f, transform, pure)
    if key not in states:
        states[key] = None
        return Derived(f, transform, pure)
    state = states[key]
    if state is None or state.f is not f:  # functools.wraps copies attributes to another function
        state = Derived(f, transform, pure)
        f.__dict__[_STATES] = {**states, key: state}
    return state


def _name_of(f) -> str:
    name = getattr(f, "__name__", None) or type(f).__name__
    return name if name.isidentifier() else "f"


def _has_parameter(f, name: str) -> bool:
    try:
        return name in inspect.signature(f).parameters
    except (TypeError, ValueError):
        return False


def argument_text(f, k: int, path: Sequence = ()) -> str:
    """How the user would name the argument: `params['w']`."""
    try:
        names = list(inspect.signature(f).parameters)
    except (TypeError, ValueError):
        names = []
    text = names[k] if k < len(names) else f"argument {k}"
    return text + "".join(f"[{p!r}]" for p in path)

