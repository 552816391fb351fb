"""The function of a region: what one block of rows of it computes.

    def rows(k, i, j, s1, s2):  # 8192 rows in 4 blocks
        x_block = x[i:j]
        t = np.exp(x_block, out=s1)
        np.multiply(t, x_block, out=result[i:j])

k numbers the block, i:j are its rows, and s1, s2, ... this thread's scratch: two of them may be one slot in
different shapes.
"""

from __future__ import annotations

import re
from collections import Counter

from ..graph import Node, is_scalar_const, scalar_text
from ..ops.rowwise import ROW, row_axes
from ..ops.table import facts, root, views_of
from .buffers import Kind
from .expressions import rows_of
from .regions import Region, blocks_of, flags_of, prefix
from .texts import Texts


class RowBlocks:
    """The texts of operands and results in the function of one region."""

    def __init__(self, texts: Texts, r: Region):
        self.texts, self.plan, self.region = texts, texts.plan, r
        axes = prefix(r) if r.nested else (r.N,)
        self.blocks = blocks_of(r)
        self.outer = [f"i{a}" for a in range(len(axes) - 1)]  # nested: an index for each leading row axis
        self.index = ", ".join([*self.outer, "i:j"])
        self.title = f"{' x '.join(map(str, axes))} rows in {len(self.blocks)} blocks"
        # (slot, shape of a row, dtype, in planes) -> the parameter: one for each shape a slot is used in
        self.scratch: dict[tuple, str] = {}
        # The blocks that are read of arrays from outside, how often, and the names of those with a name
        self.reads: Counter[str] = Counter()
        self.read_names: dict[str, str] = {}

    def spelled(self, lines: list[str]) -> list[str]:
        """The lines with the blocks that they read. One that is read more than once gets a name, which says
        which array it is a block of, in a line before the first that reads it."""
        spelled = []
        for line in lines:
            for text in re.findall("\0(.+?)\0", line):
                if self.reads[text] > 1 and text not in self.read_names:
                    array = re.match(r"\w*", text)[0].rstrip("_") or "rows"
                    self.read_names[text] = self.texts.unique(f"{array}_block")
                    spelled.append(f"{self.read_names[text]} = {text}")
                line = line.replace(f"\0{text}\0", self.read_names.get(text, text))
            spelled.append(line)
        return spelled

    def factors(self, multiply: Node) -> list[str]:
        """The two factors of a folded multiplication: a square has its argument twice."""
        numbers = [*range(len(multiply.args))] * (2 // len(multiply.args))
        return [self.operand(multiply, k) for k in numbers]

    def operand(self, user: Node, k: int) -> str:
        """The text for an argument in a block of rows; a block from outside has a \\0 at both ends."""
        e, a, flags = self.texts, user.args[k], flags_of(user, self.region.N)
        x = root(a)
        if is_scalar_const(a):
            return scalar_text(a)
        if e.is_held_as_number(a) and facts(user).streams:
            return e.names[x]
        if self.plan.region.get(x) is self.region and x not in self.region.sums:
            return rows_of(e.names[x], views_of(a), self.region.N, facts(user).streams)
        if flags[k] is not ROW:
            return e.invariant(a, user, self.region)
        text = f"{e.whole_rows(a, self.region)}[{self.index}]"
        self.reads[text] += 1
        return f"\0{text}\0"

    def target(self, n: Node) -> str:
        """Where the rows of n go."""
        plan, N = self.plan, self.region.N
        if n in self.region.sums:
            return f"{self.texts.partial(n)}[k]"
        if plan.kind[n] is not Kind.SCRATCH:
            return f"{self.texts.whole_rows(n, self.region)}[{self.index}]"
        window = plan.windows.get(n)
        owner = n if window is None else window.base
        planes = owner in plan.planes
        key = plan.slots[owner], owner.shape[row_axes(owner.shape, N) :], owner.dtype, planes
        if key not in self.scratch:
            self.scratch[key] = self.texts.own(f"s{len(self.scratch) + 1}")
        return self.scratch[key] + ("" if window is None else window.row_text(N))
