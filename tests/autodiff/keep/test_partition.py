"""Keep or recompute: the minimum cut, the values it keeps, and the forward and backward programs."""

import itertools
import math
from functools import partial

import numpy as np
import pytest

import gpt2.autodiff.custom.call  # noqa: F401  its ops enter the table
from gpt2.autodiff import passes
from gpt2.autodiff.derive.differentiate import vjp_graph
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.keep.maxflow import UNLIMITED, Network
from gpt2.autodiff.keep.partition import PRECISION, _Problem, partition
from gpt2.autodiff.ops import apply, build, const, cost, input_node
from gpt2.autodiff.ops.build import exp, log, reshape, sqrt, sum_, swap_last, tanh, transpose
from gpt2.autodiff.ops.interpret import check, evaluate_graph
from gpt2.autodiff.ops.table import root
from gpt2.autodiff.switches import Options
from tests.support.random.graphs import random_arrays, random_graph

B, T, C, V = 8, 64, 256, 1024


def simplify(graph):
    return passes.simplify(graph, Options(math="fast"))


# --- the minimum cut ----------------------------------------------------------------------------------------


def test_cut_of_random_networks_is_minimal():
    """Against all cuts of the network. Of several minimum cuts, the one with the largest source side."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        n = 7
        pairs = [pair for pair in itertools.permutations(range(n), 2) if rng.random() < 0.4]
        edges = [(*pair, int(rng.integers(1, 10))) for pair in pairs]
        net = Network(n)
        for a, b, capacity in edges:
            net.edge(a, b, capacity)
        sides = [{0, *(i for i in range(1, n - 1) if k >> (i - 1) & 1)} for k in range(2 ** (n - 2))]
        best = min(sides, key=lambda side: (across(edges, side), -len(side)))
        assert net.cut(0, n - 1) == best


def across(edges, side):
    return sum(c for a, b, c in edges if a in side and b not in side)


def test_cut_of_a_long_chain():
    """Ten thousand nodes: neither recursion nor quadratic work."""
    n = 10_000
    net = Network(n)
    for i in range(n - 1):
        net.edge(i, i + 1, 5 if i == 7_000 else 9)
        net.edge(i + 1, i, UNLIMITED)
    assert net.cut(0, n - 1) == set(range(7_001))


# --- keep or recompute as a cut -----------------------------------------------------------------------------


def cost_of_choice(problem, needed, recomputed, rate):
    """By the definition in partition.py; infinite if the choice is infeasible."""
    total = 0
    seeds = set(problem.seeds)
    for n in problem.values:
        args = problem._arguments(n)
        if n in seeds and not needed[n]:
            return math.inf
        if recomputed[n]:
            if not all(needed[a] for a in args):
                return math.inf
            if n in problem.primal:
                total += round(PRECISION * cost.nanoseconds(n))
        else:
            total += problem._keep(n, rate) if needed[n] else 0
            computed_twice = [a for a in args if recomputed[a] and a not in problem.primal]
            total += sum(round(PRECISION * cost.nanoseconds(a)) for a in computed_twice)
    return total


def test_solve_finds_the_cheapest_choice():
    """Against all choices, on programs with few values, at rates from almost nothing to prohibitive."""
    tried = 0
    graphs = [*two_op_programs(), *(random_graph(np.random.default_rng(seed), 12) for seed in range(60))]
    joints = [simplify(vjp_graph(g, range(len(g.inputs)), [0])) for g in graphs]
    problems = [_Problem(joint, len(g.inputs), len(g.outputs)) for g, joint in zip(graphs, joints)]
    for problem in [*problems, _Problem(shared_factor_program(), 2, 1)]:
        if not 2 <= len(problem.values) <= 6:
            continue
        values = problem.values
        sets = [dict(zip(values, x)) for x in itertools.product((0, 1), repeat=len(values))]
        for rate in (0.001, 0.03, 0.1, 0.18, 0.3, 3.0):
            kept = problem.solve(rate)
            best = min(cost_of_choice(problem, a, b, rate) for a in sets for b in sets)
            assert cost_of_choice(problem, *choice(problem, kept), rate) == best
        tried += 1
    assert tried >= 10


def two_op_programs():
    """Their backwards need derivatives of the ops, which the forwards do not compute."""
    x = input_node((40, 50), "float32", "x")
    w = input_node((50, 50), "float32", "w")
    yield Graph([x], [tanh(apply("sin", x))])
    yield Graph([x], [tanh(exp(x) * 2.0) * x])
    yield Graph([x, w], [tanh(x @ w)])
    yield Graph([x, w], [apply("sin", tanh(x @ w)) @ w])


def shared_factor_program():
    """A joint program whose backward needs cos(x), and sums of cos(x) times an expensive value."""
    x, dout = (input_node((40, 50), "float32", name) for name in ("x", "dout"))
    w = input_node((50, 50), "float32", "w")
    y = tanh(x @ w)
    slope = apply("cos", x)
    return Graph([x, w, dout], [sum_(y, (0, 1)), dout * slope, dout * sum_(slope * y, 1, True)])


def choice(problem, kept):
    """Which values are needed and which recomputed, given the kept ones."""
    needed = dict.fromkeys(problem.values, False)
    recomputed = dict(needed)
    needed.update((n, True) for n in problem.seeds)
    for n in reversed(problem.values):
        recomputed[n] = needed[n] and n not in kept
        if recomputed[n]:
            needed.update((a, True) for a in problem._arguments(n))
    return needed, recomputed


# --- forward and backward programs --------------------------------------------------------------------------


NOTHING = 1e6  # a rate at which only what cannot be computed again is kept


def split(f, shapes, dtype="float32", wrt=None, **options):
    """joint, fwd, bwd and saved of a function of nodes."""
    inputs = [input_node(s, dtype, name) for s, name in zip(shapes, "xyzuvw")]
    graph = simplify(Graph(inputs, [f(*inputs)]))
    joint = simplify(vjp_graph(graph, range(len(shapes)) if wrt is None else wrt, [0]))
    return joint, *partition(joint, len(inputs), 1, **options)


def saved_ops(saved):
    """Op and shape of each saved value that is not an input."""
    return sorted((n.op, n.shape) for n in saved if n.op != "input")


@pytest.mark.parametrize("rate", [cost.NS_PER_BYTE, 2.0, NOTHING])
def test_split_programs_equal_the_joint_program(rate):
    """To the last bit: they consist of the same operations."""
    for seed in range(50):
        rng = np.random.default_rng(seed)
        graph = random_graph(rng, 25)
        arrays = random_arrays(rng, graph)
        joint = vjp_graph(graph, range(4), [0, 1])
        joint = simplify(joint) if seed % 2 else joint
        fwd, bwd, saved = partition(joint, 4, 4, rate)
        cts = [rng.standard_normal(o.shape) for o in graph.outputs[:2]]
        with np.errstate(all="ignore"):
            first = evaluate_graph(check(fwd), arrays)
            grads = evaluate_graph(check(bwd), [*first[4:], *cts])
            want = evaluate_graph(joint, [*arrays, *cts])
        assert len(saved) == len(first) - 4 == len(bwd.inputs) - 2
        for got, expected in zip([*first[:4], *grads], want, strict=True):
            np.testing.assert_array_equal(got, expected)
        handed_out = {root(o).id for o in joint.outputs[:4]}
        exempt = ("input", "equal", "not_equal", "less", "greater")  # comparisons are kept at any rate
        counted = [n for n in saved if n.op not in exempt and n.id not in handed_out]
        assert rate < NOTHING or not counted


def test_partition_is_deterministic():
    texts = set()
    for _ in range(3):
        _, fwd, bwd, _ = split(layernorm, [(B, T, C), (C,), (C,)])
        texts.add(f"{fwd}\n{bwd}")
    assert len(texts) == 1


def test_recomputation_is_placed_next_to_its_use():
    """Not at the start of the backward, where the value would take memory until it is used."""

    def two(x, w, b, m):
        return layernorm(layernorm(x, w, b) @ m, w, b)

    _, _, bwd, _ = split(two, [(B, T, C), (C,), (C,), (C, C)], wrt=[0])
    x = bwd.inputs[0]
    centred = next(n for n in bwd.nodes if x in n.args and n.op == "subtract")
    product = next(n for n in bwd.nodes if n.op == "matmul")
    assert centred.id > product.id


def test_values_saved_for_the_backward_alone_are_computed_early():
    """As soon as their arguments are, not after the rest of the forward."""

    def f(x, w):
        return (gelu(x @ w) @ w) @ w

    _, fwd, _, saved = split(f, [(B * T, C), (C, C)])
    index = next(i for i, n in enumerate(saved) if n.op == "add")
    derivative = fwd.outputs[1 + index]
    assert derivative.op == "add"
    second_matmul = [k for k, n in enumerate(fwd.nodes) if n.op == "matmul"][1]
    assert fwd.nodes.index(derivative) < second_matmul


# --- which values are kept ----------------------------------------------------------------------------------


def layernorm(x, weight, bias):
    centred = x - sum_(x, 2, True) / float(C)
    rstd = 1.0 / sqrt(sum_(centred * centred, 2, True) / float(C) + 1e-5)
    return centred * rstd * weight + bias


def test_layernorm_keeps_two_numbers_per_row():
    """The mean and the reciprocal standard deviation; the normalized rows are cheaper to recompute."""
    _, _, bwd, saved = split(layernorm, [(B, T, C), (C,), (C,)])
    assert saved_ops(saved) == [("divide", (B, T, 1)), ("multiply", (B, T, 1))]
    assert {n.op for n in bwd.nodes} <= {"input", "const", "multiply", "subtract", "sum", "add", "negative"}


def test_layernorm_within_a_model_keeps_one_array():
    """Where layernorm's input is not kept anyway: the centred rows, but not the input as well."""
    f = lambda x, w, b, m: tanh(layernorm(tanh(x) @ m, w, b))  # noqa: E731
    _, _, _, saved = split(f, [(B, T, C), (C,), (C,), (C, C)])
    arrays = [n for n in saved if n.op != "input" and n.size == B * T * C]
    assert len(arrays) <= 2  # one for layernorm, at most one more for a tanh


