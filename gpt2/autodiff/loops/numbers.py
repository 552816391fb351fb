"""Loop bodies on numbers only, run as plain Python code.

An operation on arrays of one number takes NumPy some 100 ns, Python's own arithmetic 30. The results are the
same (emit/scalar.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import numpy as np

from ..graph import Graph
from ..pipeline import ScalarProgram, program_of


def of_numbers(body: Graph) -> ScalarProgram | None:
    """The program of a body on Python floats, or None if it needs arrays."""
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
    carries_kept, rows = [], []
    for t, x in enumerate(zip(*xs) if xs else repeat((), n)):
        if t % every == 0:
            carries_kept.append(carry)
        results = run(*carry, *x, *consts)
        carry = results[:carries]
        rows.append(results[carries:])
    like = body.outputs
    ys = [np.array(y, o.dtype) for y, o in zip(zip(*rows), like[carries:])]
    checkpoints = [np.array(c, o.dtype) for c, o in zip(zip(*carries_kept), like)]
    return (*(np.array(c, o.dtype) for c, o in zip(carry, like)), *ys, *checkpoints)
