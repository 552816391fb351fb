"""What the ops that carry a graph as an attribute (call, scan, map) have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, compress
from typing import Any

from ..graph import Graph, Node, reachable, remade, with_args
from . import OPS, input_node
from .build import axis_index, slice_, zeros

Cut = tuple[int, int, int]  # (axis, start, stop): what of an argument a call is given


def splice(graph: Graph, args: Sequence[Node]) -> list[Node]:
    """The graph's outputs computed from other arguments. Raises ValueError where the type of one differs."""
    for a, i in zip(args, graph.inputs, strict=True):
        if a.shape != i.shape or a.dtype != i.dtype:
            raise ValueError(f"{graph.name} takes {i!r}, got {a!r}")
    return remade(graph.outputs, dict(zip(graph.inputs, args)))


def influenced(outputs: Sequence[Node], sources: Sequence[Node]) -> list[bool]:
    """For each output whether its value may depend on one of the sources.

    Of a loop each result counts by itself: that of x alone does not depend on the tangents beside it.
    """

    def of_graph(graph: Graph, flags: Sequence[bool]) -> list[bool]:
        return influenced(graph.outputs, [*compress(graph.inputs, flags)])

    found: dict[Node, Any] = dict.fromkeys(sources, True)  # a tuple node's has a flag for each result
    for n in reachable(outputs, oldest=min([s.id for s in sources], default=0)) if sources else ():
        if n in found:
            continue
        flags = [found.get(a, False) for a in n.args]
        if n.op == "item":
            found[n] = flags[0][n.attrs["i"]] if isinstance(flags[0], list) else flags[0]
        elif any(flags) and (rule := OPS[n.op].influence) is not None:
            found[n] = rule(flags, of_graph, **n.attrs)
        else:
            found[n] = any(flags)
    return [found.get(o, False) for o in outputs]


def result_types(graph: Graph) -> tuple[tuple, tuple]:
    """Shapes and dtypes of the outputs: the type of a tuple node."""
    return tuple([o.shape for o in graph.outputs]), tuple([o.dtype for o in graph.outputs])


def inputs_like(nodes: Sequence[Node], prefix: str = "") -> list[Node]:
    """Fresh inputs of the same types."""
    return [input_node(n.shape, n.dtype, prefix + n.name if n.name else None) for n in nodes]


def on_all_inputs(n: int, *graphs: Graph) -> list[Graph]:
    """The graphs, all with the inputs of all: the n that they have in common, then what each has besides."""
    wide = []
    for g in graphs:
        parts = [other.inputs[n:] if other is g else inputs_like(other.inputs[n:]) for other in graphs]
        wide.append(Graph([*g.inputs[:n], *chain.from_iterable(parts)], g.outputs, g.name))
    return wide


def beside(values: Sequence[Node], tangents: Mapping[int, Node], *cuts: int) -> list[list[Node]]:
    """The values cut at some points, and after each part the tangents of what is in it, given by position."""
    ends = [*cuts, len(values)]
    return [
        [*values[start:end], *(t for k, t in tangents.items() if start <= k < end)]
        for start, end in zip([0, *cuts], ends)
    ]


def zeros_like(node: Node) -> Node:
    return zeros(node.shape, node.dtype)


def or_zeros(x: Node | None, like: Node) -> Node:
    """A derivative, where None is zero."""
    return zeros_like(like) if x is None else x


def is_float(node: Node) -> bool:
    """Whether a derivative can lead through this value."""
    return node.dtype.kind in "fc"


def items(node: Node) -> list[Node]:
    """The elements of a tuple node: what `item` of ops/build.py makes, without asking the table."""
    elements = []
    for i, (shape, dtype) in enumerate(zip(node.shape, node.dtype)):
        x = Node("item", (node,), {"i": i}, shape, dtype)
        x._frozen = (("i", i),)
        elements.append(x)
    return elements


# ---- outlined calls ----------------------------------------------------------------------------------------


def outlined(
    body: Graph, args: Sequence[Node], cuts: Sequence = (), of: Graph | None = None, loc: tuple | None = None
) -> Node:
    """An outlined call (derive/outlined.py). `cuts`: of each argument the part given, or None: all."""
    shape, dtype = result_types(body)
    known = tuple(cuts)
    if not any(known):
        known = ()
    elif len(known) < len(args):
        known += (None,) * (len(args) - len(known))
    made = Node("outlined", tuple(args), {"body": body, "of": of, "cuts": known}, shape, dtype, loc=loc)
    made._frozen = (("body", id(body)), ("cuts", known), ("of", None if of is None else id(of)))
    return made


def cut_of(call: Node, k: int) -> Cut | None:
    """The part of its argument k that a call is given; None for all of it."""
    cuts = call.attrs["cuts"]
    return cuts[k] if cuts else None


def cut_slices(cut: Cut) -> tuple[slice, ...]:
    axis, start, stop = cut
    return (*(slice(None),) * axis, slice(start, stop))


def cut_index(x: Node, cut: Cut) -> tuple:
    return axis_index(x.shape, *cut)


def given(args: Sequence[Node], cuts: Sequence[Cut | None]) -> Sequence[Node]:
    """What a call is given, with a node for each part."""
    if not cuts:
        return args
    return [a if cut is None else slice_(a, cut_index(a, cut)) for a, cut in zip(args, cuts)]


def with_slices(graph: Graph) -> Graph:
    """The graph with a node for each part of an argument that a call is given, just before the call."""
    if not any(n.op == "outlined" and n.attrs["cuts"] for n in graph.nodes):
        return graph
    image: dict[Node, Node] = {}
    for n in graph.nodes:
        args = tuple([image[a] for a in n.args])
        if n.op == "outlined":
            image[n] = outlined(n.attrs["body"], given(args, n.attrs["cuts"]), of=n.attrs["of"])
            image[n].name, image[n].loc, image[n].derived = n.name, n.loc, n.derived
        else:
            image[n] = with_args(n, args) if args else n
    return Graph(graph.inputs, [image[o] for o in graph.outputs], graph.name)
