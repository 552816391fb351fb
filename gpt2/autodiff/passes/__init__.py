"""The passes: functions from graph to graph that make a program smaller and faster, and mean the same.

    simplify(graph)       all rewriting passes at once, until none applies; Options(off=...) leaves some out

Passes that rewrite are families of local rules, and simplify runs them all in the same sweeps (engine.py):
time grows linearly with the graph, and a rule of one pass sees at once what a rule of another made. "cse" is
what a sweep does besides; "dce" is a name alone, as a graph holds nothing that its outputs do not need.
"""

from __future__ import annotations

from ..graph import Graph
from ..switches import STRICT, Options
from . import algebra, flattening, fold, parts, products, views
from .engine import sweep_to_end

__all__ = ["FAMILIES", "simplify"]

# Rules are tried in this order: the cheap ones that make things disappear, then those that rearrange.
_REMOVING = fold.fold, views.views, parts.assemble
_REARRANGING = flattening.rows, flattening.reduce, products.matrix, algebra.algebra
FAMILIES = {f.name: f for f in (*_REMOVING, *_REARRANGING)}


def simplify(graph: Graph, options: Options | None = None) -> Graph:
    """The same function with less work: all passes, until none applies."""
    off, math = (frozenset(), STRICT) if options is None else (options.off, options.math)
    families = tuple(f for f in FAMILIES.values() if f.name not in off)
    if not families and "cse" in off:
        return graph
    return sweep_to_end(graph, families, share="cse" not in off, math=math)
