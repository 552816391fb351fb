"""The objects that a guard compares by identity alone, and the C functions that only compute from arguments.

This is the whole list. A function that reads anything else is recorded at each call, but for what world.py
looks into: numbers, texts, containers, arrays, Python's functions, classes and their instances.
"""

from __future__ import annotations

import builtins
import cmath
import collections
import functools
import itertools
import math
import operator
import os
import sys
import types
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

import numpy as np

from ..atoms import ATOMS
from ..record import source_lines
from ..record.bytecode import BY_NAME
from ..record.dispatch import recorded_functions

_PURE_BUILTINS = (
    "abs all any ascii bin callable chr divmod format hash hex isinstance issubclass iter len max min next "
    "oct ord pow repr round sorted sum __build_class__"
)
_TYPES = (
    "bool bytearray bytes classmethod complex dict enumerate filter float frozenset int list map object "
    "property range reversed set slice staticmethod str super tuple type zip"
)
_NUMPY = """
    array asarray asanyarray ascontiguousarray asfortranarray copy require empty zeros ones full eye identity
    tri arange indices fromfunction fromiter diag_indices diag_indices_from tril_indices triu_indices
    tril_indices_from triu_indices_from mask_indices ix_ unravel_index ravel_multi_index
    bartlett blackman hamming hanning kaiser
    bincount digitize histogram histogram2d histogramdd histogram_bin_edges
    isin intersect1d setdiff1d setxor1d union1d unique_all unique_counts unique_inverse lexsort sort_complex
    nanargmax nanargmin nanmedian nanpercentile nanquantile trim_zeros packbits unpackbits
    poly polyadd polyder polydiv polyfit polyint polymul polysub roots matrix_rank
    broadcast_shapes einsum_path isdtype isfortran isscalar issubdtype iterable promote_types can_cast
    result_type min_scalar_type common_type mintypecode finfo iinfo errstate dtype ndarray
    r_ c_ s_ index_exp mgrid ogrid ndindex ndenumerate vectorize LinAlgError
""".split()

_METHODS_OF_ARRAYS = frozenset(
    "all any argmax argmin argpartition argsort astype byteswap choose clip compress conj conjugate copy "
    "cumprod cumsum diagonal dot fill flatten item itemset max mean min nonzero partition prod ptp put ravel "
    "repeat reshape round searchsorted sort squeeze std sum swapaxes take tobytes tolist trace transpose var "
    "view __array__ __array_ufunc__ __copy__ __deepcopy__ __format__ __class_getitem__ is_integer "
    "as_integer_ratio hex".split()
)


def _methods(*kinds, but: str = "") -> dict:
    """Every method of these types, as they compute only from their object and arguments."""
    return {kind: frozenset(dir(kind)) - set(but.split()) for kind in kinds}


# They make texts, which for NumPy's numbers depend on a setting
TEXTS = (str, repr, ascii, format)


# Methods that read and change only their own object. Those in `but` read attributes named in a text.
METHODS = {
    **_methods(str, bytes, bytearray, but="format format_map"),
    **_methods(int, float, complex, tuple, list, dict, set, frozenset, range, slice, np.ufunc, np.dtype),
    **_methods(collections.deque, collections.OrderedDict, collections.defaultdict, collections.Counter),
    **_methods(types.GeneratorType, BaseException),
    np.ndarray: _METHODS_OF_ARRAYS,
    np.generic: _METHODS_OF_ARRAYS,
    object: frozenset(["__new__", "__init_subclass__", "__subclasshook__", "__format__"]),
    type: frozenset(["__new__", "mro", "__prepare__", "__instancecheck__", "__subclasscheck__"]),
}

# Bases, written in C, of classes whose instances are looked into: all that they hold is attributes and, for
# tuples, items.
BASES = (object, tuple, int, float, str, types.SimpleNamespace, BaseException, type)


def is_exception(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException) and kind.__module__ == "builtins"


def _entries(module) -> list:
    return [v for name, v in vars(module).items() if not name.startswith("__")]


def _of_python() -> list:
    listed = [getattr(builtins, n) for n in (_PURE_BUILTINS + " " + _TYPES).split()]
    listed += [v for v in vars(builtins).values() if is_exception(v)]
    listed += [v for v in (*_entries(math), *_entries(cmath)) if callable(v)]
    listed += [v for v in _entries(operator) if isinstance(v, types.BuiltinFunctionType)]
    listed = [v for v in listed if v not in (operator.is_, operator.is_not)] + [operator.itemgetter]
    listed += [v for v in _entries(itertools) if isinstance(v, type)]
    listed += [functools.reduce, functools.partial, types.SimpleNamespace]
    return [*listed, collections.deque, collections.OrderedDict, collections.defaultdict]


def _of_numpy() -> list:
    listed = []
    series = [m for m in vars(np.polynomial).values() if isinstance(m, types.ModuleType)]
    for module in series:
        listed += [v for v in vars(module).values() if isinstance(v, types.FunctionType)]
    for module in (np, np.linalg, np.fft):
        listed += [v for v in vars(module).values() if isinstance(v, np.ufunc)]
        listed += [getattr(module, n) for n in _NUMPY if hasattr(module, n)]
    listed += [v for v in vars(np).values() if isinstance(v, type) and issubclass(v, np.generic)]
    return listed


# These take the name of an attribute: bytecode.py looks for it where they are called by their own names.
NAMING = {name: getattr(builtins, name) for name in BY_NAME}


class Listed:
    """A set of objects by identity."""

    def __init__(self, objects: Iterable):
        self._objects = {id(x): x for x in objects}

    def __contains__(self, x) -> bool:
        return id(x) in self._objects


LISTED = Listed([*_of_python(), *_of_numpy(), *recorded_functions()])


