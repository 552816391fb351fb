"""NumPy functions give recorded values NumPy's type, shape, dtype and bits; the graph computes the same."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.ops.interpret import check, evaluate_graph
from gpt2.autodiff.record import dispatch
from gpt2.autodiff.record.record import record
from gpt2.autodiff.tree import flatten
from tests.support.calls.numpy_calls import CALLS
from tests.support.tables import sections

F, G, V, W, N = (3, 4), (4, 5), (4,), (3,), ()  # shapes; N: a NumPy scalar
I = np.array([[3, 1, 0, 2], [1, 1, 2, 0], [5, 4, 3, 3]])  # noqa: E741
M = np.array([[True, False, True, False], [False, True, True, True], [True, False, False, True]])
X3 = (2, 3, 4)
f32, f64 = np.float32, np.float64


@pytest.fixture
def rng():
    return np.random.default_rng(17)


def row(line):
    call, shapes = line.split(" -- ")
    return eval(call), eval(f"[{shapes}]")


TABLES = {name: [row(line) for line in lines] for name, lines in sections(__file__).items()}
# Compositions round otherwise than NumPy's own loops (var, quantile, i0); a few dozen roundings fit in this
BUDGET = {np.float16: 2e-3, np.float32: 1e-5, np.float64: 1e-12}


NEWER = {"cumulative_sum", "cumulative_prod", "unstack", "matvec", "vecmat"}  # than NumPy 2.0


def need(*names):
    """Skip where this NumPy is too old to have one of the few functions that came after 2.0."""
    for name in names:
        short = name.removeprefix("np.")
        if short in NEWER and not hasattr(np, short):
            pytest.skip(f"NumPy {np.__version__} has no {name}")


def arguments(shapes, dtype):
    rng = np.random.default_rng(1)

    def draw(shape):
        x = rng.uniform(0.3, 2.0, shape) * rng.choice([-1.0, 1.0], size=shape)
        return np.asarray(x, dtype)[()]

    return [draw(s) if isinstance(s, tuple) else s for s in shapes]


@pytest.mark.parametrize("table, i", [(t, i) for t, rows in TABLES.items() for i in range(len(rows))])
def test_same_as_numpy(table, i):
    f, shapes = TABLES[table][i]
    need(*(f"np.{name}" for name in f.__code__.co_names if name in NEWER))
    for dtype in (f32, f64):
        compare(f, arguments(shapes, dtype))


@pytest.mark.parametrize("name", CALLS)
def test_same_as_numpy_in_every_call(name):
    need(name)
    for f, *shapes in CALLS[name]:
        for dtype in (f32, f64):
            compare(f, arguments(shapes, dtype))


def compare(f, args):
    """Plain NumPy against the recording, and that against its graph."""
    before = [np.array(a) for a in args]
    with np.errstate(all="ignore"):
        plain = f(*args)
        dispatch.RECAST.clear()
        rec = record(f, args)
        check(rec.graph)
        again = evaluate_graph(rec.graph, rec.operands(flatten(tuple(args))[0]))
    assert not dispatch.RECAST, "a node was given NumPy's dtype afterwards"
    for a, b in zip(args, before):
        np.testing.assert_array_equal(a, b)
    same(plain, rec.results)
    for x, y, node in zip(flatten(rec.results)[0], again, rec.graph.outputs, strict=True):
        x = np.asarray(x)
        assert np.asarray(y).dtype == node.dtype == x.dtype
        budget = BUDGET.get(x.real.dtype.type, 0)
        np.testing.assert_allclose(y, x, rtol=budget, atol=budget)


def same(plain, recorded):
    if isinstance(plain, (tuple, list)):
        assert type(plain) is type(recorded) and len(plain) == len(recorded)
        for p, r in zip(plain, recorded):
            same(p, r)
        return
    assert type(plain) is type(recorded)
    if isinstance(plain, (np.ndarray, np.generic)):
        assert plain.shape == recorded.shape and plain.dtype == recorded.dtype
    np.testing.assert_array_equal(recorded, plain)


def same_when_compiled(f, *args):
    same(f(*args), ad.compile(f)(*args))


def test_reductions_that_take_one_axis_refuse_several():
    with pytest.raises(ValueError, match="not reorderable"):
        record(lambda x: np.subtract.reduce(x, axis=(0, 1)), (np.ones((2, 3)),))


def centred(v):
    return v - np.mean(v)


def halved(v):
    v *= 0.5
    return v


PIECES = {
    "a function of the part": lambda x: np.piecewise(x, [x > 0], [centred, 0.0]),
    "two parts and the rest": lambda x: np.piecewise(x, [x > 1, x < -1], [centred, np.sum, np.sin]),
    "a function that writes": lambda x: np.piecewise(x, [x > 0, x <= 0], [halved, 3.0]) + x,
    "with arguments": lambda x: np.piecewise(x, [x < 0], [lambda v, a, b: v * a + b] * 2, 2.0, b=x[0]),
    "one condition": lambda x: np.piecewise(x, x > 0.5, [np.log, -1.0]),
    "a plain condition": lambda x: np.piecewise(x, [[True, False] * 3], [centred, np.cos]),
    "two axes": lambda x: np.piecewise(x.reshape(2, 3), [x.reshape(2, 3) > 0], [np.sqrt, np.cumsum]),
    "rows": lambda x: np.piecewise(x.reshape(3, 2), [np.array([True, False, True])], [np.sin, 7.0]),
    "branches": lambda x: np.piecewise(x, [x > 0], [lambda v: v if v[0] > 0.5 else -v, 1.0]),
    "nothing": lambda x: np.piecewise(x, [x > 99], [lambda v: v / v.size, np.tanh]),
    "integers": lambda x: np.piecewise(x.astype(int), [x > 0], [lambda v: v * 1.7, centred]),
    "broadcast": lambda x: np.piecewise(x, [x > 0], [lambda v: np.zeros_like(v) + v, np.ones_like]),
    "a number": lambda x: np.piecewise(x[0], [x[0] > 0, x[0] <= 0], [np.sqrt, lambda v: v * v]),
}


@pytest.mark.parametrize("f", PIECES.values(), ids=PIECES)
def test_piecewise(f, rng):
    """The parts differ between calls, and each has its own derivative."""
    g, loss = ad.compile(f), lambda x: np.sum(f(x) * np.cos(np.arange(f(x).size)).reshape(f(x).shape))
    derivative = ad.grad(loss)
    for _ in range(4):
        x = rng.normal(size=6) * 2.0
        expected = f(x.copy())
        np.testing.assert_allclose(g(x), expected, rtol=1e-14, strict=True)
        numeric = [(loss(x + d) - loss(x - d)) / 2e-6 for d in np.eye(6) * 1e-6]
        np.testing.assert_allclose(derivative(x), numeric, atol=1e-8)


def test_piecewise_where_the_other_function_has_no_value():
    """log is not computed at 0 and below, and 0 times its infinite slope does not enter."""
    g = ad.grad(lambda x: np.sum(np.piecewise(x, [x > 0], [np.log, lambda v: 2.0 * v])))
    with np.errstate(all="raise"):
        for x in ([0.0, 2.0], [0.0, 2.0], [4.0, -1.0]):
            np.testing.assert_array_equal(g(np.array(x)), [1.0 / v if v > 0 else 2.0 for v in x])
    assert ad.why_recorded(g) is None


def test_piecewise_calls_each_function_once():
    calls = []

    def count(v):
        calls.append(v.size)
        return v * 2.0

    x = np.array([1.0, 2.0, -1.0])
    record(lambda x: np.piecewise(x, [x > 0, x > 9], [count, count, 0.0]), (x,))
    np.piecewise(x, [x > 0, x > 9], [count, count, 0.0])
    assert calls == [2, 2]


@pytest.mark.parametrize("f", [np.conj, np.real, np.imag, np.square, lambda b: b.conj() + np.real(b)])
def test_parts_of_bools(f):
    """The conjugate of a bool is an int8."""
    same_when_compiled(f, np.array([True, False, True]))


def test_nothing_minus_zero():
    """As documented in passes/fold.py; 0 + -0.0 may come out as -0.0."""
    f = ad.compile(lambda x: 0 - x)
    for _ in range(2):
        assert not np.signbit(f(np.zeros(2))).any()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "float32", "float64"])
@pytest.mark.parametrize("options", [
    {}, {"period": 16}, {"period": 7}, {"period": 7.5, "axis": 0}, {"discont": 4.0},
    {"discont": 0.5, "period": np.float64(3)},
])  # fmt: skip
def test_unwrap(dtype, options, rng):
    """Differences of bytes overflow; a whole period keeps integers what they are."""
    x, f = rng.integers(0, 250, (4, 5)).astype(dtype), lambda x: np.unwrap(x, **options)
    x = x * (0.5 if dtype[0] == "f" else 1)
    if dtype == "uint8" and options.get("period") in (7, 16):
        with pytest.raises(OverflowError):
            f(x)
        with pytest.raises(OverflowError):
            ad.compile(f)(x)
        return
    x = x.astype(dtype)
    np.testing.assert_allclose(ad.compile(f)(x), f(x), rtol=1e-5, atol=1e-4, strict=True)


@pytest.mark.parametrize("dtype", ["int8", "float32", "float64"])
def test_modf_at_its_ends(dtype):
    """A part that is 0 has the sign of the number."""
    x = np.array([0.0, 1.5, -1.5, -2.0, *([-0.0, np.inf, -np.inf, np.nan] if dtype[0] == "f" else [])], dtype)
    with np.errstate(all="raise"):
        for found, expected in zip(ad.compile(np.modf)(x), np.modf(x), strict=True):
            np.testing.assert_array_equal(found, expected, strict=True)
            np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
    if dtype[0] == "f":
        np.testing.assert_array_equal(ad.grad(lambda x: np.sum(np.modf(x)[0]))(x[:4]), np.ones(4))


@pytest.mark.parametrize("x", [
    np.array([1.0, 3.0, -0.3, 0.0, -0.0, 5e-324, 1e308, np.inf, np.nan]),
    np.array([1, -6], "int8"), np.array([1.5], "float16"), np.float32(3.5), 2.75,
])  # fmt: skip
def test_frexp_has_numpys_bits_and_types(x):
    with np.errstate(invalid="ignore"):
        same_when_compiled(lambda x: np.frexp(x), x)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int64", "bool"])
def test_powers_of_integers_by_a_float_are_floats(dtype):
    """NumPy converts them first; the square of an int8 would overflow."""
    x = np.array([100, 3, 0]).astype(dtype)
    for f in (lambda x: x**2.0, lambda x: (x + x) ** 2.0, lambda x: x**1.0, lambda x: x**0.5, lambda x: x**2):
        same_when_compiled(f, x)
        same(f(x), ad.Fixed(f)(x))
    slope = ad.grad(lambda w, x: np.sum(w * x**2.0))(np.ones(3), x)
    np.testing.assert_array_equal(slope, x.astype(float) ** 2)


@pytest.mark.parametrize("power", [2, 2.0, 1.0, -1, -1.0, 0.5, 3.0])
@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
def test_powers_by_a_number_have_numpys_bits(dtype, power):
    """Those of complex numbers by 2.0 or -1.0 are no squares and reciprocals."""
    x = np.abs(np.sin(np.arange(1.0, 101.0)))
    same_when_compiled(lambda x: x**power, (x + 1j * x[::-1] if dtype.startswith("c") else x).astype(dtype))


@pytest.mark.parametrize("subscripts", ["ij->i", "ij->j", "ij->", "ij->ji", "ii->", "...j->..."])
@pytest.mark.parametrize("dtype", ["int8", "float32", "float64", "complex64"])
def test_einsum_of_one_operand_has_numpys_bits(dtype, subscripts):
    """It adds in another order than np.sum, and keeps short integers short."""
    x = (100.0 * np.sin(np.arange(361.0)).reshape(19, 19)).astype(dtype)
    same_when_compiled(lambda x: np.einsum(subscripts, x), x)


@pytest.mark.parametrize("function", [np.nanvar, np.nanstd])
@pytest.mark.parametrize("ddof", [0, 1, 2, 2.5, 3])
@pytest.mark.filterwarnings("ignore:Degrees of freedom", "ignore:(invalid|divide)")
def test_spread_of_too_few_numbers_beside_nan(function, ddof):
    """nan where there are no more numbers than ddof."""
    x = np.array([[1.0, 3.0, np.nan], [1.0, 2.0, 4.0]])
    for f in (lambda x: function(x, axis=1, ddof=ddof), lambda x: function(x[0], ddof=ddof)):
        np.testing.assert_allclose(ad.compile(f)(x), f(x), rtol=1e-15)


@pytest.mark.parametrize("name", ["sum", "prod", "cumsum", "cumprod"])
@pytest.mark.parametrize("dtype, of", [(f64, f32), (f32, f64), (f64, np.int8), (np.int8, np.int8)])
def test_adding_up_into_an_array_of_another_dtype(name, dtype, of):
    """In the common dtype of both, as NumPy does."""

    def f(x, **like):
        out = np.zeros(x.shape if "cum" in name else (), dtype, **like)
        getattr(np, name)(x, out=out)
        return out

    x = np.array([3.1, 3.3, 3.7] * 20).astype(of)
    np.testing.assert_array_equal(ad.compile(lambda x: f(x, like=x))(x), f(x))


@pytest.mark.parametrize("function", [np.matmul, *dispatch.since("vecdot")])
@pytest.mark.parametrize("of, dtype", [(np.int8, np.int64), (f32, f64)])
def test_products_in_a_wider_dtype(function, of, dtype):
    """The dtype is that of the sum, not only of the result."""
    same_when_compiled(lambda x: function(x, x, dtype=dtype), np.full((4, 4), 11.3).astype(of))


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_accumulating_nothing(shape):
    same_when_compiled(lambda x: np.maximum.accumulate(x, axis=-1), np.zeros(shape))


def test_a_type_is_compared_with_something_else():
    f = lambda x: x * (2.0 if type(x) == [] or type(x) != {} else 3.0)  # noqa: E721, E731
    assert ad.compile(f)(1.5) == 3.0


@pytest.mark.parametrize("function", [np.convolve, np.correlate])
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("n, m", [(5, 3), (3, 4), (4, 4), (1, 2)])
@pytest.mark.filterwarnings("ignore:invalid")
def test_nan_in_a_kernel_reaches_only_what_it_meets(function, mode, n, m, rng):
    a, v = rng.normal(size=n), rng.normal(size=m)
    v[-1], a[0] = np.nan, np.inf
    f = lambda a, v: function(a, v, mode)  # noqa: E731
    np.testing.assert_allclose(ad.compile(f)(a, v), f(a, v), rtol=1e-14)


@pytest.mark.parametrize(
    "p, q", [([0.0, 0, 1, 2], [0.0, 3, 4]), ([0.0, 0], [1.0, 2]), ([], [1.0]), (2.0, [1.0, 2])]
)
def test_polynomials_that_begin_with_zeros(p, q):
    p, q = np.array(p), np.array(q)
    product = ad.compile(lambda p, q: np.polymul(p, q))
    for a, b in ((p, q), (p + 1, q), (p, q)):
        np.testing.assert_array_equal(product(a, b), np.polymul(a, b))


@pytest.mark.parametrize(
    "x", [[1.0, 2, np.inf], [np.inf, 1.0], [np.nan, 1.0, np.inf, np.inf], [-np.inf, 1.0]]
)
def test_median_beside_infinities(x):
    same_when_compiled(np.nanmedian, np.array(x))


def test_lists_of_several_lengths_are_an_error_of_the_users_line():
    with pytest.raises(ValueError, match=r"test_functions\.py:\d+: np\.add"):
        ad.compile(lambda x: x + [[1.0], [1.0, 2.0]])(np.ones(2))


def test_results_of_lstsq_are_not_kept():
    a = np.eye(3)
    before = dispatch._position_of_out.cache_info().currsize
    for _ in range(5):
        ad.grad(lambda b: np.sum(np.linalg.lstsq(a, b, None)[0]))(np.ones(3))
    assert dispatch._position_of_out.cache_info().currsize < before + 3
