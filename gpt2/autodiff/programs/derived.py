"""Derived functions: what `ad.grad(f)` and the other transforms return, from the call down to the program.

    call -> same types as last time?   yes: the program, at once (fast_path.py)
                                       no:  look up the types of the arguments, record f if they are new,
                                            make the transform's graph, compile it

A Transform turns a recording into a Wiring: a graph, where its inputs come from, and how its outputs make up
the result. Inside a function that is being recorded nothing is compiled: the wiring's graph becomes part of
the enclosing one.

Programs are cached under two keys. The first, in each derived function, is the types of the arguments, and is
valid as long as the guard of the recording holds (reuse/guard.py). The second is the recorded graph: a
function that has to be recorded at every call (it draws random numbers, it branches on values, it is a new
lambda each time) usually gives the same graph, and then only the recording is repeated, not the compilation.
"""

from __future__ import annotations

import functools
import html
import inspect
import sys
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import AutodiffError
from ..graph import Graph, Node, rewrite, type_text
from ..ops import input_node
from ..pipeline import Pipeline, uncollected
from ..record.bytecode import CATCHES, catches, reads
from ..record.draws import Draws, with_drawings
from ..record.interception import local_stand_in
from ..record.record import Recording, record
from ..record.type_tests import compared
from ..record.value import Recorded
from ..reuse.cache import Cache, Store
from ..reuse.conditions import MOST, Path, path_of, repeats_array
from ..reuse.guard import Guard, never
from ..reuse.kinds import cannot_change
from ..reuse.same_code import SameCode, same_code_of, shared_recordings
from ..reuse.watch import relied_on, watch
from ..switches import overrides
from ..tracebacks import hide_frames
from ..tree import Tree
from .families import Key, SharedProgram, memory_of, shared_programs, structure
from .fast_path import Compiled, entry_for
from .wiring import Arguments, Transform, Wiring, check_overlap, output_buffers, parameters_of, result_outs

