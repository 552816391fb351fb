"""Buffer assignment: which value lives where, in results, arena or scratch, from which step to which.

Every value gets a Kind of storage, and those that own memory a part of it. Each function takes decisions made
before, and returns the next: plan.py calls them one after the other. `offsets` fills in where parts begin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from typing import NamedTuple

import numpy as np

from ..graph import Node, is_scalar_const
from ..ops.rowwise import row_axes
from ..ops.table import facts, root, views_of
from ..run import short
from ..run.memory import rounded
from .layout import is_result_of_call
from .regions import Region
from .schedule import Schedule, read_in_step
from .windows import Places

# Lent memory is for large values with long lives: others do better in an arena that stays in cache. Bytes,
# and the share of all steps.
LEND_FROM = 1 << 16
LONG = 1 / 16
NEVER = 1 << 60  # a step after all others
SHORTEST_PLANE = 8  # elements of a plane in each row, from which scratch may lie in planes


class Kind(Enum):
    """Where a value is stored."""

    RESULT = "returned to the caller"
    ARENA = "lives from one region to another; arrays whose lives do not overlap share memory"
    LENT = "the same, in the memory of a result that is not written before the value's life is over"
    SCRATCH = "lives inside one region; a block of rows for each thread"
    ALLOCATED = "allocated by NumPy: the op has no out= (np.linalg.inv, ...)"
    # Python's operators take such a number several times as fast as a ufunc takes an array of one element
    NUMBER = "a single number, as a NumPy scalar"


UNOWNED = (Kind.ALLOCATED, Kind.NUMBER)  # kinds without memory in the plan


@dataclass(eq=False)
class Storage:
    """A span of the arena, or of the result `lender`, for the values in `holds` from step start to end.

    Of scratch the `offset` is the number of a slot, and start and end are positions in the order of ops.
    """

    nbytes: int
    start: int
    end: int
    offset: int = -1
    lender: Node | None = None
    holds: list[Node] = field(default_factory=list)


class Steps(NamedTuple):
    """First and last step of each value as writer or reader."""

    start: dict[Node, int]
    end: dict[Node, int]


def steps_of(regions: Sequence[Region]) -> Steps:
    """The steps of all values: a plain statement is one, and so is a whole region of row blocks."""
    start: dict[Node, int] = {}
    end: dict[Node, int] = {}
    step = 0
    for r in regions:
        for n in r.members:
            step += r.N == 1
            start[n] = end[n] = step
            if is_result_of_call(n):  # written while the call runs
                start[n] = start[n.args[0]]
        step += 1
    return Steps(start, end)


def kinds(places: Places) -> dict[Node, Kind]:
    """The kind of each value that is stored."""
    schedule = places.schedule
    stored = ((n, r) for r in schedule.regions for n in r.members if n not in schedule.folded)
    kind = {n: _kind_of(n, r, places) for n, r in stored}
    guests = [n for n in kind if n in places.windows]
    for n in guests:
        host = places.base(n)
        if kind[host] is Kind.SCRATCH and schedule.outlives(n, schedule.region[host]):
            kind[host] = Kind.ARENA
    for n in guests:  # a value is where its host is, in memory that is there before the host is made
        host = places.base(n)
        if kind[host] in UNOWNED:
            kind[host] = Kind.ARENA
        kind[n] = kind[host]
    return kind


def _kind_of(n: Node, r: Region, places: Places) -> Kind:
    """The kind of a value, regardless of others that live in its memory."""
    base = places.base(n)
    if base in places.schedule.outputs:
        return Kind.RESULT
    if base is not n:
        return Kind.ARENA
    if r.N == 1:
        if n not in r.sums and _is_number(n, places.schedule):
            return Kind.NUMBER
        op = facts(n)
        written = op.streams or op.changes_first or op.has_out or is_result_of_call(n)
        return Kind.ARENA if written else Kind.ALLOCATED
    return Kind.ARENA if n in r.sums or places.schedule.outlives(n, r) else Kind.SCRATCH


def _is_number(n: Node, schedule: Schedule) -> bool:
    """Whether a ufunc of numbers, or a sum over all of an array, gives a single real number of their type,
    which serves its readers as well as an array of shape (1, ..., 1)."""
    summed = facts(n).reducer == "add"
    if facts(n).ufunc is None and not summed:
        return False
    if n.size != 1 or n.dtype.kind != "f" or any(a.dtype != n.dtype for a in n.args):
        return False
    if summed:
        return n.shape == ()
    if any(a.size != 1 for a in n.args) or all(map(is_scalar_const, n.args)):
        return False  # of constants alone: Python's rules for 1.0 / 0.0 are not NumPy's
    return n.shape == () or all(facts(u).streams and u not in schedule.folded for u, _ in schedule.reads(n))


def storage(places: Places, kind: Mapping[Node, Kind], steps: Steps, lend: bool) -> dict[Node, Storage]:
    """The spans of values that own memory: shared where one may be written over another, or lent."""
    spans = _spans([n for n, k in kind.items() if k is Kind.ARENA], *steps, places)
    for r in places.schedule.regions:
        read = (root(a) for n in r.members for a in n.args) if r.N > 1 else ()
        _share(r, spans, places, [x for x in dict.fromkeys(read) if x in spans])
    if lend:
        _lend(spans, written_spans(places, kind, steps, filter(lends, places.schedule.outputs)), steps)
    else:
        _begin_in_results(spans, places, steps)
    return spans


def _spans(values: Iterable[Node], start: Mapping, end: Mapping, places: Places) -> dict[Node, Storage]:
    """A span for each host of these values, as long as any that lives in it, by steps or positions."""
    spans: dict[Node, Storage] = {}
    for n in values:
        base = places.base(n)
        s = spans.setdefault(base, Storage(base.nbytes, NEVER, -1))
        s.holds.append(n)
        s.start = min(s.start, start[n])
        s.end = max([s.end, end[n], *[end[u] for u in places.schedule.readers(n)]])
    return spans


def _share(r: Region, spans: dict[Node, Storage], places: Places, others: Sequence[Node] = ()) -> None:
    """Write values over others that are no longer needed.

    An elementwise op takes over one of its arguments. In a region of row blocks, a value in the arena also
    takes over any of the `others`, whole arrays that the region reads by rows, if the region is done with it,
    row for row, before the value is written.
    """
    sums, schedule = set(r.sums), places.schedule
    for n in r.members:
        base = places.base(n)
        s = spans.get(base)
        if s is None or n in sums or places.first_writer(base) is not n:
            continue
        for x in dict.fromkeys((*read_in_step(n), *others)):
            t = spans.get(x)
            if t is None or t is s or t.holds[-1] is not x or not schedule.may_write_over(n, x):
                continue
            parts = t.holds[:-1]
            if all(schedule.is_done_with(y, n) and schedule.last_read(y) < schedule.order[n] for y in parts):
                t.end = max(t.end, s.end)
                t.holds = s.holds  # from here on they are what lives there
                spans[base] = t
                break


def lends(o: Node) -> bool:
    """Whether a result can lend its memory."""
    return o.op != "input" and o.dtype.kind == "f" and o.nbytes >= LEND_FROM


def _lend(storage: dict[Node, Storage], written: Mapping[Node, list[Span]], steps: Steps) -> None:
    """Put values with long lives into the memory of results that are written after their last use.

    A training step's activations then cost nothing beside its gradients: what the forward pass of a layer
    keeps is needed until the layer's backward, and the gradients of the layers before it come after that.
    """
    taken = {o: Allocator(spans) for o, spans in written.items()}
    long = LONG * max(steps.end.values(), default=0)
    for s in sorted(distinct(storage), key=lambda s: (-s.nbytes, s.start)):
        if s.nbytes < LEND_FROM or s.end - s.start < long:
            continue
        rooms = []
        for o, spans in taken.items():
            if o.dtype == s.holds[0].dtype and (at := next(spans.rooms(s))) + s.nbytes <= o.nbytes:
                rooms.append((spans.next_use(s, at), at, o))
        if rooms:  # the one written soonest after the life of s: others can lend longer
            _, s.offset, s.lender = min(rooms, key=lambda room: room[0])
            taken[s.lender].take(s)


def _begin_in_results(storage: dict[Node, Storage], places: Places, steps: Steps) -> None:
    """Put large values into the memory of results that are written over them, element by element.

    One array is then in cache where there were two. Nothing else is written there before.
    """
    for o in places.schedule.outputs:
        n = places.first_writer(o)
        if n is None or n.op == "copy" or not lends(o):
            continue
        for x in read_in_step(n):
            s = storage.get(x)
            alone = s is not None and s.lender is None and s.holds == [x]
            if alone and places.schedule.may_write_over(n, x):
                s.lender, s.offset, s.end = o, 0, steps.start[n] - 1  # where n writes, it is done with
                break


def written_spans(
    places: Places, stored: Iterable[Node], steps: Steps, results: Iterable[Node]
) -> dict[Node, list[Span]]:
    """For each of these results, the bytes that the program writes of it, from then on.

    stored   all values that have a place
    """
    taken: dict[Node, list[Span]] = {o: [] for o in results}
    for n in stored:
        base = places.base(n)
        if base in taken:
            lo, hi = places.layout(n).span
            taken[base].append(Span(lo, rounded(hi), steps.start[n], NEVER))
    return taken


def distinct(spans: Mapping[Node, Storage]) -> list[Storage]:
    """The spans, each once."""
    return list({id(s): s for s in spans.values()}.values())


def slots(r: Region, places: Places, kind: Mapping[Node, Kind]) -> dict[Node, int]:
    """The slots of a region's scratch values: one for values of one size that are not needed at once."""
    order = places.schedule.order
    spans = _spans([n for n in r.members if kind.get(n) is Kind.SCRATCH], order, order, places)
    _share(r, spans, places)
    held: list[Storage] = []
    free: list[Storage] = []
    count = 0
    for s in sorted(distinct(spans), key=lambda s: s.start):
        ended = [t for t in held if t.end < s.start]
        free += sorted(ended, key=lambda t: (t.end, order[t.holds[0]]))
        held = [t for t in held if t.end >= s.start] + [s]
        fitting = [t for t in free if t.nbytes == s.nbytes]
        if fitting:
            free.remove(fitting[-1])
            s.offset = fitting[-1].offset
        else:
            s.offset, count = count, count + 1
    return {base: s.offset for base, s in spans.items()}


