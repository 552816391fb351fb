"""Python source as HTML, in spans: k keyword, s string, c comment, n number, f the name defined."""

import html
import io
import keyword
import tokenize

_KINDS = {tokenize.STRING: "s", tokenize.COMMENT: "c", tokenize.NUMBER: "n"}
for _part in ("FSTRING_START", "FSTRING_MIDDLE", "FSTRING_END"):  # from Python 3.12 on
    if hasattr(tokenize, _part):
        _KINDS[getattr(tokenize, _part)] = "s"


def highlighted(source):
    """The source, escaped, in spans. What is not Python stays as it is, in one colour."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError):
        return html.escape(source)
    lines = source.splitlines(keepends=True)
    parts, at, before = [], (1, 0), ""
    for token in tokens:
        parts.append(html.escape(_between(lines, at, token.start)))
        parts.append(_span(token, _between(lines, token.start, token.end), before))
        at, before = token.end, token.string
    return "".join(parts)


def _span(token, text, before):
    kind = _KINDS.get(token.type)
    if token.type == tokenize.NAME:
        kind = "k" if keyword.iskeyword(token.string) else "f" if before == "def" else None
    text = html.escape(text)
    return f'<span class="{kind}">{text}</span>' if kind else text


def _between(lines, start, end):
    """The text from one (line, column) to another."""
    (row, column), (last, stop) = start, end
    if row > len(lines):
        return ""
    if row == last:
        return lines[row - 1][column:stop]
    rest = "".join(lines[row:last - 1])
    return lines[row - 1][column:] + rest + (lines[last - 1][:stop] if last <= len(lines) else "")
