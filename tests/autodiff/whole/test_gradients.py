"""Gradients of calls with their options, on arrays of any memory layout, alone and of many examples."""

import zlib
from functools import partial

import numpy as np
import pytest

from gpt2 import autodiff as ad

A, A3 = (3, 4), (2, 3, 4)
MASK = np.array([[True, False, True, False], [False, True, True, True], [True, False, False, True]])
POINTS = np.array([0.0, 1.0, 3.0])
PLACES = np.array([[2, 0], [1, 1], [0, 3]])


def complex_of(x):
    """A complex array from a real one of twice the length of the last axis."""
    return x[..., ::2] + 1j * x[..., 1::2]


def written(x, v):
    y = x * 1.0
    y[[0, 2, 0], ::-2] = v
    y[MASK] += x[MASK]
    return y


# Cases that once failed are marked
CALLS = {
    "sum": (lambda x: np.sum(x, axis=(-1, 0), where=MASK, keepdims=True), A),
    "mean": (lambda x: np.mean(x, axis=(2, 0)), A3),
    "mean in another dtype": (lambda x: np.mean(x, axis=0, dtype=np.complex64), A),
    "var": (lambda x: np.var(x, axis=(-1, 0), ddof=0.5), A3),
    "var about a mean": (lambda x, m: np.var(x, axis=1, mean=m), A, (3, 1)),
    "std where one is left": (lambda x: np.std(x, axis=0, where=MASK), A),  # nan
    "nanstd of one": (lambda x: np.nanstd(np.where(MASK, x, np.nan), axis=0), A),  # nan
    "std of columns": (lambda x: np.std(x, axis=0, ddof=1, keepdims=True), A),
    "prod": (lambda x: np.prod(x, axis=(1, 0)), A3),
    "prod of one": (lambda x: np.prod(x, axis=1, keepdims=True), (1, 3)),  # no program for many examples
    "cumprod": (lambda x: np.cumprod(x, axis=-1), (1, 3)),  # no program for many examples
    "max": (lambda x: np.max(x, axis=(0, -1), initial=0.1, where=MASK), A),
    "a largest of complex sizes": (lambda x: np.max(np.abs(complex_of(x)), axis=0), (6, 8)),  # zero
    "a least of cube roots": (lambda x: np.min(np.cbrt(x), axis=0), (30, 7)),
    "median": (lambda x: np.median(x, axis=(1, 0)), A3),
    "quantile": (lambda x: np.quantile(x, [0.2, 0.9], axis=0, method="hazen"), A),
    "cov": (lambda x, y: np.cov(x, y), A, (2, 4)),
    "corrcoef": (lambda x: np.corrcoef(x), A),
    "gradient": (lambda x: np.gradient(x, 0.5, 2.0, axis=(1, 0)), (4, 5)),
    "trapezoid": (lambda y, x: np.trapezoid(y, x, axis=0), (4, 5), (4,)),
    "average": (lambda x, w: np.average(x, axis=(2, 0), weights=w * w), A3, (4, 2)),
    "subtract.accumulate": (lambda x: np.subtract.accumulate(x, axis=-1), (3, 4)),  # wrong in singles
    "columns negated": (lambda x: np.stack([-x[:, 0], x[:, 1] * x[:, 0]], 1), (5, 8)),
    "matmul": (lambda x, y: x @ y, (1, 3, 4), (6, 4, 2)),
    "matmul of vectors": (lambda x, y: x @ y, (4,), (2, 4, 5)),
    "dot": (lambda x, y: np.dot(x, y), A3, (5, 4, 3)),
    "dot of nothing": (lambda x, y: np.dot(x, y), (2, 3, 0), (0, 4)),  # an error
    "dot with a number": (lambda x, y: np.dot(x, y), (), A),
    "tensordot": (lambda x, y: np.tensordot(x, y, ([2, 0], [0, 1])), A3, (4, 2, 3)),
    "einsum": (lambda x, y: np.einsum("ii,ij->j", x, y), (3, 3), A),
    "einsum over one": (lambda x, y: np.einsum("...ij,...jk->...ik", x, y), A3, (1, 4, 5)),
    "kron": (lambda x, y: np.kron(x, y), (2, 3), (4,)),
    "cross": (lambda x, y: np.cross(x, y), (2, 1, 3), (4, 3)),
    "convolve": (lambda x, y: np.convolve(x, y, "same"), (4,), (6,)),
    "reshape": (lambda x: np.reshape(x, (2, -1), order="F") ** 2, A),
    "pad": (lambda x: np.pad(x, ((4, 5), (6, 7)), "reflect", reflect_type="odd"), A),
    "roll": (lambda x: np.roll(x, (1, 2), axis=(1, 1)), A),
    "insert": (lambda x, v: np.insert(x, [3, 0, -2], v, axis=1), A, (3, 3)),  # in another order
    "windows": (lambda x: np.lib.stride_tricks.sliding_window_view(x, (2, 2), axis=(0, 0)), (5, 2)),
    "indices": (lambda x: x[[0, 1], :, None, [1, 1]] * x[..., None, ::-2].sum(), A3),
    "written": (written, A, (2,)),
    "take_along_axis": (lambda x: np.take_along_axis(x, PLACES, 1), (1, 4)),  # an error
    "sort": (lambda x: np.sort(x, axis=None), A),
    "clip": (lambda x, low, high: np.clip(x, low, high), A, (4,), (3, 1)),
    "interp": (lambda x, f: np.interp(x, POINTS, f), A, (3,)),
    "interp by points": (lambda x, p: np.interp(x, np.cumsum(p * p) - 3.0, POINTS), A, (3,)),
    "arctan2": (lambda x, y: np.arctan2(x, y), (3, 1), (1, 4)),
    "power": (lambda x, y: np.power(x * x, y), A, ()),
    "norm": (lambda x: np.linalg.norm(x, 3, axis=0), A),
    "norm of matrices": (lambda x: np.linalg.norm(x, -np.inf, axis=(-1, -2), keepdims=True), A3),
    "solve": (lambda x, y: np.linalg.solve(x + 3 * np.eye(3), y), (2, 3, 3), (3, 2)),
    "eigh": (lambda x: np.abs(np.linalg.eigh(x, "U")[1]), (3, 3)),
    "svd": (lambda x: np.linalg.svd(x, full_matrices=False)[1], (2, 3, 4)),
    "rfftn": (lambda x: np.fft.rfftn(x, (5, 3), (1, 0), "ortho"), (3, 4)),
    "irfft": (lambda x: np.fft.irfft(x, 7, 0), (4, 3)),
    "softmax": (lambda x: np.exp(x - x.max(-1, keepdims=True)) / np.exp(x).sum(-1, keepdims=True), A3),
}  # fmt: skip


