"""ad.while_loop against a Python loop: values, both modes, higher orders, vmap, and memory."""

import weakref

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.loops import while_op as nested_loop
from gpt2.autodiff.ops.interpret import check
from gpt2.autodiff.record.record import record
from tests.support.peaks import peak_of
from tests.support.trees import assert_close

rng = np.random.default_rng(12)
W = 0.5 * rng.normal(size=(3, 3))
X = rng.normal(size=3)


def python_loop(cond, body, carry, keep=None):
    """Reference for while_loop."""
    while cond(carry):
        carry = body(carry)
    return carry


def loss_of(run, n, keep=None):
    """Loss of a loop of n steps; the carry is an int, an array, and an array that is written to."""

    def loss(x, w):
        def body(carry):
            i, h, seen = carry
            h = np.tanh(w @ h) + 0.1 * h
            seen = seen.copy()
            seen[1:] = seen[1:] * 0.5 + h[0] * h[1:]
            return i + 1, h, seen

        _, h, seen = run(lambda carry: carry[0] < n, body, (0, x, x * x), keep=keep)
        return np.sum(h**2) + np.sum(seen**3)

    return loss


@pytest.mark.parametrize("n", [0, 1, 2, 7, 40])
@pytest.mark.parametrize("keep", [None, 1, 2, 3, 8])
def test_values_and_gradients(n, keep):
    actual = ad.value_and_grad(loss_of(ad.while_loop, n, keep), argnums=(0, 1))(X, W)
    expected = ad.value_and_grad(loss_of(python_loop, n), argnums=(0, 1))(X, W)
    assert_close(actual, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("keep", [None, 2])
def test_both_modes_and_second_order(keep):
    ad.check_grads(loss_of(ad.while_loop, 5, keep), (X, W), order=2)


def newton(a):
    """The square root of a."""
    return ad.while_loop(lambda x: np.abs(x * x - a) > 1e-12, lambda x: (x + a / x) / 2, 1.0 + 0 * a)


def test_one_program_for_any_number_of_steps():
    g = ad.value_and_grad(newton)
    for a in (2.0, 1e6, 1e-4):
        value, gradient = g(a)
        assert value == pytest.approx(a**0.5, rel=1e-7)
        assert gradient == pytest.approx(0.5 / a**0.5, rel=1e-4)
    assert ad.why_recorded(g) is None
    third = ad.grad(ad.grad(ad.grad(newton)))
    assert third(2.0) == pytest.approx(3 / 8 * 2**-2.5, rel=1e-9)
    assert ad.jvp(newton, (2.0,), (3.0,))[1] == pytest.approx(1.5 / 2**0.5, rel=1e-12)


def test_vmap_with_another_number_of_steps_for_each_example():
    a = np.array([2.0, 1e6, 3.0])
    np.testing.assert_array_equal(ad.vmap(newton)(a), [newton(float(x)) for x in a])
    expected = [ad.grad(newton)(float(x)) for x in a]
    np.testing.assert_allclose(ad.vmap(ad.grad(newton))(a), expected, rtol=1e-13)
    np.testing.assert_allclose(ad.grad(lambda a: np.sum(ad.vmap(newton)(a)))(a), expected, rtol=1e-13)
    second = ad.vmap(ad.grad(ad.grad(newton)))(a[:1])
    np.testing.assert_allclose(second, [ad.grad(ad.grad(newton))(2.0)], rtol=1e-12)


def test_jacobians_and_hessian():
    def last_of(run):
        return lambda x: run(lambda c: c[0] < 4, lambda c: (c[0] + 1, np.tanh(W @ c[1])), (0, x))[1]

    f, g = last_of(ad.while_loop), last_of(python_loop)
    np.testing.assert_allclose(ad.jacrev(f)(X), ad.jacobian(g)(X), rtol=1e-12)
    np.testing.assert_allclose(ad.jacfwd(f)(X), ad.jacobian(g)(X), rtol=1e-12)
    hessian = ad.hessian(lambda x: np.sum(f(x) ** 3))(X)
    np.testing.assert_allclose(hessian, ad.hessian(lambda x: np.sum(g(x) ** 3))(X), rtol=1e-10)


def random_body(seed):
    """Three random moves of a nested carry with a number, a vector and a matrix."""
    draw = np.random.default_rng(seed)
    A = 0.4 * draw.normal(size=(2, 2))
    moves = [
        lambda s, v, m: (s * 0.9 + np.sum(v) * 0.1, v, m),
        lambda s, v, m: (s, np.sin(m @ v) + s, m),
        lambda s, v, m: (s, v, np.tanh(m + np.outer(v, v)) * 0.7),
        lambda s, v, m: (np.maximum(s, v[0]), v * 0.8, m),
        lambda s, v, m: (s, np.where(v > s, v * 0.5, A @ v), m @ A),
        lambda s, v, m: (np.sqrt(1.0 + s * s) * 0.5, v[::-1], m.T),
    ]
    chosen = [moves[k] for k in draw.integers(len(moves), size=3)]

    def body(carry):
        s, v, m = carry["s"], *carry["vm"]
        for move in chosen:
            s, v, m = move(s, v, m)
        return {"i": carry["i"] + 1, "s": s, "vm": (v, m)}

    return body


@pytest.mark.numeric
@pytest.mark.parametrize("seed", range(6))
def test_random_bodies(seed):
    body = random_body(seed)
    n = int(rng.integers(1, 12))

    def f(run):
        def loss(s, v, m):
            last = run(lambda c: c["i"] < n, body, {"i": 0, "s": s, "vm": (v, m)}, keep=3)
            return last["s"] ** 2 + np.sum(last["vm"][0] ** 2) + np.sum(np.cos(last["vm"][1]))

        return loss

    args = (0.3, rng.normal(size=2), rng.normal(size=(2, 2)))
    u = tuple(rng.normal(size=np.shape(a)) for a in args)
    actual, expected = (
        (ad.value_and_grad(f(run), argnums=(0, 1, 2))(*args), ad.jvp(f(run), args, u)[1])
        for run in (ad.while_loop, python_loop)
    )
    assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def test_graph_is_the_same_for_any_number_of_steps():
    def f(x, n):
        body = lambda c: (c[0] + 1, np.sin(c[1]))  # noqa: E731
        return np.sum(ad.while_loop(lambda c: c[0] < n, body, (0, x), keep=20)[1])

    graph = check(record(f, (X, np.array(3))).graph)
    assert len(graph.nodes) == len(record(f, (X, np.array(50))).graph.nodes) < 15
    (node,) = [n for n in graph.nodes if n.op == "while_loop"]
    assert node.shape[-1] == (20, 3)


def test_backward_of_a_long_loop_keeps_few_carries_and_repeats_few_steps(monkeypatch):
    """With room for 20 carries, 10,000 steps take log(10,000) / log(20) forward runs of 20 carries each."""
    alive, most, steps = 0, 0, 0

    class CountingKept(nested_loop._Kept):
        def __init__(self, *args):
            def freed():
                nonlocal alive
                alive -= size

            nonlocal alive, most
            super().__init__(*args)
            size = self.keep
            alive += size
            most = max(most, alive)
            weakref.finalize(self.arrays[0], freed)

        def add(self, *args):
            nonlocal steps
            steps += 1
            super().add(*args)

    def f(x, n):
        def body(c):
            return c[0] + 1, c[1] + 0.001 * np.sin(c[1])

        return np.sum(ad.while_loop(lambda c: c[0] < n, body, (0, x), keep=20)[1])

    for _ in range(3):  # the first calls run the loop more than once
        ad.grad(f)(X, np.array(20))
    monkeypatch.setattr(nested_loop, "_Kept", CountingKept)
    ad.grad(f)(X, np.array(10_000))
    assert most <= 4 * 20
    assert steps <= 4 * 10_000  # one in the forward
    steps = most = alive = 0
    ad.grad(f)(X, np.array(20))
    assert (steps, most) == (20, 20)  # the forward kept all of them


def test_carries_are_kept_only_for_a_backward():
    assert "keep=0" in ad.source(ad.compile(newton), 2.0, emitted=True)
    assert "keep=128" in ad.source(ad.grad(newton), 2.0, emitted=True)


def test_loop_with_side_effects_or_branches_runs_in_python():
    seen = []

    def body(x):
        seen.append(1)
        return x * 1.5

    def f(x):
        return ad.while_loop(lambda x: np.sum(x) < 10.0, body, x)

    assert ad.grad(f)(1.0) == pytest.approx(1.5**6)
    assert len(seen) == 6
    branching = ad.grad(lambda x: ad.while_loop(lambda x: x < 9.0, lambda x: x * 2 if x < 3 else x + 1, x))
    assert branching(1.0) == 4.0
    assert ad.while_loop(lambda c: c < 3, lambda c: c + 1, 5) == 5


COMPILED_OR_NOT = ["compiled", "in Python"]


@pytest.mark.parametrize("in_python", [False, True], ids=COMPILED_OR_NOT)
def test_limit_of_steps(in_python):
    def halved(x, n, limit):
        def body(carry):
            if in_python:
                print(end="")  # a side effect, which keeps the loop from being recorded as one op
            return carry[0] + 1.0, 0.5 * carry[1]

        return ad.while_loop(lambda carry: carry[0] < n, body, (0.0, x), limit=limit)[1]

    for g in (halved, ad.grad(halved), ad.grad(ad.grad(lambda x, n, limit: halved(x, n, limit) ** 2))):
        assert g(1.0, 3.0, 3) == g(1.0, 3.0, 4) == g(1.0, 3.0, None)
        with pytest.raises(ad.AutodiffError, match="cond still holds after 2 steps, the limit that was"):
            g(1.0, 3.0, 2)
    with pytest.raises(ad.AutodiffError, match="cond still holds after 1 step, "):
        ad.jvp(lambda x: halved(x, 3.0, 1), (1.0,), (1.0,))
    many = ad.vmap(lambda x, n: halved(x, n, 3))
    np.testing.assert_array_equal(many(np.ones(2), np.array([1.0, 3.0])), [0.5, 0.125])
    with pytest.raises(ad.AutodiffError, match="after 3 steps"):
        many(np.ones(2), np.array([1.0, 4.0]))
    g = ad.compile(halved)
    assert g(1.0, 2.0, 3) == 0.25
    with pytest.raises(ad.AutodiffError):  # by the compiled program
        g(1.0, 4.0, 3)
    assert g(1.0, 3.0, 3) == 0.125


@pytest.mark.parametrize("body", [lambda n: 2 * n, lambda n: (print(end=""), 2 * n)[1]], ids=COMPILED_OR_NOT)
def test_integers_overflow_at_64_bits(body):
    with np.errstate(over="ignore"):
        assert ad.while_loop(lambda n: n > 0, body, 1, limit=100) == -(2**63)


def test_carry_keeps_its_types():
    body = lambda c: (c[0] + 1, c[1] * 2.0, c[2] ^ True)  # noqa: E731
    i, x, flag = ad.while_loop(lambda c: c[0] < 3, body, (0, 1.0, True))
    assert (i, x, flag) == (3, 8.0, False) and type(x) is float
    wide = ad.while_loop(lambda c: c[0] < 3.0, lambda c: c + np.float32(1), np.zeros(2, np.float32))
    assert wide.dtype == np.float32
    f = ad.compile(lambda x: ad.while_loop(lambda x: np.max(x) < 3, lambda x: x + 1.0, x))
    with ad.options(math="strict"):
        np.testing.assert_array_equal(f(np.array([0.5, 1.0])), [2.5, 3.0])


def test_init_is_not_written_to():
    x = np.zeros(3)

    def body(x):
        x += 1.0
        return x

    np.testing.assert_array_equal(ad.while_loop(lambda x: x[0] < 4.5, body, x), np.full(3, 5.0))
    np.testing.assert_array_equal(x, np.zeros(3))


@pytest.mark.parametrize("cond, body, init, options, words", [
    (lambda x: x < 1, lambda x: x, 0.0, {"keep": 0}, ["keep is 0", "positive int"]),
    (lambda x: x < 1, lambda x: x, 0.0, {"limit": True}, ["limit is True", "int"]),
    (lambda x: x < 1, lambda x: x, np.zeros(3), {}, ["cond", "shape (3,)", "truth"]),
    (lambda x: "yes", lambda x: x, 0.0, {}, ["cond gave str", "one truth value"]),
    (lambda x: x[0] < 1, lambda x: x[:2], np.zeros(3), {}, ["(3,)", "(2,)", "body"]),
    (lambda x: x < 1, lambda x: (x, x), 0.0, {}, ["while_loop: body turned a carry with the structure"]),
    (lambda x: x[0] < 1, lambda x: x.astype("f4"), np.zeros(2), {}, ["carry of dtype float64 into float32"]),
    (lambda c: True, lambda c: {"x": c["x"][1:]}, {"x": X}, {}, ["carry['x'] of shape (3,)", "(2,)"]),
])  # fmt: skip
def test_errors(cond, body, init, options, words):
    with pytest.raises(ad.AutodiffError) as error:
        ad.while_loop(cond, body, init, **options)
    for word in ("test_loop.py:", *words):
        assert word in str(error.value)


def test_numbers_as_carry():
    def f(x, run=ad.while_loop):
        body = lambda c: (c[0] * x + 1.0, c[1] + np.sin(c[0]))  # noqa: E731
        return run(lambda c: c[0] < 100.0, body, (1.0, x))[1]

    assert ad.compile(f)(1.7) == f(1.7, python_loop)
    slope = (f(1.7 + 1e-7, python_loop) - f(1.7 - 1e-7, python_loop)) / 2e-7
    assert ad.jvp(f, (1.7,), (1.0,))[1] == pytest.approx(slope, rel=1e-5)
    assert ad.grad(f)(1.7) == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("loop", ["scan", "while_loop"])
def test_memory_and_program_of_a_long_loop_that_writes_in_place(loop):
    """16 times the steps take the same program and at most 4 times the memory."""
    size, peaks, lengths = 4000, [], []

    def move(q, v, k):
        q += 0.01 * v
        v[1:-1] -= 0.01 * k * np.sin(q[1:-1])
        return q, v

    def by_scan(k, n):
        (q, v), _ = ad.scan(lambda c, _: (move(*c, k), None), (np.ones(size), np.zeros(size)), length=n)
        return np.sum(q * v)

    def by_while_loop(k, n):
        def body(c):
            return c[0] + 1, *move(*c[1:], k)

        init = (0, np.ones(size), np.zeros(size))
        _, q, v = ad.while_loop(lambda c: c[0] < n, body, init, keep=10)
        return np.sum(q * v)

    for n in (25, 400) if loop == "scan" else (np.array(25), np.array(400)):
        g = ad.grad(by_scan if loop == "scan" else by_while_loop)
        g(2.0, n)
        lengths.append(len(g.__derived__.last[1].source.splitlines()))
        peaks.append(peak_of(lambda: g(2.0, n)) / (2 * 8 * size))  # noqa: B023
    assert lengths[0] == lengths[1]
    assert peaks[1] < 4 * peaks[0] and peaks[1] < 70  # of 400 carries
