"""A call or several of every NumPy function that is recorded, for test_coverage.py: name -> [(function,
shapes)].

A shape stands for an array of that shape, filled at random (magnitudes 0.3 to 2, random signs); an array or
another value stands for itself. Sizes all differ, so that a swapped axis cannot pass.
"""

import operator

import numpy as np

from tests.support.calls.more_numpy_calls import COMPOSED, MORE

A, B, V, W = (3, 4), (4, 5), (4,), (3,)  # two matrices, two vectors
S = (3, 3)
POSITIVE = np.random.default_rng(3).uniform(0.3, 2.0, (3, 4))
IDS = np.array([2, 0, 2])
MASK = np.array([[True, False, True, False], [False, True, True, True], [True, False, False, True]])


def spd(x):
    """Symmetric and positive definite."""
    return x @ x.T + 3.0 * np.eye(x.shape[0])


def written(write):
    """A function that writes into a copy of its argument, and returns the copy."""

    def f(x, *rest):
        y = x.copy()
        write(y, *rest)
        return y * y

    return f


def each(names, *shapes, **options):
    """One call of each of these functions, with arrays of these shapes and these options."""

    def call(name):
        return lambda *arrays: operator.attrgetter(name)(np)(*arrays, **options)

    return {f"np.{name}": [(call(name), *shapes)] for name in names.split()}


def fft_calls(name):
    f = getattr(np.fft, name)
    if name.endswith("fft"):
        return [(lambda x: f(x), A), (lambda x: f(x, n=5, axis=0), A)]
    return [(lambda x: f(x), (2, 3, 4)), (lambda x: f(x, s=(4, 3), axes=(0, 2), norm="ortho"), (2, 3, 4))]


