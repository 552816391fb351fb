"""Cuts the graph into regions, ops that run together, and says how a block of rows reaches its arrays.

A region with N rows runs its ops one after another on a block of rows that stays in cache, block after block,
on several threads. Matrix products, small values and ops that do not work row by row make regions with N = 1:
plain statements in order.

Ops are visited in the order in which products and results need them, so that cheap ones are computed next to
their use. Each joins the region that made its latest argument, where rows agree; otherwise it opens a new
one. Small values of inputs alone come first: between two uses of the same rows they would cut a region in
two.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..graph import Graph, Node, postorder
from ..ops.rowwise import ROW, row_axes
from ..ops.table import VIEWS, facts, root, views_of
from ..run.caches import in_cache
from .layout import Layout, is_result_of_call, reshape_view, results_of

SMALL = 8192  # elements: below, the overhead of a region is more than it saves
IN_USE = 4  # values at once; more are rarely needed (lives.py)
# Bytes of the widest value in a block of rows: IN_USE such values fill half of a core's cache. Beyond 1 MiB
# Python takes next to no time beside it, below 64 KiB most of it.
BLOCK_BYTES = in_cache(IN_USE, 1 << 16, 1 << 20)
SHORTEST = 1 << 14  # bytes of a row axis, from which blocks along it pay
ROW_LIMIT = BLOCK_BYTES  # rows wider than this are not joined to a region of narrower ones


@dataclass(eq=False)
class Region:
    """Ops that run together, on the same rows."""

    N: int  # rows; 1: plain statements
    members: list[Node] = field(default_factory=list)  # in order of execution
    sums: list[Node] = field(default_factory=list)  # members that add up all rows
    index: int = 0
    nested: bool = False  # whether a block has an index for each leading row axis, as rows are on no one axis


def widest_row(r: Region) -> int:
    """Bytes of the widest row that a member writes or reads."""
    sums = set(r.sums)
    sizes = [n.nbytes for n in r.members if n not in sums]
    operands = [pair for n in r.members for pair in zip(n.args, flags_of(n, r.N))]
    sizes += [a.nbytes for a, flag in operands if flag is ROW and a.op != "broadcast"]
    return max(1, max(sizes, default=1) // r.N)


def schedule(graph: Graph, results_early: bool = False) -> list[Region]:
    """The regions in order of execution; views, inputs and constants are in none.

    results_early   results are computed as soon as possible, as they have memory of their own anyway
    """
    regions: list[Region] = [Region(1)]  # the first: small values of inputs alone
    where: dict[Node, Region] = {}

    for n in demanded(graph, results_early):
        if n.op in VIEWS or n.op in ("input", "const"):
            continue
        if is_result_of_call(n):  # written while the call runs
            where[n] = where[n.args[0]]
            where[n].members.append(n)
        else:
            _assign(n, regions, where)
    return merge(regions, where)


def demanded(graph: Graph, results_early: bool = False) -> Iterable[Node]:
    """The nodes in an order in which each cheap one comes just before the first that needs it."""
    order: dict[Node, None] = {}

    def visit(n: Node) -> None:
        for m in postorder(n, order):
            order[m] = None

    early = _early_nodes(graph, results_early)
    results = results_of(graph)
    for n in early.get(None, ()):
        visit(n)
    for n in graph.nodes:
        if facts(n).scheduled_alone:
            visit(n)
            for available in results.get(n, {}).values():  # from then on
                order.update(dict.fromkeys(available))
            for d in early.get(n, ()):
                visit(d)
    for n in graph.outputs:
        visit(n)
    return order


def _early_nodes(graph: Graph, results: bool) -> dict[Node | None, list[Node]]:
    """Small reductions of large arrays, by the last of the ops scheduled alone that they depend on; with
    `results`, also the outputs of the graph.

    Sums over rows (a bias's gradient) and single elements (the target's logit) are small. Computed as soon as
    possible, they do not keep their arguments alive until they are used.
    """
    last: dict[Node, int] = {}
    alone: list[Node] = []
    early: dict[Node | None, list[Node]] = {}
    results_wanted = set(graph.outputs) if results else set()
    for n in graph.nodes:
        if facts(n).scheduled_alone:
            alone.append(n)
            last[n] = len(alone)
            continue
        if not n.args or is_result_of_call(n):  # available from the beginning, or from the call on
            last[n] = last[n.args[0]] if n.args else 0
            continue
        last[n] = max([last[a] for a in n.args], default=0)
        big = max([a.size for a in n.args if not isinstance(a.dtype, tuple)], default=0)
        small = big >= SMALL and not isinstance(n.dtype, tuple) and n.size * 8 <= big
        if n in results_wanted or small and (facts(n).gathers or sums_rows(n) > 1):
            early.setdefault(alone[last[n] - 1] if last[n] else None, []).append(n)
    return early


def _assign(n: Node, regions: list[Region], where: dict[Node, Region]) -> None:
    """Put n into the first region that it can join after its arguments were made, or into a new one."""
    sources = [r for a in n.args if (r := where.get(root(a))) is not None]
    rows = wanted_rows(n)
    find = _among_plain if rows == 1 else _among_rows
    r = find(n, regions, where, sources)
    if r is None:
        r = Region(rows, index=len(regions))
        regions.append(r)
    r.members.append(n)
    where[n] = r
    if r.N > 1 and by_rows(n, r.N) is None:
        r.sums.append(n)


def _among_plain(n: Node, regions, where, sources: list[Region]) -> Region | None:
    """The region for a value that has no rows of its own, or None."""
    latest = max([r.index for r in sources], default=-1)
    if _small(n):
        if latest <= 0:
            return regions[0]
        r = regions[latest]
        if r.N > 1 and _on_rows(n, r.N, r, where):
            return r  # row scalars and the like run where their arguments were made
    # plain statements run in order, so n may join the plain region that made its arguments
    after = latest + 1 if any([r.index == latest and r.N > 1 for r in sources]) else max(latest, 0)
    return next((r for r in reversed(regions[after:]) if r.N == 1), None)


def _among_rows(n: Node, regions, where, sources: list[Region]) -> Region | None:
    """The region for a value of many rows, or None."""
    latest = max([r.index for r in sources], default=-1)
    for r in reversed(regions[max(latest, 0) :]):
        if r.N > 1 and _fits(n, r, where) and all(source.index <= r.index for source in sources):
            return r
        if r.index == latest:
            break
    return None


def wanted_rows(n: Node) -> int:
    """The rows that a region for n alone would have."""
    if isinstance(n.dtype, tuple) or _small(n):
        return 1
    N = sums_rows(n)
    if N > 1:
        return N
    if n.op == "matmul" and n.ndim == 2 or n.ndim == 0:
        return 1
    leading = itertools.accumulate(n.shape[: max(1, n.ndim - 1)], operator.mul)  # the last axis stays whole
    return max([N for N in leading if N > 1 and by_rows(n, N) is not None], default=1)


def _small(n: Node) -> bool:
    return all([isinstance(m.dtype, tuple) or m.size < SMALL for m in (n, *n.args)])


def _fits(n: Node, r: Region, where) -> bool:
    """Whether n can run in r, on r's rows (or on fewer, wider ones, if the others can as well)."""
    if _on_rows(n, r.N, r, where):
        return n.nbytes // r.N <= ROW_LIMIT or n.size // r.N <= max(m.size for m in r.members) // r.N
    N = wanted_rows(n)
    if N < r.N and r.N % N == 0 and _on_rows(n, N, r, where) and _all_fit(r, N, where):
        r.N = N
        return True
    return False


