"""Elementwise ops: NumPy's ufuncs, where, cast. Arguments broadcast; the result has the broadcast shape."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from .table import Op, row


def broadcast_shape(*nodes) -> tuple[int, ...]:
    return np.broadcast_shapes(*(n.shape for n in nodes))


@lru_cache(maxsize=4096)
def ufunc_dtype(ufunc: np.ufunc, dtypes: tuple) -> np.dtype:
    return ufunc.resolve_dtypes((*dtypes, None))[-1]


def ufunc_row(name: str, kind: str = "elementwise", *, partials=None, cost: float = 1.0, samples=None) -> Op:
    """A row for the NumPy ufunc of that name (one result)."""
    ufunc = getattr(np, name)
    return row(
        name,
        kind,
        infer=lambda *args: (broadcast_shape(*args), ufunc_dtype(ufunc, tuple(a.dtype for a in args))),
        evaluate=ufunc,
        code=lambda *args: f"np.{name}({', '.join(args)})",
        partials=partials,
        ufunc=ufunc,
        cost=cost,
        samples=samples or [],
    )


# arithmetic. Partials are filled in beside each op: d out / d argument
ufunc_row("add", partials=lambda out, a, b: (1.0, 1.0), cost=0.15)
ufunc_row("subtract", partials=lambda out, a, b: (1.0, -1.0), cost=0.15)
ufunc_row("multiply", partials=lambda out, a, b: (b, a), cost=0.15)
