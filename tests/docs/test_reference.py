"""The reference: each public name has an entry, a docstring and an example that runs; and the contents."""

import doctest
import importlib
import inspect
import re

import numpy as np
import pytest

import gpt2
from docs import docstrings, house, links
from gpt2 import autodiff as ad
from gpt2.autodiff.run import remembered

PAGES = {"gpt2": "reference-gpt2", "gpt2.train": "reference-train", "gpt2.autodiff": "reference-autodiff"}
ELSEWHERE = {"__version__", "autodiff", "train"}  # of gpt2: a string, and two modules with their own pages


def public(module):
    names = importlib.import_module(module).__all__
    return [name for name in names if module != "gpt2" or name not in ELSEWHERE]


def page(name):
    return (house.ROOT / name).read_text(encoding="utf-8")


NAMES = [(module, name) for module in PAGES for name in public(module)]


@pytest.mark.parametrize("module", PAGES)
def test_every_public_name_has_an_entry(module):
    entries = re.findall(r"^::: (\S+)$", docstrings.entries(page(f"docs/{PAGES[module]}.md")), re.M)
    assert sorted(entries) == sorted(f"{module}.{name}" for name in public(module))


@pytest.mark.parametrize("module, name", NAMES, ids=[f"{module}.{name}" for module, name in NAMES])
def test_every_public_name_has_an_example_that_runs(module, name, tmp_path, monkeypatch, quick_peak):
    text = inspect.getdoc(getattr(importlib.import_module(module), name))
    assert text and text.split("\n\n")[0].rstrip().endswith((".", "...`")), "begins with a sentence"
    for peer in ("torch", "jax"):
        if f"import {peer}" in text:
            pytest.importorskip(peer)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(remembered, "_folder", None)
    (tmp_path / "my.txt").write_text("to be or not to be that is the question " * 600, encoding="utf-8")
    test = doctest.DocTestParser().get_doctest(text, {"np": np, "gpt2": gpt2, "ad": ad}, name, None, 0)
    importlib.import_module("gpt2.train")
    result = doctest.DocTestRunner().run(test)
    assert result.attempted and not result.failed


def test_every_page_is_in_the_contents():
    """Of the site and of README; and nothing else is."""
    pages = {path.name for path in (house.ROOT / "docs").glob("*.md")}
    notebooks = {path.name for path in (house.ROOT / "examples").glob("*.ipynb")}
    entry = r"^      - (?:[\w ]+: )?([\w/-]+\.(?:md|ipynb))$"
    listed = re.findall(entry, page("mkdocs.yml").split("\nnav:\n")[1], re.M)
    assert len(listed) == len(set(listed))
    copied = {"index.md", "gallery.md", "CONTRIBUTING.md", "CHANGELOG.md"}  # into the site, by docs/hooks.py
    assert set(listed) == pages | {f"examples/{name}" for name in notebooks} | copied
    contents = re.findall(r"\]\((?:\.\./examples/)?([\w-]+\.(?:md|ipynb))\)", page("docs/contents.md"))
    assert {*contents, "contents.md"} == pages | notebooks
    readme = page("README.md")
    linked = re.findall(r"\]\(docs/([\w-]+\.md)\)", readme)
    assert "contents.md" in linked and set(linked) <= pages and len(linked) == len(set(linked)) <= 8
    assert len(readme.splitlines()) <= 120


def test_broken_links_are_listed(tmp_path, capsys):
    assert links.main([str(tmp_path)]) == 2
    index = '<a href="a.html#b">a</a> <a href="https://x.y/z"> <img src="p.svg">'
    (tmp_path / "index.html").write_text(index)
    assert links.main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == "index.html: a.html\nindex.html: p.svg\n"
    (tmp_path / "a.html").write_text("")
    (tmp_path / "p.svg").write_text("")
    assert links.main([str(tmp_path)]) == 0


def test_docstring_becomes_markdown():
    text = """What it is: a*b.

x, y    two arrays, one of which
        is [longer]
n       a number

Then `a*b` once more.

    >>> f(1)
    2

    >>> g()
"""
    assert docstrings.markdown(text) == (
        "What it is: a\\*b.\n\n"
        "- `x, y`: two arrays, one of which is \\[longer\\]\n- `n`: a number\n\n"
        "Then `a*b` once more.\n\n"
        "```pycon\n>>> f(1)\n2\n\n>>> g()\n```"
    )
    assert docstrings.markdown("One.\n\n>>> f()").endswith("```pycon\n>>> f()\n```")
