"""Runs NumPy's own Python code on recorded values, for functions that are written in Python.

A clone of such a function has the same code and other globals, in which asarray, array, zeros, empty and so
on keep recorded values. NumPy's helper functions are cloned in turn, and its modules are replaced by objects
that do the same with their attributes. Everything else that the code calls is recorded by its own handler. So
these functions follow the NumPy that is installed, with all of its options.

The code of a clone is NumPy's, so that errors and nodes get the user's line (source_lines.py).
"""

from __future__ import annotations

import builtins
import functools
import sys
from collections.abc import Callable
from types import FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np

from ...errors import located
from .. import source_lines
from ..dispatch import call_function, full_name, raw
from ..interception import INTERCEPTED, plain, replace
from ..recorder import current, local
from ..value import Recorded, recorded_in, value_of


def as_written(*functions: Callable) -> None:
    for function in functions:
        raw(function)(Written(function))


class Written:
    """A handler that runs a function's clone."""

    def __init__(self, function: Callable):
        self.function = function
        self.clone: Callable | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        clone = self.clone = self.clone or cloned(self.function._implementation)  # type: ignore[attr-defined]
        if local.as_written is not None:
            return clone(*args, **kwargs)
        site = source_lines.site()
        local.as_written = self.function, source_lines.user_frame()
        try:
            result = clone(*args, **kwargs)
        except (ValueError, TypeError, IndexError, AttributeError) as error:
            raise located(error, full_name(self.function), site.loc) from error
        finally:
            local.as_written = None
        for node in [r.node for r in recorded_in(tuple(result) if isinstance(result, tuple) else result)]:
            if node.name is None and node.loc is site.loc and node.op not in ("const", "input"):
                node.name = site.name
        return result


# replacements of NumPy's names


class _Globals(dict):
    """The globals of a clone: those of NumPy's module, each looked up when it is first used."""

    def __init__(self, own: dict):
        super().__init__(__name__=own["__name__"], __builtins__=own["__builtins__"])
        self.own = own

    def __missing__(self, name):
        namespace = self.own if name in self.own else vars(builtins)
        value = self[name] = stand_in(namespace[name])
        return value


class _Module:
    """A module of NumPy's as clones see it."""

    def __init__(self, module: ModuleType):
        self._module = module

    def __getattr__(self, name):
        return stand_in(getattr(self._module, name))


_ARRAY, _ASARRAY = np.array, np.asarray  # these names are replaced while something is recorded
_globals: dict[int, _Globals] = {}  # by the id of a module's own
_stand_ins: dict[int, tuple[Any, Any]] = {}  # id of an object -> the object, its replacement


def stand_in(value: Any) -> Any:
    """What clones use in place of a value of NumPy's."""
    value = plain(value)
    pair = _stand_ins.get(id(value))
    if pair is not None:
        return pair[1]
    new = value
    if isinstance(value, ModuleType) and value.__name__.partition(".")[0] == "numpy":
        new = _Module(value)
    elif type(value) is FunctionType and source_lines.is_of_numpy(value.__code__.co_filename):
        new = cloned(value)
    elif id(value) in INTERCEPTED:
        new = INTERCEPTED[id(value)].call_always
    _stand_ins[id(value)] = value, new
    return new


def cloned(function: FunctionType) -> FunctionType:
    own = function.__globals__
    names = _globals.setdefault(id(own), _Globals(own))
    clone = FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    clone.__kwdefaults__ = function.__kwdefaults__
    return clone


def replaces(function: Any) -> Callable[[Any], Any]:
    """Decorator: clones use the function in place of this one of NumPy's."""

    def enter(other):
        _stand_ins[id(function)] = function, other
        return other

    return enter


def _filled(function: Callable, *args: Any, **kwargs: Any) -> Any:
    """np.zeros and the like: a recorded array for clones that work with recorded values."""
    like = _recorded_in(sys._getframe(1))
    return function(*args, **kwargs) if like is None else call_function(function, args, kwargs)


def _converted(function: Callable, a: Any, *args: Any, **kwargs: Any) -> Any:
    """np.asarray and the like: recorded values for clones, also of lists."""
    if not args and not kwargs and (type(a) is np.ndarray or type(a) is Recorded and a.is_array):
        return a
    return INTERCEPTED[id(function)].call_always(a, *args, **kwargs)


for _function in (np.zeros, np.empty, np.ones, np.zeros_like, np.empty_like, np.ones_like):
    replaces(_function)(functools.partial(_filled, _function))
for _function in (np.asarray, np.asanyarray):
    replaces(_function)(functools.partial(_converted, _function))


@replaces(np.array)
def array(*args: Any, copy: bool | None = True, **kwargs: Any) -> Any:
    """A copy of a plain array may be written to."""
    kwargs["copy"] = copy
    if copy and type(args[0]) is np.ndarray and _recorded_in(sys._getframe(1)) is not None:
        return call_function(_ARRAY, args, kwargs)
    return INTERCEPTED[id(_ARRAY)].call_always(*args, **kwargs)


