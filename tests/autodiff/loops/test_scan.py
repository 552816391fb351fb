"""Loops: scan against the Python loop it stands for, in both modes and to second order; and parallel_map."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.loops import scan_op as scan
from gpt2.autodiff.ops.interpret import check
from gpt2.autodiff.record.record import record

rng = np.random.default_rng(11)
W, V = 0.5 * rng.normal(size=(3, 3)), rng.normal(size=(2, 3))


def body(h, x):
    h = np.tanh(h @ W + x @ V)
    return h, {"norm": np.sum(h * h), "h": h * 2.0}


def loop(body, init, xs):
    """Reference for scan: a Python loop."""
    carry, ys = init, []
    for x in xs:
        carry, y = body(carry, x)
        ys.append(y)
    return carry, {k: np.stack([y[k] for y in ys]) for k in ys[0]}


def loss_of(run, **settings):
    def loss(init, xs, w):
        def step(h, x):
            h = np.tanh(h @ w + x @ V)
            return h, {"norm": np.sum(h * h), "h": h * 2.0}

        final, ys = run(step, init, xs, **settings)
        return np.sum(final**3) + np.sum(np.sin(ys["norm"])) + np.sum(ys["h"][::2] ** 2)

    return loss


@pytest.mark.parametrize("n", [1, 2, 7, 12])
@pytest.mark.parametrize("every", [None, 1, 3, 100])
def test_values_and_gradients_are_those_of_the_loop(n, every):
    init, xs = rng.normal(size=3), rng.normal(size=(n, 2))
    found = ad.value_and_grad(loss_of(ad.scan, every=every), argnums=(0, 1, 2))(init, xs, W)
    expected = ad.value_and_grad(loss_of(loop), argnums=(0, 1, 2))(init, xs, W)
    assert found[0] == pytest.approx(expected[0], rel=1e-13)
    for a, b in zip(found[1], expected[1]):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("room", [0, 60, 10**6])
def test_sums_over_all_steps_are_taken_behind_the_loop_where_there_is_room(room, monkeypatch):
    """Gradients of what the steps share: with room for none, some and all of what the steps leave of them."""
    monkeypatch.setattr(scan, "KEEP_ALL_BYTES", room)
    init, xs, scale = rng.normal(size=(2, 3)), rng.normal(size=(4, 2)), rng.normal(size=3)

    def loss_with(run):
        def loss(init, xs, w, scale):
            def step(h, x):
                h = np.tanh(h @ w + x @ V) * scale
                return h, {"h": h * 2.0 + np.sum(w)}

            final, ys = run(step, init, xs)
            return np.sum(final**3) + np.sum(ys["h"] ** 2)

        return loss

    args = init, xs, W, scale
    kept = loss_with(lambda *given: ad.scan(*given, every=1))
    looped = loss_with(loop)
    for a, b in zip(ad.grad(kept, (0, 1, 2, 3))(*args), ad.grad(looped, (0, 1, 2, 3))(*args)):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)
    ad.check_grads(lambda w: kept(init, xs, w, scale), (W,), order=2)


def test_the_backward_reads_what_a_step_gave():
    """Of h = tanh(...) it is the next carry: the tangent hyperbolic is computed once a step."""

    def f(w, init):
        return np.sum(ad.scan(lambda h, _: (np.tanh(h @ w), None), init, length=6)[0])

    g = ad.grad(f)
    g(W, np.ones((2, 3)))
    graphs = [n.attrs["body"] for n in g.__derived__.last[1].graph.nodes if n.op == "scan"]
    ops = [[n.op for n in graph.nodes] for graph in graphs]
    assert sorted(names.count("tanh") for names in ops) == [0, 1]
    assert (
        sum(names.count("matmul") for names in ops) == 2
    )  # that of the weight's gradient is behind the loop


def test_outside_of_any_recording():
    init, xs = rng.normal(size=3), rng.normal(size=(5, 2))
    for _ in range(3):
        final, ys = ad.scan(body, init, xs)
        expected, expected_ys = loop(body, init, xs)
        np.testing.assert_allclose(final, expected, rtol=1e-13)
        np.testing.assert_allclose(ys["norm"], expected_ys["norm"], rtol=1e-13)
        np.testing.assert_allclose(ys["h"], expected_ys["h"], rtol=1e-13)


@pytest.mark.parametrize("every", [1, 2])
def test_forward_mode_and_second_order(every):
    init, xs = rng.normal(size=3), rng.normal(size=(5, 2))
    t = rng.normal(size=3), rng.normal(size=(5, 2)), rng.normal(size=(3, 3))
    scanned, looped = loss_of(ad.scan, every=every), loss_of(loop)
    assert ad.jvp(scanned, (init, xs, W), t)[1] == pytest.approx(
        ad.jvp(looped, (init, xs, W), t)[1], rel=1e-12
    )

    def second(f):
        return ad.jvp(lambda *a: ad.grad(f, argnums=(0, 1, 2))(*a), (init, xs, W), t)[1]

    for a, b in zip(second(scanned), second(looped)):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)

    def reverse_over_reverse(f):
        return ad.grad(lambda w: np.sum(ad.grad(f, argnums=2)(init, xs, w) * t[2]))(W)

    np.testing.assert_allclose(
        reverse_over_reverse(scanned), reverse_over_reverse(looped), rtol=1e-10, atol=1e-12
    )


def test_only_some_tangents():
    init, xs = rng.normal(size=3), rng.normal(size=(5, 2))
    f, g = loss_of(ad.scan), loss_of(loop)
    for t in ((np.ones(3), None, None), (None, np.ones((5, 2)), None), (None, None, np.ones((3, 3)))):
        assert ad.jvp(f, (init, xs, W), t)[1] == pytest.approx(ad.jvp(g, (init, xs, W), t)[1], rel=1e-12)


def test_the_program_does_not_grow_and_the_backward_keeps_few_carries(monkeypatch):
    """100 steps give the graph that 10 give; of 100 carries 10 are kept, and 10 more while a segment runs.
    All are kept where they are small."""

    def graph(n):
        return record(lambda h, xs: np.sum(ad.scan(body, h, xs)[0]), (np.zeros(3), np.zeros((n, 2)))).graph

    (node,) = [n for n in graph(100).nodes if n.op == "scan"]
    assert node.attrs["every"] == 1
    monkeypatch.setattr(scan, "KEEP_ALL_BYTES", 0)
    small, large = graph(10), graph(100)
    assert len(small.nodes) == len(large.nodes)
    (node,) = [n for n in check(large).nodes if n.op == "scan"]
    assert node.attrs["every"] == 10
    assert node.shape[-1] == (10, 3)


def test_integers_numbers_and_nested_carries():
    xs = rng.normal(size=6)

    def step(carry, x):
        i, (total, big) = carry
        total = total + x * (i + 1)
        return (i + 1, (total, np.maximum(big, total))), total * i

    def f(xs, start):
        (i, (total, big)), ys = ad.scan(step, (0, (start, -10.0)), xs)
        return total * big + np.sum(ys), i

    def g(xs, start):
        i, total, big, ys = 0, start, -10.0, 0.0
        for x in xs:
            total = total + x * (i + 1)
            big = np.maximum(big, total)
            ys = ys + total * i
            i += 1
        return total * big + ys, i

    (value, count), grads = ad.value_and_grad(f, argnums=(0, 1), has_aux=True)(xs, 0.5)
    (expected, _), expected_grads = ad.value_and_grad(g, argnums=(0, 1), has_aux=True)(xs, 0.5)
    assert (value, count) == (pytest.approx(expected, rel=1e-13), 6)
    np.testing.assert_allclose(grads[0], expected_grads[0], rtol=1e-12)
    assert grads[1] == pytest.approx(expected_grads[1], rel=1e-12)


def test_no_xs_no_ys_and_reverse():
    final, ys = ad.scan(lambda c, _: (c * 1.5, None), 2.0, length=4)
    assert final == pytest.approx(2 * 1.5**4) and ys is None
    assert ad.grad(lambda c: ad.scan(lambda c, _: (np.sin(c), None), c, length=3)[0])(0.3) == pytest.approx(
        np.cos(np.sin(np.sin(0.3))) * np.cos(np.sin(0.3)) * np.cos(0.3), rel=1e-13
    )
    xs = np.array([1.0, 2.0, 3.0])

    def from_behind(xs):
        return ad.scan(lambda c, x: (c * x + 1.0, c), 0.0, xs, reverse=True)

    final, ys = from_behind(xs)
    assert final == ((0.0 * 3 + 1) * 2 + 1) * 1 + 1
    np.testing.assert_array_equal(ys, [3.0, 1.0, 0.0])
    np.testing.assert_allclose(ad.grad(lambda xs: from_behind(xs)[0])(xs), [3.0, 1.0, 0.0])


def test_float32_stays_and_the_carry_widens_to_what_the_step_gives():
    xs = rng.normal(size=(4, 3)).astype(np.float32)
    final, ys = ad.scan(lambda c, x: (c + np.sum(x), c * 2.0), np.float32(0), xs)
    assert (final.dtype, ys.dtype) == (np.float32, np.float32)
    final, _ = ad.scan(lambda c, x: (c + x, None), np.zeros(3, np.float32), xs.astype(np.float64))
    assert final.dtype == np.float64


def test_bodies_that_cannot_stand_for_all_steps_are_run_step_by_step():
    xs = np.array([1.0, -2.0, 3.0])

    def branches(c, x):
        return (c * x if x > 0 else c - x), c

    np.testing.assert_allclose(ad.grad(lambda c: ad.scan(branches, c, xs)[0])(2.0), 3.0)
    assert ad.scan(branches, 2.0, xs)[0] == pytest.approx(12.0)
    draws = np.random.default_rng(0)
    _, ys = ad.scan(lambda c, x: (c, x * draws.normal()), 0.0, np.ones(5))
    np.testing.assert_allclose(ys, np.random.default_rng(0).normal(size=5))


def test_inside_of_each_other():
    xs = rng.normal(size=(4, 3))

    def f(c, run):
        def outer(c, x):
            c, ys = run(lambda c, v: (np.sin(c * v), {"y": c}), c, x)
            return c, {"y": np.sum(ys["y"])}

        final, ys = run(outer, c, xs)
        return final + np.sum(ys["y"])

    scanned, looped = (lambda c: f(c, ad.scan)), (lambda c: f(c, loop))
    assert ad.grad(scanned)(0.7) == pytest.approx(ad.grad(looped)(0.7), rel=1e-12)
    assert ad.grad(ad.grad(scanned))(0.7) == pytest.approx(ad.grad(ad.grad(looped))(0.7), rel=1e-11)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: ad.scan(lambda c, x: (c, x), 0.0), "needs length"),
        (lambda: ad.scan(lambda c, x: (c, x), 0.0, (np.zeros(2), np.zeros(3))), r"the same, got \[2, 3\]"),
        (lambda: ad.scan(lambda c, x: c, 0.0, np.zeros(3)), r"should return \(carry, y\)"),
        (lambda: ad.scan(lambda c, x: ((c, c), x), 0.0, np.zeros(3)), "structure"),
        (
            lambda: ad.scan(lambda c, x: (np.stack([c, c]), x), 0.0, np.zeros(3)),
            r"shape \(\) into one of shape \(2,\)",
        ),
        (lambda: ad.scan(lambda c, x: (c, x), 0.0, np.zeros(3), every=0), "every is 0"),
    ],
)
def test_errors(call, words):
    with pytest.raises(ad.AutodiffError, match=words):
        call()


# --- parallel_map
# -------------------------------------------------------------------------------------------------


def mapped(body, *arrays):
    return np.stack([body(*slices) for slices in zip(*arrays)])


@pytest.fixture(params=[1, 2])
def threads(request):
    before = ad.get_threads()
    ad.set_threads(request.param)
    yield request.param
    ad.set_threads(before)


@pytest.mark.parametrize("n", [1, 3, 18])  # 18: more slices than chunks
def test_map_is_a_loop_and_so_is_its_derivative(threads, n):
    a, b, w = rng.normal(size=(n, 4)), rng.normal(size=n), rng.normal(size=(4, 3))

    def loss(run):
        return lambda a, b, w: np.sum(np.sin(run(lambda x, k: np.tanh(x @ w) * k, a, b)) ** 2)

    fast, slow = loss(ad.parallel_map), loss(mapped)
    found, expected = ad.grad(fast, argnums=(0, 1, 2))(a, b, w), ad.grad(slow, argnums=(0, 1, 2))(a, b, w)
    for x, y in zip(found, expected):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-14)
    t = rng.normal(size=a.shape), rng.normal(size=n), rng.normal(size=w.shape)
    assert ad.jvp(fast, (a, b, w), t)[1] == pytest.approx(ad.jvp(slow, (a, b, w), t)[1], rel=1e-12)
    for k in range(3):

        def second(f, k=k):
            return ad.grad(lambda *args: np.sum(ad.grad(f, argnums=k)(*args) * t[k]), argnums=(0, 1, 2))(
                a, b, w
            )

        for x, y in zip(second(fast), second(slow)):
            np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12)


def test_map_outside_of_recordings_and_its_errors(threads):
    a = rng.normal(size=(5, 3))
    for _ in range(2):
        found = ad.parallel_map(lambda x: {"s": np.sum(x), "x": x * 2, "n": 3}, a)
        np.testing.assert_allclose(found["s"], a.sum(axis=1))
        np.testing.assert_allclose(found["x"], 2 * a)
        np.testing.assert_array_equal(found["n"], np.full(5, 3))
    np.testing.assert_allclose(
        ad.parallel_map(lambda x: x if x > 0 else -x, np.array([1.0, -2.0])), [1.0, 2.0]
    )
    with pytest.raises(ad.AutodiffError, match="leading axes of one length"):
        ad.parallel_map(lambda x, y: x, np.zeros(2), np.zeros(3))


def test_sums_do_not_depend_on_the_number_of_threads():
    a, w = rng.normal(size=(50, 4)), rng.normal(size=4)
    g = ad.grad(lambda w: np.sum(ad.parallel_map(lambda x: np.exp(np.sum(x * w)), a)))
    results = []
    before = ad.get_threads()
    try:
        for n in (1, 2, 3):
            ad.set_threads(n)
            results.append(g(w))
    finally:
        ad.set_threads(before)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def writing_step(carry, x):
    """Writes to both of its arguments, and keeps what it wrote to."""
    x *= 2.0
    carry += x * x
    return carry, x


def writing_step_with_a_branch(carry, x):
    if np.sum(x * x) < 1e9:  # looked at: it cannot stand for all steps
        return writing_step(carry, x)
    return carry, x


@pytest.mark.parametrize("body", [writing_step, writing_step_with_a_branch])
def test_a_body_may_write_to_its_arguments(body):
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
def test_a_carry_that_is_written_to_and_kept(body):
    """Each y is the carry of its step."""

    def step(carry, x):
        carry, _ = body(carry, x)
        return carry, carry

    xs = np.random.default_rng(4).normal(size=(4, 2))
    _, ys = ad.scan(step, np.zeros(2), xs)
    np.testing.assert_allclose(ys, np.cumsum(4 * xs**2, axis=0), rtol=1e-14)


@pytest.mark.parametrize("branch", [False, True])
def test_the_body_of_a_map_may_write_to_its_slices(branch):
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


def test_a_scan_keeps_no_dead_values():
    rec = record(lambda c, xs: ad.scan(writing_step, c, xs), (np.zeros(2), np.ones((9, 2))))
    (loop,) = (n for n in rec.graph.nodes if n.op == "scan")
    assert len(loop.attrs["body"].outputs) == 2, "the carry and y, and not what was written to"


def test_loops_of_numbers_are_plain_python(monkeypatch):
    """The same values and derivatives as of arrays with one element, and what NumPy gives for 1.0 / 0.0."""
    from gpt2.autodiff.loops import numbers

    def f(scale, xs):
        def step(carry, x):
            a, b = carry
            return (a + scale * np.sin(b) * x, b * 0.9 + a / (1.0 + a * a)), a * b

        (a, b), ys = ad.scan(step, (0.3, scale), xs)
        return a + b * b + np.sum(ys**2)

    xs = rng.normal(size=11)
    found = ad.value_and_grad(f, argnums=(0, 1))(0.7, xs)
    taken = []
    of_numbers = numbers.of_numbers
    monkeypatch.setattr(numbers, "of_numbers", lambda body: taken.append(of_numbers(body)) and None)
    expected = ad.value_and_grad(lambda *a: f(*a), argnums=(0, 1))(0.7, xs)
    assert any(program is not None for program in taken)
    assert found[0] == pytest.approx(expected[0], rel=1e-15)
    for a, b in zip(found[1], expected[1]):
        np.testing.assert_allclose(a, b, rtol=1e-14)
    monkeypatch.undo()
    with np.errstate(divide="ignore"):
        final, _ = ad.scan(lambda c, x: (c + 1.0 / x, None), 1.0, np.array([1.0, 0.0, 2.0]))
    assert final == np.inf


def test_a_loop_of_numbers_that_ends_by_itself():
    def f(x):
        return ad.while_loop(
            lambda c: c[0] < 100.0, lambda c: (c[0] * x + 1.0, c[1] + np.sin(c[0])), (1.0, x)
        )[1]

    def loop(x):
        a, b = 1.0, x
        while a < 100.0:
            a, b = a * x + 1.0, b + np.sin(a)
        return b

    assert ad.compile(f)(1.7) == loop(1.7)
    slope = (loop(1.7 + 1e-7) - loop(1.7 - 1e-7)) / 2e-7
    assert ad.jvp(f, (1.7,), (1.0,))[1] == pytest.approx(slope, rel=1e-5)
    assert ad.grad(f)(1.7) == pytest.approx(slope, rel=1e-5)
