"""The mathematics of the programs, for any library with NumPy's names: the first argument L, a Library.

Nothing is written in place, as JAX and autograd require. GradBench's evaluations (bench/gradbench) compute
these formulas too; arguments are those of inputs.py. A loop is `L.scan` over a named body, which PyTorch
compiles on its own.
"""

import math
from functools import partial

SMALL = 1e-4  # radians

# ---- GradBench's -------------------------------------------------------------------------------------------


def hello(L, x):
    return x * x


def lse(L, x):
    """Shifted by the largest value so that nothing overflows."""
    return L.logsumexp(x, 0)


def llsq(L, x, t, sign):
    """How far a polynomial is from the sign function. x (m,) coefficients, the constant first; t (n,) points.

    The powers of t are computed here, as the definition prescribes.
    """
    residual = sign - L.powers(t, len(x)) @ x
    return 0.5 * L.np.sum(residual * residual)


def det(L, a, ones, columns, signs):
    """By expansion by minors, with all n! products. The minors of one depth are one array.

    ones, columns, signs   bench.gradbench.det.minors
    """
    value = ones
    for row, places, sign in zip(reversed(range(len(a))), columns, signs):
        value = L.np.sum(sign * a[row][places] * value.reshape(places.shape), axis=1)
    return value[0]


def ode(L, x, start, one, steps):
    return ode_solution(L, x, start, one, steps)[-1]


def ode_solution(L, x, start, one, steps):
    """y (n,) at time 2, from start at 0, by the classical Runge-Kutta method.

    y[0]' = x[0]        y[i]' = x[i] y[i - 1]
    """
    return L.scan(ode_step, start, None, x, one, 2.0 / steps, length=steps)


def ode_step(L, y, _, x, one, h):
    def slope(y):
        return x * L.np.concatenate([one, y[:-1]])

    k1 = slope(y)
    k2 = slope(y + h / 2 * k1)
    k3 = slope(y + h / 2 * k2)
    k4 = slope(y + h * k3)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def kmeans(L, centroids, points):
    """By |p - c|**2 = |p|**2 + |c|**2 - 2 p c, with one matrix product."""
    nearest = L.smallest(L.np.sum(centroids**2, axis=1) - 2.0 * points @ centroids.T, 1)
    return L.np.sum(points**2) + L.np.sum(nearest)


def sigmoid(L, x):
    return 1.0 / (1.0 + L.np.exp(-x))


def lstm(L, main, extra, state, zero, sequence):
    """Mean loss of predicting each element of the sequence from those before.

    main      (2 l, 4 b)   weights and biases of each layer: forget, input and output gate, change
    extra     (3, b)       weights of the input, weights and bias of the output
    state     (2 l, b)     hidden state and memory of each layer
    sequence  (c, b)       zero: the loss before the first step
    """
    b = sequence.shape[1]
    layers = main.reshape(-1, 2, 4, b)
    carry = state, zero
    _, total = L.scan(lstm_step, carry, (sequence[:-1], sequence[1:]), layers, extra)
    return -total / ((len(sequence) - 1) * b)


def lstm_step(L, carry, now_and_next, layers, extra):
    (state, total), (now, coming) = carry, now_and_next
    inp, states = now * extra[0], []
    for k in range(len(layers)):
        weight, bias = layers[k, 0], layers[k, 1]
        hidden, memory = state[2 * k], state[2 * k + 1]
        forget = sigmoid(L, inp * weight[0] + bias[0])
        ingate = sigmoid(L, hidden * weight[1] + bias[1])
        outgate = sigmoid(L, inp * weight[2] + bias[2])
        memory = memory * forget + ingate * L.np.tanh(hidden * weight[3] + bias[3])
        inp = outgate * L.np.tanh(memory)
        states += [inp, memory]
    predicted = inp * extra[1] + extra[2]
    # The 2 is in ADBench's definition
    normalised = predicted - L.np.log(L.np.sum(L.np.exp(predicted)) + 2.0)
    return L.np.stack(states), total + L.np.sum(coming * normalised)


