"""Who owns which memory, for how long: results, the arena, and the scratch blocks of a region.

`plan` gives every value its kind of storage:

    result    returned to the caller
    arena     lives from one region to another; arrays whose lives do not overlap share one stretch of memory
    lent      the same, but in the memory of a result that is not written before the value's life is over
    scratch   lives inside one region; a block of rows for each thread
    free      made by an op that cannot write where it is told to (`np.linalg.inv`, ...): NumPy allocates it,
              and it is no view of an argument
    number    a single number made from numbers: a NumPy scalar, which Python's operators handle several times
              as fast as a ufunc handles an array of one element

Lives are counted in steps: a plain statement is one step, and so is a whole region of row blocks.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..graph import Graph, Node, is_scalar_const
from ..ops import OPS
from .layout import CHANGE_FIRST, VIEWS, Place, chain, is_elementwise, root
from .regions import Region, flags_of
from .rowwise import ROW, by_rows, row_axes

WRITES_OUT = frozenset(
    (
        "copy",
        "cast",
        "where",
        "sum",
        "max",
        "min",
        "prod",
        "any",
        "all",
        "matmul",
        "assemble",
        "cumsum",
        "gather",
        "take_along",
        "real",  # this and the next two are views in NumPy, at times: of memory that is used for other values
        "imag",
        "einsum",
        *CHANGE_FIRST,
    )
)
ALIGN = 64
MOST_COMPARED = 1000  # stretches of memory whose lives are compared in pairs: 0.1 s for so many
# Lent memory is for what is kept long: what is made and used up at once does better in an arena that stays in
# cache. Bytes, and the share of all steps.
LEND_FROM = 1 << 16
LONG = 1 / 16


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
class Plan:
    kind: dict[Node, str]
    storage: dict[Node, Storage]  # arena values that own memory (not hosted ones)
    placed: dict[Node, Place]
    slots: dict[Node, int]  # scratch values: number of their slot in the region
    slot_bytes: dict[Region, list[int]]  # bytes a row of each slot
    partials: dict[Node, Storage]  # for each sum over blocks of rows, the block sums
    arena_bytes: int
    folded: set[Node]


def plan(
    graph: Graph,
    regions: list[Region],
    where: dict[Node, Region],
    placed: dict[Node, Place],
    folded: set[Node],
    uses: Uses,
    n_blocks,
    stands=None,
) -> Plan:
    """`stands` (layout.hosts) where results lend their memory, else None."""
    outputs = set(graph.outputs)
    start, end, order = _steps(regions)

    def readers(n: Node) -> list[Node]:
        """The ops that read n, also through views, and also in place of a folded op."""
        direct = [u for u, _ in uses.readers(n)]
        return [w for u in direct for w in (readers(u) if u in folded else [u])]

    kind: dict[Node, str] = {}
    for r in regions:
        for n in r.members:
            if n in folded:
                continue
            base = placed[n].base if n in placed else n
            if base in outputs:
                kind[n] = "result"
            elif base is not n:
                kind[n] = "arena"
            elif r.N == 1 and is_number(n) and n not in r.sums and _read_as_number(n, uses, folded):
                kind[n] = "number"
            elif r.N == 1 and not (is_elementwise(n) or n.op in WRITES_OUT):
                kind[n] = "free"
            elif r.N > 1 and n not in r.sums and all(where.get(u) is r for u in readers(n)):
                kind[n] = "scratch"
            else:
                kind[n] = "arena"
    for n in kind:  # scratch ends with its region: a host of values from elsewhere must outlive that
        if n in placed and kind[placed[n].base] == "scratch":
            r = where[placed[n].base]
            if where[n] is not r or any(where.get(u) is not r for u in readers(n)):
                kind[placed[n].base] = "arena"
    for n in kind:  # a value is where its host is
        if n in placed:
            kind[n] = kind[placed[n].base]
            if kind[n] in ("free", "number"):
                kind[n] = kind[placed[n].base] = "arena"

    storage: dict[Node, Storage] = {}
    for n in kind:
        base = placed[n].base if n in placed else n
        if kind[n] != "arena":
            continue
        s = storage.setdefault(base, Storage(base.nbytes, 1 << 60, -1))
        s.holds.append(n)
        s.start = min(s.start, start[n])
        s.end = max([s.end, end[n]] + [end[u] for u in readers(n)])
    _share(regions, storage, placed, readers, uses, folded)
    partials = {n: Storage(n.nbytes * n_blocks(r), start[n], end[n]) for r in regions for n in r.sums}
    if stands is not None:
        _lend(graph.outputs, kind, storage, placed, stands, start, max(end.values(), default=0))
    own = {id(s): s for s in storage.values() if s.lender is None}
    total = _offsets([*own.values(), *partials.values()])
    slots, slot_bytes = _slots(regions, kind, placed, readers, order)
    return Plan(kind, storage, placed, slots, slot_bytes, partials, total, folded)


def is_number(n: Node) -> bool:
    """A single real number, made by a ufunc from numbers of its type or by adding up an array of them."""
    summed = n.op == "sum"
    if n.op == "fused" or not summed and OPS[n.op].ufunc is None:
        return False
    if n.size != 1 or n.dtype.kind != "f" or any(a.dtype != n.dtype for a in n.args):
        return False
    if summed:
        return n.shape == ()
    made = any(not is_scalar_const(a) for a in n.args)  # Python's rules for 1.0 / 0.0 are not NumPy's
    return made and all(a.size == 1 for a in n.args)


def _read_as_number(n: Node, uses: Uses, folded: set[Node]) -> bool:
    """Whether its readers care for the number alone, not for an array of the shape (1, ..., 1)."""
    return n.shape == () or all(is_elementwise(u) and u not in folded for u, _ in uses.readers(n))


class Uses:
    """Who reads what, in the order of execution."""

    def __init__(self, graph: Graph, regions: list[Region]):
        self.users = graph.users()
        self.region = {n: r for r in regions for n in r.members}
        self.order = {n: k for k, n in enumerate(m for r in regions for m in r.members)}
        self._last: dict[Node, int] = {}

    def readers(self, x: Node) -> list[tuple[Node, Node]]:
        """(op, the argument through which it reads x), for x itself and for views of x."""
        found, todo = [], [x]
        while todo:
            y = todo.pop()
            for u in self.users[y]:
                if u.op in VIEWS:
                    todo.append(u)
                else:
                    found.append((u, y))
        return found

    def last_read(self, x: Node) -> int:
        """The place in the order of the op that reads x last; -1 where none does."""
        if x not in self._last:
            self._last[x] = max((self.order[u] for u, _ in self.readers(x)), default=-1)
        return self._last[x]

    def last_use(self, x: Node, n: Node) -> bool:
        """Whether n may write over x, which it reads: nothing reads x later, not in a later block either."""
        if self.last_read(x) > self.order[n]:
            return False
        r = self.region[n]
        made_here = self.region.get(x) is r
        if not is_elementwise(n) and sum(root(a) is x for a in n.args) > 1:
            return False  # what is written over by one argument's sake is read for another's
        if n.op == "fused" and not all(_element_by_element(a, n) for a in n.args if root(a) is x):
            return False  # ufuncs look whether what they read and write overlaps; numexpr does not
        if r.N > 1 and not made_here:
            for u, y in self.readers(x):
                if self.region[u] is r and not reads_own_rows(u, y, r):
                    return False
        return True


def _element_by_element(a: Node, n: Node) -> bool:
    """Whether n, an elementwise op, reads each element of a's root in the place that it writes."""
    return a.shape == n.shape and all(v.op == "reshape" for v in chain(a))


