"""The drawing of a program's memory: it shows the buffer plan, in which live values never overlap."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.show import shown as show
from gpt2.autodiff.show.holdings import RESULT, Holding, Lane, held, lanes


def loss(w, x):
    for _ in range(3):
        x = np.tanh(x @ w)
    return np.sum(x * x)


@pytest.fixture(scope="module", params=["gradient", "joint"])
def program(request):
    """A gradient; and a joint program of loss and gradient, which uses the memory of its results."""
    w, x = np.ones((200, 200), np.float32), np.ones((300, 200), np.float32)
    if request.param == "gradient":
        gradient = ad.grad(loss)
        gradient(w, x)
        return show._state(gradient, "drawing").last[1]
    return ad.FixedPair(loss).entry((w, x), {})[0].joint.program


def test_live_values_do_not_overlap(program):
    all_lanes = lanes(program._plan)
    assert all_lanes[0].nbytes == program.arena_bytes and len(all_lanes[0].holdings) >= 3
    for lane in all_lanes:
        values = [h for h in lane.holdings if h.kind != RESULT]
        for k, a in enumerate(lane.holdings):
            assert 0 <= a.low < a.high <= lane.nbytes and a.start <= a.end
            for b in values[:k] if a.kind != RESULT else values:
                both_live = a is not b and a.start <= b.end and b.start <= a.end
                assert not (both_live and a.low < b.high and b.low < a.high), (a, b)


def test_results_are_live_from_their_first_write_to_the_end(program):
    for lane in lanes(program._plan)[1:]:
        written = [h for h in lane.holdings if h.kind == RESULT]
        assert max(h.high for h in written) == lane.nbytes and len({h.end for h in written}) == 1


def test_overlapping_holdings_count_once():
    lane = Lane("x", 100, [Holding("value", "", 0, 60, 0, 1), Holding("result", "", 40, 100, 1, 2)])
    assert held([lane]) == 100
    assert held([Lane("x", 100, lane.holdings[:1]), Lane("y", 50, [Holding("value", "", 0, 50, 2, 2)])]) == 60


def test_memory_drawing():
    w, x = np.ones((200, 200)), np.ones((300, 200))
    text = ad.drawing(ad.grad(loss), w, x, memory=True)
    tree = ElementTree.fromstring(text)
    width = float(tree.get("viewBox").split()[2])
    boxes = tree.findall("{http://www.w3.org/2000/svg}rect")
    assert len(boxes) > 8 and all(float(b.get("x")) + float(b.get("width")) <= width + 1 for b in boxes)
    assert "loss_grad: " in text and "arena, " in text
    with pytest.raises(ad.AutodiffError, match="no plan for memory"):
        ad.drawing(ad.grad(lambda x: x * x), 2.0, memory=True)


def test_large_value_shares_the_memory_of_the_result_that_replaces_it():
    """One array instead of two. The caller's out= may still be the argument itself."""
    x = np.random.default_rng(0).normal(size=40_000)
    expected = np.exp(x - x.max()) / np.sum(np.exp(x - x.max()))
    g = ad.grad(lambda x: np.max(x) + np.log(np.sum(np.exp(x - np.max(x)))))
    np.testing.assert_allclose(g(x), expected, rtol=1e-12)
    program = g.__derived__.last[1]
    assert program.arena_bytes < x.nbytes
    for buffer in (x.copy(), np.append(x, 0.0)[:-1]):
        (result,) = program(buffer, out=(buffer,))
        assert result is buffer
        np.testing.assert_allclose(result, expected, rtol=1e-12)


def test_value_that_is_read_again_has_its_own_memory():
    def f(x):
        y = np.exp(x)
        return y * 2.0, np.sum(np.sin(y) * np.arange(40_000.0))

    x = np.random.default_rng(0).normal(size=40_000)
    for result, expected in zip(ad.compile(f)(x), f(x)):
        np.testing.assert_allclose(result, expected, rtol=1e-12)
