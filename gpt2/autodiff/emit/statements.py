"""The lines for one op: with `out=`, on whole arrays or on a block of rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

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

Lines = list[str]
F32, F64 = np.dtype(np.float32), np.dtype(np.float64)


class Statement:
    """The lines for one op: on whole arrays, or in the function of a block of rows.

    name    in a block of rows the variable for the result's rows
    args    an operand for each argument, "" for one that is folded into this op or lies there already
    target  where the result goes
    at      what the result is called after the lines `begin`: in a block these bind its name
    factors the two operands of the multiplication that a sum has folded into it, else nothing
    """

    def __init__(self, texts: Texts, n: Node, block: RowBlocks | None = None):
        self.texts, self.plan, self.n = texts, texts.plan, n
        self.region = None if block is None else block.region
        place = block or texts
        self.in_place_args = self._in_place_args()
        unread = self.in_place_args.union(k for k, a in enumerate(n.args) if a in self.plan.folded)
        self.args = ["" if k in unread else place.operand(n, k) for k in range(len(n.args))]
        self.name, self.target = texts.names[n], place.target(n)
        self.at = self.target if block is None else self.name
        self.begin: Lines = [] if block is None else [f"{self.name} = {self.target}"]
        self.factors: list[str] = []
        if n.args and n.args[0] in self.plan.folded:
            self.factors = place.factors(n.args[0])

    def lines(self) -> Lines:
        if self.region is not None and self.n in self.region.sums:
            return [self.block_sum()]
        own = getattr(self, f"op_{self.n.op}", None)
        if own is not None:
            return own()
        op = OPS[self.n.op]
        if op.product is not None:  # of two whole matrices on all threads
            a, b = op.product(*self.args)
            on_threads = self.region is None and self.n.ndim == 2 and self.n.dtype.kind == "f"
            return self.bound(f"{'' if on_threads else 'np.'}matmul({a}, {b}, out={self.target})")
        if op.reducer is not None:
            return self.reduce()
        function = self.texts.function_of(self.n)
        return self.copied() if function is None else self.called(function)

    # -- forms of statement

    def bound(self, call: str) -> Lines:
        """A call that takes out= and returns it: the block's name is bound on the same line."""
        return [call if self.region is None else f"{self.name} = {call}"]

    def called(self, function: str) -> Lines:
        args = ", ".join(self.args)
        if facts(self.n).any_strides and self.goes_by_columns(self.n.args) or self.leaves_planes():
            helper = self.texts.helper(short.by_columns)
            return self.bound(f"{helper}({function}, {args}, out={self.target})")
        if OPS[self.n.op].ufunc is not None and facts(self.n).streams and self.is_long(self.n):
            return [self.spread(function, self.target, *self.args)]
        return self.bound(f"{function}({args}, out={self.target})")

    def goes_by_columns(self, args: Sequence[Node]) -> bool:
        """Whether the last axis is so short, and one of these so broadcast, that columns go one by one."""
        last = self.n.shape[-2:]
        # NumPy cannot join the last axis of these with the one before it
        broadcast = (x.size > 1 and x.shape[-2:] != last and x.shape != last for x in args)
        return self.is_short(self.n, short.FEW_COLUMNS) and any(broadcast)

    def leaves_planes(self) -> bool:
        """Whether the result lies in planes and an argument does not, or the other way round."""
        if not self.plan.planes:
            return False
        arrays = {self.n, *(root(a) for a in self.n.args if a.shape)}
        return not arrays.isdisjoint(self.plan.planes) and not arrays <= self.plan.planes

    def is_short(self, x: Node, most: int = short.LONGEST) -> bool:
        """Whether x has a last axis of 2 to `most` elements, and many rows."""
        if x.ndim < 2 or not 2 <= x.shape[-1] <= most or x.dtype not in (F32, F64):
            return False
        return x.ndim > self.row_axes_of(x) and x.size // x.shape[-1] >= short.FEWEST

    def is_long(self, n: Node) -> bool:
        """Whether an op on n, outside of regions, is worth sharing out over threads."""
        return self.region is None and n.size >= 2 * kernels.PIECE

    def spread(self, function: str | Callable, target: str, *args: str) -> str:
        """The call of a function that goes element by element, shared out over threads."""
        called = function if isinstance(function, str) else self.texts.helper(function)
        return f"{self.texts.helper(kernels.spread)}({', '.join([called, target, *args])})"

    def copied(self) -> Lines:
        """Copies a result that NumPy allocates to where it belongs."""
        expression = self.texts.expression(self.n, self.args, self.shifted_attrs())
        if self.region is None and self.n.shape == ():
            return [f"{self.target}[...] = {expression}"]
        return [*self.begin, f"np.copyto({self.at}, {expression})"]

    def reduce(self) -> Lines:
        n = self.n
        axes = tuple(self.shift(n.args[0], a) for a in n.attrs["axes"])
        axis = axes[0] if len(axes) == 1 else axes
        keep = ", keepdims=True" if n.attrs["keepdims"] else ""
        ufunc = OPS[n.op].reducer
        return self.bound(f"np.{ufunc}.reduce({self.args[0]}, axis={axis}{keep}, out={self.target})")

    def block_sum(self) -> str:
        """The sum of one block of rows, into memory of its own: blocks are added up later, in their order.

        It is a product with ones where BLAS may do it.
        """
        e, n, r, target = self.texts, self.n, self.region, self.target
        assert r is not None
        product = OPS[n.op].product
        if product is not None:
            return f"np.matmul({', '.join(product(*self.args))}, out={target})"
        x, a, sizes = self.args[0], n.args[0], {b[-1] - b[-2] for b in blocks_of(r)}
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
        if not self.in_place_args:
            if self.is_long(self.n):
                return [self.spread(kernels.copied, self.target, self.args[0])]
            return [*self.begin, f"np.copyto({self.at}, {self.args[0]})"]
        return [] if self.n in self.texts.output_index else self.begin

    def op_negative(self) -> Lines:
        """With strides by a product: NumPy's negative may read wrong elements there (kernels.negated)."""
        if self.n.dtype.kind == "c" or self.contiguous(self.n) and not self.leaves_planes():
            return self.called("np.negative")
        return self.called(self.texts.helper(kernels.negated))

    def op_power(self) -> Lines:
        if self.n.shape == ():
            return [f"{self.target}[...] = {self.texts.power(self.n)}"]
        return self.called("np.power")

    def op_cast(self) -> Lines:
        return [*self.begin, f'np.copyto({self.at}, {self.args[0]}, casting="unsafe")']

    def op_where(self) -> Lines:
        condition, a, b = self.args
        lines = [*self.begin]
        if not self.in_place_args:
            lines.append(f"np.copyto({self.at}, {b})")
        if self.goes_by_columns(self.n.args[:2]):
            return [*lines, f"{self.texts.helper(short.put_where)}({self.at}, {a}, {condition})"]
        return [*lines, f"np.copyto({self.at}, {a}, where={condition})"]

    def op_max(self) -> Lines:
        n, (x,) = self.n, self.n.args
        if n.attrs["axes"] != (x.ndim - 1,) or x.dtype != n.dtype or not self.is_short(x, short.MOST_COLUMNS):
            return self.reduce()
        out = f"{self.at}[..., 0]" if n.attrs["keepdims"] else self.at
        helper = self.texts.helper(short.extreme_last)
        return [*self.begin, f"{helper}(np.{OPS[n.op].reducer}, {self.args[0]}, {out})"]

    op_min = op_max

    def op_sum(self) -> Lines:
        n, (x,), (arg, *_) = self.n, self.n.args, self.args
        rank = x.ndim - self.row_axes_of(x) + 1
        out, columns = self.at, self.at
        if n.attrs["keepdims"]:
            out, columns = f"{self.at}[..., 0]", f"{self.at}[..., 0, :]"
        # Whether it is a sum over the last axis of an array that a product with ones adds up fastest
        even = n.attrs["axes"] == (x.ndim - 1,) and x.shape[-1] >= 16 and x.dtype.kind == "f"
        even = even and x.dtype == n.dtype and self.contiguous(x)
        before_last = n.attrs["axes"] == (x.ndim - 2,) and rank > 2
        if self.factors and not goes_by_columns(x):
            line = f"np.vecdot({', '.join(self.factors)}, out={out})"
        elif not self.factors and even and rank == 2:
            line = f"np.matmul({arg}, {self.ones(-1)}, out={out})"
        elif not self.factors and even and self.contiguous(n):
            rows = f"{arg}.reshape(-1, {x.shape[-1]})"
            line = f"np.matmul({rows}, {self.ones(-1)}, out={self.at}.reshape(-1))"
        elif before_last and root(x) in self.plan.planes:
            line = f"{self.texts.helper(short.sum_in_planes)}({arg}, {self.ones(-2)}, {columns})"
        elif before_last and x.dtype == n.dtype and self.is_short(x):
            line = f"np.matmul({self.ones(-2)}, {arg}, out={columns})"
        else:
            return self.op_sum_as_numpy()
        return [*self.begin, line]

    def ones(self, axis: int) -> str:
        """As many ones as the argument has elements along this axis."""
        (x,) = self.n.args
        return self.texts.ones(x.shape[axis], x.dtype)

    def op_sum_as_numpy(self) -> Lines:
        n, (x,) = self.n, self.n.args
        out = f"{self.at}[..., 0]" if n.attrs["keepdims"] else self.at
        if self.factors:
            helper = self.texts.helper(short.sum_products)
            return [*self.begin, f"{helper}({', '.join([*self.factors, out])})"]
        if n.attrs["axes"] == (x.ndim - 1,) and x.dtype == n.dtype and self.is_short(x):
            return [*self.begin, f"{self.texts.helper(short.sum_last)}({self.args[0]}, {out})"]
        return self.reduce()

    def contiguous(self, x: Node) -> bool:
        """Whether x is contiguous, or in a block, each of its rows and the next."""
        p, r = self.plan, root(x)
        if self.region and p.region.get(r) is self.region and p.kind.get(r) is Kind.SCRATCH:
            return r not in p.windows and r not in p.planes and all(v.op == "reshape" for v in views_of(x))
        return p.layout(x).contiguous

    def op_einsum(self) -> Lines:
        attrs = self.n.attrs
        args = ", ".join([repr(attrs["subscripts"]), *self.args])
        return [*self.begin, f"np.einsum({args}, out={self.at}, optimize={attrs.get('optimize', True)})"]

    def op_assemble(self) -> Lines:
        n, indices, first = self.n, self.n.attrs["indices"], fills(self.n)
        lines = [*self.begin] if first else [*self.begin, f"{self.at}.fill(0)"]
        apart = not first and parts_apart(n)
        for k in sorted(range(len(indices)), key=lambda k: k not in first):
            if k in self.in_place_args:
                continue
            target = f"{self.at}[{self.part_text(indices[k])}]"
            x, long = self.args[k], self.is_long(n.args[k])
            if k in first or apart:
                line = self.spread(kernels.copied, target, x) if long else f"np.copyto({target}, {x})"
            else:
                line = self.spread("np.add", target, target, x) if long else f"{target} += {x}"
            lines.append(line)
        return lines

    def changed(self, *lines: str) -> Lines:
        """These lines, with the first argument's content in the result before."""
        if self.in_place_args:
            return [*self.begin, *lines]
        copy = f"np.copyto({self.at}, {self.args[0]})"
        # A caller's buffer may be the argument itself: then all of it is there already
        if self.n.args[0].op == "input" and self.target in self.texts.result_names:
            copy = f"if {self.at} is not {self.args[0]}: {copy}"
        return [*self.begin, copy, *lines]

    def op_update(self) -> Lines:
        return self.changed(f"{self.at}[{self.part_text(self.n.attrs['index'])}] = {self.args[1]}")

    def op_scatter(self) -> Lines:
        return self.changed(f"{self.at}[{self.index()}] = {self.args[1]}")

    def op_scatter_add(self) -> Lines:
        table, _, *arrays = self.n.args
        add = None
        if takes_rows(self.n.attrs["spec"], table, arrays):
            add = kernels.add_rows if table.ndim == 2 else None
            add = kernels.add_numbers if table.ndim == 1 and is_zeros(table) else add
        if add is None:
            return self.changed(f"np.add.at({self.at}, np.s_[{self.index()}], {self.args[1]})")
        return self.changed(f"{self.texts.helper(add)}({self.at}, {self.args[2]}, {self.args[1]})")

    def index(self) -> str:
        """The index of a scatter, whose arrays stand behind what is changed and what is written."""
        return index_text(self.n.attrs["spec"], self.n.args[0].shape, self.args[2:])

    def op_scatter_along_add(self) -> Lines:
        _, index, v = self.args
        axis = self.shift(self.n, self.n.attrs["axis"])
        return self.changed(f"{self.texts.helper(kernels.add_along)}({self.at}, {index}, {v}, axis={axis})")

    def op_share_among(self) -> Lines:
        axes = tuple(self.shift(self.n, a) for a in self.n.attrs["axes"])
        args = ", ".join([*self.args, self.at])
        return [*self.begin, f"{self.texts.helper(kernels.share_among)}({args}, axes={axes})"]

    def op_gather(self) -> Lines:
        table, *arrays = self.n.args
        if not takes_rows(self.n.attrs["spec"], table, arrays):
            assert self.region is None, "a gather that is not by rows stands in a region of rows"
            return self.copied()
        return [*self.begin, f"{self.texts.helper(kernels.take_rows)}({', '.join([*self.args, self.at])})"]


def is_zeros(n: Node) -> bool:
    """Whether this is known to be an array of 0.0 in float64."""
    while n.op in ("broadcast", "reshape"):
        n = n.args[0]
    number = n.op == "const" and n.dtype == F64 and n.size == 1 and const_value(n) == 0
    return number and str(known(const_value(n))) == "0.0"


def with_source(lines: Lines, n: Node) -> Lines:
    """The statement's lines, the last one with a comment naming the user's line that it comes from."""
    if not lines or n.loc is None:
        return lines
    return [*lines[:-1], f"{lines[-1]}  # {os.path.basename(n.loc[0])}:{n.loc[1]}"]
