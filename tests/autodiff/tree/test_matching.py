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


@pytest.mark.parametrize("depth", [60, 70, 300, 5000])
def test_containers_in_containers(depth):
    """However deep: the gradient of it, or an error in one line."""

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

    given, g, c = nested(3.0), ad.grad(square), ad.compile(lambda x: nested(x * 2.0))
    calls = [
        lambda: innermost(g(given)),
        lambda: innermost(c(3.0)),
        lambda: ad.jvp(square, (given,), (nested(1.0),))[1],
        lambda: innermost(ad.vjp(square, given)[1](1.0)[0]),
    ]
    for call in [*calls, *calls, *calls]:
        if depth < 5000:
            assert call() == 6.0
        else:
            with pytest.raises(ad.AutodiffError, match="or is nested more deeply than Python's recursion"):
                call()
