"""Refuses `type(x) is float` where x is a recorded value: its type is Recorded.

What code asks is found in its bytecode, and what stands for x among the arguments that the code is called
with. isinstance(x, float) and x.__class__ are answered as for the value itself.
"""

from __future__ import annotations

import builtins
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import type_unknown
from .bytecode import reads
from .results import holds
from .value import Recorded

_STOOD_FOR = (float, complex, np.generic, np.ndarray)  # types of what a recorded argument stands for


def check_types(f: Callable, args: Sequence, kwargs: dict) -> None:
    """Raise where f asks for the type of a recorded argument."""
    function = getattr(f, "__func__", f)
    if type(function) is types.FunctionType and reads(function.__code__).types:
        try:
            given = inspect.signature(f).bind(*args, **kwargs).arguments
        except (TypeError, ValueError):  # the call itself will say so
            return
        error = type_asked(function.__code__, given, function.__globals__)
        if error is not None:
            raise error


def type_asked(code: types.CodeType, given: Mapping, names: dict) -> Exception | None:
    """The error where code that is called with these local variables asks for the type of a recorded one."""
    for name, path, line in reads(code).types:
        kind: Any = names.get(path[0], vars(builtins).get(path[0])) if path else None
        for part in path[1:]:
            kind = getattr(kind, part, None)
        if isinstance(kind, type) and not issubclass(kind, _STOOD_FOR):
            continue  # a recorded value is as little one as what it stands for
        known = name is not None and name in given
        if type(given[name]) is Recorded if known else any(map(holds, given.values())):
            return type_unknown((code.co_filename, line, code.co_name))
    return None
