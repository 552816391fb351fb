"""What a function reads besides its arguments: globals, closures, attributes, and what they hold."""

from __future__ import annotations

import builtins
import collections
import enum
import functools
import gc
import sys
import types

import numpy as np

from ..record.bytecode import OPAQUE_NUMPY, is_trusted, reads
from ..same import ATOMS

PURE_BUILTINS = frozenset(
    "abs all any ascii bin bool bytearray bytes callable chr classmethod complex delattr dict dir divmod "
    "enumerate filter float format frozenset getattr hasattr hash hex int isinstance issubclass iter len "
    "list map max min next object oct ord pow property range repr reversed round set setattr slice sorted "
    "staticmethod str sum super tuple type zip __build_class__ NotImplemented Ellipsis True False None "
    "__name__ __debug__ __file__ __doc__".split()
)
LIMIT = 20_000  # facts; a larger world is cheaper to record again than to look over

BYTES_LIMIT = 1 << 28  # of arrays, each of which is copied

_DESCRIPTORS = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.MethodWrapperType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ClassMethodDescriptorType,
    types.GenericAlias,
    types.UnionType,
    type(collections.namedtuple("_", "a").a),
)
# Bases written in C whose instances are understood; `object` and exceptions besides.
_OPEN_BASES = (
    tuple,
    list,
    dict,
    set,
    frozenset,
    collections.deque,
    collections.OrderedDict,
    collections.defaultdict,
)
_C_MEMBERS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
# Entries of a class that no computation reads
_NOT_CODE = frozenset(
    "__repr__ __str__ __format__ __del__ __reduce__ __reduce_ex__ __getstate__ __setstate__ __doc__ "
    "__module__ __qualname__ __annotations__ __annotate__ __annotate_func__ __annotations_cache__ __dict__ "
    "__weakref__ __dataclass_fields__ __dataclass_params__ __match_args__ __firstlineno__ "
    "__static_attributes__ __slots__ _abc_impl __abstractmethods__ __orig_bases__ __parameters__ "
    "__type_params__".split()
)
_MISSING = object()


