"""Recorded values. They behave like the array or scalar that they stand for: operators, ufuncs, NumPy
functions, methods, indexing and writing in place work, each computed by NumPy at once and added to the graph.

What NumPy's protocols cannot intercept is an error that names the spelling that works. `isinstance(x,
np.ndarray)` and `isinstance(k, float)` answer as for the value itself, and so does np.isscalar.
"""

from __future__ import annotations

import dis
import math
import operator
import sys
from builtins import getattr, hasattr  # noqa: A004  Python's own, also while the names are replaced
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Literal, cast

import numpy as np

from .. import errors
from ..atoms import NUMBER_TYPES, SCALARS, is_plain
from ..graph import Node, type_text
from ..ops import build, table
from . import recorder, source_lines
from .local.arrays import is_local, unwrapped, written_to
from .memory import writes
from .memory.indexing import advanced, basic, expand, is_basic, row_of
from .memory.view_chains import chain_between, same_chain, shortened
from .memory.writes import Stored
from .plain_numbers import consumer
from .recorder import Recorder, escaped, innermost, native, scalar_const
from .unwatched import call_unwatched
from .value_type import Digits, RecordedType

# The handlers of NumPy's two protocols, "ufunc" and "function", which need the class below
PROTOCOLS: dict = {}


FORWARDING = "forward_to_recorded"  # the name of the methods in local/promoted.py


def _part(name: str) -> Any:

    def get(self):
        return _function(getattr(np, name), self)

    def set_(self, value):
        if name == "imag" and self.dtype.kind != "c":
            raise TypeError("array does not have imaginary part to set")
        # As an array: of that NumPy takes the real part, where it refuses a complex number
        get(self)[...] = np.asarray(value) if type(value) in NUMBER_TYPES else value

    return property(get, set_)


