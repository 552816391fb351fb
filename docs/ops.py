"""The page docs/ops.md, made from the table of ops: `python -m docs.ops`.

A test compares the page with what this prints, and holds printed graphs to the grammar.
"""

from __future__ import annotations

import inspect
import re
import string
from collections.abc import Callable, Iterator
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
from tests.support.op_samples import OpSample, samples_of

ROOT = Path(__file__).resolve().parents[1]
GRAMMAR = """\
graph     = head {node} return
head      = name "(" [input {", " input}] ")" newline
input     = name ": " type
node      = "  " name ": " (type | several) " = " op "(" [part {", " part}] ")" newline
return    = "  return " [argument {", " argument}]
part      = attribute | argument
attribute = name "=" value
argument  = number | name
type      = dtype "[" [length {"," length}] "]"
several   = "(" [type {", " type}] ")"
dtype     = "bool" | "i8" | "i16" | "i32" | "i64" | "u8" | "u16" | "u32" | "u64"
          | "f16" | "f32" | "f64" | "c64" | "c128"
number    = "True" | "False" | /[-+]?(nan|inf|[0-9][-+.\\w]*)/ | /[(]\\S+[)]/
name      = /[^\\s():,=\\[\\]]+/
op        = /[a-z]\\w*/
value     = /\\S+/
length    = /[0-9]+/
newline   = /\\n/
"""

HEAD = """\
# The graph and its ops

Read a printed graph, and look up what each op in it computes and which types it takes.

Made by `python -m docs.ops`. A test fails when this page is out of date, and another reads
printed graphs by the grammar below.

This is the language between the stages of the compiler: what recording makes, what derivatives and passes
turn into more of the same, and what is written out as NumPy in the end. docs/compiler.md follows one program
through it; how each op is differentiated stands in docs/coverage.md.

## Graphs

A graph has inputs, nodes in an order in which each comes after its arguments, and outputs. A node is an op
on earlier nodes, with attributes that are known when the program is made, and a type: a shape and a dtype. No
node is ever changed; a pass makes a new graph. `print(graph)` and `ad.stages` show one line a node:

    loss(w: f32[3,4], x: f32[2,3])
      t1: f32[2,4] = matmul(x, w)
      hidden: f32[2,4] = tanh(t1)
      t2: f32[] = sum(hidden, axes=(0,1), keepdims=False)
      return t2

The text follows this grammar, in which `{...}` stands for any number of times, `[...]` for once or not at
all, and `/.../` for a regular expression:

"""

RULES = """\

What the grammar does not say:

- Every value has one name, and a name stands for one value: the user's variable where there is one, numbered
  when it is taken, else `t1`, `t2`, ...
- An argument is the name of an earlier node or of an input, or a constant of no axes, written as its number.
  A constant with axes is a node of its own, `const()`, whose numbers are not printed.
- A type is the dtype of NumPy's result and its shape: `f32[2,3]`, and `f32[]` for a single number. An op with
  several results has several types in parentheses, and `item` takes it apart.
- An attribute is a Python value without spaces; of a function or of a graph inside it, the name.
- `gpt2/autodiff/ops/interpret.py` holds a graph to its types: each node's is what its op infers from those of
  its arguments.

Dtypes follow NumPy 2: a Python number takes the dtype of what it stands beside, so `2.0 * x` stays f32 for an
x of f32. In the tables below, `f32` alone says that f32 arguments give f32, `i64→f64` that i64 arguments give
f64, and `any→bool` that all of bool, i64, f32, f64, c64 and c128 give bool. These six were tried; those that
NumPy refuses are not listed.
"""

ELEMENTWISE = """\
## Element by element

NumPy's ufuncs, and a few of the same kind. Arguments broadcast, and the result has the shape that they
broadcast to: `add` of f32[2,1,3] and f32[4,1] is f32[2,4,3]. Each means what NumPy's function of that name
means.
"""

OTHERS = {
    "Linear in their arguments": ("linear", "multilinear"),
    "Neither linear nor element by element": ("nonlinear",),
    "Piecewise constant": ("nondiff",),
    "With a rule of their own": ("structural",),
}

