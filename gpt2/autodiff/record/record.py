"""Run a function under observation, and what can be done with the graph of it: `record` and `inline`.

rec = record(f, (x, w))
rec.graph        inputs: the array and float arguments, flattened; then captured arrays; then values of an
                 enclosing recording. Outputs: the results of f, flattened; then the final contents of the
                 arguments that f wrote to
rec.in_tree      the structure of (args, kwargs), with everything that is static
rec.out_tree     the structure of the results
rec.captures     (input, the array itself) for arrays from outside that have another owner
rec.lifted       (input, outer recorded value)
rec.written      flat positions of the arguments that f wrote to, in the order of their outputs
rec.reads        values that f looked at (`if x > 0`): another run takes the same path if they are the same
rec.asked        "layout": f asked how arrays lie in memory; "memory": whether they share it
rec.unstable     reasons why another run might give another graph though the reads are the same
rec.results      what f returned, with concrete values
rec.contents     the final concrete contents of the arguments written to
rec.draws        (k, draw): input k of the graph, one of the captures, is what that call of a generator gave
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np

from ..errors import AutodiffError, ConversionError, DtypeError, lost_in_scipy, no_attribute, takes_none
from ..graph import Graph, Node
from ..ops import build, evaluate, infer, input_node
from ..ops.interpret import evaluate_graph, last_uses
from ..tree import Tree, flatten, is_dynamic, unflatten
from ..undo import undoing
from . import conversions, recording, source_lines
from .containers import check_unchanged, with_tuples
from .draws import Draw, Draws, exchanged_in
from .recording import NUMBERS, ActiveRecording, Read, check_kind, innermost, label, layout_of, native
from .results import check_results
from .source_lines import here, observer, site
from .types_asked import check_types
from .unevaluated import Unknown, hangs_on
from .value import Recorded, as_node, value_of

__all__ = ["Recorded", "Recording", "apply_op", "evaluate_graph", "inline", "record", "record_pure"]


@dataclass
class Recording:
    """What `record` gives; see the head of this file."""

    graph: Graph
    in_tree: Tree
    out_tree: Tree
    captures: list[tuple[Node, np.ndarray]]
    lifted: list[tuple[Node, Recorded]]
    written: list[int]
    reads: list[Read]
    unstable: list[str]
    results: Any
    contents: list[np.ndarray]
    draws: list[tuple[int, Draw]] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    @property
    def value_dependent(self) -> bool:
        """Whether f looked at a value."""
        return bool(self.reads)

    @property
    def n_results(self) -> int:
        """How many outputs are results; the rest are arguments written to."""
        return self.out_tree.size

    def operands(self, leaves: Sequence) -> list:
        """The graph's inputs at these flat arguments: they, the captured arrays, the lifted values."""
        return [*leaves, *(array for _, array in self.captures), *(x for _, x in self.lifted)]


def record_pure(
    f: Callable, args: Sequence, kwargs: dict | None = None, *, name: str | None = None
) -> Recording:
    """`record` for a function without side effects: it may run twice, and `results` mean nothing.

    The first run is dry (unevaluated.py): its time hardly depends on the size of the arrays.
    """
    try:
        with np.errstate(all="ignore"):
            return record(f, args, kwargs, name=name, dry=True)
    except (Exception, Unknown):  # or the stand-ins made f fail: a real error comes again
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
    """Record one run of f(*args, **kwargs). What f raises comes through.

    dry     leave large values uncomputed; raises dry.Unknown if f looks at one
    draws   takes note of what f draws from random generators: that becomes inputs of the graph
    """
    leaves, in_tree = flatten((tuple(args), kwargs or {}))
    name = name or getattr(f, "__name__", None) or type(f).__name__
    rec = ActiveRecording(name if name.isidentifier() else "f", dry)
    rec.draws, rec.given = draws, leaves
    given_tree = in_tree if draws is None else exchanged_in(in_tree)
    for i, (x, text) in enumerate(zip(leaves, input_names(f, in_tree))):
        rec.arguments.append(_argument(rec, i, x, text))
    inputs = [x.node for x in rec.arguments]
    undo = functools.partial(_end, rec, recording.state())
    with undoing(undo), undoing(undo):
        recording.push(rec)
        conversions.begin(rec)
        given = with_tuples(unflatten(given_tree, rec.arguments), (tuple(args), kwargs or {}))
        check_types(f, *given)
        out_leaves, out_tree = flatten(_call(rec, f, given), _is_result)
        check_unchanged(f, rec.name, given, given_tree, rec.arguments)
        check_results(rec, out_tree)
        outputs = [as_node(rec, x) for x in out_leaves]
        results = unflatten(out_tree, [_concrete(x) for x in out_leaves])
        outputs += [rec.arguments[i].node for i in rec.written]
        contents = [rec.arguments[i].value for i in rec.written]
    out_leaves.clear()
    if rec.layout is not None and rec.layout != layout_of(leaves):
        rec.unstable.append("it sets the flags of an argument")
    captures = rec.close()
    drawn = _drawn(rec, len(inputs) + len(captures))
    captures += [(draw.node, draw.value) for _, draw in drawn]
    lifted = list(rec.lifted.values())
    graph = Graph([*inputs, *(n for n, _ in captures), *(n for n, _ in lifted)], outputs, rec.name)
    done = Recording(
        graph,
        in_tree,
        out_tree,
        captures,
        lifted,
        rec.written,
        rec.reads,
        rec.unstable,
        results,
        contents,
        drawn,
        rec.asked,
    )
    pass_on(done, leaves)
    return done


