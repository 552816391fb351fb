"""NumPy functions on recorded values give what NumPy gives on plain ones: type, shape, dtype, and value to
the last bit; and the graph computes the same again.
"""

import numpy as np
import pytest

from gpt2 import autodiff as ad
from gpt2.autodiff.ops.interpret import check, evaluate_graph
from gpt2.autodiff.record import dispatch
from gpt2.autodiff.record.record import record
from gpt2.autodiff.tree import flatten
from tests.support.calls.numpy_calls import CALLS

F, G, V, W, N = (3, 4), (4, 5), (4,), (3,), ()  # shapes; N: a NumPy scalar
I = np.array([[3, 1, 0, 2], [1, 1, 2, 0], [5, 4, 3, 3]])  # noqa: E741
M = np.array([[True, False, True, False], [False, True, True, True], [True, False, False, True]])
X3 = (2, 3, 4)
f32, f64 = np.float32, np.float64


@pytest.fixture
def rng():
    return np.random.default_rng(17)


def calls(*rows):
    return [(f, args) for f, *args in rows]


OPERATORS = calls(
    (lambda x, y: x + y, F, V),
    (lambda x, y: x - y, V, F),
    (lambda x: 2 * x - 1, F),
    (lambda x: 1.5 / x, F),
    (lambda x: x**2, F),
    (lambda x: x**3, F),
    (lambda x: abs(x) ** 0.5, F),
    (lambda x: x**-1, F),
    (lambda x: x**1, F),
    (lambda x: x**-2.0, F),
    (lambda x: 2**x, F),
    (lambda x: x // 0.7, F),
    (lambda x: x % 0.7, F),
    (lambda x: divmod(x, 0.7), F),
    (lambda x: divmod(3.0, x), F),
    (lambda x: -x, F),
    (lambda x: +x, F),
    (lambda x: abs(x), F),
    (lambda x, y: x @ y, V, G),
    (lambda x: x < 0.3, F),
    (lambda x, y: x >= y, F, V),
    (lambda x: (x == x) & (x != 0.0), F),
    (lambda x: ~(x > 0) | (x < -1), F),
    (lambda x: (x > 0) ^ (x > 1), F),
    (lambda x: x + np.float64(1.5), F),
    (lambda x: np.float64(1.5) * x, F),
    (lambda x: x * np.float32(1.5), F),
    (lambda x: x + np.int64(3), F),
    (lambda x: x + np.arange(4), F),
    (lambda x: np.arange(4) * x, F),
    (lambda x: x + np.arange(4, dtype=np.int8), F),
    (lambda x: x < np.float64(0.1), F),
    (lambda x: x + [1, 2, 3, 4], F),
    (lambda x: x + True, F),
    (lambda x: x * (x > 0), F),
    (lambda x: x * 1j, F),
    (lambda x: x[0] + x[0, 0], F),
    (lambda x: x * 1e300, N),
    (lambda x, n: x + n, N, F),
    (lambda i: i + 1, I),
    (lambda i: i * 2.5, I),
    (lambda i: i / 2, I),
    (lambda i: i // 2, I),
    (lambda i: i % 3, I),
    (lambda i: i**2, I),
    (lambda i: -i, I),
    (lambda i: ~i, I),
    (lambda i: i << 1, I),
    (lambda i: i >> 1, I),
    (lambda i: i & 1, I),
    (lambda i: i + np.int8(1), I.astype(np.int8)),
    (lambda i: i + 100, I.astype(np.int8)),
    (lambda i: i < 300, I.astype(np.uint8)),
    (lambda i: i + i.astype(np.int16), I.astype(np.int8)),
    (lambda i: np.sqrt(i), I),
    (lambda b: b + 1, M),
    (lambda b: b * 2.0, M),
    (lambda b: b & True, M),
    (lambda x, h: x + h, F, np.ones(4, np.float16)),
    (lambda h: h * 2.5 + 1, np.ones(4, np.float16)),
    (lambda c: c * 2 + 1.5, np.array([1 + 2j, 3j])),
    (lambda c: c * np.float32(2), np.array([1 + 2j, 3j], np.complex64)),
    (lambda c: abs(c), np.array([3 + 4j, 3j])),
)

UFUNCS = calls(
    (lambda x: np.add(x, x, dtype=np.float64), F),
    (lambda x: np.sin(x, dtype=np.float64), F),
    (lambda x: np.true_divide(x, 3), F),
    (lambda x: np.multiply.outer(x, x), V),
    (lambda x, y: np.subtract.outer(x, y), F, W),
    (lambda x: np.add.reduce(x), F),
    (lambda x: np.add.reduce(x, axis=(0, 1)), F),
    (lambda x: np.multiply.reduce(x, axis=1, keepdims=True), F),
    (lambda x: np.maximum.reduce(x, axis=1), F),
    (lambda x: np.subtract.reduce(x, axis=1), F),
    (lambda x: np.logaddexp.reduce(x, axis=0, keepdims=True), F),
    (lambda x: np.add.accumulate(x, axis=1), F),
    (lambda x: np.multiply.accumulate(x), F),
    (lambda x: np.maximum.accumulate(x, axis=1), F),
    (lambda x: np.logical_and.reduce(x > 0, axis=1), F),
    (lambda x: np.logaddexp.reduce(x, axis=(0, 1)), F),
    (lambda x: np.logaddexp.reduce(x[:1], axis=0), F),
    (lambda x: np.hypot.reduce(x[:1], axis=0), F),
    (lambda x: np.hypot.reduce(x, axis=None, keepdims=True), F),
    (lambda x: np.fmax.reduce(x.reshape(-1, 2, 3), axis=(-1, 0)), F),
    (lambda x: np.hypot.reduce(x, axis=-1, dtype=np.float64), F),
    (lambda x: np.logaddexp.reduce(x, axis=(0, 1), initial=0.5), F),
    (lambda x: np.logaddexp.reduce(x[:0], axis=0), F),
    (lambda x: np.logaddexp.reduce(x[:0], axis=0, initial=2.0), F),
    (lambda x: np.maximum.reduce(x, axis=1, dtype=np.float64), F),
    (lambda x: np.logical_and.reduce(x, initial=False), F),
    (lambda x: np.fmax.accumulate(x, axis=1, dtype=np.float64), F),
    (lambda i: np.hypot.reduce(i), I),
    (lambda x: np.add(x, 1, where=M, out=np.zeros_like(x)), F),
    (lambda x: np.ldexp(x, 3), F),
    (lambda x: np.modf(x), F),
    (lambda x: np.divmod(x, 0.5), F),
    (lambda x: np.clip(x, -1, 1), F),
    (lambda x: np.clip(x, None, 0.5), F),
    (lambda x: x.clip(np.float64(0.5), None), F),
    (lambda x, y: x.clip(min=y), F, V),
    (lambda i: np.clip(i, 1, 2), I),
    (lambda x: np.exp(np.float64(1.0) * x), N),
    (lambda x: np.hypot(x, 2.0), F),
    (lambda x: np.arctan2(x, -1), F),
    (lambda x: np.logical_and(x, True), F),
    (lambda x: np.isnan(x / 0.0), F),
    (lambda x: np.float_power(x, 2), F),
    (lambda x: np.heaviside(x, 0.5), F),
    (lambda x: np.copysign(x, -1), F),
    (lambda x: np.positive(x), F),
    (lambda x: np.sign(x), F),
    (lambda x: np.rint(x) + np.trunc(x) + np.ceil(x) + np.floor(x), F),
    (lambda x: np.matmul(x, x.T), F),
    (lambda x, y: np.vecdot(x, y), F, F),
)

METHODS = calls(
    (lambda x: x.mT, X3),
    (lambda x: x.sum(), F),
    (lambda x: x.sum(-1, keepdims=True), F),
    (lambda x: x.sum(axis=(0, 2), dtype=np.float64), X3),
    (lambda x: x.mean(1), F),
    (lambda x: x.mean(), F),
    (lambda x: x.var(axis=0, ddof=1), F),
    (lambda x: x.std(axis=(0, 1)), F),
    (lambda x: x.max(axis=1), F),
    (lambda x: x.min(), F),
    (lambda x: x.prod(axis=0), F),
    (lambda x: x.argmax(), F),
    (lambda x: x.argmin(axis=1), F),
    (lambda x: np.argmax(x, axis=0, keepdims=True), F),
    (lambda x: (x > 0).any(axis=0), F),
    (lambda x: (x > 0).all(), F),
    (lambda x: x.cumsum(), F),
    (lambda x: x.cumprod(axis=1), F),
    (lambda x: x.reshape(4, 3), F),
    (lambda x: x.reshape((2, -1)), F),
    (lambda x: x.reshape(-1, order="F"), F),
    (lambda x: x.reshape((6, 2), order="F"), F),
    (lambda x: x.flatten(), F),
    (lambda x: x.flatten("F"), F),
    (lambda x: x.ravel(), F),
    (lambda x: x.T.ravel(), F),
    (lambda x: x.transpose(), X3),
    (lambda x: x.transpose(1, 2, 0), X3),
    (lambda x: x.transpose((2, 0, 1)), X3),
    (lambda x: x.swapaxes(0, -1), X3),
    (lambda x: x.squeeze(), (3, 1, 4)),
    (lambda x: x.squeeze(1), (3, 1, 4)),
    (lambda x: x.astype(np.float64), F),
    (lambda x: x.astype(int), F),
    (lambda x: x.astype(np.complex64), F),
    (lambda x: x.repeat(2, axis=0), F),
    (lambda x: x.take([2, 0], axis=1), F),
    (lambda x: x.trace(1), F),
    (lambda x: x.diagonal(), F),
    (lambda x: x.dot(x.T), F),
    (lambda x: x.argsort(axis=0), F),
    (lambda x: x.round(1), F),
    (lambda x: x.conj(), F),
    (lambda x: x.real, F),
    (lambda x: x.imag, F),
    (lambda x: x.compress([True, False, True], axis=0), F),
    (lambda x: x.item(3), F),
    (lambda x: x[0, 0].item(), F),
    (lambda x: x.sum().item() * 2, F),
    (lambda x: (x.shape, x.ndim, x.size, len(x), str(x.dtype), x.nbytes), F),
    (lambda x: [row.sum() for row in x], F),
    (lambda x: x.flat[5], F),
    (lambda x: sum(x.flat), F),
    (lambda x: x.view(), F),
    (lambda x: i_choose(x), F),
    (lambda c: (c.real, c.imag, c.conj(), np.angle(c)), np.array([1 + 2j, 3j])),
    (lambda i: (i.sum(), i.mean(), i.max(), i.prod(axis=0), i.cumsum(), i.var()), I),
    (lambda i: (i.sum(dtype=np.float32), i.std()), I.astype(np.int8)),
    (lambda i: i.sum(axis=1), I.astype(np.int8)),
    (lambda i: i.tolist(), I),
    (lambda b: (b.sum(), b.mean(axis=0), b.any(), b.cumsum()), M),
)


def i_choose(x):
    return (x > 0).choose([x, 2 * x])


INDEXING = calls(
    (lambda x: x[1], F),
    (lambda x: x[-1, 2], F),
    (lambda x: x[1:, ::2], F),
    (lambda x: x[::-1, 3:0:-2], F),
    (lambda x: x[..., None, 1], X3),
    (lambda x: x[None, :, None], F),
    (lambda x: x[2:1], F),
    (lambda x: x[...], F),
    (lambda x: x[()], F),
    (lambda x: x[1, ...], F),
    (lambda x: x[[2, 0, 2]], F),
    (lambda x: x[:, [1, 1, 3]], F),
    (lambda x: x[[0, 1], [2, 3]], F),
    (lambda x: x[np.array([[0], [2]]), [1, 3]], F),
    (lambda x: x[0, :, [1, 3, 0]], X3),
    (lambda x: x[:, 1, [1, 3, 0]], X3),
    (lambda x: x[[0, 1], :, [1, 3]], X3),
    (lambda x: x[:, None, [1, 0]], F),
    (lambda x: x[..., [-1, 0]], X3),
    (lambda x: x[M], F),
    (lambda x: x[:, M], X3),
    (lambda x: x[x > 0], F),
    (lambda x: x[[True, False, True]], F),
    (lambda x: x[M[0][:3], 1:], F),
    (lambda x, i: x[i % 3], F, I),
    (lambda x, i: x[i[0, 3]], F, I),
    (lambda x, i: x[1:, i[0, 3]], F, I),
    (lambda x, i: x[i[0, 2] : i[0, 0]], F, I),
    (lambda x, i: np.take(np.arange(10.0), i), F, I),
    (lambda x: x[np.int64(1)], F),
    (lambda x: x[np.ix_([0, 2], [1, 3])], F),
    (lambda x: x[np.triu_indices(3)], F),
    (lambda x: x[1][2], F),
    (lambda x: x[np.argmax(x, axis=0), np.arange(4)], F),
    (lambda i: np.eye(6)[i], I),
)

FUNCTIONS = calls(
    (lambda x: np.sum(x, axis=()), F),
    (lambda x: np.mean(x, axis=(0, 1), keepdims=True), F),
    (lambda x: np.mean(x, dtype=np.float64), F),
    (lambda i: np.mean(i, axis=0), I),
    (lambda h: (h.mean(), h.var(), h.sum(), np.median(h)), np.linspace(0, 1, 7).astype(np.float16)),
    (lambda x: np.var(x, axis=1, keepdims=True, ddof=1), F),
    (lambda c: (np.var(c), np.std(c), np.mean(c)), np.array([1 + 2j, 3j, 2])),
    (lambda x: np.max(x, axis=1, initial=0.5), F),
    (lambda x: np.max(x, axis=1, where=M, initial=-9), F),
    (lambda x: np.sum(x, where=M), F),
    (lambda x: np.prod(x, axis=0, where=M), F),
    (lambda x: np.average(x, axis=1, weights=[1, 2, 3, 4]), F),
    (lambda x: np.average(x, returned=True), F),
    (lambda x: np.where(x > 0, x, 0.0), F),
    (lambda x: np.where(x > 0, 0, x), F),
    (lambda x: np.where(M, x, np.float64(0)), F),
    (lambda x: np.where(M, 1.0, 2.0) * x, F),
    (lambda x: np.nonzero(x > 0), F),
    (lambda x: np.where(x > 0)[0], F),
    (lambda x: np.count_nonzero(x > 0, axis=1), F),
    (lambda x: np.unique(x), F),
    (lambda x: np.unique(np.round(x), return_counts=True), F),
    (lambda x: np.searchsorted(np.sort(x), [0.0, 0.5]), V),
    (lambda x: np.digitize(x, [0.0, 1.0]), F),
    (lambda x: np.isclose(x, x + 1e-12), F),
    (lambda x: (np.allclose(x, x), np.array_equal(x, x), np.array_equiv(x, x)), F),
    (lambda x: (np.shape(x), np.ndim(x), np.size(x), np.iscomplexobj(x), np.result_type(x, 1.0).name), F),
    (lambda x: np.stack([x, x], axis=-1), F),
    (lambda x: np.concatenate([x, np.ones((1, 4))]), F),
    (lambda x: np.hstack([x[0], 1.0]), F),
    (lambda x: np.concatenate(x), F),
    (lambda x: np.block([[x, x[:, :1]], [x[:1], np.ones((1, 1))]]), F),
    (lambda x: np.split(x, [1, 3], axis=1), F),
    (lambda x: np.array_split(x, 3, axis=1), F),
    (lambda x: np.pad(x, ((1, 0), (2, 1)), constant_values=3), F),
    (lambda x: np.pad(x, 1, constant_values=x[0, 0]), F),
    (lambda x: np.pad(x, ((0, 2), (1, 1)), mode="symmetric"), F),
    (lambda x: np.einsum("ij->ji", x), F),
    (lambda x: np.einsum("ij->", x), F),
    (lambda x: np.einsum("ij,ij->i", x, x), F),
    (lambda x: np.einsum("ij", x), F),
    (lambda x: np.einsum("iij->ij", x), (3, 3, 4)),
    (lambda x: np.einsum("i...,i...->...", x, x), X3),
    (lambda x: np.einsum(x, [0, 1], x, [2, 1], [0, 2]), F),
    (lambda x: np.einsum(x, [0, 1]), F),
    (lambda x: np.tensordot(x, x, ((1,), (1,))), F),
    (lambda x: np.dot(x, 2), F),
    (lambda x: np.dot(x[0], x[1]), F),
    (lambda x: np.inner(x, x), F),
    (lambda x: np.dot(x, np.arange(4)), F),
    (lambda x: np.roll(x, 1), F),
    (lambda x: np.rot90(x, 2), F),
    (lambda x: np.tril(x, -1) + np.triu(x, 1), F),
    (lambda x: np.diag(x, -1), F),
    (lambda x: np.diag(x, 7), F),
    (lambda x: np.meshgrid(x, x, indexing="ij", sparse=True), V),
    (lambda x: np.broadcast_arrays(x, x[0]), F),
    (lambda x: np.median(x, axis=0), F),
    (lambda x: np.median(x), F),
    (lambda x: np.gradient(x), F),
    (lambda x: np.gradient(x, 2.0, axis=1, edge_order=2), F),
    (lambda x: np.gradient(x, np.array([0.0, 1.0, 3.0, 4.5]), axis=1), F),
    (lambda x: np.nan_to_num(x / 0, nan=1.0, posinf=2.0), F),
    (lambda x: np.nanmean(np.where(M, x, np.nan), axis=0), F),
    (lambda x: np.nanmax(np.where(M, x, np.nan), axis=0), F),
    (lambda x: np.piecewise(x, [x < 0], [1.0, lambda v: v * 2]), F),
    (lambda x: np.select([x < -1, x < 0], [x, 2 * x], 7), F),
    (lambda x: np.zeros_like(x), F),
    (lambda x: np.zeros_like(x, shape=(2, 2), dtype=int), F),
    (lambda x: np.ones_like(x), F),
    (lambda x: np.full_like(x, 2), F),
    (lambda x: np.full_like(x, x[0, 0]), F),
    (lambda x: np.zeros((2, 2), like=x), F),
    (lambda x: np.zeros((2, 2), np.float32, like=x), F),
    (lambda x: np.arange(3.0, like=x) * x[0, 0], F),
    (lambda x: np.eye(3, like=x) @ x, F),
    (lambda x: np.array([x[0, 0], 1.0, x[1, 1]], like=x), F),
    (lambda x: np.array([[x[0, 0], 0], [1, x[1, 1]]], like=x), F),
    (lambda x: np.asarray([x, x], like=x), F),
    (lambda x: np.linspace(x[0, 0], x[1, 1], 4, axis=0), F),
    (lambda x: np.apply_along_axis(lambda r: r[::2] * r.sum(), 1, x), F),
    (lambda x: np.trapezoid(x, axis=0), F),
    (lambda x: np.convolve(x, [1.0, 2.0, 3.0], "same"), V),
    (lambda x: np.lib.stride_tricks.sliding_window_view(x, 3, axis=1), F),
    (lambda x: np.sort(x, axis=None), F),
    (lambda x: np.partition(x, 2, axis=1).shape, F),
    (lambda x: np.take_along_axis(x, np.argsort(x, axis=1), axis=1), F),
    (lambda x: np.linalg.norm(x, axis=(0, 1), keepdims=True), F),
    (lambda x: np.linalg.norm(x, 1), F),
    (lambda x: np.linalg.norm(x, -np.inf, axis=1), F),
    (lambda x: np.linalg.norm(x, 0, axis=1), F),
    (lambda x: np.linalg.svd(x, full_matrices=False), F),
    (lambda x: np.linalg.svd(x), F),
    (lambda x: np.linalg.slogdet(x @ x.T), F),
    (lambda x: np.linalg.eigh(x @ x.T), F),
    (lambda x: np.linalg.lstsq(x.T, np.ones(4)), F),
    (lambda x: np.linalg.matrix_rank(x), F),
    (lambda x: np.linalg.inv(x @ x.T), F),
    (lambda i: np.linalg.det(i @ i.T), I),
    (lambda x: np.fft.fft(x), F),
    (lambda x: np.fft.rfft(x, n=6), F),
    (lambda x: np.fft.irfft(np.fft.rfft(x)), F),
    (lambda x: np.cross(x[:, :3], x[:, 1:]), F),
    (lambda x: np.cov(x), F),
    (lambda x: np.interp([0.5, 2.5, 9.0], np.arange(4.0), x), V),
    (lambda x: np.interp([0.5, 2.5, 9.0], np.arange(4.0), x, period=4.0), V),
    (lambda x: np.real_if_close(x), F),
    (lambda x: np.bincount(x.argsort()), V),
    (lambda x: np.insert(x, [1, 3], 9.0), V),
    (lambda x: np.insert(x, 2, [1.0, 2.0]), V),
    (lambda x: np.delete(x, [0, 2], axis=1), F),
    (lambda x: np.append(x, [1, 2]), F),
    (lambda x: np.trim_zeros(x > 9), V),
    (lambda x: np.isin(x > 0, [True]), F),
    (lambda x: np.moveaxis(x, [0, 1], [-1, 0]), X3),
    (lambda x: np.expand_dims(x, (0, -1)), F),
    (lambda x: np.tile(x, (2, 1, 1)), F),
    (lambda x: np.around(x, -1), F),
    (lambda x: np.astype(x, np.float16), F),
    (lambda x: np.diff(x, prepend=0.0), F),
    (lambda x: np.ediff1d(x, to_begin=[0.0], to_end=x[0, :1]), F),
    (lambda x: np.cumulative_sum(x, axis=0, include_initial=True), F),
)

TABLES = {"operators": OPERATORS, "ufuncs": UFUNCS, "methods": METHODS, "indexing": INDEXING,
          "functions": FUNCTIONS}  # fmt: skip
# Compositions round otherwise than NumPy's own loops (var, quantile, i0); a few dozen roundings fit in this
BUDGET = {np.float16: 2e-3, np.float32: 1e-5, np.float64: 1e-12}


NEWER = {"cumulative_sum", "cumulative_prod", "unstack", "matvec", "vecmat"}  # than NumPy 2.0


def need(*names):
    """Skip where this NumPy is too old to have one of the few functions that came after 2.0."""
    for name in names:
        short = name.removeprefix("np.")
        if short in NEWER and not hasattr(np, short):
            pytest.skip(f"NumPy {np.__version__} has no {name}")


def arguments(shapes, dtype):
    rng = np.random.default_rng(1)

    def draw(shape):
        x = rng.uniform(0.3, 2.0, shape) * rng.choice([-1.0, 1.0], size=shape)
        return np.asarray(x, dtype)[()]

    return [draw(s) if isinstance(s, tuple) else s for s in shapes]


@pytest.mark.parametrize("table, i", [(t, i) for t, rows in TABLES.items() for i in range(len(rows))])
def test_same_as_numpy(table, i):
    f, shapes = TABLES[table][i]
    need(*(f"np.{name}" for name in f.__code__.co_names if name in NEWER))
    for dtype in (f32, f64):
        compare(f, arguments(shapes, dtype))


@pytest.mark.parametrize("name", CALLS)
def test_same_as_numpy_in_every_call(name):
    need(name)
    for f, *shapes in CALLS[name]:
        for dtype in (f32, f64):
            compare(f, arguments(shapes, dtype))


def compare(f, args):
    """Plain NumPy against the recording, and that against its graph."""
    before = [np.array(a) for a in args]
    with np.errstate(all="ignore"):
        plain = f(*args)
        dispatch.RECAST.clear()
        rec = record(f, args)
        check(rec.graph)
        again = evaluate_graph(rec.graph, rec.operands(flatten(tuple(args))[0]))
    assert not dispatch.RECAST, "a node was given NumPy's dtype afterwards"
    for a, b in zip(args, before):
        np.testing.assert_array_equal(a, b)
    same(plain, rec.results)
    leaves = [x for x in flatten(rec.results)[0]]
    for x, y, node in zip(leaves, again, rec.graph.outputs, strict=True):
        x = np.asarray(x)
        assert np.asarray(y).dtype == node.dtype == x.dtype
        budget = BUDGET.get(x.real.dtype.type, 0)
        np.testing.assert_allclose(y, x, rtol=budget, atol=budget)


def same(plain, recorded):
    if isinstance(plain, (tuple, list)):
        assert type(plain) is type(recorded) and len(plain) == len(recorded)
        for p, r in zip(plain, recorded):
            same(p, r)
        return
    assert type(plain) is type(recorded)
    if isinstance(plain, (np.ndarray, np.generic)):
        assert plain.shape == recorded.shape and plain.dtype == recorded.dtype
    np.testing.assert_array_equal(recorded, plain)


def test_reductions_that_take_one_axis_refuse_several():
    with pytest.raises(ValueError, match="not reorderable"):
        record(lambda x: np.subtract.reduce(x, axis=(0, 1)), (np.ones((2, 3)),))


def centred(v):
    return v - np.mean(v)


def halved(v):
    v *= 0.5
    return v


PIECES = {
    "a function of the part": lambda x: np.piecewise(x, [x > 0], [centred, 0.0]),
    "two parts and the rest": lambda x: np.piecewise(x, [x > 1, x < -1], [centred, np.sum, np.sin]),
    "a function that writes": lambda x: np.piecewise(x, [x > 0, x <= 0], [halved, 3.0]) + x,
    "with arguments": lambda x: np.piecewise(x, [x < 0], [lambda v, a, b: v * a + b] * 2, 2.0, b=x[0]),
    "one condition": lambda x: np.piecewise(x, x > 0.5, [np.log, -1.0]),
    "a plain condition": lambda x: np.piecewise(x, [[True, False] * 3], [centred, np.cos]),
    "two axes": lambda x: np.piecewise(x.reshape(2, 3), [x.reshape(2, 3) > 0], [np.sqrt, np.cumsum]),
    "rows": lambda x: np.piecewise(x.reshape(3, 2), [np.array([True, False, True])], [np.sin, 7.0]),
    "branches": lambda x: np.piecewise(x, [x > 0], [lambda v: v if v[0] > 0.5 else -v, 1.0]),
    "nothing": lambda x: np.piecewise(x, [x > 99], [lambda v: v / v.size, np.tanh]),
    "integers": lambda x: np.piecewise(x.astype(int), [x > 0], [lambda v: v * 1.7, centred]),
    "broadcast": lambda x: np.piecewise(x, [x > 0], [lambda v: np.zeros_like(v) + v, np.ones_like]),
    "a number": lambda x: np.piecewise(x[0], [x[0] > 0, x[0] <= 0], [np.sqrt, lambda v: v * v]),
}


@pytest.mark.parametrize("f", PIECES.values(), ids=PIECES)
def test_piecewise(f, rng):
    """The parts differ between calls, and each has its own derivative."""
    g, loss = ad.compile(f), lambda x: np.sum(f(x) * np.cos(np.arange(f(x).size)).reshape(f(x).shape))
    derivative = ad.grad(loss)
    for _ in range(4):
        x = rng.normal(size=6) * 2.0
        expected = f(x.copy())
        np.testing.assert_allclose(g(x), expected, rtol=1e-14, strict=True)
        numeric = [(loss(x + d) - loss(x - d)) / 2e-6 for d in np.eye(6) * 1e-6]
        np.testing.assert_allclose(derivative(x), numeric, atol=1e-8)


def test_piecewise_where_the_other_function_has_no_value():
    """log is not computed at 0 and below, and 0 times its infinite slope does not enter."""
    g = ad.grad(lambda x: np.sum(np.piecewise(x, [x > 0], [np.log, lambda v: 2.0 * v])))
    with np.errstate(all="raise"):
        for x in ([0.0, 2.0], [0.0, 2.0], [4.0, -1.0]):
            np.testing.assert_array_equal(g(np.array(x)), [1.0 / v if v > 0 else 2.0 for v in x])
    assert ad.why_recorded(g) is None


def test_piecewise_calls_each_function_once(rng):
    calls = []

    def count(v):
        calls.append(v.size)
        return v * 2.0

    x = np.array([1.0, 2.0, -1.0])
    record(lambda x: np.piecewise(x, [x > 0, x > 9], [count, count, 0.0]), (x,))
    np.piecewise(x, [x > 0, x > 9], [count, count, 0.0])
    assert calls == [2, 2]


@pytest.mark.parametrize("f", [np.conj, np.real, np.imag, np.square, lambda b: b.conj() + np.real(b)])
def test_parts_of_bools(f):
    """The conjugate of a bool is an int8."""
    b = np.array([True, False, True])
    np.testing.assert_array_equal(ad.compile(f)(b), f(b), strict=True)


def test_nothing_minus_zero():
    """As documented in passes/fold.py; 0 + -0.0 may come out as -0.0."""
    f = ad.compile(lambda x: 0 - x)
    for _ in range(2):
        assert not np.signbit(f(np.zeros(2))).any()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "float32", "float64"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"period": 16},
        {"period": 7},
        {"period": 7.5, "axis": 0},
        {"discont": 4.0},
        {"discont": 0.5, "period": np.float64(3)},
    ],
)
def test_unwrap(dtype, options, rng):
    """Differences of bytes overflow; a whole period keeps integers what they are."""
    x = rng.integers(0, 250, (4, 5)).astype(dtype) * (0.5 if dtype[0] == "f" else 1)
    if dtype == "uint8" and options.get("period") in (7, 16):
        with pytest.raises(OverflowError):
            np.unwrap(x, **options)
        with pytest.raises(OverflowError):
            ad.compile(lambda x: np.unwrap(x, **options))(x)
        return
    x = x.astype(dtype)
    found = ad.compile(lambda x: np.unwrap(x, **options))(x)
    np.testing.assert_allclose(found, np.unwrap(x, **options), rtol=1e-5, atol=1e-4, strict=True)


