"""The programs in JAX: each one jitted function, in float64, loops as lax.scan and lax.while_loop."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import logsumexp

from bench.programs import formulas
from bench.programs.library import Library

jax.config.update("jax_enable_x64", True)


def scan(body, carry, xs, *others, length=None):
    return lax.scan(lambda c, x: (body(JAX, c, x, *others), None), carry, xs, length)[0]


def while_loop(cond, body, carry, *others):
    return lax.while_loop(lambda c: cond(JAX, c, *others), lambda c: body(JAX, c, *others), carry)


def triangular(q, l):
    (K, D), (columns, rows) = q.shape, np.triu_indices(q.shape[1], 1)
    on = np.arange(D)
    return jnp.zeros((K, D, D)).at[:, rows, columns].set(l).at[:, on, on].set(jnp.exp(q))


def powers(t, m):
    """By repeated multiplication, which takes a quarter of the time of jnp.vander here."""
    return lax.scan(lambda power, _: (power * t, power), jnp.ones_like(t), None, m)[1].T


JAX = Library(
    np=jnp,
    grad=jax.grad,
    vjp=lambda f, *inputs: jax.vjp(f, *inputs)[1],
    scan=scan,
    logsumexp=lambda x, axis: logsumexp(x, axis=axis),
    smallest=lambda x, axis: jnp.min(x, axis=axis),
    powers=powers,
    cross=jnp.cross,
    triangular=triangular,
    whiten=lambda lower, y: solve_triangular(lower, y, lower=True),
    while_loop=while_loop,
    slope=lambda f: jax.grad(partial(f, JAX)),
)


def direction(centroids, points):
    first = jax.grad(lambda c: formulas.kmeans(JAX, c, points))
    slope, curvature = jax.jvp(first, (centroids,), (jnp.ones_like(centroids),))
    return slope / curvature


# Programs that are not gradients in the first arguments, or need forward mode for a while_loop
OTHERS = {
    "kmeans": direction,
    "ba": partial(formulas.ba_blocks, JAX),
    "ht": jax.jacfwd(partial(formulas.ht, JAX)),
    "particle": jax.jacfwd(partial(formulas.particle, JAX)),
}


def program(name, variant, inputs):
    """A function without arguments that returns the derivatives, once they are computed."""
    f = OTHERS.get(name) or formulas.gradient_of(name, jax.grad, JAX)
    static = [i for i, x in enumerate(inputs) if isinstance(x, int)]
    static += [len(inputs) - 1] if name == "ht" else []  # the parents of the bones
    run = jax.jit(f, static_argnums=static)
    inputs = [x if i in static else jax.tree.map(jnp.asarray, x) for i, x in enumerate(inputs)]
    return lambda: jax.block_until_ready(run(*inputs))