class Recorded(Stored, metaclass=RecordedType):
    """A recorded value."""

    __slots__ = ()
    __array_priority__ = 1000.0

    # what it stands for
    @property
    def __class__(self):
        """The class of the concrete value, for isinstance. `type(x)` is Recorded."""
        return type(self._value)

    @property
    def weak(self) -> bool:
        """Whether it is a Python number, which takes the dtype of the arrays it meets (NEP 50)."""
        return type(self._value) in SCALARS

    @property
    def is_array(self) -> bool:
        """Whether it is an array, and not one of NumPy's or Python's numbers."""
        return isinstance(self._value, np.ndarray)

    @property
    def __autodiff_node__(self) -> Node:
        return self.node

    def snapshot(self) -> Recorded:
        """The value as it is now; later writes to self leave it alone."""
        if isinstance(self._value, np.ndarray):
            self.root._owned = False
        return Recorded(self._rec, self.node, self.value, owned=False)

    def _read(self, value, kind: str):
        if not self._rec.active:
            raise escaped(self)
        self._rec.read(self.node, value, kind)
        return value

    def view_of(self, node: Node, value: Any) -> Recorded:
        """The result of an op on self whose concrete array shares memory with self's."""
        if value is self._value:
            return self
        chain = chain_between(self.node, node)
        if chain is None:
            return Recorded(self._rec, node, value.copy())
        x = Recorded(self._rec, node, value)
        x._root = self.root
        x._chain = shortened(self._chain, chain)
        x._version = x._root._version
        x._memory = x._root._memory
        return x

    # attributes
    shape: Any = property(lambda self: self._node.shape)
    dtype: Any = property(lambda self: self._node.dtype)
    ndim: Any = property(lambda self: self._node.ndim)
    size: Any = property(lambda self: self._node.size)
    nbytes: Any = property(lambda self: self._node.nbytes)
    itemsize: Any = property(lambda self: self._node.dtype.itemsize)

    @property
    def strides(self) -> tuple[int, ...]:
        self._rec.note_query()
        return np.asarray(self.value).strides

    @property
    def flags(self) -> Any:
        if not source_lines.is_of_numpy(sys._getframe(1).f_code.co_filename):  # it lays results out by them
            self._rec.note_query()
        return np.asarray(self.value).flags

    T: Any = property(lambda self: _function(np.transpose, self))
    mT: Any = property(lambda self: _function(np.matrix_transpose, self))
    real, imag = _part("real"), _part("imag")

    @property
    def flat(self) -> Any:
        return Flat(self)

    @flat.setter
    def flat(self, value: Any) -> None:
        self.flat[:] = value

    def __getattr__(self, name):
        """Refuse attributes of the concrete value: getattr's default would be wrong."""
        if name == "__array_interface__":
            error = AttributeError(
                "a recorded array does not show its memory. Use np.lib.stride_tricks.sliding_window_view, or "
                "slices and np.stack"
            )
            name_in_error = "np.lib.stride_tricks.as_strided, or x.__array_interface__"
            # NumPy itself then asks __array__
            raise errors.located(error, name_in_error, source_lines.here())
        # Python's own library refuses these by itself: statistics.mean
        of_python = source_lines.is_standard(sys._getframe(1).f_code.co_filename)
        if name.startswith("_") or of_python or not hasattr(type(self._value), name):
            raise AttributeError(f"'Recorded' object has no attribute {name!r}", name=name, obj=self)
        raise errors.no_attribute(type(self._value), name, source_lines.here())

    def __dir__(self):
        return dir(self._value)

    def __len__(self):
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self):
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(self.shape[0]))

    def __hash__(self):
        error = errors.ConversionError(
            "unhashable type: a recorded value is no key of a dict and no member of a set, as it stands for "
            "another number at the next call. Look up int(x) or float(x), or compare with ==",
            source_lines.outside(),
        )
        if not self.is_array and not source_lines.is_foreign(sys._getframe(1).f_code.co_filename):
            self._rec.unanswered = error  # `except TypeError` must not catch it
        raise error

    # indexing
    def __getitem__(self, key):
        return call_unwatched(_item, self, key) if is_plain(key) else _item(self, unwrapped(key))

    def __setitem__(self, key, value):
        if not isinstance(self._value, np.ndarray):
            raise TypeError(f"'{type(self._value).__name__}' object does not support item assignment")
        view = call_unwatched(_place, self, key) if is_plain(key) else None
        if type(value) not in OPERANDS:
            value = unwrapped(value)
        if view is None:
            key = _static_slices(unwrapped(key))
            view = None if recorded_in(key) else _place(self, key)
        if type(value) not in SCALARS and (view is None or not view.shape) and np.ndim(plain_key(value)):
            check_element(self.value, plain_key(key), plain_key(value))
        if view is None:
            return _assign_advanced(self, key, value)
        if isinstance(value, Recorded):
            if _same_view(view, value):
                return None
            if value._root is not None and value.root is self.root:
                _check_not_from_c(sys._getframe(1))
        return store(view, value)

    def __contains__(self, item):
        if not self.is_array:
            raise TypeError(f"argument of type '{type(self._value).__name__}' is not iterable")
        return bool((self == item).any())

    # plain numbers
    def __bool__(self):
        return self._read(bool(self.value), "bool")

    def __int__(self):
        return self._read(int(self._number()), "int")

    def __index__(self):
        return self._read(operator.index(self.value), "int")

    def __float__(self):
        return self._read(float(self._number()), "float")

    def __complex__(self):
        return self._read(complex(self._number()), "float")

    def _whole(self, function, ufunc):
        """math.floor(x) and the like: a step function, with derivative zero."""
        result = function(self.value)
        ufunc(self)._read(float(result), "float")
        return result

    def __floor__(self):
        return self._whole(math.floor, np.floor)

    def __ceil__(self):
        return self._whole(math.ceil, np.ceil)

    def __trunc__(self):
        return self._whole(math.trunc, np.trunc)

    def __round__(self, digits=None):
        if digits is None:
            return self._whole(round, np.rint)
        if self.weak:  # Python rounds the decimal number, NumPy ten times the number
            digits = operator.index(digits)
            node = build.apply("round_decimal", self.node, digits=digits)
            return Recorded(self._rec, node, round(self.value, digits))
        return _function(np.round, self, digits)

    def _number(self):
        """The concrete value, if its derivative is not lost."""
        use = consumer(self._rec.name) if self.dtype.kind in "fc" else None
        if use is not None and self._rec.has_derivative(self.node):
            raise self._loss(use, errors.number_lost(use, source_lines.outside()))
        return self.value

    def _loss(self, use: str | None, error: Exception) -> Exception:
        """The error where something takes a plain value whose derivative would be lost."""
        scipy = source_lines.call_of_scipy()
        if scipy is not None:
            error = errors.lost_in_scipy(*scipy[1:])
        elif use == "assignment":
            error = errors.written_to_plain(source_lines.here())
        return self._rec.refuse(error)

    def item(self, *index: Any) -> Any:
        """A Python number: one that is still recorded if it is real or complex."""
        number = self.value.item(*index)
        x = self
        if len(index) == 1:
            x = self[index[0]] if isinstance(index[0], tuple) else self.reshape(-1)[index[0]]
        elif index:
            x = self[index]
        if self.dtype.kind in "fc":
            wide = np.complex128 if self.dtype.kind == "c" else np.float64
            return Recorded(self._rec, build.cast(build.reshape(x.node, ()), wide), number)
        return x._read(number, "int")

    def tolist(self) -> Any:
        """Nested lists of recorded numbers; of plain ones where they are integers."""
        if self.dtype.kind not in "fc":
            return self._read(np.asarray(self.value), "array").tolist()
        if not self.shape:
            return self.item()
        return [x.tolist() for x in self]

    def __array__(self, dtype=None, copy=None):
        """A plain array of values without a derivative: integers, bools, ad.stop_gradient(x)."""
        if self.dtype.kind not in "fc" or not self._rec.has_derivative(self.node):
            value = np.array(self.value, dtype)
            self._read(value.copy(), "array")
            return value
        raise self._loss(consumer(self._rec.name), errors.array_lost(source_lines.here()))

    def __repr__(self):
        name = f"{self._node.name}: " if self._node.name else ""
        if not self._rec.active:
            return f"Recorded({name}{type_text(self._node)}, recording ended)"
        return self._read(f"Recorded({name}{type_text(self._node)} = {self.value!r})", "text")

    def __str__(self):
        return Digits.of(self, self._read(str(self.value), "text"))

    def __format__(self, spec):
        return Digits.of(self, self._read(format(self.value, spec), "text"))

    # copies
    def copy(self, order: str = "C") -> Recorded:
        rec = innermost((self,))
        value = self.value
        return Recorded(rec, self.node, value.copy(order) if isinstance(value, np.ndarray) else value)

    def __copy__(self):
        return self.copy(order="K")

    def __deepcopy__(self, memo):
        memo[id(self)] = new = self.copy(order="K")
        return new

    def __reduce_ex__(self, protocol):
        raise errors.ConversionError(
            "a recorded value cannot be pickled: it exists only while its function is recorded. "
            "Return it from the function, and pickle the result",
            source_lines.here(),
        )

    def astype(
        self,
        dtype: Any,
        order: Literal["K", "A", "C", "F"] = "K",
        casting: Literal["no", "equiv", "safe", "same_kind", "unsafe"] = "unsafe",
        subok: bool = True,
        copy: bool = True,
    ) -> Recorded:
        rec = innermost((self,))
        dtype = native(np.dtype(dtype))
        value = np.asarray(self.value).astype(dtype, order=order, casting=casting, copy=True)
        if not copy and dtype == self.dtype:
            return self
        node = build.cast(self.node, dtype)
        if node is not self._node:
            recorder.label(node, source_lines.site())
        return Recorded(rec, node, value if isinstance(self._value, np.ndarray) else value[()])

    def view(self, dtype: Any = None, type: Any = None) -> Recorded:
        if (dtype is None or dtype is np.ndarray or dtype == self.dtype) and type is None:
            return self[...]
        raise errors.UnsupportedError(
            "x.view(dtype) looks at the bits of a number, which has no derivative. x.astype(dtype) converts",
            source_lines.here(),
        )

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> Recorded:
        shape = shape[0] if len(shape) == 1 else shape
        kw = {} if copy is None else {"copy": copy}
        return _function(np.reshape, self, shape, order=order, **kw)

    def transpose(self, *axes: Any) -> Recorded:
        if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], (tuple, list, np.ndarray))):
            return _function(np.transpose, self, axes[0])
        return _function(np.transpose, self, axes or None)

    def conjugate(self) -> Recorded:
        if self.dtype.kind != "c":
            return self
        z = np.conjugate(self)
        return Recorded(z._rec, z.node, z.value.item()) if self.weak else z

    conj = conjugate

    def flatten(self, order: str = "C") -> Recorded:
        return _function(np.ravel, self, order=order).copy()

    def compress(self, condition: Any, axis: int | None = None, out: Any = None) -> Recorded:
        return _function(np.compress, condition, self, axis=axis, out=out)

    # in place
    def fill(self, value: Any) -> None:
        if np.ndim(plain_key(value)):
            np.array(self.value).fill(plain_key(value))  # NumPy's error
        store(self[...], value)

    def sort(self, axis: int = -1, kind: str | None = None, order: Any = None) -> None:
        self[...] = _function(np.sort, self, axis=axis, kind=kind)

    def partition(
        self, kth: int | Sequence[int], axis: int = -1, kind: str = "introselect", order: Any = None
    ) -> None:
        self[...] = _function(np.partition, self, kth, axis=axis)

    def put(self, indices: Any, values: Any, mode: str = "raise") -> None:
        _function(np.put, self, indices, values, mode=mode)

    def resize(self, *shape: Any, refcheck: bool = True) -> None:
        raise errors.UnsupportedError(
            "x.resize changes an array's size in place; use np.resize(x, shape)", source_lines.here()
        )

    # protocols
    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return PROTOCOLS["ufunc"](ufunc, method, inputs, kwargs)

    def __array_function__(self, function, types, args, kwargs):
        return PROTOCOLS["function"](function, args, kwargs)


