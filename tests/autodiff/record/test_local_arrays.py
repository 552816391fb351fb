"""Plain arrays that a function makes and fills with recorded values: np.zeros(n), and then y[i] = x[i]."""

import copy
import math
import pickle
import threading
import types

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.record.interception import INTERCEPTED
from gpt2.autodiff.record.local.arrays import Local, Promoted
from gpt2.autodiff.record.record import record
from tests.support.random import fills
from tests.support.reuse import is_reused

X = np.array([0.7, -1.2, 2.0])
G = np.array([1.0, 0.5, -0.25])
M = np.arange(6.0).reshape(2, 3)
HALVES = np.full(3, 0.5)
HELD = {"asarray": np.asarray}


def outputs(x):
    y = np.empty(3)
    np.multiply(x, x, out=y)
    z = np.ones_like(y)
    np.cumsum(y, out=z[::-1])
    return np.sum(z * np.arange(3.0) * y)


def views_made_before(x):
    """Rows, a transpose, a column, a reshape, every other element, a diagonal: all of one memory."""
    a = np.zeros((3, 3))
    p, q, _ = a
    t, column, flat, odd, diagonal = a.T, a[:, 1], a.reshape(-1), a[::-2], np.einsum("ii->i", a)
    p[...] = x
    q -= 2.0 * x
    column[2] = x[0] * x[1]
    flat[-1] += x[2]
    odd[0] *= 3.0
    t[0] += x
    diagonal *= x
    return np.sum(a * np.arange(9.0).reshape(3, 3)) + np.sum(t[1] ** 2 * odd[0])


def copies(x):
    a = np.eye(3)
    b, c, d = a.copy(), copy.deepcopy(a), np.array(a)
    a[0] = x
    b[1] = a[0] * 2.0
    c[:, 2] = b[1]
    d += a.astype(float)
    return np.sum(a) + np.sum(b * c) + np.sum(d**2)


def in_objects(x):
    f = types.SimpleNamespace(state=np.zeros(2), history=[])
    for v in x:
        f.state[1:] = f.state[:-1]
        f.state[0] = v * v
        f.history.append(f.state.copy())
    return np.sum(np.stack(f.history) * np.arange(1.0, 7.0).reshape(3, 2))


def write_into(target, value):
    target[...] = value


def through_helpers(x):
    parts = {"a": np.zeros(3), "b": [np.ones((2, 3))]}
    write_into(parts["a"], x * 3.0)
    write_into(parts["b"][0][1], parts["a"] * x)
    return np.sum(parts["b"][0] ** 2)


def complex_parts(x):
    z = np.zeros(3, complex)
    z.real[:] = x
    z.imag[1] = x[0] * 2.0
    z *= np.exp(1j * x[1])
    return np.sum(np.abs(z) ** 2 * G)


def other_ways(x):
    a, b, c, d = np.zeros((3, 3)), np.zeros(4), np.zeros((2, 3), order="F"), np.r_[0.0, 1.0, 2.0]
    np.fill_diagonal(a, x)
    np.put(b, [1, 3], x[:2])
    b.flat[2] = x[2]
    np.copyto(c, x)
    np.putmask(c, M > 3, x[0])
    d[1], a[0, 1] = x[1], x[2]
    a.T.fill(x[0]) if x.size > 3 else d.fill(x[0])
    return np.sum(a @ a) + np.sum(b**2) + np.sum(c * M) + np.sum(d * x)


def read_as_plain(x):
    """Before recorded values are written: an index, a size, a text, a number of Python, code in C."""
    y = np.arange(3.0)
    n, table = int(y[2]), {float(v): k for k, v in enumerate(y)}
    w = math.fsum(y) + len(y) + len(f"{y[1]:.3f} {y}") + table[2.0] + bytes(memoryview(y))[-1]
    y[n] = x[0] * w
    return np.sum(y * x)


@np.vectorize
def softplus(v, c=1.0):
    return v if v > 1.0 else np.log(1.0 + np.exp(v)) * c


def vectorized(x):
    """Numbers of Python, one after another, broadcast, with several results; the first gives the dtype."""
    one, two = np.vectorize(lambda a, b: (a * b, a - b * b), otypes=[float, float])(x[:, None], G)
    half = np.vectorize(lambda v: v * 0.5, cache=True)(M)
    half[0] = softplus(x, c=2.0)
    numbers = np.fromiter((v * v for v in x), float, count=2)
    return np.sum(one * two) + np.sum(half**2) + numbers @ x[1:]


def casts(x):
    """As NumPy casts: into integers, and of float32."""
    k, y = np.zeros(3, int), np.zeros(3, np.float32)
    k[:] = x * 2.0
    y[:] = x
    y += k
    return np.sum(y * x)


def an_index_where_a_type_is_named(x):
    """A function that may compare NumPy's functions gets these as they are, but not np.c_."""
    y = np.c_[HALVES, HALVES]
    y[...] = x.mean()
    return np.sum(y) * x.dtype.type(0.5)


