"""When may a recording be used again? When running the function anew would give the same.

`watch(f)` walks over everything that f reads besides its arguments: closures, defaults, globals, the
functions and classes it calls, objects and containers reachable from them, down to the bytes of arrays. The
result is a Guard.

    guard.trouble    why nothing can be promised (f draws random numbers, prints, reads a file, assigns a
                     global, ...), or None. Such a function is recorded at every call: slower, and right.
    guard.holds()    is everything still as it was when the guard was made? For a function of nothing but its
                     arguments and NumPy this takes about 100 nanoseconds: it is compiled to one expression.

What is taken as constant: NumPy, the stateless part of the standard library (reads.TRUSTED) and the built-in
functions in PURE_BUILTINS. Anything that is not understood counts as trouble.

An array is compared by its bytes, so a function over large captured arrays pays for reading them at every
call; pass such arrays as arguments, or promise with `pure=True` that nothing outside the arguments will
change.
"""

from __future__ import annotations

import builtins
import collections
import enum
import functools
import gc
import math
import operator
import sys
import threading
import types

import numpy as np

from .reads import OPAQUE_NUMPY, is_trusted, reads

PURE_BUILTINS = frozenset(
    "abs all any ascii bin bool bytearray bytes callable chr classmethod complex delattr dict dir divmod "
    "enumerate filter float format frozenset getattr hasattr hash hex int isinstance issubclass iter len "
    "list map max min next object oct ord pow property range repr reversed round set setattr slice sorted "
    "staticmethod str sum super tuple type zip __build_class__ NotImplemented Ellipsis True False None "
    "__name__ __debug__ __file__ __doc__".split()
)
LIMIT = 20_000  # facts; a larger world is cheaper to record again than to look over

BYTES_LIMIT = 1 << 28  # of arrays, each of which is copied

_ATOMS = (type(None), bool, int, float, complex, str, bytes, range, type(Ellipsis), type(NotImplemented))
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


class Guard:
    """See the head of this file. `watched` is how many facts `holds` looks at; `text` is the test of a short
    guard as an expression over `names`, for those who would rather not call a function.
    """

    __slots__ = ("trouble", "holds", "watched", "text", "names")

    def __init__(self, trouble, holds, watched: int = 0, text: str | None = None, names: dict | None = None):
        self.trouble = trouble
        self.holds = holds
        self.watched = watched
        self.text = text
        self.names = names


def watch(*roots) -> Guard:
    """The guard for what these functions (or other objects) read."""
    walk = _Walk()
    for root in roots:
        walk.todo.append(root)
    walk.run()
    if walk.trouble:
        return Guard(walk.trouble, _never)
    return _compile(walk.facts)


def trust(*roots) -> Guard:
    """The guard of a promise (`pure=True`): it always holds."""
    return Guard(None, _always, 0, "True", {})


def _never() -> bool:
    return False


def _always() -> bool:
    return True


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
            if isinstance(value, _ATOMS) and type(value) in _ATOMS or id(value) in self.seen:
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


# Each kind of fact as an expression over its parts, a b c d.
_TEMPLATES = {
    "function": "{a}.__code__ is {b} and {a}.__defaults__ is {c} and {a}.__kwdefaults__ is {d}",
    "cell": "{a}.cell_contents is {b}",
    "global": "{a}[{b}] is {c}",
    "absent": "{b} not in {a}",
    "type": "type({a}) is {b}",
    "cache": "cached({a}) == ({b}, {c})",
    "class": "same_class({a}, {b}, {c}, {d})",
    "slots": "same_items([getattr({a}, n, missing) for n in {b}], {c})",
    "dict": "same_items({a}.values(), {c}) and same_items({a}, {b})",
    "attributes": "same_items([getattr({a}, n, missing) for n in {b}], {c})",
    "items": "same_items({a}, {b})",
    "set": "{a} == {b} and sorted(map(id, {a})) == sorted(map(id, {b}))",
    "array": "same_array({a}, {b})",
}
# The cheap and likely changes first.
_ORDER = {kind: i for i, kind in enumerate(_TEMPLATES)}


SHORT = 6  # facts
# What a test raises where a name is gone, a cell was emptied, or another thread is changing a dict
GONE = (KeyError, ValueError, AttributeError, RuntimeError)