def _all_fit(r: Region, N: int, where) -> bool:
    """Whether all members of a region could run on N rows, fewer and wider ones than it has."""
    narrow = all(m.nbytes // N <= ROW_LIMIT for m in r.members if m not in r.sums)
    return narrow and all(_on_rows(m, N, r, where) for m in r.members)


def _on_rows(n: Node, N: int, r: Region, where) -> bool:
    """Whether n can run in r with N rows: what r computes it reads row by row."""
    flags = flags_of(n, N)
    if flags is None:
        return False
    inside = [(a, flag) for a, flag in zip(n.args, flags) if where.get(root(a)) is r]
    return all(
        flag is ROW and root(a) not in r.sums and all(by_rows(v, N) == (ROW,) for v in views_of(a))
        for a, flag in inside
    )


def flags_of(n: Node, N: int) -> tuple[bool, ...] | None:
    """by_rows, or for an op that adds up N rows ROW for each argument."""
    if sums_rows(n) > 1:
        p = row_axes(n.args[0].shape, N)
        if p is not None and 0 < p <= facts(n).adds_axes(n):
            return (ROW,) * len(n.args)
    return by_rows(n, N)


def merge(regions: list[Region], where: dict[Node, Region]) -> list[Region]:
    """A region whose rows fit in one block is no better than plain statements; join neighbours of those."""
    out: list[Region] = []
    for r in filter(lambda r: r.members, regions):
        if r.N > 1 and len(blocks_of(r)) == 1:
            r.N, r.sums = 1, []
        if out and r.N == 1 and out[-1].N == 1:
            for n in r.members:
                where[n] = out[-1]
            out[-1].members.extend(r.members)
        else:
            out.append(r)
    for k, r in enumerate(out):
        r.index = k
    return out


def prefix(r: Region) -> tuple[int, ...] | None:
    """The axes that make up the rows, if all members agree on them."""
    arrays = [n.args[0] if n in r.sums else n for n in r.members]
    prefixes = {x.shape[: row_axes(x.shape, r.N)] for x in arrays}
    return prefixes.pop() if len(prefixes) == 1 else None


def blocks_of(r: Region) -> tuple[tuple[int, ...], ...]:
    """The blocks of rows: (i, j), or of a nested region (leading indices..., i, j) along the last row axis.

    The same for any number of threads, so that sums over blocks do not depend on it.
    """
    row = widest_row(r)
    per_block = max(1, BLOCK_BYTES // row)
    if not r.nested:
        return _cut(r.N, per_block, even=r.N * row >= BLOCK_BYTES // 2)
    axes = prefix(r)
    assert axes is not None
    outer = itertools.product(*map(range, axes[:-1]))
    return tuple((*o, *b) for o in outer for b in _cut(axes[-1], per_block, even=False))


def _cut(N: int, per_block: int, even: bool) -> tuple[tuple[int, int], ...]:
    """Blocks of nearly equal size; `even`: at least two of them, so that two threads have work."""
    count = -(-N // per_block)
    if even and count % 2:
        count = min(N, count + 1)
    size = -(-N // count)
    return tuple((i, min(i + size, N)) for i in range(0, N, size))


def by_rows(n: Node, N: int) -> tuple[bool, ...] | None:
    """For each argument ROW or WHOLE; None where `n` does not work row by row with N rows."""
    rule = facts(n).leads.rows
    if rule is None:
        return None
    p = row_axes(n.shape, N)
    return None if p is None else rule(n, N, p)


def sums_rows(n: Node) -> int:
    """N, if `n` adds up N rows of its arguments into one value (a bias' gradient, say); else 0."""
    p = facts(n).adds_axes(n)
    return math.prod(n.args[0].shape[:p]) if p else 0


def reach_rows(r: Region, where: dict[Node, Region], layout: Callable[[Node], Layout]) -> None:
    """Decide how a block indexes its rows: along one axis, or nested; else there are plain statements.

    where, layout   where[n] is the region of an op, layout(n) where the elements of a value lie
    """
    if r.N == 1 or _reaches(r, where, layout):
        return
    counts = {N for n in r.members for N in itertools.accumulate(n.shape, operator.mul)}
    fewer = [N for N in sorted(counts, reverse=True) if 1 < N < r.N and r.N % N == 0]
    for N in [N for N in fewer if _all_fit(r, N, where)]:
        r.N = N
        if _reaches(r, where, layout) and len(blocks_of(r)) > 1:
            return
    # no single index reaches the rows, or too few at a time
    r.N, r.sums, r.nested = 1, [], False


def _reaches(r: Region, where: dict[Node, Region], layout: Callable[[Node], Layout]) -> bool:
    """Whether a region's N rows can be indexed; sets whether that is nested.

    They can be if each array that is read or written by rows has a view with its rows along one axis; or,
    nested, if the same leading axes number the rows of all, and a block takes longer to compute than to call.
    """
    arrays = [n for n in r.members if n not in r.sums]
    for n in r.members:
        pairs = zip(n.args, flags_of(n, r.N))
        arrays += [a for a, flag in pairs if flag is ROW and where.get(root(a)) is not r]
    leading = [(a, row_axes(a.shape, r.N)) for a in arrays]
    r.nested = any(p != 1 and reshape_view(layout(a), (r.N, *a.shape[p:])) is None for a, p in leading)
    if not r.nested:
        return True
    axes = prefix(r)
    if axes is None or any(a.shape[:p] != axes for a, p in leading):
        return False
    return axes[-1] * widest_row(r) >= SHORTEST
