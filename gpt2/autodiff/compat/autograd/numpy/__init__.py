"""autograd.numpy: NumPy itself. Its functions take recorded values; those that NumPy does not dispatch, such
as np.array([x, y]), take them under these names, also as `from autograd.numpy import array`.
"""

import sys
from types import ModuleType
from typing import Any

import numpy as _numpy

from ....record.interception import intercepted_in
from ..core import VSpace as _VSpace
from . import numpy_boxes, numpy_vjps, numpy_wrapper


def _module(name: str, values: dict[str, Any]) -> ModuleType:
    """A submodule that can be imported, with these values."""
    module = sys.modules[f"{__name__}.{name}"] = ModuleType(f"{__name__}.{name}", f"autograd.numpy.{name}")
    vars(module).update(values)
    return module


def _broadcast(x: Any, target: Any) -> Any:
    """x in the shape of the target."""
    return _numpy.broadcast_to(x, _numpy.shape(target))


_OWN = {
    "numpy_boxes": numpy_boxes,
    "numpy_vjps": numpy_vjps,
    "numpy_wrapper": numpy_wrapper,
    "fft": _module("fft", intercepted_in(_numpy.fft)),
    "linalg": _module("linalg", intercepted_in(_numpy.linalg)),
    "random": _module("random", {k: v for k, v in vars(_numpy.random).items() if not k.startswith("_")}),
    # rules of NumPy's functions are the compiler's (docs/ops.md); one class serves real and complex arrays
    "numpy_jvps": _module("numpy_jvps", {"broadcast": _broadcast}),
    "numpy_vspaces": _module("numpy_vspaces", {"ArrayVSpace": _VSpace, "ComplexArrayVSpace": _VSpace}),
}
_REPLACED = {k: v for k, v in vars(numpy_wrapper).items() if k in numpy_wrapper.NAMES}
globals().update({**intercepted_in(_numpy), **_REPLACED, **_OWN})
row_stack = numpy_wrapper.vstack
_original_where = _numpy.where  # programs that give np.where a rule look for it under this name
__version__ = _numpy.__version__
