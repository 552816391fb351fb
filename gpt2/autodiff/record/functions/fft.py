"""Handlers for numpy.fft: the transforms along one axis, of which NumPy composes the others."""

from __future__ import annotations

import numpy as np

from ...graph import Node
from ...ops import apply, build
from ..dispatch import handles
from .shape import axis_of


def transform(x: Node, kind: str, n: int | None, axis: int, norm: str | None) -> Node:
    axis = axis_of(-1 if axis is None else axis, x.ndim)
    if n is None:
        n = x.shape[axis] if kind != "irfft" else 2 * (x.shape[axis] - 1)
    if x.dtype.kind not in "fc":
        x = build.cast(x, float)
    if kind == "rfft" and x.dtype.kind == "c":
        x = build.real(x)
    return apply("fft", x, kind=kind, n=int(n), axis=axis, norm=norm or "backward")


def _one(kind: str):
    def handler(a, n=None, axis=-1, norm=None, out=None):
        return transform(a, kind, n, axis, norm)

    return handler


for _kind in ("fft", "ifft", "rfft", "irfft"):
    handles(getattr(np.fft, _kind))(_one(_kind))
