"""Batches a graph: from one example to n, for ad.vmap.

    batched(graph, flags, n) -> (graph, a flag for each output)

flags say which inputs differ from example to example; those get one more axis, the first, of length n. Each
op is made anew by the rule of its row (ops/leads.py). An op without a rule becomes a `map` over the
examples: a loop, slower, and right for every op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ..graph import Graph, Node
from ..loops.map_op import map_node
from ..ops import OPS, apply, input_node
from ..ops.leads import Batch, NoRule, broadcasting
from ..ops.subgraph import inputs_like, items
from ..ops.table import is_elementwise

NOTHING: Mapping = MappingProxyType({})


def batched(graph: Graph, flags: Sequence[bool], n: int, known: Mapping = NOTHING) -> tuple[Graph, list]:
    """The graph for n examples; see the head of this file. known: nodes that are batched already."""
    new: dict[Node, Node | list[Node]] = dict(known)  # a list: the items of a tuple node
    differs: dict[Node, bool] = dict.fromkeys(known, True)
    inputs = []
    for x, has in zip(graph.inputs, flags, strict=True):
        new[x] = input_node((n, *x.shape), x.dtype, x.name) if has else x
        differs[x] = has
        inputs.append(new[x])
    for node in graph.nodes:
        if node in new:
            continue
        differs[node] = any(differs[a] for a in node.args)
        if not differs[node]:
            new[node] = node
            continue
        new[node] = _one(node, new, [differs[a] for a in node.args], n)
    outputs = [new[o] for o in graph.outputs]
    return Graph(inputs, outputs, f"{graph.name}_vmap"), [differs[o] for o in graph.outputs]


def _one(node: Node, new: dict, flags: list[bool], n: int) -> Node | list[Node]:
    """The node for all examples."""
    if node.op == "item":
        whole = new[node.args[0]]
        return whole[node.attrs["i"]] if isinstance(whole, list) else apply("item", whole, i=node.attrs["i"])
    args = [new[a] for a in node.args]
    rule = OPS[node.op].leads.batch or (broadcasting if is_elementwise(node.op) else None)
    b = Batch(n, flags, node, lambda graph, flags: batched(graph, flags, n))
    try:
        result = _looped(node, args, flags, n) if rule is None else rule(b, *args, **node.attrs)
    except NoRule:
        result = _looped(node, args, flags, n)
    except Exception as error:
        error.add_note(f"raised by the batch rule of {node.op}, for {node!r} with flags {list(flags)}")
        raise
    if isinstance(result, Node):
        result.name, result.loc, result.derived = node.name, node.loc, node.derived
        _check(node, result, n)
    return result


def _looped(node: Node, args: list[Node], flags: list[bool], n: int) -> Node | list[Node]:
    """The op example by example."""
    inner = inputs_like(node.args)
    one = apply(node.op, *inner, **node.attrs)
    outputs = items(one) if isinstance(one.dtype, tuple) else [one]
    order = sorted(range(len(args)), key=lambda k: not flags[k])  # those with the axis first
    body = Graph([inner[k] for k in order], outputs, node.op)
    stacked = map_node(body, [args[k] for k in order], n, sum(flags))
    return stacked if isinstance(one.dtype, tuple) else stacked[0]


def _check(node: Node, result: Node, n: int) -> None:
    """Raise AssertionError if a batch rule returned the wrong type."""
    if isinstance(node.dtype, tuple):
        expected = tuple((n, *s) for s in node.shape)
    else:
        expected = (n, *node.shape)
    if result.shape != expected or result.dtype != node.dtype:
        raise AssertionError(f"the batch rule of {node.op} gave {result!r}, expected {expected} {node.dtype}")
