"""What is given for a structure is matched with it: cotangents, tangents, buffers for the result."""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.tree import Leaf, flatten, matched, numbered


def refuse(path, expected, given):
    raise ValueError(f"{path}: {given!r}, expected {expected}")


def test_parts_and_their_paths():
    tree = flatten({"a": (1.0, 7), "b": [2.0]})[1]
    found = list(matched(numbered(tree), {"a": None, "b": (5,)}, refuse))
    assert [(x.index if isinstance(x, Leaf) else x, given, path) for x, given, path in found] == [
        (0, None, "['a'][0]"),
        (7, None, "['a'][1]"),
        (1, 5, "['b'][0]"),
    ]
    assert [x.index for x, *_ in matched(numbered(tree, [4, 9]), None, refuse) if isinstance(x, Leaf)] == [
        4,
        9,
    ]


@pytest.mark.parametrize(
    "given, said",
    [
        ({"a": (1.0, 2)}, "^: .* expected a dict with keys"),
        ({"a": (1.0,), "b": [2.0]}, r"^\['a'\]: \(1.0,\), expected a tuple of 2"),
        ({"a": (1.0, 2), "b": 3.0}, r"^\['b'\]: 3.0, expected a list of 1"),
    ],
)
def test_other_structures(given, said):
    with pytest.raises(ValueError, match=said):
        list(matched({"a": (1.0, 2), "b": [2.0]}, given, refuse))


def test_integers_beside_the_results_take_no_buffer():
    f = ad.compile(lambda x: {"double": 2.0 * x, "n": 3, "sum": (np.sum(x), None)})
    buffer = np.zeros(3)
    for out in ({"double": buffer, "n": 3, "sum": None}, {"double": buffer, "n": None, "sum": (None, None)}):
        for _ in range(2):
            got = f(np.ones(3), out=out)
            assert got["double"] is buffer and got["n"] == 3 and got["sum"] == (3.0, None)
            np.testing.assert_array_equal(buffer, 2.0)
            buffer[:] = 0.0
