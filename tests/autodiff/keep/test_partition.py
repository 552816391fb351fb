"""Keep or recompute: the minimum cut, what it chooses, and the two programs it makes."""

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
from tests.support.random_graphs import random_arrays, random_graph

B, T, C, V = 8, 64, 256, 1024


def simplify(graph):
    """As the engine asks for it."""
    return passes.simplify(graph, Options(math="fast"))


# --- the flow -----------------------------------------------------------------------------------------------


def test_cut_of_random_networks():
    """Against trying every cut. Of several minimum cuts it is the largest: the answer is always the same."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        n = 7
        edges = [
            (a, b, int(rng.integers(1, 10)))
            for a in range(n)
            for b in range(n)
            if a != b and rng.random() < 0.4
        ]
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


# --- the model ----------------------------------------------------------------------------------------------


def energy(problem, needed, again, rate):
    """What a choice costs, straight from the definition; infinite where it cannot be carried out."""
    total = 0
    seeds = {n.id for n in problem.seeds}
    for n in problem.values:
        args = [a.id for a in problem._arguments(n)]
        if n.id in seeds and not needed[n.id]:
            return math.inf
        if needed[n.id] and not again[n.id]:
            total += problem._keep(n, rate)
        if again[n.id]:
            if not all(needed[a] for a in args):
                return math.inf
            if n.id in problem.primal:
                total += round(PRECISION * cost.nanoseconds(n))
        if not again[n.id]:
            twice = [a for a in problem._arguments(n) if again[a.id] and a.id not in problem.primal]
            total += sum(round(PRECISION * cost.nanoseconds(a)) for a in twice)
    return total


def test_the_cut_is_the_cheapest_choice():
    """Against trying every choice, on programs with few values, at rates from free to forbidding."""
    tried = 0
    graphs = [*small_programs(), *(random_graph(np.random.default_rng(seed), 12) for seed in range(60))]
    joints = [simplify(vjp_graph(g, range(len(g.inputs)), [0])) for g in graphs]
    problems = [_Problem(joint, len(g.inputs), len(g.outputs)) for g, joint in zip(graphs, joints)]
    for problem in [*problems, _Problem(shared_derivative(), 2, 1)]:
        ids = [n.id for n in problem.values]
        if not 2 <= len(ids) <= 6:
            continue
        for rate in (0.001, 0.03, 0.1, 0.18, 0.3, 3.0):
            kept = problem.solve(rate)
            best = min(
                energy(problem, dict(zip(ids, a)), dict(zip(ids, b)), rate)
                for a in itertools.product((0, 1), repeat=len(ids))
                for b in itertools.product((0, 1), repeat=len(ids))
            )
            assert energy(problem, *choice(problem, kept), rate) == best
        tried += 1
    assert tried >= 10


def small_programs():
    """With values that only the backward wants: derivatives of functions, made from one another."""
    x = input_node((40, 50), "float32", "x")
    w = input_node((50, 50), "float32", "w")
    yield Graph([x], [tanh(apply("sin", x))])
    yield Graph([x], [tanh(exp(x) * 2.0) * x])
    yield Graph([x, w], [tanh(x @ w)])
    yield Graph([x, w], [apply("sin", tanh(x @ w)) @ w])


def shared_derivative():
    """A joint program whose backward wants cos(x) and, besides, sums of cos(x) times something expensive."""
    x, dout = (input_node((40, 50), "float32", name) for name in ("x", "dout"))
    w = input_node((50, 50), "float32", "w")
    y = tanh(x @ w)
    slope = apply("cos", x)
    return Graph([x, w, dout], [sum_(y, (0, 1)), dout * slope, dout * sum_(slope * y, 1, True)])


def choice(problem, kept):
    """needed and recomputed, as they follow from what is kept."""
    needed = {n.id: 0 for n in problem.values}
    again = dict(needed)
    for n in problem.seeds:
        needed[n.id] = 1
    for n in reversed(problem.values):
        of_args = [again[a.id] for a in problem._arguments(n) if a.id not in problem.primal]
        again[n.id] = int((needed[n.id] and n.id not in kept) or 0)
        if again[n.id]:
            for a in problem._arguments(n):
                needed[a.id] = 1
        del of_args
    return needed, again


# --- the two programs ---------------------------------------------------------------------------------------


def halves(f, shapes, budget=None, dtype="float32", wrt=None):
    """joint, fwd, bwd and saved of a function of nodes."""
    inputs = [input_node(s, dtype, name) for s, name in zip(shapes, "xyzuvw")]
    graph = simplify(Graph(inputs, [f(*inputs)]))
    joint = simplify(vjp_graph(graph, range(len(shapes)) if wrt is None else wrt, [0]))
    return joint, *partition(joint, len(inputs), 1, budget)


def saved_ops(saved):
    """What is kept beside the inputs: op and shape."""
    return sorted((n.op, n.shape) for n in saved if n.op != "input")


@pytest.mark.parametrize("budget", [None, 200, 0])
def test_the_halves_compute_what_the_whole_does(budget):
    """To the last bit: they are made of the same operations."""
    for seed in range(50):
        rng = np.random.default_rng(seed)
        graph = random_graph(rng, 25)
        arrays = random_arrays(rng, graph)
        joint = vjp_graph(graph, range(4), [0, 1])
        joint = simplify(joint) if seed % 2 else joint
        fwd, bwd, saved = partition(joint, 4, 4, budget)
        cts = [rng.standard_normal(o.shape) for o in graph.outputs[:2]]
        with np.errstate(all="ignore"):
            first = evaluate_graph(check(fwd), arrays)
            grads = evaluate_graph(check(bwd), [*first[4:], *cts])
            want = evaluate_graph(joint, [*arrays, *cts])
        assert len(saved) == len(first) - 4 == len(bwd.inputs) - 2
        for got, expected in zip([*first[:4], *grads], want, strict=True):
            np.testing.assert_array_equal(got, expected)
        handed_out = {root(o).id for o in joint.outputs[:4]}
        answers = ("equal", "not_equal", "less", "greater")  # kept whatever they cost
        priced = [n for n in saved if n.op not in ("input", *answers)]
        kept = sum(n.nbytes for n in priced if n.id not in handed_out)
        assert budget is None or kept <= budget


def test_the_choice_is_always_the_same():
    texts = set()
    for _ in range(3):
        _, fwd, bwd, _ = halves(layernorm, [(B, T, C), (C,), (C,)])
        texts.add(f"{fwd}\n{bwd}")
    assert len(texts) == 1


def test_what_is_computed_again_stands_beside_its_use():
    """Not at the start of the backward, where it would lie in memory until it is wanted."""

    def two(x, w, b, m):
        return layernorm(layernorm(x, w, b) @ m, w, b)

    _, _, bwd, _ = halves(two, [(B, T, C), (C,), (C,), (C, C)], wrt=[0])
    x = bwd.inputs[0]
    centred = next(n for n in bwd.nodes if x in n.args and n.op == "subtract")
    product = next(n for n in bwd.nodes if n.op == "matmul")
    assert centred.id > product.id


def test_what_the_backward_alone_wants_is_made_early():
    """Where its arguments are at hand, not after the rest of the forward."""

    def f(x, w):
        return (gelu(x @ w) @ w) @ w

    _, fwd, _, saved = halves(f, [(B * T, C), (C, C)])
    ops = [n.op for n in fwd.nodes]
    derivative = next(n for n in saved if n.op == "add")
    assert fwd.outputs[1 + saved.index(derivative)].op == "add"
    second = [k for k, op in enumerate(ops) if op == "matmul"][1]
    assert fwd.nodes.index(fwd.outputs[1 + saved.index(derivative)]) < second


# --- choices ------------------------------------------------------------------------------------------------


def layernorm(x, weight, bias):
    centred = x - sum_(x, 2, True) / float(C)
    rstd = 1.0 / sqrt(sum_(centred * centred, 2, True) / float(C) + 1e-5)
    return centred * rstd * weight + bias


def test_layernorm_keeps_two_numbers_a_row():
    """The mean and the reciprocal deviation; the normalised rows are cheaper computed again than kept."""
    _, _, bwd, saved = halves(layernorm, [(B, T, C), (C,), (C,)])
    assert saved_ops(saved) == [("divide", (B, T, 1)), ("multiply", (B, T, 1))]
    assert {n.op for n in bwd.nodes} <= {"input", "const", "multiply", "subtract", "sum", "add", "negative"}


def test_layernorm_within_a_model_keeps_one_array():
    """Where the rows are not there anyway: the centred ones, not these and the rows as well."""
    _, _, _, saved = halves(
        lambda x, w, b, m: tanh(layernorm(tanh(x) @ m, w, b)), [(B, T, C), (C,), (C,), (C, C)]
    )
    arrays = [n for n in saved if n.op != "input" and n.size == B * T * C]
    assert len(arrays) <= 2  # one for layernorm; tanh of x or of its result may be another


def crossentropy(logits, onehot):
    largest = apply("max", logits, axes=(2,), keepdims=True)
    total = sum_(exp(logits - largest), 2, True)
    return log(total) - (sum_(logits * onehot, 2, True) - largest)


def test_crossentropy_keeps_nothing_of_the_size_of_the_logits():
    _, _, bwd, saved = halves(crossentropy, [(B, T, V), (B, T, V)], wrt=[0])
    assert all(shape == (B, T, 1) for _, shape in saved_ops(saved))
    assert [n.op for n in bwd.nodes].count("exp") == 1


def gelu(x):
    return 0.5 * x * (1.0 + tanh(0.7978845608028654 * x * (1.0 + 0.044715 * x * x)))


def test_gelu_keeps_its_derivative_or_nothing():
    """With tanh at hand the forward makes the whole derivative; under a budget the backward does."""
    _, _, bwd, saved = halves(gelu, [(B, T, C)])
    assert len(saved_ops(saved)) == 1
    assert "tanh" not in {n.op for n in bwd.nodes}
    _, _, bwd, saved = halves(gelu, [(B, T, C)], budget=0)
    assert saved_ops(saved) == []
    assert "tanh" in {n.op for n in bwd.nodes}


def test_a_costly_rate_keeps_nothing():
    inputs = [input_node((B, T, C), "float32", "x")]
    joint = simplify(vjp_graph(simplify(Graph(inputs, [gelu(*inputs)])), [0], [0]))
    _, _, saved = partition(joint, 1, 1, rate=100.0)
    assert saved_ops(saved) == []


def test_a_costly_rate_does_not_count_where_there_is_ample_memory():
    inputs = [input_node((B, T, C), "float32", "x")]
    joint = simplify(vjp_graph(simplify(Graph(inputs, [gelu(*inputs)])), [0], [0]))
    _, _, saved = partition(joint, 1, 1, rate=100.0, ample=B * T * C * 4)
    assert len(saved_ops(saved)) == 1
    _, _, saved = partition(joint, 1, 1, rate=100.0, ample=B * T * C * 4 - 1)
    assert saved_ops(saved) == []


def test_views_are_not_kept_but_what_they_view():
    def f(x, w):
        y = tanh(x @ w)
        heads = transpose(reshape(y, (B, T, 4, C // 4)), (0, 2, 1, 3))
        return heads @ swap_last(heads)

    _, _, bwd, saved = halves(f, [(B * T, C), (C, C)])
    assert saved_ops(saved) == [("tanh", (B * T, C))]
    assert {"reshape", "transpose"} <= {n.op for n in bwd.nodes}


def test_products_are_computed_again_only_under_pressure():
    def f(x, w):
        return tanh(tanh(x @ w) @ w)

    array = 4 * B * T * C
    counts = [products(halves(f, [(B * T, C), (C, C)], budget)[2]) for budget in (None, array, 0)]
    assert counts[0] == 4  # of the gradients alone
    assert counts == sorted(counts) and counts[-1] > 4


def products(graph):
    return [n.op for n in graph.nodes].count("matmul")


def test_budgets_are_kept_and_used():
    """A deep program is recomputed layer by layer."""

    def stack(x, w):
        for _ in range(8):
            x = x + tanh(x @ w)
        return x

    array = 4 * B * T * C
    for arrays in (7, 5, 3):
        _, _, _, saved = halves(stack, [(B * T, C), (C, C)], budget=arrays * array)
        kept = sum(n.nbytes for n in saved if n.op != "input")
        assert (arrays - 1) * array <= kept <= arrays * array


def test_parts_are_cut_from_the_whole():
    """Blocks that are assembled into an array that is kept are not kept beside it."""

    def f(x, w):
        blocks = [tanh(build.take_slice(x, 0, i, i + 4)) for i in (0, 4)]
        whole = build.concatenate(blocks, 0)
        norms = build.concatenate([tanh(sum_(b * b, 1, True)) for b in blocks], 0)
        return (whole @ w) * norms

    joint, fwd, bwd, saved = halves(f, [(8, C), (C, C)])
    assert ("assemble", (8, C)) in saved_ops(saved)
    assert not [shape for _, shape in saved_ops(saved) if shape == (4, C)]
    assert not [n for n in bwd.nodes if n.op == "tanh" and n.shape == (4, C)]
    rng = np.random.default_rng(0)
    x, w, ct = (rng.standard_normal(s).astype("float32") for s in ((8, C), (C, C), (8, C)))
    first = evaluate_graph(fwd, [x, w])
    for got, want in zip(evaluate_graph(bwd, [*first[1:], ct]), evaluate_graph(joint, [x, w, ct])[1:]):
        np.testing.assert_array_equal(got, want)


def test_results_are_free():
    """The caller holds them, so exp keeps its result and nothing else."""
    joint, fwd, _, saved = halves(exp, [(B, T, C)])
    assert saved == joint.outputs[:1]
    assert fwd.outputs[0] is fwd.outputs[1]


def test_of_several_results_the_items_are_kept():
    def f(x):
        pair = apply("slogdet", x @ swap_last(x))
        return build.item(pair, 1) * 2.0

    _, _, _, saved = halves(f, [(5, 4, 4)], dtype="float64")
    assert all(not isinstance(n.dtype, tuple) for n in saved)


@pytest.mark.parametrize("budget", [None, 0])
def test_code_of_the_users_does_not_run_twice(budget):
    """It may draw random numbers, so what it gave is kept whatever the budget."""

    def f(x):
        noise = apply("host", x, function=np.sin, shapes=(x.shape,), dtypes=(x.dtype,))
        return tanh(x) * build.item(noise, 0)

    x, dout = (input_node((B, C), "float64", name) for name in ("x", "dout"))
    y = f(x)
    noise = y.args[1]
    _, bwd, saved = partition(Graph([x, dout], [y, dout * noise]), 1, 1, budget)
    assert "host" not in {n.op for n in bwd.nodes}
    assert noise in saved


def test_a_gradient_that_no_cotangent_reaches():
    """Zeros need no forward value, and a constant is no input."""
    x, y = (input_node((3,), "float64", name) for name in "xy")
    joint = vjp_graph(Graph([x, y], [x * const(np.arange(3.0))]), [0, 1], [0])
    fwd, bwd, saved = partition(joint, 2, 1)
    assert saved == () and len(bwd.inputs) == 1
    (dx, dy) = evaluate_graph(bwd, [np.ones(3)])
    np.testing.assert_array_equal(dx, np.arange(3.0))
    np.testing.assert_array_equal(dy, np.zeros(3))


# --- estimates ----------------------------------------------------------------------------------------------


def test_estimates():
    x, w = input_node((100, 50), "float32"), input_node((50, 20), "float32")
    product = x @ w
    assert cost.nanoseconds(product) == 2 * 100 * 50 * 20 / cost.GFLOPS
    assert cost.nanoseconds(apply("einsum", x, w, subscripts="ij,jk->ik")) == cost.nanoseconds(product)
    assert cost.nanoseconds(transpose(x, (1, 0))) == 0
    assert cost.nanoseconds(tanh(x)) > cost.nanoseconds(x + x) > 0
    assert cost.nbytes(x) == 100 * 50 * 4


def test_whether_an_element_beats_the_largest_is_not_computed_again():
    """What is computed again may be rounded otherwise: no element would then be as large as the largest."""
    largest = partial(apply, "max", axes=(1,), keepdims=False)
    _, _, bwd, saved = halves(lambda x: sum_(largest(apply("cbrt", x)), (0,)), [(30, 50)], budget=0)
    assert ("less", (30, 50)) in saved_ops(saved)
    assert not {"less", "greater"} & {n.op for n in bwd.nodes}
