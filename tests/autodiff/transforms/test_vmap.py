"""ad.vmap against a loop: its axes, derivatives of it and in it, loops and custom rules under it."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.transforms import jacobian
from gpt2.layers import LAYERS
from gpt2.model import GPT2, GPT2Config, loss_fn
from tests.support.trees import assert_close


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def loss(params, x, y):
    hidden = np.tanh(x @ params["w"] + params["b"])
    e = np.exp(hidden - np.max(hidden))
    return -np.log(e / np.sum(e))[y] + 0.1 * np.sum(np.sort(x) * np.cumsum(x))


@pytest.fixture
def problem(rng):
    params = {"w": rng.normal(size=(4, 3)), "b": rng.normal(size=3)}
    return params, rng.normal(size=(5, 4)), rng.integers(0, 3, size=5)


def close(a, b):
    assert_close(a, np.asarray(b) if isinstance(b, list) else b, rtol=1e-10, atol=1e-12)


def stacked(results):
    return ad.tree.map(lambda *parts: np.stack(parts), *results)


@pytest.mark.parametrize("transform", [
    lambda f: f, ad.grad, ad.value_and_grad, lambda f: ad.grad(f, argnums=(0, 1)), ad.jacobian
])  # fmt: skip
def test_values_and_derivatives_of_every_example(problem, transform):
    params, xs, ys = problem
    f = transform(loss)
    mapped = ad.vmap(f, in_axes=(None, 0, 0))
    expected = stacked([f(params, x, y) for x, y in zip(xs, ys)])
    for _ in range(2):
        close(mapped(params, xs, ys), expected)
        assert ad.why_recorded(mapped) is None


def test_derivatives_of_a_mapped_function(problem):
    params, xs, ys = problem
    mapped = ad.vmap(loss, in_axes=(None, 0, 0))

    def with_vmap(p):
        return np.sum(mapped(p, xs, ys) ** 2)

    def with_loop(p):
        return sum(loss(p, x, y) ** 2 for x, y in zip(xs, ys))

    close(ad.grad(with_vmap)(params), ad.grad(with_loop)(params))
    close(ad.jvp(with_vmap, (params,), (params,)), ad.jvp(with_loop, (params,), (params,)))
    close(ad.hvp(with_vmap, params, params), ad.hvp(with_loop, params, params))
    close(ad.vjp(with_vmap, params)[1](1.0), ad.vjp(with_loop, params)[1](1.0))
    ad.check_grads(with_vmap, (params,))


def test_vmap_of_vmap(rng):
    a, b = rng.normal(size=(3, 4)), rng.normal(size=(2, 4))
    pairs = ad.vmap(ad.vmap(np.dot, in_axes=(None, 0)), in_axes=(0, None))
    close(pairs(a, b), a @ b.T)
    close(ad.grad(lambda a: np.sum(np.sin(pairs(a, b))))(a), np.cos(a @ b.T) @ b)


def test_axes(rng):
    a, b = rng.normal(size=(4, 3, 2)), rng.normal(size=(2, 5))
    f = lambda x, y: {"p": x @ y, "q": (x, 1.0)}  # noqa: E731
    result = ad.vmap(f, in_axes=(1, None), out_axes={"p": -1, "q": (1, None)})(a, b)
    expected = [f(a[:, k], b) for k in range(3)]
    close(result["p"], np.stack([e["p"] for e in expected], -1))
    close(result["q"][0], np.stack([e["q"][0] for e in expected], 1))
    assert float(result["q"][1]) == 1.0
    params = {"w": a, "n": 2, "s": 3.0}
    v = ad.vmap(lambda p: np.sum(p["w"]) * p["s"] * p["n"], in_axes=({"w": 2, "s": None, "n": None},))
    close(v(params), 6.0 * a.sum((0, 1)))
    close(ad.vmap(lambda x, *, k: x * k)(a, k=a), a * a)


def test_loops_and_custom_rules(rng):
    """scan, parallel_map, checkpoint and custom derivatives: ops with a function in them."""
    xs, w = rng.normal(size=(4, 3)), rng.normal(size=3)

    @ad.custom_vjp
    def cube(x, k):
        return k * x**3

    @cube.defvjp
    def cube_vjp(dout, out, x, k):
        return 5.0 * dout * k * x**2, np.sum(dout * x**3)

    @ad.custom_jvp
    def double(x):
        return 2.0 * x

    @double.defjvp
    def double_jvp(primals, tangents):
        return 2.0 * primals[0], 7.0 * tangents[0]

    @ad.custom_vjp
    def opaque(x):
        return np.array([float(v) ** 2 for v in x])  # cannot be recorded

    @opaque.defvjp
    def opaque_vjp(dout, out, x):
        return (dout * 2.0 * x,)

    functions = [
        lambda x, w: ad.scan(lambda c, s: (np.tanh(c * w + s), np.sum(c)), np.ones(3) * x[0], x)[0],
        lambda x, w: ad.scan(lambda c, s: (c * w[0], (s, w)), 1.0, x)[1],
        lambda x, w: ad.scan(lambda c, s: (c, c * s), w, x[:, None] * x)[1],
        lambda x, w: ad.parallel_map(lambda s: np.sum(np.sin(s * w)), np.outer(x, w)),
        lambda x, w: ad.parallel_map(lambda s: np.sum(np.sin(s * x)), np.outer(w, w)),
        lambda x, w: ad.checkpoint(lambda x: np.sin(x) * w)(x),
        lambda x, w: cube(x, 2.0) * cube(w, x[0]),
        lambda x, w: double(x) * double(w),
        lambda x, w: opaque(x) * opaque(w),
    ]
    for number, f in enumerate(functions):
        total = lambda x, w: sum(np.sum(np.cos(y)) for y in ad.tree.leaves(f(x, w)))  # noqa: E731, B023
        for g in (f, ad.grad(total, argnums=(0, 1))):
            close(ad.vmap(g, in_axes=(0, None))(xs, w), stacked([g(x, w) for x in xs]))
        sums = lambda w: np.sum(ad.vmap(total, in_axes=(0, None))(xs, w))  # noqa: E731, B023
        close(ad.grad(sums)(w), sum(ad.grad(total, 1)(x, w) for x in xs))
        if number < 5:
            close(ad.jvp(sums, (w,), (w,))[1], np.dot(ad.grad(sums)(w), w))


def test_functions_with_branches_or_side_effects_run_once_for_each_example(rng):
    xs = rng.normal(size=6)
    f = lambda x: x**2 if x > 0 else -3.0 * x  # noqa: E731
    close(ad.vmap(f)(xs), [f(x) for x in xs])
    close(ad.grad(lambda xs: np.sum(ad.vmap(f)(xs)))(xs), np.where(xs > 0, 2 * xs, -3.0))
    seen = []
    ad.vmap(lambda x: seen.append(1) or x)(xs)
    assert len(seen) == 6
    with pytest.raises(ad.AutodiffError, match="other shapes for other examples"):
        ad.vmap(lambda x: np.zeros(int(x)))(np.array([1.0, 2.0]))


def test_no_examples():
    a, b = ad.vmap(lambda x: (np.sum(x), x * 2))(np.zeros((0, 3)))
    assert a.shape == (0,) and b.shape == (0, 3)


def test_function_may_write_to_its_example(rng):
    """The caller's array does not change."""
    xs = rng.normal(size=(3, 4))
    before = xs.copy()

    def f(x):
        x *= 2.0
        x[0] = 1.0
        return np.sum(x)

    close(ad.vmap(f)(xs), 1.0 + 2 * before[:, 1:].sum(1))
    assert np.array_equal(xs, before)


