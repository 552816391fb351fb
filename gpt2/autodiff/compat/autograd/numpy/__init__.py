"""autograd.numpy: NumPy itself. Its functions take recorded values; those that NumPy does not dispatch, such
as np.array([x, y]), take them under these names, also as `from autograd.numpy import array`.
"""

import sys
from types import ModuleType
from typing import Any

import numpy as _numpy

from ....record.interception import intercepted_in
from . import numpy_wrapper


def _module(name: str, values: dict[str, Any]) -> ModuleType:
    module = ModuleType(f"{__name__}.{name}", f"autograd.numpy.{name}")
    vars(module).update(values)
    return module


_MODULES = {
    "fft": _module("fft", intercepted_in(_numpy.fft)),
    "linalg": _module("linalg", intercepted_in(_numpy.linalg)),
    "random": _module("random", {k: v for k, v in vars(_numpy.random).items() if not k.startswith("_")}),
    **dict.fromkeys(("numpy_boxes", "numpy_jvps", "numpy_vjps", "numpy_vspaces"), numpy_wrapper),
}
sys.modules.update({f"{__name__}.{name}": module for name, module in _MODULES.items()})
_REPLACED = {k: v for k, v in vars(numpy_wrapper).items() if k in numpy_wrapper.NAMES}
globals().update({**intercepted_in(_numpy), **_REPLACED, **_MODULES})
row_stack = numpy_wrapper.vstack
_original_where = _numpy.where  # programs that give np.where a rule look for it under this name
__version__ = _numpy.__version__
