"""The table of ops: one row an op, and everything about an op in its row.

A row says how the op's type follows from its arguments' types (`infer`), how NumPy computes it (`evaluate`),
how it is spelled in emitted source (`code`), and how it is differentiated, once for both modes:

    elementwise   partials(out, *args)               d out / d argument, one each, as elementwise.py describes
    linear        transpose(g, out, *args, **attrs)  a gradient for each argument
    multilinear   transpose, as above: linear in each of `linear_in` while the others are held
    nonlinear     jvp(tangents, out, *args, **attrs) the tangent of out; reverse mode transposes it, unless
                                                     the row gives a `transpose` as well
    nondiff       nothing: comparisons, argmax, ... are piecewise constant
    structural    vjp_rule and jvp_rule, below

`linear_in` lists the arguments in which an op is linear; empty means all of them. A tangent of None is zero.
For an op with several results the jvp returns a tuple of tangents. Wherever a rule returns several things,
each may be None (zero) or a function of no arguments, which is called only if that one is wanted.

Rules are written in ops again, so derivatives of any order and all simplification come for free. A rule never
sums over broadcast axes and never casts: chain_rule.py does, once.

Ops that hold a graph (call, scan, ...) say both directions themselves, and these come before all else:

    vjp_rule(g, out, *args, wanted, **attrs)   a gradient for each argument. g is the gradient of out, for a
                                               tuple node a list of them or None; `wanted` has a bool for each
                                               argument
    jvp_rule(tangents, out, *args, **attrs)    the tangent of out, for a tuple node a tuple of them or None
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph import GraphError, Node, is_scalar_const
from ..hidden import Hidden, is_hidden

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


def none(n: Node) -> int:
    """Zero for any node: the default of columns that count something."""
    return 0


@dataclass(frozen=True)
class Leads:
    """How an op works where its arguments have more leading axes: one of the pairs of ops/leads.py."""

    batch: Callable | None = None  # many examples at once
    rows: Callable | None = None  # in blocks of rows


@dataclass
class Op:
    name: str
    kind: str  # elementwise | linear | multilinear | nonlinear | nondiff | structural
    infer: Callable  # (*nodes, **attrs) -> (shape, dtype), or (shapes, dtypes) for tuple nodes
    evaluate: Callable  # (*values, **attrs) -> array
    code: Any = None  # (*argument texts, **attrs) -> expression text; None: emitted as a call of evaluate
    linear_in: tuple[int, ...] = ()  # which arguments a linear or multilinear op is linear in
    partials: Callable | None = None
    # When 0 stays 0 though a partial is infinite or nan: ALWAYS, or of the tangents of SEVERAL arguments
    singular: str = ""
    transpose: Callable | None = None
    jvp: Callable | None = None
    vjp_rule: Callable | None = None
    jvp_rule: Callable | None = None
    ufunc: np.ufunc | None = None  # elementwise ops that are one NumPy ufunc
    # What computing it costs (ops/cost.py): how it is counted, and for "computes" the nanoseconds an element,
    # roughly: float32 in cache, NumPy 2.4's AVX-512 loops
    work: str = "computes"  # computes | streams | free | moves | scatters | reduces | multiplies
    cost: float = 1.0
    flops: Callable[[Node], float] = none  # floating-point operations in products of matrices
    # How emitted programs run it. An op that says nothing of these runs on whole arrays, and NumPy allocates
    # its result.
    view: bool = False  # computes nothing: NumPy hands out the argument's memory. The emitter knows how to
    streams: bool = False  # goes element by element: it broadcasts arguments, and may write over them
    reducer: str | None = None  # the ufunc whose `reduce` it is
    any_strides: bool = False  # any loop over real floats gives the same bits: IEEE 754 says which
    changes_first: bool = False  # copies its first argument, then changes a part of the copy
    has_out: bool = False  # NumPy writes the result into given memory
    scheduled_alone: bool = False  # long work that nothing joins: what it needs is computed just before
    gathers: bool = False  # takes elements out of its first argument at an array of indices
    # drop_unused(results that are read, attrs): attrs that leave out some of the others
    drop_unused: Callable | None = None
    # influence(flags of arguments, flags of a graph's outputs by those of its inputs, **attrs) -> flags of
    # results: which of them depend on an argument with a flag. None: all do
    influence: Callable | None = None
    leads: Leads = Leads()  # more leading axes: one of the pairs of ops/leads.py
    adds_axes: Callable[[Node], int] = none  # of how many axes, from the first on, it adds up all arguments
    product: Callable | None = None  # (*argument texts) -> texts of the two operands of np.matmul that it is
    # What passes may rely on
    commutes: str | None = None  # its arguments may be swapped: EXACTLY; NEARLY is but for the last bit
    shift: Callable | None = None  # one of the rules of ops/shifts.py
    # What becomes of a difference in the last bit (ops/exactness.py). discontinuous=False: a small relative
    # change of an argument makes a small one of the result
    discontinuous: bool = True
    exact_on: str = ""  # kinds of dtypes whose results are copies, compared or whole numbers: never rounded
    # How a program of Python floats spells it
    operator: str | None = None  # Python's, between the two arguments
    math: str | None = None  # a function of the math module
    needs: str | None = None  # a package besides NumPy, with which the row is loaded


EXACTLY, NEARLY = "exactly", "nearly"
ALWAYS, SEVERAL = "always", "several"
INTEGERS, REALS, EVERYWHERE = "biu", "biuf", "biufc"


class _Table(dict[str, Op]):
    def __missing__(self, name: str):
        near = difflib.get_close_matches(name, self)
        raise ValueError(f"no op {name!r} in the table" + ("; near it: " + ", ".join(near) if near else ""))


OPS: dict[str, Op] = _Table()
VIEWS: set[str] = set()  # names of the ops whose rows say `view`


def row(name: str, kind: str, **columns: Any) -> Op:
    """Add a row to the table. A second row of the same name is an error, not an override."""
    if name in OPS:
        raise ValueError(f"op {name!r} is already in the table")
    if kind in ("linear", "multilinear"):
        columns.setdefault("discontinuous", False)
    OPS[name] = op = Op(name, kind, **columns)
    if op.view:
        VIEWS.add(name)
    return op


def _no_op(*args, **attrs):
    raise GraphError("inputs and constants are not computed")


_NO_OP = Op("", "structural", infer=_no_op, evaluate=_no_op, work="free")


def facts(n: Node) -> Op:
    """The row of a node's op. Inputs and constants, which are no ops, get one that says nothing."""
    return OPS.get(n.op, _NO_OP)