def after_its_numbers_were_used(x):
    """A plain view of it that the recording has read is no reason to look at what it became."""
    y = np.zeros((2, 3))[1]
    z = y[::2].copy() + np.sum(y.ravel()[1:] - x[1:])
    y[...] = np.sum(x)
    return z[0] + y[0]


def written_to_another_once_it_is_plain_again(x):
    y, z = np.empty(3), np.zeros((2, 3))
    y[:] = x
    y.fill(0.5)
    z[0], z.flat[3:] = y, y
    return np.sum(z) * x[0]


def of_an_outer_recording(x):
    """A loss inside writes what the outer function made only with the outer function's values."""
    y = np.zeros(3)
    y[0] = x[0]

    def loss(v):
        z = np.zeros(3)
        z[1:] = v[1:] * y[0]
        z[0] = x[2]
        return np.sum(z * z)

    return np.sum(ad.grad(loss)(x * 2.0))


# Random programs have more of arrays that are made and filled: tests/support/random/fills.txt
FUNCTIONS = [outputs, views_made_before, copies, vectorized, in_objects, through_helpers, complex_parts,
             other_ways, read_as_plain, an_index_where_a_type_is_named, after_its_numbers_were_used,
             written_to_another_once_it_is_plain_again, of_an_outer_recording]  # fmt: skip


NOT_REUSED = (copies, read_as_plain, vectorized)  # deepcopy, memoryview, a branch


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_values_and_derivatives(f):
    """Values are NumPy's bits; first and second derivatives in both modes are those of differences."""
    assert ad.compile(f)(X) == f(X) and ad.value_and_grad(f)(X)[0] == f(X)
    ad.check_grads(f, (X,), order=2, modes=("fwd", "rev"))
    assert is_reused(f, X) or f in NOT_REUSED


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_under_the_transforms(f):
    xs = np.stack([X, X * 0.9])
    np.testing.assert_allclose(ad.vmap(f)(xs), [f(x) for x in xs], rtol=1e-12)
    slope = ad.jvp(f, (X,), (np.ones(3),))[1]
    assert ad.jvp(ad.checkpoint(f), (X,), (np.ones(3),))[1] == pytest.approx(slope, rel=1e-12)
    along = ad.grad(lambda x: np.sum(ad.grad(f)(x)))(X)
    np.testing.assert_allclose(along, ad.hvp(f, X, np.ones(3)), rtol=1e-10, atol=1e-12)


def test_casts():
    g = ad.grad(casts)(X)
    np.testing.assert_allclose(g, 2 * X + np.trunc(2 * X), rtol=1e-6)


def test_inside_loops_of_the_compiler():
    def scanned(x):
        def body(state, v):
            new = np.zeros(2)
            new[0], new[1] = state[1], v * state[0] + 1.0
            return new, new[1]

        return np.sum(ad.scan(body, np.ones(2), x)[1] ** 2)

    def repeated(x):
        def body(state):
            y = np.zeros(3)
            y[:] = state * 0.5
            return y

        return np.sum(ad.while_loop(lambda s: np.sum(s * s) > 0.1, body, x) ** 2)

    for f in (scanned, repeated):
        ad.check_grads(f, (X,), order=1, modes=("fwd", "rev"))


def test_a_change_outside_is_noticed():
    scope = {"np": np, "K": np.array([1.0, 2.0, 3.0])}
    exec("def f(x):\n    y = K.copy()\n    y[0] = x[0]\n    return np.sum(y * x)", scope)
    g = ad.grad(scope["f"])
    for change in (None, lambda: scope["K"].__setitem__(1, 7.0), lambda: scope.update(K=scope["K"] * 2)):
        if change:
            change()
        k = scope["K"]
        np.testing.assert_array_equal(g(X), [2 * X[0], k[1], k[2]])
        assert type(scope["K"]) is np.ndarray


def test_arrays_that_are_only_read_cost_nothing():
    """The program has the text of one whose arrays were made outside, with nothing of them recorded."""

    def made(x):
        w = np.linspace(0.0, 1.0, 3)
        w[1] = 5.0
        w *= 2.0
        return np.sum(np.sin(x) * w + w.max())

    w = np.array([0.0, 10.0, 2.0])
    nodes, others = (record(f, (X,)).graph.nodes for f in (made, lambda x: np.sum(np.sin(x) * w[:] + 10.0)))
    plain = ("const", "input")
    assert [n.op for n in nodes if n.op not in plain] == [n.op for n in others if n.op not in plain]
    assert all(type(n.attrs["value"]) is not Local for n in nodes if n.op == "const")


