"""An automatic-differentiation compiler for NumPy functions.

    from gpt2 import autodiff as ad

    ad.grad(f)(x)     ad.value_and_grad(f)(x)     ad.vjp(f, x)     ad.jvp(f, (x,), (dx,))     ad.compile(f)(x)

f is ordinary NumPy. It is recorded, differentiated as a graph, optimised, and written out as a NumPy program,
which ad.source shows. docs/autodiff.md is the guide.
"""

import importlib
import os
import pkgutil
import re
import sys
import threading

# Loaded on first use: importing the compiler costs nothing until it compiles. The names are those that type
# checkers read in __init__.pyi
_STUB = pkgutil.get_data(__name__, "__init__.pyi").decode()
_HOME = {
    name: module
    for module, names in re.findall(r"^from \.([\w.]+) import (.+)$", _STUB, re.MULTILINE)
    for name in names.split(", ")
}

# What JAX and autograd call them
_SYNONYMS = {
    "jit": "compile",
    "make_jaxpr": "stages",
    "fori_loop": "scan",
    "make_vjp": "vjp",
    "make_jvp": "jvp",
    "deriv": "grad",
    "gradient": "grad",
}

_ROOMS = ("tree",)  # used by their own names, as ad.tree.map

__all__ = sorted([*_HOME, *_ROOMS])


# A fork waits until no thread imports: in the child that thread, and with it the module, would never be done
_importing = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_importing.release
    )


def __getattr__(name):
    if name in _ROOMS:
        with _importing:
            return importlib.import_module(f".{name}", __name__)
    if name not in _HOME:
        found = {"name": name, "obj": sys.modules[__name__]}  # with which Python says what may be meant
        other = f"; here it is ad.{_SYNONYMS[name]}" if name in _SYNONYMS else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{other}", **found)
    with _importing:
        value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