def _check_not_from_c(frame: FrameType) -> None:
    """Raise if C code moves rows of an array, as rng.shuffle does: it would write one twice."""
    if frame.f_code.co_name == FORWARDING and source_lines.is_own(frame.f_code.co_filename):
        frame = frame.f_back  # what called y[k] = ... of an array that the function made
    instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    if not instruction.startswith("STORE"):
        raise errors.WriteError(
            "a function that is written in C moves rows of a recorded array, as shuffle does, and rows would "
            "get lost. For a random order write x[rng.permutation(len(x))]",
            source_lines.here(),
        )


def check_element(x: Any, key: Any, value: Any) -> None:
    """Raise what this NumPy raises, if it does, for an array that is written to one element: x[0] = a."""
    if not isinstance(x[key], np.ndarray):
        try:
            np.zeros(1)[0] = np.zeros_like(value, float)
        except (TypeError, ValueError) as error:
            raise errors.located(error, "assignment", source_lines.here()) from None


def check_apart(x: Recorded, value: Any, unless_same: bool = True) -> None:
    """Raise if what is written lies in the same memory: NumPy reads elements that it has written already,
    except where each element is written over itself (`unless_same`).
    """
    same = unless_same and type(value) is Recorded and _same_view(x, value)
    if type(value) is Recorded and value.is_array and value.shape and not same:
        if value.root is x.root and np.may_share_memory(x.value, value.value):
            raise errors.WriteError(
                "the values lie in the array that is written to, and NumPy would read some that it has "
                "overwritten. Write a copy of them",
                source_lines.here(),
            )


