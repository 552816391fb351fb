"""Explained layers as text for a terminal, and as one page of HTML."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from html import escape

from gpt2 import autodiff as ad
from gpt2 import cli
from gpt2.backward import options_for
from gpt2.commands.explain.parts import Explained
from gpt2.commands.explain.subject import SIZES, subject

INTRO = """Each layer stands here three times: its forward, the backward written by hand, and the forward and
backward that the compiler wrote from the forward alone."""


def page(explained: Sequence[Explained]) -> str:
    """The page for a list of gpt2.commands.explain.parts.Explained."""
    names = [e.name for e in explained]
    title = f"{names[0]} and its backwards" if len(names) == 1 else "Layers and their backwards"
    return ad.Explanation([_section(e) for e in explained], title, INTRO).html


def explanation(name: str, file: str | None = None) -> ad.Explanation:
    """The Explanation of a layer, on an example of the sizes SIZES in double precision."""
    case = subject(name, SIZES, "float64", file)
    with ad.options(**asdict(options_for())):
        return ad.explain(case.layer.forward, *case.inputs(), backward=case.layer.backward, **case.static)


def _section(e: Explained):
    (section,) = explanation(e.name, e.file).sections
    emitted = [(title, text) for title, text in e.stages if title.endswith("emitted")]
    section = replace(section, name=e.name, about=e.about, mathematics=e.derivation)
    return replace(section, emitted=emitted, checks=partial(_checks, e))


def _checks(e: Explained) -> tuple[str, str]:
    holds = all(error <= tolerance for error, tolerance in e.errors.values())
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="number">{error:.1e}</td><td>'
        f"{'holds' if error <= tolerance else 'DOES NOT HOLD'}, {tolerance:.0e} allowed</td></tr>"
        for name, (error, tolerance) in e.errors.items()
    )
    shapes = escape(", ".join(f"{name} {kind}" for name, kind in e.shapes.items()))
    head = "<tr><th>compared, in float64</th><th>largest scaled error</th><th></th></tr>"
    kept = f"the forward keeps for the backward, besides the inputs: {kept_text(*e.kept)}"
    html = f"<table>{head}{rows}</table><p>At the sizes of a training step ({shapes}) {kept}.</p>"
    return f"Checks: the gradients {'agree' if holds else 'DO NOT AGREE'}", html


def text(explained: Explained, width: int, emitted: bool = False) -> str:
    """Forward, manual and derived side by side if `width` characters allow, then checks and stages."""
    derived = explained.emitted if emitted else explained.derived
    titles = ("forward", "backward, by hand", "derived by the compiler")
    sources = list(zip(titles, (explained.forward, explained.manual, derived)))

    def fitted(text: str) -> list[str]:
        return cli.wrapped(text, width - 1) if width < cli.WIDE // 2 else [text]

    head = cli.wrapped(f"{explained.name}: {explained.about}", width - 1)
    notes = [line for fact in facts(explained) for line in fitted(fact)]
    lines = [*head, "", *cli.side_by_side(sources, width), "", *notes, ""]
    for title, body in explained.stages:
        lines += [f"# {title}", "", *fitted(body), ""]
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
