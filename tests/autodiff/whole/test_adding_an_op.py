"""docs/adding-an-op.md does what it says: its code runs, and its rows pass the tests made from the table."""

import dataclasses
import os
import re

import numpy as np
import pytest

from gpt2.autodiff.check.numeric import GradientMismatch
from gpt2.autodiff.ops import OPS, Op
from tests.autodiff.ops import test_ops_page, test_rules
from tests.support.op_samples import SAMPLES, samples_of

PAGE = os.path.join(os.path.dirname(__file__), "..", "..", "..", "docs", "adding-an-op.md")
ADDED = ("nextafter", "softplus")


@pytest.fixture
def page():
    """The names that the page's code defines; its rows are taken out of the table again."""
    with open(PAGE) as f:
        blocks = re.findall(r"```python\n(.*?)```", f.read(), re.DOTALL)
    namespace = {}
    try:
        for block in blocks:
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
    assert page["slope"] == 0.5 and page["plain"] == np.log(2.0)


def test_every_column_is_explained():
    with open(PAGE) as f:
        text = f.read()
    named = {*re.findall(r"`(\w+)[`(=]", text), *re.findall(r"^    (\w+)=", text, re.M)}
    assert {field.name for field in dataclasses.fields(Op)} - {"name", "kind"} - named == set()


@pytest.mark.parametrize("name", ADDED)
def test_the_tests_come_with_the_row(page, name):
    for sample in samples_of(name):
        for dtype in sample.dtypes:
            test_rules.test_derivatives(name, sample, dtype)
            test_rules.test_types(name, sample, dtype)
            test_rules.test_single_precision_stays(name, sample, dtype)
            test_rules.test_source(name, sample, dtype)
    test_ops_page.test_types_are_those_of_numpy(name)


def test_a_wrong_row_fails_its_tests(page, monkeypatch):
    monkeypatch.setattr(OPS["nextafter"], "partials", lambda out, x, y: (2.0, None))
    sample = samples_of("nextafter")[0]
    with pytest.raises(GradientMismatch, match="nextafter: forward mode, tangent of output 0"):
        test_rules.test_derivatives("nextafter", sample, "float64")