def gmm(L, alpha, mu, q, l, x, gamma, m):
    """alpha (K,) log weights, mu (K, D), q (K, D), l (K, D (D - 1) / 2), x (N, D) -> a number.

    gamma, m   of the prior: precision, and degrees of freedom beyond D + 1
    """
    (K, D), N = mu.shape, len(x)
    factors = L.triangular(q, l)
    # Q (x - mu) for all points and components: one product of matrices
    projected = (x @ factors.reshape(K * D, D).T).reshape(N, K, D)
    centred = projected - (factors @ mu[:, :, None])[:, :, 0]
    log_weights = alpha + L.np.sum(q, axis=1)
    likelihood = L.np.sum(L.logsumexp(log_weights - 0.5 * L.np.sum(centred**2, axis=2), 1))
    normaliser = N * (L.logsumexp(alpha, 0) + 0.5 * D * math.log(2 * math.pi))
    prior = m * L.np.sum(q) - 0.5 * gamma**2 * L.np.sum(factors**2)
    return likelihood - normaliser + prior + K * log_wishart_constant(L, D, gamma, m)


def log_wishart_constant(L, D, gamma, m):
    """The log of the Wishart density's normalising constant (Wishart 1928)."""
    n = D + m + 1
    log_gamma = 0.25 * D * (D - 1) * math.log(math.pi) + sum(math.lgamma(0.5 * (n - j)) for j in range(D))
    return n * D * (L.np.log(gamma) - 0.5 * math.log(2)) - log_gamma


def ba(L, camera, point, weight, feature):
    """Camera, point, weight and feature of each observation -> errors (P, 2)."""
    axis, moved = camera[:, :3], point - camera[:, 3:6]
    # rotated around the axis by its length in radians: Rodrigues' formula
    squared = L.np.sum(axis * axis, axis=1, keepdims=True)
    turns = squared > 0  # sqrt has no derivative at 0
    angle = L.np.sqrt(L.np.where(turns, squared, 1.0))
    unit = axis / angle
    along = L.np.sum(unit * moved, axis=1, keepdims=True) * (1.0 - L.np.cos(angle))
    full = moved * L.np.cos(angle) + L.cross(unit, moved) * L.np.sin(angle) + unit * along
    seen = L.np.where(turns, full, moved + L.cross(axis, moved))
    flat = seen[:, :2] / seen[:, 2:]
    squared = L.np.sum(flat * flat, axis=1, keepdims=True)
    distorted = flat * (1.0 + camera[:, 9:10] * squared + camera[:, 10:11] * squared * squared)
    return weight[:, None] * (distorted * camera[:, 6:7] + camera[:, 7:9] - feature)


def ba_blocks(L, camera, point, weight, feature):
    """The nonzeros of the Jacobian: (P, 2, 15) of the observations, (P,) of 1 - weight**2.

    Observations are independent, so two pullbacks, one for each coordinate of all of them, give all rows.
    """
    pullback = L.vjp(lambda *inputs: ba(L, *inputs, feature), camera, point, weight)
    rows = []
    for coordinate in L.np.eye(2):
        dcamera, dpoint, dweight = pullback(L.np.tile(coordinate, (len(weight), 1)))
        rows.append(L.np.concatenate([dcamera, dpoint, dweight[:, None]], 1))
    return L.np.stack(rows, 1), L.grad(lambda w: L.np.sum(1.0 - w * w))(weight)


def ht(L, theta, points, places, *model):
    """Measured points minus the vertices of the hand that they belong to, (N, 3)."""
    return points - hand(L, theta, *model)[places]


def hand(L, theta, base_relatives, inverse_absolutes, positions, weights, fixed, parents):
    """The posed hand's vertices, (M, 3).

    theta    (26,): 3 rotation of the hand (axis times angle), 3 translation, 4 angles a finger
    fixed    bench.gradbench.ht.hand_constants
    parents  the parent of each bone, or -1
    """
    column, last = fixed["column"], fixed["last"]
    local = L.np.concatenate([L.np.concatenate([bend(L, theta, fixed), column], 2), last], 1)
    relatives = base_relatives @ local
    absolutes = []
    for i, parent in enumerate(parents):  # a parent comes before its children
        absolutes.append(relatives[i] if parent < 0 else absolutes[parent] @ relatives[i])
    transforms = L.np.stack(absolutes) @ inverse_absolutes
    # A vertex is moved by the weighted sum of the bones' transforms
    of_vertex = (weights @ transforms[:, :3].reshape(len(parents), 12)).reshape(-1, 3, 4)
    moved = L.np.sum(of_vertex * positions[:, None], axis=2)
    return moved @ (turned_by(L, theta[:3], fixed) * fixed["mirror"]).T + theta[3:6]