def backwards(x):
    back = (..., *(slice(None, None, -1),) * x.ndim)
    return x[back].copy()[back]


def apart(x):
    """x with gaps in memory."""
    wide = np.zeros(tuple(2 * n for n in x.shape), x.dtype)
    part = wide[(..., *(slice(None, None, 2),) * x.ndim)]
    part[...] = x
    return part


LAYOUTS = {"C": np.array, "F": partial(np.array, order="F"), "backwards": backwards, "apart": apart}


def drawn(rng, shape, like=None):
    x = np.asarray(rng.uniform(0.3, 2.0, shape) * rng.choice([-1.0, 1.0], shape))
    return x if like is None or like.dtype.kind != "c" else x + 1j * rng.normal(size=shape)


def dot(a, b):
    return float(np.real(np.sum(a * b)))


def close(a, b, rtol):
    scale = max(1e-3, np.max(np.abs(b), initial=0.0))
    np.testing.assert_allclose(a, b, rtol=0, atol=rtol * scale)


@pytest.mark.filterwarnings("ignore:.*encountered in")
@pytest.mark.parametrize("name", CALLS)
def test_derivatives(name):
    for layout, place in LAYOUTS.items():
        try:
            check_derivatives(name, place)
        except AssertionError as error:
            error.add_note(f"arrays in memory: {layout}")
            raise


def check_derivatives(name, place):
    call, *shapes = CALLS[name]
    rng = np.random.default_rng(zlib.crc32(name.encode()))

    def f(*args):
        out = call(*args)
        return np.stack(out) if type(out) is tuple else out

    args = [place(drawn(rng, s)) for s in shapes]
    tangents = [drawn(rng, s) for s in shapes]
    out, along = ad.jvp(f, tuple(args), tuple(map(place, tangents)))
    expected = f(*args)
    coarse = expected.dtype == np.complex64
    np.testing.assert_allclose(out, expected, rtol=1e-7 if coarse else 1e-12)
    if not coarse:
        h = 1e-5
        ahead, behind = (f(*(place(x + s * t) for x, t in zip(args, tangents))) for s in (h, -h))
        close(along, (ahead - behind) / (2 * h), 1e-5)
    cotangent = drawn(rng, np.shape(out), expected)
    out, pullback = ad.vjp(f, *args)
    gradients = pullback(cotangent)
    sizes = sum(np.sum(np.abs(g * t)) for g, t in zip(gradients, tangents))
    difference = dot(cotangent, along) - sum(map(dot, gradients, tangents))
    assert abs(difference) <= (1e-5 if coarse else 1e-10) * max(sizes, 1e-3)
    singles = [place(x.astype(np.float32)) for x in args]
    _, pullback = ad.vjp(f, *singles)
    for x, wide, g in zip(singles, gradients, pullback(cotangent)):
        assert g.dtype == np.float32 and g.shape == x.shape
        close(g, wide, 1e-2)


@pytest.mark.filterwarnings("ignore:.*encountered in")
@pytest.mark.parametrize("name", CALLS)
def test_many_examples(name):
    call, *shapes = CALLS[name]
    rng = np.random.default_rng(1)
    args = [drawn(rng, s) for s in shapes]
    many = [np.stack([x, 1.03 * x]) for x in args]

    def gradient(*args):
        return ad.vjp(call, *args)[1](ad.tree.map(np.ones_like, call(*args)))

    for found, *each in zip(ad.vmap(gradient)(*many), *(gradient(*(m[k] for m in many)) for k in range(2))):
        close(found, np.stack(each), 1e-6)