def reads_own_rows(u: Node, y: Node, r: Region) -> bool:
    """Whether u reads, for each row, that row of y's root alone."""
    flags = flags_of(u, r.N)
    if flags is None or any(a is y and flag is not ROW for a, flag in zip(u.args, flags)):
        return False
    return all(by_rows(v, r.N) == (ROW,) for v in chain(y)) and row_axes(root(y).shape, r.N) is not None


def _steps(regions):
    """First and last step of each member's life as a writer or reader, and its place in the order."""
    start: dict[Node, int] = {}
    end: dict[Node, int] = {}
    order: dict[Node, int] = {}
    step = 0
    for r in regions:
        for n in r.members:
            order[n] = len(order)
            if r.N == 1:
                step += 1
            start[n] = end[n] = step
        step += 1
    return start, end, order


def _share(regions, storage, placed, readers, uses, folded):
    """Values are written over others that nothing needs any more.

    A plain elementwise statement takes over one of its arguments. In a region of row blocks, a
    value takes over any whole array that the region reads by rows and is done with, row for row,
    before the value is written.
    """
    for r in regions:
        outside = list({x: None for n in r.members for a in n.args for x in [root(a)]}) if r.N > 1 else ()
        for n in r.members:
            base = placed[n].base if n in placed else n
            s = storage.get(base)
            if s is None or n in r.sums or not _first_writer(n, s, placed, uses):
                continue
            direct = [
                root(a)
                for a in overwritable(n)
                if a.shape == n.shape and all(v.op == "reshape" for v in chain(a))
            ]
            for x in dict.fromkeys((*direct, *outside)):
                t = storage.get(x)
                if (
                    t is None
                    or t is s
                    or x in placed
                    or x.nbytes != n.nbytes
                    or x.dtype != n.dtype
                    or x in r.sums
                ):
                    continue
                if t.holds != [x] or (uses.region[x] is r and x not in direct):
                    continue
                if not _done_with(x, n, x in direct, readers, uses, r):
                    continue
                t.end = max(t.end, s.end)
                t.holds = s.holds  # from here on they are what lives there
                storage[base] = t
                break


