"""Products of a matrix with all unit vectors: its rows or columns, without a matrix product.

A Jacobian is made of a derivative along each unit vector in turn, as one batch (jacobian.py). The batch
of all unit vectors is the identity matrix, scaled where elementwise derivatives came before: a product of it
with a matrix is that matrix with its rows scaled. Of the n terms of each sum all but one would be zero.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import Node, reachable
from ..ops import apply, const
from ..ops.build import broadcast, reshape, transpose


def times_unit_vectors(results: Sequence[Node], unit: Node, n: int) -> dict[Node, Node]:
    """Products of a matrix and a unit vector, scaled -> what they are for all n unit vectors, stacked.

    results  a graph's outputs, which depend on the unit vector, an input of n elements or computed from one
    """
    scale: dict[Node, Node | None] = {unit: None}  # a node that is unit * s elementwise -> s; None for ones
    moving = _depending(results, unit)
    products = {}
    for node in reachable(results):
        if node.op == "reshape" and node.args[0] in scale:
            s = scale[node.args[0]]
            scale[node] = None if s is None else reshape(s, node.shape)
        elif node.op == "negative" and node.args[0] in scale:
            scale[node] = apply("negative", _ones_or(scale[node.args[0]], node))
        elif node.op == "multiply" and (pair := _one_of(node, scale, moving)) is not None:
            scaled, other, _ = pair
            if scaled.shape == node.shape:
                s = scale[scaled]
                scale[node] = broadcast(other, node.shape) if s is None else apply("multiply", s, other)
        elif node.op == "matmul" and (pair := _one_of(node, scale, moving)) is not None:
            product = _times_all(*pair, scale, n)
            if product is not None:
                products[node] = reshape(product, (n, *node.shape))
    return products


def _times_all(scaled: Node, matrix: Node, side: int, scale, n: int) -> Node | None:
    """The products of a matrix with all n scaled unit vectors, a row each; None for other shapes."""
    if matrix.ndim != 2 or scaled.shape != ((1, n) if side == 0 else (n, 1)):
        return None
    rows = matrix if side == 0 else transpose(matrix, (1, 0))
    s = scale[scaled]
    return rows if s is None else apply("multiply", reshape(s, (n, 1)), rows)


def _one_of(node: Node, scale, moving) -> tuple[Node, Node, int] | None:
    """(the argument that is a scaled unit vector, the other one, which side the first stands on), where the
    other is the same for all, and of the same type as the result."""
    for side, (a, b) in enumerate((node.args, node.args[::-1])):
        if a in scale and b not in moving and a.dtype == b.dtype == node.dtype:
            return a, b, side
    return None


def _ones_or(s: Node | None, like: Node) -> Node:
    return s if s is not None else broadcast(const(1.0, like.dtype), like.shape)


def _depending(results: Sequence[Node], unit: Node) -> set[Node]:
    """The unit vector, and all that is computed from it or from what it is computed from."""
    moving = {unit, *(n for n in reachable([unit]) if n.op == "input")}
    for node in reachable(results):
        if any(a in moving for a in node.args):
            moving.add(node)
    return moving
