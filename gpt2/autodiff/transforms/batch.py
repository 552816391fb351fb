"""A graph for one example becomes a graph for n of them: what ad.vmap is made of.

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
from ..ops.leads import Batch, NoRule, batch_rule
from ..ops.subgraph import inputs_like, items
from ..ops.table import is_elementwise

NOTHING: Mapping = MappingProxyType({})


def batched(
    graph: Graph, flags: Sequence[bool], n: int, known: Mapping[Node, Node] = NOTHING
) -> tuple[Graph, list[bool]]:
    """The graph for n examples; see the head of this file. known: what nodes of it are, for all examples."""
    made: dict[Node, Node | list[Node]] = dict(known)  # a list: the items of a tuple node
    differs: dict[Node, bool] = dict.fromkeys(known, True)
    inputs = []
    for x, has in zip(graph.inputs, flags, strict=True):
        made[x] = input_node((n, *x.shape), x.dtype, x.name) if has else x
        differs[x] = has
        inputs.append(made[x])
    for node in graph.nodes:
        if node in made:
            continue
        differs[node] = any(differs[a] for a in node.args)
        if not differs[node]:
            made[node] = node
            continue
        made[node] = _one(node, made, [differs[a] for a in node.args], n)
    outputs = [made[o] for o in graph.outputs]
    return Graph(inputs, outputs, f"{graph.name}_vmap"), [differs[o] for o in graph.outputs]


def _one(node: Node, made: dict, flags: list[bool], n: int) -> Node | list[Node]:
    """A node for all examples."""
    if node.op == "item":
        whole = made[node.args[0]]
        return whole[node.attrs["i"]] if isinstance(whole, list) else apply("item", whole, i=node.attrs["i"])
    args = [made[a] for a in node.args]
    rule = batch_rule(OPS[node.op], is_elementwise(node.op))
    b = Batch(n, flags, node, lambda graph, flags: batched(graph, flags, n))
    try:
        found = _looped(node, args, flags, n) if rule is None else rule(b, *args, **node.attrs)
    except NoRule:
        found = _looped(node, args, flags, n)
    except Exception as error:
        error.add_note(f"raised by the batch rule of {node.op}, for {node!r} with flags {list(flags)}")
        raise
    if isinstance(found, Node):
        found.name, found.loc, found.derived = node.name, node.loc, node.derived
        _check(node, found, n)
    return found


def _looped(node: Node, args: list[Node], flags: list[bool], n: int) -> Node | list[Node]:
    """The op example by example."""
    inner = inputs_like(node.args)
    made = apply(node.op, *inner, **node.attrs)
    outputs = items(made) if isinstance(made.dtype, tuple) else [made]
    order = sorted(range(len(args)), key=lambda k: not flags[k])  # those with the axis first
    body = Graph([inner[k] for k in order], outputs, node.op)
    found = map_node(body, [args[k] for k in order], n, sum(flags))
    return found if isinstance(made.dtype, tuple) else found[0]


def _check(node: Node, found: Node, n: int) -> None:
    """A rule that gives another type than n of the node's is a mistake in the rule, and ends here."""
    if isinstance(node.dtype, tuple):
        expected = tuple((n, *s) for s in node.shape)
    else:
        expected = (n, *node.shape)
    if found.shape != expected or found.dtype != node.dtype:
        raise AssertionError(f"the batch rule of {node.op} gave {found!r}, expected {expected} {node.dtype}")
