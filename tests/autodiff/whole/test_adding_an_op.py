"""docs/adding-an-op.md does what it says: its code runs, and its rows pass the tests made from the table."""

import dataclasses
import re

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.check.numeric import GradientMismatch
from gpt2.autodiff.graph import GraphError
from gpt2.autodiff.ops import OPS, Op, apply, input_node
from gpt2.autodiff.record.record import apply_op
from tests import ROOT
from tests.autodiff.ops import test_ops_page, test_rules
from tests.support.calls.op_samples import SAMPLES, samples_of

TEXT = (ROOT / "docs" / "adding-an-op.md").read_text(encoding="utf-8")
ADDED = ("nextafter", "logistic")


@pytest.fixture
def page():
    """The names that the page's code defines; its rows are taken out of the table again."""
    namespace = {}
    try:
        for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
            exec(block, namespace)
        yield namespace
    finally:
        for name in ADDED:
            OPS.pop(name, None)
            SAMPLES.pop(name, None)


def test_the_page(page):
    assert "np.nextafter has no derivative rule" in page["message"]
    np.testing.assert_allclose(page["gradient"], [2.0, 6.0], rtol=1e-12)
    np.testing.assert_allclose(page["curvature"], 2 * np.eye(2), rtol=1e-12)
    assert page["slope"] == 0.25 and page["plain"] == 0.5
    assert ad.grad(lambda z: page["logistic"](z).imag)(1j) == pytest.approx(-0.5j / (1.0 + np.cos(1.0)))


def test_every_column_is_explained():
    named = {*re.findall(r"`(\w+)[`(=]", TEXT), *re.findall(r"^    (\w+)=", TEXT, re.M)}
    assert {field.name for field in dataclasses.fields(Op)} - {"name", "kind"} - named == set()


def test_the_page_lists_and_counts_the_tests_of_an_op():
    tests = {name: test for name, test in vars(test_rules).items() if name.startswith("test_")}
    of_ops = {name for name, test in tests.items() if getattr(test, "pytestmark", None)}
    assert {*re.findall(r"^- `(test_\w+)`", TEXT, re.M)} == of_ops
    assert f"{len(of_ops)} passed" in TEXT


@pytest.mark.parametrize("name", ADDED)
def test_the_tests_come_with_the_row(page, name):
    for sample in samples_of(name):
        for dtype in sample.dtypes:
            for test in ("test_derivatives", "test_types", "test_single_precision_stays", "test_source"):
                getattr(test_rules, test).case(name, sample, dtype)
    test_ops_page.test_types_are_those_of_numpy(name)


def test_a_wrong_row_fails_its_tests(page, monkeypatch):
    monkeypatch.setattr(OPS["nextafter"], "partials", lambda out, x, y: (2.0, None))
    sample = samples_of("nextafter")[0]
    with pytest.raises(GradientMismatch, match="nextafter: forward mode, tangent of output 0"):
        test_rules.test_derivatives.case("nextafter", sample, "float64")


def test_a_result_of_another_type_than_infer_says_is_an_error(page, monkeypatch):
    """Taken for real, a complex result would have a gradient without its imaginary part."""
    monkeypatch.setattr(OPS["logistic"], "infer", lambda x: (x.shape, np.dtype(float)))
    with pytest.raises(GraphError, match=r"op logistic: infer says f64\[2\], evaluate gives c128\[2\]"):
        ad.grad(lambda z: np.sum(page["logistic"](z).imag))(np.ones(2, complex))


@pytest.mark.parametrize("call", [lambda f: f(np.ones(2)), lambda f: ad.compile(f)(np.ones(2))])
@pytest.mark.parametrize("op, args, attrs, message", [
    ("tahn", 1, {}, "no op 'tahn' in the table; near it: tan, tanh"),
    ("qqq", 1, {}, "no op 'qqq' in the table$"),
    ("add", 1, {}, r"op add\(x1, x2\): missing a required argument: 'x2'"),
    ("tanh", 2, {}, r"op tanh\(x\): too many positional arguments"),
    ("tanh", 1, {"axis": 0}, r"op tanh\(x\): got an unexpected keyword argument 'axis'"),
    ("reshape", 1, {}, r"op reshape\(x, shape\): missing a required argument: 'shape'"),
])  # fmt: skip
def test_a_call_that_no_op_takes(op, args, attrs, message, call):
    with pytest.raises((ValueError, TypeError), match=message):
        call(lambda x: apply_op(op, *[x] * args, **attrs))
    with pytest.raises((ValueError, TypeError), match=message):  # as a rule would write it
        apply(op, *[input_node((2,), "float64")] * args, **attrs)
