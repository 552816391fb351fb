"""An explained layer as text for a terminal."""

import textwrap

from gpt2.explain.parts import Explained

NARROW = 40  # characters; below this three columns cannot be read, and stand below each other


def text(explained: Explained, width: int, emitted: bool = False) -> str:
    """Forward, manual and derived side by side where `width` characters allow it, then checks and stages."""
    derived = explained.emitted if emitted else explained.derived
    sources = [
        ("forward", explained.forward),
        ("backward, by hand", explained.manual),
        ("derived by the compiler", derived),
    ]
    column = (width - 6) // 3
    sides = _columns(sources, column) if column >= NARROW else _below(sources)
    lines = [f"{explained.name}: {explained.about}", "", *sides, "", *facts(explained), ""]
    for title, body in explained.stages:
        lines += [f"# {title}", "", body, ""]
    return "\n".join(lines[:-1])


def facts(explained: Explained) -> list[str]:
    """What the compiler worked on, what is kept, and how far the gradients are from each other: lines."""
    by_hand, derived = explained.kept
    worst = max(error for error, _ in explained.errors.values())
    holds = all(error <= tolerance for error, tolerance in explained.errors.values())
    return [
        "compiled for    " + ", ".join(f"{name} {kind}" for name, kind in explained.shapes.items()),
        f"kept            {by_hand:,} bytes by hand, {derived:,} by the compiler, besides the inputs",
        f"agreement       {'holds' if holds else 'DOES NOT HOLD'}: scaled error at most {worst:.1e} among "
        f"{len(explained.errors)} comparisons in float64",
        *(
            f"                {error:.1e} {name}"
            + ("" if error <= tolerance else f", more than {tolerance:g}")
            for name, (error, tolerance) in explained.errors.items()
        ),
    ]


def _below(sources):
    lines = []
    for title, source in sources:
        lines += [f"---- {title} " + "-" * (60 - len(title)), "", *source.rstrip().split("\n"), ""]
    return lines[:-1]


def _columns(sources, width):
    columns = [[title, "-" * width, *_wrapped(source, width)] for title, source in sources]
    height = max(map(len, columns))
    columns = [column + [""] * (height - len(column)) for column in columns]
    return [" | ".join(f"{cell:{width}}" for cell in row).rstrip() for row in zip(*columns)]


def _wrapped(source, width):
    """Lines of source; what is longer goes on in the next line, indented further."""
    lines = []
    for line in source.rstrip().split("\n"):
        indent = line[: len(line) - len(line.lstrip())] + "        "
        lines += textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False) or [""]
    return lines