def in_planes(r: Region, slots: dict[Node, int], places: Places) -> set[Node]:
    """The values of a region that lie in planes. slots: of all values in the region's scratch.

    Scratch with a short last axis, as that of points in space is, is held plane by plane instead of row by
    row: a block of (rows, 216, 3) numbers lies in memory as three blocks of (rows, 216), and is seen through
    a view with its axes in their order. Code by columns (run/short.py) then reads and writes contiguous
    numbers. Only statements with the same bits at any strides may see such a view: a slot lies in planes if
    all its values are computed and read by ops that round each element independently, or by sums of columns.
    """
    held: dict[int, list[Node]] = {}
    for n, slot in slots.items():
        held.setdefault(slot, []).append(n)
    elsewhere = {*places.windows, *map(places.base, places.windows), *places.schedule.folded}
    planar: set[Node] = set()
    for values in held.values():
        rows = {(n.shape[row_axes(n.shape, r.N) :], n.dtype) for n in values}
        if len(rows) == 1 and all(n not in elsewhere and _suits(n, r, places) for n in values):
            planar.update(values)
    # it pays only where one is computed from values that are not planar, so column by column
    return planar if any(a not in planar for n in planar for a in n.args) else set()


def _suits(n: Node, r: Region, places: Places) -> bool:
    """Whether n has rows of several axes, the last of them short, and is computed and read at any strides."""
    row = n.shape[row_axes(n.shape, r.N) :]
    if len(row) < 2 or not 2 <= row[-1] <= short.FEW_COLUMNS or math.prod(row[:-1]) < SHORTEST_PLANE:
        return False
    if n.dtype.kind != "f" or not facts(n).any_strides or any(a.dtype != n.dtype for a in n.args):
        return False
    return all(u in r.members and _reads_at_any_strides(u, n, r) for u in places.schedule.readers(n))


