"""The lines for one op: with `out=`, on whole arrays or on a block of rows."""

from __future__ import annotations

from dataclasses import dataclass

from ..graph import Node
from ..ops import OPS
from ..ops.rowwise import row_axes, takes_rows
from ..ops.shape import index_slices
from ..run import kernels
from .array_names import index_text
from .layout import chain, disjoint, root, same_memory
from .regions import Region, blocks_of


@dataclass
class Frame:
    """How a statement in a block sees arrays: rows along the first axis."""

    region: Region
    index: str
    nested: bool

    def axes_of(self, n: Node) -> int:
        return row_axes(n.shape, self.region.N)


class Statement:
    """The lines for one op. `frame` is None for whole arrays; in a block, `name` is bound to its result."""

    def __init__(
        self,
        emitter,
        n: Node,
        target: str,
        args: list[str],
        frame: Frame | None,
        name: str = "",
        fold=None,
    ):
        self.emitter, self.n, self.target, self.args, self.frame = emitter, n, target, args, frame
        self.name, self.fold = name, fold

    def lines(self) -> list[str]:
        n, op = self.n, self.n.op
        if op == "copy" and self.in_place(0):
            return [] if n in self.emitter.output_index else self.bind(self.target)
        special = getattr(self, f"op_{op}", None)
        if special is not None:
            return special()
        if OPS[op].ufunc is not None:
            return self.returning(f"np.{op}({', '.join(self.args)}, out=@)")
        return self.copying(self.emitter.expression(n, self.args, self.shifted_attrs()))

    # -- forms of statement

    def bind(self, target: str) -> list[str]:
        return [f"{self.name} = {target}"] if self.frame else []

    def returning(self, call: str) -> list[str]:
        """A call that takes out= and returns it: the block's name is bound on the same line."""
        call = call.replace("@", self.target)
        return [f"{self.name} = {call}"] if self.frame else [call]

    def then(self, *lines: str) -> list[str]:
        """Bind the block first, then fill it."""
        if not self.frame:
            return [line.replace("@", self.target) for line in lines]
        return [f"{self.name} = {self.target}", *(line.replace("@", self.name) for line in lines)]

    def copying(self, expression: str) -> list[str]:
        if not self.frame and self.n.shape == ():
            return [f"{self.target}[...] = {expression}"]
        return self.then(f"np.copyto(@, {expression})")

    # -- facts

    def in_place(self, k: int) -> bool:
        """Whether argument k is already where the result goes."""
        p, n, x = self.emitter.plan, self.n, self.n.args[k]
        r = root(x)
        if r in p.placed:
            return same_memory(self.emitter.stands[x], self.emitter.stands[n])
        if n in p.placed:
            return False
        if n in p.storage and r in p.storage:
            return p.storage[n] is p.storage[r]
        return (
            n in p.slots
            and r in p.slots
            and self.emitter.where[r] is self.emitter.where[n]
            and p.slots[n] == p.slots[r]
        )

    def shift(self, x: Node, axis: int) -> int:
        return axis if self.frame is None else axis - self.frame.axes_of(x) + 1

    def shifted_attrs(self) -> dict:
        n = self.n
        attrs = dict(n.attrs)
        if self.frame is None:
            return attrs
        if "axes" in attrs:
            attrs["axes"] = tuple(self.shift(n.args[0], a) for a in attrs["axes"])
        if "axis" in attrs:
            attrs["axis"] = self.shift(n.args[0], attrs["axis"])
        return attrs

    def part(self, x: Node, index) -> str:
        """Index text for a part of the result."""
        if self.frame is None:
            return index_text(index, x.shape)
        p = self.frame.axes_of(x)
        return ", ".join([":", index_text(index[p:], x.shape[p:])])

    # -- ops with a spelling of their own

    def op_copy(self):
        return self.then(f"np.copyto(@, {self.args[0]})")

    def op_fused(self):
        return self.returning(f"{self.emitter.fused_name(self.n)}({', '.join(self.args)}, out=@)")

    def op_cast(self):
        return self.then(f'np.copyto(@, {self.args[0]}, casting="unsafe")')

    def op_where(self):
        c, a, b = self.args
        lines = [] if self.in_place(2) else [f"np.copyto(@, {b})"]
        return self.then(*lines, f"np.copyto(@, {a}, where={c})")

    def op_sum(self):
        n = self.n
        (x,) = n.args
        axes = n.attrs["axes"]
        keep = n.attrs["keepdims"]
        if x in self.emitter.plan.folded:
            a, b = (self.fold if self.frame else [self.emitter.whole(y) for y in x.args]) * (
                2 if x.op == "square" else 1
            )
            return self.then(f"np.vecdot({a}, {b}, out=@{_drop_last(keep)})")
        if (
            axes == (x.ndim - 1,)
            and x.dtype.kind == "f"
            and x.dtype == n.dtype
            and x.shape[-1] >= 16
            and self.contiguous(x)
        ):
            ones = self.emitter.ones(x.shape[-1], x.dtype)
            rank = x.ndim if self.frame is None else x.ndim - self.frame.axes_of(x) + 1
            if rank == 2:
                return self.then(f"np.matmul({self.args[0]}, {ones}, out=@{_drop_last(keep)})")
            if self.contiguous(n):
                return self.then(
                    f"np.matmul({self.args[0]}.reshape(-1, {x.shape[-1]}), {ones}, out=@.reshape(-1))"
                )
        return self.reduce("add")

    def contiguous(self, x: Node) -> bool:
        """Whether x is contiguous, or in a block, each of its rows and the next."""
        r = root(x)
        if (
            self.frame
            and self.emitter.where.get(r) is self.frame.region
            and self.emitter.plan.kind.get(r) == "scratch"
        ):
            return r not in self.emitter.plan.placed and all(v.op == "reshape" for v in chain(x))
        return self.emitter.stands[x].flags.c_contiguous

    def reduce(self, ufunc: str):
        n = self.n
        axes = tuple(self.shift(n.args[0], a) for a in n.attrs["axes"])
        axis = axes[0] if len(axes) == 1 else axes
        keep = ", keepdims=True" if n.attrs["keepdims"] else ""
        if self.frame is None and n.shape == ():
            return [f"np.{ufunc}.reduce({self.args[0]}, axis={axis}, out={self.target})"]
        return self.returning(f"np.{ufunc}.reduce({self.args[0]}, axis={axis}{keep}, out=@)")

    def op_max(self):
        return self.reduce("maximum")

    def op_min(self):
        return self.reduce("minimum")

    def op_prod(self):
        return self.reduce("multiply")

    def op_any(self):
        return self.reduce("logical_or")

    def op_all(self):
        return self.reduce("logical_and")

    def op_matmul(self):
        call = (
            "matmul" if self.frame is None and self.n.ndim == 2 and self.n.dtype.kind == "f" else "np.matmul"
        )
        return self.returning(f"{call}({self.args[0]}, {self.args[1]}, out=@)")

    def op_einsum(self):
        args = ", ".join(self.args)
        return self.then(f"np.einsum({self.n.attrs['subscripts']!r}, {args}, out=@, optimize=True)")

    def op_assemble(self):
        n, e = self.n, self.emitter
        settled = [
            root(x) in e.plan.placed and same_memory(e.stands[x], e.stands[n][index_slices(i)])
            for x, i in zip(n.args, n.attrs["indices"])
        ]
        lines = []
        apart = disjoint(n)
        covered = apart and sum(x.size for x in n.args) == n.size
        if not any(settled) and not covered:
            full = [k for k, x in enumerate(n.args) if x.size == n.size]
            if full:
                k = full[0]
                lines.append(f"np.copyto(@[{self.part(n, n.attrs['indices'][k])}], {self.args[k]})")
                settled[k] = True
                apart = False
            else:
                lines.append("@.fill(0)")
        whole = any(x.size == n.size for x in n.args)
        for k, (index, arg) in enumerate(zip(n.attrs["indices"], self.args)):
            if settled[k]:
                continue
            part = f"@[{self.part(n, index)}]"
            lines.append(
                f"np.copyto({part}, {arg})" if covered or apart and not whole else f"{part} += {arg}"
            )
        return self.then(*lines)

    def first(self) -> list[str]:
        """The first argument's content, in the result's place."""
        if self.in_place(0):
            return []
        copy = f"np.copyto(@, {self.args[0]})"
        # A caller's buffer may be the argument itself: then all of it is there already
        its_buffer = self.n.args[0].op == "input" and self.target in self.emitter.result_names
        return [f"if @ is not {self.args[0]}: {copy}" if its_buffer else copy]

    def op_update(self):
        return self.then(*self.first(), f"@[{self.part(self.n, self.n.attrs['index'])}] = {self.args[1]}")

    def op_scatter(self):
        return self.then(*self.first(), f"@[{self.spec()}] = {self.args[1]}")

    def op_scatter_add(self):
        table, _, *arrays = self.n.args
        if table.ndim == 2 and takes_rows(self.n.attrs["spec"], table, arrays):
            add_rows = self.emitter.helper(kernels.add_rows)
            return self.then(*self.first(), f"{add_rows}(@, {self.args[2]}, {self.args[1]})")
        return self.then(*self.first(), f"np.add.at(@, ({self.spec()},), {self.args[1]})")

    def spec(self) -> str:
        arrays = self.args[2:]
        texts = []
        for s in self.n.attrs["spec"]:
            if s == "new":
                texts.append("None")
            elif s[0] == "array":
                texts.append(arrays[s[1]])
            else:
                texts.append(repr(slice(*s)))
        return ", ".join(texts)

    def op_scatter_along_add(self):
        _, idx, v = self.args
        axis = self.shift(self.n, self.n.attrs["axis"])
        add_along = self.emitter.helper(kernels.add_along)
        return self.then(*self.first(), f"{add_along}(@, {idx}, {v}, axis={axis})")

    def op_gather(self):
        n = self.n
        table, *arrays = n.args
        if takes_rows(n.attrs["spec"], table, arrays):
            return self.then(f"{self.emitter.helper(kernels.take_rows)}({self.args[0]}, {self.args[1]}, @)")
        if self.frame is None:
            return self.copying(self.emitter.expression(n, self.args, n.attrs))
        raise AssertionError("a gather that is not by rows stands in a region of rows")


def sum_rows(e, n: Node, target: str, x: str, r: Region) -> list[str]:
    """The sum of one block of rows, into its own place: blocks are added up afterwards, in their order."""
    a = n.args[0]
    p = row_axes(a.shape, r.N)
    axes = (0, *(ax - p + 1 for ax in n.attrs["axes"] if ax >= p))
    if axes == (0,) and a.ndim - p == 1 and a.dtype.kind == "f" and a.dtype == n.dtype:
        rows = max(b[-1] - b[-2] for b in blocks_of(r, e.nested[r]))
        ones = e.ones(rows, a.dtype)
        sizes = {b[-1] - b[-2] for b in blocks_of(r, e.nested[r])}
        return [f"np.matmul({ones if len(sizes) == 1 else f'{ones}[:j - i]'}, {x}, out={target})"]
    axis = axes[0] if len(axes) == 1 else axes
    if not n.shape:
        target = target.replace("[k]", "[k:k + 1].reshape(())")
    return [f"np.add.reduce({x}, axis={axis}, out={target})"]


def _drop_last(keepdims: bool) -> str:
    return "[..., 0]" if keepdims else ""