def _first_writer(n: Node, s: Storage, placed, uses: Uses) -> bool:
    """Whether n is the first to write to its storage, and writes all of it, as the values after it do."""
    if min(s.holds, key=uses.order.__getitem__) is not n:
        return False
    return all(
        m.nbytes == s.nbytes and all(step[0] == "reshape" for step in placed[m].steps)
        for m in s.holds
        if m in placed
    )


def _done_with(x: Node, n: Node, direct: bool, readers, uses: Uses, r: Region) -> bool:
    """Whether every use of x is over, row for row, when n is written; n's own reading may be just then."""
    last = uses.order[n]
    if any(uses.order[u] > last or (u is n and not direct) for u in readers(x)) or not uses.last_use(x, n):
        return False
    if r.N == 1:
        return direct
    return row_axes(x.shape, r.N) is not None and all(
        reads_own_rows(u, y, r) for u, y in uses.readers(x) if uses.region[u] is r
    )


def overwritable(n: Node) -> tuple[Node, ...]:
    """Arguments whose memory n may take over while it reads them."""
    if n.op in CHANGE_FIRST:
        return n.args[:1]
    if n.op == "where":  # two copies: what is taken where the condition is false comes first
        return n.args[2:]
    return n.args if is_elementwise(n) else ()


def _offsets(storages: list[Storage]) -> int:
    """Place every stretch at an offset that is free for its whole life; give the total."""
    if len(storages) > MOST_COMPARED:
        return _offsets_in_time(storages)
    return _offsets_by_size(storages)


def _offsets_by_size(storages: list[Storage]) -> int:
    """Large ones first, at the lowest offset. Each is compared with all before it."""
    placed: list[tuple[int, int, int, int]] = []  # (offset, its end, start, end in steps), by offset
    total = 0
    for s in sorted(storages, key=lambda s: (-s.nbytes, s.start)):
        at = 0
        for lo, hi, start, end in placed:
            if start <= s.end and s.start <= end:
                if lo - at >= s.nbytes:
                    break
                at = max(at, hi)
        s.offset = at
        bisect.insort(placed, (at, at + _round(s.nbytes), s.start, s.end))
        total = max(total, at + _round(s.nbytes))
    return total


