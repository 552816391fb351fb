"""autograd.numpy.fft: numpy.fft."""

import numpy as _numpy

from ....record.conversions import seen_in

globals().update(seen_in(_numpy.fft))
