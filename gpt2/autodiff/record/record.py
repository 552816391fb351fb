"""`record` runs a function once and returns its graph; `inline` puts a graph into another recording."""

from __future__ import annotations

import functools
import inspect
import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np

from .. import errors
from ..graph import Graph, GraphError, Node, remade, type_text
from ..ops import build, evaluate, infer, input_node
from ..ops.interpret import evaluate_graph
from ..ops.subgraph import items
from ..ops.table import check_arguments
from ..tree import Tree, flatten, is_dynamic, unflatten
from ..undo import undoing
from . import interception, recorder, source_lines
from .containers import check_results, check_unchanged, with_tuples
from .dispatch import bind
from .draws import Draw, Draws, exchanging, with_drawings_in
from .local.arrays import MARK, Promoted
from .recorder import NUMBERS, Read, Recorder, check_kind, native
from .source_lines import here, observer
from .type_tests import check_type_tests, compared
from .unevaluated import Unknown, depends_on
from .value import Recorded, as_node, value_of

__all__ = ["Recorded", "Recording", "apply_op", "evaluate_graph", "inline", "record", "record_pure"]


@dataclass
class Recording:
    """The result of `record`."""

    # Inputs: the array and float arguments, flattened; captured arrays; values of an enclosing recording.
    # Outputs: the results of f, flattened; then the final contents of the arguments that f wrote to
    graph: Graph
    in_tree: Tree  # the structure of (args, kwargs), with everything that is static
    out_tree: Tree  # the structure of the results
    captures: list[tuple[Node, np.ndarray]]  # inputs for arrays from outside that others hold as well
    lifted: list[tuple[Node, Recorded]]  # inputs for values of enclosing recordings
    written: list[int]  # flat positions of the arguments that f wrote to, in the order of their outputs
    reads: list[Read]  # what f looked at (`if x > 0`): with the same values another run takes the same path
    unstable: list[str]  # why another run might give another graph though the reads are the same
    results: Any  # what f returned, with concrete values
    contents: list[np.ndarray]  # the final concrete contents of the arguments written to
    draws: list[tuple[int, Draw]]  # (k, draw): input k of the graph, one of the captures, is its result

    @property
    def value_dependent(self) -> bool:
        return bool(self.reads)

    @property
    def n_results(self) -> int:
        """How many outputs are results; the rest are arguments written to."""
        return self.out_tree.size

    def operands(self, leaves: Sequence) -> list:
        """Values for the graph's inputs: these flat arguments, then those from outside."""
        return [*leaves, *self.outside]

    @property
    def outside(self) -> list:
        return [array for _, array in self.captures] + [x for _, x in self.lifted]


def record_pure(
    f: Callable, args: Sequence, kwargs: dict | None = None, *, name: str | None = None
) -> Recording:
    """`record` for a function without side effects: it may run twice, and `results` are meaningless.

    The first run is dry (unevaluated.py): its time hardly depends on the size of the arrays.
    """
    try:
        with np.errstate(all="ignore"):
            return record(f, args, kwargs, name=name, dry=True)
    except (Exception, Unknown):  # perhaps because of the stand-ins: a real error is raised again
        return record(f, args, kwargs, name=name)


def record(
    f: Callable,
    args: Sequence,
    kwargs: dict | None = None,
    *,
    name: str | None = None,
    dry: bool = False,
    draws: Draws | None = None,
) -> Recording:
    """Record one run of f(*args, **kwargs). Exceptions of f pass through.

    dry     leave large values uncomputed; raises unevaluated.Unknown if f looks at one
    draws   records draws from random generators as inputs of the graph; None: they are plain numbers
    """
    if recorder.local.spared is None:
        spared = compared(f, (args, kwargs))
        with exchanging(f, object(), lambda held: interception.local_stand_in(held, spared), spared):
            return record(f, args, kwargs, name=name, dry=dry, draws=draws)
    leaves, in_tree = flatten((tuple(args), kwargs or {}))
    name = name or getattr(f, "__name__", None) or type(f).__name__
    rec = Recorder(name if name.isidentifier() else "f", dry)
    rec.draws, rec.leaves = draws, leaves
    copies_tree = in_tree if draws is None else with_drawings_in(in_tree)
    named = zip(leaves, input_names(f, in_tree))
    rec.arguments = [_argument(rec, i, x, name) for i, (x, name) in enumerate(named)]
    inputs = [x.node for x in rec.arguments]
    undo = functools.partial(_end, rec, recorder.state())
    with undoing(undo), undoing(undo):
        recorder.local.stack.append(rec)
        interception.begin(rec, recorder.local.spared or ())
        copies = with_tuples(unflatten(copies_tree, rec.arguments), (tuple(args), kwargs or {}))
        check_type_tests(f, *copies)
        out_leaves, out_tree = flatten(_call(rec, f, copies), lambda x: type(x) is Recorded or is_dynamic(x))
        if rec.unanswered is not None:
            raise rec.unanswered
        check_unchanged(f, rec.name, copies, copies_tree, rec.arguments)
        check_results(rec, out_tree)
        outputs = [as_node(rec, x) for x in out_leaves] + [rec.arguments[i].node for i in rec.written]
        values = unflatten(out_tree, [_concrete(x) for x in out_leaves])
        final = [rec.arguments[i].value for i in rec.written]
    out_leaves.clear()
    captures = rec.close()
    drawn = _numbered_draws(rec, len(inputs) + len(captures))
    captures += [(draw.node, draw.value) for _, draw in drawn]
    lifted = list(rec.lifted.values())
    graph = Graph([*inputs, *(n for n, _ in captures + lifted)], outputs, rec.name)
    recording = Recording(
        graph, in_tree, out_tree, captures, lifted, rec.written, rec.reads, rec.unstable, values, final, drawn
    )
    note_reads_outside(recording, leaves)
    return recording