CALLS_BETWEEN_WATCHES = 63  # of a function that cannot be guarded
FIRST = "this was its first call, and most functions of its kind are called once"
SAME_CODE = "its first call used the recording of another function with the same code"
MUTABLE_RESULT = "it returns an object that can be changed"
CHANGES = "what it reads is different at almost every call"
OTHER_CONSTANTS = "; its program is reused with other constants"


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
        self.n_recordings: dict = {}  # key -> how often it was recorded
        self.last: tuple[Wiring, Any] | None = None  # the wiring that ran last, and its program if it has one
        self.why: str | None = None  # why the last recording cannot be reused
        self.calls_before_next_watch = 0  # calls that are recorded without watching
        self.why_unwatched: str | None = None
        self.tests_identity = False  # does it compare by `is` what may be an argument?
        self.plain_draws = False  # does it need plain random numbers?
        self.entry = self.slow
        self.first = True  # was it never called?
        # the key under which its next recording is shared with others of its code
        self.same_code: tuple[tuple, SameCode] | None = None
        # Is its first call neither watched nor compiled?
        self.waits = getattr(f, "compiles_when_called_again", False)
        self.takes_out = transform.takes_out and "out" not in parameters_of(f)

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
        inside = call.recorded()
        if inside and any(type(x) is Recorded for x in call.leaves):
            return self.call_inlined(call, out)
        key = call.key()
        self.entry = self.slow  # the entry and ad.source show what ran last
        compiled = self.cache.find(key, lambda c: c.accepts(call))
        if inside and (compiled is None or compiled.draws):
            return self.call_inlined(call, out)
        if compiled is not None:
            relied_on(compiled.guard)
            outside = compiled.drawn(call.leaves)
        else:
            compiled = self.from_same_code(call, key) or self.compiled(call, key)
            outside = compiled.outside  # recorded just now, with its draws
        wiring, program = compiled.wiring, compiled.program
        self.last = wiring, program
        call.check_written(self.name, wiring)
        buffers = output_buffers(self.transform.name, wiring, out, call.leaves)
        if program is None:
            program = self.transform.uncompiled(wiring)
        check_overlap(self.name, wiring.written, call.leaves, outside)
        result = self.transform.execute(program, wiring, call.leaves, outside, buffers)
        if outside is compiled.outside:
            compiled.let_draws_go()
        if compiled.guard.trouble is None and not overrides() and not compiled.draws:
            self.entry = entry_for(self.slow, self.name, self.transform, compiled, call, out)
        return result

    def from_same_code(self, call: Arguments, key: tuple) -> Compiled | None:
        """At its first call: the program of another function with the same code."""
        first, self.first = self.first, False
        same_code = None if not first or self.pure or overrides() else same_code_of(self.f)
        if same_code is None:
            return None
        shared_key = same_code.key, self.transform.key(), key
        compiled = shared_recordings.find(shared_key, same_code, lambda c: c.accepts(call))
        if compiled is not None:
            self.waits = False
            # at its second call it is recorded
            return replace(compiled, guard=Guard(SAME_CODE, never), entries={})
        if shared_recordings.is_time(shared_key):
            self.waits, self.same_code = False, (shared_key, same_code)
        return None

    def call_inlined(self, call: Arguments, out: Any) -> Any:
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

    def built(self, call: Arguments, rec: Recording, pipeline: Pipeline, scalar: bool) -> tuple[Wiring, Any]:
        """The wiring of a recording, and its program: all stages, one after the other."""
        wiring = self.derived_wiring(call, rec, pipeline, scalar)
        return wiring, self.transform.compile(wiring, pipeline, scalar)

    def derived_wiring(self, call: Arguments, rec: Recording, pipeline: Pipeline, scalar: bool) -> Wiring:
        if not self.transform.differentiates:
            return self.wiring(call, rec)
        rec = replace(rec, graph=pipeline.simplified(rec.graph, alike=self.transform.reverse and not scalar))
        return pipeline.differentiated(self.wiring, call, rec)

    def compiled(self, call: Arguments, key: tuple) -> Compiled:
        """Records the call and compiles it, without a program where that is not worth while."""
        same_code, self.same_code = self.same_code, None
        if same_code is not None and same_code[0][-1] != key:  # another thread's call
            same_code = None
        pipeline = Pipeline(self.name, key[-1])
        rec, guard, path, scalar, why = self.recorded(call, key, pipeline)
        kinds = tuple(out.kind for out in result_outs(rec))
        mutable = holds_mutable(rec.out_tree)
        tree = without_objects(rec.out_tree) if mutable else rec.out_tree
        graph_key = Key(structure(rec.graph), tree, kinds, tuple(rec.written), self.transform.key(), key)

        def make(graph: Graph) -> SharedProgram:
            wiring, program = uncollected(self.built, call, replace(rec, graph=graph), pipeline, scalar)
            return SharedProgram(None if mutable else wiring.types_only(), program, memory_of(program))

        shared = shared_programs.find(rec.graph, graph_key, make)
        if shared is None:
            if why is not None and not shared_programs.seen(graph_key):
                wiring = self.wiring(call, rec)
                return Compiled(wiring, None, wiring.outside, Guard(why, never))
            shared = make(rec.graph)
            shared_programs.add(graph_key, shared)
        elif shared.exchanged and why is not None:
            self.why = why = why + OTHER_CONSTANTS
        wiring, program, nbytes, _ = shared
        if wiring is None:
            wiring = self.derived_wiring(call, rec, pipeline, scalar).types_only()
        outside = [array for _, array in rec.captures]
        if why is not None:
            if same_code is not None:
                shared_recordings.add(*same_code, Guard(why, never), None)
            return Compiled(wiring, program, outside, Guard(why, never))
        conditions = [] if path is None else [path.taken]
        compiled = Compiled(wiring, program, outside, guard, conditions, rec.draws, rec.graph.inputs)
        self.cache.add(key, guard, compiled, nbytes)
        if same_code is not None and not rec.draws:
            shared_recordings.add(*same_code, guard, compiled, nbytes)
        return compiled

    def stages(self, args: tuple, kwargs: dict, on_stage: Callable) -> None:
        """Record and compile for these arguments again; on_stage is called with the result of each stage."""
        fresh = Derived(self.f, self.transform, self.pure)
        call = Arguments.of(args, {k: v for k, v in kwargs.items() if k != "out" or not self.takes_out})
        key = call.key()
        pipeline = Pipeline(self.name, key[-1], on_stage)
        rec, _, _, scalar, _ = fresh.recorded(call, key, pipeline)
        uncollected(fresh.built, call, rec, pipeline, scalar)

    def recorded(
        self, call: Arguments, key: tuple, pipeline: Pipeline
    ) -> tuple[Recording, Guard, Path | None, bool, str | None]:
        """(recording, guard, path, whether all arguments are floats, why it cannot be reused or None)."""
        begin = time.perf_counter()
        args, kwargs = self.transform.split(call)
        if len(self.n_recordings) > self.cache.size:
            self.n_recordings.clear()
        self.n_recordings[key] = self.n_recordings.get(key, 0) + 1
        try:
            rec, guard = self.watched(call, key, args, kwargs)
        except Exception as error:
            if not isinstance(error, AutodiffError):
                self.transform.check(call, self.f)
            raise
        check_overlap(self.name, rec.written, call.leaves, [array for _, array in rec.captures])
        tests_identity = guard.tests_identity or self.tests_identity
        code = getattr(self.f, "__code__", None) if self.pure else None
        if code is not None:  # compares by `is` what is not a global name?
            tests_identity |= () in reads(code).identity_tests
        if tests_identity and repeats_array(call.leaves, guard.arrays_read):
            raise AutodiffError(
                f"{self.name}: an array is passed twice, or passed and read from outside, and the function "
                "compares by `is`: a recording takes it for two arrays. Pass a copy"
            )
        scalar = all(type(x) is float for x in call.leaves) and not rec.captures
        path, why = None, guard.trouble or self._trouble(rec, call, code)
        if why is None and rec.value_dependent:
            if self.n_recordings[key] > MOST:
                why = "it looks at recorded values, which are different at almost every call"
            elif (path := path_of(rec, scalar)) is None:
                why = "it looks at results of arithmetic on recorded values, as `if x * x > 2` does"
        self.why = why  # to be shown: another thread may record at the same time
        if why is not None:
            rec = with_constants_as_inputs(rec)
        new = (
            "it reads other values, or takes another path" if key in self.cache else "new types of arguments"
        )
        pipeline.recorded(rec.graph, time.perf_counter() - begin, why or new)
        return rec, guard, path, scalar, why

    def watched(self, call: Arguments, key: tuple, args: tuple, kwargs: dict) -> tuple[Recording, Guard]:
        """A recording, and the guard of what it read."""
        guard = None
        if self.pure:
            guard = Guard(None, lambda: True, text="True", names={})
        elif self.waits:
            self.waits, guard = False, Guard(FIRST, never)
        elif self.calls_before_next_watch:  # nothing has changed most likely, and recording is always right
            self.calls_before_next_watch -= 1
            guard = Guard(self.why_unwatched, never)
        if guard is not None:
            rec, _ = self.drawing(args, kwargs, None)
            mutable = self.pure and holds_mutable(rec.out_tree)
            return rec, Guard(MUTABLE_RESULT, never) if mutable else guard
        held = [x for x in call.tree.objects() if type(x) is not np.random.Generator]
        rec, world = self.drawing(args, kwargs, held)
        if world.error is not None:
            raise world.error
        world.returns(rec.out_tree.objects())
        guard = world.guard()
        self.tests_identity |= guard.tests_identity
        self.why_unwatched = guard.trouble or (CHANGES if self.n_recordings[key] > MOST else None)
        self.calls_before_next_watch = CALLS_BETWEEN_WATCHES if self.why_unwatched else 0
        return rec, guard

    def drawing(self, args: tuple, kwargs: dict, roots: Sequence | None) -> tuple[Recording, Any]:
        """(a recording, its World if there are `roots`). Random numbers are inputs; plain if that fails."""
        function = self.transform.function(self.f)

        def recorded(draws: Draws | None) -> tuple[Recording, Any]:
            def run() -> Recording:
                return record(function, args, kwargs, draws=draws)

            return (run(), None) if roots is None else watch(run, self.f, *roots)

        if self.plain_draws:
            return recorded(None)
        draws = Draws()
        try:
            spared = compared(self.f, (args, kwargs))
            return with_drawings(self.f, draws, recorded, lambda held: local_stand_in(held, spared), spared)
        except Exception as error:
            if not draws.calls:
                raise
            error_with_draws = error
        for g, before in draws.states.values():
            g.bit_generator.state = before
        try:
            result = recorded(None)
        except AutodiffError:  # the function is wrong itself
            raise error_with_draws from None
        self.plain_draws = True
        return result

    def _trouble(self, rec: Recording, call: Arguments, code: types.CodeType | None) -> str | None:
        if rec.unstable:
            return rec.unstable[0]
        if any(x.dtype.metadata is not None for x in call.leaves if isinstance(x, np.ndarray)):
            return "an argument has a dtype with metadata"
        return CATCHES if code is not None and catches(code) else None


