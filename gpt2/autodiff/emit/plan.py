"""The plan of a program: what runs together and in which order, who reads each value and for how long, and in
which memory it lives.

`Plan` has all of these decisions, made one after the other; an Emitter (emitter.py) then writes the text.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

from ..graph import Graph, Node
from ..run.memory import Needs
from . import buffers, lives
from .buffers import Kind, Storage
from .layout import lower, results_of
from .regions import blocks_of, reach_rows, schedule
from .schedule import Schedule
from .windows import Places


@dataclass(eq=False)
class Routine:
    """A function that was emitted and loaded: function(*arguments, *results, memory)."""

    name: str
    source: str
    function: Callable
    needs: Needs


class Plan:
    """The plan of a graph's program. Its attributes, in the order in which they are decided:

    graph      lowered (layout.py): every copy that NumPy would make is an op
    regions    ops that run together, in order (regions.py)
    schedule   who reads each value, and which multiplications are folded into a sum (schedule.py)
    places     whose memory each value lies in (windows.py)
    steps      when each value is written and read (buffers.py)
    kind       where each value lives; for those in the arena `storage` has which part of it, for those in
               scratch `slots` the number of their slot in the region; `planes` lie plane by plane
    partials, work, unread   other parts of the arena: for sums over blocks, calls, results that nothing reads
    called     the functions of outlined calls; `results` has the nodes that are their results

    Each decision takes the graph and those before it, and knows nothing of this class. Two change regions in
    place: `lives.shorten` the order, `reach_rows` how rows are indexed, down to plain statements.
    """

    def __init__(
        self,
        graph: Graph,
        exact: Container[int],
        fusing: Callable | None,
        routines: Callable[[Graph], Routine],
        share_inputs: bool = False,
        lend: bool = False,
        results_early: bool = False,
    ):
        """
        exact          ids of values that are summed in NumPy's own order
        fusing         fusing(graph, regions) may give elementwise ops to another backend
        routines       routines(body) is the function that outlined calls of it call
        share_inputs   a result that is an argument is that very array, not a copy
        lend           results lend their memory to other values until they are written
        results_early  as `schedule` takes it
        """
        graph = lower(graph, share_inputs, exact)
        self.regions = schedule(graph, results_early)
        self.graph = graph if fusing is None else fusing(graph, self.regions)
        for r in self.regions:
            if r.N > 1:
                lives.shorten(r)
        self.schedule = Schedule(self.graph, self.regions)
        self.places = Places(self.schedule)
        for r in self.regions:
            reach_rows(r, self.schedule.region, self.places.layout)
        self.steps = buffers.steps_of(self.regions)
        self.called = {n: routines(n.attrs["body"]) for n in self.graph.nodes if n.op == "outlined"}
        self.results = results_of(self.graph)
        self.kind = buffers.kinds(self.places)
        self.storage = buffers.storage(self.places, self.kind, self.steps, lend)
        spans = buffers.distinct(self.storage)
        for n, kind in self.kind.items():
            if kind is Kind.ARENA and self.storage[self.places.base(n)].lender is not None:
                self.kind[n] = Kind.LENT
        start, end = self.steps
        self.partials = {
            n: Storage(n.nbytes * len(blocks_of(r)), start[n], end[n]) for r in self.regions for n in r.sums
        }
        self.work = {n: Storage(f.needs.arena_bytes, start[n], end[n]) for n, f in self.called.items()}
        self.unread = {
            (n, k): Storage(o.nbytes, start[n], end[n])
            for n in self.called
            for k, o in enumerate(n.attrs["body"].outputs)
            if k not in self.results[n]
        }
        others = (*self.partials.values(), *self.work.values(), *self.unread.values())
        self.arena_bytes = buffers.offsets([*(s for s in spans if s.lender is None), *others])
        self.slots: dict[Node, int] = {}
        self.planes: set[Node] = set()
        for r in self.regions:
            if r.N > 1:
                slots = buffers.slots(r, self.places, self.kind)
                self.slots.update(slots)
                self.planes |= buffers.in_planes(r, slots, self.places)
        # Results whose memory holds, or may hold, other values before
        self._lenders = {s.lender for s in spans}.union(
            filter(buffers.lends, self.graph.outputs) if lend else ()
        )
        self._overwrites: dict[tuple[int, int], bool] = {}
        self.region, self.folded = self.schedule.region, self.schedule.folded
        self.windows, self.layout = self.places.windows, self.places.layout

    def result_over_input(self, k: int, i: int) -> bool:
        """Whether result k may be written over the memory of input i.

        Found out on demand: a program with thousands of parameters has millions of pairs, few of them needed.
        """
        if (k, i) not in self._overwrites:
            o, x = self.graph.outputs[k], self.graph.inputs[i]
            first = self.places.first_writer(o)
            may = first is not None and x.shape == o.shape and o not in self._lenders
            self._overwrites[k, i] = may and self.schedule.may_write_over(first, x)
        return self._overwrites[k, i]
