"""The order of a region's ops: few values are in use at once, and every op comes after what it reads."""

import numpy as np
import pytest

from gpt2.autodiff.emit.lives import from_the_end, in_use, shorten
from gpt2.autodiff.emit.regions import IN_USE, Region
from gpt2.autodiff.graph import Graph
from gpt2.autodiff.ops import apply, const, input_node
from gpt2.autodiff.ops.table import VIEWS
from tests.support.random.graphs import BLOCKS, random_graph

X = input_node((40, 20), np.float64, "x")


def horner(terms):
    """The ops of a polynomial by Horner's rule, then those of its derivative from the same partial sums."""
    sums, ops, p = [], [], X
    for k in range(terms):
        sums.append(apply("add", p, const(0.5 + k)))
        p = apply("multiply", sums[-1], X)
        ops += [sums[-1], p]
    d = sums[0]
    for s in sums[1:]:
        product = apply("multiply", d, X)
        d = apply("add", s, product)
        ops += [product, d]
    return ops


def check_order(members, before):
    assert sorted(map(id, members)) == sorted(map(id, before))
    place = {n: k for k, n in enumerate(members)}
    assert all(place[a] < place[n] for n in members for a in n.args if a in place)


def test_derivative_is_computed_beside_its_polynomial():
    ops = horner(12)
    r = Region(40, list(ops))
    shorten(r)
    check_order(r.members, ops)
    assert in_use(ops) == 13 * X.nbytes  # x, and all partial sums
    assert in_use(r.members) == 3 * X.nbytes  # x, a sum, and that of the derivative


def test_values_are_in_use_from_their_first_reader_to_their_last():
    y = apply("exp", X)
    z = apply("add", y, X)
    assert in_use([y]) == X.nbytes and in_use([y, z]) == 2 * X.nbytes
    other = input_node((40, 20), np.float32, "w")
    w = apply("multiply", other, other)
    assert in_use([y, w, z]) == 2 * X.nbytes + other.nbytes


def test_order_of_few_values_is_left_alone():
    r = Region(40, horner(2))
    before = list(r.members)
    shorten(r)
    assert r.members == before and in_use(before) <= IN_USE * X.nbytes


@pytest.mark.parametrize("seed", range(8))
def test_new_order_of_random_graphs_is_an_order(seed):
    graph: Graph = random_graph(
        np.random.default_rng(seed), 60, makers=BLOCKS, shapes=[(6, 20), (2, 3, 20)], inputs=3, largest=2000
    )
    ops = [n for n in graph.nodes if n.op not in VIEWS and n.op not in ("input", "const")]
    check_order(from_the_end(ops), ops)
    r = Region(6, list(ops))
    shorten(r)
    assert in_use(r.members) <= in_use(ops)
