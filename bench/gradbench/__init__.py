"""A GradBench tool: GradBench's evaluations (github.com/gradbench/gradbench), answered with this compiler.

The evaluations are written from their published definitions; formulas that other libraries compute as well
are those of bench/programs. Those that are a function and its gradient are in gradients.py, the others in a
file each. docs/gradbench.md has an example session.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

MODULES = ("ba", "det", "gmm", "hello", "ht", "kmeans", "llsq", "lse", "lstm", "ode", "particle", "saddle")


def as_json(result):
    """Convert arrays to lists and NumPy scalars to numbers, also inside of dicts, lists and tuples."""
    if isinstance(result, dict):
        return {key: as_json(value) for key, value in result.items()}
    if isinstance(result, (tuple, list)):
        return [as_json(value) for value in result]
    return result.tolist() if isinstance(result, (np.ndarray, np.generic)) else result


@dataclass(frozen=True)
class Function:
    """One function of an evaluation.

    run     run(*arguments) -> result; the part that is timed
    read    message's input (parsed JSON) -> tuple of arguments
    write   result -> JSON value
    """

    run: Callable
    read: Callable[[Any], tuple]
    write: Callable[[Any], Any] = as_json


def array(values, dtype=np.float64):
    """A nested list of numbers as an array."""
    return np.asarray(values, dtype)
