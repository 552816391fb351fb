"""Every row of the op table, tested from the row itself: its samples, in both modes, to second order."""

import numpy as np
import pytest

from gpt2.autodiff.checks import check_graph
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import OPS, apply, const, input_node
from gpt2.autodiff.ops.build import item


def draw(sample, shape, dtype, rng):
    def magnitudes():
        x = rng.uniform(*sample.domain, size=shape)
        return x * rng.choice([-1.0, 1.0], size=shape) if sample.signed else x

    return magnitudes() + 1j * magnitudes() if dtype == "complex128" else magnitudes()


def instance(name, sample, dtype):
    """The op on its sample: a graph of one op, and the values of its inputs."""
    rng = np.random.default_rng(0)
    args, inputs, values = [], [], []
    for arg in sample.args:
        if isinstance(arg, np.ndarray):
            args.append(const(arg))
            continue
        value = arg(rng, dtype) if callable(arg) else draw(sample, arg, dtype, rng)
        inputs.append(input_node(value.shape, value.dtype, "x"))
        args.append(inputs[-1])
        values.append(value)
    out = apply(name, *args, **sample.attrs)
    if sample.of is not None:
        outputs = [sample.of(out, *args)]
    elif isinstance(out.dtype, tuple):
        outputs = [item(out, i) for i in range(len(out.dtype))]
    else:
        outputs = [out]
    return Graph(inputs, outputs, name), values


CASES = [
    pytest.param(name, sample, dtype, id=f"{name}-{i}-{dtype}")
    for name, op in OPS.items()
    for i, sample in enumerate(op.samples)
    for dtype in sample.dtypes
]


@pytest.mark.parametrize("name, sample, dtype", CASES)
def test_derivatives(name, sample, dtype):
    graph, values = instance(name, sample, dtype)
    check_graph(graph, values, order=2)
