"""What is computed with the unit vectors of a Jacobian, whose zeros stay zeros.

The batch of all unit vectors is the identity matrix, scaled where elementwise derivatives came before. A
product of it with a matrix is that matrix with its rows scaled: of the n terms of each sum one is not 0.

A product of such a 0 with infinity or nan would be nan: an infinite derivative by one entry of the argument
would spread to all. Scaled unit vectors keep their zeros at no cost, as a `where` stacks them. Elsewhere a
`where` is added if a factor may be infinite at finite arguments, and the unit vector does not reach all
elements, as it does in a product of matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_, le

import numpy as np

from ..graph import Node, dependent, is_scalar_const, next_id, reachable, with_args
from ..hidden import decided
from ..ops import OPS, apply, const
from ..ops.build import broadcast, equal, reshape, transpose, where
from ..ops.exactness import mark_derived
from ..ops.table import VIEWS, is_elementwise

# Ops that may give an infinity or nan for finite arguments
_POLES = frozenset("divide reciprocal power float_power log log2 log10 log1p arctanh".split())


def unit_vectors(results: Sequence[Node], unit: Node, n: int) -> tuple[list[Node], dict[Node, Node]]:
    """(results, {node: what it is for all n unit vectors, stacked}).

    results   outputs of a graph, which depend on the unit vector, an input of n elements or computed from one
    """
    first_new, nodes = next_id(), reachable(results)
    moving = dependent(nodes, [unit, *(n for n in reachable([unit]) if n.op == "input")])
    walk = _Walk(unit, n)
    new: dict[Node, Node] = {}
    for old in nodes:
        if old not in moving:
            new[old] = old
            if _has_pole(old) or any(a in walk.poles for a in old.args):
                walk.poles.add(old)
            continue
        args = tuple([new[a] for a in old.args])
        node = old if all(map(is_, args, old.args)) else with_args(old, args)
        new[old] = walk.visit(node, [new[a] for a in old.args if a in moving])
    results = [new[r] for r in results]
    mark_derived(results, first_new)
    return results, walk.stacked


class _Walk:
    """Visits nodes in order, and notes what they are."""

    def __init__(self, unit: Node, n: int):
        self.n = n
        self.scale: dict[Node, Node | None] = {unit: None}  # a node that is unit * s -> s; None for ones
        self.origin: dict[Node, Node] = {}  # a product -> what has the zeros to keep: others are of factors
        self.full: set[Node] = set()  # nodes without zeros of the unit vector
        self.poles: set[Node] = set()  # nodes that may be infinite
        self.stacked: dict[Node, Node] = {}

    def visit(self, node: Node, moved: list[Node]) -> Node:
        """The node, or one that keeps its zeros. moved: its arguments that depend on the unit vector."""
        if self._fills(node, moved):
            self.full.add(node)
        if node.op in ("reshape", "negative") and node.args[0] in self.scale:
            s = self.scale[node.args[0]]
            if node.op == "negative":
                s = apply("negative", _ones_or(s, node))
            self.scale[node] = None if s is None else reshape(s, node.shape)
        elif node.op == "matmul" and len(moved) == 1 and moved[0] in self.scale:
            product = self._times_all(node)
            if product is not None:
                self.stacked[node] = reshape(product, (self.n, *node.shape))
        elif len(moved) != 1 or isinstance(node.dtype, tuple) or node.dtype.kind not in "fc":
            return node
        elif moved[0] is node.args[0] and node.op in ("divide", "share_among"):
            return self._product(node, moved[0], node.args[1])
        elif node.op == "multiply":
            return self._product(node, moved[0], next(a for a in node.args if a is not moved[0]))
        return node

    def _product(self, node: Node, moved: Node, factor: Node) -> Node:
        """The node, which is moved * factor, moved / factor, or moved shared among equal elements."""
        op, zero = node.op, self.origin.get(moved, moved)
        finite = is_scalar_const(factor) and factor not in self.poles
        likely = moved in self.scale or factor in self.poles or node.op == "share_among"
        if likely and not finite and moved not in self.full:
            kept = where(equal(zero, 0.0), 0.0, node)
            kept.name, kept.loc = node.name, node.loc
            node = kept
        self.origin[node] = zero
        if moved in self.scale and moved.shape == node.shape and moved.dtype == factor.dtype == node.dtype:
            s = self.scale[moved]
            if s is None and op == "multiply":
                s = broadcast(factor, moved.shape)
            else:
                s = apply(op, _ones_or(s, moved), factor)
            self.scale[node] = s
            each = const(np.arange(self.n))
            identity = equal(reshape(each, node.shape), reshape(each, (self.n, *(1,) * node.ndim)))
            self.stacked[node] = where(identity, s, 0.0)
        return node

    def _fills(self, node: Node, moved: Sequence[Node]) -> bool:
        """Whether the node has no zeros of the unit vector."""
        if node.op == "input":
            return False
        if OPS[node.op].kind == "multilinear" or node.op == "sum" and node.size == 1:
            return all(a in self.scale or a in self.full for a in moved)
        spreads = is_elementwise(node.op) and node.op != "where" or node.op in VIEWS or node.op == "sum"
        return spreads and all(a in self.full for a in moved)

    def _times_all(self, product: Node) -> Node | None:
        """The products of a matrix with all n scaled unit vectors, a row each; None for other shapes."""
        side = 0 if product.args[0] in self.scale else 1
        scaled, matrix = product.args[side], product.args[1 - side]
        shape = (1, self.n) if side == 0 else (self.n, 1)
        if matrix.ndim != 2 or scaled.shape != shape or not scaled.dtype == matrix.dtype == product.dtype:
            return None
        rows = matrix if side == 0 else transpose(matrix, (1, 0))
        s = self.scale[scaled]
        return rows if s is None else apply("multiply", reshape(s, (self.n, 1)), rows)


def _has_pole(n: Node) -> bool:
    if n.op == "const":
        return is_scalar_const(n) and not decided(np.isfinite, n.value)
    if n.op in ("divide", "power", "float_power"):
        by = n.args[1]
        return not (is_scalar_const(by) and (n.op == "divide" or decided(le, 0, by.value)))
    return n.op in _POLES or n.op != "input" and OPS[n.op].needs is not None


def _ones_or(s: Node | None, like: Node) -> Node:
    return s if s is not None else broadcast(const(1.0, like.dtype), like.shape)
