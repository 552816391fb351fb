"""Writing in place gives recorded values what it gives plain arrays, and the graph computes the same."""

import itertools

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.check.check_grads import check_grads
from gpt2.autodiff.errors import AutodiffError, WriteError
from gpt2.autodiff.ops.interpret import check, evaluate_graph
from gpt2.autodiff.record.record import record
from gpt2.autodiff.tree import flatten


def fresh():
    """Two matrices, a vector, and a matrix whose rows lie apart in memory."""
    rng = np.random.default_rng(0)
    x, y, v, wide = (rng.normal(size=s) for s in ((4, 6), (4, 6), 6, (4, 12)))
    return x, y, v, wide[:, ::2]


def copied(x, y, v, s):
    """None of these writes may reach the arguments."""
    a = x.copy()
    a += 1
    b = x[[0, 1]]
    b[0] = 0
    c = x.flatten()
    c[:] = 1
    d = x + 0
    d[...] = 5
    e = np.array(x, like=x)
    e[0] = 3
    f = x.astype(float)
    f[1] = 4
    g = x[x > 0]
    g[:2] = 9
    return a, b, c, d, e, f, g, x * 1


def views(x, y, v, s):
    row = x[1]
    t = x.T
    flat = x.reshape(-1)
    part = x[1:3, 2:5].T
    turned = x[::-1, ::-1]
    new = x[:, None, :]
    row[2] = 10.0
    t[0] = 20.0
    flat[5] = 30.0
    part[...] = v[:3, None]
    turned[0, 0] = 40.0
    new[2, 0] += 1.0
    np.swapaxes(x, 0, 1)[3] = -1.0
    np.moveaxis(x, 0, 1)[4] *= 2.0
    np.squeeze(new)[0, 0] = 8.0
    np.expand_dims(x, 0)[0, 3, 3] = 9.0
    np.ravel(x)[7] = 11.0
    np.split(x, 2)[1][0, 0] = 12.0
    x.reshape(2, 2, 6)[1, 1, 1] = 13.0
    x.reshape(2, 2, 6).transpose(1, 2, 0)[1, :2] = y[0, :4].reshape(2, 2)
    return row * 1, t * 1, flat * 1, part * 1, turned * 1, new * 1, x * y


def reshaped_copy(x, y, v, s):
    """s has gaps, so reshape copies; x.T too."""
    a = s.reshape(-1)
    a[0] = 100.0
    b = x.T.reshape(-1)
    b[0] = 100.0
    c = x.T.ravel()
    c[1] = 50.0
    d = s.ravel()
    d[2] = 1.0
    return a, b, c, d, x * 1, s * 1


def strided_argument(x, y, v, s):
    row = s[1]
    s[0] = 1.0
    row += 2.0
    s.T[3] = v[:4]
    return row * 1


def ufunc_out(x, y, v, s):
    np.add(x, y, out=x)
    np.multiply(x, v, x)
    np.exp(y, out=y, where=x > 0)
    np.sqrt(abs(v), out=v)
    np.negative(x[0], out=x[1])
    np.maximum(x, 0.0, out=y, where=np.arange(6) % 2 == 0)
    np.matmul(x, x.T, out=y[:, :4])
    np.less(x, y, out=s)
    whole, rest = np.zeros_like(x), np.zeros_like(x)
    np.divmod(x, 0.5, out=(whole, rest))
    np.modf(x, out=(rest, None))
    return whole, rest


def function_out(x, y, v, s):
    np.sum(x, axis=0, out=v)
    np.cumsum(x, axis=1, out=y)
    np.clip(x, -0.5, 0.5, out=x)
    square = np.zeros((4, 4), like=x)
    np.dot(x, x.T, out=square)
    s[:, :4] = square
    np.concatenate([x[:2], y[:2]], out=s)
    x.mean(axis=0, out=v)
    np.take(x, [0, 1, 2, 3], axis=0, out=y)
    np.stack([v, v, v, v], out=x)
    return v * 2


