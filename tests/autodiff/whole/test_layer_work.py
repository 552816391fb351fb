"""Derived against written backwards of the seven layers, counted in operations on whole arrays.

Both go through the same passes. The derived programs may do no more than those written by hand: in all,
forward and backward together; and in the backward alone, when they may keep no more than the written layer.
"""

import numpy as np
import pytest

from gpt2.autodiff import passes
from gpt2.autodiff.derive.differentiate import vjp_graph
from gpt2.autodiff.keep.partition import partition
from gpt2.autodiff.ops.cost import NS_PER_BYTE
from gpt2.autodiff.ops.interpret import check, evaluate_graph
from gpt2.autodiff.ops.table import root
from gpt2.autodiff.record.record import record
from gpt2.autodiff.switches import Options
from gpt2.layers import LAYERS

pytestmark = pytest.mark.numeric

B, T, C, NH, V, MAX_T = 2, 16, 64, 4, 512, 24  # T = C // NH: scores are as large as channels
SHAPES = {
    "encoder": [(B, T), (V, C), (MAX_T, C)],
    "layernorm": [(B, T, C), (C,), (C,)],
    "matmul": [(B, T, C), (4 * C, C), (4 * C,)],
    "attention": [(B, T, 3 * C)],
    "gelu": [(B, T, 4 * C)],
    "residual": [(B, T, C), (B, T, C)],
    "crossentropy": [(B, T, V), (B, T)],
}
VIEWS = {"input", "const", "reshape", "transpose", "slice", "broadcast"}
REDUCTIONS = {"sum", "max", "min"}


def simplify(graph):
    """With the options that the engine uses."""
    return passes.simplify(graph, Options(math="fast"))


class Written:
    """A layer's inputs, its written programs after the passes, and the bytes that it keeps for itself."""

    def __init__(self, name, dtype="float32"):
        rng = np.random.default_rng(0)
        layer, static = LAYERS[name], {"num_heads": NH} if name == "attention" else {}
        self.inputs = [
            rng.integers(0, V, shape) if shape == (B, T) else rng.standard_normal(shape).astype(dtype)
            for shape in SHAPES[name]
        ]
        self.out, self.saved = layer.forward(*self.inputs, **static)
        self.dout = rng.standard_normal(self.out.shape).astype(dtype)
        self.wrt = [i for i, x in enumerate(self.inputs) if x.dtype.kind == "f"]
        self.function = lambda *inputs: layer.forward(*inputs, **static)[0]
        everything = record(lambda *inputs: layer.forward(*inputs, **static), self.inputs)
        self.forward = simplify(everything.graph)
        self.gradients = [g for g in layer.backward(self.dout, self.saved, **static) if g is not None]

        def backward(dout, *saved):
            return [g for g in layer.backward(dout, saved, **static) if g is not None]

        self.backward = simplify(record(backward, (self.dout, *self.saved)).graph)
        there = {id(x) for x in (*self.inputs, self.out)}
        self.kept = sum(x.nbytes for x in self.saved if isinstance(x, np.ndarray) and id(x) not in there)
        self.whole = max(x.size for x in (self.out, *self.inputs)[: 1 if self.out.ndim == 3 else None]) // 2

    def derived(self, rate=NS_PER_BYTE):
        graph = simplify(record(self.function, self.inputs).graph)
        n = len(graph.inputs)
        joint = simplify(vjp_graph(graph, self.wrt, [0]))
        forward, backward, _ = partition(joint, n, 1, rate)
        return simplify(forward), simplify(backward)


def work(graph, whole):
    """Elementwise operations on arrays of `whole` elements or more, reductions of those, and products."""
    nodes = [n for n in graph.nodes if n.op not in VIEWS]
    reductions = sum(n.op in REDUCTIONS and n.args[0].size >= whole for n in nodes)
    products = sum(n.op in ("matmul", "einsum") for n in nodes)
    others = sum(n.op not in REDUCTIONS | {"matmul", "einsum"} and n.size >= whole for n in nodes)
    return np.array([others, reductions, products])


@pytest.mark.parametrize("name", LAYERS)
def test_derived_programs_do_no_more(name):
    written = Written(name)
    forward, backward = written.derived()
    whole = written.whole
    by_hand = work(written.forward, whole) + work(written.backward, whole)
    assert (work(forward, whole) + work(backward, whole) <= by_hand).all()
    assert (work(backward, whole) <= work(written.backward, whole)).all()


# Attention by hand keeps one number a row, log(sum(exp)); derived it keeps the largest and the sum, and
# multiplies the gradient of a row with the reciprocal sum, where by hand that is part of the exponent.
ROWS = {"attention": 2}
MORE = {"attention": 1}


@pytest.mark.parametrize("name", LAYERS)
def test_derived_backwards_do_no_more_with_the_same_memory(name):
    written = Written(name)
    most = written.kept * ROWS.get(name, 1)
    for k in range(16):
        forward, backward = written.derived(NS_PER_BYTE * 2**k)
        there = root(forward.outputs[0])
        kept = (o for o in forward.outputs[1:] if o.op != "input" and o is not there)
        if sum(o.nbytes for o in kept) <= most:  # beside the inputs and the result
            break
    allowed = work(written.backward, written.whole) + np.array([MORE.get(name, 0), 0, 0])
    assert (work(backward, written.whole) <= allowed).all()


@pytest.mark.parametrize("rate", [NS_PER_BYTE, 1e6])
@pytest.mark.parametrize("dtype,digits", [("float64", 1e-12), ("float32", 2e-5)])
@pytest.mark.parametrize("name", LAYERS)
def test_derived_gradients_are_the_written_ones(name, dtype, digits, rate):
    """After all passes. Sums of some hundred terms in another order: some hundred units in the last place."""
    written = Written(name, dtype)
    forward, backward = map(check, written.derived(rate))
    captured = [value for _, value in record(written.function, written.inputs).captures]
    out, *saved = evaluate_graph(forward, [*written.inputs, *captured])
    gradients = evaluate_graph(backward, [*saved, written.dout])
    close(out, written.out, digits)
    for got, want in zip(gradients, written.gradients, strict=True):
        assert got.dtype == want.dtype == dtype
        close(got, want, digits)


def close(got, want, digits):
    np.testing.assert_allclose(got, want, rtol=0, atol=digits * np.abs(want).max())
