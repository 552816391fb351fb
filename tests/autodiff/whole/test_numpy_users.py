"""What a user of NumPy does without thinking of the compiler."""

import inspect
import multiprocessing
import pickle

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.errors import AutodiffError, UnsupportedError, WriteError
from tests.support.trees import assert_close

X = np.linspace(0.1, 1.0, 4)
M = np.linspace(0.0, 1.0, 12).reshape(3, 4)


def test_types_are_asked_as_outside():
    def f(x, k):
        assert isinstance(x, np.ndarray) and not isinstance(x, float) and not np.isscalar(x)
        assert isinstance(k, float) and np.isscalar(k) and not isinstance(k, np.ndarray)
        assert isinstance(x[0], np.float64) and isinstance(x[0], np.generic)
        assert isinstance(x * k, np.ndarray) and isinstance(k * 2, float)
        return (x * k).sum() if isinstance(x, np.ndarray) else k

    np.testing.assert_array_equal(ad.grad(f, (0, 1))(X, 0.5)[0], np.full(4, 0.5))


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("function", [np.convolve, np.correlate])
def test_the_longer_argument_second(function, mode):
    a, b = np.random.default_rng(0).normal(size=(2, 7))
    for x, y in ((a[:3], b), (a[:4], b[:6]), (a, b[:3])):
        assert ad.compile(lambda x, y: function(x, y, mode))(x, y).shape == function(x, y, mode).shape
        ad.check_grads(lambda x, y: function(x, y, mode), (x, y), order=2)


def test_a_shape_is_an_argument():
    def f(a, shape):
        return (a.reshape(shape) * np.arange(12.0).reshape(shape)).cumsum(axis=0)[-1].sum()

    for shape in (np.array([4, 3]), np.array([2, 6]), np.array([4, 3])):
        np.testing.assert_array_equal(ad.grad(f)(M, shape), np.arange(12.0).reshape(3, 4))
        assert ad.compile(lambda a, s: np.reshape(a, s))(M, shape).shape == tuple(shape)


@pytest.mark.parametrize("order", ["K", "A"])
def test_what_depends_on_the_layout_is_refused(order):
    with pytest.raises(UnsupportedError, match="layout in memory"):
        ad.grad(lambda a: (a.T.ravel(order) * np.arange(12)).sum())(M)


@pytest.mark.parametrize(
    "package, options", [("torch", {}), ("torch", {"requires_grad": True}), ("jax.numpy", {})]
)
def test_arrays_of_others_are_named(package, options):
    ones = pytest.importorskip(package).ones(3, **options)
    with pytest.raises(AutodiffError, match=r"ad\.as_numpy") as error:
        ad.grad(lambda a: (a**2).sum())(ones)
    assert "\n" not in str(error.value)


def set_item(d):
    d["k"] = np.sin(d["x"])
    return d["x"].sum()


def append(values):
    values.append(np.sin(values[0]))
    return values[0].sum()


def replace(values):
    values[0] = values[0] * 2.0
    return values[0].sum()


def delete(d):
    del d["x"]
    return d["y"].sum()


@pytest.mark.parametrize(
    "f, argument", [(set_item, {"x": X}), (append, [X]), (replace, [X]), (delete, {"x": X, "y": X})]
)
@pytest.mark.parametrize("transform", [ad.compile, ad.grad])
def test_containers_that_change_are_refused_with_the_line(f, argument, transform):
    with pytest.raises(WriteError, match="changes") as error:
        transform(f)(argument)
    assert f"test_numpy_users.py:{f.__code__.co_firstlineno + 1}:" in str(error.value)


def test_a_local_container_may_change():
    def f(d):
        d = dict(d)
        d["k"] = np.sin(d["x"])
        d["x"] *= 2.0
        return d["k"].sum()

    np.testing.assert_allclose(ad.compile(f)({"x": X.copy()}), np.sin(X).sum())


def test_a_rule_that_is_not_linear_is_not_transposed():
    @ad.custom_vjp
    def clipped(x):
        return x * 1.0

    @clipped.defvjp
    def rule(dout, out, x):
        return np.clip(dout, -1.0, 1.0)

    np.testing.assert_array_equal(ad.grad(lambda x: (clipped(x) * 5.0).sum())(X), np.ones(4))
    with pytest.raises(AutodiffError, match="not linear in dout"):
        ad.jvp(clipped, (X,), (X,))

    @ad.custom_jvp
    def f(x):
        return x * 1.0

    f.defjvp(lambda primals, tangents: (primals[0] * 1.0, ad.scan(squared, *tangents, length=2)[0]))
    with pytest.raises(AutodiffError, match="not linear in tangents"):
        ad.grad(f)(1.5)


def squared(c, _):
    return c * c, None


LOOPS = [
    (lambda x: ad.scan(squared, x, length=2)[0], 13.5),
    (lambda x: ad.scan(lambda c, s: (c * s + x, c * x), x, np.array([1.0, 2.0, 3.0]))[1].sum(), 24.0),
    (lambda x: ad.scan(squared, x, length=4, every=3)[0], 16 * 1.5**15),
    (lambda x: ad.while_loop(lambda c: c < 100.0, lambda c: c * c, x), 16 * 1.5**15),
    (lambda x: ad.parallel_map(lambda s: s * s * x, np.ones(3) * x).sum(), 3 * 3 * 1.5**2),
]


