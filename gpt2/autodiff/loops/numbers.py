"""Bodies of loops in which every value is one number: plain Python runs them, as it does such functions.

A step that NumPy computes on arrays of one number costs some 100 ns an operation, Python's own arithmetic 30.
What the numbers are is the same (emit/scalar.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import numpy as np

from ..graph import Graph
from ..pipeline import ScalarProgram, program_of


def of_numbers(body: Graph) -> ScalarProgram | None:
    """The program of a body on Python's floats, or None where it needs arrays."""
    if any(x.shape or x.dtype != np.float64 for x in body.inputs):
        return None
    program = program_of(body, scalar=True)
    return program if isinstance(program, ScalarProgram) else None


def scan(
    run: ScalarProgram,
    values: Sequence[np.ndarray],
    body: Graph,
    n: int,
    carries: int,
    slices: int,
    every: int,
) -> tuple[np.ndarray, ...]:
    """loops/scan_op.py's evaluate_scan, for a body of numbers."""
    carry = [v.item() for v in values[:carries]]
    xs = [v.tolist() for v in values[carries : carries + slices]]
    consts = [v.item() for v in values[carries + slices :]]
    kept, found = [], []
    for t, x in enumerate(zip(*xs) if xs else repeat((), n)):
        if t % every == 0:
            kept.append(carry)
        results = run(*carry, *x, *consts)
        carry = results[:carries]
        found.append(results[carries:])
    like = body.outputs
    ys = [np.array(y, o.dtype) for y, o in zip(zip(*found), like[carries:])]
    checkpoints = [np.array(c, o.dtype) for c, o in zip(zip(*kept), like)]
    return (*(np.array(c, o.dtype) for c, o in zip(carry, like)), *ys, *checkpoints)
