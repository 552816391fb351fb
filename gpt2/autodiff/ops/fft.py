"""Discrete Fourier transforms along one axis. Those over several axes are compositions of these.

    fft(x, kind, n, axis, norm)   kind "fft" | "ifft" | "rfft" | "irfft", as in numpy.fft
    n                             length of the transform: x is cropped or padded with zeros to it
                                  (irfft: to n // 2 + 1, and the result has n)
    norm                          "backward" | "ortho" | "forward"

hfft(x, n) is irfft(conj(x), n), and ihfft(x, n) is conj(rfft(x, n)), each under the opposite norm.

The matrix of fft is symmetric, so it is its own transpose. rfft leaves out half of the spectrum, which irfft
counts twice; their transposes are each other, up to conjugation and that factor.
"""

from __future__ import annotations

import numpy as np

from ..graph import Node
from . import leads
from .build import assemble, axis_index, conjugate, slice_
from .table import apply, const, real_dtype, row

OPPOSITE = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def _infer(x, kind, n, axis, norm):
    length = n // 2 + 1 if kind == "rfft" else n
    single = x.dtype in (np.float32, np.complex64, np.float16)
    dtype = np.dtype(np.complex64 if single else np.complex128)
    if kind == "irfft":
        dtype = np.dtype(np.float32 if single else np.float64)
    return tuple(length if i == axis else s for i, s in enumerate(x.shape)), dtype


def resize(x: Node, axis: int, n: int) -> Node:
    """x cropped, or padded with zeros at the end, to length n along one axis."""
    shape = tuple(n if i == axis else s for i, s in enumerate(x.shape))
    if n > x.shape[axis]:
        return assemble([x], shape, [axis_index(shape, axis, 0, x.shape[axis])], x.dtype)
    return slice_(x, axis_index(x.shape, axis, 0, n))


def _transpose(g, out, x, kind, n, axis, norm):
    if kind in ("fft", "ifft"):
        dx = apply("fft", g, kind=kind, n=n, axis=axis, norm=norm)
    else:
        # How often irfft counts each of its n // 2 + 1 inputs: the inner ones twice, as they stand for two
        count = np.full(n // 2 + 1, 2.0, real_dtype(g.dtype))
        count[0] = 1.0
        if n % 2 == 0:
            count[-1] = 1.0
        count = count.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        if kind == "rfft":
            half = conjugate(g) * const(1.0 / count)
            dx = apply("fft", half, kind="irfft", n=n, axis=axis, norm=OPPOSITE[norm])
        else:
            dx = conjugate(apply("fft", g, kind="rfft", n=n, axis=axis, norm=OPPOSITE[norm])) * const(count)
    return (resize(dx, axis, x.shape[axis]),)


row(
    "fft",
    "linear",
    infer=_infer,
    evaluate=lambda x, kind, n, axis, norm: getattr(np.fft, kind)(x, n=n, axis=axis, norm=norm),
    code=lambda x, kind, n, axis, norm: f"np.fft.{kind}({x}, n={n}, axis={axis}, norm={norm!r})",
    transpose=_transpose,
    cost=20.0,
    leads=leads.AXIS,
)
