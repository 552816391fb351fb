"""Derived functions: what `ad.grad(f)` and the other transforms return, from the call down to the program.

    call -> same types as last time?   yes: the program, at once (fast_path.py)
                                       no:  look up the types of the arguments, record f if they are new,
                                            make the transform's graph, compile it

A Transform says what to compute for a recording, as a Wiring: a graph, where its inputs come from, and how
its outputs make up the result. While an enclosing function is being recorded nothing is compiled: the
wiring's graph becomes part of the enclosing one.

Programs are found by two keys. The first, of a derived function, is the types of the arguments, and counts as
long as the guard of the recording holds (reuse/guard.py). The second is the recorded graph: a function that
has to be recorded at every call (it draws random numbers, it branches on values, it is a new lambda each
time) usually gives the same graph, and then only the recording is repeated, not the compilation.
"""

from __future__ import annotations

import functools
import html
import inspect
import operator
import sys
import threading
import time
import types
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..errors import AutodiffError
from ..graph import Graph, Node, rewrite, type_text
from ..ops import input_node
from ..pipeline import Pipeline, uncollected
from ..record.bytecode import CATCHES, catches, reads
from ..record.draws import Draws, again, seen
from ..record.record import Recording, record
from ..record.recording import layout_of
from ..reuse.cache import Cache
from ..reuse.conditions import MOST, Path, Questions, are_one, path_of, share_memory
from ..reuse.guard import Guard, never, trust
from ..reuse.kinds import cannot_change
from ..reuse.same_code import SameCode, records, same_code_of
from ..reuse.watch import watch
from ..switches import overrides
from ..tree import Tree, flatten
from .families import Found, shared_programs
from .fast_path import make_entry
from .programs import Key, memory_of, structure
from .transform import (
    Arguments,
    Transform,
    Wiring,
    check_overlap,
    leaf_key,
    output_buffers,
    result_kind,
    result_leaves,
)

CALLS_BETWEEN_LOOKS = 63  # calls between two looks at a function that cannot be followed
FIRST = "this was its first call, and most functions of its kind are called once"
OF_KIN = "its first call used what was recorded for another function of the same code"
CHANGING = "it returns an object that can be changed"
CHANGES = "what it reads is different at almost every call"
EXCHANGED = "; its program stays, and the numbers are exchanged in it"


@dataclass
class Compiled:
    """A program for one combination of argument types."""

    wiring: Wiring
    program: Any
    outside: list
    guard: Guard
    path: Path | None = None
    draws: list = field(default_factory=list)  # as in a Recording
    graph: Graph | None = None  # and the recorded graph that they are of, where there are any
    entries: dict = field(default_factory=dict)  # what `out` is like -> fast entry
    asked: list | None = None  # what it was given besides arrays, where the function asks by `is`
    questions: Questions | None = None

    def accepts(self, call: Arguments) -> bool:
        """Whether a call with arguments of these types may have it."""
        if self.asked is not None:
            given = call.as_they_are()
            if len(given) != len(self.asked) or not all(map(operator.is_, given, self.asked)):
                return False
        if self.questions is not None and not self.questions.alike(call.leaves, self.outside):
            return False
        return self.path is None or self.path.taken(call.leaves, self.outside)

    def entry(self, derived: Derived, call: Arguments, out: Any) -> Callable:
        """The fast entry for calls like this one, written when it is first wanted."""
        leaves, tree = flatten(out)
        key = tree, tuple(map(leaf_key, leaves))
        if key not in self.entries:
            self.entries[key] = make_entry(derived, self, call, out)
        return self.entries[key]

    def drawn(self, leaves: list) -> list:
        """The operands from outside, with fresh random numbers."""
        if not self.draws or self.graph is None:
            return self.outside
        operands = [*leaves, *self.outside]
        again(self.draws, self.graph.inputs, operands)
        return operands[len(leaves) :]


