"""ad.scan and ad.parallel_map against Python loops, in both modes and to second order."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.loops import scan_op
from gpt2.autodiff.ops.interpret import check
from gpt2.autodiff.record.record import record
from tests.support.trees import assert_close

rng = np.random.default_rng(11)
W, V = 0.5 * rng.normal(size=(3, 3)), rng.normal(size=(2, 3))


def body(h, x, w=W):
    h = np.tanh(h @ w + x @ V)
    return h, {"norm": np.sum(h * h), "h": h * 2.0}


def loop(body, carry, xs):
    """Reference for scan."""
    ys = []
    for x in xs:
        carry, y = body(carry, x)
        ys.append(y)
    return carry, {k: np.stack([y[k] for y in ys]) for k in ys[0]}


def loss_of(run, **settings):
    def loss(init, xs, w):
        final, ys = run(lambda h, x: body(h, x, w), init, xs, **settings)
        return np.sum(final**3) + np.sum(np.sin(ys["norm"])) + np.sum(ys["h"][::2] ** 2)

    return loss


@pytest.mark.parametrize("n", [1, 2, 7, 12])
@pytest.mark.parametrize("every", [None, 1, 3, 100])
def test_values_and_gradients(n, every):
    args = rng.normal(size=3), rng.normal(size=(n, 2)), W
    actual = ad.value_and_grad(loss_of(ad.scan, every=every), argnums=(0, 1, 2))(*args)
    expected = ad.value_and_grad(loss_of(loop), argnums=(0, 1, 2))(*args)
    assert_close(actual, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("limit", [0, 60, 10**6])
def test_gradients_of_captured_arrays(limit, monkeypatch):
    """Sums over the steps, taken after the loop for the terms within the limit: none, some, all."""
    monkeypatch.setattr(scan_op, "KEEP_ALL_BYTES", limit)
    init, xs, scale = rng.normal(size=(2, 3)), rng.normal(size=(4, 2)), rng.normal(size=3)

    def loss_with(run):
        def loss(init, xs, w, scale):
            def step(h, x):
                h = np.tanh(h @ w + x @ V) * scale
                return h, {"h": h * 2.0 + np.sum(w)}

            final, ys = run(step, init, xs)
            return np.sum(final**3) + np.sum(ys["h"] ** 2)

        return loss

    scanned = loss_with(lambda *args: ad.scan(*args, every=1))
    actual, expected = (ad.grad(f, (0, 1, 2, 3))(init, xs, W, scale) for f in (scanned, loss_with(loop)))
    assert_close(actual, expected, rtol=1e-11, atol=1e-13)
    ad.check_grads(lambda w: scanned(init, xs, w, scale), (W,), order=2)


def test_backward_reuses_results_of_the_forward():
    """The carry of the next step is the tanh that the backward needs: it is computed once a step."""

    def f(w, init):
        return np.sum(ad.scan(lambda h, _: (np.tanh(h @ w), None), init, length=6)[0])

    g = ad.grad(f)
    g(W, np.ones((2, 3)))
    graphs = [n.attrs["body"] for n in g.__derived__.last[1].graph.nodes if n.op == "scan"]
    ops = [[n.op for n in graph.nodes] for graph in graphs]
    assert sorted(names.count("tanh") for names in ops) == [0, 1]
    # the product for the weight's gradient comes after the loop
    assert sum(names.count("matmul") for names in ops) == 2


def test_outside_of_any_recording():
    init, xs = rng.normal(size=3), rng.normal(size=(5, 2))
    for _ in range(3):
        assert_close(ad.scan(body, init, xs), loop(body, init, xs), rtol=1e-13)


@pytest.mark.parametrize("every", [1, 2])
def test_forward_mode_and_second_order(every):
    init, xs = rng.normal(size=3), rng.normal(size=(5, 2))
    t = rng.normal(size=3), rng.normal(size=(5, 2)), rng.normal(size=(3, 3))

    def derivatives(f):
        """Forward; forward over reverse; reverse over reverse."""
        yield ad.jvp(f, (init, xs, W), t)[1]
        yield ad.jvp(lambda *a: ad.grad(f, argnums=(0, 1, 2))(*a), (init, xs, W), t)[1]
        yield ad.grad(lambda w: np.sum(ad.grad(f, argnums=2)(init, xs, w) * t[2]))(W)

    actual, expected = derivatives(loss_of(ad.scan, every=every)), derivatives(loss_of(loop))
    assert_close(list(actual), list(expected), rtol=1e-10, atol=1e-12)


def test_only_some_tangents():
    init, xs = rng.normal(size=3), rng.normal(size=(5, 2))
    f, g = loss_of(ad.scan), loss_of(loop)
    for t in ((np.ones(3), None, None), (None, np.ones((5, 2)), None), (None, None, np.ones((3, 3)))):
        assert ad.jvp(f, (init, xs, W), t)[1] == pytest.approx(ad.jvp(g, (init, xs, W), t)[1], rel=1e-12)


def test_graph_does_not_grow_with_the_steps_and_few_carries_are_kept(monkeypatch):
    """Of 100 carries 10, and 10 more while a segment runs; all of them if they are small."""

    def graph(n):
        return record(lambda h, xs: np.sum(ad.scan(body, h, xs)[0]), (np.zeros(3), np.zeros((n, 2)))).graph

    (node,) = [n for n in graph(100).nodes if n.op == "scan"]
    assert node.attrs["every"] == 1
    monkeypatch.setattr(scan_op, "KEEP_ALL_BYTES", 0)
    small, large = graph(10), graph(100)
    assert len(small.nodes) == len(large.nodes)
    (node,) = [n for n in check(large).nodes if n.op == "scan"]
    assert node.attrs["every"] == 10
    assert node.shape[-1] == (10, 3)


def test_nested_carry_of_integers_and_numbers():
    xs = rng.normal(size=6)

    def step(carry, x):
        i, (total, big) = carry
        total = total + x * (i + 1)
        return (i + 1, (total, np.maximum(big, total))), {"y": total * i}

    def f(xs, start, run):
        (i, (total, big)), ys = run(step, (0, (start, -10.0)), xs)
        return total * big + np.sum(ys["y"]), i

    g = ad.value_and_grad(f, argnums=(0, 1), has_aux=True)
    actual, expected = (g(xs, 0.5, run) for run in (ad.scan, loop))
    assert actual[0][1] == expected[0][1] == 6
    assert_close(actual, expected)


def test_without_xs_and_ys():
    final, ys = ad.scan(lambda c, _: (c * 1.5, None), 2.0, length=4)
    assert final == pytest.approx(2 * 1.5**4) and ys is None
    slope = ad.grad(lambda c: ad.scan(lambda c, _: (np.sin(c), None), c, length=3)[0])(0.3)
    assert slope == pytest.approx(np.cos(np.sin(np.sin(0.3))) * np.cos(np.sin(0.3)) * np.cos(0.3), rel=1e-13)


def test_reverse():
    def f(xs):
        return ad.scan(lambda c, x: (c * x + 1.0, c), 0.0, xs, reverse=True)

    xs = np.array([1.0, 2.0, 3.0])
    final, ys = f(xs)
    assert final == ((0.0 * 3 + 1) * 2 + 1) * 1 + 1
    np.testing.assert_array_equal(ys, [3.0, 1.0, 0.0])
    np.testing.assert_allclose(ad.grad(lambda xs: f(xs)[0])(xs), [3.0, 1.0, 0.0])


def test_float32_stays_and_the_carry_widens_to_the_dtype_of_the_step():
    xs = rng.normal(size=(4, 3)).astype(np.float32)
    final, ys = ad.scan(lambda c, x: (c + np.sum(x), c * 2.0), np.float32(0), xs)
    assert (final.dtype, ys.dtype) == (np.float32, np.float32)
    final, _ = ad.scan(lambda c, x: (c + x, None), np.zeros(3, np.float32), xs.astype(np.float64))
    assert final.dtype == np.float64


def test_body_with_branches_or_draws_runs_in_python():
    xs = np.array([1.0, -2.0, 3.0])

    def branches(c, x):
        return (c * x if x > 0 else c - x), c

    np.testing.assert_allclose(ad.grad(lambda c: ad.scan(branches, c, xs)[0])(2.0), 3.0)
    assert ad.scan(branches, 2.0, xs)[0] == pytest.approx(12.0)
    draws = np.random.default_rng(0)
    _, ys = ad.scan(lambda c, x: (c, x * draws.normal()), 0.0, np.ones(5))
    np.testing.assert_allclose(ys, np.random.default_rng(0).normal(size=5))


def test_nested_scans():
    xs = rng.normal(size=(4, 3))

    def f(c, run):
        def outer(c, x):
            c, ys = run(lambda c, v: (np.sin(c * v), {"y": c}), c, x)
            return c, {"y": np.sum(ys["y"])}

        final, ys = run(outer, c, xs)
        return final + np.sum(ys["y"])

    for derived, rel in ((ad.grad(f), 1e-12), (ad.grad(ad.grad(f)), 1e-11)):
        assert derived(0.7, ad.scan) == pytest.approx(derived(0.7, loop), rel=rel)


@pytest.mark.parametrize("body, xs, options, words", [
    (lambda c, x: (c, x), None, {}, "needs length"),
    (lambda c, x: (c, x), (np.zeros(2), np.zeros(3)), {}, "leading axes of one length; got 2, 3"),
    (lambda c, x: c, np.zeros(3), {}, r"should return \(carry, y\)"),
    (lambda c, x: ((c, c), x), np.zeros(3), {}, "structure"),
    (lambda c, x: (np.stack([c, c]), x), np.zeros(3), {}, r"shape \(\) into one of shape \(2,\)"),
    (lambda c, x: (c, x), np.zeros(3), {"every": 0}, "every is 0"),
    (lambda c, x: (c, x), None, {"length": -1}, "length is -1, expected an int that is not negative"),
    (lambda c, x: (c, x), None, {"length": 2.0}, "length is 2.0, expected an int"),
])  # fmt: skip
def test_errors(body, xs, options, words):
    with pytest.raises(ad.AutodiffError, match=words):
        ad.scan(body, 0.0, xs, **options)


# ---- parallel_map ----------------------------------------------------------------------------------------


def map_loop(body, *arrays):
    """Reference for parallel_map."""
    return np.stack([body(*slices) for slices in zip(*arrays)])


@pytest.fixture(params=[1, 2])
def threads(request):
    ad.set_threads(request.param)


@pytest.mark.parametrize("n", [1, 3, 18])  # 18: more slices than chunks
def test_map_and_its_derivatives(threads, n):
    args = rng.normal(size=(n, 4)), rng.normal(size=n), rng.normal(size=(4, 3))
    t = tuple(rng.normal(size=a.shape) for a in args)

    def derivatives(run):
        """Reverse; forward; reverse over reverse for each argument."""

        def f(a, b, w):
            return np.sum(np.sin(run(lambda x, k: np.tanh(x @ w) * k, a, b)) ** 2)

        yield ad.grad(f, argnums=(0, 1, 2))(*args)
        yield ad.jvp(f, args, t)[1]
        for k in range(3):
            g = lambda *args, k=k: np.sum(ad.grad(f, argnums=k)(*args) * t[k])  # noqa: E731
            yield ad.grad(g, argnums=(0, 1, 2))(*args)

    actual, expected = list(derivatives(ad.parallel_map)), list(derivatives(map_loop))
    assert_close(actual, expected, rtol=1e-11, atol=1e-13)


def test_map_outside_of_recordings_and_its_errors(threads):
    a = rng.normal(size=(5, 3))
    for _ in range(2):
        result = ad.parallel_map(lambda x: {"s": np.sum(x), "x": x * 2, "n": 3}, a)
        assert_close(result, {"s": a.sum(axis=1), "x": 2 * a, "n": np.full(5, 3)})
    np.testing.assert_allclose(
        ad.parallel_map(lambda x: x if x > 0 else -x, np.array([1.0, -2.0])), [1.0, 2.0]
    )
    with pytest.raises(ad.AutodiffError, match="leading axes of one length"):
        ad.parallel_map(lambda x, y: x, np.zeros(2), np.zeros(3))
    with pytest.raises(ad.AutodiffError, match="got no array"):
        ad.parallel_map(lambda: 1.0)


def test_sums_do_not_depend_on_the_number_of_threads():
    a, w = rng.normal(size=(50, 4)), rng.normal(size=4)
    g = ad.grad(lambda w: np.sum(ad.parallel_map(lambda x: np.exp(np.sum(x * w)), a)))
    results = []
    for n in (1, 2, 3):
        ad.set_threads(n)
        results.append(g(w).tolist())
    assert results[0] == results[1] == results[2]


# ---- Functions that write to their arguments -------------------------------------------------------------


def writing_step(carry, x):
    """Writes to its arguments, and returns them."""
    x *= 2.0
    carry += x * x
    return carry, x


def writing_step_with_a_branch(carry, x):
    if np.sum(x * x) < 1e9:  # it cannot be recorded once for all steps
        return writing_step(carry, x)
    return carry, x


@pytest.mark.parametrize("body", [writing_step, writing_step_with_a_branch])
def test_body_may_write_to_its_arguments(body):
    rng = np.random.default_rng(3)
    init, xs, w = rng.normal(size=2), rng.normal(size=(4, 2)), rng.normal(size=(4, 2))
    before = init.copy(), xs.copy()

    def loss(init, xs):
        final, ys = ad.scan(body, init, xs)
        return np.sum(final) + np.sum(w * ys)

    for _ in range(2):
        final, ys = ad.scan(body, init, xs)
        np.testing.assert_allclose(final, before[0] + np.sum(4 * before[1] ** 2, axis=0), rtol=1e-14)
        np.testing.assert_array_equal(ys, 2 * before[1])
        dinit, dxs = ad.grad(loss, argnums=(0, 1))(init, xs)
        np.testing.assert_allclose(dinit, np.ones(2))
        np.testing.assert_allclose(dxs, 8 * before[1] + 2 * w, rtol=1e-14)
    np.testing.assert_array_equal(init, before[0])
    np.testing.assert_array_equal(xs, before[1])


@pytest.mark.parametrize("body", [writing_step, writing_step_with_a_branch])
def test_carry_that_is_written_to_may_be_returned_as_y(body):

    def step(carry, x):
        carry, _ = body(carry, x)
        return carry, carry

    xs = np.random.default_rng(4).normal(size=(4, 2))
    _, ys = ad.scan(step, np.zeros(2), xs)
    np.testing.assert_allclose(ys, np.cumsum(4 * xs**2, axis=0), rtol=1e-14)


@pytest.mark.parametrize("branch", [False, True])
def test_body_of_a_map_may_write_to_its_slices(branch):
    def body(x, y):
        x *= y
        y[0] = 0.0 if not branch or np.sum(x * x) < 1e9 else 1.0
        return x

    rng = np.random.default_rng(5)
    x, y, w = rng.normal(size=(3, 4, 2))
    before = x.copy(), y.copy()
    for _ in range(2):
        np.testing.assert_array_equal(ad.parallel_map(body, x, y), before[0] * before[1])
        dx = ad.grad(lambda x: np.sum(w * ad.parallel_map(body, x, y)))(x)
        np.testing.assert_allclose(dx, w * before[1], rtol=1e-14)
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(y, before[1])


def test_recorded_body_returns_carry_and_y_alone():
    """Not the arrays that it wrote to."""
    rec = record(lambda c, xs: ad.scan(writing_step, c, xs), (np.zeros(2), np.ones((9, 2))))
    (loop,) = (n for n in rec.graph.nodes if n.op == "scan")
    assert len(loop.attrs["body"].outputs) == 2


# ---- Numbers as carry ------------------------------------------------------------------------------------


def test_scan_of_numbers_agrees_with_scan_of_arrays(monkeypatch):
    """A body of numbers becomes plain Python; 1.0 / 0.0 is inf, as in NumPy."""

    def f(scale, xs):
        def step(carry, x):
            a, b = carry
            return (a + scale * np.sin(b) * x, b * 0.9 + a / (1.0 + a * a)), a * b

        (a, b), ys = ad.scan(step, (0.3, scale), xs)
        return a + b * b + np.sum(ys**2)

    xs = rng.normal(size=11)
    actual = ad.value_and_grad(f, argnums=(0, 1))(0.7, xs)
    programs, of_numbers = [], scan_op.of_numbers
    monkeypatch.setattr(scan_op, "of_numbers", lambda body: programs.append(of_numbers(body)) and None)
    expected = ad.value_and_grad(lambda *a: f(*a), argnums=(0, 1))(0.7, xs)
    assert any(programs)
    assert_close(actual, expected, rtol=1e-14)
    monkeypatch.undo()
    with np.errstate(divide="ignore"):
        final, _ = ad.scan(lambda c, x: (c + 1.0 / x, None), 1.0, np.array([1.0, 0.0, 2.0]))
    assert final == np.inf
