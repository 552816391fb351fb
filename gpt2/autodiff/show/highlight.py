"""Syntax highlighting: Python source and the compiler's graphs as HTML spans, coloured by STYLE.

The page fetches nothing. Pygments would be another package for thirty lines of these: it knows no graphs.
"""

import keyword
import re
from html import escape

# k keyword, s string, c comment, n number, f name that is defined or op that is applied, t type
STYLE = """\
pre.code { overflow-x: auto; margin: 0; font: 0.8rem/1.45 ui-monospace, Menlo, Consolas, monospace; }
.code .k { color: #8250df; } .code .s { color: #57606a; } .code .c { color: #6e7781; font-style: italic; }
.code .n { color: #0a5ca8; } .code .f { color: #953800; } .code .t { color: #0a6b58; }
@media (prefers-color-scheme: dark) {
  .code .k { color: #c4a3ff; } .code .s { color: #a5adb6; } .code .c { color: #8b949e; }
  .code .n { color: #79c0ff; } .code .f { color: #ffa657; } .code .t { color: #66d1b8; }
}
@media print { pre.code { white-space: pre-wrap; overflow-wrap: anywhere; } }
"""


# One group for each class of STYLE
PYTHON = re.compile(
    rf"""(?P<c>\#[^\n]*)
    | (?P<s>[rbfRBF]{{0,2}}(?:\"{{3}}.*?\"{{3}} | '{{3}}.*?'{{3}}
                            | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'))
    | (?<![\w.])(?P<n>(?:\d|\.\d)[\w.]*(?:(?<=[eE])[-+]\d+)?)
    | (?:(?<=\bdef\ )|(?<=\bclass\ ))(?P<f>\w+)
    | \b(?P<k>{"|".join(keyword.kwlist)})\b""",
    re.VERBOSE | re.DOTALL,
)


def python(source: str) -> str:
    """Python source as HTML."""
    parts, at = [], 0
    for match in PYTHON.finditer(source):
        parts += [escape(source[at : match.start()], quote=False), _span(match.lastgroup, match[0])]
        at = match.end()
    return "".join([*parts, escape(source[at:], quote=False)])


def lines(html: str) -> list[str]:
    """Highlighted source line by line: a span over several lines becomes one in each."""
    coloured, open_span = [], ""
    for line in html.split("\n"):
        line = open_span + line
        opened = re.findall(r"<span[^>]*>", line)
        open_span = opened[-1] if len(opened) > line.count("</span>") else ""
        coloured.append(line + ("</span>" if open_span else ""))
    return coloured


def _span(kind: str | None, text: str) -> str:
    return f'<span class="{kind}">{escape(text, quote=False)}</span>'


TYPE = r"[a-z]+\d*\[[\d,]*\]"
NUMBER = re.compile(r"(?<![\w.])-?\d[\d.]*(?:e-?\d+)?")
VALUE = re.compile(rf"^  (\w+): ({TYPE}|\(.*?\)) = (\w+)(\(.*\))$")


def graph(text: str) -> str:
    """A printed graph, one typed line per value, as HTML."""
    lines = []
    for line in text.split("\n"):
        if value := VALUE.match(line):
            name, kind, op, arguments = value.groups()
            numbers = NUMBER.sub(lambda match: _span("n", match[0]), escape(arguments, quote=False))
            lines.append(f"  {escape(name)}: {_span('t', kind)} = {_span('f', op)}{numbers}")
        elif line.startswith("  return "):
            lines.append(f"  {_span('k', 'return')}{escape(line[8:], quote=False)}")
        else:
            lines.append(re.sub(TYPE, lambda match: _span("t", match[0]), escape(line, quote=False)))
    return "\n".join(lines)
