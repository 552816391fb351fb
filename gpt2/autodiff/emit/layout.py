"""Where values live: which nodes are mere views, and which values can be written straight into another's
memory.

Everything is static. A stand-in array with the right shape and strides, and no memory of its own, answers the
one hard question, whether NumPy can reshape without copying, by asking NumPy.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, defaultdict

import numpy as np

from ..graph import Graph, Node, rewrite
from ..ops import OPS, apply
from ..ops.shape import index_slices
from ..passes.match import FEW_BOXES, all_disjoint
from .rowwise import row_axes

VIEWS = ("reshape", "transpose", "slice", "broadcast")
# Ops that copy their first argument and then change a part of the copy: free where that argument is not
# needed again.
CHANGE_FIRST = ("update", "scatter", "scatter_add", "scatter_along_add")


def stand_in(shape, dtype) -> np.ndarray:
    """A C-contiguous array of any size without the memory: never read or written.

    No two share an address, so that views of different ones are not taken for the same (`same_memory`).
    """
    global _free_address
    with _addresses:
        address = _free_address
        _free_address += math.prod(shape) * dtype.itemsize // _GAP * _GAP + 2 * _GAP
    return np.asarray(_Nowhere(shape, dtype, address))


class _Nowhere:
    """What NumPy makes an array of: memory at an address, which nobody will visit."""

    def __init__(self, shape, dtype, address):
        data = (address, False)
        self.__array_interface__ = {"shape": tuple(shape), "typestr": dtype.str, "data": data, "version": 3}


_GAP = 64  # bytes between two, and what addresses are multiples of
_free_address = 1 << 40
_addresses = threading.Lock()


def view(x: np.ndarray, n: Node) -> np.ndarray | None:
    """`n`, a view op, applied to an array (or stand-in); None where NumPy would have to copy."""
    if n.op == "transpose":
        return x.transpose(n.attrs["perm"])
    if n.op == "slice":
        return x[index_slices(n.attrs["index"])]
    if n.op == "broadcast":
        return np.broadcast_to(x, n.shape)
    return reshape_view(x, n.shape)


def reshape_view(x: np.ndarray, shape) -> np.ndarray | None:
    """x.reshape(shape) where that needs no copy, else None. NumPy would copy first and look afterwards."""
    if x.flags.c_contiguous:
        return x.reshape(shape)
    strides = _reshaped_strides(x.shape, x.strides, tuple(shape))
    return None if strides is None else np.lib.stride_tricks.as_strided(x, shape, strides)


def _reshaped_strides(old, strides, new) -> tuple[int, ...] | None:
    """Strides of the same memory under another shape: groups of axes that lie evenly become new groups."""
    axes = [(n, s) for n, s in zip(old, strides) if n != 1]
    if any(n == 0 for n in old):
        return None
    found: list[int] = []
    i = j = 0
    while j < len(new):
        if new[j] == 1:
            found.append(0)
            j += 1
            continue
        if i == len(axes):
            return None
        have, want = axes[i][0], new[j]
        first, last = i, j
        while have != want:
            if have < want:
                i += 1
                have *= axes[i][0]
            else:
                j += 1
                want *= new[j]
        for k in range(first, i):  # old axes of a group must follow one another in memory
            if axes[k][1] != axes[k + 1][0] * axes[k + 1][1]:
                return None
        group = []
        step = axes[i][1]
        for k in range(j, last - 1, -1):
            group.append(step)
            step *= new[k]
        found.extend(reversed(group))
        i, j = i + 1, j + 1
    return tuple(found)


def is_elementwise(n: Node) -> bool:
    return n.op in ("where", "cast", "copy", "fused") or (n.op in OPS and OPS[n.op].ufunc is not None)


def lower(graph: Graph, share_inputs: bool = False) -> Graph:
    """The graph with every copy that NumPy would make spelled out, and each result a value of its own.

    - a reshape that no view can give becomes a copy and a reshape of the copy;
    - an elementwise op reads through broadcasts: ufuncs broadcast by themselves;
    - each output is a fresh value, so that a caller never gets a view of an input or the same array twice;
      with `share_inputs`, an output that is an input is handed back as it came, as a Python function would.
    """
    stands: dict[Node, np.ndarray] = {}

    def rule(n: Node, args: tuple) -> Node | None:
        if n.op in VIEWS:
            x = args[0]
            if view(stand(x), with_(n, args)) is None:
                x = apply("copy", x)
                x.loc, x.name = n.loc, None
                return with_(n, (x,))
            return None
        if is_elementwise(n) or n.op in CHANGE_FIRST:
            bare = tuple(
                a.args[0] if a.op == "broadcast" and keeps_shape(n, args, i) else a
                for i, a in enumerate(args)
            )
            if bare != args:
                return with_(n, bare)
        return None

    def keeps_shape(n: Node, args: tuple, i: int) -> bool:
        # the result is written into memory of the full shape, so even all arguments may be smaller
        return is_elementwise(n)

    def stand(n: Node) -> np.ndarray:
        if n not in stands:
            below = view(stand(n.args[0]), n) if n.op in VIEWS else None
            stands[n] = below if below is not None else stand_in(n.shape, n.dtype)
        return stands[n]

    graph = rewrite(graph, rule)
    outputs = []
    for o in graph.outputs:
        if share_inputs and o.op == "input":
            outputs.append(o)
            continue
        c = Node(
            "copy", (o,), {}, o.shape, o.dtype, o.name if o.op not in ("input", "const") else None, o.loc
        )
        outputs.append(c)
    return Graph(graph.inputs, outputs, graph.name)


def with_(n: Node, args: tuple) -> Node:
    return Node(n.op, args, n.attrs, n.shape, n.dtype, n.name, n.loc)


def root(n: Node) -> Node:
    """The value that a chain of views looks at."""
    while n.op in VIEWS:
        n = n.args[0]
    return n


def chain(n: Node) -> list[Node]:
    """The view nodes from the root's first view to `n` itself."""
    views: list[Node] = []
    while n.op in VIEWS:
        views.append(n)
        n = n.args[0]
    return views[::-1]


