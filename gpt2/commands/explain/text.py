"""An explained layer as text for a terminal."""

from gpt2 import cli
from gpt2.commands.explain.parts import Explained


def text(explained: Explained, width: int, emitted: bool = False) -> str:
    """Forward, manual and derived side by side if `width` characters allow, then checks and stages."""
    derived = explained.emitted if emitted else explained.derived
    sources = [
        ("forward", explained.forward),
        ("backward, by hand", explained.manual),
        ("derived by the compiler", derived),
    ]
    narrow = width < cli.WIDE // 2
    notes = [
        line for fact in facts(explained) for line in (cli.wrapped(fact, width - 1) if narrow else [fact])
    ]
    head = cli.wrapped(f"{explained.name}: {explained.about}", width - 1)
    lines = [*head, "", *cli.side_by_side(sources, width), "", *notes, ""]
    for title, body in explained.stages:
        lines += [f"# {title}", "", *(cli.wrapped(body, width - 1) if narrow else [body]), ""]
    return "\n".join(lines[:-1])


def kept_text(by_hand: int | None, derived: int) -> str:
    """The bytes that each of the two keeps, as text."""
    if by_hand is None:
        return f"{derived:,} bytes by the compiler"
    return f"{by_hand:,} bytes by hand, {derived:,} by the compiler"


def facts(explained: Explained) -> list[str]:
    """Lines about the compiled shapes, what is kept, and how far the gradients are apart."""
    by_hand, derived = explained.kept
    worst = max(error for error, _ in explained.errors.values())
    holds = all(error <= tolerance for error, tolerance in explained.errors.values())
    return [
        "compiled for    " + ", ".join(f"{name} {kind}" for name, kind in explained.shapes.items()),
        f"kept            {kept_text(by_hand, derived)}, besides the inputs",
        f"agreement       {'holds' if holds else 'DOES NOT HOLD'}: scaled error at most {worst:.1e} among "
        f"{len(explained.errors)} comparisons in float64",
        *(
            f"                {error:.1e} {name}"
            + ("" if error <= tolerance else f", more than {tolerance:g}")
            for name, (error, tolerance) in explained.errors.items()
        ),
    ]