def note_conversion(dtype: np.dtype, value: Any, scalars: bool = True) -> None:
    """Check what becomes an integer by Python's int, which refuses nan and, into int8, 300. NumPy converts
    Python's numbers so, and numbers in lists; its own numbers only for a basic index (`scalars`).
    """
    if dtype.kind not in "iu":
        return
    numbers = [v for v in recorded_in(value) if not v.is_array and not np.can_cast(v.dtype, dtype)]
    if type(value) is Recorded and not (scalars or value.weak):
        numbers = []
    if numbers or type(value) in (list, tuple):
        np.zeros(np.shape(plain_key(value)), dtype)[...] = plain_key(value)
    for number in numbers:
        why = "it writes a number into an array of integers, which NumPy may refuse"
        number._rec.unstable.append(why)


def _function(function, *args, **kwargs):
    return PROTOCOLS["function"](function, args, kwargs)


# operands
# Types that ufuncs take without calling the user's code
OPERANDS = frozenset({Recorded, np.ndarray, *NUMBER_TYPES})


def value_of(x: Any) -> Any:
    """The concrete value that a recorded one stands for; anything else as it is."""
    return x.value if type(x) is Recorded else x


def node_in(rec: Recorder, x: Recorded) -> Node:
    """The node of x in this recorder, lifted if it belongs to an outer one."""
    if x._rec is rec:
        return x.node
    if not x._rec.active:
        raise escaped(x)
    return rec.lift(x)


