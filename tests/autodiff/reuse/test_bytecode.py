"""What a code object may read, found in its bytecode."""

import dis
import functools

import numpy as np
import pytest

from gpt2.autodiff.record.bytecode import Use, catches_at, reads, returns_nothing
from gpt2.autodiff.record.record import record
from gpt2.autodiff.reuse.watch import watch

SCALE = 2.0


def test_reads():
    def outer():
        k, m = 1, 2

        def f(x, y=0):
            z = np.linalg.norm(x) + SCALE + k

            def inner(a):
                nonlocal z
                z = z + a + m + SCALE
                return z

            x.rate = getattr(y, "width")  # noqa: B009
            return inner(x) + sum(map(print, y))

        return f

    found, read, called = reads(outer().__code__), {Use((), called=False)}, {Use((), called=True)}
    assert found.globals == {
        "np": {Use(("linalg", "norm"), called=True)},
        "SCALE": read,
        "sum": called,
        "map": called,
        "print": read,
        "getattr": called,
    }
    assert found.free == {"k": read, "m": read}, "those of functions inside included"
    assert found.names == {"linalg", "norm", "rate", "width"} and found.trouble is None


@pytest.mark.parametrize(
    "f",
    [
        lambda x, name: getattr(x, name),
        lambda x: getattr(x, "a" + str(x), 1),
        lambda x: x.__dict__,
        lambda f: getattr(f, "__globals__"),  # noqa: B009
    ],
)
def test_attributes_that_are_not_known(f):
    assert reads(f.__code__).trouble


def bare(x):
    try:
        return x()
    except:  # noqa: E722
        return 1


def typed(x):
    try:
        return x()
    except ValueError:
        return 1


def typed_and_bare(x):
    try:
        return x()
    except KeyError:
        return 1
    except:  # noqa: E722
        return 2


def finally_returns(x):
    try:
        return x()
    finally:
        return 1  # noqa: B012


def finally_continues(x):
    for _ in range(2):
        try:
            x()
        finally:
            continue  # noqa: B012
    return 1


def grouped(x):
    try:
        return x()
    except* ValueError:
        pass


def caught_further_out(x):
    try:
        try:
            return x()
        finally:
            x.close()
    except KeyError:
        return 1


def caught_outside_of_a_with(x):
    try:
        with x:
            return x()
    except KeyError:
        return 1


ENDING = [bare, typed, typed_and_bare, finally_returns, finally_continues, grouped]


@pytest.mark.parametrize("f", [*ENDING, caught_further_out, caught_outside_of_a_with])
def test_handlers_that_end_an_exception(f):
    call = [i.offset for i in dis.get_instructions(f) if i.opname == "CALL" and not i.arg][0]
    assert reads(f.__code__).tries and catches_at(f.__code__, call)


def plain_finally(x):
    try:
        return x()
    finally:
        x.close()


def in_the_handler(x):
    try:
        y = 1
    except (KeyError, TypeError):
        return x()
    return x() + y


def raises_again(x):
    try:
        return x()
    finally:
        if x:
            x.close()


def with_statement(x):
    with x as y, x:
        return y


@pytest.mark.parametrize("f", [plain_finally, in_the_handler, raises_again, with_statement])
def test_handlers_that_let_it_through(f):
    calls = [i.offset for i in dis.get_instructions(f) if i.opname == "CALL"]
    assert not any(catches_at(f.__code__, call) for call in calls)


def test_what_an_exit_returns():
    assert returns_nothing((lambda: None).__code__) and returns_nothing((lambda: False).__code__)
    assert not returns_nothing((lambda: True).__code__) and not returns_nothing((lambda x: x).__code__)


def test_guards_of_plain_functions_are_short():
    """Checked at every call: the code of the function, np, and the attributes of np that it uses."""

    def f(x):
        return np.sum(np.exp(x))

    guard = watch(functools.partial(record, f, (np.ones(2),)), f)[1].guard()
    assert guard.holds() and guard.watched <= 6 and guard.text
