"""Matching of a value with a structure: cotangents, tangents and buffers; and deeply nested containers."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.tree import Leaf, flatten, matched, numbered


def refuse(path, expected, value):
    raise ValueError(f"{path}: {value!r}, expected {expected}")


def test_matched_yields_leaves_values_and_paths():
    tree = flatten({"a": (1.0, 7), "b": [2.0]})[1]
    parts = matched(numbered(tree), {"a": None, "b": (5,)}, refuse)
    assert [(x.index if isinstance(x, Leaf) else x, value, path) for x, value, path in parts] == [
        (0, None, "['a'][0]"),
        (7, None, "['a'][1]"),
        (1, 5, "['b'][0]"),
    ]
    parts = matched(numbered(tree, [4, 9]), None, refuse)
    assert [x.index for x, *_ in parts if isinstance(x, Leaf)] == [4, 9]


@pytest.mark.parametrize("value, error", [
    ({"a": (1.0, 2)}, "^: .* expected a dict with keys"),
    ({"a": (1.0,), "b": [2.0]}, r"^\['a'\]: \(1.0,\), expected a tuple of 2"),
    ({"a": (1.0, 2), "b": 3.0}, r"^\['b'\]: 3.0, expected a list of 1"),
])  # fmt: skip
def test_value_of_another_structure_is_refused(value, error):
    with pytest.raises(ValueError, match=error):
        list(matched({"a": (1.0, 2), "b": [2.0]}, value, refuse))


def test_static_results_take_no_buffer():
    f = ad.compile(lambda x: {"double": 2.0 * x, "n": 3, "sum": (np.sum(x), None)})
    buffer = np.zeros(3)
    for out in ({"double": buffer, "n": 3, "sum": None}, {"double": buffer, "n": None, "sum": (None, None)}):
        for _ in range(2):
            result = f(np.ones(3), out=out)
            assert result["double"] is buffer and result["n"] == 3 and result["sum"] == (3.0, None)
            np.testing.assert_array_equal(buffer, 2.0)
            buffer[:] = 0.0


@pytest.mark.parametrize("depth", [60, 70, 300, 5000])
def test_deeply_nested_lists(depth):
    """The right gradient, or one clear error beyond Python's recursion limit."""

    def nested(x):
        for _ in range(depth):
            x = [x]
        return x

    def innermost(x):
        while isinstance(x, list):
            x = x[0]
        return x

    def square(x):
        return innermost(x) ** 2

    x, g, c = nested(3.0), ad.grad(square), ad.compile(lambda x: nested(x * 2.0))
    calls = [
        lambda: innermost(g(x)),
        lambda: innermost(c(3.0)),
        lambda: ad.jvp(square, (x,), (nested(1.0),))[1],
        lambda: innermost(ad.vjp(square, x)[1](1.0)[0]),
    ]
    for call in calls * 3:
        if depth < 5000:
            assert call() == 6.0
        else:
            with pytest.raises(ad.AutodiffError, match="or is nested more deeply than Python's recursion"):
                call()
