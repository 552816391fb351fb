"""Optimisation that NumPy's user cannot see: a strict program gives NumPy's bits (docs/values.md)."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff import passes
from gpt2.autodiff.derive.differentiate import gradient_graph
from gpt2.autodiff.emit import regions
from gpt2.autodiff.emit.program import Program as EmittedProgram
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import apply, build, input_node
from gpt2.autodiff.ops.exactness import decided, exact, mark_derived, without_rounding
from gpt2.autodiff.ops.table import OPS, Op
from gpt2.autodiff.passes import FAMILIES, simplify
from gpt2.autodiff.passes.engine import BITS, DIGITS
from gpt2.autodiff.switches import PASSES, Options
from tests.support.random.values import Difference, Program, check, difference, shrink, write
from tests.support.slow import rest_slow
from tests.support.small_sizes import SMALL_SIZES
from tests.support.tables import sections

SINGLE = np.float32
MANY = np.linspace(0, 1, 90_000, dtype=SINGLE).reshape(300, 300)
WAVE = np.cos(np.arange(60.0)).reshape(4, 15)


def twice(f, *args):
    """What the compiled function gives when it is recorded, and when it runs again."""
    compiled = ad.compile(f)
    with np.errstate(all="ignore"):
        compiled(*args)
        return compiled(*args)


def split(a):
    """The upper half of the digits: Veltkamp 1968."""
    c = 134217729.0 * a
    return c - (c - a)


def _added_to(x):
    y = np.stack([x, x])
    y[..., :1] += 0.5
    return 1.0 / y


# Name -> a function and its arguments, each a line of the text
FUNCTIONS = {name: [eval(line) for line in lines] for name, lines in sections(__file__).items()}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_bits_are_numpys(name):
    f, *args = FUNCTIONS[name]
    with np.errstate(all="ignore"):
        expected = f(*args)
    got = twice(f, *args)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("flags", [{"return_index": 2, "return_counts": 3}, {"return_inverse": np.True_}])
def test_flags_of_unique_are_true_or_false(flags):
    x = np.array([3.0, 1.0, 3.0])
    found = ad.compile(lambda x: np.unique(x, **flags))(x)
    for ours, numpys in zip(found, np.unique(x, **flags), strict=True):
        np.testing.assert_array_equal(ours, numpys)


def test_points_of_interp_are_in_order():
    x, fp = np.array([0.5, 1.5]), np.arange(3.0)
    with pytest.raises(ad.AutodiffError, match="not in order"):
        ad.compile(lambda x: np.interp(x, [0.0, 2.0, 1.0], fp))(x)
    through = ad.compile(lambda x, xp: np.interp(x, xp, fp))
    through(x, np.array([0.0, 1.0, 2.0]))
    with pytest.raises(ad.AutodiffError, match="not in order"):
        through(x, np.array([0.0, 2.0, 1.0]))


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.complex128])
def test_a_sum_begins_with_zero(kind):
    """So the sum of -0.0 is 0.0, and so is an empty sum."""
    zero = kind(-0.0)
    for f in (
        np.sum,
        np.add.reduce,
        lambda x: np.sum(np.stack([x]), axis=()),
        lambda x: np.trace(np.stack([x])[None]),
    ):
        got, expected = np.asarray(twice(f, zero)), np.asarray(f(zero))
        assert got.tobytes() == expected.tobytes(), f
    for reduce in (np.maximum.reduce, np.multiply.reduce):
        if kind is not np.complex128:
            assert np.signbit(twice(reduce, zero)) == np.signbit(reduce(zero)) == True  # noqa: E712


NUMBERS = {
    "tanh": lambda x: np.tanh(x * x),
    "exp compared": lambda x: np.exp(x) >= np.exp(x + 0.0),
    "a power": lambda x: x**2,
    "np.power": lambda x: np.power(x, 3.0),
    "cosh floored": lambda x: np.floor(np.cosh(x) * 1e15),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_the_bits_of_numbers_are_numpys(name):
    """The C library's functions, of which `math` code is made, differ from NumPy's now and then."""
    f = NUMBERS[name]
    compiled = ad.compile(f)
    for x in np.linspace(0.1, 2.0, 300).tolist():
        assert compiled(x) == f(x), x


def test_rounding_of_python_numbers_is_pythons():
    assert ad.compile(lambda x: round(x, 1))(2.55) == round(2.55, 1) == 2.5
    got = twice(lambda x: round(x, 1), SINGLE(2.55))
    assert type(got) is SINGLE and got == round(SINGLE(2.55), 1)


@pytest.mark.parametrize("function", [np.max, np.min])
def test_the_gradient_of_an_extreme_nan_is_nan(function):
    x = np.array([[np.nan, 1.0, 2.0], [3.0, 4.0, 4.0]])
    f = lambda x: np.sum(function(x, axis=1))  # noqa: E731
    _, forward = ad.jvp(f, (x,), (np.ones_like(x),))
    assert np.isnan(forward)
    nan = np.isnan(ad.grad(f)(x))
    np.testing.assert_array_equal(nan, [[True] * 3, [False] * 3])


def test_the_spread_of_one_number_is_constant():
    x = np.array([3.0])
    assert ad.grad(np.std)(x) == 0.0
    assert ad.jvp(np.std, (x,), (np.ones(1),)) == (0.0, 0.0)
    rows = np.array([[1.0], [2.0]])
    np.testing.assert_array_equal(ad.grad(lambda x: np.sum(np.std(x, axis=1)))(rows), np.zeros((2, 1)))


def test_fast_math_is_asked_for_by_name():
    f, x = FUNCTIONS["floor of a quotient"]
    with ad.options(math="fast"):
        assert not np.array_equal(twice(f, x), f(x))
    np.testing.assert_array_equal(twice(f, x), f(x))
    with pytest.raises(ValueError, match="math is 'loose', expected one of strict, fast"):
        Options(math="loose")


# ---- what rules declare ------------------------------------------------------------------------------------


def test_every_rule_says_what_it_keeps_or_is_off():
    for family in FAMILIES.values():
        assert {keeps for rules in family.rules.values() for _, keeps, _ in rules} <= {BITS, DIGITS, None}


def test_an_op_decides_and_rounds_unless_its_row_says_otherwise():
    silent = Op("mystery", "nondiff", infer=None, evaluate=None)
    assert silent.discontinuous and not silent.exact_on
    deciding = "remainder floor_divide arctan2 angle sign copysign argmax floor less eigh svd".split()
    assert all(OPS[name].discontinuous for name in deciding)


def test_absolute_values_of_complex_numbers_are_rounded():
    real, complex_ = (input_node((4,), dtype) for dtype in ("float64", "complex128"))
    assert without_rounding([apply("absolute", real)])
    assert not without_rounding([apply("absolute", complex_)])


def test_what_is_decided():
    """Returned values and what is compared, with all they are made of. What only a derivative reads is exact,
    but does not decide anything visible."""
    x = input_node((4,), "float64", "x")
    scaled, other = x / 49.0, x / 7.0
    counted, read = apply("floor", scaled), build.tanh(other)
    graph = Graph([x], [build.sum_(counted * read, (0,))])
    joint = gradient_graph(graph, [0])
    everything = decided(joint)
    assert {scaled.id, other.id, counted.id, read.id} <= everything
    alone = decided(Graph(joint.inputs, joint.outputs[1:]))
    assert scaled.id in alone and not {other.id, read.id} & alone
    derived = {n.id for n in joint.nodes if n.derived}
    assert derived and not derived & exact(joint)
    assert {n.id for n in joint.nodes} - derived <= exact(joint)


def test_digits_are_enough_for_derivatives():
    """Quotients by numbers, powers and einsums in a derivative become products."""
    a = np.linspace(0.1, 1.0, 12).reshape(3, 4)
    f = lambda a: np.sum(np.einsum("ij,kj->ik", a, a) / 7.0) + np.sum(a**4)  # noqa: E731
    source = ad.source(ad.grad(f), a, emitted=True)
    assert "einsum" not in source and "divide" not in source and "power" not in source
    source = ad.source(ad.compile(f), a, emitted=True)
    assert "einsum" in source and "divide" in source and "power" in source


def test_what_a_derivative_reads_is_exact():
    """x / 49 - 1 is zero at 49 as NumPy rounds, and then 1 / (x / 49 - 1) has no finite slope."""
    g, x = ad.grad(lambda x: np.sum(1.0 / (x / 49.0 - 1.0))), np.array([49.0, 50.0])
    with np.errstate(all="ignore"):
        g(x)
        slope = g(x)
    assert np.isinf(slope[0]) and np.isfinite(slope[1])


def in_a_derivative(make, dtype):
    """The program of make(x), as if differentiation had made it: digits are enough."""
    x = input_node((2000,), dtype, "x")
    out = make(x)
    mark_derived([out], x.id)
    return EmittedProgram(simplify(Graph([x], [out])))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_digits_are_as_promised(dtype):
    """docs/values.md: two units in the last place for quotients, p for powers."""
    rng = np.random.default_rng(0)
    x = (rng.uniform(0.5, 2.0, 2000) * np.where(rng.random(2000) < 0.5, 1, -1)).astype(dtype)
    cases = [(lambda x, c=c: x / c, 2) for c in (49.0, 0.1, 3.0, 1e30, 1e-30, 7e-3)]
    cases += [(lambda x, p=p: x**p, max(p, 1)) for p in (-1.0, 3.0, 4.0, 7.0, 15.0, 31.0, 32.0)]
    changed = 0
    for f, units in cases:
        (got,), expected = in_a_derivative(f, dtype)(x), f(x)
        assert got.dtype == expected.dtype
        apart = np.abs(got.astype(np.longdouble) - expected) / np.spacing(np.abs(expected))
        assert np.max(apart) <= units
        changed += np.any(apart > 0)
    assert changed > len(cases) / 2  # they are done at all


@pytest.mark.parametrize("divisor", [1e38, 3e38, 1e-39])
def test_what_has_no_normal_reciprocal_is_divided(divisor):
    """1 / 1e38 has lost digits in float32, and 1 / 1e-39 is infinite."""
    x = np.array([1e37, 3e38, 2e-39, 1e-5], SINGLE)
    for math in ("strict", "fast"):
        with np.errstate(all="ignore"), ad.options(math=math):
            np.testing.assert_array_equal(twice(lambda x: x / divisor, x), x / divisor)


def test_broadcasts_are_added_up_in_blocks(monkeypatch):
    """A sum of what a block reads through a broadcast counts every copy."""
    monkeypatch.setattr(regions, "SMALL", 2)
    monkeypatch.setattr(regions, "BLOCK_BYTES", 64)
    x, y = input_node((8, 1), "float64", "x"), input_node((8, 1), "float64", "y")
    wide = build.broadcast(x * y, (8, 5))
    graph = Graph([x, y], [build.sum_(wide, (0,)), build.sum_(wide, (1,)), build.sum_(wide, (0, 1))])
    a, b = np.arange(8.0).reshape(8, 1), np.linspace(1, 2, 8).reshape(8, 1)
    for options in (Options(off=PASSES), Options(off=PASSES, math="fast")):
        columns, rows, total = EmittedProgram(graph, options)(a, b)
        np.testing.assert_allclose(columns, np.full(5, (a * b).sum()))
        np.testing.assert_allclose(rows, (5 * a * b)[:, 0])
        np.testing.assert_allclose(total, 5 * (a * b).sum())


# ---- random programs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", rest_slow(range(0, 1000, 250)))
def test_random_values(start, monkeypatch):
    """A share of what tests.long.seeds runs; every other batch in blocks, as large arrays are."""
    if start % 500:
        for module, name, n in SMALL_SIZES:
            monkeypatch.setattr(module, name, n)
    for seed in range(start, start + 250):
        program = write(seed)
        try:
            check(program)
        except Difference as error:
            pytest.fail(f"{error}\n{shrink(program, error).reproducer()}")


def loosely(graph, options=None):
    """simplify, with the rules of fast math."""
    return simplify(graph, Options(off=options.off if options else (), math="fast"))


@pytest.mark.slow
def test_random_values_notice_reassociation(monkeypatch):
    """So the check can fail. 10 of these do, with AVX-512 and without."""
    monkeypatch.setattr(passes, "simplify", loosely)
    assert sum(difference(write(seed)) is not None for seed in range(100)) >= 3


def test_what_fails_is_shrunk(monkeypatch):
    monkeypatch.setattr(passes, "simplify", loosely)
    x = np.array([49.0, 1.0])
    body = (("t0", "x * 2.0"), ("t1", "np.floor(x / 49.0)"), ("t2", "t0 + t1"))
    program = Program({"x": x, "y": x}, body, ("t2", "t0"))
    small = shrink(program, difference(program))
    assert len(small.body) <= 2 and list(small.arguments) != ["x", "y"]
