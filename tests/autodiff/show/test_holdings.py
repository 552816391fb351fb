"""The picture of a program's memory: it says what the plan says, and nothing lies on what is still needed."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.emit.program import _settings
from gpt2.autodiff.emit.source import planned
from gpt2.autodiff.show import shown as show
from gpt2.autodiff.show.holdings import RESULT, Holding, Lane, held, lanes


def loss(w, x):
    for _ in range(3):
        x = np.tanh(x @ w)
    return np.sum(x * x)


@pytest.fixture(scope="module", params=["alone", "lent"])
def program(request):
    """A gradient; and a loss with its gradient in one, whose results lend their memory."""
    w, x = np.ones((200, 200), np.float32), np.ones((300, 200), np.float32)
    if request.param == "alone":
        slope = ad.grad(loss)
        slope(w, x)
        return show._state(slope, "drawing").last[1]
    return ad.FixedPair(loss).entry((w, x), {})[0].joint.program


def of(program):
    return lanes(planned(program.graph, *_settings(program.graph, *program._made_with)))


def test_what_is_held_at_one_time_lies_apart(program):
    found = of(program)
    assert found[0].nbytes == program.arena_bytes and len(found[0].holdings) >= 3
    for lane in found:
        values = [h for h in lane.holdings if h.kind != RESULT]
        for k, a in enumerate(lane.holdings):
            assert 0 <= a.low < a.high <= lane.nbytes and a.start <= a.end
            for b in values[:k] if a.kind != RESULT else values:
                together = a is not b and a.start <= b.end and b.start <= a.end
                assert not (together and a.low < b.high and b.low < a.high), (a, b)


def test_a_result_is_held_from_when_it_is_written(program):
    for lane in of(program)[1:]:
        written = [h for h in lane.holdings if h.kind == RESULT]
        assert max(h.high for h in written) == lane.nbytes and len({h.end for h in written}) == 1


def test_what_is_held_twice_counts_once():
    lane = Lane("x", 100, [Holding("value", "", 0, 60, 0, 1), Holding("result", "", 40, 100, 1, 2)])
    assert held([lane]) == 100
    assert held([Lane("x", 100, lane.holdings[:1]), Lane("y", 50, [Holding("value", "", 0, 50, 2, 2)])]) == 60


def test_the_picture():
    w, x = np.ones((200, 200)), np.ones((300, 200))
    text = ad.drawing(ad.grad(loss), w, x, memory=True)
    tree = ElementTree.fromstring(text)
    width = float(tree.get("viewBox").split()[2])
    boxes = tree.findall("{http://www.w3.org/2000/svg}rect")
    assert len(boxes) > 8 and all(float(b.get("x")) + float(b.get("width")) <= width + 1 for b in boxes)
    assert "loss_grad: " in text and "arena, " in text
    with pytest.raises(ad.AutodiffError, match="no plan for memory"):
        ad.drawing(ad.grad(lambda x: x * x), 2.0, memory=True)


def log_sum_exp(x):
    largest = np.max(x)
    return largest + np.log(np.sum(np.exp(x - largest)))


def test_a_large_value_begins_in_the_result_that_is_written_over_it():
    """One array instead of two; and a caller's buffer may still be the argument itself."""
    x = np.random.default_rng(0).normal(size=40_000)
    expected = np.exp(x - x.max()) / np.sum(np.exp(x - x.max()))
    g = ad.grad(log_sum_exp)
    np.testing.assert_allclose(g(x), expected, rtol=1e-12)
    program = g.__derived__.last[1]
    assert program.arena_bytes < x.nbytes
    for given in (x.copy(), np.append(x, 0.0)[:-1]):
        (found,) = program(given, out=(given,))
        assert found is given
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_what_is_read_again_later_keeps_its_own_memory():
    def f(x):
        y = np.exp(x)
        return y * 2.0, np.sum(np.sin(y) * np.arange(40_000.0))

    x = np.random.default_rng(0).normal(size=40_000)
    for found, expected in zip(ad.compile(f)(x), f(x)):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
