"""autograd.builtins: containers of recorded values are plain ones here, so these are Python's own."""

from __future__ import annotations

import builtins
from builtins import dict, isinstance, list, tuple
from typing import Any

from ...record.value import Recorded

__all__ = ["dict", "isinstance", "list", "tuple", "type"]


def type(x: Any, *more: Any) -> Any:
    """The type of a value, of a recorded one that of the value it stands for."""
    if more:
        return builtins.type(x, *more)
    return x.__class__ if builtins.type(x) is Recorded else builtins.type(x)
