"""The ufuncs of scipy.special that have derivatives. Loaded when one of them is first recorded.

The table below says for each name its partial derivatives, in ops again, so that derivatives of any order
follow. None: there is no formula for that argument (the order of a Bessel function, the shape of an
incomplete gamma function), and asking for it is an error that says so.

`OP_OF` has the op for each ufunc. Formulas: DLMF, dlmf.nist.gov.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import scipy.special

from ..errors import UnsupportedError
from ..graph import Node
from . import rowwise
from .build import equal, exp, log, sign, sin, sqrt, square, where
from .elementwise import broadcast_shape, ufunc_dtype
from .table import apply, input_node, row, sample

PREFIX = "special_"
OP_OF: dict[np.ufunc, str] = {}

ROOT_PI, ROOT_TWO_PI = math.sqrt(math.pi), math.sqrt(2.0 * math.pi)
FULL = ((3, 4), (3, 4)), ((2, 1, 3), (4, 1)), ((3,), ())
FLAT = object()  # in place of a partial: the function is constant between its steps


def f(name: str) -> Callable[..., Node]:
    """The function that makes a node of that ufunc."""
    return lambda *args: apply(PREFIX + name, *args)


psi, zeta, gamma, gammaln, beta = f("psi"), f("zeta"), f("gamma"), f("gammaln"), f("beta")
expit, log_expit, jv, yv, iv, kv, ive, kve = map(
    f, ("expit", "log_expit", "jv", "yv", "iv", "kv", "ive", "kve")
)
j0, j1, y0, y1, i0, i1, i0e, i1e = map(f, ("j0", "j1", "y0", "y1", "i0", "i1", "i0e", "i1e"))
k0, k1, k0e, k1e, ellipk, ellipe = map(f, ("k0", "k1", "k0e", "k1e", "ellipk", "ellipe"))


def _gamma_density(a, x):
    return exp((a - 1.0) * log(x) - x - gammaln(a))


def _beta_density(a, b, x):
    return exp((a - 1.0) * log(x) + (b - 1.0) * log(1.0 - x)) / beta(a, b)


def _ratio(n, x, y):
    """The partials of rel_entr(x, y) and kl_div(x, y), which differ by n."""
    return lambda: log(x / y) + n, lambda: (1.0 - n) - x / y


def _hyp2f1(out, a, b, c, z):
    return None, None, None, lambda: a * b / c * apply(PREFIX + "hyp2f1", a + 1.0, b + 1.0, c + 1.0, z)


# name: (partials, where the arguments of its tests lie)
PARTIALS: dict[str, tuple[Callable, tuple[float, float]]] = {
    # error functions and the normal distribution
    "erf": (lambda out, x: ((2.0 / ROOT_PI, exp(-square(x))),), (-2.0, 2.0)),
    "erfc": (lambda out, x: ((-2.0 / ROOT_PI, exp(-square(x))),), (-2.0, 2.0)),
    "erfcx": (lambda out, x: (2.0 * x * out - 2.0 / ROOT_PI,), (-1.0, 3.0)),
    "erfi": (lambda out, x: ((2.0 / ROOT_PI, exp(square(x))),), (-1.5, 1.5)),
    "erfinv": (lambda out, x: ((0.5 * ROOT_PI, exp(square(out))),), (-0.9, 0.9)),
    "erfcinv": (lambda out, x: ((-0.5 * ROOT_PI, exp(square(out))),), (0.1, 1.8)),
    "dawsn": (lambda out, x: (1.0 - 2.0 * x * out,), (-2.0, 2.0)),
    "ndtr": (lambda out, x: ((1.0 / ROOT_TWO_PI, exp(-0.5 * square(x))),), (-3.0, 3.0)),
    "log_ndtr": (lambda out, x: ((1.0 / ROOT_TWO_PI, exp(-0.5 * square(x) - out)),), (-6.0, 3.0)),
    "ndtri": (lambda out, x: ((ROOT_TWO_PI, exp(0.5 * square(out))),), (0.1, 0.9)),
    # gamma and beta functions
    "gamma": (lambda out, x: (out * psi(x),), (0.5, 3.0)),
    "rgamma": (lambda out, x: (-out * psi(x),), (0.5, 3.0)),
    "gammaln": (lambda out, x: (psi(x),), (0.3, 5.0)),
    "gammasgn": (lambda out, x: (FLAT,), (0.3, 2.0)),
    "psi": (lambda out, x: (zeta(2.0, x),), (0.5, 5.0)),
    "zeta": (lambda out, s, q: (None, lambda: -s * zeta(s + 1.0, q)), (1.5, 4.0)),
    "beta": (
        lambda out, a, b: (lambda: out * (psi(a) - psi(a + b)), lambda: out * (psi(b) - psi(a + b))),
        (0.5, 3.0),
    ),
    "betaln": (lambda out, a, b: (lambda: psi(a) - psi(a + b), lambda: psi(b) - psi(a + b)), (0.5, 3.0)),
    "betainc": (lambda out, a, b, x: (None, None, lambda: _beta_density(a, b, x)), (0.2, 0.8)),
    "betaincc": (lambda out, a, b, x: (None, None, lambda: -_beta_density(a, b, x)), (0.2, 0.8)),
    "betaincinv": (lambda out, a, b, y: (None, None, lambda: 1.0 / _beta_density(a, b, out)), (0.2, 0.8)),
    "gammainc": (lambda out, a, x: (None, lambda: _gamma_density(a, x)), (0.5, 3.0)),
    "gammaincc": (lambda out, a, x: (None, lambda: -_gamma_density(a, x)), (0.5, 3.0)),
    "gammaincinv": (lambda out, a, y: (None, lambda: 1.0 / _gamma_density(a, out)), (0.2, 0.8)),
    "gammainccinv": (lambda out, a, y: (None, lambda: -1.0 / _gamma_density(a, out)), (0.2, 0.8)),
    "poch": (
        lambda out, z, m: (lambda: out * (psi(z + m) - psi(z)), lambda: out * psi(z + m)),
        (0.5, 3.0),
    ),
    "binom": (
        lambda out, n, k: (
            lambda: out * (psi(n + 1.0) - psi(n - k + 1.0)),
            lambda: out * (psi(n - k + 1.0) - psi(k + 1.0)),
        ),
        (0.6, 2.4),
    ),
    # logistic functions, entropies
    "expit": (lambda out, x: ((out, 1.0 - out),), (-3.0, 3.0)),
    "logit": (lambda out, x: (1.0 / (x * (1.0 - x)),), (0.1, 0.9)),
    "log_expit": (lambda out, x: (expit(-x),), (-3.0, 3.0)),
    "xlogy": (lambda out, x, y: (lambda: log(y), lambda: x / y), (0.3, 3.0)),
    "xlog1py": (lambda out, x, y: (lambda: apply("log1p", y), lambda: x / (1.0 + y)), (0.3, 3.0)),
    "entr": (lambda out, x: (-log(x) - 1.0,), (0.2, 3.0)),
    "rel_entr": (lambda out, x, y: _ratio(1.0, x, y), (0.2, 3.0)),
    "kl_div": (lambda out, x, y: _ratio(0.0, x, y), (0.2, 3.0)),
    # Bessel functions
    "j0": (lambda out, x: (-j1(x),), (-4.0, 4.0)),
    "j1": (lambda out, x: (0.5 * (j0(x) - jv(2.0, x)),), (-4.0, 4.0)),
    "y0": (lambda out, x: (-y1(x),), (0.5, 5.0)),
    "y1": (lambda out, x: (0.5 * (y0(x) - yv(2.0, x)),), (0.5, 5.0)),
    "i0": (lambda out, x: (i1(x),), (-3.0, 3.0)),
    "i1": (lambda out, x: (0.5 * (i0(x) + iv(2.0, x)),), (-3.0, 3.0)),
    "i0e": (lambda out, x: (i1e(x) - sign(x) * out,), (0.3, 3.0)),
    "i1e": (lambda out, x: (0.5 * (i0e(x) + ive(2.0, x)) - sign(x) * out,), (0.3, 3.0)),
    "k0": (lambda out, x: (-k1(x),), (0.5, 4.0)),
    "k1": (lambda out, x: (-0.5 * (k0(x) + kv(2.0, x)),), (0.5, 4.0)),
    "k0e": (lambda out, x: (out - k1e(x),), (0.5, 4.0)),
    "k1e": (lambda out, x: (out - 0.5 * (k0e(x) + kve(2.0, x)),), (0.5, 4.0)),
    "jv": (lambda out, v, x: (None, lambda: 0.5 * (jv(v - 1.0, x) - jv(v + 1.0, x))), (0.5, 4.0)),
    "yv": (lambda out, v, x: (None, lambda: 0.5 * (yv(v - 1.0, x) - yv(v + 1.0, x))), (0.5, 4.0)),
    "yn": (lambda out, n, x: (None, lambda: 0.5 * (yv(n - 1.0, x) - yv(n + 1.0, x))), (0.5, 3.5)),
    "iv": (lambda out, v, x: (None, lambda: 0.5 * (iv(v - 1.0, x) + iv(v + 1.0, x))), (0.5, 4.0)),
    "kn": (lambda out, n, x: (None, lambda: -0.5 * (kv(n - 1.0, x) + kv(n + 1.0, x))), (0.5, 3.5)),
    "kv": (lambda out, v, x: (None, lambda: -0.5 * (kv(v - 1.0, x) + kv(v + 1.0, x))), (0.5, 4.0)),
    "ive": (
        lambda out, v, x: (None, lambda: 0.5 * (ive(v - 1.0, x) + ive(v + 1.0, x)) - sign(x) * out),
        (0.5, 4.0),
    ),
    "kve": (lambda out, v, x: (None, lambda: out - 0.5 * (kve(v - 1.0, x) + kve(v + 1.0, x))), (0.5, 4.0)),
    # integrals
    "expi": (lambda out, x: (exp(x) / x,), (0.3, 3.0)),
    "exp1": (lambda out, x: (-exp(-x) / x,), (0.3, 3.0)),
    "spence": (lambda out, x: (_spence(x),), (0.3, 3.0)),
    "ellipk": (lambda out, m: ((ellipe(m) / (1.0 - m) - out) / (2.0 * m),), (0.2, 0.8)),
    "ellipe": (lambda out, m: ((out - ellipk(m)) / (2.0 * m),), (0.2, 0.8)),
    "hyp2f1": (_hyp2f1, (0.2, 0.7)),
    "hyp1f1": (
        lambda out, a, b, z: (None, None, lambda: a / b * apply(PREFIX + "hyp1f1", a + 1.0, b + 1.0, z)),
        (0.3, 2.0),
    ),
    "hyp0f1": (lambda out, v, z: (None, lambda: apply(PREFIX + "hyp0f1", v + 1.0, z) / v), (0.3, 2.0)),
    # what NumPy has too, or nearly
    "exp10": (lambda out, x: ((math.log(10.0), out),), (-1.0, 1.0)),
    "exp2": (lambda out, x: ((math.log(2.0), out),), (-1.0, 1.0)),
    "expm1": (lambda out, x: (out + 1.0,), (-1.0, 1.0)),
    "log1p": (lambda out, x: (1.0 / (1.0 + x),), (-0.5, 2.0)),
    "cosm1": (lambda out, x: (-sin(x),), (-2.0, 2.0)),
    "cbrt": (lambda out, x: (out / (3.0 * x),), (0.3, 2.0)),
    "pseudo_huber": (
        lambda out, d, r: (lambda: _pseudo_huber(d, r), lambda: r / sqrt(1.0 + square(r / d))),
        (0.3, 2.0),
    ),
}


def _spence(x):
    return where(equal(x, 1.0), -1.0, log(x) / (1.0 - where(equal(x, 1.0), 0.0, x)))


def _pseudo_huber(d, r):
    root = sqrt(1.0 + square(r / d))
    return 2.0 * d * (root - 1.0) - square(r) / (d * root)


ALSO = {"psi": "digamma", "gammaln": "loggamma"}  # other ufuncs of the same values, for real arguments


def _enter() -> None:
    for name, (partials, domain) in PARTIALS.items():
        function = getattr(scipy.special, name, None)
        function = getattr(scipy.special._ufuncs, "_zeta", None) if name == "zeta" else function
        if not isinstance(function, np.ufunc):
            continue  # a SciPy that does not have it
        _row(name, function, partials, domain)
        OP_OF[function] = PREFIX + name
        other = getattr(scipy.special, ALSO.get(name, ""), None)
        if isinstance(other, np.ufunc) and other is not function:
            OP_OF[other] = PREFIX + name


def _row(name: str, function: np.ufunc, partials: Callable, domain: tuple[float, float]) -> None:
    shapes = [((3, 4),)] if function.nin == 1 else FULL if function.nin == 2 else [((2, 3),) * function.nin]

    held = [False]
    if function.nin > 1:  # their entries are functions, which are not called here
        held = [d is None for d in partials(*[input_node((), np.float64)] * (function.nin + 1))]
    point = np.linspace(*domain, 3)[1]  # for an argument without a derivative

    @functools.wraps(partials)
    def refusing(out, *args):
        found = partials(out, *args)
        found = tuple(_refusal(name, k, out) if d is None else d for k, d in enumerate(found))
        return tuple(None if d is FLAT else d for d in found)

    row(
        PREFIX + name,
        "elementwise",
        infer=lambda *args: (broadcast_shape(*args), ufunc_dtype(function, tuple(a.dtype for a in args))),
        evaluate=function,
        partials=refusing,
        by_rows=rowwise.elementwise,
        cost=20.0,
        needs="scipy",
        samples=[
            sample(*(np.array(point) if h else n for n, h in zip(s, held)), domain=domain, signed=False)
            for s in shapes
        ],
    )


def _refusal(name: str, k: int, out: Node) -> Callable:
    def refuse():
        raise UnsupportedError(
            f"scipy.special.{name} has no derivative with respect to argument {k}: there is no closed "
            "formula. ad.stop_gradient(x) makes a constant of that argument; or give the function a rule of "
            "your own with @ad.custom_vjp",
            out.loc,
        )

    return refuse


_enter()