def at(x, y, v, s):
    np.add.at(x, [0, 1, 0], 1.0)
    np.add.at(x, (slice(None), [0, 0, 2]), y[:, :3])
    np.subtract.at(v, [1, 1], v[:2])
    np.multiply.at(v, [2, 2, 3], 2.0)
    np.maximum.at(y, ([0, 1, 0], [1, 2, 1]), np.array([5.0, 6.0, 4.0]))
    np.negative.at(s, [0, 2])
    return x.sum()


def array_functions(x, y, v, s):
    np.copyto(x, v)
    np.copyto(y, 0.0, where=y > 0)
    np.put(x, [0, 7], [1.0, 2.0])
    np.place(y, y < -1, v[:2])
    np.putmask(y, y == 0.0, x)
    np.fill_diagonal(x, 3.0)
    np.put_along_axis(s, np.array([[0], [1], [2], [0]]), 9.0, axis=1)
    v.sort()
    v[::-1].sort()
    y[0].fill(4.0)
    x.partition(2, axis=1)
    return np.sort(x, axis=1)


def advanced(x, y, v, s):
    x[[0, 2, 0]] = y[:3]  # the last write stands
    x[:, [1, 3]] = 0.0
    x[x > 0] = v[0]
    y[y < 0] = y[y < 0] * 2
    y[np.array([True, False, True, False])] = v
    s[np.ix_([0, 2], [1, 3])] += 1.0
    x[1:3, 2:4][[True, False]] = 6.0
    x.T[[0, 1], [2, 3]] = 8.0
    x.flat[3] = 1.5
    x.flat[10:12] = [2.5, 3.5]
    y.flat = v
    return x * 1


def dtypes(x, y, v, s):
    i = np.zeros_like(x, dtype=int)
    i[...] = x * 10
    f = np.zeros_like(x, dtype=np.float32)
    f += y
    f[0] = v
    c = np.zeros_like(x, dtype=complex)
    c.real = x
    c.imag[1:] = y[1:]
    c[0] *= 1j
    return i, f, c


def complex_parts(x, y, v, s):
    c = x + 1j * y
    re, im = c.real, c.imag
    re[0] = 5.0
    im *= 2.0
    c.T.imag[1] = 0.0
    return re * 1, im * 1, c


def aliases(x, y, v, s):
    a = x[...]
    a += 1
    b = np.asarray(x, like=x)
    b += 1
    c = x.view()
    c += 1
    d = np.atleast_2d(x)
    d += 1
    e = x.real
    e += 1
    f = np.diagonal(x)
    x[1, 1] = 50.0
    g = np.broadcast_to(v, (3, 6))
    v[0] = 60.0
    return x, f * 1, g * 1


def exchanged_rows(x, y, v, s):
    """As in NumPy, one row twice."""
    x[0], x[1] = x[1], x[0]
    return x * 1


def dynamic_row(x, y, v, s):
    i = np.argmax(x[:, 0])
    x[i] += 1.0
    row = x[i]
    row *= 2.0
    x[i, 1:3] = 7.0
    return row * 1