def _end(rec: Recorder, before: tuple) -> None:
    """Restore what the recording changed. `before` is the state of its thread."""
    interception.end(rec)
    recorder.restore(before)
    rec.active = False
    rec.arguments, rec.leaves = [], ()  # releases the arrays


def _numbered_draws(rec: Recorder, start: int) -> list[tuple[int, Draw]]:
    draws = [] if rec.draws is None else rec.draws.calls
    nodes = {draw.node for draw in draws}
    if nodes and any(depends_on(r.node, nodes) for r in rec.reads):
        rec.unstable.append("it looks at random numbers that it drew")
    if rec.plain_draws_noted:
        rec.unstable.append(f"it uses {rec.plain_draws_noted[0]} of a random generator")
    return list(enumerate(draws, start))


@observer
def _call(rec: Recorder, f, arguments):
    args, kwargs = arguments
    try:
        return f(*args, **kwargs)
    except Exception as error:
        if rec.refused is not None and error is not rec.refused and _raised_at(error) == rec.refused.loc[:2]:
            raise rec.refused from None  # where an item is set, NumPy replaces our error by its own
        if isinstance(error, errors.AutodiffError):
            raise
        if MARK in str(error):
            raise errors.array_lost((*_raised_at(error), "")) from error
        if isinstance(error, SystemError) and rec.refused is not None:  # from a function that C called
            raise rec.refused from None
        if isinstance(error, (TypeError, AttributeError)):
            _blame_library(rec, error)
        names = {type(x).__name__ for x in args if type(x) in (list, tuple)}
        if isinstance(error, TypeError) and names:
            # An operator may have met a list that was meant as an array
            if re.search(f"'(?:{'|'.join(names)})'|sequence by", str(error)):
                raise errors.ConversionError(
                    f"{error}; an argument is a {names.pop()}, which the function gets as such: "
                    "pass np.array(...)",
                    (*_raised_at(error), ""),
                ) from error
        raise


def _blame_library(rec: Recorder, error: TypeError | AttributeError) -> None:
    """Raise if SciPy, whose code in C takes none, Python or its library failed on a recorded value."""
    frames = [*traceback.walk_tb(error.__traceback__)]
    in_scipy = source_lines.call_of_scipy(reversed(frames))
    if in_scipy is not None and _holds_recorded(in_scipy[0]):
        raise errors.lost_in_scipy(*in_scipy[1:]) from error
    if isinstance(error, AttributeError):
        if type(error.obj) is Recorded:
            raise errors.no_attribute(type(error.obj.value), error.name, _raised_at(error)) from error
        return
    files = [frame.f_code.co_filename for frame, _ in frames]
    in_library = source_lines.is_standard(files[-1]) and _holds_recorded(frames[-1][0])
    users = [k for k, file in enumerate(files) if not source_lines.is_foreign(file)]
    if not users or not ("Recorded" in str(error) or in_library):
        return
    last, callee = users[-1], rec.name
    if source_lines.is_standard("".join(files[last + 1 : last + 2])):
        entered = frames[last + 1][0]
        callee = f"{entered.f_globals.get('__name__')}.{entered.f_code.co_name}"
    frame, line = frames[last]
    raise errors.not_accepted(error, callee, (files[last], line, frame.f_code.co_name)) from error


