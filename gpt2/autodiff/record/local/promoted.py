"""Promotes an array that the recorded function made, when a recorded value is first written into it.

The user's variables keep their objects, so these change in place: they become Promoted, with the methods
and attributes of the recorded value that each stands for. Code written in C reads memory without asking, so
their dtype becomes one that nothing converts to numbers: NumPy raises there instead of losing a derivative,
and `_call` of record.py explains its error. An alias that was not seen being made reads nan from then on.
"""

from __future__ import annotations

import functools
import operator
import types
import warnings
from typing import Any

import numpy as np

from ...graph import Node
from ...ops import build, table
from ...ops.boxes import triple
from .. import source_lines
from ..memory.writes import Stored
from ..recorder import label, local, variable_name
from ..value import Recorded
from .arrays import MARK, PROMOTION, Local, Promoted, address, owner_of


def promoted(x: Local) -> Recorded | None:
    """What the array now stands for; None if no running recording of this thread made it."""
    rec = next((r for r in local.stack if r.serial == x._memory.birth), None)
    if rec is None:
        return None
    owner = owner_of(x)
    old = owner.view(np.ndarray)
    arrays = [v for v in (r() for r in x._memory.arrays) if v is not None and owner_of(v) is owner]
    root = Recorded(rec, _content(old, variable_name(x)), _in_memory(old, np.empty(old.nbytes, np.uint8), 0))
    root.value[...] = old
    values = [_view(root, old, v.plain) for v in arrays]
    if any(v is None for v in values):
        return None
    if old.flags.writeable and old.dtype.kind in "fc":
        old.fill(np.nan)
    for v, value in zip(arrays, values):
        v._plain = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some releases of NumPy want no dtype set
            np.ndarray.dtype.__set__(v, np.dtype([(MARK, f"V{v.itemsize}"), ("", "V0")]))
        vars(object)["__class__"].__set__(v, Promoted)
        v.recorded = value
    return x.recorded


def _content(x: np.ndarray, name: str | None) -> Node:
    """The present content as a constant."""
    raw = np.ravel(x, "K").view(np.uint8).reshape(x.size, x.itemsize)
    if x.size and not (raw == raw[0]).all():
        return table.const(x.copy())
    node = build.full(x.shape, x.flat[0] if x.size else 0, x.dtype)
    label(node, source_lines.site())
    if node.op != "const":
        node.name = name
    return node


def _in_memory(x: np.ndarray, memory: np.ndarray, offset: int) -> np.ndarray:
    """An array laid out like x in other memory."""
    return np.ndarray(x.shape, x.dtype, memory, offset if x.size else 0, x.strides)


def _view(root: Recorded, old: np.ndarray, x: np.ndarray) -> Recorded | None:
    """What x, a view of `old`, becomes where `old` becomes the root; None for a view of another dtype."""
    offset = address(x) - address(old)
    if (x.shape, x.strides, x.dtype, offset) == (old.shape, old.strides, old.dtype, 0):
        if x.flags.writeable == old.flags.writeable:
            return root
    node, within = root.node, offset % old.itemsize
    if x.dtype != old.dtype:
        if old.dtype.kind != "c" or x.dtype != old.real.dtype:
            return None
        node = build.imag(node) if within else build.real(node)
        within = 0
    if within or x.size and any([s % old.itemsize for s in x.strides]):
        return None
    value = _in_memory(x, root.value.base, offset)
    value.flags.writeable = x.flags.writeable
    if not x.size:
        return Recorded(root._rec, build.full(x.shape, 0, x.dtype), value)
    numbers = np.empty(old.size, np.intp)  # for each element its place in `old`
    unit = numbers.itemsize
    places = np.ndarray(old.shape, np.intp, numbers, 0, [s // old.itemsize * unit for s in old.strides])
    places[...] = np.arange(old.size).reshape(old.shape)
    strides = [s // old.itemsize * unit for s in x.strides]
    node = _taken(node, np.ndarray(x.shape, np.intp, numbers, offset // old.itemsize * unit, strides))
    label(node, source_lines.site())
    return root.view_of(node, value)


def _taken(x: Node, places: np.ndarray) -> Node:
    """The elements of x at these places of it: as a reshape or a slice where that is possible."""
    all_places = np.arange(x.size)
    if places.size == x.size and np.array_equal(places.ravel(), all_places):
        return build.reshape(x, places.shape)
    axes, slices = [], []
    first = np.array(np.unravel_index(places.flat[0], x.shape), int)
    steps = {}  # axis of x -> (axis of the view, step)
    for axis in [k for k, n in enumerate(places.shape) if n > 1]:
        second = np.unravel_index(places[tuple([int(k == axis) for k in range(places.ndim)])], x.shape)
        moved = np.flatnonzero(np.array(second, int) - first)
        steps.update({int(k): (axis, int(second[k] - first[k])) for k in moved})
    for k, start in enumerate(first.tolist()):
        axis, step = steps.get(k, (None, 1))
        n = 1 if axis is None else places.shape[axis]
        slices.append(range(start, start + n * step, step))
        axes += [] if axis is None else [axis]
    order, lengths = np.argsort(axes).tolist(), [places.shape[k] for k in axes]
    index = np.ix_(*slices)
    if len(set(axes)) == len(axes) and all([0 <= r[-1] < n for r, n in zip(slices, x.shape)]):
        taken = all_places.reshape(x.shape)[index].reshape(lengths).transpose(order)
        if taken.size == places.size and np.array_equal(taken.reshape(places.shape), places):
            part = build.reshape(build.slice_(x, map(triple, slices)), lengths)
            return build.reshape(build.transpose(part, order), places.shape)
    flat = build.reshape(x, (x.size,))
    return table.apply("gather", flat, table.const(places), spec=(("array", 0),))


# A Promoted has the attributes of its recorded value


def _method(function: Any) -> Any:
    @functools.wraps(function)
    def forward_to_recorded(self, *args, **kwargs):
        result = function(self.recorded, *args, **kwargs)
        return self if result is self.recorded else result  # y += x keeps the object

    return forward_to_recorded


def _attribute(name: str) -> property:
    of_recorded = operator.attrgetter(f"recorded.{name}")
    return property(of_recorded, lambda self, value: setattr(self.recorded, name, value))


_OWN = {*vars(object), *Stored.__slots__, "__slots__", "__dict__", "__module__", "__array_finalize__"}
_TEXTS = {"__reduce_ex__", "__repr__", "__str__", "__format__"}
for _name in {*dir(np.ndarray), *vars(Stored), *vars(Recorded)} - _OWN | _TEXTS:
    _held = vars(Recorded).get(_name)
    if not _name.startswith("_") or _name.startswith("__"):
        _is_function = isinstance(_held, types.FunctionType)
        setattr(Promoted, _name, _method(_held) if _is_function else _attribute(_name))
for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__setattr__"):
    if _name in vars(Recorded):
        setattr(Promoted, _name, _method(vars(Recorded)[_name]))
PROMOTION["promoted"] = promoted