def _offsets_in_time(storages: list[Storage]) -> int:
    """In the order of their lives, as an allocator would that is told when each begins and ends.

    The time grows with their number and not with its square. Memory is a little worse: it holds gaps that
    nothing fits in. The smallest gap that is wide enough is taken; neighbouring gaps become one.
    """
    free = Gaps()
    ending: list[tuple[int, int, int]] = []  # (last step, offset, bytes) of those that live, as a heap
    for s in sorted(storages, key=lambda s: (s.start, -s.nbytes)):
        while ending and ending[0][0] < s.start:
            _, at, nbytes = heapq.heappop(ending)
            free.give(at, nbytes)
        s.offset = free.take(_round(s.nbytes))
        heapq.heappush(ending, (s.end, s.offset, _round(s.nbytes)))
    return free.total


class Gaps:
    """The stretches of an arena that are free, found by their width, and by where they begin and end."""

    def __init__(self):
        self.total = 0  # bytes that the arena has so far
        self.by_width: list[tuple[int, int]] = []  # (bytes, offset), sorted
        self.ends: dict[int, int] = {}  # offset -> where that gap ends
        self.begins: dict[int, int] = {}  # where a gap ends -> its offset

    def take(self, nbytes: int) -> int:
        k = bisect.bisect_left(self.by_width, (nbytes, -1))
        if k < len(self.by_width):
            width, at = self.by_width[k]
        elif self.total in self.begins:  # the last gap grows
            at = self.begins[self.total]
            width = self.total - at
            self.total = at + nbytes
        else:
            at, self.total = self.total, self.total + nbytes
            return at
        self._remove(at, at + width)
        if width > nbytes:
            self._add(at + nbytes, at + width)
        return at

    def give(self, at: int, nbytes: int) -> None:
        end = at + nbytes
        if at in self.begins:
            before = self.begins[at]
            self._remove(before, at)
            at = before
        if end in self.ends:
            after = self.ends[end]
            self._remove(end, after)
            end = after
        self._add(at, end)

    def _add(self, at: int, end: int) -> None:
        self.ends[at], self.begins[end] = end, at
        bisect.insort(self.by_width, (end - at, at))

    def _remove(self, at: int, end: int) -> None:
        del self.ends[at], self.begins[end]
        del self.by_width[bisect.bisect_left(self.by_width, (end - at, at))]


def lends(o: Node) -> bool:
    """Whether a result is of a kind that lends its memory."""
    return o.op != "input" and o.dtype.kind == "f" and o.nbytes >= LEND_FROM


def _lend(outputs, kind, storage, placed, stands, start, steps: int) -> None:
    """Put values that are kept long into the memory of results that are written after their life is over.

    A training step's activations then cost nothing beside its gradients: what the forward pass of a layer
    keeps is needed until the layer's backward, and the gradients of the layers before it come after that.
    """
    taken: dict[Node, list[tuple[int, int, int, int]]] = {}  # (from byte, to byte, from step, to step)
    for o in dict.fromkeys(outputs):
        if lends(o):
            taken[o] = []
    for n in kind:
        base = placed[n].base if n in placed else n
        if base in taken:
            lo, hi = np.lib.array_utils.byte_bounds(stands[n])
            at, _ = np.lib.array_utils.byte_bounds(stands[base])
            taken[base].append((lo - at, hi - at, start[n], 1 << 60))
    types: dict[int, set] = {}
    for base, s in storage.items():
        types.setdefault(id(s), set()).add(base.dtype)
    for s in sorted({id(s): s for s in storage.values()}.values(), key=lambda s: (-s.nbytes, s.start)):
        if s.nbytes < LEND_FROM or s.end - s.start < LONG * steps:
            continue
        best = None
        for o, spans in taken.items():
            if types[id(s)] == {o.dtype}:
                at = _gap([t for t in spans if t[2] <= s.end and s.start <= t[3]], s.nbytes)
                if at + s.nbytes <= o.nbytes:
                    # of several places, the one that its result takes back first: others may stay longer
                    later = [t for t in spans if t[0] < at + s.nbytes and at < t[1] and t[2] > s.end]
                    back = min((t[2] for t in later), default=0)
                    if best is None or back < best[0]:
                        best = back, o, at
        if best is not None:
            _, s.lender, s.offset = best
            taken[s.lender].append((s.offset, s.offset + _round(s.nbytes), s.start, s.end))
    for n in kind:
        base = placed[n].base if n in placed else n
        if kind[n] == "arena" and storage[base].lender is not None:
            kind[n] = "lent"