CALLS = {
    # with nothing but arrays, or an axis
    **each(
        "amax ptp nanmax nanmin nanvar nanprod nancumsum nancumprod cumulative_sum cumulative_prod "
        "linalg.vector_norm",
        A, axis=1),
    **each(
        "amin ediff1d nanmean nanstd cov corrcoef atleast_3d fliplr flipud nan_to_num real_if_close sinc "
        "i0 unique unique_values linalg.pinv linalg.svdvals linalg.matrix_transpose fft.fftshift",
        A),
    **each("vdot vecdot linalg.vecdot", A, A),
    **each("matrix_transpose linalg.matrix_norm linalg.diagonal linalg.trace", (2, 3, 4)),
    # reductions
    "np.sum": [(lambda x: np.sum(x), A), (lambda x: np.sum(x, axis=1, keepdims=True), A),
               (lambda x: x.sum(axis=(0, 2)), (2, 3, 4)), (lambda x: np.sum(x, where=MASK, initial=2.0), A)],
    "np.mean": [(lambda x: np.mean(x), A), (lambda x: x.mean(0), A),
                (lambda x: np.mean(x, where=MASK, axis=1), A)],
    "np.var": [(lambda x: np.var(x), A), (lambda x: np.var(x, axis=1, ddof=1, keepdims=True), A),
               (lambda x: np.var(np.arange(12.0).reshape(3, 4), axis=1, mean=x), (3, 1))],
    "np.std": [(lambda x: np.std(x), A), (lambda x: x.std(axis=0, ddof=1), A),
               (lambda x: np.std(np.arange(4.0), mean=x), ())],
    "np.prod": [(lambda x: np.prod(x), A), (lambda x: x.prod(axis=1), A)],
    "np.max": [(lambda x: np.max(x, axis=1), A), (lambda x: x.max(), A)],
    "np.min": [(lambda x: np.min(x, axis=0, keepdims=True), A)],
    "np.cumsum": [(lambda x: np.cumsum(x, axis=1), A), (lambda x: np.cumsum(x), A)],
    "np.cumprod": [(lambda x: np.cumprod(x, axis=0), A)],
    "np.diff": [(lambda x: np.diff(x, n=2, axis=1), A), (lambda x: np.diff(x), V)],
    "np.gradient": [(lambda x: np.gradient(x), V), (lambda x: np.gradient(x, 0.5, axis=1), A)],
    "np.trapezoid": [(lambda x, y: np.trapezoid(x, y), V, V), (lambda x: np.trapezoid(x, dx=0.5, axis=0), A)],
    "np.average": [(lambda x: np.average(x), A), (lambda x, w: np.average(x, axis=0, weights=w * w), A, W)],
    "np.median": [(lambda x: np.median(x, axis=1), A), (lambda x: np.median(x), V)],
    "np.quantile": [(lambda x: np.quantile(x, 0.3, axis=1), A)],
    "np.percentile": [(lambda x: np.percentile(x, 30), A)],
    "np.nansum": [(lambda x: np.nansum(x, axis=0), A)],
    # products
    "np.matmul": [(lambda x, y: x @ y, A, B), (lambda x, y: np.matmul(x, y), V, B),
                  (lambda x, y: x @ y, V, V),
                  (lambda x, y: x @ y, (2, 3, 4), V)],
    "np.dot": [(lambda x, y: np.dot(x, y), A, B), (lambda x, y: x.dot(y), V, V),
               (lambda x, y: np.dot(x, y), A, V),
               (lambda x, y: np.dot(x, y), (2, 3, 4), (5, 4, 3)), (lambda x, y: np.dot(x, y), (), A)],
    "np.inner": [(lambda x, y: np.inner(x, y), A, (5, 4)), (lambda x, y: np.inner(x, y), V, V)],
    "np.outer": [(lambda x, y: np.outer(x, y), V, W), (lambda x, y: np.outer(x, y), A, W)],
    "np.tensordot": [(lambda x, y: np.tensordot(x, y, axes=1), A, B),
                     (lambda x, y: np.tensordot(x, y, axes=([0, 2], [1, 0])), (2, 3, 4), (4, 2, 5))],
    "np.einsum": [(lambda x, y: np.einsum("ij,jk", x, y), A, B), (lambda x: np.einsum("ii->i", x), S),
                  (lambda x, y: np.einsum("...i,ij->...j", x, y), (2, 3, 4), B)],
    "np.kron": [(lambda x, y: np.kron(x, y), (2, 3), (4, 2)), (lambda x, y: np.kron(x, y), V, W)],
    "np.cross": [(lambda x, y: np.cross(x, y), (4, 3), (4, 3)), (lambda x, y: np.cross(x, y), W, (2, 3))],
    "np.trace": [(lambda x: np.trace(x), A), (lambda x: np.trace(x, offset=1, axis1=0, axis2=2), (2, 5, 4))],
    "np.convolve": [(lambda x, y: np.convolve(x, y), V, W), (lambda x, y: np.convolve(x, y, "same"), V, W)],
    "np.correlate": [(lambda x, y: np.correlate(x, y), V, W)],
    "np.matvec": [(lambda x, y: np.matvec(x, y), A, V)],
    "np.vecmat": [(lambda x, y: np.vecmat(x, y), W, A)],
    "np.polyval": [(lambda p, x: np.polyval(p, x), W, A)],
    # shapes
    "np.reshape": [(lambda x: np.reshape(x, (2, -1)), A), (lambda x: x.reshape(-1), A)],
    "np.ravel": [(lambda x: np.ravel(x), A), (lambda x: x.flatten() * x.ravel(), A)],
    "np.transpose": [(lambda x: np.transpose(x, (2, 0, 1)), (2, 3, 4)), (lambda x: x.T, A)],
    "np.swapaxes": [(lambda x: np.swapaxes(x, 0, 2), (2, 3, 4))],
    "np.moveaxis": [(lambda x: np.moveaxis(x, 0, -1), (2, 3, 4))],
    "np.rollaxis": [(lambda x: np.rollaxis(x, 2), (2, 3, 4))],
    "np.expand_dims": [(lambda x: np.expand_dims(x, 1), A)],
    "np.squeeze": [(lambda x: np.squeeze(x), (3, 1, 4))],
    "np.broadcast_to": [(lambda x: np.broadcast_to(x, (3, 4)), V)],
    "np.broadcast_arrays": [(lambda x, y: np.broadcast_arrays(x, y)[0] * y, V, A)],
    "np.atleast_1d": [(lambda x: np.atleast_1d(x), ())],
    "np.atleast_2d": [(lambda x: np.atleast_2d(x), V)],
    "np.concatenate": [(lambda x, y: np.concatenate([x, y]), A, (2, 4)),
                       (lambda x, y: np.concatenate([x, y * y], axis=1), A, (3, 2)),
                       (lambda x, y: np.concatenate([x, y], axis=None), A, V)],
    "np.stack": [(lambda x, y: np.stack([x, y], axis=1), A, A)],
    "np.vstack": [(lambda x, y: np.vstack([x, y]), A, V)],
    "np.hstack": [(lambda x, y: np.hstack([x, y]), A, (3, 2))],
    "np.dstack": [(lambda x, y: np.dstack([x, y]), A, A)],
    "np.column_stack": [(lambda x, y: np.column_stack([x, y]), W, A)],
    "np.block": [(lambda x, y: np.block([[x, y], [y, x]]), A, A)],
    "np.append": [(lambda x, y: np.append(x, y, axis=0), A, (1, 4)), (lambda x, y: np.append(x, y), A, V)],
    "np.insert": [(lambda x, y: np.insert(x, 1, y, axis=0), A, V)],
    "np.delete": [(lambda x: np.delete(x, 1, axis=0), A)],
    "np.resize": [(lambda x: np.resize(x, (5, 3)), V)],
    "np.split": [(lambda x: np.split(x, 2, axis=1)[1], A), (lambda x: np.split(x, [1, 3], axis=1)[1], A)],
    "np.array_split": [(lambda x: np.array_split(x, 3, axis=1)[0], A)],
    "np.hsplit": [(lambda x: np.hsplit(x, 2)[0], A)],
    "np.vsplit": [(lambda x: np.vsplit(x, 3)[2], A)],
    "np.dsplit": [(lambda x: np.dsplit(x, 2)[1], (2, 3, 4))],
    "np.unstack": [(lambda x: np.unstack(x, axis=1)[2], A)],
    "np.tile": [(lambda x: np.tile(x, (2, 1, 3)), A), (lambda x: np.tile(x, 2), A)],
    "np.repeat": [(lambda x: np.repeat(x, 3, axis=1), A), (lambda x: np.repeat(x, [1, 0, 2], axis=0), A),
                  (lambda x: np.repeat(x, 2), A)],
    "np.roll": [(lambda x: np.roll(x, 2, axis=1), A), (lambda x: np.roll(x, -1), A),
                (lambda x: np.roll(x, (1, 2), axis=(0, 1)), A)],
    "np.flip": [(lambda x: np.flip(x, axis=1), A), (lambda x: np.flip(x), A)],
    "np.rot90": [(lambda x: np.rot90(x), A), (lambda x: np.rot90(x, 3), A)],
    "np.pad": [(lambda x: np.pad(x, ((1, 2), (0, 1))), A), (lambda x: np.pad(x, 2, constant_values=5.0), V),
               (lambda x: np.pad(x, 1, mode="edge"), A), (lambda x: np.pad(x, 2, mode="reflect"), (3, 4)),
               (lambda x: np.pad(x, 2, mode="wrap"), V)],
    "np.diag": [(lambda x: np.diag(x), V), (lambda x: np.diag(x, 1), A)],
    "np.diagflat": [(lambda x: np.diagflat(x), (2, 2))],
    "np.diagonal": [(lambda x: np.diagonal(x), A), (lambda x: np.diagonal(x, -1, 0, 2), (3, 2, 4))],
    "np.tril": [(lambda x: np.tril(x), S), (lambda x: np.tril(x, 1), (2, 3, 4))],
    "np.triu": [(lambda x: np.triu(x, -1), S)],
    "np.vander": [(lambda x: np.vander(x, 3), V)],
    "np.meshgrid": [(lambda x, y: np.meshgrid(x, y)[0] * np.meshgrid(x, y)[1], V, W)],
    "np.asarray": [(lambda x: np.asarray(x, like=x) * x, A)],
    "np.asanyarray": [(lambda x: np.asanyarray(x, like=x) * x, A)],
    "np.ascontiguousarray": [(lambda x: np.ascontiguousarray(x, like=x) * x, A)],
    "np.asfortranarray": [(lambda x: np.asfortranarray(x, like=x) * x, A)],
    "np.lib.stride_tricks.sliding_window_view": [
        (lambda x: np.lib.stride_tricks.sliding_window_view(x, 3, axis=1) ** 2, A)],
    "np.copy": [(lambda x: np.copy(x), A), (lambda x: x.copy(), A)],
    "np.astype": [(lambda x: np.astype(x, np.complex128), A), (lambda x: x.astype(float), A)],
    # indexing and selection
    "np.take": [(lambda x: np.take(x, IDS, axis=0), A), (lambda x: np.take(x, [5, 1]), A)],
    "np.take_along_axis": [(lambda x: np.take_along_axis(x, IDS[:, None], axis=1), A)],
    "np.choose": [(lambda x, y: np.choose(np.array([0, 1, 1, 0]), [x, y]), V, V)],
    "np.select": [(lambda x, y: np.select([MASK, ~MASK], [x, y * y]), A, A)],
    "np.compress": [(lambda x: np.compress([True, False, True], x, axis=0), A)],
    "np.extract": [(lambda x: np.extract(MASK, x), A)],
    "np.where": [(lambda x, y: np.where(MASK, x, y), A, V), (lambda x: np.where(x > 0, x * x, 1.0), A)],
    "np.piecewise": [(lambda x: np.piecewise(x, [x < 0, x >= 0], [lambda v: v * v, lambda v: v**3]), V)],
    "np.clip": [(lambda x: np.clip(x, -0.9, 1.1), A), (lambda x: x.clip(0.0, None), A),
                (lambda x, y: np.clip(x, y, 3.0), A, V)],
    "np.sort": [(lambda x: np.sort(x, axis=0), A), (lambda x: np.sort(x), V)],
    "np.partition": [(lambda x: np.partition(x, 2, axis=1), A)],
    "np.put_along_axis": [(written(lambda x, v: np.put_along_axis(x, IDS[:, None], v, axis=1)), A, (3, 1))],
    "np.copyto": [(written(lambda x, v: np.copyto(x, v, where=MASK)), A, V)],
    "np.put": [(written(lambda x, v: np.put(x, [1, 6], v)), A, (2,))],
    "np.place": [(written(lambda x, v: np.place(x, MASK, v)), A, (2,))],
    "np.putmask": [(written(lambda x, v: np.putmask(x, MASK, v)), A, A)],
    "np.fill_diagonal": [(written(lambda x, v: np.fill_diagonal(x, v)), A, ())],
    "np.apply_along_axis": [(lambda x: np.apply_along_axis(lambda r: r * r.sum(), 1, x), A)],
    "np.apply_over_axes": [(lambda x: np.apply_over_axes(np.sum, x, [0]), A)],
    "np.interp": [(lambda x, fp: np.interp(x, np.arange(5.0) - 2, fp), V, (5,))],
    "np.unwrap": [(lambda x: np.unwrap(x * 4.0), V)],
    "np.real": [(lambda x: np.real(x * (1 + 2j)), A), (lambda x: (x * 1j).real, A)],
    "np.imag": [(lambda x: np.imag(x * (1 + 2j)), A)],
    "np.angle": [(lambda x: np.angle(x * x + 1j * x), A)],
    "np.around": [(lambda x: np.around(x, 1) * x, A)],
    "np.round": [(lambda x: np.round(x, 1) * x, A)],
    "np.fix": [(lambda x: np.fix(x) * x, A)],
    # made from numbers
    "np.full": [(lambda x: np.full((2, 3), x, like=x), (1,))],
    "np.full_like": [(lambda x: np.full_like(x, 2.0) * x, A)],
    "np.zeros_like": [(lambda x: np.zeros_like(x) + x, A)],
    "np.ones_like": [(lambda x: np.ones_like(x) * x, A)],
    "np.empty_like": [(written(lambda x: np.copyto(np.empty_like(x), x)), A)],
    "np.linspace": [(lambda x, y: np.linspace(x, y, 5), (), ()), (lambda x: np.linspace(0.0, x, 4), W)],
    "np.logspace": [(lambda x, y: np.logspace(x, y, 4), (), ())],
    "np.geomspace": [(lambda x, y: np.geomspace(x * x, y * y + 3, 4), (), ())],
    "np.array": [(lambda x, y: np.stack([x[0], y]), V, ())],
    # linear algebra
    "np.linalg.inv": [(lambda x: np.linalg.inv(x), S), (lambda x: np.linalg.inv(x), (2, 3, 3))],
    "np.linalg.det": [(lambda x: np.linalg.det(x), S), (lambda x: np.linalg.det(x), (2, 3, 3))],
    "np.linalg.slogdet": [(lambda x: np.linalg.slogdet(x)[1], S),
                          (lambda x: np.linalg.slogdet(x).logabsdet, S)],
    "np.linalg.solve": [(lambda a, b: np.linalg.solve(a, b), S, W),
                        (lambda a, b: np.linalg.solve(a, b), S, A)],
    "np.linalg.lstsq": [(lambda a, b: np.linalg.lstsq(a, b)[0], (5, 3), (5,))],
    "np.linalg.cholesky": [(lambda x: np.linalg.cholesky(spd(x)), S)],
    "np.linalg.qr": [(lambda x: np.linalg.qr(x)[0], (4, 3)), (lambda x: np.linalg.qr(x).R, (4, 3))],
    "np.linalg.eigh": [(lambda x: np.linalg.eigh(spd(x))[0], S),
                       (lambda x: np.linalg.eigh(spd(x)).eigenvectors, S)],
    "np.linalg.eigvalsh": [(lambda x: np.linalg.eigvalsh(spd(x)), S)],
    "np.linalg.eig": [(lambda x: np.linalg.eig(spd(x))[0], S)],
    "np.linalg.eigvals": [(lambda x: np.sum(np.abs(np.linalg.eigvals(x))), S)],
    "np.linalg.svd": [(lambda x: np.linalg.svd(x, full_matrices=False)[1], A),
                      (lambda x: np.linalg.svd(x, compute_uv=False), A),
                      (lambda x: np.linalg.svd(x, full_matrices=False).U, (4, 3))],
    "np.linalg.norm": [(lambda x: np.linalg.norm(x), A), (lambda x: np.linalg.norm(x, axis=1), A),
                       (lambda x: np.linalg.norm(x, ord=1, axis=0), A),
                       (lambda x: np.linalg.norm(x, ord=3), V),
                       (lambda x: np.linalg.norm(x, ord="nuc"), A), (lambda x: np.linalg.norm(x, ord=2), A),
                       (lambda x: np.linalg.norm(x, ord=np.inf), A)],
    "np.linalg.cond": [(lambda x: np.linalg.cond(x), S)],
    "np.linalg.matrix_power": [(lambda x: np.linalg.matrix_power(x, 3), S),
                               (lambda x: np.linalg.matrix_power(x, -2), S)],
    "np.linalg.multi_dot": [(lambda x, y, z: np.linalg.multi_dot([x, y, z]), A, B, (5, 2))],
    "np.linalg.tensorinv": [(lambda x: np.linalg.tensorinv(x, ind=1), (4, 2, 2))],
    "np.linalg.tensorsolve": [(lambda a, b: np.linalg.tensorsolve(a, b), (4, 2, 2), V)],
    "np.linalg.cross": [(lambda x, y: np.linalg.cross(x, y), (4, 3), (4, 3))],
    "np.linalg.outer": [(lambda x, y: np.linalg.outer(x, y), V, W)],
    "np.linalg.matmul": [(lambda x, y: np.linalg.matmul(x, y), A, B)],
    "np.linalg.tensordot": [(lambda x, y: np.linalg.tensordot(x, y, axes=1), A, B)],
    # Fourier transforms
    **{f"np.fft.{name}": fft_calls(name) for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")},
    **{f"np.fft.{name}{n}": fft_calls(name + n) for name in ("fft", "ifft", "rfft", "irfft") for n in "2n"},
    "np.fft.ifftshift": [(lambda x: np.fft.ifftshift(x, axes=1), A)],
    # several results
    "np.divmod": [(lambda x: np.divmod(x, 0.7)[1], A)],
    "np.frexp": [(lambda x: np.frexp(x)[0], A)],
    "np.modf": [(lambda x: np.modf(x)[0], A)],
}  # fmt: skip

# Recorded, but nothing to differentiate: they give no real or complex numbers, or constants only
CONSTANT = {
    f"np.{name}"
    for name in """
    all allclose any argmax argmin argpartition argsort argwhere array2string array_equal
    array_equiv array_repr array_str bincount can_cast common_type count_nonzero digitize empty eye
    flatnonzero identity isclose iscomplex iscomplexobj isin isneginf isposinf isreal isrealobj
    linalg.matrix_rank may_share_memory min_scalar_type nanargmax nanargmin ndim nonzero ones
    ravel_multi_index result_type searchsorted shape shares_memory size tri unravel_index zeros
""".split()
}

for name, calls in (*MORE.items(), *COMPOSED.items()):
    CALLS[name] = [*CALLS.get(name, []), *calls]