def as_node(rec: Recorder, x: Any, dtype: np.dtype | None = None) -> Node:
    """Any operand as a node. Python numbers take their dtype beside `dtype`."""
    if isinstance(x, Node):
        return x
    if type(x) is Recorded:
        return node_in(rec, x)
    if type(x) in SCALARS:
        return scalar_const(x, dtype) if dtype is not None else table.const(x)
    if isinstance(x, np.generic):
        return table.const(x.item(), x.dtype)
    if is_local(x):
        return as_node(rec, unwrapped(x), dtype)
    if isinstance(x, np.ndarray):
        return rec.capture(x)
    if isinstance(x, (list, tuple)):
        if recorded_in(x):
            return node_in(rec, _function(np.array, x))
        if _has_node(x):  # along a new first axis, as np.array makes it
            parts = [as_node(rec, v, dtype) for v in x]
            common = np.result_type(*(p.dtype for p in parts))
            rows = [build.reshape(build.cast(p, common), (1, *p.shape)) for p in parts]
            return build.concatenate(rows, 0) if len(rows) > 1 else rows[0]
    x = np.asarray(x)
    recorder.check_numbers(x.dtype)
    return table.const(x)


def _has_node(x) -> bool:
    return isinstance(x, Node) or type(x) in (tuple, list) and any(map(_has_node, x))


def in_array(value: Any) -> Any:
    """A list as an array, recorded if there is a recorded number in it; anything else as it is."""
    if not isinstance(value, (list, tuple)):
        return value
    return _function(np.array, value) if recorded_in(value) else np.asarray(value)


def recorded_in(key: Any) -> list[Recorded]:
    if type(key) in (tuple, list):
        return [r for k in key for r in recorded_in(k)]
    return [key] if type(key) is Recorded else []


def _static_slices(key):
    """The index with plain integers as bounds of slices: shapes depend on them, so they are read."""
    if type(key) is slice:
        parts = (key.start, key.stop, key.step)
        if any(type(p) is Recorded for p in parts):
            return slice(*(operator.index(p) if p is not None else None for p in parts))
    elif type(key) is tuple and any(type(k) is slice for k in key):
        return tuple(map(_static_slices, key))
    return key


def mapped(x: Any, function: Callable) -> Any:
    """x with function(r) in place of each recorded value r, also in lists and tuples."""
    kind = type(x)
    if kind is Recorded:
        return function(x)
    return kind([mapped(v, function) for v in x]) if kind is list or kind is tuple else x


def plain_key(key: Any) -> Any:
    """An index, or an argument, with concrete values in the place of recorded ones."""
    return mapped(key, value_of)


def index_arrays(rec: Recorder, k: Any) -> list[Node]:
    if isinstance(k, (list, tuple)):
        k = in_array(k)
        if k.size == 0:
            k = np.asarray(k, np.intp)
    if type(k) is int:
        return [table.const(k, np.intp)]
    if k.dtype.kind != "b":
        return [as_node(rec, k)]
    mask = value_of(k)
    rec.read(as_node(rec, k), np.array(mask), "array")
    return [table.const(i) for i in np.nonzero(mask)]


