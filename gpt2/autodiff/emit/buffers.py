"""Plans the memory of a program: which value lives where, and for how long, in results, arena or scratch.

`plan` gives every value a Kind of storage. Lives are counted in steps: a plain statement is one step, and so
is a whole region of row blocks.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ..graph import Graph, Node, is_scalar_const
from ..ops.rowwise import ROW, row_axes
from ..ops.table import VIEWS, facts, root, views_of
from .layout import Layout, in_planes, is_result_of_call
from .memory import offsets, rounded
from .regions import Region, blocks_of, by_rows, flags_of
from .windows import Window

# Lent memory is for what is kept long: what is made and used up at once does better in an arena that stays in
# cache. Bytes, and the share of all steps.
LEND_FROM = 1 << 16
LONG = 1 / 16
NEVER = 1 << 60  # a step after all others


class Kind(Enum):
    """Where a value is stored."""

    RESULT = "returned to the caller"
    ARENA = "lives from one region to another; arrays whose lives do not overlap share one stretch of memory"
    LENT = "the same, in the memory of a result that is not written before the value's life is over"
    SCRATCH = "lives inside one region; a block of rows for each thread"
    FREE = "allocated by NumPy, as its op cannot write where it is told to (np.linalg.inv, ...)"
    # made from numbers: Python's operators handle it several times as fast as a ufunc an array of one element
    NUMBER = "a single number, as a NumPy scalar"


UNOWNED = (Kind.FREE, Kind.NUMBER)  # what the program gives no memory to


@dataclass(eq=False)
class Storage:
    """A stretch of the arena, or of the result `lender`, [start, end] in steps, for the values in `holds`."""

    nbytes: int
    start: int
    end: int
    offset: int = -1
    lender: Node | None = None
    holds: list[Node] = field(default_factory=list)


@dataclass
class BufferPlan:
    """What `plan` decides."""

    kind: dict[Node, Kind]
    storage: dict[Node, Storage]  # arena values that own memory (none that live in another's window)
    windows: dict[Node, Window]
    slots: dict[Node, int]  # scratch values: number of their slot in the region
    planes: set[Node]  # those that lie plane by plane (layout.py)
    partials: dict[Node, Storage]  # for each sum over blocks of rows, the block sums
    arena_bytes: int
    folded: set[Node]
    work: dict[Node, Storage]  # for each call of a stretch, what its function works in
    unread: dict[tuple[Node, int], Storage]  # and for each of its results that nothing reads

    def lenders(self) -> set[Node]:
        """The results in whose memory other values live before they are written."""
        return {s.lender for s in self.storage.values() if s.lender is not None}


def plan(
    values: Values, layouts: dict[Node, Layout] | None = None, work: dict[Node, int] | None = None
) -> BufferPlan:
    """Decide where each value lives. `layouts` (windows.hosts) where results lend their memory, else None.

    work   for each call of a stretch how many bytes of arena its function needs
    """
    regions, kind = values.regions, values.kinds()
    storage = values.storage(kind)
    for r in regions:
        _share(r, storage, values)
    start, end = values.start, values.end
    partials = {n: Storage(n.nbytes * len(blocks_of(r)), start[n], end[n]) for r in regions for n in r.sums}
    if layouts is not None:
        _lend(kind, storage, values, layouts)
    else:
        _begin_in_results(kind, storage, values)
    during = {n: Storage(nbytes, start[n], end[n]) for n, nbytes in (work or {}).items()}
    unread = {
        (n, k): Storage(o.nbytes, start[n], end[n])
        for n in during
        for k, o in enumerate(n.attrs["body"].outputs)
        if (n, k) not in values.results
    }
    stretches = {id(s): s for s in storage.values() if s.lender is None}
    total = offsets([*stretches.values(), *partials.values(), *during.values(), *unread.values()])
    slots: dict[Node, int] = {}
    planes: set[Node] = set()
    for r in regions:
        if r.N > 1:
            inside = _Slots(r, kind, values).slots
            slots.update(inside)
            planes |= in_planes(r, inside, values.readers, values.guests_and_hosts)
    return BufferPlan(
        kind, storage, values.windows, slots, planes, partials, total, values.folded, during, unread
    )


class Values:
    """What is known of the values of a program before they have memory."""

    def __init__(
        self,
        graph: Graph,
        regions: list[Region],
        where: dict[Node, Region],
        windows: dict[Node, Window],
        folded: set[Node],
        uses: Uses,
    ):
        self.outputs = dict.fromkeys(graph.outputs)
        self.regions, self.where, self.windows = regions, where, windows
        self.folded, self.uses = folded, uses
        self.start, self.end = _steps(regions)
        self.results = {(n.args[0], n.attrs["i"]) for n in self.start if is_result_of_call(n)}
        self._last: dict[Node, int] = {}
        self.hosts = {n: w.base for n, w in windows.items()}
        self.guests_and_hosts = {*windows, *self.hosts.values(), *folded}

    def base(self, n: Node) -> Node:
        """The value in whose memory n lives, n itself for most."""
        return self.hosts.get(n, n)

    def readers(self, n: Node) -> list[Node]:
        """The ops that read n, also through views, and also in place of a folded op."""
        direct = [u for u, _ in self.uses.readers(n)]
        if not any([u in self.folded for u in direct]):
            return direct
        return [w for u in direct for w in (self.readers(u) if u in self.folded else [u])]

    def last_read(self, n: Node) -> int:
        """The position in the order of the last of them; -1 where there is none."""
        if n not in self._last:
            self._last[n] = max([self.uses.order[u] for u in self.readers(n)], default=-1)
        return self._last[n]

    def kinds(self) -> dict[Node, Kind]:
        """The kind of each value that is stored at all."""
        kind = {n: self.kind_of(n, r) for r in self.regions for n in r.members if n not in self.folded}
        guests = [n for n in kind if n in self.windows]
        for n in guests:
            host = self.base(n)
            if kind[host] is Kind.SCRATCH and self.outlives(n, self.where[host]):
                kind[host] = Kind.ARENA
        for n in guests:  # a value is where its host is, in memory that is there before the host is made
            host = self.base(n)
            if kind[host] in UNOWNED:
                kind[host] = Kind.ARENA
            kind[n] = kind[host]
        return kind

    def kind_of(self, n: Node, r: Region) -> Kind:
        """The kind of a value by itself, whoever lives in its memory."""
        base = self.base(n)
        if base in self.outputs:
            return Kind.RESULT
        if base is not n:
            return Kind.ARENA
        if r.N == 1:
            if n not in r.sums and makes_number(n) and self.is_read_as_number(n):
                return Kind.NUMBER
            return Kind.ARENA if _fills(n) else Kind.FREE
        return Kind.ARENA if n in r.sums or self.outlives(n, r) else Kind.SCRATCH

    def outlives(self, n: Node, r: Region) -> bool:
        """Whether n is made or read outside of a region: scratch ends with it."""
        return self.where[n] is not r or any(self.where.get(u) is not r for u in self.readers(n))

    def is_read_as_number(self, n: Node) -> bool:
        """Whether its readers care for the number alone, not for an array of the shape (1, ..., 1)."""
        return n.shape == () or all(
            facts(u).streams and u not in self.folded for u, _ in self.uses.readers(n)
        )

    def storage(self, kind: dict[Node, Kind]) -> dict[Node, Storage]:
        """A stretch of the arena for each host, for as long as any of its values lives."""
        found: dict[Node, Storage] = {}
        for n, what in kind.items():
            if what is Kind.ARENA:
                base = self.base(n)
                s = found.setdefault(base, Storage(base.nbytes, NEVER, -1))
                s.holds.append(n)
                s.start = min(s.start, self.start[n])
                s.end = max([s.end, self.end[n], *[self.end[u] for u in self.readers(n)]])
        return found


def _steps(regions) -> tuple[dict[Node, int], dict[Node, int]]:
    """First and last step of each member's life as a writer or reader."""
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
    return start, end


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
    made = any(not is_scalar_const(a) for a in n.args)  # Python's rules for 1.0 / 0.0 are not NumPy's
    return made and all(a.size == 1 for a in n.args)


