"""Every op of the table on its samples (tests/support/calls/op_samples.py): both modes, second order."""

import numpy as np
import pytest

from gpt2.autodiff.check.numeric import check_graph
from gpt2.autodiff.derive.differentiate import jvp_graph, vjp_graph
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import OPS, apply, const, input_node
from gpt2.autodiff.ops.build import item
from gpt2.autodiff.ops.interpret import check, evaluate_graph
from gpt2.autodiff.ops.table import EXACTLY, NEARLY
from tests.support.calls.op_samples import samples_of

pytestmark = pytest.mark.numeric

SINGLE = {"float64": "float32", "complex128": "complex64"}


def draw(sample, shape, dtype, rng):
    """Random values from the domain of the sample."""

    def real():
        x = rng.uniform(*sample.domain, size=shape)
        return x * rng.choice([-1.0, 1.0], size=shape) if sample.signed else x

    return real() + 1j * real() if dtype == "complex128" else real()


def instance(name, sample, dtype, single=False):
    """A graph of one op, applied to its sample, and the values of its inputs."""
    rng = np.random.default_rng(0)
    args, inputs, values = [], [], []
    for arg in sample.args:
        if isinstance(arg, np.ndarray):
            args.append(const(arg))
            continue
        value = arg(rng, dtype) if callable(arg) else draw(sample, arg, dtype, rng)
        value = value.astype(SINGLE[dtype]) if single else value
        inputs.append(input_node(value.shape, value.dtype, "x"))
        args.append(inputs[-1])
        values.append(value)
    attrs = {k: SINGLE.get(v, v) if single and k == "dtype" else v for k, v in sample.attrs.items()}
    out = apply(name, *args, **attrs)
    if sample.of is not None:
        outputs = [sample.of(out, *args)]
    elif isinstance(out.dtype, tuple):
        outputs = [item(out, i) for i in range(len(out.dtype))]
    else:
        outputs = [out]
    return Graph(inputs, outputs, name), values


ROWS = {name: op for name, op in list(OPS.items()) if samples_of(name) and op.needs is None}


def cases(which=lambda name, op: True, of=True):
    """Makes test(name, sample, dtype) a test for each op that `which` selects: of all its samples, in all
    their dtypes. `test.case` is the function of one.

    of   False: leaves out samples that test a function of the result (vectors are unique only up to a phase)
    """

    def decorate(test):
        def each(name):
            for i, sample in enumerate(samples_of(name)):
                for dtype in sample.dtypes if of or sample.of is None else ():
                    try:
                        test(name, sample, dtype)
                    except Exception as error:
                        error.add_note(f"{name}, sample {i}, {dtype}")
                        raise

        each.__name__, each.__doc__, each.case = test.__name__, test.__doc__, test
        return pytest.mark.parametrize("name", [name for name, op in ROWS.items() if which(name, op)])(each)

    return decorate


def test_every_op_has_samples():
    """Except structural ops (subgraphs, items of tuples), tested where they are made, and random draws, whose
    derivatives hold the quantile fixed: tests/autodiff/random/test_draws.py; cofactors, given with det; nor
    what densities are made of at edges: tests/autodiff/scipy/test_hard_points.py.
    """
    without = {name for name, op in list(OPS.items()) if not samples_of(name) and op.kind != "structural"}
    draws = {"gamma_sample", "gamma_slope", "t_sample", "t_slope"}
    assert without <= {"stop_gradient", "cofactors", *draws, "distribution_limit", "known_slope"}


@cases()
def test_derivatives(name, sample, dtype):
    """Forward mode against differences, reverse against forward mode, and the same for their derivatives."""
    graph, values = instance(name, sample, dtype)
    check_graph(graph, values, order=2)


@cases()
def test_types(name, sample, dtype):
    """NumPy's result has the inferred shape and dtype, in double and in single precision."""
    for single in (False, True):
        graph, values = instance(name, sample, dtype, single)
        check(graph)
        for node, value in zip(graph.outputs, evaluate_graph(graph, values)):
            assert (np.shape(value), np.asarray(value).dtype) == (node.shape, node.dtype)


@cases(lambda name, op: name != "float_power")  # its result is always double precision
def test_single_precision_stays(name, sample, dtype):
    """Derivatives at single-precision arguments compute nothing in double precision."""
    graph, values = instance(name, sample, dtype, single=True)
    wide = (np.dtype(np.float64), np.dtype(np.complex128))
    outs = [i for i, n in enumerate(graph.outputs) if n.dtype.kind in "fc"]
    wrt = range(len(graph.inputs))
    for derived in (vjp_graph(graph, wrt, outs), jvp_graph(graph, wrt)):
        assert not [n for n in derived.nodes if n.dtype in wide and n.op != "const"]


@cases(lambda name, op: op.code is not None)  # other ops are emitted as a call of evaluate
def test_source(name, sample, dtype):
    """The op's source text computes the same as its evaluate."""
    op = OPS[name]
    graph, values = instance(name, sample, dtype)
    node = next(n for n in graph.nodes if n.op == name)
    inputs = iter(values)
    names = {f"x{i}": next(inputs) if a.op == "input" else a.value for i, a in enumerate(node.args)}
    actual = eval(op.code(*names, **node.attrs), {"np": np, **names})
    expected = op.evaluate(*names.values(), **node.attrs)
    for a, b in zip(actual, expected) if isinstance(node.dtype, tuple) else [(actual, expected)]:
        np.testing.assert_array_equal(a, b)


SPECIAL = np.array([0.0, -0.0, 1.0, -2.5, 1e-300, 3.7, np.inf, -np.inf, np.nan])


def special_pairs(op):
    """All pairs of special values, or integers for an op that takes no floats."""
    a, b = (x.ravel() for x in np.meshgrid(SPECIAL, SPECIAL))
    return (a, b) if "dd->" in "".join(op.ufunc.types) else (np.array([6, 4, -9, 1]), np.array([2, 3, 5, 5]))


def same_bits(a, b):
    return (
        a.dtype == b.dtype
        and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        and (a.dtype.kind != "f" or np.array_equal(np.signbit(a)[a == 0], np.signbit(b)[b == 0]))
    )


@pytest.mark.parametrize(
    "name", [n for n, op in OPS.items() if op.ufunc and op.ufunc.nin == 2 and n != "ldexp"]
)
def test_commutative_ops_are_declared(name):
    op = OPS[name]
    a, b = special_pairs(op)
    with np.errstate(all="ignore"):
        ab, ba = op.evaluate(a, b), op.evaluate(b, a)
    if op.commutes == NEARLY:
        np.testing.assert_allclose(ab, ba, rtol=1e-15)
    else:
        assert same_bits(ab, ba) == (op.commutes == EXACTLY)
