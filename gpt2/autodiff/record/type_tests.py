"""Refuses `type(x) is float` where x is a recorded value: its type is Recorded.

The test is found in the bytecode, and x among the arguments of the call. isinstance(x, float) and
x.__class__ answer for the value itself.
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
from .local.arrays import is_local
from .results import holds
from .value import Recorded

_STOOD_FOR = (float, complex, np.generic, np.ndarray)  # the types that a recorded value stands for


def check_type_tests(f: Callable, args: Sequence, kwargs: dict) -> None:
    """Raise if f tests the type of a recorded argument."""
    function = getattr(f, "__func__", f)
    if type(function) is types.FunctionType and reads(function.__code__).types:
        try:
            arguments = inspect.signature(f).bind(*args, **kwargs).arguments
        except (TypeError, ValueError):  # the call itself will raise
            return
        error = type_test_error(function.__code__, arguments, function.__globals__)
        if error is not None:
            raise error


def type_test_error(code: types.CodeType, variables: Mapping, names: dict) -> Exception | None:
    """The error if code that is called with these local variables tests the type of a recorded one."""
    for name, path, line in reads(code).types:
        kind: Any = names.get(path[0], vars(builtins).get(path[0])) if path else None
        for part in path[1:]:
            kind = getattr(kind, part, None)
        if isinstance(kind, type) and not issubclass(kind, _STOOD_FOR):
            continue  # false for a recorded value as for the value itself
        known = name is not None and name in variables
        if (
            type(variables[name]) is Recorded or is_local(variables[name])
            if known
            else any(map(holds, variables.values()))
        ):
            return type_unknown((code.co_filename, line, code.co_name))
    return None
