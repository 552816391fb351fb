"""Programs as textbooks have them: arrays are made by np.zeros and filled in loops."""

import numpy as np
import pytest

from gpt2 import autodiff as ad


def heat(u0, r=0.2, steps=20):
    """The heat equation by explicit finite differences."""
    u = np.zeros((steps + 1, len(u0)))
    u[0] = u0
    for k in range(steps):
        u[k + 1, 1:-1] = u[k, 1:-1] + r * (u[k, 2:] - 2.0 * u[k, 1:-1] + u[k, :-2])
    return np.sum(u[-1] ** 2)


def time_warping(a, b):
    """Dynamic time warping: Sakoe and Chiba 1978."""
    n, m = len(a), len(b)
    cost = np.full((n + 1, m + 1), np.inf)
    cost[0, 0] = 0.0
    for i in range(n):
        for j in range(m):
            least = min(cost[i, j], cost[i, j + 1], cost[i + 1, j])
            cost[i + 1, j + 1] = abs(a[i] - b[j]) + least
    return cost[n, m]


def hidden_markov(A, B, start, seen):
    """Log likelihood of a hidden Markov model, by the forward pass with scaling: Rabiner 1989."""
    alpha, scale = np.zeros((len(seen), len(start))), np.zeros(len(seen))
    alpha[0] = start * B[:, seen[0]]
    for t in range(len(seen)):
        if t > 0:
            alpha[t] = (alpha[t - 1] @ A) * B[:, seen[t]]
        scale[t] = np.sum(alpha[t])
        alpha[t] /= scale[t]
    return np.sum(np.log(scale))


def kalman(z, Q=1e-2, R=0.1):
    """A scalar Kalman filter, as in SciPy's cookbook: the squared innovations."""
    n = len(z)
    xhat, P, xhatminus, Pminus, K = (np.zeros(n) for _ in range(5))
    P[0] = 1.0
    for k in range(1, n):
        xhatminus[k], Pminus[k] = xhat[k - 1], P[k - 1] + Q
        K[k] = Pminus[k] / (Pminus[k] + R)
        xhat[k] = xhatminus[k] + K[k] * (z[k] - xhatminus[k])
        P[k] = (1.0 - K[k]) * Pminus[k]
    return np.sum((z - xhat) ** 2)


def n_body(x, m, steps=2, dt=0.01):
    """Newton's attraction, by the leapfrog method: the kinetic energy at the end."""
    n = len(m)
    x, v = x.copy(), np.zeros((n, 3))
    for _ in range(steps):
        a = np.zeros((n, 3))
        for i in range(n):
            for j in range(n):
                if i != j:
                    r = x[j] - x[i]
                    a[i] += m[j] * r / (np.sum(r**2) + 1e-2) ** 1.5
        v += dt * a
        x += dt * v
    return 0.5 * np.sum(m[:, None] * v**2)


def gauss_seidel(b, A, sweeps=4):
    """Gauss and Seidel's iteration for A x = b."""
    x = np.zeros(len(b))
    for _ in range(sweeps):
        for i in range(len(b)):
            x[i] = (b[i] - A[i, :i] @ x[:i] - A[i, i + 1 :] @ x[i + 1 :]) / A[i, i]
    return np.sum(x**2)


def spline(y, h=0.5):
    """Second derivatives of a natural cubic spline, by Thomas' algorithm; their sum of squares."""
    n = len(y) - 2
    c, d, m = np.zeros(n), np.zeros(n), np.zeros(n + 2)
    for i in range(n):
        pivot = 4.0 - (c[i - 1] if i else 0.0)
        c[i] = 1.0 / pivot
        d[i] = (6.0 / h**2 * (y[i] - 2.0 * y[i + 1] + y[i + 2]) - (d[i - 1] if i else 0.0)) / pivot
    for i in range(n - 1, -1, -1):
        m[i + 1] = d[i] - c[i] * m[i + 2]
    return np.sum(m**2)


def iir_filter(x, b, a):
    """A recursive filter of second order."""
    y = np.zeros_like(x)
    for n in range(len(x)):
        for k in range(3):
            if n >= k:
                y[n] += b[k] * x[n - k]
                if k > 0:
                    y[n] -= a[k] * y[n - k]
    return np.sum(y**2)


def alignment(scores, gap=0.5):
    """Needleman and Wunsch's alignment with a soft maximum: the log of the sum over all alignments."""
    n, m = scores.shape
    F = np.zeros((n + 1, m + 1))
    F[:, 0], F[0, :] = -gap * np.arange(n + 1), -gap * np.arange(m + 1)
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            gaps = np.logaddexp(F[i - 1, j], F[i, j - 1]) - gap
            F[i, j] = np.logaddexp(F[i - 1, j - 1] + scores[i - 1, j - 1], gaps)
    return F[n, m]


def ray_marcher(centre, size=5, steps=6):
    """The brightness of a sphere, by sphere tracing: Hart 1996."""
    image, light = np.zeros((size, size)), np.array([0.6, 0.0, -0.8])
    for i, sx in enumerate(np.linspace(-0.3, 0.3, size)):
        for j, sy in enumerate(np.linspace(-0.3, 0.3, size)):
            direction, t = np.array([sx, sy, 1.0]), 0.0
            for _ in range(steps):
                p = t * direction - centre
                t = t + np.sqrt(np.sum(p**2)) - 1.0
            image[i, j] = (t * direction - centre) @ light
    return np.sum(image)


def _programs():
    draw = np.random.default_rng(0).normal
    A, B = (np.exp(draw(size=(4, n))) for n in (4, 6))
    A, B = A / A.sum(1, keepdims=True), B / B.sum(1, keepdims=True)
    walls = draw(size=40)
    walls[[0, -1]] = 0.0
    dominant = draw(size=(10, 10)) + 12.0 * np.eye(10)
    return {
        "heat equation": (heat, (walls,)),
        "time warping": (time_warping, (draw(size=9), draw(size=8))),
        "hidden Markov model": (
            hidden_markov,
            (A, B, np.full(4, 0.25), np.arange(30) * 7 % 6),
        ),
        "Kalman filter": (kalman, (draw(size=40),)),
        "N-body": (n_body, (draw(size=(5, 3)), np.exp(draw(size=5)))),
        "Gauss-Seidel": (gauss_seidel, (draw(size=10), dominant)),
        "spline": (spline, (draw(size=40),)),
        "recursive filter": (
            iir_filter,
            (draw(size=40), np.array([0.2, 0.3, 0.2]), np.array([1.0, -0.5, 0.2])),
        ),
        "alignment": (alignment, (draw(size=(8, 9)),)),
        "ray marcher": (ray_marcher, (np.array([0.1, -0.2, 3.0]),)),
    }


PROGRAMS = _programs()


@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives_are_those_of_differences(name):
    """In both modes. Later calls use the program of the first."""
    program, arguments = PROGRAMS[name]
    x, *rest = arguments
    ad.check_grads(lambda x: program(x, *rest), (x,), order=1)
    g, compiled = ad.grad(program), ad.compile(program)
    for at in (x, x * 1.01, x):
        assert compiled(at, *rest) == pytest.approx(float(program(at, *rest)), rel=1e-12)
        fresh = ad.grad(lambda x: program(x, *rest))
        np.testing.assert_allclose(g(at, *rest), fresh(at), rtol=1e-12)
    assert ad.why_recorded(g) is None
