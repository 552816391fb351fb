"""Explained layers as one page of HTML."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from html import escape

from gpt2 import autodiff as ad
from gpt2.backward import options_for
from gpt2.commands.explain.parts import Explained
from gpt2.commands.explain.subject import SIZES, subject
from gpt2.commands.explain.text import kept_text

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
    shapes = ", ".join(f"{name} {kind}" for name, kind in e.shapes.items())
    head = "<tr><th>compared, in float64</th><th>largest scaled error</th><th></th></tr>"
    kept = (
        f"<p>At the sizes of a training step ({escape(shapes)}) the forward keeps for the backward, besides "
        f"the inputs: {kept_text(*e.kept)}.</p>"
    )
    return (
        f"Checks: the gradients {'agree' if holds else 'DO NOT AGREE'}",
        f"<table>{head}{rows}</table>{kept}",
    )