def holds_mutable(tree: Tree) -> bool:
    """Whether a result of this structure holds a mutable object other than arrays and containers."""
    return not all(map(cannot_change, tree.objects()))


def without_objects(tree: Tree) -> Tree:
    """The structure with types in place of static values: equal for results of the same program."""
    if tree.is_leaf:
        return tree
    if tree.is_static:
        return Tree.static(type(tree.value))
    return Tree(tree.type, tree.keys, tuple(map(without_objects, tree.children)), tree.size)


def with_constants_as_inputs(rec: Recording) -> Recording:
    """The recording with its constant arrays captured, so that others give the same graph."""
    constants: list[tuple[Node, np.ndarray]] = []

    def lifted(n: Node, args):
        if n.op != "const" or not n.shape:
            return None
        constants.append((input_node(n.shape, n.dtype, n.name), n.value))
        return constants[-1][0]

    graph = rewrite(rec.graph, lifted)
    graph = Graph([*graph.inputs, *(node for node, _ in constants)], graph.outputs, graph.name)
    return replace(rec, graph=graph, captures=[*rec.captures, *constants])


class DerivedFunction(functools.partial):
    """A derived function, as the user gets it. It can be pickled if f can.

    A partial object calls its function from C, so that a call costs no more than that of a plain function.
    """

    __derived__: Derived

    def __reduce__(self):
        state = self.__derived__
        named: Any = sys.modules.get(self.__module__)
        for name in self.__wrapped__.__qualname__.split("."):
            named = getattr(named, name, None)
        if named is self:  # a decorator replaced f by it, so pickle finds it by that name
            return self.__wrapped__.__qualname__
        return derived_function, (state.f, state.transform, state.pure)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self  # like any function

    def _reuse_roots(self):
        return (self.__derived__.f,)

    def __get__(self, instance, owner=None):
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self):
        state = self.__derived__
        last_call = "not called yet"
        if state.last is not None:
            inputs = state.last[0].graph.inputs
            types_of = (f"{n.name or 'an array'}: {type_text(n)}" for n in inputs)
            last_call = "last called with " + ", ".join(types_of)
        return f"<{self.__name__}: ad.{state.transform.name}({name_of(state.f)}), {last_call}>"

    def _repr_html_(self):
        """The program that ran last, for notebooks."""
        program = self.__derived__.last and self.__derived__.last[1]
        text = f"<code>{html.escape(repr(self))}</code>"
        return text + (program._repr_html_() if hasattr(program, "_repr_html_") else "")


