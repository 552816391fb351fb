"""The pictures of README.md: up to date, and README says what they show."""

import re
import textwrap
import xml.etree.ElementTree as ElementTree

import pytest

from docs import demo, front, house, speed
from tests.support.pictures import SVG, beyond, said

README = (house.ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", front.PICTURES)
def test_the_pictures_are_up_to_date(name):
    pytest.importorskip("matplotlib")
    for path, text in front.files(name).items():
        assert said(path.read_text(encoding="utf-8")) == said(text), "run: python -m docs.front"


def test_every_picture_is_shown_in_light_and_dark():
    shown = set(re.findall(r'(?:src|srcset)="docs/pictures/([\w-]+\.svg)"', README))
    made = {f"{name}-{how}.svg" for name in front.PICTURES for how in ("light", "dark")}
    assert shown == made | {path.name for path in demo.files()}


@pytest.mark.parametrize("name", front.PICTURES)
def test_nothing_stands_beyond_the_edge(name):
    text = (front.FOLDER / f"{name}-light.svg").read_text(encoding="utf-8")
    assert not beyond(text, front.WIDTH, 6.6)


def test_a_dark_picture_is_the_light_one_in_other_colours():
    for name in front.PICTURES:
        light, dark = (
            (front.FOLDER / f"{name}-{how}.svg").read_text(encoding="utf-8") for how in ("light", "dark")
        )
        assert "#0d1117" in dark and not re.search("#ffffff|#1f2328", dark)
        assert re.sub("#[0-9a-f]{6}", "", light) == re.sub("#[0-9a-f]{6}", "", dark)


def test_readme_ends_the_run_with_its_text():
    assert "\n" + textwrap.indent(front.first_speech(), "    ") + "\n" in README


def test_readme_gives_the_range_of_the_kept_figures():
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
    text = demo.picture(1)
    assert "@media (prefers-reduced-motion: reduce) { * { animation: none !important } }" in text
    hidden = re.findall(r"100% \{ (.*?) \}", text)
    assert len(hidden) > 15 and set(hidden) == {"transform: scaleX(0)", "opacity: 1"}
    for rule in re.findall(r"\.a\d+ \{ (.*?;)", text):  # without an animation as at its end
        assert rule in ("transform: scaleX(0);", "opacity: 1;")
