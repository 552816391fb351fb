"""Generators whose draws are recorded as inputs of a program, with derivatives by their parameters.

Samples that are a function of plain noise (loc + scale * z) are recorded as that. The noise of a gamma
distribution depends on its shape: it is drawn before the program runs, and the sample is an op with an
implicit derivative (sampling.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import UnsupportedError
from ..ops import apply
from ..record import recorder, source_lines
from ..record.draws import Draw, Drawing, drawing_recorder
from ..record.value import Recorded, as_node, value_of
from . import sampling  # noqa: F401  the rows are in the table then

# Methods that compute new numbers from their arguments, and change nothing but the stream
_PURE = (
    "beta binomial chisquare choice exponential f gamma geometric gumbel hypergeometric integers laplace "
    "logistic lognormal logseries multinomial multivariate_hypergeometric multivariate_normal "
    "negative_binomial noncentral_chisquare noncentral_f normal pareto permutation poisson power random "
    "rayleigh standard_cauchy standard_exponential standard_gamma standard_normal standard_t triangular "
    "uniform vonmises wald weibull zipf dirichlet"
).split()
# The position of the argument `out`
_OUT = {"standard_normal": 2, "random": 2, "standard_gamma": 3, "standard_exponential": 3}


def _plainly(generator: np.random.Generator, name: str, args: Sequence, kwargs: dict) -> Any:
    """Draw plain numbers. The recording may then not be used again."""
    run = recorder.outermost()
    if run is not None:
        run.plain_draws_noted.append(name)
    return getattr(generator, name)(*args, **kwargs)


def _unless_plain(method: Callable) -> Callable:
    """The method for calls with a recorded argument; others draw plain numbers."""

    @functools.wraps(method)
    def draw(self, *args, **kwargs):
        recorded = any(type(x) is Recorded for x in (*args, *kwargs.values()))
        if recorded and drawing_recorder() is not None:
            return method(self, *args, **kwargs)
        return _plain_call(self, method.__name__, *args, **kwargs)

    return draw


class Noting(Drawing):
    """A Drawing with a method for each of NumPy's."""

    # distributions that are functions of plain noise

    @_unless_plain
    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        _positive("scale", scale)
        return loc + scale * self.standard_normal(_size(size, loc, scale))

    @_unless_plain
    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        return low + (high - low) * self.random(_size(size, low, high))

    @_unless_plain
    def exponential(self, scale: Any = 1.0, size: Any = None) -> Any:
        _positive("scale", scale)
        return scale * self.standard_exponential(_size(size, scale))

    # distributions whose noise depends on a parameter

    @_unless_plain
    def standard_gamma(self, shape: Any, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        if out is not None:
            raise UnsupportedError("rng.standard_gamma(recorded, out=)", source_lines.here())
        return _implicit(self, "standard_gamma", "gamma_sample", shape, _size(size, shape), dtype)

    @_unless_plain
    def gamma(self, shape: Any, scale: Any = 1.0, size: Any = None) -> Any:
        _positive("scale", scale)
        return scale * self.standard_gamma(shape, _size(size, shape, scale))

    @_unless_plain
    def standard_t(self, df: Any, size: Any = None) -> Any:
        return _implicit(self, "standard_t", "t_sample", df, _size(size, df))

    @_unless_plain
    def dirichlet(self, alpha: Any, size: Any = None) -> Any:
        value = np.asarray(value_of(alpha))
        if value.ndim != 1 or not np.max(value, initial=0.0) >= 0.1:
            raise UnsupportedError(
                "rng.dirichlet has a derivative by a vector alpha of which an entry is 0.1 or more: below, "
                "NumPy draws it in another way",
                source_lines.here(),
            )
        rows = () if size is None else (size,) if np.ndim(size) == 0 else tuple(size)
        z = self.standard_gamma(alpha, (*rows, len(value)))
        return z * (1.0 / np.cumsum(z, axis=-1)[..., -1:])  # added up one by one, as NumPy does


def _drawn_plainly(name: str) -> Callable:
    def method(self, *args, **kwargs):
        if name in _PURE:
            return _plain_call(self, name, *args, **kwargs)
        return _plainly(self.generator, name, args, kwargs)

    method.__name__ = name
    return method


for _name in dir(np.random.Generator):
    if not _name.startswith("_") and _name not in {*vars(Drawing), *vars(Noting)}:
        setattr(Noting, _name, _drawn_plainly(_name))


def _plain_call(drawing: Drawing, name: str, *args: Any, **kwargs: Any) -> Any:
    """A call whose arguments are all plain."""
    g, run = drawing.generator, drawing_recorder()
    if run is None:
        return _plainly(g, name, args, kwargs)
    if any(type(x) is Recorded for x in (*args, *kwargs.values())):
        raise UnsupportedError(
            f"rng.{name} of a recorded value: there are derivatives by the parameters of normal, uniform, "
            "exponential, gamma, standard_gamma, standard_t and dirichlet alone",
            source_lines.here(),
        )
    position = _OUT.get(name, len(args))
    if kwargs.get("out") is not None or position < len(args) and args[position] is not None:
        return _plainly(g, name, args, kwargs)
    copies = [_own(x) for x in args], {k: _own(v) for k, v in kwargs.items()}
    return run.draws.add(run, Draw(g, name, (), *copies))


def _own(x: Any) -> Any:
    return x.copy() if isinstance(x, np.ndarray) else x


def _implicit(drawing: Drawing, name: str, op: str, param: Any, size: Any, *args: Any) -> Any:
    """A sample whose noise depends on a recorded parameter: an op on the parameter and an input."""
    run = drawing_recorder()
    if param._rec is not run or np.asarray(value_of(param)).dtype.kind != "f":
        raise UnsupportedError(
            f"rng.{name} of a value inside of another function that is derived, checkpointed or a loop's "
            "body: its noise depends on that value. Draw it outside, or take floats",
            source_lines.here(),
        )
    draw = Draw(drawing.generator, name, (param.node,), (size, *args), {})
    z = run.draws.add(run, draw, (value_of(param),))
    param_of_z = np.broadcast_to(param, z.shape) if np.shape(value_of(param)) != z.shape else param
    param_of_z = param_of_z.astype(z.dtype) if z.dtype != param_of_z.dtype else param_of_z
    node = apply(op, as_node(run, param_of_z), z.node)
    recorder.label(node, source_lines.site())
    return Recorded(run, node, z.value, owned=False)


def _size(size: Any, *params: Any) -> Any:
    """The size of the noise: by default the broadcast shape of the parameters."""
    shapes = [np.shape(value_of(x)) for x in params]
    shape = np.broadcast_shapes(*shapes)
    if size is None:
        return shape or None
    requested = tuple(size) if np.ndim(size) else (int(size),)
    if np.broadcast_shapes(requested, shape) != requested:
        raise ValueError(
            f"Output size {requested} is not compatible with broadcast dimensions of inputs {shape}."
        )
    return requested


def _positive(name: str, x: Any) -> None:
    if np.any(np.asarray(value_of(x)) < 0):
        raise ValueError(f"{name} < 0")