def derived_function(f: Callable, transform: Transform, pure: bool = False) -> DerivedFunction:
    state = Derived(f, transform, pure)

    def call(*args, **kwargs):  # of_user, without another call
        try:
            return state.entry(args, kwargs)
        except Exception as error:
            hide_frames(error)
            raise

    call.__derived__ = state
    derived = DerivedFunction(call)
    derived.__name__ = derived.__qualname__ = state.name
    derived.__module__ = getattr(f, "__module__", __name__)
    about = f"{transform.name} of {name_of(f)}, made by gpt2.autodiff."
    derived.__doc__ = f"{about}\n\n{inspect.getdoc(f) or ''}".rstrip()
    derived.__wrapped__ = f
    derived.__derived__ = state
    return derived


_STATES = "__autodiff_states__"
MOST_STATES = 64  # on one function: ad.scan(f, x, length=n) makes one for each n
_bound = Store(32, 1)  # the same for bound methods, which are new objects at every access


def derived_of(f: Callable, transform: Transform, pure: bool = False) -> Derived:
    """The Derived of (f, transform), for functions called with f itself: ad.vjp(f, ...), ad.autodiff(f, ...).

    It is stored on the function, so that it lives as long. For functions made inside functions it is stored
    from the second call on: a lambda that is called once leaves nothing behind.
    """
    key = transform.key(), pure
    try:
        state = f.__dict__[_STATES][key]
        if state is not None and state.f is f:
            return state
    except (AttributeError, KeyError):
        pass
    if type(f) is types.MethodType:
        state = _bound.find((f, key)) or Derived(f, transform, pure)
        _bound.add((f, key), state)
        return state
    try:
        states = f.__dict__.setdefault(_STATES, {})
    except AttributeError:  # a callable without attributes
        return Derived(f, transform, pure)
    if key not in states and "<locals>" in getattr(f, "__qualname__", "<locals>"):
        f.__dict__[_STATES] = _with(states, key, None)
        return Derived(f, transform, pure)
    state = states.get(key)
    if state is None or state.f is not f:  # functools.wraps copies attributes to another function
        state = Derived(f, transform, pure)
        f.__dict__[_STATES] = _with(states, key, state)
    return state


def _with(states: dict, key: tuple, state: Derived | None) -> dict:
    """The states with one more, and without the oldest where there are too many."""
    others = [item for item in states.items() if item[0] != key]
    return {**dict(others[1 - MOST_STATES :]), key: state}


def name_of(f: Callable) -> str:
    name = getattr(f, "__name__", None) or type(f).__name__
    return name if name.isidentifier() else "f"
