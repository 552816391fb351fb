"""The passes: functions from graph to graph that make a program smaller and faster, and mean the same.

    simplify(graph)       all rewriting passes at once, until none applies
    PASSES                the same one by one, by name; Options(off=...) leaves some out of simplify
    partition(joint, ..)  which forward values a backward is handed, and which it computes again

Passes that rewrite are families of local rules, and simplify runs them all in the same sweeps (engine.py):
time grows linearly with the graph, and a rule of one pass sees at once what a rule of another made.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import numexprs
from ..graph import Graph
from . import algebra, fold, matrix, place, reduce, rows, views
from .cse import cse
from .dce import dce
from .engine import sweep_to_end
from .partition import partition

__all__ = ["FAMILIES", "PASSES", "Options", "partition", "simplify"]

# Rules are tried in this order: the cheap ones that make things disappear, then those that rearrange.
FAMILIES = {
    f.name: f
    for f in (fold.fold, views.views, place.place, rows.rows, reduce.reduce, matrix.matrix, algebra.algebra)
}


@dataclass(frozen=True)
class Options:
    """What simplify does, and when.

    off      names of passes to leave out: keys of PASSES
    before   simplify what was recorded before it is differentiated, and not only the derivative

    elementwise  what computes chains of elementwise ops in the emitted program: "numpy", "numexpr", or
                 "tuned", which times each region both ways. They differ by rounding
    """

    off: frozenset = frozenset()
    before: bool = True
    elementwise: str = "numpy"

    def __post_init__(self):
        object.__setattr__(self, "off", frozenset(self.off))
        unknown = sorted(self.off - PASSES.keys())
        if unknown:
            raise ValueError(
                f"Options: no pass {unknown[0]!r} to switch off, expected one of {', '.join(PASSES)}"
            )
        if self.elementwise not in numexprs.BACKENDS:
            raise ValueError(
                f"Options: elementwise is {self.elementwise!r}, "
                f"expected one of {', '.join(numexprs.BACKENDS)}"
            )
        if self.elementwise != "numpy":
            numexprs.load()


def simplify(graph: Graph, options: Options | None = None) -> Graph:
    """The same function with less work: all passes, until none applies."""
    off = frozenset() if options is None else getattr(options, "off", frozenset())
    families = tuple(f for f in FAMILIES.values() if f.name not in off)
    if not families and "cse" in off:
        return dce(graph)
    return sweep_to_end(graph, families, share="cse" not in off, forgiving=True)


def _alone(family):
    def run(graph: Graph) -> Graph:
        return sweep_to_end(graph, (family,))

    run.__name__ = family.name
    return run


PASSES = {**{name: _alone(f) for name, f in FAMILIES.items()}, "cse": cse, "dce": dce}