# What each op outside NumPy's ufuncs computes
MEANING = {
    "all": "whether all are true along `axes`",
    "angle": "the angle of a complex number",
    "any": "whether any is true along `axes`",
    "argmax": "where the largest stands along `axis`",
    "argmin": "where the smallest stands along `axis`",
    "argpartition": "the order that puts the `kth` smallest in its place along `axis`",
    "argsort": "the order that sorts along `axis`",
    "assemble": "zeros of `shape`, with each part added at its index: one (start, stop, step) an axis",
    "broadcast": "x stretched to `shape`",
    "call": "the outputs of `graph` on these arguments; `rule` says how it is differentiated",
    "cast": "x in another dtype",
    "cholesky": "the lower triangle L with L Lᴴ = x, matrix by matrix",
    "collect": "zeros with result items[k] of each `stretch` added at indices[k]",
    "copy": "x in memory of its own",
    "cumprod": "running products along `axis`",
    "cumsum": "running sums along `axis`; with `reverse` the sums from here to the end",
    "det": "determinants of matrices",
    "eig": "eigenvalues and eigenvectors, complex in general",
    "eigh": "eigenvalues and eigenvectors of the Hermitian matrix in one triangle of x",
    "einsum": "a sum of products by Einstein's convention, the output written out",
    "fft": "a Fourier transform along `axis`: `kind` is fft, ifft, rfft or irfft",
    "fused": "many elementwise ops as one text for numexpr: made while source is written, never recorded",
    "gamma_sample": "z, drawn from a gamma distribution of shape a, as a function of a at fixed chance",
    "gamma_slope": "how far such a z moves with a",
    "gather": "x at an index with arrays; `spec` says what stands in each position of the index",
    "host": "a Python function that is called as it is, with results of these shapes and dtypes",
    "imag": "the imaginary part",
    "inv": "inverses of matrices",
    "item": "result `i` of an op with several",
    "map": "`body` on the `n` slices of the first `slices` arguments; the last `sums` results added up",
    "matmul": "products of matrices; leading axes broadcast",
    "max": "the largest along `axes`",
    "min": "the smallest along `axes`",
    "pinv": "pseudoinverses of matrices",
    "prod": "products along `axes`",
    "qr": "an orthogonal and an upper triangular factor",
    "real": "the real part",
    "reshape": "the same numbers in another shape",
    "in_order": "a copy of a vector; an error where it is not sorted",
    "round_decimal": "x rounded to `decimals` places, as NumPy rounds",
    "row_product": "xᵀ y, added up over blocks of rows: the emitter puts it in the place of small products",
    "scan": "`body` step after step: carries, `slices` arrays step by step, constants; "
    "every `every`-th carry is kept for the derivative",
    "scatter": "x with v written at an index with arrays",
    "scatter_add": "x with v added at an index with arrays, as often as it stands there",
    "scatter_along_add": "x with v added at positions along `axis`",
    "searchsorted": "where v belongs in the sorted a",
    "share_among": "g at the `chosen` elements, in equal shares along `axes` where there are several, "
    "nan where the extreme is; zero at the others",
    "sinc": "sin(πx) / (πx)",
    "slice": "part of x: one (start, stop, step) an axis",
    "slogdet": "sign and logarithm of determinants",
    "solve": "the x of a x = b, matrix by matrix",
    "solve_triangular": "the x of a x = b for the lower or the upper triangle of a, the other not read",
    "stop_gradient": "x, through which no derivative leads",
    "stretch": "the outputs of `body` on these arguments; a program has many calls of it (docs/compiler.md). "
    "Of one that computes gradients `of` is the body that is differentiated. Of an argument it is given the "
    "part (axis, start, stop) that `cuts` has for it, or all",
    "substitute": "`solve_triangular` from the inverses of the blocks: made while source is written",
    "sum": "sums along `axes`",
    "sum_as_numpy": "`sum` in the order in which NumPy adds up, which the emitter puts in its place",
    "svd": "singular vectors and values",
    "t_sample": "z, drawn from Student's distribution with a degrees of freedom, as a function of a",
    "t_slope": "how far such a z moves with a",
    "take_along": "x at positions along `axis`",
    "transpose": "axes in another order",
    "triangle_inverses": "inverses of the blocks on the diagonal of a triangle, for `substitute`",
    "update": "x with the part at `index` replaced by v",
    "while_loop": "`body` as long as `test` holds; at most `keep` carries are kept for the derivative; "
    "more than `limit` steps are an error",
    "while_loop_back": "the gradients of a while_loop, from its last step to its first",
    "where": "a where c is true, else b",
}

