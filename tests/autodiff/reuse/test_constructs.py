"""One function for each construct of Python: it is recorded as often as the table says, and never out of date."""

import dis
import io
import sysconfig
import types
import warnings
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.record import bytecode
from tests.support.constructs import CHANGE, CONSTRUCTS, SHADOWS

X = np.array([0.7, 1.6, 2.8]) + np.random.default_rng(0).uniform(-0.05, 0.05, 3)
U = np.random.default_rng(1).standard_normal(3)
HERE = [c for c in CONSTRUCTS if c.here]
# Instructions without which something would be read wrongly, where this Python has them
MISREAD = """
    BINARY_SUBSCR CALL COPY FORMAT_SIMPLE FORMAT_VALUE IMPORT_NAME IS_OP LOAD_ATTR LOAD_COMMON_CONSTANT LOAD_CONST
    LOAD_DEREF LOAD_FAST LOAD_FAST_BORROW LOAD_GLOBAL LOAD_METHOD LOAD_SMALL_INT MATCH_CLASS MATCH_MAPPING
    MATCH_SEQUENCE PUSH_EXC_INFO RETURN_CONST STORE_FAST
""".split()


def answer(function):
    """What a call at X gives: a value, or the kind of error that it raises. Those of the compiler are raised."""
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
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        found = outcome(construct)
    kind, _, text = construct.expected.partition(": ")
    assert found.startswith(kind) and text in found, found


@pytest.mark.parametrize("construct", [pytest.param(c, id=c.name) for c in HERE])
def test_a_construct(construct):
    check(construct)


@pytest.mark.parametrize("op", [op for op in MISREAD if op in dis.opmap])
def test_a_misread_instruction_is_noticed(op, monkeypatch):
    """The table's tests fail if this instruction is taken for one that does nothing."""
    respelled = bytecode._respelled

    def misread(instructions):
        return respelled([i._replace(opname="NOP") if i.opname == op else i for i in instructions])

    monkeypatch.setattr(bytecode, "_respelled", misread)
    for cached in (bytecode.instructions_of, bytecode.reads, bytecode.returns_nothing, bytecode.catches):
        monkeypatch.setattr(cached, "known", bytecode.CodeMap())
    with pytest.raises(Exception):  # noqa: B017  an assertion of the table's, or any error of the compiler's
        for construct in HERE:
            check(construct)


def test_an_unknown_instruction_is_named(monkeypatch):
    monkeypatch.setattr(bytecode, "KNOWN", bytecode.KNOWN - {"BUILD_LIST"})
    g = ad.grad(lambda x: sum([x[0], x[1]]))
    for _ in range(2):
        assert list(g(X)) == [1.0, 1.0, 0.0]
    assert "its instruction BUILD_LIST is not known" in ad.why_recorded(g)


def test_the_instructions_of_this_python_are_known():
    """Those that occur in its standard library; a new Python may have more."""
    library = Path(sysconfig.get_paths()["stdlib"])
    codes = [compile(path.read_bytes(), str(path), "exec") for path in library.glob("*.py")]
    for code in codes:
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    found = {ins.opname for code in codes for ins in bytecode.instructions_of(code)}
    assert found - bytecode.KNOWN <= {"IMPORT_STAR", "PRINT_EXPR"}  # of modules, which are not recorded