class Derived:
    """The state behind one derived function."""

    def __init__(self, f: Callable, transform: Transform, pure: bool = False):
        if not callable(f):
            raise TypeError(f"{transform.name}: expected a function, got {f!r}")
        self.f = f
        self.transform = transform
        self.pure = pure
        self.name = f"{name_of(f)}_{transform.suffix}"
        self.cache = Cache()
        self.ways: dict = {}  # key -> how many paths and worlds were met
        self.last: tuple[Wiring, Any] | None = None  # the wiring that ran last, and its program if it has one
        self.why: str | None = None  # why the last recording may not be used again
        self.doubts = 0  # how many calls will be recorded before reuse is considered again
        self.doubt: str | None = None  # and why
        self.by_is = False  # does it ask by `is` for what may be an argument?
        self.plain_draws = False  # does it need plain random numbers?
        self.entry = self.slow
        self.first = True  # was it never called?
        # where its next recording is kept for others of its code
        self.same_code: tuple[tuple, SameCode] | None = None
        # Is its first call neither watched nor compiled?
        self.waits = getattr(f, "compiles_when_called_again", False)
        self.takes_out = transform.takes_out and not _has_parameter(f, "out")

    def __reduce__(self):
        return Derived, (self.f, self.transform, self.pure)

    def _reuse_roots(self):
        return (self.f,)

    def slow(self, args: tuple, kwargs: dict) -> Any:
        """Any call: the one that sets up the fast entry for the next."""
        out = None
        if self.takes_out and "out" in kwargs:
            kwargs = dict(kwargs)
            out = kwargs.pop("out")
        call = Arguments.of(args, kwargs)
        if call.recorded():
            return self.within(call, out)
        key = call.key()
        self.entry = self.slow  # whatever runs last is what the entry leads to, and what ad.source shows
        compiled = self.cache.find(key, lambda c: c.accepts(call))
        outside = None if compiled is None else compiled.drawn(call.leaves)
        if compiled is None:
            compiled = self.of_same_code(call, key) or self.compiled(call, key)
            if isinstance(compiled, Wiring):
                self.last = compiled, None
                call.check_written(self.name, compiled)
                buffers = self.buffers(compiled, out, call.leaves)
                return self.transform.interpret(compiled, call.leaves, buffers)
        self.last = compiled.wiring, compiled.program
        call.check_written(self.name, compiled.wiring)
        outside = compiled.outside if outside is None else outside  # recorded just now: it has drawn already
        check_overlap(self.name, compiled.wiring.written, call.leaves, outside)
        buffers = self.buffers(compiled.wiring, out, call.leaves)
        result = self.transform.execute(compiled.program, compiled.wiring, call.leaves, outside, buffers)
        if compiled.guard.trouble is None and not overrides() and not compiled.draws:
            self.entry = compiled.entry(self, call, out)
        return result

    def of_same_code(self, call: Arguments, key: tuple) -> Compiled | None:
        """At its first call: what was recorded for another function that the same code made."""
        first, self.first = self.first, False
        same_code = None if not first or self.pure or overrides() else same_code_of(self.f)
        if same_code is None:
            return None
        where = same_code.key, self.transform.key(), key
        found = records.find(where, same_code, lambda c: c.accepts(call))
        if found is not None:
            self.waits = False
            return replace(found, guard=Guard(OF_KIN, never), entries={})  # at its second call it is recorded
        if records.is_time(where):
            self.waits, self.same_code = False, (where, same_code)
        return None

    def within(self, call: Arguments, out: Any) -> Any:
        """A call inside a function that is itself being recorded."""
        if out is not None:
            raise AutodiffError(
                f"{self.transform.name}: out= writes into plain arrays, which a function that is "
                "being differentiated cannot do; use the result"
            )
        wiring = self.wiring(call)
        check_overlap(self.name, wiring.written, call.leaves, wiring.outside)
        return self.transform.inline(wiring, call.leaves)

    def wiring(self, call: Arguments, rec: Recording | None = None) -> Wiring:
        if rec is None:
            rec = record(self.transform.function(self.f), *self.transform.split(call))
        wiring = self.transform.wiring(rec, call, self.f)
        wiring.written = tuple(rec.written)
        return wiring

    @uncollected
    def built(self, call: Arguments, rec: Recording, pipeline: Pipeline, scalar: bool) -> tuple[Wiring, Any]:
        """The wiring of a recording, and its program: all stages, one after the other."""
        wiring = self.derived_wiring(call, rec, pipeline, scalar)
        return wiring, self.transform.compile(wiring, pipeline, scalar)

    def derived_wiring(self, call: Arguments, rec: Recording, pipeline: Pipeline, scalar: bool) -> Wiring:
        if not self.transform.differentiates:
            return self.wiring(call, rec)
        rec = replace(rec, graph=pipeline.simplified(rec.graph, alike=self.transform.reverse and not scalar))
        return pipeline.differentiated(self.wiring, call, rec)

    def compiled(self, call: Arguments, key: tuple) -> Compiled | Wiring:
        """Records the call anew, and compiles it; a Wiring alone where that is not worth it."""
        same_code, self.same_code = self.same_code, None
        pipeline = Pipeline(self.name, key[-1])
        rec, guard, path, scalar = self.recorded(call, key, pipeline)
        kinds = tuple(map(result_kind, result_leaves(rec)))
        changing = is_changing(rec.out_tree)
        tree = without_objects(rec.out_tree) if changing else rec.out_tree
        graph_key = Key(structure(rec.graph), tree, kinds, tuple(rec.written), self.transform.key(), key)

        def make(graph: Graph) -> Found:
            wiring, program = self.built(call, replace(rec, graph=graph), pipeline, scalar)
            return Found(None if changing else wiring.settled(), program, memory_of(program))

        found = shared_programs.find(rec.graph, graph_key, make)
        if found is None:
            if self.why is not None and not shared_programs.seen(graph_key):
                return self.wiring(call, rec)
            found = make(rec.graph)
            shared_programs.add(graph_key, found)
        elif found.exchanged and self.why is not None:
            self.why += EXCHANGED
        wiring, program, nbytes, _ = found
        if wiring is None:
            wiring = self.derived_wiring(call, rec, pipeline, scalar).settled()
        outside = [array for _, array in rec.captures]
        if self.why is not None:
            if same_code is not None:
                records.add(*same_code, Guard(self.why, never), None)
            return Compiled(wiring, program, outside, Guard(self.why, never))
        graph = rec.graph if rec.draws else None
        compiled = Compiled(wiring, program, outside, guard, path, rec.draws, graph)
        compiled.asked = call.as_they_are() if guard.by_identity else None
        if rec.asked or guard.by_is:
            layout = layout_of(call.leaves) if "layout" in rec.asked else None
            compiled.questions = Questions(layout, "memory" in rec.asked, guard.by_is, guard.met)
        self.cache.add(key, guard, compiled, nbytes)
        if same_code is not None and not rec.draws:
            records.add(*same_code, guard, compiled, nbytes)
        return compiled

    def stages(self, args: tuple, kwargs: dict, on_stage: Callable) -> None:
        """Record and compile for these arguments once more; on_stage gets what comes out of each stage."""
        fresh = Derived(self.f, self.transform, self.pure)
        call = Arguments.of(args, {k: v for k, v in kwargs.items() if k != "out" or not self.takes_out})
        key = call.key()
        pipeline = Pipeline(self.name, key[-1], on_stage)
        rec, _, _, scalar = fresh.recorded(call, key, pipeline)
        fresh.built(call, rec, pipeline, scalar)

    def recorded(
        self, call: Arguments, key: tuple, pipeline: Pipeline
    ) -> tuple[Recording, Guard, Path | None, bool]:
        """A recording, what says whether it may be used again, and whether all arguments are floats.

        It leaves in `why` what speaks against using it again.
        """
        begin = time.perf_counter()
        args, kwargs = self.transform.split(call)
        if len(self.ways) > self.cache.size:
            self.ways.clear()
        self.ways[key] = self.ways.get(key, 0) + 1
        try:
            rec, guard = self.watched(call, key, args, kwargs)
        except AutodiffError:
            raise
        except Exception:
            self.transform.check(call, self.f)
            raise
        check_overlap(self.name, rec.written, call.leaves, [array for _, array in rec.captures])
        by_is = guard.by_is or self.by_is or self.pure and asks_by_is(self.f)
        if by_is and are_one(call.leaves, guard.met):
            raise AutodiffError(
                f"{self.name}: an array is passed twice, or passed and read from outside, and the function "
                "asks by `is` whether two things are one: a recording takes it for two. Pass a copy"
            )
        scalar = all(type(x) is float for x in call.leaves) and not rec.captures
        path, self.why = None, guard.trouble or self._trouble(rec, call)
        if self.why is None and rec.value_dependent:
            path, self.why = self._path(rec, key, scalar)
        if self.why is not None:
            rec = with_constants_as_inputs(rec)
        new = "it reads other values, or goes another way" if key in self.cache else "new types of arguments"
        pipeline.recorded(rec.graph, time.perf_counter() - begin, self.why or new)
        return rec, guard, path, scalar

    def watched(self, call: Arguments, key: tuple, args: tuple, kwargs: dict) -> tuple[Recording, Guard]:
        """A recording, and the guard of what it read."""
        if self.pure:
            rec = self.drawing(args, kwargs)
            changing = is_changing(rec.out_tree)
            return rec, Guard(CHANGING, never) if changing else trust()
        if self.waits:
            self.waits = False
            return self.drawing(args, kwargs), Guard(FIRST, never)
        if self.doubts:  # most likely it is as it was a moment ago, and to record anew is always right
            self.doubts -= 1
            return self.drawing(args, kwargs), Guard(self.doubt, never)
        held = [x for x in call.tree.objects() if type(x) is not np.random.Generator]
        rec, guard = self.drawing(args, kwargs, held)
        self.by_is |= guard.by_is
        self.doubt = guard.trouble or (CHANGES if self.ways[key] > MOST else None)
        self.doubts = CALLS_BETWEEN_LOOKS if self.doubt else 0
        return rec, guard

    def drawing(self, args: tuple, kwargs: dict, roots: Sequence | None = None) -> Any:
        """A recording in which random numbers are inputs, if the function can do with that; with `roots` it
        is watched, and its guard comes with it.
        """
        function = self.transform.function(self.f)

        def recorded(draws: Draws | None) -> tuple:
            if roots is None:
                return record(function, args, kwargs, draws=draws), None
            return watch(lambda: record(function, args, kwargs, draws=draws), self.f, *roots)

        rec, world = recorded(None) if self.plain_draws else self.noting_draws(recorded)
        if world is None:
            return rec
        if world.wrong is not None:
            raise world.wrong
        world.returns(rec.out_tree.objects())
        return rec, world.guard()

    def noting_draws(self, recorded: Callable) -> Any:
        """recorded(draws); or recorded(None), with generators put back, where that fails: the function makes
        more of a random number than can be recorded, or is at fault itself.
        """
        draws, first = Draws(), None
        try:
            return seen(self.f, draws, recorded)
        except Exception as error:
            if not draws.made:
                raise
            first = error
        draws.rewind()
        try:
            found = recorded(None)
        except AutodiffError:
            raise first from None
        self.plain_draws = True
        return found

    def _trouble(self, rec: Recording, call: Arguments) -> str | None:
        if rec.unstable:
            return rec.unstable[0]
        if "memory" in rec.asked and share_memory(call.leaves, [array for _, array in rec.captures]):
            return "it asks which arrays share memory, and some do"
        if any(x.dtype.metadata is not None for x in call.leaves if isinstance(x, np.ndarray)):
            return "an argument has a dtype with metadata"
        if self.pure:
            code = getattr(self.f, "__code__", None)
            return CATCHES if code is not None and catches(code) else None
        return None

    def _path(self, rec: Recording, key, scalar: bool) -> tuple[Path | None, str | None]:
        """The path of a recording that looked at values; or None, and why it is of no use."""
        if self.ways[key] > MOST:
            return None, "it looks at recorded values, and finds others at almost every call"
        path = path_of(rec, scalar)
        return (
            path,
            None if path else "it looks at results of arithmetic on recorded values, as `if x * x > 2` does",
        )

    def buffers(self, wiring: Wiring, out: Any, leaves: Sequence) -> tuple | None:
        """The caller's buffers in the order of the graph's outputs, or None."""
        return None if out is None else output_buffers(self.transform.name, wiring, out, leaves)