class Uses:
    """Who reads what, in the order of execution."""

    def __init__(self, graph: Graph, regions: list[Region]):
        self.users = graph.users()
        self.region = {n: r for r in regions for n in r.members}
        self.order = {n: k for k, n in enumerate(m for r in regions for m in r.members)}
        self._last: dict[Node, int] = {}
        self._readers: dict[Node, list[tuple[Node, Node]]] = {}

    def readers(self, x: Node) -> list[tuple[Node, Node]]:
        """(op, the argument through which it reads x), for x itself and for views of x."""
        found = self._readers.get(x)
        if found is not None:
            return found
        found = self._readers[x] = []
        todo = [x]
        while todo:
            y = todo.pop()
            for u in self.users[y]:
                if u.op in VIEWS:
                    todo.append(u)
                else:
                    found.append((u, y))
        return found

    def last_read(self, x: Node) -> int:
        """The position in the order of the op that reads x last; -1 where none does."""
        if x not in self._last:
            self._last[x] = max((self.order[u] for u, _ in self.readers(x)), default=-1)
        return self._last[x]

    def last_use(self, x: Node, n: Node) -> bool:
        """Whether n may write over x, which it reads: nothing reads x later, not in a later block either."""
        if self.last_read(x) > self.order[n]:
            return False
        r = self.region[n]
        made_here = self.region.get(x) is r
        if not facts(n).streams and sum(root(a) is x for a in n.args) > 1:
            return False  # what is written over by one argument's sake is read for another's
        if n.op == "fused" and not all(_element_by_element(a, n) for a in n.args if root(a) is x):
            return False  # ufuncs look whether what they read and write overlaps; numexpr does not
        if r.N > 1 and not made_here:
            for u, y in self.readers(x):
                if self.region[u] is r and not reads_own_rows(u, y, r):
                    return False
        return True


