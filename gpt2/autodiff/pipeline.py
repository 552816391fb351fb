"""The compiler's stages, from a recording to a program.

    recorded -> simplified -> differentiated -> simplified again -> forward | backward -> emitted

    pipeline = Pipeline(name, options)
    graph = pipeline.simplified(graph)           before it is differentiated, if the options say so
    graph = pipeline.differentiated(vjp_graph, graph, wrt, cts)
    graph = pipeline.prepared(graph)             calls inlined, and simplified
    halves = pipeline.split(graph, n_inputs, n_outputs)
    program = pipeline.emitted(graph)

The transforms, Fixed, FixedPair, the bodies of scans and maps, and the studies all call these methods, and
only these call the stages. `on_stage` is called with the result of each stage, which ad.stages shows and
GPT2_AD_DEBUG prints.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from . import hidden, switches
from .derive import outlined  # noqa: F401  its row enters the table on import
from .derive.differentiate import vjp_graph
from .emit.program import Program
from .emit.scalar import ScalarProgram, is_scalar
from .graph import Graph
from .keep.pairs import origins_of, paired
from .keep.partition import partition
from .ops.exactness import decided
from .passes import simplify
from .passes.alike import flat, inline_calls, outline
from .switches import DEFAULT, STRICT, Options, current_options
from .undo import undoing


@dataclass(frozen=True)
class Halves:
    """A forward and a backward program, as graphs.

    saved   for each of the backward's inputs before the cotangents where it comes from: ("input", i), the
            forward's own input i, or ("output", i), its output i
    """

    forward: Graph
    backward: Graph
    saved: list[tuple[str, int]]


_paused = False  # whether `uncollected` has switched the collector off


def uncollected(f: Callable, *args: Any, **kwargs: Any) -> Any:
    """f(*args, **kwargs), with the cyclic garbage collector paused. Of several threads that do this, the
    first that is done switches it on again.

    A stage creates as many objects as the program has operations, and frees nearly all of them by reference
    counting. The collector would visit every object of the process again and again: 10 to 20 % of the time
    for 10,000 operations.
    """
    global _paused
    if not gc.isenabled():
        return f(*args, **kwargs)
    with undoing(_resume), undoing(_resume):
        _paused = True
        gc.disable()
        return f(*args, **kwargs)


def is_paused() -> bool:
    """Whether the collector is on for the user's code, and paused here."""
    return _paused


def _resume() -> None:
    global _paused
    if _paused:
        gc.enable()  # first: after an interrupt between the two this is called again
        _paused = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_resume)  # where the thread that paused it may be gone


