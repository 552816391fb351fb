"""The compiler's work as text and picture: `source`, `drawing`, `stages` and `why_recorded`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..emit.program import Program
from ..errors import AutodiffError
from ..pipeline import Pipeline
from ..programs.derived import Derived
from ..programs.fixed import Fixed, FixedPair
from ..record.record import record
from ..switches import current_options
from ..transforms.vjp import Pullback, Vjp
from .drawing import drawing as drawn
from .runnable import runnable_source


def source(g: Callable | Pullback, *args: Any, emitted: bool = False, **kwargs: Any) -> str:
    """The text of a NumPy function that computes what the derived function g does.

    g        a function made by ad.grad, ad.compile, ... that was called before, or a pullback of ad.vjp. With
             further arguments g is called with them first
    emitted  the program that runs: with buffers, blocks of rows and the threads' share of work

    The text is readable and runs by copy and paste: its arguments are those of g as arrays, then the arrays
    that the function reads from outside, then constants too large to print. A program with a loop (ad.scan,
    ad.parallel_map), or with an op that has no text of its own (most of SciPy's), is given in its emitted
    form, which the compiler alone can run.

        >>> f = ad.compile(lambda x: np.sum(np.tanh(x) * np.array([1.0, 2.0])))
        >>> print(ad.source(f, np.ones(2)).rstrip())
        import numpy as np
        <BLANKLINE>
        <BLANKLINE>
        def f_compiled(x):
            constant = np.array([1.0, 2.0], np.float64)
            out = np.sum(np.tanh(x) * constant, axis=0)
            return (out,)
    """
    if isinstance(g, Pullback):
        return _shown(g.program, emitted)
    state = _called(g, "source", args, kwargs)
    if state.last[1] is None and (args or kwargs):  # not compiled yet: show what the next call would run
        parts: list[tuple[str, Any]] = []
        state.stages(args, kwargs, lambda title, output, seconds: parts.append((title, output)))
        return "\n\n".join(_shown(output, emitted) for title, output in parts if title.endswith("emitted"))
    return _shown(_program(state), emitted)


def drawing(g: Callable | Pullback, *args: Any, memory: bool = False, **kwargs: Any) -> str:
    """The graph of what the derived function g computes, as an SVG: a box for each value, in order, with arcs
    from its arguments.

    g        a function made by ad.grad, ad.compile, ... that was called before, or a pullback of ad.vjp. With
             further arguments g is called with them first. Of ad.vjp's two programs the backward is drawn
    memory   instead of the graph, which value holds which memory in the course of a call: the arena and the
             results, with a box for each value for as long as it is needed

    Text and lines take the colour of the page around. If there are too many values for a picture, a line says
    how many. A notebook shows the graph below the source where a cell ends with g.

        >>> picture = ad.drawing(ad.grad(lambda x: np.sum(np.tanh(x))), np.ones(3))
        >>> picture[:4], picture.count("<rect")
        ('<svg', 4)
        >>> ad.drawing(ad.grad(lambda x: np.sum(np.tanh(x))), np.ones(3), memory=True)[:4]
        '<svg'
    """
    program = g.program if isinstance(g, Pullback) else _program(_called(g, "drawing", args, kwargs))
    program = getattr(program, "backward", program)
    if not memory:
        return drawn(program.graph)
    if not isinstance(program, Program):
        raise AutodiffError(
            "drawing: this program computes with Python's floats, which have no plan for memory"
        )
    return program.memory_drawing()


def _called(g: Callable, name: str, args: tuple, kwargs: dict) -> Any:
    """The state of a derived function, which is called first if there are arguments."""
    state = _state(g, name)
    if args or kwargs:
        g(*args, **kwargs)
    if state.last is None:
        raise AutodiffError(
            f"{name}: {g.__name__} was not called yet. Call it, or give arguments: ad.{name}(g, x)"
        )
    return state


def _program(state: Derived) -> Any:
    """The program that ran last, compiled if it was not yet."""
    wiring, program = state.last  # type: ignore[misc]
    if program is None:
        program = state.transform.compile(wiring, Pipeline(state.name, current_options()), scalar=False)
    return program


def _shown(program: Any, emitted: bool) -> str:
    """The text of a program, or of the two that are its forward and its backward."""
    halves = [getattr(program, name, None) for name in ("forward", "backward")]
    if not emitted and all(isinstance(half, Program) for half in halves):
        return "\n\n".join(_shown(half, emitted) for half in halves)
    if emitted or not isinstance(program, Program):  # a program of floats is plain as it is
        return program.source
    return runnable_source(program.graph, program.name) or program.source


def why_recorded(g: Callable) -> str | None:
    """Why g records its function again at each call, or None if it does not. g was called before.

    >>> slope = ad.grad(lambda x: x * x if x * x > 2.0 else -x)
    >>> slope(3.0), ad.why_recorded(slope).split(",")[0]
    (6.0, 'it looks at results of arithmetic on recorded values')
    """
    return _state(g, "why_recorded").why


def _state(g, name: str) -> Derived:
    state = getattr(g, "__derived__", None)
    if not isinstance(state, Derived):
        hint = f": write ad.{name}(ad.grad(f), x)" if callable(g) else ""
        raise AutodiffError(f"{name}: expected a function made by ad.grad, ad.compile, ..., got {g!r}{hint}")
    return state


def stages(f: Callable, *args: Any, **kwargs: Any) -> str:
    """The graph of f after each stage on its way to a program, and the program, as text under titles.

    f   a derived function (ad.grad(f), ad.compile(f), ...), Fixed or FixedPair: the stages are those of the
        program that runs when it is called with these arguments. Any other function: the stages of
        ad.vjp(f, *args), with respect to all floating-point arguments that are positional

    Titles: recorded, simplified (before it is differentiated), differentiated, simplified again, and then
    either emitted, or forward, backward, "forward, emitted" and "backward, emitted". Passes that options
    switch off are skipped; with options(before=False) nothing is simplified before it is differentiated.

        >>> print(ad.stages(ad.grad(lambda x: x * x), 3.0).rstrip())
        # recorded
        <BLANKLINE>
        f(x: f64[])
          t1: f64[] = multiply(x, x)
          return t1
        <BLANKLINE>
        # simplified
        <BLANKLINE>
        f(x: f64[])
          t1: f64[] = square(x)
          return t1
        <BLANKLINE>
        # differentiated
        <BLANKLINE>
        f_grad(x: f64[])
          t3: f64[] = multiply(1.0, 2.0)
          dx: f64[] = multiply(t3, x)
          return dx
        <BLANKLINE>
        # simplified again
        <BLANKLINE>
        f_grad(x: f64[])
          dx: f64[] = multiply(2.0, x)
          return dx
        <BLANKLINE>
        # emitted
        <BLANKLINE>
        def f_grad(x):
            dx = 2.0 * x
            return dx
    """
    parts: list[str] = []

    def on_stage(title: str, output: Any, seconds: float) -> None:
        text = getattr(output, "source", None) or str(output)
        parts.append(f"# {title}\n\n{text.rstrip()}")

    if isinstance(f, (Fixed, FixedPair)):
        f.build(args, kwargs, on_stage)
    else:
        state = getattr(f, "__derived__", None)
        if state is None:
            rec = record(f, args, kwargs)
            nodes_of = rec.graph.inputs[: rec.in_tree.size], rec.graph.outputs[: rec.n_results]
            for kind, nodes in zip(("argument", "result"), nodes_of):
                if not any(n.dtype.kind in "fc" for n in nodes):
                    raise AutodiffError(f"stages: {rec.graph.name} has no floating-point {kind}")
            state = Derived(f, Vjp())
        state.stages(args, kwargs, on_stage)
    return "\n\n".join(parts) + "\n"
