"""autograd.numpy.linalg: numpy.linalg."""

import numpy as _numpy

from ....record.interception import intercepted_in

globals().update(intercepted_in(_numpy.linalg))
