"""Time Jacobians of 500 results by 500 arguments, beside jax.jacrev and jax.jacfwd.

    python -m bench.jacobian

Medians of interleaved rounds in float64 on one core, with JAX jitted, compilation not counted. The matrices
must agree to 1e-9.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from bench.harness import program, worker
from bench.studies.measure import interleave
from gpt2 import autodiff as ad


def functions(xp: Any, n: int) -> dict[str, Callable]:
    """Title -> a function from n numbers to n numbers, in terms of the array module xp."""
    rng = np.random.default_rng(3)
    first, second = (xp.asarray(rng.normal(size=(n, n)) / n**0.5) for _ in range(2))

    def softmax(x):
        e = xp.exp(x - xp.max(x))
        return e / xp.sum(e)

    return {
        "tanh(W x)": lambda x: xp.tanh(first @ x),
        "V tanh(W x)": lambda x: second @ xp.tanh(first @ x),
        "tanh(V tanh(W x))": lambda x: xp.tanh(second @ xp.tanh(first @ x)),
        "softmax(W x)": lambda x: softmax(first @ x),
        "sin(x) sum(x^2)": lambda x: xp.sin(x) * xp.sum(x**2),
    }


def main(argv: list[str]) -> None:
    parser = program.plain_parser("bench.jacobian", __doc__.split("\n")[0])
    program.number(parser, "--size", 500, "arguments and results")
    program.number(parser, "--seconds", 4.0, "for each function", float)
    args = parser.parse_args(argv)
    worker.pin(1)
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    jax.config.update("jax_enable_x64", True)
    x = np.random.default_rng(4).normal(size=args.size)
    on_device = jax.numpy.asarray(x)
    theirs = functions(jax.numpy, args.size)
    print(f"{'function':20}{'ad.jacobian ms':>16}{'jax.jacrev ms':>15}{'jax.jacfwd ms':>15}")
    for title, f in functions(np, args.size).items():
        calls = {"own": partial(ad.jacobian(f, pure=True), x)}
        for name in ("jacrev", "jacfwd"):
            jacobian = jax.jit(getattr(jax, name)(theirs[title]))
            calls[name] = lambda jacobian=jacobian: jax.block_until_ready(jacobian(on_device))
        expected = np.asarray(calls["jacrev"]())
        np.testing.assert_allclose(calls["own"](), expected, rtol=0, atol=1e-9 * np.abs(expected).max())
        times = interleave(calls, args.seconds)
        ms = [1e3 * times[name].median for name in ("own", "jacrev", "jacfwd")]
        print(f"{title:20}{ms[0]:16.2f}{ms[1]:15.2f}{ms[2]:15.2f}")


if __name__ == "__main__":
    program.run(main)
