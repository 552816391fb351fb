"""What the compiler did, as text: `source`, `stages` and `why_recorded`."""

from __future__ import annotations

from ..derive.differentiate import gradient_graph, vjp_graph
from ..emit.program import compile_graph
from ..errors import AutodiffError
from ..graph import Graph
from ..keep.partition import partition
from ..passes.inline_calls import inline_calls
from ..pipeline import prepared
from ..record.record import record
from ..switches import current_options
from .arguments import inexact_inputs
from .derived import Derived
from .vjp import Pullback


def source(g, *args, **kwargs) -> str:
    """The NumPy source that runs when the derived function g is called.

    g   a function made by ad.grad, ad.compile, ... that was called before, or a pullback of ad.vjp. With
        further arguments g is called with them first.
    """
    if isinstance(g, Pullback):
        return g.source
    state = _state(g, "source")
    if args or kwargs:
        g(*args, **kwargs)
    if state.last is None:
        raise AutodiffError(
            f"source: {g.__name__} was not called yet. Call it, or give arguments: ad.source(g, x)"
        )
    plan, program = state.last
    if program is None:  # it was not worth compiling
        program = state.transform.compile(plan, current_options(), state.name, scalar=False)
    return "\n\n".join(p.source for p in program) if isinstance(program, tuple) else program.source


def why_recorded(g) -> str | None:
    """Why g records its function anew at each call, or None if it need not. g was called before."""
    return _state(g, "why_recorded").why


def _state(g, name: str) -> Derived:
    state = getattr(g, "__derived__", None)
    if not isinstance(state, Derived):
        raise AutodiffError(f"{name}: expected a function made by ad.grad, ad.compile, ..., got {g!r}")
    return state


def stages(f, *args, **kwargs) -> str:
    """What becomes of f on its way to a gradient, each stage as text: the graph as recorded, simplified,
    differentiated, simplified again, split into what runs forward and what runs backward, and the source of
    both.

    The derivative is taken with respect to all floating-point arguments. f may also be a derived function;
    then it is the function that it was derived from.
    """
    f = getattr(f, "__wrapped__", f) if hasattr(f, "__derived__") else f
    rec = record(f, args, kwargs)
    options = current_options()
    graph = Graph(rec.graph.inputs, rec.graph.outputs[: rec.n_results] or rec.graph.outputs, rec.graph.name)
    simple = prepared(graph, options) if not _has_rules(graph) else graph
    wrt = inexact_inputs(graph, rec.in_tree.size)
    cts = [i for i, o in enumerate(graph.outputs) if o.dtype.kind in "fc"]
    if not wrt or not cts:
        raise AutodiffError(f"stages: {graph.name} has no floating-point {'result' if wrt else 'argument'}")
    scalar = len(graph.outputs) == 1 and graph.outputs[0].shape == ()
    joint = gradient_graph(simple, wrt) if scalar else vjp_graph(simple, wrt, cts)
    best = prepared(joint, options)
    forward, backward, _ = partition(best, len(graph.inputs), len(graph.outputs))
    kept = [
        o for o in forward.outputs[len(graph.outputs) :] if o.op != "input"
    ]  # arguments need not be handed on
    forward = Graph(forward.inputs, [*forward.outputs[: len(graph.outputs)], *kept], forward.name)
    parts = [
        ("recorded", str(graph)),
        ("simplified", str(simple)),
        ("differentiated", str(joint)),
        ("simplified again", str(best)),
        ("forward", str(forward)),
        ("backward", str(backward)),
        ("forward, emitted", compile_graph(forward, options).source),
        ("backward, emitted", compile_graph(backward, options).source),
    ]
    return "\n\n".join(f"# {title}\n\n{text.rstrip()}" for title, text in parts) + "\n"


def _has_rules(graph: Graph) -> bool:
    """Calls with a rule of their own have to be differentiated before they are opened."""
    return inline_calls(graph) is not graph
