"""docs/ops.md: it is up to date, the dtypes it lists are NumPy's, and printed graphs follow its grammar."""

import re
import textwrap

import numpy as np
import pytest

from docs import ops as page
from gpt2 import autodiff as ad
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import OPS, apply, build, const, input_node
from gpt2.commands.explain.parts import split
from tests.support.calls.op_samples import samples_of
from tests.support.random.graphs import RING, random_graph

TEXT = page.PAGE.read_text(encoding="utf-8")
HERE = {name for name, op in OPS.items() if op.needs is None}  # the page is about NumPy's
NAMES = sorted(name for name in HERE if samples_of(name))


def listed(text):
    """The ops that have a line in a table of the page."""
    first = re.findall(r"^\| ([\w, ]+)", text, re.M)
    return [name for cell in first for name in cell.strip().split(", ") if name not in ("op", "ops")]


def test_the_page_is_up_to_date():
    assert page.page() == TEXT, "run: python -m docs.ops"


def test_every_op_has_one_line():
    assert sorted(listed(TEXT)) == sorted(HERE)


KINDS = {
    "Linear in their arguments": {"linear", "multilinear"},
    "Neither linear nor element by element": {"nonlinear"},
    "Piecewise constant": {"nondiff"},
    "With a rule of their own": {"structural"},
}


@pytest.mark.parametrize("title", KINDS)
def test_each_stands_in_the_table_of_its_kind_with_what_it_computes(title):
    (part,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S)
    assert {OPS[name].kind for name in listed(part)} <= KINDS[title]
    assert not re.search(r"^\| [^|]* \| +\|", part, re.M)


@pytest.mark.parametrize("name", NAMES)
def test_types_are_those_of_numpy(name):
    """In every dtype of the page; the samples themselves have two at most."""
    op, first = OPS[name], samples_of(name)[0]
    for dtype in page.TRIED:
        nodes = page.nodes_of(page.shapes_of(first), dtype)
        try:
            inferred = apply(name, *nodes, **first.attrs).dtype
            result = page.computed(op, nodes, first.attrs)
        except (TypeError, ValueError, np.linalg.LinAlgError):
            continue
        several = isinstance(inferred, tuple)
        actual = tuple(np.asarray(r).dtype for r in result) if several else np.asarray(result).dtype
        assert actual == inferred, f"{name}: infer says {inferred}, evaluate gives {actual} for {dtype}"


# ---- The grammar as a regular expression -----------------------------------------------------------------


def grammar(text):
    """It is not recursive, so each rule can be put where it is named."""
    joined = re.sub(r"\n\s+\|", " |", text)
    rules = dict(line.split(" = ", 1) for line in re.sub(r" +=", " =", joined).splitlines())
    return re.compile(expression(rules, "graph"))


TOKEN = re.compile(r'\s*(?:"([^"]*)"|/([^/]+)/|(\w+)|([][(){}|]))')
SIGNS = {"(": "(?:", "[": "(?:", "{": "(?:", ")": ")", "]": ")?", "}": ")*", "|": "|"}


def expression(rules, name):
    rule, parts, at = rules[name].rstrip(), [], 0
    while at < len(rule):
        match = TOKEN.match(rule, at)
        if match is None:
            raise ValueError(f"the grammar cannot be read from {rule[at:]!r}")
        text, pattern, other, sign = match.groups()
        if other is not None:
            parts.append(expression(rules, other))
        elif sign is not None:
            parts.append(SIGNS[sign])
        else:
            parts.append(f"(?:{pattern})" if text is None else re.escape(text))
        at = match.end()
    return f"(?:{''.join(parts)})"


GRAMMAR = grammar(textwrap.dedent(re.search(r"(^    graph +=.*?\n)\n", TEXT, re.M | re.S)[1]))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("dtype", ["float64", "complex64", "int64"])
def test_random_graphs_match_the_grammar(seed, dtype):
    makers = None if dtype == "float64" else RING
    text = str(random_graph(np.random.default_rng(seed), dtype=dtype, makers=makers))
    assert GRAMMAR.fullmatch(text), text


def test_tuples_and_special_constants_match_the_grammar():
    x = input_node((3, 3), "complex128", "x")
    pair = apply("eigh", x, uplo="L")
    one = apply("multiply", build.item(pair, 0), const(float("-inf"), "float64"))
    two = apply("multiply", x, const(complex(-0.0, float("nan")), "complex128"))
    table = const(np.arange(6.0).reshape(2, 3))
    total = apply("sum", table, axes=(0,), keepdims=True)
    text = str(Graph([x], [pair.args[0], one, apply("add", two, 1e-300), total]))
    assert GRAMMAR.fullmatch(text), text
    assert "(f64[3], c128[3,3]) = eigh(x, uplo='L')" in text and "= const()" in text


def test_stages_of_a_program_match_the_grammar():
    def loss(w, x):
        def step(carry, row):
            return np.tanh(carry @ w) + row, np.sum(carry)

        last, sums = ad.scan(step, x[0], x)
        return np.sum(last) + np.sum(np.where(sums > 0.0, sums, 2j * 1j * sums).real)

    rng = np.random.default_rng(0)
    text = ad.stages(loss, rng.standard_normal((3, 3)), rng.standard_normal((4, 3)))
    graphs = [body for title, body in split(text) if "emitted" not in title]
    assert len(graphs) >= 4
    for body in graphs:
        assert GRAMMAR.fullmatch(body.strip("\n")), body


@pytest.mark.parametrize(
    "text",
    [
        "f(x: f64[2])",
        "f(x: f64[2])\n  return x\n",
        "f(x: f65[2])\n  return x",
        "f(x: f64[2,])\n  return x",
        "f(x f64[2])\n  return x",
        "f(x: f64[2])\n  y: f64[2] = tanh(x\n  return y",
        "f(x: f64[2])\n  y: f64[2] = (x)\n  return y",
        "f(x: f64[2])\n  y = tanh(x)\n  return y",
    ],
)
def test_malformed_graphs_do_not_match_the_grammar(text):
    assert GRAMMAR.fullmatch("f(x: f64[2])\n  return x") and not GRAMMAR.fullmatch(text)


def test_a_grammar_that_cannot_be_read_says_where():
    with pytest.raises(ValueError, match="cannot be read from ' \\? \"b\"'"):
        grammar('graph = "a" ? "b"\n')
