"""Recording without the arithmetic gives the graph of a run with it, or is given up."""

import itertools
import mmap

import numpy as np
import pytest

from gpt2.autodiff.programs.fixed import Fixed
from gpt2.autodiff.record import unevaluated
from gpt2.autodiff.record.record import record, record_pure
from gpt2.layers import ALL_LAYERS
from tests.support.cases import CASES
from tests.support.random.programs import write

LARGE = 2 * unevaluated.LARGE


@pytest.fixture
def everything(monkeypatch):
    """Values of any size count as large."""
    monkeypatch.setattr(unevaluated, "LARGE", 0)


def _steps(x):
    """Strides, of axes that have some use for one."""
    return [step for n, step in zip(x.shape, x.strides) if n > 1]


def text(rec):
    """Every node of the graph: op, arguments, attributes, type, name and place in the source."""
    number = {n: k for k, n in enumerate(rec.graph.nodes)}
    nodes = [
        (n.op, [number[a] for a in n.args], repr(n.attrs), n.shape, n.dtype, n.name, n.loc)
        for n in rec.graph.nodes
    ]
    reads = [(number.get(r.node), np.asarray(r.value).tolist(), r.kind) for r in rec.reads]
    return nodes, [number[o] for o in rec.graph.outputs], reads, rec.written


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_layers(case, everything):
    layer, inputs = ALL_LAYERS[case.layer], case.inputs()
    out, saved = layer.forward(*inputs, **case.static)

    def backward(dout, *saved):
        return layer.backward(dout, saved, **case.static)

    forward = (layer.forward, inputs, case.static)
    assert text(record_pure(*forward)) == text(record(*forward))
    dout = np.random.default_rng(1).standard_normal(out.shape)
    assert text(record_pure(backward, (dout, *saved))) == text(record(backward, (dout, *saved)))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 300, 50))
def test_random_programs(start, everything):
    """Slices, views, writes in place, branches and loops: the same graph with and without arithmetic."""
    for seed in range(start, start + 50):
        program = write(seed)
        f = program.function()
        dry_run, real = record_pure(f, program.values()), record(f, program.values())
        assert text(dry_run) == text(real), program.reproducer()