def seen_as(y):
    return (
        isinstance(y, np.ndarray) and y.__class__ is np.ndarray and type(y) in (np.ndarray, list),
        type(y.sum()),
        type(y.argmax()),
        type(y[0] if y.ndim == 1 else y[0, 0]),
        type(np.dot(y, y.T)),
        type(y @ y.T),
        type(np.linalg.norm(y)),
        repr(y),
        str(y),
        y.base is None,
        pickle.loads(pickle.dumps(y)).tolist(),
        np.asarray(y) is y,
        y[:1].base is y,
        len({y.max(): 1, float(y.min()): 2}),
        [type(v) is np.float64 for v in y.ravel()],
    )


@pytest.mark.parametrize("make", [
    lambda: np.zeros(3), lambda: np.ones((2, 3)) * G, lambda: G + 1.0, lambda: M * 1.0
])  # fmt: skip
def test_code_that_reads_it_sees_numpys_array(make):
    seen = []
    record(lambda x: seen.append(seen_as(make())) or x, (X,))
    assert seen == [seen_as(make())]


def test_what_they_are_afterwards():
    """An array that outlives its recording is a plain one; with recorded values in it, it is an error."""
    kept = []

    def f(x):
        a, b = np.zeros(2), np.zeros(2)
        b[:] = x[0]
        kept.extend((a, b))
        return x

    record(f, (X,))
    a, b = kept
    a[0] = 3.0
    assert (a + 1).tolist() == [4.0, 1.0] and type(a + 1) is np.ndarray and type(a.copy()) is np.ndarray
    for use in (lambda: b + 1, lambda: record(lambda x: x + b[0], (X,))):
        with pytest.raises(ad.AutodiffError, match="after that recording ended"):
            use()


@pytest.mark.parametrize("use", [
    lambda y: G.__setitem__(slice(None), y),
    lambda y: np.bincount([0, 1, 2], weights=np.ndarray.view(y, np.ndarray)),
    lambda y: math.sin(y[0]),
    lambda y: HELD["asarray"](y, float),
    lambda y: HELD["asarray"](y) * 2.0,
])  # fmt: skip
def test_code_in_c_that_would_lose_the_derivative_is_refused(use):
    def f(x):
        y = np.zeros(3)
        y[:] = x
        return use(y)

    before = G.copy()
    with pytest.raises((ad.AutodiffError, TypeError, ValueError)):
        record(f, (X,))
    assert np.array_equal(G, before)


def test_an_alias_that_was_not_seen_holds_nan():
    """Rather than the old numbers, whose derivative would be zero."""

    def f(x):
        y = np.zeros(3)
        alias = HELD["asarray"](y).view(np.ndarray)
        y[0] = x[0]
        return np.sum(np.array(alias) * x)

    assert np.isnan(ad.grad(f)(X)).any()


def test_rows_of_one_array():
    """A row may be copied over the others; code in C that exchanges rows would write views of itself."""

    def copied(x, target):
        target[...] = x
        np.copyto(target, target[-1:])
        target[0] = target[1] * 2.0
        return np.sum(target**2)

    x = np.stack([X, X + 1.0])
    for f in (lambda x: copied(x, np.zeros((2, 3))), lambda x: copied(x, x * 1.0)):
        np.testing.assert_allclose(ad.grad(f)(x), [np.zeros(3), 10.0 * x[1]], rtol=1e-12)

    def shuffled(x):
        y = np.zeros((9, 3))
        y[:2] = x
        np.random.default_rng(0).shuffle(y)
        return y

    with pytest.raises(ad.AutodiffError):
        record(shuffled, (x,))


def test_refused_by_name():
    inner = np.zeros(3)

    def closure(x):
        inner[0] = x[0]

    def outer(x):
        y = np.zeros(3)

        def loss(v):
            y[0] = v[0]
            return np.sum(y)

        return ad.grad(loss)(x)

    def thread(x):
        made = []
        t = threading.Thread(target=lambda: made.append(np.zeros(3)))
        t.start()
        t.join()
        made[0][0] = x[0]

    for f, words in ((closure, "the plain array 'inner'"), (outer, "encloses it"), (thread, "did not make")):
        with pytest.raises(ad.AutodiffError, match=words):
            record(f, (X,))
    assert not inner.any()


def test_every_function_that_makes_arrays_is_intercepted():
    """What NumPy's own signature says makes an array out of plain numbers."""
    names = "zeros ones empty full eye identity arange linspace logspace geomspace tri indices hanning kaiser"
    for name in names.split():
        assert id(getattr(np, name)) in INTERCEPTED, name
    assert issubclass(Promoted, Local)


@pytest.mark.parametrize("start", range(0, 120, 40))
def test_random_programs(start):
    for seed in range(start, start + 40):
        fills.check(fills.write(seed), api=seed % 4 == 0)


def test_random_programs_hold_what_they_are_made_for():
    programs = [str(fills.write(seed)) for seed in range(200)]
    for text in ("np.zeros", "G.copy()", "M.astype", "fill(", "Box(", "out=", ".flat[", "for k", "math.fsum"):
        assert sum(text in p for p in programs) >= 4, text
