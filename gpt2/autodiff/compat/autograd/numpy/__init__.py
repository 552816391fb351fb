"""autograd.numpy: NumPy itself. Its functions answer recorded values, and these names do so too where NumPy
would not ask (np.array([x, y]), also as `from autograd.numpy import array`).
"""

import numpy as _numpy

from ....record.conversions import seen_in
from . import fft, linalg, numpy_boxes, numpy_jvps, numpy_vjps, numpy_vspaces, numpy_wrapper, random

_own = (fft, linalg, numpy_boxes, numpy_jvps, numpy_vjps, numpy_vspaces, numpy_wrapper, random)

globals().update({k: v for k, v in seen_in(_numpy).items() if k not in globals()})
row_stack = _numpy.vstack
concatenate_args = numpy_wrapper.concatenate_args
make_diagonal = numpy_wrapper.make_diagonal
where = numpy_wrapper.where
metadata = numpy_wrapper.metadata
__version__ = _numpy.__version__