def _element_by_element(a: Node, n: Node) -> bool:
    """Whether n, an elementwise op, reads each element of a's root at the position that it writes."""
    return a.shape == n.shape and all(v.op == "reshape" for v in views_of(a))


def reads_own_rows(u: Node, y: Node, r: Region) -> bool:
    """Whether u reads, for each row, that row of y's root alone."""
    flags = flags_of(u, r.N)
    if flags is None or any(a is y and flag is not ROW for a, flag in zip(u.args, flags)):
        return False
    return all(by_rows(v, r.N) == (ROW,) for v in views_of(y)) and row_axes(root(y).shape, r.N) is not None


def _share(r: Region, storage: dict[Node, Storage], values: Values) -> None:
    """Write values over others that nothing needs any more.

    A plain elementwise statement takes over one of its arguments. In a region of row blocks, a
    value takes over any whole array that the region reads by rows and is done with, row for row,
    before the value is written.
    """
    read = (root(a) for n in r.members for a in n.args) if r.N > 1 else ()
    outside = [x for x in dict.fromkeys(read) if x in storage]
    sums = set(r.sums)
    for n in r.members:
        s = storage.get(values.base(n))
        if s is None or n in sums or not _first_writer(n, s, values):
            continue
        t = _to_write_over(n, r, sums, storage, outside, values)
        if t is not None:
            t.end = max(t.end, s.end)
            t.holds = s.holds  # from here on they are what lives there
            storage[values.base(n)] = t


def _to_write_over(
    n: Node,
    r: Region,
    sums: set[Node],
    storage: dict[Node, Storage],
    outside: Iterable[Node],
    values: Values,
) -> Storage | None:
    """The storage of a value that n may be written over: one of its arguments, or of the arrays `outside`."""
    own, direct = storage[values.base(n)], _read_in_step(n)
    for x in dict.fromkeys((*direct, *outside)):
        t = storage.get(x)
        if t is None or t is own or not _fits_over(n, x, values.windows):
            continue
        inside = values.uses.region[x] is r and x not in direct
        if t.holds == [x] and x not in sums and not inside and _done_with(x, n, x in direct, values, r):
            return t
    return None


def _fits_over(n: Node, x: Node, windows) -> bool:
    """Whether n takes as much memory as x, which owns it, in the same type."""
    return x not in windows and x.nbytes == n.nbytes and x.dtype == n.dtype


def _read_in_step(n: Node) -> list[Node]:
    """The values that n may write over while it reads them: each element where it is written."""
    return [root(a) for a in overwritable(n) if _element_by_element(a, n)]


def _first_writer(n: Node, s: Storage, values: Values) -> bool:
    """Whether n is the first to write to its storage, and writes all of it, as the values after it do."""
    windows = values.windows
    if s.holds[0] is not n:  # they stand in the order of execution
        return False
    return all(
        m.nbytes == s.nbytes and all(step[0] == "reshape" for step in windows[m].steps)
        for m in s.holds
        if m in windows
    )


