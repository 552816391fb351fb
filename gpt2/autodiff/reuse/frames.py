"""What a frame or a piece of code belongs to: this package, NumPy, a library, a class that Python wrote."""

from __future__ import annotations

import os
import sys
import types

from ..record import source_lines
from . import kinds

PACKAGE = __package__.rpartition(".")[0]
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_OURS_AND_NUMPY = ("numpy.", PACKAGE + ".")  # modules whose data classes Python writes methods for


def is_inside(code: types.CodeType) -> bool:
    """Whether it is code of this package or of NumPy."""
    return source_lines.is_inside(code.co_filename)


def is_own(code: types.CodeType) -> bool:
    return code.co_filename.startswith(_OWN)


def is_ours(c: type) -> bool:
    """Whether it is a class of this package, not only by the name of its module."""
    module = sys.modules.get(c.__module__) if type(c.__module__) is str else None
    ours = module is not None and f"{c.__module__}.".startswith(PACKAGE + ".")
    return ours and vars(module).get(c.__name__) is c


def is_method_of(code: types.CodeType, c: type) -> bool:
    """Whether the class or one of its bases has a method, property or the like with this code."""
    entries = [k.__dict__.get(code.co_name) for k in c.__mro__]
    return any(f.__code__ is code for v in entries for f in kinds.functions_of(v))


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
    functions = [f for k in classes for f in kinds.functions_of(k.__dict__.get("__new__"))]
    return not any(f.__code__ is frame.f_code and not f.__defaults__ for f in functions)


def has_a_function(frame: types.FrameType) -> bool:
    """Whether an enumeration's property calls a function, and reads no computed names (3.12)."""
    variables = frame.f_locals
    return variables.get("instance") is not None and getattr(variables.get("self"), "fget", None) is not None
