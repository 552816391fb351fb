"""The ops `call`, a graph used as one op with a derivative rule of its own, and `host`, a Python function.

    call(*args; graph, rule) -> (*results)       made by checkpoint, custom_vjp and custom_jvp
    host(*args; function, shapes, dtypes) -> (*results)

A rule object differentiates the call:

    Checkpoint   keeps the arguments only; the backward is another call, which runs the graph again
    CustomVJP    a graph for the forward (results and residuals) and one for the backward, both the user's
    CustomJVP    a graph for the tangents: the user's, or that of an equation which the results solve
                 (implicit/rules.py)

The user gives one mode, and the other follows, because a derivative is linear in the gradient or tangent: the
tangent program of a CustomVJP is the transpose of its backward, found by differentiating that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..derive.chain_rule import applied
from ..derive.differentiate import backprop, backward_of, forward_of
from ..errors import AutodiffError, UnsupportedError
from ..graph import Graph, Node, remade
from ..ops import apply, subgraph
from ..ops.interpret import apart, evaluate_graph
from ..ops.subgraph import is_float, or_zeros
from ..ops.table import Leads, row
from ..pipeline import program_of


def call(graph: Graph, rule: Any, args: Sequence[Node]) -> list[Node]:
    """The results of a `call` node: this graph at these arguments, with this derivative rule."""
    return subgraph.items(apply("call", *args, graph=graph, rule=rule))


class Checkpoint:
    """The rule of ad.checkpoint: the backward recomputes the values inside, and keeps none."""

    inlined = False

    def batched(self, b: Any) -> Checkpoint:
        return self

    def pull(self, graph: Graph, cts: Sequence, args: Sequence[Node], wanted: Sequence[bool]) -> list:
        """The gradients of the wanted arguments, None for the others, from one cotangent per result."""
        back, moving = backward_of(graph, [c is not None for c in cts], wanted)
        grads = call(back, self, [*args, *(c for c in cts if c is not None)]) if moving else []
        by_input = dict(zip(moving, grads))
        return [by_input.get(k) for k in range(len(args))]

    def push(self, graph: Graph, tangents: Sequence[Node | None], args: Sequence[Node]) -> list:
        forward, moving = forward_of(graph, [t is not None for t in tangents])
        moved = call(forward, self, [*args, *(t for t in tangents if t is not None)]) if moving else []
        by_output = dict(zip(moving, moved))
        return [by_output.get(k) for k in range(len(graph.outputs))]


class CustomVJP:
    """The rule of a custom_vjp, as two graphs.

    forward: args -> (*results, *residuals); backward: (*residuals, *cotangents) -> a gradient per float
    argument.

    Cotangents are given for the floating-point results only.
    """

    inlined = True

    def __init__(self, make: Callable[[], tuple[Graph, Graph]], forwards: CustomJVP | None = None):
        # (forward, backward), recorded on first use: forward may call the function whose rule it is. No
        # cached_property: that of Python 3.11 has one lock for all instances, and the user's rule runs here
        self.graphs = functools.cache(make)
        self.forwards = forwards  # a separate rule for forward mode, if there is one

    def batched(self, b: Any) -> CustomVJP:
        """The rule for all examples: both graphs, of which everything differs from example to example."""
        forwards = None if self.forwards is None else self.forwards.batched(b)
        return CustomVJP(lambda: tuple(all_batched(b, g) for g in self.graphs()), forwards)

    def pull(self, graph: Graph, cts: Sequence, args: Sequence[Node], wanted: Sequence[bool]) -> list:
        forward, backward = self.graphs()
        residuals = subgraph.splice(forward, args)[len(graph.outputs) :]
        cts = [or_zeros(c, o) for o, c in zip(graph.outputs, cts) if is_float(o)]
        grads = iter(subgraph.splice(backward, [*residuals, *cts]))
        return [next(grads) if is_float(a) else None for a in args]

    def push(self, graph: Graph, tangents: Sequence[Node | None], args: Sequence[Node]) -> list:
        if self.forwards is not None:
            return self.forwards.push(graph, tangents, args)
        forward, backward = self.graphs()
        residuals = subgraph.splice(forward, args)[len(graph.outputs) :]
        floats = [o for o in graph.outputs if is_float(o)]
        marks = subgraph.inputs_like(floats)  # cotangents: the backward is linear in them
        grads = subgraph.splice(backward, [*residuals, *marks])
        dots = [t for a, t in zip(args, tangents) if is_float(a)]
        trouble = f"forward mode through {graph.name}: its vjp rule is not linear in dout"
        tangents_out = iter(transposed(grads, marks, dots, trouble))
        return [next(tangents_out) if is_float(o) else None for o in graph.outputs]


class CustomJVP:
    """A rule of forward mode, as graphs.

    make    make(active) -> the graph of (*results, *args, *tangents of the active args) -> tangents of the
            float results, where `active` says which arguments have a tangent
    key     what distinguishes it from other rules of its class in keys of programs; by default `make` itself
    """

    inlined = True

    def __init__(self, make: Callable[[tuple[bool, ...]], Graph], *key: Any):
        self.tangent = functools.cache(make)
        self.key = key or (make,)

    def structure(self) -> tuple:
        return self.key

    def batched(self, b: Any) -> CustomJVP:
        return CustomJVP(lambda active: all_batched(b, self.tangent(active)), self, b.n)

    def push(self, graph: Graph, tangents: Sequence[Node | None], args: Sequence[Node]) -> list:
        dots = [t if is_float(a) else None for a, t in zip(args, tangents)]
        operands = [*call(graph, self, args), *args, *(t for t in dots if t is not None)]
        tangents_out = iter(subgraph.splice(self.tangent(tuple([t is not None for t in dots])), operands))
        return [next(tangents_out) if is_float(o) else None for o in graph.outputs]

    def pull(self, graph: Graph, cts: Sequence, args: Sequence[Node], wanted: Sequence[bool]) -> list:
        """The transpose of push, which is linear in the tangents."""
        marks = [m if w and is_float(m) else None for m, w in zip(subgraph.inputs_like(args), wanted)]
        wrt = [m for m in marks if m is not None]
        trouble = f"reverse mode through {graph.name}: its jvp rule is not linear in tangents"
        grads = iter(transposed(self.push(graph, marks, args), wrt, cts, trouble))
        return [None if m is None else next(grads) for m in marks]


def transposed(
    results: Sequence[Node | None], marks: Sequence[Node], cts: Sequence[Node | None], trouble: str
) -> list[Node | None]:
    """The gradients of the marks, in which the results should be linear.

    Raises AutodiffError with this trouble if they still depend on a mark, as those of np.clip(dout) would.
    """
    seeds = [(r, c) for r, c in zip(results, cts) if r is not None and c is not None]
    grads = backprop(seeds, marks)
    found = [d for d in grads if d is not None]
    if any(subgraph.influenced(found, marks)):
        raise AutodiffError(
            f"{trouble}, and cannot be transposed. Give the function a rule of the other mode, or remove "
            "the nonlinear part (np.clip, abs, a norm)"
        )
    # A loop that computes them beside what does depend on the marks takes zeros for these
    values = iter(remade(found, {m: subgraph.zeros_like(m) for m in marks}))
    return [None if d is None else next(values) for d in grads]


def _batch(b, *args, graph: Graph, rule):
    """A call for all examples, under the same rule for all of them."""
    inner = all_batched(b, graph)
    return call(inner, rule.batched(b), [b.front(x, has) for x, has in zip(args, b.flags)])


def all_batched(b: Any, graph: Graph) -> Graph:
    """The graph for all examples, of which every input and output has the axis."""
    inner, flags = b.graph(graph, [True] * len(graph.inputs))
    return Graph(inner.inputs, [b.front(o, has) for o, has in zip(inner.outputs, flags)], inner.name)


def evaluate_call(*values: np.ndarray, graph: Graph, rule: Any) -> tuple[np.ndarray, ...]:
    """Evaluate node by node the first time, while a function is recorded; compiled from then on."""
    if "evaluated" in graph.kept:
        return program_of(graph)(*values)
    graph.kept["evaluated"] = True
    return apart(evaluate_graph(graph, values), values)


row(
    "call",
    "structural",
    infer=lambda *args, graph, rule: subgraph.result_types(graph),
    evaluate=evaluate_call,
    vjp_rule=lambda g, out, *args, wanted, graph, rule: rule.pull(
        graph, [None if d is None else applied(d) for d in g], args, wanted
    ),
    jvp_rule=lambda tangents, out, *args, graph, rule: tuple(rule.push(graph, tangents, args)),
    leads=Leads(_batch),
    influence=lambda flags, of_graph, graph, rule: of_graph(graph, flags),
    cost=1000.0,
    scheduled_alone=True,
)


# --- a function of the user's that cannot be recorded, called when the program runs ------------


def host_graph(function: Callable, inputs: Sequence[Node], like: Sequence) -> Graph:
    """A graph that calls this function, whose results have the shapes and dtypes of `like`."""
    types = dict(shapes=tuple(x.shape for x in like), dtypes=tuple(str(x.dtype) for x in like))
    results = subgraph.items(apply("host", *inputs, function=function, **types))
    return Graph(inputs, results, function.__name__)


def _host_batch(b, *args, function, shapes, dtypes):
    """The function is called for one example after another."""

    def of_all(*values):
        rows = [function(*(v[k] if has else v for v, has in zip(values, b.flags))) for k in range(b.n)]
        if not rows:
            return tuple(np.zeros((0, *s), d) for s, d in zip(shapes, dtypes))
        return tuple(np.stack([np.asarray(x) for x in column]) for column in zip(*rows))

    of_all.__name__ = function.__name__
    return apply("host", *args, function=of_all, shapes=tuple((b.n, *s) for s in shapes), dtypes=dtypes)


def _no_rule(first, out, *args, function, **attrs):
    raise UnsupportedError(
        f"{function.__name__} runs as plain Python, so there is no derivative through it. Give it a rule "
        "with @ad.custom_vjp; for derivatives of derivatives the rule has to be written in NumPy functions, "
        "or with functions that have rules themselves",
        out.loc,
    )


row(
    "host",
    "structural",
    # copies of the results: they may be arguments, or memory that the next call writes to
    evaluate=lambda *values, function, shapes, dtypes: tuple([np.array(x) for x in function(*values)]),
    cost=1000.0,
    vjp_rule=_no_rule,
    jvp_rule=_no_rule,
    leads=Leads(_host_batch),
    infer=lambda *args, function, shapes, dtypes: (shapes, tuple(map(np.dtype, dtypes))),
)