def _done_with(x: Node, n: Node, direct: bool, values: Values, r: Region) -> bool:
    """Whether every use of x is over, row for row, when n is written; n's own reading may be just then."""
    uses = values.uses
    last = uses.order[n]
    if values.last_read(x) > last or (not direct and n in values.readers(x)):
        return False
    if not uses.last_use(x, n):
        return False
    if r.N == 1:
        return direct
    return row_axes(x.shape, r.N) is not None and all(
        reads_own_rows(u, y, r) for u, y in uses.readers(x) if uses.region[u] is r
    )


def overwritable(n: Node) -> tuple[Node, ...]:
    """Arguments whose memory n may take over while it reads them."""
    if facts(n).changes_first:
        return n.args[:1]
    if n.op == "where":  # two copies: what is taken where the condition is false comes first
        return n.args[2:]
    return n.args if facts(n).streams else ()


def _gap(taken: list[Span], s: Storage) -> int:
    """The lowest offset at which there is room for s, beside spans that are sorted by where they begin."""
    at = 0
    for lo, hi, start, end in taken:
        if start <= s.end and s.start <= end:
            if lo - at >= s.nbytes:
                break
            if hi > at:
                at = hi
    return at


def lends(o: Node) -> bool:
    """Whether a result is of a kind that lends its memory."""
    return o.op != "input" and o.dtype.kind == "f" and o.nbytes >= LEND_FROM


class Span(NamedTuple):
    """Bytes lo:hi of a result that are taken in the steps from start to end. hi is rounded up to where the
    next may begin.
    """

    lo: int
    hi: int
    start: int
    end: int


def _lend(kind, storage, values: Values, layouts) -> None:
    """Put values that are kept long into the memory of results that are written after their life is over.

    A training step's activations then cost nothing beside its gradients: what the forward pass of a layer
    keeps is needed until the layer's backward, and the gradients of the layers before it come after that.
    """
    taken = written_spans(kind, values, layouts, [o for o in values.outputs if lends(o)])
    long = LONG * max(values.end.values(), default=0)
    types: dict[int, set] = {}
    for base, s in storage.items():
        types.setdefault(id(s), set()).add(base.dtype)
    for s in sorted({id(s): s for s in storage.values()}.values(), key=lambda s: (-s.nbytes, s.start)):
        if s.nbytes >= LEND_FROM and s.end - s.start >= long:
            lenders = {o: spans for o, spans in taken.items() if types[id(s)] == {o.dtype}}
            _borrow(s, lenders)
    _note_lent(kind, storage, values)


def _note_lent(kind, storage, values: Values) -> None:
    for n in kind:
        if kind[n] is Kind.ARENA and storage[values.base(n)].lender is not None:
            kind[n] = Kind.LENT


def _begin_in_results(kind, storage, values: Values) -> None:
    """Put large values into the memory of results that are written over them, element by element.

    One array is then in cache where there were two. Nothing else is written there before.
    """
    first: dict[Node, Node] = {}
    for n in kind:
        first.setdefault(values.base(n), n)
    for o in values.outputs:
        n = first.get(o)
        if n is None or n.op == "copy" or not lends(o) or n.nbytes != o.nbytes or not _writes_all(o, values):
            continue
        for x in _read_in_step(n):
            s = storage.get(x)
            alone = s is not None and s.lender is None and s.holds == [x] and _fits_over(n, x, values.windows)
            if alone and x not in values.where[x].sums and _done_with(x, n, True, values, values.where[n]):
                s.lender, s.offset, s.end = o, 0, values.start[n] - 1  # where n writes, it is done with
                break
    _note_lent(kind, storage, values)


def _writes_all(o: Node, values: Values) -> bool:
    """Whether what is computed in the memory of a result fills all of it, in its order."""
    inside = [w for w in values.windows.values() if w.base is o]
    return all(step[0] == "reshape" for w in inside for step in w.steps)


def written_spans(
    kind: Iterable[Node], values: Values, layouts: dict[Node, Layout], results: Iterable[Node]
) -> dict[Node, list[Span]]:
    """For each of these results, the bytes that the program writes of it, from then on: sorted."""
    taken: dict[Node, list[Span]] = {o: [] for o in results}
    for n in kind:
        base = values.base(n)
        if base in taken:
            lo, hi = layouts[n].span
            taken[base].append(Span(lo, rounded(hi), values.start[n], NEVER))
    for spans in taken.values():
        spans.sort()
    return taken


