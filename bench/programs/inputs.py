"""Arguments of the programs' formulas: NumPy arrays at the sizes that are timed, or tiny ones for tests."""

import numpy as np

from bench.gradbench import figures, protocol
from bench.gradbench.det import minors

# GradBench's evaluations: the arguments of its random input, timed and tiny
GRADBENCH = {
    "hello": ((), ()),
    "lse": ((320_000,), (50,)),
    "llsq": ((1024, 128), (20, 5)),
    "det": ((8,), (4,)),
    "ode": ((100, 100), (6, 3)),  # of 400 equations the last would not have moved after 100 steps
    "kmeans": ((100, 10_000, 8), (4, 30, 3)),
    "lstm": ((2, 1024, 14), (2, 6, 5)),
    "gmm": ((10, 25, 1000), (3, 4, 7)),
    "ba": ((49, 7776, 31_843), (3, 5, 11)),
    "ht": ((544, 100), (9, 4)),
}
# The formula's arguments from what the evaluation reads, where they are others
ARRANGED = {
    "det": lambda a: (a, *minors(len(a))),
    "kmeans": lambda points, centroids: (centroids, points),
    "ba": lambda cameras, points, weights, observed, features: (
        cameras[observed[:, 0]],
        points[observed[:, 1]],
        weights,
        features,
    ),
    "ht": lambda theta, us, points, places, model: (theta, points, places, *model),
}


def inputs(name, tiny=False):
    """A tuple of arrays, floats and ints, seeded, so that every contender gets the same."""
    rng = np.random.default_rng(7)
    if name not in GRADBENCH:
        return globals()[name.replace("-", "_")](rng, tiny)
    read = next(iter(protocol.functions_of(name).values())).read
    arguments = read(figures.INPUTS[name](rng, *GRADBENCH[name][tiny]))
    return ARRANGED[name](*arguments) if name in ARRANGED else arguments


def saddle(rng, tiny):
    """The point of the outer descent, the start of the ascent, and its step sizes."""
    steps = np.full(5 if tiny else 200, 0.01)
    return np.array([0.8, 0.9]), np.array([1.0, 1.0]), steps


def particle(rng, tiny):
    """The control, position and velocity, the time step. At 0.5 and 0.1 the flight has 353 steps."""
    return np.array([0.5]), (np.array([0.0, 8.0]), np.array([0.75, 0.0])), 2.0 if tiny else 0.1


def eam(rng, tiny):
    side = 2 if tiny else 6
    lattice = np.stack(np.meshgrid(*[np.arange(side)] * 3), -1).reshape(-1, 3) * 1.1
    return lattice + 0.05 * rng.normal(size=lattice.shape), np.eye(len(lattice))


def rk4(rng, tiny):
    n, steps = (5, 4) if tiny else (40, 200)
    return 8.0 + rng.normal(size=n), 8.0, rng.normal(size=n), steps


def kalman(rng, tiny):
    """Transition and observation matrices, log noise, observations, and constants."""
    steps = 5 if tiny else 200
    transition = 0.9 * np.linalg.qr(rng.normal(size=(4, 4)))[0]
    given = transition, rng.normal(size=(2, 4)), np.array([-1.0, -0.5]), rng.normal(size=(steps, 2))
    return *given, np.eye(4), np.eye(2), (np.zeros(4), np.eye(4), 0.0)


def gaussian_process(rng, tiny):
    """Log length scales, log amplitude and noise, points, values."""
    n = 8 if tiny else 300
    x = rng.normal(size=(n, 3))
    y = np.sin(x.sum(1)) + 0.1 * rng.normal(size=n)
    return 0.1 * rng.normal(size=3), np.array([0.2, -1.0]), x, y, np.eye(n)


def hidden_markov(rng, tiny):
    """Logits of transitions and emissions, and a sequence."""
    states, symbols, length = (3, 4, 6) if tiny else (16, 20, 500)
    transitions, emissions = (rng.normal(size=(states, n)) for n in (states, symbols))
    return transitions, emissions, rng.integers(0, symbols, length)


def k_means(rng, tiny):
    n, d, k = (12, 3, 4) if tiny else (2000, 3, 20)
    return rng.normal(size=(k, d)), rng.normal(size=(n, d))


def rnn(rng, tiny):
    """Weights and biases of input, state and output; a batch of sequences, targets, the first state."""
    steps, batch, inp, hidden, out = (4, 3, 2, 5, 2) if tiny else (50, 16, 8, 32, 4)
    shapes = (inp, hidden), (hidden, hidden), (hidden,), (hidden, out), (out,)
    weights = tuple(0.3 * rng.normal(size=shape) for shape in shapes)
    given = rng.normal(size=(steps, batch, inp)), rng.normal(size=(batch, out))
    return *weights, *given, np.zeros((batch, hidden))


def flat(result):
    """All numbers of a nested result of NumPy, JAX or PyTorch, as one array."""
    if isinstance(result, (tuple, list)):
        return np.concatenate([flat(part) for part in result])
    return np.asarray(result, float).ravel()
