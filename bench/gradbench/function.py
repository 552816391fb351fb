"""An evaluation: reading the input, the timed work, writing the result."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


def as_json(result):
    """Arrays as lists, NumPy's numbers as Python's; dicts, lists and tuples of them."""
    if isinstance(result, dict):
        return {key: as_json(value) for key, value in result.items()}
    if isinstance(result, (tuple, list)):
        return [as_json(value) for value in result]
    return result.tolist() if isinstance(result, (np.ndarray, np.generic)) else result


@dataclass(frozen=True)
class Function:
    """One function of an evaluation.

    run     run(*arguments), which alone is timed
    read    from the message's input, parsed JSON, to the arguments: a tuple
    write   from the result to a JSON value
    """

    run: Callable
    read: Callable[[Any], tuple]
    write: Callable[[Any], Any] = as_json


def array(values, dtype=np.float64):
    """A list of numbers, nested or not, as an array."""
    return np.asarray(values, dtype)
