"""Tests of type and identity: `type(x) is float`, `how is np.sum`.

`type(x) is float` is refused where x is a recorded value: its type is Recorded. The test is found in the
bytecode, and x among the arguments of the call. isinstance(x, float) and x.__class__ answer for the value.

While something is recorded, names in NumPy's modules refer to other objects (interception.py), which are
equal to the functions and not the same. So a function that tests identity gets NumPy's own ones where it
takes them as values. Called with lists of recorded numbers these raise an error.
"""

from __future__ import annotations

import builtins
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..atoms import ATOMS
from ..errors import type_unknown
from . import source_lines
from .bytecode import Reads, instructions_of, reads
from .containers import holds
from .draws import around, content
from .interception import INTERCEPTED, plain
from .local.arrays import is_local
from .value import Recorded

_STOOD_FOR = (float, complex, bool, np.generic, np.ndarray)  # the types that a recorded value stands for
_MOST = 1000  # functions and objects that are looked through
# Types of objects that lead to no code of the user's
_CLOSED = {*ATOMS, types.ModuleType, types.BuiltinFunctionType, np.ndarray, np.ufunc, type(np.concatenate)}
_TESTS = {"id", "is_", "is_not", "type"}


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
    code_reads = reads(code)
    for name, path, line, held, direct in code_reads.types:
        kind: Any = names.get(path[0], vars(builtins).get(path[0])) if path else None
        for part in path[1:]:
            kind = getattr(kind, part, None)
        if isinstance(kind, type) and not issubclass(kind, _STOOD_FOR):
            continue  # false for a recorded value as for the value itself
        if held in names and not holds(names[held]):
            continue
        taken = "type" in code_reads.globals or any(v is Recorded for v in variables.values())
        if not direct and (path and not isinstance(kind, type) or not taken):  # no variable is type(x)
            continue
        known = name is not None and name in variables
        compares = any(i.opname == "COMPARE_OP" for i in instructions_of(code))
        kinds = "b" if kind is bool and not compares else "biufc"  # bools are what a comparison gives
        if (
            type(variables[name]) is Recorded or is_local(variables[name])
            if known
            else any(v is Recorded or holds(v, None, kinds) for v in variables.values())
        ):
            return type_unknown((code.co_filename, line, code.co_name))
    return None


def compared(f: Callable, objects: Iterable) -> set[int]:
    """Ids of NumPy's functions, and of min and max, that f may compare with what it is given."""
    taken: set[int] = set()
    tests = False
    todo, visited = [f, *objects], set()
    while todo and len(visited) < _MOST:
        v = todo.pop()
        if id(v) in visited or type(v) in _CLOSED:
            continue
        visited.add(id(v))
        file = v.__code__.co_filename if isinstance(v, types.FunctionType) else None
        if isinstance(v, (list, tuple, set, frozenset, dict)):
            todo += list(v.values() if isinstance(v, dict) else v)[:_MOST]
        elif file is None or source_lines.is_own(file):
            todo += [held for _, _, held in around(v)]
            todo += [content(cell, "") for cell in (v.__closure__ or () if file else ())]
        elif not source_lines.is_foreign(file):
            todo += [*(v.__defaults__ or ()), *(v.__kwdefaults__ or {}).values()]
            codes = [v.__code__]
            for code in codes:
                codes += [c for c in code.co_consts if type(c) is types.CodeType]
            all_reads = list(map(reads, codes))
            for r in all_reads:  # may a test be one of a function of NumPy's?
                tested = [_at_end(v.__globals__.get(p[0]), p[1:]) if p else None for p in r.identity_tests]
                tests = tests or not (_TESTS.isdisjoint(r.names) and _TESTS.isdisjoint(r.globals))
                tests = tests or any(x is None or id(x) in INTERCEPTED for x in tested)
            for value, called in _values(v, all_reads):
                value = plain(value)
                if id(value) not in INTERCEPTED:
                    todo.append(value)
                elif not called and callable(value):  # np.c_ and np.r_ are indexed
                    taken.add(id(value))
    return taken if tests else set()


def _values(f: types.FunctionType, all_reads: Iterable[Reads]) -> Iterator[tuple[Any, bool]]:
    """(a value that the code takes from outside, whether it only calls that)."""
    free = {n: content(c, "") for n, c in zip(f.__code__.co_freevars, f.__closure__ or ())}
    for code_reads in all_reads:
        for names, held in ((code_reads.globals, f.__globals__), (code_reads.free, free)):
            for name, uses in names.items():
                value = held.get(name, vars(builtins).get(name))
                yield from ((_at_end(value, chain), called) for chain, called in uses)
        if any(name.split(".")[0] == "numpy" for name in code_reads.imports):
            for m in (np, np.linalg, np.fft):
                yield from ((vars(m).get(name), False) for name in code_reads.names)


def _at_end(value: Any, chain: Iterable[str]) -> Any:
    """What a chain of attributes leads to through modules."""
    for name in chain:
        value = vars(value).get(name) if isinstance(value, types.ModuleType) else value
    return value