def _gap(spans, nbytes: int) -> int:
    """The lowest offset at which nbytes are free of all spans."""
    at = 0
    for lo, hi, *_ in sorted(spans):
        if lo - at >= nbytes:
            break
        at = max(at, -(-hi // ALIGN) * ALIGN)
    return at


def _round(nbytes: int) -> int:
    return -(-max(nbytes, 1) // ALIGN) * ALIGN


def _slots(regions, kind, placed, readers, order):
    """Slots of a region's scratch: used again once a value was read for the last time, in place if may be."""
    slots: dict[Node, int] = {}
    slot_bytes: dict[Region, list[int]] = {}
    for r in regions:
        if r.N == 1:
            continue
        sizes: list[int] = []
        free: list[int] = []
        lasts: dict[Node, int] = {}
        bases = {}
        for n in r.members:
            if kind.get(n) == "scratch":
                base = placed[n].base if n in placed else n
                bases[n] = base
                lasts[base] = max([lasts.get(base, -1), order[n]] + [order[u] for u in readers(n)])
        live: dict[Node, int] = {}
        for n in r.members:
            if n not in bases:
                _expire(live, free, lasts, order[n])
                continue
            base = bases[n]
            if base in live:  # a part of its host was written before
                continue
            row = base.nbytes // r.N
            slot = None
            if base is n:
                for a in overwritable(n):
                    x = root(a)
                    if (
                        x in live
                        and lasts[x] == order[n]
                        and x.nbytes == n.nbytes
                        and x.dtype == n.dtype
                        and a.shape == n.shape
                        and all(v.op == "reshape" for v in chain(a))
                        and x is bases.get(x)
                    ):
                        slot = live.pop(x)
                        break
            if slot is None:
                fit = [f for f in free if sizes[f] == row]
                if fit:
                    slot = fit[-1]
                    free.remove(slot)
                else:
                    slot = len(sizes)
                    sizes.append(row)
            live[base] = slot
            slots[base] = slot
            _expire(live, free, lasts, order[n])
        slot_bytes[r] = sizes
    return slots, slot_bytes


def _expire(live, free, lasts, now):
    for x in [x for x in live if lasts[x] <= now]:
        free.append(live.pop(x))


class Overwrites:
    """Which pairs (result, input) are such that the result may be written over that input's memory.

    Found out when a caller asks: a program with thousands of parameters has millions of pairs, of which few
    are ever wanted.
    """

    def __init__(self, graph: Graph, placed, uses: Uses, barred: Callable[[Node], bool]):
        self.graph, self.placed, self.uses, self.barred = graph, placed, uses, barred
        self.known: dict[tuple[int, int], bool] = {}
        self.writers: dict[Node, list[Node]] = {}
        for n in uses.order:
            self.writers.setdefault(placed[n].base if n in placed else n, []).append(n)

    def __contains__(self, pair: tuple[int, int]) -> bool:
        if pair not in self.known:
            o, x = self.graph.outputs[pair[0]], self.graph.inputs[pair[1]]
            self.known[pair] = not self.barred(o) and self._may(o, x)
        return self.known[pair]

    def _may(self, o: Node, x: Node) -> bool:
        """Whether output o may be computed in the memory of input x: nothing reads x once that is written."""
        if o.op == "input" or x.shape != o.shape or x.dtype != o.dtype:
            return False
        writers, placed, uses = self.writers[o], self.placed, self.uses
        if any(step[0] != "reshape" for n in writers if n in placed for step in placed[n].steps):
            return False
        first = writers[0]
        # what copies its first argument has no need to where the result is that very array
        read = first.args[1:] if first.op in CHANGE_FIRST and first.args[0] is x else first.args
        if not is_elementwise(first) and any(root(a) is x for a in read):
            return False
        if uses.region[first].N > 1 and row_axes(x.shape, uses.region[first].N) is None:
            return False
        return uses.last_use(x, first)
