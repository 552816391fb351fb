"""examples/compiler.py: the compiler in 300 lines, on the layers of GPT-2 as they stand."""

import ast
import runpy

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
    lines = len(text.splitlines())
    assert lines <= 300, f"examples/compiler.py promises at most 300 lines: with this change it has {lines}"
    imports = [node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    assert {name for name in imports if name.startswith("gpt2")} == {"gpt2.layers", "gpt2.layers.cases"}


def test_what_it_does_not_know_is_an_error():
    def one_number_written(x):
        y = 2.0 * x
        y[0] += x[1]
        return y, ()

    with pytest.raises(KeyError, match="arctan"):
        compiler.backward_of(lambda x: (np.arctan(x), ()), np.ones(3))
    with pytest.raises(KeyError, match="cumsum"):
        compiler.backward_of(lambda x: (np.cumsum(x), ()), np.ones(3))
    with pytest.raises(TypeError, match=r"a forward returns a tuple \(out, saved\)"):
        compiler.backward_of(lambda x: 2.0 * x, np.ones((2, 3)))  # its first row is not taken for out
    with pytest.raises(NotImplementedError, match="a write to x"):
        compiler.backward_of(one_number_written, np.ones(3))


def test_a_layer_that_is_not_there(monkeypatch):
    monkeypatch.setattr("sys.argv", ["compiler.py", "norm"])
    with pytest.raises(SystemExit, match="no layer is called 'norm': encoder, layernorm, "):
        runpy.run_path(compiler.__file__, run_name="__main__")


def test_equal_ones_share_the_gradient_of_an_extreme():
    for extreme, expected in ((np.max, [0.0, 0.5, 0.5]), (np.min, [1.0, 0.0, 0.0])):
        backward, _ = compiler.backward_of(lambda x, extreme=extreme: (extreme(x), ()), np.ones(3))
        np.testing.assert_array_equal(backward(np.float64(1.0), np.array([1.0, 2.0, 2.0]))[0], expected)


def test_a_part_that_is_changed_is_written_once():
    """x[k] += y calls __setitem__ of the view x[k], then of x: the second changes nothing."""

    def part_changed(x):
        y = x * x
        y[1:] += x[:2]
        y[3:] *= 2.0  # an empty part
        return y * y, ()

    backward, source = compiler.backward_of(part_changed, np.ones(3))
    assert source.count("lambda x: x[1:]") == 2, source  # the write, and the zeros in its gradient
    a, b, c = x = np.array([0.5, -1.0, 2.0])
    y1, y2 = b * b + a, c * c + b
    exact = [4 * a**3 + 2 * y1, 4 * b * y1 + 2 * y2, 4 * c * y2]
    np.testing.assert_allclose(backward(np.ones(3), x)[0], exact, rtol=1e-12)  # a few roundings


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
