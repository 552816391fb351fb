"""What mkdocs does besides: pages from outside of docs/, and links between pages.

README.md becomes the first page, and CONTRIBUTING.md, CHANGELOG.md and the notebooks of examples/ become
pages too; layers.html is what `gpt2 explain all --out layers.html` writes. In the running text of a page,
`docs/speed.md` is the name of a page, and becomes a link to it: so the texts read the same in an editor, on
GitHub and here.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File

from gpt2.commands.explain.page import page
from gpt2.commands.explain.parts import explain
from gpt2.layers import LAYERS

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
NAMED = re.compile(r"(?<![\w/(\[`])`?docs/([\w-]+\.md)`?(?![\w)\]])")
CODE = re.compile(r"^(?: {4}|```|~~~)")


def notebooks() -> list[str]:
    return [f"examples/{path.name}" for path in sorted((ROOT / "examples").glob("*.ipynb"))]


@event_priority(100)  # before the plugin that makes pages of notebooks
def on_files(files: Any, config: Any) -> Any:
    for source, target in OUTSIDE.items():
        content = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, target, content=content))
    layers = page([explain(name) for name in LAYERS])
    files.append(File.generated(config, "layers.html", content=layers))
    for source in notebooks():
        files.append(File(source, str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    if page.file.src_uri in OUTSIDE.values():
        markdown = from_the_top(markdown)
    markdown = re.sub(r"\]\(\.\./(examples/|CONTRIBUTING|CHANGELOG)", r"](\1", markdown)  # docs/contents.md
    return linked(markdown, {file.src_uri for file in files}, page.file.src_uri)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Of a notebook, whose links are those of its folder in the repository."""
    if not page.file.src_uri.startswith("examples/"):
        return html
    return re.sub(r'href="\.\./docs/([\w-]+)\.md"', r'href="../\1.html"', html)


def from_the_top(text: str) -> str:
    """A page of the repository's top folder with the addresses that it has in the site."""
    for source, target in OUTSIDE.items():
        text = re.sub(rf"\]\({re.escape(source)}(#[\w-]+)?\)", rf"]({target}\1)", text)
    return re.sub(r'(\]\(|src="|srcset=")docs/', r"\1", text)


def linked(text: str, known: set[str], here: str) -> str:
    """The page with the names of other pages, outside of code, as links to them."""
    lines, fenced = [], False
    for line in text.split("\n"):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not CODE.match(line):
            line = NAMED.sub(lambda found: _link(found, known, here), line)
        lines.append(line)
    return "\n".join(lines)


def _link(found: re.Match, known: set[str], here: str) -> str:
    name = found[1]
    if name not in known or name == here:
        return found[0]
    return f"[{found[0].strip('`')}]({posixpath.relpath(name, posixpath.dirname(here) or '.')})"
