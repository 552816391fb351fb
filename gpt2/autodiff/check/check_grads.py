"""Checks for users. check_grads(f, args) tests the derivatives of a function; check_backward(forward,
backward, cases) tests a backward written by hand, and says what is probably wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any

import numpy as np

from ..derive.differentiate import vjp_graph
from ..ops.interpret import evaluate_graph
from ..record.record import Recording, record
from ..tree import flatten, unflatten
from .by_hand import ByHand
from .corrections import correction
from .diagnose import OF_A_STEP, Problem, as_a_whole, likely_cause, paths, patterns, repeated
from .locate import where_it_begins
from .numeric import check_graph


def check_grads(
    f: Callable,
    args: Sequence,
    order: int = 2,
    modes: Sequence[str] = ("fwd", "rev"),
    *,
    rtol: float = 1e-6,
    seed: int = 0,
) -> None:
    """Raise GradientMismatch unless the derivatives of f at `args` are right.

    f       takes and returns arrays, floats, and nested tuples, lists and dicts of them
    args    the point, a tuple; float32 and complex64 are raised to double precision
    order   how many times to differentiate: 1, 2, ...
    modes   "fwd", "rev": which modes to check; for higher orders every combination of them
    rtol    largest difference allowed, relative to the largest entry of the derivative
    seed    of the random directions

    First derivatives are compared with central differences of f itself, with steps of 1e-3, and where these
    cross a kink of 1e-5. A function that is random or uses stop_gradient cannot be checked, and a derivative
    below 1e-12 of the values (that of log at 1e12) is missed. Raises AutodiffError if f cannot be recorded.

        >>> ad.check_grads(lambda x: np.sum(np.tanh(x) ** 2), (np.array([0.5, -1.0]),), order=2)
    """
    if not isinstance(args, (tuple, list)):
        kind = type(args).__name__
        raise TypeError(f"check_grads: args must be a tuple of arguments, got {kind}: write (x,)")
    leaves, tree = flatten(tuple(args))
    leaves = [in_double_precision(x) for x in leaves]
    rec = record(f, unflatten(tree, leaves))
    values = [*leaves, *(a for _, a in rec.captures)]

    def run(*values):
        # copies, which f may write to
        converted = [
            type(x)(v) if isinstance(x, (float, complex)) else np.array(v) for v, x in zip(values, leaves)
        ]
        results = rec.out_tree.leaves_of(f(*unflatten(tree, converted)))  # a number that is an int here too
        return [*results, *(converted[i] for i in rec.written)]

    wrt = [i for i, x in enumerate(leaves) if np.asarray(x).dtype.kind in "fc"]
    check_graph(rec.graph, values, order, modes, wrt=wrt, rtol=rtol, seed=seed, f=run)


def in_double_precision(x: Any) -> Any:
    """float16 and float32 as float64, complex64 as complex128, anything else as it is."""
    dtype = np.asarray(x).dtype
    if isinstance(x, (float, complex)) or dtype.kind not in "fc":
        return x
    return np.asarray(x, np.result_type(dtype, np.float64))


MANY = 5  # gradients of a function from which on it counts as a model: the wrong step is searched for

# --- a backward written by hand -------------------------------------------------------------------------


class BackwardMismatch(AssertionError):
    """A hand-written backward that is not the derivative of its forward.

    >>> def forward(x, w):
    ...     return x @ w
    >>> def backward(dout, x, w):
    ...     return dout @ w.T, dout.T @ x
    >>> cases = [(np.arange(6.0).reshape(2, 3), np.ones((3, 4)))]
    >>> try:
    ...     ad.check_backward(forward, backward, cases)
    ... except ad.BackwardMismatch as error:
    ...     print(str(error).split(":")[0])
    backward is not the derivative of its forward
    """


def check_backward(
    forward: Callable, backward: Callable, cases: Iterable, *, rtol: float | None = None, seed: int = 0
) -> None:
    """Compare a backward written by hand with the derivative of its forward; raise BackwardMismatch.

    forward    forward(*inputs, **static) -> out, or -> (out, saved) with saved a tuple
    backward   backward(dout, saved, **static) -> one gradient per input, None for integers;
               where forward saves nothing, backward(dout, *inputs, **static)
    cases      each a tuple of inputs, or a pair (inputs, static) with static a dict. Use sizes that all
               differ, and values that a typical call has
    rtol       largest difference allowed, relative to the largest entry; by default 1e-9 for float64 inputs
               and 2e-4 for float32

    Inputs may be nested tuples, lists and dicts of arrays, such as the parameters of a model; the gradient of
    one has the same structure. Of a function with many parameters the report begins with the step whose
    backward is wrong: the backward of a whole model can be checked in one call.

    Each case gets a random output gradient. The report says for each wrong gradient which input it is, at how
    many entries and where most it is wrong, which line of the backward makes it wrong (if the backward can be
    recorded), and what is wrong there: a correction of just this makes the gradient right.

        >>> def forward(x, w):
        ...     return x @ w
        >>> def backward(dout, x, w):
        ...     return dout @ w.T, dout.T @ x
        >>> cases = [(np.arange(6.0).reshape(2, 3), np.ones((3, 4)))]
        >>> try:
        ...     ad.check_backward(forward, backward, cases)
        ... except AssertionError as error:
        ...     print(error)
        backward is not the derivative of its forward:
          case 0, gradient 1 (w): it has shape (4, 3), expected (3, 4)
              in backward (<doctest check_backward[1]>:2): return dout @ w.T, dout.T @ x
              likely cause: it is transposed
    """
    for name, f in (("forward", forward), ("backward", backward)):
        if not callable(f):
            raise TypeError(f"check_backward: {name} is {f!r}, expected a function")
    if not isinstance(cases, Iterable) or isinstance(cases, np.ndarray):
        raise TypeError(f"check_backward: cases is {cases!r}, expected a list of tuples of inputs")
    lines: list[str] = []
    for number, case in enumerate(cases):
        if not isinstance(case, (tuple, list)):
            kind = type(case).__name__
            raise TypeError(
                f"check_backward: case {number} is {kind}, expected a tuple of inputs: write [(x,)], "
                "or [(x, y)] for two inputs"
            )
        has_static = len(case) == 2 and isinstance(case[0], (tuple, list)) and isinstance(case[1], dict)
        inputs, static = case if has_static else (case, {})
        rng = np.random.default_rng(seed + number)
        complaints = check_one(forward, backward, tuple(inputs), static, rtol, rng)
        lines += [f"  case {number}, {line}" for line in complaints]
    if lines:
        name = getattr(backward, "__name__", "backward")
        raise BackwardMismatch("\n".join([f"{name} is not the derivative of its forward:", *lines]))


def check_one(
    forward: Callable,
    backward: Callable,
    inputs: Sequence,
    static: Mapping[str, Any],
    rtol: float,
    rng: np.random.Generator,
) -> list[str]:
    """The errors of one case, a line each."""
    result = forward(*inputs, **static)
    saves = _saves(result)
    out = np.asarray(result[0] if saves else result)
    dout = rng.standard_normal(out.shape).astype(out.dtype)
    leaves, tree = flatten(tuple(inputs))
    paths = tree.paths()
    dout_before, *inputs_before = [np.array(x) for x in (dout, *leaves)]
    try:
        got = backward(dout, result[1], **static) if saves else backward(dout, *inputs, **static)
    except Exception as error:
        arguments = "dout, saved" if saves else "dout, *inputs"
        error.add_note(f"check_backward: the backward is called with {arguments}")
        raise

    def of_inputs(gradients):
        gradients = gradients if isinstance(gradients, (tuple, list)) else (gradients,)
        return [_at(gradients, path) for path in paths]

    got = got if isinstance(got, (tuple, list)) else (got,)
    if len(got) != len(inputs):
        count = f"gradients returned: {len(got)}, inputs: {len(inputs)}"
        return [f"{count}: return one for each, None for integers"]
    names = ["dout", *(f"input {i}" for i in range(len(leaves)))]
    lines = [
        f"{name} is written to"
        for name, x, before in zip(names, (dout, *leaves), (dout_before, *inputs_before))
        if not np.array_equal(x, before, equal_nan=before.dtype.kind in "fc")
    ]
    double = [in_double_precision(x) for x in inputs_before]

    @wraps(forward)  # for the names of the inputs
    def output(*xs):
        result = forward(*xs, **static)
        return result[0] if _saves(result) else result

    rec = record(output, tuple(unflatten(tree, double)))

    @cache
    def by_hand():
        with suppress(Exception):  # it is run in double precision, for which it may not be made
            exact = tuple(unflatten(tree, [np.array(x) for x in double]))
            again = forward(*exact, **static)
            args = (again[1],) if saves else exact
            return ByHand.recorded(backward, (in_double_precision(dout_before), *args), static, of_inputs)
        return None

    case = Compared(rec, inputs_before, double, dout_before, of_inputs(got), rtol, by_hand)
    complaints = [case.wrong(i) for i in range(len(paths))]
    for inp, path, texts in zip(rec.graph.inputs, paths, complaints):
        name = f"{path[0]} ({inp.name})" if inp.name else f"{path[0]}"
        lines += [f"gradient {name if len(path) == 1 else f'of {inp.name}'}: {text}" for text in texts]
    return [*case.begins_at(), *lines] if any(complaints) else lines


def _saves(result) -> bool:
    """Whether a forward returns (out, saved)."""
    return isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], tuple)


def _at(got, path: tuple):
    """The gradient at the path of an input, or None."""
    for key in path:
        if got is None:
            return None
        try:
            got = got[key]
        except (KeyError, IndexError, TypeError):
            return None
    return got


@dataclass
class Compared:
    """Gradients by hand and derived, of one function at one point.

    inputs, values   the arrays that the backward was given, and the same in double precision
    got, right       a gradient for each of them, by hand and derived: None where there is none
    by_hand          () -> the backward by hand, recorded; None if it cannot be
    """

    rec: Recording
    inputs: Sequence
    values: Sequence
    dout: np.ndarray
    got: list
    rtol: float | None
    by_hand: Callable[[], ByHand | None]

    def __post_init__(self):
        self.everything = [*self.values, *(a for _, a in self.rec.captures)]
        wrt = [i for i, x in enumerate(self.values) if np.asarray(x).dtype.kind in "fc"]
        outputs = evaluate_graph(vjp_graph(self.rec.graph, wrt, [0]), [*self.everything, self.dout])
        gradients = dict(zip(wrt, outputs[len(self.rec.graph.outputs) :]))
        self.right = [gradients.get(i) for i in range(len(self.values))]

    def tolerance(self, single: bool) -> float:
        return self.rtol if self.rtol is not None else 2e-4 if single else 1e-9

    def begins_at(self) -> list[str]:
        """Lines on which step of a long function is wrong; none if it has few arguments."""
        pairs = zip(self.got, self.right)
        same = [None if g is None or w is None or np.shape(g) != w.shape else np.asarray(g) for g, w in pairs]
        if sum(g is not None for g in same) < MANY:
            return []
        graph = self.rec.graph
        cotangent = np.asarray(self.dout, graph.outputs[0].dtype)
        tolerance = self.tolerance(any(g is not None and g.dtype != np.float64 for g in same))
        return where_it_begins(graph, self.everything, cotangent, same, self.right, tolerance)

    def wrong(self, i: int) -> list[str]:
        """The errors of one gradient, as lines."""
        x, g, want = self.inputs[i], self.got[i], self.right[i]
        if want is None or g is None:
            if want is None:
                return [] if g is None else ["an integer input has no gradient: return None"]
            return ["None is returned"]
        g = np.asarray(g)
        lines = []
        if g.dtype != x.dtype:
            dtypes = f"it has dtype {g.dtype}, and its input {x.dtype}"
            lines.append(f"{dtypes}: a constant or a sum is in another precision")
        tolerance = self.tolerance(x.dtype in (np.float16, np.float32, np.complex64))
        if g.shape != want.shape:
            text = f"it has shape {g.shape}, expected {want.shape}"
        else:
            apart = np.where(np.isfinite(g), np.abs(g - want), np.inf)
            bad = apart > tolerance * np.max(np.abs(want), initial=0.0)
            if not bad.any():
                return lines
            at = np.unravel_index(np.argmax(apart), apart.shape)
            where = f", most at {list(map(int, at))}" if at else ""
            count = f"wrong at {np.count_nonzero(bad)} of {bad.size}{where}"
            text = f"{count}: {g[at]:.6g}, should be {want[at]:.6g}"
        problem = Problem(self.rec.graph, self.everything, i, self.dout.astype(want.dtype), self.right)
        many = sum(w is not None for w in self.right) >= MANY
        why = [] if many else self.reasons(problem, g, max(tolerance, 1e-9))
        return [*lines, "\n      ".join([text, *why])]

    def reasons(self, problem: Problem, g: np.ndarray, tolerance: float) -> list[str]:
        """The line of the backward that makes a gradient wrong, and the likely cause, as lines."""

        def cause(*kinds: Callable) -> str | None:
            return likely_cause(problem, g, tolerance, kinds)

        by_hand = self.by_hand()
        edit, last = (by_hand and correction(by_hand, problem)) or (None, None)
        whole = cause(as_a_whole, repeated)
        simple = edit.text if edit and edit.simple else None
        text = whole or simple or cause(paths) or (edit and edit.text) or cause(*OF_A_STEP, patterns)
        line = edit or (last if whole or g.shape != problem.expected.shape else None)
        place = [by_hand.place(line.line)] if line else []
        return place + ([f"likely cause: {text}"] if text else [])
