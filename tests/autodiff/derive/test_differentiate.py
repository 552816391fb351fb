"""The chain rule (chain_rule.py, differentiate.py, shifts.py), and rules at special points."""

import warnings
from contextlib import contextmanager
from functools import reduce
from operator import add

import numpy as np
import pytest

from gpt2.autodiff.check.numeric import check_graph
from gpt2.autodiff.derive.differentiate import gradient_graph, jvp_graph, vjp_graph
from gpt2.autodiff.errors import UnsupportedError
from gpt2.autodiff.graph import Graph, Node
from gpt2.autodiff.ops import OPS, apply, const, input_node, row
from gpt2.autodiff.ops.build import broadcast, cast, exp, item, log, reshape, slice_, sqrt, sum_, tanh, where
from gpt2.autodiff.ops.interpret import check, evaluate_graph
from gpt2.autodiff.passes import simplify
from tests.support.random.graphs import random_arrays, random_graph


def derive(f, *values):
    """The vjp graph of f, a function of nodes; a random cotangent; the gradients for that cotangent."""
    inputs = [input_node(np.shape(v), np.asarray(v).dtype, name) for v, name in zip(values, "xyz")]
    out = f(*inputs)
    graph = Graph(inputs, [out])
    weights = np.random.default_rng(1).standard_normal(out.shape).astype(out.dtype)
    wrt = [i for i, n in enumerate(inputs) if n.dtype.kind in "fc"]
    reverse = check(vjp_graph(graph, wrt, [0]))
    return reverse, weights, evaluate_graph(reverse, [*values, weights])[1:]


def ops_of(graph):
    return [n.op for n in graph.nodes]


def nodes(*shapes):
    """Inputs x, y of these shapes."""
    return [input_node(shape, np.float64, name) for shape, name in zip(shapes, "xy")]


def check_derivatives(f, *values, **options):
    """By differences."""
    inputs = nodes(*map(np.shape, values))
    check_graph(Graph(inputs, [f(*inputs)]), values, **options)


RNG = np.random.default_rng(0)


# --- sums of gradients ----------------------------------------------------------------------------------


def test_gradient_of_a_value_used_twice():
    x = RNG.standard_normal(5)
    _, w, (dx,) = derive(lambda x: x * x + x, x)
    np.testing.assert_allclose(dx, w * (2 * x + 1), rtol=1e-15)


def test_gradient_of_a_shared_value_is_passed_on_once():
    """It is complete before it is passed on, so the rule of exp is applied once."""

    def f(x):
        y = exp(x)
        return y * y + tanh(y)

    x = RNG.standard_normal(4)
    assert ops_of(derive(f, x)[0]).count("exp") == 1
    check_derivatives(f, x)


def test_order_of_gradient_sums_is_deterministic():
    f = lambda x: x * 3.0 + tanh(x) + exp(x) + x * x  # noqa: E731
    first, second = (derive(f, np.arange(3.0))[0] for _ in range(2))
    assert str(first) == str(second)


def test_gradients_of_several_slices_become_one_assemble():
    def f(x):
        return slice_(x, ((0, 2, 1),)) * 2.0 + slice_(x, ((2, 4, 1),)) * slice_(x, ((1, 3, 1),))

    x = RNG.standard_normal(5)
    graph, w, (dx,) = derive(f, x)
    assert ops_of(graph).count("assemble") == 1
    expected = np.zeros(5)
    expected[0:2] += 2 * w
    expected[2:4] += w * x[1:3]
    expected[1:3] += w * x[2:4]
    np.testing.assert_allclose(dx, expected, rtol=1e-15)


def test_scatter_adds_to_the_other_gradient():
    """As for a tied embedding: rows are added to the gradient of the product, without an array of zeros."""
    tokens = np.array([1, 0, 1])

    def f(x):
        rows = apply("gather", x, const(tokens), spec=(("array", 0), (0, 4, 1)))
        return rows @ x

    x = RNG.standard_normal((4, 4))
    graph, w, (dx,) = derive(f, x)
    ops = ops_of(simplify(graph))
    assert ops.count("scatter_add") == 1 and not {"broadcast", "add"} & {*ops}
    expected = x[tokens].T @ w
    np.add.at(expected, tokens, w @ x.T)
    np.testing.assert_allclose(dx, expected, rtol=1e-14)


