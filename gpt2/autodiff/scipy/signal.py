"""scipy.signal: convolutions and linear filters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.signal as _scipy

from ..loops.scan import scan
from .passing import is_recorded, names_of, ours, unsupported_option

__getattr__, __dir__ = names_of(_scipy)


def _full(a, b):
    """The full convolution of two arrays: directly along one axis, by FFT along several."""
    if np.ndim(a) == 1:
        return np.convolve(a, b)
    shape = [n + m - 1 for n, m in zip(np.shape(a), np.shape(b))]
    axes = tuple(range(len(shape)))
    if np.iscomplexobj(a) or np.iscomplexobj(b):
        return np.fft.ifftn(np.fft.fftn(a, shape, axes) * np.fft.fftn(b, shape, axes), shape, axes)
    return np.fft.irfftn(np.fft.rfftn(a, shape, axes) * np.fft.rfftn(b, shape, axes), shape, axes)


def _cut(name: str, out, a, b, mode: str):
    n, m = np.shape(a), np.shape(b)
    if mode == "full":
        return out
    if mode == "same":
        sizes = n
    elif mode == "valid":
        sizes = tuple(max(i, j) - min(i, j) + 1 for i, j in zip(n, m))
        if any(i < j for i, j in zip(n, m)) and any(i > j for i, j in zip(n, m)):
            raise ValueError(f"{name}: for mode='valid' one array must be at least as large in every axis")
    else:
        raise ValueError(f"{name}: mode is {mode!r}, expected 'full', 'same' or 'valid'")
    starts = [(f - s) // 2 for f, s in zip(np.shape(out), sizes)]
    return out[tuple(slice(i, i + s) for i, s in zip(starts, sizes))]


def _convolution(name: str) -> Callable:
    def function(in1, in2, mode="full"):
        return _cut(name, _full(in1, in2), in1, in2, mode)

    function.__name__ = name
    return ours(_scipy)(function)


_NAMES = "convolve fftconvolve oaconvolve convolve2d".split()
convolve, fftconvolve, oaconvolve, convolve2d = map(_convolution, _NAMES)


@ours(_scipy)
def correlate(in1, in2, mode="full") -> Any:
    flipped = np.conj(in2)[(slice(None, None, -1),) * np.ndim(in2)]
    if mode == "valid" and any(n < m for n, m in zip(np.shape(in1), np.shape(in2))):
        raise unsupported_option(
            "scipy.signal.correlate", "with mode='valid' and a second array that is larger"
        )
    return _cut("correlate", _full(in1, flipped), in1, flipped, mode)


@ours(_scipy)
def lfilter(b, a, x, axis=-1, zi=None) -> Any:
    """The transposed direct form II, as a scan over the samples."""
    b, a = _vector(b), _vector(a)
    n = max(np.shape(b)[0], np.shape(a)[0])
    b, a = _padded(b, n) / a[0], _padded(a, n) / a[0]
    x = np.moveaxis(x, axis, 0)
    lanes = np.shape(x)[1:]
    column = (n - 1, *(1,) * len(lanes))
    state = np.zeros((n - 1, *lanes), np.result_type(float, b.dtype, a.dtype, x.dtype))  # of the results
    state = state if zi is None else state + np.moveaxis(zi, axis, 0)
    tail_b, tail_a = np.reshape(b[1:], column), np.reshape(a[1:], column)
    blank = np.zeros((1, *lanes)) if n > 1 else np.zeros((0, *lanes))

    def step(z, sample):
        y = b[0] * sample + (z[0] if n > 1 else 0.0)
        ahead = np.concatenate([z[1:], blank], axis=0)
        return ahead + tail_b * sample - tail_a * y, y

    final, ys = scan(step, state, x)
    y = np.moveaxis(ys, 0, axis)
    return y if zi is None else (y, np.moveaxis(final, 0, axis))


def _vector(v):
    """A number, a list or an array as a vector."""
    listed = isinstance(v, (list, tuple)) and is_recorded(v)
    return np.atleast_1d(np.stack(v) if listed else v)


def _padded(v, n: int):
    return np.concatenate([v, np.zeros(n - np.shape(v)[0])])
