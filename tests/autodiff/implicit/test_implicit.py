"""ad.fixed_point, ad.root and ad.custom_linear_solve: values, derivatives, custom solvers, vmap, errors."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.implicit import rules
from gpt2.autodiff.implicit.solvers import gmres
from tests.support.trees import assert_close

rng = np.random.default_rng(21)
A = 0.2 * rng.normal(size=(4, 4))
B = rng.normal(size=4)


@pytest.fixture
def matrix_free(monkeypatch):
    """Systems of more than two unknowns are solved without their matrix."""
    monkeypatch.setattr(rules, "DENSE", 2)


def state(a, b, **solvers):
    """A function of a fixed point; its equation captures `b`."""

    def f(s, a):
        return {"h": np.tanh(a @ s["h"] + b), "z": 0.3 * s["z"] + s["h"][0]}

    s = ad.fixed_point(f, {"h": np.zeros(4), "z": 0.1}, a, **solvers)
    return np.sum(s["h"] ** 2) + s["z"] ** 2


def unrolled_state(a, b):
    h, z = np.zeros(4), 0.1
    for _ in range(60):
        h, z = np.tanh(a @ h + b), 0.3 * z + h[0]
    return np.sum(h**2) + z**2


def cubic(a, b, **solvers):
    return ad.root(lambda x: a @ x + x**3 - b, np.zeros(4), **solvers)


def test_fixed_point_agrees_with_a_loop():
    actual, expected = (ad.value_and_grad(f, argnums=(0, 1))(A, B) for f in (state, unrolled_state))
    assert actual[0] == pytest.approx(expected[0], rel=1e-11)
    assert_close(actual[1], expected[1], rtol=1e-9, atol=1e-12)
    ad.check_grads(state, (A, B), order=2)


def test_matrix_free_derivatives(matrix_free):
    ad.check_grads(state, (A, B), order=2)
    ad.check_grads(lambda a, b: np.sum(np.sin(cubic(a, b))), (A + np.eye(4), B), order=2)


def test_roots_of_systems():
    a = A + np.eye(4)
    x = cubic(a, B)
    np.testing.assert_allclose(a @ x + x**3, B, atol=1e-14)
    ad.check_grads(lambda a, b: np.sum(np.sin(cubic(a, b))), (a, B), order=2)
    jacobian = ad.jacobian(lambda b: cubic(a, b))(B)
    np.testing.assert_allclose(jacobian, np.linalg.inv(a + np.diag(3 * x * x)), rtol=1e-10)


def test_root_of_a_number_to_third_order_and_under_vmap():
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
    roots = ad.root(lambda x: x * x - np.float32(2), np.ones(2, np.float32))
    assert roots.dtype == np.float32 and np.allclose(roots, 2**0.5)


def test_only_requested_derivatives_are_computed():
    """A rule in plain Python is enough for reverse mode, and a callback of another argument needs no rule."""

    @ad.custom_vjp
    def square(p):
        return np.array([float(v) ** 2 for v in p])

    @square.defvjp
    def square_vjp(dout, out, p):
        return (np.array([2 * float(v) * float(d) for v, d in zip(p, dout)]),)

    def f(x, p, c):
        return x**3 - square(p) - ad.callback(lambda v: 2 * v, c, c)

    p, c = np.array([4.0, 9.0]), np.ones(2)
    slope = ad.grad(lambda p, c: np.sum(ad.root(f, np.ones(2), p, c)))(p, c)
    np.testing.assert_allclose(slope, 2 * p / 3 * (p**2 + 2) ** (-2 / 3), rtol=1e-12)


def test_value_alone_needs_no_transpose(matrix_free):
    """A while_loop cannot be transposed."""

    def f(x, p):
        def step(carry):
            return 0.5 * np.sin(carry[0]) + p, carry[1] + 1

        return x - ad.while_loop(lambda carry: carry[1] < 3, step, (x, 0))[0]

    x = ad.root(f, np.zeros(4), B)
    np.testing.assert_allclose(f(x, B), 0, atol=1e-12)


@pytest.mark.numeric
@pytest.mark.parametrize("seed", range(4))
def test_fixed_points_of_random_contractions(seed):
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
    actual = ad.value_and_grad(lambda p: np.sum(ad.fixed_point(f, np.zeros(3), p) ** 2))(p)
    assert_close(actual, ad.value_and_grad(loop)(p), rtol=1e-9, atol=1e-12)


def test_custom_solvers():
    """Of the equation and of its linear systems; both get trees like x."""
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

    expected = ad.grad(unrolled_state, argnums=(0, 1))(A, B)
    for own in ({"solver": solver}, {"linear_solve": linear}, {"solver": solver, "linear_solve": linear}):
        slopes = ad.grad(lambda a, b, own=own: state(a, b, **own), argnums=(0, 1))(A, B)
        assert_close(slopes, expected, rtol=1e-8, atol=1e-11)
    assert calls


def test_solver_of_scipy():
    optimize = pytest.importorskip("scipy.optimize")
    x = cubic(A, B, solver=lambda f, x0: optimize.root(f, x0, tol=1e-13).x)
    np.testing.assert_allclose(A @ x + x**3, B, atol=1e-9)


@pytest.mark.parametrize("call, words, residual, steps", [
    (lambda: ad.fixed_point(lambda x: 2 * x + 1, 1.0, max_steps=5), ["5 steps", "residual of 32"], 32.0, 5),
    (lambda: ad.fixed_point(lambda x, a: -a * x, np.ones(2), 1.0, max_steps=7), ["residual of 2 "], 2.0, 7),
    (lambda: ad.root(lambda x: x * x + 1, 1.0), ["root", "singular after 1 steps"], 1.0, 1),
    (lambda: ad.root(lambda x: np.exp(x) + 1, 0.0, max_steps=3), ["root: 3 steps", "|f(x)|"], None, 3),
    (lambda: ad.root(lambda x: np.log(x), -1.0), ["not finite"], None, 0),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_failure_to_converge_is_an_error_with_residual_and_steps(call, words, residual, steps):
    with pytest.raises(ad.ConvergenceError) as error:
        call()
    assert error.value.steps == steps
    assert residual is None or error.value.residual == residual
    for word in ("test_implicit.py:", *words):
        assert word in str(error.value)


def test_failure_of_a_compiled_solver_to_converge():
    f = ad.compile(lambda a: ad.fixed_point(lambda x: a * np.cos(x), 0.5))
    assert f(0.5) == pytest.approx(0.5 * np.cos(f(0.5)))
    with pytest.raises(ad.ConvergenceError, match="1000 steps leave a residual"):
        f(2.5)


# ---- Linear systems --------------------------------------------------------------------------------------

M = A + 2.0 * np.eye(4)


def by_columns(matvec, b, np=np):
    return np.linalg.solve(np.stack([matvec(e) for e in np.eye(4)], axis=1), b)


def by_gmres(matvec, b):
    """It cannot be recorded: it branches on values."""
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


@pytest.mark.parametrize("solve", [by_columns, by_gmres])
def test_linear_systems(solve):
    def f(a, b):
        x = ad.custom_linear_solve(lambda v: a @ v + 0.1 * np.sum(a) * v, b, solve, solve)
        return np.sum(x**3)

    def by_numpy(a, b):
        return np.sum(np.linalg.solve(a + 0.1 * np.sum(a) * np.eye(4), b) ** 3)

    actual, expected = (ad.value_and_grad(g, (0, 1))(M, B) for g in (f, by_numpy))
    assert_close(actual, expected, rtol=1e-8)
    ad.check_grads(f, (M, B), order=2)
    many = rng.normal(size=(3, 4))
    expected = np.stack([ad.grad(by_numpy, 1)(M, b) for b in many])
    np.testing.assert_allclose(ad.vmap(ad.grad(f, 1), (None, 0))(M, many), expected, rtol=1e-8)


def test_symmetric_systems_need_one_solver():
    S = M @ M.T

    def f(s, b):
        return np.sum(ad.custom_linear_solve(lambda v: s @ v, b, conjugate_gradients, symmetric=True) ** 3)

    def g(s, b):
        return np.sum(np.linalg.solve(s, b) ** 3)

    assert_close(ad.grad(f, (0, 1))(S, B), ad.grad(g, (0, 1))(S, B), rtol=1e-9)
    np.testing.assert_allclose(ad.hessian(f, 1)(S, B), ad.hessian(g, 1)(S, B), rtol=1e-8)
    with pytest.raises(ad.AutodiffError, match="by_gmres.*transpose_solve.*symmetric=True"):
        ad.grad(lambda b: np.sum(ad.custom_linear_solve(lambda v: S @ v, b, by_gmres)))(B)


@pytest.mark.slow
def test_linear_solve_agrees_with_that_of_jax():
    jax = pytest.importorskip("jax")

    def gradients(linear_solve, grad, np):
        solve = lambda matvec, b: by_columns(matvec, b, np)  # noqa: E731
        return grad(lambda a, b: np.sum(linear_solve(lambda v: a @ v, b, solve, solve) ** 3), (0, 1))(M, B)

    with jax.enable_x64(True):
        expected = gradients(jax.lax.custom_linear_solve, jax.grad, jax.numpy)
    assert_close(gradients(ad.custom_linear_solve, ad.grad, np), [*map(np.asarray, expected)], rtol=1e-10)


@pytest.mark.parametrize("call, words", [
    (lambda: ad.fixed_point(lambda x: x[:2], np.ones(3)), ["f turned x of shape (3,)", "(2,)"]),
    (lambda: ad.fixed_point(lambda x: (x, x), np.ones(3)), ["f turned x with the structure"]),
    (lambda: ad.fixed_point(lambda x: x.astype(np.float32), np.ones(3)), ["float64", "float32"]),
    (lambda: ad.root(lambda x: x if x[0] > 0 else -x, np.ones(3)), ["root", "branches on", "np.where"]),
    (lambda: ad.fixed_point(lambda x: x * rng.normal(), 1.0), ["the same function at every x"]),
    (lambda: ad.root(lambda x: x, 1j), ["x0 is complex"]),
    (lambda: ad.root(lambda x: x, 1.0, tol=-1.0), ["tol is -1.0"]),
    (lambda: ad.root(lambda x: x, 1.0, max_steps=0), ["max_steps is 0"]),
    (lambda: ad.custom_linear_solve(lambda v: v * v, B, by_gmres), ["linear in v", "depends on v"]),
    (lambda: ad.custom_linear_solve(lambda v: v + 1.0, B, by_gmres), ["matvec(0) is not 0"]),
    (lambda: ad.custom_linear_solve(lambda v: v[:2], B, by_gmres), ["shape (4,)", "shape (2,)"]),
    (lambda: ad.custom_linear_solve(lambda v: v if v[0] > 0 else v, B, by_gmres), ["branches on values"]),
    (
        lambda: ad.custom_linear_solve(lambda v: v, B, by_gmres, by_gmres, symmetric=True),
        ["symmetric=True, transpose_solve is not used"],
    ),
])  # fmt: skip
def test_errors(call, words):
    with pytest.raises(ad.AutodiffError) as error:
        call()
    for word in ("test_implicit.py:", *words):
        assert word in str(error.value)
