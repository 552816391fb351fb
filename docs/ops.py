"""The computed cells of docs/ops.md: `python -m docs.ops`.

The page is written by hand, with what each op computes. From the table of ops come all elementwise rows, and
the example and dtypes of any other row, "| op | what it computes | | |". A test compares the page with what
this makes, and another holds printed graphs to the page's grammar.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np

import gpt2.autodiff.custom.custom
import gpt2.autodiff.loops.map_op
import gpt2.autodiff.loops.scan_op
import gpt2.autodiff.loops.while_op
import gpt2.autodiff.random.sampling  # noqa: F401  all rows are in the table then
from gpt2.autodiff.graph import Node, attr_text, type_text
from gpt2.autodiff.ops import OPS, Op, apply, const, input_node
from tests.support.calls.op_samples import OpSample, samples_of

PAGE = Path(__file__).with_suffix(".md")
ELEMENTWISE = "| ops | dtypes |\n|---|---|\n"
TRIED = ("bool", "int64", "float32", "float64", "complex64", "complex128")


def page() -> str:
    before, head, after = PAGE.read_text(encoding="utf-8").partition(ELEMENTWISE)
    rest = after[after.index("\n\n") + 1 :]
    return (
        before + head + elementwise_rows() + re.sub(r"^\|.*\|$", lambda line: row(line[0]), rest, flags=re.M)
    )


def elementwise_rows() -> str:
    """A line for all ops that treat dtypes alike."""
    alike: dict[str, list[str]] = {}
    for name, op in sorted(OPS.items()):
        if op.needs is None and (op.ufunc is not None or op.kind == "elementwise"):
            alike.setdefault(dtypes(op, shapes_of(samples_of(name)[0]), {}), []).append(name)
    return "".join(f"| {', '.join(names)} | {types} |\n" for types, names in alike.items())


def row(line: str) -> str:
    """A row of the page with its last two cells as they are today."""
    title, computes, *_ = (cell.strip() for cell in line.strip("|").split("|"))
    op = OPS.get(title.partition("(")[0])
    if op is None:  # the head of a table
        return line
    example = types = ""
    if samples := samples_of(op.name):
        first = samples[0]
        example, types = f"`{example_text(op, first)}`", dtypes(op, shapes_of(first), first.attrs)
    else:
        title = f"{op.name}({signature(op)})"
    return f"| {title} | {computes} | {example} | {types} |"


def signature(op: Op) -> str:
    """The arguments and the attributes of an op that has no samples, as its row's `infer` takes them."""
    return ", ".join(str(p).split(":")[0] for p in inspect.signature(op.infer).parameters.values())


def shapes_of(sample: OpSample) -> list:
    """A sample's arguments: shapes, and arrays where it gives them beside others."""
    rng = np.random.default_rng(0)
    found = [arg(rng, sample.dtypes[0]).shape if callable(arg) else arg for arg in sample.args]
    return [a.shape for a in found] if all(isinstance(a, np.ndarray) for a in found) else found


def nodes_of(args: list, dtype: str) -> list:
    """Inputs of these shapes in the dtype; arrays keep their own."""
    return [const(a) if isinstance(a, np.ndarray) else input_node(a, dtype) for a in args]


def example_text(op: Op, sample: OpSample) -> str:
    """A sample as a line of a graph, with types in place of names: `f64[2,3], axes=(0,) → f64[3]`."""
    args = nodes_of(shapes_of(sample), sample.dtypes[0])
    attrs = [f"{name}={attr_text(value)}" for name, value in sample.attrs.items()]
    result = type_text(apply(op.name, *args, **sample.attrs))
    return f"{', '.join([*(type_text(a) for a in args), *attrs])} → {result}"


def dtypes(op: Op, args: list, attrs: dict[str, Any]) -> str:
    """What becomes of each dtype that was tried: `f32 f64 i64→f64`."""
    found = {}
    for dtype in TRIED:
        nodes = nodes_of(args, dtype)
        try:
            result = apply(op.name, *nodes, **attrs)
            computed(op, nodes, attrs)
        except (TypeError, ValueError, np.linalg.LinAlgError):
            continue
        found[short(input_node((), dtype))] = short(result)
    if len(found) == len(TRIED) and len(set(found.values())) == 1:
        return f"any→{found['f64']}"
    kept = [given for given, result in found.items() if result == given]
    return " ".join([*kept, *(f"{given}→{result}" for given, result in found.items() if result != given)])


def short(node: Node) -> str:
    """A node's dtype as graphs print it, or those of its several results."""
    return re.sub(r"\[[\d,]*\]", "", type_text(node))


def computed(op: Op, nodes: list, attrs: dict[str, Any]) -> Any:
    """The op on ones, or on identity matrices. Raises where NumPy has no such function for the dtype."""
    with np.errstate(all="ignore"):
        return op.evaluate(*map(ones, nodes), **attrs)


def ones(node: Node) -> np.ndarray:
    if node.op == "const":
        return node.value
    square = node.ndim > 1 and node.shape[-1] == node.shape[-2]
    value = np.eye(node.shape[-1]) if square else np.ones(())
    return np.array(np.broadcast_to(value, node.shape), node.dtype)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
