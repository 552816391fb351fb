"""The drawing module: positions of markers, lengths of bars, light and dark colours."""

import re
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from bench import drawing
from gpt2.errors import UserError
from tests.support.pictures import SVG, words


def places(figure):
    """Tooltip -> (x, y) of its marker."""
    groups = ElementTree.fromstring(drawing.svg(figure)).iter(f"{SVG}g")
    uses = {group[0].text: group.find(f".//{SVG}use") for group in groups if len(group) > 1}
    return {
        tip: (float(use.get("x")), float(use.get("y")))
        for tip, use in uses.items()
        if use is not None and tip and tip.strip()
    }


@pytest.mark.parametrize("log", [False, True])
def test_dots_are_placed_by_their_values(log):
    pytest.importorskip("matplotlib")
    rows = {"a": [(1.0, 0.5, 2.0)], "b": [(4.0, 4.0, 4.0)], "c": [None], "d": [(2.0, 2.0, 2.0)]}
    at = places(drawing.dots("t", rows, [""], str, log=log))
    (a, top), (b, middle), (d, bottom) = (at[name] for name in ("a: 1.0", "b: 4.0", "d: 2.0"))
    assert a < d < b and top < middle < bottom
    assert abs(d - (a + b) / 2) < 1 if log else d < (a + b) / 2 - 10


def test_bar_lengths_are_proportional_and_cut_at_the_most():
    pytest.importorskip("matplotlib")
    group = [drawing.Bar("a", (("own", 1.0),), "1"), drawing.Bar("b", (("peer", 5.0), ("limit", 0.5)), "5")]
    text = drawing.svg(drawing.bars("t", {"": group}, {"own": "a < b"}, 600, 100, most=2.0))
    at = {word: x for word, _, x in words(text)}
    assert at["5"] - 108 == pytest.approx(2 * (at["1"] - 108))  # cut at 2; names take 100 pixels
    assert "//" in at and "a < b" in at


def test_dark_replaces_every_light_colour():
    pytest.importorskip("matplotlib")
    light = drawing.svg(drawing.dots("t", {"a": [(1.0, 0.5, 2.0)]}, ["x"], str))
    dark = drawing.dark(light)
    assert drawing.dark(dark) == dark != light
    style = ElementTree.fromstring(drawing.adaptive(light)).find(f".//{SVG}style").text
    for colour in set(re.findall("#[0-9a-f]{6}", light)):
        assert f'[style*="fill: {colour}"]' in style


def test_missing_matplotlib_is_a_user_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match="pictures need matplotlib: .*install matplotlib"):
        drawing.dots("t", {"a": [None]}, [""], str)