def asks_by_is(f: Callable) -> bool:
    """Whether the code of f itself asks by `is` for what is no name of a module's."""
    code = getattr(f, "__code__", None)
    return code is not None and () in reads(code).asked_for


def is_changing(tree: Tree) -> bool:
    """Whether a result of this structure holds what can be changed, and is not an array or a container."""
    return not all(map(cannot_change, tree.objects()))


def without_objects(tree: Tree) -> Tree:
    """The structure without what it holds besides leaves: equal for results of the same program."""
    if tree.is_leaf:
        return tree
    if tree.is_static:
        return Tree.static(type(tree.value))
    return Tree(tree.type, tree.keys, tuple(map(without_objects, tree.children)), tree.size)


def with_constants_as_inputs(rec: Recording) -> Recording:
    """The recording with its constant arrays as captured ones. The next recording of a function that draws
    random arrays, or selects by a mask, then has the same graph, and its program can be used again.
    """
    found: list[tuple[Node, np.ndarray]] = []

    def lifted(n: Node, args):
        if n.op != "const" or not n.shape:
            return None
        found.append((input_node(n.shape, n.dtype, n.name), n.value))
        return found[-1][0]

    graph = rewrite(rec.graph, lifted)
    graph = Graph([*graph.inputs, *(node for node, _ in found)], graph.outputs, graph.name)
    return replace(rec, graph=graph, captures=[*rec.captures, *found])