def test_single_precision_stays(rng):
    xs = rng.normal(size=(3, 4)).astype(np.float32)
    out = ad.vmap(ad.grad(lambda x: np.mean(np.exp(2.0 * x) ** 1.5)))(xs)
    assert out.dtype == np.float32


@pytest.mark.parametrize("call, message", [
    (lambda x: ad.vmap(np.dot)(x, np.ones(4)), r"a has 5 \(axis 0 of shape \(5, 3\)\), b has 4"),
    (lambda x: ad.vmap(lambda p, q: p)(x, np.ones((4, 2))), r"p has 5 \(axis 0 of shape \(5, 3\)\), q has 4"),
    (lambda x: ad.vmap(lambda p: p["a"])({"a": x, "b": x[1:]}), r"p\['a'\] has 5 .*, p\['b'\] has 4"),
    (lambda x: ad.vmap(lambda p: p, in_axes=2)(x), r"axis 2 of p, which has shape \(5, 3\)"),
    (lambda x: ad.vmap(lambda p, s: p * s)(x, 2.0), "axis 0 of s, which has no axes: it is a number"),
    (lambda x: ad.vmap(lambda p: p, in_axes=(0, 0))(x), "in_axes has 2 entries, but .* 1 positional"),
    (lambda x: ad.vmap(lambda p: p, in_axes=None)(x), "no argument of <lambda> is mapped"),
    (lambda x: ad.vmap(lambda p: p, out_axes=None)(x), "out_axes has None for the result of <lambda>"),
    (lambda x: ad.vmap(lambda p: p, out_axes=4)(x), "names axis 4 of a result"),
    (lambda x: ad.vmap(lambda p: p, in_axes=("a",)), "in_axes has 'a'"),
    (lambda x: ad.vmap(lambda p: p, in_axes=((0, 0),))({"a": x}), "is not nested as the value"),
])  # fmt: skip
def test_errors_name_the_argument(call, message, rng):
    with pytest.raises(ad.AutodiffError, match=message):
        call(rng.normal(size=(5, 3)))


