"""ad.source(g) runs when it is copied and pasted."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.layers import LAYERS

rng = np.random.default_rng(0)
X, W = rng.standard_normal((4, 3)), rng.standard_normal((3, 5))
WEIGHTS = np.arange(1.0, 6.0)


def run_pasted(text, *args):
    """Results of the only function that the text defines."""
    space = {}
    exec(text, space)
    (name,) = [name for name, value in space.items() if callable(value)]
    return space[name](*args)


def with_infinite_mask(x):
    mask = np.where(np.tri(4, 3) > 0, 0.0, -np.inf)
    return np.sum(np.exp(x + mask) * np.full((4, 3), 2.0))


CASES = {
    "a product": (lambda x: np.sum((x @ W) ** 2), (X,), (W,)),
    "a printed constant": (lambda x: np.sum(np.tanh(x[:, :2]) * np.array([1.0, 2.0])), (X,), ()),
    "infinities": (with_infinite_mask, (X,), ()),
    "branches": (lambda x: np.sum(np.where(x > 0, x, 0.1 * x)), (X,), ()),
    "indices": (lambda x: np.sum(x[np.array([0, 2, 2])] ** 3), (X,), ()),
    "a layer": (lambda x: np.sum(LAYERS["gelu"].forward(x)[0] * x), (X,), ()),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("transform", [ad.grad, ad.compile])
def test_source_runs_when_pasted(name, transform):
    f, args, constants = CASES[name]
    g = transform(f)
    want = g(*args)
    text = ad.source(g)
    assert "out=" not in text and "arena" not in text and text == ad.source(g, *args)
    np.testing.assert_allclose(run_pasted(text, *args, *constants)[0], want, rtol=1e-12)
    assert "def " in ad.source(g, emitted=True) and ad.source(g, emitted=True) != text


def test_large_constant_becomes_an_argument():
    def f(x):
        table = np.sin(np.arange(400.0).reshape(4, 100))
        return np.sum(x * table) ** 2

    g, x = ad.grad(f), rng.standard_normal((4, 100))
    want, text = g(x), ad.source(g)
    table = np.sin(np.arange(400.0).reshape(4, 100))
    assert "(4, 100)" in text and ("give it as an argument" in text or "table" in text)
    np.testing.assert_allclose(run_pasted(text, x, table)[0], want, rtol=1e-12)


def test_source_of_a_pullback():
    out, pullback = ad.vjp(lambda x: np.tanh(x) * 3.0, X)
    text = ad.source(pullback)
    assert "arena" not in text and "np." in text
    assert ad.source(pullback, emitted=True) == pullback.source


def test_source_of_a_scan_is_the_emitted_loop():
    g = ad.grad(lambda x: ad.scan(lambda c, r: (np.tanh(c + r), None), np.zeros(3), x)[0].sum())
    g(X)
    assert "memory.arrays" in ad.source(g) and "Graph object" not in ad.source(g)
