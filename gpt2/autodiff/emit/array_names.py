"""The text for each array of an emitted program: arguments, results, parts of the arena, views of these."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..graph import Node, is_scalar_const, scalar_text, source_name, source_names
from ..hidden import is_hidden
from ..ops.rowwise import row_axes
from ..ops.shape import index_text
from ..ops.table import OPS, VIEWS, root, views_of
from .buffers import UNOWNED, BufferPlan, Kind
from .layout import is_result_of_call
from .regions import Region

# Names in emitted code that no variable may have; those of ArrayTexts.own give way to variables instead
RESERVED = {
    *("np", "Fused", "matmul", "run_blocks", "memory", "setup", "arena", "slice", "complex", "k", "i", "j"),
    *(f"i{axis}" for axis in range(64)),
}


class ArenaView(NamedTuple):
    """An array that lies in the arena from this byte on."""

    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]

    def __str__(self) -> str:
        at, dtype, shape = self
        end = at + math.prod(shape) * dtype.itemsize
        return f"arena[{at}:{end}].view(np.{_dtype_name(dtype)}).reshape({shape})"


class ArrayTexts:
    """The names of a program's arrays, and the lines that define them.

    The views in `setup` are made once for each workspace, those in `prelude` at the start of each call. `env`
    has the globals of the source.
    """

    def __init__(self, plan: BufferPlan, name: str):
        self.plan, self.layouts = plan, plan.layouts
        self.graph = graph = plan.live.graph
        self.where, self.windows, self.folded = plan.live.region, plan.live.windows, plan.live.folded
        self.function = source_name(name, RESERVED)
        self.names = source_names(graph, {*RESERVED, self.function})
        self.taken = {*self.names.values(), self.function}
        self.tried: dict[str, int] = {}  # name -> the last number appended to it
        self.owned_names: dict[str, str] = {}
        self.env: dict = {"np": np}
        self.setup: dict[str, str | ArenaView] = {}  # name -> a view of the arena, which is made once
        self.prelude: list[str] = []  # views of this call's arguments and results
        self.full: dict = {}  # node (or node and rows) -> text for the whole array
        computed = [o for o in graph.outputs if o.op != "input"]
        self.output_index = {o: k for k, o in enumerate(computed)}
        self.result_names = [self.unique(_result_name(o)) for o in computed]

    def unique(self, text: str) -> str:
        """The text as a name that is not taken, numbered if need be."""
        base, k = text, self.tried.get(text, 1)
        while text in self.taken or text in RESERVED:
            k += 1
            text = f"{base}_{k}"
        self.tried[base] = k
        self.taken.add(text)
        return text

    def own(self, text: str) -> str:
        """The name of a helper or constant of the emitter: the same one each time, and no variable's."""
        if text not in self.owned_names:
            self.owned_names[text] = self.unique(text)
        return self.owned_names[text]

    # ---- whole arrays ----

    def whole(self, n: Node) -> str:
        """Text for all of n, defined in setup or at the start of the call."""
        if is_scalar_const(n):
            return scalar_text(n)
        if n in self.full:
            return self.full[n]
        if n.op == "input":
            text = self.names[n]
        elif n.op == "const":
            text = self.names[n]
            value = n.value
            if not is_hidden(value):
                value = np.asarray(value)
                value.flags.writeable = False
            self.env[text] = value
        elif n.op in VIEWS:
            text = self.view_of(n)
        elif self.plan.kind[n] in UNOWNED:
            text = self.names[n]
        else:
            text = self.owned(n)
        self.full[n] = text
        return text

    def owned(self, n: Node) -> str:
        """Text for a result, a span of the arena or of a result, or a window into one of those."""
        window = self.windows.get(n)
        base = window.base if window else n
        if base in self.output_index:
            owner = self.result_names[self.output_index[base]]
        elif window is not None:
            owner = self.whole(base)
        else:
            name, s = self.whole_name(n), self.plan.storage[n]
            if s.lender is None:
                return self.define_in_arena(name, s.offset, n.dtype, n.shape)
            first = s.offset // n.dtype.itemsize
            memory = f"{self.flat(s.lender)}[{first}:{first + n.size}]"
            return self.define(name, f"{memory}.reshape({n.shape})", n)
        if window is None or not window.steps:
            return owner
        return self.define(self.whole_name(n), owner + window.text(), n)

    def flat(self, o: Node) -> str:
        """The memory of a lending result, as a 1-d array."""
        key = ("flat", o)
        if key not in self.full:
            owner = self.result_names[self.output_index[o]]
            self.full[key] = self.unique(f"{owner}_memory")
            self.prelude.append(f"{self.full[key]} = {owner}.reshape(-1)")
        return self.full[key]

    def whole_name(self, n: Node) -> str:
        """The user's name; with an underscore where the plain name is a block of rows."""
        if n in self.where and self.where[n].N > 1:
            return self.unique(self.names[n] + "_")
        return self.names[n]

    def view_of(self, n: Node) -> str:
        """The name of a view of a whole array; its expression if the array is allocated during the call."""
        r = root(n)
        text = self.whole(r)
        if is_scalar_const(r):
            text = f"np.asarray({text}, np.{_dtype_name(r.dtype)})"
        for v in views_of(n):
            text = view_text(text, v)
        if self.plan.kind.get(r) in UNOWNED:
            return text
        return self.define(self.unique(self.names[n]), text, r)

    def part(self, x: Node, index: tuple, like: Node) -> str:
        """The part of a whole array at an index, named as `like` is."""
        key = x, index
        if key not in self.full:
            text = f"{self.whole(x)}[{index_text(index, x.shape)}]"
            self.full[key] = self.define(self.unique(like.name or "part"), text, root(x))
        return self.full[key]

    def define(self, name: str, expression: str, owner: Node) -> str:
        """Name a view of the owner's memory: for each workspace once, or at the start of each call."""
        if owner.op == "input" or self.plan.kind.get(owner) in (Kind.RESULT, Kind.LENT):
            self.prelude.append(f"{name} = {expression}")
        else:
            self.setup[name] = expression
        return name

    def define_in_arena(self, name: str, offset: int, dtype: np.dtype, shape: tuple) -> str:
        """Name a part of the arena as an array."""
        self.setup[name] = ArenaView(offset, dtype, shape)
        return name

    def whole_rows(self, n: Node, r: Region) -> str:
        """Text for all of n with its rows along the first axis (or, nested, along the leading axes)."""
        p = row_axes(n.shape, r.N)
        if r.nested or p == 1:
            return self.whole(n)
        base, whole = root(n), self.whole(n)
        expression = f"{whole}.reshape({(r.N, *n.shape[p:])})"
        if self.plan.kind.get(base) in UNOWNED:
            return expression
        if expression not in self.full:
            self.full[expression] = self.define(self.unique(whole.rstrip("_") + "_rows"), expression, base)
        return self.full[expression]

    # ---- helpers and constants ----

    def helper(self, function: Callable) -> str:
        """The name of a function of the runtime."""
        name = self.own(function.__name__)
        self.env[name] = function
        return name

    def ones(self, count: int, dtype: np.dtype) -> str:
        """A constant vector of ones: a product with it is the fastest sum NumPy has."""
        text = self.own(f"ones_{count}" + ("" if dtype == np.float32 else f"_{dtype}"))
        self.env.setdefault(text, np.ones(count, dtype))
        return text

    def partial(self, n: Node) -> str:
        """The array of the sums of n over each block of rows."""
        key = ("partial", n)
        if key not in self.full:
            s = self.plan.partials[n]
            name, blocks = self.unique(f"{self.names[n]}_parts"), s.nbytes // max(1, n.nbytes)
            self.full[key] = self.define_in_arena(name, s.offset, n.dtype, (blocks, *n.shape))
        return self.full[key]

    def invariant(self, a: Node, user: Node, r: Region) -> str:
        """A whole argument beside blocks of rows, without axes of length 1 that stand for the row axes."""
        if user.op == "gather":  # its table
            return self.whole(a)
        target = user.args[0] if user in r.sums else user
        p = row_axes(target.shape, r.N)
        extra = a.ndim - (target.ndim - p)
        if extra <= 0:
            return self.whole(a)
        key = (a, "tail", extra)
        if key not in self.full:
            text = self.whole(a)
            expression = f"{text}.reshape({a.shape[extra:]})"
            if self.plan.kind.get(root(a)) not in UNOWNED:  # those are allocated during the call
                expression = self.define(self.unique(text.rstrip("_") + "_tail"), expression, root(a))
            self.full[key] = expression
        return self.full[key]