def _item(self: Recorded, key: Any) -> Recorded:
    if type(key) is int and type(self._value) is np.ndarray and self.shape and self.dtype.kind != "V":
        return _row(self, key)
    rec = innermost([*recorded_in(key), self])
    value = self.value
    if not isinstance(value, (np.ndarray, np.generic)):
        raise TypeError(f"'{type(value).__name__}' object is not subscriptable")
    if isinstance(value, np.ndarray) and value.dtype.kind == "V" or isinstance(key, str):
        raise errors.UnsupportedError("fields of structured arrays are not recorded", source_lines.here())
    key = _static_slices(key)
    try:
        result = cast(Any, value)[plain_key(key)]
    except IndexError as error:
        raise errors.located(error, f"index into shape {self.shape}", source_lines.here()) from error
    site = source_lines.site()
    items = expand(key, self.ndim)
    if is_basic(items):
        rec, x = self._rec, self.node  # recorded positions are read, so it is a view wherever they come from
        slices, shape = basic(items, x.shape)
        node = build.reshape(build.slice_(x, slices), shape)
    else:
        x = node_in(rec, self)
        spec, arrays = advanced(items, x.shape, lambda k: index_arrays(rec, k))
        node = table.apply("gather", x, *arrays, spec=spec)
    if node is not x:
        recorder.label(node, site)
    if isinstance(result, np.ndarray) and rec is self._rec and np.may_share_memory(result, value):
        return self.view_of(node, result)
    return Recorded(rec, node, result)


def _row(self: Recorded, i: int) -> Recorded:
    """self[i] of an array: the most frequent index by far."""
    rec, value = innermost((self,)), self.value
    try:
        result = value[i]
    except IndexError as error:
        raise errors.located(error, f"index into shape {self.shape}", source_lines.here()) from error
    x = self.node
    node = build.row(x, *row_of(i, x.shape))
    if node is not x:
        recorder.label(node, source_lines.site())
    if isinstance(result, np.ndarray) and (result.size or np.may_share_memory(result, value)):
        return self.view_of(node, result)
    return Recorded(rec, node, result)


def _place(self: Recorded, key: Any) -> Recorded | None:
    """self[key] as a view to write to; None if it is not a view."""
    if not is_basic(expand(key, self.ndim)):
        return None
    parts = key if type(key) is tuple else (key,)
    return _item(self, parts if any([k is Ellipsis for k in parts]) else (*parts, Ellipsis))


def _same_view(a: Recorded, b: Recorded) -> bool:
    """Whether both name the same elements of the same memory, in the same order."""
    return a.root is b.root and a.shape == b.shape and same_chain(a._chain, b._chain)


def store(target: Recorded, value: Any) -> None:
    """Assign to all of a recorded array: target[...] = value."""
    call = call_unwatched if type(value) in OPERANDS else operator.call
    concrete, node = call(_assigned, target, value)
    writes.write(target, node, lambda array: array.__setitem__(Ellipsis, concrete))


def _assigned(target: Recorded, value: Any) -> tuple[Any, Node]:
    """The value that an assignment stores, and its node."""
    rec = target._rec
    note_conversion(target.dtype, value)
    if type(value) is Recorded:
        check_level(target, value)
    value = in_array(value)
    if getattr(value, "dtype", None) is not None and value.dtype.kind == "O":
        value = np.asarray(value)
    concrete = value_of(value)
    shape, goal = np.shape(concrete), target.shape
    leading = shape[: max(len(shape) - len(goal), 0)]  # NumPy drops axes of length 1
    if any(n != 1 for n in leading) or any(n not in (1, m) for n, m in zip(shape[::-1], goal[::-1])):
        error = ValueError(f"could not broadcast input array from shape {shape} into shape {goal}")
        raise errors.located(error, "assignment", source_lines.here())
    return concrete, writes.assigned(as_node(rec, value, target.dtype), goal, target.dtype)


def check_level(target: Recorded, value: Recorded) -> None:
    if value._rec.serial > target._rec.serial:
        raise errors.AutodiffError(
            f"a value of {value._rec.name} is written into one of {target._rec.name}, which encloses it. "
            "Return it from the inner function, and write it outside",
            source_lines.here(),
        )


def _assign_advanced(x: Recorded, key, value) -> None:
    rec = x._rec
    for r in (*recorded_in(key), *([value] if type(value) is Recorded else ())):
        check_level(x, r)
    note_conversion(x.dtype, value, scalars=False)
    if isinstance(key, (Recorded, np.ndarray)) and key.dtype.kind == "b":
        check_apart(x, value)
    value = in_array(value)
    plain, concrete = plain_key(key), value_of(value)
    node = as_node(rec, value, x.dtype)
    if type(key) is Recorded and key.dtype.kind == "b" and node.ndim <= x.ndim - key.ndim:
        mask = build.reshape(node_in(rec, key), key.shape + (1,) * (x.ndim - key.ndim))
        mask = build.broadcast(mask, x.shape)
        new = build.where(mask, writes.assigned(node, x.shape, x.dtype), x.node)
    else:
        new = scattered("scatter", x, key, node)
    writes.write(x, new, lambda array: array.__setitem__(plain, concrete))


