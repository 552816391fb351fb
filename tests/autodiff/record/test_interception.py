"""np.array and others of recorded values and lists of them; NumPy is as it was when nothing is recorded."""

import ast
import copy
import functools
import pickle
import threading

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.check.check_grads import check_grads
from gpt2.autodiff.errors import AutodiffError
from gpt2.autodiff.record import interception, recorder
from gpt2.autodiff.reuse.watch import watch

V = np.array([0.3, -0.7, 1.9, 1.2])
A = np.array([[0.3, -0.7, 1.9], [1.2, 0.4, -1.1]])

CALLS = {
    "asarray": lambda a: np.asarray(a) * a,
    "asarray_dtype": lambda a: np.asarray(a, dtype=complex) * 1j,
    "asanyarray": lambda a: np.asanyarray(a)[1:] * 2,
    "ascontiguousarray": lambda a: np.ascontiguousarray(a[::-1]) * a,
    "asfortranarray": lambda a: np.asfortranarray(np.outer(a, a)),
    "asarray_of_one": lambda a: np.asarray(a[0]) * a[1],
    "array": lambda a: np.array([a[0], 2.0, a[1] * a[2]]),
    "array_of_rows": lambda a: np.array([[a[0], 1], (2, a[1])]) @ np.array([a[2], a[3]]),
    "array_ndmin": lambda a: np.array(a, ndmin=2).T,
    "array_by_name": lambda a: np.array(object=[a[0], a[1]]),
    "array_of_more": lambda a: np.array([a, [1.0, 2.0, 3.0, 4.0]]),
    "comprehension": lambda a: np.array([np.sin(v) for v in a]),
    "copy": lambda a: np.copy(a) * a,
    "full": lambda a: np.full((2, 3), [a[0], a[1], 1.0]),
    "full_of_one": lambda a: np.full(3, a[0]),
    "sum": lambda a: np.sum([a[0], a[1]]),
    "sum_by_name": lambda a: np.sum(a=[a[0], a[1]]),
    "mean": lambda a: np.mean([a[0], a[1] * 2], axis=0),
    "max": lambda a: np.max([a[0], a[1]]),
    "dot": lambda a: np.dot([a[0], a[1]], [3.0, 4.0]),
    "outer": lambda a: np.outer([a[0], a[1]], [a[2], 1.0]),
    "cross": lambda a: np.cross([a[0], a[1], a[2]], [1.0, 2.0, 3.0]),
    "einsum": lambda a: np.einsum("i,j->ij", [a[0], a[1]], [a[2], a[3]]),
    "stack": lambda a: np.stack([[a[0], a[1]], [a[2], 1.0]]),
    "concatenate": lambda a: np.concatenate([[a[0]], a[1:], [2.0]]),
    "hstack": lambda a: np.hstack(([a[0], a[1]], 3.0)),
    "select": lambda a: np.select([np.array([True, False])], [[a[0], a[1]]], a[2]),
    "where": lambda a: np.where(np.array([True, False]), [a[0], a[1]], [a[2], 1.0]),
    "interp": lambda a: np.interp([0.5, 1.5], [0.0, 1.0, 2.0], [a[0], a[1], a[2]]),
    "pad": lambda a: np.pad([a[0], a[1]], 1),
    "pad_by": lambda a: np.pad([a[0], 1.0], 1, constant_values=a[1]),
    "pad_plain": lambda a: np.pad(array=np.ones(3), pad_width=1, constant_values=a[1]),
    "solve": lambda a: np.linalg.solve([[a[0], 1.0], [a[1], a[2]]], [1.0, a[3]]),
    "fft": lambda a: np.fft.fft([a[0], a[1], a[2]]),
    "emath": lambda a: np.emath.sqrt([a[0], a[1]]),
    "r_": lambda a: np.r_[a[0], a[1:3], 5.0],
    "c_": lambda a: np.c_[a, a * 2],
    "arange": lambda a: np.arange(a[1], a[2], a[0]),
    "arange_of_one": lambda a: np.arange(a[2] + 1.5) * a,
}  # fmt: skip


@pytest.mark.parametrize("f", CALLS.values(), ids=CALLS)
def test_as_in_numpy_and_with_a_derivative(f):
    found, expected = ad.compile(f)(V), f(V)
    np.testing.assert_array_equal(found, expected)
    assert np.asarray(found).dtype == np.asarray(expected).dtype
    check_grads(f, (V,), order=2)