class DerivedFunction(functools.partial):
    """What the user gets: a callable that looks like a function, and can be pickled where f can.

    A partial object calls its function from C, so that this costs a call no more than a plain function would.
    """

    __derived__: Derived

    def __reduce__(self):
        state = self.__derived__
        found: Any = sys.modules.get(self.__module__)
        for name in self.__wrapped__.__qualname__.split("."):
            found = getattr(found, name, None)
        if found is self:  # a decorator put it where f was, and that is how pickle finds it
            return self.__wrapped__.__qualname__
        return derived_function, (state.f, state.transform, state.pure)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self  # as of any function

    def _reuse_roots(self):
        return (self.__derived__.f,)

    def __get__(self, instance, owner=None):
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self):
        state = self.__derived__
        made = "not called yet"
        if state.last is not None:
            inputs = state.last[0].graph.inputs
            made = "last called with " + ", ".join(f"{n.name or 'an array'}: {type_text(n)}" for n in inputs)
        return f"<{self.__name__}: ad.{state.transform.name}({name_of(state.f)}), {made}>"

    def _repr_html_(self):
        """What a notebook shows: the program that ran last."""
        program = self.__derived__.last and self.__derived__.last[1]
        told = f"<code>{html.escape(repr(self))}</code>"
        return told + (program._repr_html_() if hasattr(program, "_repr_html_") else "")


