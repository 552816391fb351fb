"""autograd.numpy.linalg: numpy.linalg."""

import numpy as _numpy

from ....record.conversions import seen_in

globals().update(seen_in(_numpy.linalg))
