"""autograd.numpy: NumPy itself. Its functions answer recorded values, and these names do so too where NumPy
would not ask (np.array([x, y]), also as `from autograd.numpy import array`).
"""

import numpy as _numpy

from ....record.interception import intercepted_in
from . import fft, linalg, numpy_boxes, numpy_jvps, numpy_vjps, numpy_vspaces, numpy_wrapper, random

_OWN = {
    "fft": fft,
    "linalg": linalg,
    "random": random,
    "numpy_boxes": numpy_boxes,
    "numpy_jvps": numpy_jvps,
    "numpy_vjps": numpy_vjps,
    "numpy_vspaces": numpy_vspaces,
    "numpy_wrapper": numpy_wrapper,
}
_INSTEAD = {k: v for k, v in vars(numpy_wrapper).items() if k in numpy_wrapper.NAMES}
globals().update({**intercepted_in(_numpy), **_INSTEAD, **_OWN})
row_stack = numpy_wrapper.vstack
_original_where = _numpy.where  # programs that give np.where a rule look for it under this name
__version__ = _numpy.__version__
