"""The page docs/coverage.md, made from the tables: `python -m docs.coverage > docs/coverage.md`.

A test compares the page with what this prints, and another checks the derivative of every function named
there.
"""

from __future__ import annotations

import textwrap

import numpy as np

from gpt2.autodiff.api import custom  # noqa: F401  all rows are in the table then
from gpt2.autodiff.nested import (
    call,  # noqa: F401  all rows are in the table then
    map,  # noqa: F401  all rows are in the table then
    scan,  # noqa: F401  all rows are in the table then
)
from gpt2.autodiff.ops import OPS, Op
from gpt2.autodiff.record import dispatch
from gpt2.autodiff.record.ufuncs import BUILDERS

HEAD = """\
# What is differentiated

Made by `python -m docs.coverage > docs/coverage.md`. A test fails when this page is out of date.

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

Tests take the samples from the op's row: forward mode against central differences, reverse mode against
forward mode, and the same again for both derivatives. *complex* says whether there are complex samples.
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
## NumPy functions without a derivative

On recorded values these give plain results where they hold no real or complex numbers (indices, masks), and
the recording is then repeated at each call. Otherwise they raise an error that shows how to register a rule.
"""


def page() -> str:
    parts = [HEAD, OPS_HEAD, op_table(), CONSTANT_HEAD, paragraph(constant_ops()), FUNCTIONS_HEAD]
    for title, names in supported_functions().items():
        parts.append(f"### {title}\n\n{paragraph(names)}")
    parts += [OTHERS_HEAD, paragraph(unsupported_functions())]
    return "\n".join(parts)


def op_table() -> str:
    rows = ["| op | rule | complex | samples |", "|---|---|---|---|"]
    for name, op in sorted(OPS.items()):
        if op.kind not in ("nondiff", "structural"):
            complex_ = "yes" if any("complex128" in s.dtypes for s in op.samples) else ""
            rows.append(f"| {name} | {rule_kind(op)} | {complex_} | {len(op.samples)} |")
    return "\n".join(rows) + "\n"


def rule_kind(op: Op) -> str:
    if op.name == "where" or op.kind in ("linear", "multilinear"):  # the transpose of where is in chain.py
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
    names = {dispatch.full_name(f) for f in (*dispatch.HANDLERS, *dispatch.RAW)}
    ops = {name for name, op in OPS.items() if op.ufunc is not None and op.kind != "nondiff"}
    ufuncs = {f"np.{name}" for name in (*ops, *composed_ufuncs())}
    sections = {"Ufuncs": ufuncs, "Arrays": set(), "Linear algebra": set(), "Fourier transforms": set()}
    for name in names - ufuncs:
        family = name.split(".")[1]
        section = {"linalg": "Linear algebra", "fft": "Fourier transforms"}.get(family, "Arrays")
        sections[section].add(name)
    return {title: sorted(found) for title, found in sections.items()}


def composed_ufuncs() -> list[str]:
    """Those that become several ops, or have several results."""
    return ["divmod", "modf", *(name for name in BUILDERS if isinstance(getattr(np, name, None), np.ufunc))]


def unsupported_functions() -> list[str]:
    """Functions that ask their arguments how to run (NumPy's protocols), and that have no handler."""
    known = {*dispatch.HANDLERS, *dispatch.RAW}
    ufuncs = {*OPS, *composed_ufuncs()}
    found = []
    for module in (np, np.linalg, np.fft):
        for name in module.__all__:
            function = getattr(module, name, None)
            if hasattr(function, "_implementation") and function not in known:
                found.append(dispatch.full_name(function))
            elif isinstance(function, np.ufunc) and function.__name__ not in ufuncs:
                found.append(f"np.{function.__name__}")
    return sorted(set(found))


if __name__ == "__main__":
    print(page(), end="")
