"""What mkdocs does besides: pages from outside of docs/, links between pages, languages of code, pictures.

README.md becomes the first page, and CONTRIBUTING.md, CHANGELOG.md and the notebooks of examples/ become
pages too; layers.html is what `gpt2 explain all --out layers.html` writes, gallery.md has every picture. In
the running text of a page, `docs/speed.md` is the name of a page, and becomes a link to it: so the texts read
the same in an editor, on GitHub and here. A block of code gets the language that it is in.
"""

from __future__ import annotations

import ast
import base64
import json
import posixpath
import re
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File

from docs.docstrings import entries
from gpt2.commands.explain.page import page
from gpt2.commands.explain.parts import explain
from gpt2.layers import LAYERS

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
NAMED = re.compile(r"(?<![\w/(\[`])`?docs/([\w-]+\.md)`?(?![\w)\]])")
CODE = re.compile(r"^(?: {4}|```|~~~)")
COMMAND = re.compile(r"(?:python3?|pip|pytest|mpiexec|git|gpt2|ruff|pre-commit|\./\w+|\.venv/bin/\w+)\s\S")
SHOWN = re.compile(r"<picture>.*?</picture>|!\[[^\]]*\]\([\w/-]+\.svg\)", re.DOTALL)
# The first sentence of README and its picture
FRONT = re.compile(r"^(# .*?\n\n.*?)\n\n(<picture>.*?</picture>\n)", re.DOTALL)
DOORS = (
    "[Every layer, by hand and derived](layers.html){ .md-button .md-button--primary }"
    " [Train one](start.md){ .md-button } [Grade your own backward](exercises.md){ .md-button }\n{ .doors }\n"
)
DARK = "(prefers-color-scheme: dark)"


def notebooks() -> list[str]:
    return [f"examples/{path.name}" for path in sorted((ROOT / "examples").glob("*.ipynb"))]


