"""README's pictures are up to date, fit, and show what README and the pages say."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from docs import demo, front, house, speed
from tests.support.pictures import SVG, beyond, said

README = (house.ROOT / "README.md").read_text(encoding="utf-8")


def fastest(rows, names):
    """The contender among these that took the least, by the ratio within rounds."""
    return min((name for name in names if name in rows), key=lambda name: rows[name]["ratio"][0])


def test_the_picture_is_up_to_date():
    pytest.importorskip("matplotlib")
    for path, text in front.files().items():
        assert said(path.read_text(encoding="utf-8")) == said(text), "run: python -m docs.front"


def test_every_picture_is_shown_in_light_and_dark():
    shown = set(re.findall(r'(?:src|srcset)="docs/pictures/([\w-]+\.svg)"', README))
    assert shown == {"race-light.svg", "race-dark.svg"} | {path.name for path in demo.files()}


def test_nothing_stands_beyond_the_edge():
    text = (front.FOLDER / "race-light.svg").read_text(encoding="utf-8")
    assert not beyond(text, front.WIDTH, 6.6)


def test_a_dark_picture_is_the_light_one_in_other_colours():
    names = (f"race-{how}.svg" for how in ("light", "dark"))
    light, dark = ((front.FOLDER / name).read_text(encoding="utf-8") for name in names)
    assert "#0d1117" in dark and not re.search("#ffffff|#1f2328", dark)
    assert re.sub("#[0-9a-f]{6}", "", light) == re.sub("#[0-9a-f]{6}", "", dark)


def test_readme_gives_the_range_of_the_kept_figures():
    places = {"Zen 5": "on the Zen 5", "Zen 4": "on the Zen 4", "Zen 4, AVX2": "on one without AVX-512"}
    for machine, text in places.items():
        shown = [one for one in speed.figures(f"AMD EPYC, {machine}") if one["threads"] == 2]
        ratios = [one["rows"][fastest(one["rows"], speed.OWN)]["ratio"][0] for one in shown]
        extent = f"{min(ratios):.2f} to {max(ratios):.2f}"
        assert len(shown) == 7 and re.search(rf"{extent}[a-z ]* {text}", README.replace("\n", " "))


def test_readme_table_agrees_with_the_pages():
    cells = []
    for machine in ("AMD EPYC, Zen 5", "AMD EPYC, Zen 4"):
        of_size = {(one["size"], one["threads"]): one["rows"] for one in speed.figures(machine)}
        rows = of_size["124M-B4T64", 2]
        ratios = [
            rows[name]["ratio"] if name in rows else None
            for name in (fastest(rows, speed.OWN), "jax", "llmc")
        ]
        cells.append([f"{ratio[0]:.2f}" if ratio else "-" for ratio in ratios])
    own, jax, llmc = (f"{new}, {old}" for new, old in zip(*cells))
    page = (house.ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    installed = page.split("\nInstalled, ")[1]
    names = ("this", "PyTorch", "JAX", "autograd")
    sizes = [re.search(rf"{name}.*?(\d+)\s+MB", installed, re.DOTALL)[1] for name in names]
    lines = [line for line in README.splitlines() if line[:2] == "| "]
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert [row[2] for row in table[1:]] == [own, "1, 1", jax, llmc, "-"]
    assert [row[1] for row in table[1:] if row[0] != "llm.c"] == sizes


@pytest.mark.parametrize("path, text", demo.files().items(), ids=lambda value: getattr(value, "name", ""))
def test_animation_is_up_to_date_and_code_fits_its_panels(path, text):
    assert path.read_text(encoding="utf-8") == text, "run: python -m docs.demo"
    tree = ElementTree.fromstring(text)
    for line in tree.iter(f"{SVG}text"):
        if line.get("class") == "code":
            panel = float(line.get("x")) // demo.PANEL
            end = float(line.get("x")) + demo.CHARACTER * len("".join(line.itertext()))
            assert end < (panel + 1) * (demo.PANEL + 16), "".join(line.itertext())


def test_animation_shows_real_output():
    forward, derived, by_hand, named = demo.panels()
    assert "def gelu(x):" in forward.lines[0] and "def gelu_backward(" in derived.lines[0]
    compile("\n".join(derived.lines), "wrapped", "exec")
    assert sum(demo.WRONG in line for line in by_hand.lines) == 1
    message = " ".join(line.strip() for line in named.lines)
    assert "not the derivative" in message and "lacks the factor 3" in message


def test_animation_begins_and_ends_complete_and_respects_reduced_motion():
    text = demo.picture(1)
    first_frames = re.findall(r"\{ 0% \{ (.*?); animation-timing-function: step-end \}", text)
    assert "@media (prefers-reduced-motion: reduce) { * { animation: none !important } }" in text
    last_frames = re.findall(r"100% \{ (.*?) \}", text)
    assert len(last_frames) > 15 and set(last_frames) == {"transform: scaleX(0)", "opacity: 1"}
    assert first_frames == last_frames and "infinite" not in text
    # without animation the elements look as in the last frame
    assert set(re.findall(r"\.a\d+ \{ (.*?;)", text)) == {"transform: scaleX(0);", "opacity: 1;"}