MADE = {
    "asarray": lambda v: np.asarray(v),
    "array": lambda v: np.array(v),
    "list": lambda v: np.array([v, v]),
    "ndmin": lambda v: np.array(v, ndmin=3),
    "column": lambda v: np.array([[v], [v]], dtype=np.float32),
    "row": lambda v: np.array([[v, v * 2]]),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
@pytest.mark.parametrize("x", [1.5, 3, np.float32(0.1), np.int8(4), V, V.astype(np.float32), np.array(2.0)])
def test_dtypes_and_shapes_are_numpys(make, x):
    seen = []

    def f(v):
        made = make(v)
        seen.append((made.dtype, made.shape, isinstance(made, np.ndarray)))
        return made

    found, expected = ad.compile(f)(x), f(x)
    assert len(set(seen)) == 1
    assert np.shape(found) == expected.shape and np.asarray(found).dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_an_array_is_its_own_and_a_copy_is_not():
    def f(x):
        y = np.asarray(x * 1)
        z, w = np.asarray(y), np.array(y)
        z[0], w[1] = 5.0, 7.0
        return y * 1, w

    np.testing.assert_array_equal(ad.compile(f)(V), f(V))


def test_integers_may_leave():
    f = ad.compile(lambda x, n: (x[: n[0]] * np.arange(n[0])).sum() + np.arange(n[1]).size)
    for n in ([3, 2], [2, 5]):
        assert f(V, np.array(n)) == (V[: n[0]] * np.arange(n[0])).sum() + n[1]
    assert ad.compile(lambda n: np.full((n, 2), 0.5) * 1)(3).shape == (3, 2)
    assert ad.compile(lambda x, n: np.full((n, 2), x))(0.5, 3).shape == (3, 2)


@pytest.mark.parametrize("f, errors", [
    (lambda x: np.array([x, [1.0]]), ValueError),
    (lambda x: np.array([x[0], "a"]), (TypeError, AutodiffError)),
    (lambda x: np.array([x[0], x[1]], copy=False), ValueError),
])  # fmt: skip
def test_what_numpy_refuses_is_refused(f, errors):
    with pytest.raises(errors):
        ad.compile(f)(V)


def test_numpy_is_as_it_was():
    names = {(m, k): v for m in (np, np.linalg, np.fft) for k, v in vars(m).items()}
    inside = []

    def f(x):
        inside.append(np.sum)
        if x[0] > 100:
            raise KeyError("mine")
        return ad.grad(lambda y: np.sum(np.array([y[0], y[1]])))(x).sum() + np.sum(x)

    ad.compile(f)(V)
    with pytest.raises(KeyError):
        ad.compile(f)(V + 1000)
    assert all(vars(m)[k] is v for (m, k), v in names.items())
    assert not interception.running
    seen = inside[0]
    assert seen is not np.sum and seen == np.sum and hash(seen) == hash(np.sum)
    assert seen(V) == V.sum() and seen.__name__ == "sum"
    assert pickle.loads(pickle.dumps(seen)) is np.sum and copy.deepcopy(seen) is np.sum


def test_names_replaced_by_other_code_are_left(monkeypatch):
    own, mine = np.sum, lambda x: own(x) * 3
    monkeypatch.setattr(np, "sum", mine)
    np.testing.assert_array_equal(ad.grad(lambda x: np.sum(x))(V), np.full(4, 3.0))
    assert np.sum is mine

    def f(x):
        np.sum = own
        return np.sum(x)

    ad.compile(f)(V)
    assert np.sum is own


def test_other_threads_call_numpy():
    inside, done = threading.Event(), threading.Event()
    found = []

    def f(x):
        inside.set()
        assert done.wait(10)
        return np.sum(np.array([x[0], x[1]]))

    def other():
        assert inside.wait(10)
        found.append((np.array([1.0, 2.0]), np.sum([1.0, 2.0]), np.sum))
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    np.testing.assert_array_equal(ad.grad(f)(V), [1, 1, 0, 0])
    thread.join()
    array, total, function = found[0]
    assert type(array) is np.ndarray and total == 3.0 and type(function) is interception.Intercepted


def test_a_program_is_reused_inside_of_a_recording_too(monkeypatch):
    inner = ad.grad(lambda y: np.sum(np.dot(y, y)))
    outer = ad.grad(lambda x: np.dot(inner(x), np.asarray(inner(x * 2))))
    for x in (V, V + 1):
        np.testing.assert_allclose(outer(x), 16 * x)
        assert ad.why_recorded(inner) is None and ad.why_recorded(outer) is None

    g = ad.grad(lambda x: np.linalg.norm(x))
    g(V)
    with monkeypatch.context() as replaced:
        replaced.setattr(np.linalg, "norm", lambda x: np.sum(x) * 2)
        np.testing.assert_array_equal(g(V), np.full(4, 2.0))
    np.testing.assert_allclose(g(V), V / np.linalg.norm(V))


def test_a_guard_holds_while_something_is_recorded():
    def f(x):
        return np.sum(x) + np.linalg.norm(x) + module.mean(x)

    module = np
    guard = watch(functools.partial(f, V), f)[1].guard()
    assert guard.trouble is None and guard.holds()
    interception.begin("a recording")
    try:
        assert type(np.sum) is interception.Intercepted and guard.holds()
    finally:
        interception.end("a recording")


def test_numbers_in_lists_are_not_looked_at():
    g = ad.grad(lambda x: np.array([x[0], x[1] * x[2]]).sum() + np.sum([x[3], 1.0]))
    g(V)
    assert ad.why_recorded(g) is None
    np.testing.assert_allclose(g(V * 2), [1, V[2] * 2, V[1] * 2, 1])


def test_getattr_with_a_default_gives_the_object_itself():
    class Settings:
        log: list = []
        array = np.ones(3)
        operator = ast.parse("-1").body[0].value.op  # its class has _fields, as a named tuple's

    def f(x):
        assert getattr(Settings, "array", None) is Settings.array
        assert getattr(Settings, "operator", None) is Settings.operator
        getattr(Settings, "log", None).append(1)
        return x * 2.0

    assert ad.grad(f)(1.0) == 2.0 and Settings.log == [1]


def test_a_recording_without_end_says_what_to_write_instead(monkeypatch):
    monkeypatch.setattr(recorder, "LONG", 50)

    def f(x):
        for _ in range(100):
            x = x * 0.5
        return x

    with pytest.warns(UserWarning, match=r"test_interception.py:\d+: f has recorded 50 .* ad.scan") as found:
        ad.grad(f)(1.0)
    assert len(found) == 1