# Random programs have more of plain views, slices and loops: tests/support/random/programs.txt
PROGRAMS = [copied, views, reshaped_copy, strided_argument, ufunc_out, function_out, at, array_functions,
            advanced, dtypes, complex_parts, aliases, exchanged_rows, dynamic_row]  # fmt: skip


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_same_as_numpy(f):
    plain_args, args = fresh(), fresh()
    plain = f(*plain_args)  # np.zeros(..., like=x) makes plain arrays here
    rec = record(f, args)
    check(rec.graph)
    for a, b in zip(args, fresh()):
        np.testing.assert_array_equal(a, b)  # the caller's arrays are as they were
    changed = [i for i, (a, b) in enumerate(zip(plain_args, args)) if not np.array_equal(a, b)]
    assert set(changed) <= set(rec.written)
    expected = [*flatten(plain)[0], *(plain_args[i] for i in rec.written)]
    recorded = [*flatten(rec.results)[0], *rec.contents]
    again = evaluate_graph(rec.graph, rec.operands(args))
    for e, r, g, node in zip(expected, recorded, again, rec.graph.outputs, strict=True):
        assert type(e) is type(r) and e.dtype == r.dtype == node.dtype
        np.testing.assert_array_equal(r, e)
        np.testing.assert_allclose(g, e, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("f", [f for f in PROGRAMS if f is not dtypes], ids=lambda f: f.__name__)
def test_derivatives(f):
    """Of the results and of what was written to; `dtypes` computes in single precision and integers."""

    def of_copies(*args):
        args = [a * 1.0 for a in args]
        return [x for x in flatten(f(*args))[0] if x.dtype.kind in "fc"], args

    check_grads(of_copies, [np.abs(a) * 0.37 + 0.21 for a in fresh()], order=1)


def error_of(f, *args, kind=AutodiffError):
    with pytest.raises(kind) as caught:
        record(f, args)
    text = str(caught.value)
    assert "test_inplace.py:" in text.split(" ")[0]
    return text


X = np.arange(3.0)
FROZEN = np.arange(3.0)
FROZEN.flags.writeable = False


@pytest.mark.parametrize("array, write", [
    *itertools.product(["the plain array 'plain'"], [
        "plain[0] = x[0]", "plain[:2] = x[:2]", "plain[[0, 1]] = x[:2]", "plain[plain == 0] = x",
        "plain.flat[0] = x[0]", "plain.fill(x[0])", "np.add(x, 1, out=plain)", "np.add.at(plain, [0], x[0])",
        "np.copyto(plain, x)",
    ]),
    ("the plain array 'out'", "out = plain; out += x"),
    ("a plain array", "np.sum(x, out=plain[:1].reshape(()))"),
    ("a plain array", "plain.reshape(1, 3)[0] = x"),
])  # fmt: skip
def test_writing_into_a_plain_array_is_an_error(array, write):
    plain = np.zeros(3)
    code = f"def made(plain):\n def f(x):\n  {write}\n return f"
    exec(compile(code, __file__, "exec"), names := {"np": np})
    error = error_of(names["made"](plain), X, kind=WriteError)
    assert f"{array}, which the function did not make" in error
    assert np.array_equal(plain, np.zeros(3))


def test_arguments_that_share_memory():
    def f(x, y):
        x[0] = 1.0
        return x + y

    assert "shares memory" in error_of(f, X, X[1:], kind=WriteError)
    assert record(lambda x, y: x + y, (X, X)).written == []


@pytest.mark.parametrize("f, x, error, words", [
    (lambda x: x.__setitem__(0, 1.0), FROZEN, ValueError, "read-only"),
    (lambda x: np.broadcast_to(x, (2, 3)).fill(1.0), X, ValueError, "read-only"),
    (lambda x: x.sum().__setitem__((), 1.0), X, TypeError, "item assignment"),
    (lambda x: x.__setitem__(slice(2), x), X, ValueError, "broadcast"),
    (lambda x: np.zeros_like(x, dtype=int).__iadd__(x), X, TypeError, "same_kind"),
    (lambda x: np.add(x, np.ones((2, 3)), out=x), X, ValueError, "broadcast"),
    (lambda x: x.__setitem__(5, 1.0), X, IndexError, "out of bounds"),
])  # fmt: skip
def test_errors_are_numpys(f, x, error, words):
    with pytest.raises(error, match=words):
        record(f, (x,))


def test_update_prints_short():
    def f(x, y):
        x[1:] = y[:2] * 2
        return x

    assert str(record(f, (X, X + 1)).graph).split("\n") == [
        "f(x: f64[3], y: f64[3])",
        "  t1: f64[2] = slice(y, index=((0,2,1),))",
        "  t3: f64[2] = multiply(t1, 2.0)",
        "  x_2: f64[3] = update(x, t3, index=((1,3,1),))",
        "  return x_2, x_2",
    ]


def test_each_assignment_is_one_update():
    def f(out, x):
        for i in range(3):
            out[i] = x[i] * x[i]
        out[1:] += 1.0
        out[1:][:1] *= x[1]  # a part of out

    rec = record(f, (np.zeros(3), X))
    assert rec.written == [0] and rec.n_results == 0
    assert sum(n.op == "update" for n in rec.graph.nodes) == 5
    np.testing.assert_array_equal(evaluate_graph(rec.graph, [np.ones(3), X])[0], [0.0, 2.0, 5.0])


@pytest.mark.parametrize("key", [np.array([0, 3]), [1, 2, 5], slice(1, None, 2), 4, slice(None),
                                 np.array([True, False] * 3)])  # fmt: skip
def test_assigning_to_flat(key):
    """A value that is too short is repeated."""

    def f(x):
        y = x.copy()
        y.flat[key] = 5.0
        z = x.copy()
        z.flat[key] = [1.0, 2.0] if not isinstance(key, int) else 3.0
        return y, z

    x = np.arange(6.0).reshape(2, 3)
    for found, expected in zip(ad.compile(f)(x), f(x)):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("make", [np.random.default_rng, np.random.RandomState, lambda seed: np.random])
@pytest.mark.filterwarnings("ignore:you are shuffling")
def test_shuffled_rows_are_refused(make):
    """NumPy exchanges them through views, which loses rows; numbers of a vector are exchanged rightly."""

    def f(x):
        y = x.copy()
        make(3).shuffle(y)
        return y

    np.random.seed(3)  # of six orders of three rows one moves none
    with pytest.raises(WriteError, match=r"test_inplace.py:\d+: .*x\[rng.permutation"):
        ad.compile(f)(np.arange(6.0).reshape(3, 2))
    assert sorted(ad.compile(f)(np.arange(5.0))) == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_two_outputs_that_overlap_are_refused():
    def f(x, first, second):
        c = np.zeros(8, like=x)
        np.divmod(x, 1.5, out=(c[first], c[second]))
        return c

    x = np.arange(1.0, 5.0)
    for first, second in ((slice(4), slice(3, 7)), (slice(4), slice(4)), (slice(0, 7, 2), slice(2, 6))):
        assert "np.divmod: two arrays of out= share" in error_of(f, x, first, second)
    for first, second in ((slice(4), slice(4, 8)), (slice(0, 7, 2), slice(1, 8, 2))):
        np.testing.assert_array_equal(ad.compile(f)(x, first, second), f(x, first, second))


def test_what_is_taken_along_a_later_axis_can_be_written_through_a_reshape():
    """np.take gives an array in C's order, of which a reshape is a view; x[:, index] lies otherwise."""

    def halved(x):
        taken = np.take(x, [0, 0], axis=1)
        taken.reshape(2, 3)[::2] *= 0.5
        return taken

    x = np.arange(1.0, 13.0).reshape(3, 4)
    np.testing.assert_array_equal(ad.compile(halved)(x), halved(x))
    np.testing.assert_array_equal(ad.grad(lambda x: np.sum(halved(x)))(x)[:, 0], [1.0, 1.5, 2.0])


@pytest.mark.parametrize("inner", [ad.compile(lambda v: v), ad.compile(lambda v: v[::-1][::-1])])
def test_the_argument_of_a_derived_function_is_written_to_afterwards(inner):
    """Its result has memory of its own, also while the function around it is recorded."""

    def f(x):
        a = x * 1.0
        y = inner(a)
        a[0] = 100.0
        return np.sum(a) * (1000.0 if y[0] > 50.0 else 1.0)

    x = np.array([1.0, 2.0])
    assert f(x) == ad.compile(f)(x) == 102.0
    np.testing.assert_array_equal(ad.grad(f)(x), [0.0, 1.0])


def test_a_view_at_a_position_that_an_inner_function_finds():
    """It is a view of the outer array: what is written to it is written there alone."""

    def f(x, s):
        y = x * 1.0

        def inner(s):
            row = y[np.argmax(s)]
            row[0] = 50.0
            return np.sum(row * s)

        slope = ad.grad(inner)(s)
        return np.sum(y) * (1000.0 if y[1, 0] > 40.0 else 1.0) + np.sum(slope)

    x, s = np.arange(6.0).reshape(3, 2), np.array([1.0, 2.0])
    before = x.copy()
    assert ad.compile(f)(x, s) == f(x, s) == 63053.0
    np.testing.assert_array_equal(x, before)


def test_nothing_to_put_writes_nothing():
    def f(x):
        y = x * 1.0
        np.put(y, [0], [])
        np.putmask(y, np.ones(3, bool), [])
        return y

    np.testing.assert_array_equal(ad.compile(f)(np.arange(3.0)), np.arange(3.0))
