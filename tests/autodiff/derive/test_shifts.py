"""The rules of ops/shifts.py: when m in x - m moves by d, each value changes by its effect."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.derive.shifts import effects_of
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import OPS, apply, const, input_node
from gpt2.autodiff.ops.build import exp, log, reshape, sqrt, square, sum_, take_slice, transpose, where
from gpt2.autodiff.ops.interpret import evaluate_graph
from gpt2.autodiff.ops.shifts import ADD, NotUnderstood

RNG = np.random.default_rng(0)
MASK = const(RNG.random((2, 4, 5)) > 0.4)
INDEX = const(RNG.integers(0, 5, (2, 4, 3)))
RIGHT, LEFT = const(RNG.random((5, 3))), const(RNG.random((3, 5)))


def take(x):
    return apply("take_along", x, INDEX, axis=2)


# s = x - m and e = exp(s) depend on m; y (2, 4, 5) and z (2, 4, 1) do not
WITH_EFFECT = {
    "add": lambda s, e, y, z: (s + y, y + s, s + s, e + e, z + reshape(log(sum_(e, -1)), (2, 4, 1))),
    "subtract": lambda s, e, y, z: (s - z, z - s, s - s, e - e, s - (s * 2.0)),
    "multiply": lambda s, e, y, z: (e * y, y * e, e * e, s * 3.0, s * -1.0),
    "divide": lambda s, e, y, z: (e / y, y / e, e / e, e / sum_(e, -1, keepdims=True), s / 4.0),
    "negative": lambda s, e, y, z: (-s, -e),
    "exp": lambda s, e, y, z: (exp(s), exp(-s)),
    "log": lambda s, e, y, z: (log(e), log(e / y)),
    "square": lambda s, e, y, z: (square(e),),
    "sqrt": lambda s, e, y, z: (sqrt(e),),
    "reciprocal": lambda s, e, y, z: (apply("reciprocal", e),),
    "where": lambda s, e, y, z: (where(MASK, e, 0.0), where(MASK, 0.0, e), where(MASK, s, -np.inf),
                                 where(MASK, e, e)),
    "cast": lambda s, e, y, z: (apply("cast", s, dtype="complex128"),),
    "copy": lambda s, e, y, z: (apply("copy", s),),
    "sum": lambda s, e, y, z: (sum_(e, -1), sum_(e, -1, keepdims=True), sum_(s, -1)),
    "max": lambda s, e, y, z: (apply("max", s, axes=(2,), keepdims=False),
                               apply("max", e, axes=(2,), keepdims=True)),
    "min": lambda s, e, y, z: (apply("min", s, axes=(2,), keepdims=True),),
    "reshape": lambda s, e, y, z: (reshape(s, (2, 1, 4, 5)), reshape(sum_(e, -1), (2, 4, 1))),
    "transpose": lambda s, e, y, z: (transpose(s, (2, 0, 1)), transpose(e, (1, 2, 0))),
    "broadcast": lambda s, e, y, z: (apply("broadcast", s, shape=(3, 2, 4, 5)),),
    "slice": lambda s, e, y, z: (take_slice(s, 2, 1, 5, 2), take_slice(e, 2, 3, None, -1)),
    "take_along": lambda s, e, y, z: (take(s), take(e)),
    "matmul": lambda s, e, y, z: (e @ RIGHT, LEFT @ transpose(e, (0, 2, 1)),
                                  apply("broadcast", e, shape=(3, 2, 4, 5)) @ RIGHT),
    "einsum": lambda s, e, y, z: (apply("einsum", e, RIGHT, subscripts="bte,ec->tcb"),),
    # piecewise constant, so no gradient passes
    "equal": lambda s, e, y, z: (where(apply("equal", s, 0.0), y, z),),
}  # fmt: skip

WITHOUT_EFFECT = {
    "a sum of different effects": lambda s, e, y, z: s + e,
    "a power": lambda s, e, y, z: e**2.5,
    "an added constant": lambda s, e, y, z: e + 1e-3,
    "unequal growth": lambda s, e, y, z: e + e * e,
    "a product of sums": lambda s, e, y, z: s * s,
    "a factor that is an array": lambda s, e, y, z: s * y,
    "one over a sum": lambda s, e, y, z: 1.0 / s,
    "tanh": lambda s, e, y, z: apply("tanh", s),
    "a masked difference": lambda s, e, y, z: where(MASK, s, 0.0),
    "a masked exponential": lambda s, e, y, z: where(MASK, e, 1.0),
    "where of different effects": lambda s, e, y, z: where(MASK, e, e * e),
    "a sum over rows": lambda s, e, y, z: sum_(e, 1),
    "rows merged": lambda s, e, y, z: reshape(s, (8, 5)),
    "some rows": lambda s, e, y, z: take_slice(s, 1, 0, 3),
    "rows taken": lambda s, e, y, z: apply("take_along", s, const(RNG.integers(0, 4, (2, 1, 5))), axis=1),
    "a product over rows": lambda s, e, y, z: const(np.ones((3, 4))) @ e,
    "a product of a sum": lambda s, e, y, z: s @ RIGHT,
    "a product of two": lambda s, e, y, z: e @ transpose(e, (0, 2, 1)),
    "a real part": lambda s, e, y, z: apply(
        "cast", apply("cast", e, dtype="complex128") * 1j, dtype="float64"
    ),
    "einsum over rows": lambda s, e, y, z: apply("einsum", e, RIGHT, subscripts="bte,ec->bc"),
}


def build_graph(build, shape=(2, 4, 5)):
    rows = (*shape[:2], 1)
    x, m = input_node(shape, np.float64, "x"), input_node(rows, np.float64, "m")
    y, z = input_node(shape, np.float64, "y"), input_node(rows, np.float64, "z")
    s = x - m
    outputs = build(s, exp(s), y, z)
    graph = Graph([x, m, y, z], outputs if isinstance(outputs, tuple) else [outputs])
    readers = {}
    for n in graph.nodes:
        for a in set(n.args):
            readers.setdefault(a, []).append(n)
    return graph, m, readers


@pytest.mark.parametrize("op", list(WITH_EFFECT))
def test_values_change_by_their_effect(op):
    graph, m, readers = build_graph(WITH_EFFECT[op])
    effects = effects_of(m, readers)
    every = Graph(graph.inputs, graph.nodes)
    x, y, z, d = (RNG.uniform(0.5, 1.5, shape) for shape in ((2, 4, 5), (2, 4, 5), (2, 4, 1), (2, 4, 1)))
    top = x.max(2, keepdims=True) + 0.3  # so that no entry of s is zero before or after
    before, after = (evaluate_graph(every, [x, m, y, z]) for m in (top, top + d))
    for node, old, new in zip(every.outputs, before, after):
        effect = effects.get(node)
        if effect is None:
            np.testing.assert_allclose(new, old, rtol=1e-12, err_msg=node.op)
            continue
        moved = effect.power * along(d, effect.axes)
        with np.errstate(invalid="ignore"):
            expected = old + moved if effect.kind == ADD else old * np.exp(moved)
        np.testing.assert_allclose(new, expected, rtol=1e-12, atol=1e-12, err_msg=node.op)


def along(d, axes):
    """d (2, 4, 1) broadcast along the axes of a value."""
    row_axes = [a for a in axes if a is not None]
    assert sorted(row_axes) == [0, 1]  # rows are independent
    d = d[:, :, 0].transpose(row_axes)
    lengths = iter(d.shape)
    return d.reshape([1 if a is None else next(lengths) for a in axes])


@pytest.mark.parametrize("name", [*WITHOUT_EFFECT, "other rows, as many"])
def test_other_ops_raise_not_understood(name):
    if name in WITHOUT_EFFECT:
        _, m, readers = build_graph(WITHOUT_EFFECT[name])
    else:
        _, m, readers = build_graph(lambda s, e, y, z: e / transpose(e, (1, 0, 2)), shape=(4, 4, 5))
    with pytest.raises(NotUnderstood):
        effects_of(m, readers)


def test_every_shift_rule_is_tested():
    ruled = {name for name, op in OPS.items() if op.shift is not None}
    assert ruled - {"sum_as_numpy"} <= set(WITH_EFFECT)


def test_what_is_cast_to_integers_stays():
    """m - int(m) rises with m: a whole number stays where it is when m moves a little."""
    x = np.array([1.0, 2.5])
    for f in (lambda x: x.max() - x.max().astype(int), lambda x: x.max() - x.max().astype(int).astype(float)):
        np.testing.assert_array_equal(ad.grad(f)(x), [0.0, 1.0])
        assert ad.jvp(f, (x,), (np.array([3.0, 5.0]),))[1] == 5.0
