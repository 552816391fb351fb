"""NumPy's functions that run as NumPy wrote them: the errors, names and programs that the user sees."""

import threading
import types

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.record import source_lines
from gpt2.autodiff.record.functions.as_written import cloned, stand_in
from gpt2.autodiff.record.record import record
from gpt2.autodiff.record.recorder import Recorder
from tests.autodiff.record.test_functions import NEWER, arguments
from tests.support.calls.numpy_calls import CALLS

X = np.arange(1.0, 13.0).reshape(3, 4)


@pytest.mark.parametrize("f, kind, message", [
    (lambda x: np.tensordot(x, x, axes=1), ad.AutodiffError, "np.tensordot: shape-mismatch for sum"),
    (lambda x: np.polyval(x[0], x[:, :2]) + np.append(x[0], x, axis=0), ad.AutodiffError, "np.append: all"),
    (lambda x: np.append(x, [float(x[0, 0])]), ad.AutodiffError, "float"),
    (lambda x: np.apply_along_axis(lambda row: np.dot(row, np.ones(3)), 1, x), ValueError, "np.dot"),
])  # fmt: skip
def test_an_error_has_the_users_line_and_the_function_called_there(f, kind, message):
    with pytest.raises(kind) as caught:
        ad.grad(lambda x: np.sum(f(x)))(X)
    line = f"test_as_written.py:{f.__code__.co_firstlineno}:"
    assert line in str(caught.value) and message in str(caught.value)


def test_only_the_result_has_the_name_of_the_variable():
    def f(x):
        table = np.tensordot(x, x, axes=0)
        return table

    graph = record(f, (X,)).graph
    assert graph.outputs[0].name == "table"
    assert [n.name for n in graph.nodes if n.name is not None and n.op != "input"] == ["table"]


def test_a_program_is_reused_and_notices_what_the_user_changes():
    scale = 2.0

    def f(x):
        return np.sum(np.append(x, x) * np.trapezoid(np.diff(x), axis=0)[0] * scale)

    g = ad.grad(f)
    g(X)
    recorded = Recorder.last
    g(X + 1.0)
    assert Recorder.last == recorded
    before, scale = g(X), 4.0
    np.testing.assert_allclose(g(X), 2.0 * before)


def test_nothing_of_numpys_is_changed():
    own = np.tensordot._implementation.__globals__
    before = dict(own)
    record(lambda x: np.tensordot(x, x, axes=0), (X,))
    assert own == before and type(own) is dict
    assert np.polynomial.polynomial.np is np


def test_another_thread_gets_plain_arrays():
    found = []

    def f(x):
        def other():
            found.append(
                (np.tensordot([1.0], [2.0], axes=0), np.polynomial.polynomial.polymul([1.0, 2.0], [3.0]))
            )

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return np.tensordot(x, x, axes=0)

    record(f, (X,))
    assert [type(a) for a in found[0]] == [np.ndarray] * 2


def test_clones_count_as_numpys():
    clone = cloned(np.tensordot._implementation)
    assert isinstance(clone, types.FunctionType) and source_lines.is_inside(clone.__code__.co_filename)
    assert stand_in(np).linalg is stand_in(np.linalg) and stand_in(np).pi is np.pi


@pytest.mark.filterwarnings("ignore:invalid", "ignore:divide")
def test_a_warning_of_numpys_comes_as_always():
    with pytest.warns(RuntimeWarning, match="Degrees of freedom"):
        ad.grad(lambda x: np.sum(np.nan_to_num(np.cov(x[:, :1]))))(X)


def test_copies_of_lists_are_recorded():
    y = ad.compile(lambda a, b: np.append([a, 1.0], b))(2.0, np.ones(2))
    np.testing.assert_array_equal(y, [2.0, 1.0, 1.0, 1.0])


def test_no_function_reads_the_layout_of_an_argument(monkeypatch):
    """A program that depends on that holds for fewer calls."""
    asked = []
    monkeypatch.setattr(Recorder, "note_query", lambda self: asked.append(self))
    for name in CALLS:
        if name.removeprefix("np.") in NEWER and not hasattr(np, name.removeprefix("np.")):
            continue
        with np.errstate(all="ignore"):
            for f, *shapes in CALLS[name]:
                record(f, arguments(shapes, np.float64))
        assert not asked, name
