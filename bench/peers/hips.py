"""GPT-2 in HIPS autograd, which records NumPy anew at every step. AdamW is plain NumPy."""

import math

import autograd
import autograd.numpy as anp
import numpy as np
from autograd.scipy.special import logsumexp

from bench.harness.engine import output_gradient
from bench.harness.sizes import BETAS, CLIP, EPS, LR, WEIGHT_DECAY, initial_weights
from bench.peers.formulas import by_block, layers, loss_function
from gpt2.model.parameters import MATRICES

LAYERS = layers(anp, logsumexp)


def leaves(params):
    """(name, array) of every tensor, block by block, in a fixed order."""
    for name, tensors in params.items():
        for tensor in tensors if isinstance(tensors, list) else [tensors]:
            yield name, tensor


class Training:
    def __init__(self, size, variant, threads):
        self.params = by_block(initial_weights(size.config), size.config)
        self.gradient = autograd.value_and_grad(loss_function(anp, LAYERS, size.config))
        self.moments = [(np.zeros_like(p), np.zeros_like(p)) for _, p in leaves(self.params)]
        self.t = 0

    def step(self, tokens, targets):
        loss, grads = self.gradient(self.params, tokens, targets)
        norm = math.sqrt(sum(float(np.vdot(g, g)) for _, g in leaves(grads)))
        scale = min(1.0, CLIP / (norm + 1e-6))
        self.t += 1
        for (name, p), (_, g), (m, v) in zip(leaves(self.params), leaves(grads), self.moments):
            g = g * scale
            m *= BETAS[0]
            m += (1.0 - BETAS[0]) * g
            v *= BETAS[1]
            v += (1.0 - BETAS[1]) * g * g
            step = (m / (1.0 - BETAS[0] ** self.t)) / (np.sqrt(v / (1.0 - BETAS[1] ** self.t)) + EPS)
            p *= 1.0 - LR * (WEIGHT_DECAY if name in MATRICES else 0.0)
            p -= LR * step
        return float(loss)


training = Training


class LayerRun:
    def __init__(self, case, variant, threads):
        self.inputs, self.static = case.inputs("float32"), case.static
        self.function = LAYERS[case.layer]
        self.argnums = [i for i, x in enumerate(self.inputs) if x is not None and x.dtype.kind == "f"]
        self.forward()
        self.dout = output_gradient(self.out)

    def forward(self):
        self.out = self.pullback = None

        def of_floats(floats):
            inputs = list(self.inputs)
            for i, x in zip(self.argnums, floats):
                inputs[i] = x
            return self.function(*inputs, **self.static)

        floats = tuple(self.inputs[i] for i in self.argnums)
        self.pullback, self.out = autograd.make_vjp(of_floats)(floats)

    def backward(self):
        self.gradients = None
        self.gradients = self.pullback(self.dout)

    def results(self):
        return [self.out, *self.gradients]


layer = LayerRun