def crossentropy(logits, onehot):
    largest = apply("max", logits, axes=(2,), keepdims=True)
    total = sum_(exp(logits - largest), 2, True)
    return log(total) - (sum_(logits * onehot, 2, True) - largest)


def test_crossentropy_keeps_no_array_as_large_as_the_logits():
    _, _, bwd, saved = split(crossentropy, [(B, T, V), (B, T, V)], wrt=[0])
    assert all(shape == (B, T, 1) for _, shape in saved_ops(saved))
    assert [n.op for n in bwd.nodes].count("exp") == 1


def gelu(x):
    return 0.5 * x * (1.0 + tanh(0.7978845608028654 * x * (1.0 + 0.044715 * x * x)))


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, 1),
        ({"rate": 100.0}, 0),
        ({"rate": 100.0, "ample": B * T * C * 4}, 1),  # just fits: the rate is ignored
        ({"rate": 100.0, "ample": B * T * C * 4 - 1}, 0),
    ],
)
def test_gelu_keeps_its_derivative_or_nothing(options, kept):
    """The forward, which has computed tanh, computes the derivative; if it is not kept, the backward does."""
    _, _, bwd, saved = split(gelu, [(B, T, C)], **options)
    assert len(saved_ops(saved)) == kept
    assert ("tanh" in {n.op for n in bwd.nodes}) == (kept == 0)