def test_large_values_are_not_computed():
    x = np.full(LARGE, 2.0)

    def f(x):
        y = x * 3 + 1
        y += x
        y[: LARGE // 2] = 5.0
        return y, np.arange(LARGE) + 1, x[:3] * 3

    y, integers, small = record(f, (x,), dry=True).results
    assert not y.any()
    np.testing.assert_array_equal(integers, np.arange(LARGE) + 1)
    np.testing.assert_array_equal(small, [6.0, 6.0, 6.0])


@pytest.mark.parametrize("function", sorted(unevaluated.REDUCTIONS, key=lambda f: f.__name__))
def test_sums_over_what_was_not_computed_are_not_computed(function):
    """They have the shape, dtype, kind and layout of a real run, and reading one ends the attempt."""
    order = itertools.permutations(range(3))
    options = [{}, {"axis": -1}, {"axis": (0, 2)}, {"axis": 1, "keepdims": True}]
    if function in (np.sum, np.prod, np.mean):
        options.append({"dtype": np.float64})
    for axes, chosen in itertools.product(order, options):
        real = np.ones((32, 48, 64), np.float32).transpose(axes)
        stand_in = unevaluated.stand_in(np.exp, (real,), {})
        found, expected = unevaluated.stand_in(function, (stand_in,), chosen), function(real, **chosen)
        assert type(found) is type(expected) and found.dtype == expected.dtype
        assert found.shape == expected.shape and _steps(found) == _steps(expected)
    assert unevaluated.stand_in(function, (real,), {}) is None  # these numbers are known

    def f(x):
        return x if function(x) > 3 else -x

    def g(x):
        return f(np.sqrt(x))

    values = np.frombuffer(mmap.mmap(-1, 8 * LARGE))  # as with a memory map as the argument
    values[...] = 1.0
    for h in (f, g):
        with pytest.raises(unevaluated.Unknown):
            record(h, (values,), dry=True)
        assert [bool(read.value) for read in record_pure(h, (values,)).reads] == [function(values) > 3]


def test_errors_that_are_waited_for_are_found(everything):
    """The zeros that stand for a product are not positive definite, and do not overflow."""

    def factor(a):
        try:
            return np.linalg.cholesky(a)
        except np.linalg.LinAlgError:
            return a

    def f(x):
        a = factor(x @ x.T + 1.0)
        with np.errstate(all="raise"):
            try:
                return np.exp(a * 1e4)
            except FloatingPointError:
                return a * 2.0

    x = np.random.default_rng(2).normal(size=(3, 3))
    ops = [n.op for n in record(f, (x,)).graph.nodes]
    assert "cholesky" in ops and "exp" not in ops
    assert text(record_pure(f, (x,))) == text(record(f, (x,)))


def test_what_hangs_on_a_large_value_is_looked_at_for_real():
    calls = itertools.count()

    def f(x, w):
        next(calls)
        y = x @ w
        total = y.sum()  # small itself
        return y * 2 if total > 0 else y * 3

    rng = np.random.default_rng(0)
    x, w = np.abs(rng.standard_normal((2, 256, 256)))
    assert text(record_pure(f, (x, w))) == text(record(f, (x, w)))
    assert next(calls) == 3  # a dry run, and two with values
    fixed = Fixed(f)
    np.testing.assert_allclose(fixed(x, w), (x @ w) * 2, rtol=1e-12)
    np.testing.assert_allclose(fixed(x, -w), (x @ -w) * 3, rtol=1e-12)


def test_what_does_not_hang_on_one_is_looked_at_once():
    calls = itertools.count()

    def f(x, n):
        next(calls)
        y = x * 2
        for _ in range(int(n)):
            y = y * x
        return y

    x = np.linspace(0.5, 1.5, LARGE)
    rec = record_pure(f, (x, np.array(3)))
    assert next(calls) == 1 and len(rec.reads) == 1
    np.testing.assert_allclose(Fixed(f)(x, np.array(3)), 2 * x**4, rtol=1e-12)


def test_what_a_constant_was_written_into_and_a_mask_are_found_for_real():
    def f(x):
        y = x[:].copy()
        y[...] = 1.0
        z = x * 1.0
        return z[z > 0.5] * (2 if y[0] > 0.5 else 3)

    x = np.random.default_rng(0).standard_normal(LARGE)
    assert text(record_pure(f, (x,))) == text(record(f, (x,)))
    np.testing.assert_array_equal(Fixed(f)(x), x[x > 0.5] * 2)


def test_errors_are_those_of_a_real_run():
    def f(x):
        y = x * 2
        if y.max() < 1:
            raise ValueError("x is too small")
        return y @ np.ones(3)

    with pytest.raises(ValueError, match="too small"):
        record_pure(f, (np.zeros(LARGE),))
    with pytest.raises(ValueError, match="matmul") as dry_error:
        record_pure(f, (np.ones(LARGE),))
    with pytest.raises(ValueError) as real_error:
        record(f, (np.ones(LARGE),))
    assert str(dry_error.value) == str(real_error.value)


def test_no_warnings_about_values_that_were_not_computed(recwarn):
    record_pure(lambda x: 1 / (x * 1).sum() + np.log(x * 1), (np.ones(LARGE),))
    assert not recwarn.list


@pytest.mark.parametrize("seed", range(40))
def test_stand_ins_have_the_layout_of_results(seed, everything):
    """Shape, dtype and strides are the ufunc's own, for operands in any order of axes."""
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 5, rng.integers(1, 5)))
    dtypes = (np.float32, np.float64, np.complex64, np.int32)

    def operand():
        axes = rng.permutation(len(shape))
        x = np.ones(np.array(shape)[axes], rng.choice(dtypes)).transpose(np.argsort(axes))
        return x[tuple(slice(0, 1) if rng.random() < 0.2 else slice(None) for _ in shape)]

    for ufunc, values in [
        (np.add, (operand(), operand())),
        (np.multiply, (operand(), 2.0)),
        (np.subtract, (np.float64(1), operand())),
        (np.exp, (operand(),)),
        (np.matmul, (np.ones((3, 2, 4)), np.ones((4, 5), np.float32))),
    ]:
        want, got = ufunc(*values), unevaluated.stand_in(ufunc, values, {})
        if want.dtype.kind not in "fc":
            assert got is None
        elif got is None:
            assert not any(isinstance(v, np.ndarray) for v in values)
        else:
            assert (got.shape, got.dtype, _steps(got)) == (want.shape, want.dtype, _steps(want))
