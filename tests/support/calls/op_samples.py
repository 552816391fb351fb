"""Arguments on which the rows of the op table are tested: `samples_of(name)`.

Of NumPy's ufuncs they follow from the number and the types of their arguments; DOMAINS says where these lie
if not between 0.3 and 2 with either sign. SAMPLES has those of all other ops, `scipy_samples` those of rows
that need SciPy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpt2.autodiff.ops import OPS
from gpt2.autodiff.ops.build import absolute, conjugate, item, square
from gpt2.autodiff.ops.index import gather_shape
from gpt2.autodiff.ops.linalg import as_column, as_row, swap_last
from gpt2.autodiff.ops.table import Op, input_node

REAL, BOTH, COMPLEX = ("float64",), ("float64", "complex128"), ("complex128",)


@dataclass(frozen=True)
class OpSample:
    """Arguments of an op.

    args      each a shape, to be filled at random; or an array, taken as it is and not differentiated (masks,
              index arrays); or a function of a random generator and a dtype that gives an array
    attrs     the op's attributes
    domain    magnitudes of the random numbers; with a random sign each if `signed`
    dtypes    what they are drawn in: "float64", "complex128"
    of        what to test instead of the op's result, for vectors that are settled only up to a phase:
              of(out, *args) -> node
    """

    args: tuple
    attrs: dict
    domain: tuple[float, float] = (0.3, 2.0)
    signed: bool = True
    dtypes: tuple[str, ...] = REAL
    of: Callable | None = None


def sample(*args: Any, **attrs: Any) -> OpSample:
    """The sample with these arguments; what is not a field of OpSample is an attribute of the op."""
    fields = {name: attrs.pop(name) for name in ("domain", "signed", "dtypes", "of") if name in attrs}
    return OpSample(args, attrs, **fields)


@functools.cache
def samples_of(name: str) -> list[OpSample]:
    """The samples of an op, none for one that holds a graph or takes a tuple apart."""
    op = OPS[name]
    if name in SAMPLES:
        return SAMPLES[name]
    if op.ufunc is not None and op.needs is None:
        return list(_of_ufunc(name, op.ufunc))
    return scipy_samples(op) if op.needs == "scipy" else []


UNARY = (((3, 4),),)
BINARY = (((3, 4), (3, 4)), ((2, 1, 3), (4, 1)), ((3,), ()), ((), (2, 3)))
# magnitudes, and whether there are negative numbers too
DOMAINS: dict[str, tuple[tuple[float, float], bool]] = {
    **dict.fromkeys(("power", "float_power", "sqrt", "log", "log2", "log10"), ((0.3, 2.0), False)),
    **dict.fromkeys(("log1p", "arcsin", "arccos", "arctanh"), ((0.1, 0.8), True)),
    "tan": ((0.1, 1.2), True),
    "arccosh": ((1.2, 3.0), False),
}


def _of_ufunc(name: str, ufunc: np.ufunc) -> Iterator[OpSample]:
    domain, signed = DOMAINS.get(name, ((0.3, 2.0), True))
    dtypes = BOTH if "D" * ufunc.nin + "->D" in ufunc.types or name == "absolute" else REAL
    for shapes in UNARY if ufunc.nin == 1 else BINARY:
        yield sample(*shapes, domain=domain, signed=signed, dtypes=dtypes)


# ---- All other ops -----------------------------------------------------------------------------------------


def positive_definite(rng, dtype):
    a = rng.normal(size=(2, 3, 3)).astype(dtype)
    if a.dtype.kind == "c":
        a = a + 1j * rng.normal(size=a.shape)
    return a @ a.conj().swapaxes(-1, -2) + 2.0 * np.eye(3)


def well_conditioned(rng, dtype):
    a = rng.normal(size=(3, 3)) + (1j * rng.normal(size=(3, 3)) if np.dtype(dtype).kind == "c" else 0.0)
    return (a + 3.0 * np.eye(3)).astype(dtype)


def projectors(out, x):
    """v_i v_i^H for each eigenvector: the phases cancel."""
    v = swap_last(item(out, 1))
    return as_column(v) * as_row(conjugate(v))


def outer_products(out, x):
    """u_i v_i^H for each singular value: the phases cancel."""
    return as_column(swap_last(item(out, 0))) * as_row(item(out, 2))


def each(*shapes, **attrs):
    return [sample(shape, dtypes=BOTH, **attrs) for shape in shapes]


INTEGERS = np.array([[6, 4], [9, 1]]), np.array([2, 3])
BETWEEN_JUMPS = sample(
    lambda rng, dtype: np.array([[5.3], [-4.1], [7.7]]), lambda rng, dtype: np.array([2.1, -3.3])
)
# repeated indices, an array beside a slice, two arrays apart, a new axis
INDICES = (
    ((("array", 0),), [np.array([2, 0, 2])], BOTH),
    (((3, None, -2), ("array", 0)), [np.array([[1, 1], [4, 0]])], REAL),
    ((("array", 0), (0, 5, 2), ("array", 1)), [np.array([3, 3]), np.array([[1], [5], [1]])], REAL),
    (("new", ("array", 0), ("array", 1)), [np.array([0, 1, 0]), np.array(2)], REAL),
)
ALONG = np.array([[3, 0, 1], [3, 2, 1]])


def _scattered(shape=(4, 5, 6)):
    for spec, arrays, dtypes in INDICES:
        values = gather_shape(shape, spec, [a.shape for a in arrays])
        yield sample(shape, values, *arrays, spec=spec, dtypes=dtypes)
    yield sample(shape, (), np.array([1, 3]), spec=(("array", 0),))


SAMPLES: dict[str, list[OpSample]] = {
    **dict.fromkeys(("remainder", "fmod"), [BETWEEN_JUMPS]),
    "ldexp": [sample((2, 3), np.array([-2, 0, 3]))],
    "sign": [sample((3, 4))],
    **dict.fromkeys(
        ("left_shift", "right_shift", "bitwise_and", "bitwise_or", "bitwise_xor", "gcd", "lcm"),
        [sample(*INTEGERS)],
    ),
    "invert": [sample(INTEGERS[0])],
    "sinc": [sample((3, 4)), sample((5,), domain=(0.0, 0.04))],
    "round_decimal": [sample((), digits=2)],
    "frexp_exponent": [sample((3, 4))],
    **dict.fromkeys(("real", "imag", "angle"), each((3, 4))),
    "complex": [sample((3, 4), (4,), dtypes=REAL)],
    "where": [
        sample(np.array([True, False, True]), (2, 3), (2, 3), dtypes=BOTH),
        sample(np.array([[True], [False]]), (4, 2, 3), (3,)),
        sample(np.array([[True], [False]]), (), (2, 1)),
    ],
    "cast": [sample((3, 4), dtype="complex128")],
    # reductions
    **{
        name: [
            sample((3, 4, 5), axes=axes, keepdims=keepdims, dtypes=dtypes)
            for axes, keepdims in (((1,), False), ((0, 2), True), ((0, 1, 2), False))
        ]
        for names, dtypes in ((("sum", "sum_as_numpy", "prod"), BOTH), (("max", "min", "any", "all"), REAL))
        for name in names
    },
    "share_among": [
        sample((3, 1), np.array([[True, False], [True, True], [False, True]]), np.ones((3, 1)), axes=(1,)),
        sample((1, 4, 1), np.arange(24).reshape(2, 4, 3) % 5 == 0, np.ones((1, 4, 1)), axes=(0, 2)),
    ],
    "reduceat": [
        sample((3, 6), starts=(0, 4, 1), ufunc=ufunc, axis=1, dtypes=BOTH if ufunc == "add" else REAL)
        for ufunc in ("add", "maximum", "minimum")
    ],
    **dict.fromkeys(("argmax", "argmin"), [sample((3, 4), axis=0), sample((3, 4), axis=1)]),
    "cumsum": [sample((3, 4), axis=0, reverse=False, dtypes=BOTH), sample((3, 4), axis=1, reverse=True)],
    "cumprod": [sample((5, 3), axis=0, dtypes=BOTH), sample((2, 8), axis=1), sample((1,), axis=0)],
    # shapes
    "reshape": each((2, 6), shape=(3, 4)),
    "transpose": each((2, 3, 4), perm=(2, 0, 1)),
    "broadcast": [sample((3, 1), shape=(2, 3, 4), dtypes=BOTH), sample((), shape=(2,))],
    "slice": [sample((5, 4), index=((1, 5, 2), (3, None, -1)), dtypes=BOTH), sample((), index=())],
    "assemble": [  # overlapping, stretched
        sample(
            (2, 3),
            (3,),
            shape=(4, 5),
            dtype="float64",
            indices=(((0, 2, 1), (0, 3, 1)), ((1, 2, 1), (4, 1, -1))),
        ),
        sample((2,), shape=(3,), dtype="complex128", indices=(((2, 0, -1),),)),
    ],
    "update": [
        sample((4, 3), (2, 3), index=((0, 4, 2), (0, 3, 1)), dtypes=BOTH),
        sample((4,), (), index=((1, 3, 1),)),
    ],
    "copy": [sample((2, 3))],
    # products
    "matmul": [
        sample(a, b, dtypes=BOTH)
        for a, b in (
            ((2, 3), (3, 4)),
            ((5, 2, 3), (3, 4)),
            ((5, 2, 3), (5, 3, 4)),
            ((2, 3), (5, 3, 4)),
            ((6, 1, 2, 3), (5, 3, 4)),
        )
    ],
    "row_product": [sample((5, 2), (5, 3), dtypes=BOTH)],
    "einsum": [
        sample((2, 3), (3, 4), subscripts="ij,jk->ik", dtypes=BOTH),
        sample((2, 3), (4, 3), (2, 5), subscripts="ij,kj,il->lk"),
        sample((2, 3, 4), subscripts="ijk->ki"),  # j is summed alone
        sample((3, 3), subscripts="ii->"),
        sample((3, 2, 3, 3), subscripts="ijii->ij"),
        sample((3, 3), (3, 2), subscripts="ii,ij->ji"),
        sample((2, 1), (2, 3), subscripts="ij,ij->j"),  # an axis of length 1 stretches
        sample((2,), (3,), subscripts="i,j->ji"),
    ],
    "fft": [
        sample((5, 3), kind=kind, n=n, axis=0, norm=norm, dtypes=REAL if kind == "rfft" else BOTH)
        for kind in ("fft", "ifft", "rfft", "irfft")
        for n, norm in ((5, "backward"), (4, "ortho"), (8, "forward"))
    ],
    # indices
    "gather": [sample((4, 5, 6), *arrays, spec=spec, dtypes=dtypes) for spec, arrays, dtypes in INDICES],
    **dict.fromkeys(("scatter", "scatter_add"), list(_scattered())),
    "take_along": [
        sample((4, 3), ALONG, axis=0, dtypes=BOTH),
        sample((4, 1), ALONG[:, :1], axis=0),
        sample((4, 2, 5), ALONG[None], axis=2),
    ],
    "scatter_along_add": [sample((4, 3), ALONG, (2, 3), axis=0, dtypes=BOTH)],
    "in_order": [sample(lambda rng, dtype: np.sort(rng.normal(size=5)).astype(dtype))],
    "argsort": [sample((3, 4), axis=1, kind=None), sample((3, 4), axis=0, kind="stable")],
    "argpartition": [sample((3, 4), kth=2, axis=1)],
    "searchsorted": [sample(np.arange(5.0), (3, 4), side="left")],
    # linear algebra
    "inv": each((3, 3), (2, 3, 3)),
    "det": each((3, 3), (2, 3, 3)),
    "cofactors_along": [sample((3, 3), (3, 3), dtypes=BOTH), sample((2, 4, 4), (2, 4, 4))],
    "slogdet": each((3, 3), (2, 3, 3)),
    "pinv": each((4, 3), (2, 3, 4), rcond=None),
    "qr": each((4, 3), (3, 3), (2, 3, 5)),
    "solve": [sample(a, b, dtypes=BOTH) for a, b in (((3, 3), (3, 2)), ((2, 3, 3), (3, 1)))],
    "solve_triangular": [
        sample(well_conditioned, (3, 2), dtypes=BOTH, upper=upper) for upper in (False, True)
    ],
    "cholesky": [sample(positive_definite, dtypes=BOTH)],
    "eigh": [
        sample((2, 3, 3), uplo="L"),
        sample((3, 3), uplo="U"),
        sample((3, 3), uplo="L", dtypes=COMPLEX, of=lambda out, x: item(out, 0)),
        sample((3, 3), uplo="L", dtypes=COMPLEX, of=projectors),
    ],
    "eig": [
        sample((2, 3, 3), dtype="complex128", dtypes=COMPLEX),
        sample((4, 4), dtype="complex128", of=lambda out, x: item(out, 0)),
        sample((4, 4), dtype="complex128", of=lambda out, x: absolute(item(out, 1))),
        sample(positive_definite, dtype="float64", of=lambda out, x: square(item(out, 1))),
    ],
    "svd": [
        *(sample(shape, full_matrices=False) for shape in ((3, 3), (2, 5, 3), (3, 4))),
        sample((3, 4), full_matrices=True, of=lambda out, x: item(out, 1), dtypes=BOTH),
        sample((5, 3), full_matrices=False, of=outer_products, dtypes=COMPLEX),
    ],
}


# ---- Ops that need SciPy -----------------------------------------------------------------------------------


def scipy_samples(op: Op) -> list[OpSample]:
    """The samples of an op of gpt2.autodiff.scipy or gpt2.autodiff.sparse, which has been loaded."""
    from gpt2.autodiff.scipy.rules import distributions, matrix_functions, sparse_matrices, special

    if op.name == special.PREFIX + "psi_rise":
        return [sample(*shapes, domain=(0.5, 3.0), signed=False) for shapes in BINARY[:3]]
    if op.name.startswith(special.PREFIX):
        name = op.name.removeprefix(special.PREFIX)
        return list(_of_special(op, special.PARTIALS[name], OF_SPECIAL.get(name, (0.5, 3.0))))
    if op.name == "distribution":
        return [s for name, law in distributions.LAWS.items() for s in _of_law(name, law)]
    if op.name.startswith("sparse"):
        some = functools.partial(_band, sparse_matrices.Matrix)
        shapes = ((4, 2), (3, 4)), ((3, 1), (3, 3))
        if op.name == "sparse_solve":
            shapes = ((3, 2), (3, 3)), ((4, 1), (4, 4))
        (x, real), (y, complex_) = shapes
        return [
            sample(x, matrix=some(real), dtypes=BOTH),
            sample(y, matrix=some(complex_, 1.0 + 0.5j), dtypes=BOTH),
        ]
    if op.name in ("distribution_limit", "known_slope"):
        return []
    if op.name == "frechet":
        return [sample(_near_one, (3, 3), which=which) for which in ("expm", "sqrtm")]
    return [sample(_near_one, which=which) for which in matrix_functions.FUNCTIONS]


# Where the arguments lie of scipy.special's functions that are not at their best from 0.5 to 3
OF_SPECIAL = {
    **dict.fromkeys("betainc betaincc betaincinv ellipk ellipe hyp2f1 ndtri logit".split(), (0.2, 0.8)),
    **dict.fromkeys("gammaincinv gammainccinv erfcinv".split(), (0.2, 0.8)),
    **dict.fromkeys("ndtr log_ndtr expit log_expit i0 i1 j0 j1".split(), (-3.0, 3.0)),
    **dict.fromkeys("erf erfc erfcx erfi dawsn exprel cosm1 exp10 exp2 expm1".split(), (-1.5, 1.5)),
    **{
        "yn": (0.5, 3.5),
        "kn": (0.5, 3.5),
        "erfinv": (-0.9, 0.9),
        "log1p": (-0.5, 2.0),
        "zeta": (1.5, 4.0),
        "binom": (0.6, 2.4),
    },
}


def _of_special(op, partials, domain):
    n = op.evaluate.nin
    held = [False]
    if n > 1:  # entries for a gradient are functions, which are not called here
        held = [d is None for d in partials(*[input_node((), np.float64)] * (n + 1))]
    point = np.linspace(*domain, 3)[1]  # for an argument without a derivative
    for shapes in UNARY if n == 1 else BINARY[:3] if n == 2 else (((2, 3),) * n,):
        args = [np.array(point) if h else shape for shape, h in zip(shapes, held)]
        yield sample(*args, domain=domain, signed=False)


def _of_law(name, law):
    n, ends = len(law.shapes), [np.array(0.0), np.array(1.0)]
    if law.discrete:
        points = np.array([1.0, 2.0, 4.0])
        whole = [np.array(5.0)] if law.shapes[0] == "n" else []
        args = [points, *whole, *[(3,)] * (n - len(whole)), ends[0]]
        yield sample(*args, domain=(0.2, 0.8), signed=False, law=name, method="pmf")
        return
    domain = (0.2, 0.7) if name in ("uniform", "beta") else (1.3, 2.5) if name == "pareto" else (0.4, 1.8)
    for method in ("logpdf", "pdf"):
        yield sample(*[(3,)] * (n + 1), *ends, domain=domain, signed=False, law=name, method=method)
    for method in ("cdf", "logsf"):
        args = [(2, 3), *[np.array(1.5)] * n, *ends]
        yield sample(*args, domain=domain, signed=False, law=name, method=method)


def _band(matrix, shape, factor=1.0):
    """A sparse matrix that is not singular."""
    import scipy.sparse

    n, m = shape
    dense = 2.0 * np.eye(n, m) + 0.5 * np.eye(n, m, 1) - 0.3 * np.eye(n, m, -1)
    return matrix(scipy.sparse.csr_array(dense * factor))


def _near_one(rng, dtype):
    return np.eye(3) * 2.0 + 0.3 * rng.normal(size=(3, 3))