class _Walk:
    """Visits what is reachable, and notes facts: tuples whose first entry names a template in _TEMPLATES."""

    def __init__(self):
        self.todo: list = []
        self.seen: dict[int, object] = {}  # keeps what was seen alive, so that an id means one object
        self.facts: list[tuple] = []
        self.trouble: str | None = None
        self.nbytes = 0

    def run(self) -> None:
        while self.todo and self.trouble is None:
            value = self.todo.pop()
            if isinstance(value, ATOMS) and type(value) in ATOMS or id(value) in self.seen:
                continue
            self.seen[id(value)] = value
            self.visit(value)
            if len(self.facts) > LIMIT:
                self.trouble = f"more than {LIMIT} values can be reached from it"

    def fail(self, why: str) -> None:
        self.trouble = self.trouble or why

    def visit(self, v) -> None:
        t = type(v)
        if t is types.FunctionType:
            self.function(v)
        elif t is types.MethodType:
            self.todo += (v.__func__, v.__self__)
        elif t is types.ModuleType:
            if not is_trusted(v.__name__):
                self.fail(f"it passes the module {v.__name__} around")
        elif isinstance(v, np.ndarray):
            self.array(v)
        elif isinstance(v, type):
            self.class_(v)
        elif t is types.BuiltinFunctionType or t is np.ufunc or t in _DESCRIPTORS:
            self.builtin(v)
        elif isinstance(v, (np.generic, np.dtype, enum.Enum)):
            if isinstance(v, (np.void, np.object_)):
                self.fail(f"it reads a {type(v).__name__}")
        elif t is slice:
            self.todo += (v.start, v.stop, v.step)
        elif t is functools.partial:
            self.todo += (v.func, v.args, v.keywords, v.__dict__)
        elif t in (staticmethod, classmethod):
            self.todo.append(v.__func__)
        elif t is property:
            self.todo += (v.fget, v.fset, v.fdel)
        elif t is functools._lru_cache_wrapper:
            self.remembered(v)
        elif t is types.CellType:
            self.cell(v, "a cell")
        elif hasattr(t, "_reuse_roots"):  # the compiler's own objects say which of the user's they hold
            self.todo += v._reuse_roots()
        elif t.__module__ in ("typing", "types"):
            pass
        elif t.__module__.startswith("numpy") and t.__name__ == "_ArrayFunctionDispatcher":
            pass
        else:
            self.instance(v, t)

    # functions

    def function(self, f) -> None:
        code = f.__code__
        self.facts.append(("function", f, code, f.__defaults__, f.__kwdefaults__))
        self.todo += (f.__defaults__, f.__kwdefaults__)
        trusted = is_trusted(f.__globals__.get("__name__"))
        own = {k: v for k, v in f.__dict__.items() if k != "__autodiff_states__"}
        self.todo += own.values()
        if own and not trusted:  # attributes may be read, or counted up: f.calls += 1
            self.facts.append(("attributes", f, tuple(own), tuple(own.values())))
        found = reads(code)
        if found.troubles and not trusted:
            self.fail(f"{found.troubles[0]} ({_where(f)})")
        for name, cell in zip(code.co_freevars, f.__closure__ or ()):
            self.cell(cell, name, () if trusted else found.free.get(name, ()))
        if not trusted:
            for name, chains in found.globals.items():
                self.named(f.__globals__, name, chains)

    def cell(self, cell, name, chains=()) -> None:
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            return self.fail(f"its variable {name!r} has no value yet")
        self.facts.append(("cell", cell, value))
        self.follow(value, chains)

    def named(self, namespace: dict, name: str, chains) -> None:
        """A global variable, or else a built-in name."""
        value = namespace.get(name, _MISSING)
        if value is not _MISSING:
            self.facts.append(("global", namespace, name, value))
            return self.follow(value, chains)
        self.facts.append(("absent", namespace, name))
        if hasattr(builtins, name):
            if name not in PURE_BUILTINS and not _is_exception(getattr(builtins, name)):
                self.fail(f"it uses {name}()")

    def follow(self, value, chains) -> None:
        """What is read of `value`: of a module the attributes named, of anything else all of it."""
        if not isinstance(value, types.ModuleType):
            return self.todo.append(value)
        if is_trusted(value.__name__):
            if value is np and any(chain and chain[0] in OPAQUE_NUMPY for chain in chains):
                self.fail("it reads or writes a file")
            return None
        for chain in chains:
            if not chain or chain[0] not in value.__dict__:
                return self.fail(f"it uses the module {value.__name__}")
            self.facts.append(("global", value.__dict__, chain[0], value.__dict__[chain[0]]))
            self.follow(value.__dict__[chain[0]], [chain[1:]])
        return None

    def builtin(self, v) -> None:
        """Functions written in C: those of trusted modules, and methods of values that are visited in
        turn.
        """
        owner = getattr(v, "__self__", None)
        if isinstance(v, np.ufunc):
            if getattr(np, v.__name__, None) is not v:
                self.fail(f"it uses the ufunc {v.__name__!r}, which is not NumPy's")
        elif isinstance(v, _DESCRIPTORS):
            self.todo.append(owner)
        elif owner is builtins:
            if v.__name__ not in PURE_BUILTINS:
                self.fail(f"it uses {v.__name__}()")
        elif owner is None or isinstance(owner, types.ModuleType):
            module = v.__module__ or getattr(owner, "__name__", None)
            if not is_trusted(module) or v.__name__ in OPAQUE_NUMPY and module.startswith("numpy"):
                self.fail(f"it uses {module}.{v.__name__}()")
        else:
            self.todo.append(owner)

    def remembered(self, f) -> None:
        """A function under functools.lru_cache: it, and what it has in store."""
        info = f.cache_info()
        self.facts.append(("cache", f, info.misses, info.currsize))
        self.todo.append(f.__wrapped__)
        # its results, and its own furniture: the store itself, a marker, a class
        for kept in gc.get_referents(f):
            kept = kept.values() if type(kept) is dict and kept is not f.__dict__ else [kept]
            self.todo += [
                k for k in kept if type(k) not in (object, type) and type(k).__name__ != "_lru_list_elem"
            ]

    # data

    def array(self, a) -> None:
        if type(a) is not np.ndarray or a.dtype.hasobject:
            return self.fail(f"it reads a {type(a).__name__} of dtype {a.dtype}")
        self.nbytes += a.nbytes
        if self.nbytes > BYTES_LIMIT:
            return self.fail(f"arrays of more than {BYTES_LIMIT >> 20} MiB can be reached from it")
        self.facts.append(("array", a))

    def instance(self, v, t) -> None:
        if not is_trusted(t.__module__) and t not in _OPEN_BASES and not self.python_class(t):
            return self.fail(f"it reads a {t.__module__}.{t.__qualname__}")
        held = False
        if isinstance(v, dict):
            self.facts.append(("dict", v, tuple(v), tuple(v.values())))
            self.todo += (*v, *v.values())
            self.todo.append(getattr(v, "default_factory", None))
            held = True
        elif isinstance(v, (tuple, list, collections.deque)):
            if not isinstance(v, tuple):
                self.facts.append(("items", v, tuple(v)))
            self.todo += v
            held = True
        elif isinstance(v, (set, frozenset)):
            if not isinstance(v, frozenset):
                self.facts.append(("set", v, frozenset(v)))
            self.todo += v
            held = True
        if t not in _OPEN_BASES:
            held |= self.attributes(v, t)
            if not is_trusted(t.__module__):
                self.todo.append(t)
        if not held:
            self.fail(f"it reads a {t.__module__}.{t.__qualname__}")

    def attributes(self, v, t) -> bool:
        """What an object holds under names. False if there is no place where it could."""
        self.facts.append(("type", v, t))
        slots = [n for c in t.__mro__ for n in _slots(c)]
        if slots:
            self.facts.append(("slots", v, tuple(slots), tuple(getattr(v, n, _MISSING) for n in slots)))
            self.todo += [getattr(v, n) for n in slots if hasattr(v, n)]
        names = getattr(v, "__dict__", None)
        if isinstance(names, dict):
            self.todo.append(names)
        return bool(slots) or isinstance(names, dict) or any("__slots__" in c.__dict__ for c in t.__mro__)

    def class_(self, c) -> None:
        if is_trusted(c.__module__) or _is_exception(c) and c.__module__ == "builtins":
            return
        if c.__module__ == "builtins" and getattr(builtins, c.__name__, None) is c:
            if c.__name__ not in PURE_BUILTINS:
                self.fail(f"it uses {c.__name__}")
            return
        if c in _DESCRIPTORS or c.__module__ in ("typing", "types"):
            return
        if not self.python_class(c):
            return self.fail(f"it uses {c.__module__}.{c.__qualname__}")
        own = {k: v for k, v in c.__dict__.items() if k not in _NOT_CODE}
        self.facts.append(("class", c, tuple(c.__dict__), tuple(c.__dict__.values()), c.__mro__))
        members = own.values()
        if isinstance(c, enum.EnumMeta):
            members = [v for v in members if isinstance(v, (types.FunctionType, property))]
        self.todo += members
        self.todo += [b for b in c.__bases__ if b is not object]
        if type(c) is not type:
            self.todo.append(type(c))

    def python_class(self, t) -> bool:
        """Is the class, with all its bases, written in Python or understood?"""
        for c in t.__mro__:
            if c is object or c in _OPEN_BASES or c is type or is_trusted(c.__module__):
                continue
            if c.__module__ == "builtins" and not _is_exception(c):
                return False
            if any(isinstance(m, _C_MEMBERS) and m.__objclass__ is c for m in c.__dict__.values()):
                return _is_exception(c) and c.__module__ == "builtins"
        return True


def _is_exception(c) -> bool:
    return isinstance(c, type) and issubclass(c, BaseException)


def _slots(c) -> tuple[str, ...]:
    """The names of the class's own slots, as they are stored."""
    return tuple(n for n, m in c.__dict__.items() if isinstance(m, types.MemberDescriptorType))


def _where(f) -> str:
    return f"{f.__code__.co_filename}:{f.__code__.co_firstlineno}"


def _cached(f):
    info = f.cache_info()
    return info.misses, info.currsize


def random_state() -> tuple:
    """The state of the global random generators; a recording that moves it has drawn from them."""
    state = []
    if "numpy.random" in sys.modules:
        name, key, position, *rest = np.random.get_state()
        state.append((name, key.tobytes(), position, *rest))
    if "random" in sys.modules:
        state.append(sys.modules["random"].getstate())
    return tuple(state)
