"""Study: ten programs as they stand in textbooks, beside the same rewritten for JAX and HIPS autograd.

Those of textbooks are in NumPy: arrays are made by np.zeros and filled in loops.

PROGRAMS has for each: the program; the same rewritten without writing in place, for JAX and HIPS autograd,
with their numpy as its first argument; and arguments of float64, of which the first is differentiated.
"""

from functools import partial

import numpy as np

from bench.studies.measure import interleave
from bench.studies.peers import gradients
from bench.studies.study import Result, Study
from gpt2 import autodiff as ad

TOLERANCE = 1e-10  # of derivatives, relative to the largest: sums in another order
OWN = "derived"


def heat(u0, r=0.2, steps=20):
    """The heat equation by explicit finite differences."""
    u = np.zeros((steps + 1, len(u0)))
    u[0] = u0
    for k in range(steps):
        u[k + 1, 1:-1] = u[k, 1:-1] + r * (u[k, 2:] - 2.0 * u[k, 1:-1] + u[k, :-2])
    return np.sum(u[-1] ** 2)


def heat_rewritten(xp, u0, r=0.2, steps=20):
    u = u0
    for _ in range(steps):
        inner = u[1:-1] + r * (u[2:] - 2.0 * u[1:-1] + u[:-2])
        u = xp.concatenate([xp.zeros(1), inner, xp.zeros(1)])
    return xp.sum(u**2)


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


def time_warping_rewritten(xp, a, b):
    row = [0.0, *[np.inf] * len(b)]
    for i in range(len(a)):
        new = [np.inf]
        for j in range(len(b)):
            least = xp.minimum(xp.minimum(row[j], row[j + 1]), new[j])
            new.append(xp.abs(a[i] - b[j]) + least)
        row = new
    return row[-1]


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


def hidden_markov_rewritten(xp, A, B, start, seen):
    alpha, total = start * B[:, seen[0]], 0.0
    for t in range(len(seen)):
        alpha = (alpha @ A) * B[:, seen[t]] if t > 0 else alpha
        scale = xp.sum(alpha)
        alpha, total = alpha / scale, total + xp.log(scale)
    return total


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


def kalman_rewritten(xp, z, Q=1e-2, R=0.1):
    xhat, P, total = 0.0, 1.0, z[0] ** 2
    for k in range(1, len(z)):
        K = (P + Q) / (P + Q + R)
        xhat, P = xhat + K * (z[k] - xhat), (1.0 - K) * (P + Q)
        total = total + (z[k] - xhat) ** 2
    return total


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


def n_body_rewritten(xp, x, m, steps=2, dt=0.01):
    v = 0.0
    for _ in range(steps):
        r = x[None] - x[:, None]
        a = xp.sum(m[None, :, None] * r / (xp.sum(r**2, -1) + 1e-2)[..., None] ** 1.5, 1)
        v = v + dt * a
        x = x + dt * v
    return 0.5 * xp.sum(m[:, None] * v**2)


def gauss_seidel(b, A, sweeps=4):
    """Gauss and Seidel's iteration for A x = b."""
    x = np.zeros(len(b))
    for _ in range(sweeps):
        for i in range(len(b)):
            x[i] = (b[i] - A[i, :i] @ x[:i] - A[i, i + 1 :] @ x[i + 1 :]) / A[i, i]
    return np.sum(x**2)


def gauss_seidel_rewritten(xp, b, A, sweeps=4):
    x = [0.0] * len(b)
    for _ in range(sweeps):
        for i in range(len(b)):
            x[i] = (b[i] - sum(A[i, j] * x[j] for j in range(len(b)) if j != i)) / A[i, i]
    return sum(v**2 for v in x)


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


def spline_rewritten(xp, y, h=0.5):
    c, d, total, m = [0.0], [0.0], 0.0, 0.0
    for i in range(len(y) - 2):
        c.append(1.0 / (4.0 - c[-1]))
        d.append((6.0 / h**2 * (y[i] - 2.0 * y[i + 1] + y[i + 2]) - d[-1]) * c[-1])
    for ci, di in zip(c[:0:-1], d[:0:-1]):
        m = di - ci * m
        total = total + m**2
    return total


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


def iir_filter_rewritten(xp, x, b, a):
    y = [0.0, 0.0]
    for n in range(len(x)):
        direct = sum(b[k] * x[n - k] for k in range(3) if n >= k)
        y.append(direct - a[1] * y[-1] - a[2] * y[-2])
    return sum(v**2 for v in y)


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


