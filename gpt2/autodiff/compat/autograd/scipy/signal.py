"""autograd.scipy.signal: convolve, along some axes, with sums over others."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"autograd.scipy.signal has convolve alone; gpt2.autodiff.scipy.signal may have {name}"
    )


def convolve(A: Any, B: Any, axes: Any = None, dot_axes: Any = None, mode: str = "full") -> Any:
    """The convolution of two arrays.

    axes       (axes of A, axes of B) to convolve along; all of both unless given
    dot_axes   (axes of A, axes of B) to sum over, entry by entry
    mode       "full", "same" or "valid"

    The result's axes: those of A that are in neither, those of B, then the convolved ones.
    """
    if mode not in ("full", "same", "valid"):
        raise ValueError(f"convolve: mode is {mode!r}, expected 'full', 'same' or 'valid'")
    n_a, n_b = np.ndim(A), np.ndim(B)
    along_a, along_b = (range(n_a), range(n_b)) if axes is None else axes
    dot_a, dot_b = ((), ()) if dot_axes is None else dot_axes
    if len(along_a) != len(along_b) or len(dot_a) != len(dot_b):
        raise ValueError("convolve: axes and dot_axes name as many axes of A as of B")
    rest_a = [i for i in range(n_a) if i not in (*along_a, *dot_a)]
    rest_b = [i for i in range(n_b) if i not in (*along_b, *dot_b)]
    size, width = [np.shape(A)[i] for i in along_a], [np.shape(B)[i] for i in along_b]
    if mode == "valid" and any(map(operator.lt, size, width)):
        if any(map(operator.gt, size, width)):
            raise ValueError("convolve: for mode='valid' one array is at least as large along every axis")
        out = convolve(B, A, axes and axes[::-1], dot_axes and dot_axes[::-1], mode)
        k = len(rest_b)
        return np.moveaxis(out, range(k), range(len(rest_a), len(rest_a) + k))
    margins = [(0, 0)] * n_a
    for axis, m in zip(along_a, width):
        margins[axis] = {"valid": (0, 0), "full": (m - 1, m - 1), "same": (m // 2, (m - 1) // 2)}[mode]
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(A, margins), tuple(width), tuple(along_a))
    # Labels of axes: those of A, those of B, then those within a window
    within = range(n_a + n_b, n_a + n_b + len(width))
    of_b = {**dict(zip(along_b, within)), **dict(zip(dot_b, dot_a)), **{i: n_a + i for i in rest_b}}
    labels_b = [of_b[i] for i in range(n_b)]
    out = [*rest_a, *(of_b[i] for i in rest_b), *along_a]
    return np.einsum(windows, [*range(n_a), *within], np.flip(B, tuple(along_b)), labels_b, out)
