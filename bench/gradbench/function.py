"""A function of an evaluation: reading its input, the timed work, writing the result."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


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
