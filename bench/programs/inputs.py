"""Inputs of the programs: NumPy arrays at the sizes that are timed, or tiny ones for tests."""

import numpy as np

from bench.gradbench.det import minors


def inputs(name, tiny=False):
    """A tuple of arrays, floats and ints, seeded, so that every contender gets the same."""
    return globals()[name.replace("-", "_")](np.random.default_rng(7), tiny)


def arguments(name, inputs_):
    """The arguments of a formula: its inputs, and constants derived from them."""
    return MORE.get(name, lambda *inputs_: inputs_)(*inputs_)


def hello(rng, tiny):
    return (3.0,)


def lse(rng, tiny):
    return (rng.normal(size=50 if tiny else 320_000),)


def llsq(rng, tiny):
    n, m = (20, 5) if tiny else (1024, 128)
    return rng.normal(size=m), np.linspace(-1.0, 1.0, n)


def det(rng, tiny):
    n = 4 if tiny else 8
    return (rng.normal(size=(n, n)),)


def ode(rng, tiny):
    """100 equations, as the last of 400 would not have moved after 100 steps."""
    n, steps = (6, 3) if tiny else (100, 100)
    return 0.5 + rng.random(n), steps


def kmeans(rng, tiny):
    n, d, k = (30, 3, 4) if tiny else (10_000, 8, 100)
    points = rng.random((n, d))
    return points, points[-k:].copy()


def lstm(rng, tiny):
    layers, characters, width = (2, 6, 5) if tiny else (2, 1024, 14)
    shapes = (2 * layers, 4 * width), (3, width), (2 * layers, width), (characters, width)
    return tuple(rng.normal(size=shape) for shape in shapes)


