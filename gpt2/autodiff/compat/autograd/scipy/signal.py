"""autograd.scipy.signal: convolve, along some axes, with sums over others."""

from __future__ import annotations

import operator
from collections.abc import Sequence
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
    along_a, along_b = (range(np.ndim(A)), range(np.ndim(B))) if axes is None else axes
    dot_a, dot_b = ((), ()) if dot_axes is None else dot_axes
    if len(along_a) != len(along_b) or len(dot_a) != len(dot_b):
        raise ValueError("convolve: axes and dot_axes name as many axes of A as of B")
    rest_a, rest_b = _axes_but(A, along_a, dot_a), _axes_but(B, along_b, dot_b)
    a = np.transpose(A, (*rest_a, *dot_a, *along_a))
    b = np.transpose(B, (*rest_b, *dot_b, *along_b))
    n = len(along_a)
    m = np.shape(b)[np.ndim(b) - n :]
    size = np.shape(a)[np.ndim(a) - n :]
    if mode == "valid" and any(map(operator.lt, size, m)):
        if any(map(operator.gt, size, m)):
            raise ValueError("convolve: for mode='valid' one array is at least as large along every axis")
        out = convolve(B, A, axes and axes[::-1], dot_axes and dot_axes[::-1], mode)
        k, j = len(rest_b), len(rest_a)
        return np.transpose(out, (*range(k, k + j), *range(k), *range(k + j, k + j + n)))
    a = np.pad(a, [(0, 0)] * (np.ndim(a) - n) + [_margin(y, mode) for y in m])
    return _windows(a, b, len(rest_a), len(rest_b), len(dot_a), n)


def _axes_but(x: Any, *taken: Sequence[int]) -> list[int]:
    """The axes of x that are in none of these."""
    return [i for i in range(np.ndim(x)) if not any(i in axes for axes in taken)]


def _margin(width: int, mode: str) -> tuple[int, int]:
    """How many zeros go before and after an axis along which a filter of this width moves."""
    if mode == "valid":
        return 0, 0
    if mode == "full":
        return width - 1, width - 1
    after = (width - 1) // 2
    return width - 1 - after, after


def _windows(a: Any, b: Any, n_a: int, n_b: int, dots: int, n: int) -> Any:
    """Sums over windows of a (rest, dots, along) times b (rest, dots, along) reversed."""
    m = np.shape(b)[n_b + dots :]
    flipped = b[(..., *(slice(None, None, -1),) * n)]
    seen = np.lib.stride_tricks.sliding_window_view(a, m, tuple(range(n_a + dots, n_a + dots + n)))
    rest_a, dot = list(range(n_a)), list(range(n_a, n_a + dots))
    out = list(range(n_a + dots, n_a + dots + n))
    window = list(range(n_a + dots + n, n_a + dots + 2 * n))
    rest_b = list(range(n_a + dots + 2 * n, n_a + dots + 2 * n + n_b))
    return np.einsum(seen, rest_a + dot + out + window, flipped, rest_b + dot + window, rest_a + rest_b + out)
