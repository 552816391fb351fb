"""The lists of docs/coverage.md: `python -m docs.coverage`.

The page is written by hand, with the functions that have no rule and why. The lists of those that have one
come from the tables. Tests compare the page with what this makes, look for every function of NumPy on it, and
check the derivative of every function that it lists.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np

from gpt2.autodiff.custom import custom  # noqa: F401  all rows are in the table then
from gpt2.autodiff.ops import OPS
from gpt2.autodiff.random import sampling  # noqa: F401  with those of random draws
from gpt2.autodiff.record import dispatch
from tests.support.calls.op_samples import samples_of

PAGE = Path(__file__).with_suffix(".md")
SECTIONS = {
    "linalg": "Linear algebra",
    "fft": "Fourier transforms",
    "emath": "Real functions that become complex",
}


def page() -> str:
    """The page with the last paragraph of each of its lists as it is today."""
    text = PAGE.read_text(encoding="utf-8")
    lists = {**supported_functions(), "Complex numbers": complex_ops(), "Piecewise constant": constant_ops()}
    for title, names in lists.items():
        part = re.search(rf"^### {title}\n\n(?:[A-Z].*\n\n)?((?:.+\n)+)", text, re.M)
        text = text[: part.start(1)] + paragraph(names) + text[part.end(1) :]
    return text


def paragraph(names: list[str]) -> str:
    wrapped = textwrap.wrap(", ".join(names), 118, break_on_hyphens=False, break_long_words=False)
    return "\n".join(wrapped) + "\n"


def complex_ops() -> list[str]:
    """Those that are differentiated and have complex samples."""
    skipped = ("nondiff", "structural")
    names = (name for name, op in OPS.items() if op.needs is None and op.kind not in skipped)
    return sorted(n for n in names if any("complex128" in sample.dtypes for sample in samples_of(n)))


def constant_ops() -> list[str]:
    return sorted(name for name, op in OPS.items() if op.kind == "nondiff")


def supported_functions() -> dict[str, list[str]]:
    """Section -> names of the NumPy functions that are recorded."""
    names = {dispatch.full_name(f) for f in dispatch.recorded_functions()}
    names = {name for name in names if not name.startswith("np.polynomial.")}  # the page has a line for it
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
    ufuncs = (name for name in built if isinstance(getattr(np, name, None), np.ufunc))
    return ["divmod", "frexp", "modf", *ufuncs]


def without_rule() -> dict[str, object]:
    """The public functions of NumPy's that no handler records."""
    known = dispatch.recorded_functions()
    ufuncs = {*OPS, *composed_ufuncs()}
    return {
        name: function
        for name, function in public_functions()
        if (function.__name__ not in ufuncs if isinstance(function, np.ufunc) else function not in known)
    }


def public_functions() -> Iterator[tuple[str, object]]:
    """(name, function) of all that NumPy offers, its modules np.linalg, np.fft and np.emath included."""
    modules = {"np.": np, "np.linalg.": np.linalg, "np.fft.": np.fft, "np.emath.": np.emath}
    for prefix, module in modules.items():
        for name in module.__all__:
            value = getattr(module, name, None)
            if callable(value) and not isinstance(value, type):
                yield prefix + name, value


def public_modules() -> Iterator[str]:
    """Those modules of NumPy's that are named in it, but for these three."""
    for name in np.__all__:
        value = getattr(np, name, None)
        if isinstance(value, ModuleType) and value not in (np.linalg, np.fft, np.emath):
            yield f"np.{name}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