@pytest.mark.parametrize("f, slope", LOOPS)
def test_the_other_mode_of_a_rule_that_differentiates_a_loop(f, slope):
    forwards, backwards = ad.custom_jvp(f), ad.custom_vjp(f)
    forwards.defjvp(lambda primals, tangents: ad.jvp(f, primals, tangents))
    backwards.defvjp(lambda dout, out, x: ad.vjp(f, x)[1](dout))
    second = pytest.approx(float(ad.hessian(f)(1.5)), rel=1e-12)
    for g in (forwards, backwards):
        for first in (ad.grad(g)(1.5), ad.jvp(g, (1.5,), (1.0,))[1]):
            assert first == pytest.approx(slope, rel=1e-12)
        assert ad.hessian(g)(1.5) == second and ad.grad(ad.grad(g))(1.5) == second


def test_empty_scan_and_map():
    def f(x):
        last, ys = ad.scan(lambda c, t: (c * t, c + t), x, np.zeros(0))
        assert ys.shape == (0,)
        return last * 3.0

    assert ad.grad(f)(0.5) == 3.0
    made = ad.compile(lambda x: ad.parallel_map(lambda t: np.stack([t, t]), x))(np.zeros((0, 3)))
    assert made.shape == (0, 2, 3)
    np.testing.assert_array_equal(
        ad.grad(lambda x: ad.parallel_map(lambda t: t * 2, x).sum())(np.zeros((0, 3))), np.zeros((0, 3))
    )


def test_weights_in_bins_that_move():
    """The bin of each value is read, so other bins need another program."""

    def f(w, a):
        return (np.histogram(a, bins=[0.0, 0.5, 1.0], weights=w)[0] * np.array([1.0, 10.0])).sum()

    g = ad.grad(f)
    np.testing.assert_array_equal(g(X, np.array([0.1, 0.9, 0.5, 2.0])), [1.0, 10.0, 10.0, 0.0])
    np.testing.assert_array_equal(g(X, np.array([0.9, 0.1, 0.5, 1.0])), [10.0, 1.0, 10.0, 10.0])


def loss(x, scale=2.0):
    """A loss."""
    return (np.sin(x) * scale).sum()


slope = ad.grad(loss)


@ad.value_and_grad
def decorated(x):
    return (x * x).sum()


class Model:
    @ad.compile
    def three(self, x):
        return (x * 3.0).sum()


@pytest.mark.parametrize(
    "g", [slope, decorated, ad.jacobian(np.sin), ad.hessian(loss), ad.value_and_grad(loss), ad.compile(loss)]
)
def test_derived_functions_are_pickled(g):
    assert_close(pickle.loads(pickle.dumps(g))(X), g(X), rtol=0.0)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_derived_functions_work_in_other_processes(start):
    points = [X, X + 1.0, X + 2.0]
    with multiprocessing.get_context(start).Pool(1) as pool:
        for a, b in zip(pool.map(slope, points), points, strict=True):
            np.testing.assert_allclose(a, 2.0 * np.cos(b), rtol=1e-15)


def test_derived_functions_look_like_functions():
    assert slope.__name__ == "loss_grad" and slope.__wrapped__ is loss and "A loss." in slope.__doc__
    assert list(inspect.signature(slope).parameters) == ["x", "scale"]
    assert Model().three(X) == pytest.approx((X * 3.0).sum())


class Foreign:
    """Like an array of another library: it has `__array__`, and methods that take other arguments."""

    def __init__(self, x):
        self.x = x

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.x, dtype)

    def sum(self):
        return self.x.sum()


@pytest.mark.parametrize("derive", [ad.grad, ad.value_and_grad, ad.jacobian, ad.hessian])
def test_arrays_of_another_library_are_named_whatever_numpy_says_of_them(derive):
    """np.sum(x) fails within NumPy, whose message does not help."""
    ones = Foreign(np.ones(2))
    for given, text in ((ones, "x is a "), ({"a": ones}, "x is a dict with a ")):
        f = derive(lambda x: np.sum(x["a"] if isinstance(x, dict) else x))
        with pytest.raises(ad.AutodiffError, match=text + r"\w+\.Foreign.*ad.as_numpy"):
            f(given)
    with pytest.raises(ad.AutodiffError, match=r"a is a \w+\.Foreign"):
        ad.hvp(np.sum, ones, np.ones(2))


def test_an_object_that_stands_for_a_number_is_an_index():
    class Second:
        def __index__(self):
            return 1

    x = np.arange(6.0).reshape(2, 3)
    for f in (lambda x: np.sum(x[Second()] ** 2), lambda x: np.sum(x[:, Second()] ** 2)):
        np.testing.assert_array_equal(ad.grad(f)(x), ad.grad(lambda x, f=f: f(x))(x))
        assert ad.compile(f)(x) == f(x)