def _reads_at_any_strides(u: Node, n: Node, r: Region) -> bool:
    """Whether u reads n itself, no view of it, element by element or as a sum of columns."""
    if u.dtype != n.dtype or any(root(a) is n and views_of(a) for a in u.args):
        return False
    if facts(u).reducer != "add":
        return facts(u).any_strides
    if u in r.sums:
        return len(u.attrs["axes"]) == row_axes(n.shape, r.N)
    last = n.ndim - 1
    return u.attrs["axes"] == (last,) or (u.attrs["axes"] == (last - 1,) and u.op == "sum")


class Span(NamedTuple):
    """Bytes lo:hi of a memory, taken in the steps from start to end, both included. hi is aligned."""

    lo: int
    hi: int
    start: int
    end: int


class Allocator:
    """Allocates spans of one memory, the arena or a result.

    A deep program has thousands, so they are the columns of a table with the rows lo, hi, start and end,
    sorted by lo, which NumPy searches. Neighbours with the same life are one column.
    """

    def __init__(self, spans: Iterable[Span] = ()):
        ends = Span(-1, 0, -1, NEVER), Span(NEVER, NEVER, -1, NEVER)  # the room is between these
        self.table = np.array(sorted([*spans, *ends]), np.int64).T.copy()

    def rooms(self, s: Storage) -> Iterator[int]:
        """The lowest offset with room for s for its whole life, then those for more of its size and life."""
        lo, hi, start, end = self.table
        alive = ((start <= s.end) & (end >= s.start)).nonzero()[0]
        begins, ends = np.maximum.accumulate(hi[alive])[:-1], lo[alive][1:]  # of the gaps
        for gap in (ends - begins >= s.nbytes).nonzero()[0]:
            at, end_of_gap = int(begins[gap]), int(ends[gap])
            while end_of_gap - at >= s.nbytes:
                yield at
                at += s.nbytes and rounded(s.nbytes)

    def take(self, s: Storage) -> int:
        """Take the span of s at its offset; returns the first byte after it."""
        span = Span(s.offset, s.offset + rounded(s.nbytes), s.start, s.end)
        k = self.table[0].searchsorted(span.lo)
        if self.table[1:, k - 1].tolist() == [span.lo, span.start, span.end]:
            self.table[1, k - 1] = span.hi
        else:
            before, after = self.table[:, :k], self.table[:, k:]
            self.table = np.concatenate([before, np.array([span]).T, after], axis=1)
        return span.hi

    def next_use(self, s: Storage, at: int) -> int:
        """The first step after the life of s in which its bytes, from `at` on, are taken; 0 if never."""
        lo, hi, start, _ = self.table
        later = start[(start > s.end) & (lo < at + s.nbytes) & (at < hi)]
        return int(later.min()) if later.size else 0


def offsets(storages: Iterable[Storage]) -> int:
    """Place each storage at the lowest offset that is free for its whole life; returns the bytes."""
    taken, total = Allocator(), 0
    ordered = sorted(storages, key=lambda s: (-s.nbytes, s.start))
    for _, group in groupby(ordered, lambda s: (s.nbytes, s.start, s.end)):  # of results of one call, say
        alike = list(group)
        for s, s.offset in zip(alike, taken.rooms(alike[0])):
            total = max(total, taken.take(s))
    return total
