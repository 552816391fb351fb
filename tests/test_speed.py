"""docs/speed.md: its table and its picture are of the figures that are kept."""

import xml.etree.ElementTree as ElementTree

from docs import speed

STALE = "run: python -m docs.speed"


def test_the_page_is_up_to_date():
    assert speed.PAGE.read_text(encoding="utf-8") == speed.page(), STALE


def test_the_picture_is_up_to_date():
    assert speed.PICTURE.read_text(encoding="utf-8") == speed.picture(), STALE


def test_the_picture_has_a_bar_for_each_contender_that_took_part():
    bars = ElementTree.fromstring(speed.picture()).findall("{http://www.w3.org/2000/svg}rect")[1:]
    wanted = sum(name in one["rows"] for one in speed.figures() if one["threads"] == 2 for name in speed.BARS)
    assert len(bars) == wanted > 0


def test_ratios_are_to_the_fastest_pytorch_of_the_run():
    for one in speed.figures():
        peers = {name: row["ms"] for name, row in one["rows"].items() if name.startswith("torch")}
        assert one["reference"] == min(peers, key=peers.get)
        assert one["rows"][one["reference"]]["ratio"] == [1.0, 1.0, 1.0]
