"""Explained layers as one page of HTML that needs nothing else: no network, no scripts."""

from collections.abc import Sequence
from html import escape

from gpt2.commands.explain.highlight import STYLE as CODE_STYLE
from gpt2.commands.explain.highlight import graph, python
from gpt2.commands.explain.parts import Explained
from gpt2.commands.explain.text import kept_text

STYLE = """\
:root { color-scheme: light dark; --line: #d0d7de; --back: #ffffff; --text: #1f2328; --soft: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --line: #30363d; --back: #0d1117; --text: #e6edf3; --soft: #161b22; }
}
body { margin: 0 auto; padding: 1rem; max-width: 110rem; background: var(--back); color: var(--text);
       font: 1rem/1.5 system-ui, sans-serif; }
h2 { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1rem; }
.three { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 0.8rem; }
@media (max-width: 70rem) { .three { grid-template-columns: minmax(0, 1fr); } }
figure, details, pre.note { margin: 0 0 0.8rem; border: 1px solid var(--line); border-radius: 6px;
                            background: var(--soft); overflow: hidden; }
figure > pre, details > pre, pre.note { padding: 0.7rem; overflow-x: auto; }
pre.note.code { margin-bottom: 0.8rem; }
figcaption, summary { padding: 0.4rem 0.7rem; font-weight: 600; border-bottom: 1px solid var(--line); }
summary { cursor: pointer; }
table { border-collapse: collapse; margin: 0.8rem 0; } td, th { border: 1px solid var(--line);
        padding: 0.2rem 0.6rem; text-align: left; } td.number { text-align: right;
        font-variant-numeric: tabular-nums; }
@media print { .three { grid-template-columns: minmax(0, 1fr); }
               details::details-content { content-visibility: visible; display: block; } }
"""

INTRODUCTION = """\
<p>Each layer of GPT-2 stands here three times: its forward, the backward that a person wrote, and the forward
and backward that the compiler wrote from the forward alone. Below are the stages on the way: what was
recorded, the same simplified, its derivative, that simplified, cut into what runs forward and what runs
backward, and both as the programs that run, in blocks of rows with preallocated buffers.</p>
"""

STAGES = {
    "recorded": "what NumPy was asked to do while the forward ran once, one typed value a line",
    "simplified": "constants folded, equal values found, divisions by constants made products",
    "differentiated": "the chain rule, applied from the output back to each input",
    "simplified again": "what the derivative brought in twice, or for nothing, is gone",
    "forward": "the part that runs forward, with the values that it keeps",
    "backward": "the part that needs the output's gradient; cheap values are computed again, not kept",
    "forward, emitted": "as it runs",
    "backward, emitted": "as it runs",
}


def page(explained: Sequence[Explained]) -> str:
    """The page for a list of gpt2.commands.explain.parts.Explained."""
    names = [e.name for e in explained]
    links = " &middot; ".join(f'<a href="#{name}">{name}</a>' for name in names)
    body = "\n".join(
        [
            f"<h1>{escape(_title(names))}</h1>",
            INTRODUCTION,
            f"<nav><p>{links}</p></nav>" if len(names) > 1 else "",
            *map(section, explained),
        ]
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(_title(names))}</title>\n<style>\n{STYLE}{CODE_STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _title(names):
    return f"{names[0]}: forward, manual, derived" if len(names) == 1 else "Forward, manual, derived"


def section(e: Explained) -> str:
    """One layer."""
    shapes = ", ".join(f"<code>{escape(name)}</code> {escape(kind)}" for name, kind in e.shapes.items())
    by_hand, derived = e.kept
    return "\n".join(
        [
            f'<h2 id="{e.name}">{e.name}</h2>',
            f"<p>{escape(e.about)}</p>",
            f'<pre class="note code">{escape(e.derivation)}</pre>' if e.derivation else "",
            '<div class="three">',
            _figure("forward", e.forward),
            _figure("backward, by hand", e.manual),
            _figure("derived by the compiler", e.derived),
            "</div>",
            f"<p>Compiled for {shapes}. Kept from forward to backward, besides the inputs: "
            f"{kept_text(by_hand, derived)}.</p>",
            _agreement(e.errors),
            *(_stage(title, text) for title, text in e.stages),
        ]
    )


def _figure(title, source):
    code = python(source.rstrip())
    return f'<figure><figcaption>{title}</figcaption><pre class="code">{code}</pre></figure>'


def _agreement(errors):
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="number">{error:.1e}</td><td>'
        f"{'holds' if error <= tolerance else 'DOES NOT HOLD'}, {tolerance:.0e} allowed</td></tr>"
        for name, (error, tolerance) in errors.items()
    )
    return (
        f"<table><tr><th>compared, in float64</th><th>largest scaled error</th><th></th></tr>{rows}</table>"
    )


def _stage(title, text):
    coloured = python(text) if title.endswith("emitted") else graph(text)
    note = f": {STAGES[title]}" if title in STAGES else ""
    return (
        f"<details><summary>{escape(title)}{escape(note)}</summary>"
        f'<pre class="code">{coloured}</pre></details>'
    )
