"""Repeated parts of a program are outlined: made calls of one function that give the same bits."""

import numpy as np
import pytest

from bench.growth import PROGRAMS
from gpt2 import autodiff as ad
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops.interpret import evaluate_graph
from gpt2.autodiff.passes import alike, simplify
from gpt2.autodiff.pipeline import Pipeline
from gpt2.autodiff.record.record import record
from gpt2.autodiff.switches import Options
from gpt2.backward import options_for
from gpt2.model import GPT2, GPT2Config

WITHOUT = {"alike"}


def graph_of(f, *args) -> Graph:
    return record(f, args).graph


def calls(graph: Graph) -> list:
    return [n for n in graph.nodes if n.op == "outlined"]


def bodies(graph: Graph) -> set:
    return {n.attrs["body"] for n in calls(graph)}


def outlined(f, *args) -> Graph:
    return alike.outline(graph_of(f, *args), simplify)


def gradients(f, args, wrt=0):
    """Value and gradients, compiled with outlining and without."""
    results = []
    for off in ((), WITHOUT):
        with ad.options(off=off):
            results.append(ad.tree.leaves(ad.value_and_grad(f, wrt)(*args)))
    return results


def assert_same(f, args, wrt=0):
    for got, want in zip(*gradients(f, args, wrt), strict=True):
        np.testing.assert_array_equal(got, want, strict=True)


def assert_flat_is_the_same(outlined_graph, f, args):
    """Inlined again, the graph computes what f does."""
    flat = evaluate_graph(alike.flat(outlined_graph), args)
    for got, want in zip(flat, evaluate_graph(graph_of(f, *args), args), strict=True):
        np.testing.assert_array_equal(got, want)


def blocks(n, width=8):
    """n blocks of twenty operations; their weights are slices of stacked arrays, as in a deep model."""

    def f(x, w, b):
        for k in range(n):
            h = x - x.mean(axis=-1, keepdims=True)
            h = h / np.sqrt((h * h).mean(axis=-1, keepdims=True) + 1e-5)
            h = np.tanh(h @ w[k].T + b[k])
            h = h * np.exp(-h) + np.sin(h) * np.cos(h) / (1.0 + h * h)
            x = x + 0.5 * h
        return (x * x).sum()

    rng = np.random.default_rng(n)
    shapes = (5, width), (n, width, width), (n, width)
    return f, tuple(rng.normal(size=s) for s in shapes)


# ---- What is outlined --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [16, 40])
def test_blocks_of_a_model_become_calls_of_one_function(n):
    f, args = blocks(n)
    graph = outlined(f, *args)
    assert len(bodies(graph)) == 1 and len(calls(graph)) >= 3
    assert_flat_is_the_same(graph, f, args)


def test_stretch_ends_where_the_fewest_values_are_live():
    f, args = blocks(20)
    (body,) = bodies(outlined(f, *args))
    assert len(body.outputs) == 1 and body.outputs[0].shape == args[0].shape  # x alone


def test_body_does_not_grow_with_the_depth_of_a_model():
    """Outside of it each block leaves its call and the slices of its weights."""
    sizes = []
    for n in (16, 64):
        f, args = blocks(n)
        graph = outlined(f, *args)
        (body,) = bodies(graph)
        sizes.append((len(body.nodes), len(graph.nodes) / n))
    (body_16, per_block_16), (body_64, per_block_64) = sizes
    assert body_64 < 3 * body_16
    assert per_block_64 <= per_block_16


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chain", "affine", "matrices", "views", "deep_views", "branches", "dots"])
def test_steps_of_a_loop_become_a_few_calls(name):
    f, args = PROGRAMS[name](2000)
    graph = outlined(f, *args)
    before = len(graph_of(f, *args).nodes)
    assert len(bodies(graph)) == 1
    (body,) = bodies(graph)
    assert len(graph.nodes) + len(body.nodes) < before / 4


@pytest.mark.parametrize("name", ["chain", "matrices"])
def test_nodes_grow_slower_than_steps(name):
    sizes = []
    for n in (1000, 4000):
        f, args = PROGRAMS[name](n)
        graph = outlined(f, *args)
        (body,) = bodies(graph)
        sizes.append(len(graph.nodes) + len(body.nodes))
    assert sizes[1] < 2.5 * sizes[0]