def _dtype_name(dtype: np.dtype) -> str:
    name = _names.get(dtype)
    if name is None:
        name = _names[dtype] = "bool_" if dtype.kind == "b" else str(dtype)
    return name


_names: dict[np.dtype, str] = {}  # str(dtype) takes 10 us


def view_text(text: str, n: Node) -> str:
    """The text of a view, from that of the array that it is a view of."""
    if n.op == "slice":
        return f"{text}[{index_text(n.attrs['index'], n.args[0].shape)}]"
    return OPS[n.op].code(text, **n.attrs)


def rows_of(text: str, views: list[Node], N: int, elementwise: bool) -> str:
    """Text for a chain of views of a block. An elementwise op broadcasts its operands by itself."""
    for k, n in enumerate(views):
        if n.op != "broadcast":
            text += row_view_text(n, N)
        elif not elementwise or k + 1 < len(views):
            row = "".join(f", {length}" for length in n.shape[row_axes(n.shape, N) :])
            text = f"np.broadcast_to({text}, (j - i{row or ','}))"
    return text


def row_view_text(n: Node, N: int) -> str:
    """A view op inside a block, where the row axes are one axis in front; for broadcasts see rows_of."""
    p = row_axes(n.shape, N)
    q = row_axes(n.args[0].shape, N)
    if n.op == "reshape":
        return f".reshape({', '.join(map(str, (-1, *n.shape[p:])))})"
    if n.op == "transpose":
        return f".transpose({(0, *(a - q + 1 for a in n.attrs['perm'][p:]))})"
    assert n.op == "slice", n
    return f"[:, {index_text(n.attrs['index'][q:], n.args[0].shape[q:])}]"


def _result_name(o: Node) -> str:
    name = (o if is_result_of_call(o) else root(o.args[0])).name or "result"
    return "result" if name in ("out", "result") else f"{name}_out"
