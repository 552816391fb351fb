"""ad.fixed_point, ad.root and ad.custom_linear_solve: values, derivatives of any order in both modes, own
solvers, many examples, and what they say when there is no solution.
"""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.implicit import rules
from gpt2.autodiff.implicit.solvers import gmres

rng = np.random.default_rng(21)
A = 0.2 * rng.normal(size=(4, 4))
B = rng.normal(size=4)


@pytest.fixture
def few_are_many(monkeypatch):
    """Systems of more than two unknowns are solved without a matrix."""
    monkeypatch.setattr(rules, "DENSE", 2)


def state(a, b, **how):
    """A fixed point of a tree; `b` is read from outside."""

    def f(s, a):
        return {"h": np.tanh(a @ s["h"] + b), "z": 0.3 * s["z"] + s["h"][0]}

    s = ad.fixed_point(f, {"h": np.zeros(4), "z": 0.1}, a, **how)
    return np.sum(s["h"] ** 2) + s["z"] ** 2


def unrolled(a, b):
    h, z = np.zeros(4), 0.1
    for _ in range(60):
        h, z = np.tanh(a @ h + b), 0.3 * z + h[0]
    return np.sum(h**2) + z**2


def test_a_fixed_point_is_that_of_the_loop():
    found = ad.value_and_grad(state, argnums=(0, 1))(A, B)
    expected = ad.value_and_grad(unrolled, argnums=(0, 1))(A, B)
    assert found[0] == pytest.approx(expected[0], rel=1e-11)
    for x, y in zip(found[1], expected[1]):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)
    ad.check_grads(state, (A, B), order=2)


def test_without_a_matrix(few_are_many):
    ad.check_grads(state, (A, B), order=2)
    ad.check_grads(lambda a, b: np.sum(np.sin(cubic(a, b))), (A + np.eye(4), B), order=2)


def cubic(a, b, **how):
    return ad.root(lambda x: a @ x + x**3 - b, np.zeros(4), **how)


def test_roots_of_systems():
    x = cubic(A + np.eye(4), B)
    np.testing.assert_allclose((A + np.eye(4)) @ x + x**3, B, atol=1e-14)
    ad.check_grads(lambda a, b: np.sum(np.sin(cubic(a, b))), (A + np.eye(4), B), order=2)
    found = ad.jacobian(lambda b: cubic(A + np.eye(4), b))(B)
    np.testing.assert_allclose(found, np.linalg.inv(A + np.eye(4) + np.diag(3 * x * x)), rtol=1e-10)


def test_numbers_and_higher_orders_and_many_examples():
    def r(a):
        return ad.root(lambda x, a: x**3 - a, 1.0, a)

    assert type(r(2.0)) is float and r(2.0) == pytest.approx(2 ** (1 / 3), rel=1e-15)
    assert ad.grad(ad.grad(ad.grad(r)))(2.0) == pytest.approx(10 / 27 * 2 ** (-8 / 3), rel=1e-12)
    assert ad.jvp(r, (2.0,), (3.0,))[1] == pytest.approx(2 ** (-2 / 3), rel=1e-14)
    a = np.array([1.0, 2.0, 8.0])
    np.testing.assert_allclose(ad.vmap(r)(a), a ** (1 / 3), rtol=1e-14)
    for f in (ad.vmap(ad.grad(r)), ad.grad(lambda a: np.sum(ad.vmap(r)(a)))):
        np.testing.assert_allclose(f(a), a ** (-2 / 3) / 3, rtol=1e-13)
    g = ad.grad(r)
    g(2.0)
    assert g(3.0) == pytest.approx(3 ** (-2 / 3) / 3) and ad.why_recorded(g) is None
    with ad.options(math="strict"):
        assert g(2.0) == pytest.approx(2 ** (-2 / 3) / 3, rel=1e-14)
    found = ad.root(lambda x: x * x - np.float32(2), np.ones(2, np.float32))
    assert found.dtype == np.float32 and np.allclose(found, 2**0.5)


def test_only_what_is_asked_for_is_differentiated():
    """A backward that is plain Python serves reverse mode, and what has no derivative at all may be read."""

    @ad.custom_vjp
    def square(p):
        return np.array([float(v) ** 2 for v in p])

    @square.defvjp
    def square_vjp(dout, out, p):
        return (np.array([2 * float(v) * float(d) for v, d in zip(p, dout)]),)

    def f(x, p, c):
        return x**3 - square(p) - ad.callback(lambda v: 2 * v, c, c)

    p, c = np.array([4.0, 9.0]), np.ones(2)
    found = ad.grad(lambda p, c: np.sum(ad.root(f, np.ones(2), p, c)))(p, c)
    np.testing.assert_allclose(found, 2 * p / 3 * (p**2 + 2) ** (-2 / 3), rtol=1e-12)