class Pipeline:
    """The stages, under the same options, for one program.

    name      the program's name
    options   Options, or None for the default ones
    on_stage  on_stage(title, graph or program, seconds) is called after each stage
    """

    def __init__(self, name: str, options: Options | None = None, on_stage: Callable | None = None):
        self.name = name
        self.options = options or DEFAULT
        self.on_stage = on_stage

    def recorded(self, graph: Graph, seconds: float, why: str) -> Graph:
        """Report the recorded graph; `why` it was recorded is for the log."""
        return self._report("recorded", graph, seconds, why)

    def simplified(self, graph: Graph, alike: bool = False) -> Graph:
        """The recorded graph, ready to be differentiated: simplified, unless the options say `before=False`.

        Calls with custom rules are not inlined: the rule is differentiated.

        alike   equal parts of it become calls of one graph (passes/alike.py)
        """
        if not self.options.before:
            return flat(graph)

        def make(graph: Graph) -> Graph:
            if alike:
                graph = flat(graph) if "alike" in self.options.off else outline(graph, self._simple)
            return self._simple(graph)

        return self._stage("simplified", make, graph)

    def _simple(self, graph: Graph) -> Graph:
        return simplify(graph, self.options)

    def opened(self, graph: Graph) -> Graph:
        """The recorded graph with calls of repeated functions inlined."""
        return flat(graph)

    def differentiated(self, derive: Callable, *args: Any) -> Any:
        """The result of derive(*args): a graph, or an object that has one as its `graph`."""
        return self._stage("differentiated", derive, *args)

    def prepared(self, graph: Graph, title: str = "simplified again") -> Graph:
        """The graph to emit or split: calls with custom rules inlined, everything simplified."""
        return self._stage(title, lambda: self._simple(inline_calls(graph)))

    def split(
        self, joint: Graph, n_inputs: int, n_outputs: int, hand_on_inputs: bool = True, **price: Any
    ) -> Halves:
        """Forward and backward of a graph of results and gradients, by the minimum cut (keep/partition.py).

        hand_on_inputs   whether the forward returns all that the backward reads. If not, the backward gets
                         inputs and results themselves, and the forward returns what else it saves
        price            rate and ample, as partition takes them
        """
        begin = time.perf_counter()
        forward, backward, saved = uncollected(
            partition, joint, n_inputs, n_outputs, tidy=self._simple, **price
        )
        origins = [("output", n_outputs + k) for k in range(len(saved))]
        if not hand_on_inputs:
            origins, results = origins_of(saved, joint, forward, n_outputs)
            forward = Graph(forward.inputs, results, forward.name)
        forward = self._simple(forward)
        self._report("forward", forward, time.perf_counter() - begin)
        backward = self._stage("backward", self._simple, backward)
        return Halves(forward, backward, origins)

    def emitted(
        self,
        graph: Graph,
        name: str | None = None,
        *,
        half: str = "",
        scalar: bool = False,
        share_inputs: bool = False,
        lend: bool = False,
    ) -> Program | ScalarProgram:
        """The program of a graph that was prepared.

        half     "forward" or "backward", for the title
        scalar   all inputs are Python floats, so that a graph without arrays becomes `math` code

        share_inputs and lend: see emit/program.py.
        """
        name = name or self.name
        if hidden.active() is not None:
            check_open([n.attrs for n in graph.nodes if n.op != "const"])

        def emit() -> Program | ScalarProgram:
            if scalar and is_scalar(graph):
                strict = self.options.math == STRICT
                return ScalarProgram(graph, name, decided(graph) if strict else frozenset())
            return Program(graph, self.options, name, share_inputs=share_inputs, lend=lend)

        return self._stage(f"{half}, emitted" if half else "emitted", emit)

    def program(
        self, graph: Graph, *, scalar: bool = False, title: str = "simplified again"
    ) -> Program | ScalarProgram:
        """The last two stages for a graph that is not split: prepared, and emitted. Gradients of equal parts
        get all that they read as arguments."""

        def prepared() -> Graph:
            return paired(self._simple(inline_calls(graph)), partial(partition, rate=0.0), self._simple)

        return self.emitted(self._stage(title, prepared), scalar=scalar)

    def joint(self, graph: Graph, wrt: Sequence[int], cts: Sequence[int]) -> Graph:
        """The first stages: the recorded graph's results and gradients as one graph, ready to be split.

        wrt, cts   the inputs whose gradients are wanted, and the outputs that get a cotangent
        """
        return self.prepared(self.differentiated(vjp_graph, self.simplified(graph, alike=True), wrt, cts))

    def _stage(self, title: str, make: Callable, *args):
        begin = time.perf_counter()
        result = uncollected(make, *args)
        return self._report(title, result, time.perf_counter() - begin)

    def _report(self, title: str, result, seconds: float, remark: str = ""):
        if self.on_stage is not None or switches.DEBUG:
            reported = result if hasattr(result, "source") else getattr(result, "graph", result)
            if switches.DEBUG:
                switches.log_stage(self.name, title, reported, seconds, remark)
            if self.on_stage is not None:
                self.on_stage(title, reported, seconds)
        return result


def check_open(attrs: Any) -> None:
    """Raise TypeError if a graph within these attributes has hidden numbers: its program is kept with it."""
    if isinstance(attrs, Graph):
        for n in attrs.nodes:
            check_open(n.attrs)
    elif isinstance(attrs, dict):
        check_open(tuple(attrs.values()))
    elif isinstance(attrs, (tuple, list)):
        for part in attrs:
            check_open(part)
    elif hasattr(attrs, "structure"):
        check_open(attrs.structure())
    elif hidden.is_hidden(attrs):
        raise TypeError("a graph within the program has a hidden number")


def program_of(graph: Graph, scalar: bool = False) -> Any:
    """The program of a graph inside a graph (scan, map, call), made on first use and cached on it.

    Its options are those of the thread that runs it, but for the backend: it computes slices or single steps,
    for which numexpr is never worth while, and it runs while functions are recorded.

    scalar   it is called with Python floats: a ScalarProgram if it has no arrays
    """
    programs = graph.kept.setdefault("programs", {})
    options = replace(current_options(), elementwise="numpy")
    if (options, scalar) not in programs:
        pipeline = Pipeline(graph.name, options)
        program = pipeline.program(graph, scalar=scalar, title="simplified")
        programs[options, scalar] = program
        if type(program) is Program:
            programs[options, False] = program
    return programs[options, scalar]