TRIED = ("bool", "int64", "float32", "float64", "complex64", "complex128")


def page() -> str:
    grammar = "".join(f"    {line}\n" for line in GRAMMAR.splitlines())
    parts = [HEAD + grammar + RULES, ELEMENTWISE + "\n" + elementwise_table()]
    for title, kinds in OTHERS.items():
        rows = {
            name: op
            for name, op in sorted(OPS.items())
            if op.kind in kinds and op.ufunc is None and op.needs is None
        }
        parts.append(f"## {title}\n\n{other_table(rows)}")
    return "\n".join(parts)


def elementwise_table() -> str:
    lines = ["| op | NumPy | dtypes |", "|---|---|---|"]
    for name, op in sorted(OPS.items()):
        if op.needs is None and (op.ufunc is not None or op.kind == "elementwise"):
            first = samples_of(name)[0]
            lines.append(f"| {name} | `{code(op, first)}` | {dtypes(op, shapes_of(first), {})} |")
    return "\n".join(lines) + "\n"


def other_table(rows: dict[str, Op]) -> str:
    lines = ["| op | computes | for example | dtypes |", "|---|---|---|---|"]
    for name, op in rows.items():
        example = types = ""
        if samples := samples_of(name):
            first = samples[0]
            example, types = f"`{example_text(op, first)}`", dtypes(op, shapes_of(first), first.attrs)
        title = name if samples else f"{name}({signature(op)})"
        lines.append(f"| {title} | {MEANING[name]} | {example} | {types} |")
    return "\n".join(lines) + "\n"


def signature(op: Op) -> str:
    """The arguments and the attributes of an op that has no samples, as its row's `infer` takes them."""
    return ", ".join(str(p).split(":")[0] for p in inspect.signature(op.infer).parameters.values())


def names_of(op: Op, count: int) -> list[str]:
    """The names that the row gives its arguments; a, b, c, ... for a ufunc or for any number of them."""
    parameters = list(inspect.signature(op.infer).parameters.values())[:count]
    if len(parameters) < count or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return list("xyz"[:count] if count < 4 else string.ascii_lowercase[:count])
    return [p.name for p in parameters]


def code(op: Op, sample: OpSample) -> str:
    """How emitted source spells the op on its sample."""
    return op.code(*names_of(op, len(sample.args)), **sample.attrs)


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


# ---- The grammar as a regular expression, which tests hold printed graphs to -----------------------------


def grammar(start: str = "graph") -> re.Pattern:
    """GRAMMAR as one regular expression: it is not recursive, so each rule can be put where it is named."""
    joined = re.sub(r"\n\s+\|", " |", GRAMMAR)
    rules = dict(line.split(" = ", 1) for line in re.sub(r" +=", " =", joined).splitlines())
    return re.compile(_expression(rules, start))


TOKEN = re.compile(r'\s*(?:"([^"]*)"|/([^/]+)/|(\w+)|([][(){}|]))')
OPENED = {"(": "(?:", "[": "(?:", "{": "(?:"}
CLOSED = {")": ")", "]": ")?", "}": ")*"}


def _expression(rules: dict[str, str], name: str) -> str:
    return "(?:" + "".join(_tokens(rules[name], lambda other: _expression(rules, other))) + ")"


def _tokens(rule: str, of_rule: Callable[[str], str]) -> Iterator[str]:
    at = 0
    while at < len(rule.rstrip()):
        match = TOKEN.match(rule, at)
        if match is None:
            raise ValueError(f"the grammar cannot be read from {rule[at:]!r}")
        text, pattern, name, sign = match.groups()
        if name is not None:
            yield of_rule(name)
        elif sign is not None:
            yield OPENED.get(sign) or CLOSED.get(sign) or "|"
        else:
            yield f"(?:{pattern})" if text is None else re.escape(text)
        at = match.end()


if __name__ == "__main__":
    Path(__file__).with_suffix(".md").write_text(page(), encoding="utf-8")