@pytest.mark.parametrize("dtype", ["int8", "float32", "float64"])
def test_modf_at_its_ends(dtype):
    """A part that is 0 has the sign of the number."""
    x = np.array([0.0, 1.5, -1.5, -2.0, *([-0.0, np.inf, -np.inf, np.nan] if dtype[0] == "f" else [])], dtype)
    with np.errstate(all="raise"):
        for found, expected in zip(ad.compile(np.modf)(x), np.modf(x), strict=True):
            np.testing.assert_array_equal(found, expected, strict=True)
            np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
    if dtype[0] == "f":
        np.testing.assert_array_equal(ad.grad(lambda x: np.sum(np.modf(x)[0]))(x[:4]), np.ones(4))


@pytest.mark.parametrize(
    "x",
    [
        np.array([1.0, 3.0, -0.3, 0.0, -0.0, 5e-324, 1e308, np.inf, np.nan]),
        *(np.array([1, -6], "int8"), np.array([1.5], "float16"), np.float32(3.5), 2.75),
    ],
)
def test_frexp_has_numpys_bits_and_types(x):
    with np.errstate(invalid="ignore"):
        for found, expected in zip(ad.compile(lambda x: np.frexp(x))(x), np.frexp(x), strict=True):
            np.testing.assert_array_equal(found, expected, strict=True)
            assert type(found) is type(expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int64", "bool"])
def test_powers_of_integers_by_a_float_are_floats(dtype):
    """NumPy converts them first; the square of an int8 would overflow."""
    x = np.array([100, 3, 0]).astype(dtype)
    for f in (lambda x: x**2.0, lambda x: (x + x) ** 2.0, lambda x: x**1.0, lambda x: x**0.5, lambda x: x**2):
        for compiled in (ad.compile(f), ad.Fixed(f)):
            assert compiled(x).dtype == f(x).dtype
            np.testing.assert_array_equal(compiled(x), f(x))
    slope = ad.grad(lambda w, x: np.sum(w * x**2.0))(np.ones(3), x)
    np.testing.assert_array_equal(slope, x.astype(float) ** 2)


@pytest.mark.parametrize("power", [2, 2.0, 1.0, -1, -1.0, 0.5, 3.0])
@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
def test_powers_by_a_number_have_numpys_bits(dtype, power):
    """Those of complex numbers by 2.0 or -1.0 are no squares and reciprocals."""
    x = np.abs(np.sin(np.arange(1.0, 101.0)))
    x = (x + 1j * x[::-1] if dtype.startswith("c") else x).astype(dtype)
    expected = x**power
    found = ad.compile(lambda x: x**power)(x)
    assert found.dtype == expected.dtype and found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("subscripts", ["ij->i", "ij->j", "ij->", "ij->ji", "ii->", "...j->..."])
@pytest.mark.parametrize("dtype", ["int8", "float32", "float64", "complex64"])
def test_einsum_of_one_operand_has_numpys_bits(dtype, subscripts):
    """It adds in another order than np.sum, and keeps short integers short."""
    x = (100.0 * np.sin(np.arange(361.0)).reshape(19, 19)).astype(dtype)
    expected = np.einsum(subscripts, x)
    found = ad.compile(lambda x: np.einsum(subscripts, x))(x)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("function", [np.nanvar, np.nanstd])
@pytest.mark.parametrize("ddof", [0, 1, 2, 2.5, 3])
@pytest.mark.filterwarnings("ignore:Degrees of freedom", "ignore:(invalid|divide)")
def test_spread_of_too_few_numbers_beside_nan(function, ddof):
    """nan where there are no more numbers than ddof."""
    x = np.array([[1.0, 3.0, np.nan], [1.0, 2.0, 4.0]])
    for f in (lambda x: function(x, axis=1, ddof=ddof), lambda x: function(x[0], ddof=ddof)):
        np.testing.assert_allclose(ad.compile(f)(x), f(x), rtol=1e-15)


@pytest.mark.parametrize("name", ["sum", "prod", "cumsum", "cumprod"])
@pytest.mark.parametrize("dtype, of", [(f64, f32), (f32, f64), (f64, np.int8), (np.int8, np.int8)])
def test_adding_up_into_an_array_of_another_dtype(name, dtype, of):
    """In the common dtype of both, as NumPy does."""

    def f(x, **like):
        out = np.zeros(x.shape if "cum" in name else (), dtype, **like)
        getattr(np, name)(x, out=out)
        return out

    x = np.array([3.1, 3.3, 3.7] * 20).astype(of)
    np.testing.assert_array_equal(ad.compile(lambda x: f(x, like=x))(x), f(x))


@pytest.mark.parametrize("function", [np.matmul, *dispatch.since("vecdot")])
@pytest.mark.parametrize("of, dtype", [(np.int8, np.int64), (f32, f64)])
def test_products_in_a_wider_dtype(function, of, dtype):
    """The dtype is that of the sum, not only of the result."""
    x = np.full((4, 4), 11.3).astype(of)
    f = lambda x: function(x, x, dtype=dtype)  # noqa: E731
    np.testing.assert_array_equal(ad.compile(f)(x), f(x))


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_accumulating_nothing(shape):
    f = lambda x: np.maximum.accumulate(x, axis=-1)  # noqa: E731
    np.testing.assert_array_equal(ad.compile(f)(np.zeros(shape)), np.zeros(shape))


def test_a_type_is_compared_with_something_else():
    f = lambda x: x * (2.0 if type(x) == [] or type(x) != {} else 3.0)  # noqa: E721, E731
    assert ad.compile(f)(1.5) == 3.0


@pytest.mark.parametrize("function", [np.convolve, np.correlate])
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("n, m", [(5, 3), (3, 4), (4, 4), (1, 2)])
@pytest.mark.filterwarnings("ignore:invalid")
def test_nan_in_a_kernel_reaches_only_what_it_meets(function, mode, n, m, rng):
    a, v = rng.normal(size=n), rng.normal(size=m)
    v[-1], a[0] = np.nan, np.inf
    f = lambda a, v: function(a, v, mode)  # noqa: E731
    np.testing.assert_allclose(ad.compile(f)(a, v), f(a, v), rtol=1e-14)


@pytest.mark.parametrize(
    "p, q", [([0.0, 0, 1, 2], [0.0, 3, 4]), ([0.0, 0], [1.0, 2]), ([], [1.0]), (2.0, [1.0, 2])]
)
def test_polynomials_that_begin_with_zeros(p, q):
    p, q = np.array(p), np.array(q)
    product = ad.compile(lambda p, q: np.polymul(p, q))
    for a, b in ((p, q), (p + 1, q), (p, q)):
        np.testing.assert_array_equal(product(a, b), np.polymul(a, b))


@pytest.mark.parametrize(
    "x", [[1.0, 2, np.inf], [np.inf, 1.0], [np.nan, 1.0, np.inf, np.inf], [-np.inf, 1.0]]
)
def test_median_beside_infinities(x):
    np.testing.assert_array_equal(ad.compile(np.nanmedian)(np.array(x)), np.nanmedian(x))