class Flat:
    """x.flat, an np.flatiter: the elements one after another, to read, as copies, and to assign."""

    __slots__ = ("base", "index")
    __hash__ = None  # type: ignore[assignment]
    __reversed__ = None
    __class__ = property(lambda self: np.flatiter)  # type: ignore[assignment]
    coords = property(lambda self: tuple(map(int, np.unravel_index(self.index, self.base.shape))))

    def __init__(self, x: Recorded):
        self.base, self.index = x, 0

    def copy(self) -> Recorded:
        return self.base.flatten()

    def __len__(self):
        return self.base.size

    def __iter__(self):
        return self

    def __next__(self):
        if self.index == self.base.size:
            raise StopIteration
        self.index += 1
        return self.base.reshape(-1)[self.index - 1]

    def __getitem__(self, key):
        self.index = 0  # as in NumPy
        self.base.value.flat[plain_key(key)]  # its errors
        item = self.base.reshape(-1)[key]
        return item.copy() if item.is_array else item

    def __setitem__(self, key, value):
        """A value that is too short is repeated, as in NumPy."""
        self.index = 0
        x = self.base
        value = value.copy() if type(value) is Flat else value
        check_apart(x, value, unless_same=key is ... or type(key) is slice and key == slice(None))
        plain, concrete = plain_key(key), plain_key(value)
        note_conversion(x.dtype, value, scalars=isinstance(plain, int | np.integer))
        if not np.size(concrete):
            return
        if np.ndim(concrete):
            check_element(x.value.flat, plain, concrete)
        whole = x.reshape(-1).copy()
        shape = whole[key].shape
        value = np.resize(value, shape) if shape else np.ravel(value)[0] if np.ndim(value) else value
        whole[key] = value
        new = writes.assigned(whole.reshape(x.shape).node, x.shape, x.dtype)
        writes.write(x, new, lambda array: array.flat.__setitem__(plain, concrete))

    def __array__(self, dtype=None, copy=None):
        return self.copy().__array__(dtype)

    def __array_function__(self, function, types, args, kwargs):
        return function(*map(_unrolled, args), **kwargs)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return getattr(ufunc, method)(*map(_unrolled, inputs), **kwargs)


Flat.__name__ = Flat.__qualname__ = "flatiter"
Flat.__module__ = "numpy"
for _short, _ufunc in zip(
    "eq ne lt le gt ge".split(),
    (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal),
):
    setattr(Flat, f"__{_short}__", lambda self, other, ufunc=_ufunc: ufunc(self.copy(), _unrolled(other)))


def _unrolled(x: Any) -> Any:
    return x.copy() if type(x) is Flat else x


def scattered(op: str, x: Recorded, key: Any, value: Node) -> Node:
    """The content of x with the value scattered to an advanced index."""
    spec, arrays = advanced(expand(key, x.ndim), x.shape, lambda k: index_arrays(x._rec, k))
    shape = table.apply("gather", x.node, *arrays, spec=spec).shape
    return table.apply(op, x.node, writes.assigned(value, shape, x.dtype), *arrays, spec=spec)


# methods that are NumPy functions of the same arguments
def _add_method(name: str) -> None:
    function = getattr(np, name)

    def method(self, *args, **kwargs):
        return _function(function, self, *args, **kwargs)

    method.__name__ = name
    setattr(Recorded, name, method)


for _name in (
    "sum prod mean std var max min argmax argmin all any cumsum cumprod take repeat ravel squeeze swapaxes "
    "trace diagonal argsort argpartition searchsorted nonzero round choose dot"
).split():
    _add_method(_name)


def copied(target: Any, value: Any) -> Recorded:
    target = written_to(target)
    if type(target) is not Recorded:
        raise recorder.lost_write(target)
    target[...] = value
    return target
