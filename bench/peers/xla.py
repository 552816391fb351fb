"""GPT-2 in JAX: the whole step is one jitted function, with donated parameters and moments."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from bench.harness.engine import output_gradient
from bench.harness.sizes import BETAS, CLIP, EPS, LR, WEIGHT_DECAY, initial_weights
from bench.peers.formulas import by_block, layers, loss_function
from gpt2.model.parameters import MATRICES

LAYERS = layers(jnp, logsumexp)


def adamw(p, g, m, v, t, decay):
    """One tensor's new value and moments at step t, counted from 1."""
    m = BETAS[0] * m + (1.0 - BETAS[0]) * g
    v = BETAS[1] * v + (1.0 - BETAS[1]) * g * g
    step = (m / (1.0 - BETAS[0] ** t)) / (jnp.sqrt(v / (1.0 - BETAS[1] ** t)) + EPS)
    return p - LR * decay * p - LR * step, m, v


def train_step(config):
    """step(state, tokens, targets) -> new state, loss; state is (params, m, v, t)."""
    gradient = jax.value_and_grad(loss_function(jnp, LAYERS, config))

    def step(state, tokens, targets):
        params, m, v, t = state
        loss, grads = gradient(params, tokens, targets)
        norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(grads)))
        scale = jnp.minimum(1.0, CLIP / (norm + 1e-6))
        t = t + 1.0
        decays = {name: jax.tree.map(lambda _: 0.0, tree) for name, tree in params.items()}
        decays |= {name: jax.tree.map(lambda _: WEIGHT_DECAY, params[name]) for name in MATRICES}
        new = jax.tree.map(
            lambda p, g, m, v, decay: adamw(p, g * scale, m, v, t, decay), params, grads, m, v, decays
        )
        params, m, v = jax.tree.transpose(jax.tree.structure(params), jax.tree.structure((0, 0, 0)), new)
        return (params, m, v, t), loss

    return jax.jit(step, donate_argnums=0)


class Training:
    def __init__(self, size, variant, threads):
        params = jax.tree.map(jnp.array, by_block(initial_weights(size.config), size.config))
        zeros = [jax.tree.map(jnp.zeros_like, params) for _ in range(2)]
        self.state = (params, *zeros, jnp.float32(0.0))
        self.train_step = train_step(size.config)

    def step(self, tokens, targets):
        self.state, loss = self.train_step(self.state, tokens.astype(np.int32), targets.astype(np.int32))
        jax.block_until_ready(self.state)
        return float(loss)


training = Training


class LayerRun:
    """Forward and backward jitted separately; jax.vjp's residuals are passed between them."""

    def __init__(self, case, variant, threads):
        given = case.inputs("float32")
        inputs = [x if x is None or x.dtype.kind == "f" else x.astype(np.int32) for x in given]
        self.args = [jnp.array(x) for x in inputs if x is not None and x.dtype.kind == "f"]
        ids = [jnp.array(x) for x in inputs if x is not None and x.dtype.kind != "f"]

        def function(*args):
            args, rest = iter(args), iter(ids)
            whole = [None if x is None else next(args) if x.dtype.kind == "f" else next(rest) for x in inputs]
            return LAYERS[case.layer](*whole, **case.static)

        self.vjp = jax.jit(lambda *args: jax.vjp(function, *args))
        self.pull = jax.jit(lambda pullback, dout: pullback(dout))
        self.forward()
        self.dout = jnp.array(output_gradient(np.asarray(self.out)))

    def forward(self):
        self.out = self.pullback = None
        self.out, self.pullback = jax.block_until_ready(self.vjp(*self.args))

    def backward(self):
        self.gradients = None
        self.gradients = jax.block_until_ready(self.pull(self.pullback, self.dout))

    def results(self):
        return [np.asarray(x) for x in (self.out, *self.gradients)]


layer = LayerRun
