"""The pictures of README.md: up to date, and README says what they show."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from docs import demo, front, house, speed

README = (house.ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path, text", front.files().items(), ids=lambda value: getattr(value, "name", ""))
def test_the_pictures_are_up_to_date(path, text):
    assert path.read_text(encoding="utf-8") == text, "run: python -m docs.front"


def test_every_picture_is_shown_in_light_and_dark():
    shown = set(re.findall(r'(?:src|srcset)="docs/pictures/([\w-]+\.svg)"', README))
    assert shown == {path.name for path in [*front.files(), *demo.files()]}


@pytest.mark.parametrize("palette", [front.LIGHT, front.DARK], ids=lambda palette: palette.name)
def test_nothing_stands_beyond_the_edge(palette):
    """Lines of code in the width that monospaced letters take, others in a generous estimate."""
    for draw in front.PICTURES.values():
        tree = ElementTree.fromstring(draw(palette))
        height = float(tree.get("height"))
        for text in tree.iter("{http://www.w3.org/2000/svg}text"):
            each = front.CHARACTER if text.get("class") == "code" else 7.0
            width = each * len("".join(text.itertext()))
            x = float(text.get("x"))
            left = {"end": x - width, "middle": x - width / 2}.get(text.get("text-anchor"), x)
            assert left > -4 and left + width < front.WIDTH + 4, "".join(text.itertext())
            assert 0 < float(text.get("y")) < height


def test_a_bar_that_is_too_long_is_cut(monkeypatch):
    """llm.c's plain loops may take several times as long: the other bars stay long enough to be compared."""
    figures = speed.figures()
    slow = {**figures[0]["rows"]["torch-tuned"], "title": "llm.c", "ratio": [9.0, 9.0, 9.0]}
    changed = [{**one, "rows": {**one["rows"], "llmc": slow}} for one in figures]
    monkeypatch.setattr(speed, "figures", lambda: changed)
    tree = ElementTree.fromstring(front.step(front.LIGHT))
    bars = tree.findall("{http://www.w3.org/2000/svg}rect")
    assert all(float(b.get("x", 0)) + float(b.get("width")) <= front.WIDTH for b in bars)
    assert max(float(b.get("width")) for b in bars[1:]) == pytest.approx(
        front.WIDTH - front.LEFT - front.RIGHT, 0.01
    )
    shown = [one for one in figures if one["threads"] == 2 and one["size"] in front.SIZES]
    assert len(tree.findall("{http://www.w3.org/2000/svg}path")) == len(shown)
    assert "9.00" in "".join(tree.itertext())


def test_readme_says_what_the_bars_show():
    shown = [one for one in speed.figures() if one["threads"] == 2 and one["size"] in front.SIZES]
    ratios = [one["rows"][front.fastest(one["rows"], speed.OWN)]["ratio"][0] for one in shown]
    assert len(shown) == 4 and f"takes {min(ratios):.2f} to {max(ratios):.2f} of the time" in README


def test_the_table_of_readme_is_that_of_the_pages():
    rows = next(one["rows"] for one in speed.figures() if (one["size"], one["threads"]) == ("124M-B4T64", 2))
    fastest = rows[front.fastest(rows, speed.OWN)]
    own, jax, llmc = (f"{row['ratio'][0]:.2f}" for row in (fastest, rows["jax"], rows["llmc"]))
    page = (house.ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    sizes = [
        re.search(rf"\n\| {name}[^|]*\| (\d+) \|", page)[1] for name in ("this", "PyTorch", "JAX", "autograd")
    ]
    table = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in README.splitlines() if line[:2] == "| "
    ]
    assert [row[3] for row in table[1:]] == [own, "1", jax, llmc, "-"]
    assert [row[2] for row in table[1:] if row[0] != "llm.c"] == sizes


# ---- The moving picture ------------------------------------------------------------------------------------

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("path, text", demo.files().items(), ids=lambda value: getattr(value, "name", ""))
def test_the_moving_picture_is_up_to_date(path, text):
    assert path.read_text(encoding="utf-8") == text, "run: python -m docs.demo"
    tree = ElementTree.fromstring(text)
    for line in tree.iter(f"{SVG}text"):
        if line.get("class") == "code":
            panel = float(line.get("x")) // demo.PANEL
            end = float(line.get("x")) + demo.CHARACTER * len("".join(line.itertext()))
            assert end < (panel + 1) * (demo.PANEL + 16), "".join(line.itertext())


def test_the_moving_picture_says_what_a_run_says():
    forward, derived, by_hand, named = demo.panels()
    assert "def gelu(x):" in forward.lines[0] and "def gelu_backward(" in derived.lines[0]
    compile("\n".join(derived.lines), "wrapped", "exec")
    assert sum(demo.WRONG in line for line in by_hand.lines) == 1
    message = " ".join(line.strip() for line in named.lines)
    assert "not the derivative" in message and "the factor 3 is left out" in message


def test_the_picture_rests_for_those_who_prefer_it_and_in_the_end():
    text = demo.picture(demo.LIGHT, 1)
    assert "@media (prefers-reduced-motion: reduce) { * { animation: none !important } }" in text
    hidden = re.findall(r"100% \{ (.*?) \}", text)
    assert len(hidden) > 15 and set(hidden) == {"transform: scaleX(0)", "opacity: 1"}
    for rule in re.findall(r"\.a\d+ \{ (.*?;)", text):  # without an animation as at its end
        assert rule in ("transform: scaleX(0);", "opacity: 1;")
