"""autograd.numpy: NumPy itself. Its functions answer recorded values, and these names do so too where NumPy
would not ask (np.array([x, y]), also as `from autograd.numpy import array`).
"""

import numpy as _numpy

from ....record.conversions import seen_in
from . import fft, linalg, numpy_boxes, numpy_jvps, numpy_vjps, numpy_vspaces, numpy_wrapper, random

# Over NumPy's names, in this order: autograd's functions of those names, and its modules
_modules = {k: v for k, v in globals().items() if k in "fft linalg random".split()}
globals().update({**seen_in(_numpy), **{k: v for k, v in vars(numpy_wrapper).items() if k in numpy_wrapper.NAMES}})
globals().update(_modules)
row_stack = numpy_wrapper.vstack
__version__ = _numpy.__version__