def alignment_rewritten(xp, scores, gap=0.5):
    n, m = scores.shape
    row = [-gap * j for j in range(m + 1)]
    for i in range(1, n + 1):
        new = [-gap * i]
        for j in range(1, m + 1):
            gaps = xp.logaddexp(row[j], new[j - 1]) - gap
            new.append(xp.logaddexp(row[j - 1] + scores[i - 1, j - 1], gaps))
        row = new
    return row[-1]


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


def ray_marcher_rewritten(xp, centre, size=5, steps=6):
    side, light = np.linspace(-0.3, 0.3, size), np.array([0.6, 0.0, -0.8])
    x, y = np.meshgrid(side, side, indexing="ij")
    direction, t = np.stack([x, y, np.ones_like(x)], -1), xp.zeros((size, size, 1))
    for _ in range(steps):
        p = t * direction - centre
        t = t + xp.sqrt(xp.sum(p**2, -1))[..., None] - 1.0
    return xp.sum((t * direction - centre) @ light)


def _programs():
    draw = np.random.default_rng(0).normal
    A, B = (np.exp(draw(size=(4, n))) for n in (4, 6))
    A, B = A / A.sum(1, keepdims=True), B / B.sum(1, keepdims=True)
    walls = draw(size=40)
    walls[[0, -1]] = 0.0
    dominant = draw(size=(10, 10)) + 12.0 * np.eye(10)
    return {
        "heat equation": (heat, heat_rewritten, (walls,)),
        "time warping": (time_warping, time_warping_rewritten, (draw(size=9), draw(size=8))),
        "hidden Markov model": (
            hidden_markov,
            hidden_markov_rewritten,
            (A, B, np.full(4, 0.25), np.arange(30) * 7 % 6),
        ),
        "Kalman filter": (kalman, kalman_rewritten, (draw(size=40),)),
        "N-body": (n_body, n_body_rewritten, (draw(size=(5, 3)), np.exp(draw(size=5)))),
        "Gauss-Seidel": (gauss_seidel, gauss_seidel_rewritten, (draw(size=10), dominant)),
        "spline": (spline, spline_rewritten, (draw(size=40),)),
        "recursive filter": (
            iir_filter,
            iir_filter_rewritten,
            (draw(size=40), np.array([0.2, 0.3, 0.2]), np.array([1.0, -0.5, 0.2])),
        ),
        "alignment": (alignment, alignment_rewritten, (draw(size=(8, 9)),)),
        "ray marcher": (ray_marcher, ray_marcher_rewritten, (np.array([0.1, -0.2, 3.0]),)),
    }


PROGRAMS = _programs()


def run(options):
    result = Result()
    peers = gradients(result, ("jax", "autograd"))
    tables = [
        result.table(title, "program", *(f"{player} [s]" for player in (OWN, *peers)))
        for title in ("Time of a later call", "Time of the first call")
    ]
    slower = dict.fromkeys(peers, 0)
    names = list(PROGRAMS)[: 2 if options.quick else None]
    for name in names:
        program, rewritten, (x, *rest) = PROGRAMS[name]
        calls = {OWN: partial(ad.grad(program), x, *rest)}
        for peer, (xp, make) in peers.items():
            calls[peer] = make(lambda x, xp=xp, f=rewritten, rest=rest: f(xp, x, *rest), x)
        times = interleave(calls, options.seconds / len(names) / 2)
        own = calls[OWN]()
        for player, call in calls.items():
            error = np.max(np.abs(call() - own)) / np.max(np.abs(own))
            assert error < TOLERANCE, f"{name}, {player}: derivatives are off by {error:.1e}"
        tables[0].add(name, *times.values())
        tables[1].add(name, *(sample.first for sample in times.values()))
        for peer in peers:
            slower[peer] += times[peer].median > times[OWN].median
    for peer, n in slower.items():
        result.note(f"A later call of {peer} takes longer than the derived program's in {n} of {len(names)}.")
    return result


STUDY = Study(
    "textbook",
    "Can programs stay as they stand in textbooks, with np.zeros and loops that fill arrays, and what "
    "does that cost? Ten of them, beside the same rewritten without writing in place for JAX and HIPS "
    "autograd.",
    "The gradient by the first argument of each program of bench/studies/textbook.py, in float64: the "
    "heat equation by finite differences, dynamic time warping, the forward pass of a hidden Markov "
    "model, a Kalman filter, bodies under gravity, Gauss and Seidel's iteration, a spline's tridiagonal "
    "solve, a recursive filter, an alignment by Needleman and Wunsch with a soft maximum, a ray marcher. "
    "Here the text is NumPy's, unchanged; rewritten, the loops build lists, or work on whole arrays, and "
    "JAX unrolls and compiles them. Derivatives are compared, to 1e-10; then all take turns in one "
    "process. The first call records, or traces, and compiles.",
    run,
    seconds=120,
)
