"""Handlers for numpy.fft: everything as transforms along one axis after another."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...graph import Node
from ...ops import apply, build
from ...ops.fft import OPPOSITE
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


@handles(np.fft.hfft)
def hfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None, out: Any = None) -> Node:
    return transform(build.conjugate(a), "irfft", n, axis, OPPOSITE[norm or "backward"])


@handles(np.fft.ihfft)
def ihfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None, out: Any = None) -> Node:
    return build.conjugate(transform(a, "rfft", n, axis, OPPOSITE[norm or "backward"]))


def lengths(x: Node, s: Any, axes: Any) -> list[tuple[int | None, int]]:
    """The transforms to make, as pairs (length, axis)."""
    if axes is None:
        axes = range(x.ndim) if s is None else range(-len(s), 0)
    axes = [axis_of(a, x.ndim) for a in axes]
    s = [None] * len(axes) if s is None else [None if n in (None, -1) else int(n) for n in s]
    return list(zip(s, axes))


def _each_once(found: list[tuple[int | None, int]]) -> list[tuple[int | None, int]]:
    """The lengths and axes of a transform of real numbers; what another of them made complex is not real."""
    if len({axis for _, axis in found}) < len(found):
        raise NotImplementedError("of real numbers along an axis twice is not recorded")
    return found


def _complex_many(kind: str, default_axes):
    def handler(a, s=None, axes=default_axes, norm=None, out=None):
        x = a
        for n, axis in reversed(lengths(a, s, axes)):
            x = transform(x, kind, n, axis, norm)
        return x

    return handler


def _real_many(default_axes):
    def handler(a, s=None, axes=default_axes, norm=None, out=None):
        *others, (n, axis) = _each_once(lengths(a, s, axes))
        x = transform(a, "rfft", n, axis, norm)
        for n, axis in reversed(others):
            x = transform(x, "fft", n, axis, norm)
        return x

    return handler


def _inverse_real_many(default_axes):
    def handler(a, s=None, axes=default_axes, norm=None, out=None):
        *others, (n, axis) = _each_once(lengths(a, s, axes))
        x = a
        for m, other in others:
            x = transform(x, "ifft", m, other, norm)
        return transform(x, "irfft", n, axis, norm)

    return handler


for _suffix, _axes in (("2", (-2, -1)), ("n", None)):
    handles(getattr(np.fft, "fft" + _suffix))(_complex_many("fft", _axes))
    handles(getattr(np.fft, "ifft" + _suffix))(_complex_many("ifft", _axes))
    handles(getattr(np.fft, "rfft" + _suffix))(_real_many(_axes))
    handles(getattr(np.fft, "irfft" + _suffix))(_inverse_real_many(_axes))