def _compile(facts) -> Guard:
    """All facts as one function: identity first, and equality only of values that cannot change (floats,
    names).
    """
    env = dict(
        same=same,
        same_items=same_items,
        same_array=same_array,
        same_class=same_class,
        cached=_cached,
        missing=_MISSING,
        gone=GONE,
    )
    known: dict[int, str] = {}

    def ref(part) -> str:
        if part is None or type(part) is bool:
            return repr(part)
        if id(part) not in known:
            known[id(part)] = name = f"v{len(known)}"
            env[name] = part
        return known[id(part)]

    tests = []
    for kind, *parts in sorted(facts, key=lambda fact: _ORDER[fact[0]]):
        if kind == "array":
            parts.append(parts[0].copy(order="K"))
        texts = [repr(p) if kind in ("global", "absent") and k == 1 else ref(p) for k, p in enumerate(parts)]
        text = _TEMPLATES[kind].format(**dict(zip("abcd", texts)))
        if kind in ("cell", "global") and _may_be_equal(parts[-1]):
            current = text.rsplit(" is ", 1)[0]
            text = f"({text} or same({current}, {ref(parts[-1])}))"
        tests.append(text)
    source = "def holds():\n    try:\n"
    for i in range(0, len(tests), 100):
        source += f"        if not ({' and '.join(tests[i : i + 100])}):\n            return False\n"
    source += "        return True\n    except gone:\n        return False\n"
    exec(source, env)
    holds = env.pop("holds")
    return Guard(None, holds, len(tests), " and ".join(tests) or "True" if len(tests) <= SHORT else None, env)


def _may_be_equal(value) -> bool:
    """Could an equal value stand in for this one? (`SCALE = 0.1` run a second time makes another object.)"""
    return not isinstance(value, (types.ModuleType, types.FunctionType, type, np.ndarray, np.ufunc))


def same(a, b) -> bool:
    """The same object, or equal immutable values of one type: 1, 1.0 and True differ, as do 0.0 and -0.0."""
    if a is b:
        return True
    t = type(a)
    if t is not type(b):
        return False
    if t is float:
        return a == b and (a != 0.0 or math.copysign(1.0, a) == math.copysign(1.0, b)) or a != a and b != b
    if t is complex:
        return same(a.real, b.real) and same(a.imag, b.imag)
    if t in _ATOMS:
        return a == b
    if t is tuple:
        return same_items(a, b)
    if t is frozenset:
        return _marks(a) == _marks(b)
    if t is slice:
        return same_items((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    if isinstance(a, np.generic):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    return isinstance(a, np.dtype) and a == b


def _marks(items: frozenset) -> set:
    """Equal for sets of the same values: 1 and True are different ones."""
    return {(type(x), x) if type(x) in _ATOMS else id(x) for x in items}


def same_items(items, then: tuple) -> bool:
    return len(items) == len(then) and all(map(same, items, then))


def same_class(c, names, values, mro) -> bool:
    now = c.__dict__
    return (
        c.__mro__ == mro
        and len(now) == len(names)
        and all(map(operator.is_, now.values(), values))
        and tuple(now) == names
    )


def _cached(f):
    info = f.cache_info()
    return info.misses, info.currsize


_BLOCK = 1 << 16  # elements compared at once: they and the result stay in cache
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def same_array(a: np.ndarray, then: np.ndarray) -> bool:
    """Equal to the last bit, shape and dtype included (both can be assigned)."""
    if a.shape != then.shape or a.dtype != then.dtype:
        return False
    if a.nbytes <= 1024 or a.dtype.itemsize not in _WORDS:
        return a.tobytes() == then.tobytes()
    word = _WORDS[a.dtype.itemsize]
    a, then = a.view(word), then.view(word)
    if a.flags.forc and then.strides == a.strides:
        a, then = a.ravel("K"), then.ravel("K")
        return all(np.array_equal(a[i : i + _BLOCK], then[i : i + _BLOCK]) for i in range(0, a.size, _BLOCK))
    return np.array_equal(a, then)


def random_state() -> tuple:
    """The state of the global random generators; a recording that moves it has drawn from them."""
    state = []
    if "numpy.random" in sys.modules:
        name, key, position, *rest = np.random.get_state()
        state.append((name, key.tobytes(), position, *rest))
    if "random" in sys.modules:
        state.append(sys.modules["random"].getstate())
    return tuple(state)


class Cache:
    """A bounded store of programs under keys; for each key a few, told apart by their guards.

    Reading takes no lock: a reader sees a tuple that is never changed. `find(key)` gives the entry whose
    guard holds, or None. The least recently made keys go first when there are more than `size`.
    """

    VARIANTS = 4  # of one key: a setting that flips back and forth between a few values keeps its programs

    def __init__(self, size: int = 64):
        self.size = size
        self._entries: dict = {}  # key -> tuple of (guard, entry), newest first
        self._lock = threading.Lock()

    def find(self, key, accept=None):
        for guard, entry in self._entries.get(key, ()):
            if guard.holds() and (accept is None or accept(entry)):
                return entry
        return None

    def add(self, key, guard: Guard, entry) -> None:
        with self._lock:
            others = self._entries.pop(key, ())
            self._entries[key] = ((guard, entry), *others)[: self.VARIANTS]
            while len(self._entries) > self.size:
                del self._entries[next(iter(self._entries))]

    def guard_that_holds(self) -> Guard | None:
        """A guard made earlier that still holds: the same world need not be walked again for another
        shape.
        """
        for variants in tuple(self._entries.values())[-1:]:
            if variants[0][0].holds():
                return variants[0][0]
        return None

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)