def test_without_derivatives_no_transpose_is_asked_for(few_are_many):
    def f(x, p):
        def step(carry):
            return 0.5 * np.sin(carry[0]) + p, carry[1] + 1

        return x - ad.while_loop(lambda carry: carry[1] < 3, step, (x, 0))[0]

    x = ad.root(f, np.zeros(4), B)
    np.testing.assert_allclose(f(x, B), 0, atol=1e-12)


@pytest.mark.numeric
@pytest.mark.parametrize("seed", range(4))
def test_random_contractions(seed):
    """Fixed points of functions put together at random, against the loop that leads there."""
    draw = np.random.default_rng(seed)
    M = 0.3 * draw.normal(size=(3, 3)) / 3
    shapes = [np.tanh, np.sin, np.cos, lambda v: v / (1.0 + v * v), lambda v: 0.5 * np.sqrt(1.0 + v * v)]
    outer, inner = (shapes[k] for k in draw.integers(len(shapes), size=2))

    def f(x, p):
        return 0.5 * outer(M @ inner(x) + p) + 0.1 * x[::-1]

    def loop(p):
        x = np.zeros(3)
        for _ in range(100):
            x = f(x, p)
        return np.sum(x**2)

    p = draw.normal(size=3)
    found = ad.value_and_grad(lambda p: np.sum(ad.fixed_point(f, np.zeros(3), p) ** 2))(p)
    expected = ad.value_and_grad(loop)(p)
    assert found[0] == pytest.approx(expected[0], rel=1e-10)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-9, atol=1e-12)


def test_own_solvers():
    """A solver that nothing is known of, and one for the linear systems; both see values in the tree of x."""
    calls = []

    def solver(f, x0):
        calls.append(1)
        x = x0
        for _ in range(80):
            x = {k: 0.5 * (x[k] + f(x)[k]) for k in x}
        return x

    def linear(matvec, b):
        def column(i):
            e = np.eye(5)[i]
            v = matvec({"h": e[:4], "z": float(e[4])})
            return np.append(v["h"], v["z"])

        x = np.linalg.solve(np.stack([column(i) for i in range(5)], axis=1), np.append(b["h"], b["z"]))
        return {"h": x[:4], "z": x[4]}

    expected = ad.grad(unrolled, argnums=(0, 1))(A, B)
    for how in ({"solver": solver}, {"linear_solve": linear}, {"solver": solver, "linear_solve": linear}):
        found = ad.grad(lambda a, b, how=how: state(a, b, **how), argnums=(0, 1))(A, B)
        for x, y in zip(found, expected):
            np.testing.assert_allclose(x, y, rtol=1e-8, atol=1e-11)
    assert calls
    optimize = pytest.importorskip("scipy.optimize")
    by_scipy = cubic(A, B, solver=lambda f, x0: optimize.root(f, x0, tol=1e-13).x)
    np.testing.assert_allclose(A @ by_scipy + by_scipy**3, B, atol=1e-9)


@pytest.mark.parametrize(
    "call, words, residual, steps",
    [
        (
            lambda: ad.fixed_point(lambda x: 2 * x + 1, 1.0, max_steps=5),
            ["5 steps", "residual of 32"],
            32.0,
            5,
        ),
        (
            lambda: ad.fixed_point(lambda x, a: -a * x, np.ones(2), 1.0, max_steps=7),
            ["residual of 2 "],
            2.0,
            7,
        ),
        (lambda: ad.root(lambda x: x * x + 1, 1.0), ["root", "singular after 1 steps"], 1.0, 1),
        (lambda: ad.root(lambda x: np.exp(x) + 1, 0.0, max_steps=3), ["root: 3 steps", "|f(x)|"], None, 3),
        (lambda: ad.root(lambda x: np.log(x), -1.0), ["not finite"], None, 0),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_solution_is_an_error_with_residual_and_steps(call, words, residual, steps):
    with pytest.raises(ad.ConvergenceError) as error:
        call()
    assert error.value.steps == steps
    assert residual is None or error.value.residual == residual
    for word in ("test_implicit.py:", *words):
        assert word in str(error.value)


def test_a_program_that_does_not_converge_any_more_says_so():
    f = ad.compile(lambda a: ad.fixed_point(lambda x: a * np.cos(x), 0.5))
    assert f(0.5) == pytest.approx(0.5 * np.cos(f(0.5)))
    with pytest.raises(ad.ConvergenceError, match="1000 steps leave a residual"):
        f(2.5)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: ad.fixed_point(lambda x: x[:2], np.ones(3)), ["f turned x of shape (3,)", "(2,)"]),
        (lambda: ad.fixed_point(lambda x: (x, x), np.ones(3)), ["f turned x with the structure"]),
        (lambda: ad.fixed_point(lambda x: x.astype(np.float32), np.ones(3)), ["float64", "float32"]),
        (
            lambda: ad.root(lambda x: x if x[0] > 0 else -x, np.ones(3)),
            ["root", "branches on values", "np.where"],
        ),
        (lambda: ad.fixed_point(lambda x: x * rng.normal(), 1.0), ["the same function at every x"]),
        (lambda: ad.root(lambda x: x, 1j), ["x0 is complex"]),
        (lambda: ad.root(lambda x: x, 1.0, tol=-1.0), ["tol is -1.0"]),
        (lambda: ad.root(lambda x: x, 1.0, max_steps=0), ["max_steps is 0"]),
    ],
)
def test_errors_of_equations(call, words):
    with pytest.raises(ad.AutodiffError) as error:
        call()
    for word in ("test_implicit.py:", *words):
        assert word in str(error.value)


