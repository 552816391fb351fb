"""examples/compiler.py: the compiler in 300 lines, on the layers of GPT-2 as they stand."""

import ast

import numpy as np
import pytest

from examples import compiler
from gpt2.layers import LAYERS
from gpt2.layers.attention import QUERY_BLOCK
from gpt2.layers.cases import Sizes, at
from tests import ROOT

SMALL = at(Sizes(B=2, T=5, C=12, OC=7, NH=3, V=11, max_t=8))
LONG = at(Sizes(B=1, T=QUERY_BLOCK + 3, C=4, OC=5, NH=2, V=7, max_t=QUERY_BLOCK + 5))  # two blocks of queries
CASES = [*(SMALL[name] for name in LAYERS), LONG["attention"]]


@pytest.mark.parametrize("case", CASES, ids=[f"{case.name}-{case.shapes[0]}" for case in CASES])
def test_derives_what_is_written_by_hand(case):
    """To 1e-12 of the largest entry: both compute the same sums in float64, in another order. The program is
    that of other values of the same shapes, whose gradients it gives as well."""
    layer = LAYERS[case.layer]
    backward, _ = compiler.backward_of(layer.forward, *case.inputs(seed=1), **case.static)
    rng = np.random.default_rng(2)
    inputs = case.inputs(seed=rng)
    out, saved = layer.forward(*inputs, **case.static)
    dout = rng.standard_normal(out.shape)
    by_hand = layer.backward(dout, saved, **case.static)
    derived = backward(dout, *inputs)
    assert len(derived) == len(by_hand)
    for ours, hand in zip(derived, by_hand):
        if hand is None:
            assert ours is None
        else:
            np.testing.assert_allclose(ours, hand, rtol=0, atol=1e-12 * np.abs(hand).max())


def test_it_is_what_it_says():
    """At most 300 lines, and nothing of gpt2 but the layers."""
    text = (ROOT / "examples" / "compiler.py").read_text()
    assert len(text.splitlines()) <= 300
    imports = [node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    assert {name for name in imports if name.startswith("gpt2")} == {"gpt2.layers", "gpt2.layers.cases"}


def test_what_it_does_not_know_is_an_error():
    def forward(x):
        return np.arctan(x), ()

    with pytest.raises(KeyError, match="arctan"):
        compiler.backward_of(forward, np.ones(3))
    with pytest.raises(KeyError, match="cumsum"):
        compiler.backward_of(lambda x: (np.cumsum(x), ()), np.ones(3))


FORWARD = """
def clash_forward(x):
    t1 = np.exp(x) * x
    t = np.tanh(t1) * t1
    put = t + t1
    return put * np.max(put * t, keepdims=True) + t1, ()
"""


def test_variables_of_the_forward_and_made_up_ones_do_not_clash():
    """A forward whose variables are called t1, t and put, as temporaries and the runtime are."""
    exec(FORWARD, place := {"np": np, "__package__": "gpt2.layers"})
    forward, x = place["clash_forward"], np.array([0.3, -1.2, 0.7])
    backward, source = compiler.backward_of(forward, x)
    assert "dt1 = " in source
    step = 1e-6  # differences: h^2 and rounding / h, both about 1e-10
    shifted = [(forward(x + d)[0].sum() - forward(x - d)[0].sum()) / (2 * step) for d in step * np.eye(3)]
    np.testing.assert_allclose(backward(np.ones(3), x)[0], shifted, rtol=1e-8)