def bend(L, theta, fixed):
    """The rotations of the bones, (bones, 3, 3): around x, then around z.

    A finger has 4 angles: three of its four bones bend, and the first of them moves sideways too.
    """
    zero, one = fixed["zero"], fixed["one"]
    angles = L.np.concatenate([theta[6:], zero[:1]])
    x, z = angles[fixed["x"]], angles[fixed["z"]]
    cos, sin = L.np.cos(x), L.np.sin(x)
    about_x = L.np.stack([one, zero, zero, zero, cos, -sin, zero, sin, cos], 1)
    cos, sin = L.np.cos(z), L.np.sin(z)
    about_z = L.np.stack([cos, -sin, zero, sin, cos, zero, zero, zero, one], 1)
    return about_z.reshape(-1, 3, 3) @ about_x.reshape(-1, 3, 3)


def turned_by(L, axis, fixed):
    """The rotation matrix (3, 3) around axis (3,) by its length; smaller rotations than SMALL are none."""
    zero, eye = fixed["zero"][0], fixed["eye"]
    squared = L.np.sum(axis * axis)
    turns = squared >= SMALL**2
    angle = L.np.sqrt(L.np.where(turns, squared, 1.0))
    x, y, z = unit = axis / angle
    cross = L.np.stack([zero, -z, y, z, zero, -x, -y, x, zero]).reshape(3, 3)
    outer = unit[:, None] * unit
    return L.np.where(turns, outer + (eye - outer) * L.np.cos(angle) + cross * L.np.sin(angle), eye)


def saddle(L, x, start, etas):
    """The value at the end of an ascent in y with these step sizes."""
    return saddle_value(L, L.scan(ascent_step, start, etas, x), x)


def saddle_value(L, y, x):
    return L.np.sum(x * x) - L.np.sum(y * y)


def ascent_step(L, y, eta, x):
    return y + eta * L.slope(saddle_value)(y, x)


def particle(L, w, start, dt):
    """The squared distance of the landing point from the origin."""
    x, v = L.while_loop(above_ground, flight_step, start, w, dt)
    x = x + dt * v
    return (x[0] - x[1] / v[1] * v[0]) ** 2  # along the last step's velocity


def above_ground(L, state, w, dt):
    x, v = state
    return x[1] + dt * v[1] > 0.0


def flight_step(L, state, w, dt):
    x, v = state
    return x + dt * v, v - dt * L.slope(potential)(x, w)


def potential(L, x, w):
    """The potential of two charges, at (10, 10 - w) and (10, 0)."""
    across = (x[0] - 10.0) ** 2
    return 1.0 / L.np.sqrt(across + (x[1] - 10.0 + w[0]) ** 2) + 1.0 / L.np.sqrt(across + x[1] ** 2)


# ---- Seven more --------------------------------------------------------------------------------------------


def eam(L, positions, eye):
    """Energy of atoms (n, 3) in the embedded-atom model (Daw and Baskes 1984): a pair potential, and for each
    atom a function of the density of the others, which are exponentials here."""
    offset = positions[:, None, :] - positions[None, :, :]
    distance = L.np.sqrt(L.np.sum(offset * offset, axis=2) + eye)
    others = 1.0 - eye
    density = L.np.sum(others * L.np.exp(-3.0 * (distance - 1.0)), axis=1)
    pairs = others * L.np.exp(-6.0 * (distance - 1.0))
    return 0.5 * L.np.sum(pairs) - L.np.sum(L.np.sqrt(density))


def rk4(L, x, force, target, steps):
    """Lorenz 1996: n variables on a ring, integrated with steps of 0.01, and their distance from a target."""
    end = L.scan(rk4_step, x, None, force, length=steps)
    return L.np.sum((end - target) ** 2)


