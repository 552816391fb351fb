"""The site: how pages begin, the language of each block, the gallery, links, and the pages in a browser."""

import ast
import re
import subprocess
import sys

import pytest

from docs import house
from tests.support.browser import Browser, program
from tests.support.pages import PAGES, blocks

DOCS = sorted((house.ROOT / "docs").glob("*.md"))
WIDE, NARROW = 1280, 390
CODE_CUT_OFF = """[...document.querySelectorAll("pre")].filter((pre) => pre.offsetParent &&
  [pre, ...pre.querySelectorAll("code")].some((box) => box.scrollWidth > box.clientWidth + 1)).length"""
SCROLLS_SIDEWAYS = "document.scrollingElement.scrollWidth > innerWidth"
SCHEME = "document.body.dataset.mdColorScheme"


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.stem)
def test_page_begins_with_one_sentence(path):
    """Of at most 40 words, on its own below the title: what a reader can do after reading."""
    title, first, *_ = path.read_text(encoding="utf-8").split("\n\n")
    assert re.fullmatch("# .*", title)
    assert re.fullmatch(r"[A-Z][^\n]*\w\.", first) and not re.search(r"[.:!?] [A-Z]", first), first
    assert len(first.split()) <= 40


@pytest.fixture
def hooks():
    pytest.importorskip("mkdocs", reason="the site needs mkdocs: pip install -e '.[docs]'")
    from docs import hooks

    return hooks


@pytest.mark.parametrize("page", PAGES)
def test_every_block_has_its_language(page, hooks):
    text = hooks.fenced((house.ROOT / page).read_text(encoding="utf-8"))
    fences = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    for (language, code), block in zip(fences, blocks(page), strict=True):
        assert language == (block.language or language)
        assert language in ("pycon", "console", "sh", "python", "text")
        assert (language == "pycon") == (block.kind == "examples"), code
        if language == "python":
            ast.parse(code if not code.startswith('"') else f"{{{code}}}" if code.endswith(",\n") else code)
        elif language == "sh":
            assert not re.search("  +", code) and block.kind == "commands" or code.startswith("./"), code
        elif language == "text":
            assert block.kind != "python", code


def test_every_picture_is_in_the_gallery(hooks, tmp_path, monkeypatch):
    page = hooks.gallery()
    for path in (house.ROOT / "docs" / "pictures").iterdir():
        assert f"pictures/{path.name}" in page
    assert page.count("<figure>") == page.count("<figcaption>") > len(hooks.notebooks()) > 4
    (tmp_path / "examples").mkdir()
    (tmp_path / "README.md").write_text("# t\n\n![A picture](docs/pictures/a.svg)\n")
    pictures = tmp_path / "docs" / "pictures"
    pictures.mkdir(parents=True)
    (pictures / "a.svg").write_text("")
    monkeypatch.setattr(hooks, "ROOT", tmp_path)
    assert 'src="pictures/a.svg"' in hooks.gallery()
    (pictures / "b.svg").write_text("")
    with pytest.raises(ValueError, match="no page shows b.svg"):
        hooks.gallery()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as CI builds it."""
    pytest.importorskip("mkdocs", reason="the site needs mkdocs: pip install -e '.[docs]'")
    program()
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=house.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_no_code_is_cut_and_no_page_scrolls_sideways(site):
    """Neither a page nor a block of code in it needs scrolling, on a desk or on a phone."""
    with Browser() as browser:
        for page in sorted(site.rglob("*.html")):
            for width in (WIDE, NARROW):
                browser.open(page, width=width)
                assert (browser.run(CODE_CUT_OFF), browser.run(SCROLLS_SIDEWAYS)) == (0, False), page.name


@pytest.mark.slow
def test_colour_scheme_follows_the_system_until_chosen(site):
    with Browser() as browser:
        for dark, scheme in ((True, "slate"), (False, "default")):
            browser.open(site / "speed.html", dark=dark)
            assert browser.run(SCHEME) == scheme
        for chosen in ("default", "slate"):
            browser.run("document.querySelector('.md-header__option label:not([hidden])').click()")
            assert browser.run(SCHEME) == chosen
        browser.open(site / "index.html")  # the choice holds on other pages, though the system is light
        assert browser.run(SCHEME) == "slate"
        shown = "[...document.querySelectorAll('picture')].filter((one) => one.offsetParent)"
        assert set(browser.run(f"{shown}.map((one) => one.className)")) == {"only-dark"}
        urls = [event.get("params", {}).get("request", {}).get("url", "") for event in browser.events]
        assert not [url for url in urls if url.startswith("http")]  # the site loads nothing from elsewhere
