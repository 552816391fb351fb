"""Classes as containers of parameters: data classes, attrs classes, namespaces, and registered ones.

`opened(x)` takes an instance apart one level deep. It returns None for other objects: of classes that were
not registered, have a base written in C, or compute attributes.

An instance is rebuilt without its `__init__`, which may check or convert its arguments, and was not written
for recorded values, gradients and None. All attributes are set directly.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..errors import AutodiffError
from ..same import same, same_items

_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement


@dataclasses.dataclass(eq=False)
class ContainerKind:
    """How containers are taken apart and rebuilt, if their type is not enough for that.

    Equal kinds build equal containers.

    type         the containers' type
    build        build(items) -> a container; the items of one with keys are a dict
    take         take(x, keys) -> the items of x, in the order of flattening
    state        what a container has besides its items, equal for equal kinds
    roots        objects that a function may read from a container besides the items
    attributes   the items are the attributes of an instance
    """

    type: Any
    build: Callable
    take: Callable
    state: Any
    roots: tuple
    attributes: bool = False

    @property
    def __name__(self) -> str:
        return self.type.__name__

    def __call__(self, items: Any) -> Any:
        return self.build(items)

    def __eq__(self, other):
        alike = isinstance(other, ContainerKind) and self.type is other.type
        return alike and same_static(self.state, other.state)

    def __hash__(self):
        return hash(self.type)


def _instance(t: type, items: dict) -> Any:
    if t is types.SimpleNamespace:
        return types.SimpleNamespace(**items)
    new = object.__new__(t)
    for name, value in items.items():
        object.__setattr__(new, name, value)
    return new


def _attribute_values(x: Any, keys: Sequence[str]) -> list:
    return [object.__getattribute__(x, name) for name in keys]


def _unflattened(unflatten: Callable, aux: Any, children: Iterable) -> Any:
    return unflatten(aux, tuple(children))


def _children(flatten: Callable, x: Any, keys: None) -> list:
    return list(flatten(x)[0])


_DEEPEST = 8  # nested settings; below that they are compared by identity


def same_static(a: Any, b: Any, depth: int = 0) -> bool:
    """Whether no function could tell two static values, or lists of them, apart."""
    if same(a, b):
        return True
    if type(a) is not type(b) or depth == _DEEPEST or not (type(a) is list or is_data_class(a)):
        return False
    if type(a) is not list:
        if not same_items(tuple(vars(a)), tuple(vars(b))):
            return False
        a, b = list(vars(a).values()), list(vars(b).values())
    return len(a) == len(b) and all(same_static(x, y, depth + 1) for x, y in zip(a, b))


def is_data_class(x: Any) -> bool:
    """A data class whose instances hold nothing but named values."""
    return dataclasses.is_dataclass(x) and not isinstance(x, type) and hasattr(x, "__dict__")


@dataclasses.dataclass
class Opened:
    """An instance taken apart: names of static fields, (name, value) of attributes that are no fields."""

    kind: ContainerKind
    names: tuple
    values: tuple
    static: frozenset = frozenset()
    derived: tuple = ()
    named: bool = True


_FUNCTIONS: dict[type, tuple[Callable, Callable]] = {}  # registered with functions
_ATTRIBUTES: set[type] = set()  # registered: all of their attributes
_STATIC: set[type] = set()  # static values


def register(cls: type, flatten: Callable | None = None, unflatten: Callable | None = None) -> type:
    """Register a class whose instances are trees. Returns the class, so it is a decorator as well.

    flatten     flatten(x) -> (children, aux): a tuple of arrays, numbers and containers of them, and what is
                static; by default all attributes of x are its children
    unflatten   unflatten(aux, children) -> an instance. The children may be recorded values, gradients or
                None, so it should not look at them

    Subclasses are not registered with it.
    """
    if not isinstance(cls, type):
        raise AutodiffError(f"ad.tree.register: expected a class, got {cls!r}")
    if (flatten is None) != (unflatten is None):
        raise AutodiffError(f"ad.tree.register: {cls.__name__} needs both flatten and unflatten, or neither")
    _STATIC.discard(cls)
    if flatten is not None and unflatten is not None:
        _FUNCTIONS[cls] = flatten, unflatten
        return cls
    if not _is_plain(cls):
        raise AutodiffError(
            f"ad.tree.register: {cls.__name__} is written in C or computes its attributes, so it needs a "
            "flatten and an unflatten of its own"
        )
    _FUNCTIONS.pop(cls, None)
    _ATTRIBUTES.add(cls)
    _fields_of.cache_clear()
    return cls


def static(cls: type) -> type:
    """Register a class whose instances are static values, constants of the program. A decorator as well."""
    _STATIC.add(cls)
    return cls


def opened(x: Any) -> Opened | None:
    """x taken apart, or None; see the head of this file."""
    t = type(x)
    if t in _STATIC:
        return None
    if t in _FUNCTIONS:
        flatten, unflatten = _FUNCTIONS[t]
        pair = flatten(x)
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise AutodiffError(
                f"ad.tree: the flatten of {t.__name__} gave {pair!r}, expected (children, aux)"
            )
        children, aux = pair
        children = tuple(children)
        build, take = functools.partial(_unflattened, unflatten, aux), functools.partial(_children, flatten)
        kind = ContainerKind(t, build, take, (unflatten, aux), (t, aux))
        return Opened(kind, tuple(range(len(children))), children, named=False)
    declared = _fields_of(t)
    if declared is None:
        return None
    fields, settings, everything = declared
    state = _state(x, t)
    names = tuple(n for n in state if everything or n in fields)
    derived = () if everything else tuple((n, v) for n, v in state.items() if n not in fields)
    kind = ContainerKind(t, functools.partial(_instance, t), _attribute_values, (), (t,), attributes=True)
    return Opened(kind, names, tuple(state[n] for n in names), settings, derived)


@functools.lru_cache(maxsize=1024)
def _fields_of(t: type) -> tuple[frozenset, frozenset, bool] | None:
    """(the fields of a class, those that are static, whether all attributes count as fields)."""
    if t is types.SimpleNamespace or t in _ATTRIBUTES:
        return frozenset(), frozenset(), True
    if not _is_plain(t):
        return None
    attrs = t.__dict__.get("__attrs_attrs__")
    declared = dataclasses.fields(t) if dataclasses.is_dataclass(t) else attrs
    if not isinstance(declared, tuple):
        return None
    settings = frozenset(f.name for f in declared if f.metadata.get("static"))
    return frozenset(f.name for f in declared), settings, False


def _is_plain(t: type) -> bool:
    """Whether instances are only attributes in `__dict__` and slots."""
    for c in t.__mro__:
        if c is object:
            continue
        names = c.__dict__.get("__dict__")
        if not c.__flags__ & _HEAP or "__getattribute__" in c.__dict__ or "__del__" in c.__dict__:
            return False
        if names is not None and type(names) is not types.GetSetDescriptorType:
            return False
    try:
        object.__new__(t)
    except TypeError:  # a base written in C has its own constructor
        return False
    return not isinstance(t, enum.EnumMeta)


def _state(x: Any, t: type) -> dict:
    """All attributes of x except values of a cached_property, which are computed again."""
    state: dict = {}
    for c in reversed(t.__mro__):
        for name, member in c.__dict__.items():
            if type(member) is types.MemberDescriptorType and name != "__dict__":
                try:
                    state[name] = member.__get__(x)
                except AttributeError:  # not set
                    continue
    state.update(getattr(x, "__dict__", ()))
    entries = [next((c.__dict__[name] for c in t.__mro__ if name in c.__dict__), None) for name in state]
    cached = [isinstance(entry, functools.cached_property) for entry in entries]
    return {name: v for (name, v), is_cached in zip(state.items(), cached) if not is_cached}