@event_priority(100)  # before the plugin that makes pages of notebooks
def on_files(files: Any, config: Any) -> Any:
    for source, target in OUTSIDE.items():
        content = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, target, content=content))
    layers = page([explain(name) for name in LAYERS])
    files.append(File.generated(config, "layers.html", content=layers))
    files.append(File.generated(config, "gallery.md", content=gallery()))
    for source in notebooks():
        files.append(File(source, str(ROOT), config.site_dir, config.use_directory_urls))
        files.append(File.generated(config, picture_of(source), content=drawn(source)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    if page.file.src_uri in OUTSIDE.values():
        markdown = from_the_top(markdown)
        markdown = FRONT.sub(rf"\1\n{{ .lead }}\n\n\2\n{DOORS}", markdown)
    markdown = re.sub(r"\]\(\.\./(examples/|CONTRIBUTING|CHANGELOG)", r"](\1", markdown)  # docs/contents.md
    if page.file.src_uri.startswith("examples/"):
        return markdown
    if page.file.src_uri.startswith("reference-"):
        markdown = entries(markdown)
    markdown = linked(markdown, {file.src_uri for file in files}, page.file.src_uri)
    return re.sub("<picture>.*?</picture>", by_scheme, fenced(markdown), flags=re.DOTALL)


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


# ---- Blocks of code ----------------------------------------------------------------------------------------


def fenced(text: str) -> str:
    """The page with its indented blocks as fenced ones that name their language."""
    made, block, fence = [], [], False
    for line in [*text.split("\n"), "end"]:
        fence ^= line.lstrip().startswith("```")
        if not fence and (line.startswith("    ") or (block and not line.strip())):
            block.append(line[4:])
            continue
        if block:
            code = "\n".join(block).rstrip()
            made += [f"```{language(code)}", code, "```", ""]
            block = []
        made.append(line)
    return "\n".join(made[:-1])


def language(code: str) -> str:
    """The language of a block that does not name it; `text` for output, and for commands with remarks."""
    lines = [line for line in code.split("\n") if line.strip()]
    if any(line.startswith(">>> ") for line in lines):
        return "pycon"
    if any(line.startswith("$ ") for line in lines):
        return "console"
    if all(COMMAND.match(line) and "  " not in line for line in lines):
        return "sh"
    return "python" if is_python(code) else "text"


def is_python(code: str) -> bool:
    """Whether it does something as Python, or is an entry of a dictionary; words may parse as well."""
    for source in (code, f"{{{code}}}"):
        try:
            parts = list(ast.walk(ast.parse(source)))
        except SyntaxError:
            continue
        does = ast.Import | ast.Assign | ast.AnnAssign | ast.Call | ast.Dict
        return any(isinstance(part, does) for part in parts)
    return False


# ---- Pictures ----------------------------------------------------------------------------------------------


def by_scheme(found: re.Match) -> str:
    """A picture that follows the reader's system as two, one for each scheme of the site."""
    light = re.sub(rf" *<source [^>]*{re.escape(DARK)}[^>]*>\n?", "", found[0])
    sources = [source for source in re.findall(r"<source [^>]*>", found[0]) if DARK in source]
    if not sources:
        return found[0]
    *_, last = re.findall(r'srcset="([^"]*)"', sources[-1])
    image = re.sub(r' src="[^"]*"', f' src="{last}"', re.search(r"<img [^>]*>", found[0])[0])
    narrower = [source.replace(f" and {DARK}", "") for source in sources if f" and {DARK}" in source]
    dark = "\n".join(["<picture>", *narrower, image, "</picture>"])
    named = zip(("light", "dark"), (light, dark))
    return "\n".join(part.replace("<picture>", f'<picture class="only-{how}">') for how, part in named)


def picture_of(notebook: str) -> str:
    return f"pictures/{Path(notebook).stem}.png"


def drawn(notebook: str) -> bytes:
    """The last picture of a notebook."""
    cells = json.loads((ROOT / notebook).read_text(encoding="utf-8"))["cells"]
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    return base64.b64decode("".join([data["image/png"] for data in outputs if "image/png" in data][-1]))


def gallery() -> str:
    """The page of all pictures, and one of each notebook. Raises ValueError for one that no page shows."""
    inside = sorted((ROOT / "docs").glob("*.md"))
    pages = {"README.md": "index.md"} | {f"docs/{path.name}": path.name for path in inside}
    figures = []
    for path in notebooks():
        cells = json.loads((ROOT / path).read_text(encoding="utf-8"))["cells"]
        name = title("".join(cells[0]["source"]))
        figures.append(_figure(f'<img alt="{escape(name)}" src="{picture_of(path)}">', path, name))
    for source, target in pages.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        for markup in SHOWN.findall(from_the_top(text)):
            alt, address = re.search(r"\[(.*?)\]\((.*)\)|$", markup).groups()
            markup = f'<img alt="{escape(alt)}" src="{address}">' if alt else markup
            figures.append(_figure(markup, target, title(text)))
    page = "\n".join(figures)
    files = sorted(file.name for file in (ROOT / "docs" / "pictures").iterdir())
    lost = [name for name in files if f"pictures/{name}" not in page]
    if lost:
        raise ValueError(f"docs/pictures: no page shows {', '.join(lost)}")
    return (
        "# Gallery\n\nFind a result by its picture, and go to the page that explains it with a click.\n\n"
        f'<div class="gallery">\n{page}\n</div>\n'
    )


def title(text: str) -> str:
    return re.search("^# (.*)$", text, re.MULTILINE)[1]


def _figure(markup: str, page: str, name: str) -> str:
    """A picture that is a link to its page, and what it shows."""
    alt = re.search(r'alt="([^"]*)"', markup)[1]
    address = re.sub(r"\.\w+$", ".html", page)
    link = f'<a href="{address}">{escape(name)}</a>'
    caption = link if alt == escape(name) else f"{alt.removesuffix('.')}. {link}"
    return f'<figure><a href="{address}">{markup}</a><figcaption>{caption}</figcaption></figure>'