def runge_kutta(steps, dt=0.01):
    """A pendulum driven by a force that depends on time."""

    def slope(t, x, v):
        return v, -np.sin(x) - 0.1 * v + 0.3 * np.cos(2.0 * t)

    def f(x, v):
        for k in range(steps):
            t = k * dt
            a, b = slope(t, x, v)
            c, d = slope(t + dt / 2, x + dt / 2 * a, v + dt / 2 * b)
            e, g = slope(t + dt / 2, x + dt / 2 * c, v + dt / 2 * d)
            h, i = slope(t + dt, x + dt * e, v + dt * g)
            x = x + dt / 6 * (a + 2 * c + 2 * e + h)
            v = v + dt / 6 * (b + 2 * d + 2 * g + i)
        return (x * x + v * v).sum()

    return f, (np.linspace(0.1, 1.0, 4), np.linspace(-1.0, 1.0, 4))


@pytest.mark.slow
def test_a_thousand_runge_kutta_steps_share_one_body():
    """What depends on time alone is a different constant in each step, and becomes an argument."""
    f, args = runge_kutta(1000)
    recorded = graph_of(f, *args)
    graph = alike.outline(recorded, simplify)
    (body,) = bodies(graph)
    assert len(body.outputs) == 2  # x and v
    assert len(graph.nodes) + len(body.nodes) < len(recorded.nodes) / 10
    short, args = runge_kutta(60)
    assert calls(outlined(short, *args))
    assert_same(short, args, (0, 1))


def test_steps_with_different_constants_are_not_outlined():
    def f(x):
        for k in range(300):
            x = x ** (1.0 + k % 7 * k)
        return x.sum()

    graph = graph_of(f, np.ones(3))
    assert alike.outline(graph, simplify) is graph


def test_same_operations_with_irregular_data_flow_give_the_same_values():
    """Each step reads the one before, or the one before that, at random."""

    def f(x, y):
        rng = np.random.default_rng(0)
        for _ in range(400):
            x, y = (np.sin(x) + y, x) if rng.random() < 0.5 else (np.sin(y) + x, y)
        return (x + y).sum()

    args = np.linspace(0.1, 0.2, 3), np.linspace(0.3, 0.4, 3)
    assert_flat_is_the_same(outlined(f, *args), f, args)
    assert_same(f, args, (0, 1))


def test_equal_constants_stay_in_the_body():
    def f(x):
        for _ in range(100):
            x = np.tanh(x * np.array([1.0, 2.0, 3.0]) + np.array([0.1, 0.2, 0.3])) * 0.5
        return x.sum()

    graph = outlined(f, np.ones(3))
    (body,) = bodies(graph)
    assert len(body.inputs) == 1
    assert_same(f, (np.linspace(0.1, 1.0, 3),))


def test_different_arrays_of_a_closure_become_arguments():
    rng = np.random.default_rng(3)
    weights = [rng.normal(size=(4, 4)) for _ in range(60)]

    def f(x):
        for w in weights:
            x = np.tanh(x @ w) * 0.5 + x
            x = np.sin(x) * np.cos(x) + np.exp(-x) / (1.0 + x * x) + x * 0.1
        return x.sum()

    assert calls(outlined(f, np.ones((2, 4))))
    assert_same(f, (rng.normal(size=(2, 4)),))


# ---- The same numbers --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in ("parameters", "lists", "numbers", "fan")])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_gradients_have_the_same_bits(name):
    f, args = PROGRAMS[name](600)
    assert_same(f, args, tuple(range(len(args))) if name == "layers" else 0)


@pytest.mark.parametrize("name, wrt", [("matrices", (0, 1)), ("fan", 0)])
def test_gradients_of_values_shared_by_all_steps_agree(name, wrt):
    """They are summed within each call first, then over calls: as many roundings, another order."""
    f, args = PROGRAMS[name](600)
    with_, without = gradients(f, args, wrt)
    for got, want in zip(with_, without, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-300)
    np.testing.assert_array_equal(with_[0], without[0])  # the value


