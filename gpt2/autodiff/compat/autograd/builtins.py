"""autograd.builtins: containers of recorded values are plain ones here, so these are Python's own."""

from __future__ import annotations

import builtins
from typing import Any

from ...record.value import Recorded
from ...tree import flatten

dict, isinstance, list, tuple = builtins.dict, builtins.isinstance, builtins.list, builtins.tuple

__all__ = ["DictBox", "SequenceBox", "dict", "isinstance", "list", "tuple", "type"]


def type(x: Any, *more: Any) -> Any:
    """The type of a value; for a recorded one that of the value it stands for."""
    if more:
        return builtins.type(x, *more)
    return x.__class__ if builtins.type(x) is Recorded else builtins.type(x)


class _Holding(builtins.type):
    """A class whose isinstance is true for plain containers with a recorded value inside."""

    kinds: builtins.tuple = ()

    def __instancecheck__(cls, x: Any) -> bool:
        return builtins.type(x) in cls.kinds and any(builtins.type(v) is Recorded for v in flatten(x)[0])


class DictBox(metaclass=_Holding):
    kinds = (dict,)


class SequenceBox(metaclass=_Holding):
    kinds = (tuple, list)