def _holds_recorded(frame: FrameType) -> bool:
    return any(type(v) is Recorded or type(v) is Promoted for v in frame.f_locals.values())


def _raised_at(error: Exception) -> tuple:
    """The user's file and line that raised."""
    places = [(f.f_code.co_filename, line) for f, line in traceback.walk_tb(error.__traceback__)]
    return next((p for p in reversed(places) if not source_lines.is_inside(p[0])), places[0])


def _argument(rec: Recorder, position: int, x, text: str) -> Recorded:
    value = value_of(x)
    dtype = getattr(value, "dtype", None) or np.asarray(value).dtype
    if dtype.kind not in NUMBERS:
        raise errors.DtypeError(
            f"{rec.name}: argument {text} has dtype {dtype}, expected numbers or bools. Convert it, for "
            "example with x.astype(float)",
            here(),
        )
    if isinstance(value, np.ndarray):
        check_kind(value, f"{rec.name}: argument {text} is a {type(value).__name__}")
        dtype = native(dtype)
        value = np.asarray(value, dtype)
    r = Recorded(rec, input_node(np.shape(value), dtype, text), value, owned=False)
    r._argument = position
    return r


def _concrete(x):
    """A result with its concrete value; a plain array as a copy, as it may be a captured one."""
    return x.value if type(x) is Recorded else np.array(x) if isinstance(x, np.ndarray) else x


def note_reads_outside(inner: Recording, leaves: Sequence) -> None:
    """Note in the enclosing recording what the inner function looked at of its values."""
    outer = recorder.current()
    if outer is None:
        return
    outer.unstable += inner.unstable
    if not inner.reads:
        return
    graph = Graph(inner.graph.inputs, [r.node for r in inner.reads], inner.graph.name)
    values = inline(graph, inner.operands(leaves))
    for read, x in zip(inner.reads, values):
        if type(x) is Recorded:
            x._rec.note(Read(x.node, read.value, read.kind, read.loc))


def inline(graph: Graph, args: Sequence) -> list:
    """The outputs of the graph at these arguments (recorded or plain), recorded where an argument is."""
    if not any(type(x) is Recorded for x in args):
        return evaluate_graph(graph, args)

    def compute(values, options, site):
        return [x if x.ndim else x[()] for x in evaluate_graph(graph, values)]

    def make(rec, values, value, site):
        given = zip(graph.inputs, args, strict=True)
        inputs = {n: build.cast(as_node(rec, x, n.dtype), n.dtype) for n, x in given}

        def copy(n, nodes):
            if n.op == "const":
                return n
            return Node(n.op, nodes, n.attrs, n.shape, n.dtype, n.name, n.loc or site.loc, n.derived)

        return remade(graph.outputs, inputs, copy)

    return bind(evaluate_graph, args, {}, compute, make, views=False)


def apply_op(op: str, *args: Any, **attrs: Any) -> Recorded | tuple[Recorded, ...]:
    """One op: a recorded value, or several for a tuple node; plain if all operands are plain."""
    check_arguments(op, args, attrs)
    if not any(type(x) is Recorded for x in args):
        return evaluate(op, list(map(np.asarray, args)), attrs)

    def compute(values, options, site):
        return evaluate(op, values, attrs)

    def make(rec, values, value, site):
        dtypes = [x.dtype for x in args if hasattr(x, "dtype")]
        like = np.result_type(*dtypes) if dtypes else None
        nodes = tuple(as_node(rec, x, like) for x in args)
        shape, dtype = infer(op, nodes, attrs)
        node = Node(op, nodes, attrs, shape, dtype)
        if isinstance(dtype, tuple):
            return items(node)
        computed = input_node(np.shape(value), np.asarray(value).dtype)
        if (computed.shape, computed.dtype) != (shape, dtype):
            raise GraphError(f"op {op}: infer says {type_text(node)}, evaluate gives {type_text(computed)}")
        return node

    return bind(evaluate, args, {}, compute, make, views=False)


def input_names(f: Callable, tree: Tree) -> list[str]:
    """A name for each flat argument: the parameter's, with the path to a nested one, as in params_qkvw."""
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "arg")
    names = []
    for group, key, *path in tree.paths():
        if group == 0:
            first = positional[key] if key < len(positional) else f"{rest}_{key - len(positional)}"
        else:
            first = key
        text = "_".join(map(str, (first, *path)))
        names.append("".join(c if c.isalnum() or c == "_" else "_" for c in text))
    return names