def root(n: Node) -> Node:
    """The value that a chain of views looks at; n itself if it is no view."""
    while n.op in VIEWS:
        n = n.args[0]
    return n


def views_of(n: Node) -> list[Node]:
    """The views that lead from the root of n to n, the innermost first."""
    views: list[Node] = []
    while n.op in VIEWS:
        views.append(n)
        n = n.args[0]
    return views[::-1]


def float_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype in which functions of floats compute what they are given."""
    return dtype if dtype.kind in "fc" else np.dtype(np.float64)


def real_dtype(dtype: np.dtype) -> np.dtype:
    """That of the parts of a complex number; others as they are."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def infer(op: str, args: tuple, attrs: dict) -> tuple[tuple, Any]:
    """Shape and dtype of the result."""
    return OPS[op].infer(*args, **attrs)


def evaluate(op: str, values: Sequence, attrs: dict) -> Any:
    """The op on concrete values."""
    return OPS[op].evaluate(*values, **attrs)


def const(value: Any, dtype: DTypeLike | None = None, name: str | None = None) -> Node:
    """A constant: a Python scalar, in the dtype of its surroundings; or an array, which must not change."""
    if isinstance(value, (bool, int, float, complex)):
        like = 0.0 if type(value) is Hidden else value
        d = np.dtype(dtype) if dtype is not None else np.asarray(like).dtype
        return Node("const", (), {"value": value}, (), d, name)
    value = value if is_hidden(value) else np.asarray(value)
    if value.dtype.kind not in "biufc":
        raise TypeError(f"a constant of dtype {value.dtype}; only numbers and bools can be recorded")
    if dtype is not None and value.dtype != dtype:
        value = value.astype(dtype)
    plain = value if value.shape else value.item()
    return Node("const", (), {"value": plain}, value.shape, value.dtype, name)


def input_node(shape: Sequence[int], dtype: DTypeLike, name: str | None = None) -> Node:
    return Node("input", (), {}, tuple(shape), np.dtype(dtype), name)


def as_node(x: Any, like: np.dtype | None = None) -> Node:
    """Nodes as they are; Python scalars become constants of the dtype NumPy 2 would compute in (NEP 50)."""
    if isinstance(x, Node):
        return x
    if isinstance(x, (bool, int, float, complex)) and not isinstance(x, np.generic):
        return const(x, None if like is None else np.result_type(like, 0.0 if type(x) is Hidden else x))
    return const(x)


def apply(op: str, *args: Any, **attrs: Any) -> Node:
    """Make a node. Python scalars among the arguments take their dtype from the others."""
    for a in args:
        if not isinstance(a, Node):
            like = [a.dtype for a in args if isinstance(a, (Node, np.ndarray, np.generic))]
            ref = None if not like else like[0] if len(like) == 1 else np.result_type(*like)
            args = tuple([as_node(a, ref) for a in args])
            break
    try:
        shape, dtype = OPS[op].infer(*args, **attrs)
    except TypeError:
        check_arguments(op, args, attrs)
        raise
    return Node(op, args, attrs, shape, dtype)


def check_arguments(op: str, args: Sequence, attrs: Mapping[str, Any]) -> None:
    """Raise TypeError if the op takes another number of arguments, or other attributes."""
    signature = _signature(OPS[op].infer, OPS[op].ufunc)
    try:
        signature.bind(*args, **attrs)
    except TypeError as error:
        raise TypeError(f"op {op}{signature}: {error}") from None


@functools.cache
def _signature(infer: Callable, ufunc: np.ufunc | None) -> inspect.Signature:
    if ufunc is None:
        return inspect.signature(infer)
    names = ["x"] if ufunc.nin == 1 else [f"x{k + 1}" for k in range(ufunc.nin)]
    return inspect.Signature([inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names])


def takes_plain_numbers(args: Sequence[Node]) -> bool:
    """Whether the constants among these may be written as Python's numbers: there are arrays beside them,
    from which they take the dtype that they have. An int32 of 100 beside int8 would be an int8 otherwise.
    """
    others = [a.dtype for a in args if not is_scalar_const(a)]
    if not others:
        return False
    like = np.result_type(*others)
    return all(_takes(like, a.dtype) for a in args if is_scalar_const(a))


@functools.lru_cache(1024)
def _takes(like: np.dtype, dtype: np.dtype) -> bool:
    """Whether one of Python's numbers is of this dtype where it stands beside arrays of dtype `like`."""
    kind = {"f": float, "c": complex, "i": int, "u": int}.get(dtype.kind)
    return kind is None or np.result_type(like, kind(0)) == dtype


def is_elementwise(op: str) -> bool:
    """Whether the op works element by element, with its arguments broadcast."""
    r = OPS.get(op)  # inputs and constants are not ops
    return r is not None and (r.kind == "elementwise" or r.streams)