def rk4_step(L, x, _, force):
    h = 0.01

    def slope(x):
        return (L.np.roll(x, -1) - L.np.roll(x, 2)) * L.np.roll(x, 1) - x + force

    k1 = slope(x)
    k2 = slope(x + 0.5 * h * k1)
    k3 = slope(x + 0.5 * h * k2)
    k4 = slope(x + h * k3)
    return x + h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)


def kalman(L, transition, observation, noise, seen, eye4, eye2, start):
    """Negative log likelihood of observations (T, 2) of a four-dimensional state. start: mean, covariance,
    and the value so far, 0."""
    q, r = L.np.exp(noise)
    others = transition, observation, q * eye4, r * eye2
    return L.scan(kalman_step, start, seen, *others)[2]


def kalman_step(L, carry, y, transition, observation, q, r):
    mean, covariance, total = carry
    mean = transition @ mean
    covariance = transition @ covariance @ transition.T + q
    error = y - observation @ mean
    cross = observation @ covariance
    spread = cross @ observation.T + r
    gain = L.np.linalg.solve(spread, cross).T
    mean = mean + gain @ error
    covariance = covariance - gain @ cross
    misfit = error @ L.np.linalg.solve(spread, error)
    total = total + 0.5 * (misfit + L.np.linalg.slogdet(spread)[1] + 2.0 * math.log(2.0 * math.pi))
    return mean, covariance, total


def gaussian_process(L, lengths, others, x, y, eye):
    """Negative log marginal likelihood up to a constant, with a squared exponential kernel."""
    scaled = x / L.np.exp(lengths)
    squares = L.np.sum(scaled * scaled, axis=1)
    distances = squares[:, None] + squares[None, :] - 2.0 * scaled @ scaled.T
    kernel = L.np.exp(others[0] - 0.5 * distances) + L.np.exp(others[1]) * eye
    lower = L.np.linalg.cholesky(kernel)
    z = L.whiten(lower, y)
    return 0.5 * L.np.sum(z * z) + L.np.sum(L.np.log(L.np.diagonal(lower, 0, -1, -2)))


def hidden_markov(L, transitions, emissions, sequence):
    """Negative log likelihood of a sequence, by the forward algorithm in log space."""
    moves = transitions - L.logsumexp(transitions, 1)[:, None]
    shows = (emissions - L.logsumexp(emissions, 1)[:, None]).T[sequence]  # (T, states)
    last = L.scan(markov_step, shows[0], shows[1:], moves)
    return -L.logsumexp(last, 0)


def markov_step(L, before, shown, moves):
    return L.logsumexp(before[:, None] + moves, 0) + shown


def k_means(L, centres, points):
    """The mean squared distance to the nearest centre, computed as defined."""
    squared = L.np.sum((points[:, None, :] - centres[None, :, :]) ** 2, axis=2)
    return L.np.mean(L.smallest(squared, 1))


def rnn(L, inp_weight, weight, bias, out_weight, out_bias, inputs, targets, start):
    """Elman 1990: the squared error of the last state's output."""
    driven = inputs @ inp_weight + bias  # of all steps at once
    last = L.scan(rnn_step, start, driven, weight)
    return L.np.mean((last @ out_weight + out_bias - targets) ** 2)


def rnn_step(L, hidden, driven, weight):
    return L.np.tanh(driven + hidden @ weight)


# Name -> (formula, the number of its first arguments that it is differentiated by)
GRADIENTS = {
    "hello": (hello, 1),
    "lse": (lse, 1),
    "llsq": (llsq, 1),
    "det": (det, 1),
    "ode": (ode, 1),
    "lstm": (lstm, 2),
    "gmm": (gmm, 4),
    "saddle": (saddle, 1),
    "particle": (particle, 1),
    "eam": (eam, 1),
    "rk4": (rk4, 2),
    "kalman": (kalman, 3),
    "gaussian-process": (gaussian_process, 2),
    "hidden-markov": (hidden_markov, 2),
    "k-means": (k_means, 1),
    "rnn": (rnn, 5),
}


def gradient_of(name, grad, library):
    """grad(f, argnums) of the formula of this name."""
    formula, count = GRADIENTS[name]
    return grad(partial(formula, library), tuple(range(count)))
