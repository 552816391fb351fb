"""The page of gpt2 explain in a browser: mouse, touch and keyboard, wide and narrow, light and dark."""

import json

import pytest

from gpt2.commands.explain import __main__ as command
from tests.support.browser import Browser, program

pytestmark = pytest.mark.slow
FOCUSED = "document.activeElement.textContent.trim().split(' ')[0]"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    program()  # skips if there is no browser
    page = tmp_path_factory.mktemp("page") / "layers.html"
    assert command.main(["all", "--out", str(page)]) == 0
    return page


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


@pytest.fixture(params=[(1280, False), (390, True)], ids=["1280 light", "390 dark"])
def opened(request, browser, file):
    width, dark = request.param
    browser.open(file, width, 844, dark)
    return browser


def mark(browser, panel, start, layer="layernorm"):
    """Marks the line of a panel that starts with these characters, and returns its selector."""
    script = f"""[...document.querySelectorAll('#{layer} [data-panel={panel}] .st')]
        .filter((line) => line.textContent.trim().startsWith({json.dumps(start)}))[0].id = 'marked'"""
    browser.run("document.querySelectorAll('#marked').forEach((line) => line.removeAttribute('id'))")
    browser.run(script)
    return "#marked"


def texts(browser, selector):
    script = f"[...document.querySelectorAll({json.dumps(selector)})].map((x) => x.textContent.trim())"
    return browser.run(script)


def highlighted(browser, layer="layernorm"):
    """The first words of the highlighted lines, by panel."""
    words = {}
    for panel in ("forward", "manual", "derived"):
        if lines := texts(browser, f"#{layer} [data-panel={panel}] .st.lit"):
            words[panel] = [line.split(" ")[0] for line in lines]
    return words


OF_VARIANCE = {"manual": ["dinp"], "derived": ["variance", "dcentred"]}


def test_page_fetches_nothing_and_raises_nothing(opened, file):
    def events(method):
        return [event for event in opened.events if event.get("method") == method]

    requests = events("Network.requestWillBeSent")
    assert [event["params"]["request"]["url"] for event in requests] == [file.as_uri()]
    assert not events("Runtime.exceptionThrown")


def test_page_does_not_scroll_sideways(opened):
    """Neither the page nor any part of it, with each stage shown and nothing folded away."""
    opened.run("document.querySelectorAll('details').forEach((part) => { part.open = true })")
    wide = """[document.documentElement, ...document.querySelectorAll('.layer *')]
        .filter((x) => x.clientWidth && x.scrollWidth > x.clientWidth + 1)
        .map((x) => x.outerHTML.slice(0, 80))"""
    for _ in range(8):
        assert opened.run("document.documentElement.scrollWidth <= innerWidth")
        assert opened.run(wide) == []
        opened.run("document.querySelectorAll('.steps button:last-of-type').forEach((b) => b.click())")


def test_text_is_legible(opened):
    """At least 12 px and a contrast of 4.5, also of lines that are highlighted, new or gone."""
    script = """[...document.querySelectorAll('#gelu :is(p, .ln, .ln span, label, button, summary, h2)')]
        .filter((x) => x.offsetParent && x.textContent.trim()).map((x) => {
            const style = getComputedStyle(x);
            let behind = x;
            const back = (y) => getComputedStyle(y).backgroundColor;
            while (!back(behind).startsWith('rgb(')) behind = behind.parentElement;
            return [x.className, x.textContent, parseFloat(style.fontSize), style.color, back(behind)];
        })"""
    opened.run("document.querySelectorAll('#gelu .steps input')[3].click()")
    opened.point(mark(opened, "forward", "u =", "gelu"), click=True)
    opened.run("new Promise((done) => setTimeout(done, 300))")  # until colours have changed
    elements = opened.run(script)
    assert {"lit", "new", "gone"} <= {word for kind, *_ in elements for word in kind.split()}
    for _, text, size, color, background in elements:
        assert size >= 12, text
        assert contrast(color, background) >= 4.5, (text, color, background)


def contrast(a, b):
    """WCAG 2.1's contrast ratio of two colours, as rgb(r, g, b)."""

    def brightness(text):
        parts = [int(x) / 255 for x in text[text.index("(") + 1 : -1].split(",")[:3]]
        r, g, b = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted((brightness(a), brightness(b)))
    return (high + 0.05) / (low + 0.05)


def test_mouse_highlights_lines_of_both_backwards(opened):
    opened.point(mark(opened, "forward", "variance ="))
    assert highlighted(opened) == OF_VARIANCE
    assert "1 line by hand, 2 lines derived" in texts(opened, "#layernorm .kept p")[0]
    opened.point(mark(opened, "manual", "shift ="))
    assert highlighted(opened) == {"forward": ["mean", "centred"]}
    opened.point("#layernorm h2")
    assert highlighted(opened) == {}


def test_click_pins_the_highlighting_and_shows_values(opened):
    opened.point(mark(opened, "forward", "rstd ="), click=True)
    opened.point("#layernorm h2")
    assert "dcentred" in highlighted(opened)["derived"]
    values = texts(opened, "#layernorm .kept pre")
    assert values[0].startswith("rstd: float64 (2, 5, 1)\n[[1.42 ") and len(values) > 2
    box = opened.run(
        "(r => [r.top, r.bottom])(document.querySelector('#layernorm .kept').getBoundingClientRect())"
    )
    assert 0 < box[0] < box[1] <= 845  # in sight
    opened.point("#layernorm .kept button", click=True)
    assert texts(opened, "#layernorm .pin") == texts(opened, "#layernorm .kept pre") == []
    assert opened.run(FOCUSED) == "rstd"


def test_keyboard_moves_pins_and_unpins(opened):
    opened.run(f"document.querySelector('{mark(opened, 'forward', 'C =')}').focus()")
    for _ in range(3):
        opened.press("ArrowDown")
    assert opened.run(FOCUSED) == "variance" and highlighted(opened) == OF_VARIANCE
    assert opened.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    opened.press("ArrowRight")
    assert opened.run(FOCUSED) == "dinp"
    opened.press("Enter")
    assert opened.run("document.activeElement.getAttribute('aria-pressed')") == "true"
    assert set(highlighted(opened)["forward"]) == {"mean", "centred", "variance", "out"}
    opened.press("Escape")
    assert texts(opened, "#layernorm .pin") == []
    opened.press(" ")
    assert len(texts(opened, "#layernorm .pin")) == 1
    opened.press(" ")
    opened.press("Home")
    assert opened.run(FOCUSED) == "inp,"
    opened.press("Tab")
    assert opened.run("document.activeElement.closest('figure').dataset.panel") == "derived"


def test_stages_are_shown_one_at_a_time(opened):
    radio = "#layernorm .steps input"
    shown = "#layernorm .stage.on"
    assert opened.run(f"document.querySelectorAll('{shown}').length") == 1
    assert texts(opened, f"{shown} .new") == []
    opened.point("#layernorm .steps button:last-of-type", click=True)
    assert texts(opened, f"{shown} h4") == ["simplified"]
    assert "- " in texts(opened, f"{shown} .gone")[0] and "+ " in texts(opened, f"{shown} .new")[0]
    opened.run(f"document.querySelectorAll('{radio}')[1].focus()")
    opened.press("ArrowRight")
    assert texts(opened, f"{shown} h4") == ["differentiated"]
    assert len(texts(opened, f"{shown} .new")) > 10
    opened.point(mark(opened, "forward", "variance ="))
    assert any("dvariance" in line for line in texts(opened, f"{shown} .ln.lit"))