def test_per_example_gradients_of_gpt2(rng):
    config = GPT2Config(vocab_size=11, block_size=5, n_layer=2, n_head=2, n_embd=8, dtype="float64")
    model = GPT2(config, seed=1)
    tokens, targets = rng.integers(0, 11, size=(2, 3, 5))

    def loss(params, tokens, targets):
        return loss_fn(params, tokens[None], targets[None], config=config, layers=LAYERS)

    per_example = ad.vmap(ad.grad(loss), in_axes=(None, 0, 0))(model.params, tokens, targets)
    for k in range(3):
        model.loss_and_grads(tokens[k : k + 1], targets[k : k + 1])
        for name, g in model.grads.items():
            np.testing.assert_allclose(per_example[name][k], g, rtol=1e-9, atol=1e-12)


# ---- Jacobians and Hessians, which run as one batched program --------------------------------------------


def test_jacfwd_and_jacrev_of_trees(rng):
    w, x = rng.normal(size=(3, 4)), rng.normal(size=4)
    f = lambda x: {"a": np.tanh(w @ x), "b": x[::-1] * np.sum(x)}  # noqa: E731
    expected = ad.jacobian(f)(x)
    for transform in (ad.jacfwd, ad.jacrev):
        close(transform(f)(x), expected)
    np.testing.assert_allclose(expected["a"], (1 - np.tanh(w @ x) ** 2)[:, None] * w)
    many = ad.vmap(ad.jacobian(f))(np.stack([x, 2 * x]))
    close(many["b"][1], ad.jacobian(f)(2 * x)["b"])
    with pytest.raises(ad.AutodiffError, match="jacrev: a result is complex"):
        ad.jacrev(lambda x: x * 1j)(x)


def test_hessian_too_large_for_one_program(rng, monkeypatch):
    x = rng.normal(size=6)
    expected = ad.hessian(lambda x: np.sum(np.sin(x) * x[::-1]))(x)
    monkeypatch.setattr(jacobian, "MOST", 10)
    close(ad.hessian(lambda x: np.sum(np.sin(x) * x[::-1]) * 1.0)(x), expected)


def test_elementwise_grad_and_gauss_newton_product(rng):
    x, v = rng.normal(size=5), rng.normal(size=5)
    close(ad.elementwise_grad(ad.elementwise_grad(np.sin))(x), -np.sin(x))
    w = rng.normal(size=(3, 5))
    f, half = (lambda x: np.tanh(w @ x)), (lambda y: 0.5 * np.sum(y**4))
    j = ad.jacobian(f)(x)
    close(ad.ggnvp(f, half, x, v), j.T @ (ad.hessian(half)(f(x)) @ (j @ v)))


@pytest.mark.parametrize("width", [4, 4000])
def test_concatenation_with_a_part_that_is_not_batched(rng, width):
    xs, w = rng.normal(size=(3, 3, width)), rng.normal(size=(3, width))

    def together(x, w):
        both = np.concatenate([np.tanh(w)[None], np.sin(x)[None]], 0)
        return both * 2.0, np.exp(both[0]) * x

    def of_all(xs, w):
        return ad.vmap(together, in_axes=(0, None))(xs, w)

    assert_close(of_all(xs, w), stacked([together(x, w) for x in xs]), rtol=0.0)
    slopes = ad.grad(lambda xs, w: sum(np.sum(r**2) for r in of_all(xs, w)), argnums=(0, 1))
    looped = ad.grad(lambda xs, w: sum(np.sum(r**2) for x in xs for r in together(x, w)), argnums=(0, 1))
    close(slopes(xs, w), looped(xs, w))