@pytest.mark.parametrize("name", ["layers", "fan", "parameters"])
def test_steps_with_separate_arguments_are_outlined(name):
    f, args = PROGRAMS[name](2000)
    assert calls(outlined(f, *args))


def test_unused_forward_values_are_not_computed():
    """The gradient does not read the sum: neither forward calls nor their arguments remain."""
    f, args = PROGRAMS["parameters"](300)
    g = ad.grad(f)
    g(*args)
    text = ad.source(g, emitted=True)
    assert "np.cos" in text and "np.sin" not in text


def test_values_kept_from_every_step_are_the_same():
    def f(x, w):
        kept = []
        for _ in range(80):
            x = np.tanh(x @ w) + np.sin(x) * np.cos(x) - np.exp(-x * x)
            kept.append(x.sum())
        return np.stack(kept).sum() + x.sum()

    rng = np.random.default_rng(0)
    assert_same(f, (rng.normal(size=(3, 4)), rng.normal(size=(4, 4)) * 0.3))


def test_custom_vjp_within_a_stretch():
    @ad.custom_vjp
    def clipped(x):
        return np.sin(x)

    clipped.defvjp(lambda x: (np.sin(x), x), lambda x, g: (np.clip(np.cos(x), -0.5, 0.5) * g,))

    def f(x):
        for _ in range(60):
            x = clipped(x) * 0.9 + np.exp(-x) * np.tanh(x) / (1.0 + x * x)
        return x.sum()

    assert_same(f, (np.linspace(0.1, 1.0, 5),))


def test_gradient_is_written_to_out_even_if_it_is_the_argument():
    f, args = blocks(16)
    g = ad.grad(f, 1)
    want = g(*args)
    out = np.zeros_like(want)
    assert g(*args, out=out) is out
    np.testing.assert_array_equal(out, want)
    x = np.linspace(0.1, 1.0, 5)
    chain, _ = PROGRAMS["chain"](500)
    h = ad.grad(chain)
    want = h(x)
    buffer = x.copy()
    h(buffer, out=buffer)
    np.testing.assert_array_equal(buffer, want)


def test_calls_from_several_threads_at_once():
    f, args = blocks(16, width=64)
    rng = np.random.default_rng(0)
    args = (rng.normal(size=(300, 64)), *args[1:])
    g = ad.grad(f, (0, 1))
    want = g(*args)
    results = []
    ad.run_on_threads(lambda thread: results.append(g(*args)))
    for got in results:
        for a, b in zip(got, want):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("math", ["strict", "fast"])
def test_outlined_calls_keep_less_at_a_higher_rate(math):
    f, args = blocks(16, width=32)
    pipeline = Pipeline("f", Options(math=math))
    graph = graph_of(f, *args)
    joint = pipeline.joint(graph, [0, 1, 2], [0])
    full = pipeline.split(joint, 3, 1)
    small = pipeline.split(joint, 3, 1, rate=1e6)
    inputs = {n.name for n in graph.inputs}

    def kept(halves):
        return sum(n.nbytes for n in halves.forward.outputs[1:] if n.op != "input")

    assert inputs and kept(small) <= 20_000 < kept(full)


# ---- GPT-2 -------------------------------------------------------------------------------------------------


def program(n_layer, off=frozenset()):
    config = GPT2Config(512, 16, n_layer, 3, 48)
    model = GPT2(config, backward="whole")
    tokens, targets = np.random.default_rng(0).integers(0, 512, (2, 4, 16))
    options = Options(off=off, math="fast", elementwise=options_for().elementwise)
    pair = ad.FixedPair(model._whole_loss, options, rate=1.0, ample=1 << 28)
    return pair, [*model.params.values(), tokens, targets]


def test_blocks_of_gpt2_are_compiled_once():
    """The emitted program grows by a few lines per block."""
    lines, kinds = [], []
    for n_layer in (6, 12):
        pair, args = program(n_layer)
        entry, _ = pair.entry(args, {})
        lines.append(entry.joint.program.source.count("\n"))
        kinds.append([len(bodies(g)) for g in (*entry.graphs, entry.joint.graph)])
    assert kinds == [[1, 1, 2], [1, 1, 2]]
    assert lines[1] - lines[0] < 6 * 60