def test_the_base_of_a_view_is_kept():
    def f(x, w):
        y = tanh(x @ w)
        heads = transpose(reshape(y, (B, T, 4, C // 4)), (0, 2, 1, 3))
        return heads @ swap_last(heads)

    _, _, bwd, saved = split(f, [(B * T, C), (C, C)])
    assert saved_ops(saved) == [("tanh", (B * T, C))]
    assert {"reshape", "transpose"} <= {n.op for n in bwd.nodes}


def test_matrix_products_are_recomputed_only_at_a_high_rate():
    def f(x, w):
        return tanh(tanh(x @ w) @ w)

    backwards = [split(f, [(B * T, C), (C, C)], rate=rate)[2] for rate in (cost.NS_PER_BYTE, NOTHING)]
    counts = [[n.op for n in bwd.nodes].count("matmul") for bwd in backwards]
    assert counts[0] == 4  # of the gradients alone
    assert counts[1] > 4


def test_blocks_of_a_kept_array_are_not_kept():
    """The backward takes slices of the array."""

    def f(x, w):
        blocks = [tanh(build.take_slice(x, 0, i, i + 4)) for i in (0, 4)]
        whole = build.concatenate(blocks, 0)
        norms = build.concatenate([tanh(sum_(b * b, 1, True)) for b in blocks], 0)
        return (whole @ w) * norms

    joint, fwd, bwd, saved = split(f, [(8, C), (C, C)])
    assert ("assemble", (8, C)) in saved_ops(saved)
    assert not [shape for _, shape in saved_ops(saved) if shape == (4, C)]
    assert not [n for n in bwd.nodes if n.op == "tanh" and n.shape == (4, C)]
    rng = np.random.default_rng(0)
    x, w, ct = (rng.standard_normal(s).astype("float32") for s in ((8, C), (C, C), (8, C)))
    first = evaluate_graph(fwd, [x, w])
    for got, want in zip(evaluate_graph(bwd, [*first[1:], ct]), evaluate_graph(joint, [x, w, ct])[1:]):
        np.testing.assert_array_equal(got, want)


def test_keeping_a_result_costs_nothing():
    """The caller holds it anyway, so exp keeps its result and nothing else."""
    joint, fwd, _, saved = split(exp, [(B, T, C)])
    assert saved == joint.outputs[:1]
    assert fwd.outputs[0] is fwd.outputs[1]


def test_items_of_a_tuple_result_are_kept():
    def f(x):
        pair = apply("slogdet", x @ swap_last(x))
        return build.item(pair, 1) * 2.0

    _, _, _, saved = split(f, [(5, 4, 4)], dtype="float64")
    assert all(not isinstance(n.dtype, tuple) for n in saved)


@pytest.mark.parametrize("rate", [cost.NS_PER_BYTE, NOTHING])
def test_callback_results_are_kept_at_any_rate(rate):
    """A second run of user code may give something else, such as other random numbers."""

    def f(x):
        noise = apply("host", x, function=np.sin, shapes=(x.shape,), dtypes=(x.dtype,))
        return tanh(x) * build.item(noise, 0)

    x, dout = (input_node((B, C), "float64", name) for name in ("x", "dout"))
    y = f(x)
    noise = y.args[1]
    _, bwd, saved = partition(Graph([x, dout], [y, dout * noise]), 1, 1, rate)
    assert "host" not in {n.op for n in bwd.nodes}
    assert noise in saved


def test_zero_gradient_and_constant_need_no_saved_value():
    x, y = (input_node((3,), "float64", name) for name in "xy")
    joint = vjp_graph(Graph([x, y], [x * const(np.arange(3.0))]), [0, 1], [0])
    fwd, bwd, saved = partition(joint, 2, 1)
    assert saved == () and len(bwd.inputs) == 1
    (dx, dy) = evaluate_graph(bwd, [np.ones(3)])
    np.testing.assert_array_equal(dx, np.arange(3.0))
    np.testing.assert_array_equal(dy, np.zeros(3))


def test_comparison_with_a_maximum_is_not_recomputed():
    """Recomputed values may be rounded differently: then no element might equal the maximum."""
    maximum = partial(apply, "max", axes=(1,), keepdims=False)
    _, _, bwd, saved = split(lambda x: sum_(maximum(apply("cbrt", x)), (0,)), [(30, 50)], rate=NOTHING)
    assert ("less", (30, 50)) in saved_ops(saved)
    assert not {"less", "greater"} & {n.op for n in bwd.nodes}


# --- estimates ----------------------------------------------------------------------------------------------


def test_estimates():
    x, w = input_node((100, 50), "float32"), input_node((50, 20), "float32")
    product = x @ w
    assert cost.nanoseconds(product) == 2 * 100 * 50 * 20 / cost.GFLOPS
    assert cost.nanoseconds(apply("einsum", x, w, subscripts="ij,jk->ik")) == cost.nanoseconds(product)
    assert cost.nanoseconds(transpose(x, (1, 0))) == 0
    assert cost.nanoseconds(tanh(x)) > cost.nanoseconds(x + x) > 0
    assert x.nbytes == 100 * 50 * 4
