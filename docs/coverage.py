"""The page docs/coverage.md, made from the tables: `python -m docs.coverage`.

A test compares the page with what this prints, and another checks the derivative of every function named
there.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np

from docs.reasons import CLASSES, MODULES, REASONS, public_functions
from gpt2.autodiff.custom import custom  # noqa: F401  all rows are in the table then
from gpt2.autodiff.ops import OPS, Op
from gpt2.autodiff.random import sampling  # noqa: F401  with those of random draws
from gpt2.autodiff.record import dispatch
from tests.support.op_samples import samples_of

HEAD = """\
# What is differentiated

Check whether a NumPy function can be differentiated before you build on it.

Made by `python -m docs.coverage`. A test fails when this page is out of date.

Everything below works in reverse and in forward mode, in any nesting of them, and to any order. What is not
listed raises an error with the line of your function that called it; nothing gives a zero gradient silently.
"""

OPS_HEAD = """\
## Ops

Every recorded NumPy call becomes a few of these. One rule an op serves both modes:

- *partials*: elementwise, d out / d argument
- *transpose*: linear in its arguments, one by one
- *tangent*: written forward, transposed by the compiler
- *both*: written in both directions

Tests take the arguments in tests/support/op_samples.py: forward mode against central differences, reverse
mode against forward mode, and the same again for both derivatives. *complex* says whether there are complex
samples.
"""

CONSTANT_HEAD = """\
## Piecewise constant ops

Their derivative is zero wherever there is one, so no gradient flows through them.
"""

FUNCTIONS_HEAD = """\
## NumPy functions

Ufuncs also with `out=` and `where=`; operators, methods and indexing of arrays as well.
"""

OTHERS_HEAD = """\
## NumPy functions without a rule, and why

On recorded values those with integers, masks or text for a result give plain ones, and the recording is then
repeated at each call. The others raise an error that shows how to register a rule. A test fails where NumPy
has a public function that is neither above nor here.
"""


SECTIONS = {
    "linalg": "Linear algebra",
    "fft": "Fourier transforms",
    "emath": "Real functions that become complex",
}


def page() -> str:
    parts = [HEAD, OPS_HEAD, op_table(), CONSTANT_HEAD, paragraph(constant_ops()), FUNCTIONS_HEAD]
    for title, names in supported_functions().items():
        parts.append(f"### {title}\n\n{paragraph(names)}")
    parts += [OTHERS_HEAD, reason_table()]
    parts += ["### Its other modules, and classes that are called\n", module_table()]
    return "\n".join(parts)


def reason_table() -> str:
    rows = ["| functions | why |", "|---|---|"]
    for reason, names in REASONS.items():
        there = [name for name in sorted(names.split()) if f"np.{name}" in without_rule()]
        if there:
            rows.append(f"| {', '.join(f'np.{name}' for name in there)} | {reason} |")
    return "\n".join(rows) + "\n"


def module_table() -> str:
    rows = ["| module or class | what about it |", "|---|---|"]
    rows += [f"| {name} | {text} |" for name, text in {**MODULES, **CLASSES}.items()]
    return "\n".join(rows) + "\n"


def op_table() -> str:
    rows = ["| op | rule | complex | samples |", "|---|---|---|---|"]
    for name, op in sorted(OPS.items()):
        if op.needs is None and op.kind not in ("nondiff", "structural"):
            complex_ = "yes" if any("complex128" in s.dtypes for s in samples_of(name)) else ""
            rows.append(f"| {name} | {rule_kind(op)} | {complex_} | {len(samples_of(name))} |")
    return "\n".join(rows) + "\n"


def rule_kind(op: Op) -> str:
    if op.name == "where" or op.kind in (
        "linear",
        "multilinear",
    ):  # where's is in chain_rule.py
        return "transpose"
    if op.jvp is not None:
        return "both" if op.transpose is not None else "tangent"
    return "partials"


def constant_ops() -> list[str]:
    return sorted(name for name, op in OPS.items() if op.kind == "nondiff")


def paragraph(names) -> str:
    text = ", ".join(names)
    return "\n".join(textwrap.wrap(text, 100, break_on_hyphens=False, break_long_words=False)) + "\n"


def supported_functions() -> dict[str, list[str]]:
    """Section -> names of the NumPy functions that are recorded."""
    names = {dispatch.full_name(f) for f in dispatch.recorded_functions()}
    names = {name for name in names if not name.startswith("np.polynomial.")}  # MODULES speaks of them
    ops = {name for name, op in OPS.items() if op.ufunc is not None and op.kind != "nondiff"}
    ufuncs = {f"np.{name}" for name in (*ops, *composed_ufuncs())}
    sections = {"Ufuncs": ufuncs, "Arrays": set(), **{title: set() for title in SECTIONS.values()}}
    for name in names - ufuncs:
        family = name.split(".")[1]
        section = SECTIONS.get(family, "Arrays")
        sections[section].add(name)
    return {title: sorted(found) for title, found in sections.items()}


def composed_ufuncs() -> list[str]:
    """Those that become several ops, or have several results."""
    built = (f.__name__ for f, entry in dispatch.TABLE.items() if entry.nodes)
    return ["divmod", "modf", *(name for name in built if isinstance(getattr(np, name, None), np.ufunc))]


def without_rule() -> dict[str, object]:
    """The public functions of NumPy's that no handler records."""
    known = dispatch.recorded_functions()
    ufuncs = {*OPS, *composed_ufuncs()}
    return {
        name: function
        for name, function in public_functions()
        if (function.__name__ not in ufuncs if isinstance(function, np.ufunc) else function not in known)
    }


if __name__ == "__main__":
    Path(__file__).with_suffix(".md").write_text(page(), encoding="utf-8")