# --- linear systems -------------------------------------------------------------------------------------

M = A + 2.0 * np.eye(4)


def by_columns(matvec, b):
    return np.linalg.solve(np.stack([matvec(e) for e in np.eye(4)], axis=1), b)


def by_gmres(matvec, b):
    return gmres(matvec, np.array(b))


def conjugate_gradients(matvec, b):
    x = np.zeros_like(b)
    r = p = b - matvec(x)
    while np.max(np.abs(r)) > 1e-13:
        q = matvec(p)
        step = (r @ r) / (p @ q)
        x, old, r = x + step * p, r, r - step * q
        p = r + (r @ r) / (old @ old) * p
    return x


def plainly(a, b):
    return np.sum(np.linalg.solve(a + 0.1 * np.sum(a) * np.eye(4), b) ** 3)


@pytest.mark.parametrize("solve", [by_columns, by_gmres])
def test_linear_systems_solved_by_what_can_be_recorded_and_what_cannot(solve):
    def f(a, b):
        x = ad.custom_linear_solve(lambda v: a @ v + 0.1 * np.sum(a) * v, b, solve, solve)
        return np.sum(x**3)

    assert f(M, B) == pytest.approx(plainly(M, B), rel=1e-9)
    for x, y in zip(ad.grad(f, (0, 1))(M, B), ad.grad(plainly, (0, 1))(M, B)):
        np.testing.assert_allclose(x, y, rtol=1e-8)
    ad.check_grads(f, (M, B), order=2)
    many = rng.normal(size=(3, 4))
    expected = np.stack([ad.grad(plainly, 1)(M, b) for b in many])
    np.testing.assert_allclose(ad.vmap(ad.grad(f, 1), (None, 0))(M, many), expected, rtol=1e-8)


def test_symmetric_systems_need_one_solver():
    S = M @ M.T

    def f(s, b):
        return np.sum(ad.custom_linear_solve(lambda v: s @ v, b, conjugate_gradients, symmetric=True) ** 3)

    def g(s, b):
        return np.sum(np.linalg.solve(s, b) ** 3)

    for x, y in zip(ad.grad(f, (0, 1))(S, B), ad.grad(g, (0, 1))(S, B)):
        np.testing.assert_allclose(x, y, rtol=1e-9)
    np.testing.assert_allclose(ad.hessian(f, 1)(S, B), ad.hessian(g, 1)(S, B), rtol=1e-8)


def test_linear_systems_of_jax():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def solver(np):
        return lambda matvec, b: np.linalg.solve(np.stack([matvec(e) for e in np.eye(4)], axis=1), b)

    with jax.enable_x64(True):

        def f(a, b):
            solve = solver(jnp)
            return jnp.sum(jax.lax.custom_linear_solve(lambda v: a @ v, b, solve, solve) ** 3)

        expected = jax.grad(f, (0, 1))(M, B)

    def g(a, b):
        return np.sum(ad.custom_linear_solve(lambda v: a @ v, b, solver(np), solver(np)) ** 3)

    for x, y in zip(ad.grad(g, (0, 1))(M, B), expected):
        np.testing.assert_allclose(x, y, rtol=1e-10)


@pytest.mark.parametrize(
    "call, words",
    [
        (
            lambda: ad.grad(lambda b: np.sum(ad.custom_linear_solve(lambda v: M @ v, b, by_gmres)))(B),
            ["by_gmres", "transpose_solve", "symmetric=True"],
        ),
        (lambda: ad.custom_linear_solve(lambda v: v * v, B, by_gmres), ["linear in v", "depends on v"]),
        (lambda: ad.custom_linear_solve(lambda v: v + 1.0, B, by_gmres), ["matvec(0) is not 0"]),
        (lambda: ad.custom_linear_solve(lambda v: v[:2], B, by_gmres), ["shape (4,)", "shape (2,)"]),
        (lambda: ad.custom_linear_solve(lambda v: v if v[0] > 0 else v, B, by_gmres), ["branches on values"]),
        (
            lambda: ad.custom_linear_solve(lambda v: v, B, by_gmres, by_gmres, symmetric=True),
            ["symmetric=True, transpose_solve is not used"],
        ),
    ],
)
def test_errors_of_linear_systems(call, words):
    with pytest.raises(ad.AutodiffError) as error:
        call()
    for word in words:
        assert word in str(error.value)
