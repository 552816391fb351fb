"""Makes slides of the lesson: `python -m docs.slides` writes docs/lesson.html from examples/lesson.ipynb.

One file that needs no network. A text cell and the code cells after it are a slide: text to the left, code
and its output to the right, one below the other on a narrow screen. Arrow keys, space and Page Up and Down
turn pages; printed, each slide is a page.
"""

from __future__ import annotations

import html
import json

from docs import house
from gpt2.autodiff.show import highlight

NOTEBOOK = house.ROOT / "examples" / "lesson.ipynb"
PAGE = house.ROOT / "docs" / "lesson.html"

STYLE = """\
:root { color-scheme: light dark; --soft: #57606a; --panel: #f6f8fa; --edge: #d0d7de; --own: #2563eb; }
* { box-sizing: border-box; }
html { scroll-snap-type: y mandatory; }
body { margin: 0; font: clamp(16px, 1.5vw, 26px)/1.45 system-ui, "Helvetica Neue", Arial, sans-serif; }
section { min-height: 100vh; padding: 4vmin 5vmin; display: grid; gap: 4vmin; scroll-snap-align: start;
  align-content: center; position: relative; border-bottom: 1px solid var(--edge); }
section > * { min-width: 0; }
h1, h2, h3 { line-height: 1.15; margin: 0 0 0.6em; } h1 { font-size: 2em; } h2 { font-size: 1.6em; }
pre.code, pre.out { margin: 0 0 0.8em; padding: 0.8em; border-radius: 6px; background: var(--panel);
  font: 1em/1.35 ui-monospace, Menlo, Consolas, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
pre.out { background: none; border-left: 4px solid var(--own); }
code { font: 0.9em ui-monospace, Menlo, Consolas, monospace; }
img { max-width: 100%; background: white; border-radius: 6px; }
.number { position: absolute; right: 1.5em; bottom: 1em; color: var(--soft); font-size: 0.7em; }
@media (min-width: 1000px) { section.both { grid-template-columns: 3fr 7fr; align-items: center; } }
@media (max-width: 600px) { html { scroll-snap-type: none; } section { min-height: 0; } }
@media (prefers-color-scheme: dark) {
  :root { --soft: #9aa4af; --panel: #151b23; --edge: #3d444d; --own: #58a6ff; }
  body { background: #0d1117; color: #e6edf3; }
}
@media print { section { min-height: 0; height: 100vh; break-after: page; border: 0; } }
"""
SCRIPT = """\
const slides = [...document.querySelectorAll("section")];
addEventListener("keydown", (event) => {
  const by = ["ArrowRight", "ArrowDown", "PageDown", " "].includes(event.key)
    ? 1 : ["ArrowLeft", "ArrowUp", "PageUp"].includes(event.key) ? -1 : 0;
  if (!by || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  const tops = slides.map((slide) => Math.abs(slide.getBoundingClientRect().top));
  const now = tops.indexOf(Math.min(...tops));
  const next = slides[now + (event.key === " " && event.shiftKey ? -1 : by)];
  if (next) next.scrollIntoView();
});
"""


def slides(content: dict) -> list[list[dict]]:
    """The cells of each slide; the first of each is a text cell."""
    found: list[list[dict]] = []
    for cell in content["cells"]:
        if cell["cell_type"] == "markdown":
            found.append([])
        found[-1].append(cell)
    return found


def shown(cell: dict) -> list[str]:
    """A code cell and its outputs as HTML."""
    parts = [f'<pre class="code">{highlight.python("".join(cell["source"]))}</pre>']
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/png" in data:
            alt, picture = html.escape(cell["metadata"]["alt"]), "".join(data["image/png"]).strip()
            parts.append(f'<img alt="{alt}" src="data:image/png;base64,{picture}">')
        else:
            text = "".join(output.get("text", data.get("text/plain", []))).rstrip()
            parts.append(f'<pre class="out">{html.escape(text)}</pre>')
    return parts


def page(content: dict) -> str:
    """The HTML file. Needs Python-Markdown, which mkdocs brings."""
    from markdown import markdown

    sections = []
    found = slides(content)
    for number, (text, *code) in enumerate(found, 1):
        words = markdown("".join(text["source"]))
        parts = [f"<section{' class=both' if code else ''}>", f"<div>{words}</div>"]
        if code:
            parts += ["<div>", *(part for cell in code for part in shown(cell)), "</div>"]
        sections += [*parts, f'<div class="number">{number} / {len(found)}</div>', "</section>"]
    title = "".join(found[0][0]["source"]).split("\n")[0].lstrip("# ")
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    return "\n".join(
        [
            f'<!doctype html>\n<html lang="en">\n<head>{head}<title>{html.escape(title)}</title>',
            f"<style>\n{highlight.STYLE}{STYLE}</style>\n</head>\n<body>",
            *sections,
            f"<script>\n{SCRIPT}</script>\n</body>\n</html>\n",
        ]
    )


def made() -> str:
    """The page of the notebook as it stands."""
    return page(json.loads(NOTEBOOK.read_text(encoding="utf-8")))


if __name__ == "__main__":
    PAGE.write_text(made(), encoding="utf-8")