def _end(rec: ActiveRecording, before: tuple) -> None:
    """Restore what the recording changed. `before` is the state of its thread."""
    conversions.end(rec)
    recording.restore(before)
    rec.active = False
    rec.arguments, rec.given = [], ()  # lets go of the arrays


def _drawn(rec: ActiveRecording, start: int) -> list[tuple[int, Draw]]:
    """The draws of a recording, numbered from `start`."""
    made = [] if rec.draws is None else rec.draws.made
    nodes = {draw.node for draw in made}
    if nodes and any(hangs_on(r.node, nodes) for r in rec.reads):
        rec.unstable.append("it looks at random numbers that it drew")
    if rec.drew_plainly:
        rec.unstable.append(f"it uses {rec.drew_plainly[0]} of a random generator")
    return list(enumerate(made, start))


@observer
def _call(rec: ActiveRecording, f, arguments):
    args, kwargs = arguments
    try:
        return f(*args, **kwargs)
    except Exception as error:
        if rec.refused is not None and error is not rec.refused and _raised_at(error) == rec.refused.loc[:2]:
            raise rec.refused from None  # where an item is set, NumPy covers our error with its own
        if isinstance(error, AutodiffError):
            raise
        _blame_scipy(rec, error)
        if isinstance(error, AttributeError) and type(getattr(error, "obj", None)) is Recorded:
            raise no_attribute(type(error.obj.value), error.name, _raised_at(error)) from error
        if isinstance(error, TypeError):
            _blame_recorded(rec, error)
            _blame_containers(args, error)
        raise


def _blame_containers(args: tuple, error: TypeError) -> None:
    """Raise where an operator failed that took a list or tuple of numbers for an array."""
    names = {type(x).__name__ for x in args if type(x) in (list, tuple)}
    about = f"'(?:{'|'.join(names)})'|sequence by"
    if names and re.search(about, str(error)):
        raise ConversionError(
            f"{error}; an argument is a {names.pop()}, which the function gets as such: pass np.array(...)",
            (*_raised_at(error), ""),
        ) from error


def _blame_scipy(rec: ActiveRecording, error: Exception) -> None:
    """Raise where it was SciPy that failed, with a recorded value in its hands: its code in C takes none."""
    if isinstance(error, SystemError) and rec.refused is not None:  # from a function that C called
        raise rec.refused from None
    if isinstance(error, (TypeError, AttributeError)):
        found = source_lines.scipy_in(error.__traceback__)
        if found is not None and _holds_recorded(found[0]):
            raise lost_in_scipy(*found[1:]) from error


def _blame_recorded(rec: ActiveRecording, error: TypeError) -> None:
    """Raise where Python, or its standard library, was given a recorded value that it cannot take."""
    traces, trace = [], error.__traceback__
    while trace is not None:
        traces.append(trace)
        trace = trace.tb_next
    users = [t for t in traces if not source_lines.is_foreign(t.tb_frame.f_code.co_filename)]
    inner = traces[-1].tb_frame
    in_library = source_lines.is_standard(inner.f_code.co_filename) and _holds_recorded(inner)
    if not users or not ("Recorded" in str(error) or in_library):
        return
    last = users[-1]
    code, library = last.tb_frame.f_code, traces[traces.index(last) + 1 :]
    what = rec.name
    if library and source_lines.is_standard(library[0].tb_frame.f_code.co_filename):
        entered = library[0].tb_frame
        what = f"{entered.f_globals.get('__name__')}.{entered.f_code.co_name}"
    raise takes_none(error, what, (code.co_filename, last.tb_lineno, code.co_name)) from error