def cannot_change(v: Any) -> bool:
    """Whether v is the same whenever it is read, and immutable, with its parts."""
    kind = type(v)
    if kind in (tuple, frozenset):
        return all(map(cannot_change, v))
    if kind is slice:
        return cannot_change((v.start, v.stop, v.step))
    if isinstance(v, np.dtype):
        return v.names is None and v.metadata is None
    return kind in ATOMS or v in LISTED or _is_imported(v)


def _is_imported(v: Any) -> bool:
    """Whether it is an imported module, or a class under its own name in one."""
    if type(v) is types.ModuleType:
        return sys.modules.get(v.__name__) is v
    holder = sys.modules.get(v.__module__) if isinstance(v, type) and type(v.__module__) is str else None
    for name in v.__qualname__.split(".") if holder is not None else ():
        holder = getattr(holder, "__dict__", {}).get(name)
    return holder is v and v is not None


def is_pure_method(function: Callable) -> bool:
    """Whether a bound method written in C is one of METHODS."""
    owner = function.__self__
    kinds = owner.__mro__ if isinstance(owner, type) else ()
    return any(function.__name__ in METHODS.get(kind, ()) for kind in (*kinds, *type(owner).__mro__))


# --- classes and functions

_C_MEMBERS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)


def is_of_a_module(function: Callable) -> bool:
    return function.__self__ is None or type(function.__self__) is types.ModuleType


def functions_of(v: Any) -> list:
    """The functions behind an entry of a class."""
    if type(v) is types.FunctionType:
        return [v]
    if type(v) in (staticmethod, classmethod):
        return functions_of(v.__func__)
    if type(v) is property:
        return [f for part in (v.fget, v.fset, v.fdel) for f in functions_of(part)]
    return []


def looked_into(c: type) -> list[type]:
    """The class and its bases, without those in BASES."""
    return [k for k in c.__mro__ if k not in BASES and not is_exception(k)]


def is_numpy_class(c: type) -> bool:
    """Whether the class is NumPy's: which attributes its methods read is not analysed."""
    own = [f for v in c.__dict__.values() for f in functions_of(v)]
    return any(is_inside(f.__code__) for f in own)


def has_other_attributes(c: type) -> bool:
    """Whether attributes may be elsewhere than in __dict__ and slots."""
    names = c.__dict__.get("__dict__")
    plain = names is None or type(names) is types.GetSetDescriptorType
    return "__getattribute__" in c.__dict__ or not plain


def is_written_in_python(c: type) -> bool:
    """Whether it is a class from a `class` statement, or made as one is."""
    own = c.__dict__
    if not c.__flags__ & 1 << 9 or "__module__" not in own:  # Py_TPFLAGS_HEAPTYPE
        return False
    members = [m for m in own.values() if isinstance(m, (*_C_MEMBERS, types.BuiltinFunctionType))]
    return not any(
        getattr(m, "__objclass__", None) is c or getattr(m, "__self__", None) is c for m in members
    )


def name_of(v: Any) -> str:
    name = getattr(v, "__qualname__", None) or getattr(v, "__name__", None) or type(v).__name__
    module = getattr(v, "__module__", None)
    return f"{module}.{name}" if isinstance(module, str) and module != "builtins" else name


def location_of(code: CodeType) -> str:
    return f"{code.co_name}, {code.co_filename}:{code.co_firstlineno}"


# --- frames and code: whether they belong to this package, NumPy, a library, a class that Python wrote

PACKAGE = __package__.rpartition(".")[0]
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_OURS_AND_NUMPY = ("numpy.", PACKAGE + ".")  # modules whose data classes Python writes methods for


def is_inside(code: types.CodeType) -> bool:
    return source_lines.is_inside(code.co_filename)


def is_own(code: types.CodeType) -> bool:
    return code.co_filename.startswith(_OWN)


def is_ours(c: type) -> bool:
    """Whether it is a class of this package, not only by the name of its module."""
    module = sys.modules.get(c.__module__) if type(c.__module__) is str else None
    ours = module is not None and f"{c.__module__}.".startswith(PACKAGE + ".")
    return ours and vars(module).get(c.__name__) is c


def is_of_a_data_class(code: types.CodeType) -> bool:
    """Whether it is a method that `dataclass` wrote: it compares classes by `is`, or a default made anew."""
    return code.co_qualname.startswith("__create_fn__.<locals>.")


def is_in_module_inside(frame: types.FrameType) -> bool:
    """Whether the globals are those of a module of this package or of NumPy."""
    name = frame.f_globals.get("__name__", "")
    if not (type(name) is str and name.startswith(_OURS_AND_NUMPY)):
        return False
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    own = getattr(module, "__dict__", None) is frame.f_globals
    return own and file is not None and source_lines.is_inside(file)


def is_of_named_tuples(frame: types.FrameType) -> bool:
    """Whether it is a named tuple's generated __new__, whose globals have no built-in names."""
    names = frame.f_globals
    return names.get("_tuple_new") is tuple.__new__ and names.get("__builtins__") == {}


def has_defaults(frame: types.FrameType) -> bool:
    """Whether a named tuple's __new__ has defaults, or that is not known."""
    classes = getattr(frame.f_locals.get("_cls"), "__mro__", ())
    functions = [f for k in classes for f in functions_of(k.__dict__.get("__new__"))]
    return not any(f.__code__ is frame.f_code and not f.__defaults__ for f in functions)


def has_a_function(frame: types.FrameType) -> bool:
    """Whether an enumeration's property calls a function, and reads no computed names (3.12)."""
    variables = frame.f_locals
    return variables.get("instance") is not None and getattr(variables.get("self"), "fget", None) is not None