def test_scatter_of_a_masked_gather():
    def f(x):
        rows = apply("gather", where(x > 0.0, x, 0.0), const(np.array([1, 0, 1])), spec=(("array", 0),))
        return rows * slice_(x, ((0, 3, 1),))

    x = np.array([0.5, -1.0, 2.0, 0.3])
    _, w, (dx,) = derive(f, x)
    np.testing.assert_array_equal(dx, [w[1] * x[1], w[1] * 0.5, 0.0, 0.0])


# --- types ----------------------------------------------------------------------------------------------


def test_factors_of_the_arguments_shape_are_applied_after_the_sum():
    """As for the divisor of a softmax: rows are summed, and each sum is divided once."""
    x, y = RNG.uniform(1, 2, (3, 4)), RNG.uniform(1, 2, (3, 1))
    graph, w, (dx, dy) = derive(lambda x, y: x / y, x, y)
    np.testing.assert_allclose(dy, -(w * x / y**2).sum(1, keepdims=True), rtol=1e-14)
    full_size = [n.op for n in graph.nodes if n.shape == (3, 4) and n.op not in ("input", "const")]
    assert full_size == ["divide", "multiply", "multiply"]  # out, dx, and w * out to be summed


@pytest.mark.parametrize("f", [
    lambda x: tanh(x) * 0.5 + x**3 / 7.0,
    lambda x: sqrt(exp(x) + 1e-5),
    lambda x: log(sum_(exp(x - apply("max", x, axes=(1,), keepdims=True)), 1)),
    lambda x: apply("maximum", x, 0.0) + apply("sinc", x) + apply("cbrt", x) + apply("exp2", x),
    lambda x: where(x > 0.0, x, x * 0.01),
    lambda x: apply("prod", x, axes=(1,), keepdims=False),
    lambda x: apply("cholesky", x @ reshape(x, (4, 3)) + const(np.eye(3, dtype=np.float32) * 9)),
])  # fmt: skip
def test_float32_derivatives_have_no_float64_temporary(f):
    graph, _, _ = derive(f, RNG.standard_normal((3, 4)).astype(np.float32))
    wide = [n for n in graph.nodes if n.dtype in (np.float64, np.complex128) and n.op != "const"]
    assert not wide


def test_gradients_have_the_types_of_the_inputs():
    x, y = RNG.standard_normal((3, 1)).astype(np.float32), RNG.standard_normal(4)
    _, _, (dx, dy) = derive(lambda x, y: x * y, x, y)
    assert (dx.dtype, dx.shape, dy.dtype, dy.shape) == (np.float32, (3, 1), np.float64, (4,))


def test_tangents_have_the_types_of_the_outputs():
    x, y = input_node((3, 1), np.float32, "x"), input_node((4,), np.float64, "y")
    forward = check(jvp_graph(Graph([x, y], [x + y, apply("real", x * 1j)]), [0]))
    assert [(t.shape, t.dtype) for t in forward.outputs[2:]] == [((3, 4), np.float64), ((3, 1), np.float32)]


def test_no_gradient_passes_through_a_cast_to_integers():
    _, w, (dx,) = derive(lambda x: x * cast(cast(x, "int64"), "float64"), np.array([2.5]))
    np.testing.assert_array_equal(dx, 2.0 * w)


def test_masked_gradients_have_the_types_of_the_inputs():
    mask = const(np.array([True, False]))
    x, y = np.array([1.5, 2.0], np.float32), np.array([3.0, 4.0])
    _, w, (dx, dy) = derive(lambda x, y: where(mask, x * y, 0.0), x, y)
    assert (dx.dtype, dy.dtype) == (np.float32, np.float64)
    np.testing.assert_allclose(dx, [3.0 * w[0], 0.0], rtol=1e-7)
    np.testing.assert_array_equal(dy, [1.5 * w[0], 0.0])