def _borrow(s: Storage, lenders: dict[Node, list[Span]]) -> None:
    """Give s the memory of the result that takes it back first, if any has room: others may stay longer."""
    best = None
    for o, spans in lenders.items():
        at = _gap(spans, s)
        beyond = at + s.nbytes
        if beyond <= o.nbytes:
            later = [start for lo, hi, start, _ in spans if start > s.end and lo < beyond and at < hi]
            back = min(later, default=0)
            if best is None or back < best[0]:
                best = back, o, at
    if best is not None:
        _, s.lender, s.offset = best
        bisect.insort(lenders[s.lender], Span(s.offset, s.offset + rounded(s.nbytes), s.start, s.end))


class _Slots:
    """Slots of a region's scratch: used again once a value was read for the last time, in place if may be."""

    def __init__(self, r: Region, kind: dict[Node, Kind], values: Values):
        self.slots: dict[Node, int] = {}
        self.sizes: list[int] = []  # bytes a row
        self.free: list[int] = []
        self.live: dict[Node, int] = {}
        self.last: dict[Node, int] = {}  # when a value is read for the last time
        order = values.uses.order
        self.bases = {n: values.base(n) for n in r.members if kind.get(n) is Kind.SCRATCH}
        for n, base in self.bases.items():
            self.last[base] = max([self.last.get(base, -1), order[n], *(order[u] for u in values.readers(n))])
        for n in r.members:
            base = self.bases.get(n)
            if base is not None and base in self.live:  # a part of its host was written before
                continue
            if base is not None:
                self.live[base] = self.slots[base] = self.slot_for(n, base, base.nbytes // r.N, order[n])
            self.expire(order[n])

    def slot_for(self, n: Node, base: Node, row: int, now: int) -> int:
        """A slot for n: that of an argument which it writes over, one that is free, or a new one."""
        if base is n:
            for x in _read_in_step(n):
                ends = x in self.live and self.last[x] == now and x is self.bases.get(x)
                if ends and x.nbytes == n.nbytes and x.dtype == n.dtype:
                    return self.live.pop(x)
        for slot in reversed(self.free):
            if self.sizes[slot] == row:
                self.free.remove(slot)
                return slot
        self.sizes.append(row)
        return len(self.sizes) - 1

    def expire(self, now: int) -> None:
        for x in [x for x in self.live if self.last[x] <= now]:
            self.free.append(self.live.pop(x))


class Overwrites:
    """Which pairs (result, input) are such that the result may be written over that input's memory.

    Found out when a caller asks: a program with thousands of parameters has millions of pairs, of which few
    are ever wanted.
    """

    def __init__(self, graph: Graph, windows: dict[Node, Window], uses: Uses, barred: Callable[[Node], bool]):
        self.graph, self.windows, self.uses, self.barred = graph, windows, uses, barred
        self.known: dict[tuple[int, int], bool] = {}
        self.writers: dict[Node, list[Node]] = {}  # of each memory, in the order of execution
        for n in uses.order:
            self.writers.setdefault(windows[n].base if n in windows else n, []).append(n)

    def __contains__(self, pair: tuple[int, int]) -> bool:
        if pair not in self.known:
            o, x = self.graph.outputs[pair[0]], self.graph.inputs[pair[1]]
            self.known[pair] = not self.barred(o) and self._may(o, x)
        return self.known[pair]

    def _may(self, o: Node, x: Node) -> bool:
        """Whether output o may be computed in the memory of input x: nothing reads x once that is written."""
        if o.op == "input" or x.shape != o.shape or x.dtype != o.dtype:
            return False
        writers, windows, uses = self.writers[o], self.windows, self.uses
        if is_result_of_call(writers[0]):  # the function may read x after it wrote the result
            return False
        if any(step[0] != "reshape" for n in writers if n in windows for step in windows[n].steps):
            return False
        first = writers[0]
        # what copies its first argument has no need to where the result is that very array
        read = first.args[1:] if facts(first).changes_first and first.args[0] is x else first.args
        if not facts(first).streams and any(root(a) is x for a in read):
            return False
        if uses.region[first].N > 1 and row_axes(x.shape, uses.region[first].N) is None:
            return False
        return uses.last_use(x, first)