def derived_function(f: Callable, transform: Transform, pure: bool = False) -> DerivedFunction:
    """The function that the user gets."""
    state = Derived(f, transform, pure)

    def call(*args, **kwargs):
        return state.entry(args, kwargs)

    call.__derived__ = state
    derived = DerivedFunction(call)
    derived.__name__ = derived.__qualname__ = state.name
    derived.__module__ = getattr(f, "__module__", __name__)
    derived.__doc__ = (
        f"{transform.name} of {name_of(f)}, made by gpt2.autodiff.\n\n{inspect.getdoc(f) or ''}".rstrip()
    )
    derived.__wrapped__ = f
    derived.__derived__ = state
    return derived


_STATES = "__autodiff_states__"
_bound: OrderedDict = OrderedDict()  # the same for bound methods, which are made anew at every access
_bound_lock = threading.Lock()


def derived_of(f: Callable, transform: Transform, pure: bool = False) -> Derived:
    """The Derived of (f, transform), for what is called with f itself: ad.vjp(f, ...), ad.autodiff(f, ...).

    It is kept with the function itself, so that it goes when that goes. For functions made inside of
    functions it is kept from the second call on: a lambda that is called once leaves nothing behind.
    """
    key = transform.key(), pure
    try:
        state = f.__dict__[_STATES][key]
        if state is not None and state.f is f:
            return state
    except (AttributeError, KeyError):
        pass
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
    if key not in states and "<locals>" in getattr(f, "__qualname__", "<locals>"):
        states[key] = None
        return Derived(f, transform, pure)
    state = states.get(key)
    if state is None or state.f is not f:  # functools.wraps copies attributes to another function
        state = Derived(f, transform, pure)
        f.__dict__[_STATES] = {**states, key: state}
    return state


def name_of(f: Callable) -> str:
    name = getattr(f, "__name__", None) or type(f).__name__
    return name if name.isidentifier() else "f"


def _has_parameter(f, name: str) -> bool:
    try:
        return name in inspect.signature(f).parameters
    except (TypeError, ValueError):
        return False