# ---- Values written straight into the memory of another ----


class Place:
    """Memory of a value: `base` is the value that owns it, `steps` the views that lead from base to here.

    A step is ("transpose", perm), ("reshape", shape) or ("slice", index, shape before).
    """

    __slots__ = ("base", "steps", "stand")

    def __init__(self, base: Node, steps: tuple, stand: np.ndarray):
        self.base, self.steps, self.stand = base, steps, stand

    def text(self) -> str:
        """The view of the base's whole array."""
        return "".join(_step_text(step) for step in self.steps)

    def row_text(self, N: int) -> str:
        """The view of a block of the base's rows, which stand along one axis."""
        text, shape = "", self.base.shape
        for step in self.steps:
            p = row_axes(shape, N)
            if step[0] == "transpose":
                text += f".transpose({(0, *(a - p + 1 for a in step[1][p:]))})"
                shape = tuple(shape[a] for a in step[1])
            elif step[0] == "reshape":
                shape = step[1]
                text += f".reshape({(-1, *shape[row_axes(shape, N) :])})"
            else:
                text += f"[:, {slices_text(step[1][p:], step[2][p:])}]"
                shape = tuple(len(range(*slice(*s).indices(m))) for s, m in zip(step[1], step[2]))
        return text


def _step_text(step) -> str:
    if step[0] == "slice":
        return f"[{slices_text(step[1], step[2])}]"
    return f".{step[0]}({step[1]})"


def inverse(place: Place, views: list[Node]) -> Place | None:
    """The memory that a root must write so that `views` of it fill `place`; None where there is none."""
    steps, stand = place.steps, place.stand
    for n in reversed(views):
        source = n.args[0]
        if n.op == "transpose":
            perm = n.attrs["perm"]
            back = tuple(sorted(range(len(perm)), key=perm.__getitem__))
            steps, stand = (*steps, ("transpose", back)), stand.transpose(back)
        elif n.op == "reshape":
            got = reshape_view(stand, source.shape)
            if got is None:
                return None
            steps, stand = (*steps, ("reshape", source.shape)), got
        else:
            return None
    return Place(place.base, steps, stand)


def same_memory(a: np.ndarray, b: np.ndarray) -> bool:
    return (
        a.shape == b.shape
        and a.strides == b.strides
        and a.__array_interface__["data"][0] == b.__array_interface__["data"][0]
    )


def covers(n: Node) -> bool:
    """An assemble whose parts do not overlap and leave no gap."""
    return disjoint(n) and sum(p.size for p in n.args) == n.size


def disjoint(n: Node) -> bool:
    indices = n.attrs["indices"]
    spans = [[_span(s, m) for s, m in zip(i, n.shape)] for i in indices]
    if len(spans) > FEW_BOXES:  # drawn on a map: the time for comparing pairs grows with the square
        return all_disjoint([[range(a, b) for a, b in s] for s in spans], n.shape)
    for i in range(len(spans)):
        for j in range(i):
            if all(a0 < b1 and b0 < a1 for (a0, a1), (b0, b1) in zip(spans[i], spans[j])):
                return False
    return True


