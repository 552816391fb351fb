"""The table of ops: one row an op, and everything about an op in its row.

A row says how the op's type follows from its arguments' types (`infer`), how NumPy computes it (`evaluate`), how it
is spelled in emitted source (`code`), and how it is differentiated, once for both modes:

    elementwise   partials(out, *args)           -> one expression per argument: d out / d arg, or None where it is 0
    linear        transpose(g, out, *args, **attrs)      -> gradients per argument (None for those it is not linear in)
    multilinear   transpose, as above: linear in each of `linear_in` while the others are held
    nonlinear     jvp(tangents, out, *args, **attrs)     -> tangent of out; reverse mode transposes it
    nondiff       comparisons, argmax, ...: the derivative is zero because the function is piecewise constant

Rules are written in ops again, so derivatives of any order and all simplification come for free. A rule never sums
over broadcast axes: the differentiator does, once (`differentiate.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable

import numpy as np

from ..graph import Node


@dataclass
class Op:
    name: str
    kind: str  # elementwise | linear | multilinear | nonlinear | nondiff | structural
    infer: Callable  # (*nodes, **attrs) -> (shape, dtype), or (shapes, dtypes) for tuple nodes
    evaluate: Callable  # (*values, **attrs) -> array
    code: Any = None  # (*argument texts, **attrs) -> expression text; None: emitted as a call of evaluate
    linear_in: tuple[int, ...] = ()  # which arguments a linear or multilinear op is linear in
    partials: Callable | None = None
    transpose: Callable | None = None
    jvp: Callable | None = None
    ufunc: np.ufunc | None = None  # elementwise ops that are one NumPy ufunc
    cost: float = 1.0  # nanoseconds an element, roughly: for keep-or-recompute
    samples: list = field(default_factory=list)  # arguments the generated derivative tests use


OPS: dict[str, Op] = {}


def row(name: str, kind: str, **columns) -> Op:
    """Add a row to the table. A second row of the same name is an error, not an override."""
    if name in OPS:
        raise ValueError(f"op {name!r} stands in the table already")
    OPS[name] = op = Op(name, kind, **columns)
    return op


def infer(op: str, args: tuple, attrs: dict):
    """Shape and dtype of the result."""
    return OPS[op].infer(*args, **attrs)


def evaluate(op: str, values, attrs: dict):
    """The op on concrete values."""
    return OPS[op].evaluate(*values, **attrs)


def const(value, dtype=None, name: str | None = None) -> Node:
    """A constant: a Python scalar (given the dtype of its surroundings) or an array, which must not change."""
    if isinstance(value, (bool, int, float, complex)):
        d = np.dtype(dtype) if dtype is not None else np.asarray(value).dtype
        return Node("const", (), {"value": value}, (), d, name)
    value = np.asarray(value)
    if dtype is not None and value.dtype != dtype:
        value = value.astype(dtype)
    return Node("const", (), {"value": value if value.ndim else value.item()}, value.shape, value.dtype, name)


def input_node(shape, dtype, name: str | None = None) -> Node:
    return Node("input", (), {}, tuple(shape), np.dtype(dtype), name)


def as_node(x, like: np.dtype | None = None) -> Node:
    """Nodes as they are; Python scalars become constants of the dtype NumPy 2 would compute in (NEP 50)."""
    if isinstance(x, Node):
        return x
    if isinstance(x, (bool, int, float, complex)) and not isinstance(x, np.generic):
        return const(x, None if like is None else np.result_type(like, x))
    return const(x)


def apply(op: str, *args, **attrs) -> Node:
    """Make a node. Python scalars among the arguments take their dtype from the others."""
    like = [a.dtype for a in args if isinstance(a, Node)] or [np.asarray(a).dtype for a in args if isinstance(a, np.ndarray)]
    if any(not isinstance(a, Node) for a in args):
        ref = np.result_type(*like) if like else None
        args = tuple(as_node(a, ref) for a in args)
    shape, dtype = infer(op, args, attrs)
    return Node(op, tuple(args), attrs, shape, dtype)