def test_gpt2_gradients_have_the_same_bits_and_need_no_more_memory():
    results, arenas = [], []
    for off in (frozenset(), frozenset(WITHOUT)):
        pair, args = program(6, off)
        loss, gradients = pair.both(np.ones((), np.float32), *args)
        results.append((loss, [g for g in gradients if g is not None]))
        arenas.append(pair.entry(args, {})[0].joint.program.arena_bytes)
    assert results[0][0] == results[1][0]
    for a, b in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_array_equal(a, b)
    assert arenas[0] <= 1.02 * arenas[1]


# ---- Printed source ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["affine", "branches", "matrices", "dots", "views"])
def test_source_defines_an_outlined_body_once_and_runs(name):
    f, args = PROGRAMS[name](480)
    g = ad.value_and_grad(f)
    want = ad.tree.leaves(g(*args))
    text = ad.source(g)
    assert text.count("def f_outlined(") == 1
    scope: dict = {}
    exec(text, scope)
    for got, expected in zip(scope["f_grad"](*args), want):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("view", ["x[::-1]", "np.concatenate([x[2:], x[:2]])[::-1]", "x * 0.9"])
def test_values_have_numpys_bits_if_steps_pass_views_on(view):
    """BLAS is called differently for a reversed view and for its copy."""
    n, rng = 60, np.random.default_rng(0)
    scope: dict = {"np": np, "n": n}
    program = f"""
def f(x, m, ws):
    for i in range(n):
        y = np.where(x > 0.1, x, 0.3 * x)
        x = np.tanh(m @ y) + ws[i] * y
        x = {view}
    return np.sum(x * (m @ x))"""
    exec(program, scope)
    args = rng.normal(size=5), rng.normal(size=(5, 5)), rng.normal(size=(n, 5))
    value, _ = ad.value_and_grad(scope["f"])(*args)
    assert value == scope["f"](*args)


def test_scalar_arguments_of_calls_are_arrays():
    """Views are taken by methods of arrays, which on NumPy's scalars are different ones."""

    def f(x, y, w):
        s = np.sum(x) * 0.1
        for k in range(40):
            y = (y + w[k]) @ y.T * 0.2
            if k:
                s = s + np.sum(x * y)
            x = np.tanh(x + y[[0, 2, 1, 3]] * (0.1 * k)) + y * 0.25
            x, y = x * np.tanh(s), y[::-1]
        return np.sum(x @ y.T) + s * 0.1

    rng = np.random.default_rng(0)
    args = rng.normal(size=(4, 4)), rng.normal(size=(4, 4)), rng.normal(size=(40, 4, 4))
    assert calls(outlined(f, *args))
    out, pull = ad.vjp(f, *args)
    for got, want in zip(pull(np.ones_like(out)), ad.grad(f, (0, 1, 2))(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("first", range(1, 7))
def test_masked_infinities_leave_gradients_finite_wherever_a_stretch_begins(first):
    """The exponentials are infinite where the mask discards them, and 0 times infinity would be nan."""
    mask, w = np.array([True, False, False, True]), np.array([2000.0, 0.5, 0.5, 2000.0])
    steps = (
        lambda x, w: np.sin(x),
        lambda x, w: x * w,
        lambda x, w: np.exp(x),
        lambda x, w: np.log1p(x),
        lambda x, w: np.where(mask, 0.3, x),
        lambda x, w: np.cos(x),
    )

    def f(w):
        x = np.array([0.8, -0.3, 0.1, 1.2]) + 0.0 * w
        for k in range(first, 6 * 61):
            x = steps[k % 6](x, w)
        return np.sum(x)

    with np.errstate(over="ignore", invalid="ignore"):
        assert calls(outlined(f, w))
        _, gradient = gradients(f, (w,))[0]
    assert np.all(np.isfinite(gradient))
    np.testing.assert_array_equal(gradient == 0.0, mask)
