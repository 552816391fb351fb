"""Buffer assignment: which value lives where, in results, arena or scratch, from which step to which.

`assign` gives every value a Kind of storage, and memory to those that own some. What may share memory is
known from liveness.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..graph import Node, is_scalar_const
from ..ops.table import facts, root
from ..run.memory import rounded
from .layout import Layout, in_planes, is_result_of_call
from .liveness import Liveness, Overwrites, read_in_step
from .regions import Region, blocks_of

if TYPE_CHECKING:
    from .calls import Routine

# Lent memory is for large values with long lives: others do better in an arena that stays in cache. Bytes,
# and the share of all steps.
LEND_FROM = 1 << 16
LONG = 1 / 16
NEVER = 1 << 60  # a step after all others


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
    """A span of the arena, or of the result `lender`, for the values in `holds` from step start to end."""

    nbytes: int
    start: int
    end: int
    offset: int = -1
    lender: Node | None = None
    holds: list[Node] = field(default_factory=list)


@dataclass
class BufferPlan:
    """Where each value lives, as `assign` decides from `live` and `layouts`."""

    live: Liveness
    layouts: dict[Node, Layout]  # of every array
    kind: dict[Node, Kind]
    storage: dict[Node, Storage]  # arena values that own memory (none that live in another's window)
    slots: dict[Node, int]  # scratch values: number of their slot in the region
    planes: set[Node]  # those that lie plane by plane (layout.py)
    partials: dict[Node, Storage]  # for each sum over blocks of rows, the block sums
    arena_bytes: int
    called: Mapping[Node, Routine]  # the function of each outlined call
    work: dict[Node, Storage]  # its working memory
    unread: dict[tuple[Node, int], Storage]  # memory for each of its unread results
    overwrites: Overwrites  # (result, input): the result may be written over that input's memory


def assign(
    live: Liveness, layouts: dict[Node, Layout], called: Mapping[Node, Routine], lend: bool = False
) -> BufferPlan:
    """Decide where each value lives.

    called    the function of each outlined call, which works in a part of the arena
    lend      results lend their memory to other values until they are written
    """
    kind = _kinds(live)
    storage = _storage(kind, live)
    for r in live.regions:
        _share(r, storage, live)
    start, end = live.start, live.end
    partials = {
        n: Storage(n.nbytes * len(blocks_of(r)), start[n], end[n]) for r in live.regions for n in r.sums
    }
    if lend:
        _lend(kind, storage, live, layouts)
    else:
        _begin_in_results(kind, storage, live)
    work = {n: Storage(r.needs.arena_bytes, start[n], end[n]) for n, r in called.items()}
    results = {(n.args[0], n.attrs["i"]) for n in live.order if is_result_of_call(n)}
    unread = {
        (n, k): Storage(o.nbytes, start[n], end[n])
        for n in work
        for k, o in enumerate(n.attrs["body"].outputs)
        if (n, k) not in results
    }
    owned = {id(s): s for s in storage.values() if s.lender is None}
    total = offsets([*owned.values(), *partials.values(), *work.values(), *unread.values()])
    slots: dict[Node, int] = {}
    planes: set[Node] = set()
    not_planar = {*live.windows, *map(live.base, live.windows), *live.folded}
    for r in live.regions:
        if r.N > 1:
            region_slots = _Slots(r, kind, live).slots
            slots.update(region_slots)
            planes |= in_planes(r, region_slots, live.readers, not_planar)
    barred = {s.lender for s in storage.values() if s.lender is not None}
    if lend:
        barred.update(filter(lends, live.outputs))
    overwrites = Overwrites(live, barred)
    return BufferPlan(
        live, layouts, kind, storage, slots, planes, partials, total, called, work, unread, overwrites
    )


def _kinds(live: Liveness) -> dict[Node, Kind]:
    """The kind of each value that is stored."""
    kind = {n: _kind_of(n, r, live) for r in live.regions for n in r.members if n not in live.folded}
    guests = [n for n in kind if n in live.windows]
    for n in guests:
        host = live.base(n)
        if kind[host] is Kind.SCRATCH and live.outlives(n, live.region[host]):
            kind[host] = Kind.ARENA
    for n in guests:  # a value is where its host is, in memory that is there before the host is made
        host = live.base(n)
        if kind[host] in UNOWNED:
            kind[host] = Kind.ARENA
        kind[n] = kind[host]
    return kind


def _kind_of(n: Node, r: Region, live: Liveness) -> Kind:
    """The kind of a value, regardless of others that live in its memory."""
    base = live.base(n)
    if base in live.outputs:
        return Kind.RESULT
    if base is not n:
        return Kind.ARENA
    if r.N == 1:
        if n not in r.sums and makes_number(n) and _is_read_as_number(n, live):
            return Kind.NUMBER
        return Kind.ARENA if _fills(n) else Kind.ALLOCATED
    return Kind.ARENA if n in r.sums or live.outlives(n, r) else Kind.SCRATCH


def _is_read_as_number(n: Node, live: Liveness) -> bool:
    """Whether a number serves its readers as well as an array of shape (1, ..., 1)."""
    return n.shape == () or all(facts(u).streams and u not in live.folded for u, _ in live.reads(n))


def _storage(kind: dict[Node, Kind], live: Liveness) -> dict[Node, Storage]:
    """A span of the arena for each host, for as long as any of its values lives."""
    storage: dict[Node, Storage] = {}
    for n, kind_of_n in kind.items():
        if kind_of_n is Kind.ARENA:
            base = live.base(n)
            s = storage.setdefault(base, Storage(base.nbytes, NEVER, -1))
            s.holds.append(n)
            s.start = min(s.start, live.start[n])
            s.end = max([s.end, live.end[n], *[live.end[u] for u in live.readers(n)]])
    return storage


def _fills(n: Node) -> bool:
    """Whether its statement writes the result into memory that the program gives it."""
    op = facts(n)
    return op.streams or op.changes_first or op.has_out or is_result_of_call(n)


def makes_number(n: Node) -> bool:
    """Whether a ufunc of numbers, or a sum over all of an array, gives a single real number of their type."""
    summed = facts(n).reducer == "add"
    if facts(n).ufunc is None and not summed:
        return False
    if n.size != 1 or n.dtype.kind != "f" or any(a.dtype != n.dtype for a in n.args):
        return False
    if summed:
        return n.shape == ()
    recorded = any(not is_scalar_const(a) for a in n.args)  # Python's rules for 1.0 / 0.0 are not NumPy's
    return recorded and all(a.size == 1 for a in n.args)


def _share(r: Region, storage: dict[Node, Storage], live: Liveness) -> None:
    """Write values over others that are no longer needed.

    A plain elementwise statement takes over one of its arguments. In a region of row blocks, a
    value takes over any whole array that the region reads by rows and is done with, row for row,
    before the value is written.
    """
    read = (root(a) for n in r.members for a in n.args) if r.N > 1 else ()
    by_region = [x for x in dict.fromkeys(read) if x in storage]
    sums = set(r.sums)
    for n in r.members:
        base = live.base(n)
        s = storage.get(base)
        if s is None or n in sums or live.first_writer(base) is not n:
            continue
        for x in dict.fromkeys((*read_in_step(n), *by_region)):
            t = storage.get(x)
            if t is not None and t is not s and t.holds == [x] and live.may_write_over(n, x):
                t.end = max(t.end, s.end)
                t.holds = s.holds  # from here on they are what lives there
                storage[base] = t
                break


def lends(o: Node) -> bool:
    """Whether a result can lend its memory."""
    return o.op != "input" and o.dtype.kind == "f" and o.nbytes >= LEND_FROM


def _lend(kind, storage, live: Liveness, layouts) -> None:
    """Put values with long lives into the memory of results that are written after their last use.

    A training step's activations then cost nothing beside its gradients: what the forward pass of a layer
    keeps is needed until the layer's backward, and the gradients of the layers before it come after that.
    """
    written = written_spans(kind, live, layouts, [o for o in live.outputs if lends(o)])
    taken = {o: Allocator(spans) for o, spans in written.items()}
    long = LONG * max(live.end.values(), default=0)
    types: dict[int, set] = {}
    for base, s in storage.items():
        types.setdefault(id(s), set()).add(base.dtype)
    for s in sorted({id(s): s for s in storage.values()}.values(), key=lambda s: (-s.nbytes, s.start)):
        if s.nbytes >= LEND_FROM and s.end - s.start >= long:
            fits = [o for o in taken if o.nbytes >= s.nbytes and types[id(s)] == {o.dtype}]
            _borrow(s, {o: taken[o] for o in fits})
    _note_lent(kind, storage, live)


def _note_lent(kind, storage, live: Liveness) -> None:
    for n in kind:
        if kind[n] is Kind.ARENA and storage[live.base(n)].lender is not None:
            kind[n] = Kind.LENT


def _begin_in_results(kind, storage, live: Liveness) -> None:
    """Put large values into the memory of results that are written over them, element by element.

    One array is then in cache where there were two. Nothing else is written there before.
    """
    for o in live.outputs:
        n = live.first_writer(o)
        if n is None or n.op == "copy" or not lends(o):
            continue
        for x in read_in_step(n):
            s = storage.get(x)
            alone = s is not None and s.lender is None and s.holds == [x]
            if alone and live.may_write_over(n, x):
                s.lender, s.offset, s.end = o, 0, live.start[n] - 1  # where n writes, it is done with
                break
    _note_lent(kind, storage, live)


def written_spans(
    kind: Iterable[Node], live: Liveness, layouts: dict[Node, Layout], results: Iterable[Node]
) -> dict[Node, list[Span]]:
    """For each of these results, the bytes that the program writes of it, from then on."""
    taken: dict[Node, list[Span]] = {o: [] for o in results}
    for n in kind:
        base = live.base(n)
        if base in taken:
            lo, hi = layouts[n].span
            taken[base].append(Span(lo, rounded(hi), live.start[n], NEVER))
    return taken


def _borrow(s: Storage, lenders: dict[Node, Allocator]) -> None:
    """Put s into a result with room, the one written soonest after the life of s: others can lend longer."""
    best = None
    for o, taken in lenders.items():
        at = next(taken.rooms(s))
        if at + s.nbytes <= o.nbytes:
            back = taken.next_use(s, at)
            if best is None or back < best[0]:
                best = back, o, at
    if best is not None:
        _, s.lender, s.offset = best
        lenders[s.lender].take(s)


class _Slots:
    """Scratch slots of a region: reused after a value's last read, in place where possible."""

    def __init__(self, r: Region, kind: dict[Node, Kind], live: Liveness):
        self.live = live
        self.slots: dict[Node, int] = {}
        self.sizes: list[int] = []  # bytes a row
        self.free: list[int] = []
        self.held: dict[Node, int] = {}  # value -> its slot, while it is needed
        self.last: dict[Node, int] = {}  # when a value is read for the last time
        order = live.order
        self.bases = {n: live.base(n) for n in r.members if kind.get(n) is Kind.SCRATCH}
        for n, base in self.bases.items():
            self.last[base] = max([self.last.get(base, -1), order[n], *(order[u] for u in live.readers(n))])
        for n in r.members:
            base = self.bases.get(n)
            if base is not None and base in self.held:  # a part of its host was written before
                continue
            if base is not None:
                self.held[base] = self.slots[base] = self.slot_for(n, base, base.nbytes // r.N, order[n])
            self.expire(order[n])

    def slot_for(self, n: Node, base: Node, row: int, now: int) -> int:
        """A slot for n: that of an argument which it writes over, one that is free, or a new one."""
        if base is n:
            for x in read_in_step(n):
                ends = x in self.held and self.last[x] == now and x is self.bases.get(x)
                if ends and self.live.may_write_over(n, x):
                    return self.held.pop(x)
        for slot in reversed(self.free):
            if self.sizes[slot] == row:
                self.free.remove(slot)
                return slot
        self.sizes.append(row)
        return len(self.sizes) - 1

    def expire(self, now: int) -> None:
        for x in [x for x in self.held if self.last[x] <= now]:
            self.free.append(self.held.pop(x))


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
        self.count = self.table.shape[1]  # the columns in use; the others are for more

    def rooms(self, s: Storage) -> Iterator[int]:
        """The lowest offset with room for s for its whole life, then those for more of its size and life."""
        lo, hi, start, end = self.table[:, : self.count]
        alive = ((start <= s.end) & (end >= s.start)).nonzero()[0]
        begins, ends = np.maximum.accumulate(hi[alive])[:-1], lo[alive][1:]  # of the gaps
        for gap in (ends - begins >= s.nbytes).nonzero()[0]:
            at, end_of_gap = int(begins[gap]), int(ends[gap])
            while end_of_gap - at >= s.nbytes:
                yield at
                at += s.nbytes and rounded(s.nbytes)

    def take(self, s: Storage) -> int:
        """Take the span of s at its offset; returns the first byte after it."""
        n = self.count
        if n == self.table.shape[1]:
            self.table = np.concatenate([self.table, np.empty((4, n + 16), np.int64)], axis=1)
        span = Span(s.offset, s.offset + rounded(s.nbytes), s.start, s.end)
        k = self.table[0, :n].searchsorted(span.lo)
        if self.table[1:, k - 1].tolist() == [span.lo, span.start, span.end]:
            self.table[1, k - 1] = span.hi
            return span.hi
        self.table[:, k + 1 : n + 1] = self.table[:, k:n]
        self.table[:, k] = span
        self.count = n + 1
        return span.hi

    def next_use(self, s: Storage, at: int) -> int:
        """The first step after the life of s in which its bytes, from `at` on, are taken; 0 if never."""
        lo, hi, start, _ = self.table[:, : self.count]
        later = start[(start > s.end) & (lo < at + s.nbytes) & (at < hi)]
        return int(later.min()) if later.size else 0


def offsets(storages: Iterable[Storage]) -> int:
    """Place each storage at the lowest offset that is free for its whole life, large ones first. Returns the
    total of bytes.
    """
    taken, total = Allocator(), 0
    ordered = sorted(storages, key=lambda s: (-s.nbytes, s.start))
    for _, group in groupby(ordered, lambda s: (s.nbytes, s.start, s.end)):  # of results of one call, say
        alike = list(group)
        for s, s.offset in zip(alike, taken.rooms(alike[0])):
            total = max(total, taken.take(s))
    return total