def gmm(rng, tiny):
    n, d, k = (7, 3, 4) if tiny else (1000, 10, 25)
    shapes = (k,), (k, d), (k, d), (k, d * (d - 1) // 2), (n, d)
    return *(0.3 * rng.normal(size=shape) for shape in shapes), 1.0, 0


def ba(rng, tiny):
    """Camera, point, weight and feature of each observation."""
    cameras, points, seen = (3, 5, 11) if tiny else (49, 7776, 31_843)
    number = np.arange(seen)
    camera = rng.normal(size=(cameras, 11))
    point = rng.normal(size=(points, 3))
    return (
        camera[number % cameras],
        point[number % points],
        rng.random(seen),
        rng.normal(size=(seen, 2)),
    )


def ht(rng, tiny):
    """A hand of 22 bones: theta, points, the vertex of each, the model, and the parents of its bones."""
    bones, vertices, points = 22, *((9, 4) if tiny else (544, 100))
    parents = (-1, *(int(rng.integers(0, i)) for i in range(1, bones)))
    return (
        rng.normal(size=26),
        rng.normal(size=(points, 3)),
        rng.integers(0, vertices, points),
        0.5 * rng.normal(size=(bones, 4, 4)),
        rng.normal(size=(bones, 4, 4)),
        rng.normal(size=(vertices, 4)),
        rng.random((vertices, bones)),
        parents,
    )


def saddle(rng, tiny):
    """The point of the outer descent, the start of the ascent, and its step sizes."""
    steps = np.full(5 if tiny else 200, 0.01)
    return np.array([0.8, 0.9]), np.array([1.0, 1.0]), steps


def particle(rng, tiny):
    """The control and the time step. At 0.5 and 0.1 the flight has 353 steps."""
    return np.array([0.5]), 2.0 if tiny else 0.1


def eam(rng, tiny):
    side = 2 if tiny else 6
    lattice = np.stack(np.meshgrid(*[np.arange(side)] * 3), -1).reshape(-1, 3) * 1.1
    return (lattice + 0.05 * rng.normal(size=lattice.shape),)


def rk4(rng, tiny):
    n, steps = (5, 4) if tiny else (40, 200)
    return 8.0 + rng.normal(size=n), 8.0, rng.normal(size=n), steps


def kalman(rng, tiny):
    """Transition and observation matrices, log noise, observations."""
    steps = 5 if tiny else 200
    transition = 0.9 * np.linalg.qr(rng.normal(size=(4, 4)))[0]
    return transition, rng.normal(size=(2, 4)), np.array([-1.0, -0.5]), rng.normal(size=(steps, 2))


def gaussian_process(rng, tiny):
    """Log length scales, log amplitude and noise, points, values."""
    n = 8 if tiny else 300
    x = rng.normal(size=(n, 3))
    return 0.1 * rng.normal(size=3), np.array([0.2, -1.0]), x, np.sin(x.sum(1)) + 0.1 * rng.normal(size=n)


def hidden_markov(rng, tiny):
    """Logits of transitions and emissions, and a sequence."""
    states, symbols, length = (3, 4, 6) if tiny else (16, 20, 500)
    return (
        rng.normal(size=(states, states)),
        rng.normal(size=(states, symbols)),
        rng.integers(0, symbols, length),
    )


def k_means(rng, tiny):
    n, d, k = (12, 3, 4) if tiny else (2000, 3, 20)
    return rng.normal(size=(k, d)), rng.normal(size=(n, d))


def rnn(rng, tiny):
    """Weights and biases of input, state and output; a batch of sequences, and targets."""
    steps, batch, inp, hidden, out = (4, 3, 2, 5, 2) if tiny else (50, 16, 8, 32, 4)
    shapes = (inp, hidden), (hidden, hidden), (hidden,), (hidden, out), (out,)
    weights = tuple(0.3 * rng.normal(size=shape) for shape in shapes)
    return *weights, rng.normal(size=(steps, batch, inp)), rng.normal(size=(batch, out))


def flat(result):
    """All numbers of a nested result of NumPy, JAX or PyTorch, as one array."""
    if isinstance(result, (tuple, list)):
        return np.concatenate([flat(part) for part in result])
    return np.asarray(result, float).ravel()


# ---- Constants ---------------------------------------------------------------------------------------------


def hand_constants(bones, mirrored=False):
    """The index of each bone's angles, among 20 angles and a zero after them, and constant matrices."""
    x, z = np.full(bones, 20), np.full(bones, 20)
    for finger in range(5):
        first = 2 + 4 * finger
        x[first : first + 3] = 4 * finger + np.array([0, 2, 3])
        z[first] = 4 * finger + 1
    return {
        "zero": np.zeros(bones),
        "one": np.ones(bones),
        "x": x,
        "z": z,
        "eye": np.eye(3),
        "column": np.zeros((bones, 3, 1)),
        "last": np.tile([0.0, 0.0, 0.0, 1.0], (bones, 1, 1)),
        "mirror": np.array([-1.0 if mirrored else 1.0, 1.0, 1.0]),
    }


MORE = {
    "llsq": lambda x, t: (x, t, np.sign(t)),
    "det": lambda a: (a, *minors(len(a))),
    "ode": lambda x, steps: (x, np.zeros_like(x), np.ones(1), steps),
    "kmeans": lambda points, centroids: (centroids, points),
    "lstm": lambda main, extra, state, sequence: (main, extra, state, 0.0, sequence),
    "ht": lambda *inputs_: (*inputs_[:-1], hand_constants(len(inputs_[-1])), inputs_[-1]),
    "particle": lambda w, dt: (w, (np.array([0.0, 8.0]), np.array([0.75, 0.0])), dt),
    "eam": lambda x: (x, np.eye(len(x))),
    "kalman": lambda *inputs_: (*inputs_, np.eye(4), np.eye(2), (np.zeros(4), np.eye(4), 0.0)),
    "gaussian-process": lambda *inputs_: (*inputs_, np.eye(len(inputs_[3]))),
    "rnn": lambda *inputs_: (*inputs_, np.zeros((inputs_[5].shape[1], len(inputs_[1])))),
}
