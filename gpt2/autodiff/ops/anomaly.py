"""Finds where a nan or an infinity comes from.

    with ad.detect_anomaly():
        ad.grad(f)(x)           # raises AnomalyError: f.py:12: log made -inf at [3] of ..., from x = 0

Within the context every program is first followed op by op. Where one of its results is not finite, the
error names the first op on the way there that made something not finite out of finite numbers, with the
line of the function it stands for: for a gradient, that of the forward statement. Infinities that no result
shows (a mask, a branch not taken) are no anomaly. Results are those of the program itself, to the last bit;
it takes several times as long. Functions of plain floats run as `math` code, and are followed by NumPy's
own errors there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import AutodiffError
from ..graph import Graph, Node, node_names
from . import evaluate
from .interpret import last_uses


class AnomalyError(AutodiffError, FloatingPointError):
    """A nan or an infinity in a result of a program, traced to the op that made it.

    >>> slope = ad.grad(lambda x: np.sum(np.sqrt(x)))
    >>> try:
    ...     with np.errstate(all="ignore"), ad.detect_anomaly():
    ...         g = slope(np.array([1.0, 0.0]))
    ... except ad.AnomalyError as error:
    ...     print(str(error).partition(": ")[2])
    divide made inf at [1] of t3 float64 (2,), from the number = 0.5, t1 = 0; in f_grad
    """


def follow(graph: Graph, arrays: Sequence, name: str) -> None:
    """Evaluate a graph op by op; raise AnomalyError where a result is not finite."""
    names = node_names(graph)
    drop = last_uses(graph)
    values: dict[Node, np.ndarray] = {n: np.asarray(x, n.dtype) for n, x in zip(graph.inputs, arrays)}
    origin: dict[Node, Node] = {}  # value that is not finite -> the oldest on the way to it with none before
    blame: dict[Node, str] = {}  # of those oldest
    for n in graph.nodes:
        if n.op == "const":
            values[n] = np.asarray(n.value, n.dtype)
        elif n.op != "input":
            with np.errstate(all="ignore"):
                values[n] = evaluate(n.op, [values[a] for a in n.args], n.attrs)
        at = _first_bad(values[n])
        if at is not None:
            before = [origin[a] for a in n.args if a in origin]
            origin[n] = min(before, key=lambda a: a.id, default=n)
            if not before:
                blame[n] = _blame(n, at, values, names, name)
        for a in drop.get(n, ()):
            del values[a]
    for o in graph.outputs:
        if o in origin and o.op not in ("input", "const"):
            raise AnomalyError(blame[origin[o]], origin[o].loc)


def _first_bad(value) -> tuple | None:
    """(index, number) of the first entry that is not finite."""
    for part in value if isinstance(value, tuple) else (value,):
        part = np.asarray(part)
        if part.dtype.kind in "fc" and not np.isfinite(part).all():
            at = np.unravel_index(np.argmin(np.isfinite(part)), part.shape)
            return tuple(map(int, at)), part[at]
    return None


def _blame(n: Node, at, values, names, program: str) -> str:
    index, number = at
    where = f" at {list(index)}" if index else ""
    shape = "" if isinstance(n.dtype, tuple) else f" {n.dtype} {n.shape}"
    if n.op == "input":
        return f"{program}: its argument {names[n]}{shape} holds {number}{where} already"
    given = ", ".join(f"{_name(a, names)} {_entry(values[a], index)}" for a in n.args[:3])
    return f"{n.op} made {number}{where} of {_name(n, names)}{shape}, from {given}; in {program}"


def _name(n: Node, names) -> str:
    return "the number" if n.op == "const" and n.shape == () else names[n]


def _entry(value, index) -> str:
    """The entry that went into this one, where the value lines up with it; else the range of the value."""
    if isinstance(value, tuple):
        return "(several arrays)"
    value = np.asarray(value)
    if value.ndim <= len(index):
        tail = index[len(index) - value.ndim :]
        tail = tuple(0 if m == 1 else i for i, m in zip(tail, value.shape))
        if all(i < m for i, m in zip(tail, value.shape)):
            return f"= {value[tail]:.6g}" if value.dtype.kind in "fc" else f"= {value[tail]}"
    return f"from {value.min():.6g} to {value.max():.6g}" if value.size else "(empty)"