def test_tangent_of_a_broadcast_value():
    """It has the smaller shape until it is multiplied by a larger factor."""
    x, y = RNG.standard_normal(1), RNG.standard_normal((3, 4))
    check_derivatives(lambda x, y: broadcast(x, (3, 1)) * y * 2.0, x, y)


def test_complex_gradient_of_a_real_input_without_complex_warning():
    x, y = RNG.standard_normal(3), RNG.standard_normal(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", np.exceptions.ComplexWarning)
        _, w, (dx, dy) = derive(lambda x, y: apply("absolute", x + y * 1j), x, y)
        check_derivatives(lambda x, y: apply("absolute", x + y * 1j), x, y)
    np.testing.assert_allclose([dx, dy], w * [x, y] / np.hypot(x, y), rtol=1e-14)


def test_complex_gradients_are_du_dx_minus_i_du_dy():
    z = np.array([0.5 + 2.0j])
    inp = input_node((1,), np.complex128, "z")
    out = reshape(apply("absolute", inp) ** 2, ())
    _, dz = evaluate_graph(gradient_graph(Graph([inp], [out]), [0]), [z])
    np.testing.assert_allclose(dz, 2 * z.conj(), rtol=1e-15)


# --- work that is left out ------------------------------------------------------------------------------


def test_gradients_that_are_not_needed_are_not_computed():
    x, y = nodes((3, 3), (3, 3))
    reverse = vjp_graph(Graph([x, y], [exp(x) @ tanh(y), exp(y)]), [0], [0])
    assert ops_of(reverse).count("tanh") == 1 and ops_of(reverse).count("matmul") == 2
    assert str(reverse).count("dx") == 2  # computed once, returned once


def test_derivatives_of_unconnected_outputs_are_zero():
    x = input_node((2,), np.float32, "x")
    y = input_node((3,), np.float64, "y")
    graph = Graph([x, y], [exp(y), const(np.arange(2))])
    _, _, dx = evaluate_graph(vjp_graph(graph, [0], [0]), [np.ones(2, np.float32), np.ones(3), np.ones(3)])
    assert dx.dtype == np.float32 and not dx.any()
    ones = np.ones(2, np.float32)
    *_, t, ti = evaluate_graph(jvp_graph(graph, [0]), [ones, np.ones(3), ones])
    assert t.shape == (3,) and not t.any() and ti.dtype == np.int64


def test_factors_of_one_are_left_out():
    graph, _, _ = derive(lambda x, y: x + y - x, np.ones(2), np.ones(2))
    assert "multiply" not in ops_of(graph)


def test_seed_of_one_is_left_out():
    x, (inp,) = np.array(0.7), nodes(())
    graph = gradient_graph(Graph([inp], [exp(inp)]), [0])
    assert "multiply" not in ops_of(graph)
    np.testing.assert_array_equal(evaluate_graph(graph, [x])[1], np.exp(x))
    for value, expected in (
        (inp * const(np.float64(-2.5)) * tanh(inp), -2.5 * (np.tanh(x) + x / np.cosh(x) ** 2)),
        (inp**3.0, 3.0 * x**2),  # the first factor is a number, not a node
    ):
        graph = gradient_graph(Graph([inp], [value]), [0])
        np.testing.assert_allclose(evaluate_graph(graph, [x])[1], expected, rtol=1e-14)


def test_gradients_are_named_and_located_after_values():
    x = input_node((3,), np.float64, "x")
    u = tanh(x)
    u.name, u.loc = "u", ("f.py", 3, "f")
    v = u * 2.0
    v.name, v.loc = "v", ("f.py", 4, "f")
    reverse = vjp_graph(Graph([x], [v], "f"), [0], [0])
    assert [n.name for n in reverse.inputs] == ["x", "dv"]
    named = {n.name: n for n in reverse.nodes if n.name}
    assert set(named) == {"x", "u", "v", "dv", "du", "dx"}
    assert named["du"].loc == v.loc and named["dx"].loc == u.loc


# --- masks ----------------------------------------------------------------------------------------------

NAN_TRAPS = {
    "sqrt": lambda x: where(x > 0.0, sqrt(x), 0.0),
    "log of a product": lambda x: where(x > 0.0, log(x * x * x), x),
    "quotient": lambda x: where(apply("equal", x, 0.0), 1.0, tanh(x) / x),
    "inverted mask": lambda x: where(x <= 0.0, 0.0, log(x) * sqrt(x)),
    "overflow": lambda x: where(x < 3.0, exp(x * 1000.0), x),
    "inside a sum": lambda x: sum_(where(x > 0.0, log(x), 0.0), 0),
    "two masks": lambda x: (lambda r: where(x > 0.0, r, 0.0) + where(x > 1.0, r * 2.0, x))(sqrt(x)),
    "both sides, two masks": lambda x: (lambda r: where(x > 0.0, r, where(x < -5.0, r, x)))(log(x)),
    "nan as a mark": lambda x: where(x < -5.0, x * np.nan, x) + where(x > 9.0, x * np.nan, x),
    "nested": lambda x: where(x > 0.0, where(x > -9.0, sqrt(x), x), log(x * 0.0 + 1.0)),
    "the first that holds": lambda x: where(x > 3.0, log(x), where(x > 0.0, 2.0 * log(x), 0.0)),
    "cast": lambda x: where(x > 0.0, cast(sqrt(x), np.float32), cast(x, np.float32)),
    "real part": lambda x: where(x > 0.0, apply("real", cast(sqrt(x), np.complex128)), x),
    "copied": lambda x: where(x > 0.0, apply("copy", log(x)), x),
    "broadcast": lambda x: sum_(where(x > 0.0, sqrt(x), const(np.ones((3, 4)))), 0),
    "two products": lambda x: (lambda r: where(x > 0.0, r, 0.0) * where(x > 1.0, r, 2.0))(sqrt(x)),
    "both sides under one guard": lambda x: (
        lambda r: where(x > 0.0, where(x > 4.0, r, 2.0 * r), 0.0) + where(x > 3.0, r, 0.0)
    )(sqrt(x)),
    "one mask under two guards": lambda x: (
        lambda r, m: where(x < 3.0, where(m, r, 0.0), 1.0) + where(x > 1.0, where(m, r, 0.0), 1.0)
    )(log(x), x > 0.0),
}


@pytest.mark.parametrize("name", list(NAN_TRAPS))
def test_untaken_branch_of_where_leaves_no_nan(name):
    x = np.array([-1.0, 0.0, 2.0, 5.0]) if name != "overflow" else np.array([4.0, 5.0, -0.1])
    inp = input_node(x.shape, x.dtype, "x")
    graph = Graph([inp], [NAN_TRAPS[name](inp)])
    with np.errstate(all="ignore"):
        out = evaluate_graph(graph, [x])[0]
        reverse = vjp_graph(graph, [0], [0])
        _, dx = evaluate_graph(reverse, [x, np.ones_like(out)])
        _, tangent = evaluate_graph(jvp_graph(graph, [0]), [x, np.ones_like(x)])
        second = vjp_graph(Graph(reverse.inputs, reverse.outputs[1:]), [0], [0])
        _, ddx = evaluate_graph(second, [x, np.ones_like(out), np.ones_like(x)])
    assert np.isfinite(dx).all() and np.isfinite(tangent).all() and np.isfinite(ddx).all()
    np.testing.assert_allclose(dx.sum(), tangent.sum(), rtol=1e-14 if name != "cast" else 1e-6)  # of float32


def test_gradients_of_both_branches_become_one_where():
    graph, w, (dx,) = derive(lambda x: where(x > 0.0, x * 2.0, x * 3.0), np.array([1.0, -1.0]))
    assert ops_of(graph).count("where") == 2  # the function's and the gradient's
    np.testing.assert_array_equal(dx, w * [2.0, 3.0])


def test_masked_and_unmasked_gradients_add_up():
    x = np.array([1.0, -2.0])
    for sides in ((2.0, 0.0), (0.0, 3.0), (2.0, 3.0)):

        def f(x, sides=sides):
            first, second = (x * s if s else const(np.ones(2)) for s in sides)
            return where(x > 0.0, first, second) + x * x + where(x < 0.0, x, 5.0)

        _, w, (dx,) = derive(f, x)
        np.testing.assert_allclose(dx, w * (np.array(sides) + 2 * x + [0, 1]), rtol=1e-15)


# --- special points -------------------------------------------------------------------------------------


def test_gradient_of_extremes_is_shared_among_ties():
    x, y = np.array([1.0, 2.0, 3.0]), np.array([1.0, 5.0, 0.0])
    shares = {"maximum": [0.5, 0, 1], "fmax": [0.5, 0, 1], "minimum": [0.5, 1, 0], "fmin": [0.5, 1, 0]}
    for name, share in shares.items():
        _, w, (dx, dy) = derive(lambda x, y, name=name: apply(name, x, y), x, y)
        np.testing.assert_array_equal(dx, w * share)
        np.testing.assert_array_equal(dy, w * (1 - np.array(share)))
    x = np.array([[1.0, 4.0, 4.0], [2.0, 2.0, 2.0]])
    _, w, (dx,) = derive(lambda x: apply("max", x, axes=(1,), keepdims=False), x)
    np.testing.assert_allclose(dx, w[:, None] * [[0, 0.5, 0.5], [1 / 3] * 3], rtol=1e-15)


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_gradient_of_products_with_zeros(zeros):
    x = np.array([[2.0, 3.0, 5.0, 7.0, 0.5]])
    x[0, :zeros] = 0.0
    others = np.array([np.prod(np.delete(x[0], i)) for i in range(5)])
    _, w, (dx,) = derive(lambda x: apply("prod", x, axes=(1,), keepdims=True), x)
    np.testing.assert_allclose(dx, w * others, rtol=1e-14)
    check_derivatives(lambda x: apply("cumprod", x, axis=1), x)


def test_gradient_of_powers_of_zero():
    with np.errstate(all="raise"):
        for n, slope in ((0, 0.0), (1, 1.0), (2, 0.0), (3, 0.0), (1.5, 0.0)):
            _, w, (dx,) = derive(lambda x, n=n: x**n, np.array([0.0]))
            np.testing.assert_array_equal(dx, w * slope)
        _, w, (dx, dy) = derive(lambda x, y: x**y, np.zeros(3), np.array([0.0, 1.0, 2.0]))
    np.testing.assert_array_equal(dx, w * [0.0, 1.0, 0.0])
    np.testing.assert_array_equal(dy, np.zeros(3))


def test_gradient_of_logaddexp_at_minus_infinity():
    """-inf is the log of probability 0. Two of them have a zero gradient, not nan."""
    x, y = np.array([-np.inf, -np.inf]), np.array([-np.inf, 0.0])
    _, _, (dx, dy) = derive(lambda x, y: apply("logaddexp", x, y), x, y)
    assert np.isfinite(dx).all() and np.isfinite(dy).all() and dy[1] != 0


def test_gradient_of_repeated_writes_goes_to_the_last():
    index = const(np.array([2, 0, 2]))
    write = lambda x, y: apply("scatter", x, y, index, spec=(("array", 0),))  # noqa: E731
    _, w, (dx, dy) = derive(write, np.zeros(4), np.arange(3.0))
    np.testing.assert_array_equal(dy, [0.0, w[0], w[2]])
    np.testing.assert_array_equal(dx, [0.0, w[1], 0.0, w[3]])


def test_gradient_of_absolute_and_sinc_at_zero():
    for dtype in (np.float64, np.complex128):
        _, _, (dx,) = derive(lambda x: apply("absolute", x), np.zeros(1, dtype))
        assert dx == 0
    check_derivatives(lambda x: apply("sinc", x), np.zeros(1), order=2)


# --- maxima that only guard against overflow ------------------------------------------------------------


def largest(x, keepdims=True):
    return apply("max", x, axes=(x.ndim - 1,), keepdims=keepdims)


def softmax(x):
    e = exp(x - largest(x))
    return e / sum_(e, -1, keepdims=True)


def logsumexp(x):
    m = largest(x, keepdims=False)
    return m + log(sum_(exp(x - reshape(m, (*m.shape, 1))), -1))


def late_division(x):
    """Like attention that divides after the second product."""
    e = exp(where(x > -9.0, x, -np.inf) * 0.5 - largest(x) * 0.5)
    values = const(RNG.standard_normal((x.shape[-1], 3)))
    return (e @ values) / sum_(e, -1, keepdims=True)


def log_softmax(x):
    shifted = x - largest(x)
    return shifted - log(sum_(exp(shifted), -1, keepdims=True))


INVARIANT = {f.__name__: f for f in (softmax, log_softmax, logsumexp, late_division)}
DEPENDENT = {
    "exponentials": lambda x: exp(x - largest(x)),
    "the maximum too": lambda x: softmax(x) * largest(x),
    "another base": lambda x: (e := exp(x - largest(x))) / sum_(e * e, -1, keepdims=True),
    "a sum over rows": lambda x: (e := exp(x - largest(x))) / sum_(e, 0, keepdims=True),
    "an epsilon": lambda x: (e := exp(x - largest(x))) / (sum_(e, -1, keepdims=True) + 1e-3),
    "the row's mean": lambda x: x - largest(x) * 0.5,
}


@pytest.mark.parametrize("name", list(INVARIANT))
def test_softmax_has_no_gradient_through_its_maximum(name):
    x = RNG.standard_normal((2, 4, 5))
    assert "share_among" not in ops_of(derive(INVARIANT[name], x)[0])
    check_derivatives(INVARIANT[name], x)


@pytest.mark.parametrize("name", list(DEPENDENT))
def test_other_maxima_have_a_gradient(name):
    x = RNG.standard_normal((2, 4, 5))
    assert "share_among" in ops_of(derive(DEPENDENT[name], x)[0])
    check_derivatives(DEPENDENT[name], x, rtol=1e-6)


# --- errors and structural ops --------------------------------------------------------------------------


def test_missing_rule_is_an_error():
    z = input_node((3,), np.complex128, "z")
    out = apply("sign", z)
    out.loc = ("f.py", 14, "f")
    with pytest.raises(UnsupportedError, match="f.py:14: np.sign of complex"):
        vjp_graph(Graph([z], [out]), [0], [0])
    (x,) = nodes((3, 4))
    full = Graph([x], [item(apply("svd", x, full_matrices=True), 0)])
    for derived in (lambda: vjp_graph(full, [0], [0]), lambda: jvp_graph(full, [0])):
        with pytest.raises(UnsupportedError, match="full_matrices=False"):
            derived()


def test_gradient_of_an_array_is_an_error():
    (x,) = nodes((3,))
    with pytest.raises(ValueError, match="one floating-point number"):
        gradient_graph(Graph([x], [exp(x)]), [0])


@contextmanager
def temporary_op(name, evaluate, infer=lambda x, *_: (x.shape, x.dtype), kind="structural", **rules):
    row(name, kind, infer=infer, evaluate=evaluate, **rules)
    try:
        yield
    finally:
        del OPS[name]


def swap_op(**rules):
    """An op "swap_test" with two results, its arguments exchanged."""
    types = lambda x, y: ((y.shape, x.shape), (y.dtype, x.dtype))  # noqa: E731
    return temporary_op("swap_test", lambda x, y: (y, x), types, **rules)


def test_structural_op_with_own_rules():
    with swap_op(
        vjp_rule=lambda g, out, x, y, wanted: (g[1] if wanted[0] else None, g[0]),
        jvp_rule=lambda t, out, x, y: (t[1], t[0]),
    ):
        x, y = nodes((2,), (2,))
        pair = apply("swap_test", exp(x), y)
        graph = Graph([x, y], [item(pair, 0) * item(pair, 1)])
        check_graph(graph, [RNG.standard_normal(2), RNG.standard_normal(2)])


def test_structural_rules_receive_the_result():
    with temporary_op(
        "root_test",
        np.sqrt,
        vjp_rule=lambda g, out, x, wanted: (g * 0.5 / out,),
        jvp_rule=lambda t, out, x: t[0] * 0.5 / out,
    ):
        check_derivatives(lambda x: apply("root_test", x), np.arange(1.0, 4.0))


def test_structural_rules_receive_masked_gradients_as_nodes():
    """The mask is applied first."""
    seen = []

    def vjp(g, out, x, y, wanted):
        seen.extend(g)
        return g[1], g[0]

    with swap_op(vjp_rule=vjp):
        x, y = nodes((2,), (2,))
        pair = apply("swap_test", x, y)
        graph = Graph([x, y], [where(x > 0.0, item(pair, 0), 0.0)])
        values = [np.array([1.0, -1.0]), np.ones(2), np.ones(2)]
        _, dx, dy = evaluate_graph(vjp_graph(graph, [0, 1], [0]), values)
        np.testing.assert_array_equal(dy, [1.0, 0.0])
        assert not dx.any() and [type(g) for g in seen] == [Node, type(None)]


def test_structural_rule_of_one_argument_receives_masked_gradient():
    with temporary_op("same_test", lambda x: x, vjp_rule=lambda g, out, x, wanted: (g * 2.0,)):
        _, w, (dx,) = derive(lambda x: where(x > 0.0, apply("same_test", x), 0.0), np.array([1.0, -1.0]))
        np.testing.assert_array_equal(dx, [2.0 * w[0], 0.0])


def test_forward_rule_is_transposed_for_each_argument():
    """The gradient of one argument must not stand in for that of another."""

    def jvp(tangents, out, x, y):
        return reduce(add, [t * f for t, f in zip(tangents, (y * y, 2.0 * x * y)) if t is not None])

    with temporary_op("blend_test", lambda x, y: x * y**2, kind="nonlinear", jvp=jvp):
        f = lambda x, y: where(x > 0.0, apply("blend_test", x, y), y)  # noqa: E731
        for wrt in ([0], [1], [0, 1]):
            check_derivatives(f, np.array([1.5, -0.5]), np.array([0.7, 2.0]), wrt=wrt)


def test_masked_gradients_of_tuple_items():
    x = RNG.standard_normal((3, 3)) + 4 * np.eye(3)
    (inp,) = nodes((3, 3))
    q, r = (item(apply("qr", inp), i) for i in range(2))
    out = where(const(np.eye(3) > 0), r, 0.0) + where(const(x > 0), 1.0, q)
    check_graph(Graph([inp], [out]), [x], order=1)


# --- programs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_both_modes_agree_on_random_programs(seed):
    """<cotangent, tangent> = <gradient, direction>, for each program and both of its derivatives."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, 25)
    check_modes_agree(graph, random_arrays(rng, graph), rng, order=2)


def check_modes_agree(graph, values, rng, order):
    direction = [rng.standard_normal(x.shape) for x in graph.inputs]
    outs = [i for i, o in enumerate(graph.outputs) if o.dtype.kind == "f"]
    cotangent = [rng.standard_normal(graph.outputs[i].shape) for i in outs]
    wrt = range(len(graph.inputs))
    forward, reverse = check(jvp_graph(graph, wrt)), check(vjp_graph(graph, wrt, outs))
    n = len(graph.outputs)
    tangent = evaluate_graph(forward, [*values, *direction])[n:]
    gradient = evaluate_graph(reverse, [*values, *cotangent])[n:]
    pairs = [(c, tangent[i]) for c, i in zip(cotangent, outs)], list(zip(gradient, direction))
    left, right = (sum(np.sum(np.asarray(a) * b) for a, b in p) for p in pairs)
    size = sum(np.sum(np.abs(np.asarray(a) * b)) for p in pairs for a, b in p)
    assert abs(left - right) <= 1e-11 * size
    if order > 1:
        for program, more in ((forward, direction), (reverse, cotangent)):
            program = Graph(program.inputs, program.outputs[n:])
            check_modes_agree(program, [*values, *more], rng, order - 1)
