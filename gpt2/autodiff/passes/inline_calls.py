"""Opens `call` nodes: a function with a rule of its own becomes the ops of its body."""

from __future__ import annotations

from ..graph import Graph, Node, rewrite
from ..ops.subgraph import splice


def inline_calls(graph: Graph) -> Graph:
    """The graph with the bodies of calls in their place, once their rules have no more to say.

    Checkpoints stay: side by side with the forward, what they compute again would be recognised as known.
    """
    if not any(n.op == "call" for n in graph.nodes):
        return graph
    bodies: dict[Node, list[Node]] = {}

    def opened(n: Node, args: tuple) -> Node | None:
        if n.op != "item" or args[0].op != "call" or not args[0].attrs["rule"].inlined:
            return None
        (call,) = args
        if call not in bodies:
            bodies[call] = splice(inline_calls(call.attrs["graph"]), call.args)
        return bodies[call][n.attrs["i"]]

    return rewrite(graph, opened)
