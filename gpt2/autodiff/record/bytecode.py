"""What a function reads besides its arguments, found in its bytecode.

    reads(code).globals   name -> the attribute chains that follow it:
                          `np.linalg.norm` gives {"np": {("linalg", "norm")}}
    reads(code).free      the same for variables of an enclosing function
    reads(code).troubles  why running the code again might not give the same; empty if all can be followed

Functions defined inside are part of it: what they read from elsewhere, the outer one reads. Which values
stand behind the names, and what those read in turn, is for reuse.py, which has the function objects.
"""

from __future__ import annotations

import dis
from dataclasses import dataclass, field
from types import CodeType

# The standard library's stateless part, and NumPy. Modules are named by their first part.
TRUSTED = frozenset(
    "numpy math cmath operator functools itertools collections dataclasses typing types enum numbers abc "
    "contextlib copy bisect heapq fractions string re reprlib warnings __future__ _collections_abc "
    "_functools _operator".split()
)
# Parts of them that draw numbers, read files or run what another module says.
UNTRUSTED = ("numpy.random", "numpy.ctypeslib", "numpy.f2py", "numpy.distutils", "numpy.testing")
OWN = __package__.rpartition(".")[0]  # the compiler itself

# Attributes that lead out of what can be followed, whatever they are taken of: `xp.random`, `f.__globals__`.
OPAQUE_ATTRIBUTES = frozenset(
    "random default_rng RandomState Generator fromfile memmap loadtxt genfromtxt fromregex ctypes environ "
    "__globals__ __builtins__ __subclasses__ f_globals f_locals f_back gi_frame tb_frame".split()
)
OPAQUE_NUMPY = frozenset("load save savez savez_compressed savetxt".split())

# A recording holds for arguments at which nothing is raised, or the same is. A program cannot tell: it does
# not run what was caught, and 1.0 / 0.0 is inf in it.
CATCHES = "it catches exceptions"
# Raised whatever the numbers are, or where a value was looked at, which the recording notes
HARMLESS = frozenset(
    "AttributeError ImportError KeyError ModuleNotFoundError NameError NotImplementedError StopIteration "
    "TypeError".split()
)


def is_trusted(module: str | None) -> bool:
    """May code and values of this module be taken as constant?"""
    if not isinstance(module, str):
        return False
    if module == OWN or module.startswith(OWN + "."):
        return True
    return module.split(".", 1)[0] in TRUSTED and not module.startswith(UNTRUSTED)


@dataclass
class Reads:
    globals: dict[str, set[tuple[str, ...]]] = field(default_factory=dict)
    free: dict[str, set[tuple[str, ...]]] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)


_known: dict[CodeType, Reads] = {}  # code objects compare by content, which is all that is read here
_KNOWN_LIMIT = 4096


def reads(code: CodeType) -> Reads:
    """The analysis of one code object, remembered."""
    found = _known.get(code)
    if found is None:
        if len(_known) >= _KNOWN_LIMIT:
            _known.clear()
        found = _known[code] = _scan(code)
    return found


_ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD"}
_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_FREE = {"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"}


def _scan(code: CodeType) -> Reads:
    found = Reads()
    own_names = set()  # what a class body inside the function has defined: LOAD_NAME finds it first
    instructions = list(dis.get_instructions(code))
    for i, ins in enumerate(instructions):
        op, name = ins.opname, ins.argval
        if op == "STORE_NAME":
            own_names.add(name)
        elif op in _GLOBAL and not (op == "LOAD_NAME" and name in own_names):
            found.globals.setdefault(name, set()).add(_chain(instructions, i))
        elif op in _FREE and name in code.co_freevars:
            found.free.setdefault(name, set()).add(_chain(instructions, i))
        elif op in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            found.troubles.append(f"it assigns the global {name!r}")
        elif op in ("STORE_DEREF", "DELETE_DEREF") and name in code.co_freevars:
            # Harmless where the variable belongs to a function around this one that is itself being analysed;
            # _absorb takes the flag back then.
            found.troubles.append(_nonlocal_trouble(name))
        elif op == "IMPORT_NAME" and not (instructions[i - 2].argval == 0 and is_trusted(name)):
            found.troubles.append(f"it imports {name!r}")
        elif op in _ATTRIBUTE | {"IMPORT_FROM", "LOAD_SUPER_ATTR"} and name in OPAQUE_ATTRIBUTES:
            found.troubles.append(f"it uses .{name}")
        if _catches(instructions, i) and CATCHES not in found.troubles:
            found.troubles.append(CATCHES)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            _absorb(found, reads(const), code)
    return found


def _catches(instructions, i: int) -> bool:
    """Does an exception end here that the values of the arguments may have raised?"""
    op, name = instructions[i].opname, instructions[i].argval
    if op == "CHECK_EXC_MATCH":
        before = instructions[i - 1]
        n = before.arg if before.opname == "BUILD_TUPLE" else 0
        classes = instructions[i - 1 - n : i - 1] if n else [before]
        return any(c.opname not in _GLOBAL or c.argval not in HARMLESS for c in classes)
    if op == "PUSH_EXC_INFO":  # `except:` drops the exception; `finally:` raises it again
        return instructions[i + 1].opname == "POP_TOP"
    return op == "CHECK_EG_MATCH" or name == "suppress" and op in _GLOBAL | _ATTRIBUTE


def catches(code: CodeType) -> bool:
    return CATCHES in reads(code).troubles


def _chain(instructions, i: int) -> tuple[str, ...]:
    """The attributes taken, one after another, of what instruction i loads."""
    names = []
    for ins in instructions[i + 1 :]:
        if ins.opname not in _ATTRIBUTE:
            break
        names.append(ins.argval)
    return tuple(names)


def _nonlocal_trouble(name: str) -> str:
    return f"it assigns {name!r} of an enclosing function"


def _absorb(found: Reads, inner: Reads, code: CodeType) -> None:
    """Add to `found`, of `code`, what a function defined inside it reads."""
    for name, chains in inner.globals.items():
        found.globals.setdefault(name, set()).update(chains)
    for name, chains in inner.free.items():
        if name in code.co_freevars:  # else it is a local variable of `code`
            found.free.setdefault(name, set()).update(chains)
    allowed = {_nonlocal_trouble(n) for n in code.co_cellvars}
    found.troubles += [t for t in inner.troubles if t not in allowed]