def _recorded_in(frame: FrameType) -> Recorded | None:
    """A recorded value among the local variables of the frame."""
    if current() is None:
        return None
    if frame.f_code.co_name == "<listcomp>":
        frame = frame.f_back  # type: ignore[assignment]
    for value in frame.f_locals.values():
        for v in value if type(value) in (list, tuple) else (value,):
            if type(v) is Recorded:
                return v
    return None


@replaces(np._core._multiarray_umath._array_converter)
class _ArrayConverter:
    """A function's arguments as arrays, and its result as a scalar if all of them were scalars."""

    def __init__(self, *arguments: Any):
        self.arguments = arguments
        self.scalar_input = tuple(
            not isinstance(x, (np.ndarray, list, tuple)) and not hasattr(x, "__array__") for x in arguments
        )

    def __iter__(self):
        return iter(self.as_arrays(pyscalars="convert"))

    def __getitem__(self, k):
        return self.as_arrays(pyscalars="convert")[k]

    def as_arrays(self, subok: bool = True, pyscalars: str = "convert_if_no_array") -> tuple:
        keep = pyscalars == "preserve" or pyscalars == "convert_if_no_array" and not all(self.scalar_input)
        asarray = stand_in(_ASARRAY)
        return tuple(x if keep and type(x) in (int, float, complex) else asarray(x) for x in self.arguments)

    def result_type(self, *extra: Any, ensure_inexact: bool = False) -> np.dtype:
        return np.result_type(*self.arguments, *extra, *([0.0] if ensure_inexact else []))

    def wrap(self, result: Any, /, to_scalar: bool | None = None) -> Any:
        to_scalar = all(self.scalar_input) if to_scalar is None else to_scalar
        return result[()] if to_scalar and result.ndim == 0 else result


replaces(sys.modules["numpy._core.shape_base"]._concatenate)(np.concatenate)  # without protocols, in block
replaces(np.broadcast)(lambda *args: np.broadcast(*map(value_of, args)))  # for the shapes of array_equiv


@replaces(sys.modules["numpy.linalg._linalg"]._makearray)
def _makearray(a: Any) -> tuple[Any, Callable]:
    """An array, and a function that would restore the type of a subclass."""
    return stand_in(_ASARRAY)(a), lambda result, *rest: result


@replaces(np.lib._utils_impl._median_nancheck)
def _median_nancheck(data: Recorded, result: Recorded, axis: int) -> Recorded:
    """The median, nan where the last of the sorted data is nan. NumPy's own asks whether there is any."""
    result = np.where(np.isnan(np.take(data, -1, axis)), np.nan, result)
    return result if result.ndim else result[()]


Recorded.clip = cloned(np._core._methods._clip)  # type: ignore[attr-defined]  # which np.clip calls

# Not among them: C code; functions whose code looks at values though the result does not depend on them, so
# that a program would hold for fewer calls (delete, cond, linspace); those that would take more ops
# (diagflat, ...); and frequent ones, which must be recorded quickly (stack, outer)
_NAMES = {
    np: """
        allclose append apply_along_axis apply_over_axes argwhere array_equal array_equiv array_split astype
        atleast_1d atleast_2d atleast_3d block clip column_stack common_type copy corrcoef cov
        cumulative_prod cumulative_sum diag diff dsplit dstack ediff1d expand_dims extract fill_diagonal fix
        flatnonzero flip fliplr flipud full_like geomspace gradient histogram2d histogram_bin_edges
        histogramdd hsplit hstack isclose iscomplex iscomplexobj isneginf isposinf isreal isrealobj kron
        logspace median moveaxis nan_to_num nancumprod nancumsum nanprod nansum ndim pad poly polyadd
        polyder polydiv polyfit polyint polysub polyval ptp put_along_axis real_if_close resize roll
        rollaxis roots rot90 select setdiff1d setxor1d shape size sort_complex split tensordot tile
        trapezoid tril trim_zeros triu union1d unique_all unique_counts unique_inverse unique_values unstack
        unwrap vander vsplit vstack
    """,
    np.emath: "arccos arcsin arctanh log log10 log2 logn power sqrt",
    np.fft: "fft2 fftn fftshift hfft ifft2 ifftn ifftshift ihfft irfft2 irfftn rfft2 rfftn",
    np.linalg: """
        cross diagonal matmul matrix_norm matrix_power multi_dot svdvals tensordot tensorinv trace vector_norm
    """,
}
for _module, _names in _NAMES.items():
    as_written(*(getattr(_module, name) for name in _names.split() if hasattr(_module, name)))
as_written(*(f for f in vars(np.polynomial.polynomial).values() if hasattr(f, "_implementation")))
for _name, _module in list(sys.modules.items()):  # without a protocol: they use the functions of clones
    if _name.startswith("numpy.polynomial.") and vars(_module).get("np") is np:
        replace(vars(_module), np=stand_in(np))
