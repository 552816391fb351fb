"""lstm: the loss of a small LSTM whose weight matrices are diagonal (ADBench's variant)."""

import numpy as np

from bench.gradbench.function import Function, array
from gpt2 import autodiff as ad


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def cell(weight, bias, hidden, memory, inp):
    """A step of one layer -> (hidden, memory). weight, bias (4, b): forget, input and output gate, change."""
    forget = sigmoid(inp * weight[0] + bias[0])
    ingate = sigmoid(hidden * weight[1] + bias[1])
    outgate = sigmoid(inp * weight[2] + bias[2])
    change = np.tanh(hidden * weight[3] + bias[3])
    memory = memory * forget + ingate * change
    return outgate * np.tanh(memory), memory


def loss(main, extra, state, sequence):
    """Mean loss of predicting each element of the sequence from those before.

    main      (2 l, 4 b)   weights and biases of each layer
    extra     (3, b)       weights of the input, weights and bias of the output
    state     (2 l, b)     hidden state and memory of each layer
    sequence  (c, b)
    """
    b = sequence.shape[1]
    layers = main.reshape(-1, 2, 4, b)  # (l, weight or bias, gate, b)

    def step(carry, now_and_next):
        state, total = carry
        now, coming = now_and_next
        inp, states = now * extra[0], []
        for l in range(len(layers)):
            inp, memory = cell(layers[l, 0], layers[l, 1], state[2 * l], state[2 * l + 1], inp)
            states += [inp, memory]
        predicted = inp * extra[1] + extra[2]
        # The 2 is in ADBench's definition
        normalised = predicted - np.log(np.sum(np.exp(predicted)) + 2.0)
        return (np.stack(states), total + np.sum(coming * normalised)), None

    (_, total), _ = ad.scan(step, (state, 0.0), (sequence[:-1], sequence[1:]))
    return -total / sequence[1:].size


def _read(data):
    return tuple(array(data[name]) for name in ("main_params", "extra_params", "state", "sequence"))


def _write(gradients):
    return np.concatenate([g.ravel() for g in gradients]).tolist()


FUNCTIONS = {
    "objective": Function(ad.compile(loss, pure=True), _read),
    "jacobian": Function(ad.grad(loss, argnums=(0, 1), pure=True), _read, _write),
}