def _holds_recorded(frame: FrameType) -> bool:
    return any(type(v) is Recorded for v in frame.f_locals.values())


def _raised_at(error: Exception) -> tuple:
    """File and line of the user's that raised."""
    trace: Any = error.__traceback__
    found: tuple = ()
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not found or not source_lines.is_inside(file):
            found = file, trace.tb_lineno
        trace = trace.tb_next
    return found


def _argument(rec: ActiveRecording, position: int, x, text: str) -> Recorded:
    """The recorded value that stands for one flat argument."""
    value = value_of(x)
    dtype = getattr(value, "dtype", None) or np.asarray(value).dtype
    if dtype.kind not in NUMBERS:
        raise DtypeError(
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
    """A result as NumPy would give it; a plain array as a copy, so that what was captured stays as it is."""
    return x.value if type(x) is Recorded else np.array(x) if isinstance(x, np.ndarray) else x


def _is_result(x) -> bool:
    return type(x) is Recorded or is_dynamic(x)


def pass_on(inner: Recording, leaves: Sequence) -> None:
    """Note in an enclosing recording what the inner function looked at, as far as it knows the values."""
    outer = recording.current()
    if outer is None:
        return
    outer.unstable += inner.unstable
    for question in inner.asked:
        outer.ask(question)
    if not inner.reads:
        return
    graph = Graph(inner.graph.inputs, [r.node for r in inner.reads], inner.graph.name)
    values = inline(graph, inner.operands(leaves))
    for read, x in zip(inner.reads, values):
        if type(x) is Recorded:
            x._rec.note(Read(x.node, read.value, read.kind, read.loc))


def inline(graph: Graph, args: Sequence) -> list:
    """The outputs of the graph at these arguments (recorded or plain), recorded where an argument is.

    The graph's nodes are made again, in the innermost recording that an argument belongs to, and computed.
    """
    recorded = [x for x in args if type(x) is Recorded]
    if not recorded:
        return evaluate_graph(graph, args)
    rec = innermost(recorded)
    rec.check_computed()
    made: dict[Node, Node] = {}
    values: dict[Node, Any] = {}
    for n, x in zip(graph.inputs, args, strict=True):
        made[n] = build.cast(as_node(rec, x, n.dtype), n.dtype)
        value = value_of(x)
        values[n] = value if getattr(value, "dtype", None) == n.dtype else np.asarray(value, n.dtype)[()]
    drop = last_uses(graph)
    where = site()
    for n in graph.nodes:
        if n.op == "const":
            made[n], values[n] = n, np.asarray(n.value, n.dtype)
        elif n.op != "input":
            made[n] = Node(
                n.op,
                tuple([made[a] for a in n.args]),
                n.attrs,
                n.shape,
                n.dtype,
                n.name,
                n.loc or where.loc,
                n.derived,
            )
            values[n] = evaluate(n.op, [values[a] for a in n.args], n.attrs)
            for a in drop.get(n, ()):
                del values[a]
    return [_result(rec, made[o], values[o]) for o in graph.outputs]


def apply_op(op: str, *args: Any, **attrs: Any) -> Recorded | tuple[Recorded, ...]:
    """One op of the table on recorded or plain operands: a recorded value, or for a tuple node several. Where
    all are plain, what the row evaluates.
    """
    recorded = [x for x in args if type(x) is Recorded]
    if not recorded:
        return evaluate(op, list(map(np.asarray, args)), attrs)
    rec = innermost(recorded)
    rec.check_computed()
    dtypes = [x.dtype for x in args if hasattr(x, "dtype")]
    like = np.result_type(*dtypes) if dtypes else None
    nodes = tuple(as_node(rec, x, like) for x in args)
    shape, dtype = infer(op, nodes, attrs)
    node = Node(op, nodes, attrs, shape, dtype)
    label(node, site())
    value = evaluate(op, [value_of(x) for x in args], attrs)
    if not isinstance(dtype, tuple):
        return _result(rec, node, value)
    return tuple(_result(rec, build.item(node, i), v) for i, v in enumerate(value))


def _result(rec: ActiveRecording, node: Node, value) -> Recorded:
    """A result whose array may be shared with others: it is copied before the first write to it."""
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        value = value.copy()
    return Recorded(rec, node, value, owned=False)


def input_names(f: Callable, tree: Tree) -> list[str]:
    """A name for each flat argument: the parameter's, or the way to a nested one, as in params_qkvw."""
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
