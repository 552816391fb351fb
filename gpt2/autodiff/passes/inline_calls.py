"""Opens `call` nodes: a function with a rule of its own becomes the ops of its body."""

from __future__ import annotations

from ..graph import Graph, Node
from ..ops.subgraph import splice


def inline_calls(graph: Graph) -> Graph:
    """The graph with the bodies of calls in their place, once their rules have no more to say.

    Checkpoints stay: side by side with the forward, what they compute again would be recognised as known.
    """
    if not any(n.op == "call" for n in graph.nodes):
        return graph
    new: dict[Node, Node] = {}
    bodies: dict[Node, list[Node]] = {}
    for n in graph.nodes:
        args = tuple(new[a] for a in n.args if a not in bodies)
        if n.op == "call" and n.attrs["rule"].inlined:
            bodies[n] = splice(inline_calls(n.attrs["graph"]), args)
        elif n.op == "item" and n.args[0] in bodies:
            new[n] = bodies[n.args[0]][n.attrs["i"]]
        else:
            new[n] = n if args == n.args else Node(n.op, args, n.attrs, n.shape, n.dtype, n.name, n.loc)
    return Graph(graph.inputs, [new[o] for o in graph.outputs], graph.name)
