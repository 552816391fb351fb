"""The lines for one op: with `out=`, on whole arrays or on a block of rows.

Lines are generated one by one, and an operand's text with its line: a block of rows may need a line of its
own just before the first line that reads it (row_blocks.py).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Generator, Iterator, Sequence

import numpy as np

from ..graph import Node, const_value
from ..hidden import known
from ..ops import OPS
from ..ops.rowwise import row_axes, takes_rows
from ..ops.shape import index_text
from ..ops.table import facts, root, views_of
from ..run import kernels, short
from .buffers import Kind
from .layout import same_memory, slice_view
from .regions import blocks_of
from .row_blocks import RowBlocks
from .schedule import goes_by_columns
from .texts import Texts
from .windows import fills, parts_apart

Lines = Iterator[str]
F32, F64 = np.dtype(np.float32), np.dtype(np.float64)


class Statement:
    """The lines for one op: on whole arrays, or in the function of a block of rows.

    name    in a block of rows the variable for the result's rows
    args    an operand for each argument, "" for one that is folded into this op or lies there already
    target  where the result goes
    factors the two operands of the multiplication that a sum has folded into it, else nothing
    """

    def __init__(self, texts: Texts, n: Node, block: RowBlocks | None = None):
        self.texts, self.plan, self.n = texts, texts.plan, n
        self.region = None if block is None else block.region
        place = block or texts
        self.name = texts.names[n]
        self.in_place_args = self._in_place_args()
        self.args: list = place.operands(n, self.in_place_args)
        self.target = place.target(n)
        self.factors: list = []
        if n.args and n.args[0] in self.plan.folded:
            self.factors = place.factors(n.args[0])

    def lines(self) -> Lines:
        if self.region is not None and self.n in self.region.sums:
            return self.block_sum()
        own = getattr(self, f"op_{self.n.op}", None)
        if own is not None:
            return own()
        op = OPS[self.n.op]
        if op.product is not None:
            return self.multiplied(*op.product(*self.args))
        if op.reducer is not None:
            return self.reduce()
        function = self.texts.function_of(self.n)
        return self.copied() if function is None else self.called(function)

    # -- forms of statement

    def begin(self) -> Generator[str, None, str]:
        """Bind the block to its name before it is filled; what the result is called from here on."""
        if self.region is None:
            return self.target
        yield f"{self.name} = {self.target}"
        return self.name

    def bound(self, call: str) -> str:
        """A call that takes out= and returns it: the block's name is bound on the same line."""
        return call if self.region is None else f"{self.name} = {call}"

    def called(self, function: str) -> Lines:
        args = ", ".join(map(str, self.args))
        if facts(self.n).any_strides and self.goes_by_columns(self.n.args) or self.leaves_planes():
            helper = self.texts.helper(short.by_columns)
            yield self.bound(f"{helper}({function}, {args}, out={self.target})")
        elif OPS[self.n.op].ufunc is not None and facts(self.n).streams and self.is_long(self.n):
            yield self.spread(function, self.target, *self.args)
        else:
            yield self.bound(f"{function}({args}, out={self.target})")

    def multiplied(self, a: object, b: object) -> Lines:
        """The product of a and b: of two whole matrices on all threads."""
        on_threads = self.region is None and self.n.ndim == 2 and self.n.dtype.kind == "f"
        yield self.bound(f"{'' if on_threads else 'np.'}matmul({a}, {b}, out={self.target})")

    def goes_by_columns(self, args: Sequence[Node]) -> bool:
        """Whether the last axis is so short, and one of these so broadcast, that columns go one by one."""
        return self.is_short(self.n, short.FEW_COLUMNS) and any(map(self.is_broadcast, args))

    def leaves_planes(self) -> bool:
        """Whether the result lies in planes and an argument does not, or the other way round."""
        planes = self.plan.planes
        if not planes:
            return False
        arrays = [root(a) for a in self.n.args if a.shape]
        return not {root(self.n), *arrays}.isdisjoint(planes) and not {self.n, *arrays} <= planes

    def is_short(self, x: Node, most: int = short.LONGEST) -> bool:
        """Whether x has a last axis of 2 to `most` elements, and many rows."""
        if x.ndim < 2 or not 2 <= x.shape[-1] <= most or x.dtype not in (F32, F64):
            return False
        return x.ndim > self.row_axes_of(x) and x.size // x.shape[-1] >= short.FEWEST

    def is_broadcast(self, x: Node) -> bool:
        """Whether NumPy cannot join the last axis of this argument with the one before it."""
        last = self.n.shape[-2:]
        return x.size > 1 and x.shape[-2:] != last and x.shape != last

    def is_long(self, n: Node) -> bool:
        """Whether an op on n, outside of regions, is worth sharing out over threads."""
        return self.region is None and n.size >= 2 * kernels.PIECE

    def spread(self, function: str | Callable, target: str, *args: object) -> str:
        """The call of a function that goes element by element, shared out over threads."""
        called = function if isinstance(function, str) else self.texts.helper(function)
        helper = self.texts.helper(kernels.spread)
        return f"{helper}({', '.join(map(str, [called, target, *args]))})"

    def copied(self) -> Lines:
        """Copies a result that NumPy allocates to where it belongs."""
        if self.region is None and self.n.shape == ():
            yield f"{self.target}[...] = {self.expression()}"
            return
        at = yield from self.begin()
        yield f"np.copyto({at}, {self.expression()})"

    def expression(self) -> str:
        return self.texts.expression(self.n, list(map(str, self.args)), self.shifted_attrs())

    def op_max(self) -> Lines:
        n, (x,) = self.n, self.n.args
        if n.attrs["axes"] == (x.ndim - 1,) and x.dtype == n.dtype and self.is_short(x, short.MOST_COLUMNS):
            at = yield from self.begin()
            last = "[..., 0]" if n.attrs["keepdims"] else ""
            helper = self.texts.helper(short.extreme_last)
            yield f"{helper}(np.{OPS[n.op].reducer}, {self.args[0]}, {at}{last})"
        else:
            yield from self.reduce()

    op_min = op_max

    def reduce(self) -> Lines:
        n = self.n
        axes = tuple(self.shift(n.args[0], a) for a in n.attrs["axes"])
        axis = axes[0] if len(axes) == 1 else axes
        keep = ", keepdims=True" if n.attrs["keepdims"] else ""
        ufunc = OPS[n.op].reducer
        yield self.bound(f"np.{ufunc}.reduce({self.args[0]}, axis={axis}{keep}, out={self.target})")

    def block_sum(self) -> Lines:
        """The sum of one block of rows, into memory of its own: blocks are added up later, in their order."""
        product = OPS[self.n.op].product
        if product is None:
            yield self.added_rows(self.args[0])
        else:
            yield f"np.matmul({', '.join(map(str, product(*self.args)))}, out={self.target})"

    def added_rows(self, x: object) -> str:
        """The line that adds up x, a block of rows: as a product with ones where BLAS may do it."""
        e, n, r, target = self.texts, self.n, self.region, self.target
        assert r is not None
        a, sizes = n.args[0], {b[-1] - b[-2] for b in blocks_of(r)}
        p = row_axes(a.shape, r.N)
        axes = (0, *(ax - p + 1 for ax in n.attrs["axes"] if ax >= p))
        if n.attrs["keepdims"]:
            target += f".reshape({tuple(s for ax, s in enumerate(a.shape) if ax not in n.attrs['axes'])})"
        elif not n.shape:
            target = target.replace("[k]", "[k:k + 1].reshape(())")
        if axes == (0,) and a.ndim - p == 1 and a.dtype.kind == "f" and a.dtype == n.dtype:
            ones = e.ones(max(sizes), a.dtype)
            return f"np.matmul({ones if len(sizes) == 1 else f'{ones}[:j - i]'}, {x}, out={target})"
        if root(a) in self.plan.planes:
            return f"{e.helper(short.add_planes)}({x}, {e.ones(max(sizes), a.dtype)}, {target})"
        return f"np.add.reduce({x}, axis={axes[0] if len(axes) == 1 else axes}, out={target})"

    # -- facts

    def _in_place_args(self) -> set[int]:
        """Numbers of the arguments that lie where the result goes already: nothing reads them."""
        n = self.n
        if n.op == "assemble":
            return {k for k, (x, i) in enumerate(zip(n.args, n.attrs["indices"])) if self.is_part(x, i)}
        k = 2 if n.op == "where" else 0 if n.op == "copy" or facts(n).changes_first else None
        return set() if k is None or not self.in_place(k) else {k}

    def is_part(self, x: Node, index: tuple) -> bool:
        """Whether x is already where this part of the result is."""
        n, plan = self.n, self.plan
        if self.leads_there(x, (("slice", index, n.shape),)):
            return True
        return root(x) in plan.windows and same_memory(plan.layout(x), slice_view(plan.layout(n), index))

    def leads_there(self, x: Node, steps: tuple = ()) -> bool:
        """Whether the steps from the owner of x's memory are those to the result, and then these."""
        there, own = self.plan.windows.get(x), self.plan.windows.get(self.n)
        if there is None:
            return False
        base, before = (self.n, ()) if own is None else (own.base, own.steps)
        return there.base is base and there.steps == (*before, *steps)

    def in_place(self, k: int) -> bool:
        """Whether argument k is already where the result goes."""
        p, n, x = self.plan, self.n, self.n.args[k]
        r = root(x)
        if r in p.windows:
            return self.leads_there(x) or same_memory(p.layout(x), p.layout(n))
        if n in p.windows:
            return False
        if n in p.storage and r in p.storage:
            return p.storage[n] is p.storage[r]
        same_region = p.region.get(r) is p.region[n]
        return n in p.slots and r in p.slots and same_region and p.slots[n] == p.slots[r]

    def row_axes_of(self, x: Node) -> int:
        """How many axes of x are one axis here: its rows."""
        return 1 if self.region is None else row_axes(x.shape, self.region.N)

    def shift(self, x: Node, axis: int) -> int:
        return axis - self.row_axes_of(x) + 1

    def shifted_attrs(self) -> dict:
        n, attrs = self.n, dict(self.n.attrs)
        if self.region is not None and "axes" in attrs:
            attrs["axes"] = tuple(self.shift(n.args[0], a) for a in attrs["axes"])
        if self.region is not None and "axis" in attrs:
            attrs["axis"] = self.shift(n.args[0], attrs["axis"])
        return attrs

    def part_text(self, index: Sequence[tuple]) -> str:
        """Index text for a part of the result."""
        if self.region is None:
            return index_text(index, self.n.shape)
        p = self.row_axes_of(self.n)
        return ", ".join([":", index_text(index[p:], self.n.shape[p:])])

    # -- ops with statements of their own

    def op_copy(self) -> Lines:
        if not self.in_place_args and self.is_long(self.n):
            yield self.spread(kernels.copied, self.target, self.args[0])
        elif not self.in_place_args:
            at = yield from self.begin()
            yield f"np.copyto({at}, {self.args[0]})"
        elif self.n not in self.texts.output_index:
            yield from self.begin()

    def op_negative(self) -> Lines:
        """With strides by a product: NumPy's negative may read wrong elements there (kernels.negated)."""
        if self.n.dtype.kind == "c" or self.contiguous(self.n) and not self.leaves_planes():
            return self.called("np.negative")
        return self.called(self.texts.helper(kernels.negated))

    def op_power(self) -> Lines:
        if self.n.shape == ():
            yield f"{self.target}[...] = {self.texts.power(self.n)}"
        else:
            yield from self.called("np.power")

    def op_cast(self) -> Lines:
        at = yield from self.begin()
        yield f'np.copyto({at}, {self.args[0]}, casting="unsafe")'

    def op_where(self) -> Lines:
        condition, a, b = self.args
        at = yield from self.begin()
        if not self.in_place_args:
            yield f"np.copyto({at}, {b})"
        if self.goes_by_columns(self.n.args[:2]):
            yield f"{self.texts.helper(short.put_where)}({at}, {a}, {condition})"
        else:
            yield f"np.copyto({at}, {a}, where={condition})"

    def op_sum(self) -> Lines:
        n, (x,) = self.n, self.n.args
        last = "[..., 0]" if n.attrs["keepdims"] else ""
        rank = x.ndim - self.row_axes_of(x) + 1
        if self.factors and goes_by_columns(x):
            yield from self.op_sum_as_numpy()
        elif self.factors:
            a, b = self.factors
            at = yield from self.begin()
            yield f"np.vecdot({a}, {b}, out={at}{last})"
        elif self.sums_evenly(x) and rank == 2:
            at = yield from self.begin()
            ones = self.texts.ones(x.shape[-1], x.dtype)
            yield f"np.matmul({self.args[0]}, {ones}, out={at}{last})"
        elif self.sums_evenly(x) and self.contiguous(n):
            at = yield from self.begin()
            ones = self.texts.ones(x.shape[-1], x.dtype)
            yield f"np.matmul({self.args[0]}.reshape(-1, {x.shape[-1]}), {ones}, out={at}.reshape(-1))"
        elif n.attrs["axes"] == (x.ndim - 2,) and rank > 2 and root(x) in self.plan.planes:
            at = yield from self.begin()
            ones = self.texts.ones(x.shape[-2], x.dtype)
            helper = self.texts.helper(short.sum_in_planes)
            yield f"{helper}({self.args[0]}, {ones}, {at}{'[..., 0, :]' if last else ''})"
        elif n.attrs["axes"] == (x.ndim - 2,) and rank > 2 and x.dtype == n.dtype and self.is_short(x):
            at = yield from self.begin()
            ones = self.texts.ones(x.shape[-2], x.dtype)
            yield f"np.matmul({ones}, {self.args[0]}, out={at}{'[..., 0, :]' if last else ''})"
        else:
            yield from self.op_sum_as_numpy()

    def op_sum_as_numpy(self) -> Lines:
        n, (x,) = self.n, self.n.args
        last = "[..., 0]" if n.attrs["keepdims"] else ""
        if self.factors:
            at = yield from self.begin()
            factors = ", ".join(map(str, self.factors))
            yield f"{self.texts.helper(short.sum_products)}({factors}, {at}{last})"
        elif n.attrs["axes"] == (x.ndim - 1,) and x.dtype == n.dtype and self.is_short(x):
            at = yield from self.begin()
            yield f"{self.texts.helper(short.sum_last)}({self.args[0]}, {at}{last})"
        else:
            yield from self.reduce()

    def sums_evenly(self, x: Node) -> bool:
        """Whether the sum is one over the last axis of an array that a product with ones adds up fastest."""
        if self.n.attrs["axes"] != (x.ndim - 1,) or x.shape[-1] < 16:
            return False
        return x.dtype.kind == "f" and x.dtype == self.n.dtype and self.contiguous(x)

    def contiguous(self, x: Node) -> bool:
        """Whether x is contiguous, or in a block, each of its rows and the next."""
        p, r = self.plan, root(x)
        if self.region and p.region.get(r) is self.region and p.kind.get(r) is Kind.SCRATCH:
            return r not in p.windows and r not in p.planes and all(v.op == "reshape" for v in views_of(x))
        return p.layout(x).contiguous

    def op_einsum(self) -> Lines:
        at = yield from self.begin()
        args = ", ".join(map(str, self.args))
        optimize = self.n.attrs.get("optimize", True)
        yield f"np.einsum({self.n.attrs['subscripts']!r}, {args}, out={at}, optimize={optimize})"

    def op_assemble(self) -> Lines:
        n, indices, first = self.n, self.n.attrs["indices"], fills(self.n)
        at = yield from self.begin()
        if not first:
            yield f"{at}.fill(0)"
        apart = not first and parts_apart(n)
        for k in sorted(range(len(indices)), key=lambda k: k not in first):
            if k in self.in_place_args:
                continue
            target = f"{at}[{self.part_text(indices[k])}]"
            x, long = self.args[k], self.is_long(n.args[k])
            if k in first or apart:
                yield self.spread(kernels.copied, target, x) if long else f"np.copyto({target}, {x})"
            else:
                yield self.spread("np.add", target, target, x) if long else f"{target} += {x}"

    def changed(self) -> Generator[str, None, str]:
        """Begin with the first argument's content in the result."""
        at = yield from self.begin()
        if not self.in_place_args:
            copy = f"np.copyto({at}, {self.args[0]})"
            # A caller's buffer may be the argument itself: then all of it is there already
            its_buffer = self.n.args[0].op == "input" and self.target in self.texts.result_names
            yield f"if {at} is not {self.args[0]}: {copy}" if its_buffer else copy
        return at

    def op_update(self) -> Lines:
        at = yield from self.changed()
        yield f"{at}[{self.part_text(self.n.attrs['index'])}] = {self.args[1]}"

    def op_scatter(self) -> Lines:
        at = yield from self.changed()
        yield f"{at}[{self.index()}] = {self.args[1]}"

    def op_scatter_add(self) -> Lines:
        table, _, *arrays = self.n.args
        at = yield from self.changed()
        if table.ndim == 2 and takes_rows(self.n.attrs["spec"], table, arrays):
            yield f"{self.texts.helper(kernels.add_rows)}({at}, {self.args[2]}, {self.args[1]})"
        elif is_zeros(table) and table.ndim == 1 and takes_rows(self.n.attrs["spec"], table, arrays):
            yield f"{self.texts.helper(kernels.add_numbers)}({at}, {self.args[2]}, {self.args[1]})"
        else:
            yield f"np.add.at({at}, np.s_[{self.index()}], {self.args[1]})"

    def index(self) -> str:
        """The index of a scatter, whose arrays stand behind what is changed and what is written."""
        n = self.n
        return index_text(n.attrs["spec"], n.args[0].shape, list(map(str, self.args[2:])))

    def op_scatter_along_add(self) -> Lines:
        _, index, v = self.args
        axis = self.shift(self.n, self.n.attrs["axis"])
        at = yield from self.changed()
        yield f"{self.texts.helper(kernels.add_along)}({at}, {index}, {v}, axis={axis})"

    def op_share_among(self) -> Lines:
        axes = tuple(self.shift(self.n, a) for a in self.n.attrs["axes"])
        at = yield from self.begin()
        helper = self.texts.helper(kernels.share_among)
        yield f"{helper}({', '.join(map(str, self.args))}, {at}, axes={axes})"

    def op_gather(self) -> Lines:
        table, *arrays = self.n.args
        if not takes_rows(self.n.attrs["spec"], table, arrays):
            assert self.region is None, "a gather that is not by rows stands in a region of rows"
            yield from self.copied()
            return
        at = yield from self.begin()
        yield f"{self.texts.helper(kernels.take_rows)}({self.args[0]}, {self.args[1]}, {at})"


def is_zeros(n: Node) -> bool:
    """Whether this is known to be an array of 0.0 in float64."""
    while n.op in ("broadcast", "reshape"):
        n = n.args[0]
    number = n.op == "const" and n.dtype == F64 and n.size == 1 and const_value(n) == 0
    return number and str(known(const_value(n))) == "0.0"


def with_source(lines: list[str], n: Node) -> list[str]:
    """The statement's lines, the last one with a comment naming the user's line that it comes from."""
    if not lines or n.loc is None:
        return lines
    return [*lines[:-1], f"{lines[-1]}  # {_file_name(n.loc[0])}:{n.loc[1]}"]


_file_name = functools.lru_cache(maxsize=64)(os.path.basename)