def _span(s, m) -> tuple[int, int]:
    r = range(*slice(*s).indices(m))
    return (min(r[0], r[-1]), max(r[0], r[-1]) + 1) if len(r) else (0, 0)


def hosts(graph: Graph, uses) -> tuple[dict[Node, Place], dict[Node, np.ndarray]]:
    """Values that are computed in the memory of a later one: copies, and parts of an assemble, then cost
    nothing.

    Walks backwards, so that a chain of them (a product, transposed, put beside others, returned) lands where
    it ends. `uses` (buffers.Uses) tells whether an op may destroy a value while it runs, because nothing
    reads that later. Also returns a stand-in for every value that holds an array, views included.
    """
    placed: dict[Node, Place] = {}
    whole: dict[Node, Place] = {}
    outputs = set(graph.outputs)
    views: dict[Node, list[Node]] = defaultdict(list)  # root -> the views of it, in order
    for n in graph.nodes:
        if n.op in VIEWS:
            views[root(n)].append(n)
    spoiled: dict[Node, Node] = {}  # value -> the op that writes over its memory

    def of(n: Node) -> Place:
        if n in placed:
            return placed[n]
        if n not in whole:
            whole[n] = Place(n, (), stand_in(n.shape, n.dtype))
        return whole[n]

    def keeps_views(r: Node, place: Place) -> bool:
        """Whether everything that is a view of r can be one of r in that memory."""
        seen = {r: place.stand}
        for n in views[r]:
            found = view(seen[n.args[0]], n)
            if found is None:
                return False
            seen[n] = found
        return True

    def settle(source: Node, place: Place | None, n: Node, spoils: bool = False) -> bool:
        """Put source's root where n wants it. `spoils`: n then changes that memory."""
        r = root(source)
        spoiler = n if spoils else spoiled.get(n)
        if spoiler is not None and not uses.last_use(r, spoiler):
            return False
        if spoiler is not None and spoiler is not n and any(u is spoiler for u, _ in uses.readers(r)):
            return False
        if (
            place is None
            or r in placed
            or r in outputs
            or r.op in ("input", "const", "item")
            or r.dtype != place.base.dtype
        ):
            return False
        if isinstance(r.dtype, tuple) or not keeps_views(r, place):
            return False
        placed[r] = place
        if spoiler is not None:
            spoiled[r] = spoiler
        return True

    for n in reversed(graph.nodes):
        if n.op == "copy":
            settle(n.args[0], inverse(of(n), chain(n.args[0])), n)
        elif n.op == "assemble":
            together = covers(n)
            biggest = None
            if not together:
                full = [k for k, p in enumerate(n.args) if p.size == n.size]
                biggest = full[0] if full else None
            often = Counter(n.args)
            for k, (part, index) in enumerate(zip(n.args, n.attrs["indices"])):
                if not together and k != biggest:
                    continue
                if often[part] > 1:
                    continue
                at = of(n)
                slices = index_slices(index)
                inner = Place(at.base, (*at.steps, ("slice", index, n.shape)), at.stand[slices])
                settle(part, inverse(inner, chain(part)), n, spoils=not together)
        elif n.op in CHANGE_FIRST:
            x = n.args[0]
            settle(x, inverse(of(n), chain(x)), n, spoils=True)
    stands: dict[Node, np.ndarray] = {}
    for n in graph.nodes:
        if n.op in VIEWS:
            seen = view(stands[n.args[0]], n)
            assert seen is not None, f"{n!r}: a view of memory that it cannot view"
            stands[n] = seen
        elif not isinstance(n.dtype, tuple):
            stands[n] = of(n).stand
    return placed, stands


def slices_text(index, shape) -> str:
    def one(s, m):
        r = range(*slice(*s).indices(m))
        if len(r) == m and (s[2] in (1, None)):
            return ":"
        start, stop, step = s
        forward = step in (1, None) or step > 0
        text = (
            f"{start or '' if forward else start}:{'' if stop is None or (forward and stop == m) else stop}"
        )
        return text if step in (1, None) else f"{text}:{step}"

    parts = [one(s, m) for s, m in zip(index, shape)]
    while len(parts) > 1 and parts[-1] == ":":
        parts.pop()
    return ", ".join(parts)
