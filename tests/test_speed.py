"""docs/speed.md: its table and its picture are of the figures that are kept."""

import json
import xml.etree.ElementTree as ElementTree

from docs import speed

STALE = "run: python -m docs.speed"


def test_the_page_is_up_to_date():
    assert speed.PAGE.read_text(encoding="utf-8") == speed.page(), STALE


def test_the_picture_is_up_to_date():
    assert speed.PICTURE.read_text(encoding="utf-8") == speed.picture(), STALE


def test_the_picture_has_a_bar_for_each_contender_that_took_part():
    bars = ElementTree.fromstring(speed.picture()).findall("{http://www.w3.org/2000/svg}rect")[1:]
    wanted = sum(name in one["rows"] for one in speed.drawn() for name in speed.BARS)
    assert len(bars) == wanted > 0


def test_ratios_are_to_the_fastest_pytorch_of_the_run():
    for one in speed.figures():
        peers = {name: row["ms"] for name, row in one["rows"].items() if name.startswith("torch")}
        assert one["reference"] == min(peers, key=peers.get)
        assert one["rows"][one["reference"]]["ratio"] == [1.0, 1.0, 1.0]


def test_figures_of_other_kernels_stand_beside_those_of_the_processor(tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "FIGURES", tmp_path / "kept.json")
    row = {"title": "gpt2 whole", "ms": {"median": 1.0}, "to_w": dict.fromkeys(("median", "q1", "q3"), 1.0)}
    heat = {"rounds_counted": 3, "others": 0.0}
    result = {"size": "default", "threads": 2, "vocab_size": 9, "reference": "w", "heats": [heat]}
    result["rows"] = {"whole": {**row, "peak_bytes": 1}}
    for name, older in (("new", {}), ("old", {"OPENBLAS_CORETYPE": "Haswell"}), ("again", {})):
        machine = {"cpu": "a", "kernels": f"kernels of {name}", "older": older}
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"machine": machine, "results": [result]}))
        speed.keep([str(path)])
    assert [one["kernels"] for one in speed.figures()] == ["", "kernels of old"]
    assert speed.table().count("kernels of old") == 1
    assert speed.picture().count("<rect") == 2  # the paper, and the bar of the processor's own kernels
