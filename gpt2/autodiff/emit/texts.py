"""The texts of values: names, whole arrays and views of them, operands, and expressions of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..graph import Node, float_text, is_scalar_const, scalar_text, source_name, source_names, unused_name
from ..hidden import is_hidden
from ..ops import OPS
from ..ops.rowwise import row_axes
from ..ops.shape import index_text
from ..ops.table import VIEWS, facts, root, views_of
from . import numexpr
from .buffers import UNOWNED, Kind
from .expressions import dtype_name, is_written, number_text, view_text, written
from .layout import is_result_of_call
from .plan import Plan
from .regions import Region

# Names in emitted code that no variable may have; those of Emitter.own give way to variables instead
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
        return f"arena[{at}:{end}].view(np.{dtype_name(dtype)}).reshape({shape})"


class Texts:
    """The texts of a plan's values in a program of this name.

    The views in `setup` are made once for each workspace, those in `prelude` at the start of each call. `env`
    has the globals of the source.
    """

    def __init__(self, plan: Plan, name: str):
        self.plan, self.graph = plan, plan.graph
        self.function = source_name(name, RESERVED)
        self.names = source_names(self.graph, {*RESERVED, self.function})
        self.taken = {*RESERVED, *self.names.values(), self.function}
        self.tried: dict[str, int] = {}  # name -> the last number appended to it
        self.owned_names: dict[str, str] = {}
        self.env: dict = {"np": np}
        self.setup: dict[str, str | ArenaView] = {}  # name -> a view of the arena, which is made once
        self.prelude: dict[str, str] = {}  # name -> a view of an argument or result of this call
        self.full: dict = {}  # node, or the text of a view -> text for the whole array, or its name
        computed = [o for o in self.graph.outputs if o.op != "input"]
        self.output_index = {o: k for k, o in enumerate(computed)}
        self.result_names = [self.unique(_result_name(o)) for o in computed]
        self.fused: list[str] = []  # lines that make numexpr's expressions

    # ---- operands, and expressions of numbers ----

    def factors(self, multiply: Node) -> list[str]:
        """The two factors of a folded multiplication: arrays also where they have one element."""
        return [self.whole(a) for a in multiply.args] * (2 // len(multiply.args))

    def target(self, n: Node) -> str:
        return self.whole(n)

    def operand(self, user: Node, k: int) -> str:
        """Text for an argument: for an elementwise op a number is as good as an array of one element."""
        a = user.args[k]
        return self.names[root(a)] if self.is_held_as_number(a) and facts(user).streams else self.whole(a)

    def is_held_as_number(self, a: Node) -> bool:
        """Whether a name in the source stands for the number itself, not for an array."""
        return self.plan.kind.get(root(a)) is Kind.NUMBER

    def number(self, n: Node) -> str:
        """The expression for a number, from numbers."""
        if n.op in ("sum", "sum_as_numpy"):
            (x,) = n.args
            if x in self.plan.folded:  # a multiplication along the last axis, the only one
                a, b = self.factors(x)
                return f"{a}.dot({b})"
            if n.op == "sum" and x.ndim == 1 and x.size >= 16:
                return f"{self.whole(x)}.dot({self.ones(x.size, x.dtype)})"
            return f"np.add.reduce({self.whole(x)}, axis={n.attrs['axes']})"
        if n.op == "power" and n.shape == ():
            return self.power(n)
        texts = [self.scalar(a) for a in n.args]
        if is_written(n.op):  # several times as fast as a ufunc that writes to an array
            return written(n.op, map(number_text, texts)).text
        return self.expression(n, texts, n.attrs)

    def power(self, n: Node) -> str:
        """A power of single numbers by `**`, as NumPy computes it: C's pow, not the loop over arrays."""
        return " ** ".join(f"({self.scalar(a)})" for a in n.args)

    def scalar(self, a: Node) -> str:
        """The one element of a as a NumPy scalar."""
        if is_scalar_const(a):
            return scalar_text(a)
        if self.is_held_as_number(a):
            return self.names[root(a)]
        return f"{self.whole(a)}[{', '.join('0' * a.ndim) or '()'}]"

    def expression(self, n: Node, args: list[str], attrs: dict) -> str:
        """The op as its row writes it, or as a call of the function that evaluates it."""
        op = OPS[n.op]
        if op.code is not None:
            return op.code(*args, **attrs)
        if op.drop_unused is not None:
            attrs = op.drop_unused({m.attrs["i"] for m in self.graph.nodes if m.args == (n,)}, attrs)
        function = self.own(f"_{n.op}")
        self.env[function] = op.evaluate
        texts = []
        for key, value in attrs.items():
            if isinstance(value, float):
                texts.append(f"{key}={float_text(value)}")
            elif isinstance(value, (int, str, bool, tuple, type(None))):
                texts.append(f"{key}={value!r}")
            else:
                constant = self.own(f"_{n.op}_{key}_{n.id}")
                self.env[constant] = value
                texts.append(f"{key}={constant}")
        return f"{function}({', '.join(args + texts)})"

    def function_of(self, n: Node) -> str | None:
        """The function that computes n and takes out=, if there is one."""
        if n.op != "fused":
            return f"np.{n.op}" if OPS[n.op].ufunc is not None else None
        text, types = numexpr.expression(n, [self.names[root(a)] for a in n.args])
        name = self.unique("fused")
        if not self.fused:
            self.fused += ["from gpt2.autodiff.emit.numexpr import Fused", ""]
        self.fused.append(f"{name} = Fused({text!r}, {types})")
        return name

    # ---- names ----

    def unique(self, text: str) -> str:
        """The text as a name that is not taken, numbered if need be."""
        return unused_name(text, self.taken, self.tried)

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
        if n.op in VIEWS:
            text = self.view_of(n)
        elif n.op in ("input", "const") or self.plan.kind[n] in UNOWNED:
            text = self.names[n]
        else:
            text = self.owned(n)
        if n.op == "const":
            self.env[text] = value = n.value if is_hidden(n.value) else np.asarray(n.value)
            if not is_hidden(value):
                value.flags.writeable = False
        self.full[n] = text
        return text

    def owned(self, n: Node) -> str:
        """Text for a result, a span of the arena or of a result, or a window into one of those."""
        window = self.plan.windows.get(n)
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
        owner = self.result_names[self.output_index[o]]
        return self.named(f"{owner}_memory", f"{owner}.reshape(-1)", o)

    def whole_name(self, n: Node) -> str:
        """The user's name; with an underscore where the plain name is a block of rows."""
        if n in self.plan.region and self.plan.region[n].N > 1:
            return self.unique(self.names[n] + "_")
        return self.names[n]

    def view_of(self, n: Node) -> str:
        """The name of a view of a whole array; its expression if the array is allocated during the call."""
        r = root(n)
        text = self.whole(r)
        if is_scalar_const(r):
            text = f"np.asarray({text}, np.{dtype_name(r.dtype)})"
        for v in views_of(n):
            text = view_text(text, v)
        if self.plan.kind.get(r) in UNOWNED:
            return text
        return self.define(self.unique(self.names[n]), text, r)

    def part(self, x: Node, index: tuple, like: Node) -> str:
        """The part of a whole array at an index, named as `like` is."""
        text = f"{self.whole(x)}[{index_text(index, x.shape)}]"
        return self.named(like.name or "part", text, root(x))

    def named(self, name: str, expression: str, owner: Node) -> str:
        """The name of a view of the owner's memory; its expression if that is allocated during the call."""
        if self.plan.kind.get(owner) in UNOWNED:
            return expression
        if expression not in self.full:
            self.full[expression] = self.define(self.unique(name), expression, owner)
        return self.full[expression]

    def define(self, name: str, expression: str, owner: Node) -> str:
        """Name a view of the owner's memory: for each workspace once, or at the start of each call."""
        if owner.op == "input" or self.plan.kind.get(owner) in (Kind.RESULT, Kind.LENT):
            self.prelude[name] = expression
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
        whole = self.whole(n)
        return self.named(whole.rstrip("_") + "_rows", f"{whole}.reshape({(r.N, *n.shape[p:])})", root(n))

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
        target = user.args[0] if user in r.sums else user
        extra = a.ndim - (target.ndim - row_axes(target.shape, r.N))
        text = self.whole(a)
        if user.op == "gather" or extra <= 0:  # of a gather it is the table
            return text
        return self.named(text.rstrip("_") + "_tail", f"{text}.reshape({a.shape[extra:]})", root(a))


def _result_name(o: Node) -> str:
    name = (o if is_result_of_call(o) else root(o.args[0])).name or "result"
    return "result" if name in ("out", "result") else f"{name}_out"
