"""One function for each construct of Python: recorded as often as the table says, and never out of date."""

import asyncio.tasks
import contextlib
import dataclasses
import dis
import enum
import functools
import io
import types
import typing
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.record import bytecode
from tests.support.constructs import CHANGE, CONSTRUCTS, SHADOWS

X = np.array([0.7, 1.6, 2.8]) + np.random.default_rng(0).uniform(-0.05, 0.05, 3)
U = np.random.default_rng(1).standard_normal(3)
HERE = {c.name: c for c in CONSTRUCTS if c.here}
# Instructions, and a construct that is misread without them
MISREAD = {
    "BINARY_SUBSCR": "an index",
    "CALL": "getattr",
    "COPY": "finally",
    "FORMAT_VALUE": "a format",
    "IMPORT_NAME": "import of a module that is changed",
    "IS_OP": "is a number",
    "LOAD_ATTR": "slots",
    "LOAD_COMMON_CONSTANT": "tuple of a generator",
    "LOAD_CONST": "getattr",
    "LOAD_DEREF": "decorator of the module",
    "LOAD_FAST_BORROW": "a condition of arithmetic",
    "LOAD_GLOBAL": "list comprehension",
    "LOAD_METHOD": "with nullcontext",
    "LOAD_SMALL_INT": "a condition of arithmetic",
    "MATCH_CLASS": "match a class",
    "MATCH_MAPPING": "match a mapping",
    "MATCH_SEQUENCE": "match a sequence",
    "PUSH_EXC_INFO": "except around NumPy",
}


def answer(function):
    """What a call at X gives: a value, or the kind of error. Those of the compiler are raised."""
    try:
        return function(X.copy())
    except ad.AutodiffError:
        raise
    except Exception as error:
        return type(error).__name__


def check_current(f, g, when):
    """g(X) has the value of f, and its derivative in the direction U."""
    plain, found = answer(f), answer(g)
    if isinstance(plain, str):
        assert found == plain, when
        return
    np.testing.assert_allclose(found[0], plain, rtol=1e-12, err_msg=when)
    h = 1e-6  # central differences err by h**2, and by rounding 1e-16 / h
    slope = (f(X + h * U) - f(X - h * U)) / (2 * h)
    np.testing.assert_allclose(found[1] @ U, slope, rtol=1e-7, atol=1e-7, err_msg=when)


def outcome(construct):
    """What the table says of it. Raises AssertionError where an answer is not that of the function itself."""
    names = construct.world()
    g = ad.value_and_grad(names["f"])
    try:
        check_current(names["f"], g, "first call")
    except ad.AutodiffError as error:
        return f"error: {error}"
    check_current(names["f"], g, "second call")
    why = ad.why_recorded(g)
    for change in (CHANGE, SHADOWS):
        exec(change, names)
        for turn in ("first", "second"):
            check_current(names["f"], g, f"{turn} call after a change")
    return "reused" if why is None else f"again: {why}"


def check(construct):
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        found = outcome(construct)
    kind, _, text = construct.expected.partition(": ")
    assert found.startswith(kind) and text in found, found


@pytest.mark.parametrize("name", HERE)
def test_a_construct(name):
    check(HERE[name])


def codes_of(code):
    return [code, *(inner for c in code.co_consts if isinstance(c, types.CodeType) for inner in codes_of(c))]


def instructions_of(construct):
    functions = [f for f in construct.world().values() if isinstance(f, types.FunctionType)]
    return {i.opname for f in functions for code in codes_of(f.__code__) for i in dis.get_instructions(code)}


@pytest.mark.parametrize("op", [op for op, name in MISREAD.items() if op in instructions_of(HERE[name])])
def test_a_misread_instruction_is_noticed(op, monkeypatch):
    """The test of a construct fails if this instruction is taken for one that does nothing."""
    construct = HERE[MISREAD[op]]
    respelled = bytecode._respelled

    def misread(instructions):
        return respelled([i._replace(opname="NOP") if i.opname == op else i for i in instructions])

    check(construct)
    monkeypatch.setattr(bytecode, "_respelled", misread)
    for cached in (bytecode.instructions_of, bytecode.reads, bytecode.returns_nothing, bytecode.catches):
        monkeypatch.setattr(cached, "known", bytecode.CodeMap())
    with pytest.raises((AssertionError, ad.AutodiffError)):
        check(construct)


def test_an_unknown_instruction_is_named(monkeypatch):
    monkeypatch.setattr(bytecode, "KNOWN", bytecode.KNOWN - {"BUILD_LIST"})
    g = ad.grad(lambda x: sum([x[0], x[1]]))
    for _ in range(2):
        assert list(g(X)) == [1.0, 1.0, 0.0]
    assert "its instruction BUILD_LIST is not known" in ad.why_recorded(g)


@pytest.mark.parametrize("module", [asyncio.tasks, contextlib, dataclasses, enum, functools, typing, zipfile])
def test_the_instructions_of_this_python_are_known(module):
    code = compile(Path(module.__file__).read_bytes(), module.__file__, "exec")
    assert {i.opname for c in codes_of(code) for i in bytecode.instructions_of(c)} <= bytecode.KNOWN
