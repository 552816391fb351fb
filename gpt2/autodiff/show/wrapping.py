"""Breaks the long lines of a readable source at commas, as a formatter would.

    (
        dweight[k:k + 1], dbias[k:k + 1], dout,
    ) = outlined_backward(
        weight[k:k + 1], mean, rstd, dout,
    )

Lines that hold no list of arguments, targets or results stay as they are, however long.
"""

from __future__ import annotations

import re

WIDTH = 100
OPEN, CLOSE = "([{", ")]}"
# the lines that are broken: a head, a return, targets = function(arguments)
SHAPES = (
    re.compile(r"(?P<before>def \w+\()(?P<list>.*)(?P<after>\):)$"),
    re.compile(r"(?P<before>return )(?P<list>.*)(?P<after>)$"),
    re.compile(r"(?P<targets>.* = )?(?P<before>[\w.]+\()(?P<list>.*)(?P<after>\))$"),
)


def wrapped(source: str, width: int = WIDTH) -> str:
    """The source with lines of at most `width` characters, where commas allow it."""
    lines = source.split("\n")
    return "\n".join(
        part for line in lines for part in ([line] if len(line) <= width else _broken(line, width))
    )


def _broken(line: str, width: int) -> list[str]:
    text = line.lstrip()
    indent = line[: len(line) - len(text)]
    if text.startswith("#"):
        return [line]
    for shape in SHAPES:
        match = shape.match(text)
        if match and len(items := _items(match["list"])) > 1:
            break
    else:
        return [line]
    named = match.groupdict().get("targets") or ""
    before, after = match["before"], match["after"]
    if before == "return ":
        before, after = "return (", ")"
    head = [indent + named + before]
    if len(head[0]) > width and len(targets := _items(named.removesuffix(" = "))) > 1:
        head = [f"{indent}(", *_filled(targets, indent, width), f"{indent}) = {before}"]
    return [*head, *_filled(items, indent, width), indent + after]


def _filled(items: list[str], indent: str, width: int) -> list[str]:
    """Items with commas behind them, as many to a line as fit."""
    lines = [f"{indent}    {items[0]},"]
    for item in items[1:]:
        longer = f"{lines[-1]} {item},"
        if len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(f"{indent}    {item},")
    return lines


def _items(text: str) -> list[str]:
    """The items between commas outside of brackets; [] if brackets do not match."""
    items, depth, start = [], 0, 0
    for k, letter in enumerate(text):
        depth += (letter in OPEN) - (letter in CLOSE)
        if depth < 0 or letter in "'\"":
            return []
        if letter == "," and not depth:
            items.append(text[start:k].strip())
            start = k + 1
    last = text[start:].strip()
    return [*items, last] if last else items
