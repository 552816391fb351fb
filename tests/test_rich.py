"""What a notebook shows of models, runs and derived functions, and the pictures it is made of."""

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import gpt2
from gpt2 import autodiff as ad
from gpt2.autodiff.show import drawing
from gpt2.storage import curve
from gpt2.storage.metrics import Metrics
from gpt2.train import Settings, opened, steps
from tests.autodiff.show.test_readable import pair_of

SVG = "{http://www.w3.org/2000/svg}"


def loss(w, x):
    y = np.tanh(x @ w)
    return np.sum(y * y) + 2.0 * np.sum(w)


def test_a_derived_function_shows_source_and_graph():
    slope = ad.grad(loss)
    assert "not called yet" in slope._repr_html_() and "<pre>" not in slope._repr_html_()
    slope(np.ones((3, 2)), np.ones((4, 3)))
    shown = slope._repr_html_()
    assert "def loss_grad(w, x):" in shown and "memory" not in shown.split("</pre>")[0]
    assert "<summary>its graph</summary><svg" in shown and "<summary>the program that runs</summary>" in shown
    assert "<svg" in ad.vjp(loss, np.ones((3, 2)), np.ones((4, 3)))[1].program._repr_html_()


def boxes_and_lines(text):
    tree = ElementTree.fromstring(text)
    boxes = [[float(r.get(k)) for k in ("x", "y", "width", "height")] for r in tree.iter(f"{SVG}rect")]
    numbers = [[float(n) for n in re.findall(r"-?[\d.]+", p.get("d"))] for p in tree.iter(f"{SVG}path")]
    return tree, boxes, numbers


@pytest.mark.parametrize("name", ["layernorm", "attention", "gelu"])
def test_a_drawing_has_a_box_for_each_value(name):
    """Boxes do not touch, and no line leads through one: each is for the value that its text names."""
    graph = pair_of(name).backward.program.graph
    tree, boxes, lines = boxes_and_lines(drawing.drawing(graph))
    values = [n for n in graph.nodes if not (n.op == "const" and n.shape == ())]
    assert len(boxes) == len(values)
    for i, (x, y, width, _) in enumerate(boxes):
        assert x >= 0 and x + width <= float(tree.get("viewBox").split()[2]) + 1
        for x2, y2, width2, _ in boxes[:i]:
            assert y != y2 or x + width < x2 or x2 + width2 < x
        for numbers in lines:  # the way past a row is straight down from the last point of the curve
            end, past = numbers[6:8], numbers[8:]
            assert not (past and end[1] == y and x < end[0] < x + width)


def test_large_graphs_are_not_drawn():
    def long(x):
        for _ in range(100):
            x = np.sin(x) * x
        return np.sum(x)

    assert "too many for a picture" in ad.drawing(ad.compile(long), np.ones(2))


def test_a_drawing_of_what_was_not_called_is_an_error():
    with pytest.raises(ad.AutodiffError, match="was not called yet"):
        ad.drawing(ad.grad(loss))


def test_a_curve_has_a_point_for_each_step_and_validation():
    at = np.arange(1.0, 51.0)
    losses = (at, 8.0 / at)
    picture = curve.svg(Metrics("a<b", {"loss": losses, "val_loss": (at[9::10], losses[1][9::10])}))
    tree = ElementTree.fromstring(picture)
    assert len(tree.findall(f"{SVG}circle")) == 5 and "a&lt;b" in picture
    lines = [p.get("d").count(",") for p in tree.iter(f"{SVG}path") if "L" in p.get("d")]
    assert lines == [50, 50, 5]
    heights = [float(c.get("cy")) for c in tree.findall(f"{SVG}circle")]
    assert heights == sorted(heights)  # a loss that falls goes down
    assert curve.svg(Metrics("empty", {})) == ""
    assert "<svg" in curve.svg(Metrics("nan", {"loss": (at, np.where(at > 20, np.nan, at))}))


@pytest.mark.parametrize(
    "low, high, wanted",
    [(0, 100, [0, 20, 40, 60, 80, 100]), (4.5, 10.9, [6, 8, 10]), (3.0, 3.0, [3.0]), (0, 3, [0, 1, 2, 3])],
)
def test_round_numbers(low, high, wanted):
    assert curve.round_numbers(low, high) == pytest.approx(wanted)


def test_a_run_shows_its_losses(prose, tmp_path, quick_peak):
    settings = Settings(
        data=str(prose[0]), tokenizer="byte", out=str(tmp_path / "a"), steps=3, warmup=0, n_layer=1, n_embd=16
    )
    with opened(settings) as run:
        for _ in steps(run):
            pass
        assert f"step 3 of 3, best validation loss {run.best:.4f}>" in repr(run)
        assert "<svg" in run._repr_html_()


def test_a_model_with_a_block_of_its_own_shows_it():
    def block(x, p, layers, config):
        return x + layers["layernorm"](x, p["ln1w"], p["ln1b"])

    config = gpt2.GPT2Config.preset("tiny")
    shown = gpt2.GPT2(config, block=block)._repr_html_()
    assert "<td>block</td><td>block</td><td>ln1w 2 x 64, ln1b 2 x 64</td><td>256</td>" in shown
    assert shown.count("<tr>") == 6  # head, encoder, block, lnf, head, loss
